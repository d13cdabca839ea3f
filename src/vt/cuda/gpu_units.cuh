/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Units of 32 consecutive weights of the GGUF block types as sixteen pairs of BF16: what products with BF16 activations on matrix units multiply. A weight is its value in F32, as dtype.h
 * defines it, rounded to BF16 once. Integers become floats by being put into the fraction of one; what that adds is taken away by the fused multiply-add with the scale where that is exact
 * (the product of the scale and the constant then is a float), else by a subtraction before it, so that the float is that of the scalar formula bit for bit.
 */
#ifndef HEADRACE_VT_CUDA_GPU_UNITS_H
#define HEADRACE_VT_CUDA_GPU_UNITS_H

#include "vt/cuda/gpu_blocks.cuh"

static const int UNIT_ELEMS = 32;

/* Bytes of a block, as a constant. */
template <int T> GPU_HD constexpr int unit_block_bytes() {
    int n = 0;
#define X(id, name, elems, bytes, gguf, act) n = T == id ? bytes : n;
    VT_DTYPE_LIST(X)
#undef X
    return n;
}

/* Blocks whose bytes are a multiple of four lie at such addresses where their rows begin at one. */
template <int T> GPU_HD constexpr bool unit_on_four() {
    return T == VT_Q4_1 || T == VT_Q5_1 || T == VT_Q2_K || T == VT_Q4_K || T == VT_Q5_K || T == VT_IQ4_XS;
}

/* N words at any address. No word is read that holds nothing of them, unless there is memory behind (PADDED). */
template <bool FOUR, bool PADDED, int N> GPU_FN void unit_words(uint32_t *w, const uint8_t *p) {
    if (FOUR) {
#pragma unroll
        for (int i = 0; i < N; i++) w[i] = ((const uint32_t *)p)[i];
        return;
    }
    const uint32_t off = (uint32_t)(uintptr_t)p & 3;
    const uint32_t *a = (const uint32_t *)(p - off);
    uint32_t raw[N + 1];
#pragma unroll
    for (int i = 0; i < N; i++) raw[i] = a[i];
    raw[N] = PADDED || off ? a[N] : 0;
#pragma unroll
    for (int i = 0; i < N; i++) w[i] = __funnelshift_r(raw[i], raw[i + 1], off * 8);
}

/* What a unit needs of its block, as it is stored: nothing is computed from it before unit_unpack, so that loads may be far ahead. */
template <int T> struct unit_raw {
    static const int NQ = T == VT_Q8_0 || T == VT_Q2_K || T == VT_Q3_K || T == VT_Q4_K || T == VT_Q5_K || T == VT_Q6_K ? 8 : 4;
    static const int NH = T == VT_Q3_K || T == VT_Q5_K || T == VT_Q6_K ? 8 : T == VT_Q5_0 || T == VT_Q5_1 ? 1 : 0;
    static const int NS = T == VT_Q4_K || T == VT_Q5_K ? 4 : T == VT_Q3_K ? 3 : gpu_is_k<T>() ? 2 : 1;
    uint32_t q[NQ], high[NH > 0 ? NH : 1], s[NS]; /* s: scales */
};

GPU_FN uint32_t unit_u16(const uint8_t *p) { return *(const uint16_t *)p; }
GPU_FN uint32_t unit_u32(const uint8_t *p) { return *(const uint32_t *)p; }

