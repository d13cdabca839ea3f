/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-level vocabularies of GGUF files: ids equal to those of the Python package `tokenizers` for each named pre-tokenizer
   (tools/make_tokenizer_tests.py), decoding, what surrounds the ids, and the shapes of text that make a tokenizer slow. */
#include "support/test_case.h"
#include "support/text_case.h"

#include "base/utf8.h"

static mem *m;
static scratch_dir dir;
static json_t *root, *names;

static int set_up(void **state) {
    (void)state;
    root = text_case_json("tokenizer_cases.json");
    names = json_object_get(root, "names");
    return scratch_dir_create(&dir) && names ? 0 : 1;
}

static int tear_down(void **state) {
    (void)state;
    json_decref(root);
    scratch_dir_destroy(&dir);
    return 0;
}

/* The small vocabulary of the cases under a name; more keys may be added before saving. */
static void write_vocabulary(gguf_writer *w, const char *pre) {
    text_case_begin(w, m, "gpt2", pre);
    text_case_json_texts(w, "tokenizer.ggml.tokens", json_object_get(names, "tokens"));
    text_case_json_texts(w, "tokenizer.ggml.merges", json_object_get(names, "merges"));
    text_case_json_ints(w, "tokenizer.ggml.token_type", json_object_get(names, "types"));
}

static tokenizer *open_vocabulary(gguf_writer *w) {
    tokenizer *t = NULL;
    error err = {0};
    if (text_case_open(m, &dir, w, NULL, &t, &err) != STATUS_OK) fail_msg("%s", err.text);
    gguf_writer_deinit(w);
    return t;
}

static tokenizer *open_name(const char *pre) {
    gguf_writer w;
    write_vocabulary(&w, pre);
    return open_vocabulary(&w);
}

