/* SPDX-License-Identifier: Apache-2.0 */
/* Routing and expert products, scalar: scaled weights, transposed weights, top-k, combination, gates. */
#include "vt/cpu/cpu_kernels.h"
#include "vt/cpu/cpu_rows.h"

/* ---- element readers; weights lie at any address ---- */

static float f4_e2m1(uint8_t v) {
    static const float value[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    return v & 8 ? -value[v & 7] : value[v & 7];
}

static float f8_e8m0(uint8_t v) { return v == 255 ? NAN : ldexpf(1.0f, v - 127); }

float cpu_element(vt_dtype t, const uint8_t *base, int64_t i) {
    float f;
    switch (t) {
    case VT_F32: memcpy(&f, base + 4 * i, sizeof f); return f;
    case VT_F16: return vt_f16_to_f32(cpu_u16(base + 2 * i));
    case VT_BF16: return vt_bf16_to_f32(cpu_u16(base + 2 * i));
    case VT_F8_E4M3: return vt_f8_e4m3_to_f32(base[i]);
    case VT_F8_E8M0: return f8_e8m0(base[i]);
    case VT_F4_E2M1: return f4_e2m1((uint8_t)(base[i / 2] >> (i % 2 * 4) & 15));
    default: return NAN;
    }
}

static void store(const vt_tensor *out, int64_t row, int64_t i, float v) {
    uint8_t *p = cpu_row(out, row);
    if (out->dtype == VT_BF16)
        ((uint16_t *)(void *)p)[i] = vt_f32_to_bf16(v);
    else
        ((float *)(void *)p)[i] = v;
}

/* ---- products ---- */

static void scaled_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const vt_call *call = ctx;
    const vt_tensor *out = call->t[0], *a = call->t[1], *b = call->t[2], *scale = call->t[3];
    const vt_scale_params p = call->p.scale;
    for (int64_t i = begin; i < end; i++) {
        const int64_t n = i / a->dim[0], m = i % a->dim[0];
        const uint8_t *x = cpu_row(a, m), *w = cpu_row(b, n), *s = cpu_row(scale, n / p.block_n);
        float lanes[CPU_LANES] = {0};
        for (int64_t k = 0; k < a->dim[1]; k++) {
            const float value = cpu_element(b->dtype, w, k) * cpu_element(scale->dtype, s, k / p.block_k);
            lanes[k % CPU_LANES] = fmaf(cpu_element(a->dtype, x, k), value, lanes[k % CPU_LANES]);
        }
        store(out, m, n, cpu_sum_lanes(lanes));
    }
}

status ref_matmul_scaled(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    const int64_t n = call->t[1]->dim[0] * call->t[2]->dim[0];
    cpu_run(q, n, cpu_grain(q, n, 1), scaled_task, call);
    return STATUS_OK;
}

static void kn_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const vt_call *call = ctx;
    const vt_tensor *out = call->t[0], *a = call->t[1], *b = call->t[2];
    for (int64_t i = begin; i < end; i++) {
        const int64_t n = i / a->dim[0], m = i % a->dim[0];
        const float *x = (const void *)cpu_row(a, m);
        float lanes[CPU_LANES] = {0};
        for (int64_t k = 0; k < a->dim[1]; k++) {
            const float value = cpu_element(b->dtype, b->data, k * b->stride[0] + n * b->stride[1]);
            lanes[k % CPU_LANES] = fmaf(x[k], value, lanes[k % CPU_LANES]);
        }
        store(out, m, n, cpu_sum_lanes(lanes));
    }
}

status ref_matmul_kn(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    const int64_t n = call->t[1]->dim[0] * call->t[2]->dim[1];
    cpu_run(q, n, cpu_grain(q, n, 1), kn_task, call);
    return STATUS_OK;
}

/* ---- router ---- */

typedef struct router_row {
    const vt_call *call;
    const float *logits;
    int64_t n_experts;
    float max, sum; /* of the softmax over all */
} router_row;

