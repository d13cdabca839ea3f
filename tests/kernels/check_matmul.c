/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of matmul_bt and matmul_bt_alpha_beta. */
#include "check_case.h"

#include <math.h>
#include <stdio.h>

enum { OUT, A, B, MAX_MKN = 150 * 1000 };

static int64_t pick_k(check_case *c, int64_t i) {
    int64_t block = vt_dtype_block_elems((vt_dtype)c->row->sig.dtype[0]), b = vt_dtype_block_elems((vt_dtype)c->row->sig.dtype[1]);
    if (b > block) block = b;
    static const int64_t edges[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 65, 100, 255, 256, 257, 515, 1000, 2080};
    static const int64_t blocks[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 31, 33, 40, 63, 64, 65, 129};
    if (i == 3) return 0;
    return block == 1 ? edges[i % 20] : block == 32 ? 32 * blocks[i % 20] : 256 * (1 + i % 9);
}

static bool make_product(check_case *c, int64_t i) {
    rng *r = &c->r;
    c->special = i % 8 == 5;
    int64_t k = pick_k(c, i);
    int64_t m = i == 0 ? 1 : i == 1 ? 0 : RNG_PICK(r, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 31, 33);
    int64_t n = i == 2 ? 0 : RNG_PICK(r, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 49);
    while (m * n * k > MAX_MKN && (m > 1 || n > 1)) {
        if (m > n)
            m = (m + 1) / 2;
        else
            n = (n + 1) / 2;
    }
    if (i == 23) { /* more rows and columns than a tile of rows has, on a short K */
        m = 150;
        n = 37;
        k = vt_dtype_block_elems((vt_dtype)c->row->sig.dtype[1]);
        if (k == 1) k = 24;
    }
    if (c->aligned) { /* matrix units: K in whole tiles, one segment of K and several, few rows and many, edges of tiles of 128 */
        const int64_t block = vt_dtype_block_elems((vt_dtype)c->row->sig.dtype[1]);
        k = block > 32 ? block * RNG_PICK(r, 1, 2, 3, 4, 5, 9) : 32 * RNG_PICK(r, 1, 2, 3, 8, 16, 31, 32, 33, 40, 65);
        m = i % 3 == 0 ? RNG_PICK(r, 33, 64, 127, 129, 150) : RNG_PICK(r, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32);
        n = RNG_PICK(r, 1, 7, 16, 17, 40, 129, 150);
        if (i % 4 == 0) { /* more outputs than are a router's */
            n = m > 32 ? 450 : 1100;
            k = block > 32 ? block * RNG_PICK(r, 1, 3, 4) : 32 * RNG_PICK(r, 1, 3, 32, 33);
        }
    }
    bool scaled = c->call.op == VT_OP_MATMUL_BT_ALPHA_BETA;
    if (CASE_ADD(c, (vt_dtype)c->row->sig.dtype[2], true, m, n) < 0) return false;
    if (CASE_ADD(c, (vt_dtype)c->row->sig.dtype[0], true, m, k) < 0) return false;
    if (CASE_ADD(c, (vt_dtype)c->row->sig.dtype[1], rng_one_in(r, 3), n, k) < 0) return false;
    case_fill(c, A, 2.0);
    case_fill(c, B, 1.0);
    if (scaled) {
        c->call.p.alpha_beta.alpha = (float)RNG_PICK(r, 1, 0, -3) * (float)(0.5 + rng_unit(r));
        c->call.p.alpha_beta.beta = rng_one_in(r, 2) ? 0.0f : rng_one_in(r, 2) ? 1.0f : (float)rng_unit(r);
        if (c->call.p.alpha_beta.beta != 0.0f) case_fill(c, OUT, 3.0); /* else what is there is NaN and must not be read */
    }
    c->by_row = 1u << OUT | 1u << A;
    c->n_rows = m;
    return true;
}

enum { MAX_K = 8192, TOGETHER = 16 };
static double a_rows[TOGETHER][MAX_K], b_row[MAX_K], b_mag[MAX_K], old_rows[TOGETHER][MAX_K];

