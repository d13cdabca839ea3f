/* SPDX-License-Identifier: Apache-2.0 */
/** Ids sorted by score; equal scores share a rank, so that among them position decides, as in the published implementation. */
#include "text/score_merges.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct scored {
    double score;
    int32_t id;
} scored;

typedef struct cut {
    int32_t left, right, whole;
    uint32_t rank;
} cut;

typedef struct cut_list {
    mem *m;
    cut *cuts;
    size_t n, cap;
} cut_list;

static int by_score(const void *a, const void *b) {
    const scored *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static status add_cut(cut_list *l, cut c, error *err) {
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 1024;
        cut *cuts =
            l->cuts ? mem_realloc(l->m, MEM_TOKENIZER, l->cuts, cap * sizeof *cuts) : mem_alloc(l->m, MEM_TOKENIZER, cap * sizeof *cuts);
        if (!cuts) return error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory for %zu merges", cap);
        l->cuts = cuts;
        l->cap = cap;
    }
    l->cuts[l->n++] = c;
    return STATUS_OK;
}

/* Each way to cut a token between two characters into two tokens. */
static status cut_token(const vocab *v, int32_t id, uint32_t rank, cut_list *l, error *err) {
    size_t n;
    const char *key = vocab_key(v, id, &n);
    if (n > SCORE_MERGES_MAX_TOKEN_BYTES)
        return error_set(err, STATUS_UNSUPPORTED, "tokenizer: token %d has %zu bytes; at most %d are read where tokens have scores", id, n,
                         SCORE_MERGES_MAX_TOKEN_BYTES);
    for (size_t i = 1; i < n; i++) {
        if (((unsigned char)key[i] & 0xc0) == 0x80) continue;
        int32_t left = vocab_find(v, key, i), right = left < 0 ? -1 : vocab_find(v, key + i, n - i);
        if (right >= 0) TRY(add_cut(l, (cut){left, right, id, rank}, err));
    }
    return STATUS_OK;
}

static status read_scores(const vocab *v, const meta_value *scores, scored *out, error *err) {
    size_t n = 0;
    if (!meta_array_size(scores, &n)) return error_set(err, STATUS_FORMAT, "tokenizer: tokenizer.ggml.scores is missing or is no array");
    if (n != (size_t)v->n) return error_set(err, STATUS_FORMAT, "tokenizer: %zu scores for %d tokens", n, v->n);
    for (int32_t id = 0; id < v->n; id++) {
        out[id].id = id;
        if (!meta_array_real(scores, (size_t)id, &out[id].score) || isnan(out[id].score))
            return error_set(err, STATUS_FORMAT, "tokenizer: the score of token %d is not a number", id);
    }
    return STATUS_OK;
}

status score_merges_build(tokenizer *t, const meta_value *scores, error *err) {
    const vocab *v = &t->v;
    cut_list cuts = {.m = t->m};
    status rc = STATUS_OK;
    uint32_t rank = 0;
    scored *order = mem_calloc(t->m, MEM_TOKENIZER, (size_t)v->n, sizeof *order);
    if (!order) return error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory for %d scores", v->n);
    TRY_GOTO(read_scores(v, scores, order, err));
    qsort(order, (size_t)v->n, sizeof *order, by_score);
    for (int32_t i = 0; i < v->n; i++) {
        if (i > 0 && order[i].score != order[i - 1].score) rank++;
        if (v->attr[order[i].id] & VOCAB_REACHABLE) TRY_GOTO(cut_token(v, order[i].id, rank, &cuts, err));
    }
    TRY_GOTO(bpe_init(&t->model, t->m, v, cuts.n, err));
    for (size_t i = 0; i < cuts.n; i++) {
        const cut *c = &cuts.cuts[i];
        TRY_GOTO(bpe_add_merge(&t->model, c->left, c->right, c->whole, c->rank, true, err));
    }
fail:
    mem_free(t->m, order);
    mem_free(t->m, cuts.cuts);
    return rc;
}
