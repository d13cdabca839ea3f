/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer.json: ids and text equal to those of the Python package `tokenizers` (tools/make_tokenizer_json_tests.py) for drawn
 * combinations of the sections, and on more than 1 MB of mixed text for the tokenizers of the fixtures; malformed files give errors.
 */
#include "support/test_case.h"
#include "support/text_corpus.h"

#include "text/tokenizer_impl.h"

static mem *m;

static status open_text(const char *text, size_t n, tokenizer **out, error *err) {
    tokenizer *t = NULL;
    assert_int_equal(tokenizer_new(m, &t, err), STATUS_OK);
    status rc = tokenizer_from_json_text(t, text, n, err);
    if (rc == STATUS_OK) rc = tokenizer_finish(t, NULL, err);
    if (rc == STATUS_OK)
        *out = t;
    else
        tokenizer_close(t);
    return rc;
}

static tokenizer *open_tree(json_t *tree, const char *what) {
    tokenizer *t = NULL;
    error err = {0};
    char *text = json_dumps(tree, JSON_COMPACT);
    assert_non_null(text);
    if (open_text(text, strlen(text), &t, &err) != STATUS_OK) fail_msg("%s: %s", what, err.text);
    free(text);
    return t;
}

/* The file that a case stands for. */
static json_t *compose(const json_t *root, json_t *one) {
    static const char *const sections[] = {"normalizer", "pre_tokenizer", "decoder", "post_processor", "added_tokens"};
    json_t *tree = json_object(),
           *model = json_copy(json_object_get(json_object_get(root, "models"), json_string_value(json_object_get(one, "model"))));
    json_object_update(model, json_object_get(one, "flags"));
    json_object_set_new(tree, "version", json_string("1.0"));
    for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++) json_object_set(tree, sections[i], json_object_get(one, sections[i]));
    json_object_set_new(tree, "model", model);
    return tree;
}

static void check_texts(const tokenizer *t, const json_t *texts, const char *what) {
    json_t *one;
    size_t k;
    json_array_foreach(texts, k, one) {
        const json_t *text = json_object_get(one, "text"), *decoded = json_object_get(one, "decoded");
        token_list ids;
        textbuf out;
        error err = {0};
        token_list_init(&ids, m, MEM_REQUEST);
        textbuf_init(&out, m, MEM_REQUEST);
        if (tokenizer_encode(t, json_string_value(text), json_string_length(text), TOKENIZER_BOS_DEFAULT, k != 4, &ids, &err) != STATUS_OK)
            fail_msg("%s: %s", what, err.text);
        text_case_expect_ids(&ids, json_object_get(one, "ids"), what);
        text_case_decode(m, t, ids.ids, ids.n, k == 3, &out);
        if (out.len != json_string_length(decoded) || memcmp(textbuf_text(&out), json_string_value(decoded), out.len) != 0)
            fail_msg("%s: text %zu decodes to '%s', expected '%s'", what, k, textbuf_text(&out), json_string_value(decoded));
        textbuf_deinit(&out);
        token_list_deinit(&ids);
    }
}

static void combinations(void **state) {
    (void)state;
    json_t *root = text_case_json("tokenizer_json_cases.json"), *cases = json_object_get(root, "cases"), *one;
    size_t i;
    m = test_mem();
    assert_int_equal(json_array_size(cases), 93);
    json_array_foreach(cases, i, one) {
        char what[32];
        snprintf(what, sizeof what, "case %zu", i);
        json_t *tree = compose(root, one);
        tokenizer *t = open_tree(tree, what);
        check_texts(t, json_object_get(one, "texts"), what);
        tokenizer_close(t);
        json_decref(tree);
    }
    json_decref(root);
    test_mem_check(m);
}

/* --- the corpus --- */

static tokenizer *open_fixture(const char *name) {
    char path[1024], *text = NULL;
    tokenizer *t = NULL;
    size_t n;
    error err = {0};
    snprintf(path, sizeof path, "%s/../fixtures/%s/tokenizer.json", HEADRACE_TEST_DATA, name);
    if (os_read_text(m, MEM_PROCESS, path, 1 << 20, &text, &n, &err) != STATUS_OK || open_text(text, n, &t, &err) != STATUS_OK)
        fail_msg("%s: %s", name, err.text);
    mem_free(m, text);
    return t;
}

