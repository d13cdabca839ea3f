/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoding is linear in the text, but for the logarithm of a heap. Work is counted, never timed: symbols, slots of the merge table and
 * levels of the heap by the encoder, steps of patterns and bytes that they move over by PCRE2's callouts. Texts that make tokenizers slow
 * are doubled up to 64 KB, for each fixture's tokenizer, each pre-tokenizer that a GGUF can name, and vocabularies made to be slow.
 */
#include "support/test_case.h"
#include "support/text_case.h"

#include "text/tokenizer_impl.h"

enum { SMALL = 16 << 10, LARGE = 64 << 10, MOST_A_BYTE = 160 };

static mem *m;
static scratch_dir dir;
static json_t *root;
static size_t n_runs;

static int set_up(void **state) {
    (void)state;
    root = text_case_json("tokenizer_cases.json");
    return scratch_dir_create(&dir) && mem_create(&m) == STATUS_OK ? 0 : 1;
}

static int tear_down(void **state) {
    (void)state;
    json_decref(root);
    scratch_dir_destroy(&dir);
    return n_runs > 0 && mem_destroy(m) == STATUS_OK ? 0 : 1;
}

/* A repeated unit between two ends. */
typedef struct shape {
    const char *begin, *unit, *end;
} shape;

static const shape shapes[] = {
    {"", "a", ""},
    {"", "a", "b"},
    {"b", "a", ""},
    {"", " ", ""},
    {"", " ", "x"},
    {"x", " ", "\n"},
    {"", "\n", ""},
    {"", "\n", "x"},
    {"", "\r\n ", "x"},
    {"", " \n", "x"},
    {"", "\t", "\xc2\xa0z"},
    {"", "7", ""},
    {"", "7", "a"},
    {"", "=", ""},
    {"", "=", "a"},
    {"", "'", "s"},
    {"", "ab", ""},
    {"", "aab", ""},
    {"", "e\xcc\x81", ""},
    {"a", "\xcc\x81", ""},
    {"", "\xe6\xbc\xa2", ""},
    {"", "\xf0\x9f\x98\x80", ""},
    {"", " a", ""},
    {"", "a ", " "},
    {"", "aA", ""},
    {"", "A", "a"},
    {"", "'s", ""},
    {"", "<|end|", ""},
    {"", "<|end|>", ""},
    {"", "\xe2\x96\x81", "x"},
    {"", "the ", ""},
    {"", "\xef\xb8\x8f", "a"},
    {"", "/", "\n"},
    {"", "a\xcc\x81 ", "1"},
    {"", "\x01", ""},
    {"", ".\n", "a"},
    {"", " ", "\xe6\xbc\xa2"},
    {"", "\n", "\xe6\xbc\xa2"},
    {"", " ", "7"},
    {"", "7 ", "\xe0\xb8\x81"},
    {"", "\xe3\x80\x80", "\xe0\xb8\x81"},
    {"", " ", "="},
};

static uint64_t work_of(tokenizer *t, uint64_t *work, const shape *s, size_t n, const char *what) {
    size_t n_begin = strlen(s->begin), n_unit = strlen(s->unit), n_end = strlen(s->end), at = 0;
    char *text = test_malloc(n);
    token_list ids;
    error err = {0};
    memcpy(text, s->begin, n_begin);
    for (at = n_begin; at + n_unit + n_end <= n; at += n_unit) memcpy(text + at, s->unit, n_unit);
    memcpy(text + at, s->end, n_end);
    token_list_init(&ids, m, MEM_REQUEST);
    *work = 0;
    if (tokenizer_encode(t, text, at + n_end, TOKENIZER_BOS_DEFAULT, true, &ids, &err) != STATUS_OK)
        fail_msg("%s: \"%s\" + \"%s\"... + \"%s\", %zu bytes: %s", what, s->begin, s->unit, s->end, n, err.text);
    token_list_deinit(&ids);
    test_free(text);
    n_runs++;
    return *work;
}

/* Four times the text is at most four times the work, and the heap's logarithm: 16 levels to 14. */
static void expect_linear(tokenizer *t, uint64_t *work, const char *what) {
    uint64_t total = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        uint64_t small = work_of(t, work, &shapes[i], SMALL, what), large = work_of(t, work, &shapes[i], LARGE, what);
        total += large;
        if (large > small * 5 || large > (uint64_t)LARGE * MOST_A_BYTE)
            fail_msg("%s: \"%s\" + \"%s\"... + \"%s\": %llu steps for %d bytes, %llu for %d", what, shapes[i].begin, shapes[i].unit,
                     shapes[i].end, (unsigned long long)small, SMALL, (unsigned long long)large, LARGE);
    }
    assert_true(total > (uint64_t)LARGE * 8); /* something was counted */
}

static tokenizer *begin(uint64_t *work) {
    tokenizer *t = NULL;
    error err = {0};
    assert_int_equal(tokenizer_new(m, &t, &err), STATUS_OK);
    t->work = work;
    pattern_context_count(t->patterns, work);
    return t;
}

