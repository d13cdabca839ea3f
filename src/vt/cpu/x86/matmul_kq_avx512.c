/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of Q8_A256 activations with the 256-element blocks of cpu_blocks.h, AVX-512 with VNNI; the two forms of matmul_q6_avx512.c.
 * Weights are unsigned: 0 .. 31 as stored, 4 too many for Q3_K, 128 too many for IQ4_XS; what that adds goes out through the sums that the
 * blocks of a carry.
 */
#include "vt/cpu/cpu_blocks.h"
#include "vt/cpu/cpu_rows.h"
#include "vt/cpu/x86/panel_avx512.h"
#include "vt/cpu/x86/store_avx2.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    FEW_ROWS = 4,
    PANEL_BLOCKS = 8, /* blocks of a panel that are packed at a time */
    MANY_ROWS = 128,  /* rows of a that use a packed panel */
    TILE = 8          /* rows of a that share its loads */
};

typedef struct product {
    const uint8_t *a, *b;
    int64_t a_stride, b_stride, n_m, n_n, n_blocks, m0;
    cpu_epilogue epilogue;
} product;

/* What is too much in each weight. */
INLINE int excess_of(vt_dtype t) { return t == VT_Q3_K ? 4 : t == VT_IQ4_XS ? 128 : 0; }

INLINE __m512i twice(const uint8_t *p) { return _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)p)); }
/* The lower half shifted right by `low`, the upper by `high`. Bits that cross into a byte are above those that a mask keeps. */
INLINE __m512i shift_halves(__m512i x, int low, int high) {
    return _mm512_srlv_epi64(x, _mm512_set_epi64(high, high, high, high, low, low, low, low));
}
INLINE __m512i masked(__m512i x, int mask) { return _mm512_and_si512(x, _mm512_set1_epi8((char)mask)); }

/* The 256 weights of a block in order, not negative. */
INLINE void unpack_block(vt_dtype t, const uint8_t *block, __m512i w[4]) {
    for (int j = 0; j < 4; j++) { /* groups 2 j and 2 j + 1 of 32 */
        if (t == VT_Q2_K) {
            w[j] = masked(shift_halves(twice(((const cpu_q2_k *)block)->q + 32 * (j / 2)), 4 * (j % 2), 4 * (j % 2) + 2), 3);
        } else if (t == VT_Q3_K) {
            const cpu_q3_k *b = (const void *)block;
            __m512i low = masked(shift_halves(twice(b->q + 32 * (j / 2)), 4 * (j % 2), 4 * (j % 2) + 2), 3);
            __m512i high = masked(shift_halves(twice(b->qh), 2 * j, 2 * j + 1), 1);
            w[j] = _mm512_or_si512(low, _mm512_slli_epi16(high, 2));
        } else if (t == VT_Q4_K) {
            w[j] = masked(shift_halves(twice(((const cpu_q4_k *)block)->q + 32 * j), 0, 4), 15);
        } else if (t == VT_Q5_K) {
            const cpu_q5_k *b = (const void *)block;
            __m512i high = masked(shift_halves(twice(b->qh), 2 * j, 2 * j + 1), 1);
            w[j] = _mm512_or_si512(masked(shift_halves(twice(b->q + 32 * j), 0, 4), 15), _mm512_slli_epi16(high, 4));
        } else { /* quarters: low and high nibbles of sixteen bytes, twice */
            __m512i q = twice(((const cpu_iq4_xs *)block)->q + 32 * j);
            q = _mm512_permutexvar_epi64(_mm512_set_epi64(3, 2, 3, 2, 1, 0, 1, 0), q);
            q = masked(_mm512_srlv_epi64(q, _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0)), 15);
            __m512i values = _mm512_broadcast_i32x4(_mm_xor_si128(_mm_setr_epi8(CPU_IQ4_VALUES), _mm_set1_epi8((char)0x80)));
            w[j] = _mm512_shuffle_epi8(values, q);
        }
    }
}

/* Sixteen bytes of scales or minima, one for sixteen elements. */
INLINE __m128i sixteen(vt_dtype t, const uint32_t words[4], int zero) {
    __m128i bytes = _mm_setr_epi32((int)words[0], (int)words[1], (int)words[2], (int)words[3]);
    if (cpu_k_by_32(t)) bytes = _mm_unpacklo_epi8(bytes, bytes);
    return _mm_sub_epi8(bytes, _mm_set1_epi8((char)zero));
}

