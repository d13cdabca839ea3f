/* SPDX-License-Identifier: Apache-2.0 */
/* Plan, commit and run. The plan is the pass itself, run against a recorder: what it asks for and how deep its workspace gets is what the step will need. */
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/log.h"
#include "model/block_moe.h"
#include "model/model_capture.h"
#include "model/model_widen.h"
#include "moe/staged_upload.h"

enum { MAX_NEEDS = 256, DEVICE_ALIGN = 256, SINKS_MAX = 1024 };

/* ---- one pass ---- */

static void make_ctx(model *mo, vt_queue *q, int32_t n_rows, int32_t n_segments, int32_t max_pages, error *err, block_ctx *c) {
    *c = (block_ctx){.m = mo, .q = q, .n_rows = n_rows, .ahead_layer = -1, .err = err};
    c->recurrent = (vt_recurrent_rows){
        .pos = vt_tensor_slice(mo->pos, 0, 0, n_rows),
        .row_seg = vt_tensor_slice(mo->row_seg, 0, 0, n_rows),
        .seg_slot = vt_tensor_slice(mo->seg_slot, 0, 0, n_segments),
    };
    for (int32_t g = 0; g < mo->n_groups; g++) {
        c->rows[g] = (vt_rows){
            .pos = vt_tensor_slice(mo->pos, 0, 0, n_rows),
            .row_seg = vt_tensor_slice(mo->row_seg, 0, 0, n_rows),
            .pages = vt_tensor_2d(mo->pages[g].data, VT_I32, q->device, n_segments, max_pages),
        };
    }
}

static status observe(block_ctx *c, int layer) {
    const model *mo = c->m;
    if (mo->planning || mo->opt.observe == NULL) return STATUS_OK;
    c->m->pass_waited = true;
    TRY(vt_queue_sync(c->q));
    mo->opt.observe(mo->opt.observe_ctx, layer, &mo->x);
    return STATUS_OK;
}

static status run_layers(block_ctx *c) {
    model *mo = c->m;
    mo->ws_used = 0;
    TRY(ws_take(c, VT_F32, c->n_rows, mo->hp.n_embd, &mo->x));
    if (mo->has_links) TRY(ws_take(c, VT_F32, c->n_rows, mo->hp.n_embd, &c->ahead));
    TRY(mo->arch->embed(c, mo->x));
    TRY(observe(c, 0));
    for (int l = 0; l < (int)mo->hp.n_layers; l++) {
        const status rc = mo->arch->layer(c, l, mo->x);
        if (rc != STATUS_OK) {
            error_prefix(c->err, "layer %d", l);
            return rc;
        }
        TRY(observe(c, l + 1));
    }
    return STATUS_OK;
}

/* Gathers rows of the residual stream and computes their logits on top of it in the workspace. */
static status run_head(block_ctx *c, const vt_tensor *rows, vt_tensor *logits) {
    model *mo = c->m;
    const int64_t n = rows->dim[0];
    vt_tensor x;
    TRY(ws_take(c, VT_F32, n, mo->hp.n_vocab, logits));
    TRY(ws_take(c, VT_F32, n, mo->hp.n_embd, &x));
    TRY(vt_gather_rows(c->q, &x, &mo->x, rows, c->err));
    c->n_rows = (int32_t)n;
    return mo->arch->head(c, x, *logits);
}

/* The most likely id of each row. */
static status run_best(block_ctx *c, const vt_tensor *logits, vt_tensor *best) {
    TRY(ws_take(c, VT_I32, 1, logits->dim[0], best));
    *best = vt_tensor_1d(best->data, VT_I32, best->device, best->dim[1]);
    return vt_argmax(c->q, best, logits, c->err);
}

/* The rows as block_head sees them behind the final norm. */
static status run_hidden(block_ctx *c, const vt_tensor *rows, vt_tensor *x) {
    TRY(ws_take(c, VT_F32, rows->dim[0], c->m->hp.n_embd, x));
    TRY(vt_gather_rows(c->q, x, &c->m->x, rows, c->err));
    c->n_rows = (int32_t)rows->dim[0];
    return block_norm(c, *x, *x, W_FINAL_NORM, -1);
}

/* ---- plan ---- */

