/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtral: Llama's attention, every layer a mixture of experts; the weights of the chosen are renormalised. */
#include "model/block_moe.h"
#include "model/weight_rows.h"

static const weight_row weights[] = {
    ROWS_MODEL(WEIGHT_AS_IS),
    ROWS_PRE_NORM,
    ROWS_ATTENTION(WEIGHT_ROPE_ADJACENT),
    ROW_MATRIX(W_ROUTER, "block_sparse_moe.gate.weight", "ffn_gate_inp.weight", "experts,embd", 0),
    ROW_EXPERT(W_EXP_GATE, "block_sparse_moe.experts.{e}.w1.weight", NULL, "experts,ff_exp,embd"),
    ROW_EXPERT(W_EXP_UP, "block_sparse_moe.experts.{e}.w3.weight", NULL, "experts,ff_exp,embd"),
    ROW_EXPERT(W_EXP_DOWN, "block_sparse_moe.experts.{e}.w2.weight", "blk.{l}.ffn_down_exps.weight|blk.{l}.ffn_down.{e}.weight", "experts,embd,ff_exp"),
    /* a GGUF of the first Mixtrals has a tensor for each expert */
    ROW_STACKED(W_EXP_GATE, "ffn_gate_exps.weight|blk.{l}.ffn_gate.{e}.weight", "experts,ff_exp,embd"),
    ROW_STACKED(W_EXP_UP, "ffn_up_exps.weight|blk.{l}.ffn_up.{e}.weight", "experts,ff_exp,embd"),
    ROW_STACKED(W_EXP_GATE_UP, "ffn_gate_up_exps.weight", "experts,2ff_exp,embd"),
};

static status configure(model *m, error *err) {
    TRY(model_require_activation(m, "silu|swish", err));
    TRY(model_require_gating(m, GATING_SOFTMAX, err));
    return model_layers_uniform(m, m->hp.window, err);
}

static status layer(block_ctx *c, int l, vt_tensor x) {
    const block_moe_params p = {.router = {.mode = VT_ROUTER_SOFTMAX, .n_groups = 1, .renormalize = true, .scaling = model_router_scaling(c->m)}, .activation = MOE_SILU};
    return block_moe_layer(c, l, x, &p);
}

static const char *const hf_names[] = {"MixtralForCausalLM", "mixtral", NULL};
static const char *const gguf_names[] = {"llama", NULL}; /* with a count of experts */

const arch arch_mixtral = {
    .name = "mixtral",
    .hf_names = hf_names,
    .gguf_names = gguf_names,
    .needs_experts = true,
    .weights = weights,
    .n_weights = sizeof weights / sizeof weights[0],
    .n_slots = W_COMMON_COUNT,
    .configure = configure,
    .embed = block_embed,
    .layer = layer,
    .head = block_head,
};
