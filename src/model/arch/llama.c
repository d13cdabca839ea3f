/* SPDX-License-Identifier: Apache-2.0 */
/* Llama: pre-norm decoder, grouped-query attention, rotary positions, SwiGLU. GGUF stores the rows of q and k so that rotary pairs are adjacent. */
#include "model/block.h"
#include "model/weight_rows.h"

static const weight_row weights[] = {
    ROWS_MODEL(WEIGHT_AS_IS),
    ROWS_PRE_NORM,
    ROWS_ATTENTION(WEIGHT_ROPE_ADJACENT),
    ROWS_QKV_BIAS(WEIGHT_OPTIONAL),
    ROW_O_BIAS(WEIGHT_OPTIONAL),
    ROWS_MLP,
};

static status configure(model *m, error *err) {
    TRY(model_require_activation(m, "silu|swish", err));
    /* a GGUF of Mistral is one of llama, and may carry the window */
    return model_layers_uniform(m, source_container(m->src) == META_GGUF ? m->hp.window : 0, err);
}

static const char *const hf_names[] = {"LlamaForCausalLM", "llama", NULL};
static const char *const gguf_names[] = {"llama", NULL};

const arch arch_llama = {
    .name = "llama",
    .hf_names = hf_names,
    .gguf_names = gguf_names,
    .weights = weights,
    .n_weights = sizeof weights / sizeof weights[0],
    .n_slots = W_COMMON_COUNT,
    .configure = configure,
    .embed = block_embed,
    .layer = block_decoder_layer,
    .head = block_head,
};
