/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of Q8_A256 activations with Q6_K weights, AVX-512 with VNNI. The two forms of matmul_q8_avx512.c: four rows of b from end to end
 * for few rows of a, a packed panel of sixteen rows of b for many. Weights are unsigned (0 .. 63); what 32 too many in each adds is
 * 32 times the sum of scale * (sum of a's elements under that scale), which the blocks of a carry.
 */
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

/* The 256 weights of a block in order, 0 .. 63. */
INLINE void unpack_block(const cpu_q6_k *b, __m512i w[4]) {
    __m512i low_mask = _mm512_set1_epi8(15), high_mask = _mm512_set1_epi8(3);
    for (int h = 0; h < 2; h++) {
        __m512i ql = _mm512_loadu_si512(b->ql + 64 * h);
        __m512i qh = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)(b->qh + 32 * h)));
        __m512i first = _mm512_srlv_epi64(qh, _mm512_set_epi64(2, 2, 2, 2, 0, 0, 0, 0)), second = _mm512_srli_epi64(first, 4);
        first = _mm512_slli_epi16(_mm512_and_si512(first, high_mask), 4);
        second = _mm512_slli_epi16(_mm512_and_si512(second, high_mask), 4);
        w[2 * h] = _mm512_or_si512(_mm512_and_si512(ql, low_mask), first);
        w[2 * h + 1] = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(ql, 4), low_mask), second);
    }
}

/* ---- few rows ---- */

/* A block of four rows of b with a block of each of n_rows rows of a. */
INLINE void step(const cpu_q6_k *const b[4], const uint8_t *a, int64_t a_stride, int n_rows, __m128 acc[FEW_ROWS]) {
    __m512i total[FEW_ROWS][4];
    uint16_t d[8] = {0};
    for (int n = 0; n < 4; n++) {
        __m512i w[4];
        unpack_block(b[n], w);
        __m128i scale = _mm_loadu_si128((const void *)b[n]->scale);
        __m512i scale32 = _mm512_cvtepi8_epi32(scale);
        __m256i scale16 = _mm256_cvtepi8_epi16(scale);
        d[n] = cpu_u16(b[n]->d);
        for (int r = 0; r < n_rows; r++) {
            const cpu_q8_a256 *x = (const void *)(a + r * a_stride);
            __m256i excess = _mm256_madd_epi16(scale16, _mm256_loadu_si256((const void *)x->sum));
            __m512i sum = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(_mm512_zextsi256_si512(excess), 5));
            for (int j = 0; j < 4; j++) { /* each quarter of a register has one scale */
                __m512i spread =
                    _mm512_add_epi32(_mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0), _mm512_set1_epi32(4 * j));
                __m512i dot = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[j], _mm512_loadu_si512(x->q + 64 * j));
                sum = _mm512_add_epi32(sum, _mm512_mullo_epi32(dot, _mm512_permutexvar_epi32(spread, scale32)));
            }
            total[r][n] = sum;
        }
    }
    __m128 d_b = _mm_cvtph_ps(_mm_loadu_si128((const void *)d));
    for (int r = 0; r < n_rows; r++) {
        __m512i q = sum_quarters(total[r][0], total[r][1], total[r][2], total[r][3]);
        __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(q), _mm512_extracti64x4_epi64(q, 1));
        __m128i s = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
        float d_a;
        memcpy(&d_a, a + r * a_stride, sizeof d_a);
        acc[r] = _mm_fmadd_ps(_mm_mul_ps(_mm_set1_ps(d_a), d_b), _mm_cvtepi32_ps(s), acc[r]);
    }
}

INLINE void few_rows_of(const product *p, int64_t begin, int64_t end, int n_rows) {
    for (int64_t n = begin; n < end; n += 4) {
        const uint8_t *row[4];
        const cpu_q6_k *b[4];
        __m128 acc[FEW_ROWS];
        int64_t ahead = n + 8 <= end ? 4 * p->b_stride : 0;
        for (int i = 0; i < 4; i++) row[i] = p->b + (n + i < end ? n + i : end - 1) * p->b_stride;
        for (int r = 0; r < n_rows; r++) acc[r] = _mm_setzero_ps();
        for (int64_t k = 0; k < p->n_blocks; k++) {
            for (int i = 0; i < 4; i++) { /* and fetch this block of the next four rows */
                b[i] = (const cpu_q6_k *)(const void *)row[i] + k;
                for (int line = 0; line < (int)sizeof *b[i]; line += 64) _mm_prefetch((const char *)b[i] + ahead + line, _MM_HINT_T1);
            }
            step(b, p->a + k * (int64_t)sizeof(cpu_q8_a256), p->a_stride, n_rows, acc);
        }
        for (int r = 0; r < n_rows; r++) store_up_to_4(&p->epilogue, r, n, acc[r], end - n < 4 ? end - n : 4);
    }
}

static void few_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const product *p = ctx;
    switch (p->n_m) {
    case 1:
        few_rows_of(p, begin, end, 1);
        break;
    case 2:
        few_rows_of(p, begin, end, 2);
        break;
    case 3:
        few_rows_of(p, begin, end, 3);
        break;
    default:
        few_rows_of(p, begin, end, 4);
        break;
    }
}

/* ---- many rows ---- */

