/* SPDX-License-Identifier: Apache-2.0 */
/* Multi-head latent attention with the up-projections absorbed into query and output. */
#include "model/block_mla.h"

static status rotate(block_ctx *c, vt_tensor heads, int layer) {
    const layer_info *li = &c->m->layers[layer];
    const rope_spec *rope = &c->m->ropes[li->rope];
    const vt_rope_params p = {.pairing = VT_ROPE_ADJACENT, .mscale = rope->mscale};
    return vt_rope(c->q, &heads, &c->rows[li->kv_group].pos, &rope->inv_freq, p, c->err);
}

static status make_query(block_ctx *c, vt_tensor q, block_act *x, int layer, const block_mla_params *p) {
    if (p->q_lora == 0) return block_linear(c, q, x, model_weight(c->m, W_Q, layer), NULL);
    const size_t mark = ws_mark(c);
    vt_tensor a;
    TRY(ws_take(c, VT_F32, c->n_rows, p->q_lora, &a));
    TRY(block_linear(c, a, x, model_weight(c->m, p->q_a, layer), NULL));
    TRY(block_norm(c, a, a, p->q_a_norm, layer));
    block_act b = block_act_of(a);
    TRY(block_linear(c, q, &b, model_weight(c->m, p->q_b, layer), NULL));
    ws_release(c, mark);
    return STATUS_OK;
}

/* The step's rows [latent | rope] into the cache. */
static status write_latent(block_ctx *c, block_act *x, int layer, const block_mla_params *p) {
    model *m = c->m;
    const size_t mark = ws_mark(c);
    const int64_t width = p->kv_lora + p->rope;
    vt_tensor kv;
    TRY(ws_take(c, VT_F32, c->n_rows, width, &kv));
    TRY(block_linear(c, kv, x, model_weight(m, p->kv_a, layer), NULL));
    const vt_tensor latent = vt_tensor_slice(kv, 1, 0, p->kv_lora), key = vt_tensor_slice(kv, 1, p->kv_lora, p->rope), row = vt_tensor_split_last(kv, width);
    TRY(block_norm(c, latent, latent, p->kv_a_norm, layer));
    TRY(rotate(c, vt_tensor_split_last(key, p->rope), layer));
    TRY(vt_kv_write(c->q, &m->k_cache[layer], &row, &c->rows[m->layers[layer].kv_group], c->err));
    ws_release(c, mark);
    return STATUS_OK;
}

/* Head h of a stack of matrices. */
static vt_tensor head_of(const vt_tensor *stack, int64_t h) {
    const vt_tensor one = vt_tensor_slice(*stack, 0, h, 1);
    vt_tensor m = vt_tensor_2d(one.data, one.dtype, one.device, one.dim[1], one.dim[2]);
    m.stride[0] = one.stride[1];
    m.stride[1] = one.stride[2];
    return m;
}

/* to = x . W_uk of head h: [nope, latent] in kv_b, [latent, nope] in k_b. */
static status into_latent(block_ctx *c, vt_tensor to, vt_tensor x, int layer, const block_mla_params *p, int64_t h) {
    const vt_tensor *whole = model_weight(c->m, p->kv_b, layer);
    if (whole->n_dims == 0) {
        const vt_tensor up = head_of(model_weight(c->m, p->k_b, layer), h);
        block_act a = block_act_of(x);
        return block_linear(c, to, &a, &up, NULL);
    }
    const vt_tensor up = vt_tensor_slice(*whole, 0, h * (p->nope + p->value), p->nope);
    return vt_matmul_kn(c->q, &to, &x, &up, c->err);
}

/* to = x . W_uv^T of head h: [value, latent] in either. */
static status out_of_latent(block_ctx *c, vt_tensor to, vt_tensor x, int layer, const block_mla_params *p, int64_t h) {
    const vt_tensor *whole = model_weight(c->m, p->kv_b, layer);
    const vt_tensor up = whole->n_dims == 0 ? head_of(model_weight(c->m, p->v_b, layer), h) : vt_tensor_slice(*whole, 0, h * (p->nope + p->value) + p->nope, p->value);
    block_act a = block_act_of(x);
    return block_linear(c, to, &a, &up, NULL);
}

/* Every head of q into the latent space, beside its rotated part. */
static status absorb(block_ctx *c, vt_tensor into, vt_tensor q, int layer, const block_mla_params *p) {
    const int64_t n_heads = c->m->layers[layer].n_heads, width = p->kv_lora + p->rope, head = p->nope + p->rope;
    for (int64_t h = 0; h < n_heads; h++) {
        const vt_tensor plain = vt_tensor_slice(q, 1, h * head, p->nope), rotated = vt_tensor_slice(q, 1, h * head + p->nope, p->rope);
        const vt_tensor to = vt_tensor_slice(into, 1, h * width, p->kv_lora), beside = vt_tensor_slice(into, 1, h * width + p->kv_lora, p->rope);
        const size_t mark = ws_mark(c);
        TRY(into_latent(c, to, plain, layer, p, h));
        ws_release(c, mark);
        TRY(vt_mul_scalar(c->q, &beside, &rotated, 1.0f, c->err));
    }
    return STATUS_OK;
}

status block_mla(block_ctx *c, vt_tensor out, vt_tensor x, int layer, const block_mla_params *p) {
    model *m = c->m;
    const layer_info *li = &m->layers[layer];
    const size_t mark = ws_mark(c);
    const vt_dtype act = BLOCK_ATTENTION_DTYPE(c, layer, p->kv_b, p->v_b);
    const int64_t n_heads = li->n_heads, head = p->nope + p->rope, width = p->kv_lora + p->rope;
    const int64_t got_width = act == VT_F32 ? width : p->kv_lora; /* rows that write F32 want values as wide as keys */
    vt_tensor q, wide, got, values;
    TRY(ws_take(c, VT_F32, c->n_rows, n_heads * head, &q));
    TRY(ws_take(c, VT_F32, c->n_rows, n_heads * width, &wide));
    TRY(ws_take(c, act, c->n_rows, n_heads * got_width, &got));
    TRY(ws_take(c, VT_F32, c->n_rows, n_heads * p->value, &values));
    block_act a = block_act_of(x);
    TRY(block_act_ready(c, &a, model_weight(m, p->kv_a, layer)));
    TRY(make_query(c, q, &a, layer, p));
    TRY(write_latent(c, &a, layer, p));
    TRY(rotate(c, vt_tensor_slice(vt_tensor_split_last(q, head), 2, p->nope, p->rope), layer));
    TRY(absorb(c, wide, q, layer, p));

    const vt_tensor q3 = vt_tensor_split_last(wide, width), o3 = vt_tensor_split_last(got, got_width), no_sinks = {0};
    const vt_tensor v = vt_tensor_slice(m->k_cache[layer], 3, 0, got_width);
    const vt_attention_params ap = {.scale = li->attn_scale};
    TRY(vt_paged_attention(c->q, &o3, &q3, &m->k_cache[layer], &v, &c->rows[li->kv_group], &no_sinks, ap, c->err));

    for (int64_t h = 0; h < n_heads; h++) {
        const vt_tensor latent = vt_tensor_slice(got, 1, h * got_width, p->kv_lora), to = vt_tensor_slice(values, 1, h * p->value, p->value);
        const size_t inner = ws_mark(c);
        TRY(out_of_latent(c, to, latent, layer, p, h));
        ws_release(c, inner);
    }
    block_act b = block_act_of(values);
    TRY(block_linear(c, out, &b, model_weight(m, W_O, layer), NULL));
    ws_release(c, mark);
    return STATUS_OK;
}
