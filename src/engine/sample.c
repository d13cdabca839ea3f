/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Candidates are kept as a binary max-heap of ids ordered by (probability, lower id first): building it is linear, and top-k and top-p pop only as many as they keep. The draw
 * walks the kept candidates in that order (or all ids in order when no filter is on) until the uniform is used up.
 */
#include "engine/sample.h"

#include <math.h>
#include <string.h>

status sampler_init(sampler *s, mem *m, int32_t n_vocab, error *err) {
    void *memory;
    const size_t n = (size_t)n_vocab;
    *s = (sampler){.m = m, .n_vocab = n_vocab};
    TRY(mem_alloc_named(m, MEM_ENGINE, n * SAMPLER_BYTES_PER_ID, "the sampler", &memory, err));
    memset(memory, 0, n * SAMPLER_BYTES_PER_ID);
    s->p = memory;
    s->heap = (int32_t *)(void *)(s->p + n);
    s->count = s->heap + n;
    s->row = (float *)(void *)(s->count + n);
    return STATUS_OK;
}

void sampler_deinit(sampler *s) {
    if (s->m == NULL) return;
    mem_free(s->m, s->p);
    *s = (sampler){0};
}

static uint64_t mix64(uint64_t z) {
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

double sample_uniform(uint64_t seed, uint64_t counter) { return (double)(mix64(mix64(seed) ^ counter) >> 11) * 0x1p-53; }

uint64_t sample_seed_of(uint64_t seed, int32_t index) { return index == 0 ? seed : mix64(seed + (uint64_t)index * UINT64_C(0x9e3779b97f4a7c15)); }

/* Index of the first maximum; -1 when there is a NaN or no finite maximum. */
static int32_t first_maximum(const float *logits, int32_t n) {
    int32_t best = 0;
    bool nan = false;
    for (int32_t i = 0; i < n; i++) {
        nan |= logits[i] != logits[i];
        if (logits[i] > logits[best]) best = i;
    }
    return nan || !isfinite(logits[best]) ? -1 : best;
}

static bool before(const sampler *s, int32_t a, int32_t b) { return s->p[a] > s->p[b] || (s->p[a] == s->p[b] && a < b); }

static void sift(sampler *s, int32_t i, int32_t n) {
    const int32_t id = s->heap[i];
    for (int32_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && before(s, s->heap[child + 1], s->heap[child])) child++;
        if (!before(s, s->heap[child], id)) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = id;
}

/* Pops the best candidates until k are kept or their mass reaches top_p of the mass of the k best. Kept ids end up at the back of the heap array, best last. */
static int32_t keep_best(sampler *s, const sample_params *sp, double total) {
    int32_t n = s->n_vocab, kept = 0;
    const int32_t k = sp->top_k > 0 && sp->top_k < n ? sp->top_k : n;
    const bool top_p = sp->top_p > 0.0f && sp->top_p < 1.0f;
    for (int32_t i = 0; i < n; i++) s->heap[i] = i;
    for (int32_t i = n / 2 - 1; i >= 0; i--) sift(s, i, n);
    const double limit = top_p && k == n ? (double)sp->top_p * total : INFINITY;
    double mass = 0;
    while (kept < k && mass < limit) {
        const int32_t best = s->heap[0];
        s->heap[0] = s->heap[--n];
        if (n > 0) sift(s, 0, n);
        s->heap[n] = best;
        mass += s->p[best];
        kept++;
    }
    if (top_p && k < s->n_vocab) { /* top-p of what top-k left, renormalised */
        double sum = 0;
        int32_t keep = 0;
        while (keep < kept && sum < (double)sp->top_p * mass) sum += s->p[s->heap[s->n_vocab - 1 - keep++]];
        kept = keep;
    }
    return kept > 0 ? kept : 1;
}

status sampler_refuse(int32_t position, error *err) { return error_set(err, STATUS_FAILED, "engine: the logits of position %d are not finite", position - 1); }

status sampler_draw(sampler *s, const float *logits, const sample_params *sp, int32_t position, int32_t *out, error *err) {
    const int32_t best = first_maximum(logits, s->n_vocab);
    if (best < 0) return sampler_refuse(position, err);
    if (sp->temperature == 0.0f) {
        *out = best;
        return STATUS_OK;
    }
    double total = 0;
    for (int32_t i = 0; i < s->n_vocab; i++) {
        s->p[i] = exp(((double)logits[i] - (double)logits[best]) / (double)sp->temperature);
        total += s->p[i];
    }
    const bool sorted = sp->top_k > 0 || (sp->top_p > 0.0f && sp->top_p < 1.0f);
    const int32_t kept = sorted ? keep_best(s, sp, total) : s->n_vocab;
    const double floor = (double)sp->min_p * s->p[best]; /* s->p[best] is 1, the largest */
    double mass = 0;
    for (int32_t i = 0; i < kept; i++) {
        const int32_t id = sorted ? s->heap[s->n_vocab - 1 - i] : i;
        if (s->p[id] >= floor) mass += s->p[id];
    }
    double u = sample_uniform(sp->seed, (uint64_t)position) * mass;
    int32_t chosen = best;
    for (int32_t i = 0; i < kept; i++) {
        const int32_t id = sorted ? s->heap[s->n_vocab - 1 - i] : i;
        if (s->p[id] < floor || s->p[id] == 0) continue;
        chosen = id;
        u -= s->p[id];
        if (u < 0) break;
    }
    *out = chosen;
    return STATUS_OK;
}
