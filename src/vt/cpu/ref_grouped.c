/* SPDX-License-Identifier: Apache-2.0 */
/* Grouping and grouped expert products, the definition: scalar where x is BF16, else by the rows of the plain products, whose bits these are. */
#include "vt/cpu/cpu_kernels.h"
#include "vt/cpu/cpu_rows.h"

extern const vt_backend_tables vt_cpu_tables;

/* ---- grouping ---- */

typedef struct grouping {
    int32_t *first, *pair_row;
    const vt_tensor *index, *sorted, *ids, *weights;
    int64_t n_experts, n, k;
} grouping;

static const int32_t *ids_of(const grouping *g, int64_t t) { return (const void *)cpu_row(g->ids, t); }

/* Pairs in front of pair (t, j) in the order of places that begins with the expert. */
static int32_t rank_in_row(const grouping *g, int64_t t, int64_t j) {
    const int32_t *ids = ids_of(g, t);
    int32_t rank = 0;
    for (int64_t i = 0; i < g->k; i++) rank += ids[i] < ids[j] || (ids[i] == ids[j] && i < j);
    return rank;
}

status ref_moe_group(vt_queue *q, const vt_call *call, error *err) {
    (void)q;
    const grouping g = {call->t[0]->data, call->t[1]->data, call->t[2], call->t[3], call->t[4], call->t[5], call->t[0]->dim[0] - 1, call->t[4]->dim[0], call->t[4]->dim[1]};
    memset(g.first, 0, (size_t)(g.n_experts + 1) * sizeof *g.first);
    for (int64_t t = 0; t < g.n; t++) {
        for (int64_t j = 0; j < g.k; j++) {
            const int32_t e = ids_of(&g, t)[j];
            if (e < 0 || e >= g.n_experts) return error_set(err, STATUS_INVALID, "vt: moe_group: expert %d of row %lld is not in 0 .. %lld", (int)e, (long long)t, (long long)g.n_experts - 1);
            g.first[e + 1]++;
        }
    }
    for (int64_t e = 0; e < g.n_experts; e++) g.first[e + 1] += g.first[e];
    /* an expert's next place is kept in its own `first` while rows are dealt out, which then hold where the next expert begins */
    for (int64_t t = 0; t < g.n; t++) {
        int32_t *index = (void *)cpu_row(g.index, t);
        float *sorted = (void *)cpu_row(g.sorted, t);
        const float *weights = (const void *)cpu_row(g.weights, t);
        for (int64_t j = 0; j < g.k; j++) {
            const int32_t place = g.first[ids_of(&g, t)[j]]++, rank = rank_in_row(&g, t, j);
            g.pair_row[place] = (int32_t)t;
            index[rank] = place;
            sorted[rank] = weights[j];
        }
    }
    for (int64_t e = g.n_experts; e > 0; e--) g.first[e] = g.first[e - 1];
    g.first[0] = 0;
    return STATUS_OK;
}

/* ---- products ---- */

typedef struct grouped {
    const vt_call *call;
    vt_queue *queue;
    const vt_row *plain, *fast; /* of the plain product: one for any shape, and the best */
    const vt_tensor *out, *x, *w, *bias, *scale; /* scale: NULL without */
    const int32_t *first, *pair_row;
    const int64_t *table, *bias_table, *extra_table;
} grouped;

static const uint8_t *address(const int64_t *table, int64_t group) { return table != NULL ? (const uint8_t *)(uintptr_t)table[group] : NULL; }

/* The dot of a row of x with row n of the matrix at `w`, in sixteen lanes. */
static float dot(const grouped *g, const uint8_t *x, const uint8_t *w, const uint8_t *scale, int64_t n) {
    const vt_scale_params p = g->call->p.grouped.blocks;
    const int64_t n_k = g->w->dim[1], k_stride = g->w->stride[1];
    const bool blocks = vt_dtype_is_block(g->w->dtype);
    const uint8_t *row = w + n * cpu_stride(g->w, 0), *s = scale != NULL ? scale + n / p.block_n * cpu_stride(g->scale, 0) : NULL;
    float lanes[CPU_LANES] = {0}, values[CPU_QK_K];
    for (int64_t k0 = 0; k0 < n_k; k0 += CPU_QK_K) {
        const int64_t count = n_k - k0 < CPU_QK_K ? n_k - k0 : CPU_QK_K;
        if (blocks && g->w->dtype != VT_F4_E2M1) {
            cpu_dequantize(g->w->dtype, row, k0, count, values);
            if (g->x->dtype == VT_BF16) cpu_round_bf16(values, count);
        }
        for (int64_t i = 0; i < count; i++) {
            const int64_t k = k0 + i;
            float value = blocks && g->w->dtype != VT_F4_E2M1 ? values[i] : cpu_element(g->w->dtype, row, g->w->dtype == VT_F4_E2M1 ? k : k * k_stride);
            if (s != NULL) value = value * cpu_element(g->scale->dtype, s, k / p.block_k);
            lanes[k % CPU_LANES] = fmaf(cpu_element(g->x->dtype, x, k), value, lanes[k % CPU_LANES]);
        }
    }
    return cpu_sum_lanes(lanes);
}