/*
 * Where the step's integers live in the meta buffer, and alike in its image on the host; data stays NULL while planning. Close together, so that a step is one copy. The rows of the head
 * come first: they are sent on their own.
 */
static size_t lay_out_meta(model *mo, vt_device_id dev, char *base, int64_t n_rows, int64_t n_segments, int64_t n_pages) {
    size_t off = 0;
    struct { vt_tensor *t; int64_t d0, d1; } parts[5 + STEP_MAX_GROUPS] = {
        {&mo->head_rows, mo->opt.max_head_rows, 0},
        {&mo->ids, n_rows, 0},
        {&mo->pos, n_rows, 0},
        {&mo->row_seg, n_rows, 0},
        {&mo->seg_slot, n_segments, 0},
    };
    int n_parts = 5;
    for (int32_t g = 0; g < mo->n_groups; g++, n_parts++) {
        parts[n_parts].t = &mo->pages[g];
        parts[n_parts].d0 = n_segments;
        parts[n_parts].d1 = n_pages;
    }
    for (int i = 0; i < n_parts; i++) {
        void *data = base != NULL ? base + off : NULL;
        const int64_t elems = parts[i].d1 > 0 ? parts[i].d0 * parts[i].d1 : parts[i].d0;
        *parts[i].t = parts[i].d1 > 0 ? vt_tensor_2d(data, VT_I32, dev, parts[i].d0, parts[i].d1) : vt_tensor_1d(data, VT_I32, dev, parts[i].d0);
        off += ((size_t)elems * sizeof(int32_t) + DEVICE_ALIGN - 1) / DEVICE_ALIGN * DEVICE_ALIGN;
    }
    return off;
}

static size_t lay_out_largest(model *mo, vt_device_id dev, char *base) { return lay_out_meta(mo, dev, base, mo->opt.max_rows, mo->opt.max_segments, mo->opt.max_pages); }

/* Recurrent states, one after the other, a row per sequence slot. */
static size_t lay_out_states(model *mo, vt_device_id dev, char *base) {
    size_t off = 0;
    for (int64_t i = 0; i < mo->hp.n_layers * MODEL_STATES_PER_LAYER; i++) {
        model_state *st = &mo->states[i];
        if (st->n_elems == 0) continue;
        st->t = vt_tensor_2d(base != NULL ? base + off : NULL, VT_F32, dev, mo->opt.max_segments, st->n_elems);
        off += ((size_t)(mo->opt.max_segments * st->n_elems) * sizeof(float) + DEVICE_ALIGN - 1) / DEVICE_ALIGN * DEVICE_ALIGN;
    }
    return off;
}

static void place_for_plan(model *mo, vt_device_id dev) {
    for (int32_t r = 0; r < mo->n_ropes; r++) mo->ropes[r].inv_freq = vt_tensor_1d(NULL, VT_F32, dev, mo->ropes[r].n_rot / 2);
    for (int l = 0; l < (int)mo->hp.n_layers; l++) {
        const kv_group *g = &mo->groups[mo->layers[l].kv_group];
        const vt_tensor cache = vt_tensor_4d(NULL, mo->opt.kv_dtype, dev, 1, g->n_kv_heads, mo->opt.page_tokens, g->head_dim);
        model_set_cache(mo, l, cache, cache);
    }
    (void)lay_out_states(mo, dev, NULL);
    const size_t n = (size_t)mo->arch->n_slots * ((size_t)mo->hp.n_layers + 1);
    for (size_t i = 0; i < n; i++) mo->weights[i].device = mo->scales[i].t.device = dev;
}

static bool is_table(const arch *a, int slot) {
    for (size_t i = 0; i < a->n_weights; i++) {
        if (a->weights[i].slot == slot && (a->weights[i].flags & WEIGHT_TABLE) != 0) return true;
    }
    return false;
}

static size_t device_bytes(size_t n) { return (n + DEVICE_ALIGN - 1) / DEVICE_ALIGN * DEVICE_ALIGN; }

static size_t on_device(const tensor_info *t) { return device_bytes((size_t)t->n_bytes); }

/* A file may put a tensor at any byte. */
static bool is_aligned(vt_dtype t, uint64_t address) { return address % vt_dtype_alignment(t) == 0; }

