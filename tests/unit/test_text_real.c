/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real vocabulary of SmolLM2, whose GGUF file is named by HEADRACE_TEST_SMOLLM2: ids of many texts equal to those that the Python
 * package `tokenizers` and llama.cpp agree on (tools/make_token_cases.py, tests/data/smollm2_tokens.json).
 */
#include "support/test_case.h"
#include "support/text_case.h"

static mem *m;
static tokenizer *t;

static int set_up(void **state) {
    (void)state;
    const char *path = os_env("HEADRACE_TEST_SMOLLM2");
    source *s = NULL;
    source_options how = {0};
    error err = {0};
    if (mem_create(&m) != STATUS_OK) return 1;
    if (source_open(m, path, &how, &s, &err) != STATUS_OK || tokenizer_open(m, s, NULL, &t, &err) != STATUS_OK) {
        print_error("%s\n", err.text);
        return 1;
    }
    source_close(s);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    tokenizer_close(t);
    return mem_destroy(m) == STATUS_OK ? 0 : 1;
}

static void facts(void **state) {
    (void)state;
    size_t n;
    assert_string_equal(tokenizer_kind(t), "gpt2/smollm");
    assert_int_equal(tokenizer_size(t), 49152);
    assert_int_equal(tokenizer_bos_id(t), 1);
    assert_false(tokenizer_adds_bos(t));
    assert_true(tokenizer_is_end(t, 2) && tokenizer_is_end(t, 0) && !tokenizer_is_end(t, 1));
    tokenizer_end_ids(t, &n);
    assert_int_equal(n, 2);
    assert_non_null(tokenizer_chat_template(t));
    assert_contains(tokenizer_chat_template(t), "<|im_start|>assistant");
    const char *piece = tokenizer_piece(t, 260, &n);
    assert_int_equal(n, 4);
    assert_memory_equal(piece, " the", 4);
}

static void ids_and_text(void **state) {
    (void)state;
    json_t *root = text_case_json("smollm2_tokens.json"), *one;
    size_t i, n_exact = 0;
    token_list ids;
    textbuf out;
    error err = {0};
    token_list_init(&ids, m, MEM_REQUEST);
    textbuf_init(&out, m, MEM_REQUEST);
    assert_true(json_array_size(json_object_get(root, "cases")) > 1500);
    json_array_foreach(json_object_get(root, "cases"), i, one) {
        const json_t *text = json_object_get(one, "text");
        bool special = !json_is_false(json_object_get(one, "special"));
        ids.n = 0;
        if (tokenizer_encode(t, json_string_value(text), json_string_length(text), TOKENIZER_BOS_DEFAULT, special, &ids, &err) != STATUS_OK)
            fail_msg("case %zu: %s", i, err.text);
        char what[64];
        snprintf(what, sizeof what, "case %zu", i);
        text_case_expect_ids(&ids, json_object_get(one, "ids"), what);
        textbuf_clear(&out);
        text_case_decode(m, t, ids.ids, ids.n, false, &out);
        if (json_is_true(json_object_get(one, "lossy"))) continue;
        if (out.len != json_string_length(text) || memcmp(textbuf_text(&out), json_string_value(text), out.len) != 0)
            fail_msg("case %zu: text changed", i);
        n_exact++;
    }
    assert_true(n_exact > 1000);
    textbuf_deinit(&out);
    token_list_deinit(&ids);
    json_decref(root);
}

int main(void) {
    if (!os_env("HEADRACE_TEST_SMOLLM2")) {
        puts("skipped: HEADRACE_TEST_SMOLLM2 does not name the model (tools/get_model.sh)");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(facts), cmocka_unit_test(ids_and_text)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
