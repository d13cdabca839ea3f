/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Helpers for tests that run whole models through the public header: load with settings, run prompts as one batch, collect logits and tokens; and read the answers of the
 * independent implementation (expected.json, expected.safetensors). Test code: aborts the test through cmocka on unexpected failures.
 */
#ifndef HEADRACE_TESTS_MODEL_SUPPORT_H
#define HEADRACE_TESTS_MODEL_SUPPORT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>

#include <cmocka.h>

#include "headrace/headrace.h"

/** Load with key, value, ..., NULL on top of the model's path; fails the test when refused. */
headrace_engine *support_load(const char *model, ...) __attribute__((sentinel));

typedef struct support_run {
    /* in */
    const int32_t *ids;
    int32_t n_ids, max_tokens, chunk;
    bool want_logits, may_fail;
    /* out: malloc'd, freed by support_run_free */
    float *logits; /* [n_rows, n_vocab] */
    int32_t n_rows, n_vocab;
    int32_t *tokens;
    int32_t n_tokens, cap_tokens;
    char *text;
    size_t n_text;
    headrace_finish finish;
    headrace_status status;
    char error[256];
    headrace_usage usage;
} support_run;

/** Submit all, run to the end. Greedy, end tokens ignored. */
void support_go(headrace_engine *e, support_run *runs, int n);
void support_run_free(support_run *r);

/** One tensor of a .safetensors file with dtype F32, malloc'd. */
float *support_tensor(const char *path, const char *name, int64_t *rows, int64_t *cols);
/** Whether the file's header names the tensor. */
bool support_has_tensor(const char *path, const char *name);
/** Whether a tensor of it has the dtype, spelled as there. */
bool support_has_dtype(const char *path, const char *dtype);
int32_t *support_tensor_i32(const char *path, const char *name, int64_t *rows, int64_t *cols);

typedef struct support_prompt {
    int32_t *ids, n_ids, *greedy, n_greedy;
    int32_t *forced, n_forced; /* ids, then greedy but its last */
    double *gap;
    char *text;
} support_prompt;
/** Prompts of a fixture's expected.json. */
int support_prompts(const char *path, support_prompt *out, int max);
void support_prompts_free(support_prompt *p, int n);

headrace_stats support_stats(headrace_engine *e);

/** The prompts of a fixture with the logits that an engine gave for each of them alone: what other engines and batches are held to, bit for bit. */
enum { SUPPORT_MAX_PROMPTS = 16, SUPPORT_MOST_TOGETHER = 5 };
typedef struct support_alone {
    support_prompt prompts[SUPPORT_MAX_PROMPTS];
    support_run runs[SUPPORT_MAX_PROMPTS];
    int n;
} support_alone;
void support_alone_run(support_alone *a, headrace_engine *e, const char *fixture);
void support_alone_free(support_alone *a);
/** n prompts as one batch, from `first` on, in steps of `chunk` rows (0: as the engine likes). Returns n. */
int support_same_bits(const support_alone *a, headrace_engine *e, int first, int n, int chunk);

/** A folder of its own with links to the files of a fixture, whose config.json is config.published.json: the spelling of published checkpoints. */
typedef struct support_folder {
    char path[256];
} support_folder;
support_folder support_published(const char *fixture);
/**
 * A folder of its own with the fixture as part of a larger model: configuration below text_config, `model.` in the tensors' names replaced by `prefix`, `head_prefix` before lm_head,
 * and tensors of a vision tower and of a predictor of further tokens.
 */
support_folder support_wrapped(const char *fixture, const char *prefix, const char *head_prefix);
void support_folder_remove(const support_folder *f);

/** Environment variable, or NULL. */
const char *support_env(const char *name);

#endif
