/* SPDX-License-Identifier: Apache-2.0 */
/** Sixteen rows of weights side by side in the lanes of AVX-512, for products of quantised activations. */
#ifndef HEADRACE_VT_CPU_PANEL_AVX512_H
#define HEADRACE_VT_CPU_PANEL_AVX512_H

#include <immintrin.h>

#include "vt/cpu/cpu_kernels.h"

enum { PANEL = 16 };

/** Sixteen bytes at `off` of each of sixteen rows as four registers of dwords: register k has dword k of each row. */
static inline void panel_transpose(const uint8_t *const row[PANEL], int64_t off, __m512i out[4]) {
    __m512i z[4];
    for (int r = 0; r < 4; r++) {
        z[r] = _mm512_castsi128_si512(_mm_loadu_si128((const void *)(row[r] + off)));
        z[r] = _mm512_inserti32x4(z[r], _mm_loadu_si128((const void *)(row[4 + r] + off)), 1);
        z[r] = _mm512_inserti32x4(z[r], _mm_loadu_si128((const void *)(row[8 + r] + off)), 2);
        z[r] = _mm512_inserti32x4(z[r], _mm_loadu_si128((const void *)(row[12 + r] + off)), 3);
    }
    __m512i t0 = _mm512_unpacklo_epi32(z[0], z[1]), t1 = _mm512_unpackhi_epi32(z[0], z[1]);
    __m512i t2 = _mm512_unpacklo_epi32(z[2], z[3]), t3 = _mm512_unpackhi_epi32(z[2], z[3]);
    out[0] = _mm512_unpacklo_epi64(t0, t2);
    out[1] = _mm512_unpackhi_epi64(t0, t2);
    out[2] = _mm512_unpacklo_epi64(t1, t3);
    out[3] = _mm512_unpackhi_epi64(t1, t3);
}

/** The half at `off` of each row, as floats. */
static inline void panel_scales(const uint8_t *const row[PANEL], int64_t off, float *out) {
    uint16_t h[PANEL];
    for (int r = 0; r < PANEL; r++) h[r] = cpu_u16(row[r] + off);
    _mm512_store_ps(out, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)h)));
}

/** Four bytes in each lane. */
static inline __m512i panel_broadcast(const void *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm512_set1_epi32(v);
}

/** Sums over the quarters of x, y, z, w: element i of a quarter is the sum of that quarter of the i-th. */
static inline __m512i sum_quarters(__m512i x, __m512i y, __m512i z, __m512i w) {
    __m512i xy = _mm512_add_epi32(_mm512_unpacklo_epi32(x, y), _mm512_unpackhi_epi32(x, y));
    __m512i zw = _mm512_add_epi32(_mm512_unpacklo_epi32(z, w), _mm512_unpackhi_epi32(z, w));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(xy, zw), _mm512_unpackhi_epi64(xy, zw));
}

#endif
