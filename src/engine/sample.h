/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The sampler: one row of logits to one id, in two parts. sampler_adjust changes the row (a copy): biases, then repetition, frequency and presence penalties, then what may not come
 * (ids outside the allowed ones, the last id of a bad word whose others stand at the end of the text, end ids before min_tokens), in F32 and in the order of Transformers' processors.
 * sampler_draw filters and draws: temperature, top-k, top-p, min-p, as Transformers' warpers, in F64. Noise is counter-based: the draw depends on (seed, position) and the row alone, so
 * the same seed gives the same text in any batch.
 * Scratch is given by the engine, sized once; nothing is allocated. Owned by one thread.
 */
#ifndef HEADRACE_ENGINE_SAMPLE_H
#define HEADRACE_ENGINE_SAMPLE_H

#include <stdint.h>

#include "base/alloc.h"

typedef struct sample_bias {
    int32_t id;
    float bias;
} sample_bias;

typedef struct sample_params {
    float temperature; /* 0: greedy */
    int32_t top_k;     /* 0: off */
    float top_p;       /* 0 or >= 1: off */
    float min_p;       /* 0: off */
    uint64_t seed;

    float repetition;  /* of every id in prompt and answer: positive logits are divided by it, others multiplied; 0 or 1: off */
    float frequency;   /* subtracted once for each time an id is in the answer */
    float presence;    /* subtracted once when an id is in the answer */
    int32_t min_tokens;           /* the answer has at least so many before an end id may come */
    const sample_bias *biases;    /* borrowed, as are all lists; ids checked by the caller */
    const int32_t *allowed;       /* n_allowed 0: all */
    const int32_t *bad_words;     /* n_bad_words times: length, then so many ids */
    const int32_t *end_ids;       /* that min_tokens keeps back */
    int32_t n_biases, n_allowed, n_bad_words, n_end_ids;
} sample_params;

enum { SAMPLE_MAX_TOP = 64 };
typedef struct sample_logprobs {
    float logprob;
    int32_t n_top;
    int32_t top_ids[SAMPLE_MAX_TOP]; /* best first, lower id first among equals */
    float top_logprobs[SAMPLE_MAX_TOP];
} sample_logprobs;

typedef struct sampler {
    mem *m;
    int32_t n_vocab;
    double *p;      /* [n_vocab] */
    int32_t *heap;  /* [n_vocab] */
    int32_t *count; /* [n_vocab], zero between calls */
    float *row;     /* [n_vocab]: a copy that may be changed */
} sampler;
enum { SAMPLER_BYTES_PER_ID = sizeof(double) + 2 * sizeof(int32_t) + sizeof(float) };

/**
 * STATUS_INVALID naming the parameter that is NaN or out of range: temperature 0..100, top_p and min_p 0..1, top_k >= 0, repetition 0 or 0.01..100, frequency and presence -100..100,
 * biases -1000..1000, min_tokens >= 0.
 */
NODISCARD status sample_params_check(const sample_params *sp, error *err);

NODISCARD status sampler_init(sampler *s, mem *m, int32_t n_vocab, error *err);
void sampler_deinit(sampler *s);

/** Whether sampler_adjust would change anything. */
bool sample_params_adjust(const sample_params *sp);
/** row [n_vocab] in place; tokens[0, n_tokens) is the text so far, of which the first n_prompt are the prompt. */
void sampler_adjust(sampler *s, float *row, const sample_params *sp, const int32_t *tokens, int32_t n_prompt, int32_t n_tokens);

/**
 * position: of the token to be drawn, in its sequence. Greedy takes the lowest id among equal maxima. STATUS_FAILED when the row holds a NaN or no finite maximum.
 */
NODISCARD status sampler_draw(sampler *s, const float *logits, const sample_params *sp, int32_t position, int32_t *out, error *err);

/** What a row that holds a NaN or no finite maximum says. */
status sampler_refuse(int32_t position, error *err);

/** Natural logarithm of softmax(row), of `id` and of the n_top likeliest (<= SAMPLE_MAX_TOP, <= n_vocab), in F64. */
void sampler_logprobs(const sampler *s, const float *row, int32_t id, int32_t n_top, sample_logprobs *out);

/** Uniform in [0, 1) from (seed, counter): splitmix64 finaliser over both, top 53 bits. */
double sample_uniform(uint64_t seed, uint64_t counter);
/** The seed of the index-th answer to a request: that of the first is the request's own. */
uint64_t sample_seed_of(uint64_t seed, int32_t index);

#endif
