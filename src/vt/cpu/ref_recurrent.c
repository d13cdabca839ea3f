/* SPDX-License-Identifier: Apache-2.0 */
/* Recurrent ops, scalar: token by token through each segment, one channel or one head per task. */
#include "vt/cpu/cpu_kernels.h"
#include "vt/cpu/cpu_rows.h"

static float weight(const vt_tensor *t, int64_t i) {
    const uint8_t *p = t->data;
    float f;
    if (t->dtype == VT_F32) {
        memcpy(&f, p + 4 * i, sizeof f);
        return f;
    }
    return t->dtype == VT_F16 ? vt_f16_to_f32(cpu_u16(p + 2 * i)) : vt_bf16_to_f32(cpu_u16(p + 2 * i));
}

/* The rows of a segment, its slot; *first = *end when it has none. */
typedef struct segment_rows {
    int64_t first, end;
    int32_t slot;
} segment_rows;

static int32_t at(const vt_tensor *t, int64_t i) { return ((const int32_t *)t->data)[i * t->stride[0]]; }

static segment_rows rows_of(const vt_call *call, int pos, int64_t seg) {
    const vt_tensor *row_seg = call->t[pos + 1];
    segment_rows s = {.slot = at(call->t[pos + 2], seg)};
    while (s.first < row_seg->dim[0] && at(row_seg, s.first) != seg) s.first++;
    for (s.end = s.first; s.end < row_seg->dim[0] && at(row_seg, s.end) == seg;) s.end++;
    return s;
}

static status check_slots(const vt_call *call, int pos, const vt_tensor *state, error *err) {
    const vt_tensor *row_seg = call->t[pos + 1], *seg_slot = call->t[pos + 2];
    for (int64_t i = 0; i < seg_slot->dim[0]; i++) {
        if (at(seg_slot, i) < 0 || at(seg_slot, i) >= state->dim[0]) {
            return error_set(err, STATUS_INVALID, "vt: %s: slot %d of segment %lld is not in 0 .. %lld", vt_op_name(call->op), (int)at(seg_slot, i), (long long)i,
                             (long long)state->dim[0] - 1);
        }
    }
    for (int64_t r = 0; r < row_seg->dim[0]; r++) {
        if (at(row_seg, r) < 0 || at(row_seg, r) >= seg_slot->dim[0]) {
            return error_set(err, STATUS_INVALID, "vt: %s: row %lld is of segment %d of %lld", vt_op_name(call->op), (long long)r, (int)at(row_seg, r), (long long)seg_slot->dim[0]);
        }
    }
    return STATUS_OK;
}

/* ---- convolution ---- */

static void conv_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const vt_call *call = ctx;
    const vt_tensor *out = call->t[0], *x = call->t[1], *state = call->t[2], *w = call->t[3], *pos = call->t[4];
    const int64_t n_channels = x->dim[1], taps = w->dim[1];
    for (int64_t i = begin; i < end; i++) {
        const int64_t channel = i % n_channels;
        const segment_rows s = rows_of(call, 4, i / n_channels);
        if (s.first == s.end) continue;
        float *past = (float *)(void *)cpu_row(state, s.slot) + channel * (taps - 1);
        for (int64_t t = s.first; t < s.end; t++) {
            const float now = ((const float *)(const void *)cpu_row(x, t))[channel];
            float acc = 0.0f;
            for (int64_t j = 0; j + 1 < taps; j++) {
                if (at(pos, t) == 0) past[j] = 0.0f;
                acc = fmaf(weight(w, channel * w->stride[0] + j), past[j], acc);
            }
            acc = fmaf(weight(w, channel * w->stride[0] + taps - 1), now, acc);
            for (int64_t j = 0; j + 2 < taps; j++) past[j] = past[j + 1];
            if (taps > 1) past[taps - 2] = now;
            ((float *)(void *)cpu_row(out, t))[channel] = acc / (1.0f + vt_expf(-acc));
        }
    }
}

status ref_causal_conv_silu(vt_queue *q, const vt_call *call, error *err) {
    TRY(check_slots(call, 4, call->t[2], err));
    const int64_t n = call->t[6]->dim[0] * call->t[1]->dim[1];
    cpu_run(q, n, cpu_grain(q, n, 16), conv_task, call);
    return STATUS_OK;
}

/* ---- delta rule ---- */

static float inverse_norm(const float *x, int64_t n) {
    float sum = 0.0f;
    for (int64_t i = 0; i < n; i++) sum = fmaf(x[i], x[i], sum);
    return 1.0f / sqrtf(sum + 1e-6f);
}

static float softplus(float x) { return x > 20.0f ? x : log1pf(vt_expf(x)); }

/* One token of one head: S is [d_k, d_v]. */
static void delta_step(float *S, const float *q, const float *k, const float *v, float g, float beta, float *out, const vt_gated_delta_params *p) {
    const float kn = inverse_norm(k, p->d_k), qn = inverse_norm(q, p->d_k) * (1.0f / sqrtf((float)p->d_k));
    for (int64_t j = 0; j < p->d_v; j++) {
        float m = 0.0f, o = 0.0f;
        for (int64_t i = 0; i < p->d_k; i++) {
            float *s = &S[i * p->d_v + j];
            *s *= g;
            m = fmaf(*s, k[i] * kn, m);
        }
        const float delta = (v[j] - m) * beta;
        for (int64_t i = 0; i < p->d_k; i++) {
            float *s = &S[i * p->d_v + j];
            *s = fmaf(k[i] * kn, delta, *s);
            o = fmaf(*s, q[i] * qn, o);
        }
        out[j] = o;
    }
}

static void delta_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const vt_call *call = ctx;
    const vt_gated_delta_params p = call->p.gated_delta;
    const vt_tensor *out = call->t[0], *qkv = call->t[1], *a = call->t[2], *b = call->t[3], *a_log = call->t[4], *dt_bias = call->t[5], *state = call->t[6], *pos = call->t[7];
    const int64_t keys = (int64_t)p.n_k * p.d_k, size = (int64_t)p.d_k * p.d_v;
    for (int64_t i = begin; i < end; i++) {
        const int64_t h = i % p.n_v, kh = p.k_tiled ? h % p.n_k : h / (p.n_v / p.n_k);
        const segment_rows s = rows_of(call, 7, i / p.n_v);
        if (s.first == s.end) continue;
        float *S = (float *)(void *)cpu_row(state, s.slot) + h * size;
        const float decay = p.a_is_decay ? weight(a_log, h) : -vt_expf(weight(a_log, h));
        for (int64_t t = s.first; t < s.end; t++) {
            const float *row = (const void *)cpu_row(qkv, t);
            const float ah = ((const float *)(const void *)cpu_row(a, t))[h], bh = ((const float *)(const void *)cpu_row(b, t))[h];
            if (at(pos, t) == 0) memset(S, 0, (size_t)size * sizeof *S);
            delta_step(S, row + kh * p.d_k, row + keys + kh * p.d_k, row + 2 * keys + h * p.d_v, vt_expf(decay * softplus(ah + weight(dt_bias, h))),
                       1.0f / (1.0f + vt_expf(-bh)), (float *)(void *)cpu_row(out, t) + h * p.d_v, &p);
        }
    }
}

status ref_gated_delta(vt_queue *q, const vt_call *call, error *err) {
    TRY(check_slots(call, 7, call->t[6], err));
    const int64_t n = call->t[9]->dim[0] * call->p.gated_delta.n_v;
    cpu_run(q, n, 1, delta_task, call);
    return STATUS_OK;
}
