/* SPDX-License-Identifier: Apache-2.0 */
/* Vocabularies that no converter writes: refused with the reason, or loaded well-formed; never a crash. */
#include "support/test_case.h"
#include "support/text_case.h"

static mem *m;
static scratch_dir dir;

static int set_up(void **state) {
    (void)state;
    return scratch_dir_create(&dir) ? 0 : 1;
}

static int tear_down(void **state) {
    (void)state;
    scratch_dir_destroy(&dir);
    return 0;
}

static const char *const tokens[] = {"a", "b", "c", "ab", "abc", "<s>", "\xc4\xa0"};
static const char *const merges[] = {"a b", "ab c"};
static const int32_t types[] = {1, 1, 1, 1, 1, 3, 1};
enum { N_TOKENS = sizeof tokens / sizeof tokens[0], N_MERGES = sizeof merges / sizeof merges[0] };

static void begin(gguf_writer *w, const char *const *t, size_t n_t, const char *const *me, size_t n_me, const int32_t *ty, size_t n_ty) {
    text_case_begin(w, m, "gpt2", "gpt-2");
    if (t) gguf_writer_texts(w, "tokenizer.ggml.tokens", t, n_t);
    if (me) gguf_writer_texts(w, "tokenizer.ggml.merges", me, n_me);
    if (ty) gguf_writer_array(w, "tokenizer.ggml.token_type", GGUF_W_I32, ty, sizeof *ty, n_ty);
}

static void expect_refused(gguf_writer *w, status want, const char *part) {
    tokenizer *t = NULL;
    error err = {0};
    status rc = text_case_open(m, &dir, w, NULL, &t, &err);
    gguf_writer_deinit(w);
    if (rc == STATUS_OK) fail_msg("loaded instead of: %s", part);
    if (rc != want) fail_msg("%s instead of %s: %s", status_name(rc), status_name(want), err.text);
    assert_contains(err.text, part);
}

/* Opens, encodes and decodes something, closes. */
static void expect_loaded(gguf_writer *w, const char *text, const int32_t *ids, size_t n) {
    tokenizer *t = NULL;
    error err = {0};
    token_list list;
    textbuf out;
    if (text_case_open(m, &dir, w, NULL, &t, &err) != STATUS_OK) fail_msg("%s", err.text);
    gguf_writer_deinit(w);
    token_list_init(&list, m, MEM_REQUEST);
    textbuf_init(&out, m, MEM_REQUEST);
    assert_int_equal(tokenizer_encode(t, text, strlen(text), TOKENIZER_BOS_DEFAULT, true, &list, &err), STATUS_OK);
    assert_int_equal(list.n, n);
    if (n > 0) assert_memory_equal(list.ids, ids, n * sizeof *ids);
    for (int32_t id = 0; id < tokenizer_size(t); id++) text_case_decode(m, t, &id, 1, false, &out);
    token_list_deinit(&list);
    textbuf_deinit(&out);
    tokenizer_close(t);
}

static void the_plain_one_loads(void **state) {
    (void)state;
    m = test_mem();
    gguf_writer w;
    static const int32_t want[] = {4, 5, 6, 1};
    begin(&w, tokens, N_TOKENS, merges, N_MERGES, types, N_TOKENS);
    expect_loaded(&w, "abc<s> b", want, 4);
    begin(&w, tokens, N_TOKENS, merges, N_MERGES, NULL,
          0); /* without types all are normal: <s> is ordinary text, its characters have no tokens */
    expect_loaded(&w, "abc<s> b", (const int32_t[]){4, 6, 1}, 3);
    begin(&w, tokens, N_TOKENS, merges, 0, types, N_TOKENS);
    expect_loaded(&w, "ab", (const int32_t[]){0, 1}, 2);
    test_mem_check(m);
}