static float probability(const router_row *r, int64_t e) {
    const float x = r->logits[e];
    if (!isfinite(x)) return 0.0f;
    if (r->call->p.router.mode == VT_ROUTER_SIGMOID) return 1.0f / (1.0f + vt_expf(-x));
    return vt_expf(x - r->max) / r->sum;
}

/* What selects: -infinity for a logit that is not finite. */
static float selection(const router_row *r, int64_t e) {
    const vt_tensor *bias = r->call->t[3];
    if (!isfinite(r->logits[e])) return -INFINITY;
    float s = r->call->p.router.mode == VT_ROUTER_SOFTMAX_SELECTED ? r->logits[e] : probability(r, e);
    if (bias->n_dims != 0) s += cpu_element(bias->dtype, bias->data, e);
    return s;
}

static float group_score(const router_row *r, int64_t g) {
    const int64_t size = r->n_experts / r->call->p.router.n_groups;
    float best = -INFINITY, second = -INFINITY;
    for (int64_t e = g * size; e < (g + 1) * size; e++) {
        const float s = selection(r, e);
        if (s > best) {
            second = best;
            best = s;
        } else if (s > second) {
            second = s;
        }
    }
    return r->call->p.router.group_top2 ? best + second : best;
}

/* Group g is among the best: fewer than top_groups groups come before it. */
static bool group_is_in(const router_row *r, int64_t g) {
    const vt_router_params *p = &r->call->p.router;
    if (p->n_groups <= 1) return true;
    const float mine = group_score(r, g);
    int32_t before = 0;
    for (int64_t h = 0; h < p->n_groups; h++) {
        const float other = group_score(r, h);
        before += other > mine || (other == mine && h < g);
    }
    return before < p->top_groups;
}

static bool is_taken(const int32_t *ids, int64_t n, int64_t e) {
    for (int64_t j = 0; j < n; j++) {
        if (ids[j] == e) return true;
    }
    return false;
}

/* The best expert not taken yet; -1 when none has a probability. */
static int64_t next_best(const router_row *r, const int32_t *ids, int64_t n) {
    const int32_t n_groups = r->call->p.router.n_groups;
    int64_t best = -1;
    float best_score = -INFINITY;
    for (int64_t g = 0; g < n_groups; g++) {
        if (!group_is_in(r, g)) continue;
        for (int64_t e = g * (r->n_experts / n_groups); e < (g + 1) * (r->n_experts / n_groups); e++) {
            const float s = selection(r, e);
            if (s > best_score && !is_taken(ids, n, e)) {
                best_score = s;
                best = e;
            }
        }
    }
    return best;
}

static int64_t lowest_free(const int32_t *ids, int64_t n) {
    int64_t e = 0;
    while (is_taken(ids, n, e)) e++;
    return e;
}

static void router_weights(const router_row *r, const int32_t *ids, float *w, int64_t k, int64_t n_found) {
    const vt_router_params *p = &r->call->p.router;
    const vt_tensor *expert_scale = r->call->t[4];
    const bool selected = p->mode == VT_ROUTER_SOFTMAX_SELECTED;
    float sum = 0.0f;
    for (int64_t j = 0; j < k; j++) {
        w[j] = 0.0f;
        if (j < n_found) w[j] = selected ? vt_expf(selection(r, ids[j]) - selection(r, ids[0])) : probability(r, ids[j]);
        sum += w[j];
    }
    for (int64_t j = 0; j < k; j++) {
        if (selected) {
            w[j] = sum > 0.0f ? w[j] / sum : 0.0f;
        } else if (p->renormalize) {
            w[j] = sum > 0.0f ? w[j] / (sum + 1e-20f) : 0.0f;
        }
        w[j] *= p->scaling;
        if (expert_scale->n_dims != 0) w[j] *= cpu_element(expert_scale->dtype, expert_scale->data, ids[j]);
    }
}

