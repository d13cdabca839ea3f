/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSeek V3 (and V2): latent attention, the first layers dense, the others a grouped router with a shared expert. V3 routes by sigmoid with a selection bias and scores a group by its
 * two best; V2 by softmax, a group by its best. Prediction layers past the last are not used.
 */
#include <math.h>
#include <string.h>

#include "model/block_mla.h"
#include "model/block_moe.h"
#include "model/weight_rows.h"

enum slot { W_Q_A = W_COMMON_COUNT, W_Q_A_NORM, W_Q_B, W_KV_A, W_KV_A_NORM, W_KV_B, SLOT_COUNT };

typedef struct own {
    int64_t q_lora, kv_lora, nope, rope, value;
    const char *scoring, *topk_method;
} own;

static const hparam_row own_hparams[] = {
    HPARAM_IN(own, q_lora, HPARAM_COUNT, "q_lora_rank", "attention.q_lora_rank", 0, 1 << 20, 0, 0),
    HPARAM_IN(own, kv_lora, HPARAM_COUNT, "kv_lora_rank", "attention.kv_lora_rank", 1, 1 << 20, NAN, HPARAM_REQUIRED),
    HPARAM_IN(own, nope, HPARAM_COUNT, "qk_nope_head_dim", NULL, 1, 1 << 16, NAN, HPARAM_REQUIRED),
    HPARAM_IN(own, rope, HPARAM_COUNT, "qk_rope_head_dim", "rope.dimension_count", 2, 1 << 16, NAN, HPARAM_REQUIRED),
    HPARAM_IN(own, value, HPARAM_COUNT, "v_head_dim", "attention.value_length", 1, 1 << 16, NAN, HPARAM_REQUIRED),
    HPARAM_IN(own, scoring, HPARAM_TEXT, "scoring_func", NULL, 0, 0, NAN, 0),
    HPARAM_IN(own, topk_method, HPARAM_TEXT, "topk_method", NULL, 0, 0, NAN, 0),
};

/* clang-format off */
#define ROW_HF(slot, hf, shape, flags) {slot, "model.layers.{l}." hf, NULL, shape, WEIGHT_PER_LAYER | (flags), 0, 0}
static const weight_row weights[] = {
    ROWS_MODEL(WEIGHT_AS_IS),
    ROWS_PRE_NORM,
    ROW_HF(W_Q, "self_attn.q_proj.weight", "mla q,embd", 0),
    ROW_HF(W_Q_A, "self_attn.q_a_proj.weight", "q lora,embd", 0),
    ROW_HF(W_Q_A_NORM, "self_attn.q_a_layernorm.weight", "q lora", WEIGHT_ELEMENT_TYPES),
    ROW_HF(W_Q_B, "self_attn.q_b_proj.weight", "mla q,q lora", 0),
    ROW_HF(W_KV_A, "self_attn.kv_a_proj_with_mqa.weight", "kv row,embd", 0),
    ROW_HF(W_KV_A_NORM, "self_attn.kv_a_layernorm.weight", "kv lora", WEIGHT_ELEMENT_TYPES),
    ROW_HF(W_KV_B, "self_attn.kv_b_proj.weight", "kv up,kv lora", 0),
    ROW_HF(W_O, "self_attn.o_proj.weight", "embd,mla o", 0),
    ROWS_MLP,
    ROW_MATRIX(W_ROUTER, "mlp.gate.weight", "ffn_gate_inp.weight", "experts,embd", 0),
    ROW_BIAS(W_SELECT_BIAS, "mlp.gate.e_score_correction_bias", "exp_probs_b.bias", "experts", WEIGHT_OPTIONAL),
    ROWS_EXPERTS("mlp.experts.", "gate_proj", "up_proj", "down_proj"),
    ROWS_SHARED_EXPERT("mlp.shared_experts."),
};
/* clang-format on */

static int64_t dim(const model *m, const char *symbol, size_t n, int layer) {
    const own *o = m->priv;
    (void)layer;
    const struct {
        const char *name;
        int64_t value;
    } symbols[] = {
        {"q lora", o->q_lora},
        {"kv lora", o->kv_lora},
        {"kv row", o->kv_lora + o->rope},
        {"mla q", m->hp.n_heads * (o->nope + o->rope)},
        {"mla o", m->hp.n_heads * o->value},
        {"kv up", m->hp.n_heads * (o->nope + o->value)},
    };
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        if (strlen(symbols[i].name) == n && memcmp(symbols[i].name, symbol, n) == 0) return symbols[i].value;
    }
    return -1;
}

static bool applies(const model *m, const weight_row *row, int layer) {
    const own *o = m->priv;
    (void)layer;
    if (row->slot == W_Q) return o->q_lora == 0;
    if (row->slot == W_Q_A || row->slot == W_Q_A_NORM || row->slot == W_Q_B) return o->q_lora > 0;
    return true;
}

