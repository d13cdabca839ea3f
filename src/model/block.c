/* SPDX-License-Identifier: Apache-2.0 */
/* Workspace and the small blocks: products, norms, residual, embedding, head. */
#include "model/block.h"

#include <string.h>

#include "base/checked.h"

enum { WS_ALIGN = 256, FEW_ROWS = 64 };

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

block_act block_act_of(vt_tensor x) { return x.dtype == VT_BF16 ? (block_act){.bf16 = x} : (block_act){.f32 = x}; }

static int product_of(vt_op op) { return op == VT_OP_MATMUL_BT ? 0 : op == VT_OP_MATMUL_BT_SCALED ? 1 : op == VT_OP_MATMUL_KN ? 2 : op == VT_OP_MATMUL_GROUPED_SCALED ? 3 : -1; }

void block_find_bf16_rows(model *m, const vt_queue *q) {
    static const struct {
        vt_op op;
        vt_dtype third;
    } kinds[] = {{VT_OP_MATMUL_BT, VT_F32}, {VT_OP_MATMUL_KN, VT_F32}, {VT_OP_MATMUL_BT_SCALED, VT_F32}, {VT_OP_MATMUL_BT_SCALED, VT_F16}, {VT_OP_MATMUL_BT_SCALED, VT_BF16}, {VT_OP_MATMUL_BT_SCALED, VT_F8_E8M0},
                 {VT_OP_MATMUL_GROUPED_SCALED, VT_F32}, {VT_OP_MATMUL_GROUPED_SCALED, VT_F16}, {VT_OP_MATMUL_GROUPED_SCALED, VT_BF16}, {VT_OP_MATMUL_GROUPED_SCALED, VT_F8_E8M0}};
    _Static_assert(VT_DTYPE_COUNT <= 64, "a bit a dtype");
    memset(m->bf16_rows, 0, sizeof m->bf16_rows);
    m->bf16_attention = 0;
    if (m->opt.act != ACT_BF16 && (m->opt.act != ACT_AUTO || (q->caps & VT_CAP_BIT(VT_CAP_TENSOR_BF16)) == 0)) return;
    for (int kv = 0; kv < VT_DTYPE_COUNT; kv++)
        if (vt_can_run(q, VT_OP_PAGED_ATTENTION, vt_sig_make(VT_F32, (vt_dtype)kv, VT_BF16), NULL) == STATUS_OK) m->bf16_attention |= 1ull << kv;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        for (int w = 0; w < VT_DTYPE_COUNT; w++) {
            /* with rounded activations everywhere Gemma 4 in FP8 is 1.1e-1 away, where 8e-2 is allowed; with those of its experts rounded 1.8e-2 */
            if (w == VT_F8_E4M3 && kinds[i].op == VT_OP_MATMUL_BT_SCALED) continue;
            if (vt_can_run(q, kinds[i].op, vt_sig_make(VT_BF16, (vt_dtype)w, kinds[i].third), NULL) == STATUS_OK) m->bf16_rows[product_of(kinds[i].op)][w] |= 1ull << kinds[i].third;
        }
    }
}

vt_dtype block_act_dtype(const block_ctx *c, vt_op op, vt_dtype weight, vt_dtype third) {
    const model *m = c->m;
    const int p = product_of(op);
    if (p >= 0 && (m->bf16_rows[p][weight] >> third & 1) != 0) return VT_BF16;
    if (m->opt.act == ACT_F32 || m->opt.act == ACT_BF16 || !vt_dtype_is_block(weight)) return VT_F32;
    const vt_dtype q8 = vt_dtype_q8_activation(weight);
    return q8 == VT_NONE ? VT_F32 : q8;
}

