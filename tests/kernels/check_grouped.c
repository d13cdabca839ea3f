/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of grouping and grouped expert products. */
#include "check_case.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_WIDTH = 4096, MAX_GROUPS = 64 };
static double x_row[MAX_WIDTH], w_row[MAX_WIDTH], w_mag[MAX_WIDTH], s_row[MAX_WIDTH], out_row[MAX_WIDTH];

static vt_dtype sig(const check_case *c, int i) { return (vt_dtype)c->row->sig.dtype[i]; }

/* k distinct experts of each row; with `skew` half of the choices fall on the first few. */
static void choose(check_case *c, int32_t *ids, int64_t k, int64_t n_experts, bool skew) {
    for (int64_t j = 0; j < k; j++) {
        bool taken = true;
        while (taken) {
            const int64_t few = n_experts < k + 1 ? n_experts : k + 1;
            ids[j] = (int32_t)(skew && rng_one_in(&c->r, 2) ? rng_below(&c->r, few) : rng_below(&c->r, n_experts));
            taken = false;
            for (int64_t i = 0; i < j; i++) taken |= ids[i] == ids[j];
        }
    }
}

/* ---- moe_group ---- */

enum { G_FIRST, G_PAIR_ROW, G_INDEX, G_SORTED, G_IDS, G_WEIGHTS };

static bool add_group(check_case *c, int64_t rows, int64_t k, int64_t n_experts, bool skew, bool pad) {
    c->outputs = 1u << G_FIRST | 1u << G_PAIR_ROW | 1u << G_INDEX | 1u << G_SORTED;
    if (CASE_ADD(c, VT_I32, false, n_experts + 1) < 0 || CASE_ADD(c, VT_I32, false, rows * k) < 0 || CASE_ADD(c, VT_I32, pad, rows, k) < 0 || CASE_ADD(c, VT_F32, pad, rows, k) < 0 ||
        CASE_ADD(c, VT_I32, pad, rows, k) < 0 || CASE_ADD(c, VT_F32, pad, rows, k) < 0)
        return false;
    for (int64_t t = 0; t < rows; t++) choose(c, (int32_t *)(void *)tensor_row_at(&c->t[G_IDS], t), k, n_experts, skew);
    case_fill(c, G_WEIGHTS, 1.0);
    return true;
}

static bool make_group(check_case *c, int64_t i) {
    rng *r = &c->r;
    const int64_t n_experts = RNG_PICK(r, 1, 2, 5, 8, 33, 60, 128), most = n_experts < 9 ? n_experts : 9;
    if (i == 9) return add_group(c, 3000 + rng_below(r, 2000), 1, 2, true, true); /* more of one expert than a device may keep count of */
    return add_group(c, i == 1 ? 0 : i % 5 == 4 ? 100 + rng_below(r, 900) : 1 + rng_below(r, 40), 1 + rng_below(r, most), n_experts, i % 3 == 2, true);
}

/* The places in words: of expert 0 row by row, of expert 1 ... */
static const char *verify_group(check_case *c, char *text, size_t n) {
    const vt_tensor *ids = &c->t[G_IDS];
    const int32_t *first = c->t[G_FIRST].data, *pair_row = c->t[G_PAIR_ROW].data;
    int32_t place = 0;
    for (int32_t e = 0; e + 1 < c->t[G_FIRST].dim[0]; e++) {
        if (first[e] != place) {
            snprintf(text, n, "expert %d begins at %d, expected %d", (int)e, (int)first[e], (int)place);
            return text;
        }
        for (int64_t t = 0; t < ids->dim[0]; t++) {
            const int32_t *row = (const int32_t *)(const void *)tensor_row_at(ids, t);
            int64_t at = -1, lower = 0;
            for (int64_t j = 0; j < ids->dim[1]; j++) {
                if (row[j] == e) at = j;
                lower += row[j] < e;
            }
            if (at < 0) continue;
            const int32_t index = ((const int32_t *)(const void *)tensor_row_at(&c->t[G_INDEX], t))[lower];
            const float sorted = ((const float *)(const void *)tensor_row_at(&c->t[G_SORTED], t))[lower], weight = ((const float *)(const void *)tensor_row_at(&c->t[G_WEIGHTS], t))[at];
            if (pair_row[place] != t || index != place || memcmp(&sorted, &weight, sizeof sorted) != 0) {
                snprintf(text, n, "place %d (expert %d, row %lld): row %d, index %d, weight %g for %g", (int)place, (int)e, (long long)t, (int)pair_row[place], (int)index, (double)sorted,
                         (double)weight);
                return text;
            }
            place++;
        }
    }
    if (first[c->t[G_FIRST].dim[0] - 1] == place) return NULL;
    snprintf(text, n, "the places end at %d, expected %d", (int)first[c->t[G_FIRST].dim[0] - 1], (int)place);
    return text;
}

