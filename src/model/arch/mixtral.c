/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtral: Llama's attention, every layer a mixture of experts; the weights of the chosen are renormalised. */
#include "model/block_moe.h"
#include "model/weight_rows.h"

static const weight_row weights[] = {
    ROWS_MODEL(WEIGHT_AS_IS),
    ROWS_PRE_NORM,
    ROWS_ATTENTION(WEIGHT_ROPE_ADJACENT),
    ROW_MATRIX(W_ROUTER, "block_sparse_moe.gate.weight", "ffn_gate_inp.weight", "experts,embd", 0),
    ROWS_EXPERTS("block_sparse_moe.experts.", "w1", "w3", "w2"),
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
