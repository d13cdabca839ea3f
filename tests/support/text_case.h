/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of tokenizers share: reading JSON of cases, a vocabulary written as GGUF and opened, comparing ids. Include after test_case.h.
 */
#ifndef HEADRACE_TESTS_TEXT_CASE_H
#define HEADRACE_TESTS_TEXT_CASE_H

#include <jansson.h>

#include "support/gguf_writer.h"
#include "support/scratch_dir.h"
#include "text/tokenizer.h"

static inline json_t *text_case_json(const char *name) {
    char path[1024];
    json_error_t why;
    snprintf(path, sizeof path, "%s/%s", HEADRACE_TEST_DATA, name);
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &why);
    if (!root) fail_msg("%s:%d: %s", path, why.line, why.text);
    return root;
}

/** Save what w holds, open it as a checkpoint and its tokenizer; the source is closed again, as a tokenizer keeps nothing of it. */
static inline status text_case_open(mem *m, const scratch_dir *dir, gguf_writer *w, const tokenizer_options *opt, tokenizer **out,
                                    error *err) {
    char path[SCRATCH_PATH_BYTES];
    source *s = NULL;
    source_options how = {.mode = LOAD_READ};
    scratch_dir_path(dir, "vocab.gguf", path);
    assert_true(gguf_writer_save(w, path));
    status rc = source_open(m, path, &how, &s, err);
    if (rc != STATUS_OK) return rc;
    rc = tokenizer_open(m, s, opt, out, err);
    source_close(s);
    return rc;
}

/** The keys that each vocabulary needs to pass for a checkpoint. */
static inline void text_case_begin(gguf_writer *w, mem *m, const char *model, const char *pre) {
    gguf_writer_init(w, m);
    gguf_writer_text(w, "general.architecture", "llama");
    gguf_writer_text(w, "tokenizer.ggml.model", model);
    if (pre) gguf_writer_text(w, "tokenizer.ggml.pre", pre);
}

static inline void text_case_json_texts(gguf_writer *w, const char *key, const json_t *list) {
    size_t n = json_array_size(list);
    const char **texts = calloc(n + 1, sizeof *texts);
    assert_non_null(texts);
    for (size_t i = 0; i < n; i++) texts[i] = json_string_value(json_array_get(list, i));
    gguf_writer_texts(w, key, texts, n);
    free(texts);
}

static inline void text_case_json_ints(gguf_writer *w, const char *key, const json_t *list) {
    size_t n = json_array_size(list);
    int32_t *values = calloc(n + 1, sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < n; i++) values[i] = (int32_t)json_integer_value(json_array_get(list, i));
    gguf_writer_array(w, key, GGUF_W_I32, values, sizeof *values, n);
    free(values);
}

/** Fails at the first id that differs, with its place. */
static inline void text_case_expect_ids(const token_list *got, const json_t *want, const char *what) {
    for (size_t i = 0; i < got->n && i < json_array_size(want); i++) {
        int32_t id = (int32_t)json_integer_value(json_array_get(want, i));
        if (got->ids[i] != id) fail_msg("%s: id %zu is %d, expected %d", what, i, got->ids[i], id);
    }
    if (got->n != json_array_size(want)) fail_msg("%s: %zu ids, expected %zu", what, got->n, json_array_size(want));
}

/** The text of ids in one go, and given one by one: both must be the same. Appended to out. */
static inline void text_case_decode(mem *m, const tokenizer *t, const int32_t *ids, size_t n, bool skip_special, textbuf *out) {
    textbuf streamed;
    detokenizer d;
    error err = {0};
    size_t from = out->len;
    assert_int_equal(tokenizer_decode(t, ids, n, skip_special, out, &err), STATUS_OK);
    textbuf_init(&streamed, m, MEM_REQUEST);
    detokenizer_init(&d, t, skip_special);
    for (size_t i = 0; i < n; i++) assert_int_equal(detokenizer_add(&d, ids[i], &streamed), STATUS_OK);
    detokenizer_finish(&d, &streamed);
    assert_int_equal(out->len - from, streamed.len);
    if (streamed.len > 0) assert_memory_equal(out->data + from, streamed.data, streamed.len);
    textbuf_deinit(&streamed);
}

#endif
