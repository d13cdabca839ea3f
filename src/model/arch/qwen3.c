/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen 3: Llama with a norm over each head of q and k, and a head size of its own. A window, where switched on, is on the layers from max_window_layers. */
#include "model/block.h"
#include "model/weight_rows.h"

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
    TRY(model_require_activation(m, "silu|swish", err));
    return model_layers_switched_window(m, m->priv, err);
}

static const char *const hf_names[] = {"Qwen3ForCausalLM", "qwen3", NULL};
static const char *const gguf_names[] = {"qwen3", NULL};

const arch arch_qwen3 = {
    .name = "qwen3",
    .hf_names = hf_names,
    .gguf_names = gguf_names,
    .own_hparams = model_window_switch_hparams,
    .n_own_hparams = MODEL_N_WINDOW_SWITCH_HPARAMS,
    .own_bytes = sizeof(model_window_switch),
    .weights = weights,
    .n_weights = sizeof weights / sizeof weights[0],
    .n_slots = W_COMMON_COUNT,
    .configure = configure,
    .embed = block_embed,
    .layer = block_decoder_layer,
    .head = block_head,
};
