/* SPDX-License-Identifier: Apache-2.0 */
/** What a random checkpoint says about itself: its shape, its configuration in the spelling of each container, and its vocabulary. */
#ifndef HEADRACE_LOAD_RANDOM_MODEL_TEXT_H
#define HEADRACE_LOAD_RANDOM_MODEL_TEXT_H

#include "load/checkpoint_writer.h"

typedef struct random_shape {
    const char *name;
    const char *hf_class, *hf_name, *gguf_name; /* hf_name NULL: written as GGUF only */
    int64_t n_embd, n_layers, n_heads, n_kv_heads, head_dim, n_experts, top_k, n_ff_exp, n_ff;
    double norm_eps, rope_theta;
    bool wide_qk_norm; /* norms of q and k over all heads at once */
    bool renormalize;  /* weights of the chosen experts */
    bool sandwich;     /* Gemma 4: norms behind the blocks, an MLP beside the experts */
    bool biased;       /* gpt-oss: biases everywhere, sinks instead of norms of q and k, every other layer full, yarn */
    int64_t full_every, full_head_dim, full_kv_heads, window; /* of Gemma 4: every how many layers a full one */
} random_shape;

/** NULL: none of that name. */
const random_shape *random_shape_find(const char *name);

/** Of Gemma 4: every full_every-th layer sees everything, and so does the last. */
bool random_layer_is_full(const random_shape *s, int64_t layer, int64_t n_layers);

typedef struct random_text {
    mem *m;
    checkpoint_writer *w;
    const random_shape *s;
    int64_t n_layers, n_experts, n_vocab;
    bool fp8;
} random_text;

NODISCARD status random_text_gguf(const random_text *t, error *err);
/** config.json, tokenizer.json, tokenizer_config.json. */
NODISCARD status random_text_hf(const random_text *t, error *err);

#endif
