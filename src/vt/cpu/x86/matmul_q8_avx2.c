/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of Q8_A32 activations with 32-element weight blocks, AVX2. The two forms of matmul_q8_avx512.c in half the width: two rows of b,
 * four blocks of each at a time, for few rows of a; a packed panel of eight rows of b for many.
 *
 * Products are made by vpmaddubsw, unsigned by signed with a sum of two in 16 bits. Q4 weights are unsigned and small: the eight steps of a
 * block stay below 8 * 2 * 15 * 127 = 30480, so they add up in 16 bits; Q5 weights would not. Q8_0 and IQ4_NL weights lend their sign to a:
 * 2 * 128 * 127 = 32512 fits for one step.
 */
#include "vt/cpu/cpu_blocks.h"
#include "vt/cpu/cpu_rows.h"
#include "vt/cpu/x86/store_avx2.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    FEW_ROWS = 4,
    PANEL = 8, /* rows of b in lanes */
    PANEL_BLOCKS = 64,
    MANY_ROWS = 128, /* rows of a that use a packed panel */
    TILE = 4         /* rows of a that share its loads */
};

typedef struct product {
    const uint8_t *a, *b;
    int64_t a_stride, b_stride, n_m, n_n, n_blocks, m0;
    cpu_epilogue epilogue;
} product;

INLINE __m256i nibbles(const uint8_t *p) {
    __m128i q = _mm_loadu_si128((const void *)p);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(q, 4), q), _mm256_set1_epi8(15));
}

INLINE bool has_min(vt_dtype t) { return t == VT_Q4_1 || t == VT_Q5_1; }
INLINE bool has_fifth_bit(vt_dtype t) { return t == VT_Q5_0 || t == VT_Q5_1; }
INLINE bool has_sign(vt_dtype t) { return t == VT_Q8_0 || t == VT_IQ4_NL; }
/* log2 of what is too much in each unsigned weight; 0: nothing. */
INLINE int shift_of(vt_dtype t) { return t == VT_Q4_0 ? 3 : t == VT_Q5_0 ? 4 : 0; }
/* Where the bytes of the weights begin in a block, which end it, and where those of the fifth bits do. */
INLINE int64_t q_offset(vt_dtype t) { return t == VT_Q4_1 ? 4 : t == VT_Q5_0 ? 6 : t == VT_Q5_1 ? 8 : 2; }
INLINE int64_t block_bytes(vt_dtype t) { return q_offset(t) + (t == VT_Q8_0 ? 32 : 16); }
INLINE int64_t qh_offset(vt_dtype t) { return t == VT_Q5_1 ? 4 : 2; }

INLINE __m256i iq4_values(__m256i q) { return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_setr_epi8(CPU_IQ4_VALUES)), q); }

/* 16 in the bytes whose bit is set. */
INLINE __m256i fifth_bits(uint32_t bits) {
    __m256i from = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    __m256i bit = _mm256_set1_epi64x((int64_t)0x8040201008040201ull);
    __m256i there = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), from), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(there, bit), _mm256_set1_epi8(16));
}

INLINE __m256i weights(vt_dtype t, const uint8_t *block) {
    if (t == VT_Q8_0) return _mm256_loadu_si256((const void *)(block + 2));
    __m256i q = nibbles(block + q_offset(t));
    if (has_fifth_bit(t)) q = _mm256_or_si256(q, fifth_bits(cpu_u32(block + qh_offset(t))));
    return t == VT_IQ4_NL ? iq4_values(q) : q;
}

/* Sums of two neighbouring products. */
INLINE __m256i products(vt_dtype t, __m256i w, __m256i x) {
    return has_sign(t) ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)) : _mm256_maddubs_epi16(w, x);
}

/* ---- few rows ---- */

/* Element i of the lower half: the sum of v[i]; of the upper half: of v[4 + i]. */
INLINE __m256i sum_eight(const __m256i v[8]) {
    __m256i half[2];
    for (int h = 0; h < 2; h++) {
        const __m256i *x = v + 4 * h;
        __m256i a = _mm256_add_epi32(_mm256_unpacklo_epi32(x[0], x[1]), _mm256_unpackhi_epi32(x[0], x[1]));
        __m256i b = _mm256_add_epi32(_mm256_unpacklo_epi32(x[2], x[3]), _mm256_unpackhi_epi32(x[2], x[3]));
        half[h] = _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    }
    return _mm256_add_epi32(_mm256_permute2x128_si256(half[0], half[1], 0x20), _mm256_permute2x128_si256(half[0], half[1], 0x31));
}

