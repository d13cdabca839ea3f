/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen 3: Llama with a norm over each head of q and k, and a head size of its own. A window, where switched on, is on the layers from max_window_layers. */
#include "model/block.h"
#include "model/weight_rows.h"

typedef struct qwen3 {
    int64_t use_window, first_window_layer;
} qwen3;

static const hparam_row own_hparams[] = {
    HPARAM_IN(qwen3, use_window, HPARAM_FLAG, "use_sliding_window", NULL, 0, 1, 0, 0),
    HPARAM_IN(qwen3, first_window_layer, HPARAM_COUNT, "max_window_layers", NULL, 0, 1 << 20, 28, 0),
};

static const weight_row weights[] = {
    ROWS_MODEL(WEIGHT_AS_IS),
    ROWS_PRE_NORM,
    ROWS_ATTENTION(WEIGHT_AS_IS),
    ROWS_HEAD_NORM(WEIGHT_AS_IS),
    ROWS_QKV_BIAS(WEIGHT_OPTIONAL),
    ROW_O_BIAS(WEIGHT_OPTIONAL),
    ROWS_MLP,
};

static status configure(model *m, error *err) {
    const qwen3 *own = m->priv;
    TRY(model_require_activation(m, "silu|swish", err));
    return model_layers_window_from(m, own->use_window ? m->hp.window : 0, own->first_window_layer, err);
}

static const char *const hf_names[] = {"Qwen3ForCausalLM", "qwen3", NULL};
static const char *const gguf_names[] = {"qwen3", NULL};

const arch arch_qwen3 = {
    .name = "qwen3",
    .hf_names = hf_names,
    .gguf_names = gguf_names,
    .own_hparams = own_hparams,
    .n_own_hparams = sizeof own_hparams / sizeof own_hparams[0],
    .own_bytes = sizeof(qwen3),
    .weights = weights,
    .n_weights = sizeof weights / sizeof weights[0],
    .n_slots = W_COMMON_COUNT,
    .configure = configure,
    .embed = block_embed,
    .layer = block_decoder_layer,
    .head = block_head,
};
