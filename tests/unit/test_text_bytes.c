/* SPDX-License-Identifier: Apache-2.0 */
/* UTF-8 and the byte alphabet. Replacement characters are where Python's errors="replace" puts them (tools/make_tokenizer_tests.py). */
#include "support/test_case.h"
#include "support/text_case.h"

#include "text/byte_alphabet.h"
#include "base/utf8.h"

static size_t from_hex(const char *hex, char *out) {
    size_t n = 0;
    for (unsigned byte; sscanf(hex + 2 * n, "%2x", &byte) == 1; n++) out[n] = (char)byte;
    return n;
}

static void lossy_as_python(void **state) {
    (void)state;
    mem *m = test_mem();
    json_t *root = text_case_json("tokenizer_cases.json"), *cases = json_object_get(root, "lossy"), *one;
    size_t i;
    assert_true(json_array_size(cases) > 90);
    json_array_foreach(cases, i, one) {
        char bytes[256];
        size_t n = from_hex(json_string_value(json_object_get(one, "hex")), bytes);
        const json_t *want = json_object_get(one, "text");
        for (size_t step = 1; step <= n; step++) { /* in chunks of each size: the cut must not show */
            textbuf out;
            utf8_pending p = {0};
            textbuf_init(&out, m, MEM_REQUEST);
            for (size_t at = 0; at < n; at += step) {
                utf8_lossy_add(&p, bytes + at, n - at < step ? n - at : step, &out);
                assert_true(utf8_check(textbuf_text(&out), out.len, NULL));
                assert_true(p.n < UTF8_MAX_BYTES);
            }
            utf8_lossy_finish(&p, &out);
            assert_int_equal(out.len, json_string_length(want));
            assert_memory_equal(textbuf_text(&out), json_string_value(want), out.len);
            textbuf_deinit(&out);
        }
    }
    json_decref(root);
    test_mem_check(m);
}

static void finds_the_first_bad_byte(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t n, bad;
    } cases[] = {{"abc\xff", 4, 3},          {"a\xc3", 2, 1},
                 {"\xc3\xa9\xe2\x82", 4, 2}, {"\xed\xa0\x80", 3, 0},
                 {"x\xc0\x80", 3, 1},        {"\xf4\x90\x80\x80", 4, 0},
                 {"\xe0\x9f\xbf", 3, 0},     {"\xf0\x8f\xbf\xbf", 4, 0},
                 {"ab\x80", 3, 2},           {"\xf8\x88\x80\x80\x80", 5, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t bad = 99;
        assert_false(utf8_check(cases[i].text, cases[i].n, &bad));
        assert_int_equal(bad, cases[i].bad);
    }
    assert_true(utf8_check("", 0, NULL));
    assert_true(utf8_check("\0\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", 22, NULL));
}

static void code_points_round_trip(void **state) {
    (void)state;
    size_t n = 0;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        if (cp >= 0xd800 && cp < 0xe000) continue;
        char out[UTF8_MAX_BYTES];
        uint32_t back = UINT32_MAX;
        size_t len = utf8_encode(cp, out);
        assert_int_equal(utf8_decode(out, len, &back), len);
        assert_int_equal(back, cp);
        if (len > 1) assert_int_equal(utf8_decode(out, len - 1, &back), 0);
        n++;
    }
    assert_int_equal(n, 0x110000 - 0x800);
}

static void alphabet_of_bytes(void **state) {
    (void)state;
    /* Spot values: the published vocabularies write space, newline, 0xff, soft hyphen and NUL so. */
    assert_int_equal(byte_alphabet_char(' '), 0x120);
    assert_int_equal(byte_alphabet_char('\n'), 0x10a);
    assert_int_equal(byte_alphabet_char(0xff), 0xff);
    assert_int_equal(byte_alphabet_char(0xad), 0x143);
    assert_int_equal(byte_alphabet_char(0), 0x100);
    assert_int_equal(byte_alphabet_char(0x7f), 0x121);
    assert_int_equal(byte_alphabet_char(0xa0), 0x142);
    int n = 0;
    for (uint32_t cp = 0; cp < 0x400; cp++) {
        int byte = byte_alphabet_byte(cp);
        if (byte < 0) continue;
        n++;
        assert_int_equal(byte_alphabet_char((uint8_t)byte), cp);
    }
    assert_int_equal(n, 256);
    char all[256], spelled[512], back[512];
    for (int i = 0; i < 256; i++) all[i] = (char)i;
    size_t n_spelled = byte_alphabet_spell(all, 256, spelled), n_back = 0;
    assert_true(utf8_check(spelled, n_spelled, NULL));
    assert_true(byte_alphabet_to_bytes(spelled, n_spelled, back, &n_back));
    assert_int_equal(n_back, 256);
    assert_memory_equal(back, all, 256);
    assert_false(byte_alphabet_to_bytes("a b", 3, back, &n_back));
    assert_false(byte_alphabet_to_bytes("\xe2\x96\x81", 3, back, &n_back));
    assert_false(byte_alphabet_to_bytes("\xc4", 1, back, &n_back));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(lossy_as_python), cmocka_unit_test(finds_the_first_bad_byte),
                                       cmocka_unit_test(code_points_round_trip), cmocka_unit_test(alphabet_of_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
