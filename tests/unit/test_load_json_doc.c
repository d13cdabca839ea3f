/* SPDX-License-Identifier: Apache-2.0 */
/* What is charged for a JSON tree is at least what jansson takes, at its worst shapes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <malloc.h>
#include <stdio.h>
#include <string.h>

#include "base/textbuf.h"
#include "load/json_doc.h"

static mem *m;

static int set_up(void **state) {
    (void)state;
    return mem_create(&m) == STATUS_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    return mem_destroy(m) == STATUS_OK ? 0 : -1;
}

/* n times a piece with its number, between brackets and separated by commas. */
static void build(textbuf *t, char open, char close, const char *piece, int n) {
    textbuf_clear(t);
    textbuf_add(t, &open, 1);
    for (int i = 0; i < n; i++) {
        if (i > 0) textbuf_adds(t, ",");
        if (open == '{') textbuf_addf(t, "\"%x\":", (unsigned)i);
        textbuf_adds(t, piece);
    }
    textbuf_add(t, &close, 1);
}

static void test_bound_of_memory(void **state) {
    (void)state;
    static const char *const pieces[] = {"0",
                                         "1.5",
                                         "\"\"",
                                         "\"abcdefghijklmnopqrstuvwxyz\"",
                                         "[]",
                                         "[0]",
                                         "[\"\"]",
                                         "{}",
                                         "{\"a\":\"\"}",
                                         "null",
                                         "[[[[]]]]",
                                         "[\"ab\",\"cd\"]",
                                         "{\"a\":0,\"b\":\"\"}"};
    textbuf t;
    int n_cases = 0, n_measured = 0;
    textbuf_init(&t, m, MEM_PROCESS);
    for (size_t k = 0; k < sizeof pieces / sizeof pieces[0]; k++)
        for (int n = 1; n <= 20000; n *= 11)
            for (int object = 0; object < 2; object++, n_cases++) {
                json_doc d;
                error err = {0};
                mem_usage u;
                build(&t, object ? '{' : '[', object ? '}' : ']', pieces[k], n);
                size_t before = mallinfo2().uordblks;
                assert_int_equal(json_doc_parse(m, MEM_MODEL, textbuf_text(&t), t.len, "test", 0, &d, &err), STATUS_OK);
                size_t taken = mallinfo2().uordblks - before;
                mem_get_usage(m, MEM_MODEL, &u);
                assert_int_equal(u.used_bytes, d.charged_bytes);
                if (taken > d.charged_bytes) fail_msg("%d times %s: %zu bytes taken, %zu charged", n, pieces[k], taken, d.charged_bytes);
                n_measured += taken > 0; /* a sanitizer tells nothing; small ones come from freed memory that counts as taken */
                json_doc_free(&d);
                mem_get_usage(m, MEM_MODEL, &u);
                assert_int_equal(u.used_bytes, 0);
            }
    assert_int_equal(n_cases, 13 * 5 * 2);
    assert_true(n_measured == 0 || n_measured > n_cases / 2);
    textbuf_deinit(&t);
}

/* Brackets inside of texts, escapes before quotes: the scan sees what the parser sees. */
static void test_texts_do_not_count(void **state) {
    (void)state;
    json_doc d, plain;
    error err = {0};
    static const char text[] = "[\"[[[[[[[{{{{,,,:::\\\"[[[\",\"\\\\\"]", same[] = "[\"00000000000000000\\\"000\",\"\\\\\"]";
    assert_int_equal(json_doc_parse(m, MEM_MODEL, text, sizeof text - 1, "test", 0, &d, &err), STATUS_OK);
    assert_int_equal(json_doc_parse(m, MEM_MODEL, same, sizeof same - 1, "test", 0, &plain, &err), STATUS_OK);
    assert_int_equal(d.charged_bytes, plain.charged_bytes);
    json_doc_free(&d);
    json_doc_free(&plain);
}

static void test_big_integers(void **state) {
    (void)state;
    json_doc d;
    error err = {0};
    static const char text[] = "{\"a\":1000000000000000019884624838656,\"b\":7}";
    assert_int_equal(json_doc_parse(m, MEM_MODEL, text, sizeof text - 1, "test", 0, &d, &err), STATUS_FORMAT);
    assert_int_equal(json_doc_parse(m, MEM_MODEL, text, sizeof text - 1, "test", JSON_DOC_BIG_INTEGERS, &d, &err), STATUS_OK);
    assert_true(json_real_value(json_object_get(d.root, "a")) == 1e30);
    json_doc_free(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bound_of_memory), cmocka_unit_test(test_texts_do_not_count),
                                       cmocka_unit_test(test_big_integers)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
