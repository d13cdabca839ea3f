/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All experts of a layer in a few launches: the router's choice is grouped on the device, and products of all groups go through tables of addresses. Resident experts are never asked for:
 * their tables were made with the store, and the host waits for nothing. Others are leased; those that are there go together, later ones as they arrive.
 */
#include <string.h>

#include "model/block_moe.h"

enum { ARRIVALS = 8 }; /* experts under way that one set of launches waits for */

typedef struct grouped_layer {
    block_ctx *c;
    int layer;
    const block_moe_params *p;
    const expert_layer *el;
    const moe_parts *mp;
    vt_tensor x, first, pair_row, gate_up, mid, slab; /* gate_up: n_dims 0 where the gate is part of the product */
    vt_tensor tables;                                 /* I64 [parts, E] */
    const moe_choice *choice;
    vt_tensor index, sorted;                          /* of moe_group */
    bool joined;                                      /* the branch beside has been waited for */
    bool beside;                                      /* what is to be done beside the experts is queued, and the rows are grouped */
} grouped_layer;

/* ---- which ops ---- */

static bool has(const block_ctx *c, vt_op op, vt_dtype x, vt_dtype w, vt_dtype last) {
    error unused = {0};
    return vt_can_run(c->q, op, vt_sig_make(x, w, last), &unused) == STATUS_OK;
}

/* What the product with this part takes: F32, BF16, or a Q8 form, which no grouped product has. */
static vt_dtype form_of(const block_ctx *c, const expert_layer *el, int part, int scale, bool transposed) {
    const vt_dtype w = el->parts[part].view.dtype;
    if (scale >= 0) return block_act_dtype(c, VT_OP_MATMUL_GROUPED_SCALED, w, el->parts[scale].view.dtype);
    return block_act_dtype(c, transposed ? VT_OP_MATMUL_KN : VT_OP_MATMUL_BT, w, VT_F32);
}

static bool part_can(const block_ctx *c, const expert_layer *el, int part, int scale, vt_dtype x, bool transposed) {
    if (part < 0) return true;
    const vt_dtype w = el->parts[part].view.dtype;
    if (form_of(c, el, part, scale, transposed) != x) return false;
    return scale >= 0 ? has(c, VT_OP_MATMUL_GROUPED_SCALED, x, w, el->parts[scale].view.dtype) : has(c, VT_OP_MATMUL_GROUPED, x, w, VT_F32);
}

static bool same_view(const vt_tensor *a, const vt_tensor *b) {
    return a->dtype == b->dtype && a->n_dims == b->n_dims && memcmp(a->dim, b->dim, sizeof a->dim) == 0 && memcmp(a->stride, b->stride, sizeof a->stride) == 0;
}

/* The gate within the product: one matrix of both, or two of one form without biases. */
static bool gate_can(const block_ctx *c, const expert_layer *el, const moe_parts *mp) {
    const int w = mp->gate_up >= 0 ? mp->gate_up : mp->gate;
    if (mp->gate_up_scale >= 0 || mp->gate_scale >= 0 || mp->up_scale >= 0) return false;
    if (mp->gate_up < 0 && (mp->gate_bias >= 0 || mp->up_bias >= 0 || mp->interleaved || !same_view(&el->parts[mp->gate].view, &el->parts[mp->up].view))) return false;
    return mp->mid_dtype == mp->x_dtype && has(c, VT_OP_MATMUL_GROUPED_GATED, mp->x_dtype, el->parts[w].view.dtype, mp->mid_dtype);
}

