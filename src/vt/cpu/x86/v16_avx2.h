/* SPDX-License-Identifier: Apache-2.0 */
/** Sixteen floats as two registers of AVX2 with FMA and F16C; the names and meanings of v16_avx512.h. */
#ifndef HEADRACE_VT_CPU_V16_AVX2_H
#define HEADRACE_VT_CPU_V16_AVX2_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "vt/exp_constants.h"

typedef struct v16 {
    __m256 a, b; /* lanes 0-7, 8-15 */
} v16;

typedef struct v16_mask {
    __m256i a, b;
} v16_mask;

static inline v16_mask v16_first(int n) {
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), limit = _mm256_set1_epi32(n);
    return (v16_mask){_mm256_cmpgt_epi32(limit, lane), _mm256_cmpgt_epi32(limit, _mm256_add_epi32(lane, _mm256_set1_epi32(8)))};
}

#define V16_EACH2(name, op)                                                                                                                \
    static inline v16 name(v16 x, v16 y) { return (v16){op(x.a, y.a), op(x.b, y.b)}; }
V16_EACH2(v16_add, _mm256_add_ps)
V16_EACH2(v16_sub, _mm256_sub_ps)
V16_EACH2(v16_mul, _mm256_mul_ps)
V16_EACH2(v16_div, _mm256_div_ps)
V16_EACH2(v16_max, _mm256_max_ps)
V16_EACH2(v16_min, _mm256_min_ps)
#undef V16_EACH2

