/* SPDX-License-Identifier: Apache-2.0 */
/* Row-wise ops, scalar: quantisation, gathering, normalisation, gated activations, scaling and adding. */
#include "vt/cpu/cpu_kernels.h"
#include "vt/cpu/cpu_rows.h"

/* q of n values with one scale; returns the scale. */
static float quantize_block(const float *x, int n, int8_t *q) {
    float max = 0.0f;
    bool finite = true;
    for (int i = 0; i < n; i++) {
        float v = fabsf(x[i]);
        if (!isfinite(v)) finite = false;
        if (v > max) max = v;
    }
    float d = finite ? max / 127.0f : NAN;
    for (int i = 0; i < n; i++) {
        float r = finite && d > 0.0f ? rintf(x[i] / d) : 0.0f;
        if (r > 127.0f) r = 127.0f;
        if (r < -127.0f) r = -127.0f;
        q[i] = (int8_t)r;
    }
    return d;
}

static void quantize_row_a32(const float *x, int64_t n, cpu_q8_a32 *out) {
    for (int64_t b = 0; b < n / CPU_QK; b++) {
        out[b].d = quantize_block(x + b * CPU_QK, CPU_QK, out[b].q);
        out[b].sum = 0;
        for (int i = 0; i < CPU_QK; i++) out[b].sum += out[b].q[i];
    }
}

static void quantize_row_a256(const float *x, int64_t n, cpu_q8_a256 *out) {
    for (int64_t b = 0; b < n / CPU_QK_K; b++) {
        out[b].d = quantize_block(x + b * CPU_QK_K, CPU_QK_K, out[b].q);
        for (int g = 0; g < 16; g++) {
            int sum = 0;
            for (int i = 0; i < 16; i++) sum += out[b].q[16 * g + i];
            out[b].sum[g] = (int16_t)sum;
        }
    }
}

static void quantize_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const vt_call *call = ctx;
    const vt_tensor *out = call->t[0], *x = call->t[1];
    for (int64_t r = begin; r < end; r++) {
        const float *xr = (const void *)cpu_row(x, r);
        void *yr = cpu_row(out, r);
        if (out->dtype == VT_Q8_A32)
            quantize_row_a32(xr, cpu_inner(x), yr);
        else
            quantize_row_a256(xr, cpu_inner(x), yr);
    }
}

status ref_quantize_rows(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    cpu_run(q, cpu_n_rows(call->t[1]), 1, quantize_task, call);
    return STATUS_OK;
}

static int64_t id_of(const vt_tensor *ids, int64_t i) { return ((const int32_t *)ids->data)[i * ids->stride[0]]; }

static void gather_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const vt_call *call = ctx;
    const vt_tensor *out = call->t[0], *table = call->t[1];
    for (int64_t i = begin; i < end; i++)
        cpu_dequantize(table->dtype, cpu_row(table, id_of(call->t[2], i)), 0, cpu_inner(table), (void *)cpu_row(out, i));
}

status ref_gather_rows(vt_queue *q, const vt_call *call, error *err) {
    const vt_tensor *table = call->t[1], *ids = call->t[2];
    for (int64_t i = 0; i < ids->dim[0]; i++) {
        int64_t id = id_of(ids, i);
        if (id < 0 || id >= table->dim[0])
            return error_set(err, STATUS_INVALID, "gather_rows: ids[%lld] is %lld, the table has %lld rows", (long long)i, (long long)id,
                             (long long)table->dim[0]);
    }
    cpu_run(q, ids->dim[0], 1, gather_task, call);
    return STATUS_OK;
}

static float elem(const vt_tensor *t, const uint8_t *row, int64_t i) {
    if (t->dtype == VT_F32) return ((const float *)(const void *)row)[i];
    return t->dtype == VT_F16 ? vt_f16_to_f32(((const uint16_t *)(const void *)row)[i])
                              : vt_bf16_to_f32(((const uint16_t *)(const void *)row)[i]);
}

static void set_elem(const vt_tensor *t, uint8_t *row, int64_t i, float v) {
    if (t->dtype == VT_F32)
        ((float *)(void *)row)[i] = v;
    else
        ((uint16_t *)(void *)row)[i] = vt_f32_to_bf16(v);
}

static void rms_norm_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const vt_call *call = ctx;
    const vt_tensor *out = call->t[0], *x = call->t[1], *w = call->t[2];
    int64_t h = cpu_inner(x);
    for (int64_t r = begin; r < end; r++) {
        const float *xr = (const void *)cpu_row(x, r);
        uint8_t *yr = cpu_row(out, r);
        float lanes[CPU_LANES] = {0};
        for (int64_t i = 0; i < h; i++) lanes[i % CPU_LANES] = fmaf(xr[i], xr[i], lanes[i % CPU_LANES]);
        float scale = 1.0f / sqrtf(cpu_sum_lanes(lanes) / (float)h + call->p.rms_norm.eps);
        for (int64_t i = 0; i < h; i++) {
            float wi = w->n_dims ? elem(w, w->data, i) : 1.0f;
            set_elem(out, yr, i, (xr[i] * scale) * (wi + call->p.rms_norm.w_offset));
        }
    }
}

