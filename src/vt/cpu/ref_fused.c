/* SPDX-License-Identifier: Apache-2.0 */
/* Ops that stand for several, scalar: the operations of the ops one by one, in their order, so that both give the same bits. */
#include "vt/cpu/cpu_kernels.h"
#include "vt/cpu/cpu_rows.h"

static void store(const vt_tensor *out, uint8_t *row, int64_t i, float v) {
    if (out->dtype == VT_BF16)
        ((uint16_t *)(void *)row)[i] = vt_f32_to_bf16(v);
    else
        ((float *)(void *)row)[i] = v;
}

/* ---- add_norm ---- */

enum { X, OUT, Y = OUT + VT_ADD_NORM_OUTS, INDEX, WEIGHTS, Y_NORM, Y2, Y2_NORM, POST, NORM };

/* A row on its way; norms that are not made have scale 0. Values are computed anew where they are wanted, so that nothing has to be kept. */
typedef struct link_row {
    const vt_call *call;
    const float *y, *y2, *weights; /* y: where its rows are those of x */
    const int32_t *at;
    float y_scale, y2_scale, post_scale;
} link_row;

static float normed(const link_row *l, float v, float scale, int norm, int64_t i) {
    const vt_tensor *w = l->call->t[norm];
    return (v * scale) * ((w->n_dims != 0 ? cpu_element(w->dtype, w->data, i) : 1.0f) + (w->n_dims != 0 ? l->call->p.add_norm.w_offset : 0.0f));
}

static float y_at(const link_row *l, int64_t i) {
    const vt_tensor *y = l->call->t[Y];
    float r = 0.0f;
    if (l->at == NULL) return l->y[i];
    for (int64_t j = 0; j < l->call->t[INDEX]->dim[1]; j++) {
        const float v = l->weights[j] * ((const float *)(const void *)cpu_row(y, l->at[j]))[i];
        r = j == 0 ? v : r + v;
    }
    return r;
}

static float y2_at(const link_row *l, int64_t i) { return l->y2[i]; }

static float sum_at(const link_row *l, int64_t i) {
    float s = y_at(l, i);
    if (l->call->t[Y_NORM]->n_dims != 0) s = normed(l, s, l->y_scale, Y_NORM, i);
    if (l->y2 == NULL) return s;
    return l->call->t[Y2_NORM]->n_dims != 0 ? s + normed(l, l->y2[i], l->y2_scale, Y2_NORM, i) : s + l->y2[i];
}

static float x_at(const link_row *l, int64_t i) { return l->y[i]; }

static float scale_of(const link_row *l, float (*at)(const link_row *, int64_t)) {
    const int64_t h = l->call->t[X]->dim[1];
    float lanes[CPU_LANES] = {0};
    for (int64_t i = 0; i < h; i++) {
        const float v = at(l, i);
        lanes[i % CPU_LANES] = fmaf(v, v, lanes[i % CPU_LANES]);
    }
    return 1.0f / sqrtf(cpu_sum_lanes(lanes) / (float)h + l->call->p.add_norm.eps);
}

static void add_norm_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const vt_call *call = ctx;
    const vt_add_norm_params *p = &call->p.add_norm;
    const int64_t h = call->t[X]->dim[1];
    for (int64_t r = begin; r < end; r++) {
        const bool combined = call->t[INDEX]->n_dims != 0;
        float *x = (void *)cpu_row(call->t[X], r);
        link_row l = {
            .call = call,
            .y = combined ? NULL : (const void *)cpu_row(call->t[Y], r),
            .y2 = call->t[Y2]->n_dims != 0 ? (const void *)cpu_row(call->t[Y2], r) : NULL,
            .weights = combined ? (const void *)cpu_row(call->t[WEIGHTS], r) : NULL,
            .at = combined ? (const void *)cpu_row(call->t[INDEX], r) : NULL,
        };
        if (call->t[Y_NORM]->n_dims != 0) l.y_scale = scale_of(&l, y_at);
        if (l.y2 != NULL && call->t[Y2_NORM]->n_dims != 0) l.y2_scale = scale_of(&l, y2_at);
        if (call->t[POST]->n_dims != 0) l.post_scale = scale_of(&l, sum_at);
        for (int64_t i = 0; i < h; i++) {
            float s = sum_at(&l, i);
            if (call->t[POST]->n_dims != 0) s = normed(&l, s, l.post_scale, POST, i);
            x[i] = (x[i] + s) * p->scale;
        }
        l.y = x;
        const float scale = scale_of(&l, x_at);
        for (int j = 0; j < VT_ADD_NORM_OUTS; j++) {
            const vt_tensor *out = call->t[OUT + j];
            if (out->n_dims == 0) continue;
            for (int64_t i = 0; i < h; i++) store(out, cpu_row(out, r), i, normed(&l, x[i], scale, NORM + j, i) * p->out_scale[j]);
        }
    }
}

