/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of routing and expert products. */
#include "check_case.h"

#include <math.h>
#include <stdio.h>

enum { MAX_WIDTH = 4096, MAX_EXPERTS = 256 };
static double a_row[MAX_WIDTH], b_row[MAX_WIDTH], s_row[MAX_WIDTH];

static vt_dtype sig(const check_case *c, int i) { return (vt_dtype)c->row->sig.dtype[i]; }

static void shape_label(const check_case *c, char *label, size_t n) {
    const vt_tensor *a = &c->t[1];
    snprintf(label, n, "m=%lld k=%lld n=%lld", (long long)a->dim[0], (long long)a->dim[1], (long long)c->t[0].dim[1]);
}

/* matmul_bt_scaled */

static bool add_scaled(check_case *c, int64_t m, int64_t n, int64_t k, int32_t block_n, int32_t block_k, bool pad) {
    c->call.p.scale = (vt_scale_params){block_n, block_k};
    if (CASE_ADD(c, VT_F32, pad, m, n) < 0 || CASE_ADD(c, sig(c, 0), pad, m, k) < 0 || CASE_ADD(c, sig(c, 1), pad, n, k) < 0) return false;
    if (CASE_ADD(c, sig(c, 2), pad, (n + block_n - 1) / block_n, (k + block_k - 1) / block_k) < 0) return false;
    for (int i = 1; i < 4; i++) case_fill(c, i, 2.0);
    c->by_row = 3;
    c->n_rows = m;
    return true;
}

static bool make_scaled(check_case *c, int64_t i) {
    rng *r = &c->r;
    bool f4 = sig(c, 1) == VT_F4_E2M1;
    static const int64_t widths[] = {1, 2, 15, 16, 17, 31, 32, 33, 64, 100, 128, 130, 256, 300};
    int64_t k = f4 ? 32 * (1 + i % 9) : widths[i % 14], m = i == 1 ? 0 : 1 + rng_below(r, 9), n = i == 2 ? 0 : 1 + rng_below(r, 40);
    c->special = i % 8 == 5;
    int32_t block_n = f4 ? 1 : (int32_t)RNG_PICK(r, 1, 3, 16, 128), block_k = f4 ? 32 : (int32_t)RNG_PICK(r, 1, 5, 32, 128);
    if (c->aligned) { /* matrix units: few rows and many, K in parts of several sizes, scales a row, a block, a tensor */
        m = i % 3 == 0 ? RNG_PICK(r, 33, 65, 129, 150) : i % 3 == 1 ? 1 + rng_below(r, 9) : RNG_PICK(r, 15, 16, 17, 32, 33);
        n = RNG_PICK(r, 1, 15, 16, 17, 40, 129);
        k = 32 * RNG_PICK(r, 1, 2, 3, 4, 7, 16, 31, 65);
        if (!f4 && i % 4 == 2) k -= 16; /* what follows in memory is NaN */
        block_n = f4 ? 1 : i % 4 == 0 ? 1 : i % 4 == 1 ? (int32_t)n : 128;
        block_k = f4 ? 32 : i % 4 < 2 ? (int32_t)k : 64 * (1 + (int32_t)rng_below(r, 3));
        return add_scaled(c, m, n, k, block_n, block_k, true);
    }
    return add_scaled(c, m, n, k, block_n, f4 || block_n > 1 ? block_k : (int32_t)k, true);
}

static void expect_scaled(check_case *c) {
    const vt_tensor *a = &c->t[1], *b = &c->t[2], *scale = &c->t[3];
    int64_t n_k = a->dim[1];
    for (int64_t m = 0; m < a->dim[0]; m++) {
        decode_row(a->dtype, tensor_row_at(a, m), n_k, a_row);
        for (int64_t n = 0; n < b->dim[0]; n++) {
            decode_row(b->dtype, tensor_row_at(b, n), n_k, b_row);
            decode_row(scale->dtype, tensor_row_at(scale, n / c->call.p.scale.block_n), scale->dim[1], s_row);
            double sum = 0.0, mag = 0.0;
            for (int64_t k = 0; k < n_k; k++) {
                double term = a_row[k] * b_row[k] * s_row[k / c->call.p.scale.block_k];
                sum += term;
                mag += fabs(term);
            }
            c->want[m * b->dim[0] + n] = sum;
            c->mag[m * b->dim[0] + n] = mag;
        }
    }
}

