/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of Q8_A256 activations with the 256-element blocks of cpu_blocks.h, AVX2; the form of matmul_q6_avx2.c. Weights are unsigned,
 * what they have too much goes out through the sums that the blocks of a carry; those of IQ4_XS are signed bytes and lend their sign to a.
 */
#include "vt/cpu/cpu_blocks.h"
#include "vt/cpu/cpu_rows.h"
#include "vt/cpu/x86/store_avx2.h"

#define INLINE static inline __attribute__((always_inline))

enum { TILE = 4, COLUMNS = 64 /* rows of b of a task */ };

typedef struct product {
    const uint8_t *a, *b;
    int64_t a_stride, b_stride, n_m, n_n, n_blocks;
    cpu_epilogue epilogue;
} product;

INLINE __m256i load_32(const uint8_t *p) { return _mm256_loadu_si256((const void *)p); }
INLINE __m256i bits_at(__m256i bytes, int shift, int mask) {
    return _mm256_and_si256(_mm256_srli_epi16(bytes, shift), _mm256_set1_epi8((char)mask));
}
/* Bit g of each byte, times `value` (a power of two). */
INLINE __m256i bit_times(__m256i bytes, int g, int value) {
    __m256i bit = _mm256_set1_epi8((char)(1 << g));
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit), _mm256_set1_epi8((char)value));
}

/* The 256 weights of a block in order: 0 .. 3, 0 .. 7 (Q3_K, 4 too many), 0 .. 15, 0 .. 31; signed for IQ4_XS. */
INLINE void unpack_block(vt_dtype t, const uint8_t *block, __m256i w[8]) {
    for (int g = 0; g < 8; g++) {
        if (t == VT_Q2_K) {
            w[g] = bits_at(load_32(((const cpu_q2_k *)block)->q + 32 * (g / 4)), 2 * (g % 4), 3);
        } else if (t == VT_Q3_K) {
            const cpu_q3_k *b = (const void *)block;
            w[g] = _mm256_or_si256(bits_at(load_32(b->q + 32 * (g / 4)), 2 * (g % 4), 3), bit_times(load_32(b->qh), g, 4));
        } else if (t == VT_Q4_K) {
            w[g] = bits_at(load_32(((const cpu_q4_k *)block)->q + 32 * (g / 2)), 4 * (g % 2), 15);
        } else if (t == VT_Q5_K) {
            const cpu_q5_k *b = (const void *)block;
            w[g] = _mm256_or_si256(bits_at(load_32(b->q + 32 * (g / 2)), 4 * (g % 2), 15), bit_times(load_32(b->qh), g, 16));
        } else {
            __m128i q = _mm_loadu_si128((const void *)(((const cpu_iq4_xs *)block)->q + 16 * g));
            __m256i values = _mm256_broadcastsi128_si256(_mm_setr_epi8(CPU_IQ4_VALUES));
            w[g] = _mm256_shuffle_epi8(values, bits_at(_mm256_set_m128i(_mm_srli_epi16(q, 4), q), 0, 15));
        }
    }
}

/* Sixteen bytes of scales or minima as words, one for sixteen elements. */
INLINE __m256i sixteen(vt_dtype t, const uint32_t words[4], int zero) {
    __m128i bytes = _mm_setr_epi32((int)words[0], (int)words[1], (int)words[2], (int)words[3]);
    if (cpu_k_by_32(t)) bytes = _mm_unpacklo_epi8(bytes, bytes);
    return _mm256_sub_epi16(_mm256_cvtepu8_epi16(bytes), _mm256_set1_epi16((int16_t)zero));
}

/* Eight partial sums of scale * q * q_a of a block of b with one of a. */
INLINE __m256i block_sum(vt_dtype t, const __m256i w[8], __m256i scale, const cpu_q8_a256 *x) {
    __m256i sum = _mm256_setzero_si256();
    if (t == VT_Q3_K) {
        __m256i excess = _mm256_madd_epi16(scale, _mm256_loadu_si256((const void *)x->sum));
        sum = _mm256_sub_epi32(sum, _mm256_slli_epi32(excess, 2));
    }
    __m256i scales[2] = {_mm256_permute4x64_epi64(scale, 0x44), _mm256_permute4x64_epi64(scale, 0xEE)}; /* eight scales in each half */
    for (int j = 0; j < 8; j++) {
        /* the lower half has scale 2 j % 8, the upper the next */
        char s = (char)(4 * (j % 4));
        __m256i pick = _mm256_setr_epi8(s, s + 1, s, s + 1, s, s + 1, s, s + 1, s, s + 1, s, s + 1, s, s + 1, s, s + 1, s + 2, s + 3, s + 2,
                                        s + 3, s + 2, s + 3, s + 2, s + 3, s + 2, s + 3, s + 2, s + 3, s + 2, s + 3, s + 2, s + 3);
        __m256i q = _mm256_loadu_si256((const void *)(x->q + 32 * j));
        __m256i two =
            t == VT_IQ4_XS ? _mm256_maddubs_epi16(_mm256_abs_epi8(w[j]), _mm256_sign_epi8(q, w[j])) : _mm256_maddubs_epi16(w[j], q);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(two, _mm256_shuffle_epi8(scales[j / 4], pick)));
    }
    return sum;
}