status ref_add_norm(vt_queue *q, const vt_call *call, error *err) {
    const vt_tensor *y = call->t[Y], *index = call->t[INDEX];
    for (int64_t t = 0; index->n_dims != 0 && t < index->dim[0]; t++) {
        const int32_t *at = (const void *)cpu_row(index, t);
        for (int64_t j = 0; j < index->dim[1]; j++) {
            if (at[j] < 0 || at[j] >= y->dim[0]) {
                return error_set(err, STATUS_INVALID, "vt: add_norm: index %d of row %lld is not in 0 .. %lld", (int)at[j], (long long)t, (long long)y->dim[0] - 1);
            }
        }
    }
    cpu_run(q, call->t[X]->dim[0], 1, add_norm_task, call);
    return STATUS_OK;
}

/* ---- products ---- */

/* The i-th of several: out, a, b of vt_matmul_bt. */
static vt_call several_part(const vt_call *call, int i) {
    vt_call one = *call;
    one.op = VT_OP_MATMUL_BT;
    one.n_tensors = 3;
    one.t[0] = call->t[i == 0 ? 0 : 1 + 2 * i];
    one.t[2] = call->t[i == 0 ? 2 : 2 + 2 * i];
    return one;
}

status ref_matmul_several(vt_queue *q, const vt_call *call, error *err) {
    for (int i = 0; i < VT_SEVERAL; i++) {
        const vt_call one = several_part(call, i);
        if (one.t[0]->n_dims != 0) TRY(ref_matmul_bf16(q, &one, err));
    }
    return STATUS_OK;
}

enum { CHUNK = 128 };

/* Gates and ups of a stretch of a row, then the activation. */
static void gated_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const vt_call *call = ctx;
    const vt_tensor *out = call->t[0];
    const int64_t per_row = (out->dim[1] + CHUNK - 1) / CHUNK;
    for (int64_t c = begin; c < end; c++) {
        const int64_t m = c / per_row, n0 = c % per_row * CHUNK, n = out->dim[1] - n0 < CHUNK ? out->dim[1] - n0 : CHUNK;
        float both[2 * CHUNK];
        const vt_tensor a = vt_tensor_slice(*call->t[1], 0, m, 1), to = vt_tensor_2d(both, VT_F32, out->device, 1, 2 * n), mid = vt_tensor_slice(vt_tensor_slice(*out, 0, m, 1), 1, n0, n);
        vt_queue alone = {.device = out->device};
        for (int i = 0; i < 2; i++) {
            const vt_tensor half = vt_tensor_slice(to, 1, i * n, n), w = vt_tensor_slice(*call->t[2 + i], 0, n0, n);
            const vt_call one = {.size = sizeof one, .op = VT_OP_MATMUL_BT, .sig = call->sig, .n_tensors = 3, .t = {&half, &a, &w}};
            (void)!ref_matmul_bf16(&alone, &one, NULL); /* a scalar row of checked arguments cannot fail */
        }
        const vt_call act = {.size = sizeof act, .op = call->p.gate == VT_GATE_SILU ? VT_OP_SILU_AND_MUL : VT_OP_GELU_AND_MUL, .n_tensors = 2, .t = {&mid, &to}};
        (void)!ref_gated(&alone, &act, NULL);
    }
}

status ref_matmul_gated(vt_queue *q, const vt_call *call, error *err) {
    (void)err;
    const vt_tensor *out = call->t[0];
    cpu_run(q, out->dim[0] * ((out->dim[1] + CHUNK - 1) / CHUNK), 1, gated_task, call);
    return STATUS_OK;
}
