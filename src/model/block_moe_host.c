/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts on the processor, beside a device with memory of its own. The blocks are those of the device, run by a second view of the model: the same tables, another workspace and queue, and
 * activations as the processor has them by itself.
 */
#include <string.h>

#include "base/checked.h"
#include "model/block_moe.h"

enum { MAX_NEEDS = 64, OUT_ROWS = 256, ALIGN = 256 };

typedef struct moe_host {
    model view;
    vt_recorder recorder;
    vt_need needs[MAX_NEEDS];
    block_moe_params params; /* of the layer that was planned last */
    int layer;
    vt_dtype x_dtype;
    vt_buffer memory; /* pinned: x, out, list, workspace */
    uint8_t *x;
    float *out;
    int32_t *list;
    int64_t n_out; /* rows of `out` that copies to the device may still read */
} moe_host;

static size_t aligned(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

static int64_t width(const model *mo) { return mo->hp.n_embd; }

/* ---- plan ---- */

status moe_host_plan(block_ctx *c, int layer, vt_tensor x, const block_moe_params *p) {
    model *m = c->m;
    moe_host *h = m->moe->host;
    if (h == NULL) {
        h = arena_calloc(m->arena, 1, sizeof *h);
        if (h == NULL) return error_set(c->err, STATUS_NO_MEMORY, "model: no memory for the plan");
        m->moe->host = h;
    }
    const size_t peak = h->view.ws_peak;
    const int32_t n_needs = h->recorder.n;
    h->recorder = (vt_recorder){.needs = h->needs, .n = n_needs, .cap = MAX_NEEDS};
    h->view = *m;
    h->view.workspace = (vt_buffer){0};
    h->view.ws_used = 0;
    h->view.ws_peak = peak;
    memset(h->view.bf16_rows, 0, sizeof h->view.bf16_rows); /* the processor rounds nothing by itself */
    if (m->opt.act == ACT_BF16) h->view.opt.act = ACT_AUTO;
    h->params = *p;
    h->layer = layer;
    h->x_dtype = x.dtype;
    vt_queue recording = *m->opt.host_queue;
    recording.recorder = &h->recorder;
    block_ctx hc = {.m = &h->view, .q = &recording, .n_rows = MOE_HOST_ROWS, .err = c->err};
    const vt_device_id dev = recording.device;
    const vt_tensor rows = vt_tensor_1d(NULL, VT_I32, dev, MOE_HOST_ROWS), y = vt_tensor_2d(NULL, VT_F32, dev, MOE_HOST_ROWS, x.dim[1]);
    return moe_run_expert(&hc, layer, NULL, vt_tensor_2d(NULL, x.dtype, dev, x.dim[0], x.dim[1]), rows, y, p);
}

status moe_host_ask(const model *mo, error *err) {
    const moe_host *h = mo->moe->host;
    if (h == NULL) return STATUS_OK;
    const status rc = vt_can_run_all(mo->opt.host_queue, h->needs, h->recorder.n, err);
    if (rc != STATUS_OK) error_prefix(err, "model: --miss: experts that the device lacks cannot be computed by the processor");
    return rc;
}

/* ---- memory ---- */

static size_t x_bytes(const model *mo) { return aligned((size_t)mo->opt.max_rows * (size_t)width(mo) * sizeof(float)); }
static size_t out_bytes(const model *mo) { return aligned((size_t)OUT_ROWS * (size_t)width(mo) * sizeof(float)); }
static size_t list_bytes(void) { return aligned(MOE_HOST_ROWS * sizeof(int32_t)); }

size_t moe_host_bytes(const model *mo) {
    const moe_host *h = mo->moe->host;
    return h != NULL ? x_bytes(mo) + out_bytes(mo) + list_bytes() + aligned(h->view.ws_peak) : 0;
}

status moe_host_commit(model *mo, error *err) {
    moe_host *h = mo->moe->host;
    if (h == NULL) return STATUS_OK;
    const size_t bytes = moe_host_bytes(mo), workspace = aligned(h->view.ws_peak);
    TRY(vt_buffer_alloc_host(mo->device, MEM_STAGING, bytes, "rows for the processor", &h->memory, err));
    memset(h->memory.data, 0, bytes);
    uint8_t *at = h->memory.data;
    h->x = at;
    h->out = (float *)(void *)(at + x_bytes(mo));
    h->list = (int32_t *)(void *)(at + x_bytes(mo) + out_bytes(mo));
    h->view = *mo;
    h->view.queue = mo->opt.host_queue;
    h->view.workspace = (vt_buffer){.data = at + bytes - workspace, .bytes = workspace};
    h->view.ws_used = h->view.ws_peak = 0;
    memset(h->view.bf16_rows, 0, sizeof h->view.bf16_rows);
    if (mo->opt.act == ACT_BF16) h->view.opt.act = ACT_AUTO;
    return STATUS_OK;
}

void moe_host_close(model *mo) {
    if (mo->moe->host != NULL) vt_buffer_free(&mo->moe->host->memory);
}

void moe_host_drop(model *mo) { mo->moe->host = NULL; }

/* ---- run ---- */

status moe_host_read_rows(block_ctx *c, const vt_tensor *x) {
    moe_host *h = c->m->moe->host;
    size_t bytes;
    if (!vt_dtype_row_bytes(x->dtype, x->dim[1], &bytes) || x->stride[0] != x->dim[1]) return error_set(c->err, STATUS_BUG, "model: rows for the processor are not close together");
    h->n_out = 0; /* the wait that follows is for copies out of it too */
    h->x_dtype = x->dtype;
    const status rc = vt_copy(c->q, h->x, x->data, (size_t)x->dim[0] * bytes);
    return rc == STATUS_OK ? rc : error_set(c->err, rc, "model: rows cannot be copied from the device");
}

static block_ctx host_ctx(moe_host *h, int32_t n_rows, error *err) { return (block_ctx){.m = &h->view, .q = h->view.queue, .n_rows = n_rows, .err = err}; }

/* The listed rows: their results lie in `out` and are on their way to `to`, rows of the slab. */
static status run_listed(block_ctx *c, int layer, const expert_lease *lease, vt_tensor to, const block_moe_params *p) {
    moe_host *h = c->m->moe->host;
    const int64_t n = to.dim[0];
    const vt_device_id dev = h->view.queue->device;
    if (h->n_out + n > OUT_ROWS) {
        const status rc = vt_queue_sync(c->q);
        if (rc != STATUS_OK) return error_set(c->err, rc, "model: the device failed while the processor computed experts");
        h->n_out = 0;
    }
    block_ctx hc = host_ctx(h, (int32_t)n, c->err);
    const vt_tensor x = vt_tensor_2d(h->x, h->x_dtype, dev, c->n_rows, width(c->m)), y = vt_tensor_2d(h->out + h->n_out * width(c->m), VT_F32, dev, n, width(c->m));
    TRY(moe_run_expert(&hc, layer, lease, x, vt_tensor_1d(h->list, VT_I32, dev, n), y, p));
    h->n_out += n;
    const status rc = vt_copy(c->q, to.data, y.data, (size_t)(n * width(c->m)) * sizeof(float));
    return rc == STATUS_OK ? rc : error_set(c->err, rc, "model: rows of an expert cannot be copied to the device");
}

static status run_rows(block_ctx *c, int layer, const expert_lease *lease, vt_tensor slab, const block_moe_params *p) {
    const model_moe *moe = c->m->moe;
    const int32_t k = (int32_t)c->m->hp.n_experts_used, count = moe->count[lease->expert];
    int32_t first = moe->first[lease->expert], n = 0;
    const int32_t end = first + count;
    for (int32_t i = 0; i < c->n_rows * k; i++) { /* ascending, as the slab has them */
        if (moe->ids[i] != lease->expert) continue;
        moe->host->list[n++] = i / k;
        if (n < MOE_HOST_ROWS && first + n < end) continue;
        TRY(run_listed(c, layer, lease, vt_tensor_slice(slab, 0, first, n), p));
        first += n;
        n = 0;
    }
    return STATUS_OK;
}

status moe_host_run(block_ctx *c, int layer, const expert_lease *lease, vt_tensor slab, const block_moe_params *p) {
    const status rc = c->m->moe->host != NULL ? run_rows(c, layer, lease, slab, p) : error_set(c->err, STATUS_BUG, "model: expert %d of layer %d is on the host, and nobody computes there", lease->expert, layer);
    c->m->moe->store->release(c->m->moe->store, lease, (vt_fence){0});
    return rc;
}

status moe_host_try(model *mo, const void *slot, int32_t n_rows, size_t *bytes, error *err) {
    moe_host *h = mo->moe->host;
    const expert_layer *el = &mo->moe->bank.layers[h->layer];
    const vt_device_id dev = h->view.queue->device;
    expert_lease lease = {.layer = h->layer};
    for (int32_t p = 0; p < el->n_parts; p++) lease.part[p] = (const uint8_t *)slot + el->parts[p].slot_off;
    for (int32_t i = 0; i < n_rows; i++) h->list[i] = 0;
    *bytes = el->file_bytes;
    block_ctx hc = host_ctx(h, n_rows, err);
    return moe_run_expert(&hc, h->layer, &lease, vt_tensor_2d(h->x, h->x_dtype, dev, 1, width(mo)), vt_tensor_1d(h->list, VT_I32, dev, n_rows), vt_tensor_2d(h->out, VT_F32, dev, n_rows, width(mo)), &h->params);
}