static size_t sinks_bytes(int64_t n) { return device_bytes((size_t)n * sizeof(float)); }

static void count_one(model *mo, const tensor_info *t, bool read) {
    mo->plan_weight_bytes += on_device(t);
    if (source_is_mapped(mo->src) && !is_aligned(t->dtype, t->off)) mo->plan_copy_bytes += on_device(t);
    if (read) mo->weights_read_bytes += (size_t)t->n_bytes;
}

/* Bytes of the weights: all of them, those to be copied, and what one decoded row reads (of a table: one row, not counted). */
static status count_weights(model *mo, error *err) {
    const bool tied = model_weight(mo, W_HEAD, -1)->n_dims == 0;
    bool q8_possible = false;
    mo->plan_weight_bytes = mo->plan_copy_bytes = mo->weights_read_bytes = 0;
    for (int slot = 0; slot < mo->arch->n_slots; slot++) {
        for (int l = -1; l < (int)mo->hp.n_layers; l++) {
            const bound_weight *b = binding_get(mo->binding, slot, l);
            if (b == NULL || b->info == NULL || W_IS_EXPERT(slot)) continue;
            if (slot == W_SINKS) {
                mo->plan_weight_bytes += sinks_bytes(b->view.dim[0]);
                mo->plan_copy_bytes += sinks_bytes(b->view.dim[0]);
                continue;
            }
            if (model_is_widened(mo, slot, b)) {
                size_t wide;
                if (!model_widened_bytes(b, &wide)) return error_set(err, STATUS_FORMAT, "model: %s is too large in F32", b->info->name);
                mo->plan_weight_bytes += device_bytes(wide);
                mo->plan_copy_bytes += device_bytes(wide);
            }
            count_one(mo, b->info, slot == W_EMBED ? tied : !is_table(mo->arch, slot));
            if (b->scale != NULL) count_one(mo, b->scale, true);
            const vt_dtype q8 = vt_dtype_q8_activation(b->info->dtype);
            if (q8 != VT_F32 && q8 != VT_NONE) q8_possible = true;
        }
    }
    for (int l = 0; l < (int)mo->hp.n_layers; l++) {
        const expert_layer *el = &mo->moe->bank.layers[l];
        mo->weights_read_bytes += (size_t)el->top_k * el->file_bytes;
        for (int p = 0; p < el->n_parts; p++) {
            const vt_dtype q8 = vt_dtype_q8_activation(el->parts[p].view.dtype);
            if (q8 != VT_F32 && q8 != VT_NONE) q8_possible = true;
        }
    }
    if (mo->opt.act == ACT_Q8 && !q8_possible) {
        return error_set(err, STATUS_INVALID, "model: --act q8 needs block weights; this checkpoint has none that products with Q8 activations exist for");
    }
    return STATUS_OK;
}

/* What the recorded products multiply with what. */
static status list_activations(model *mo, error *err) {
    size_t used = 0;
    bool bf16 = false;
    mo->activations[0] = 0;
    for (int32_t i = 0; i < mo->recorder.n; i++) {
        const vt_need *need = &mo->recorder.needs[i];
        if (need->op != VT_OP_MATMUL_BT && need->op != VT_OP_MATMUL_BT_SEVERAL && need->op != VT_OP_MATMUL_BT_GATED && need->op != VT_OP_MATMUL_BT_SCALED && need->op != VT_OP_MATMUL_KN) continue;
        const vt_dtype a = (vt_dtype)need->sig.dtype[0], w = (vt_dtype)need->sig.dtype[1];
        char one[64];
        snprintf(one, sizeof one, "%s x %s", vt_dtype_name(a), vt_dtype_name(w));
        bf16 = bf16 || a == VT_BF16;
        if (strstr(mo->activations, one) != NULL || used + strlen(one) + 3 > sizeof mo->activations) continue;
        used += (size_t)snprintf(mo->activations + used, sizeof mo->activations - used, "%s%s", used > 0 ? ", " : "", one);
    }
    if (mo->opt.act != ACT_BF16 || bf16) return STATUS_OK;
    return error_set(err, STATUS_UNSUPPORTED, "model: --act bf16 needs weights that products with BF16 activations exist for on this device; this checkpoint has none");
}

