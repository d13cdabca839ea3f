/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen3 MoE: Qwen3's attention (a norm over each head of q and k), every layer a mixture of experts routed by softmax, weights renormalised over the chosen. */
#include "model/block_moe.h"

typedef struct own {
    int64_t renormalize;
} own;

static const hparam_row own_hparams[] = {
    HPARAM_IN(own, renormalize, HPARAM_FLAG, "norm_topk_prob", NULL, 0, 1, 1, 0),
};

#define LAYER "model.layers.{l}."
static const weight_row weights[] = {
    {W_EMBED, "model.embed_tokens.weight", "token_embd.weight", "vocab,embd", 0, 0, 0},
    {W_FINAL_NORM, "model.norm.weight", "output_norm.weight", "embd", WEIGHT_ELEMENT_TYPES, 0, 0},
    {W_HEAD, "lm_head.weight", "output.weight", "vocab,embd", WEIGHT_OPTIONAL, 0, 0},
    {W_ATTN_NORM, LAYER "input_layernorm.weight", "blk.{l}.attn_norm.weight", "embd", WEIGHT_PER_LAYER | WEIGHT_ELEMENT_TYPES, 0, 0},
    {W_Q, LAYER "self_attn.q_proj.weight", "blk.{l}.attn_q.weight", "q,embd", WEIGHT_PER_LAYER, 0, 0},
    {W_K, LAYER "self_attn.k_proj.weight", "blk.{l}.attn_k.weight", "kv,embd", WEIGHT_PER_LAYER, 0, 0},
    {W_V, LAYER "self_attn.v_proj.weight", "blk.{l}.attn_v.weight", "kv,embd", WEIGHT_PER_LAYER, 0, 0},
    {W_O, LAYER "self_attn.o_proj.weight", "blk.{l}.attn_output.weight", "embd,q", WEIGHT_PER_LAYER, 0, 0},
    {W_Q_NORM, LAYER "self_attn.q_norm.weight", "blk.{l}.attn_q_norm.weight", "hd", WEIGHT_PER_LAYER | WEIGHT_ELEMENT_TYPES, 0, 0},
    {W_K_NORM, LAYER "self_attn.k_norm.weight", "blk.{l}.attn_k_norm.weight", "hd", WEIGHT_PER_LAYER | WEIGHT_ELEMENT_TYPES, 0, 0},
    {W_FFN_NORM, LAYER "post_attention_layernorm.weight", "blk.{l}.ffn_norm.weight", "embd", WEIGHT_PER_LAYER | WEIGHT_ELEMENT_TYPES, 0, 0},
    {W_ROUTER, LAYER "mlp.gate.weight", "blk.{l}.ffn_gate_inp.weight", "experts,embd", WEIGHT_PER_LAYER, 0, 0},
    {W_EXP_GATE, LAYER "mlp.experts.{e}.gate_proj.weight", "blk.{l}.ffn_gate_exps.weight", "experts,ff_exp,embd", WEIGHT_PER_LAYER | WEIGHT_EXPERTS, 0, 0},
    {W_EXP_UP, LAYER "mlp.experts.{e}.up_proj.weight", "blk.{l}.ffn_up_exps.weight", "experts,ff_exp,embd", WEIGHT_PER_LAYER | WEIGHT_EXPERTS, 0, 0},
    {W_EXP_DOWN, LAYER "mlp.experts.{e}.down_proj.weight", "blk.{l}.ffn_down_exps.weight", "experts,embd,ff_exp", WEIGHT_PER_LAYER | WEIGHT_EXPERTS, 0, 0},
};

static status configure(model *m, error *err) {
    TRY(model_require_activation(m, "silu|swish", err));
    return model_layers_uniform(m, 0, err);
}

static status layer(block_ctx *c, int l, vt_tensor x) {
    const own *o = c->m->priv;
    const block_moe_params p = {.router = {.mode = VT_ROUTER_SOFTMAX, .n_groups = 1, .renormalize = o->renormalize != 0, .scaling = 1.0f}, .activation = MOE_SILU};
    const size_t mark = ws_mark(c);
    vt_tensor h, y;
    TRY(ws_take(c, VT_F32, c->n_rows, c->m->hp.n_embd, &h));
    TRY(ws_take(c, VT_F32, c->n_rows, c->m->hp.n_embd, &y));
    TRY(block_norm(c, h, x, W_ATTN_NORM, l));
    TRY(block_attention(c, y, h, l));
    TRY(block_add(c, x, y));
    TRY(block_norm(c, h, x, W_FFN_NORM, l));
    TRY(block_moe(c, y, h, h, l, &p));
    TRY(block_add(c, x, y));
    ws_release(c, mark);
    return STATUS_OK;
}

static const char *const hf_names[] = {"Qwen3MoeForCausalLM", "qwen3_moe", NULL};
static const char *const gguf_names[] = {"qwen3moe", NULL};

const arch arch_qwen3_moe = {
    .name = "qwen3_moe",
    .hf_names = hf_names,
    .gguf_names = gguf_names,
    .own_hparams = own_hparams,
    .n_own_hparams = sizeof own_hparams / sizeof own_hparams[0],
    .own_bytes = sizeof(own),
    .weights = weights,
    .n_weights = sizeof weights / sizeof weights[0],
    .n_slots = W_COMMON_COUNT,
    .configure = configure,
    .embed = block_embed,
    .layer = layer,
    .head = block_head,
};