/* Element i: the sum of v[i]. */
INLINE __m128i sum_four(const __m256i v[4]) {
    __m256i x = _mm256_add_epi32(_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
    __m256i y = _mm256_add_epi32(_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
    __m256i z = _mm256_add_epi32(_mm256_unpacklo_epi64(x, y), _mm256_unpackhi_epi64(x, y));
    return _mm_add_epi32(_mm256_castsi256_si128(z), _mm256_extracti128_si256(z, 1));
}

/* A block of four rows of b with a block of each of n_rows rows of a. */
INLINE void step(vt_dtype t, const uint8_t *const b[4], const uint8_t *a, int64_t a_stride, int n_rows, __m128 acc[TILE]) {
    __m256i total[TILE][4], min_total[TILE][4];
    uint16_t d[8] = {0}, dmin[8] = {0};
    for (int n = 0; n < 4; n++) {
        __m256i w[8];
        cpu_k_scales s = cpu_k_scales_of(t, b[n]);
        __m256i scale = sixteen(t, s.scale, cpu_k_scale_zero(t)), min = sixteen(t, s.min, 0);
        unpack_block(t, b[n], w);
        d[n] = cpu_u16(b[n] + cpu_k_d_offset(t));
        if (cpu_k_has_min(t)) dmin[n] = cpu_u16(b[n] + cpu_k_d_offset(t) + 2);
        for (int r = 0; r < n_rows; r++) {
            const cpu_q8_a256 *x = (const void *)(a + r * a_stride);
            total[r][n] = block_sum(t, w, scale, x);
            if (cpu_k_has_min(t)) min_total[r][n] = _mm256_madd_epi16(min, _mm256_loadu_si256((const void *)x->sum));
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

INLINE void rows_of_a(vt_dtype t, const product *p, int64_t m, int n_rows, int64_t begin, int64_t end) {
    int64_t bytes = (int64_t)vt_dtype_block_bytes(t);
    for (int64_t n = begin; n < end; n += 4) {
        const uint8_t *b[4], *a = p->a + m * p->a_stride;
        __m128 acc[TILE];
        int64_t ahead = n + 4 < end ? 4 * p->b_stride : 0;
        for (int i = 0; i < 4; i++) b[i] = p->b + (n + i < end ? n + i : end - 1) * p->b_stride;
        for (int r = 0; r < n_rows; r++) acc[r] = _mm_setzero_ps();
        for (int64_t k = 0; k < p->n_blocks; k++, a += sizeof(cpu_q8_a256)) {
            for (int i = 0; i < 4; i++) /* fetch this block of the next four rows */
                for (int64_t line = 0; line < bytes; line += 64) _mm_prefetch((const char *)b[i] + ahead + line, _MM_HINT_T1);
            step(t, b, a, p->a_stride, n_rows, acc);
            for (int i = 0; i < 4; i++) b[i] += bytes;
        }
        for (int r = 0; r < n_rows; r++) store_up_to_4(&p->epilogue, m + r, n, acc[r], end - n < 4 ? end - n : 4);
    }
}

INLINE void columns(vt_dtype t, const product *p, int64_t begin, int64_t end) {
    int64_t m = 0;
    for (; m + TILE <= p->n_m; m += TILE) rows_of_a(t, p, m, TILE, begin, end);
    for (; m < p->n_m; m++) rows_of_a(t, p, m, 1, begin, end);
}

static status run(vt_queue *q, const vt_call *call, pool_fn *task) {
    const vt_tensor *a = call->t[1], *b = call->t[2];
    product p = {a->data, b->data, cpu_stride(a, 0), cpu_stride(b, 0), a->dim[0], b->dim[0], a->dim[1] / CPU_QK_K, cpu_epilogue_of(call)};
    cpu_run(q, p.n_n, p.n_m <= TILE ? cpu_stream_grain(q, p.n_n) : COLUMNS, task, &p);
    return STATUS_OK;
}

#define PRODUCT(name, t)                                                                                                                   \
    static void task_##name(void *ctx, int64_t begin, int64_t end, int thread) {                                                           \
        (void)thread;                                                                                                                      \
        columns(t, ctx, begin, end);                                                                                                       \
    }                                                                                                                                      \
    status avx2_matmul_q8_a256_##name(vt_queue *q, const vt_call *call, error *err) {                                                      \
        (void)err;                                                                                                                         \
        return run(q, call, task_##name);                                                                                                  \
    }

PRODUCT(q2_k, VT_Q2_K)
PRODUCT(q3_k, VT_Q3_K)
PRODUCT(q4_k, VT_Q4_K)
PRODUCT(q5_k, VT_Q5_K)
PRODUCT(iq4_xs, VT_IQ4_XS)
