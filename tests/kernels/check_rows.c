/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the row-wise ops. */
#include "check_case.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_INNER = 8192 };
static double x_row[MAX_INNER], y_row[MAX_INNER], w_row[MAX_INNER];

static int64_t pick_width(check_case *c, int64_t i) {
    static const int64_t edges[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 255, 257, 1000, 2051};
    return i < 20 ? edges[i] : 1 + rng_below(&c->r, 600);
}

static int64_t pick_rows(check_case *c, int64_t i) { return i == 1 ? 0 : 1 + rng_below(&c->r, 9); }

/* out and x of one shape with one to four dimensions (rank 0: any); x may be the output itself. */
static bool make_pair(check_case *c, int64_t i, vt_dtype out, vt_dtype x, int min_rank, int max_rank, bool may_alias) {
    int rank = min_rank + (int)rng_below(&c->r, max_rank - min_rank + 1);
    int64_t dim[VT_MAX_DIMS], rows = pick_rows(c, i);
    for (int d = 0; d < rank - 1; d++) dim[d] = d == 0 ? rows : 1 + rng_below(&c->r, 3);
    dim[rank - 1] = pick_width(c, i);
    if (case_add(c, out, rank, dim, true) < 0) return false;
    bool alias = may_alias && out == x && rng_one_in(&c->r, 3);
    if (alias)
        case_add_same(c, 0);
    else if (case_add(c, x, rank, dim, true) < 0)
        return false;
    c->special = i % 8 == 5;
    case_fill(c, 1, 4.0);
    c->by_row = 3;
    c->n_rows = rank > 1 ? rows : 0;
    return true;
}

static vt_dtype sig(const check_case *c, int i) { return (vt_dtype)c->row->sig.dtype[i]; }

/* quantize_rows */

static bool make_quantize(check_case *c, int64_t i) {
    int64_t block = vt_dtype_block_elems(sig(c, 1)), rows = pick_rows(c, i), width = block * (1 + i % 7);
    if (CASE_ADD(c, sig(c, 1), true, rows, width) < 0 || CASE_ADD(c, VT_F32, true, rows, width) < 0) return false;
    c->special = i % 4 == 3;
    const double scales[] = {1.0, 1e-3, 1e4, 1e30, 1e-38, 1e-42, 1e-44};
    case_fill(c, 1, scales[rng_below(&c->r, 7)]);
    for (int64_t r = 0; r < rows; r++) {
        float *x = (float *)(void *)tensor_row_at(&c->t[1], r);
        if (rng_one_in(&c->r, 4)) memset(x, 0, (size_t)block * sizeof *x);
        for (int64_t k = 0; rng_one_in(&c->r, 3) && k < width; k++)
            x[k] = (float)(rng_below(&c->r, 255) - 127) + (k % 2 ? 0.5f : 0.0f); /* halves between steps */
    }
    c->by_row = 3;
    c->n_rows = rows;
    return true;
}

static const char *check_block(const uint8_t *p, const float *x, int n, vt_dtype t, char *text, size_t n_text) {
    float d;
    memcpy(&d, p, sizeof d);
    const int8_t *q = (const int8_t *)p + (vt_dtype_block_bytes(t) - (size_t)n);
    float max = 0.0f;
    bool finite = true;
    for (int i = 0; i < n; i++) {
        finite = finite && isfinite(x[i]);
        max = fmaxf(max, fabsf(x[i]));
    }
    int sum = 0;
    for (int i = 0; i < n; i++) {
        sum += q[i];
        double exact = !finite || d == 0.0f ? 0.0 : (double)x[i] / (double)d;
        if (exact > 127.0) exact = 127.0;
        if (exact < -127.0) exact = -127.0;
        if (fabs(exact - q[i]) <= 0.5 + 1e-5) {
            int16_t group;
            memcpy(&group, p + 4 + i / 16 * 2, sizeof group);
            if (t != VT_Q8_A256 || i % 16 != 15 || group == sum) {
                if (t == VT_Q8_A256 && i % 16 == 15) sum = 0;
                continue;
            }
        }
        snprintf(text, n_text, "element %d is %d, x / d is %.9g; sum so far %d", i, q[i], exact, sum);
        return text;
    }
    int32_t stated;
    memcpy(&stated, p + 4, sizeof stated);
    if (t == VT_Q8_A32 && stated != sum) {
        snprintf(text, n_text, "sum is %d, stated %d", sum, stated);
        return text;
    }
    if (finite ? d == (float)((double)max / 127.0) : isnan(d)) return NULL;
    snprintf(text, n_text, "d is %.9g, max %.9g", (double)d, (double)max);
    return text;
}

