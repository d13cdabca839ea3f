/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns: cut as the Python package `tokenizers` cuts (Oniguruma; tools/make_tokenizer_tests.py); what is not understood is refused by
 * name. */
#include "support/test_case.h"
#include "support/text_case.h"

#include "text/pattern.h"
#include "text/pre_tokenizer.h"

typedef struct pieces {
    const json_t *want, *one;
    size_t n;
} pieces;

static status take_piece(void *ctx, const char *word, size_t n, error *err) {
    pieces *p = ctx;
    (void)err;
    const json_t *want = json_array_get(p->want, p->n);
    const char *regex = json_string_value(json_object_get(p->one, "pattern"));
    if (!want) fail_msg("pattern %s: piece %zu '%.*s' is not expected", regex, p->n, (int)n, word);
    if (json_string_length(want) != n || memcmp(json_string_value(want), word, n) != 0)
        fail_msg("pattern %s %s: piece %zu is '%.*s', expected '%s'", regex, json_string_value(json_object_get(p->one, "behavior")), p->n,
                 (int)n, word, json_string_value(want));
    p->n++;
    return STATUS_OK;
}

static pre_behavior behavior_of(const char *name) {
    static const char *const names[] = {"removed", "isolated", "contiguous", "merged_with_previous", "merged_with_next"};
    for (int i = 0; i < 5; i++)
        if (strcmp(names[i], name) == 0) return (pre_behavior)i;
    fail_msg("behaviour %s", name);
    return PRE_REMOVED;
}

static void cuts_as_upstream(void **state) {
    (void)state;
    mem *m = test_mem();
    error err = {0};
    pattern_context *c;
    json_t *root = text_case_json("tokenizer_cases.json"), *cases = json_object_get(root, "splits"), *one;
    size_t i;
    assert_int_equal(pattern_context_create(m, MEM_TOKENIZER, &c, &err), STATUS_OK);
    assert_true(json_array_size(cases) > 100);
    json_array_foreach(cases, i, one) {
        pre_tokenizer p;
        pre_scratch s;
        const json_t *pattern_text = json_object_get(one, "pattern"), *text = json_object_get(one, "text");
        pieces got = {.want = json_object_get(one, "pieces"), .one = one};
        pre_tokenizer_init(&p, c);
        if (pre_tokenizer_add_split(&p, json_string_value(pattern_text), json_string_length(pattern_text),
                                    json_is_true(json_object_get(one, "literal")),
                                    behavior_of(json_string_value(json_object_get(one, "behavior"))),
                                    json_is_true(json_object_get(one, "invert")), &err) != STATUS_OK)
            fail_msg("%s", err.text);
        assert_int_equal(pre_scratch_init(&s, m, c, &err), STATUS_OK);
        assert_int_equal(pre_tokenizer_run(&p, &s, json_string_value(text), json_string_length(text), true, take_piece, &got, &err),
                         STATUS_OK);
        if (got.n != json_array_size(got.want))
            fail_msg("pattern %s: %zu pieces, expected %zu", json_string_value(pattern_text), got.n, json_array_size(got.want));
        pre_scratch_deinit(&s);
        pre_tokenizer_deinit(&p);
    }
    pattern_context_destroy(c);
    json_decref(root);
    test_mem_check(m);
}