/* One field of n (1 to 4) blocks, zeros behind them. */
INLINE __m128i halves_of(const uint8_t *b, int64_t block_bytes, int n) {
    uint16_t h[8] = {0};
    for (int i = 0; i < n; i++) h[i] = cpu_u16(b + i * block_bytes);
    return _mm_loadl_epi64((const void *)h);
}

/* n blocks (1 to 4) of two rows of b with those of each of n_rows rows of a. Lane i of each half of acc is chain i. */
INLINE void step(vt_dtype t, const uint8_t *const b[2], const uint8_t *a, int64_t a_stride, int n_rows, int n, __m256 acc[FEW_ROWS]) {
    int64_t bytes = block_bytes(t);
    __m256i w[8];
    for (int i = 0; i < 8; i++) w[i] = i % 4 < n ? weights(t, b[i / 4] + i % 4 * bytes) : _mm256_setzero_si256();
    __m256 d = _mm256_cvtph_ps(_mm_unpacklo_epi64(halves_of(b[0], bytes, n), halves_of(b[1], bytes, n)));
    __m256 m = has_min(t) ? _mm256_cvtph_ps(_mm_unpacklo_epi64(halves_of(b[0] + 2, bytes, n), halves_of(b[1] + 2, bytes, n))) : d;
    for (int r = 0; r < n_rows; r++) {
        const cpu_q8_a32 *x = (const void *)(a + r * a_stride);
        __m256i v[8];
        float x_d[4] = {0};
        int32_t x_sum[4] = {0};
        for (int i = 0; i < n; i++) {
            x_d[i] = x[i].d;
            x_sum[i] = x[i].sum;
        }
        for (int i = 0; i < 8; i++) {
            __m256i q = i % 4 < n ? _mm256_loadu_si256((const void *)x[i % 4].q) : _mm256_setzero_si256();
            v[i] = _mm256_madd_epi16(products(t, w[i], q), _mm256_set1_epi16(1));
        }
        __m256i sums = sum_eight(v), a_sum = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)x_sum));
        if (shift_of(t)) sums = _mm256_sub_epi32(sums, _mm256_slli_epi32(a_sum, shift_of(t)));
        __m256 u = _mm256_mul_ps(d, _mm256_cvtepi32_ps(sums));
        if (has_min(t)) u = _mm256_fmadd_ps(m, _mm256_cvtepi32_ps(a_sum), u);
        __m256 d_a = _mm256_broadcast_ps((const void *)x_d), next = _mm256_fmadd_ps(d_a, u, acc[r]);
        __m256i there = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3));
        acc[r] = n == 4 ? next : _mm256_blendv_ps(acc[r], next, _mm256_castsi256_ps(there));
    }
}

INLINE void few_rows_of(vt_dtype t, const product *p, int64_t begin, int64_t end, int n_rows) {
    int64_t bytes = (int64_t)vt_dtype_block_bytes(t), left = p->n_blocks % 4;
    for (int64_t n = begin; n < end; n += 2) {
        const uint8_t *b[2] = {p->b + n * p->b_stride, p->b + (n + 1 < end ? n + 1 : n) * p->b_stride}, *a = p->a;
        int64_t ahead = n + 6 <= end ? 4 * p->b_stride : 0;
        __m256 acc[FEW_ROWS];
        for (int r = 0; r < n_rows; r++) acc[r] = _mm256_setzero_ps();
        for (int64_t i = 0; i + 4 <= p->n_blocks; i += 4, a += 4 * sizeof(cpu_q8_a32)) {
            for (int64_t line = 0; line < 4 * bytes; line += 64) { /* this place of rows further on */
                _mm_prefetch((const char *)b[0] + ahead + line, _MM_HINT_T1);
                _mm_prefetch((const char *)b[1] + ahead + line, _MM_HINT_T1);
            }
            step(t, b, a, p->a_stride, n_rows, 4, acc);
            b[0] += 4 * bytes;
            b[1] += 4 * bytes;
        }
        if (left == 1) step(t, b, a, p->a_stride, n_rows, 1, acc);
        if (left == 2) step(t, b, a, p->a_stride, n_rows, 2, acc);
        if (left == 3) step(t, b, a, p->a_stride, n_rows, 3, acc);
        for (int r = 0; r < n_rows; r++) {
            float l[8];
            _mm256_storeu_ps(l, acc[r]);
            for (int64_t i = 0; i < 2 && n + i < end; i++)
                cpu_store(&p->epilogue, p->m0 + r, n + i, (l[4 * i] + l[4 * i + 2]) + (l[4 * i + 1] + l[4 * i + 3]));
        }
    }
}

