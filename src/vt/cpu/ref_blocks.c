/* SPDX-License-Identifier: Apache-2.0 */
/* The blocks of cpu_blocks.h one element at a time: their values, and their exact sums of products with quantised activations. */
#include "vt/cpu/cpu_blocks.h"

static const int8_t iq4_values[16] = {CPU_IQ4_VALUES}, mxfp4_values[16] = {CPU_MXFP4_VALUES};

/* ---- 32 elements ---- */

/* Four bits of element i of 32: low halves of the bytes first. */
static int nibble(const uint8_t *q, int i) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }

/* The integers that the elements of a block stand for, its scale, and what is added (0 where the type has nothing). */
static void unpack_32(vt_dtype t, const uint8_t *block, int q[CPU_QK], float *d, float *m) {
    *d = t == VT_MXFP4 ? cpu_mxfp4_half(block[0]) : vt_f16_to_f32(cpu_u16(block));
    *m = t == VT_Q5_1 ? vt_f16_to_f32(cpu_u16(((const cpu_q5_1 *)block)->m)) : 0.0f;
    for (int i = 0; i < CPU_QK; i++) {
        if (t == VT_Q5_0) {
            const cpu_q5_0 *b = (const void *)block;
            q[i] = (nibble(b->q, i) | (int)(cpu_u32(b->qh) >> i & 1u) << 4) - 16;
        } else if (t == VT_Q5_1) {
            const cpu_q5_1 *b = (const void *)block;
            q[i] = nibble(b->q, i) | (int)(cpu_u32(b->qh) >> i & 1u) << 4;
        } else if (t == VT_IQ4_NL) {
            q[i] = iq4_values[nibble(((const cpu_iq4_nl *)block)->q, i)];
        } else {
            q[i] = mxfp4_values[nibble(((const cpu_mxfp4 *)block)->q, i)];
        }
    }
}

static void dequantize_32(vt_dtype t, const uint8_t *block, float *out) {
    int q[CPU_QK];
    float d, m;
    unpack_32(t, block, q, &d, &m);
    for (int i = 0; i < CPU_QK; i++) out[i] = t == VT_Q5_1 ? d * (float)q[i] + m : d * (float)q[i];
}

float cpu_dot_blocks_q8_a32(vt_dtype t, const uint8_t *a_row, const uint8_t *b, int64_t n_k) {
    const cpu_q8_a32 *a = (const void *)a_row;
    float lanes[CPU_Q8_LANES] = {0};
    for (int64_t i = 0; i < n_k / CPU_QK; i++, b += vt_dtype_block_bytes(t)) {
        int q[CPU_QK];
        float d, m;
        int32_t sum = 0;
        unpack_32(t, b, q, &d, &m);
        for (int e = 0; e < CPU_QK; e++) sum += q[e] * a[i].q[e];
        float v = d * (float)sum;
        if (t == VT_Q5_1) v = fmaf(m, (float)a[i].sum, v);
        lanes[i % CPU_Q8_LANES] = fmaf(a[i].d, v, lanes[i % CPU_Q8_LANES]);
    }
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

/* ---- 256 elements ---- */

typedef struct k_block {
    int q[CPU_QK_K], scale[16], min[16]; /* one scale and minimum for sixteen elements */
    float d, dmin;
} k_block;

static int k_element(vt_dtype t, const uint8_t *block, int e) {
    int half = e / 128, group = e / 32, l = e % 32;
    if (t == VT_Q2_K) return ((const cpu_q2_k *)block)->q[32 * half + l] >> (2 * (group % 4)) & 3;
    if (t == VT_Q3_K) {
        const cpu_q3_k *b = (const void *)block;
        return (b->q[32 * half + l] >> (2 * (group % 4)) & 3) - (b->qh[l] >> group & 1 ? 0 : 4);
    }
    if (t == VT_IQ4_XS) return iq4_values[nibble(((const cpu_iq4_xs *)block)->q + 16 * group, l)];
    const uint8_t *q = t == VT_Q4_K ? ((const cpu_q4_k *)block)->q : ((const cpu_q5_k *)block)->q;
    int low = q[32 * (group / 2) + l] >> (4 * (group % 2)) & 15;
    return t == VT_Q4_K ? low : low | (((const cpu_q5_k *)block)->qh[l] >> group & 1) << 4;
}

static void unpack_256(vt_dtype t, const uint8_t *block, k_block *to) {
    cpu_k_scales s = cpu_k_scales_of(t, block);
    for (int g = 0; g < 16; g++) {
        int from = cpu_k_by_32(t) ? g / 2 : g;
        to->scale[g] = (int)(s.scale[from / 4] >> (8 * (from % 4)) & 255u) - cpu_k_scale_zero(t);
        to->min[g] = (int)(s.min[from / 4] >> (8 * (from % 4)) & 255u);
    }
    for (int e = 0; e < CPU_QK_K; e++) to->q[e] = k_element(t, block, e);
    const uint8_t *d = block + cpu_k_d_offset(t);
    to->d = vt_f16_to_f32(cpu_u16(d));
    to->dmin = cpu_k_has_min(t) ? vt_f16_to_f32(cpu_u16(d + 2)) : 0.0f;
}

static void dequantize_256(vt_dtype t, const uint8_t *block, float *out) {
    k_block b;
    unpack_256(t, block, &b);
    for (int e = 0; e < CPU_QK_K; e++) {
        float q = b.d * (float)b.scale[e / 16] * (float)b.q[e];
        out[e] = cpu_k_has_min(t) ? q - b.dmin * (float)b.min[e / 16] : q;
    }
}

float cpu_dot_blocks_q8_a256(vt_dtype t, const uint8_t *a_row, const uint8_t *b_row, int64_t n_k) {
    const cpu_q8_a256 *a = (const void *)a_row;
    float acc = 0.0f;
    for (int64_t i = 0; i < n_k / CPU_QK_K; i++, b_row += vt_dtype_block_bytes(t)) {
        k_block b;
        int32_t sum = 0, min_sum = 0;
        unpack_256(t, b_row, &b);
        for (int e = 0; e < CPU_QK_K; e++) sum += b.scale[e / 16] * b.q[e] * a[i].q[e];
        for (int g = 0; g < 16; g++) min_sum += b.min[g] * a[i].sum[g];
        if (cpu_k_has_min(t))
            acc = fmaf(a[i].d, fmaf(-b.dmin, (float)min_sum, b.d * (float)sum), acc);
        else
            acc = fmaf(a[i].d * b.d, (float)sum, acc);
    }
    return acc;
}

void cpu_dequantize_block(vt_dtype t, const uint8_t *block, float *out) {
    if (vt_dtype_block_elems(t) == CPU_QK)
        dequantize_32(t, block, out);
    else
        dequantize_256(t, block, out);
}
