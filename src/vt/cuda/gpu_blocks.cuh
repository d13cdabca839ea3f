/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Weights of every dtype one element at a time, as dtype.h defines them, and what a product with quantised activations needs of a block:
 * its integers, scales and minima. Weight blocks lie at any address, so they are read by bytes.
 */
#ifndef HEADRACE_VT_CUDA_GPU_BLOCKS_H
#define HEADRACE_VT_CUDA_GPU_BLOCKS_H

#include "vt/cuda/gpu.cuh"

GPU_FN int gpu_iq4(int q) {
    const uint64_t low = 0xF6EADDCFBFAD9881ull, high = 0x7159453526190D01ull; /* -127 -104 -83 -65 -49 -35 -22 -10, 1 13 25 38 53 69 89 113 */
    return (int8_t)((q < 8 ? low : high) >> (8 * (q & 7)));
}

/* Twice the value of F4_E2M1. */
GPU_FN int gpu_e2m1_doubled(int q) {
    int m = (int)(0x0C08060403020100ull >> (8 * (q & 7)) & 255);
    return q & 8 ? -m : m;
}

GPU_FN int gpu_nibble(const uint8_t *q, int i) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }

/* Integer of element e of a block. */
template <int T> GPU_FN int gpu_block_int(const uint8_t *b, int e) {
    if (T == VT_Q4_0) return gpu_nibble(b + 2, e) - 8;
    if (T == VT_Q4_1) return gpu_nibble(b + 4, e);
    if (T == VT_Q8_0) return (int8_t)b[2 + e];
    if (T == VT_Q5_0) return (gpu_nibble(b + 6, e) | (b[2 + e / 8] >> (e % 8) & 1) << 4) - 16;
    if (T == VT_Q5_1) return gpu_nibble(b + 8, e) | (b[4 + e / 8] >> (e % 8) & 1) << 4;
    if (T == VT_IQ4_NL) return gpu_iq4(gpu_nibble(b + 2, e));
    if (T == VT_MXFP4) return gpu_e2m1_doubled(gpu_nibble(b + 1, e));
    const int half = e / 128, group = e / 32, l = e % 32;
    if (T == VT_Q6_K) {
        int g = group % 4;
        int low = b[64 * half + 32 * (g % 2) + l] >> (g / 2 * 4) & 15, high = b[128 + 32 * half + l] >> (2 * g) & 3;
        return (high << 4 | low) - 32;
    }
    if (T == VT_Q2_K) return b[16 + 32 * half + l] >> (2 * (group % 4)) & 3;
    if (T == VT_Q3_K) return (b[32 + 32 * half + l] >> (2 * (group % 4)) & 3) - (b[l] >> group & 1 ? 0 : 4);
    if (T == VT_IQ4_XS) return gpu_iq4(gpu_nibble(b + 8 + 16 * group, l));
    int low = b[(T == VT_Q4_K ? 16 : 48) + 32 * (group / 2) + l] >> (4 * (group % 2)) & 15;
    return T == VT_Q4_K ? low : low | (b[16 + l] >> group & 1) << 4;
}

template <int T> GPU_FN float gpu_block_d(const uint8_t *b) {
    if (T == VT_MXFP4) return __uint_as_float(b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23);
    const int at = T == VT_Q2_K ? 80 : T == VT_Q3_K ? 108 : T == VT_Q6_K ? 208 : 0;
    return gpu_f16(gpu_u16(b + at));
}

/* What is added (32 elements), or dmin (256). */
template <int T> GPU_FN float gpu_block_m(const uint8_t *b) {
    const int at = T == VT_Q2_K ? 82 : 2;
    return gpu_f16(gpu_u16(b + at));
}

