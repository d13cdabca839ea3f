/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of Q8_A32 activations with 32-element weight blocks, AVX-512 with VNNI. Two forms of the same sums:
 *
 * Few rows of a (decode): four rows of b at a time, four blocks of each: the bytes of two blocks fill a register, one vpdpbusd gives eight
 * partial sums of each block, and a tree of adds turns the eight registers of a step into one with the sixteen block sums, in the order
 * LANE_BLOCK. b is read once, from end to end. Bound by memory.
 *
 * Many rows of a (prefill): sixteen rows of b side by side in the lanes (a panel), repacked once per MANY_ROWS rows of a so that a register
 * holds four consecutive elements of each; vpdpbusd with four broadcast elements of a then adds up a whole block in each lane in eight
 * steps. Partial sums wait in memory, a chain at a time.
 *
 * vpdpbusd multiplies unsigned by signed: weights are the unsigned side, shifted by 8 (Q4_0), 16 (Q5_0) or 128 (Q8_0, IQ4_NL), which the
 * sum of a's elements takes out again.
 */
#include "vt/cpu/cpu_blocks.h"
#include "vt/cpu/cpu_rows.h"
#include "vt/cpu/x86/panel_avx512.h"
#include "vt/cpu/x86/store_avx2.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    FEW_ROWS = 4,      /* rows of a for which reading b once more by repacking does not pay */
    FEW_GROUPS = 64,   /* groups of four blocks of a that are prepared at a time */
    FEW_COLUMNS = 64,  /* rows of b that go over a chunk of K together */
    PANEL_BLOCKS = 64, /* blocks of a panel that are packed at a time: a multiple of CPU_Q8_LANES */
    MANY_ROWS = 128,   /* rows of a that use a packed panel */
    TILE = 8           /* rows of a that share its loads */
};

typedef struct product {
    const uint8_t *a, *b;
    int64_t a_stride, b_stride, n_m, n_n, n_blocks, m0;
    cpu_epilogue epilogue;
} product;

/* log2 of what unsigned weights were shifted by. */
INLINE int shift_of(vt_dtype t) { return t == VT_Q4_0 ? 3 : t == VT_Q5_0 ? 4 : 7; }
INLINE bool has_min(vt_dtype t) { return t == VT_Q4_1 || t == VT_Q5_1; }
INLINE bool has_fifth_bit(vt_dtype t) { return t == VT_Q5_0 || t == VT_Q5_1; }
/* Where the bytes of the weights begin in a block, and where those of the fifth bits do. */
INLINE int64_t q_offset(vt_dtype t) { return t == VT_Q4_1 ? 4 : t == VT_Q5_0 ? 6 : t == VT_Q5_1 ? 8 : 2; }
INLINE int64_t qh_offset(vt_dtype t) { return t == VT_Q5_1 ? 4 : 2; }

/* The values of IQ4_NL, 128 too large. */
INLINE __m512i iq4_values(__m512i q) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_xor_si128(_mm_setr_epi8(CPU_IQ4_VALUES), _mm_set1_epi8((char)0x80))), q);
}

/* ---- few rows ---- */

/* Four blocks of a row of a: elements in order; scale, and float(sum) for Q4_1 or sum << shift, by LANE_BLOCK for two rows of b. */
typedef struct a_group {
    _Alignas(64) int8_t q[4 * CPU_QK];
    float d[8];
    int32_t sum[8];
} a_group;

/* Lane l of a step's sums belongs to row LANE_ROW[l] of the four, block LANE_BLOCK[l % 8] of the four. */
static const int lane_block[8] = {0, 2, 0, 2, 1, 3, 1, 3};
enum { LANES_OF_ROW_0 = 0x0033, LANES_OF_ROW_1 = 0x00CC, LANES_OF_ROW_2 = 0x3300, LANES_OF_ROW_3 = 0xCC00 };
static const __mmask16 lanes_of_row[4] = {LANES_OF_ROW_0, LANES_OF_ROW_1, LANES_OF_ROW_2, LANES_OF_ROW_3};
/* Lanes of the first n blocks. */
static const __mmask16 lanes_of_blocks[5] = {0x0000, 0x0505, 0x5555, 0x5F5F, 0xFFFF};

