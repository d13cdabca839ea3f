/* SPDX-License-Identifier: Apache-2.0 */
/* The mixture-of-experts block. */
#include "model/block_moe.h"

#include <string.h>

enum { BESIDE_ROWS = 64 };

static vt_tensor part_view(const block_ctx *c, const expert_layer *el, int part, const expert_lease *lease) {
    vt_tensor v = el->parts[part].view;
    v.device = c->q->device;
    v.data = lease != NULL ? (void *)(uintptr_t)lease->part[part] : NULL; /* kernels only read weights */
    return v;
}

/* out = x . w^T (+ bias), in whatever form the expert's matrix is stored. */
static status product(block_ctx *c, vt_tensor out, block_act *x, const expert_layer *el, const expert_lease *lease, int w, int scale, int bias, vt_scale_params blocks, bool transposed) {
    const vt_tensor wv = part_view(c, el, w, lease);
    if (scale >= 0) {
        const vt_tensor sv = part_view(c, el, scale, lease);
        TRY(vt_matmul_bt_scaled(c->q, &out, &x->f32, &wv, &sv, blocks, c->err));
    } else if (transposed) {
        TRY(vt_matmul_kn(c->q, &out, &x->f32, &wv, c->err));
    } else {
        TRY(block_linear(c, out, x, &wv, NULL));
    }
    if (bias < 0) return STATUS_OK;
    const vt_tensor bv = part_view(c, el, bias, lease);
    return vt_add(c->q, &out, &out, &bv, c->err);
}

status moe_activate(block_ctx *c, vt_tensor mid, vt_tensor gate_up, const block_moe_params *p, bool interleaved) {
    if (p->activation == MOE_SWIGLU_CLAMP) {
        vt_swiglu_params sp = p->swiglu;
        sp.interleaved = interleaved;
        return vt_swiglu_clamp_and_mul(c->q, &mid, &gate_up, sp, c->err);
    }
    return p->activation == MOE_SILU ? vt_silu_and_mul(c->q, &mid, &gate_up, c->err) : vt_gelu_and_mul(c->q, &mid, &gate_up, c->err);
}

status moe_run_expert(block_ctx *c, int layer, const expert_lease *lease, vt_tensor x, vt_tensor rows, vt_tensor y, const block_moe_params *p) {
    const model_moe *moe = c->m->moe;
    const expert_layer *el = &moe->bank.layers[layer];
    const moe_parts *mp = &moe->parts[layer];
    const size_t mark = ws_mark(c);
    const int64_t n = y.dim[0], ff = c->m->hp.n_ff_exp;
    vt_tensor xe, gate_up, mid;
    TRY(ws_take(c, VT_F32, n, x.dim[1], &xe));
    TRY(ws_take(c, VT_F32, n, 2 * ff, &gate_up));
    TRY(ws_take(c, VT_F32, n, ff, &mid));
    TRY(vt_gather_rows(c->q, &xe, &x, &rows, c->err));
    block_act a = block_act_of(xe), b = block_act_of(mid);
    if (mp->gate_up >= 0) {
        TRY(product(c, gate_up, &a, el, lease, mp->gate_up, mp->gate_up_scale, mp->gate_up_bias, mp->gate_up_blocks, mp->gate_up_transposed));
    } else {
        TRY(product(c, vt_tensor_slice(gate_up, 1, 0, ff), &a, el, lease, mp->gate, mp->gate_scale, mp->gate_bias, mp->gate_blocks, mp->gate_up_transposed));
        TRY(product(c, vt_tensor_slice(gate_up, 1, ff, ff), &a, el, lease, mp->up, mp->up_scale, mp->up_bias, mp->up_blocks, mp->gate_up_transposed));
    }
    TRY(moe_activate(c, mid, gate_up, p, mp->interleaved));
    TRY(product(c, y, &b, el, lease, mp->down, mp->down_scale, mp->down_bias, mp->down_blocks, mp->down_transposed));
    ws_release(c, mark);
    return STATUS_OK;
}

int32_t moe_count_rows(model_moe *moe, int32_t n_pairs, int32_t n_experts) {
    memset(moe->count, 0, (size_t)n_experts * sizeof *moe->count);
    for (int32_t i = 0; i < n_pairs; i++) moe->count[moe->ids[i]]++;
    int32_t n_distinct = 0, at = 0;
    for (int32_t e = 0; e < n_experts; e++) {
        moe->first[e] = at;
        at += moe->count[e];
        if (moe->count[e] > 0) moe->distinct[n_distinct++] = e;
    }
    return n_distinct;
}