static void a_megabyte_a_fixture(void **state) {
    (void)state;
    json_t *root = text_case_json("tokenizer_corpus.json"), *hashes;
    const char *name;
    size_t n = 0;
    m = test_mem();
    json_object_foreach(json_object_get(root, "hashes"), name, hashes) {
        tokenizer *t = open_fixture(name);
        size_t total = text_corpus_compare(m, root, NULL, hashes, t, TOKENIZER_BOS_DEFAULT, name);
        assert_int_equal(total, json_integer_value(json_object_get(root, "bytes")));
        assert_true(total > 1000000);
        tokenizer_close(t);
        n++;
    }
    assert_int_equal(n, 5);
    json_decref(root);
    test_mem_check(m);
}

/* Normal forms, lower case and the like, as the package's. */
static void normal_forms(void **state) {
    (void)state;
    static const struct {
        const char *name;
        normalizer_kind kind;
    } kinds[] = {{"NFC", NORMALIZER_NFC},
                 {"NFD", NORMALIZER_NFD},
                 {"NFKC", NORMALIZER_NFKC},
                 {"NFKD", NORMALIZER_NFKD},
                 {"Lowercase", NORMALIZER_LOWERCASE},
                 {"StripAccents", NORMALIZER_STRIP_ACCENTS},
                 {"Nmt", NORMALIZER_NMT}};
    json_t *root = text_case_json("tokenizer_cases.json"), *one;
    size_t i, n = 0;
    error err = {0};
    pattern_context *c;
    m = test_mem();
    assert_int_equal(pattern_context_create(m, MEM_TOKENIZER, &c, &err), STATUS_OK);
    json_array_foreach(json_object_get(root, "normal"), i, one) {
        const json_t *text = json_object_get(one, "text"), *want = json_object_get(one, "out");
        const char *name = json_string_value(json_object_get(one, "kind")), *out;
        size_t k = 0, n_out;
        normalizer z;
        normalizer_scratch scratch;
        while (strcmp(kinds[k].name, name) != 0) k++;
        normalizer_init(&z, m, c);
        normalizer_scratch_init(&scratch, m, NULL);
        assert_int_equal(normalizer_add(&z, kinds[k].kind, NULL, 0, &err), STATUS_OK);
        assert_int_equal(normalizer_run(&z, &scratch, json_string_value(text), json_string_length(text), &out, &n_out, &err), STATUS_OK);
        if (n_out != json_string_length(want) || memcmp(out, json_string_value(want), n_out) != 0)
            fail_msg("%s of '%s' is '%.*s', expected '%s'", name, json_string_value(text), (int)n_out, out, json_string_value(want));
        normalizer_scratch_deinit(&scratch);
        normalizer_deinit(&z);
        n++;
    }
    assert_true(n >= 90);
    pattern_context_destroy(c);
    json_decref(root);
    test_mem_check(m);
}

/* --- malformed files --- */

static const char plain[] = "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true}],\"normalizer\":null,"
                            "\"pre_tokenizer\":null,\"decoder\":{\"type\":\"Fuse\"},"
                            "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[[\"a\",\"b\"]]}}";

/* plain with `from` replaced by `to`. */
static size_t edited(const char *from, const char *to, char *out, size_t room) {
    const char *at = strstr(plain, from);
    assert_non_null(at);
    int n = snprintf(out, room, "%.*s%s%s", (int)(at - plain), plain, to, at + strlen(from));
    assert_true(n > 0 && (size_t)n < room);
    return (size_t)n;
}

