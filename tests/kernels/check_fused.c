/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the ops that stand for several. */
#include "check_case.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_WIDTH = 10240 };
static double x_row[MAX_WIDTH], b_row[MAX_WIDTH], b_mag[MAX_WIDTH], c_row[MAX_WIDTH], w_row[MAX_WIDTH], v_row[MAX_WIDTH];

static vt_dtype sig(const check_case *c, int i) { return (vt_dtype)c->row->sig.dtype[i]; }

/* ---- add_norm ---- */

enum { X, OUT, Y = OUT + VT_ADD_NORM_OUTS, INDEX, WEIGHTS, Y_NORM, Y2, Y2_NORM, POST, NORM };
static const double add_norm_eps = 60.0;

static bool add_norm_weight(check_case *c, bool there, int64_t width, int i) {
    static const vt_dtype types[] = {VT_BF16, VT_F32, VT_F16};
    if (!there) return case_add_absent(c) >= 0;
    const int at = CASE_ADD(c, types[i % 3], false, width);
    if (at < 0) return false;
    case_fill(c, at, 2.0);
    return true;
}

/* bits of `with`: y_norm, y2, y2_norm, post_norm, then the outs; k 0: y is a row a row. */
static bool add_link(check_case *c, int64_t rows, int64_t width, int64_t k, int with, int n_outs, bool pad) {
    rng *r = &c->r;
    const int64_t n_y = k > 0 ? rows * k + rng_below(r, 4) + (rows == 0) : rows;
    if (CASE_ADD(c, VT_F32, pad, rows, width) < 0) return false;
    for (int i = 0; i < VT_ADD_NORM_OUTS; i++) {
        if (i >= n_outs)
            case_add_absent(c);
        else if (CASE_ADD(c, i % 2 == 0 ? VT_BF16 : VT_F32, pad, rows, width) < 0)
            return false;
        c->outputs |= i < n_outs ? 1u << (OUT + i) : 0;
    }
    if (CASE_ADD(c, VT_F32, pad, n_y, width) < 0) return false;
    if (k > 0) {
        if (CASE_ADD(c, VT_I32, false, rows, k) < 0 || CASE_ADD(c, VT_F32, pad, rows, k) < 0) return false;
        for (int64_t i = 0; i < rows * k; i++) case_set_i32(c, INDEX, i, (int32_t)rng_below(r, n_y));
        case_fill(c, WEIGHTS, 1.0);
    } else {
        case_add_absent(c);
        case_add_absent(c);
    }
    if (!add_norm_weight(c, with & 1, width, 0)) return false;
    if ((with & 2) == 0)
        case_add_absent(c);
    else if (CASE_ADD(c, VT_F32, pad, rows, width) < 0)
        return false;
    if (!add_norm_weight(c, with & 4, width, 1) || !add_norm_weight(c, with & 8, width, 2)) return false;
    for (int i = 0; i < VT_ADD_NORM_OUTS; i++) {
        if (!add_norm_weight(c, i < n_outs && (i != 2 || with % 3 != 0), width, with + i)) return false;
    }
    case_fill(c, X, 2.0);
    case_fill(c, Y, 3.0);
    if (with & 2) case_fill(c, Y2, 1.0);
    c->call.p.add_norm = (vt_add_norm_params){1e-6f, with % 5 == 0 ? 1.0f : 0.0f, with % 4 == 1 ? 0.375f : 1.0f, {1.0f, with % 2 ? 0.125f : 1.0f, 1.0f}};
    c->by_row = c->outputs | (k > 0 ? 1u << INDEX | 1u << WEIGHTS : 1u << Y) | ((with & 2) != 0 ? 1u << Y2 : 0);
    c->n_rows = rows;
    return true;
}

static bool make_link(check_case *c, int64_t i) {
    static const int64_t widths[] = {1, 3, 4, 31, 64, 100, 127, 129, 255, 516, 1000, 1028, 2051, 2816, 4099, 4100, 8192, 8200, 9001};
    const int64_t width = widths[i % 19], rows = i == 1 ? 0 : width > 2000 ? 1 + rng_below(&c->r, 2) : 1 + rng_below(&c->r, 6);
    c->special = i % 8 == 5;
    return add_link(c, rows, width, i % 3 == 0 ? 1 + rng_below(&c->r, 9) : 0, (int)rng_below(&c->r, 16), (int)rng_below(&c->r, 4), i % 2 == 0);
}