static void bench_scaled(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n_label) {
    static const int64_t shapes[][3] = {{1, 8192, 4096}, {128, 1024, 4096}, {1, 24576, 4096}, {8, 24576, 4096}, {64, 24576, 4096}, {1, 2816, 4096}, {4096, 4096, 4096}, {1, 8, 256}};
    const int64_t *s = shapes[shape];
    bool f4 = sig(c, 1) == VT_F4_E2M1;
    if (!add_scaled(c, s[0], s[1], s[2], f4 ? 1 : 128, f4 ? 32 : 128, false)) return;
    *bytes = (double)(s[1] * s[2]) * (f4 ? 0.53125 : 1.0);
    *flops = 2.0 * (double)(s[0] * s[1] * s[2]);
    shape_label(c, label, n_label);
}

/* matmul_kn */

/* b as [K,N], or as the transposed view of [N,K]. */
static bool add_kn(check_case *c, int64_t m, int64_t n, int64_t k, bool pad, bool turned) {
    if (CASE_ADD(c, sig(c, 2), pad, m, n) < 0 || CASE_ADD(c, VT_F32, pad, m, k) < 0) return false;
    int b = turned ? CASE_ADD(c, sig(c, 1), pad, n, k) : CASE_ADD(c, sig(c, 1), pad, k, n);
    if (b < 0) return false;
    case_fill(c, 1, 2.0);
    case_fill(c, b, 1.0);
    if (turned) {
        vt_tensor *t = &c->t[b];
        int64_t stride = t->stride[0];
        t->dim[0] = k;
        t->dim[1] = n;
        t->stride[0] = t->stride[1];
        t->stride[1] = stride;
    }
    c->by_row = 3;
    c->n_rows = m;
    return true;
}

static bool make_kn(check_case *c, int64_t i) {
    static const int64_t widths[] = {1, 2, 7, 15, 16, 17, 31, 32, 33, 48, 100, 257};
    c->special = i % 8 == 5;
    int64_t m = i == 1 ? 0 : 1 + rng_below(&c->r, 8), n = i == 2 ? 0 : 1 + rng_below(&c->r, 50);
    return add_kn(c, m, n, widths[i % 12], true, rng_one_in(&c->r, 3));
}

static void expect_kn(check_case *c) {
    const vt_tensor *a = &c->t[1], *b = &c->t[2];
    size_t elem = vt_dtype_block_bytes(b->dtype);
    for (int64_t m = 0; m < a->dim[0]; m++) {
        decode_row(VT_F32, tensor_row_at(a, m), a->dim[1], a_row);
        for (int64_t n = 0; n < b->dim[1]; n++) {
            double sum = 0.0, mag = 0.0;
            for (int64_t k = 0; k < a->dim[1]; k++) {
                double value;
                decode_row(b->dtype, (const uint8_t *)b->data + (size_t)(k * b->stride[0] + n * b->stride[1]) * elem, 1, &value);
                sum += a_row[k] * value;
                mag += fabs(a_row[k] * value);
            }
            c->want[m * b->dim[1] + n] = sum;
            c->mag[m * b->dim[1] + n] = mag;
        }
    }
}

static void bench_kn(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n_label) {
    static const int64_t shapes[][3] = {{1, 4096, 4096}, {128, 1024, 2048}, {1, 8, 256}};
    const int64_t *s = shapes[shape];
    if (!add_kn(c, s[0], s[1], s[2], false, false)) return;
    *bytes = (double)(s[1] * s[2]) * (double)vt_dtype_block_bytes(sig(c, 1));
    *flops = 2.0 * (double)(s[0] * s[1] * s[2]);
    shape_label(c, label, n_label);
}

/* router_topk */

enum { IDS, WEIGHTS, LOGITS, BIAS, EXPERT_SCALE };

