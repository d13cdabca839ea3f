/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSeek V3 (and V2): latent attention, the first layers dense, the others a grouped router with a shared expert. V3 routes by sigmoid with a selection bias and scores a group by its
 * two best; V2 by softmax, a group by its best. Prediction layers past the last are not used. A GGUF has the up-projection of the latent split into keys and values, head by head, or,
 * if it is old, whole.
 */
#include <math.h>
#include <string.h>

#include "model/block_mla.h"
#include "model/block_moe.h"
#include "model/weight_rows.h"

enum slot { W_Q_A = W_COMMON_COUNT, W_Q_A_NORM, W_Q_B, W_KV_A, W_KV_A_NORM, W_KV_B, W_K_B, W_V_B, SLOT_COUNT };

typedef struct own {
    int64_t q_lora, kv_lora, nope, rope, value;
    int64_t key;     /* of a GGUF: nope + rope */
    double log_mul;  /* of a GGUF: a tenth of mscale_all_dim, which mscale equals */
    bool split;      /* W_K_B and W_V_B in place of W_KV_B */
    const char *scoring, *topk_method;
} own;

static const hparam_row own_hparams[] = {
    HPARAM_IN(own, q_lora, HPARAM_COUNT, "q_lora_rank", "attention.q_lora_rank", 0, 1 << 20, 0, 0),
    HPARAM_IN(own, kv_lora, HPARAM_COUNT, "kv_lora_rank", "attention.kv_lora_rank", 1, 1 << 20, NAN, HPARAM_REQUIRED),
    HPARAM_IN(own, nope, HPARAM_COUNT, "qk_nope_head_dim", NULL, 1, 1 << 16, NAN, HPARAM_REQUIRED),
    HPARAM_IN(own, rope, HPARAM_COUNT, "qk_rope_head_dim", "rope.dimension_count", 2, 1 << 16, NAN, HPARAM_REQUIRED),
    HPARAM_IN(own, value, HPARAM_COUNT, "v_head_dim", "attention.value_length_mla|attention.value_length", 1, 1 << 16, NAN, HPARAM_REQUIRED),
    HPARAM_IN(own, key, HPARAM_COUNT, NULL, "attention.key_length_mla|attention.key_length", 2, 1 << 17, NAN, HPARAM_REQUIRED),
    HPARAM_IN(own, log_mul, HPARAM_NUMBER, NULL, "rope.scaling.yarn_log_multiplier", 0, 1e6, NAN, 0),
    HPARAM_IN(own, scoring, HPARAM_TEXT, "scoring_func", NULL, 0, 0, NAN, 0),
    HPARAM_IN(own, topk_method, HPARAM_TEXT, "topk_method", NULL, 0, 0, NAN, 0),
};

/* clang-format off */
static const weight_row weights[] = {
    ROWS_MODEL(WEIGHT_AS_IS),
    ROWS_PRE_NORM,
    ROW_MATRIX(W_Q, "self_attn.q_proj.weight", "attn_q.weight", "mla q,embd", 0),
    ROW_MATRIX(W_Q_A, "self_attn.q_a_proj.weight", "attn_q_a.weight", "q lora,embd", 0),
    ROW_NORM(W_Q_A_NORM, "self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight", "q lora", 0),
    ROW_MATRIX(W_Q_B, "self_attn.q_b_proj.weight", "attn_q_b.weight", "mla q,q lora", 0),
    ROW_MATRIX(W_KV_A, "self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight", "kv row,embd", 0),
    ROW_NORM(W_KV_A_NORM, "self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight", "kv lora", 0),
    {W_KV_B, "model.layers.{l}.self_attn.kv_b_proj.weight", "blk.{l}.attn_kv_b.weight", "kv up,kv lora", WEIGHT_PER_LAYER | WEIGHT_WIDENED, 0, 0},
    {W_K_B, NULL, "blk.{l}.attn_k_b.weight", "heads,kv lora,nope", WEIGHT_PER_LAYER, 0, 0},
    {W_V_B, NULL, "blk.{l}.attn_v_b.weight", "heads,value,kv lora", WEIGHT_PER_LAYER, 0, 0},
    ROW_MATRIX(W_O, "self_attn.o_proj.weight", "attn_output.weight", "embd,mla o", 0),
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
        {"nope", o->nope},
        {"value", o->value},
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
    if (row->slot == W_KV_B) return !o->split;
    if (row->slot == W_K_B || row->slot == W_V_B) return o->split;
    return true;
}