static void bench_group(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n) {
    static const int64_t rows[] = {1, 64, 4096, 2};
    if (!add_group(c, rows[shape], 8, 128, false, false)) return;
    *bytes = (double)(rows[shape] * 8) * 20.0;
    *flops = 0.0;
    snprintf(label, n, "rows=%lld k=8 experts=128", (long long)rows[shape]);
}

/* ---- products ---- */

enum { OUT, X, FIRST, PAIR_ROW, W, TABLE, BIAS, BIAS_TABLE, EXTRA, EXTRA_TABLE };

typedef struct grouped_shape {
    int64_t rows, k, groups, n, n_k; /* n: columns of out */
    bool chosen, bias, turned, apart, interleaved, skew;
    int64_t holes; /* one group in so many is not there; 0: all are */
} grouped_shape;

/* One matrix (or vector) a group in one tensor, whose view is that of a group; the addresses go to a table that is added next. Returns the bytes from one to the next, or -1. */
static int64_t add_stacked(check_case *c, vt_dtype t, int64_t groups, int64_t rows, int64_t cols, bool vector) {
    const int i = CASE_ADD(c, t, rng_one_in(&c->r, 2), groups, rows, cols);
    if (i < 0) return -1;
    case_fill(c, i, 1.0);
    vt_tensor *v = &c->t[i];
    const int64_t step = v->stride[0] / vt_dtype_block_elems(t) * (int64_t)vt_dtype_block_bytes(t);
    v->n_dims = vector ? 1 : 2;
    v->dim[0] = vector ? cols : rows;
    v->dim[1] = vector ? 1 : cols;
    v->dim[2] = 1;
    v->stride[0] = vector ? 1 : v->stride[1];
    v->stride[1] = vector ? 0 : 1;
    v->stride[2] = 0;
    return step;
}

/* The table of what `from` holds, and behind it one for each group that has that group alone. Holes are those of `like`, or random. */
static bool add_table(check_case *c, int from, int64_t step, const grouped_shape *s, int like) {
    const int i = CASE_ADD(c, VT_I64, false, (s->groups + 1) * s->groups);
    if (i < 0 || step < 0) return false;
    int64_t *table = c->t[i].data;
    for (int64_t e = 0; e < s->groups; e++) {
        const bool hole = like >= 0 ? ((const int64_t *)c->t[like].data)[e] == 0 : s->holes > 0 && rng_one_in(&c->r, s->holes);
        table[e] = hole ? 0 : (int64_t)(uintptr_t)((uint8_t *)c->t[from].data + e * step);
        for (int64_t other = 0; other < s->groups; other++) table[(other + 1) * s->groups + e] = other == e ? table[e] : 0;
    }
    c->t[i].dim[0] = s->groups;
    c->tables |= 1u << i;
    return true;
}

static bool is_gated(const check_case *c) { return c->call.op == VT_OP_MATMUL_GROUPED_GATED; }
static bool is_scaled(const check_case *c) { return c->call.op == VT_OP_MATMUL_GROUPED_SCALED; }