INLINE void few_rows(vt_dtype t, const product *p, int64_t begin, int64_t end) {
    if (p->n_m == 1)
        few_rows_of(t, p, begin, end, 1);
    else if (p->n_m == 2)
        few_rows_of(t, p, begin, end, 2);
    else if (p->n_m == 3)
        few_rows_of(t, p, begin, end, 3);
    else
        few_rows_of(t, p, begin, end, 4);
}

/* ---- many rows ---- */

/* Blocks of eight rows of b: register k of a block has elements 4 k .. 4 k + 3 of each row. */
typedef struct panel {
    _Alignas(32) uint8_t q[PANEL_BLOCKS][8][32];
    float d[PANEL_BLOCKS][PANEL], m[PANEL_BLOCKS][PANEL];
} panel;

/* Sixteen bytes of each of eight rows as four registers of dwords: register k has dword k of each row. */
INLINE void transpose(const uint8_t *const row[PANEL], int64_t off, __m256i out[4]) {
    __m256i z[4];
    for (int r = 0; r < 4; r++) z[r] = _mm256_loadu2_m128i((const void *)(row[4 + r] + off), (const void *)(row[r] + off));
    __m256i t0 = _mm256_unpacklo_epi32(z[0], z[1]), t1 = _mm256_unpackhi_epi32(z[0], z[1]);
    __m256i t2 = _mm256_unpacklo_epi32(z[2], z[3]), t3 = _mm256_unpackhi_epi32(z[2], z[3]);
    out[0] = _mm256_unpacklo_epi64(t0, t2);
    out[1] = _mm256_unpackhi_epi64(t0, t2);
    out[2] = _mm256_unpacklo_epi64(t1, t3);
    out[3] = _mm256_unpackhi_epi64(t1, t3);
}

INLINE void pack_scales(const uint8_t *const row[PANEL], int64_t off, float *out) {
    uint16_t h[PANEL];
    for (int r = 0; r < PANEL; r++) h[r] = cpu_u16(row[r] + off);
    _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm_loadu_si128((const void *)h)));
}

/* Four bits of each row's word go to the lowest bits of four bytes by a product, register after register. */
INLINE void add_fifth_bits(panel *to, int64_t i, const uint8_t *const row[PANEL], int64_t off) {
    uint32_t bits[PANEL];
    for (int r = 0; r < PANEL; r++) bits[r] = cpu_u32(row[r] + off);
    __m256i words = _mm256_loadu_si256((const void *)bits), *q = (void *)to->q[i];
    for (int k = 0; k < 8; k++, words = _mm256_srli_epi32(words, 4)) {
        __m256i four = _mm256_mullo_epi32(_mm256_and_si256(words, _mm256_set1_epi32(15)), _mm256_set1_epi32(0x00204081));
        q[k] = _mm256_or_si256(q[k], _mm256_slli_epi32(_mm256_and_si256(four, _mm256_set1_epi32(0x01010101)), 4));
    }
}