static void norm_row(double *v, double *mag, int64_t n, const vt_tensor *w, double offset) {
    double sum = 0.0;
    if (w->n_dims != 0) decode_row(w->dtype, w->data, n, w_row);
    for (int64_t i = 0; i < n; i++) sum += v[i] * v[i];
    const double scale = 1.0 / sqrt(sum / (double)n + 1e-6);
    for (int64_t i = 0; i < n; i++) {
        const double by = w->n_dims != 0 ? w_row[i] + offset : 1.0, most = w->n_dims != 0 ? fabs(w_row[i]) + offset : 1.0;
        v[i] *= scale * by;
        mag[i] *= scale * most;
    }
}

/* x, then each out, behind one another in want. */
static void expect_link(check_case *c) {
    const vt_tensor *t = c->t;
    const int64_t width = t[X].dim[1], rows = t[X].dim[0];
    const vt_add_norm_params *p = &c->call.p.add_norm;
    const double offset = (double)p->w_offset;
    static double x_mag[MAX_WIDTH], v_mag[MAX_WIDTH], c_mag[MAX_WIDTH];
    for (int64_t r = 0; r < rows; r++) {
        decode_row(VT_F32, tensor_row_at(&t[X], r), width, x_row);
        for (int64_t i = 0; i < width; i++) b_row[i] = b_mag[i] = 0.0;
        for (int64_t j = 0; j < (t[INDEX].n_dims != 0 ? t[INDEX].dim[1] : 1); j++) {
            const int64_t from = t[INDEX].n_dims != 0 ? ((const int32_t *)t[INDEX].data)[r * t[INDEX].dim[1] + j] : r;
            const double w = t[INDEX].n_dims != 0 ? (double)((const float *)(const void *)tensor_row_at(&t[WEIGHTS], r))[j] : 1.0;
            decode_row(VT_F32, tensor_row_at(&t[Y], from), width, v_row);
            for (int64_t i = 0; i < width; i++) b_row[i] += w * v_row[i], b_mag[i] += fabs(w * v_row[i]);
        }
        if (t[Y_NORM].n_dims != 0) norm_row(b_row, b_mag, width, &t[Y_NORM], offset);
        if (t[Y2].n_dims != 0) {
            decode_row(VT_F32, tensor_row_at(&t[Y2], r), width, c_row);
            for (int64_t i = 0; i < width; i++) c_mag[i] = fabs(c_row[i]);
            if (t[Y2_NORM].n_dims != 0) norm_row(c_row, c_mag, width, &t[Y2_NORM], offset);
            for (int64_t i = 0; i < width; i++) b_row[i] += c_row[i], b_mag[i] += c_mag[i];
        }
        if (t[POST].n_dims != 0) norm_row(b_row, b_mag, width, &t[POST], offset);
        for (int64_t i = 0; i < width; i++) {
            x_mag[i] = (fabs(x_row[i]) + b_mag[i]) * fabs((double)p->scale);
            x_row[i] = (x_row[i] + b_row[i]) * (double)p->scale;
            c->want[r * width + i] = x_row[i];
            c->mag[r * width + i] = x_mag[i];
        }
        for (int n = 0; n < VT_ADD_NORM_OUTS; n++) {
            if (t[OUT + n].n_dims == 0) continue;
            memcpy(v_row, x_row, sizeof v_row);
            memcpy(v_mag, x_mag, sizeof v_mag);
            norm_row(v_row, v_mag, width, &t[NORM + n], offset);
            const int64_t at = ((n + 1) * rows + r) * width;
            for (int64_t i = 0; i < width; i++) c->want[at + i] = v_row[i] * (double)p->out_scale[n], c->mag[at + i] = v_mag[i] * (double)p->out_scale[n];
        }
    }
}

static const char *verify_link(check_case *c, char *text, size_t n_text) {
    const int64_t width = c->t[X].dim[1], rows = c->t[X].dim[0];
    for (int n = 0; !c->special && n < VT_ADD_NORM_OUTS; n++) {
        const vt_tensor *out = &c->t[OUT + n];
        for (int64_t r = 0; out->n_dims != 0 && r < rows; r++) {
            decode_row(out->dtype, tensor_row_at(out, r), width, v_row);
            for (int64_t i = 0; i < width; i++) {
                const int64_t at = ((n + 1) * rows + r) * width + i;
                const double tol = add_norm_eps * (double)FLT_EPSILON * c->mag[at] + (out->dtype == VT_BF16 ? 0x1p-8 * fabs(c->want[at]) : 0.0) + (double)FLT_TRUE_MIN;
                if (fabs(v_row[i] - c->want[at]) <= tol) continue;
                snprintf(text, n_text, "out %d row %lld element %lld is %.9g, expected %.9g within %.3g", n, (long long)r, (long long)i, v_row[i], c->want[at], tol);
                return text;
            }
        }
    }
    return NULL;
}