/* n blocks (1 to 4) from `a`; the rest of the group is zero. */
static void prepare_group(a_group *g, vt_dtype t, const uint8_t *a, int64_t n) {
    const cpu_q8_a32 *block = (const void *)a;
    for (int i = 0; i < 4; i++) {
        if (i < n)
            memcpy(g->q + i * CPU_QK, block[i].q, CPU_QK);
        else
            memset(g->q + i * CPU_QK, 0, CPU_QK);
    }
    for (int l = 0; l < 8; l++) {
        int i = lane_block[l];
        float sum = i < n ? (float)block[i].sum : 0.0f;
        g->d[l] = i < n ? block[i].d : 0.0f;
        if (has_min(t))
            memcpy(&g->sum[l], &sum, sizeof sum);
        else
            g->sum[l] = i < n ? block[i].sum * (1 << shift_of(t)) : 0;
    }
}

/* Words of four Q4 blocks of a row: what vpermw takes from where. Two loads cover a row's four blocks without reading past them. */
#define REP2(...) __VA_ARGS__, __VA_ARGS__
#define WORDS8(w) w, w + 1, w + 2, w + 3, w + 4, w + 5, w + 6, w + 7
/* The words of a field of the four blocks, `step` words apart, by lane of two rows. */
#define FIELD8(w, step) w, w + 2 * (step), w, w + 2 * (step), w + (step), w + 3 * (step), w + (step), w + 3 * (step)

static const int16_t q4_0_first[32] = {REP2(WORDS8(1)), REP2(WORDS8(10))}, q4_0_second[32] = {REP2(WORDS8(15)), REP2(WORDS8(24))};
static const int16_t q4_1_first[32] = {REP2(WORDS8(2)), REP2(WORDS8(12))}, q4_1_second[32] = {REP2(WORDS8(14)), REP2(WORDS8(24))};
static const int16_t q4_0_scales[32] = {REP2(FIELD8(0, 9)), REP2(FIELD8(0, 9))};
static const int16_t q4_1_scales[32] = {REP2(FIELD8(0, 10)), REP2(FIELD8(1, 10))};
/* From two registers, of which the second begins with word 32. */
static const int16_t q8_0_scales[32] = {REP2(FIELD8(0, 17)), REP2(FIELD8(0, 17))};

static const int16_t q5_0_first[32] = {REP2(WORDS8(3)), REP2(WORDS8(14))}, q5_0_second[32] = {REP2(WORDS8(13)), REP2(WORDS8(24))};
static const int16_t q5_1_first[32] = {REP2(WORDS8(4)), REP2(WORDS8(16))}, q5_1_second[32] = {REP2(WORDS8(12)), REP2(WORDS8(24))};
/* The last block's fields are in the second register, which begins with word 12 (Q5_0) or 16 (Q5_1) of the four blocks. */
#define FIELD8_LAST(w, step, start)                                                                                                        \
    w, w + 2 * (step), w, w + 2 * (step), w + (step), 32 + w + 3 * (step) - (start), w + (step), 32 + w + 3 * (step) - (start)
static const int16_t q5_0_scales[32] = {REP2(FIELD8_LAST(0, 11, 12)), REP2(FIELD8_LAST(0, 11, 12))};
static const int16_t q5_1_scales[32] = {REP2(FIELD8_LAST(0, 12, 16)), REP2(FIELD8_LAST(1, 12, 16))};

INLINE __m512i table(const int16_t *t) { return _mm512_loadu_si512(t); }
INLINE __m512i nibbles(__m512i words) { /* quarters: low, high, low, high */
    __m512i shift = _mm512_set_epi32(4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0);
    return _mm512_and_si512(_mm512_srlv_epi32(words, shift), _mm512_set1_epi8(15));
}
INLINE __m512i two_halves(const uint8_t *low, const uint8_t *high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const void *)low)), _mm256_loadu_si256((const void *)high), 1);
}

/* 16 more where the bits of two blocks `step` bytes apart say so. */
INLINE __m512i add_fifth_bits_of_2(__m512i q, const uint8_t *bits, int64_t step) {
    return _mm512_mask_add_epi8(q, (uint64_t)cpu_u32(bits + step) << 32 | cpu_u32(bits), q, _mm512_set1_epi8(16));
}

/* Four blocks of a row of b: unsigned weights of blocks 0, 1 and 2, 3; scales go to the row's lanes of *scales (d in the lower half, m in
 * the upper). */