status block_act_form(block_ctx *c, block_act *x, vt_dtype want, vt_tensor **out) {
    const vt_tensor *x0 = x->f32.n_dims != 0 ? &x->f32 : &x->bf16;
    vt_tensor *form = want == VT_F32 ? &x->f32 : want == VT_BF16 ? &x->bf16 : want == VT_Q8_A32 ? &x->q8_a32 : &x->q8_a256;
    *out = form;
    if (form->n_dims != 0) return STATUS_OK;
    if (want == VT_F32 || want == VT_BF16) {
        TRY(ws_take(c, want, x0->dim[0], x0->dim[1], form));
        return vt_mul_scalar(c->q, form, x0, 1.0f, c->err);
    }
    TRY(block_act_form(c, x, VT_F32, out));
    TRY(ws_take(c, want, x->f32.dim[0], x->f32.dim[1], form));
    *out = form;
    return vt_quantize_rows(c->q, form, &x->f32, c->err);
}

/* The scales of a weight of the model's own table; NULL: none. */
static const struct model_scale *scale_of(const model *m, const vt_tensor *w) {
    const size_t n = (size_t)m->arch->n_slots * ((size_t)m->hp.n_layers + 1);
    if (w < m->weights || w >= m->weights + n) return NULL;
    const struct model_scale *s = &m->scales[w - m->weights];
    return s->t.n_dims != 0 ? s : NULL;
}

static vt_dtype act_of_weight(const block_ctx *c, const vt_tensor *w) {
    const struct model_scale *scale = scale_of(c->m, w);
    return scale != NULL ? block_act_dtype(c, VT_OP_MATMUL_BT_SCALED, w->dtype, scale->t.dtype) : block_act_dtype(c, VT_OP_MATMUL_BT, w->dtype, VT_F32);
}

vt_dtype block_attention_dtype(const block_ctx *c, int layer, int n_slots, const int *slots) {
    const model *m = c->m;
    const bool has_row = (m->bf16_attention >> m->k_cache[m->layers[layer].kv_layer].dtype & 1) != 0;
    return has_row ? block_feed_dtype(c, layer, n_slots, slots) : VT_F32;
}

status block_act_ready(block_ctx *c, block_act *x, const vt_tensor *w) {
    vt_tensor *form;
    return block_act_form(c, x, act_of_weight(c, w), &form);
}

vt_dtype block_feed_dtype(const block_ctx *c, int layer, int n_slots, const int *slots) {
    for (int i = 0; i < n_slots; i++) {
        const vt_tensor *w = model_weight(c->m, slots[i], layer);
        if (w->n_dims != 0 && act_of_weight(c, w) != VT_BF16) return VT_F32;
    }
    return VT_BF16;
}

static status linear(block_ctx *c, vt_tensor out, block_act *x, const vt_tensor *w, const vt_tensor *bias, vt_dtype act) {
    const struct model_scale *scale = scale_of(c->m, w);
    vt_tensor *a;
    TRY(block_act_form(c, x, act, &a));
    TRY(scale != NULL ? vt_matmul_bt_scaled(c->q, &out, a, w, &scale->t, scale->p, c->err) : vt_matmul_bt(c->q, &out, a, w, c->err));
    return bias != NULL && bias->n_dims != 0 ? vt_add(c->q, &out, &out, bias, c->err) : STATUS_OK;
}

status block_linear(block_ctx *c, vt_tensor out, block_act *x, const vt_tensor *w, const vt_tensor *bias) { return linear(c, out, x, w, bias, act_of_weight(c, w)); }

/* One launch: BF16 activations, weights of one dtype that are no part of something else, no scales. */
static bool goes_together(const block_ctx *c, const block_product *products, int n) {
    const vt_dtype w = products[0].w->dtype;
    for (int i = 0; i < n; i++) {
        if (products[i].w->dtype != w || scale_of(c->m, products[i].w) != NULL || act_of_weight(c, products[i].w) != VT_BF16) return false;
    }
    return n > 1 && n <= VT_SEVERAL && (c->m->several >> w & 1) != 0;
}