static void bench_link(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n_label) {
    static const struct { int64_t rows, width, k; int with, n_outs; } shapes[] = {{1, 2816, 0, 1, 3}, {1, 2816, 8, 15, 1}, {64, 2816, 0, 1, 3}, {64, 2816, 8, 15, 1}, {4096, 2816, 8, 15, 1}, {1, 4096, 0, 0, 1}};
    if (!add_link(c, shapes[shape].rows, shapes[shape].width, shapes[shape].k, shapes[shape].with, shapes[shape].n_outs, false)) return;
    *bytes = (double)(shapes[shape].rows * shapes[shape].width) * 4.0 * (double)(3 + (shapes[shape].k ? shapes[shape].k : 1) + shapes[shape].n_outs);
    *flops = 0.0;
    snprintf(label, n_label, "rows=%lld h=%lld k=%lld with=%d outs=%d", (long long)shapes[shape].rows, (long long)shapes[shape].width, (long long)shapes[shape].k, shapes[shape].with,
             shapes[shape].n_outs);
}

/* ---- products ---- */

static void dot_rows(check_case *c, const vt_tensor *a, const vt_tensor *b, int64_t m, int64_t n, double *sum, double *mag) {
    (void)c;
    decode_row(b->dtype, tensor_row_at(b, n), b->dim[1], w_row);
    decode_row(a->dtype, tensor_row_at(a, m), a->dim[1], v_row);
    *sum = *mag = 0.0;
    for (int64_t k = 0; k < a->dim[1]; k++) *sum += v_row[k] * w_row[k], *mag += fabs(v_row[k] * w_row[k]);
}

static void product_shape(check_case *c, int64_t i, int64_t *m, int64_t *k) {
    rng *r = &c->r;
    static const int64_t widths[] = {1, 2, 7, 15, 16, 17, 31, 32, 33, 100, 257};
    *m = i == 1 ? 0 : 1 + rng_below(r, 6);
    *k = widths[i % 11];
    c->special = i % 8 == 5;
    if (!c->aligned) return;
    *m = i % 3 == 0 ? RNG_PICK(r, 33, 48, 64, 65, 130) : i % 3 == 1 ? 1 + rng_below(r, 9) : RNG_PICK(r, 15, 16, 17, 32);
    *k = 32 * RNG_PICK(r, 1, 2, 3, 4, 7, 16, 31, 65);
}

static int out_of(int i) { return i == 0 ? 0 : 1 + 2 * i; }
static int weight_of(int i) { return i == 0 ? 2 : 2 + 2 * i; }

static bool add_several(check_case *c, int64_t m, int64_t k, const int64_t *n, int n_parts, bool pad) {
    for (int i = 0; i < VT_SEVERAL; i++) {
        if (i >= n_parts) {
            case_add_absent(c);
            case_add_absent(c);
            continue;
        }
        if (CASE_ADD(c, VT_F32, pad, m, n[i]) < 0 || (i == 0 && CASE_ADD(c, VT_BF16, pad, m, k) < 0) || CASE_ADD(c, sig(c, 1), pad, n[i], k) < 0) return false;
        case_fill(c, weight_of(i), 2.0);
        c->outputs |= 1u << out_of(i);
    }
    case_fill(c, 1, 2.0);
    c->by_row = 1u << 1 | c->outputs;
    c->n_rows = m;
    return true;
}

static bool make_several(check_case *c, int64_t i) {
    int64_t m, k;
    product_shape(c, i, &m, &k);
    const int64_t n[] = {1 + rng_below(&c->r, 40), RNG_PICK(&c->r, 1, 15, 16, 17, 33, 130), i % 5 == 2 ? 0 : 1 + rng_below(&c->r, 70)};
    return add_several(c, m, k, n, i % 2 == 0 ? 3 : 2, true);
}

/* Each out behind the one before. */
static void expect_several(check_case *c) {
    const vt_tensor *a = &c->t[1];
    int64_t at = 0;
    for (int i = 0; i < VT_SEVERAL; i++) {
        if (c->t[out_of(i)].n_dims == 0) continue;
        const vt_tensor *b = &c->t[weight_of(i)];
        for (int64_t m = 0; m < a->dim[0]; m++)
            for (int64_t n = 0; n < b->dim[0]; n++, at++) dot_rows(c, a, b, m, n, &c->want[at], &c->mag[at]);
    }
}