static void missing_and_wrong_keys(void **state) {
    (void)state;
    m = test_mem();
    gguf_writer w;
    gguf_writer_init(&w, m);
    gguf_writer_text(&w, "general.architecture", "llama");
    expect_refused(&w, STATUS_UNSUPPORTED, "tokenizer.ggml.model is missing");
    text_case_begin(&w, m, "bert", "gpt-2");
    expect_refused(&w, STATUS_UNSUPPORTED, "unknown vocabulary model 'bert'");
    text_case_begin(&w, m, "gpt2", NULL);
    expect_refused(&w, STATUS_UNSUPPORTED, "tokenizer.ggml.pre is missing");
    text_case_begin(&w, m, "gpt2", "no-such-name");
    expect_refused(&w, STATUS_UNSUPPORTED, "unknown pre-tokenizer 'no-such-name'");
    text_case_begin(&w, m, "gpt2", "");
    expect_refused(&w, STATUS_UNSUPPORTED, "unknown pre-tokenizer ''");
    begin(&w, NULL, 0, merges, N_MERGES, types, N_TOKENS);
    expect_refused(&w, STATUS_FORMAT, "tokenizer.ggml.tokens is missing");
    begin(&w, tokens, N_TOKENS, NULL, 0, types, N_TOKENS);
    expect_refused(&w, STATUS_FORMAT, "tokenizer.ggml.merges is missing");
    begin(&w, tokens, 0, merges, 0, NULL, 0);
    expect_refused(&w, STATUS_FORMAT, "0 tokens");
    begin(&w, tokens, N_TOKENS, merges, N_MERGES, types, N_TOKENS - 1);
    expect_refused(&w, STATUS_FORMAT, "6 token types for 7 tokens");
    text_case_begin(&w, m, "gpt2", "gpt-2");
    gguf_writer_text(&w, "tokenizer.ggml.tokens", "a");
    expect_refused(&w, STATUS_FORMAT, "tokenizer.ggml.tokens is missing or is no array");
    text_case_begin(&w, m, "gpt2", "gpt-2");
    gguf_writer_array(&w, "tokenizer.ggml.tokens", GGUF_W_I32, types, 4, N_TOKENS);
    gguf_writer_texts(&w, "tokenizer.ggml.merges", merges, N_MERGES);
    expect_refused(&w, STATUS_FORMAT, "token 0 is no text");
    begin(&w, tokens, N_TOKENS, NULL, 0, NULL, 0);
    gguf_writer_array(&w, "tokenizer.ggml.merges", GGUF_W_I32, types, 4, 2);
    expect_refused(&w, STATUS_FORMAT, "merge 0 is no text");
    begin(&w, tokens, N_TOKENS, merges, N_MERGES, NULL, 0);
    gguf_writer_text(&w, "tokenizer.ggml.token_type", "x");
    expect_refused(&w, STATUS_FORMAT, "token_type is no array");
    begin(&w, tokens, N_TOKENS, merges, N_MERGES, types, N_TOKENS);
    gguf_writer_text(&w, "tokenizer.ggml.add_bos_token", "yes");
    expect_refused(&w, STATUS_FORMAT, "add_bos_token is not true or false");
    test_mem_check(m);
}