static const char *verify_quantize(check_case *c, char *text, size_t n) {
    const vt_tensor *out = &c->t[0];
    int64_t block = vt_dtype_block_elems(out->dtype);
    for (int64_t r = 0; r < tensor_rows(out); r++) {
        for (int64_t i = 0; i < tensor_inner(out) / block; i++) {
            const uint8_t *p = tensor_row_at(out, r) + (size_t)i * vt_dtype_block_bytes(out->dtype);
            const float *x = (const float *)(const void *)tensor_row_at(&c->t[1], r) + i * block;
            const char *fault = check_block(p, x, (int)block, out->dtype, text, n);
            if (fault) return fault;
        }
    }
    return NULL;
}

static void bench_quantize(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n) {
    int64_t rows = shape == 0 ? 1 : shape == 1 ? 512 : 2, width = shape == 2 ? 256 : 4096;
    CASE_ADD(c, sig(c, 1), false, rows, width);
    CASE_ADD(c, VT_F32, false, rows, width);
    case_fill(c, 1, 1.0);
    *bytes = (double)(rows * width) * 4.0;
    *flops = 0.0;
    snprintf(label, n, "rows=%lld k=%lld", (long long)rows, (long long)width);
}

/* gather_rows */

static bool make_gather(check_case *c, int64_t i) {
    int64_t block = vt_dtype_block_elems(sig(c, 0)), rows = pick_rows(c, i), v = 1 + rng_below(&c->r, 30);
    int64_t width = block == 1 ? pick_width(c, i) : block * (1 + i % 6);
    if (CASE_ADD(c, VT_F32, true, rows, width) < 0 || CASE_ADD(c, sig(c, 0), true, v, width) < 0 || CASE_ADD(c, VT_I32, false, rows) < 0)
        return false;
    c->special = i % 8 == 5;
    case_fill(c, 1, 2.0);
    for (int64_t r = 0; r < rows; r++) case_set_i32(c, 2, r, (int32_t)(r == 0 ? v - 1 : rng_below(&c->r, v)));
    c->by_row = 1u << 0 | 1u << 2;
    c->n_rows = rows;
    return true;
}

static void expect_gather(check_case *c) {
    int64_t width = c->t[0].dim[1];
    for (int64_t r = 0; r < c->t[0].dim[0]; r++) {
        const uint8_t *row = tensor_row_at(&c->t[1], ((const int32_t *)c->t[2].data)[r]);
        decode_row(c->t[1].dtype, row, width, c->want + r * width);
        decode_row_mag(c->t[1].dtype, row, width, c->mag + r * width);
    }
}

static void bench_gather(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n) {
    int64_t rows = shape == 0 ? 512 : 2, width = shape == 0 ? 4096 : 256;
    CASE_ADD(c, VT_F32, false, rows, width);
    CASE_ADD(c, sig(c, 0), false, rows, width);
    CASE_ADD(c, VT_I32, false, rows);
    case_fill(c, 1, 1.0);
    for (int64_t r = 0; r < rows; r++) case_set_i32(c, 2, r, (int32_t)rng_below(&c->r, rows));
    *bytes = (double)(rows * width) * 4.0;
    *flops = 0.0;
    snprintf(label, n, "rows=%lld k=%lld", (long long)rows, (long long)width);
}

/* rms_norm */

static bool make_rms_norm(check_case *c, int64_t i) {
    if (!make_pair(c, i, sig(c, 2), VT_F32, 2, 3, true)) return false;
    if (sig(c, 1) == VT_NONE)
        case_add_absent(c);
    else if (CASE_ADD(c, sig(c, 1), false, tensor_inner(&c->t[1])) < 0)
        return false;
    case_fill(c, 2, 2.0);
    c->call.p.rms_norm = (vt_rms_norm_params){(float)(1e-6 * (double)RNG_PICK(&c->r, 1, 10)), (float)RNG_PICK(&c->r, 0, 0, 1)};
    return true;
}