status model_plan(model *mo, vt_queue *queue, const model_options *opt, error *err) {
    mo->opt = *opt;
    mo->queue = queue;
    TRY(count_weights(mo, err));
    if (mo->recorder.needs == NULL) mo->recorder.needs = arena_alloc(mo->arena, MAX_NEEDS * sizeof *mo->recorder.needs);
    if (mo->recorder.needs == NULL) return error_set(err, STATUS_NO_MEMORY, "model: no memory for the plan");
    mo->recorder.n = 0;
    mo->recorder.cap = MAX_NEEDS;
    vt_queue recording = *queue;
    recording.recorder = &mo->recorder;
    block_find_bf16_rows(mo, queue);
    block_find_fused(mo, queue);
    mo->plan_meta_bytes = lay_out_largest(mo, queue->device, NULL);
    place_for_plan(mo, queue->device);

    moe_host_drop(mo);
    mo->capture = NULL;
    if (opt->capture && (queue->caps & VT_CAP_BIT(VT_CAP_CAPTURE)) != 0) {
        mo->capture = arena_calloc(mo->arena, 1, sizeof *mo->capture);
        if (mo->capture == NULL) return error_set(err, STATUS_NO_MEMORY, "model: no memory for the plan");
        mo->capture->on = true;
    }
    block_ctx c;
    vt_tensor logits, best;
    make_ctx(mo, &recording, opt->max_rows, opt->max_segments, opt->max_pages, err, &c);
    mo->planning = true;
    mo->ws_peak = 0;
    status rc = model_plan_widening(&c);
    if (rc == STATUS_OK) rc = run_layers(&c);
    if (rc == STATUS_OK) rc = run_head(&c, &mo->head_rows, &logits);
    if (rc == STATUS_OK) rc = run_best(&c, &logits, &best);
    mo->planning = false;
    TRY(rc);
    TRY(list_activations(mo, err));
    mo->plan_workspace_bytes = mo->ws_peak;
    mo->plan_state_bytes = lay_out_states(mo, queue->device, NULL);
    TRY(moe_host_ask(mo, err));
    return vt_can_run_all(queue, mo->recorder.needs, mo->recorder.n, err);
}

/* ---- commit ---- */

/* Sinks are used in F32 whatever they are stored in: a few numbers per layer, widened into the weight buffer. */
static status commit_sinks(model *mo, const tensor_info *info, size_t *off, vt_tensor *t, error *err) {
    char data[SINKS_MAX * sizeof(float)];
    float wide[SINKS_MAX];
    if (t->dim[0] > SINKS_MAX || info->n_bytes > sizeof data) {
        return error_set(err, STATUS_UNSUPPORTED, "model: %s has %lld heads; %d is the most", info->name, (long long)t->dim[0], SINKS_MAX);
    }
    TRY(source_read(mo->src, info, 0, info->n_bytes, data, err));
    source_note_progress(mo->src, info->n_bytes);
    for (int64_t i = 0; i < t->dim[0]; i++) {
        uint16_t h = 0;
        if (info->dtype == VT_F32)
            memcpy(&wide[i], data + i * 4, 4);
        else
            memcpy(&h, data + i * 2, 2);
        if (info->dtype != VT_F32) wide[i] = info->dtype == VT_F16 ? vt_f16_to_f32(h) : vt_bf16_to_f32(h);
    }
    t->data = (char *)mo->weight_buf.data + *off;
    *off += sinks_bytes(t->dim[0]);
    const status rc = vt_copy(mo->queue, t->data, wide, (size_t)t->dim[0] * sizeof(float));
    return rc == STATUS_OK ? vt_queue_sync(mo->queue) : error_set(err, rc, "model: copying %s to the device failed", info->name);
}

/* One tensor in place, or copied to *off of the weight buffer. up: how a device that cannot read host memory gets it; NULL: one that can. */
static status commit_tensor(model *mo, const tensor_info *info, staged_upload *up, size_t *off, vt_tensor *t, error *err) {
    const void *data = NULL;
    if (up == NULL) TRY(source_data(mo->src, info, &data, err));
    if (up == NULL && is_aligned(info->dtype, (uintptr_t)data)) {
        t->data = (void *)(uintptr_t)data; /* kernels only read weights */
        return STATUS_OK;
    }
    t->data = (char *)mo->weight_buf.data + *off;
    *off += on_device(info);
    if (up != NULL) return staged_upload_range(up, info, 0, info->n_bytes, t->data, err);
    const status rc = vt_copy(mo->queue, t->data, data, (size_t)info->n_bytes);
    return rc == STATUS_OK ? rc : error_set(err, rc, "model: copying %s to the device failed", info->name);
}