/*
 * Pairs (row, expert) get places in the slab: experts ascending, rows ascending within an expert. For each row its places and weights are listed by ascending expert. Returns the
 * number of distinct experts.
 */
static int32_t group_rows(model_moe *moe, int32_t n_rows, int32_t k, int32_t n_experts) {
    const int32_t n_distinct = moe_count_rows(moe, n_rows * k, n_experts);
    memset(moe->count, 0, (size_t)n_experts * sizeof *moe->count); /* counted anew while rows are placed */
    for (int32_t t = 0; t < n_rows; t++) {
        int32_t *order = moe->order;
        for (int32_t j = 0; j < k; j++) {
            int32_t i = j;
            for (; i > 0 && moe->ids[t * k + order[i - 1]] > moe->ids[t * k + j]; i--) order[i] = order[i - 1];
            order[i] = j;
        }
        for (int32_t j = 0; j < k; j++) {
            const int32_t e = moe->ids[t * k + order[j]], place = moe->first[e] + moe->count[e]++;
            moe->pair_row[place] = t;
            moe->index[t * k + j] = place;
            moe->sorted[t * k + j] = moe->weights[t * k + order[j]];
        }
    }
    return n_distinct;
}

/*
 * Leases that queued work still reads go back together, with a fence behind all of it; on a device that has no fences each goes back when its work is done, which is at once. Without a
 * fence that could be recorded the device is waited for.
 */
status moe_release_held(block_ctx *c) {
    model_moe *moe = c->m->moe;
    if (moe->n_held == 0) return STATUS_OK;
    vt_fence *use = &moe->used[moe->next_used];
    moe->next_used = (moe->next_used + 1) % MOE_USE_FENCES;
    status rc = vt_fence_record(c->q, *use);
    const vt_fence last = rc == STATUS_OK ? *use : (vt_fence){0};
    if (rc != STATUS_OK) (void)!vt_queue_sync(c->q);
    while (moe->n_held > 0) moe->store->release(moe->store, &moe->held[--moe->n_held], last);
    return rc == STATUS_OK ? rc : error_set(c->err, rc, "model: the device records no fence behind its experts");
}

/* One expert that may be read once its fence is done. */
static status run_lease(block_ctx *c, int layer, const expert_lease *lease, vt_tensor x, vt_tensor pair_row, vt_tensor slab, const block_moe_params *p) {
    model_moe *moe = c->m->moe;
    if (lease->on_host) return moe_host_run(c, layer, lease, slab, p);
    const int32_t first = moe->first[lease->expert], n = moe->count[lease->expert];
    status rc = lease->ready.handle != NULL ? vt_fence_wait(c->q, lease->ready) : STATUS_OK;
    if (rc != STATUS_OK) error_note(c->err, rc, "model: waiting for expert %d failed", lease->expert);
    if (rc == STATUS_OK) rc = moe_run_expert(c, layer, lease, x, vt_tensor_slice(pair_row, 0, first, n), vt_tensor_slice(slab, 0, first, n), p);
    if (moe->used[0].handle != NULL)
        moe->held[moe->n_held++] = *lease;
    else
        moe->store->release(moe->store, lease, (vt_fence){0});
    return rc;
}

/*
 * An expert that could not be read: the sequences whose rows need it have failed, and go on with zeros in its place, which nobody will look at. Where no other sequence is left the step has
 * failed.
 */
status moe_do_without(block_ctx *c, int32_t expert, vt_tensor slab) {
    model_moe *moe = c->m->moe;
    const int32_t first = moe->first[expert], n = moe->count[expert], k = (int32_t)c->m->hp.n_experts_used;
    for (int32_t i = 0; i < c->n_rows * k; i++) {
        error *failure = &moe->failures[moe->row_seg[i / k]];
        if (moe->ids[i] != expert || failure->code != STATUS_OK) continue;
        *failure = *c->err;
        moe->n_failures++;
    }
    if (moe->n_failures == moe->n_segments) return c->err->code;
    *c->err = (error){0};
    const vt_tensor rows = vt_tensor_slice(slab, 0, first, n);
    const status rc = vt_fill(c->q, rows.data, 0, (size_t)(n * rows.dim[1]) * sizeof(float));
    return rc == STATUS_OK ? rc : error_set(c->err, rc, "model: rows of an expert cannot be cleared");
}