static inline v16 v16_zero(void) { return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline v16 v16_set(float x) { return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline v16 v16_load(const float *p) { return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline v16 v16_load_n(const float *p, int n) {
    v16_mask m = v16_first(n);
    return (v16){_mm256_maskload_ps(p, m.a), n > 8 ? _mm256_maskload_ps(p + 8, m.b) : _mm256_setzero_ps()};
}
static inline void v16_store(float *p, v16 x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
static inline void v16_store_n(float *p, v16 x, int n) {
    v16_mask m = v16_first(n);
    _mm256_maskstore_ps(p, m.a, x.a);
    if (n > 8) _mm256_maskstore_ps(p + 8, m.b, x.b);
}
static inline v16 v16_fma(v16 x, v16 y, v16 z) { return (v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
static inline v16 v16_select(v16_mask m, v16 yes, v16 no) {
    return (v16){_mm256_blendv_ps(no.a, yes.a, _mm256_castsi256_ps(m.a)), _mm256_blendv_ps(no.b, yes.b, _mm256_castsi256_ps(m.b))};
}
static inline v16 v16_fma_n(v16 x, v16 y, v16 z, int n) { return v16_select(v16_first(n), v16_fma(x, y, z), z); }
static inline v16 v16_abs(v16 x) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (v16){_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
static inline v16 v16_neg(v16 x) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (v16){_mm256_xor_ps(sign, x.a), _mm256_xor_ps(sign, x.b)};
}
static inline v16 v16_round(v16 x) {
    enum { NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    return (v16){_mm256_round_ps(x.a, NEAREST), _mm256_round_ps(x.b, NEAREST)};
}

static inline v16 v16_from_f16(__m256i h) {
    return (v16){_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}
static inline __m256 v16_widen_bf16(__m128i h) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
static inline v16 v16_from_bf16(__m256i h) {
    return (v16){v16_widen_bf16(_mm256_castsi256_si128(h)), v16_widen_bf16(_mm256_extracti128_si256(h, 1))};
}
static inline __m256i v16_load_half_n(const uint16_t *p, int n) {
    uint16_t copy[16] = {0};
    memcpy(copy, p, (size_t)n * sizeof *p);
    return _mm256_loadu_si256((const void *)copy);
}
static inline v16 v16_load_f16(const uint16_t *p) { return v16_from_f16(_mm256_loadu_si256((const void *)p)); }
static inline v16 v16_load_bf16(const uint16_t *p) { return v16_from_bf16(_mm256_loadu_si256((const void *)p)); }
static inline v16 v16_load_f16_n(const uint16_t *p, int n) { return v16_from_f16(v16_load_half_n(p, n)); }
static inline v16 v16_load_bf16_n(const uint16_t *p, int n) { return v16_from_bf16(v16_load_half_n(p, n)); }
static inline v16 v16_set_f16(uint16_t h) {
    __m256 x = _mm256_cvtph_ps(_mm_set1_epi16((int16_t)h));
    return (v16){x, x};
}
static inline v16 v16_from_i8(__m128i q) {
    return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(q, 8)))};
}

static inline void v16_q4(v16 d, int shift, const v16 *m, __m128i bytes, v16 out[2]) {
    __m128i mask = _mm_set1_epi8(15), zero = _mm_set1_epi8((char)shift);
    out[0] = v16_mul(d, v16_from_i8(_mm_sub_epi8(_mm_and_si128(bytes, mask), zero)));
    out[1] = v16_mul(d, v16_from_i8(_mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(bytes, 4), mask), zero)));
    for (int i = 0; m && i < 2; i++) out[i] = v16_add(out[i], *m);
}

static inline __m256i v16_to_f16(v16 x) {
    enum { NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    return _mm256_set_m128i(_mm256_cvtps_ph(x.b, NEAREST), _mm256_cvtps_ph(x.a, NEAREST));
}
static inline __m256i v16_bf16_bits(__m256 x) {
    __m256i bits = _mm256_castps_si256(x), high = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
    __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
static inline __m256i v16_to_bf16(v16 x) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(v16_bf16_bits(x.a), v16_bf16_bits(x.b)), 0xD8);
}
static inline void v16_store_half(uint16_t *p, __m256i h) { _mm256_storeu_si256((void *)p, h); }
static inline void v16_store_half_n(uint16_t *p, __m256i h, int n) {
    uint16_t copy[16];
    _mm256_storeu_si256((void *)copy, h);
    memcpy(p, copy, (size_t)n * sizeof *p);
}

static inline __m128 v16_quarters(v16 x) {
    __m256 s8 = _mm256_add_ps(x.a, x.b);
    return _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
}
static inline float v16_sum(v16 x) {
    __m128 s4 = v16_quarters(x);
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
static inline __m128 v16_sum4(v16 a, v16 b, v16 c, v16 d) {
    __m128 qa = v16_quarters(a), qb = v16_quarters(b), qc = v16_quarters(c), qd = v16_quarters(d);
    __m128 ab = _mm_add_ps(_mm_unpacklo_ps(qa, qb), _mm_unpackhi_ps(qa, qb)); /* a0+a2 b0+b2 a1+a3 b1+b3 */
    __m128 cd = _mm_add_ps(_mm_unpacklo_ps(qc, qd), _mm_unpackhi_ps(qc, qd));
    return _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
}

static inline float v16_max_of(v16 x) {
    __m256 m8 = _mm256_max_ps(x.a, x.b);
    __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
    __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
    return _mm_cvtss_f32(_mm_max_ss(m2, _mm_movehdup_ps(m2)));
}

static inline __m256 v16_exp_half(__m256 x) {
    __m256 not_below = _mm256_cmp_ps(x, _mm256_set1_ps(VT_EXP_LO), _CMP_NLT_UQ);
    x = _mm256_min_ps(_mm256_set1_ps(VT_EXP_HI), x);
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(VT_EXP_LOG2E)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-VT_EXP_LN2_HI), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-VT_EXP_LN2_LO), r);
    __m256 p = _mm256_set1_ps(VT_EXP_C6);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(VT_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(VT_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(VT_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(VT_EXP_C2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    __m256i scaled = _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23));
    return _mm256_and_ps(not_below, _mm256_castsi256_ps(scaled));
}
static inline v16 v16_exp(v16 x) { return (v16){v16_exp_half(x.a), v16_exp_half(x.b)}; }

static inline bool v16_any_not_finite(v16 x) {
    v16 m = v16_abs(x);
    __m256 limit = _mm256_set1_ps(3.402823466e38f);
    return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(m.a, limit, _CMP_NLE_UQ), _mm256_cmp_ps(m.b, limit, _CMP_NLE_UQ))) != 0;
}
static inline __m128i v16_to_i8(v16 x) {
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
    words = _mm256_permute4x64_epi64(words, 0xD8);
    return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

#endif