/* The stored form, then its F32 form behind it. */
static status commit_widened(model *mo, const bound_weight *b, staged_upload *up, size_t *off, vt_tensor *t, error *err) {
    size_t wide;
    vt_tensor narrow = b->view;
    narrow.device = t->device;
    if (!model_widened_bytes(b, &wide)) return error_set(err, STATUS_FORMAT, "model: %s is too large in F32", b->info->name);
    TRY(commit_tensor(mo, b->info, up, off, &narrow, err));
    t->data = (char *)mo->weight_buf.data + *off;
    *off += device_bytes(wide);
    return model_widen(mo, b, narrow, *t, err);
}

static status commit_slots(model *mo, staged_upload *up, error *err) {
    const size_t n_layers = (size_t)mo->hp.n_layers;
    size_t off = 0;
    for (int slot = 0; slot < mo->arch->n_slots; slot++) {
        for (int l = -1; l < (int)n_layers; l++) {
            const bound_weight *b = binding_get(mo->binding, slot, l);
            if (b == NULL || b->info == NULL || W_IS_EXPERT(slot)) continue;
            const size_t i = (size_t)slot * (n_layers + 1) + (size_t)(l + 1);
            if (model_is_widened(mo, slot, b)) {
                TRY(commit_widened(mo, b, up, &off, &mo->weights[i], err));
                continue;
            }
            TRY(slot == W_SINKS ? commit_sinks(mo, b->info, &off, &mo->weights[i], err) : commit_tensor(mo, b->info, up, &off, &mo->weights[i], err));
            if (b->scale != NULL) TRY(commit_tensor(mo, b->scale, up, &off, &mo->scales[i].t, err));
        }
    }
    return STATUS_OK;
}

static status commit_weights(model *mo, bool alias, error *err) {
    const size_t bytes = alias ? mo->plan_copy_bytes : mo->plan_weight_bytes;
    if (bytes > 0) TRY(vt_buffer_alloc(mo->device, MEM_WEIGHTS, bytes, "weights", &mo->weight_buf, err));
    if (alias) return commit_slots(mo, NULL, err);
    staged_upload up;
    status rc = staged_upload_begin(&up, mo->src, mo->queue, bytes, err);
    if (rc == STATUS_OK) rc = commit_slots(mo, &up, err);
    const status end = staged_upload_end(&up, rc == STATUS_OK ? err : NULL);
    return rc == STATUS_OK ? end : rc;
}

/* The checkpoint's own divisors of the first table's frequencies. */
static status divide_frequencies(model *mo, const bound_weight *factors, error *err) {
    enum { CHUNK = 256 };
    float f[CHUNK];
    const int64_t n = mo->ropes[0].n_rot / 2;
    if (factors->info->dtype != VT_F32) return error_set(err, STATUS_UNSUPPORTED, "model: %s has type %s; f32 is expected", factors->info->name, factors->info->type_name);
    for (int64_t i = 0; i < n; i++) {
        const int64_t k = i % CHUNK, left = n - i;
        if (k == 0) TRY(source_read(mo->src, factors->info, (uint64_t)i * sizeof *f, (uint64_t)(left < CHUNK ? left : CHUNK) * sizeof *f, f, err));
        if (!(f[k] > 0)) return error_set(err, STATUS_FORMAT, "model: %s[%lld] is not positive", factors->info->name, (long long)i);
        mo->rope_host[0][i] /= f[k];
    }
    return STATUS_OK;
}