void moe_grouped_choose(block_ctx *c, int layer) {
    model_moe *moe = c->m->moe;
    const expert_layer *el = &moe->bank.layers[layer];
    moe_parts *mp = &moe->parts[layer];
    const bool wanted = c->m->opt.group_experts || (c->q->caps & VT_CAP_BIT(VT_CAP_HOST_ADDRESSABLE)) == 0;
    const int first = mp->gate_up >= 0 ? mp->gate_up : mp->gate;
    mp->x_dtype = form_of(c, el, first, mp->gate_up >= 0 ? mp->gate_up_scale : mp->gate_scale, mp->gate_up_transposed);
    mp->mid_dtype = form_of(c, el, mp->down, mp->down_scale, mp->down_transposed);
    mp->grouped = wanted && has(c, VT_OP_MOE_GROUP, VT_F32, VT_NONE, VT_NONE) && part_can(c, el, mp->gate, mp->gate_scale, mp->x_dtype, mp->gate_up_transposed) &&
                  part_can(c, el, mp->up, mp->up_scale, mp->x_dtype, mp->gate_up_transposed) && part_can(c, el, mp->gate_up, mp->gate_up_scale, mp->x_dtype, mp->gate_up_transposed) &&
                  part_can(c, el, mp->down, mp->down_scale, mp->mid_dtype, mp->down_transposed);
    mp->gated = mp->grouped && gate_can(c, el, mp);
    moe->any_grouped |= mp->grouped;
}

const void *moe_resident_tables(const model *mo, int layer) {
    const expert_store *store = mo->moe->store;
    return store != NULL && store->tables != NULL ? store->tables(store, layer) : NULL;
}

bool moe_is_watched(const model *mo) { return mo->opt.override_routing != NULL || (mo->opt.observe_routing != NULL && !mo->opt.observe_only_read); }

/* ---- launches ---- */

static vt_tensor table_of(const grouped_layer *g, int part) {
    vt_tensor t = vt_tensor_slice(g->tables, 0, part, 1);
    return vt_tensor_1d(t.data, VT_I64, t.device, t.dim[1]);
}

static vt_tensor view_of(const grouped_layer *g, int part) {
    vt_tensor v = g->el->parts[part].view;
    v.device = g->c->q->device;
    return v;
}

static vt_grouped_weights weights_of(const grouped_layer *g, int w, int scale, int bias, bool transposed) {
    vt_grouped_weights r = {.w = view_of(g, w), .table = table_of(g, w)};
    if (transposed) {
        const vt_tensor v = r.w;
        r.w.dim[0] = v.dim[1], r.w.dim[1] = v.dim[0];
        r.w.stride[0] = v.stride[1], r.w.stride[1] = v.stride[0];
    }
    if (scale >= 0) r.scale = view_of(g, scale), r.scale_table = table_of(g, scale);
    if (bias >= 0) r.bias = view_of(g, bias), r.bias_table = table_of(g, bias);
    return r;
}

static status product(const grouped_layer *g, vt_tensor out, const vt_grouped_rows *rows, int w, int scale, int bias, vt_scale_params blocks, bool transposed) {
    const vt_grouped_weights weights = weights_of(g, w, scale, bias, transposed);
    const vt_grouped_params p = {.max_rows = g->c->n_rows, .blocks = blocks};
    return scale >= 0 ? vt_matmul_grouped_scaled(g->c->q, &out, rows, &weights, p, g->c->err) : vt_matmul_grouped(g->c->q, &out, rows, &weights, p, g->c->err);
}

static status gated_product(const grouped_layer *g, const vt_grouped_rows *rows) {
    static const vt_gate gates[] = {[MOE_SILU] = VT_GATE_SILU, [MOE_GELU] = VT_GATE_GELU, [MOE_SWIGLU_CLAMP] = VT_GATE_SWIGLU_CLAMP};
    const moe_parts *mp = g->mp;
    const bool apart = mp->gate_up < 0;
    vt_grouped_weights weights = weights_of(g, apart ? mp->gate : mp->gate_up, -1, apart ? -1 : mp->gate_up_bias, mp->gate_up_transposed);
    if (apart) weights.up_table = table_of(g, mp->up);
    vt_grouped_params p = {.max_rows = g->c->n_rows, .gate = gates[g->p->activation], .swiglu = g->p->swiglu};
    p.swiglu.interleaved = mp->interleaved;
    return vt_matmul_grouped_gated(g->c->q, &g->mid, rows, &weights, p, g->c->err);
}