static void odd_tokens(void **state) {
    (void)state;
    m = test_mem();
    gguf_writer w;
    static const char *const twice[] = {"a", "b", "a"};
    begin(&w, twice, 3, merges, 0, NULL, 0);
    expect_refused(&w, STATUS_FORMAT, "tokens 0 and 2 have the same text");
    static const int32_t control[] = {3, 1, 3};
    begin(&w, twice, 3, merges, 0, control, 3);
    expect_refused(&w, STATUS_FORMAT, "have the same text");
    static const int32_t both[] = {1, 1, 3}; /* a control token may repeat the text of an ordinary one: it is matched first */
    begin(&w, twice, 3, merges, 0, both, 3);
    expect_loaded(&w, "ab", (const int32_t[]){2, 1}, 2);
    static const char *const empty[] = {"a", "", "b", "", "\xff\xfe", "no alphabet"};
    begin(&w, empty, 6, merges, 0, NULL, 0);
    expect_loaded(&w, "ba", (const int32_t[]){2, 0}, 2);
    static const int32_t empty_control[] = {1, 3, 1, 4, 1, 1};
    begin(&w, empty, 6, merges, 0, empty_control, 6);
    expect_loaded(&w, "ba", (const int32_t[]){2, 0}, 2);
    static const int32_t odd_types[] = {1, 1, 7};
    begin(&w, twice, 3, merges, 0, odd_types, 3);
    expect_refused(&w, STATUS_FORMAT, "token 2 has no type that is known");
    static const int32_t negative[] = {1, 1, -1};
    begin(&w, twice, 3, merges, 0, negative, 3);
    expect_refused(&w, STATUS_FORMAT, "token 2 has no type that is known");
    char long_text[5000 + 1];
    memset(long_text, 'x', sizeof long_text);
    long_text[5000] = 0;
    const char *const long_control[] = {"a", long_text};
    static const int32_t second[] = {1, 3};
    begin(&w, long_control, 2, merges, 0, second, 2);
    expect_refused(&w, STATUS_UNSUPPORTED, "added token 1 has 5000 bytes");
    begin(&w, long_control, 2, merges, 0, NULL, 0);
    expect_loaded(&w, "a", (const int32_t[]){0}, 1);
    test_mem_check(m);
}

static void odd_merges(void **state) {
    (void)state;
    static const struct {
        const char *merge, *part;
    } cases[] = {{"a z", "merge 0 ('a z') names a token"},
                 {"z a", "names a token"},
                 {"b c", "names a token"},
                 {"ab", "merge 0 is not two tokens"},
                 {"", "is not two tokens"},
                 {" ", "is not two tokens"},
                 {"a ", "is not two tokens"},
                 {" a", "is not two tokens"},
                 {"a b c", "not spelled in the byte alphabet"},
                 {"a \xff", "not spelled"},
                 {"\xe2\x96\x81 a", "not spelled"},
                 {"a \xe2\x96\x81", "not spelled"}};
    m = test_mem();
    gguf_writer w;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin(&w, tokens, N_TOKENS, &cases[i].merge, 1, types, N_TOKENS);
        expect_refused(&w, STATUS_FORMAT, cases[i].part);
    }
    static const char *const repeated[] = {"a b", "a b", "ab c", "a b"};
    begin(&w, tokens, N_TOKENS, repeated, 4, types, N_TOKENS);
    expect_loaded(&w, "abc", (const int32_t[]){4}, 1);
    test_mem_check(m);
}

static void ids_out_of_range(void **state) {
    (void)state;
    m = test_mem();
    gguf_writer w;
    tokenizer *t = NULL;
    error err = {0};
    size_t n;
    begin(&w, tokens, N_TOKENS, merges, N_MERGES, types, N_TOKENS);
    gguf_writer_u32(&w, "tokenizer.ggml.bos_token_id", 7);
    gguf_writer_u32(&w, "tokenizer.ggml.eos_token_id", 4294967295u);
    gguf_writer_i32(&w, "tokenizer.ggml.eot_token_id", -5);
    gguf_writer_text(&w, "tokenizer.ggml.eom_token_id", "five");
    gguf_writer_bool(&w, "tokenizer.ggml.add_bos_token", true);
    gguf_writer_bool(&w, "tokenizer.ggml.add_eos_token", true);
    assert_int_equal(text_case_open(m, &dir, &w, NULL, &t, &err), STATUS_OK);
    assert_int_equal(tokenizer_bos_id(t), -1);
    assert_false(tokenizer_adds_bos(t));
    tokenizer_end_ids(t, &n);
    assert_int_equal(n, 0);
    tokenizer_close(t);
    tokenizer_options opt = {.n_vocab_model = 6};
    assert_int_equal(text_case_open(m, &dir, &w, &opt, &t, &err), STATUS_FORMAT);
    assert_contains(err.text, "7 tokens, but the model has rows for 6");
    opt.n_vocab_model = 7;
    assert_int_equal(text_case_open(m, &dir, &w, &opt, &t, &err), STATUS_OK);
    tokenizer_close(t);
    gguf_writer_deinit(&w);
    test_mem_check(m);
}