static bool add_grouped(check_case *c, const grouped_shape *s) {
    rng *r = &c->r;
    static int32_t ids[MAX_GROUPS], count[MAX_GROUPS + 1], rows_of[1 << 16];
    const int64_t places = s->rows * s->k, n_w = is_gated(c) && !s->apart ? 2 * s->n : s->n;
    const vt_dtype out = is_scaled(c) ? VT_F32 : sig(c, 2);
    /* groups by chance; places in the order of vt_moe_group */
    memset(count, 0, sizeof count);
    int64_t n_chosen = 0;
    static int32_t chosen[1 << 16];
    for (int64_t t = 0; t < s->rows; t++) {
        choose(c, ids, s->k, s->groups, s->skew);
        for (int64_t j = 0; j < s->k; j++) {
            chosen[n_chosen++] = ids[j];
            count[ids[j] + 1]++;
        }
    }
    for (int64_t e = 0; e < s->groups; e++) count[e + 1] += count[e];
    if (CASE_ADD(c, out, true, places, s->n) < 0 || CASE_ADD(c, sig(c, 0), true, s->chosen ? s->rows : places, s->n_k) < 0 || CASE_ADD(c, VT_I32, false, s->groups + 1) < 0) return false;
    case_fill(c, X, 2.0);
    for (int64_t e = 0; e <= s->groups; e++) case_set_i32(c, FIRST, e, count[e]);
    for (int64_t i = 0; i < n_chosen; i++) rows_of[count[chosen[i]]++] = (int32_t)(i / s->k);
    if (s->chosen) {
        if (CASE_ADD(c, VT_I32, false, places) < 0) return false;
        for (int64_t i = 0; i < places; i++) case_set_i32(c, PAIR_ROW, i, rows_of[i]);
    } else {
        case_add_absent(c);
    }
    int64_t step = s->turned ? add_stacked(c, sig(c, 1), s->groups, s->n_k, n_w, false) : add_stacked(c, sig(c, 1), s->groups, n_w, s->n_k, false);
    if (s->turned && step >= 0) {
        vt_tensor *w = &c->t[W];
        const int64_t stride = w->stride[0];
        *w = (vt_tensor){.data = w->data, .dtype = w->dtype, .device = w->device, .n_dims = 2, .dim = {n_w, s->n_k, 1, 1}, .stride = {1, stride}};
    }
    if (!add_table(c, W, step, s, -1)) return false;
    if (s->bias) {
        step = add_stacked(c, (vt_dtype)RNG_PICK(r, VT_F32, VT_F16, VT_BF16), s->groups, 1, n_w, true);
        if (!add_table(c, BIAS, step, s, TABLE)) return false;
    } else {
        case_add_absent(c);
        case_add_absent(c);
    }
    if (is_scaled(c)) {
        const vt_scale_params b = c->call.p.grouped.blocks;
        step = add_stacked(c, sig(c, 2), s->groups, (n_w + b.block_n - 1) / b.block_n, (s->n_k + b.block_k - 1) / b.block_k, false);
        if (!add_table(c, EXTRA, step, s, TABLE)) return false;
    } else if (is_gated(c) && s->apart) { /* the matrices of up are those of gate, one group on */
        if (!add_table(c, W, 0, s, TABLE)) return false;
        int64_t *up = c->t[EXTRA].data;
        const int64_t *gate = c->t[TABLE].data;
        int64_t last = 0;
        for (int64_t e = 0; e < 2 * s->groups; e++) {
            if (up[e % s->groups] != 0 && last != 0) up[e % s->groups] = last;
            if (gate[e % s->groups] != 0) last = gate[e % s->groups];
        }
        for (int64_t e = 0; e < s->groups; e++) up[(e + 1) * s->groups + e] = up[e];
    } else if (is_gated(c)) {
        case_add_absent(c);
    }
    c->call.p.grouped.max_rows = (int32_t)(rng_one_in(r, 4) ? 0 : s->rows);
    c->call.p.grouped.swiglu.interleaved = s->interleaved;
    c->n_rows = places > 0 ? s->groups : 0;
    return true;
}

