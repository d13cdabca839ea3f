/* SPDX-License-Identifier: Apache-2.0 */
/* Links between the stages of a layer: residual, norms behind what is added and norms in front of what reads it. */
#include "model/block.h"

void block_find_fused(model *m, const vt_queue *q) {
    static const vt_dtype weights[] = {VT_BF16, VT_F16};
    const bool wanted = m->opt.group_experts || (q->caps & VT_CAP_BIT(VT_CAP_HOST_ADDRESSABLE)) == 0; /* the processor's own rows are faster one by one */
    m->has_links = wanted && vt_can_run(q, VT_OP_ADD_NORM, vt_sig_make(VT_F32, VT_NONE, VT_NONE), NULL) == STATUS_OK;
    m->several = m->gated = 0;
    for (int i = 0; wanted && i < 2; i++) {
        if (vt_can_run(q, VT_OP_MATMUL_BT_SEVERAL, vt_sig_make(VT_BF16, weights[i], VT_F32), NULL) == STATUS_OK) m->several |= 1ull << weights[i];
        if (vt_can_run(q, VT_OP_MATMUL_BT_GATED, vt_sig_make(VT_BF16, weights[i], VT_BF16), NULL) == STATUS_OK) m->gated |= 1ull << weights[i];
    }
}

static float or_one(float scale) { return scale != 0.0f ? scale : 1.0f; }

static bool adds_one(const block_ctx *c, int slot, int layer) { return model_weight_transform(c->m, slot, layer) == WEIGHT_NORM_PLUS_ONE; }

/* The weights of one launch share what is added to them; families do not mix. */
static bool is_one_launch(const block_ctx *c, const block_link *l, bool *plus_one) {
    const int slots[] = {l->b.norm, l->c.y.n_dims != 0 ? l->c.norm : NO_NORM, l->post};
    bool found[2] = {false, false};
    for (int i = 0; i < 3; i++) {
        if (slots[i] != NO_NORM) found[adds_one(c, slots[i], l->layer)] = true;
    }
    for (int i = 0; i < l->n_outs; i++) found[adds_one(c, l->out[i].slot, l->out[i].layer)] = true;
    *plus_one = found[1];
    for (int i = 0; i < 3; i++) {
        if (slots[i] != NO_NORM && model_weight(c->m, slots[i], l->layer)->n_dims == 0) return false; /* a norm by no weight */
    }
    return c->m->has_links && !(found[0] && found[1]);
}

static status in_one(block_ctx *c, vt_tensor x, const block_link *l, bool plus_one) {
    const model *m = c->m;
    vt_add_norm_args a = {.x = x, .y = l->b.y, .index = l->b.index, .weights = l->b.weights, .y2 = l->c.y};
    vt_add_norm_params p = {.eps = (float)m->hp.norm_eps, .w_offset = plus_one ? 1.0f : 0.0f, .scale = or_one(l->scale)};
    if (l->b.norm != NO_NORM) a.y_norm = *model_weight(m, l->b.norm, l->layer);
    if (l->c.y.n_dims != 0 && l->c.norm != NO_NORM) a.y2_norm = *model_weight(m, l->c.norm, l->layer);
    if (l->post != NO_NORM) a.post_norm = *model_weight(m, l->post, l->layer);
    for (int i = 0; i < l->n_outs; i++) {
        a.out[i] = l->out[i].out;
        a.out_norm[i] = *model_weight(m, l->out[i].slot, l->out[i].layer);
        p.out_scale[i] = or_one(l->out[i].scale);
    }
    return vt_add_norm(c->q, &a, p, c->err);
}

static status op_by_op(block_ctx *c, vt_tensor x, const block_link *l) {
    vt_tensor s = l->b.y;
    const size_t mark = ws_mark(c);
    if (l->b.index.n_dims != 0) {
        TRY(ws_take(c, VT_F32, x.dim[0], x.dim[1], &s));
        TRY(vt_moe_combine(c->q, &s, &l->b.y, &l->b.index, &l->b.weights, c->err));
    }
    if (l->b.norm != NO_NORM) TRY(block_norm(c, s, s, l->b.norm, l->layer));
    if (l->c.y.n_dims != 0) {
        if (l->c.norm != NO_NORM) TRY(block_norm(c, l->c.y, l->c.y, l->c.norm, l->layer));
        TRY(block_add(c, s, l->c.y));
    }
    if (l->post != NO_NORM) TRY(block_norm(c, s, s, l->post, l->layer));
    TRY(block_add(c, x, s));
    if (l->scale != 0.0f && l->scale != 1.0f) TRY(block_scale(c, x, l->scale));
    for (int i = 0; i < l->n_outs; i++) {
        const block_normed *o = &l->out[i];
        TRY(block_norm(c, o->out, x, o->slot, o->layer));
        if (o->scale != 0.0f && o->scale != 1.0f) TRY(block_scale(c, o->out, o->scale));
    }
    ws_release(c, mark);
    return STATUS_OK;
}

status block_link_run(block_ctx *c, vt_tensor x, const block_link *link) {
    bool plus_one;
    return is_one_launch(c, link, &plus_one) ? in_one(c, x, link, plus_one) : op_by_op(c, x, link);
}

static vt_tensor ahead_as(const block_ctx *c, vt_dtype dtype) { return vt_tensor_2d(c->ahead.data, dtype, c->ahead.device, c->ahead.dim[0], c->ahead.dim[1]); }

void block_link_ahead(block_ctx *c, block_link *link, block_ahead what) {
    const int next = link->layer + 1;
    if (what == AHEAD_NONE || !c->m->has_links || c->ahead.n_dims == 0 || next >= c->m->hp.n_layers || link->n_outs == VT_ADD_NORM_OUTS) return;
    link->out[link->n_outs++] = (block_normed){.out = ahead_as(c, what == AHEAD_PRODUCTS ? BLOCK_FEED(c, next, W_Q, W_K, W_V) : VT_F32), .slot = W_ATTN_NORM, .layer = next};
    c->ahead_layer = next;
}

status block_attention_input(block_ctx *c, vt_tensor x, int layer, vt_dtype dtype, vt_tensor *h) {
    if (c->ahead.n_dims != 0 && c->ahead_layer == layer) {
        c->ahead_layer = -1;
        *h = ahead_as(c, dtype);
        return STATUS_OK;
    }
    TRY(ws_take(c, dtype, c->n_rows, c->m->hp.n_embd, h));
    return block_norm(c, *h, x, W_ATTN_NORM, layer);
}