/* What has arrived in part is all there before the last product. */
static status await_rest(const grouped_layer *g, const expert_lease *leases, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        const status rc = leases[i].early.handle != NULL ? vt_fence_wait(g->c->q, leases[i].ready) : STATUS_OK;
        if (rc != STATUS_OK) return error_set(g->c->err, rc, "model: waiting for expert %d failed", leases[i].expert);
    }
    return STATUS_OK;
}

/* The groups whose addresses are in the tables; of the places only begin .. begin + n - 1 are theirs. leases: those that they came with, of which some parts may be on their way. */
static status launch(grouped_layer *g, int64_t begin, int64_t n, const expert_lease *leases, int32_t n_leases) {
    const moe_parts *mp = g->mp;
    const vt_grouped_rows chosen = {.x = g->x, .first = g->first, .pair_row = g->pair_row}, in_place = {.x = g->mid, .first = g->first};
    const int64_t ff = g->mid.dim[1];
    if (mp->gated) {
        TRY(gated_product(g, &chosen));
    } else {
        if (mp->gate_up >= 0) {
            TRY(product(g, g->gate_up, &chosen, mp->gate_up, mp->gate_up_scale, mp->gate_up_bias, mp->gate_up_blocks, mp->gate_up_transposed));
        } else {
            TRY(product(g, vt_tensor_slice(g->gate_up, 1, 0, ff), &chosen, mp->gate, mp->gate_scale, mp->gate_bias, mp->gate_blocks, mp->gate_up_transposed));
            TRY(product(g, vt_tensor_slice(g->gate_up, 1, ff, ff), &chosen, mp->up, mp->up_scale, mp->up_bias, mp->up_blocks, mp->gate_up_transposed));
        }
        TRY(moe_activate(g->c, vt_tensor_slice(g->mid, 0, begin, n), vt_tensor_slice(g->gate_up, 0, begin, n), g->p, mp->interleaved));
    }
    TRY(await_rest(g, leases, n_leases));
    if (g->p->branched && !g->joined) {
        g->joined = true;
        TRY(moe_join(g->c));
    }
    return product(g, g->slab, &in_place, mp->down, mp->down_scale, mp->down_bias, mp->down_blocks, mp->down_transposed);
}

/* ---- experts that are leased ---- */

static status group(grouped_layer *g) { return vt_moe_group(g->c->q, &g->first, &g->pair_row, &g->index, &g->sorted, &g->choice->ids, &g->choice->weights, g->c->err); }

/* Neither stands between the choice and the copies that it asks for. */
static status beside_once(grouped_layer *g) {
    if (g->beside) return STATUS_OK;
    g->beside = true;
    TRY(group(g));
    return moe_beside(g->c, g->layer, g->p);
}

