/* SPDX-License-Identifier: Apache-2.0 */
/* GLM-4 MoE: biased q, k and v, partial rotary, optional head norms; sigmoid router with a selection bias, a shared expert, the first layers dense; prediction layers past the last are not used. */
#include "model/block_moe.h"
#include "model/weight_rows.h"

static const weight_row weights[] = {
    ROWS_MODEL(WEIGHT_AS_IS),
    ROW_NORM(W_ATTN_NORM, "input_layernorm.weight", "attn_norm.weight", "embd", 0),
    ROW_NORM(W_FFN_NORM, "post_attention_layernorm.weight", "post_attention_norm.weight", "embd", 0),
    ROWS_ATTENTION(WEIGHT_AS_IS),
    ROWS_QKV_BIAS(WEIGHT_OPTIONAL),
    {W_Q_NORM, "model.layers.{l}.self_attn.q_norm.weight", "blk.{l}.attn_q_norm.weight", "hd", WEIGHT_PER_LAYER | WEIGHT_ELEMENT_TYPES | WEIGHT_OPTIONAL, 0, 0},
    {W_K_NORM, "model.layers.{l}.self_attn.k_norm.weight", "blk.{l}.attn_k_norm.weight", "hd", WEIGHT_PER_LAYER | WEIGHT_ELEMENT_TYPES | WEIGHT_OPTIONAL, 0, 0},
    ROWS_MLP,
    ROW_MATRIX(W_ROUTER, "mlp.gate.weight", "ffn_gate_inp.weight", "experts,embd", 0),
    ROW_BIAS(W_SELECT_BIAS, "mlp.gate.e_score_correction_bias", "exp_probs_b.bias", "experts", 0),
    ROWS_EXPERTS("mlp.experts.", "gate_proj", "up_proj", "down_proj"),
    ROWS_SHARED_EXPERT("mlp.shared_experts."),
};

static status configure(model *m, error *err) {
    TRY(model_require_activation(m, "silu|swish", err));
    TRY(model_require_gating(m, GATING_SIGMOID, err));
    TRY(model_ignore(m, "model.layers.{l}.*", (int)m->hp.n_layers, err));
    return model_layers_uniform(m, 0, err);
}

static status layer(block_ctx *c, int l, vt_tensor x) {
    const hparams *h = &c->m->hp;
    const block_moe_params p = {
        .router = {.mode = VT_ROUTER_SIGMOID,
                   .n_groups = h->n_expert_groups > 0 ? (int32_t)h->n_expert_groups : 1,
                   .top_groups = h->n_top_groups > 0 ? (int32_t)h->n_top_groups : 1,
                   .group_top2 = true,
                   .renormalize = model_router_norm(c->m, source_container(c->m->src) == META_HF),
                   .scaling = model_router_scaling(c->m)},
        .activation = MOE_SILU,
    };
    return block_moe_layer(c, l, x, &p);
}

static const char *const hf_names[] = {"Glm4MoeForCausalLM", "glm4_moe", NULL};
static const char *const gguf_names[] = {"glm4moe", NULL};

const arch arch_glm4_moe = {
    .name = "glm4_moe",
    .hf_names = hf_names,
    .gguf_names = gguf_names,
    .weights = weights,
    .n_weights = sizeof weights / sizeof weights[0],
    .n_slots = W_COMMON_COUNT,
    .needs_experts = true,
    .configure = configure,
    .embed = block_embed,
    .layer = layer,
    .head = block_head,
};