INLINE void unpack_row(vt_dtype t, const uint8_t *p, int row, __m512i u[2], __m512i *scales) {
    __mmask32 lanes = (__mmask32)lanes_of_row[row] * 0x10001u;
    __m512i first = _mm512_loadu_si512(p);
    if (t == VT_Q4_0 || t == VT_IQ4_NL) {
        __m512i second = _mm512_loadu_si512(p + 8);
        u[0] = nibbles(_mm512_permutexvar_epi16(table(q4_0_first), first));
        u[1] = nibbles(_mm512_permutexvar_epi16(table(q4_0_second), second));
        for (int i = 0; t == VT_IQ4_NL && i < 2; i++) u[i] = iq4_values(u[i]);
        *scales = _mm512_mask_permutexvar_epi16(*scales, lanes, table(q4_0_scales), first);
    } else if (t == VT_Q4_1) {
        __m512i second = _mm512_loadu_si512(p + 16);
        u[0] = nibbles(_mm512_permutexvar_epi16(table(q4_1_first), first));
        u[1] = nibbles(_mm512_permutexvar_epi16(table(q4_1_second), second));
        *scales = _mm512_mask_permutexvar_epi16(*scales, lanes, table(q4_1_scales), first);
    } else if (has_fifth_bit(t)) {
        int64_t bytes = q_offset(t) + 16;
        __m512i second = _mm512_loadu_si512(p + (t == VT_Q5_0 ? 24 : 32));
        u[0] = nibbles(_mm512_permutexvar_epi16(table(t == VT_Q5_0 ? q5_0_first : q5_1_first), first));
        u[1] = nibbles(_mm512_permutexvar_epi16(table(t == VT_Q5_0 ? q5_0_second : q5_1_second), second));
        for (int i = 0; i < 2; i++) u[i] = add_fifth_bits_of_2(u[i], p + 2 * i * bytes + qh_offset(t), bytes);
        __m512i index = table(t == VT_Q5_0 ? q5_0_scales : q5_1_scales);
        *scales = _mm512_mask_mov_epi16(*scales, lanes, _mm512_permutex2var_epi16(first, index, second));
    } else {
        __m512i second = _mm512_loadu_si512(p + 64), flip = _mm512_set1_epi8((char)0x80);
        u[0] = _mm512_xor_si512(two_halves(p + 2, p + 36), flip);
        u[1] = _mm512_xor_si512(two_halves(p + 70, p + 104), flip);
        *scales = _mm512_mask_mov_epi16(*scales, lanes, _mm512_permutex2var_epi16(first, table(q8_0_scales), second));
    }
}

/* One step: four blocks of four rows of b with the group of each of n_rows rows of a. */
INLINE void step(vt_dtype t, const uint8_t *const b[4], const a_group *a, int n_rows, __mmask16 lanes, __m512 acc[FEW_ROWS]) {
    __m512i u[4][2], scales = _mm512_setzero_si512();
    for (int n = 0; n < 4; n++) unpack_row(t, b[n], n, u[n], &scales);
    __m512 d = _mm512_cvtph_ps(_mm512_castsi512_si256(scales)), m = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(scales, 1));
    for (int r = 0; r < n_rows; r++) {
        const a_group *g = a + (int64_t)r * FEW_GROUPS;
        __m512i x0 = _mm512_load_si512(g->q), x1 = _mm512_load_si512(g->q + 64), zero = _mm512_setzero_si512(), s[2];
        for (int half = 0; half < 2; half++)
            s[half] = sum_quarters(_mm512_dpbusd_epi32(zero, u[2 * half][0], x0), _mm512_dpbusd_epi32(zero, u[2 * half][1], x1),
                                   _mm512_dpbusd_epi32(zero, u[2 * half + 1][0], x0), _mm512_dpbusd_epi32(zero, u[2 * half + 1][1], x1));
        __m512i sums = _mm512_add_epi32(_mm512_shuffle_i32x4(s[0], s[1], 0x88), _mm512_shuffle_i32x4(s[0], s[1], 0xDD));
        __m512i a_sum = _mm512_broadcast_i32x8(_mm256_load_si256((const void *)g->sum));
        if (!has_min(t)) sums = _mm512_sub_epi32(sums, a_sum);
        __m512 v = _mm512_mul_ps(d, _mm512_cvtepi32_ps(sums));
        if (has_min(t)) v = _mm512_fmadd_ps(m, _mm512_castsi512_ps(a_sum), v);
        acc[r] = _mm512_mask3_fmadd_ps(_mm512_broadcast_f32x8(_mm256_load_ps(g->d)), v, acc[r], lanes);
    }
}

