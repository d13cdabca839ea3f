/* SPDX-License-Identifier: Apache-2.0 */
/* The hyper-parameters that most decoder families share, in every published spelling. */
#include <math.h>

#include "model/model.h"

#define BIG 1e12

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
    HPARAM(rope_theta, HPARAM_NUMBER, "rope_theta|rope_parameters.rope_theta", "rope.freq_base", 1e-6, BIG, 10000.0, 0),
    HPARAM(rope_dim, HPARAM_COUNT, NULL, "rope.dimension_count", 0, 1 << 16, NAN, 0),
    HPARAM(rope_type, HPARAM_TEXT, "rope_scaling.rope_type|rope_scaling.type|rope_parameters.rope_type", "rope.scaling.type", 0, 0, NAN, 0),
    HPARAM(rope_factor, HPARAM_NUMBER, "rope_scaling.factor|rope_parameters.factor", "rope.scaling.factor", 1e-6, BIG, NAN, 0),
    HPARAM(rope_original_ctx, HPARAM_COUNT, "rope_scaling.original_max_position_embeddings|rope_parameters.original_max_position_embeddings",
           "rope.scaling.original_context_length", 1, 1 << 30, NAN, 0),
    HPARAM(rope_low_freq_factor, HPARAM_NUMBER, "rope_scaling.low_freq_factor|rope_parameters.low_freq_factor", NULL, 1e-6, BIG, NAN, 0),
    HPARAM(rope_high_freq_factor, HPARAM_NUMBER, "rope_scaling.high_freq_factor|rope_parameters.high_freq_factor", NULL, 1e-6, BIG, NAN, 0),
    HPARAM(tie_embeddings, HPARAM_FLAG, "tie_word_embeddings", NULL, 0, 1, NAN, 0),
};
const size_t model_n_common_hparams = sizeof model_common_hparams / sizeof model_common_hparams[0];