static void expect_product(check_case *c) {
    const vt_tensor *out = &c->t[OUT], *a = &c->t[A], *b = &c->t[B];
    int64_t m = out->dim[0], n = out->dim[1], k = a->dim[1];
    bool scaled = c->call.op == VT_OP_MATMUL_BT_ALPHA_BETA;
    double alpha = scaled ? (double)c->call.p.alpha_beta.alpha : 1.0, beta = scaled ? (double)c->call.p.alpha_beta.beta : 0.0;
    for (int64_t first = 0; first < m; first += TOGETHER) { /* a row is decoded once, a weight once for several rows */
        const int64_t n_rows = m - first < TOGETHER ? m - first : TOGETHER;
        for (int64_t i = 0; i < n_rows; i++) {
            decode_row(a->dtype, tensor_row_at(a, first + i), k, a_rows[i]);
            if (beta != 0.0) decode_row(out->dtype, tensor_row_at(out, first + i), n, old_rows[i]);
        }
        for (int64_t j = 0; j < n; j++) {
            decode_row_beside(a->dtype, b->dtype, tensor_row_at(b, j), k, b_row);
            decode_row_mag(b->dtype, tensor_row_at(b, j), k, b_mag);
            for (int64_t i = 0; i < n_rows; i++) {
                double sum = 0.0, mag = 0.0;
                for (int64_t l = 0; l < k; l++) {
                    sum += a_rows[i][l] * b_row[l];
                    mag += fabs(a_rows[i][l]) * b_mag[l];
                }
                const int64_t at = (first + i) * n + j;
                c->want[at] = alpha * sum + (beta != 0.0 ? beta * old_rows[i][j] : 0.0);
                c->mag[at] = fabs(alpha) * mag + (beta != 0.0 ? fabs(beta * old_rows[i][j]) : 0.0);
            }
        }
    }
}

/* Decode, a few rows, prefill: matrices larger than the caches, so that one row is bound by memory; one that fits the second-level cache.
 */
static void bench_product(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n_label) {
    static const struct {
        int64_t m, n, k;
    } shapes[] = {{1, 24576, 4096},   {4, 24576, 4096}, {16, 4096, 4096},   {512, 1024, 4096},  {64, 24576, 4096},
                  {4096, 4096, 4096}, {1, 2816, 4096},  {4096, 4096, 2816}, {4096, 2112, 2816}, {512, 2816, 4096},
                  {1, 4096, 2816},    {8, 2816, 4096},  {64, 4096, 2816},   {1, 256, 2048},     {1, 128, 2816},
                  {64, 128, 2816},    {512, 128, 2816}, {4096, 128, 2816},  {1, 8, 256}};
    int64_t m = shapes[shape].m, n = shapes[shape].n, k = shapes[shape].k;
    CASE_ADD(c, (vt_dtype)c->row->sig.dtype[2], false, m, n);
    CASE_ADD(c, (vt_dtype)c->row->sig.dtype[0], false, m, k);
    CASE_ADD(c, (vt_dtype)c->row->sig.dtype[1], false, n, k);
    case_fill(c, OUT, 1.0);
    case_fill(c, A, 1.0);
    case_fill(c, B, 1.0);
    if (c->call.op == VT_OP_MATMUL_BT_ALPHA_BETA) {
        c->call.p.alpha_beta.alpha = 1.0f;
        c->call.p.alpha_beta.beta = 0.0f;
    }
    size_t weights = 0;
    *bytes = vt_dtype_row_bytes(c->t[B].dtype, n * k, &weights) ? (double)weights : 0.0;
    *flops = 2.0 * (double)m * (double)n * (double)k;
    snprintf(label, n_label, "m=%lld n=%lld k=%lld", (long long)m, (long long)n, (long long)k);
}

/* The sum of a lane has up to K / 16 roundings, each at most half an ulp of a partial sum; in practice they cancel. */
const check_op check_matmul_bt = {VT_OP_MATMUL_BT, 12.0, make_product, expect_product, NULL, bench_product, 19};
const check_op check_matmul_bt_alpha_beta = {VT_OP_MATMUL_BT_ALPHA_BETA, 12.0, make_product, expect_product, NULL, bench_product, 19};