/* The leases held from n_launched on: their addresses go to the device, and their groups are computed. The host's copy of a table stays until the device has surely read it. */
static status launch_held(grouped_layer *g, int32_t *n_launched) {
    model_moe *moe = g->c->m->moe;
    const size_t n_experts = (size_t)g->el->n_experts, bytes = (size_t)g->el->n_parts * n_experts * sizeof(int64_t);
    int64_t begin = INT64_MAX, end = 0;
    if (*n_launched == moe->n_held) return STATUS_OK;
    TRY(beside_once(g)); /* copies of those that wait are under way */
    if (moe->n_tables == MOE_TABLES) {
        const status rc = vt_queue_sync(g->c->q);
        if (rc != STATUS_OK) return error_set(g->c->err, rc, "model: the device failed while it computed experts");
        moe->n_tables = 0;
    }
    int64_t *table = moe->tables + (size_t)moe->n_tables++ * moe->table_entries;
    memset(table, 0, bytes);
    for (int32_t i = *n_launched; i < moe->n_held; i++) {
        const expert_lease *lease = &moe->held[i];
        const int64_t first = moe->first[lease->expert];
        for (int32_t p = 0; p < g->el->n_parts; p++) table[(size_t)p * n_experts + (size_t)lease->expert] = (int64_t)(uintptr_t)lease->part[p];
        if (first < begin) begin = first;
        if (first + moe->count[lease->expert] > end) end = first + moe->count[lease->expert];
    }
    status rc = vt_copy(g->c->q, g->tables.data, table, bytes); /* in front of the waits: behind them it would wait for copies ahead, too */
    if (rc != STATUS_OK) return error_set(g->c->err, rc, "model: the experts' addresses cannot be copied to the device");
    const int32_t first_held = *n_launched;
    for (; *n_launched < moe->n_held; ++*n_launched) {
        const expert_lease *lease = &moe->held[*n_launched];
        const vt_fence first = lease->early.handle != NULL ? lease->early : lease->ready;
        rc = first.handle != NULL ? vt_fence_wait(g->c->q, first) : STATUS_OK;
        if (rc != STATUS_OK) return error_set(g->c->err, rc, "model: waiting for expert %d failed", lease->expert);
    }
    return launch(g, begin, end - begin, moe->held + first_held, moe->n_held - first_held);
}

static bool is_there(const block_ctx *c, const expert_lease *lease) { return lease->ready.handle == NULL || vt_fence_done(c->m->device, lease->ready); }

/*
 * One wave of n experts: what is there when it is given goes together; what is under way follows, several at a time, and the last by itself, so that little is left to do when it has come.
 * Without fences an expert goes back before the next is asked for.
 */
static status run_wave(grouped_layer *g, int32_t n) {
    model_moe *moe = g->c->m->moe;
    const bool fenced = moe->used[0].handle != NULL;
    int32_t n_launched = 0;
    bool all_there = true; /* of those that wait to be launched */
    for (;;) {
        expert_lease lease;
        const status rc = moe->store->next_ready(moe->store, &lease, g->c->err);
        if (rc == STATUS_NOT_FOUND) break;
        n--;
        if (rc == STATUS_IO && lease.expert >= 0) {
            TRY(moe_do_without(g->c, lease.expert, g->slab));
            continue;
        }
        TRY(rc);
        if (lease.on_host) { /* the device goes on meanwhile */
            status launched = launch_held(g, &n_launched);
            if (launched == STATUS_OK) launched = beside_once(g);
            all_there = true;
            const status ran = moe_host_run(g->c, g->layer, &lease, g->slab, g->p);
            TRY(launched == STATUS_OK ? ran : launched);
            continue;
        }
        const bool there = is_there(g->c, &lease);
        status launched = STATUS_OK;
        if (!there && all_there) launched = launch_held(g, &n_launched);
        if (n_launched == moe->n_held) all_there = true;
        all_there &= there;
        moe->held[moe->n_held++] = lease;
        TRY(launched);
        if (!all_there && (moe->n_held - n_launched == ARRIVALS || n == 1)) TRY(launch_held(g, &n_launched));
        if (fenced) continue;
        TRY(launch_held(g, &n_launched));
        TRY(moe_release_held(g->c));
        n_launched = 0;
    }
    TRY(launch_held(g, &n_launched));
    return moe_release_held(g->c);
}

static status run_waves(grouped_layer *g, int32_t guessed_layer, int32_t n_distinct) {
    model_moe *moe = g->c->m->moe;
    expert_store *store = moe->store;
    if (store->enter != NULL) store->enter(store, g->layer);
    if (moe->host != NULL && store->rows != NULL) store->rows(store, moe->count);
    const int32_t n_waves = store->waves(store, g->layer, moe->distinct, n_distinct, moe->wave);
    int32_t begin = 0;
    for (int32_t w = 0; w < n_waves; w++) {
        TRY(store->begin(store, g->layer, moe->distinct + begin, moe->wave[w], g->c->err));
        if (w == n_waves - 1 && guessed_layer >= 0) moe_give_hint(moe, guessed_layer, g->c->n_rows);
        const status rc = run_wave(g, moe->wave[w]);
        if (rc != STATUS_OK) {
            (void)!moe_release_held(&(block_ctx){.m = g->c->m, .q = g->c->q}); /* the error is the first one */
            store->cancel(store);
            return rc;
        }
        begin += moe->wave[w];
    }
    return STATUS_OK;
}

