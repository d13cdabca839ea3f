/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The scheduler: which rows the next step computes. Pure: it looks at sequences and page counts and moves nothing but its own rotation, so that a simulator can drive it.
 *
 * Rule: every running sequence that decodes gets its one row first (in rotation when there are more than rows), then prompts take what is left, oldest first, each at most its own chunk.
 * Admission is first come, first served, and only with pages for the request's worst case in hand: a running sequence never has to be preempted. A prompt gets at least one
 * row every ceil(max_seqs / max_rows) + 1 steps once it is the oldest.
 * Owned by the engine's thread.
 */
#ifndef HEADRACE_ENGINE_SCHED_H
#define HEADRACE_ENGINE_SCHED_H

#include "engine/sequence.h"

typedef struct sched_limits {
    int32_t max_rows, max_seqs;
} sched_limits;

typedef struct sched {
    sched_limits limits;
    uint32_t rotation; /* decodes served so far when there are more than rows */
    uint32_t turn;     /* steps so far: with a single row, decodes and prompts alternate */
} sched;

/** Fills step_rows of every sequence of the running list (0: not in this step); returns the number of rows. */
int32_t sched_pick(sched *s, sequence *running);

#endif