/* Unit u of the block of 256 at b, or the block of 32 at b. */
template <int T, bool PADDED> GPU_FN void unit_load(unit_raw<T> &r, const uint8_t *b, int u) {
    constexpr bool four = unit_on_four<T>();
    constexpr int at = T == VT_Q4_1 ? 4 : T == VT_Q5_0 ? 6 : T == VT_Q5_1 ? 8 : T == VT_MXFP4 ? 1 : 2;
    if constexpr (!gpu_is_k<T>()) {
        unit_words<four, PADDED, unit_raw<T>::NQ>(r.q, b + at);
        if constexpr (T == VT_Q5_0 || T == VT_Q5_1) unit_words<four, PADDED, 1>(r.high, b + at - 4);
        r.s[0] = T == VT_MXFP4 ? *b : gpu_has_min<T>() ? unit_u32(b) : unit_u16(b);
    } else if constexpr (T == VT_Q2_K) {
        unit_words<four, PADDED, 8>(r.q, b + 16 + 32 * (u / 4));
        r.s[0] = unit_u32(b + 80), r.s[1] = unit_u16(b + 2 * u);
    } else if constexpr (T == VT_Q3_K) {
        unit_words<four, PADDED, 8>(r.q, b + 32 + 32 * (u / 4));
        unit_words<four, PADDED, 8>(r.high, b);
        r.s[0] = unit_u16(b + 108), r.s[1] = unit_u16(b + 96 + 2 * u % 8), r.s[2] = unit_u16(b + 104 + 2 * u % 4);
    } else if constexpr (T == VT_Q6_K) {
        unit_words<four, PADDED, 8>(r.q, b + 64 * (u / 4) + 32 * (u % 2));
        unit_words<four, PADDED, 8>(r.high, b + 128 + 32 * (u / 4));
        r.s[0] = unit_u16(b + 208), r.s[1] = unit_u16(b + 192 + 2 * u);
    } else if constexpr (T == VT_IQ4_XS) {
        unit_words<four, PADDED, 4>(r.q, b + 8 + 16 * u);
        r.s[0] = unit_u32(b), r.s[1] = b[4 + u / 2];
    } else {
        unit_words<four, PADDED, 8>(r.q, b + (T == VT_Q4_K ? 16 : 48) + 32 * (u / 2));
        if constexpr (T == VT_Q5_K) unit_words<four, PADDED, 8>(r.high, b + 16);
        unit_words<true, PADDED, 4>(r.s, b);
    }
}

/* Of the sixteen elements h of unit u: the scale, and what is subtracted. */
template <int T> GPU_FN void unit_scale(float &ds, float &less, const unit_raw<T> &r, int u, int h) {
    const float d = T == VT_MXFP4 ? 0.0f : gpu_f16((uint16_t)r.s[0]), m = gpu_has_min<T>() ? gpu_f16((uint16_t)(r.s[0] >> 16)) : 0.0f;
    less = 0.0f;
    if constexpr (T == VT_MXFP4) {
        ds = __uint_as_float(r.s[0] < 2 ? 0x00200000u << r.s[0] : (r.s[0] - 1) << 23);
    } else if constexpr (!gpu_is_k<T>()) {
        ds = d, less = -m;
    } else if constexpr (T == VT_Q2_K) {
        ds = d * (float)(int)(r.s[1] >> (8 * h) & 15), less = m * (float)(int)(r.s[1] >> (8 * h + 4) & 15);
    } else if constexpr (T == VT_Q3_K) { /* sixteen elements g = 2 u + h: nibble g / 8 of one byte, bits 2 (g / 4) of the other */
        ds = d * (float)((int)((r.s[1] >> (8 * h + 4 * (u / 4)) & 15) | (r.s[2] >> (8 * h + 2 * (u / 2)) & 3) << 4) - 32);
    } else if constexpr (T == VT_Q6_K) {
        ds = d * (float)(int)(int8_t)(r.s[1] >> (8 * h));
    } else if constexpr (T == VT_IQ4_XS) {
        ds = d * (float)((int)((r.s[1] >> (4 * (u % 2)) & 15) | (r.s[0] >> (16 + 2 * u) & 3) << 4) - 32);
    } else { /* the twelve bytes are three words: low scales, low minima, and above them */
        const int by = 8 * (u % 4);
        const uint32_t x = r.s[1] >> by, y = r.s[2] >> by, z = r.s[3] >> by;
        const uint32_t scale = u < 4 ? x & 63 : (z & 15) | (x >> 6 & 3) << 4, min = u < 4 ? y & 63 : (z >> 4 & 15) | (y >> 6 & 3) << 4;
        ds = d * (float)(int)scale, less = m * (float)(int)min;
    }
}

