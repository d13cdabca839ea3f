/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Random checkpoints in the shape of published mixtures of experts, written as fast as the disk takes them, for measurements of speed and memory. What they say is noise; where
 * a token goes is not:
 *
 *   routing hangs on the token id. Embeddings are random with rms 1; what attention and experts add to them is scaled down (o_proj and down_proj; with norms behind the blocks,
 *   those norms) until all layers together move the state by a few per cent.
 *   skew S: in each layer a permutation of the experts is drawn, and the expert of rank r (from 1) is favoured by -S ln r in its router logit, against noise between tokens of the
 *   deviation of a Gumbel variable, so that its share of the tokens falls about as r^-S. 0: all alike.
 *
 * Logits are small: with a temperature of 1 tokens are drawn almost evenly, greedily they walk a fixed random map. The vocabulary is 256 bytes, filler words and <eos>.
 */
#ifndef HEADRACE_LOAD_RANDOM_MODEL_H
#define HEADRACE_LOAD_RANDOM_MODEL_H

#include "base/alloc.h"

typedef struct random_model_request {
    const char *shape; /* see random_model_shapes */
    const char *dtype; /* of experts: "bf16", "fp8" (safetensors), "mxfp4", "q4_0" (GGUF) */
    int64_t n_layers;  /* 0: as published */
    int64_t n_experts; /* 0: as published */
    int64_t n_vocab;   /* at least RANDOM_MODEL_LEAST_VOCAB */
    double skew;
    uint64_t seed;
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
} random_model_request;

enum { RANDOM_MODEL_LEAST_VOCAB = 260, RANDOM_MODEL_MOST_VOCAB = 1 << 20 };

typedef struct random_model_result {
    uint64_t file_bytes, expert_bytes; /* of the tensors' file; of all experts */
    int64_t n_layers, n_experts, top_k;
} random_model_result;

/** path: of a GGUF file, or of a directory for safetensors. */
NODISCARD status random_model_write(mem *m, const char *path, const random_model_request *r, random_model_result *out, error *err);
/** "qwen3-30b-a3b, ..." */
const char *random_model_shapes(void);

#endif
