/* SPDX-License-Identifier: Apache-2.0 */
/**
 * FP8 and FP4 weights as pairs of BF16, exactly. An E4M3 or E2M1 value has at most four significant bits: its exponent and fraction are put
 * where BF16 has them and the exponent's bias is made good by one multiplication with a power of two, which makes subnormal ones right too.
 */
#ifndef HEADRACE_VT_CUDA_GPU_NARROW_H
#define HEADRACE_VT_CUDA_GPU_NARROW_H

#include "vt/cuda/gpu.cuh"

/* x * y of pairs of BF16; exact where the product is a BF16. */
GPU_FN uint32_t narrow_mul(uint32_t x, uint32_t y) {
    uint32_t r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(0x80008000u));
    return r;
}

/* Four E4M3: elements 0 and 1, then 2 and 3. What is NaN comes out as 480 and is told by narrow_nan_e4m3. */
GPU_FN void narrow_e4m3(uint32_t four, uint32_t &first, uint32_t &second) {
    const uint32_t x = __byte_perm(four, 0, 0x1404), y = __byte_perm(four, 0, 0x3424);
    first = narrow_mul((x >> 4 & 0x07F007F0u) | (x & 0x80008000u), 0x7B807B80u); /* 2^120 */
    second = narrow_mul((y >> 4 & 0x07F007F0u) | (y & 0x80008000u), 0x7B807B80u);
}

/* Not zero where one of the four is NaN. */
GPU_FN uint32_t narrow_nan_e4m3(uint32_t four) { return ((four & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u; }

/* Eight E2M1, times `by`: elements J and J + 4 of a word. */
template <int J> GPU_FN uint32_t narrow_e2m1(uint32_t eight, uint32_t by) {
    const uint32_t x = eight << (12 - 4 * J);
    return narrow_mul((x >> 6 & 0x01C001C0u) | (x & 0x80008000u), by);
}

/* What makes E2M1 of a block with scale 2^(e - 127) whole: a pair of factors, the second one where the first would leave the range. Times a
 * power of two an E2M1 value stays a BF16, or leaves the range of F32 with it. */
GPU_FN uint32_t narrow_scale_e2m1(uint32_t e) {
    const uint32_t h = e == 255 ? 0x7FC0u : ((e < 128 ? e : 128) + 126) << 7;
    return h | h << 16;
}
GPU_FN uint32_t narrow_rest_e2m1(uint32_t e) {
    const uint32_t h = e > 128 && e < 255 ? (e - 1) << 7 : 0x3F80u;
    return h | h << 16;
}

/* A scale of any dtype that scales have. */
template <int T> GPU_FN float narrow_scale(const uint8_t *row, int64_t i) {
    if constexpr (T == VT_F32) return ((const float *)row)[i];
    if constexpr (T == VT_F16) return gpu_f16(((const uint16_t *)row)[i]);
    return gpu_bf16(((const uint16_t *)row)[i]);
}

#endif