/* Rotary tables; a checkpoint's own divisors (W_ROPE_FACTORS) apply to the first. */
static status commit_ropes(model *mo, error *err) {
    size_t bytes = 0, off = 0;
    for (int32_t r = 0; r < mo->n_ropes; r++) bytes += ((size_t)mo->ropes[r].n_rot / 2 * sizeof(float) + DEVICE_ALIGN - 1) / DEVICE_ALIGN * DEVICE_ALIGN;
    if (bytes == 0) return STATUS_OK;
    const bound_weight *factors = binding_get(mo->binding, W_ROPE_FACTORS, -1);
    if (factors != NULL && factors->info != NULL) TRY(divide_frequencies(mo, factors, err));
    TRY(vt_buffer_alloc(mo->device, MEM_MODEL, bytes, "rotary tables", &mo->rope_buf, err));
    for (int32_t r = 0; r < mo->n_ropes; r++) {
        const size_t n = (size_t)mo->ropes[r].n_rot / 2 * sizeof(float);
        mo->ropes[r].inv_freq.data = (char *)mo->rope_buf.data + off;
        const status rc = vt_copy(mo->queue, mo->ropes[r].inv_freq.data, mo->rope_host[r], n);
        if (rc != STATUS_OK) return error_set(err, rc, "model: copying rotary tables to the device failed");
        off += (n + DEVICE_ALIGN - 1) / DEVICE_ALIGN * DEVICE_ALIGN;
    }
    return STATUS_OK;
}

status model_commit(model *mo, vt_device *device, error *err) {
    mo->device = device;
    const bool host = (vt_device_caps(device) & VT_CAP_BIT(VT_CAP_HOST_ADDRESSABLE)) != 0;
    const vt_device_id dev = vt_device_get_id(device);
    TRY(vt_buffer_alloc(device, MEM_ACTIVATIONS, mo->plan_workspace_bytes, "the step's workspace", &mo->workspace, err));
    TRY(vt_buffer_alloc(device, MEM_ACTIVATIONS, mo->plan_meta_bytes, "the step's page tables", &mo->meta_buf, err));
    TRY(vt_buffer_alloc_host(device, MEM_STAGING, mo->plan_meta_bytes, "step staging", &mo->meta_host, err));
    (void)lay_out_largest(mo, dev, mo->meta_buf.data);
    if (!host) TRY(vt_buffer_alloc_host(device, MEM_STAGING, model_logits_bytes(mo), "logits on the host", &mo->host_logits, err));
    if (mo->plan_state_bytes > 0) {
        TRY(vt_buffer_alloc(device, MEM_KV, mo->plan_state_bytes, "recurrent states", &mo->state_buf, err));
        (void)lay_out_states(mo, dev, mo->state_buf.data);
        const status rc = vt_fill(mo->queue, mo->state_buf.data, 0, mo->plan_state_bytes);
        if (rc != STATUS_OK) return error_set(err, rc, "model: the recurrent states cannot be cleared");
    }
    TRY(commit_weights(mo, host, err));
    TRY(commit_ropes(mo, err));
    TRY(model_moe_commit(mo, err));
    if (mo->arch->prepare != NULL) TRY(mo->arch->prepare(mo, err));
    const status rc = vt_queue_sync(mo->queue);
    return rc == STATUS_OK ? rc : error_set(err, rc, "model: a copy to the device failed");
}

/* ---- run ---- */

/* The place of a tensor of the meta buffer in its image on the host. */
static int32_t *image(const model *mo, const vt_tensor *t) {
    return (int32_t *)(void *)((char *)mo->meta_host.data + ((const char *)t->data - (const char *)mo->meta_buf.data));
}

/* Page tables into rows of `width`; no row of a segment looks behind its own. */
static void copy_pages(int32_t *to, int32_t width, const int32_t *from, int32_t n, int32_t n_segments) {
    for (int32_t i = 0; i < n_segments; i++) {
        memcpy(to + (size_t)i * (size_t)width, from + (size_t)i * (size_t)n, (size_t)n * sizeof *to);
        for (int32_t p = n; p < width; p++) to[(size_t)i * (size_t)width + (size_t)p] = -1;
    }
}