static int64_t pick_k(check_case *c, int64_t i) {
    const int64_t block = vt_dtype_block_elems(sig(c, 1));
    static const int64_t edges[] = {1, 2, 7, 15, 16, 17, 31, 33, 64, 65, 100, 136, 257, 300};
    if (c->aligned && block >= 32) return block * RNG_PICK(&c->r, 1, 2, 3, 5) * (block == 32 ? RNG_PICK(&c->r, 1, 4) : 1);
    if (c->aligned && is_scaled(c)) return 32 * RNG_PICK(&c->r, 1, 2, 3, 4, 7, 9, 22, 40) - (sig(c, 1) == VT_F8_E4M3 && i % 4 == 2 ? 16 : 0); /* what follows in memory is NaN */
    if (c->aligned) return RNG_PICK(&c->r, 8, 32, 40, 64, 72, 128, 136, 256, 704);
    return block == 1 ? edges[i % 14] : block < 32 ? 32 * (1 + i % 9) : block * (1 + i % (block == 32 ? 9 : 2));
}

static bool make_grouped(check_case *c, int64_t i) {
    rng *r = &c->r;
    c->special = i % 8 == 5;
    const bool element = vt_dtype_block_elems(sig(c, 1)) == 1 && !is_scaled(c);
    grouped_shape s = {.groups = 1 + rng_below(r, 9), .n = 1 + rng_below(r, 40), .n_k = pick_k(c, i), .chosen = rng_one_in(r, 2), .bias = rng_one_in(r, 3), .skew = rng_one_in(r, 2)};
    s.k = 1 + rng_below(r, s.groups < 4 ? s.groups : 4);
    s.rows = i == 1 ? 0 : i % 7 == 6 ? 20 + rng_below(r, 30) : 1 + rng_below(r, 9);
    s.holes = rng_one_in(r, 2) ? 0 : 3;
    s.turned = element && !c->aligned && rng_one_in(r, 4);
    s.apart = is_gated(c) && rng_one_in(r, 3);
    s.interleaved = !s.apart && rng_one_in(r, 2);
    if (s.apart) s.bias = false;
    if (c->aligned && i % 3 == 0) { /* more rows than a tile has, more columns too */
        s.groups = 1 + rng_below(r, 4);
        s.k = 1 + rng_below(r, s.groups);
        s.rows = RNG_PICK(r, 17, 33, 64, 70, 130, 150, 300);
        s.n = RNG_PICK(r, 40, 64, 100, 130);
        if (s.n_k > 256) s.n_k = is_scaled(c) ? 224 : vt_dtype_block_elems(sig(c, 1)) >= 32 ? 256 : 136;
    }
    if (c->aligned && vt_dtype_block_elems(sig(c, 1)) == 1 && (i == 10 || i == 11)) { /* a group's rows are more than a tile has, and K goes round a ring of stages */
        s.groups = s.k = 2;
        s.rows = 200;
        s.n = 70;
        s.n_k = is_scaled(c) ? 480 : 456;
    }
    const bool f4 = sig(c, 1) == VT_F4_E2M1;
    if (is_scaled(c) && c->aligned && !f4) { /* scales a row, a matrix, a block */
        const int32_t in_blocks = 64 * (1 + (int32_t)rng_below(r, 3));
        c->call.p.grouped.blocks = i % 3 == 0 ? (vt_scale_params){1, (int32_t)s.n_k} : i % 3 == 1 ? (vt_scale_params){(int32_t)s.n, (int32_t)s.n_k} : (vt_scale_params){(int32_t)RNG_PICK(r, 16, 128), in_blocks};
    } else if (is_scaled(c)) {
        const int64_t block_n = RNG_PICK(r, 1, 3, 16, 128);
        c->call.p.grouped.blocks = (vt_scale_params){f4 ? 1 : (int32_t)block_n, f4 ? 32 : (int32_t)(block_n == 1 ? s.n_k : RNG_PICK(r, 1, 5, 32, 128))};
    }
    c->call.p.grouped.gate = (vt_gate)rng_below(r, 3);
    c->call.p.grouped.swiglu = (vt_swiglu_params){.alpha = 1.702f, .limit = rng_one_in(r, 2) ? 7.0f : 1.0f};
    return add_grouped(c, &s);
}

