/* SPDX-License-Identifier: Apache-2.0 */
/* Mistral: Llama with a sliding window on every layer, where the configuration gives one. A GGUF of it calls itself llama (llama.c), and has the window where it was written down. */
#include <string.h>

#include "model/block.h"
#include "model/weight_rows.h"

static const weight_row weights[] = {
    ROWS_MODEL(WEIGHT_AS_IS),
    ROWS_PRE_NORM,
    ROWS_ATTENTION(WEIGHT_AS_IS),
    ROWS_MLP,
};

static status configure(model *m, error *err) {
    const char *type;
    size_t n;
    TRY(model_require_activation(m, "silu|swish", err));
    /* the wrapping class carries later text models too, which compute something else */
    if (meta_as_string(model_find(m, "model_type", NULL), &type, &n) && strncmp(type, "mistral", strlen("mistral")) != 0) {
        return error_set(err, STATUS_UNSUPPORTED, "model: text model \"%.40s\" is not implemented for mistral", type);
    }
    return model_layers_uniform(m, m->hp.window, err);
}

static const char *const hf_names[] = {"MistralForCausalLM", "Mistral3ForConditionalGeneration", "mistral", NULL};

const arch arch_mistral = {
    .name = "mistral",
    .hf_names = hf_names,
    .weights = weights,
    .n_weights = sizeof weights / sizeof weights[0],
    .n_slots = W_COMMON_COUNT,
    .configure = configure,
    .embed = block_embed,
    .layer = block_decoder_layer,
    .head = block_head,
};