static void finish(tokenizer *t, uint64_t *work, status rc, error *err, const char *what) {
    if (rc == STATUS_OK) rc = tokenizer_finish(t, NULL, err);
    if (rc != STATUS_OK) fail_msg("%s: %s", what, err->text);
    expect_linear(t, work, what);
    tokenizer_close(t);
}

static void fixtures(void **state) {
    (void)state;
    static const char *const some[] = {"llama", "qwen2", "gemma3", "gpt-oss", "olmoe"};
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        char path[1024], *text = NULL;
        size_t n;
        uint64_t work;
        error err = {0};
        tokenizer *t = begin(&work);
        snprintf(path, sizeof path, "%s/../fixtures/%s/tokenizer.json", HEADRACE_TEST_DATA, some[i]);
        if (os_read_text(m, MEM_PROCESS, path, 1 << 20, &text, &n, &err) != STATUS_OK) fail_msg("%s", err.text);
        finish(t, &work, tokenizer_from_json_text(t, text, n, &err), &err, some[i]);
        mem_free(m, text);
    }
}

static void linear_gguf(gguf_writer *w, const char *what) {
    char path[SCRATCH_PATH_BYTES];
    source *s = NULL;
    uint64_t work;
    error err = {0};
    tokenizer *t = begin(&work);
    assert_true(gguf_writer_save(w, scratch_dir_path(&dir, "vocab.gguf", path)));
    gguf_writer_deinit(w);
    if (source_open(m, path, NULL, &s, &err) != STATUS_OK) fail_msg("%s", err.text);
    status rc = tokenizer_from_gguf(t, source_meta(s), &err);
    source_close(s);
    finish(t, &work, rc, &err, what);
}

static void named_pre_tokenizers(void **state) {
    (void)state;
    const json_t *names = json_object_get(root, "names");
    size_t n = 0, n_lists = 0;
    for (const char *name; (name = pre_named_at(n)) != NULL; n++) {
        gguf_writer w;
        bool again = false; /* several names stand for one list of patterns */
        for (size_t i = 0; i < n; i++) {
            const char *before = pre_named_at(i);
            again |= pre_named_find(before, strlen(before))->patterns == pre_named_find(name, strlen(name))->patterns;
        }
        if (again) continue;
        n_lists++;
        text_case_begin(&w, m, "gpt2", name);
        text_case_json_texts(&w, "tokenizer.ggml.tokens", json_object_get(names, "tokens"));
        text_case_json_texts(&w, "tokenizer.ggml.merges", json_object_get(names, "merges"));
        text_case_json_ints(&w, "tokenizer.ggml.token_type", json_object_get(names, "types"));
        linear_gguf(&w, name);
    }
    assert_true(n > 50 && n_lists > 15);
}

/* Each token is two of the one before, or the one before and an "a": early merges undo what later ones were promised. */
static void vocabularies_made_to_be_slow(void **state) {
    (void)state;
    enum { N = 40 };
    static char texts[N][N * 2], merges[N][N * 2 + 2];
    const char *tokens[N], *list[N];
    for (int up = 0; up < 2; up++) {
        gguf_writer w;
        text_case_begin(&w, m, "gpt2", "gpt-2");
        for (int i = 0; i < N; i++) {
            memset(texts[i], 'a', (size_t)i + 1);
            texts[i][i + 1] = '\0';
            tokens[i] = texts[i];
        }
        for (int i = 1; i < N; i++) { /* a + a^i, the long ones first or last */
            int k = up ? i : N - i;
            memcpy(merges[i - 1], "a ", 2);
            memcpy(merges[i - 1] + 2, texts[k - 1], (size_t)k + 1);
            list[i - 1] = merges[i - 1];
        }
        gguf_writer_texts(&w, "tokenizer.ggml.tokens", tokens, N);
        gguf_writer_texts(&w, "tokenizer.ggml.merges", list, N - 1);
        linear_gguf(&w, up ? "short merges first" : "long merges first");
    }
    const json_t *scored = json_object_get(root, "scored"), *list_of_scores = json_object_get(scored, "scores");
    size_t n = json_array_size(list_of_scores);
    float *scores = test_calloc(n, sizeof *scores);
    gguf_writer w;
    for (size_t i = 0; i < n; i++) scores[i] = (float)json_real_value(json_array_get(list_of_scores, i));
    text_case_begin(&w, m, "llama", "default");
    text_case_json_texts(&w, "tokenizer.ggml.tokens", json_object_get(scored, "tokens"));
    text_case_json_ints(&w, "tokenizer.ggml.token_type", json_object_get(scored, "types"));
    gguf_writer_array(&w, "tokenizer.ggml.scores", GGUF_W_F32, scores, sizeof *scores, n);
    test_free(scores);
    linear_gguf(&w, "scores");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fixtures), cmocka_unit_test(named_pre_tokenizers),
                                       cmocka_unit_test(vocabularies_made_to_be_slow)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