/* The sum behind one output of the plain product, with the sum of the terms' magnitudes. */
static double dot_of(const check_case *c, int64_t group, const int64_t *table, int64_t n, double *mag) {
    const vt_tensor *w = &c->t[W], *scale = &c->t[EXTRA];
    const int64_t n_k = w->dim[1];
    const uint8_t *base = (const uint8_t *)(uintptr_t)table[group];
    vt_tensor at = *w;
    at.data = (void *)(uintptr_t)base;
    if (w->stride[1] == 1 || n_k == 1) {
        decode_row_beside(c->t[X].dtype, w->dtype, tensor_row_at(&at, n), n_k, w_row);
        decode_row_mag(w->dtype, tensor_row_at(&at, n), n_k, w_mag);
    } else {
        for (int64_t k = 0; k < n_k; k++) {
            decode_row(w->dtype, base + (size_t)(n * w->stride[0] + k * w->stride[1]) * vt_dtype_block_bytes(w->dtype), 1, &w_row[k]);
            w_mag[k] = fabs(w_row[k]);
        }
    }
    if (is_scaled(c)) {
        vt_tensor v = *scale;
        v.data = (void *)(uintptr_t)((const int64_t *)c->t[EXTRA_TABLE].data)[group];
        decode_row(scale->dtype, tensor_row_at(&v, n / c->call.p.grouped.blocks.block_n), scale->dim[1], s_row);
    }
    double sum = 0.0;
    *mag = 0.0;
    for (int64_t k = 0; k < n_k; k++) {
        const double factor = is_scaled(c) ? s_row[k / c->call.p.grouped.blocks.block_k] : 1.0;
        sum += x_row[k] * w_row[k] * factor;
        *mag += fabs(x_row[k] * factor) * w_mag[k];
    }
    if (c->t[BIAS].n_dims != 0) {
        double bias;
        decode_row(c->t[BIAS].dtype, (const uint8_t *)(uintptr_t)((const int64_t *)c->t[BIAS_TABLE].data)[group] + (size_t)n * vt_dtype_block_bytes(c->t[BIAS].dtype), 1, &bias);
        sum += bias;
        *mag += fabs(bias);
    }
    return sum;
}

static double gate_of(const vt_grouped_params *p, double g, double u) {
    if (p->gate == VT_GATE_SILU) return g / (1.0 + exp(-g)) * u;
    if (p->gate == VT_GATE_GELU) return 0.5 * g * (1.0 + tanh(0.7978845608 * (g + 0.044715 * g * g * g))) * u;
    const double limit = (double)p->swiglu.limit;
    g = fmin(g, limit);
    u = fmax(fmin(u, limit), -limit);
    return (u + 1.0) * (g / (1.0 + exp(-(double)p->swiglu.alpha * g)));
}

static double expected(const check_case *c, int64_t group, int64_t j, double *mag) {
    const vt_grouped_params *p = &c->call.p.grouped;
    const int64_t *table = c->t[TABLE].data, width = c->t[OUT].dim[1];
    if (!is_gated(c)) return dot_of(c, group, table, j, mag);
    const bool apart = c->t[EXTRA].n_dims != 0;
    double mag_g, mag_u;
    const double g = dot_of(c, group, table, apart ? j : p->swiglu.interleaved ? 2 * j : j, &mag_g);
    const double u = dot_of(c, group, apart ? c->t[EXTRA].data : table, apart ? j : p->swiglu.interleaved ? 2 * j + 1 : width + j, &mag_u);
    *mag = 1.2 * mag_g * (1.0 + fabs(u)) + (1.0 + fabs(g)) * (mag_u + 1.0); /* no gate is steeper than 1.2 */
    return gate_of(p, g, u);
}

