/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the snapshots of recurrent states: how many, how often, where, and the copies. A snapshot holds the whole past of a sequence, whatever its length, and may weigh as much as the
 * pages of thousands of tokens; so one is taken every so many blocks as weigh the same, which bounds what snapshots cost by what pages cost (one more for the end of the prompt).
 */
#include "base/checked.h"
#include "engine/engine.h"

static size_t snapshot_bytes(const headrace_engine *e) { return (model_state_bytes(e->model) + 255) / 256 * 256; }

void engine_snapshots_plan(headrace_engine *e, size_t page_bytes) {
    engine_plan *p = &e->plan;
    const size_t state = snapshot_bytes(e);
    p->snapshot_blocks = 0;
    if (!p->prefix_cache || state == 0 || page_bytes == 0) return;
    const size_t blocks = (state + page_bytes - 1) / page_bytes;
    p->snapshot_blocks = blocks < (size_t)p->max_pages_per_seq ? (int32_t)blocks : p->max_pages_per_seq;
}

size_t engine_snapshots_per_seq(const headrace_engine *e) {
    const engine_plan *p = &e->plan;
    return p->snapshot_blocks > 0 ? (size_t)(p->max_pages_per_seq / p->snapshot_blocks) + 1 : 0;
}

bool engine_snapshots_bytes(const headrace_engine *e, size_t n, size_t *bytes) { return checked_mul_size(n, snapshot_bytes(e), bytes); }

status engine_snapshots_allocate(headrace_engine *e, error *err) {
    size_t bytes;
    if (e->plan.n_snapshots == 0) return STATUS_OK;
    if (!engine_snapshots_bytes(e, (size_t)e->plan.n_snapshots, &bytes)) return error_set(err, STATUS_INVALID, "engine: the snapshots overflow");
    return vt_buffer_alloc(e->device, MEM_KV, bytes, "snapshots of recurrent states", &e->snapshot_buf, err);
}

static char *address(const headrace_engine *e, int32_t snapshot) { return (char *)e->snapshot_buf.data + (size_t)snapshot * snapshot_bytes(e); }

status engine_snapshot_restore(headrace_engine *e, sequence *s, error *err) {
    if (s->kv.restore < 0) return STATUS_OK;
    const status rc = model_state_restore(e->model, s->slot, address(e, s->kv.restore), err);
    kv_restored(&e->kv, &s->kv);
    return rc;
}

status engine_snapshot_keep(headrace_engine *e, sequence *s, int32_t snapshot, error *err) {
    if (snapshot < 0) return STATUS_OK;
    status rc = model_state_keep(e->model, s->slot, address(e, snapshot), err);
    if (rc == STATUS_OK) rc = vt_queue_sync(e->queue); /* what has a name is there */
    if (rc != STATUS_OK) kv_forget_snapshot(&e->kv, snapshot);
    return rc;
}