/* Experts of `layer` that the guess names: those that more rows chose first, and among equals those that were named first. */
void moe_give_hint(model_moe *moe, int32_t layer, int32_t n_rows) {
    const expert_layer *el = &moe->bank.layers[layer];
    int32_t n = 0;
    memset(moe->votes, 0, (size_t)el->n_experts * sizeof *moe->votes);
    for (int32_t i = 0; i < n_rows * el->top_k; i++) {
        const int32_t e = moe->guessed[i];
        if (moe->votes[e]++ == 0) moe->hint[n++] = e;
    }
    for (int32_t i = 1; i < n; i++) {
        const int32_t e = moe->hint[i];
        int32_t at = i;
        for (; at > 0 && moe->votes[moe->hint[at - 1]] < moe->votes[e]; at--) moe->hint[at] = moe->hint[at - 1];
        moe->hint[at] = e;
    }
    moe->store->hint(moe->store, layer, moe->hint, n);
}

/* Runs the experts of the step as they become ready. The first failure that is not one expert's gives up the wave. */
static status run_waves(block_ctx *c, int layer, int32_t guessed_layer, int32_t n_distinct, vt_tensor x, vt_tensor pair_row, vt_tensor slab, const block_moe_params *p) {
    model_moe *moe = c->m->moe;
    expert_store *store = moe->store;
    if (store->enter != NULL) store->enter(store, layer);
    if (moe->host != NULL && store->rows != NULL) store->rows(store, moe->count);
    const int32_t n_waves = store->waves(store, layer, moe->distinct, n_distinct, moe->wave);
    int32_t begin = 0;
    for (int32_t w = 0; w < n_waves; w++) {
        TRY(store->begin(store, layer, moe->distinct + begin, moe->wave[w], c->err));
        if (w == n_waves - 1 && guessed_layer >= 0) moe_give_hint(moe, guessed_layer, c->n_rows);
        for (;;) {
            expert_lease lease;
            status rc = store->next_ready(store, &lease, c->err);
            if (rc == STATUS_NOT_FOUND) break;
            if (rc == STATUS_OK)
                rc = run_lease(c, layer, &lease, x, pair_row, slab, p);
            else if (rc == STATUS_IO && lease.expert >= 0)
                rc = moe_do_without(c, lease.expert, slab);
            if (rc != STATUS_OK) {
                (void)!moe_release_held(&(block_ctx){.m = c->m, .q = c->q}); /* the error is the first one */
                store->cancel(store);
                return rc;
            }
        }
        TRY(moe_release_held(c));
        begin += moe->wave[w];
    }
    return STATUS_OK;
}

/* weights: the host takes them too; otherwise their copy would only stand between the choice and what follows from it. */
status moe_read_choice(block_ctx *c, int layer, const moe_choice *choice, bool weights) {
    const model *m = c->m;
    model_moe *moe = m->moe;
    const int32_t n = c->n_rows, k = (int32_t)m->hp.n_experts_used;
    const size_t bytes = (size_t)n * (size_t)k * sizeof(int32_t);
    c->m->pass_waited = true;
    status rc = vt_copy(c->q, moe->ids, choice->ids.data, bytes);
    if (rc == STATUS_OK && choice->guessed_layer >= 0) rc = vt_copy(c->q, moe->guessed, choice->guessed.data, bytes);
    if (rc == STATUS_OK && weights) rc = vt_copy(c->q, moe->weights, choice->weights.data, bytes);
    if (rc == STATUS_OK && moe->host != NULL) TRY(moe_host_read_rows(c, &choice->x));
    if (rc == STATUS_OK) rc = vt_queue_sync(c->q);
    if (rc != STATUS_OK) return error_set(c->err, rc, "model: the router's choice cannot be read from the device");
    if (m->opt.override_routing != NULL) m->opt.override_routing(m->opt.observe_ctx, layer, moe->ids, n, k);
    if (m->opt.observe_routing != NULL) m->opt.observe_routing(m->opt.observe_ctx, layer, moe->ids, weights ? moe->weights : NULL, n, k);
    return STATUS_OK;
}