INLINE void pack_block(vt_dtype t, panel *to, int64_t i, const uint8_t *const row[PANEL], int64_t off) {
    __m256i raw[4], mask = _mm256_set1_epi8(15);
    pack_scales(row, off, to->d[i]);
    if (has_min(t)) pack_scales(row, off + 2, to->m[i]);
    transpose(row, off + q_offset(t), raw);
    for (int k = 0; k < 4; k++) {
        __m256i low = _mm256_and_si256(raw[k], mask), high = _mm256_and_si256(_mm256_srli_epi16(raw[k], 4), mask);
        _mm256_store_si256((void *)to->q[i][k], t == VT_Q8_0 ? raw[k] : t == VT_IQ4_NL ? iq4_values(low) : low);
        if (t != VT_Q8_0) _mm256_store_si256((void *)to->q[i][4 + k], t == VT_IQ4_NL ? iq4_values(high) : high);
    }
    if (has_fifth_bit(t)) add_fifth_bits(to, i, row, off + qh_offset(t));
    if (t != VT_Q8_0) return;
    transpose(row, off + 18, raw);
    for (int k = 0; k < 4; k++) _mm256_store_si256((void *)to->q[i][4 + k], raw[k]);
}

INLINE __m256i broadcast(const void *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}

/* The sums of a block of each of n_rows rows of a with the eight rows of b. */
INLINE void block_sums(vt_dtype t, const panel *b, int64_t i, const uint8_t *a, int64_t a_stride, int n_rows, __m256i s[TILE]) {
    __m256i ones = _mm256_set1_epi16(1);
    for (int r = 0; r < n_rows; r++) s[r] = _mm256_setzero_si256();
    for (int k = 0; k < 8; k++) {
        __m256i w = _mm256_load_si256((const void *)b->q[i][k]);
        for (int r = 0; r < n_rows; r++) {
            __m256i two = products(t, w, broadcast(a + r * a_stride + 8 + 4 * k));
            s[r] = t != VT_Q4_0 && t != VT_Q4_1 ? _mm256_add_epi32(s[r], _mm256_madd_epi16(two, ones)) : _mm256_add_epi16(s[r], two);
        }
    }
    for (int r = 0; (t == VT_Q4_0 || t == VT_Q4_1) && r < n_rows; r++) s[r] = _mm256_madd_epi16(s[r], ones);
}

/* n_rows rows of a (a constant where this is called) over n_blocks of the panel; sums[row][chain] is where the chains wait. */
INLINE void tile(vt_dtype t, const panel *b, const uint8_t *a, int64_t a_stride, int n_rows, int64_t n_blocks,
                 float (*sums)[CPU_Q8_LANES][PANEL]) {
    for (int chain = 0; chain < CPU_Q8_LANES; chain++) {
        __m256 acc[TILE];
        for (int r = 0; r < n_rows; r++) acc[r] = _mm256_load_ps(sums[r][chain]);
        for (int64_t i = chain; i < n_blocks; i += CPU_Q8_LANES) {
            const uint8_t *block = a + i * (int64_t)sizeof(cpu_q8_a32);
            __m256i s[TILE];
            block_sums(t, b, i, block, a_stride, n_rows, s);
            for (int r = 0; r < n_rows; r++) {
                __m256i a_sum = broadcast(block + r * a_stride + 4);
                if (shift_of(t)) s[r] = _mm256_sub_epi32(s[r], _mm256_slli_epi32(a_sum, shift_of(t)));
                __m256 v = _mm256_mul_ps(_mm256_loadu_ps(b->d[i]), _mm256_cvtepi32_ps(s[r]));
                if (has_min(t)) v = _mm256_fmadd_ps(_mm256_loadu_ps(b->m[i]), _mm256_cvtepi32_ps(a_sum), v);
                acc[r] = _mm256_fmadd_ps(_mm256_castsi256_ps(broadcast(block + r * a_stride)), v, acc[r]);
            }
        }
        for (int r = 0; r < n_rows; r++) _mm256_store_ps(sums[r][chain], acc[r]);
    }
}

enum { TILE_REST = 1, PANEL_QK = CPU_QK, PANEL_GRAIN = 2 };
#define PANEL_ROW(name) avx2_matmul_q8_a32_##name
#include "vt/cpu/x86/matmul_q8_panels.inc"

PRODUCT(q4_0, VT_Q4_0)
PRODUCT(q4_1, VT_Q4_1)
PRODUCT(q8_0, VT_Q8_0)
PRODUCT(q5_0, VT_Q5_0)
PRODUCT(q5_1, VT_Q5_1)
PRODUCT(iq4_nl, VT_IQ4_NL)