/* The step as one copy. The image may be written: whatever was sent before is there, since every step and every head ends with a wait. */
static status upload_step(model *mo, const step *s) {
    const int32_t width = mo->step_pages = model_capture_pages(mo, s);
    const size_t n = (size_t)s->n_rows, end = lay_out_meta(mo, mo->queue->device, mo->meta_buf.data, s->n_rows, s->n_segments, width);
    const void *from = s->n_head_rows > 0 ? mo->meta_buf.data : mo->ids.data;
    if (s->n_head_rows > 0) memcpy(image(mo, &mo->head_rows), s->head_rows, (size_t)s->n_head_rows * sizeof *s->head_rows);
    memcpy(image(mo, &mo->ids), s->ids, n * sizeof *s->ids);
    memcpy(image(mo, &mo->pos), s->pos, n * sizeof *s->pos);
    int32_t *row_seg = image(mo, &mo->row_seg), *slots = image(mo, &mo->seg_slot);
    for (int32_t i = 0; i < s->n_segments; i++) {
        slots[i] = s->segments[i].seq_slot;
        for (int32_t r = 0; r < s->segments[i].n_rows; r++) row_seg[s->segments[i].first_row + r] = i;
    }
    for (int32_t g = 0; g < mo->n_groups; g++) copy_pages(image(mo, &mo->pages[g]), width, s->pages[g], s->max_pages, s->n_segments);
    const size_t first = (size_t)((const char *)from - (const char *)mo->meta_buf.data);
    return vt_copy(mo->queue, (char *)mo->meta_buf.data + first, (const char *)mo->meta_host.data + first, end - first);
}

/* After a failure: nothing that was queued runs on, and no expert is leased or believed that may not have arrived. */
static status give_up(model *mo, status rc) {
    (void)!vt_queue_sync(mo->queue);
    if (mo->moe->store != NULL) mo->moe->store->cancel(mo->moe->store);
    return rc;
}

/* Queues all layers, and the head where the step carries rows for it. */
static status queue_pass(model *mo, const step *s, error *err) {
    block_ctx c;
    make_ctx(mo, mo->queue, s->n_rows, s->n_segments, mo->step_pages, err, &c);
    TRY(run_layers(&c));
    if (s->n_head_rows == 0) return STATUS_OK;
    const size_t mark = mo->ws_used;
    const vt_tensor rows = vt_tensor_slice(mo->head_rows, 0, 0, s->n_head_rows);
    make_ctx(mo, mo->queue, s->n_head_rows, 1, 1, err, &c);
    TRY(run_head(&c, &rows, &mo->head_logits));
    if (s->best_only) TRY(run_best(&c, &mo->head_logits, &mo->head_best));
    mo->ws_used = mark;
    return STATUS_OK;
}

/* Where results are on the host: the most likely ids lie behind the logits. */
static void *host_best(const model *mo) { return (char *)mo->host_logits.data + model_logits_bytes(mo) - (size_t)mo->opt.max_head_rows * sizeof(int32_t); }

static status queue_results(model *mo, const step *s) {
    if (s->n_head_rows == 0 || mo->host_logits.data == NULL) return STATUS_OK;
    const size_t n = (size_t)s->n_head_rows;
    return s->best_only ? vt_copy(mo->queue, host_best(mo), mo->head_best.data, n * sizeof(int32_t)) : vt_copy(mo->queue, mo->host_logits.data, mo->head_logits.data, n * (size_t)mo->hp.n_vocab * sizeof(float));
}

static status check_step(const model *mo, const step *s, error *err) {
    if (s->n_rows < 1 || s->n_rows > mo->opt.max_rows || s->n_segments < 1 || s->n_segments > mo->opt.max_segments || s->max_pages > mo->opt.max_pages ||
        s->n_groups != mo->n_groups || s->n_head_rows > mo->opt.max_head_rows) {
        return error_set(err, STATUS_BUG, "model: a step of %d rows, %d segments and %d pages exceeds the plan (%d, %d, %d)", s->n_rows, s->n_segments, s->max_pages,
                         mo->opt.max_rows, mo->opt.max_segments, mo->opt.max_pages);
    }
    return STATUS_OK;
}