static void store(const vt_tensor *out, int64_t row, int64_t i, float v) {
    uint8_t *p = cpu_row(out, row);
    if (out->dtype == VT_BF16)
        ((uint16_t *)(void *)p)[i] = vt_f32_to_bf16(v);
    else
        ((float *)(void *)p)[i] = v;
}

static float gated(const vt_grouped_params *p, float g, float u) {
    if (p->gate == VT_GATE_SILU) return g / (1.0f + vt_expf(-g)) * u;
    if (p->gate == VT_GATE_GELU) {
        const float v = 0.7978845608f * (g + 0.044715f * (g * g * g)), tanh_v = 1.0f - 2.0f / (vt_expf(2.0f * v) + 1.0f);
        return ((0.5f * g) * (1.0f + tanh_v)) * u;
    }
    const float limit = p->swiglu.limit;
    if (g > limit) g = limit;
    if (u > limit) u = limit;
    if (u < -limit) u = -limit;
    return (u + 1.0f) * (g / (1.0f + vt_expf(-p->swiglu.alpha * g)));
}

enum { CHUNK = 256 };

/* n outputs from row `from` on of the matrix at w, `step` rows apart, as F32: by the rows of the plain products where x is F32, which have the bits and may be fast ones. */
static void outputs(const grouped *g, const vt_tensor *x, const uint8_t *w, const uint8_t *scale, int64_t from, int64_t step, int64_t n, float *to) {
    const vt_scale_params p = g->call->p.grouped.blocks;
    const bool turned = g->w->stride[1] != 1 && g->w->dim[1] > 1;
    if (x->dtype != VT_F32 || g->plain == NULL || (scale != NULL && from % p.block_n != 0)) {
        for (int64_t i = 0; i < n; i++) to[i] = dot(g, x->data, w, scale, from + i * step);
        return;
    }
    vt_tensor out = vt_tensor_2d(to, VT_F32, x->device, 1, n), b = *g->w, s;
    b.data = (void *)(uintptr_t)(w + from * cpu_stride(g->w, 0));
    b.dim[0] = n;
    b.stride[0] *= step;
    if (turned) b = (vt_tensor){.data = b.data, .dtype = b.dtype, .device = b.device, .n_dims = 2, .dim = {b.dim[1], b.dim[0], 1, 1}, .stride = {b.stride[1], b.stride[0]}};
    vt_call call = {.size = sizeof call, .op = g->plain->op, .sig = g->plain->sig, .n_tensors = scale != NULL ? 4 : 3, .t = {&out, x, &b, &s}};
    if (scale != NULL) {
        s = *g->scale;
        s.data = (void *)(uintptr_t)(scale + from / p.block_n * cpu_stride(g->scale, 0));
        s.dim[0] = (n + p.block_n - 1) / p.block_n;
        call.p.scale = p;
    }
    vt_queue alone = *g->queue;
    alone.threads = NULL;
    error unused = {0};
    const vt_row *row = g->fast->fits == NULL || g->fast->fits(&call) ? g->fast : g->plain;
    (void)!row->run(&alone, &call, &unused); /* rows of these ops fail on no values */
}

/* What adds a group's bias: to[i] += bias[from + i * step]. */
static void add_bias(const grouped *g, const uint8_t *bias, int64_t from, int64_t step, int64_t n, float *to) {
    for (int64_t i = 0; bias != NULL && i < n; i++) to[i] += cpu_element(g->bias->dtype, bias, from + i * step);
}