static const char *verify_grouped(check_case *c, char *text, size_t n) {
    const vt_tensor *out = &c->t[OUT];
    const int32_t *first = c->t[FIRST].data;
    const double eps = out->dtype == VT_BF16 ? 0x1p-8 : 0.0;
    for (int64_t e = 0; e + 1 < c->t[FIRST].dim[0]; e++) {
        for (int64_t i = first[e]; i < first[e + 1]; i++) {
            const uint8_t *row = tensor_row_at(out, i);
            size_t bytes = 0, b = 0;
            if (!vt_dtype_row_bytes(out->dtype, out->dim[1], &bytes)) return "no size";
            if (((const int64_t *)c->t[TABLE].data)[e] == 0) { /* stays poisoned */
                while (b < bytes && row[b] == 0xFF) b++;
                if (b == bytes) continue;
                snprintf(text, n, "row %lld is of a group that is not there and was written", (long long)i);
                return text;
            }
            if (c->special) continue;
            decode_row(c->t[X].dtype, tensor_row_at(&c->t[X], c->t[PAIR_ROW].n_dims != 0 ? ((const int32_t *)c->t[PAIR_ROW].data)[i] : i), c->t[X].dim[1], x_row);
            decode_row(out->dtype, row, out->dim[1], out_row);
            for (int64_t j = 0; j < out->dim[1]; j++) {
                double mag = 0.0;
                const double want = expected(c, e, j, &mag), tol = 12.0 * 0x1p-23 * mag + eps * fabs(want) + 0x1p-149;
                if (fabs(out_row[j] - want) <= tol) continue;
                snprintf(text, n, "group %lld row %lld element %lld is %.9g, expected %.9g within %.3g", (long long)e, (long long)i, (long long)j, out_row[j], want, tol);
                return text;
            }
        }
    }
    return NULL;
}

static void bench_grouped(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n) {
    static const int64_t rows[] = {1, 8, 64, 1};
    const bool small = shape == 3;
    grouped_shape s = {.rows = rows[shape], .k = 2, .groups = small ? 2 : 16, .n = small ? 8 : 1408, .n_k = small ? 256 : 2816, .chosen = true, .skew = false};
    c->call.p.grouped.blocks = sig(c, 1) == VT_F4_E2M1 ? (vt_scale_params){1, 32} : (vt_scale_params){128, 128};
    c->call.p.grouped.swiglu.limit = 7.0f;
    if (!add_grouped(c, &s)) return;
    size_t matrix = 0;
    int64_t there = 0;
    for (int64_t e = 0; e < s.groups; e++) there += ((const int32_t *)c->t[FIRST].data)[e + 1] > ((const int32_t *)c->t[FIRST].data)[e];
    *bytes = vt_dtype_row_bytes(sig(c, 1), c->t[W].dim[0] * s.n_k, &matrix) ? (double)matrix * (double)there : 0.0;
    *flops = 2.0 * (double)(s.rows * s.k * c->t[W].dim[0] * s.n_k);
    snprintf(label, n, "rows=%lld k=2 groups=%lld", (long long)s.rows, (long long)s.groups);
}

const check_op check_moe_group = {VT_OP_MOE_GROUP, 0.0, make_group, NULL, verify_group, bench_group, 4};
const check_op check_matmul_grouped = {VT_OP_MATMUL_GROUPED, 12.0, make_grouped, NULL, verify_grouped, bench_grouped, 4};
const check_op check_matmul_grouped_scaled = {VT_OP_MATMUL_GROUPED_SCALED, 12.0, make_grouped, NULL, verify_grouped, bench_grouped, 4};
const check_op check_matmul_grouped_gated = {VT_OP_MATMUL_GROUPED_GATED, 12.0, make_grouped, NULL, verify_grouped, bench_grouped, 4};