static void refuses_by_name(void **state) {
    (void)state;
    static const char *const bad[][2] = {{"a[b&&c]", "an intersection at byte 3"},
                                         {"a\\Gb", "the escape \\G at byte 2"},
                                         {"\\X", "the escape \\X"},
                                         {"\\K", "the escape \\K"},
                                         {"\\R", "the escape \\R"},
                                         {"[\\W]", "the escape \\W"},
                                         {"\\Qa\\E", "the escape \\Q"},
                                         {"(*COMMIT)a", "(* at byte 0"},
                                         {"(?s).", "this kind of group"},
                                         {"(?x) a", "this kind of group"},
                                         {"(?~a)", "this kind of group"},
                                         {"(?R)", "this kind of group"},
                                         {"(?1)", "this kind of group"},
                                         {"(?C1)", "this kind of group"},
                                         {"(?(1)a)", "this kind of group"},
                                         {"(?P<n>a)", "this kind of group"},
                                         {"(?<n>a)", "this kind of group"},
                                         {"a(?i)b|c", "an option in the middle"},
                                         {"[[:alpha:]]", "a POSIX bracket"},
                                         {"[a[^b]]", "a class with '^' within a class"},
                                         {"\\pL", "\\p without {name}"},
                                         {"\\p{Punct}", "this property"},
                                         {"\\p{No Such Script}", "unknown property"},
                                         {"[a", "a class without end"},
                                         {"(a", "a group without end"},
                                         {"(?i", "a group without end"},
                                         {"a)", "a closing parenthesis"},
                                         {"a\\", "a backslash at the end"},
                                         {"\\x{110000}", "this code point"},
                                         {"\\x{d800}", "this code point"},
                                         {"\\u12", "this code point"},
                                         {"\xff", "a byte that is not text"},
                                         {"[\xff]", "a byte that is not text"},
                                         {"*a", "quantifier does not follow"},
                                         {"(?<=a+)b", "lookbehind assertion is not fixed length"},
                                         {"\\2(a)", "reference to non-existent subpattern"}};
    mem *m = test_mem();
    error err = {0};
    pattern_context *c;
    assert_int_equal(pattern_context_create(m, MEM_TOKENIZER, &c, &err), STATUS_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        pattern *p = NULL;
        err = (error){0};
        if (pattern_compile(c, bad[i][0], strlen(bad[i][0]), false, &p, &err) != STATUS_UNSUPPORTED)
            fail_msg("%s: accepted or another error: %s", bad[i][0], err.text);
        assert_contains(err.text, bad[i][1]);
    }
    char deep[700];
    memset(deep, '(', sizeof deep);
    pattern *p = NULL;
    assert_int_equal(pattern_compile(c, deep, sizeof deep, false, &p, &err), STATUS_UNSUPPORTED);
    char *big = test_malloc(PATTERN_MAX_BYTES + 1);
    memset(big, 'a', PATTERN_MAX_BYTES + 1);
    assert_int_equal(pattern_compile(c, big, PATTERN_MAX_BYTES + 1, false, &p, &err), STATUS_UNSUPPORTED);
    test_free(big);
    pattern_context_destroy(c);
    test_mem_check(m);
}

/* A pattern that backtracks without bound ends in an error. */
static void bounded_steps(void **state) {
    (void)state;
    mem *m = test_mem();
    error err = {0};
    pattern_context *c;
    pattern_search *s;
    pattern *p;
    pattern_walk w;
    bool found;
    size_t begin, end;
    char text[64];
    memset(text, 'a', sizeof text);
    assert_int_equal(pattern_context_create(m, MEM_TOKENIZER, &c, &err), STATUS_OK);
    assert_int_equal(pattern_search_create(c, &s, &err), STATUS_OK);
    assert_int_equal(pattern_compile(c, "(a|aa)+[bd]", 11, false, &p, &err), STATUS_OK);
    pattern_walk_init(&w, p, s, text, sizeof text);
    text[63] = 'c';
    assert_int_equal(pattern_walk_next(&w, &found, &begin, &end, &err), STATUS_FAILED);
    assert_contains(err.text, "match limit");
    pattern_destroy(p);
    pattern_search_destroy(s);
    pattern_context_destroy(c);
    test_mem_check(m);
}

static void all_names_compile(void **state) {
    (void)state;
    mem *m = test_mem();
    error err = {0};
    pattern_context *c;
    size_t n = 0;
    assert_int_equal(pattern_context_create(m, MEM_TOKENIZER, &c, &err), STATUS_OK);
    for (const char *name; (name = pre_named_at(n)) != NULL; n++) {
        pre_tokenizer p;
        pre_tokenizer_init(&p, c);
        const pre_named *named = pre_named_find(name, strlen(name));
        assert_non_null(named);
        assert_string_equal(named->name, name);
        if (pre_named_add(named, &p, &err) != STATUS_OK) fail_msg("%s: %s", name, err.text);
        assert_true(p.n > 0);
        pre_tokenizer_deinit(&p);
    }
    assert_true(n >= 50);
    assert_null(pre_named_find("smoll", 5));
    assert_null(pre_named_find("", 0));
    pattern_context_destroy(c);
    test_mem_check(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(cuts_as_upstream), cmocka_unit_test(refuses_by_name),
                                       cmocka_unit_test(bounded_steps), cmocka_unit_test(all_names_compile)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
