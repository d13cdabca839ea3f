/* SPDX-License-Identifier: Apache-2.0 */
/** cpu_store for several neighbouring columns. For AVX2 and, because that has these instructions too, AVX-512. */
#ifndef HEADRACE_VT_CPU_STORE_AVX2_H
#define HEADRACE_VT_CPU_STORE_AVX2_H

#include <immintrin.h>

#include "vt/cpu/cpu_kernels.h"

static inline __m128i bf16_of_4(__m128 x) {
    __m128i bits = _mm_castps_si128(x), high = _mm_srli_epi32(bits, 16);
    __m128i odd = _mm_and_si128(high, _mm_set1_epi32(1));
    __m128i rounded = _mm_srli_epi32(_mm_add_epi32(_mm_add_epi32(bits, _mm_set1_epi32(0x7FFF)), odd), 16);
    __m128i quiet = _mm_or_si128(high, _mm_set1_epi32(0x40));
    __m128i all = _mm_blendv_epi8(rounded, quiet, _mm_castps_si128(_mm_cmpunord_ps(x, x)));
    return _mm_packus_epi32(all, all);
}

/** Columns n .. n + count - 1 of row m; count at most 4. */
static inline void store_up_to_4(const cpu_epilogue *e, int64_t m, int64_t n, __m128 acc, int64_t count) {
    if (count < 4) {
        float one[4];
        _mm_storeu_ps(one, acc);
        for (int64_t i = 0; i < count; i++) cpu_store(e, m, n + i, one[i]);
        return;
    }
    uint8_t *row = e->out + m * e->row_bytes;
    float *f32 = (float *)(void *)row + n;
    void *bf16 = (uint16_t *)(void *)row + n;
    __m128 r = acc;
    if (e->scaled) {
        r = _mm_mul_ps(_mm_set1_ps(e->alpha), acc);
        if (e->beta != 0.0f) {
            __m128 old = e->bf16 ? _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64(bf16)), 16)) : _mm_loadu_ps(f32);
            r = _mm_fmadd_ps(_mm_set1_ps(e->beta), old, r);
        }
    }
    if (e->bf16)
        _mm_storel_epi64(bf16, bf16_of_4(r));
    else
        _mm_storeu_ps(f32, r);
}

#endif