static bool add_router(check_case *c, int64_t rows, int64_t n_experts, int64_t k, bool pad) {
    c->outputs = 1u << IDS | 1u << WEIGHTS;
    if (CASE_ADD(c, VT_I32, pad, rows, k) < 0 || CASE_ADD(c, VT_F32, pad, rows, k) < 0 || CASE_ADD(c, VT_F32, pad, rows, n_experts) < 0)
        return false;
    for (int i = 1; i < 3; i++) {
        if (sig(c, i) == VT_NONE)
            case_add_absent(c);
        else if (CASE_ADD(c, sig(c, i), false, n_experts) < 0)
            return false;
    }
    case_fill(c, LOGITS, 4.0);
    case_fill(c, BIAS, 0.5);
    case_fill(c, EXPERT_SCALE, 2.0);
    c->by_row = 1u << IDS | 1u << WEIGHTS | 1u << LOGITS;
    c->n_rows = rows;
    return true;
}

static bool make_router(check_case *c, int64_t i) {
    rng *r = &c->r;
    int64_t groups = RNG_PICK(r, 1, 1, 2, 4), size = 2 + rng_below(r, 15), n_experts = groups * size, top = 1 + rng_below(r, groups);
    int64_t most = groups > 1 ? top * size : n_experts, k = 1 + rng_below(r, most < 9 ? most : 9);
    vt_router_mode modes[] = {VT_ROUTER_SOFTMAX, VT_ROUTER_SIGMOID, VT_ROUTER_SOFTMAX_SELECTED};
    c->call.p.router = (vt_router_params){modes[rng_below(r, 3)], (int32_t)groups,  (int32_t)top,
                                          rng_one_in(r, 2),       rng_one_in(r, 2), rng_one_in(r, 2) ? 1.0f : 2.5f};
    if (!add_router(c, i == 1 ? 0 : 1 + rng_below(r, 6), n_experts, k, true)) return false;
    for (int64_t t = 0; t < c->t[LOGITS].dim[0]; t++) {
        float *x = (float *)(void *)tensor_row_at(&c->t[LOGITS], t);
        for (int64_t e = 1; e < n_experts; e++) {
            if (rng_one_in(r, 8)) x[e] = x[rng_below(r, e)]; /* ties */
            if (i % 4 == 3 && rng_one_in(r, 3)) x[e] = rng_one_in(r, 2) ? NAN : rng_one_in(r, 2) ? INFINITY : -INFINITY;
        }
    }
    return true;
}

typedef struct routing {
    int64_t n_experts, k;
    double p[MAX_EXPERTS], select[MAX_EXPERTS]; /* -infinity: cannot be selected */
    double margin;                              /* the smallest difference, other than none, that decided something */
} routing;

static void note_margin(routing *g, double a, double b) {
    if (isfinite(a) && isfinite(b) && a != b) g->margin = fmin(g->margin, fabs(a - b));
}

static void keep_best_groups(routing *g, const vt_router_params *p) {
    int64_t size = g->n_experts / p->n_groups;
    double score[MAX_EXPERTS];
    for (int64_t j = 0; j < p->n_groups; j++) {
        double best = -(double)INFINITY, second = best;
        for (int64_t e = j * size; e < (j + 1) * size; e++) {
            double s = g->select[e];
            if (s > best) {
                second = best;
                best = s;
            } else if (s > second) {
                second = s;
            }
        }
        score[j] = p->group_top2 ? best + second : best;
    }
    for (int64_t j = 0; j < p->n_groups; j++) {
        int64_t before = 0;
        for (int64_t h = 0; h < p->n_groups; h++) {
            before += score[h] > score[j] || (score[h] == score[j] && h < j);
            note_margin(g, score[h], score[j]);
        }
        for (int64_t e = j * size; before >= p->top_groups && e < (j + 1) * size; e++) g->select[e] = -(double)INFINITY;
    }
}