static void expect_rms_norm(check_case *c) {
    const vt_tensor *x = &c->t[1], *w = &c->t[2];
    int64_t h = tensor_inner(x);
    if (w->n_dims) decode_row(w->dtype, w->data, h, w_row);
    for (int64_t r = 0; r < tensor_rows(x); r++) {
        decode_row(VT_F32, tensor_row_at(x, r), h, x_row);
        double sum = 0.0;
        for (int64_t i = 0; i < h; i++) sum += x_row[i] * x_row[i];
        double scale = 1.0 / sqrt(sum / (double)h + (double)c->call.p.rms_norm.eps);
        for (int64_t i = 0; i < h; i++) {
            double wi = w->n_dims ? w_row[i] : 1.0, off = (double)c->call.p.rms_norm.w_offset;
            c->want[r * h + i] = x_row[i] * scale * (wi + off);
            c->mag[r * h + i] = fabs(x_row[i] * scale) * (fabs(wi) + fabs(off));
        }
    }
}

static void bench_rms_norm(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n) {
    int64_t rows = shape == 0 ? 1 : shape == 1 ? 512 : 2, width = shape == 2 ? 64 : 4096;
    CASE_ADD(c, sig(c, 2), false, rows, width);
    CASE_ADD(c, VT_F32, false, rows, width);
    if (sig(c, 1) == VT_NONE)
        case_add_absent(c);
    else
        CASE_ADD(c, sig(c, 1), false, width);
    case_fill(c, 1, 1.0);
    case_fill(c, 2, 1.0);
    c->call.p.rms_norm = (vt_rms_norm_params){1e-6f, 0.0f};
    *bytes = (double)(rows * width) * (sig(c, 2) == VT_BF16 ? 6.0 : 8.0);
    *flops = 0.0;
    snprintf(label, n, "rows=%lld h=%lld", (long long)rows, (long long)width);
}

/* silu_and_mul, gelu_and_mul */

static bool make_gated(check_case *c, int64_t i) {
    int64_t rows = pick_rows(c, i), d = pick_width(c, i);
    if (CASE_ADD(c, sig(c, 1), true, rows, d) < 0 || CASE_ADD(c, VT_F32, true, rows, 2 * d) < 0) return false;
    c->special = i % 8 == 5;
    const double scales[] = {1.0, 8.0, 100.0, 1e-3};
    case_fill(c, 1, scales[rng_below(&c->r, 4)]);
    c->by_row = 3;
    c->n_rows = rows;
    return true;
}

static void expect_gated(check_case *c) {
    int64_t d = c->t[0].dim[1];
    for (int64_t r = 0; r < c->t[0].dim[0]; r++) {
        decode_row(VT_F32, tensor_row_at(&c->t[1], r), 2 * d, x_row);
        for (int64_t i = 0; i < d; i++) {
            double g = x_row[i], u = x_row[d + i];
            double act =
                c->row->op == VT_OP_SILU_AND_MUL ? g / (1.0 + exp(-g)) : 0.5 * g * (1.0 + tanh(0.7978845608 * (g + 0.044715 * g * g * g)));
            c->want[r * d + i] = act * u;
            c->mag[r * d + i] = fabs(g * u) * (1.0 + fabs(g) * 0.1);
        }
    }
}

static void bench_gated(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n) {
    int64_t rows = shape == 0 ? 1 : shape == 1 ? 512 : 2, d = shape == 2 ? 64 : 8192 / 2;
    CASE_ADD(c, sig(c, 1), false, rows, d);
    CASE_ADD(c, VT_F32, false, rows, 2 * d);
    case_fill(c, 1, 1.0);
    *bytes = (double)(rows * d) * 12.0;
    *flops = 0.0;
    snprintf(label, n, "rows=%lld d=%lld", (long long)rows, (long long)d);
}

/* mul_scalar */

static bool make_mul_scalar(check_case *c, int64_t i) {
    if (!make_pair(c, i, sig(c, 1), sig(c, 0), 1, 4, true)) return false;
    c->call.p.scalar = (float)(rng_unit(&c->r) * 10.0);
    return true;
}

static void expect_mul_scalar(check_case *c) {
    int64_t d = tensor_inner(&c->t[0]);
    for (int64_t r = 0; r < tensor_rows(&c->t[0]); r++) {
        decode_row(c->t[1].dtype, tensor_row_at(&c->t[1], r), d, x_row);
        for (int64_t i = 0; i < d; i++) {
            c->want[r * d + i] = x_row[i] * (double)c->call.p.scalar;
            c->mag[r * d + i] = fabs(c->want[r * d + i]);
        }
    }
}