status block_linear_several(block_ctx *c, block_act *x, const block_product *products, int n) {
    if (!goes_together(c, products, n)) {
        for (int i = 0; i < n; i++) TRY(block_linear(c, products[i].out, x, products[i].w, products[i].bias));
        return STATUS_OK;
    }
    vt_several parts = {0};
    vt_tensor *a;
    for (int i = 0; i < n; i++) parts.out[i] = products[i].out, parts.b[i] = *products[i].w;
    TRY(block_act_form(c, x, VT_BF16, &a));
    TRY(vt_matmul_bt_several(c->q, a, &parts, c->err));
    for (int i = 0; i < n; i++) {
        const vt_tensor *out = &products[i].out, *bias = products[i].bias;
        if (bias != NULL && bias->n_dims != 0) TRY(vt_add(c->q, out, out, bias, c->err));
    }
    return STATUS_OK;
}

status block_linear_f32(block_ctx *c, vt_tensor out, block_act *x, const vt_tensor *w, const vt_tensor *bias) {
    const vt_dtype act = act_of_weight(c, w), q8 = vt_dtype_q8_activation(w->dtype);
    const bool quantised = c->m->opt.act == ACT_AUTO && vt_dtype_is_block(w->dtype) && q8 != VT_NONE; /* as the processor does */
    return linear(c, out, x, w, bias, act != VT_BF16 ? act : quantised ? q8 : VT_F32);
}

vt_rms_norm_params block_norm_params(const block_ctx *c, int slot, int layer) {
    return (vt_rms_norm_params){
        .eps = (float)c->m->hp.norm_eps,
        .w_offset = model_weight_transform(c->m, slot, layer) == WEIGHT_NORM_PLUS_ONE ? 1.0f : 0.0f,
    };
}

status block_norm(block_ctx *c, vt_tensor out, vt_tensor x, int slot, int layer) {
    return vt_rms_norm(c->q, &out, &x, model_weight(c->m, slot, layer), block_norm_params(c, slot, layer), c->err);
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
    const int slot = model_weight(c->m, W_HEAD, -1)->n_dims != 0 ? W_HEAD : W_EMBED;
    const vt_tensor *w = model_weight(c->m, slot, -1);
    vt_tensor h = x;
    if (BLOCK_FEED(c, -1, slot) == VT_BF16) TRY(ws_take(c, VT_BF16, x.dim[0], x.dim[1], &h));
    TRY(block_norm(c, h, x, W_FINAL_NORM, -1));
    block_act act = block_act_of(h);
    TRY(block_linear(c, logits, &act, w, NULL));
    const float cap = (float)c->m->hp.logit_softcap;
    return cap > 0 ? vt_softcap(c->q, &logits, &logits, cap, c->err) : STATUS_OK;
}

/* Gate and up in one launch that writes what down takes: for few rows, which is where launches are what time goes into. */
static bool is_gated(const block_ctx *c, const vt_tensor *gate, const vt_tensor *up, vt_dtype mid) {
    return c->n_rows <= FEW_ROWS && mid == VT_BF16 && gate->dtype == up->dtype && scale_of(c->m, gate) == NULL && scale_of(c->m, up) == NULL &&
           act_of_weight(c, gate) == VT_BF16 && (c->m->gated >> gate->dtype & 1) != 0;
}

static status gated_in_one(block_ctx *c, vt_tensor mid, block_act *x, const vt_tensor *gate, const vt_tensor *up, block_activation act) {
    vt_tensor *a;
    TRY(block_act_form(c, x, VT_BF16, &a));
    return vt_matmul_bt_gated(c->q, &mid, a, gate, up, act == BLOCK_SILU ? VT_GATE_SILU : VT_GATE_GELU, c->err);
}