static void router_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const vt_call *call = ctx;
    const vt_tensor *logits = call->t[2];
    const int64_t k = call->t[0]->dim[1];
    for (int64_t t = begin; t < end; t++) {
        int32_t *ids = (void *)cpu_row(call->t[0], t);
        router_row r = {.call = call, .logits = (const void *)cpu_row(logits, t), .n_experts = logits->dim[1], .max = -INFINITY};
        for (int64_t e = 0; e < r.n_experts; e++) {
            if (isfinite(r.logits[e]) && r.logits[e] > r.max) r.max = r.logits[e];
        }
        for (int64_t e = 0; e < r.n_experts; e++) {
            if (isfinite(r.logits[e])) r.sum += vt_expf(r.logits[e] - r.max);
        }
        int64_t found = 0;
        for (int64_t j = 0; j < k; j++) {
            const int64_t e = next_best(&r, ids, j);
            if (e >= 0) found = j + 1;
            ids[j] = (int32_t)(e >= 0 ? e : lowest_free(ids, j));
        }
        router_weights(&r, ids, (void *)cpu_row(call->t[1], t), k, found);
    }
}

status ref_router_topk(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    cpu_run(q, call->t[2]->dim[0], 1, router_task, call);
    return STATUS_OK;
}

/* ---- combination and gates ---- */

static void combine_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const vt_call *call = ctx;
    const vt_tensor *out = call->t[0], *y = call->t[1], *index = call->t[2], *weights = call->t[3];
    for (int64_t t = begin; t < end; t++) {
        const int32_t *at = (const void *)cpu_row(index, t);
        const float *w = (const void *)cpu_row(weights, t);
        float *r = (void *)cpu_row(out, t);
        for (int64_t j = 0; j < index->dim[1]; j++) {
            const float *yj = (const void *)cpu_row(y, at[j]);
            for (int64_t i = 0; i < out->dim[1]; i++) {
                const float v = w[j] * yj[i];
                r[i] = j == 0 ? v : r[i] + v;
            }
        }
    }
}

status ref_moe_combine(vt_queue *q, const vt_call *call, error *err) {
    const vt_tensor *y = call->t[1], *index = call->t[2];
    for (int64_t t = 0; t < index->dim[0]; t++) {
        const int32_t *at = (const void *)cpu_row(index, t);
        for (int64_t j = 0; j < index->dim[1]; j++) {
            if (at[j] < 0 || at[j] >= y->dim[0]) {
                return error_set(err, STATUS_INVALID, "vt: moe_combine: index %d of row %lld is not in 0 .. %lld", (int)at[j], (long long)t, (long long)y->dim[0] - 1);
            }
        }
    }
    cpu_run(q, index->dim[0], cpu_grain(q, index->dim[0], 1), combine_task, call);
    return STATUS_OK;
}

static void swiglu_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const vt_call *call = ctx;
    const vt_tensor *out = call->t[0], *x = call->t[1];
    const vt_swiglu_params p = call->p.swiglu;
    const int64_t d = out->dim[1];
    for (int64_t t = begin; t < end; t++) {
        const float *row = (const void *)cpu_row(x, t);
        for (int64_t i = 0; i < d; i++) {
            float g = p.interleaved ? row[2 * i] : row[i], u = p.interleaved ? row[2 * i + 1] : row[d + i];
            if (g > p.limit) g = p.limit;
            if (u > p.limit) u = p.limit;
            if (u < -p.limit) u = -p.limit;
            store(out, t, i, (u + 1.0f) * (g / (1.0f + vt_expf(-p.alpha * g))));
        }
    }
}

status ref_swiglu_clamp_and_mul(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    cpu_run(q, call->t[0]->dim[0], 1, swiglu_task, call);
    return STATUS_OK;
}

static void sigmoid_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const vt_call *call = ctx;
    const vt_tensor *out = call->t[0], *x = call->t[1], *gate = call->t[2];
    for (int64_t t = begin; t < end; t++) {
        const float *row = (const void *)cpu_row(x, t), *g = (const void *)cpu_row(gate, t);
        for (int64_t i = 0; i < out->dim[1]; i++) store(out, t, i, row[i] / (1.0f + vt_expf(-g[gate->dim[1] == 1 ? 0 : i])));
    }
}

status ref_mul_sigmoid(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    cpu_run(q, call->t[0]->dim[0], 1, sigmoid_task, call);
    return STATUS_OK;
}
