/* SPDX-License-Identifier: Apache-2.0 */
/* Products, the definition that every other row must give the bits of: one output at a time, in the K order of ops.h. */
#include "vt/cpu/cpu_blocks.h"
#include "vt/cpu/cpu_rows.h"

typedef float dot_fn(vt_dtype dtype, const uint8_t *a, const uint8_t *b, int64_t k);

typedef struct product {
    const vt_tensor *a, *b;
    cpu_epilogue epilogue;
    dot_fn *dot;
} product;

static float dot_f32(vt_dtype dtype, const uint8_t *a_row, const uint8_t *b, int64_t n_k) {
    const float *a = (const void *)a_row;
    float lanes[CPU_LANES] = {0}, w[CPU_QK_K];
    for (int64_t k0 = 0; k0 < n_k; k0 += CPU_QK_K) {
        int64_t n = n_k - k0 < CPU_QK_K ? n_k - k0 : CPU_QK_K;
        cpu_dequantize(dtype, b, k0, n, w);
        for (int64_t i = 0; i < n; i++) lanes[i % CPU_LANES] = fmaf(a[k0 + i], w[i], lanes[i % CPU_LANES]);
    }
    return cpu_sum_lanes(lanes);
}

/* BF16 activations: the same sum over their exact values; weights of blocks are rounded to BF16 too. */
static float dot_bf16(vt_dtype dtype, const uint8_t *a_row, const uint8_t *b, int64_t n_k) {
    const uint16_t *a = (const void *)a_row;
    float lanes[CPU_LANES] = {0}, w[CPU_QK_K];
    for (int64_t k0 = 0; k0 < n_k; k0 += CPU_QK_K) {
        int64_t n = n_k - k0 < CPU_QK_K ? n_k - k0 : CPU_QK_K;
        cpu_dequantize(dtype, b, k0, n, w);
        if (vt_dtype_is_block(dtype)) cpu_round_bf16(w, n);
        for (int64_t i = 0; i < n; i++) lanes[i % CPU_LANES] = fmaf(vt_bf16_to_f32(a[k0 + i]), w[i], lanes[i % CPU_LANES]);
    }
    return cpu_sum_lanes(lanes);
}

/* The exact sum of products of one block, and its scale; m is 0 where the type has none. */
static int32_t block_sum(vt_dtype dtype, const uint8_t *b, const int8_t *a, float *d, float *m) {
    int32_t sum = 0;
    *d = vt_f16_to_f32(cpu_u16(b));
    *m = 0.0f;
    if (dtype == VT_Q4_0) {
        const uint8_t *q = ((const cpu_q4_0 *)b)->q;
        for (int i = 0; i < 16; i++) sum += ((q[i] & 15) - 8) * a[i] + ((q[i] >> 4) - 8) * a[i + 16];
    } else if (dtype == VT_Q4_1) {
        const uint8_t *q = ((const cpu_q4_1 *)b)->q;
        *m = vt_f16_to_f32(cpu_u16(((const cpu_q4_1 *)b)->m));
        for (int i = 0; i < 16; i++) sum += (q[i] & 15) * a[i] + (q[i] >> 4) * a[i + 16];
    } else {
        const int8_t *q = ((const cpu_q8_0 *)b)->q;
        for (int i = 0; i < 32; i++) sum += q[i] * a[i];
    }
    return sum;
}

static float dot_q8_a32(vt_dtype dtype, const uint8_t *a_row, const uint8_t *b, int64_t n_k) {
    const cpu_q8_a32 *a = (const void *)a_row;
    float lanes[CPU_Q8_LANES] = {0};
    size_t b_bytes = vt_dtype_block_bytes(dtype);
    for (int64_t i = 0; i < n_k / CPU_QK; i++) {
        float d, m;
        float t = (float)block_sum(dtype, b + (size_t)i * b_bytes, a[i].q, &d, &m);
        t = d * t;
        if (dtype == VT_Q4_1) t = fmaf(m, (float)a[i].sum, t);
        lanes[i % CPU_Q8_LANES] = fmaf(a[i].d, t, lanes[i % CPU_Q8_LANES]);
    }
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

static float dot_q8_a256(vt_dtype dtype, const uint8_t *a_row, const uint8_t *b_row, int64_t n_k) {
    (void)dtype;
    const cpu_q8_a256 *a = (const void *)a_row;
    const cpu_q6_k *b = (const void *)b_row;
    float acc = 0.0f;
    for (int64_t i = 0; i < n_k / CPU_QK_K; i++) {
        int32_t sum = 0;
        for (int e = 0; e < CPU_QK_K; e++) {
            int h = e / 128, g = e % 128 / 32, l = e % 32;
            int low = b[i].ql[64 * h + 32 * (g % 2) + l] >> (g / 2 * 4) & 15;
            int high = b[i].qh[32 * h + l] >> (2 * g) & 3;
            sum += b[i].scale[e / 16] * ((high << 4 | low) - 32) * a[i].q[e];
        }
        acc = fmaf(a[i].d * vt_f16_to_f32(cpu_u16(b[i].d)), (float)sum, acc);
    }
    return acc;
}

static void product_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const product *p = ctx;
    int64_t n_m = p->a->dim[0];
    for (int64_t i = begin; i < end; i++) {
        int64_t n = i / n_m, m = i % n_m;
        float acc = p->dot(p->b->dtype, cpu_row(p->a, m), cpu_row(p->b, n), p->a->dim[1]);
        cpu_store(&p->epilogue, m, n, acc);
    }
}

static status run(vt_queue *q, const vt_call *call, dot_fn *dot) {
    product p = {call->t[1], call->t[2], cpu_epilogue_of(call), dot};
    int64_t n = p.a->dim[0] * p.b->dim[0];
    cpu_run(q, n, cpu_grain(q, n, 1), product_task, &p);
    return STATUS_OK;
}

status ref_matmul_f32(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    return run(q, call, dot_f32);
}

status ref_matmul_bf16(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    return run(q, call, dot_bf16);
}

status ref_matmul_q8_a32(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    return run(q, call, dot_q8_a32);
}

status ref_matmul_q8_a256(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    return run(q, call, dot_q8_a256);
}

status ref_matmul_blocks_q8_a32(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    return run(q, call, cpu_dot_blocks_q8_a32);
}

status ref_matmul_blocks_q8_a256(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    return run(q, call, cpu_dot_blocks_q8_a256);
}