status block_gated_mlp(block_ctx *c, vt_tensor out, vt_tensor x, int layer, int gate_slot, int up_slot, int down_slot, int64_t n_ff, block_activation act) {
    const vt_tensor *gate = model_weight(c->m, gate_slot, layer), *up = model_weight(c->m, up_slot, layer);
    const size_t mark = ws_mark(c);
    vt_tensor gate_up, mid;
    TRY(ws_take(c, BLOCK_FEED(c, layer, down_slot), c->n_rows, n_ff, &mid));
    block_act a = block_act_of(x), b = block_act_of(mid);
    block_ctx few = *c;
    if (c->m->planning && few.n_rows > FEW_ROWS) few.n_rows = FEW_ROWS; /* a step may have few rows */
    const bool in_one = is_gated(&few, gate, up, mid.dtype);
    if (in_one) TRY(gated_in_one(c, mid, &a, gate, up, act));
    if (!in_one || few.n_rows != c->n_rows) {
        TRY(ws_take(c, VT_F32, c->n_rows, 2 * n_ff, &gate_up));
        const block_product both[] = {{vt_tensor_slice(gate_up, 1, 0, n_ff), gate, NULL}, {vt_tensor_slice(gate_up, 1, n_ff, n_ff), up, NULL}};
        TRY(block_linear_several(c, &a, both, 2));
        TRY(act == BLOCK_SILU ? vt_silu_and_mul(c->q, &mid, &gate_up, c->err) : vt_gelu_and_mul(c->q, &mid, &gate_up, c->err));
    }
    TRY(block_linear(c, out, &b, model_weight(c->m, down_slot, layer), NULL));
    ws_release(c, mark);
    return STATUS_OK;
}

status block_mlp(block_ctx *c, vt_tensor out, vt_tensor x, int layer, block_activation act) {
    return block_gated_mlp(c, out, x, layer, W_GATE, W_UP, W_DOWN, c->m->layers[layer].n_ff, act);
}

status block_normed_attention(block_ctx *c, vt_tensor out, vt_tensor x, int layer) {
    const size_t mark = ws_mark(c);
    vt_tensor h;
    TRY(block_attention_input(c, x, layer, BLOCK_FEED(c, layer, W_Q, W_K, W_V), &h));
    TRY(block_attention(c, out, h, layer));
    ws_release(c, mark);
    return STATUS_OK;
}

status block_mlp_half(block_ctx *c, vt_tensor x, vt_tensor y, int layer, const block_half *half) {
    const size_t mark = ws_mark(c);
    vt_tensor h;
    TRY(ws_take(c, BLOCK_FEED(c, layer, W_GATE, W_UP), c->n_rows, c->m->hp.n_embd, &h));
    const block_link first = {.layer = layer, .b = {.y = y, .norm = half->attention_post}, .post = NO_NORM, .n_outs = 1, .out = {{.out = h, .slot = W_FFN_NORM, .layer = layer}}};
    block_link last = {.layer = layer, .b = {.y = y, .norm = half->post}, .post = NO_NORM, .scale = half->scale};
    TRY(block_link_run(c, x, &first));
    TRY(block_mlp(c, y, h, layer, half->act));
    block_link_ahead(c, &last, half->ahead);
    TRY(block_link_run(c, x, &last));
    ws_release(c, mark);
    return STATUS_OK;
}

status block_decoder_layer(block_ctx *c, int layer, vt_tensor x) {
    const size_t mark = ws_mark(c);
    vt_tensor y;
    TRY(ws_take(c, VT_F32, c->n_rows, c->m->hp.n_embd, &y));
    TRY(block_normed_attention(c, y, x, layer));
    TRY(block_mlp_half(c, x, y, layer, &(block_half){.act = BLOCK_SILU, .attention_post = NO_NORM, .post = NO_NORM, .ahead = AHEAD_PRODUCTS}));
    ws_release(c, mark);
    return STATUS_OK;
}

status block_sandwich_layer(block_ctx *c, int layer, vt_tensor x, block_activation act, float scale, bool is_all) {
    const size_t mark = ws_mark(c);
    vt_tensor y;
    TRY(ws_take(c, VT_F32, c->n_rows, c->m->hp.n_embd, &y));
    TRY(block_normed_attention(c, y, x, layer));
    TRY(block_mlp_half(c, x, y, layer,
                       &(block_half){.act = act, .attention_post = W_ATTN_POST_NORM, .post = W_FFN_POST_NORM, .scale = scale, .ahead = is_all ? AHEAD_PRODUCTS : AHEAD_NONE}));
    ws_release(c, mark);
    return STATUS_OK;
}