/* ---- the layer ---- */

/* What the host has to know or may change: for leases, and for those who watch or replay. */
static status choice_on_host(block_ctx *c, int layer, const moe_choice *choice) {
    model *m = c->m;
    model_moe *moe = m->moe;
    const int32_t n = c->n_rows, k = (int32_t)m->hp.n_experts_used;
    const size_t bytes = (size_t)n * (size_t)k * sizeof(int32_t);
    TRY(moe_read_choice(c, layer, choice, !m->opt.observe_only_read));
    if (m->opt.override_routing == NULL) return STATUS_OK;
    const status rc = vt_copy(c->q, choice->ids.data, moe->ids, bytes);
    return rc == STATUS_OK ? rc : error_set(c->err, rc, "model: the replayed choice cannot be copied to the device");
}

status moe_grouped(block_ctx *c, vt_tensor out, vt_tensor x, int layer, const block_moe_params *p, const moe_choice *choice) {
    const vt_tensor ids = choice->ids;
    model *m = c->m;
    model_moe *moe = m->moe;
    grouped_layer g = {.c = c, .layer = layer, .p = p, .el = &moe->bank.layers[layer], .mp = &moe->parts[layer], .choice = choice};
    block_act act = block_act_of(x);
    vt_tensor *form;
    const int64_t n_pairs = ids.dim[0] * ids.dim[1], ff = m->hp.n_ff_exp, n_experts = g.el->n_experts;
    const void *resident = m->planning ? NULL : moe_resident_tables(m, layer);
    TRY(block_act_form(c, &act, g.mp->x_dtype, &form));
    g.x = *form;
    TRY(ws_take(c, VT_I32, 1, n_experts + 1, &g.first));
    TRY(ws_take(c, VT_I32, 1, n_pairs, &g.pair_row));
    TRY(ws_take(c, VT_I32, ids.dim[0], ids.dim[1], &g.index));
    TRY(ws_take(c, VT_F32, ids.dim[0], ids.dim[1], &g.sorted));
    TRY(ws_take(c, VT_F32, n_pairs, x.dim[1], &g.slab));
    TRY(ws_take(c, g.mp->mid_dtype, n_pairs, ff, &g.mid));
    if (!g.mp->gated) TRY(ws_take(c, VT_F32, n_pairs, 2 * ff, &g.gate_up));
    TRY(ws_take(c, VT_I64, g.el->n_parts, n_experts, &g.tables));
    g.first = vt_tensor_1d(g.first.data, VT_I32, g.first.device, n_experts + 1);
    g.pair_row = vt_tensor_1d(g.pair_row.data, VT_I32, g.pair_row.device, n_pairs);
    if (resident != NULL) g.tables.data = (void *)(uintptr_t)resident; /* kernels only read it */

    if (!m->planning && (resident == NULL || moe_is_watched(m))) TRY(choice_on_host(c, layer, choice));
    if (m->planning || resident != NULL) {
        TRY(beside_once(&g));
        TRY(launch(&g, 0, n_pairs, NULL, 0));
    } else {
        moe->n_tables = 0; /* the device has read them: it was waited for */
        TRY(run_waves(&g, choice->guessed_layer, moe_count_rows(moe, c->n_rows * (int32_t)ids.dim[1], (int32_t)n_experts)));
        TRY(beside_once(&g)); /* none could be read */
    }
    block_moe_params rest = *p;
    rest.branched = p->branched && !g.joined;
    return moe_combine(c, out, g.slab, g.index, g.sorted, &rest);
}