static void refused_with_a_reason(void **state) {
    (void)state;
    static const struct {
        const char *from, *to;
        status rc;
        const char *part;
    } cases[] = {
        {"\"1.0\"", "\"2.0\"", STATUS_FORMAT, "version"},
        {"\"BPE\"", "\"Unigram\"", STATUS_UNSUPPORTED, "model 'Unigram' is not supported"},
        {"\"BPE\"", "\"WordPiece\"", STATUS_UNSUPPORTED, "model 'WordPiece' is not supported"},
        {"\"type\":\"BPE\",", "\"type\":\"BPE\",\"dropout\":0.1,", STATUS_UNSUPPORTED, "dropout"},
        {"\"type\":\"BPE\",", "\"type\":\"BPE\",\"continuing_subword_prefix\":\"##\",", STATUS_UNSUPPORTED, "continuing_subword_prefix"},
        {"\"type\":\"BPE\",", "\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\",", STATUS_UNSUPPORTED, "end_of_word_suffix"},
        {"\"type\":\"BPE\",", "\"type\":\"BPE\",\"unk_token\":\"<unk>\",", STATUS_FORMAT, "unknown token '<unk>'"},
        {"\"type\":\"BPE\",", "\"type\":\"BPE\",\"fuse_unk\":3,", STATUS_FORMAT, "'fuse_unk' is not true or false"},
        {"\"ab\":2", "\"ab\":1", STATUS_FORMAT, "two tokens have id 1"},
        {"\"ab\":2", "\"a\":2", STATUS_FORMAT, "have the same text"},
        {"\"ab\":2", "\"ab\":-2", STATUS_FORMAT, "has id -2"},
        {"\"ab\":2", "\"ab\":16777216", STATUS_FORMAT, "has id 16777216"},
        {"\"ab\":2", "\"ab\":9000000", STATUS_FORMAT, "an id of 9000000 among"},
        {"\"ab\":2", "\"ab\":2.5", STATUS_FORMAT, "expected a whole number"},
        {"\"ab\":2", "\"ab\":\"2\"", STATUS_FORMAT, "expected a number"},
        {"\"ab\":2", "\"ab\":2,", STATUS_FORMAT, "comma without a value"},
        {"\"ab\":2", "\"\\ud800\":2", STATUS_FORMAT, "surrogate"},
        {"[\"a\",\"b\"]", "[\"a\",\"z\"]", STATUS_FORMAT, "merge 0 ('a' 'z') names a token"},
        {"[\"a\",\"b\"]", "[\"b\",\"a\"]", STATUS_FORMAT, "names a token"},
        {"[\"a\",\"b\"]", "\"a z\"", STATUS_FORMAT, "names a token"},
        {"[\"a\",\"b\"]", "\"ab\"", STATUS_FORMAT, "not two tokens"},
        {"[\"a\",\"b\"]", "\"a b c\"", STATUS_FORMAT, "not two tokens"},
        {"[\"a\",\"b\"]", "[\"a\"]", STATUS_FORMAT, "not two tokens"},
        {"[\"a\",\"b\"]", "[\"a\",\"b\",\"c\"]", STATUS_FORMAT, "not two tokens"},
        {"[\"a\",\"b\"]", "7", STATUS_FORMAT, "expected an array"},
        {"\"id\":3", "\"id\":7", STATUS_FORMAT, "has id 7, but its place gives it 3"},
        {"\"id\":3", "\"id\":-1", STATUS_FORMAT, "no id that is possible"},
        {"\"content\":\"<s>\"", "\"content\":\"ab\"", STATUS_FORMAT, "has id 3, but its place gives it 2"},
        {"\"content\":\"<s>\"", "\"content\":5", STATUS_FORMAT, "'content' is not a text"},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Precompiled\"}", STATUS_UNSUPPORTED,
         "normalizer 'Precompiled' is not supported"},
        {"\"normalizer\":null", "\"normalizer\":{}", STATUS_UNSUPPORTED, "normalizer 'without a type'"},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Sequence\"}", STATUS_FORMAT, "'normalizers' is not a list"},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(\"},\"content\":\"\"}", STATUS_UNSUPPORTED,
         "a group without end"},
        {"\"pre_tokenizer\":null", "\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}", STATUS_UNSUPPORTED,
         "pre-tokenizer 'UnicodeScripts' is not supported"},
        {"\"pre_tokenizer\":null", "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"Odd\"}",
         STATUS_UNSUPPORTED, "behavior 'Odd'"},
        {"\"pre_tokenizer\":null", "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"__\"}", STATUS_FORMAT,
         "'replacement' is not one character"},
        {"{\"type\":\"Fuse\"}", "{\"type\":\"CTC\"}", STATUS_UNSUPPORTED, "decoder 'CTC' is not supported"},
        {"\"decoder\"", "\"post_processor\":{\"type\":\"Odd\"},\"decoder\"", STATUS_UNSUPPORTED, "post-processor 'Odd'"},
        {"\"decoder\"", "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}}]},\"decoder\"",
         STATUS_FORMAT, "no ids for '<s>'"},
        {"\"decoder\"", "\"model\":{},\"decoder\"", STATUS_FORMAT, "a section given twice"},
        {"}}", "}}}", STATUS_FORMAT, "something behind the value"},
        {"\"a\":0", "\"a\":00", STATUS_FORMAT, "a number that is none"},
    };
    m = test_mem();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[2048];
        tokenizer *t = NULL;
        error err = {0};
        size_t n = edited(cases[i].from, cases[i].to, text, sizeof text);
        status rc = open_text(text, n, &t, &err);
        if (rc != cases[i].rc) fail_msg("%s -> %s: %s: %s", cases[i].from, cases[i].to, status_name(rc), err.text);
        assert_contains(err.text, cases[i].part);
    }
    test_mem_check(m);
}