static const char *verify_several(check_case *c, char *text, size_t n_text) {
    const int64_t rows = c->t[1].dim[0];
    int64_t at = 0;
    for (int i = 0; !c->special && i < VT_SEVERAL; i++) {
        const vt_tensor *out = &c->t[out_of(i)];
        for (int64_t m = 0; out->n_dims != 0 && m < rows; m++) {
            const float *row = (const void *)tensor_row_at(out, m);
            for (int64_t n = 0; n < out->dim[1]; n++, at++) {
                const double tol = 12.0 * (double)FLT_EPSILON * c->mag[at] + (double)FLT_TRUE_MIN;
                if (fabs((double)row[n] - c->want[at]) <= tol) continue;
                snprintf(text, n_text, "out %d row %lld element %lld is %.9g, expected %.9g within %.3g", i, (long long)m, (long long)n, (double)row[n], c->want[at], tol);
                return text;
            }
        }
    }
    return NULL;
}

static void bench_several(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n_label) {
    static const struct { int64_t m, k, n[3]; } shapes[] = {{1, 2816, {4096, 2048, 2048}}, {8, 2816, {4096, 2048, 2048}}, {32, 2816, {4096, 2048, 2048}}, {64, 2816, {4096, 2048, 2048}},
                                                            {1, 2816, {8192, 1024, 0}},    {64, 2816, {8192, 1024, 0}},    {1024, 2816, {4096, 2048, 2048}}, {1, 256, {8, 8, 8}}};
    const int64_t m = shapes[shape].m, k = shapes[shape].k, *n = shapes[shape].n, all = n[0] + n[1] + n[2];
    if (!add_several(c, m, k, n, n[2] > 0 ? 3 : 2, false)) return;
    *bytes = (double)(all * k) * 2.0;
    *flops = 2.0 * (double)(m * all * k);
    snprintf(label, n_label, "m=%lld k=%lld n=%lld", (long long)m, (long long)k, (long long)all);
}

static bool add_gated(check_case *c, int64_t m, int64_t n, int64_t k, bool pad) {
    if (CASE_ADD(c, VT_BF16, pad, m, n) < 0 || CASE_ADD(c, VT_BF16, pad, m, k) < 0 || CASE_ADD(c, sig(c, 1), pad, n, k) < 0 || CASE_ADD(c, sig(c, 1), pad, n, k) < 0) return false;
    for (int i = 1; i < 4; i++) case_fill(c, i, 1.0);
    c->by_row = 3;
    c->n_rows = m;
    return true;
}

static bool make_gated(check_case *c, int64_t i) {
    int64_t m, k;
    product_shape(c, i, &m, &k);
    c->call.p.gate = i % 2 == 0 ? VT_GATE_SILU : VT_GATE_GELU;
    return add_gated(c, m, i == 2 ? 0 : RNG_PICK(&c->r, 1, 7, 15, 16, 17, 33, 130), k, true);
}

static void expect_gated(check_case *c) {
    const vt_tensor *a = &c->t[1];
    for (int64_t m = 0; m < a->dim[0]; m++) {
        for (int64_t n = 0; n < c->t[0].dim[1]; n++) {
            double g, u, g_mag, u_mag;
            dot_rows(c, a, &c->t[2], m, n, &g, &g_mag);
            dot_rows(c, a, &c->t[3], m, n, &u, &u_mag);
            const double act = c->call.p.gate == VT_GATE_SILU ? g / (1.0 + exp(-g)) : 0.5 * g * (1.0 + tanh(0.7978845608 * (g + 0.044715 * g * g * g)));
            c->want[m * c->t[0].dim[1] + n] = act * u;
            c->mag[m * c->t[0].dim[1] + n] = 1.2 * (g_mag * fabs(u) + fabs(g) * u_mag + fabs(g * u) * (1.0 + fabs(g)));
        }
    }
}

static void bench_gated(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n_label) {
    static const int64_t shapes[][3] = {{1, 2112, 2816}, {8, 2112, 2816}, {32, 2112, 2816}, {64, 2112, 2816}, {1, 14336, 4096}, {1, 8, 256}};
    const int64_t *s = shapes[shape];
    if (!add_gated(c, s[0], s[1], s[2], false)) return;
    *bytes = (double)(s[1] * s[2]) * 4.0;
    *flops = 4.0 * (double)(s[0] * s[1] * s[2]);
    snprintf(label, n_label, "m=%lld k=%lld n=2x%lld", (long long)s[0], (long long)s[2], (long long)s[1]);
}

const check_op check_add_norm = {VT_OP_ADD_NORM, 60.0, make_link, expect_link, verify_link, bench_link, 6};
const check_op check_matmul_bt_several = {VT_OP_MATMUL_BT_SEVERAL, 12.0, make_several, expect_several, verify_several, bench_several, 8};
const check_op check_matmul_bt_gated = {VT_OP_MATMUL_BT_GATED, 12.0, make_gated, expect_gated, NULL, bench_gated, 6};
