/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Hyper-parameters. A row names one field of `hparams`, its spelling in a config.json (alternatives separated by '|', tried in order) and in GGUF (the
 * architecture prefix "llama." is added unless the key starts with '='), its range and its default. All problems of a file are collected into
 * one report. What a row did not set keeps the default; HPARAM_REQUIRED without a value is a problem.
 */
#ifndef HEADRACE_LOAD_HPARAMS_H
#define HEADRACE_LOAD_HPARAMS_H

#include <stddef.h>

#include "load/meta.h"

enum { HPARAM_MAX_LAYERS = 1024 };

/** One rotary embedding as a checkpoint describes it; 0: not given. */
typedef struct rope_hparams {
    const char *type;                       /* "default", "linear", "llama3", "proportional", "yarn", ...; borrowed from the meta */
    double theta, factor, partial;          /* partial: the share of the head that is rotated */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim; /* yarn */
    double cos_sin_factor;                  /* of a GGUF, on top of what the type says */
    int64_t truncate, original_ctx;
} rope_hparams;

/** What the shared blocks read. Counts are >= 0; 0 means "not there" where that makes sense. */
typedef struct hparams {
    int64_t n_layers, n_embd, n_ff, n_vocab, n_ctx_train;
    int64_t n_heads, n_kv_heads, head_dim;  /* head_dim 0 in the file: n_embd / n_heads */
    double norm_eps;
    const char *activation;                 /* of the MLP, as spelled; "" when the file does not say */
    rope_hparams rope, rope_window;         /* of every layer; of layers with a window, where a family tells them apart */
    int64_t rope_dim;                       /* rotated dimensions as GGUF counts them; 0 = head_dim */
    int64_t tie_embeddings;                 /* 1: the head is the embedding table; -1: decided by the presence of the head */
    double logit_softcap, attn_softcap, attn_scale; /* 0 = off; attn_scale 0 = 1/sqrt(head_dim) */
    int64_t window;                         /* sliding window in tokens; 0 = none */
    int64_t bos_id, eos_id;                 /* -1 = none */
    int64_t n_experts, n_experts_used, n_ff_exp; /* mixture of experts; n_ff_exp 0 in the file: n_ff */
    int64_t n_shared_experts, n_expert_groups, n_top_groups, n_dense_layers; /* n_dense_layers: the first ones have no experts */
    int64_t gating;                         /* GATING_*: how a GGUF says the router weighs; 0: not said */
    int64_t n_predict_layers;               /* layers that a GGUF counts and that only predict further tokens */
    double router_scaling;                  /* 0: 1 */
    int64_t router_norm;                    /* 1: the chosen weights are divided by their sum; -1: not said */
} hparams;

/** How a GGUF spells what a router does (hparams.gating). */
enum { GATING_SOFTMAX = 1, GATING_SIGMOID = 2, GATING_SOFTMAX_SELECTED = 3 };

typedef enum hparam_type { HPARAM_COUNT, HPARAM_NUMBER, HPARAM_TEXT, HPARAM_FLAG } hparam_type; /* int64_t, double, const char *, int64_t 0/1 */
enum { HPARAM_REQUIRED = 1, HPARAM_FIRST = 2 /* of an array (eos_token_id) take the first; otherwise all elements must be equal */ };

typedef struct hparam_row {
    size_t offset; /* of the field, in the struct that is read into */
    hparam_type type;
    const char *hf, *gguf;
    double min, max; /* inclusive, for COUNT and NUMBER */
    double def;      /* default number; NAN: leave what is there */
    int flags;
} hparam_row;

#define HPARAM_IN(owner, field, type, hf, gguf, min, max, def, flags) {offsetof(owner, field), type, hf, gguf, min, max, def, flags}
#define HPARAM(field, type, hf, gguf, min, max, def, flags) HPARAM_IN(hparams, field, type, hf, gguf, min, max, def, flags)

/** Defaults of every field ("none", 0, -1). */
void hparams_init(hparams *h);
/**
 * Read rows from the meta into `fields`: an hparams, or a struct of an architecture's own that its rows point into. `prefix` is
 * general.architecture for GGUF. Problems (missing, wrong type, out of range, not finite) are appended to `report`, one line each with key, found and expected; returns STATUS_FORMAT when there was one.
 */
NODISCARD status hparams_read(void *fields, const meta *m, const char *prefix, const hparam_row *rows, size_t n_rows, textbuf *report);

#endif
