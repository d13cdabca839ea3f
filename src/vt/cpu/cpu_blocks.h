/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The GGUF blocks beyond Q4_0, Q4_1, Q8_0 and Q6_K (which cpu_kernels.h has): layouts as structures, and the packed scales of the K types.
 * dtype.h says what the fields mean. Static inline throughout, so that it serves files of every instruction set.
 */
#ifndef HEADRACE_VT_CPU_BLOCKS_H
#define HEADRACE_VT_CPU_BLOCKS_H

#include "vt/cpu/cpu_kernels.h"

typedef struct cpu_q5_0 {
    uint8_t d[2], qh[4], q[16];
} cpu_q5_0;
typedef struct cpu_q5_1 {
    uint8_t d[2], m[2], qh[4], q[16];
} cpu_q5_1;
typedef struct cpu_iq4_nl {
    uint8_t d[2], q[16];
} cpu_iq4_nl;
typedef struct cpu_mxfp4 {
    uint8_t e, q[16];
} cpu_mxfp4;
typedef struct cpu_q2_k {
    uint8_t scale[16], q[64], d[2], dmin[2];
} cpu_q2_k;
typedef struct cpu_q3_k {
    uint8_t qh[32], q[64], scale[12], d[2];
} cpu_q3_k;
typedef struct cpu_q4_k {
    uint8_t d[2], dmin[2], scale[12], q[128];
} cpu_q4_k;
typedef struct cpu_q5_k {
    uint8_t d[2], dmin[2], scale[12], qh[32], q[128];
} cpu_q5_k;
typedef struct cpu_iq4_xs {
    uint8_t d[2], scale_h[2], scale_l[4], q[128];
} cpu_iq4_xs;

/* The values of a four-bit weight: of IQ4, and twice those of MXFP4. */
#define CPU_IQ4_VALUES -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
#define CPU_MXFP4_VALUES 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12

static inline uint32_t cpu_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/** Half the scale that the byte stands for, so that the doubled values above apply: 2^(e - 128), also of 255. */
static inline float cpu_mxfp4_half(uint8_t e) {
    uint32_t bits = e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
    float d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

/**
 * Scales and minima of a block of 256 as bytes in order, packed into words of four: sixteen of them, one for sixteen elements, or (Q4_K,
 * Q5_K, IQ4_XS) eight for thirty-two each in the first two words. Scales of Q3_K and IQ4_XS have 32 more than they mean.
 */
typedef struct cpu_k_scales {
    uint32_t scale[4], min[4];
} cpu_k_scales;

static inline bool cpu_k_by_32(vt_dtype t) { return t == VT_Q4_K || t == VT_Q5_K || t == VT_IQ4_XS; }
static inline bool cpu_k_has_min(vt_dtype t) { return t == VT_Q2_K || t == VT_Q4_K || t == VT_Q5_K; }
static inline int cpu_k_scale_zero(vt_dtype t) { return t == VT_Q3_K || t == VT_IQ4_XS ? 32 : 0; }
static inline int64_t cpu_k_d_offset(vt_dtype t) { return t == VT_Q2_K ? 80 : t == VT_Q3_K ? 108 : 0; } /* dmin follows d */

static inline cpu_k_scales cpu_k_scales_of(vt_dtype t, const uint8_t *block) {
    const uint32_t low4 = 0x0F0F0F0Fu, low2 = 0x03030303u, low6 = 0x3F3F3F3Fu, high2 = 0x30303030u;
    cpu_k_scales s = {{0}, {0}};
    if (t == VT_Q2_K) {
        for (int i = 0; i < 4; i++) {
            uint32_t w = cpu_u32(((const cpu_q2_k *)block)->scale + 4 * i);
            s.scale[i] = w & low4;
            s.min[i] = w >> 4 & low4;
        }
    } else if (t == VT_Q3_K) {
        const uint8_t *p = ((const cpu_q3_k *)block)->scale;
        uint32_t first = cpu_u32(p), second = cpu_u32(p + 4), high = cpu_u32(p + 8);
        s.scale[0] = (first & low4) | (high & low2) << 4;
        s.scale[1] = (second & low4) | (high >> 2 & low2) << 4;
        s.scale[2] = (first >> 4 & low4) | (high >> 4 & low2) << 4;
        s.scale[3] = (second >> 4 & low4) | (high >> 6 & low2) << 4;
    } else if (t == VT_IQ4_XS) {
        const cpu_iq4_xs *b = (const void *)block;
        uint32_t low = cpu_u32(b->scale_l), high = cpu_u16(b->scale_h);
        for (int i = 0; i < 8; i++) s.scale[i / 4] |= ((low >> (4 * i) & 15u) | (high >> (2 * i) & 3u) << 4) << (8 * (i % 4));
    } else { /* Q4_K and Q5_K begin alike */
        const uint8_t *p = ((const cpu_q4_k *)block)->scale;
        uint32_t scale = cpu_u32(p), min = cpu_u32(p + 4), rest = cpu_u32(p + 8);
        s.scale[0] = scale & low6;
        s.scale[1] = (rest & low4) | (scale >> 2 & high2);
        s.min[0] = min & low6;
        s.min[1] = (rest >> 4 & low4) | (min >> 2 & high2);
    }
    return s;
}

/** Elements of a block as F32. ref_blocks.c */
void cpu_dequantize_block(vt_dtype t, const uint8_t *block, float *out);

/** One output of a product: a row of activation blocks with a row of weight blocks. ref_blocks.c */
float cpu_dot_blocks_q8_a32(vt_dtype t, const uint8_t *a, const uint8_t *b, int64_t n_k);
float cpu_dot_blocks_q8_a256(vt_dtype t, const uint8_t *a, const uint8_t *b, int64_t n_k);

#endif