/* Blocks of sixteen rows of b: register k has elements 4 k .. 4 k + 3 of each row; scales of sixteen groups, and as pairs times -32. */
typedef struct panel {
    _Alignas(64) uint8_t q[PANEL_BLOCKS][64][64];
    int32_t scale[PANEL_BLOCKS][16][PANEL];
    int16_t pair[PANEL_BLOCKS][8][PANEL][2];
    float d[PANEL_BLOCKS][PANEL];
} panel;

INLINE void pack_block(panel *to, int64_t i, const uint8_t *const row[PANEL]) {
    _Alignas(64) uint8_t plain[PANEL][CPU_QK_K];
    const uint8_t *plain_row[PANEL];
    for (int r = 0; r < PANEL; r++) {
        const cpu_q6_k *b = (const void *)row[r];
        __m512i w[4];
        unpack_block(b, w);
        for (int j = 0; j < 4; j++) _mm512_store_si512(plain[r] + 64 * j, w[j]);
        for (int g = 0; g < 16; g++) {
            to->scale[i][g][r] = b->scale[g];
            to->pair[i][g / 2][r][g % 2] = (int16_t)(b->scale[g] * -32);
        }
        plain_row[r] = plain[r];
    }
    for (int k = 0; k < 16; k++) {
        __m512i out[4];
        panel_transpose(plain_row, 16 * k, out);
        for (int j = 0; j < 4; j++) _mm512_store_si512(to->q[i][4 * k + j], out[j]);
    }
    panel_scales(row, (int64_t)offsetof(cpu_q6_k, d), to->d[i]);
}

/* n_rows rows of a (a constant where this is called) over n_blocks of the panel. */
INLINE void tile(const panel *b, const uint8_t *a, int64_t a_stride, int n_rows, int64_t n_blocks, float (*sums)[PANEL]) {
    __m512 acc[TILE];
    for (int r = 0; r < n_rows; r++) acc[r] = _mm512_load_ps(sums[r]);
    for (int64_t i = 0; i < n_blocks; i++, a += sizeof(cpu_q8_a256)) {
        __m512i total[TILE];
        for (int r = 0; r < n_rows; r++) {
            total[r] = _mm512_setzero_si512();
            const cpu_q8_a256 *x = (const void *)(a + r * a_stride);
            for (int k = 0; k < 8; k++)
                total[r] = _mm512_dpwssd_epi32(total[r], _mm512_load_si512(b->pair[i][k]), panel_broadcast(x->sum + 2 * k));
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
        for (int r = 0; r < n_rows; r++)
            acc[r] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_castsi512_ps(panel_broadcast(a + r * a_stride)), d), _mm512_cvtepi32_ps(total[r]),
                                     acc[r]);
    }
    for (int r = 0; r < n_rows; r++) _mm512_store_ps(sums[r], acc[r]);
}

static void many_rows_panel(const product *p, int64_t n, int64_t n_rows) {
    _Alignas(64) float sums[MANY_ROWS][PANEL];
    panel packed;
    memset(sums, 0, (size_t)n_rows * sizeof sums[0]);
    for (int64_t first = 0; first < p->n_blocks; first += PANEL_BLOCKS) {
        int64_t n_chunk = p->n_blocks - first < PANEL_BLOCKS ? p->n_blocks - first : PANEL_BLOCKS;
        for (int64_t i = 0; i < n_chunk; i++) {
            const uint8_t *row[PANEL];
            for (int r = 0; r < PANEL; r++)
                row[r] = p->b + (n + r < p->n_n ? n + r : p->n_n - 1) * p->b_stride + (first + i) * (int64_t)sizeof(cpu_q6_k);
            pack_block(&packed, i, row);
        }
        const uint8_t *a = p->a + p->m0 * p->a_stride + first * (int64_t)sizeof(cpu_q8_a256);
        int64_t m = 0;
        for (; m + TILE <= n_rows; m += TILE) tile(&packed, a + m * p->a_stride, p->a_stride, TILE, n_chunk, sums + m);
        for (; m + 2 <= n_rows; m += 2) tile(&packed, a + m * p->a_stride, p->a_stride, 2, n_chunk, sums + m);
        if (m < n_rows) tile(&packed, a + m * p->a_stride, p->a_stride, 1, n_chunk, sums + m);
    }
    for (int64_t m = 0; m < n_rows; m++)
        for (int64_t l = 0; l < PANEL && n + l < p->n_n; l += 4)
            store_up_to_4(&p->epilogue, p->m0 + m, n + l, _mm_load_ps(sums[m] + l), p->n_n - n - l < 4 ? p->n_n - n - l : 4);
}

static void many_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const product *p = ctx;
    int64_t n_rows = p->n_m - p->m0 < MANY_ROWS ? p->n_m - p->m0 : MANY_ROWS;
    for (int64_t i = begin; i < end; i++) many_rows_panel(p, i * PANEL, n_rows);
}

status vnni_matmul_q8_a256_q6_k(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    const vt_tensor *a = call->t[1], *b = call->t[2];
    product p = {
        a->data, b->data, cpu_stride(a, 0), cpu_stride(b, 0), a->dim[0], b->dim[0], a->dim[1] / CPU_QK_K, 0, cpu_epilogue_of(call)};
    if (p.n_m <= 0) return STATUS_OK;
    if (p.n_m <= FEW_ROWS)
        cpu_run(q, p.n_n, cpu_stream_grain(q, p.n_n), few_task, &p);
    else
        for (; p.m0 < p.n_m; p.m0 += MANY_ROWS) cpu_run(q, (p.n_n + PANEL - 1) / PANEL, 1, many_task, &p);
    return STATUS_OK;
}
