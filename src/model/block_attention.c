/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over paged keys and values, the form that most decoder families share. */
#include "model/block.h"

/* Head norms: per head when the weight is one head long, over the full width when it covers all heads. */
static status head_norm(block_ctx *c, vt_tensor x, int slot, int layer, int64_t head_dim) {
    const vt_tensor *w = model_weight(c->m, slot, layer);
    if (w->n_dims == 0) return STATUS_OK;
    const vt_tensor view = w->dim[0] == head_dim ? vt_tensor_split_last(x, head_dim) : x;
    return block_norm(c, view, view, slot, layer);
}

static vt_rope_params rope_of(const block_ctx *c, int slot, int layer) {
    const layer_info *li = &c->m->layers[layer];
    return (vt_rope_params){.pairing = model_weight_transform(c->m, slot, layer) == WEIGHT_ROPE_ADJACENT ? VT_ROPE_ADJACENT : VT_ROPE_HALF, .mscale = li->rope < 0 ? 1.0f : c->m->ropes[li->rope].mscale};
}

static status rotate(block_ctx *c, vt_tensor x, int slot, int layer, int64_t head_dim) {
    const layer_info *li = &c->m->layers[layer];
    if (li->rope < 0) return STATUS_OK;
    const vt_tensor heads = vt_tensor_split_last(x, head_dim);
    return vt_rope(c->q, &heads, &c->rows[li->kv_group].pos, &c->m->ropes[li->rope].inv_freq, rope_of(c, slot, layer), c->err);
}

/* Keys and values of the step's rows into the layer's cache; without a weight of their own values are the keys' products. */
static status write_kv(block_ctx *c, vt_tensor k, vt_tensor v, int layer) {
    model *m = c->m;
    const layer_info *li = &m->layers[layer];
    const vt_rows *rows = &c->rows[li->kv_group];
    const int64_t hd = li->head_dim;
    const vt_tensor k3 = vt_tensor_split_last(k, hd), v3 = vt_tensor_split_last(v, hd);
    const bool has_own = model_weight(m, W_V, layer)->n_dims != 0;
    if (li->v_norm)
        TRY(block_norm_plain(c, v3, has_own ? v3 : k3));
    else if (!has_own)
        TRY(vt_mul_scalar(c->q, &v, &k, 1.0f, c->err));
    TRY(head_norm(c, k, W_K_NORM, layer, hd));
    TRY(rotate(c, k, W_K, layer, hd));
    TRY(vt_kv_write(c->q, &m->k_cache[layer], &k3, rows, c->err));
    return vt_kv_write(c->q, &m->v_cache[layer], &v3, rows, c->err);
}

/* ---- all heads in one launch ---- */

/* No norm, or one over a head. */
static bool over_heads(const vt_tensor *w, int64_t head_dim) {
    return w->n_dims == 0 || (w->dim[0] == head_dim && (w->dtype == VT_F32 || w->dtype == VT_F16 || w->dtype == VT_BF16));
}

/* Whether norms, rotations and the writing of the cache go together. Where no launch is saved they are faster one by one, whose rows have vectors. */
static bool heads_in_one(const block_ctx *c, int layer) {
    const model *m = c->m;
    const layer_info *li = &m->layers[layer];
    error unused = {0};
    if (li->kv_layer != layer || li->head_dim > VT_HEADS_WIDTH || (c->q->caps & VT_CAP_BIT(VT_CAP_HOST_ADDRESSABLE)) != 0) return false;
    if (!over_heads(model_weight(m, W_Q_NORM, layer), li->head_dim) || !over_heads(model_weight(m, W_K_NORM, layer), li->head_dim)) return false;
    if (rope_of(c, W_Q, layer).pairing != rope_of(c, W_K, layer).pairing || block_norm_params(c, W_Q_NORM, layer).w_offset != block_norm_params(c, W_K_NORM, layer).w_offset) return false;
    return vt_can_run(c->q, VT_OP_PREPARE_HEADS, vt_sig_make(VT_F32, m->k_cache[layer].dtype, VT_NONE), &unused) == STATUS_OK;
}

