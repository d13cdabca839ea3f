/* SPDX-License-Identifier: Apache-2.0 */
/* Workspace and the small blocks: products, norms, residual, embedding, head. */
#include "model/block.h"

#include "base/checked.h"

enum { WS_ALIGN = 256 };

size_t ws_mark(const block_ctx *c) { return c->m->ws_used; }

void ws_release(block_ctx *c, size_t mark) { c->m->ws_used = mark; }

status ws_take(block_ctx *c, vt_dtype t, int64_t rows, int64_t cols, vt_tensor *out) {
    model *m = c->m;
    size_t row_bytes, bytes, end;
    if (rows < 0 || !vt_dtype_row_bytes(t, cols, &row_bytes) || !checked_mul_size((size_t)rows, row_bytes, &bytes) ||
        !checked_align_size(bytes, WS_ALIGN, &bytes) || !checked_add_size(m->ws_used, bytes, &end)) {
        return error_set(c->err, STATUS_BUG, "model: workspace request of %lld x %lld overflows", (long long)rows, (long long)cols);
    }
    if (!m->planning && end > m->workspace.bytes) {
        return error_set(c->err, STATUS_BUG, "model: workspace of %zu bytes is full (%zu needed): the plan ran other code than the step", m->workspace.bytes, end);
    }
    void *data = m->planning ? NULL : (char *)m->workspace.data + m->ws_used;
    *out = vt_tensor_2d(data, t, c->q->device, rows, cols);
    m->ws_used = end;
    if (end > m->ws_peak) m->ws_peak = end;
    return STATUS_OK;
}

block_act block_act_of(vt_tensor x) { return (block_act){.f32 = x}; }

/* The activation form that this weight takes: F32, or its Q8 form when --act allows. */
static vt_dtype act_dtype(const model *m, vt_dtype weight) {
    if (m->opt.act == ACT_F32 || !vt_dtype_is_block(weight)) return VT_F32;
    const vt_dtype q8 = vt_dtype_q8_activation(weight);
    return q8 == VT_NONE ? VT_F32 : q8;
}

static status act_form(block_ctx *c, block_act *x, vt_dtype want, vt_tensor **out) {
    if (want == VT_F32) {
        *out = &x->f32;
        return STATUS_OK;
    }
    vt_tensor *form = want == VT_Q8_A32 ? &x->q8_a32 : &x->q8_a256;
    if (form->n_dims == 0) {
        TRY(ws_take(c, want, x->f32.dim[0], x->f32.dim[1], form));
        TRY(vt_quantize_rows(c->q, form, &x->f32, c->err));
    }
    *out = form;
    return STATUS_OK;
}

/* The scales of a weight of the model's own table; NULL: none. */
static const struct model_scale *scale_of(const model *m, const vt_tensor *w) {
    const size_t n = (size_t)m->arch->n_slots * ((size_t)m->hp.n_layers + 1);
    if (w < m->weights || w >= m->weights + n) return NULL;
    const struct model_scale *s = &m->scales[w - m->weights];
    return s->t.n_dims != 0 ? s : NULL;
}

status block_linear(block_ctx *c, vt_tensor out, block_act *x, const vt_tensor *w, const vt_tensor *bias) {
    const struct model_scale *scale = scale_of(c->m, w);
    vt_tensor *a;
    if (scale != NULL) {
        TRY(vt_matmul_bt_scaled(c->q, &out, &x->f32, w, &scale->t, scale->p, c->err));
    } else {
        TRY(act_form(c, x, act_dtype(c->m, w->dtype), &a));
        TRY(vt_matmul_bt(c->q, &out, a, w, c->err));
    }
    if (bias != NULL && bias->n_dims != 0) TRY(vt_add(c->q, &out, &out, bias, c->err));
    return STATUS_OK;
}

status block_norm(block_ctx *c, vt_tensor out, vt_tensor x, int slot, int layer) {
    const vt_rms_norm_params p = {
        .eps = (float)c->m->hp.norm_eps,
        .w_offset = model_weight_transform(c->m, slot, layer) == WEIGHT_NORM_PLUS_ONE ? 1.0f : 0.0f,
    };
    return vt_rms_norm(c->q, &out, &x, model_weight(c->m, slot, layer), p, c->err);
}