/* Which rows go where, for the device. The queue reads these lists later: the next layer's wait comes before they change. */
static status send_groups(block_ctx *c, const vt_tensor *pair_row, const vt_tensor *index, const vt_tensor *weights, size_t bytes) {
    const model_moe *moe = c->m->moe;
    status rc = vt_copy(c->q, pair_row->data, moe->pair_row, bytes);
    if (rc == STATUS_OK) rc = vt_copy(c->q, index->data, moe->index, bytes);
    if (rc == STATUS_OK) rc = vt_copy(c->q, weights->data, moe->sorted, bytes);
    return rc == STATUS_OK ? rc : error_set(c->err, rc, "model: the experts' rows cannot be copied to the device");
}

static vt_tensor flat(vt_tensor t) { return vt_tensor_1d(t.data, t.dtype, t.device, t.dim[0] * t.dim[1]); }

static status route(block_ctx *c, vt_tensor x_router, int layer, const block_moe_params *p, vt_tensor ids, vt_tensor weights) {
    const size_t mark = ws_mark(c);
    vt_tensor logits;
    TRY(ws_take(c, VT_F32, c->n_rows, c->m->hp.n_experts, &logits));
    block_act a = block_act_of(x_router);
    TRY(block_linear_f32(c, logits, &a, model_weight(c->m, W_ROUTER, layer), model_weight(c->m, W_ROUTER_BIAS, layer)));
    TRY(vt_router_topk(c->q, &ids, &weights, &logits, model_weight(c->m, W_SELECT_BIAS, layer), model_weight(c->m, W_EXPERT_SCALE, layer), p->router, c->err));
    ws_release(c, mark);
    return STATUS_OK;
}

/* The next layer with experts, when a guess of what it will take is of use; -1: none is. */
static int32_t layer_to_guess(const block_ctx *c, int layer) {
    const model *m = c->m;
    expert_store *store = m->moe->store;
    int32_t next = layer + 1;
    while (next < m->hp.n_layers && m->moe->bank.layers[next].n_experts == 0) next++;
    if (!m->opt.guess_experts || next == m->hp.n_layers) return -1;
    if (m->planning) return next;
    return store->wants_hint != NULL && store->wants_hint(store, next, (int64_t)c->n_rows * m->hp.n_experts_used) ? next : -1;
}

/* What the router of `layer` would choose of the residual stream as it is now. */
static status guess(block_ctx *c, int32_t layer, const block_moe_params *p, vt_tensor ids) {
    const size_t mark = ws_mark(c);
    vt_tensor h, weights;
    TRY(ws_take(c, VT_F32, c->n_rows, c->m->hp.n_embd, &h));
    TRY(ws_take(c, VT_F32, c->n_rows, ids.dim[1], &weights));
    TRY(p->router_input != NULL ? p->router_input(c, h, c->m->x, layer) : block_norm(c, h, c->m->x, W_FFN_NORM, layer));
    TRY(route(c, h, layer, p, ids, weights));
    ws_release(c, mark);
    return STATUS_OK;
}

status moe_beside(block_ctx *c, int layer, const block_moe_params *p) { return p->beside != NULL ? p->beside(c, layer, p->beside_ctx) : STATUS_OK; }

status moe_join(block_ctx *c) {
    const status rc = vt_branch(c->q, VT_BRANCH_JOIN);
    return rc == STATUS_OK ? rc : error_set(c->err, rc, "model: the device waits for no branch of its own");
}

status moe_combine(block_ctx *c, vt_tensor out, vt_tensor slab, vt_tensor index, vt_tensor weights, const block_moe_params *p) {
    if (p->branched) TRY(moe_join(c));
    if (p->link == NULL) return vt_moe_combine(c->q, &out, &slab, &index, &weights, c->err);
    block_link link = *p->link;
    link.b = (block_branch){.y = slab, .index = index, .weights = weights, .norm = link.b.norm};
    return block_link_run(c, out, &link);
}

vt_dtype block_moe_feed_dtype(block_ctx *c, int layer) {
    if (c->m->planning) moe_grouped_choose(c, layer);
    return c->m->moe->parts[layer].grouped ? c->m->moe->parts[layer].x_dtype : VT_F32;
}

