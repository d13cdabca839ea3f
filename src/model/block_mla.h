/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Multi-head latent attention (DeepSeek-V2, 2024). What is cached is one row per token, the normed latent and the rotated shared key: [latent | rope]. Queries are taken into the latent
 * space (q . W_uk per head), so that every head attends over the same row; what comes back is taken out by W_uv per head.
 */
#ifndef HEADRACE_MODEL_BLOCK_MLA_H
#define HEADRACE_MODEL_BLOCK_MLA_H

#include "model/block.h"

/** Slots and sizes of an architecture that uses it. q_lora 0: q comes from W_Q directly. */
typedef struct block_mla_params {
    int q_a, q_a_norm, q_b, kv_a, kv_a_norm, kv_b, k_b, v_b; /* weight slots; kv_b, or k_b and v_b, which have a matrix per head */
    int64_t q_lora, kv_lora, nope, rope, value;    /* sizes; a head of q is nope + rope, of kv_b nope + value */
} block_mla_params;

/** out[T, embd] = attention over x (already normed). The layer's cache has one head of kv_lora + rope. */
NODISCARD status block_mla(block_ctx *c, vt_tensor out, vt_tensor x, int layer, const block_mla_params *p);

#endif