static void place_row(const grouped *g, int64_t group, int64_t place) {
    const vt_grouped_params *p = &g->call->p.grouped;
    const uint8_t *w = address(g->table, group), *extra = address(g->extra_table, group), *bias = address(g->bias_table, group);
    const vt_tensor x = vt_tensor_slice(*g->x, 0, g->pair_row != NULL ? g->pair_row[place] : place, 1);
    const int64_t width = g->out->dim[1];
    const bool is_gated = g->call->op == VT_OP_MATMUL_GROUPED_GATED, apart = is_gated && extra != NULL, between = is_gated && !apart && p->swiglu.interleaved;
    float first[CHUNK], second[CHUNK];
    for (int64_t j = 0; j < width; j += CHUNK) {
        const int64_t n = width - j < CHUNK ? width - j : CHUNK, step = between ? 2 : 1, from = step * j, up = between ? from + 1 : apart ? j : width + j;
        outputs(g, &x, w, is_gated ? NULL : extra, from, step, n, first);
        add_bias(g, bias, from, step, n, first);
        if (is_gated) {
            outputs(g, &x, apart ? extra : w, NULL, up, step, n, second);
            add_bias(g, bias, up, step, n, second);
        }
        for (int64_t i = 0; i < n; i++) store(g->out, place, j + i, is_gated ? gated(p, first[i], second[i]) : first[i]);
    }
}

/* The best row of the plain product with these weights that the queue's processor runs; for any shape, or perhaps for some. */
static const vt_row *plain_row(const vt_queue *q, const vt_call *call, bool any_shape) {
    enum { W = 4, SCALE = 8 };
    const vt_tensor *w = call->t[W];
    const bool scaled = call->op == VT_OP_MATMUL_GROUPED_SCALED, turned = w->stride[1] != 1 && w->dim[1] > 1;
    const vt_op op = scaled ? VT_OP_MATMUL_BT_SCALED : turned ? VT_OP_MATMUL_KN : VT_OP_MATMUL_BT;
    const vt_sig sig = vt_sig_make(VT_F32, w->dtype, scaled ? call->t[SCALE]->dtype : VT_F32);
    for (int32_t i = vt_cpu_tables.n_rows - 1; i >= 0; i--) {
        const vt_row *r = &vt_cpu_tables.rows[i];
        if (r->op == op && memcmp(&r->sig, &sig, sizeof sig) == 0 && r->run != NULL && (r->fits == NULL || !any_shape) && (r->need & ~q->caps) == 0) return r;
    }
    return NULL;
}

static void grouped_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const grouped *g = ctx;
    int64_t group = 0;
    for (int64_t i = begin; i < end; i++) {
        while (g->first[group + 1] <= i) group++;
        if (address(g->table, group) == NULL || (g->extra_table != NULL && address(g->extra_table, group) == NULL)) continue;
        place_row(g, group, i);
    }
}

status ref_matmul_grouped(vt_queue *q, const vt_call *call, error *err) {
    enum { OUT, X, FIRST, PAIR_ROW, W, TABLE, BIAS, BIAS_TABLE, EXTRA, EXTRA_TABLE };
    grouped g = {.call = call, .queue = q, .plain = plain_row(q, call, true), .fast = plain_row(q, call, false), .out = call->t[OUT], .x = call->t[X], .w = call->t[W], .bias = call->t[BIAS], .first = call->t[FIRST]->data, .table = call->t[TABLE]->data};
    if (call->t[PAIR_ROW]->n_dims != 0) g.pair_row = call->t[PAIR_ROW]->data;
    if (call->t[BIAS]->n_dims != 0) g.bias_table = call->t[BIAS_TABLE]->data;
    if (call->op == VT_OP_MATMUL_GROUPED_SCALED) {
        g.scale = call->t[EXTRA];
        g.extra_table = call->t[EXTRA_TABLE]->data;
    } else if (call->op == VT_OP_MATMUL_GROUPED_GATED && call->t[EXTRA]->n_dims != 0) {
        g.extra_table = call->t[EXTRA]->data;
    }
    const int64_t n = g.out->dim[0], n_groups = call->t[FIRST]->dim[0] - 1;
    for (int64_t e = 0; e < n_groups; e++) {
        if (g.first[e] < 0 || g.first[e] > g.first[e + 1] || g.first[e + 1] > n)
            return error_set(err, STATUS_INVALID, "vt: %s: group %lld has places %d .. %d of %lld", vt_op_name(call->op), (long long)e, (int)g.first[e], (int)g.first[e + 1], (long long)n);
    }
    for (int64_t i = 0; g.pair_row != NULL && i < g.first[n_groups]; i++) {
        if (g.pair_row[i] < 0 || g.pair_row[i] >= g.x->dim[0])
            return error_set(err, STATUS_INVALID, "vt: %s: place %lld has row %d of %lld", vt_op_name(call->op), (long long)i, (int)g.pair_row[i], (long long)g.x->dim[0]);
    }
    cpu_run(q, g.first[n_groups], 1, grouped_task, &g);
    return STATUS_OK;
}