/* Expert by expert: the choice is read, and grouped by the host. */
static status expert_by_expert(block_ctx *c, vt_tensor out, vt_tensor x, int layer, const block_moe_params *p, const moe_choice *choice) {
    model *m = c->m;
    model_moe *moe = m->moe;
    vt_tensor weights = choice->weights;
    const int32_t k = (int32_t)m->hp.n_experts_used, n = c->n_rows;
    const int64_t n_pairs = (int64_t)n * k;
    vt_tensor index, pair_row, slab;
    TRY(ws_take(c, VT_I32, n, k, &index));
    TRY(ws_take(c, VT_I32, 1, n_pairs, &pair_row));
    TRY(ws_take(c, VT_F32, n_pairs, x.dim[1], &slab));
    pair_row = flat(pair_row);
    if (m->planning) { /* the most that one expert can ask for: every row */
        TRY(moe_beside(c, layer, p));
        TRY(moe_run_expert(c, layer, NULL, x, vt_tensor_slice(pair_row, 0, 0, n), vt_tensor_slice(slab, 0, 0, n), p));
    } else {
        TRY(moe_read_choice(c, layer, choice, true));
        const int32_t n_distinct = group_rows(moe, n, k, (int32_t)m->hp.n_experts);
        TRY(send_groups(c, &pair_row, &index, &weights, (size_t)n_pairs * sizeof(int32_t)));
        TRY(moe_beside(c, layer, p));
        TRY(run_waves(c, layer, choice->guessed_layer, n_distinct, x, pair_row, slab, p));
    }
    return moe_combine(c, out, slab, index, weights, p);
}

/*
 * The work beside resident experts goes on while their router is still choosing: for few rows, whose kernels leave most of the device idle. What it keeps in the workspace stays its own until
 * the branch is joined. While planning this is the workspace's worst case where all steps are such ones; steps of more rows than twice as many need more than any of them.
 */
static bool goes_beside(const block_ctx *c, int layer, const block_moe_params *p) {
    const model *m = c->m;
    if (p->beside == NULL || m->gated == 0 || m->opt.host_queue != NULL) return false;
    if (m->planning) return c->n_rows <= 3 * BESIDE_ROWS;
    return c->n_rows <= BESIDE_ROWS && m->moe->parts[layer].grouped && moe_resident_tables(m, layer) != NULL && !moe_is_watched(m);
}

static status begin_beside(block_ctx *c, int layer, block_moe_params *p) {
    model *m = c->m;
    const size_t peak = m->ws_peak;
    m->ws_peak = m->ws_used;
    status rc = vt_branch(c->q, VT_BRANCH_BEGIN);
    if (rc != STATUS_OK) error_note(c->err, rc, "model: the device has no branch");
    if (rc == STATUS_OK) {
        rc = p->beside(c, layer, p->beside_ctx);
        const status ended = vt_branch(c->q, VT_BRANCH_END);
        if (rc == STATUS_OK && ended != STATUS_OK) rc = error_set(c->err, ended, "model: the device ends no branch");
    }
    m->ws_used = m->ws_peak;
    if (peak > m->ws_peak) m->ws_peak = peak;
    p->beside = NULL;
    p->branched = true;
    return rc;
}

static status run_moe(block_ctx *c, vt_tensor out, vt_tensor x, vt_tensor x_router, int layer, const block_moe_params *p) {
    model *m = c->m;
    const int64_t k = m->hp.n_experts_used, n = c->n_rows;
    moe_choice choice;
    choice.guessed_layer = layer_to_guess(c, layer);
    choice.x = x;
    if (m->planning && m->opt.host_queue != NULL) TRY(moe_host_plan(c, layer, x, p));
    TRY(ws_take(c, VT_I32, n, k, &choice.ids));
    TRY(ws_take(c, VT_I32, n, k, &choice.guessed));
    TRY(ws_take(c, VT_F32, n, k, &choice.weights));
    void *const kept = model_choices_place(m, layer, c->n_rows);
    if (kept != NULL) choice.ids.data = kept;
    TRY(route(c, x_router, layer, p, choice.ids, choice.weights));
    if (choice.guessed_layer >= 0) TRY(guess(c, choice.guessed_layer, p, choice.guessed));
    if (m->planning) moe_grouped_choose(c, layer);
    return m->moe->parts[layer].grouped ? moe_grouped(c, out, x, layer, p, &choice) : expert_by_expert(c, out, x, layer, p, &choice);
}

status block_moe(block_ctx *c, vt_tensor out, vt_tensor x, vt_tensor x_router, int layer, const block_moe_params *p) {
    const size_t mark = ws_mark(c);
    block_moe_params own = *p;
    status rc = STATUS_OK;
    if (!c->m->planning && c->m->moe->store == NULL) return error_set(c->err, STATUS_BUG, "model: layer %d has experts and no store was attached", layer);
    if (goes_beside(c, layer, p)) rc = begin_beside(c, layer, &own);
    if (rc == STATUS_OK) rc = run_moe(c, out, x, x_router, layer, &own);
    if (rc != STATUS_OK && own.branched) (void)!vt_branch(c->q, VT_BRANCH_JOIN); /* nobody writes what it still reads */
    ws_release(c, mark);
    return rc;
}

