/* SPDX-License-Identifier: Apache-2.0 */
/* The one list: which row a call takes. Asking and running go through find(), so that they cannot disagree. */
#include <string.h>

#include "vt/runtime_impl.h"

static bool runs_with(const vt_row *row, vt_sig sig, uint64_t caps) {
    return sig_equal(row->sig, sig) && row->run != NULL && (row->need & ~caps) == 0;
}

/* The preferred row of this op and signature whose capability bits are present and that fits the call; without a call, one that fits any;
 * -1: none. */
static int32_t find(const backend_entry *e, vt_op op, vt_sig sig, uint64_t caps, const vt_call *call) {
    if ((int)op < 0 || op >= VT_OP_COUNT) return -1;
    for (int32_t i = e->last_of_op[op]; i >= 0; i = e->previous[i]) {
        const vt_row *row = &e->rows[i];
        if (!runs_with(row, sig, caps)) continue;
        if (row->fits && (!call || !row->fits(call))) continue;
        return i;
    }
    return -1;
}

const vt_row *dispatch_preferred(const vt_queue *q, vt_op op, vt_sig sig) {
    const backend_entry *e = runtime_backend(q->runtime, q->device.type);
    if (!e || (int)op < 0 || op >= VT_OP_COUNT) return NULL;
    for (int32_t i = e->last_of_op[op]; i >= 0; i = e->previous[i])
        if (runs_with(&e->rows[i], sig, q->caps)) return &e->rows[i];
    return NULL;
}

bool dispatch_can_run(const vt_queue *q, vt_op op, vt_sig sig) {
    const backend_entry *e = runtime_backend(q->runtime, q->device.type);
    return e && find(e, op, sig, q->caps, NULL) >= 0;
}

status vt_can_run(const vt_queue *q, vt_op op, vt_sig sig, error *err) {
    return dispatch_can_run(q, op, sig) ? STATUS_OK : refusal(q, op, sig, err);
}

const vt_row *vt_find_row(const vt_queue *q, const vt_call *call) {
    const backend_entry *e = runtime_backend(q->runtime, q->device.type);
    int32_t i = e ? find(e, call->op, call->sig, q->caps, call) : -1;
    return i >= 0 ? &e->rows[i] : NULL;
}

status vt_can_run_all(const vt_queue *q, const vt_need *needs, int32_t n, error *err) {
    for (int32_t i = 0; i < n; i++)
        if (!dispatch_can_run(q, needs[i].op, needs[i].sig)) return refusal_of_all(q, needs, n, err);
    return STATUS_OK;
}

static status record(vt_recorder *r, const vt_call *call, error *err) {
    for (int32_t i = 0; i < r->n; i++)
        if (r->needs[i].op == call->op && sig_equal(r->needs[i].sig, call->sig)) return STATUS_OK;
    if (r->n >= r->cap) return error_set(err, STATUS_BUG, "vt: %s: the recorder's list of %d is full", vt_op_name(call->op), (int)r->cap);
    r->needs[r->n++] = (vt_need){call->op, call->sig};
    return STATUS_OK;
}

status dispatch_call(vt_queue *q, const vt_call *call, bool empty, error *err) {
    if (q->recorder) return record(q->recorder, call, err);
    const backend_entry *e = runtime_backend(q->runtime, q->device.type);
    int32_t i = e ? find(e, call->op, call->sig, q->caps, call) : -1;
    if (i < 0) return refusal(q, call->op, call->sig, err);
    if (!q->owner)
        return error_set(err, STATUS_INVALID, "vt: %s: the queue poses as %s:%d; it can be asked, but runs nothing", vt_op_name(call->op),
                         vt_device_type_name(q->device.type), (int)q->device.index);
    if (empty) return STATUS_OK;
    atomic_fetch_add_explicit(&e->runs[i], 1, memory_order_relaxed);
    return e->rows[i].run(q, call, err);
}

uint64_t vt_row_runs(const vt_runtime *rt, const char *row_name) {
    uint64_t n = 0;
    for (int type = 0; type < VT_DEVICE_TYPE_COUNT; type++) {
        const backend_entry *e = rt->backends[type];
        for (int32_t i = 0; e && i < e->n_rows; i++)
            if (row_name == NULL || strcmp(e->rows[i].name, row_name) == 0) n += atomic_load_explicit(&e->runs[i], memory_order_relaxed);
    }
    return n;
}