static void bench_pair(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n) {
    bool adds = c->row->op == VT_OP_ADD;
    int64_t rows = shape == 0 ? 1 : shape == 1 ? 512 : 2, d = shape == 2 ? 64 : 4096;
    CASE_ADD(c, sig(c, adds ? 2 : 1), false, rows, d);
    CASE_ADD(c, sig(c, 0), false, rows, d);
    if (adds) CASE_ADD(c, sig(c, 1), false, rows, d);
    for (int i = 1; i < c->n; i++) case_fill(c, i, 1.0);
    if (!adds) c->call.p.scalar = c->row->op == VT_OP_SOFTCAP ? 30.0f : 0.5f;
    *bytes = 0.0;
    for (int i = 0; i < c->n; i++) *bytes += (double)(rows * d) * (double)vt_dtype_block_bytes(c->t[i].dtype);
    *flops = 0.0;
    snprintf(label, n, "rows=%lld d=%lld", (long long)rows, (long long)d);
}

/* softcap */

static bool make_softcap(check_case *c, int64_t i) {
    if (!make_pair(c, i, sig(c, 1), sig(c, 0), 1, 4, true)) return false;
    const double scales[] = {1.0, 30.0, 1e3, 1e-3};
    case_fill(c, 1, scales[rng_below(&c->r, 4)]);
    c->call.p.scalar = (float)RNG_PICK(&c->r, 30, 50, 1);
    return true;
}

static void expect_softcap(check_case *c) {
    int64_t d = tensor_inner(&c->t[0]);
    double cap = (double)c->call.p.scalar;
    for (int64_t r = 0; r < tensor_rows(&c->t[0]); r++) {
        decode_row(c->t[1].dtype, tensor_row_at(&c->t[1], r), d, x_row);
        for (int64_t i = 0; i < d; i++) {
            c->want[r * d + i] = cap * tanh(x_row[i] / cap);
            c->mag[r * d + i] = cap + fabs(x_row[i]);
        }
    }
}

/* add */

static bool make_add(check_case *c, int64_t i) {
    if (!make_pair(c, i, sig(c, 2), sig(c, 0), 1, 4, true)) return false;
    bool broadcast = rng_one_in(&c->r, 2);
    if (broadcast ? CASE_ADD(c, sig(c, 1), false, tensor_inner(&c->t[1])) < 0
                  : case_add(c, sig(c, 1), c->t[1].n_dims, c->t[1].dim, true) < 0)
        return false;
    case_fill(c, 2, 3.0);
    if (!broadcast) c->by_row |= 4;
    return true;
}

static void expect_add(check_case *c) {
    int64_t d = tensor_inner(&c->t[0]);
    for (int64_t r = 0; r < tensor_rows(&c->t[0]); r++) {
        decode_row(c->t[1].dtype, tensor_row_at(&c->t[1], r), d, x_row);
        decode_row(c->t[2].dtype, tensor_row_at(&c->t[2], c->t[2].n_dims == 1 ? 0 : r), d, y_row);
        for (int64_t i = 0; i < d; i++) {
            c->want[r * d + i] = x_row[i] + y_row[i];
            c->mag[r * d + i] = fabs(c->want[r * d + i]);
        }
    }
}

const check_op check_quantize_rows = {VT_OP_QUANTIZE_ROWS, 0.0, make_quantize, NULL, verify_quantize, bench_quantize, 3};
const check_op check_gather_rows = {VT_OP_GATHER_ROWS, 2.0, make_gather, expect_gather, NULL, bench_gather, 2};
const check_op check_rms_norm = {VT_OP_RMS_NORM, 12.0, make_rms_norm, expect_rms_norm, NULL, bench_rms_norm, 3};
const check_op check_silu_and_mul = {VT_OP_SILU_AND_MUL, 8.0, make_gated, expect_gated, NULL, bench_gated, 3};
const check_op check_gelu_and_mul = {VT_OP_GELU_AND_MUL, 8.0, make_gated, expect_gated, NULL, bench_gated, 3};
const check_op check_mul_scalar = {VT_OP_MUL_SCALAR, 1.0, make_mul_scalar, expect_mul_scalar, NULL, bench_pair, 3};
const check_op check_add = {VT_OP_ADD, 1.0, make_add, expect_add, NULL, bench_pair, 3};
const check_op check_softcap = {VT_OP_SOFTCAP, 4.0, make_softcap, expect_softcap, NULL, bench_pair, 3};