static void route(const check_case *c, int64_t t, routing *g) {
    const vt_router_params *p = &c->call.p.router;
    double max = -(double)INFINITY, sum = 0.0;
    g->n_experts = c->t[LOGITS].dim[1];
    g->k = c->t[IDS].dim[1];
    g->margin = (double)INFINITY;
    decode_row(VT_F32, tensor_row_at(&c->t[LOGITS], t), g->n_experts, a_row);
    if (c->t[BIAS].n_dims) decode_row(c->t[BIAS].dtype, c->t[BIAS].data, g->n_experts, b_row);
    for (int64_t e = 0; e < g->n_experts; e++)
        if (isfinite(a_row[e])) max = fmax(max, a_row[e]);
    for (int64_t e = 0; e < g->n_experts; e++)
        if (isfinite(a_row[e])) sum += exp(a_row[e] - max);
    for (int64_t e = 0; e < g->n_experts; e++) {
        bool there = isfinite(a_row[e]);
        g->p[e] = !there ? 0.0 : p->mode == VT_ROUTER_SIGMOID ? 1.0 / (1.0 + exp(-a_row[e])) : exp(a_row[e] - max) / sum;
        g->select[e] = !there ? -(double)INFINITY
                              : (p->mode == VT_ROUTER_SOFTMAX_SELECTED ? a_row[e] : g->p[e]) + (c->t[BIAS].n_dims ? b_row[e] : 0.0);
    }
    if (p->n_groups > 1) keep_best_groups(g, p);
}

/* Expected ids; returns how many have a probability. */
static int64_t pick(routing *g, int64_t *ids) {
    bool taken[MAX_EXPERTS] = {false};
    int64_t found = 0;
    for (int64_t j = 0; j < g->k; j++) {
        int64_t best = -1;
        for (int64_t e = 0; e < g->n_experts; e++)
            if (!taken[e] && g->select[e] > -(double)INFINITY && (best < 0 || g->select[e] > g->select[best])) best = e;
        for (int64_t e = 0; best >= 0 && e < g->n_experts; e++)
            if (!taken[e]) note_margin(g, g->select[best], g->select[e]);
        if (best >= 0) found = j + 1;
        for (int64_t e = 0; best < 0; e++)
            if (!taken[e]) best = e;
        taken[best] = true;
        ids[j] = best;
    }
    return found;
}

static void expected_weights(const check_case *c, const routing *g, const int64_t *ids, int64_t found, double *w) {
    const vt_router_params *p = &c->call.p.router;
    double sum = 0.0;
    if (c->t[EXPERT_SCALE].n_dims) decode_row(c->t[EXPERT_SCALE].dtype, c->t[EXPERT_SCALE].data, g->n_experts, s_row);
    for (int64_t j = 0; j < g->k; j++) {
        w[j] = j >= found ? 0.0 : p->mode == VT_ROUTER_SOFTMAX_SELECTED ? exp(g->select[ids[j]] - g->select[ids[0]]) : g->p[ids[j]];
        sum += w[j];
    }
    for (int64_t j = 0; j < g->k; j++) {
        if ((p->mode == VT_ROUTER_SOFTMAX_SELECTED || p->renormalize) && sum > 0.0) w[j] /= sum;
        w[j] *= (double)p->scaling * (c->t[EXPERT_SCALE].n_dims ? s_row[ids[j]] : 1.0);
    }
}

static const char *verify_router(check_case *c, char *text, size_t n) {
    static routing g;
    for (int64_t t = 0; t < c->t[LOGITS].dim[0]; t++) {
        int64_t ids[MAX_EXPERTS];
        double w[MAX_EXPERTS];
        route(c, t, &g);
        int64_t found = pick(&g, ids);
        if (g.margin < 1e-5) continue; /* too near for F32 to agree */
        expected_weights(c, &g, ids, found, w);
        const int32_t *got = (const int32_t *)(const void *)tensor_row_at(&c->t[IDS], t);
        const float *weight = (const float *)(const void *)tensor_row_at(&c->t[WEIGHTS], t);
        for (int64_t j = 0; j < g.k; j++) {
            if (got[j] == ids[j] && fabs((double)weight[j] - w[j]) <= 16.0 * 0x1p-23 * fabs(w[j]) + 1e-30) continue;
            snprintf(text, n, "row %lld place %lld: expert %d weight %.9g, expected %lld weight %.9g", (long long)t, (long long)j,
                     (int)got[j], (double)weight[j], (long long)ids[j], w[j]);
            return text;
        }
    }
    return NULL;
}