/* Four rows of b over the groups first .. first + n - 1, of which the last may be short. */
INLINE void few_chunk(vt_dtype t, const product *p, const uint8_t *const row[4], int64_t ahead, const a_group *a, int n_rows, int64_t first,
                      int64_t n, __m512 acc[FEW_ROWS]) {
    int64_t bytes = 4 * (int64_t)vt_dtype_block_bytes(t);
    int64_t whole = p->n_blocks / 4 - first < n ? p->n_blocks / 4 - first : n;
    const uint8_t *b[4];
    for (int64_t g = 0; g < whole; g++) {
        for (int i = 0; i < 4; i++) {
            b[i] = row[i] + (first + g) * bytes;
            /* A row is too short a stream for the processor to fetch ahead by itself: ask for this place of the next four rows. */
            for (int64_t line = 0; line < bytes; line += 64) _mm_prefetch((const char *)b[i] + ahead + line, _MM_HINT_T1);
        }
        step(t, b, a + g, n_rows, 0xFFFF, acc);
    }
    if (whole == n) return;
    uint8_t tail[4][4 * sizeof(cpu_q8_0)] = {{0}};
    int64_t left = p->n_blocks % 4;
    for (int i = 0; i < 4; i++) {
        memcpy(tail[i], row[i] + (first + whole) * bytes, (size_t)(left * bytes / 4));
        b[i] = tail[i];
    }
    step(t, b, a + whole, n_rows, lanes_of_blocks[left], acc);
}

static void store_few(const product *p, int64_t m, int64_t n, int64_t count, __m512 acc) {
    float lane[16];
    _mm512_storeu_ps(lane, acc);
    for (int64_t i = 0; i < count; i++) { /* blocks 0 2 at l, 1 3 at l + 4 */
        const float *l = lane + (i / 2 * 8 + i % 2 * 2);
        cpu_store(&p->epilogue, m, n + i, (l[0] + l[1]) + (l[4] + l[5]));
    }
}

