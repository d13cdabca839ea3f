/* SPDX-License-Identifier: Apache-2.0 */
/* Heads between products and attention, scalar: a norm, a rotation and a place in the cache for each, with the operations of the rows that do one of these. */
#include "vt/cpu/cpu_kernels.h"
#include "vt/cpu/cpu_rows.h"

enum { Q, K, V, Q_NORM, K_NORM, INV_FREQ, K_CACHE, V_CACHE, POS };

/* One head of one row as a tensor of its own. */
static vt_tensor alone(float *data, vt_device_id device, int64_t width) {
    vt_tensor t = vt_tensor_2d(data, VT_F32, device, 1, width);
    return vt_tensor_split_last(t, width);
}

/* A row function of this backend on the calling thread. */
static status call_row(vt_kernel_fn *row, vt_call *call, const vt_tensor *const *t, int n, error *err) {
    vt_queue none = {0};
    call->n_tensors = n;
    for (int i = 0; i < n; i++) call->t[i] = t[i];
    return row(&none, call, err);
}

static status norm(const vt_tensor *x, const vt_tensor *w, vt_rms_norm_params p, error *err) {
    vt_call call = {.size = sizeof call, .op = VT_OP_RMS_NORM, .p.rms_norm = p};
    return call_row(ref_rms_norm, &call, (const vt_tensor *const[]){x, x, w}, 3, err);
}

static status turn(const vt_tensor *x, const vt_tensor *pos, const vt_tensor *inv_freq, vt_rope_params p, error *err) {
    vt_call call = {.size = sizeof call, .op = VT_OP_ROPE, .p.rope = p};
    return call_row(ref_rope, &call, (const vt_tensor *const[]){x, pos, inv_freq}, 3, err);
}

static status store(const vt_tensor *cache, int64_t head, const vt_tensor *x, const vt_tensor *const rows[3], error *err) {
    const vt_tensor one = vt_tensor_slice(*cache, 1, head, 1);
    vt_call call = {.size = sizeof call, .op = VT_OP_KV_WRITE};
    return call_row(ref_kv_write, &call, (const vt_tensor *const[]){&one, x, rows[0], rows[1], rows[2]}, 5, err);
}

/* Head h of a row: first those of q, then of k, then of v. */
static status one_head(const vt_call *call, int64_t row, int64_t h, error *err) {
    const int64_t n_q = call->t[Q]->dim[1], n_kv = call->t[K]->dim[1], width = call->t[Q]->dim[2];
    const int kind = h < n_q ? Q : h < n_q + n_kv ? K : V;
    const int64_t head = kind == Q ? h : (h - n_q) % n_kv;
    const vt_tensor *from = call->t[kind == V && call->t[V]->n_dims == 0 ? K : kind], none = {0};
    const vt_heads_params *p = &call->p.heads;
    float copy[VT_HEADS_WIDTH], *source = (float *)(void *)cpu_row(from, row * from->dim[1] + head), *data = kind == Q ? source : copy;
    if (kind != Q) memcpy(copy, source, (size_t)width * sizeof(float));
    const vt_tensor x = alone(data, from->device, width), pos = vt_tensor_slice(*call->t[POS], 0, row, 1), seg = vt_tensor_slice(*call->t[POS + 1], 0, row, 1);
    const vt_tensor *const rows[3] = {&pos, &seg, call->t[POS + 2]};
    if (kind == V) {
        if (p->v_norm) TRY(norm(&x, &none, (vt_rms_norm_params){.eps = p->norm.eps}, err));
        return store(call->t[V_CACHE], head, &x, rows, err);
    }
    const vt_tensor *w = call->t[kind == Q ? Q_NORM : K_NORM];
    if (w->n_dims != 0) TRY(norm(&x, w, p->norm, err));
    if (call->t[INV_FREQ]->n_dims != 0) TRY(turn(&x, &pos, call->t[INV_FREQ], p->rope, err));
    return kind == Q ? STATUS_OK : store(call->t[K_CACHE], head, &x, rows, err);
}

static void heads_task(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const vt_call *call = ctx;
    const int64_t n = call->t[Q]->dim[1] + 2 * call->t[K]->dim[1];
    for (int64_t i = begin; i < end; i++) {
        error unused = {0};
        (void)one_head(call, i / n, i % n, &unused); /* places were checked: none of these fails */
    }
}

status ref_prepare_heads(vt_queue *q, const vt_call *call, error *err) {
    cpu_pages pages;
    TRY(cpu_pages_of(call, POS, call->t[K_CACHE], call->t[Q]->dim[0], false, 0, &pages, err));
    cpu_run(q, call->t[Q]->dim[0] * (call->t[Q]->dim[1] + 2 * call->t[K]->dim[1]), 1, heads_task, call);
    return STATUS_OK;
}
