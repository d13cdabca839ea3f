/* SPDX-License-Identifier: Apache-2.0 */
/* gpt-oss: alternating window and full attention with sinks, biases everywhere, yarn; experts with a clamped gate, stored transposed with gate and up alternating (BF16) or as MXFP4 blocks. */
#include "model/block_moe.h"
#include "model/weight_rows.h"

typedef struct own {
    double limit;
} own;

static const hparam_row own_hparams[] = {HPARAM_IN(own, limit, HPARAM_NUMBER, "swiglu_limit", "expert_swiglu_limit", 1e-6, 1e9, 7.0, 0)};

#define EXPERTS "model.layers.{l}.mlp.experts."
#define BIASES (WEIGHT_PER_LAYER | WEIGHT_EXPERTS | WEIGHT_ELEMENT_TYPES)
#define STACKED (WEIGHT_PER_LAYER | WEIGHT_EXPERTS | WEIGHT_OPTIONAL)
static const weight_row weights[] = {
    ROWS_MODEL(WEIGHT_AS_IS),
    ROW_NORM(W_ATTN_NORM, "input_layernorm.weight", "attn_norm.weight", "embd", 0),
    ROW_NORM(W_FFN_NORM, "post_attention_layernorm.weight", "post_attention_norm.weight", "embd", 0),
    ROWS_ATTENTION(WEIGHT_AS_IS),
    ROWS_QKV_BIAS(0),
    ROW_O_BIAS(0),
    ROW_BIAS(W_SINKS, "self_attn.sinks", "attn_sinks.weight", "heads", 0),
    ROW_MATRIX(W_ROUTER, "mlp.router.weight", "ffn_gate_inp.weight", "experts,embd", 0),
    ROW_BIAS(W_ROUTER_BIAS, "mlp.router.bias", "ffn_gate_inp.bias", "experts", 0),
    {W_EXP_GATE_UP, EXPERTS "gate_up_proj", NULL, "experts,embd,2ff_exp", STACKED, WEIGHT_TRANSPOSED_INTERLEAVED, 0},
    {W_EXP_GATE_UP, EXPERTS "gate_up_proj_blocks", NULL, "experts,2ff_exp,embd", STACKED, WEIGHT_INTERLEAVED, 0},
    {W_EXP_DOWN, EXPERTS "down_proj", NULL, "experts,ff_exp,embd", STACKED, WEIGHT_TRANSPOSED, 0},
    {W_EXP_DOWN, EXPERTS "down_proj_blocks", "blk.{l}.ffn_down_exps.weight", "experts,embd,ff_exp", STACKED, 0, 0},
    {W_EXP_GATE, NULL, "blk.{l}.ffn_gate_exps.weight", "experts,ff_exp,embd", WEIGHT_PER_LAYER | WEIGHT_EXPERTS, 0, 0},
    {W_EXP_UP, NULL, "blk.{l}.ffn_up_exps.weight", "experts,ff_exp,embd", WEIGHT_PER_LAYER | WEIGHT_EXPERTS, 0, 0},
    {W_EXP_GATE_BIAS, NULL, "blk.{l}.ffn_gate_exps.bias", "experts,ff_exp", BIASES, 0, 0},
    {W_EXP_UP_BIAS, NULL, "blk.{l}.ffn_up_exps.bias", "experts,ff_exp", BIASES, 0, 0},
    {W_EXP_GATE_UP_BIAS, EXPERTS "gate_up_proj_bias", NULL, "experts,2ff_exp", BIASES, 0, 0},
    {W_EXP_DOWN_BIAS, EXPERTS "down_proj_bias", "blk.{l}.ffn_down_exps.bias", "experts,embd", BIASES, 0, 0},
};

static status configure(model *m, error *err) {
    bool *is_window = arena_calloc(m->arena, (size_t)m->hp.n_layers, sizeof *is_window);
    if (is_window == NULL) return error_set(err, STATUS_NO_MEMORY, "model: no memory for the layers' kinds");
    TRY(model_require_gating(m, GATING_SOFTMAX_SELECTED, err));
    if (source_container(m->src) == META_GGUF) m->hp.rope.truncate = 0; /* no key says so; the published configurations do */
    TRY(model_layers_uniform(m, m->hp.window, err));
    TRY(model_window_layers(m, 2, is_window, err));
    for (int64_t l = 0; l < m->hp.n_layers; l++) {
        if (is_window[l]) continue;
        m->layers[l].kind = LAYER_FULL;
        m->layers[l].window = 0;
    }
    return model_group_layers(m, err);
}

static status layer(block_ctx *c, int l, vt_tensor x) {
    const own *o = c->m->priv;
    const block_moe_params p = {
        .router = {.mode = VT_ROUTER_SOFTMAX_SELECTED, .n_groups = 1, .scaling = model_router_scaling(c->m)},
        .activation = MOE_SWIGLU_CLAMP,
        .swiglu = {.alpha = 1.702f, .limit = (float)o->limit},
    };
    return block_moe_layer(c, l, x, &p);
}

static const char *const hf_names[] = {"GptOssForCausalLM", "gpt_oss", NULL};
static const char *const gguf_names[] = {"gpt-oss", NULL};

const arch arch_gpt_oss = {
    .name = "gpt_oss",
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
