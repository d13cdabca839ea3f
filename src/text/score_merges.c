/* SPDX-License-Identifier: Apache-2.0 */
/** Ids sorted by score; equal scores share a rank, so that among them position decides, as in the published implementation. */
#include "text/score_merges.h"

#include <math.h>

#include "load/sort_index.h"

typedef struct cut {
    int32_t left, right, whole;
    uint32_t rank;
} cut;

typedef struct cut_list {
    mem *m;
    cut *cuts;
    size_t n, cap;
} cut_list;

/* Highest score first, then the lower id. */
static int by_score(const void *ctx, uint32_t a, uint32_t b) {
    const double *score = ctx;
    if (score[a] != score[b]) return score[a] > score[b] ? -1 : 1;
    return (a > b) - (a < b);
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

static status read_scores(const vocab *v, const meta_value *scores, double *out, error *err) {
    size_t n = 0;
    if (!meta_array_size(scores, &n)) return error_set(err, STATUS_FORMAT, "tokenizer: tokenizer.ggml.scores is missing or is no array");
    if (n != (size_t)v->n) return error_set(err, STATUS_FORMAT, "tokenizer: %zu scores for %d tokens", n, v->n);
    for (size_t i = 0; i < n; i++)
        if (!meta_array_real(scores, i, &out[i]) || isnan(out[i]))
            return error_set(err, STATUS_FORMAT, "tokenizer: the score of token %zu is not a number", i);
    return STATUS_OK;
}

status score_merges_build(tokenizer *t, const meta_value *scores, error *err) {
    const vocab *v = &t->v;
    cut_list cuts = {.m = t->m};
    status rc = STATUS_OK;
    uint32_t rank = 0;
    size_t n = (size_t)v->n;
    double *score = mem_calloc(t->m, MEM_TOKENIZER, n, sizeof *score);
    uint32_t *order = mem_calloc(t->m, MEM_TOKENIZER, n, sizeof *order);
    if (!score || !order) TRY_GOTO(error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory for %zu scores", n));
    TRY_GOTO(read_scores(v, scores, score, err));
    sort_index_fill(order, n, by_score, score);
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && score[order[i]] != score[order[i - 1]]) rank++;
        if (v->attr[order[i]] & VOCAB_REACHABLE) TRY_GOTO(cut_token(v, (int32_t)order[i], rank, &cuts, err));
    }
    TRY_GOTO(bpe_init(&t->model, t->m, v, cuts.n, err));
    for (size_t i = 0; i < cuts.n; i++) {
        const cut *c = &cuts.cuts[i];
        TRY_GOTO(bpe_add_merge(&t->model, c->left, c->right, c->whole, c->rank, true, err));
    }
fail:
    mem_free(t->m, score);
    mem_free(t->m, order);
    mem_free(t->m, cuts.cuts);
    return rc;
}