INLINE void few_rows_of(vt_dtype t, const product *p, int64_t begin, int64_t end, int n_rows) {
    a_group a[FEW_ROWS * FEW_GROUPS];
    int64_t n_groups = (p->n_blocks + 3) / 4, prepared = -1;
    for (int64_t n0 = begin; n0 < end; n0 += FEW_COLUMNS) {
        int64_t n1 = end - n0 < FEW_COLUMNS ? end : n0 + FEW_COLUMNS;
        __m512 acc[FEW_COLUMNS / 4][FEW_ROWS];
        for (int i = 0; i < FEW_COLUMNS / 4; i++)
            for (int r = 0; r < n_rows; r++) acc[i][r] = _mm512_setzero_ps();
        for (int64_t first = 0; first < n_groups; first += FEW_GROUPS) {
            int64_t n_chunk = n_groups - first < FEW_GROUPS ? n_groups - first : FEW_GROUPS;
            for (int r = 0; prepared != first && r < n_rows; r++)
                for (int64_t g = 0; g < n_chunk; g++)
                    prepare_group(&a[r * FEW_GROUPS + g], t, p->a + r * p->a_stride + (first + g) * 4 * (int64_t)sizeof(cpu_q8_a32),
                                  p->n_blocks - 4 * (first + g) < 4 ? p->n_blocks - 4 * (first + g) : 4);
            prepared = first;
            for (int64_t n = n0; n < n1; n += 4) {
                const uint8_t *row[4];
                for (int i = 0; i < 4; i++) row[i] = p->b + (n + i < n1 ? n + i : n1 - 1) * p->b_stride;
                few_chunk(t, p, row, n + 8 <= end ? 4 * p->b_stride : 0, a, n_rows, first, n_chunk, acc[(n - n0) / 4]);
            }
        }
        for (int64_t n = n0; n < n1; n += 4)
            for (int r = 0; r < n_rows; r++) store_few(p, r, n, n1 - n < 4 ? n1 - n : 4, acc[(n - n0) / 4][r]);
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

/* Blocks of sixteen rows of b: register k of a block has elements 4 k .. 4 k + 3 of each row. */
typedef struct panel {
    _Alignas(64) uint8_t q[PANEL_BLOCKS][8][64];
    float d[PANEL_BLOCKS][PANEL], m[PANEL_BLOCKS][PANEL];
} panel;

/* Four bits of each row's word go to the lowest bits of four bytes by a product, register after register. */
INLINE void add_fifth_bits(panel *to, int64_t i, const uint8_t *const row[PANEL], int64_t off) {
    uint32_t bits[PANEL];
    for (int r = 0; r < PANEL; r++) bits[r] = cpu_u32(row[r] + off);
    __m512i words = _mm512_loadu_si512(bits), *q = (void *)to->q[i];
    for (int k = 0; k < 8; k++, words = _mm512_srli_epi32(words, 4)) {
        __m512i four = _mm512_mullo_epi32(_mm512_and_si512(words, _mm512_set1_epi32(15)), _mm512_set1_epi32(0x00204081));
        q[k] = _mm512_or_si512(q[k], _mm512_slli_epi32(_mm512_and_si512(four, _mm512_set1_epi32(0x01010101)), 4));
    }
}

INLINE void pack_block(vt_dtype t, panel *to, int64_t i, const uint8_t *const row[PANEL], int64_t off) {
    __m512i raw[4];
    panel_scales(row, off, to->d[i]);
    if (has_min(t)) panel_scales(row, off + 2, to->m[i]);
    if (t == VT_Q8_0) {
        for (int half = 0; half < 2; half++) {
            panel_transpose(row, off + 2 + 16 * half, raw);
            for (int k = 0; k < 4; k++) _mm512_store_si512(to->q[i][4 * half + k], _mm512_xor_si512(raw[k], _mm512_set1_epi8((char)0x80)));
        }
        return;
    }
    panel_transpose(row, off + q_offset(t), raw);
    for (int k = 0; k < 4; k++) {
        __m512i low = _mm512_and_si512(raw[k], _mm512_set1_epi8(15)),
                high = _mm512_and_si512(_mm512_srli_epi16(raw[k], 4), _mm512_set1_epi8(15));
        _mm512_store_si512(to->q[i][k], t == VT_IQ4_NL ? iq4_values(low) : low);
        _mm512_store_si512(to->q[i][4 + k], t == VT_IQ4_NL ? iq4_values(high) : high);
    }
    if (has_fifth_bit(t)) add_fifth_bits(to, i, row, off + qh_offset(t));
}

/* n_rows rows of a (a constant where this is called) over n_blocks of the panel; sums[row][chain] is where the chains wait. */
INLINE void tile(vt_dtype t, const panel *b, const uint8_t *a, int64_t a_stride, int n_rows, int64_t n_blocks,
                 float (*sums)[CPU_Q8_LANES][PANEL]) {
    for (int chain = 0; chain < CPU_Q8_LANES; chain++) {
        __m512 acc[TILE];
        for (int r = 0; r < n_rows; r++) acc[r] = _mm512_load_ps(sums[r][chain]);
        for (int64_t i = chain; i < n_blocks; i += CPU_Q8_LANES) {
            __m512i w[8];
            for (int k = 0; k < 8; k++) w[k] = _mm512_load_si512(b->q[i][k]);
            __m512 d = _mm512_load_ps(b->d[i]);
            for (int r = 0; r < n_rows; r++) {
                const uint8_t *block = a + r * a_stride + i * (int64_t)sizeof(cpu_q8_a32);
                __m512i s = _mm512_setzero_si512(), a_sum = panel_broadcast(block + 4);
                for (int k = 0; k < 8; k++) s = _mm512_dpbusd_epi32(s, w[k], panel_broadcast(block + 8 + 4 * k));
                if (!has_min(t)) s = _mm512_sub_epi32(s, _mm512_slli_epi32(a_sum, shift_of(t)));
                __m512 v = _mm512_mul_ps(d, _mm512_cvtepi32_ps(s));
                if (has_min(t)) v = _mm512_fmadd_ps(_mm512_load_ps(b->m[i]), _mm512_cvtepi32_ps(a_sum), v);
                acc[r] = _mm512_fmadd_ps(_mm512_castsi512_ps(panel_broadcast(block)), v, acc[r]);
            }
        }
        for (int r = 0; r < n_rows; r++) _mm512_store_ps(sums[r][chain], acc[r]);
    }
}

enum { TILE_REST = 2, PANEL_QK = CPU_QK, PANEL_GRAIN = 1 };
#define PANEL_ROW(name) vnni_matmul_q8_a32_##name
#include "vt/cpu/x86/matmul_q8_panels.inc"

PRODUCT(q4_0, VT_Q4_0)
PRODUCT(q4_1, VT_Q4_1)
PRODUCT(q8_0, VT_Q8_0)
PRODUCT(q5_0, VT_Q5_0)
PRODUCT(q5_1, VT_Q5_1)
PRODUCT(iq4_nl, VT_IQ4_NL)