static void cut_and_flipped(void **state) {
    (void)state;
    size_t n = sizeof plain - 1, loaded = 0;
    char text[sizeof plain];
    tokenizer *t = NULL;
    error err = {0};
    m = test_mem();
    for (size_t cut = 0; cut < n; cut++) assert_int_not_equal(open_text(plain, cut, &t, &err), STATUS_OK);
    for (size_t at = 0; at < n; at++)
        for (int bit = 0; bit < 8; bit++) {
            memcpy(text, plain, n);
            text[at] = (char)(text[at] ^ 1 << bit);
            if (open_text(text, n, &t, &err) != STATUS_OK) continue;
            tokenizer_close(t);
            loaded++;
        }
    assert_true(loaded > 0 && loaded < n * 8);
    char deep[20000];
    memset(deep, '[', sizeof deep);
    assert_int_equal(open_text(deep, sizeof deep, &t, &err), STATUS_FORMAT);
    memcpy(deep, "{\"x\":", 5);
    assert_int_equal(open_text(deep, sizeof deep, &t, &err), STATUS_FORMAT);
    assert_contains(err.text, "nested too deep");
    test_mem_check(m);
}

static void memory_runs_out(void **state) {
    (void)state;
    json_t *root = text_case_json("tokenizer_json_cases.json");
    json_t *tree = compose(root, json_array_get(json_object_get(root, "cases"), 3));
    char *text = json_dumps(tree, JSON_COMPACT);
    tokenizer *t = NULL;
    uint64_t n = 0;
    m = test_mem();
    for (status rc = STATUS_NO_MEMORY; rc != STATUS_OK; n++) {
        error err = {0};
        tokenizer *half = NULL;
        mem_fail_after(m, n);
        rc = tokenizer_new(m, &half, &err);
        if (rc == STATUS_OK) {
            rc = tokenizer_from_json_text(half, text, strlen(text), &err);
            if (rc == STATUS_OK) rc = tokenizer_finish(half, NULL, &err);
            if (rc == STATUS_OK)
                t = half;
            else
                tokenizer_close(half);
        }
        mem_fail_off(m);
        if (rc != STATUS_OK) assert_int_equal(rc, STATUS_NO_MEMORY);
        assert_true(n < 5000);
    }
    assert_true(n > 20);
    tokenizer_close(t);
    free(text);
    json_decref(tree);
    json_decref(root);
    test_mem_check(m);
}

/* Tokens that the model has no rows for: added ones are read as text, others are refused. */
static void more_tokens_than_rows(void **state) {
    (void)state;
    tokenizer *t = NULL;
    error err = {0};
    token_list ids;
    m = test_mem();
    assert_int_equal(tokenizer_new(m, &t, &err), STATUS_OK);
    assert_int_equal(tokenizer_from_json_text(t, plain, sizeof plain - 1, &err), STATUS_OK);
    assert_int_equal(tokenizer_finish(t, &(tokenizer_options){.n_vocab_model = 3}, &err), STATUS_OK);
    token_list_init(&ids, m, MEM_REQUEST);
    assert_int_equal(tokenizer_encode(t, "ab<s>", 5, TOKENIZER_BOS_DEFAULT, true, &ids, &err), STATUS_OK);
    assert_true(ids.n == 1 && ids.ids[0] == 2 && tokenizer_size(t) == 3);
    token_list_deinit(&ids);
    tokenizer_close(t);
    assert_int_equal(tokenizer_new(m, &t, &err), STATUS_OK);
    assert_int_equal(tokenizer_from_json_text(t, plain, sizeof plain - 1, &err), STATUS_OK);
    assert_int_equal(tokenizer_finish(t, &(tokenizer_options){.n_vocab_model = 2}, &err), STATUS_FORMAT);
    assert_contains(err.text, "the model has rows for 2");
    tokenizer_close(t);
    test_mem_check(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(combinations),          cmocka_unit_test(a_megabyte_a_fixture),
                                       cmocka_unit_test(refused_with_a_reason), cmocka_unit_test(cut_and_flipped),
                                       cmocka_unit_test(memory_runs_out),       cmocka_unit_test(more_tokens_than_rows),
                                       cmocka_unit_test(normal_forms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