/* Scale and minimum of the sixteen elements g of a block of 256. */
template <int T> GPU_FN int gpu_k_scale(const uint8_t *b, int g) {
    if (T == VT_Q6_K) return (int8_t)b[192 + g];
    if (T == VT_Q2_K) return b[g] & 15;
    if (T == VT_Q3_K) return ((b[96 + g % 8] >> (4 * (g / 8)) & 15) | (b[104 + g % 4] >> (2 * (g / 4)) & 3) << 4) - 32;
    const int i = g / 2;
    if (T == VT_IQ4_XS) return ((b[4 + i / 2] >> (4 * (i % 2)) & 15) | (gpu_u16(b + 2) >> (2 * i) & 3) << 4) - 32;
    return i < 4 ? b[4 + i] & 63 : (b[4 + 4 + i] & 15) | b[4 + i - 4] >> 6 << 4;
}

template <int T> GPU_FN int gpu_k_min(const uint8_t *b, int g) {
    if (T == VT_Q2_K) return b[g] >> 4;
    const int i = g / 2;
    return i < 4 ? b[4 + 4 + i] & 63 : b[4 + 4 + i] >> 4 | b[4 + i] >> 6 << 4;
}

template <int T> GPU_HD constexpr bool gpu_has_min() {
    return T == VT_Q4_1 || T == VT_Q5_1 || T == VT_Q2_K || T == VT_Q4_K || T == VT_Q5_K;
}

template <int T> GPU_HD constexpr bool gpu_is_k() {
    return T == VT_Q6_K || T == VT_Q2_K || T == VT_Q3_K || T == VT_Q4_K || T == VT_Q5_K || T == VT_IQ4_XS;
}

/* Element k of a row, in the operations of the scalar formula. */
template <int T> GPU_FN float gpu_weight(const uint8_t *row, int64_t k) {
    if (T == VT_F32) return ((const float *)row)[k];
    if (T == VT_F16) return gpu_f16(((const uint16_t *)row)[k]);
    if (T == VT_BF16) return gpu_bf16(((const uint16_t *)row)[k]);
    if (T == VT_F8_E4M3) return gpu_e4m3(row[k]);
    if (T == VT_F4_E2M1) return gpu_e2m1((uint32_t)(row[k / 2] >> (k % 2 * 4) & 15));
    if (T == VT_F8_E8M0) return gpu_e8m0(row[k]);
    if (gpu_is_k<T>()) {
        const uint8_t *b = row + k / 256 * gpu_block_bytes(T);
        const int e = (int)(k % 256);
        float q = gpu_block_d<T>(b) * (float)gpu_k_scale<T>(b, e / 16) * (float)gpu_block_int<T>(b, e);
        return gpu_has_min<T>() ? q - gpu_block_m<T>(b) * (float)gpu_k_min<T>(b, e / 16) : q;
    }
    const uint8_t *b = row + k / 32 * gpu_block_bytes(T);
    float q = gpu_block_d<T>(b) * (float)gpu_block_int<T>(b, (int)(k % 32));
    return gpu_has_min<T>() ? q + gpu_block_m<T>(b) : q;
}

/* X(dtype): the weights of products with F32 activations. */
#define GPU_WEIGHTS(X)                                                                                                                     \
    X(VT_F32)                                                                                                                              \
    X(VT_F16) X(VT_BF16) X(VT_Q4_0) X(VT_Q4_1) X(VT_Q8_0) X(VT_Q5_0) X(VT_Q5_1) X(VT_IQ4_NL) X(VT_MXFP4) X(VT_Q6_K) X(VT_Q2_K) X(VT_Q3_K)   \
        X(VT_Q4_K) X(VT_Q5_K) X(VT_IQ4_XS)

GPU_FN float gpu_weight_at(int dtype, const uint8_t *row, int64_t k) {
    switch (dtype) {
#define X(T)                                                                                                                               \
    case T:                                                                                                                                \
        return gpu_weight<T>(row, k);
        GPU_WEIGHTS(X)
#undef X
    default:
        return __uint_as_float(0x7FC00000u);
    }
}

#endif
