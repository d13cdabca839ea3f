/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of Q8_A256 activations with Q6_K weights, AVX2: four rows of b with up to four rows of a at a time. Weights are unsigned (0 ..
 * 63); the sums of two products that vpmaddubsw makes go through vpmaddwd with the scale of their sixteen elements.
 */
#include "vt/cpu/cpu_rows.h"
#include "vt/cpu/x86/store_avx2.h"

#define INLINE static inline __attribute__((always_inline))

enum { TILE = 4 };

typedef struct product {
    const uint8_t *a, *b;
    int64_t a_stride, b_stride, n_m, n_n, n_blocks;
    cpu_epilogue epilogue;
} product;

/* The 256 weights of a block in order, 0 .. 63. */
INLINE void unpack_block(const cpu_q6_k *b, __m256i w[8]) {
    __m256i low_mask = _mm256_set1_epi8(15), high_mask = _mm256_set1_epi8(3);
    for (int h = 0; h < 2; h++) {
        __m256i qh = _mm256_loadu_si256((const void *)(b->qh + 32 * h));
        for (int g = 0; g < 4; g++) {
            __m256i ql = _mm256_loadu_si256((const void *)(b->ql + 64 * h + 32 * (g % 2)));
            __m256i low = _mm256_and_si256(g < 2 ? ql : _mm256_srli_epi16(ql, 4), low_mask);
            __m256i high = _mm256_slli_epi16(_mm256_and_si256(_mm256_srli_epi16(qh, 2 * g), high_mask), 4);
            w[4 * h + g] = _mm256_or_si256(low, high);
        }
    }
}

/* Eight partial sums of a block of b with one of a. */
INLINE __m256i block_sum(const __m256i w[8], __m256i scale, const cpu_q8_a256 *x) {
    __m256i excess = _mm256_madd_epi16(scale, _mm256_loadu_si256((const void *)x->sum));
    __m256i sum = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(excess, 5));
    __m256i scales[2] = {_mm256_permute4x64_epi64(scale, 0x44), _mm256_permute4x64_epi64(scale, 0xEE)}; /* eight scales in each half */
    for (int j = 0; j < 8; j++) {
        /* the lower half has scale 2 j % 8, the upper the next */
        char s = (char)(4 * (j % 4));
        __m256i pick = _mm256_setr_epi8(s, s + 1, s, s + 1, s, s + 1, s, s + 1, s, s + 1, s, s + 1, s, s + 1, s, s + 1, s + 2, s + 3, s + 2,
                                        s + 3, s + 2, s + 3, s + 2, s + 3, s + 2, s + 3, s + 2, s + 3, s + 2, s + 3, s + 2, s + 3);
        __m256i two = _mm256_maddubs_epi16(w[j], _mm256_loadu_si256((const void *)(x->q + 32 * j)));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(two, _mm256_shuffle_epi8(scales[j / 4], pick)));
    }
    return sum;
}

/* A block of four rows of b with a block of each of n_rows rows of a. */
INLINE void step(const cpu_q6_k *const b[4], const uint8_t *a, int64_t a_stride, int n_rows, __m128 acc[TILE]) {
    __m256i total[TILE][4];
    uint16_t d[8] = {0};
    for (int n = 0; n < 4; n++) {
        __m256i w[8];
        unpack_block(b[n], w);
        d[n] = cpu_u16(b[n]->d);
        __m256i scale = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)b[n]->scale));
        for (int r = 0; r < n_rows; r++) total[r][n] = block_sum(w, scale, (const void *)(a + r * a_stride));
    }
    __m128 d_b = _mm_cvtph_ps(_mm_loadu_si128((const void *)d));
    for (int r = 0; r < n_rows; r++) {
        __m256i x = _mm256_add_epi32(_mm256_unpacklo_epi32(total[r][0], total[r][1]), _mm256_unpackhi_epi32(total[r][0], total[r][1]));
        __m256i y = _mm256_add_epi32(_mm256_unpacklo_epi32(total[r][2], total[r][3]), _mm256_unpackhi_epi32(total[r][2], total[r][3]));
        __m256i z = _mm256_add_epi32(_mm256_unpacklo_epi64(x, y), _mm256_unpackhi_epi64(x, y));
        __m128i s = _mm_add_epi32(_mm256_castsi256_si128(z), _mm256_extracti128_si256(z, 1));
        float d_a;
        memcpy(&d_a, a + r * a_stride, sizeof d_a);
        acc[r] = _mm_fmadd_ps(_mm_mul_ps(_mm_set1_ps(d_a), d_b), _mm_cvtepi32_ps(s), acc[r]);
    }
}

INLINE void rows_of_a(const product *p, int64_t m, int n_rows, int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; n += 4) {
        const uint8_t *row[4];
        const cpu_q6_k *b[4];
        __m128 acc[TILE];
        int64_t ahead = n + 8 <= end ? 4 * p->b_stride : 0;
        for (int i = 0; i < 4; i++) row[i] = p->b + (n + i < end ? n + i : end - 1) * p->b_stride;
        for (int r = 0; r < n_rows; r++) acc[r] = _mm_setzero_ps();
        for (int64_t k = 0; k < p->n_blocks; k++) {
            for (int i = 0; i < 4; i++) { /* and fetch this block of the next four rows */
                b[i] = (const cpu_q6_k *)(const void *)row[i] + k;
                for (int line = 0; line < (int)sizeof *b[i]; line += 64) _mm_prefetch((const char *)b[i] + ahead + line, _MM_HINT_T1);
            }
            step(b, p->a + m * p->a_stride + k * (int64_t)sizeof(cpu_q8_a256), p->a_stride, n_rows, acc);
        }
        for (int r = 0; r < n_rows; r++) store_up_to_4(&p->epilogue, m + r, n, acc[r], end - n < 4 ? end - n : 4);
    }
}

static void task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const product *p = ctx;
    int64_t m = 0;
    for (; m + TILE <= p->n_m; m += TILE) rows_of_a(p, m, TILE, begin, end);
    for (; m < p->n_m; m++) rows_of_a(p, m, 1, begin, end);
}

status avx2_matmul_q8_a256_q6_k(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    const vt_tensor *a = call->t[1], *b = call->t[2];
    product p = {a->data, b->data, cpu_stride(a, 0), cpu_stride(b, 0), a->dim[0], b->dim[0], a->dim[1] / CPU_QK_K, cpu_epilogue_of(call)};
    cpu_run(q, p.n_n, p.n_m <= TILE ? cpu_stream_grain(q, p.n_n) : 64, task, &p);
    return STATUS_OK;
}
