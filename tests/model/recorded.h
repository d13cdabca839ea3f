/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What tools/record_llamacpp.py wrote about a real model: greedy continuations to feed back, with llama.cpp's choices and their margins, and a perplexity. Test code, as
 * model_support.h.
 */
#ifndef HEADRACE_TESTS_RECORDED_H
#define HEADRACE_TESTS_RECORDED_H

#include <jansson.h>

#include "model/model_support.h"

enum { RECORDED_MAX_PROMPTS = 8 };

typedef struct recorded {
    int32_t *forced, *argmax, *f32_argmax; /* forced: the prompt and all of the continuation but its last id */
    double *margin_low, *f32_margin;
    int32_t n_prompt, n_forced, n_steps;
} recorded;

json_t *recorded_json(const char *name); /* of tests/data */
/** All prompts of a file; each must have n_steps. Returns their number. */
int recorded_load(const char *name, int32_t n_steps, recorded out[RECORDED_MAX_PROMPTS]);
void recorded_free(recorded *r, int n);

typedef struct recorded_tally {
    long total, same, clear, clear_other;
} recorded_tally;
/** Feeds every recorded continuation and counts how often the choice is llama.cpp's: in all, and among the steps whose margin exceeds `limit`. */
recorded_tally recorded_force(headrace_engine *e, const recorded *r, int n, bool f32, double limit);

/** Encodes tests/data/perplexity_text.txt and measures, as the file's `method` says, with the engine's defaults and with F32 activations and cache; compares with the file. */
void recorded_check_perplexity(const char *name, const char *model_path, double tolerance, double f32_tolerance);

#endif
