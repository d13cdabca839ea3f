/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen3 MoE: Qwen3's attention (a norm over each head of q and k), every layer a mixture of experts routed by softmax, weights renormalised where the configuration says so. */
#include "model/block_moe.h"
#include "model/weight_rows.h"

static const weight_row weights[] = {
    ROWS_MODEL(WEIGHT_AS_IS),
    ROWS_PRE_NORM,
    ROWS_ATTENTION(WEIGHT_AS_IS),
    ROWS_QKV_BIAS(WEIGHT_OPTIONAL),
    ROW_O_BIAS(WEIGHT_OPTIONAL),
    ROWS_HEAD_NORM(WEIGHT_AS_IS),
    ROW_MATRIX(W_ROUTER, "mlp.gate.weight", "ffn_gate_inp.weight", "experts,embd", 0),
    ROWS_EXPERTS("mlp.experts.", "gate_proj", "up_proj", "down_proj"),
};

static status configure(model *m, error *err) {
    TRY(model_require_activation(m, "silu|swish", err));
    TRY(model_require_gating(m, GATING_SOFTMAX, err));
    const model_window_switch *sw = m->priv; /* once on, on every layer */
    return model_layers_uniform(m, sw->use ? m->hp.window : 0, err);
}

static status layer(block_ctx *c, int l, vt_tensor x) {
    /* a GGUF does not say; every published model of the family renormalises */
    const bool norm = model_router_norm(c->m, source_container(c->m->src) == META_GGUF);
    const block_moe_params p = {.router = {.mode = VT_ROUTER_SOFTMAX, .n_groups = 1, .renormalize = norm, .scaling = model_router_scaling(c->m)}, .activation = MOE_SILU};
    return block_moe_layer(c, l, x, &p);
}

static const char *const hf_names[] = {"Qwen3MoeForCausalLM", "qwen3_moe", NULL};
static const char *const gguf_names[] = {"qwen3moe", NULL};

const arch arch_qwen3_moe = {
    .name = "qwen3_moe",
    .hf_names = hf_names,
    .gguf_names = gguf_names,
    .own_hparams = model_window_switch_hparams,
    .n_own_hparams = MODEL_N_WINDOW_SWITCH_HPARAMS,
    .own_bytes = sizeof(model_window_switch),
    .weights = weights,
    .n_weights = sizeof weights / sizeof weights[0],
    .n_slots = W_COMMON_COUNT,
    .needs_experts = true,
    .configure = configure,
    .embed = block_embed,
    .layer = layer,
    .head = block_head,
};
