/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the kernel files of the CPU backend share: addressing of rows, the summing order of lanes, splitting over threads, and block
 * layouts as structures. Everything that computes is static inline or scalar, so that a file compiled for a newer instruction set
 * cannot leak its code into the others.
 */
#ifndef HEADRACE_VT_CPU_KERNELS_H
#define HEADRACE_VT_CPU_KERNELS_H

#include <math.h>
#include <string.h>

#include "base/threads.h"
#include "vt/vt.h"

enum { CPU_LANES = 16, CPU_Q8_LANES = 4, CPU_QK = 32, CPU_QK_K = 256 };

/* Blocks as dtype.h describes them. Weights lie at any address, so fields of two bytes and more are read with memcpy. */
typedef struct cpu_q4_0 {
    uint8_t d[2], q[16];
} cpu_q4_0;
typedef struct cpu_q4_1 {
    uint8_t d[2], m[2], q[16];
} cpu_q4_1;
typedef struct cpu_q8_0 {
    uint8_t d[2];
    int8_t q[32];
} cpu_q8_0;
typedef struct cpu_q6_k {
    uint8_t ql[128], qh[64];
    int8_t scale[16];
    uint8_t d[2];
} cpu_q6_k;
typedef struct cpu_q8_a32 {
    float d;
    int32_t sum;
    int8_t q[32];
} cpu_q8_a32;
typedef struct cpu_q8_a256 {
    float d;
    int16_t sum[16];
    int8_t q[256];
} cpu_q8_a256;

static inline uint16_t cpu_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/** Bytes between neighbours of dimension d. */
static inline int64_t cpu_stride(const vt_tensor *t, int d) {
    return t->stride[d] / vt_dtype_block_elems(t->dtype) * (int64_t)vt_dtype_block_bytes(t->dtype);
}

/** Rows of the innermost dimension, and the address of row r of them counted through the outer dimensions. */
static inline int64_t cpu_n_rows(const vt_tensor *t) {
    int64_t n = 1;
    for (int d = 0; d < t->n_dims - 1; d++) n *= t->dim[d];
    return n;
}

static inline uint8_t *cpu_row(const vt_tensor *t, int64_t r) {
    int64_t off = 0;
    for (int d = t->n_dims - 2; d >= 0; d--) {
        off += r % t->dim[d] * cpu_stride(t, d);
        r /= t->dim[d];
    }
    return (uint8_t *)t->data + off;
}

static inline int64_t cpu_inner(const vt_tensor *t) { return t->dim[t->n_dims - 1]; }

/** fn over 0..n on the queue's threads. */
static inline void cpu_run(vt_queue *q, int64_t n, int64_t grain, pool_fn *fn, const void *ctx) {
    if (n <= 0) return;
    if (q->threads)
        pool_run(q->threads, n, grain < 1 ? 1 : grain, fn, (void *)(uintptr_t)ctx);
    else
        fn((void *)(uintptr_t)ctx, 0, n, 0);
}

/** A grain that gives each thread some chunks of at least `least` items. */
static inline int64_t cpu_grain(const vt_queue *q, int64_t n, int64_t least) {
    int64_t chunks = q->threads ? 4 * (int64_t)pool_size(q->threads) : 1;
    int64_t grain = (n + chunks - 1) / chunks;
    return grain < least ? least : grain;
}

/** A grain for rows of weights that are read once: long stretches, because the first rows of a task come from memory unannounced. */
static inline int64_t cpu_stream_grain(const vt_queue *q, int64_t n) {
    int64_t chunks = q->threads ? 8 * (int64_t)pool_size(q->threads) : 1, grain = (n + chunks - 1) / chunks;
    return (grain + 63) / 64 * 64;
}

/** The order in which sixteen partial sums become one (ops.h). */
static inline float cpu_sum_lanes(const float l[CPU_LANES]) {
    float s8[8], s4[4], s2[2];
    for (int j = 0; j < 8; j++) s8[j] = l[j] + l[j + 8];
    for (int j = 0; j < 4; j++) s4[j] = s8[j] + s8[j + 4];
    for (int j = 0; j < 2; j++) s2[j] = s4[j] + s4[j + 2];
    return s2[0] + s2[1];
}

/** What a product stores: alpha and beta of the call, dtype of out. */
typedef struct cpu_epilogue {
    uint8_t *out;
    int64_t row_bytes; /* of out */
    bool bf16, scaled;
    float alpha, beta;
} cpu_epilogue;

static inline cpu_epilogue cpu_epilogue_of(const vt_call *call) {
    bool scaled = call->op == VT_OP_MATMUL_BT_ALPHA_BETA;
    return (cpu_epilogue){.out = call->t[0]->data,
                          .row_bytes = cpu_stride(call->t[0], 0),
                          .bf16 = call->t[0]->dtype == VT_BF16,
                          .scaled = scaled,
                          .alpha = scaled ? call->p.alpha_beta.alpha : 1.0f,
                          .beta = scaled ? call->p.alpha_beta.beta : 0.0f};
}

static inline void cpu_store(const cpu_epilogue *e, int64_t m, int64_t n, float acc) {
    uint8_t *row = e->out + m * e->row_bytes;
    float *f32 = (float *)(void *)row + n;
    uint16_t *bf16 = (uint16_t *)(void *)row + n;
    float r = acc;
    if (e->scaled) {
        r = e->alpha * acc;
        if (e->beta != 0.0f) r = fmaf(e->beta, e->bf16 ? vt_bf16_to_f32(*bf16) : *f32, r);
    }
    if (e->bf16)
        *bf16 = vt_f32_to_bf16(r);
    else
        *f32 = r;
}

/** Elements k0 .. k0 + n - 1 of a weight row as F32; k0 and n whole blocks (of at most 256 elements). cpu_dequantize.c */
void cpu_dequantize(vt_dtype t, const uint8_t *row, int64_t k0, int64_t n, float *out);
/** x rounded to BF16, to nearest even: weights of blocks beside BF16 activations. cpu_dequantize.c */
void cpu_round_bf16(float *x, int64_t n);

/** Element i of F32, F16, BF16, FP8, E8M0 or FP4, at any address. ref_moe.c */
float cpu_element(vt_dtype t, const uint8_t *base, int64_t i);

/** The tensors of vt_rows in a call from place `first`; STATUS_INVALID when a row points outside pages or cache. cpu_pages.c */
typedef struct cpu_pages {
    const int32_t *pos, *seg;
    const vt_tensor *pages;
    int64_t page_tokens;
} cpu_pages;
NODISCARD status cpu_pages_of(const vt_call *call, int first, const vt_tensor *cache, int64_t n_rows, bool whole_past, int32_t window,
                              cpu_pages *out, error *err);

static inline int32_t cpu_page_of(const cpu_pages *p, int64_t row, int64_t pos) {
    const vt_tensor *t = p->pages;
    return ((const int32_t *)t->data)[p->seg[row] * t->stride[0] + pos / p->page_tokens * t->stride[1]];
}

/** First position that row sees. */
static inline int64_t cpu_first_pos(int64_t pos, int32_t window) { return window > 0 && pos - window + 1 > 0 ? pos - window + 1 : 0; }

#endif