status block_norm_plain(block_ctx *c, vt_tensor out, vt_tensor x) {
    const vt_rms_norm_params p = {.eps = (float)c->m->hp.norm_eps};
    return vt_rms_norm(c->q, &out, &x, NULL, p, c->err);
}

status block_add(block_ctx *c, vt_tensor x, vt_tensor y) { return vt_add(c->q, &x, &x, &y, c->err); }

status block_scale(block_ctx *c, vt_tensor x, float s) { return vt_mul_scalar(c->q, &x, &x, s, c->err); }

status block_embed(block_ctx *c, vt_tensor x) {
    vt_tensor ids = vt_tensor_slice(c->m->ids, 0, 0, c->n_rows);
    return vt_gather_rows(c->q, &x, model_weight(c->m, W_EMBED, -1), &ids, c->err);
}

status block_head(block_ctx *c, vt_tensor x, vt_tensor logits) {
    TRY(block_norm(c, x, x, W_FINAL_NORM, -1));
    const vt_tensor *w = model_weight(c->m, W_HEAD, -1);
    if (w->n_dims == 0) w = model_weight(c->m, W_EMBED, -1);
    block_act act = block_act_of(x);
    TRY(block_linear(c, logits, &act, w, NULL));
    const float cap = (float)c->m->hp.logit_softcap;
    return cap > 0 ? vt_softcap(c->q, &logits, &logits, cap, c->err) : STATUS_OK;
}

status block_mlp(block_ctx *c, vt_tensor out, vt_tensor x, int layer, block_activation act) {
    const size_t mark = ws_mark(c);
    const int64_t n = c->n_rows, ff = c->m->layers[layer].n_ff;
    vt_tensor gate_up, mid;
    TRY(ws_take(c, VT_F32, n, 2 * ff, &gate_up));
    TRY(ws_take(c, VT_F32, n, ff, &mid));
    block_act a = block_act_of(x), b = block_act_of(mid);
    TRY(block_linear(c, vt_tensor_slice(gate_up, 1, 0, ff), &a, model_weight(c->m, W_GATE, layer), NULL));
    TRY(block_linear(c, vt_tensor_slice(gate_up, 1, ff, ff), &a, model_weight(c->m, W_UP, layer), NULL));
    TRY(act == BLOCK_SILU ? vt_silu_and_mul(c->q, &mid, &gate_up, c->err) : vt_gelu_and_mul(c->q, &mid, &gate_up, c->err));
    TRY(block_linear(c, out, &b, model_weight(c->m, W_DOWN, layer), NULL));
    ws_release(c, mark);
    return STATUS_OK;
}

status block_decoder_layer(block_ctx *c, int layer, vt_tensor x) {
    const size_t mark = ws_mark(c);
    vt_tensor h, y;
    TRY(ws_take(c, VT_F32, c->n_rows, c->m->hp.n_embd, &h));
    TRY(ws_take(c, VT_F32, c->n_rows, c->m->hp.n_embd, &y));
    TRY(block_norm(c, h, x, W_ATTN_NORM, layer));
    TRY(block_attention(c, y, h, layer));
    TRY(block_add(c, x, y));
    TRY(block_norm(c, h, x, W_FFN_NORM, layer));
    TRY(block_mlp(c, y, h, layer, BLOCK_SILU));
    TRY(block_add(c, x, y));
    ws_release(c, mark);
    return STATUS_OK;
}

status block_sandwich_layer(block_ctx *c, int layer, vt_tensor x, block_activation act) {
    const size_t mark = ws_mark(c);
    vt_tensor h, y;
    TRY(ws_take(c, VT_F32, c->n_rows, c->m->hp.n_embd, &h));
    TRY(ws_take(c, VT_F32, c->n_rows, c->m->hp.n_embd, &y));
    TRY(block_norm(c, h, x, W_ATTN_NORM, layer));
    TRY(block_attention(c, y, h, layer));
    TRY(block_norm(c, y, y, W_ATTN_POST_NORM, layer));
    TRY(block_add(c, x, y));
    TRY(block_norm(c, h, x, W_FFN_NORM, layer));
    TRY(block_mlp(c, y, h, layer, act));
    TRY(block_norm(c, y, y, W_FFN_POST_NORM, layer));
    TRY(block_add(c, x, y));
    ws_release(c, mark);
    return STATUS_OK;
}