static bool is_v3(const model *m) {
    const own *o = m->priv;
    return o->scoring == NULL ? m->hp.n_experts == 0 || meta_find(source_meta(m->src), "scoring_func") == NULL : strcmp(o->scoring, "sigmoid") == 0;
}

/* The kernel takes W_kv_b in slices of heads, without scales. */
static status check_kv_b(const model *m, error *err) {
    const meta_value *method = meta_find(source_meta(m->src), "quantization_config.quant_method");
    if (method == NULL) return STATUS_OK;
    return error_set(err, STATUS_UNSUPPORTED, "model: deepseek: a quantised kv_b_proj is not implemented (the checkpoint has a quantization_config)");
}

static status configure(model *m, error *err) {
    const own *o = m->priv;
    hparams *h = &m->hp;
    int32_t rope;
    TRY(model_require_activation(m, "silu|swish", err));
    TRY(check_kv_b(m, err));
    TRY(model_ignore(m, "model.layers.{l}.*", (int)h->n_layers, err));
    if (o->topk_method != NULL && strcmp(o->topk_method, "noaux_tc") != 0 && strcmp(o->topk_method, "greedy") != 0 && strcmp(o->topk_method, "group_limited_greedy") != 0) {
        return error_set(err, STATUS_UNSUPPORTED, "model: deepseek: topk_method \"%.40s\" is not implemented (known: noaux_tc, greedy, group_limited_greedy)", o->topk_method);
    }
    TRY(model_add_rope(m, &h->rope, o->rope, &rope, err));
    float scale = 1.0f / sqrtf((float)(o->nope + o->rope));
    if (strcmp(h->rope.type, "yarn") == 0 && h->rope.mscale_all_dim > 0 && h->rope.factor > 1) {
        const float mscale = (float)(0.1 * h->rope.mscale_all_dim * log(h->rope.factor) + 1.0);
        scale *= mscale * mscale;
    }
    for (int32_t l = 0; l < (int32_t)h->n_layers; l++) {
        m->layers[l] = (layer_info){
            .kind = LAYER_LATENT, .kv_layer = l, .n_heads = h->n_heads, .n_kv_heads = 1, .head_dim = o->kv_lora + o->rope, .n_ff = h->n_ff, .attn_scale = scale, .rope = rope};
    }
    return model_group_layers(m, err);
}

static status attention(block_ctx *c, vt_tensor out, vt_tensor x, int layer) {
    const own *o = c->m->priv;
    const block_mla_params p = {
        .q_a = W_Q_A, .q_a_norm = W_Q_A_NORM, .q_b = W_Q_B, .kv_a = W_KV_A, .kv_a_norm = W_KV_A_NORM, .kv_b = W_KV_B,
        .q_lora = o->q_lora, .kv_lora = o->kv_lora, .nope = o->nope, .rope = o->rope, .value = o->value,
    };
    return block_mla(c, out, x, layer, &p);
}

static status layer(block_ctx *c, int l, vt_tensor x) {
    const hparams *h = &c->m->hp;
    const own *o = c->m->priv;
    const bool v3 = is_v3(c->m), grouped = o->topk_method == NULL || strcmp(o->topk_method, "greedy") != 0;
    const block_moe_params p = {
        .router = {.mode = v3 ? VT_ROUTER_SIGMOID : VT_ROUTER_SOFTMAX,
                   .n_groups = grouped && h->n_expert_groups > 0 ? (int32_t)h->n_expert_groups : 1,
                   .top_groups = h->n_top_groups > 0 ? (int32_t)h->n_top_groups : 1,
                   .group_top2 = v3,
                   .renormalize = v3 ? h->router_norm != 0 : h->router_norm == 1,
                   .scaling = h->router_scaling > 0 ? (float)h->router_scaling : 1.0f},
        .activation = MOE_SILU,
        .attention = attention,
    };
    return block_moe_layer(c, l, x, &p);
}

static const char *const hf_names[] = {"DeepseekV3ForCausalLM", "DeepseekV2ForCausalLM", "deepseek_v3", "deepseek_v2", NULL};

const arch arch_deepseek_v3 = {
    .name = "deepseek_v3",
    .hf_names = hf_names,
    .own_hparams = own_hparams,
    .n_own_hparams = sizeof own_hparams / sizeof own_hparams[0],
    .own_bytes = sizeof(own),
    .weights = weights,
    .n_weights = sizeof weights / sizeof weights[0],
    .n_slots = SLOT_COUNT,
    .configure = configure,
    .dim = dim,
    .applies = applies,
    .embed = block_embed,
    .layer = layer,
    .head = block_head,
};
