/* SPDX-License-Identifier: Apache-2.0 */
/* The corpus of tests/data/tokenizer_corpus.json: texts put together from its snippets, and hashes of the ids that another implementation
   gave. Include after test_case.h. */
#ifndef HEADRACE_TESTS_TEXT_CORPUS_H
#define HEADRACE_TESTS_TEXT_CORPUS_H

#include "support/text_case.h"

typedef struct text_corpus {
    json_t *root;
    const json_t *extra; /* further snippets; NULL: none */
    uint64_t state;
    textbuf text;
} text_corpus;

static inline uint64_t text_corpus_draw(text_corpus *g) {
    g->state = g->state * 6364136223846793005u + 1442695040888963407u;
    return g->state >> 33;
}

static inline void text_corpus_next(text_corpus *g) {
    const json_t *snippets = json_object_get(g->root, "snippets");
    size_t n_snippets = json_array_size(snippets);
    uint64_t n = 8 + text_corpus_draw(g) % 16;
    textbuf_clear(&g->text);
    for (uint64_t i = 0; i < n; i++) {
        size_t k = text_corpus_draw(g) % (n_snippets + json_array_size(g->extra));
        const json_t *s = k < n_snippets ? json_array_get(snippets, k) : json_array_get(g->extra, k - n_snippets);
        textbuf_add(&g->text, json_string_value(s), json_string_length(s));
    }
    assert_false(g->text.failed);
}

/** Encode all texts; fails at the first group whose hash is another one. Returns the bytes of all texts. */
static inline size_t text_corpus_compare(mem *m, json_t *root, const json_t *extra, const json_t *hashes, const tokenizer *t,
                                         tokenizer_bos bos, const char *name) {
    size_t n_texts = (size_t)json_integer_value(json_object_get(root, "texts")),
           per_hash = (size_t)json_integer_value(json_object_get(root, "texts_a_hash")), total = 0;
    text_corpus g = {.root = root, .extra = extra, .state = 1};
    token_list ids;
    error err = {0};
    textbuf_init(&g.text, m, MEM_REQUEST);
    token_list_init(&ids, m, MEM_REQUEST);
    assert_int_equal(json_array_size(hashes), n_texts / per_hash);
    for (size_t i = 0; i < n_texts; i += per_hash) {
        uint64_t h = 0xcbf29ce484222325u;
        char hex[20];
        for (size_t k = 0; k < per_hash; k++) {
            text_corpus_next(&g);
            total += g.text.len;
            ids.n = 0;
            if (tokenizer_encode(t, g.text.data, g.text.len, bos, true, &ids, &err) != STATUS_OK) fail_msg("%s: %s", name, err.text);
            for (size_t j = 0; j <= ids.n; j++) h = (h ^ (uint64_t)(int64_t)(j < ids.n ? ids.ids[j] : -1)) * 0x100000001b3u;
        }
        snprintf(hex, sizeof hex, "%016llx", (unsigned long long)h);
        if (strcmp(hex, json_string_value(json_array_get(hashes, i / per_hash))) != 0)
            fail_msg("%s: ids of texts %zu to %zu differ", name, i, i + per_hash - 1);
    }
    token_list_deinit(&ids);
    textbuf_deinit(&g.text);
    return total;
}

#endif
