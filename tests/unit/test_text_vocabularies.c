/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Real vocabularies, tokenizer.json and GGUF, in the folder that HEADRACE_TEST_VOCABULARIES names (tools/get_vocabularies.sh): ids of more
 * than 2 MB of text, with their special tokens in it, equal to those of the Python package `tokenizers` (tools/record_vocabularies.py,
 * tests/data/vocabularies.json).
 */
#include "support/test_case.h"
#include "support/text_corpus.h"

#include "text/tokenizer_impl.h"

static const char *folder;

static tokenizer *open_vocabulary(mem *m, const char *path) {
    tokenizer *t = NULL;
    error err = {0};
    size_t n = strlen(path);
    if (n > 5 && strcmp(path + n - 5, ".json") == 0) {
        char *text = NULL;
        status rc = os_read_text(m, MEM_PROCESS, path, 64 << 20, &text, &n, &err);
        if (rc == STATUS_OK) rc = tokenizer_new(m, &t, &err);
        if (rc == STATUS_OK) rc = tokenizer_from_json_text(t, text, n, &err);
        if (rc == STATUS_OK) rc = tokenizer_finish(t, NULL, &err);
        if (rc != STATUS_OK) fail_msg("%s: %s", path, err.text);
        mem_free(m, text);
        return t;
    }
    source *s = NULL;
    status rc = source_open(m, path, NULL, &s, &err);
    if (rc == STATUS_OK) rc = tokenizer_open(m, s, NULL, &t, &err);
    if (rc != STATUS_OK) fail_msg("%s: %s", path, err.text);
    source_close(s);
    return t;
}

static void ids_as_upstream(void **state) {
    (void)state;
    json_t *corpus = text_case_json("tokenizer_corpus.json"), *recorded = text_case_json("vocabularies.json"), *one;
    const char *name;
    size_t n = 0, n_json = 0;
    json_object_foreach(json_object_get(recorded, "vocabularies"), name, one) {
        const char *file = json_string_value(json_object_get(one, "file"));
        bool json = strstr(file, ".json") != NULL;
        char path[4096];
        mem *m = test_mem();
        snprintf(path, sizeof path, "%s/%s", folder, file);
        tokenizer *t = open_vocabulary(m, path);
        size_t total = text_corpus_compare(m, corpus, json_object_get(one, "extra"), json_object_get(one, "hashes"), t,
                                           json ? TOKENIZER_BOS_DEFAULT : TOKENIZER_BOS_OMIT, name);
        assert_int_equal(total, json_integer_value(json_object_get(one, "bytes")));
        assert_true(total > 1000000);
        tokenizer_close(t);
        test_mem_check(m);
        n++;
        n_json += json;
    }
    assert_true(n_json >= 2 && n >= n_json + 10);
    json_decref(recorded);
    json_decref(corpus);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ids_as_upstream)};
    folder = os_env("HEADRACE_TEST_VOCABULARIES");
    if (!folder || !*folder) {
        puts("skipped: HEADRACE_TEST_VOCABULARIES does not name the folder (tools/get_vocabularies.sh)");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