status model_forward(model *mo, const step *s, error *err) {
    error own = {0};
    if (err == NULL) err = &own; /* what fails one segment is told apart by what it says */
    TRY(check_step(mo, s, err));
    mo->n_head_rows = 0;
    status rc = upload_step(mo, s);
    if (rc != STATUS_OK) return give_up(mo, error_set(err, rc, "model: copying the step to the device failed"));
    model_moe_begin(mo, image(mo, &mo->row_seg), s->n_segments);
    const capture_key key = {.n_rows = s->n_rows, .n_segments = s->n_segments, .max_pages = mo->step_pages, .n_head_rows = s->n_head_rows, .best = s->best_only};
    rc = model_capture_run(mo, model_capture_takes(mo, s) ? &key : NULL, queue_pass, s, err);
    if (rc != STATUS_OK) return give_up(mo, rc);
    rc = queue_results(mo, s);
    if (rc == STATUS_OK) rc = model_choices_queue(mo, s->n_rows);
    if (rc == STATUS_OK) rc = vt_queue_sync(mo->queue); /* what is remembered of these rows (pages, states, experts) is there */
    if (rc != STATUS_OK) return give_up(mo, error_set(err, rc, "model: the device failed in a step (%s)", status_name(rc)));
    mo->n_head_rows = s->n_head_rows;
    mo->head_best_only = s->best_only;
    model_choices_show(mo, s->n_rows);
    return STATUS_OK;
}

/* Whether the last step carried these rows for the head. */
static bool carried(const model *mo, const int32_t *rows, int32_t n, bool best) {
    return n > 0 && mo->n_head_rows == n && mo->head_best_only == best && memcmp(image(mo, &mo->head_rows), rows, (size_t)n * sizeof *rows) == 0;
}

bool model_best(const model *mo, const int32_t *rows, int32_t n, const int32_t **ids) {
    if (!carried(mo, rows, n, true)) return false;
    *ids = mo->host_logits.data != NULL ? host_best(mo) : mo->head_best.data;
    return true;
}

typedef status row_part(block_ctx *c, const vt_tensor *rows, vt_tensor *out);

/* Rows of the last step through the head, or a part of it, to the host. */
static status part_of_rows(model *mo, row_part *part, const int32_t *rows, int32_t n, const float **values, error *err) {
    block_ctx c;
    vt_tensor out;
    const vt_tensor ids = vt_tensor_slice(mo->head_rows, 0, 0, n);
    memcpy(image(mo, &mo->head_rows), rows, (size_t)n * sizeof *rows);
    status rc = vt_copy(mo->queue, ids.data, image(mo, &mo->head_rows), (size_t)n * sizeof *rows);
    if (rc != STATUS_OK) return error_set(err, rc, "model: copying the rows of the head to the device failed");
    make_ctx(mo, mo->queue, n, 1, 1, err, &c);
    TRY(part(&c, &ids, &out));
    *values = out.data;
    if (mo->host_logits.data != NULL) {
        if (out.dim[1] > mo->hp.n_vocab) return error_set(err, STATUS_UNSUPPORTED, "model: rows of %lld and room for %lld on the host", (long long)out.dim[1], (long long)mo->hp.n_vocab);
        *values = mo->host_logits.data;
        rc = vt_copy(mo->queue, mo->host_logits.data, out.data, (size_t)(n * out.dim[1]) * sizeof(float));
    }
    if (rc == STATUS_OK) rc = vt_queue_sync(mo->queue);
    return rc == STATUS_OK ? rc : error_set(err, rc, "model: reading rows from the device failed (%s)", status_name(rc));
}

static status run_rows(model *mo, row_part *part, const int32_t *rows, int32_t n, const float **values, error *err) {
    if (n < 1 || n > mo->opt.max_head_rows) return error_set(err, STATUS_BUG, "model: %d rows exceed the plan of %d", n, mo->opt.max_head_rows);
    const size_t mark = mo->ws_used;
    mo->n_head_rows = 0;
    const status rc = part_of_rows(mo, part, rows, n, values, err);
    mo->ws_used = mark;
    return rc == STATUS_OK ? rc : give_up(mo, rc);
}

status model_head(model *mo, const int32_t *rows, int32_t n, const float **logits, error *err) {
    if (!carried(mo, rows, n, false)) return run_rows(mo, run_head, rows, n, logits, err);
    *logits = mo->host_logits.data != NULL ? mo->host_logits.data : mo->head_logits.data;
    return STATUS_OK;
}

bool model_gives_hidden(const model *mo) { return mo->arch->head == block_head; }

status model_hidden(model *mo, const int32_t *rows, int32_t n, const float **hidden, error *err) { return run_rows(mo, run_hidden, rows, n, hidden, err); }
