/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The sampler: one row of logits to one id. Order of the filters, as in Transformers: temperature, top-k, top-p, min-p, then a draw. Noise is counter-based: the draw depends on
 * (seed, position) and the row alone, so the same seed gives the same text in any batch.
 * Scratch is given by the engine, sized once; nothing is allocated. Owned by one thread.
 */
#ifndef HEADRACE_ENGINE_SAMPLE_H
#define HEADRACE_ENGINE_SAMPLE_H

#include <stdint.h>

#include "base/alloc.h"

typedef struct sample_params {
    float temperature; /* 0: greedy */
    int32_t top_k;     /* 0: off */
    float top_p;       /* 0 or >= 1: off */
    float min_p;       /* 0: off */
    uint64_t seed;
} sample_params;

typedef struct sampler {
    mem *m;
    int32_t n_vocab;
    double *p;     /* [n_vocab] */
    int32_t *heap; /* [n_vocab] */
} sampler;

/** STATUS_INVALID naming the parameter that is NaN or out of range (temperature 0..100, top_p and min_p 0..1, top_k >= 0). */
NODISCARD status sample_params_check(const sample_params *sp, error *err);

NODISCARD status sampler_init(sampler *s, mem *m, int32_t n_vocab, error *err);
void sampler_deinit(sampler *s);

/**
 * position: of the token to be drawn, in its sequence. Greedy takes the lowest id among equal maxima. STATUS_FAILED when the row holds a NaN or no finite maximum.
 */
NODISCARD status sampler_draw(sampler *s, const float *logits, const sample_params *sp, int32_t position, int32_t *out, error *err);

/** Uniform in [0, 1) from (seed, counter): splitmix64 finaliser over both, top 53 bits. */
double sample_uniform(uint64_t seed, uint64_t counter);

#endif
