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

/** What the shared blocks read. Counts are >= 0; 0 means "not there" where that makes sense. */
typedef struct hparams {
    int64_t n_layers, n_embd, n_ff, n_vocab, n_ctx_train;
    int64_t n_heads, n_kv_heads, head_dim;  /* head_dim 0 in the file: n_embd / n_heads */
    double norm_eps, rope_theta, rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    int64_t rope_dim;                       /* rotated dimensions; 0 = head_dim */
    int64_t rope_original_ctx;
    const char *rope_type;                  /* "default", "llama3", "linear", "yarn", ...; borrowed from the meta */
    int64_t tie_embeddings;                 /* 1: the head is the embedding table; -1: decided by the presence of the head */
    double logit_softcap, attn_softcap, attn_scale; /* 0 = off; attn_scale 0 = 1/sqrt(head_dim) */
    int64_t window;                         /* sliding window in tokens; 0 = none */
    int64_t bos_id, eos_id;                 /* -1 = none */
} hparams;

typedef enum hparam_type { HPARAM_COUNT, HPARAM_NUMBER, HPARAM_TEXT, HPARAM_FLAG } hparam_type; /* int64_t, double, const char *, int64_t 0/1 */
enum { HPARAM_REQUIRED = 1, HPARAM_FIRST = 2 /* of an array (eos_token_id) take the first; otherwise all elements must be equal */ };

typedef struct hparam_row {
    size_t offset; /* offsetof(hparams, field) */
    hparam_type type;
    const char *hf, *gguf;
    double min, max; /* inclusive, for COUNT and NUMBER */
    double def;      /* default number; NAN: leave what is there */
    int flags;
} hparam_row;

#define HPARAM(field, type, hf, gguf, min, max, def, flags) {offsetof(hparams, field), type, hf, gguf, min, max, def, flags}

/** Defaults of every field ("none", 0, -1). */
void hparams_init(hparams *h);
/**
 * Read rows from the meta. `prefix` is general.architecture for GGUF. Problems (missing, wrong type, out of range, not finite) are appended to `report`, one
 * line each with key, found and expected; returns STATUS_FORMAT when there was one.
 */
NODISCARD status hparams_read(hparams *h, const meta *m, const char *prefix, const hparam_row *rows, size_t n_rows, textbuf *report);

#endif