static void bench_router(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n_label) {
    static const int64_t shapes[][3] = {{512, 128, 8}, {1, 128, 8}, {64, 128, 8}, {4096, 128, 8}, {2, 8, 2}};
    const int64_t rows = shapes[shape][0], n_experts = shapes[shape][1], k = shapes[shape][2];
    c->call.p.router = (vt_router_params){VT_ROUTER_SOFTMAX, 1, 1, false, true, 1.0f};
    if (!add_router(c, rows, n_experts, k, false)) return;
    *bytes = (double)(rows * n_experts) * 4.0;
    *flops = 0.0;
    snprintf(label, n_label, "rows=%lld experts=%lld k=%lld", (long long)rows, (long long)n_experts, (long long)k);
}

/* moe_combine */

static bool add_combine(check_case *c, int64_t rows, int64_t width, int64_t k, bool pad) {
    int64_t n_y = rows * k + 1;
    if (CASE_ADD(c, VT_F32, pad, rows, width) < 0 || CASE_ADD(c, VT_F32, pad, n_y, width) < 0) return false;
    if (CASE_ADD(c, VT_I32, false, rows, k) < 0 || CASE_ADD(c, VT_F32, pad, rows, k) < 0) return false;
    case_fill(c, 1, 2.0);
    case_fill(c, 3, 1.0);
    for (int64_t i = 0; i < rows * k; i++) case_set_i32(c, 2, i, (int32_t)rng_below(&c->r, n_y));
    c->by_row = 1u << 0 | 1u << 2 | 1u << 3;
    c->n_rows = rows;
    return true;
}

static bool make_combine(check_case *c, int64_t i) {
    static const int64_t widths[] = {1, 3, 8, 15, 16, 17, 33, 64, 100, 257};
    c->special = i % 8 == 5;
    return add_combine(c, i == 1 ? 0 : 1 + rng_below(&c->r, 7), widths[i % 10], 1 + rng_below(&c->r, 8), true);
}

static void expect_combine(check_case *c) {
    int64_t width = c->t[0].dim[1], k = c->t[2].dim[1];
    for (int64_t t = 0; t < c->t[0].dim[0]; t++) {
        for (int64_t i = 0; i < width; i++) c->want[t * width + i] = c->mag[t * width + i] = 0.0;
        for (int64_t j = 0; j < k; j++) {
            decode_row(VT_F32, tensor_row_at(&c->t[1], ((const int32_t *)c->t[2].data)[t * k + j]), width, a_row);
            double w = (double)((const float *)(const void *)tensor_row_at(&c->t[3], t))[j];
            for (int64_t i = 0; i < width; i++) {
                c->want[t * width + i] += w * a_row[i];
                c->mag[t * width + i] += fabs(w * a_row[i]);
            }
        }
    }
}

static void bench_combine(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n_label) {
    int64_t rows = shape == 0 ? 512 : 2, width = shape == 0 ? 2048 : 64, k = shape == 0 ? 8 : 2;
    if (!add_combine(c, rows, width, k, false)) return;
    *bytes = (double)(rows * width) * 4.0 * (double)(k + 1);
    *flops = 0.0;
    snprintf(label, n_label, "rows=%lld h=%lld k=%lld", (long long)rows, (long long)width, (long long)k);
}

/* swiglu_clamp_and_mul, mul_sigmoid */

static const int64_t gate_widths[] = {1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 257};

static bool make_swiglu(check_case *c, int64_t i) {
    int64_t rows = i == 1 ? 0 : 1 + rng_below(&c->r, 7), d = gate_widths[i % 13];
    if (CASE_ADD(c, sig(c, 1), true, rows, d) < 0 || CASE_ADD(c, VT_F32, true, rows, 2 * d) < 0) return false;
    c->special = i % 8 == 5;
    case_fill(c, 1, 10.0);
    c->call.p.swiglu = (vt_swiglu_params){1.702f, rng_one_in(&c->r, 2) ? 7.0f : 2.0f, rng_one_in(&c->r, 2)};
    c->by_row = 3;
    c->n_rows = rows;
    return true;
}