/* Of the second version, where the configuration names its router no other way. */
static bool is_v2_class(const model *m) {
    const meta *mt = source_meta(m->src);
    const char *name;
    size_t n;
    if (meta_array_string(meta_find(mt, "architectures"), 0, &name, &n)) return strcmp(name, "DeepseekV2ForCausalLM") == 0;
    return meta_as_string(meta_find(mt, "model_type"), &name, &n) && strcmp(name, "deepseek_v2") == 0;
}

static bool is_v3(const model *m) {
    const own *o = m->priv;
    if (source_container(m->src) == META_GGUF) return m->hp.gating == GATING_SIGMOID;
    return o->scoring != NULL ? strcmp(o->scoring, "sigmoid") == 0 : !is_v2_class(m);
}

static bool is_grouped(const model *m) {
    const own *o = m->priv;
    if (m->hp.n_expert_groups == 0) return false;
    return o->topk_method != NULL ? strcmp(o->topk_method, "greedy") != 0 : source_container(m->src) == META_GGUF || !is_v2_class(m);
}

/* What a GGUF says otherwise than a configuration. */
static status read_gguf(model *m, error *err) {
    own *o = m->priv;
    if (source_container(m->src) != META_GGUF) return STATUS_OK;
    if (m->hp.gating > GATING_SIGMOID) return model_require_gating(m, GATING_SIGMOID, err);
    if (o->key <= o->rope) {
        return error_set(err, STATUS_FORMAT, "model: %s.attention.key_length %lld: more than the %lld rotary dimensions are expected", m->prefix, (long long)o->key, (long long)o->rope);
    }
    o->nope = o->key - o->rope;
    m->hp.rope.mscale = m->hp.rope.mscale_all_dim = 10 * o->log_mul;
    o->split = bind_find(m->src, "blk.{l}.attn_k_b.weight") != NULL;
    return o->split ? model_ignore(m, "blk.*.attn_kv_b.weight", -1, err) : STATUS_OK; /* some have both */
}

static status configure(model *m, error *err) {
    const own *o = m->priv;
    hparams *h = &m->hp;
    int32_t rope;
    TRY(model_require_activation(m, "silu|swish", err));
    TRY(read_gguf(m, err));
    if (o->scoring != NULL && strcmp(o->scoring, "sigmoid") != 0 && strcmp(o->scoring, "softmax") != 0) {
        return error_set(err, STATUS_UNSUPPORTED, "model: deepseek: scoring_func \"%.40s\" is not implemented (known: sigmoid, softmax)", o->scoring);
    }
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
        .q_a = W_Q_A, .q_a_norm = W_Q_A_NORM, .q_b = W_Q_B, .kv_a = W_KV_A, .kv_a_norm = W_KV_A_NORM, .kv_b = W_KV_B, .k_b = W_K_B, .v_b = W_V_B,
        .q_lora = o->q_lora, .kv_lora = o->kv_lora, .nope = o->nope, .rope = o->rope, .value = o->value,
    };
    return block_mla(c, out, x, layer, &p);
}

static status layer(block_ctx *c, int l, vt_tensor x) {
    const hparams *h = &c->m->hp;
    const bool v3 = is_v3(c->m);
    const block_moe_params p = {
        .router = {.mode = v3 ? VT_ROUTER_SIGMOID : VT_ROUTER_SOFTMAX,
                   .n_groups = is_grouped(c->m) ? (int32_t)h->n_expert_groups : 1,
                   .top_groups = h->n_top_groups > 0 ? (int32_t)h->n_top_groups : 1,
                   .group_top2 = v3,
                   .renormalize = model_router_norm(c->m, v3 && source_container(c->m->src) == META_HF),
                   .scaling = model_router_scaling(c->m)},
        .activation = MOE_SILU,
        .attention = attention,
    };
    return block_moe_layer(c, l, x, &p);
}

static const char *const hf_names[] = {"DeepseekV3ForCausalLM", "DeepseekV2ForCausalLM", "deepseek_v3", "deepseek_v2", NULL};
static const char *const gguf_names[] = {"deepseek2", NULL};

const arch arch_deepseek_v3 = {
    .name = "deepseek_v3",
    .hf_names = hf_names,
    .gguf_names = gguf_names,
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