static status shared_beside(block_ctx *c, int layer, void *ctx) {
    const vt_tensor *shared = ctx; /* out, x */
    return block_shared_expert(c, shared[0], shared[1], layer);
}

/* The half with experts, behind the attention's y. */
static status experts_half(block_ctx *c, vt_tensor x, vt_tensor y, int layer, const block_moe_params *p, block_ahead ahead) {
    model *m = c->m;
    const int64_t n = c->n_rows, width = m->hp.n_embd;
    const bool has_shared = model_weight(m, W_SHARED_GATE, layer)->n_dims != 0;
    vt_tensor h, shared[2];
    TRY(ws_take(c, VT_F32, n, width, &h));
    block_link first = {.layer = layer, .b = {.y = y, .norm = NO_NORM}, .post = NO_NORM, .n_outs = 1, .out = {{h, W_FFN_NORM, layer, 1.0f}}};
    block_link last = {.layer = layer, .b = {.norm = NO_NORM}, .c = {.norm = NO_NORM}, .post = NO_NORM};
    block_moe_params with = *p;
    with.link = &last;
    vt_tensor to_experts = h;
    if (m->has_links && block_moe_feed_dtype(c, layer) == VT_BF16) { /* the router's form, and another for products */
        TRY(ws_take(c, VT_BF16, n, width, &to_experts));
        first.out[first.n_outs++] = (block_normed){to_experts, W_FFN_NORM, layer, 1.0f};
    }
    if (has_shared) {
        TRY(ws_take(c, VT_F32, n, width, &shared[0]));
        shared[1] = BLOCK_FEED(c, layer, W_SHARED_GATE, W_SHARED_UP, W_SHARED_ROUTER) == VT_BF16 ? to_experts : h;
        last.c.y = shared[0];
        with.beside = shared_beside;
        with.beside_ctx = shared;
    }
    TRY(block_link_run(c, x, &first));
    block_link_ahead(c, &last, ahead);
    return block_moe(c, x, to_experts, h, layer, &with);
}

status block_moe_layer(block_ctx *c, int layer, vt_tensor x, const block_moe_params *p) {
    const size_t mark = ws_mark(c);
    const block_ahead ahead = p->attention != NULL ? AHEAD_F32 : AHEAD_PRODUCTS;
    vt_tensor h, y;
    TRY(ws_take(c, VT_F32, c->n_rows, c->m->hp.n_embd, &y));
    if (p->attention != NULL) {
        const size_t behind = ws_mark(c);
        TRY(block_attention_input(c, x, layer, VT_F32, &h));
        TRY(p->attention(c, y, h, layer));
        ws_release(c, behind);
    } else {
        TRY(block_normed_attention(c, y, x, layer));
    }
    if (layer < c->m->hp.n_dense_layers)
        TRY(block_mlp_half(c, x, y, layer, &(block_half){.act = BLOCK_SILU, .attention_post = NO_NORM, .post = NO_NORM, .ahead = ahead}));
    else
        TRY(experts_half(c, x, y, layer, p, ahead));
    ws_release(c, mark);
    return STATUS_OK;
}

status block_shared_expert(block_ctx *c, vt_tensor out, vt_tensor x, int layer) {
    model *m = c->m;
    const vt_tensor *gate_w = model_weight(m, W_SHARED_ROUTER, layer);
    TRY(block_gated_mlp(c, out, x, layer, W_SHARED_GATE, W_SHARED_UP, W_SHARED_DOWN, model_weight(m, W_SHARED_GATE, layer)->dim[0], BLOCK_SILU));
    if (gate_w->n_dims == 0) return STATUS_OK;
    const size_t mark = ws_mark(c);
    vt_tensor gate;
    TRY(ws_take(c, VT_F32, c->n_rows, 1, &gate));
    block_act a = block_act_of(x);
    TRY(block_linear(c, gate, &a, gate_w, NULL));
    TRY(vt_mul_sigmoid(c->q, &out, &out, &gate, c->err));
    ws_release(c, mark);
    return STATUS_OK;
}