/* ---- few rows ---- */

/* Sixteen partial sums of scale * q * q_a of a block of b with one of a. */
INLINE __m512i block_sum(vt_dtype t, const __m512i w[4], __m128i scale, const cpu_q8_a256 *x) {
    __m512i scale32 = _mm512_cvtepi8_epi32(scale), sum = _mm512_setzero_si512();
    if (excess_of(t) != 0) {
        __m256i excess = _mm256_madd_epi16(_mm256_cvtepi8_epi16(scale), _mm256_loadu_si256((const void *)x->sum));
        sum = _mm512_sub_epi32(sum, _mm512_slli_epi32(_mm512_zextsi256_si512(excess), t == VT_Q3_K ? 2 : 7));
    }
    for (int j = 0; j < 4; j++) { /* each quarter of a register has one scale */
        __m512i spread = _mm512_add_epi32(_mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0), _mm512_set1_epi32(4 * j));
        __m512i dot = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[j], _mm512_loadu_si512(x->q + 64 * j));
        sum = _mm512_add_epi32(sum, _mm512_mullo_epi32(dot, _mm512_permutexvar_epi32(spread, scale32)));
    }
    return sum;
}

/* Element i: the sum of v[i]. */
INLINE __m128i sum_four(const __m512i v[4]) {
    __m512i q = sum_quarters(v[0], v[1], v[2], v[3]);
    __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(q), _mm512_extracti64x4_epi64(q, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

/* A block of four rows of b with a block of each of n_rows rows of a. */
INLINE void step(vt_dtype t, const uint8_t *const b[4], const uint8_t *a, int64_t a_stride, int n_rows, __m128 acc[FEW_ROWS]) {
    __m512i total[FEW_ROWS][4], min_total[FEW_ROWS][4];
    uint16_t d[8] = {0}, dmin[8] = {0};
    for (int n = 0; n < 4; n++) {
        __m512i w[4];
        cpu_k_scales s = cpu_k_scales_of(t, b[n]);
        __m128i scale = sixteen(t, s.scale, cpu_k_scale_zero(t));
        __m256i min = _mm256_cvtepi8_epi16(sixteen(t, s.min, 0));
        unpack_block(t, b[n], w);
        d[n] = cpu_u16(b[n] + cpu_k_d_offset(t));
        if (cpu_k_has_min(t)) dmin[n] = cpu_u16(b[n] + cpu_k_d_offset(t) + 2);
        for (int r = 0; r < n_rows; r++) {
            const cpu_q8_a256 *x = (const void *)(a + r * a_stride);
            total[r][n] = block_sum(t, w, scale, x);
            if (cpu_k_has_min(t))
                min_total[r][n] = _mm512_zextsi256_si512(_mm256_madd_epi16(min, _mm256_loadu_si256((const void *)x->sum)));
        }
    }
    __m128 d_b = _mm_cvtph_ps(_mm_loadu_si128((const void *)d)), dmin_b = _mm_cvtph_ps(_mm_loadu_si128((const void *)dmin));
    for (int r = 0; r < n_rows; r++) {
        __m128 sum = _mm_cvtepi32_ps(sum_four(total[r])), d_a = _mm_broadcast_ss((const float *)(const void *)(a + r * a_stride));
        if (cpu_k_has_min(t))
            acc[r] = _mm_fmadd_ps(d_a, _mm_fnmadd_ps(dmin_b, _mm_cvtepi32_ps(sum_four(min_total[r])), _mm_mul_ps(d_b, sum)), acc[r]);
        else
            acc[r] = _mm_fmadd_ps(_mm_mul_ps(d_a, d_b), sum, acc[r]);
    }
}

INLINE void few_rows_of(vt_dtype t, const product *p, int64_t begin, int64_t end, int n_rows) {
    int64_t bytes = (int64_t)vt_dtype_block_bytes(t);
    for (int64_t n = begin; n < end; n += 4) {
        const uint8_t *b[4], *a = p->a;
        __m128 acc[FEW_ROWS];
        int64_t ahead = n + 4 < end ? 4 * p->b_stride : 0;
        for (int i = 0; i < 4; i++) b[i] = p->b + (n + i < end ? n + i : end - 1) * p->b_stride;
        for (int r = 0; r < n_rows; r++) acc[r] = _mm_setzero_ps();
        for (int64_t k = 0; k < p->n_blocks; k++, a += sizeof(cpu_q8_a256)) {
            for (int i = 0; i < 4; i++) /* fetch this block of the next four rows */
                for (int64_t line = 0; line < bytes; line += 64) _mm_prefetch((const char *)b[i] + ahead + line, _MM_HINT_T1);
            step(t, b, a, p->a_stride, n_rows, acc);
            for (int i = 0; i < 4; i++) b[i] += bytes;
        }
        for (int r = 0; r < n_rows; r++) store_up_to_4(&p->epilogue, r, n, acc[r], end - n < 4 ? end - n : 4);
    }
}

INLINE void few_rows(vt_dtype t, const product *p, int64_t begin, int64_t end) {
    switch (p->n_m) {
    case 1:
        few_rows_of(t, p, begin, end, 1);
        break;
    case 2:
        few_rows_of(t, p, begin, end, 2);
        break;
    case 3:
        few_rows_of(t, p, begin, end, 3);
        break;
    default:
        few_rows_of(t, p, begin, end, 4);
        break;
    }
}

/* ---- many rows ---- */

/* Blocks of sixteen rows of b: register k has elements 4 k .. 4 k + 3 of each row; scales of sixteen groups, and in pairs: scales times
 * minus the excess, or minima. */
typedef struct panel {
    _Alignas(64) uint8_t q[PANEL_BLOCKS][64][64];
    int32_t scale[PANEL_BLOCKS][16][PANEL];
    int16_t pair[PANEL_BLOCKS][8][PANEL][2];
    float d[PANEL_BLOCKS][PANEL], dmin[PANEL_BLOCKS][PANEL];
} panel;

INLINE void pack_block(vt_dtype t, panel *to, int64_t i, const uint8_t *const row[PANEL]) {
    _Alignas(64) uint8_t plain[PANEL][CPU_QK_K];
    const uint8_t *plain_row[PANEL];
    for (int r = 0; r < PANEL; r++) {
        _Alignas(16) int8_t scale[16], min[16];
        __m512i w[4];
        cpu_k_scales s = cpu_k_scales_of(t, row[r]);
        _mm_store_si128((void *)scale, sixteen(t, s.scale, cpu_k_scale_zero(t)));
        _mm_store_si128((void *)min, sixteen(t, s.min, 0));
        unpack_block(t, row[r], w);
        for (int j = 0; j < 4; j++) _mm512_store_si512(plain[r] + 64 * j, w[j]);
        for (int g = 0; g < 16; g++) {
            to->scale[i][g][r] = scale[g];
            to->pair[i][g / 2][r][g % 2] = (int16_t)(cpu_k_has_min(t) ? min[g] : scale[g] * -excess_of(t));
        }
        plain_row[r] = plain[r];
    }
    for (int k = 0; k < 16; k++) {
        __m512i out[4];
        panel_transpose(plain_row, 16 * k, out);
        for (int j = 0; j < 4; j++) _mm512_store_si512(to->q[i][4 * k + j], out[j]);
    }
    panel_scales(row, cpu_k_d_offset(t), to->d[i]);
    if (cpu_k_has_min(t)) panel_scales(row, cpu_k_d_offset(t) + 2, to->dmin[i]);
}

/* n_rows rows of a (a constant where this is called) over n_blocks of the panel. */
INLINE void tile(vt_dtype t, const panel *b, const uint8_t *a, int64_t a_stride, int n_rows, int64_t n_blocks, float (*sums)[PANEL]) {
    __m512 acc[TILE];
    for (int r = 0; r < n_rows; r++) acc[r] = _mm512_load_ps(sums[r]);
    for (int64_t i = 0; i < n_blocks; i++, a += sizeof(cpu_q8_a256)) {
        __m512i total[TILE], min_total[TILE];
        for (int r = 0; r < n_rows; r++) {
            const cpu_q8_a256 *x = (const void *)(a + r * a_stride);
            __m512i pairs = _mm512_setzero_si512();
            for (int k = 0; k < 8; k++)
                pairs = _mm512_dpwssd_epi32(pairs, _mm512_load_si512(b->pair[i][k]), panel_broadcast(x->sum + 2 * k));
            total[r] = cpu_k_has_min(t) ? _mm512_setzero_si512() : pairs;
            min_total[r] = pairs;
        }
        for (int g = 0; g < 16; g++) {
            __m512i w[4], scale = _mm512_load_si512(b->scale[i][g]);
            for (int k = 0; k < 4; k++) w[k] = _mm512_load_si512(b->q[i][4 * g + k]);
            for (int r = 0; r < n_rows; r++) {
                const cpu_q8_a256 *x = (const void *)(a + r * a_stride);
                __m512i s = _mm512_setzero_si512();
                for (int k = 0; k < 4; k++) s = _mm512_dpbusd_epi32(s, w[k], panel_broadcast(x->q + 16 * g + 4 * k));
                total[r] = _mm512_add_epi32(total[r], _mm512_mullo_epi32(s, scale));
            }
        }
        __m512 d = _mm512_load_ps(b->d[i]);
        for (int r = 0; r < n_rows; r++) {
            __m512 sum = _mm512_cvtepi32_ps(total[r]), d_a = _mm512_castsi512_ps(panel_broadcast(a + r * a_stride));
            if (cpu_k_has_min(t)) {
                __m512 v = _mm512_fnmadd_ps(_mm512_load_ps(b->dmin[i]), _mm512_cvtepi32_ps(min_total[r]), _mm512_mul_ps(d, sum));
                acc[r] = _mm512_fmadd_ps(d_a, v, acc[r]);
            } else {
                acc[r] = _mm512_fmadd_ps(_mm512_mul_ps(d_a, d), sum, acc[r]);
            }
        }
    }
    for (int r = 0; r < n_rows; r++) _mm512_store_ps(sums[r], acc[r]);
}

INLINE void many_rows_panel(vt_dtype t, const product *p, int64_t n, int64_t n_rows) {
    _Alignas(64) float sums[MANY_ROWS][PANEL];
    panel packed;
    memset(sums, 0, (size_t)n_rows * sizeof sums[0]);
    for (int64_t first = 0; first < p->n_blocks; first += PANEL_BLOCKS) {
        int64_t n_chunk = p->n_blocks - first < PANEL_BLOCKS ? p->n_blocks - first : PANEL_BLOCKS;
        for (int64_t i = 0; i < n_chunk; i++) {
            const uint8_t *row[PANEL];
            for (int r = 0; r < PANEL; r++)
                row[r] = p->b + (n + r < p->n_n ? n + r : p->n_n - 1) * p->b_stride + (first + i) * (int64_t)vt_dtype_block_bytes(t);
            pack_block(t, &packed, i, row);
        }
        const uint8_t *a = p->a + p->m0 * p->a_stride + first * (int64_t)sizeof(cpu_q8_a256);
        int64_t m = 0;
        for (; m + TILE <= n_rows; m += TILE) tile(t, &packed, a + m * p->a_stride, p->a_stride, TILE, n_chunk, sums + m);
        for (; m + 2 <= n_rows; m += 2) tile(t, &packed, a + m * p->a_stride, p->a_stride, 2, n_chunk, sums + m);
        if (m < n_rows) tile(t, &packed, a + m * p->a_stride, p->a_stride, 1, n_chunk, sums + m);
    }
    for (int64_t m = 0; m < n_rows; m++)
        for (int64_t l = 0; l < PANEL && n + l < p->n_n; l += 4)
            store_up_to_4(&p->epilogue, p->m0 + m, n + l, _mm_load_ps(sums[m] + l), p->n_n - n - l < 4 ? p->n_n - n - l : 4);
}

enum { PANEL_QK = CPU_QK_K, PANEL_GRAIN = 1 };
#define PANEL_ROW(name) vnni_matmul_q8_a256_##name
#include "vt/cpu/x86/panels.inc"

PRODUCT(q2_k, VT_Q2_K)
PRODUCT(q3_k, VT_Q3_K)
PRODUCT(q4_k, VT_Q4_K)
PRODUCT(q5_k, VT_Q5_K)
PRODUCT(iq4_xs, VT_IQ4_XS)