status ref_rms_norm(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    cpu_run(q, cpu_n_rows(call->t[1]), 1, rms_norm_task, call);
    return STATUS_OK;
}

static float silu(float g) { return g / (1.0f + vt_expf(-g)); }

static float gelu_tanh(float g) {
    float u = 0.7978845608f * (g + 0.044715f * (g * g * g));
    float tanh_u = 1.0f - 2.0f / (vt_expf(2.0f * u) + 1.0f);
    return (0.5f * g) * (1.0f + tanh_u);
}

static void gated_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const vt_call *call = ctx;
    const vt_tensor *out = call->t[0], *x = call->t[1];
    int64_t d = cpu_inner(out);
    for (int64_t r = begin; r < end; r++) {
        const float *xr = (const void *)cpu_row(x, r);
        for (int64_t i = 0; i < d; i++)
            set_elem(out, cpu_row(out, r), i, (call->op == VT_OP_SILU_AND_MUL ? silu(xr[i]) : gelu_tanh(xr[i])) * xr[d + i]);
    }
}

status ref_gated(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    cpu_run(q, cpu_n_rows(call->t[1]), 1, gated_task, call);
    return STATUS_OK;
}

static void mul_scalar_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const vt_call *call = ctx;
    const vt_tensor *out = call->t[0], *x = call->t[1];
    for (int64_t r = begin; r < end; r++)
        for (int64_t i = 0; i < cpu_inner(x); i++) set_elem(out, cpu_row(out, r), i, elem(x, cpu_row(x, r), i) * call->p.scalar);
}

status ref_mul_scalar(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    cpu_run(q, cpu_n_rows(call->t[1]), 1, mul_scalar_task, call);
    return STATUS_OK;
}

static void softcap_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const vt_call *call = ctx;
    const vt_tensor *out = call->t[0], *x = call->t[1];
    float cap = call->p.scalar;
    for (int64_t r = begin; r < end; r++) {
        for (int64_t i = 0; i < cpu_inner(x); i++) {
            float u = elem(x, cpu_row(x, r), i) / cap;
            set_elem(out, cpu_row(out, r), i, cap * (1.0f - 2.0f / (vt_expf(2.0f * u) + 1.0f)));
        }
    }
}

status ref_softcap(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    cpu_run(q, cpu_n_rows(call->t[1]), 1, softcap_task, call);
    return STATUS_OK;
}

static void add_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const vt_call *call = ctx;
    const vt_tensor *out = call->t[0], *a = call->t[1], *b = call->t[2];
    for (int64_t r = begin; r < end; r++) {
        const uint8_t *ar = cpu_row(a, r), *br = b->n_dims == a->n_dims ? cpu_row(b, r) : b->data;
        for (int64_t i = 0; i < cpu_inner(a); i++) set_elem(out, cpu_row(out, r), i, elem(a, ar, i) + elem(b, br, i));
    }
}

status ref_add(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    cpu_run(q, cpu_n_rows(call->t[1]), 1, add_task, call);
    return STATUS_OK;
}

/* A maximum in lanes, then where it is: nothing here waits for the number before. */
static int32_t first_largest(const float *x, int64_t n) {
    enum { LANES = 16 };
    float most[LANES];
    int odd = 0;
    for (int j = 0; j < LANES; j++) most[j] = -INFINITY;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            odd |= x[i + j] != x[i + j];
            most[j] = x[i + j] > most[j] ? x[i + j] : most[j];
        }
    }
    for (; i < n; i++) {
        odd |= x[i] != x[i];
        most[0] = x[i] > most[0] ? x[i] : most[0];
    }
    for (int j = 1; j < LANES; j++) most[0] = most[j] > most[0] ? most[j] : most[0];
    if (odd || !isfinite(most[0])) return -1;
    for (i = 0; x[i] != most[0]; i++) {}
    return (int32_t)i;
}

static void argmax_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const vt_call *call = ctx;
    const vt_tensor *ids = call->t[0], *x = call->t[1];
    for (int64_t r = begin; r < end; r++)
        ((int32_t *)ids->data)[r * ids->stride[0]] = first_largest((const float *)(const void *)cpu_row(x, r), x->dim[1]);
}

status ref_argmax(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    cpu_run(q, call->t[1]->dim[0], 1, argmax_task, call);
    return STATUS_OK;
}