static void expect_swiglu(check_case *c) {
    vt_swiglu_params p = c->call.p.swiglu;
    int64_t d = c->t[0].dim[1];
    for (int64_t t = 0; t < c->t[0].dim[0]; t++) {
        decode_row(VT_F32, tensor_row_at(&c->t[1], t), 2 * d, a_row);
        for (int64_t i = 0; i < d; i++) {
            double g = fmin(p.interleaved ? a_row[2 * i] : a_row[i], (double)p.limit), u = p.interleaved ? a_row[2 * i + 1] : a_row[d + i];
            u = fmax(fmin(u, (double)p.limit), -(double)p.limit);
            c->want[t * d + i] = (u + 1.0) * (g / (1.0 + exp(-(double)p.alpha * g)));
            c->mag[t * d + i] = (fabs(u) + 1.0) * fabs(g) * (1.0 + fabs(g));
        }
    }
}

static bool make_sigmoid(check_case *c, int64_t i) {
    int64_t rows = i == 1 ? 0 : 1 + rng_below(&c->r, 7), d = gate_widths[i % 13];
    if (CASE_ADD(c, VT_F32, true, rows, d) < 0) return false;
    if (rng_one_in(&c->r, 3))
        case_add_same(c, 0);
    else if (CASE_ADD(c, VT_F32, true, rows, d) < 0)
        return false;
    if (CASE_ADD(c, VT_F32, true, rows, rng_one_in(&c->r, 2) ? 1 : d) < 0) return false;
    c->special = i % 8 == 5;
    case_fill(c, 1, 3.0);
    case_fill(c, 2, 6.0);
    c->by_row = 7;
    c->n_rows = rows;
    return true;
}

static void expect_sigmoid(check_case *c) {
    int64_t d = c->t[0].dim[1], n_gate = c->t[2].dim[1];
    for (int64_t t = 0; t < c->t[0].dim[0]; t++) {
        decode_row(VT_F32, tensor_row_at(&c->t[1], t), d, a_row);
        decode_row(VT_F32, tensor_row_at(&c->t[2], t), n_gate, b_row);
        for (int64_t i = 0; i < d; i++) {
            c->want[t * d + i] = a_row[i] / (1.0 + exp(-b_row[n_gate == 1 ? 0 : i]));
            c->mag[t * d + i] = fabs(c->want[t * d + i]);
        }
    }
}

static void bench_gate(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n_label) {
    int64_t rows = shape == 0 ? 512 : 2, d = shape == 0 ? 2048 : 64;
    bool swiglu = c->row->op == VT_OP_SWIGLU_CLAMP_AND_MUL;
    CASE_ADD(c, swiglu ? sig(c, 1) : VT_F32, false, rows, d);
    CASE_ADD(c, VT_F32, false, rows, swiglu ? 2 * d : d);
    if (!swiglu) CASE_ADD(c, VT_F32, false, rows, d);
    for (int i = 1; i < c->n; i++) case_fill(c, i, 1.0);
    if (swiglu) c->call.p.swiglu = (vt_swiglu_params){1.702f, 7.0f, false};
    *bytes = (double)(rows * d) * 12.0;
    *flops = 0.0;
    snprintf(label, n_label, "rows=%lld d=%lld", (long long)rows, (long long)d);
}

const check_op check_matmul_bt_scaled = {VT_OP_MATMUL_BT_SCALED, 12.0, make_scaled, expect_scaled, NULL, bench_scaled, 8};
const check_op check_matmul_kn = {VT_OP_MATMUL_KN, 12.0, make_kn, expect_kn, NULL, bench_kn, 3};
const check_op check_router_topk = {VT_OP_ROUTER_TOPK, 0.0, make_router, NULL, verify_router, bench_router, 5};
const check_op check_moe_combine = {VT_OP_MOE_COMBINE, 8.0, make_combine, expect_combine, NULL, bench_combine, 2};
const check_op check_swiglu_clamp_and_mul = {VT_OP_SWIGLU_CLAMP_AND_MUL, 8.0, make_swiglu, expect_swiglu, NULL, bench_gate, 2};
const check_op check_mul_sigmoid = {VT_OP_MUL_SIGMOID, 8.0, make_sigmoid, expect_sigmoid, NULL, bench_gate, 2};