static void encode(const tokenizer *t, const char *text, size_t n, tokenizer_bos bos, bool special, token_list *out) {
    error err = {0};
    out->n = 0;
    if (tokenizer_encode(t, text, n, bos, special, out, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static void every_name_as_upstream(void **state) {
    (void)state;
    const char *name;
    json_t *cases, *one;
    size_t i, n_names = 0, n_cases = 0;
    m = test_mem();
    json_object_foreach(json_object_get(names, "cases"), name, cases) {
        tokenizer *t = open_name(name);
        char kind[64];
        token_list ids;
        snprintf(kind, sizeof kind, "gpt2/%s", name);
        assert_string_equal(tokenizer_kind(t), kind);
        token_list_init(&ids, m, MEM_REQUEST);
        json_array_foreach(cases, i, one) {
            const json_t *text = json_object_get(one, "text"), *want = json_object_get(one, "ids"), *plain = json_object_get(one, "plain");
            encode(t, json_string_value(text), json_string_length(text), TOKENIZER_BOS_DEFAULT, true, &ids);
            text_case_expect_ids(&ids, want, name);
            encode(t, json_string_value(text), json_string_length(text), TOKENIZER_BOS_DEFAULT, false, &ids);
            text_case_expect_ids(&ids, plain ? plain : want, name);
            n_cases++;
        }
        n_names++;
        token_list_deinit(&ids);
        tokenizer_close(t);
    }
    assert_int_equal(n_names, 23);
    assert_int_equal(n_cases, 23 * 14);
    test_mem_check(m);
}

static void decoding_gives_the_text_back(void **state) {
    (void)state;
    size_t i;
    json_t *one, *cases = json_object_get(json_object_get(names, "cases"), "smollm");
    m = test_mem();
    tokenizer *t = open_name("smollm");
    json_array_foreach(cases, i, one) {
        const json_t *text = json_object_get(one, "text");
        token_list ids;
        textbuf out;
        token_list_init(&ids, m, MEM_REQUEST);
        textbuf_init(&out, m, MEM_REQUEST);
        encode(t, json_string_value(text), json_string_length(text), TOKENIZER_BOS_OMIT, true, &ids);
        text_case_decode(m, t, ids.ids, ids.n, false, &out);
        assert_int_equal(out.len, json_string_length(text));
        assert_memory_equal(out.data, json_string_value(text), out.len);
        textbuf_clear(&out);
        text_case_decode(m, t, ids.ids, ids.n, true, &out);
        assert_null(strstr(textbuf_text(&out), "<|end|>"));
        token_list_deinit(&ids);
        textbuf_deinit(&out);
    }
    tokenizer_close(t);
    test_mem_check(m);
}

/* Each byte alone, in order and in random order: whatever the ids, text comes out, and streaming agrees. */
static void any_ids_give_text(void **state) {
    (void)state;
    m = test_mem();
    tokenizer *t = open_name("gpt-2");
    uint64_t seed = 1;
    for (int round = 0; round < 200; round++) {
        int32_t ids[64];
        textbuf out;
        for (int i = 0; i < 64; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            ids[i] = (int32_t)((seed >> 33) % (uint64_t)(round < 150 ? 256 : tokenizer_size(t)));
        }
        textbuf_init(&out, m, MEM_REQUEST);
        text_case_decode(m, t, ids, 64, false, &out);
        assert_true(utf8_check(out.data, out.len, NULL));
        textbuf_deinit(&out);
    }
    textbuf out;
    error err = {0};
    textbuf_init(&out, m, MEM_REQUEST);
    int32_t bad[] = {0, tokenizer_size(t)};
    assert_int_equal(tokenizer_decode(t, bad, 2, false, &out, &err), STATUS_INVALID);
    assert_contains(err.text, "id 904 is not in 0..903");
    bad[1] = -1;
    assert_int_equal(tokenizer_decode(t, bad, 2, false, &out, &err), STATUS_INVALID);
    textbuf_deinit(&out);
    tokenizer_close(t);
    test_mem_check(m);
}

static void begin_and_end_tokens(void **state) {
    (void)state;
    m = test_mem();
    gguf_writer w;
    token_list ids;
    error err = {0};
    size_t n;
    write_vocabulary(&w, "smollm");
    gguf_writer_u32(&w, "tokenizer.ggml.bos_token_id", 900);
    gguf_writer_u32(&w, "tokenizer.ggml.eos_token_id", 902);
    gguf_writer_u32(&w, "tokenizer.ggml.eot_token_id", 900);
    gguf_writer_u32(&w, "tokenizer.ggml.padding_token_id", 4000000000u);
    gguf_writer_bool(&w, "tokenizer.ggml.add_bos_token", true);
    gguf_writer_text(&w, "tokenizer.chat_template", "{{ messages }}");
    tokenizer *t = open_vocabulary(&w);
    token_list_init(&ids, m, MEM_REQUEST);
    assert_int_equal(tokenizer_bos_id(t), 900);
    assert_true(tokenizer_adds_bos(t));
    assert_true(tokenizer_is_special(t, 900) && !tokenizer_is_special(t, 901) && !tokenizer_is_special(t, 5) &&
                !tokenizer_is_special(t, -1) && !tokenizer_is_special(t, 904));
    assert_true(tokenizer_is_end(t, 902) && tokenizer_is_end(t, 900) && !tokenizer_is_end(t, 901));
    assert_non_null(tokenizer_end_ids(t, &n));
    assert_int_equal(n, 2);
    assert_string_equal(tokenizer_chat_template(t), "{{ messages }}");
    encode(t, "", 0, TOKENIZER_BOS_DEFAULT, true, &ids);
    assert_true(ids.n == 1 && ids.ids[0] == 900);
    encode(t, "", 0, TOKENIZER_BOS_OMIT, true, &ids);
    assert_int_equal(ids.n, 0);
    encode(t, "a", 1, TOKENIZER_BOS_ADD, true, &ids);
    assert_true(ids.n == 2 && ids.ids[0] == 900);
    tokenizer_close(t);

    t = open_name("smollm"); /* no BOS token named: none added, and asking for one fails */
    assert_int_equal(tokenizer_bos_id(t), -1);
    assert_false(tokenizer_adds_bos(t));
    assert_null(tokenizer_chat_template(t));
    ids.n = 0;
    assert_int_equal(tokenizer_encode(t, "a", 1, TOKENIZER_BOS_ADD, true, &ids, &err), STATUS_INVALID);
    assert_contains(err.text, "no BOS token");
    assert_int_equal(ids.n, 0);
    tokenizer_close(t);

    write_vocabulary(&w, "llama-bpe"); /* this family adds it unless the file says otherwise */
    gguf_writer_u32(&w, "tokenizer.ggml.bos_token_id", 900);
    t = open_vocabulary(&w);
    assert_true(tokenizer_adds_bos(t));
    tokenizer_close(t);
    token_list_deinit(&ids);
    test_mem_check(m);
}

static void text_that_is_not_utf8(void **state) {
    (void)state;
    m = test_mem();
    tokenizer *t = open_name("smollm");
    token_list ids;
    error err = {0};
    token_list_init(&ids, m, MEM_REQUEST);
    encode(t, "kept", 4, TOKENIZER_BOS_OMIT, true, &ids);
    size_t before = ids.n;
    assert_int_equal(tokenizer_encode(t, "ab\xc3(c", 5, TOKENIZER_BOS_OMIT, true, &ids, &err), STATUS_INVALID);
    assert_contains(err.text, "not valid UTF-8 at byte 2");
    assert_int_equal(ids.n, before);
    encode(t, "a\0b", 3, TOKENIZER_BOS_OMIT, true, &ids);
    assert_int_equal(ids.n, 3);
    token_list_deinit(&ids);
    tokenizer_close(t);
    test_mem_check(m);
}

/* Long runs of one thing: the numbers of ids come from doubling what half the text gives, so that a bound on the work is a bound on
 * allocations too. */
static void long_runs(void **state) {
    (void)state;
    static const char *const units[] = {"a", " ", "\n", "=", "7", "\xe6\xbc\xa2", "\xcc\x81", "<|end|>", "<|end|", "ab", "e\xcc\x81", " 1"};
    m = test_mem();
    const char *some[] = {"smollm", "qwen2", "deepseek-llm", "gpt-4o", "kimi-k2", "jais-2"};
    for (size_t k = 0; k < sizeof some / sizeof some[0]; k++) {
        tokenizer *t = open_name(some[k]);
        for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
            size_t len = strlen(units[u]), n = 65536 / len * len;
            char *text = test_malloc(n);
            token_list ids;
            textbuf out;
            for (size_t i = 0; i < n; i += len) memcpy(text + i, units[u], len);
            token_list_init(&ids, m, MEM_REQUEST);
            textbuf_init(&out, m, MEM_REQUEST);
            encode(t, text, n, TOKENIZER_BOS_OMIT, true, &ids);
            assert_true(ids.n > 0 && ids.n <= n);
            text_case_decode(m, t, ids.ids, ids.n, false, &out);
            if (strcmp(some[k], "qwen2") != 0 || u != 10) { /* which composes e and the accent */
                assert_int_equal(out.len, n);
                assert_memory_equal(out.data, text, n);
            }
            textbuf_deinit(&out);
            token_list_deinit(&ids);
            test_free(text);
        }
        tokenizer_close(t);
    }
    test_mem_check(m);
}

static void write_scored(gguf_writer *w, const json_t *scored, bool prefix) {
    const json_t *list = json_object_get(scored, "scores");
    size_t n = json_array_size(list);
    float *scores = test_calloc(n, sizeof *scores);
    for (size_t i = 0; i < n; i++) scores[i] = (float)json_real_value(json_array_get(list, i));
    text_case_begin(w, m, "llama", "default");
    text_case_json_texts(w, "tokenizer.ggml.tokens", json_object_get(scored, "tokens"));
    text_case_json_ints(w, "tokenizer.ggml.token_type", json_object_get(scored, "types"));
    gguf_writer_array(w, "tokenizer.ggml.scores", GGUF_W_F32, scores, sizeof *scores, n);
    gguf_writer_bool(w, "tokenizer.ggml.add_space_prefix", prefix);
    gguf_writer_bool(w, "tokenizer.ggml.add_bos_token", false);
    test_free(scores);
}

/* Vocabularies with scores: as the package with the merges that the scores stand for. */
static void scores_as_upstream(void **state) {
    (void)state;
    const json_t *scored = json_object_get(root, "scored");
    json_t *one;
    size_t i, n = 0;
    m = test_mem();
    for (int prefix = 0; prefix < 2; prefix++) {
        gguf_writer w;
        token_list ids;
        textbuf out;
        write_scored(&w, scored, prefix);
        tokenizer *t = open_vocabulary(&w);
        assert_string_equal(tokenizer_kind(t), "llama/scores");
        assert_true(tokenizer_bos_id(t) == 1 && tokenizer_is_end(t, 2)); /* what the format gives to missing keys */
        token_list_init(&ids, m, MEM_REQUEST);
        textbuf_init(&out, m, MEM_REQUEST);
        json_array_foreach(json_object_get(scored, "cases"), i, one) {
            const json_t *text = json_object_get(one, "text");
            if (json_is_true(json_object_get(one, "prefix")) != (prefix == 1)) continue;
            encode(t, json_string_value(text), json_string_length(text), TOKENIZER_BOS_OMIT, true, &ids);
            text_case_expect_ids(&ids, json_object_get(one, "ids"), prefix ? "with a space in front" : "without");
            text = json_object_get(one, "decoded");
            textbuf_clear(&out);
            text_case_decode(m, t, ids.ids, ids.n, false, &out);
            assert_int_equal(out.len, json_string_length(text));
            assert_memory_equal(textbuf_text(&out), json_string_value(text), out.len);
            n++;
        }
        detokenizer d; /* ids that go on a text keep their space */
        encode(t, "the", 3, TOKENIZER_BOS_OMIT, true, &ids);
        textbuf_clear(&out);
        detokenizer_init(&d, t, false);
        d.started = true;
        for (size_t k = 0; k < ids.n; k++) assert_int_equal(detokenizer_add(&d, ids.ids[k], &out), STATUS_OK);
        assert_string_equal(textbuf_text(&out), prefix ? " the" : "the");
        textbuf_deinit(&out);
        token_list_deinit(&ids);
        tokenizer_close(t);
    }
    assert_int_equal(n, 40);
    test_mem_check(m);
}

/* Of two pairs with one score the one further left joins. */
static void equal_scores(void **state) {
    (void)state;
    static const char *const texts[] = {"<unk>", "a", "b", "c", "ab", "bc"};
    static const int32_t kinds[] = {2, 1, 1, 1, 1, 1};
    static const float tie[] = {0, -9, -9, -9, -1, -1}, right[] = {0, -9, -9, -9, -2, -1};
    m = test_mem();
    for (int i = 0; i < 2; i++) {
        gguf_writer w;
        token_list ids;
        text_case_begin(&w, m, "llama", NULL);
        gguf_writer_texts(&w, "tokenizer.ggml.tokens", texts, 6);
        gguf_writer_array(&w, "tokenizer.ggml.token_type", GGUF_W_I32, kinds, 4, 6);
        gguf_writer_array(&w, "tokenizer.ggml.scores", GGUF_W_F32, i == 0 ? tie : right, 4, 6);
        gguf_writer_bool(&w, "tokenizer.ggml.add_space_prefix", false);
        tokenizer *t = open_vocabulary(&w);
        token_list_init(&ids, m, MEM_REQUEST);
        encode(t, "abczz", 5, TOKENIZER_BOS_OMIT, true, &ids); /* and what has no token is one unknown token */
        assert_int_equal(ids.n, 3);
        assert_true(ids.ids[0] == (i == 0 ? 4 : 1) && ids.ids[1] == (i == 0 ? 3 : 5) && ids.ids[2] == 0);
        token_list_deinit(&ids);
        tokenizer_close(t);
    }
    test_mem_check(m);
}

/* Opening and encoding with the n-th allocation refused, for each n: an error with a name, nothing lost. */
static void memory_runs_out(void **state) {
    (void)state;
    m = test_mem();
    gguf_writer w;
    tokenizer *t = NULL;
    error err = {0};
    char path[SCRATCH_PATH_BYTES];
    source *s = NULL;
    source_options how = {.mode = LOAD_READ};
    write_vocabulary(&w, "qwen2");
    gguf_writer_text(&w, "tokenizer.chat_template", "x");
    scratch_dir_path(&dir, "vocab.gguf", path);
    assert_true(gguf_writer_save(&w, path));
    gguf_writer_deinit(&w);
    assert_int_equal(source_open(m, path, &how, &s, &err), STATUS_OK);
    uint64_t n_open = 0, n_encode = 0;
    for (status rc = STATUS_NO_MEMORY; rc != STATUS_OK; n_open++) {
        err = (error){0};
        mem_fail_after(m, n_open);
        rc = tokenizer_open(m, s, NULL, &t, &err);
        mem_fail_off(m);
        if (rc != STATUS_OK) {
            assert_int_equal(rc, STATUS_NO_MEMORY);
            assert_int_equal(err.code, STATUS_NO_MEMORY);
        }
        assert_true(n_open < 2000);
    }
    source_close(s);
    static const char text[] = "e\xcc\x81 <|end|> hello  World 1234";
    for (status rc = STATUS_NO_MEMORY; rc != STATUS_OK; n_encode++) {
        token_list ids;
        err = (error){0};
        token_list_init(&ids, m, MEM_REQUEST);
        mem_fail_after(m, n_encode);
        rc = tokenizer_encode(t, text, sizeof text - 1, TOKENIZER_BOS_DEFAULT, true, &ids, &err);
        mem_fail_off(m);
        if (rc != STATUS_OK) {
            assert_int_equal(rc, STATUS_NO_MEMORY);
            assert_int_equal(err.code, STATUS_NO_MEMORY);
            assert_int_equal(ids.n, 0);
        }
        token_list_deinit(&ids);
        assert_true(n_encode < 200);
    }
    assert_true(n_open > 15 && n_encode > 5);
    tokenizer_close(t);
    test_mem_check(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_name_as_upstream), cmocka_unit_test(decoding_gives_the_text_back), cmocka_unit_test(any_ids_give_text),
        cmocka_unit_test(begin_and_end_tokens),   cmocka_unit_test(text_that_is_not_utf8),        cmocka_unit_test(long_runs),
        cmocka_unit_test(memory_runs_out),        cmocka_unit_test(scores_as_upstream),           cmocka_unit_test(equal_scores)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
