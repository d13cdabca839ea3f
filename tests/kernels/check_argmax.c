/* SPDX-License-Identifier: Apache-2.0 */
/* argmax: exact, so the answer is looked for element by element. */
#include <math.h>
#include <stdio.h>

#include "kernels/check_case.h"

enum { IDS, X };

static bool add(check_case *c, int64_t rows, int64_t n, bool pad) {
    c->outputs = 1u << IDS;
    if (CASE_ADD(c, VT_I32, false, rows) < 0 || CASE_ADD(c, VT_F32, pad, rows, n) < 0) return false;
    case_fill(c, X, 4.0);
    c->by_row = 1u << IDS | 1u << X;
    c->n_rows = rows;
    return true;
}

static float *at(check_case *c, int64_t r, int64_t i) { return (float *)(void *)tensor_row_at(&c->t[X], r) + i; }

/* Rows in which equals, zeros of both signs, infinities and NaN are where they matter. */
static bool make_argmax(check_case *c, int64_t i) {
    rng *r = &c->r;
    const int64_t rows = i == 1 ? 0 : 1 + rng_below(r, 5), n = i % 3 == 2 ? 8000 + rng_below(r, 20000) : 1 + rng_below(r, 70);
    if (!add(c, rows, n, true)) return false;
    for (int64_t t = 0; t < rows; t++) {
        const int64_t a = rng_below(r, n), b = rng_below(r, n);
        switch (rng_below(r, 8)) {
        case 0: *at(c, t, a) = *at(c, t, b) = 100.0f; break;
        case 1:
            for (int64_t k = 0; k < n; k++) *at(c, t, k) = -1.0f - (float)k;
            *at(c, t, a) = -0.0f;
            *at(c, t, b) = 0.0f;
            break;
        case 2: *at(c, t, a) = INFINITY; break;
        case 3: *at(c, t, a) = NAN; break;
        case 4: *at(c, t, a) = -NAN; break;
        case 5:
            for (int64_t k = 0; k < n; k++) *at(c, t, k) = -INFINITY;
            if (rng_one_in(r, 2)) *at(c, t, a) = -3.402823466e38f;
            break;
        case 6: *at(c, t, a) = -INFINITY; break;
        default: break;
        }
    }
    return true;
}

static int32_t expected(check_case *c, int64_t t) {
    int64_t best = 0;
    for (int64_t i = 0; i < c->t[X].dim[1]; i++) {
        const double v = (double)*at(c, t, i);
        if (isnan(v)) return -1;
        if (v > (double)*at(c, t, best)) best = i;
    }
    return isfinite((double)*at(c, t, best)) ? (int32_t)best : -1;
}

static const char *verify_argmax(check_case *c, char *text, size_t n) {
    const int32_t *ids = c->t[IDS].data;
    for (int64_t t = 0; t < c->t[IDS].dim[0]; t++) {
        if (ids[t * c->t[IDS].stride[0]] == expected(c, t)) continue;
        snprintf(text, n, "row %lld: %d, expected %d", (long long)t, (int)ids[t * c->t[IDS].stride[0]], (int)expected(c, t));
        return text;
    }
    return NULL;
}

static void bench_argmax(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n_label) {
    const int64_t rows = shape == 0 ? 1 : shape == 1 ? 64 : 2, n = shape == 2 ? 1000 : shape == 1 ? 4096 : 262144;
    if (!add(c, rows, n, false)) return;
    *bytes = (double)(rows * n) * 4.0;
    *flops = 0.0;
    snprintf(label, n_label, "rows=%lld n=%lld", (long long)rows, (long long)n);
}

const check_op check_argmax = {VT_OP_ARGMAX, 0.0, make_argmax, NULL, verify_argmax, bench_argmax, 3};
