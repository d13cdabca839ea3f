/* SPDX-License-Identifier: Apache-2.0 */
/* The hyper-parameters that most decoder families share, in every published spelling. */
#include <math.h>

#include "model/model.h"

#define BIG 1e12

/*
 * A rotary embedding's parameters: Transformers 5 writes rope_parameters, one object or one per kind of layer; before that there were rope_scaling and
 * single keys. The full-attention object describes the layers of a family that does not tell kinds apart.
 */
#define ROPE_KEY(key) "rope_parameters.full_attention." key "|rope_parameters." key "|rope_scaling." key
#define WINDOW_KEY(key) "rope_parameters.sliding_attention." key

const hparam_row model_common_hparams[] = {
    HPARAM(n_layers, HPARAM_COUNT, "num_hidden_layers|n_layers|n_layer", "block_count", 1, HPARAM_MAX_LAYERS, NAN, HPARAM_REQUIRED),
    HPARAM(n_embd, HPARAM_COUNT, "hidden_size|n_embd|d_model", "embedding_length", 1, 1 << 20, NAN, HPARAM_REQUIRED),
    HPARAM(n_ff, HPARAM_COUNT, "intermediate_size|ffn_dim", "feed_forward_length", 1, 1 << 24, NAN, HPARAM_REQUIRED),
    HPARAM(n_vocab, HPARAM_COUNT, "vocab_size", "vocab_size", 1, 1 << 24, NAN, 0),
    HPARAM(n_ctx_train, HPARAM_COUNT, "max_position_embeddings", "context_length", 1, 1 << 30, NAN, HPARAM_REQUIRED),
    HPARAM(n_heads, HPARAM_COUNT, "num_attention_heads|n_head", "attention.head_count", 1, 1 << 16, NAN, HPARAM_REQUIRED),
    HPARAM(n_kv_heads, HPARAM_COUNT, "num_key_value_heads", "attention.head_count_kv", 1, 1 << 16, NAN, 0),
    HPARAM(head_dim, HPARAM_COUNT, "head_dim", "attention.key_length", 1, 1 << 16, NAN, 0),
    HPARAM(norm_eps, HPARAM_NUMBER, "rms_norm_eps|norm_eps|layer_norm_epsilon", "attention.layer_norm_rms_epsilon", 0, 1, NAN, HPARAM_REQUIRED),
    HPARAM(activation, HPARAM_TEXT, "hidden_act|hidden_activation", NULL, 0, 0, NAN, 0),
    HPARAM(window, HPARAM_COUNT, "sliding_window", "attention.sliding_window", 0, 1 << 30, NAN, 0),
    HPARAM(logit_softcap, HPARAM_NUMBER, "final_logit_softcapping", "final_logit_softcapping", 0, BIG, NAN, 0),
    HPARAM(attn_softcap, HPARAM_NUMBER, "attn_logit_softcapping", "attn_logit_softcapping", 0, BIG, NAN, 0),
    HPARAM(tie_embeddings, HPARAM_FLAG, "tie_word_embeddings", NULL, 0, 1, NAN, 0),

    HPARAM(rope.theta, HPARAM_NUMBER, ROPE_KEY("rope_theta") "|rope_theta", "rope.freq_base", 1e-6, BIG, NAN, 0),
    HPARAM(rope.type, HPARAM_TEXT, ROPE_KEY("rope_type") "|rope_scaling.type|rope_parameters.type", "rope.scaling.type", 0, 0, NAN, 0),
    HPARAM(rope.factor, HPARAM_NUMBER, ROPE_KEY("factor"), "rope.scaling.factor|rope.scale_linear", 0, BIG, NAN, 0),
    HPARAM(rope.partial, HPARAM_NUMBER, ROPE_KEY("partial_rotary_factor") "|partial_rotary_factor|rotary_pct", NULL, 0, 1, NAN, 0),
    HPARAM(rope.original_ctx, HPARAM_COUNT, "original_max_position_embeddings|" ROPE_KEY("original_max_position_embeddings"), "rope.scaling.original_context_length", 1,
           1 << 30, NAN, 0),
    HPARAM(rope.low_freq_factor, HPARAM_NUMBER, ROPE_KEY("low_freq_factor"), NULL, 1e-6, BIG, NAN, 0),
    HPARAM(rope.high_freq_factor, HPARAM_NUMBER, ROPE_KEY("high_freq_factor"), NULL, 1e-6, BIG, NAN, 0),
    HPARAM(rope.beta_fast, HPARAM_NUMBER, ROPE_KEY("beta_fast"), "rope.scaling.yarn_beta_fast", 1e-6, BIG, NAN, 0),
    HPARAM(rope.beta_slow, HPARAM_NUMBER, ROPE_KEY("beta_slow"), "rope.scaling.yarn_beta_slow", 1e-6, BIG, NAN, 0),
    HPARAM(rope.attention_factor, HPARAM_NUMBER, ROPE_KEY("attention_factor"), "rope.scaling.yarn_attn_factor", 0, BIG, NAN, 0),
    HPARAM(rope.mscale, HPARAM_NUMBER, ROPE_KEY("mscale"), NULL, 0, BIG, NAN, 0),
    HPARAM(rope.mscale_all_dim, HPARAM_NUMBER, ROPE_KEY("mscale_all_dim"), "rope.scaling.yarn_log_multiplier", 0, BIG, NAN, 0),
    HPARAM(rope.cos_sin_factor, HPARAM_NUMBER, NULL, "rope.scaling.attn_factor", 0, BIG, NAN, 0),
    HPARAM(rope.truncate, HPARAM_FLAG, ROPE_KEY("truncate"), NULL, 0, 1, NAN, 0),
    HPARAM(rope_dim, HPARAM_COUNT, NULL, "rope.dimension_count", 0, 1 << 16, NAN, 0),

    HPARAM(rope_window.theta, HPARAM_NUMBER, WINDOW_KEY("rope_theta") "|rope_local_base_freq", "rope.freq_base_swa", 1e-6, BIG, NAN, 0),
    HPARAM(rope_window.type, HPARAM_TEXT, WINDOW_KEY("rope_type"), NULL, 0, 0, NAN, 0),
    HPARAM(rope_window.factor, HPARAM_NUMBER, WINDOW_KEY("factor"), NULL, 0, BIG, NAN, 0),
    HPARAM(rope_window.partial, HPARAM_NUMBER, WINDOW_KEY("partial_rotary_factor"), NULL, 0, 1, NAN, 0),
    HPARAM(n_experts, HPARAM_COUNT, "num_experts|num_local_experts|n_routed_experts", "expert_count", 0, 65536, NAN, 0),
    HPARAM(n_experts_used, HPARAM_COUNT, "num_experts_per_tok|top_k_experts|experts_per_token", "expert_used_count", 0, 65536, NAN, 0),
    HPARAM(n_ff_exp, HPARAM_COUNT, "moe_intermediate_size|expert_intermediate_size", "expert_feed_forward_length", 1, 1 << 24, NAN, 0),
    HPARAM(n_shared_experts, HPARAM_COUNT, "n_shared_experts", "expert_shared_count", 0, 64, NAN, 0),
    HPARAM(n_expert_groups, HPARAM_COUNT, "n_group", "expert_group_count", 1, 65536, NAN, 0),
    HPARAM(n_top_groups, HPARAM_COUNT, "topk_group", "expert_group_used_count", 1, 65536, NAN, 0),
    HPARAM(n_dense_layers, HPARAM_COUNT, "first_k_dense_replace", "leading_dense_block_count", 0, HPARAM_MAX_LAYERS, NAN, 0),
    HPARAM(gating, HPARAM_COUNT, NULL, "expert_gating_func", 0, 255, NAN, 0),
    HPARAM(n_predict_layers, HPARAM_COUNT, NULL, "nextn_predict_layers", 0, HPARAM_MAX_LAYERS, NAN, 0),
    HPARAM(router_scaling, HPARAM_NUMBER, "routed_scaling_factor", "expert_weights_scale", 0, 1e6, NAN, 0),
    HPARAM(router_norm, HPARAM_FLAG, "norm_topk_prob", "expert_weights_norm", 0, 1, NAN, 0),
};
const size_t model_n_common_hparams = sizeof model_common_hparams / sizeof model_common_hparams[0];

const hparam_row model_window_switch_hparams[MODEL_N_WINDOW_SWITCH_HPARAMS] = {
    HPARAM_IN(model_window_switch, use, HPARAM_FLAG, "use_sliding_window", NULL, 0, 1, 0, 0),
    HPARAM_IN(model_window_switch, first_layer, HPARAM_COUNT, "max_window_layers", NULL, 0, 1 << 20, 28, 0),
};
