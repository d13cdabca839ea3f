/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A step: the rows that one pass through the model computes, for any mixture of prompts and decodes. Built by the engine, read by the model, which sees row segments
 * and page tables and knows no sequences. All pointers are host memory, borrowed for the call.
 */
#ifndef HEADRACE_MODEL_STEP_H
#define HEADRACE_MODEL_STEP_H

#include <stdbool.h>
#include <stdint.h>

enum { STEP_MAX_GROUPS = 8 };

typedef struct step_segment {
    int32_t first_row, n_rows; /* consecutive rows of one sequence, positions ascending by one */
    int32_t seq_slot;          /* which state slot (recurrent layers) the sequence owns */
} step_segment;

typedef struct step {
    int32_t n_rows;
    const int32_t *ids, *pos;  /* [n_rows]; ids checked against the vocabulary by the engine */
    int32_t n_segments;
    const step_segment *segments;
    int32_t n_groups;
    const int32_t *pages[STEP_MAX_GROUPS]; /* per KV group [n_segments, max_pages] */
    int32_t max_pages;
    const int32_t *head_rows;  /* [n_head_rows] that model_head will be asked for: computed with the step. n_head_rows 0: none */
    int32_t n_head_rows;
    bool best_only;            /* of them the most likely id alone is wanted (model_best) */
} step;

#endif