static void odd_scores(void **state) {
    (void)state;
    static const char *const texts[] = {"<unk>", "a", "<0x41>", "ab"};
    static const int32_t kinds[] = {2, 1, 6, 1};
    static const float scores[] = {0, 1, 2, 3}, not_numbers[] = {0, __builtin_nanf(""), 2, 3},
                       infinite[] = {0, __builtin_inff(), 2, -__builtin_inff()};
    static const char *const bad_bytes[] = {"<0x-1>", "<0x4>", "<0x4G>", "<0x414>", "", "a"};
    m = test_mem();
    gguf_writer w;
    text_case_begin(&w, m, "llama", NULL);
    gguf_writer_texts(&w, "tokenizer.ggml.tokens", texts, 4);
    expect_refused(&w, STATUS_FORMAT, "tokenizer.ggml.scores is missing");
    for (int i = 0; i < 3; i++) {
        text_case_begin(&w, m, "llama", NULL);
        gguf_writer_texts(&w, "tokenizer.ggml.tokens", texts, 4);
        gguf_writer_array(&w, "tokenizer.ggml.token_type", GGUF_W_I32, kinds, 4, 4);
        gguf_writer_array(&w, "tokenizer.ggml.scores", GGUF_W_F32, i == 0 ? scores : i == 1 ? not_numbers : infinite, 4, i == 0 ? 3 : 4);
        if (i == 0) expect_refused(&w, STATUS_FORMAT, "3 scores for 4 tokens");
        if (i == 1) expect_refused(&w, STATUS_FORMAT, "the score of token 1 is not a number");
        if (i == 2) expect_loaded(&w, "aA", (const int32_t[]){1, 0, 1, 2}, 4);
    }
    for (size_t i = 0; i < sizeof bad_bytes / sizeof bad_bytes[0]; i++) {
        const char *const list[] = {"<unk>", "a", bad_bytes[i], "ab"};
        text_case_begin(&w, m, "llama", NULL);
        gguf_writer_texts(&w, "tokenizer.ggml.tokens", list, 4);
        gguf_writer_array(&w, "tokenizer.ggml.token_type", GGUF_W_I32, kinds, 4, 4);
        gguf_writer_array(&w, "tokenizer.ggml.scores", GGUF_W_F32, scores, 4, 4);
        expect_refused(&w, STATUS_FORMAT, "token 2 is of a byte, but not written <0xNN>");
    }
    test_mem_check(m);
}

/* A million tokens: loads, within a bound on memory that is linear in them. */
static void a_million_tokens(void **state) {
    (void)state;
    enum { N = 1000000 };
    m = test_mem();
    gguf_writer w;
    tokenizer *t = NULL;
    error err = {0};
    const char **many = test_malloc(N * sizeof *many);
    char *pool = test_malloc(N * 8);
    for (int i = 0; i < N; i++) {
        many[i] = pool + i * 8;
        snprintf(pool + i * 8, 8, "%x", (unsigned)i);
    }
    begin(&w, many, N, merges, 0, NULL, 0);
    assert_int_equal(text_case_open(m, &dir, &w, NULL, &t, &err), STATUS_OK);
    gguf_writer_deinit(&w);
    mem_usage used;
    mem_get_usage(m, MEM_TOKENIZER, &used);
    assert_int_equal(tokenizer_size(t), N);
    assert_true(used.used_bytes < (size_t)N * 64);
    tokenizer_close(t);
    test_free(pool);
    test_free(many);
    test_mem_check(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_plain_one_loads), cmocka_unit_test(missing_and_wrong_keys),
                                       cmocka_unit_test(odd_tokens),          cmocka_unit_test(odd_merges),
                                       cmocka_unit_test(ids_out_of_range),    cmocka_unit_test(odd_scores),
                                       cmocka_unit_test(a_million_tokens)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
