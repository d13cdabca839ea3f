/* SPDX-License-Identifier: Apache-2.0 */
/* OLMoE: norms over the full width of q and k, softmax router whose chosen weights are not renormalised unless the configuration says so. */
#include "model/block_moe.h"
#include "model/weight_rows.h"

typedef struct own {
    double clip_qkv;
} own;

static const hparam_row own_hparams[] = {HPARAM_IN(own, clip_qkv, HPARAM_NUMBER, "clip_qkv", "attention.clamp_kqv", 0, 1e9, 0, 0)};

static const weight_row weights[] = {
    ROWS_MODEL(WEIGHT_AS_IS),
    ROWS_PRE_NORM,
    ROWS_ATTENTION(WEIGHT_AS_IS),
    ROW_NORM(W_Q_NORM, "self_attn.q_norm.weight", "attn_q_norm.weight", "q", 0),
    ROW_NORM(W_K_NORM, "self_attn.k_norm.weight", "attn_k_norm.weight", "kv", 0),
    ROW_MATRIX(W_ROUTER, "mlp.gate.weight", "ffn_gate_inp.weight", "experts,embd", 0),
    ROWS_EXPERTS("mlp.experts.", "gate_proj", "up_proj", "down_proj"),
};

static status configure(model *m, error *err) {
    if (((const own *)m->priv)->clip_qkv != 0) return error_set(err, STATUS_UNSUPPORTED, "model: olmoe: clip_qkv %g is not implemented", ((const own *)m->priv)->clip_qkv);
    TRY(model_require_activation(m, "silu|swish", err));
    TRY(model_require_gating(m, GATING_SOFTMAX, err));
    return model_layers_uniform(m, 0, err);
}

static status layer(block_ctx *c, int l, vt_tensor x) {
    const block_moe_params p = {.router = {.mode = VT_ROUTER_SOFTMAX, .n_groups = 1, .renormalize = model_router_norm(c->m, false), .scaling = model_router_scaling(c->m)}, .activation = MOE_SILU};
    return block_moe_layer(c, l, x, &p);
}

static const char *const hf_names[] = {"OlmoeForCausalLM", "olmoe", NULL};
static const char *const gguf_names[] = {"olmoe", NULL};

const arch arch_olmoe = {
    .name = "olmoe",
    .hf_names = hf_names,
    .gguf_names = gguf_names,
    .own_hparams = own_hparams,
    .n_own_hparams = sizeof own_hparams / sizeof own_hparams[0],
    .own_bytes = sizeof(own),
    .weights = weights,
    .n_weights = sizeof weights / sizeof weights[0],
    .n_slots = W_COMMON_COUNT,
    .needs_experts = true,
    .configure = configure,
    .embed = block_embed,
    .layer = layer,
    .head = block_head,
};
