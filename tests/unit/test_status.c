/* SPDX-License-Identifier: Apache-2.0 */
/* Status names, error detail, and the cleaning of text. What is well-formed UTF-8 is asked of iconv. */
#include "support/test_case.h"

#include <iconv.h>

#include "base/printable.h"

static void names_are_known_and_distinct(void **state) {
    (void)state;
    for (int i = 0; i < STATUS_COUNT; i++) {
        const char *name = status_name((status)i);
        assert_true(name[0] != 0);
        assert_string_not_equal(name, "unknown");
        for (int k = 0; k < i; k++) assert_string_not_equal(name, status_name((status)k));
    }
    assert_string_equal(status_name(STATUS_COUNT), "unknown");
    assert_string_equal(status_name((status)-1), "unknown");
    assert_string_equal(status_name(STATUS_NOT_NOW), "does_not_fit_now");
}

static void set_reports_and_fails(void **state) {
    (void)state;
    error err = {0};
    assert_int_equal(error_set(&err, STATUS_FORMAT, "gguf: %s at %d", "bad", 7), STATUS_FORMAT);
    assert_int_equal(err.code, STATUS_FORMAT);
    assert_string_equal(err.text, "gguf: bad at 7");
    assert_int_equal(error_set(NULL, STATUS_IO, "nobody listens"), STATUS_IO);
    error_note(NULL, STATUS_IO, "nobody listens");
    error_prefix(NULL, "nobody");
    error_prefix(&err, "load %s", "x.gguf");
    assert_string_equal(err.text, "load x.gguf: gguf: bad at 7");
    assert_int_equal(err.code, STATUS_FORMAT);
    error_note(&err, STATUS_IO, "outer: %s", err.text); /* an argument inside the target */
    assert_string_equal(err.text, "outer: load x.gguf: gguf: bad at 7");
}

static void long_text_is_cut_at_a_code_point(void **state) {
    (void)state;
    static const char *const points[] = {"a", "\xC3\xBC", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};
    for (size_t width = 1; width <= 4; width++) {
        for (size_t shift = 0; shift < 4; shift++) {
            char text[3 * ERROR_TEXT_BYTES] = "xxx";
            size_t n = shift;
            while (n + width < sizeof text) {
                memcpy(text + n, points[width - 1], width);
                n += width;
            }
            text[n] = 0;
            error err = {0};
            error_note(&err, STATUS_FAILED, "%s", text);
            size_t kept = strlen(err.text), room = ERROR_TEXT_BYTES - 1;
            assert_int_equal(kept, shift + (room - shift) / width * width);
            assert_memory_equal(err.text, text, kept);
        }
    }
}

static void unsafe_bytes_are_replaced(void **state) {
    (void)state;
    error err = {0};
    error_note(&err, STATUS_FORMAT, "%s", "a\x1B[31m\xFFz\xC0\xAF\xC2\x9B\x7F\ttab\nline \xE2\x82");
    assert_string_equal(err.text, "a?[31m?z?????\ttab\nline ??");
    error_note(&err, STATUS_FORMAT, "%s", "gr\xC3\xBC\xC3\x9F \xE2\x82\xAC \xF0\x9F\x98\x80");
    assert_string_equal(err.text, "gr\xC3\xBC\xC3\x9F \xE2\x82\xAC \xF0\x9F\x98\x80");
}

static bool iconv_accepts(iconv_t converter, const char *s, size_t n) {
    char copy[8], out[64];
    memcpy(copy, s, n);
    char *from = copy, *to = out;
    size_t left = n, room = sizeof out;
    iconv(converter, NULL, NULL, NULL, NULL);
    return iconv(converter, &from, &left, &to, &room) == 0 && left == 0;
}

static void check_sequence(iconv_t converter, const char *s, size_t n) {
    if (memchr(s, 0, n)) return;
    bool ours = printable_utf8_prefix(s, n) == n;
    if (ours != iconv_accepts(converter, s, n))
        fail_msg("%02x %02x %02x %02x of %zu bytes: ours %d", s[0] & 255, s[1] & 255, s[2] & 255, s[3] & 255, n, ours);
}

static void utf8_agrees_with_iconv(void **state) {
    (void)state;
    iconv_t converter = iconv_open("UTF-32LE", "UTF-8");
    if (converter == (iconv_t)-1) skip();
    static const unsigned char edges[] = {0x01, 0x41, 0x7F, 0x80, 0x81, 0x8F, 0x90, 0x9F, 0xA0,
                                          0xBF, 0xC0, 0xC2, 0xDF, 0xE0, 0xED, 0xF0, 0xF4, 0xFF};
    for (unsigned a = 1; a < 256; a++) {
        for (unsigned b = 0; b < 256; b++) {
            char two[5] = {(char)a, (char)b};
            check_sequence(converter, two, 1 + (b != 0));
            for (size_t i = 0; i < sizeof edges; i++) {
                char three[5] = {(char)a, (char)b, (char)edges[i]};
                check_sequence(converter, three, 3);
                if (a < 0xE0) continue;
                for (size_t k = 0; k < sizeof edges; k++) {
                    char four[5] = {(char)a, (char)b, (char)edges[i], (char)edges[k]};
                    check_sequence(converter, four, 4);
                }
            }
        }
    }
    iconv_close(converter);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_known_and_distinct),     cmocka_unit_test(set_reports_and_fails),
        cmocka_unit_test(long_text_is_cut_at_a_code_point), cmocka_unit_test(unsafe_bytes_are_replaced),
        cmocka_unit_test(utf8_agrees_with_iconv),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
