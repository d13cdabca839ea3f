/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gemma 3: norms on both sides of attention and MLP, a norm over each head of q and k, GELU, a scaled embedding. Layers with a window have a rotary base of their own;
 * the scaling of positions is for the full layers. Norm weights are stored for (1 + w), in a GGUF with the one folded in.
 */
#include <math.h>

#include "model/block.h"
#include "model/weight_rows.h"

enum { PATTERN = 6, LAYERS_27B = 62 }; /* by default every sixth layer is full */

typedef struct gemma3 {
    double query_scalar;
    int64_t bidirectional;
} gemma3;

/* What the published configurations leave to the defaults of Transformers' class. */
static const hparam_row hparam_rows[] = {
    HPARAM(n_ctx_train, HPARAM_COUNT, "max_position_embeddings", "context_length", 1, 1 << 30, 131072, 0),
    HPARAM(n_heads, HPARAM_COUNT, "num_attention_heads", "attention.head_count", 1, 1 << 16, 8, 0),
    HPARAM(n_kv_heads, HPARAM_COUNT, "num_key_value_heads", "attention.head_count_kv", 1, 1 << 16, 4, 0),
    HPARAM(head_dim, HPARAM_COUNT, "head_dim", "attention.key_length", 1, 1 << 16, 256, 0),
    HPARAM(norm_eps, HPARAM_NUMBER, "rms_norm_eps", "attention.layer_norm_rms_epsilon", 0, 1, 1e-6, 0),
    HPARAM(tie_embeddings, HPARAM_FLAG, "tie_word_embeddings", NULL, 0, 1, NAN, 0),
    HPARAM(rope.theta, HPARAM_NUMBER, "rope_parameters.full_attention.rope_theta|rope_theta", "rope.freq_base", 1e-6, 1e12, 1e6, 0),
};

static const hparam_row own_hparams[] = {
    HPARAM_IN(gemma3, query_scalar, HPARAM_NUMBER, "query_pre_attn_scalar", NULL, 1e-6, 1e12, 256, 0),
    HPARAM_IN(gemma3, bidirectional, HPARAM_FLAG, "use_bidirectional_attention", NULL, 0, 1, 0, 0),
};

static const weight_row weights[] = {
    ROWS_MODEL(WEIGHT_NORM_PLUS_ONE),
    ROWS_SANDWICH_NORM(WEIGHT_NORM_PLUS_ONE),
    ROWS_ATTENTION(WEIGHT_AS_IS),
    ROWS_HEAD_NORM(WEIGHT_NORM_PLUS_ONE),
    ROWS_MLP,
};

/* A GGUF does not say the scale; llama.cpp tells the largest model by its layers. */
static double query_scalar(const model *m) {
    if (source_container(m->src) == META_HF) return ((const gemma3 *)m->priv)->query_scalar;
    return m->hp.n_layers == LAYERS_27B ? (double)m->hp.n_embd / (double)m->hp.n_heads : (double)m->hp.head_dim;
}

static status configure(model *m, error *err) {
    const hparams *h = &m->hp;
    int32_t full, local;
    TRY(model_require_activation(m, "gelu_pytorch_tanh|gelu_new", err));
    if (((const gemma3 *)m->priv)->bidirectional) return error_set(err, STATUS_UNSUPPORTED, "model: use_bidirectional_attention is not implemented for gemma3");
    bool *is_window = arena_calloc(m->arena, (size_t)h->n_layers, sizeof *is_window);
    if (is_window == NULL) return error_set(err, STATUS_NO_MEMORY, "model: no memory for the layers' kinds");
    if (h->window > 0) TRY(model_window_layers(m, PATTERN, is_window, err));
    TRY(model_add_rope(m, &h->rope, h->rope_dim, &full, err));
    TRY(model_add_rope(m, &h->rope_window, h->rope_dim, &local, err));
    for (int32_t l = 0; l < (int32_t)h->n_layers; l++) {
        m->layers[l] = (layer_info){
            .kind = is_window[l] ? LAYER_WINDOW : LAYER_FULL,
            .kv_layer = l,
            .n_heads = h->n_heads,
            .n_kv_heads = h->n_kv_heads,
            .head_dim = h->head_dim,
            .n_ff = h->n_ff,
            .window = is_window[l] ? h->window : 0,
            .attn_scale = (float)(1.0 / sqrt(query_scalar(m))),
            .rope = is_window[l] ? local : full,
        };
    }
    return model_group_layers(m, err);
}

static status embed(block_ctx *c, vt_tensor x) {
    TRY(block_embed(c, x));
    return block_scale(c, x, sqrtf((float)c->m->hp.n_embd));
}

static status layer(block_ctx *c, int l, vt_tensor x) { return block_sandwich_layer(c, l, x, BLOCK_GELU, 1.0f, true); }

static const char *const hf_names[] = {"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "gemma3_text", "gemma3", NULL};
static const char *const gguf_names[] = {"gemma3", NULL};

const arch arch_gemma3 = {
    .name = "gemma3",
    .hf_names = hf_names,
    .gguf_names = gguf_names,
    .hparams = hparam_rows,
    .n_hparams = sizeof hparam_rows / sizeof hparam_rows[0],
    .own_hparams = own_hparams,
    .n_own_hparams = sizeof own_hparams / sizeof own_hparams[0],
    .own_bytes = sizeof(gemma3),
    .weights = weights,
    .n_weights = sizeof weights / sizeof weights[0],
    .n_slots = W_COMMON_COUNT,
    .configure = configure,
    .embed = embed,
    .layer = layer,
    .head = block_head,
};