/* Four bits as four bytes of 0 or 16. */
GPU_FN uint32_t unit_fifths(uint32_t four) { return (((four & 15u) * 0x00204081u) & 0x01010101u) << 4; }

/* Eight nibbles looked up in sixteen bytes: those of the low nibbles, then those of the high ones. */
GPU_FN void unit_lookup(uint32_t q, const uint32_t (&table)[4], uint32_t &low, uint32_t &high) {
    const uint32_t at = q & 0x77777777u, upper = 0x32103210u | (q & 0x88888888u) >> 1;
    const uint32_t a = __byte_perm(__byte_perm(table[0], table[1], at), __byte_perm(table[2], table[3], at), upper);
    const uint32_t b = __byte_perm(__byte_perm(table[0], table[1], at >> 16), __byte_perm(table[2], table[3], at >> 16), upper >> 16);
    low = __byte_perm(a, b, 0x6420);
    high = __byte_perm(a, b, 0x7531);
}

/* The unit's integers, each a byte that is `unit_zero` above the number. */
template <int T> GPU_HD constexpr int unit_zero() {
    return T == VT_Q4_0 ? 8 : T == VT_Q5_0 ? 16 : T == VT_Q8_0 || T == VT_IQ4_NL || T == VT_IQ4_XS ? 128 : T == VT_Q6_K ? 32 : T == VT_Q3_K ? 4 : T == VT_MXFP4 ? 16 : 0;
}

template <int T> GPU_FN void unit_bytes(uint32_t (&v)[8], const unit_raw<T> &r, int u) {
    if constexpr (T == VT_IQ4_NL || T == VT_IQ4_XS || T == VT_MXFP4) {
        const uint32_t iq4[4] = {0x3F2D1801u, 0x766A5D4Fu, 0xA6998D81u, 0xF1D9C5B5u}, e2m1[4] = {0x13121110u, 0x1C181614u, 0x0D0E0F10u, 0x04080A0Cu};
#pragma unroll
        for (int i = 0; i < 4; i++) unit_lookup(r.q[i], T == VT_MXFP4 ? e2m1 : iq4, v[i], v[i + 4]);
    } else if constexpr (T == VT_Q8_0) {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = r.q[i] ^ 0x80808080u;
    } else if constexpr (!gpu_is_k<T>()) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = r.q[i] & 0x0F0F0F0Fu, v[i + 4] = r.q[i] >> 4 & 0x0F0F0F0Fu;
            if constexpr (T == VT_Q5_0 || T == VT_Q5_1) v[i] |= unit_fifths(r.high[0] >> (4 * i)), v[i + 4] |= unit_fifths(r.high[0] >> (4 * i + 16));
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if constexpr (T == VT_Q2_K || T == VT_Q3_K)
                v[i] = r.q[i] >> (2 * (u % 4)) & 0x03030303u;
            else if constexpr (T == VT_Q6_K)
                v[i] = r.q[i] >> (4 * (u / 2 % 2)) & 0x0F0F0F0Fu;
            else
                v[i] = r.q[i] >> (4 * (u % 2)) & 0x0F0F0F0Fu;
            if constexpr (T == VT_Q3_K) v[i] |= (r.high[i] >> u & 0x01010101u) << 2;
            if constexpr (T == VT_Q5_K) v[i] |= (r.high[i] >> u & 0x01010101u) << 4;
            if constexpr (T == VT_Q6_K) v[i] |= (r.high[i] >> (2 * (u % 4)) & 0x03030303u) << 4;
        }
    }
}

GPU_FN uint32_t unit_pair(float x, float y) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
    return r;
}

/* Byte J of a word as a float, plus unit_plus<T>(): 128, or 2^15 where the byte may have all its bits. */
template <int T> GPU_HD constexpr bool unit_is_wide() { return T == VT_Q8_0 || T == VT_IQ4_NL || T == VT_IQ4_XS; }
template <int T> GPU_HD constexpr float unit_plus() { return unit_is_wide<T>() ? 32768.0f : 128.0f; }
template <int T, int J> GPU_FN float unit_float(uint32_t v) {
    return __uint_as_float(unit_is_wide<T>() ? __byte_perm(v, 0x47000000u, 0x7404 | J << 4) : __byte_perm(v, 0x43000000u, 0x7044 | J << 8));
}

