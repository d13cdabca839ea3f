/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Sixteen floats, the width in which ops.h counts its lanes, for AVX-512 (F, BW, DQ, VL). v16_avx2.h has the same names, so that one text
 * (*.inc) makes the rows of both. Functions with n touch the first n elements in memory and nothing behind them.
 */
#ifndef HEADRACE_VT_CPU_V16_AVX512_H
#define HEADRACE_VT_CPU_V16_AVX512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "vt/exp_constants.h"

typedef __m512 v16;
typedef __mmask16 v16_mask;

static inline v16_mask v16_first(int n) { return (v16_mask)((1u << n) - 1); }
static inline v16 v16_zero(void) { return _mm512_setzero_ps(); }
static inline v16 v16_set(float x) { return _mm512_set1_ps(x); }
static inline v16 v16_load(const float *p) { return _mm512_loadu_ps(p); }
static inline v16 v16_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(v16_first(n), p); }
static inline void v16_store(float *p, v16 x) { _mm512_storeu_ps(p, x); }
static inline void v16_store_n(float *p, v16 x, int n) { _mm512_mask_storeu_ps(p, v16_first(n), x); }
static inline v16 v16_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
static inline v16 v16_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
static inline v16 v16_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
static inline v16 v16_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
static inline v16 v16_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
/** a * b + c in the first n lanes, c in the others. */
static inline v16 v16_fma_n(v16 a, v16 b, v16 c, int n) { return _mm512_mask3_fmadd_ps(a, b, c, v16_first(n)); }
/** b where one of the two is a NaN. */
static inline v16 v16_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
static inline v16 v16_min(v16 a, v16 b) { return _mm512_min_ps(a, b); }
static inline v16 v16_abs(v16 a) { return _mm512_abs_ps(a); }
static inline v16 v16_neg(v16 a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
static inline v16 v16_round(v16 a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

static inline v16 v16_from_f16(__m256i h) { return _mm512_cvtph_ps(h); }
static inline v16 v16_from_bf16(__m256i h) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)); }
static inline v16 v16_load_f16(const uint16_t *p) { return v16_from_f16(_mm256_loadu_si256((const void *)p)); }
static inline v16 v16_load_bf16(const uint16_t *p) { return v16_from_bf16(_mm256_loadu_si256((const void *)p)); }
static inline v16 v16_load_f16_n(const uint16_t *p, int n) { return v16_from_f16(_mm256_maskz_loadu_epi16(v16_first(n), p)); }
static inline v16 v16_load_bf16_n(const uint16_t *p, int n) { return v16_from_bf16(_mm256_maskz_loadu_epi16(v16_first(n), p)); }
/** A half in all lanes. */
static inline v16 v16_set_f16(uint16_t h) { return _mm512_cvtph_ps(_mm256_set1_epi16((int16_t)h)); }
static inline v16 v16_from_i8(__m128i q) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)); }

/** d * (q - shift), then + m unless m is NULL, of the low nibbles q of sixteen bytes and of the high ones: looked up among the sixteen values there are. */
static inline void v16_q4(v16 d, int shift, const v16 *m, __m128i bytes, v16 out[2]) {
    __m512i q = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), index = _mm512_cvtepu8_epi32(bytes);
    v16 values = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_sub_epi32(q, _mm512_set1_epi32(shift))));
    if (m) values = _mm512_add_ps(values, *m);
    out[0] = _mm512_permutexvar_ps(index, values); /* looks at four bits of an index */
    out[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(index, 4), values);
}

static inline __m256i v16_to_f16(v16 x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/** Nearest even; a NaN stays one and keeps its sign and upper bits. */
static inline __m256i v16_to_bf16(v16 x) {
    __m512i bits = _mm512_castps_si512(x), high = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd), 16);
    __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet));
}
static inline void v16_store_half(uint16_t *p, __m256i h) { _mm256_storeu_si256((void *)p, h); }
static inline void v16_store_half_n(uint16_t *p, __m256i h, int n) { _mm256_mask_storeu_epi16(p, v16_first(n), h); }

/** The order of ops.h: halves, quarters, pairs. */
static inline float v16_sum(v16 x) {
    __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

/** The sums of four, each in the same order. */
static inline __m128 v16_sum4(v16 a, v16 b, v16 c, v16 d) {
    v16 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
    v16 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
    v16 s4 = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
    v16 s2 = _mm512_add_ps(s4, _mm512_permute_ps(s4, 0x4E));
    v16 s1 = _mm512_add_ps(s2, _mm512_permute_ps(s2, 0xB1));
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(_mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0), s1));
}

static inline float v16_max_of(v16 x) { return _mm512_reduce_max_ps(x); }

/** vt_expf in each lane. */
static inline v16 v16_exp(v16 x) {
    __mmask16 not_below = _mm512_cmp_ps_mask(x, _mm512_set1_ps(VT_EXP_LO), _CMP_NLT_UQ);
    x = _mm512_min_ps(_mm512_set1_ps(VT_EXP_HI), x);
    v16 n = v16_round(_mm512_mul_ps(x, _mm512_set1_ps(VT_EXP_LOG2E)));
    v16 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-VT_EXP_LN2_HI), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-VT_EXP_LN2_LO), r);
    v16 p = _mm512_set1_ps(VT_EXP_C6);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(VT_EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(VT_EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(VT_EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(VT_EXP_C2));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    __m512i scaled = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23));
    return _mm512_castsi512_ps(_mm512_maskz_mov_epi32(not_below, scaled));
}

/** Whether one of the lanes is a NaN or infinite. */
static inline bool v16_any_not_finite(v16 x) { return _mm512_fpclass_ps_mask(x, 0x01 | 0x08 | 0x10 | 0x80) != 0; }
/** Lanes as int8, which they fit. */
static inline __m128i v16_to_i8(v16 x) { return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)); }

#endif