/* Queries as attention takes them, and the step's keys and values in the layer's cache. */
static status prepare_together(block_ctx *c, vt_tensor q, vt_tensor k, vt_tensor v, int layer) {
    model *m = c->m;
    const layer_info *li = &m->layers[layer];
    const int64_t hd = li->head_dim;
    const vt_heads heads = {.q = vt_tensor_split_last(q, hd), .k = vt_tensor_split_last(k, hd), .v = model_weight(m, W_V, layer)->n_dims != 0 ? vt_tensor_split_last(v, hd) : (vt_tensor){0}, .q_norm = *model_weight(m, W_Q_NORM, layer), .k_norm = *model_weight(m, W_K_NORM, layer),
                            .inv_freq = li->rope < 0 ? (vt_tensor){0} : m->ropes[li->rope].inv_freq, .k_cache = m->k_cache[layer], .v_cache = m->v_cache[layer]};
    const vt_heads_params p = {.norm = block_norm_params(c, W_Q_NORM, layer), .rope = rope_of(c, W_Q, layer), .v_norm = li->v_norm};
    return vt_prepare_heads(c->q, &heads, &c->rows[li->kv_group], p, c->err);
}

status block_attention(block_ctx *c, vt_tensor out, vt_tensor x, int layer) {
    model *m = c->m;
    const layer_info *li = &m->layers[layer];
    const size_t mark = ws_mark(c);
    const int64_t hd = li->head_dim, nq = li->n_heads * hd, n_kv = li->n_kv_heads * hd;
    vt_tensor q, k = {0}, v = {0}, o;
    TRY(ws_take(c, VT_F32, c->n_rows, nq, &q));
    TRY(ws_take(c, BLOCK_ATTENTION_DTYPE(c, layer, W_O), c->n_rows, nq, &o));
    const size_t behind = ws_mark(c);

    block_act a = block_act_of(x);
    block_product products[VT_SEVERAL] = {{q, model_weight(m, W_Q, layer), model_weight(m, W_Q_BIAS, layer)}};
    int n_products = 1;
    if (li->kv_layer == layer) {
        TRY(ws_take(c, VT_F32, c->n_rows, n_kv, &k));
        TRY(ws_take(c, VT_F32, c->n_rows, n_kv, &v));
        products[n_products++] = (block_product){k, model_weight(m, W_K, layer), model_weight(m, W_K_BIAS, layer)};
        if (model_weight(m, W_V, layer)->n_dims != 0) products[n_products++] = (block_product){v, model_weight(m, W_V, layer), model_weight(m, W_V_BIAS, layer)};
    }
    TRY(block_linear_several(c, &a, products, n_products));
    if (heads_in_one(c, layer)) {
        TRY(prepare_together(c, q, k, v, layer));
    } else {
        if (li->kv_layer == layer) TRY(write_kv(c, k, v, layer));
        TRY(head_norm(c, q, W_Q_NORM, layer, hd));
        TRY(rotate(c, q, W_Q, layer, hd));
    }
    ws_release(c, behind);

    const vt_tensor q3 = vt_tensor_split_last(q, hd), o3 = vt_tensor_split_last(o, hd);
    const vt_attention_params p = {.scale = li->attn_scale, .softcap = (float)m->hp.attn_softcap, .window = (int32_t)li->window};
    TRY(vt_paged_attention(c->q, &o3, &q3, &m->k_cache[li->kv_layer], &m->v_cache[li->kv_layer], &c->rows[li->kv_group], model_weight(m, W_SINKS, layer), p, c->err));

    block_act b = block_act_of(o);
    TRY(block_linear(c, out, &b, model_weight(m, W_O, layer), model_weight(m, W_O_BIAS, layer)));
    ws_release(c, mark);
    return STATUS_OK;
}