/* The product of the scale and what is taken away is exact: the scale has few enough bits. */
template <int T> GPU_HD constexpr bool unit_is_fused() { return !gpu_has_min<T>() && T != VT_IQ4_XS; }

template <int T> GPU_FN float unit_value(float f, float ds, float less, float all) {
    if (unit_is_fused<T>()) return fmaf(f, ds, all);
    const float v = f - (unit_plus<T>() + (float)unit_zero<T>());
    return gpu_has_min<T>() ? fmaf(v, ds, -less) : v * ds;
}

/* Integers of at most five bits times a half need no floats: they are BF16 values, and so are their products with the three lowest of the half's eleven bits; adding those to the product with the
 * eight highest is the one rounding. Of MXFP4 the scale is a power of two. */
template <int T> GPU_HD constexpr bool unit_is_short() { return T == VT_Q4_0 || T == VT_Q5_0 || T == VT_MXFP4; }

GPU_FN uint32_t unit_fma(uint32_t x, uint32_t y, uint32_t z) {
    uint32_t r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z));
    return r;
}

GPU_FN uint32_t unit_twice(float f) { return __byte_perm(__float_as_uint(f), 0, 0x3232); } /* the upper half of its bits */

template <int T> GPU_FN void unit_unpack_short(uint32_t (&w)[16], const uint32_t (&v)[8], float d) {
    const float high = __uint_as_float(__float_as_uint(d) & 0xFFFF0000u);
    const uint32_t by = unit_twice(high), rest = unit_twice(d - high), less = unit_twice(-128.0f - (float)unit_zero<T>());
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const uint32_t q = unit_fma(__byte_perm(v[i / 2], 0x43434343u, i % 2 ? 0x4342 : 0x4140), 0x3F803F80u, less);
        w[i] = unit_fma(q, by, T == VT_MXFP4 ? 0x80008000u : unit_fma(q, rest, 0x80008000u));
    }
}

/* Elements 2 i and 2 i + 1 in w[i]. */
template <int T> GPU_FN void unit_unpack(uint32_t (&w)[16], const unit_raw<T> &r, int u) {
    uint32_t v[8];
    float scale[2], minus[2];
    unit_bytes<T>(v, r, u);
    unit_scale<T>(scale[0], minus[0], r, u, 0);
    unit_scale<T>(scale[1], minus[1], r, u, 1);
    if constexpr (unit_is_short<T>()) {
        unit_unpack_short<T>(w, v, scale[0]);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float ds = scale[i / 4], less = minus[i / 4], all = -(unit_plus<T>() + (float)unit_zero<T>()) * ds;
            w[2 * i] = unit_pair(unit_value<T>(unit_float<T, 0>(v[i]), ds, less, all), unit_value<T>(unit_float<T, 1>(v[i]), ds, less, all));
            w[2 * i + 1] = unit_pair(unit_value<T>(unit_float<T, 2>(v[i]), ds, less, all), unit_value<T>(unit_float<T, 3>(v[i]), ds, less, all));
        }
    }
}

/* Where unit i of a row lies: the address of its block, and its number within. */
template <int T> GPU_FN const uint8_t *unit_block(const uint8_t *row, int i) { return row + (int64_t)(gpu_is_k<T>() ? i / 8 : i) * unit_block_bytes<T>(); }

/* X(dtype): the weights that have units. */
#define GPU_UNITS(X) X(VT_Q4_0) X(VT_Q4_1) X(VT_Q8_0) X(VT_Q5_0) X(VT_Q5_1) X(VT_IQ4_NL) X(VT_MXFP4) X(VT_Q6_K) X(VT_Q2_K) X(VT_Q3_K) X(VT_Q4_K) X(VT_Q5_K) X(VT_IQ4_XS)

#endif
