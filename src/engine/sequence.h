/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A sequence: one request from submit to its last callback. All memory it will ever need is taken at submit (its tokens, its page lists, its text buffer), so that steps allocate nothing.
 *
 *   WAITING --admit: all pages of its worst case--> RUNNING --end token, length, cancel, failure--> DONE (pages back, callback, freed)
 *
 * Invariants while RUNNING: n_computed <= n_tokens; every position below n_computed has its keys and values in pages; n_tokens - n_computed rows are still to be
 * computed, one of them when decoding. `cancelled` may be set from any thread; the rest belongs to the engine's thread.
 */
#ifndef HEADRACE_ENGINE_SEQUENCE_H
#define HEADRACE_ENGINE_SEQUENCE_H

#include <stdatomic.h>

#include "engine/sample.h"
#include "headrace/headrace.h"
#include "model/model.h"
#include "text/tokenizer.h"

typedef enum sequence_state { SEQUENCE_WAITING, SEQUENCE_RUNNING, SEQUENCE_DONE } sequence_state;

typedef struct sequence sequence;
struct sequence {
    sequence *next;               /* in the engine's waiting or running list */
    headrace_id id;
    sequence_state state;
    atomic_bool cancelled;
    headrace_callback *callback;
    void *user;

    int32_t *tokens;              /* [n_prompt + max_new] */
    int32_t n_prompt, max_new, n_tokens, n_computed;
    int32_t *pages[STEP_MAX_GROUPS];
    int32_t n_pages;              /* of each group */
    int32_t slot;                 /* state slot while running; -1 */

    sample_params sampling;
    bool ignore_end, want_logits;
    int32_t chunk;
    detokenizer detok;
    textbuf text;                 /* reused for each event */

    headrace_finish finish;
    error failure;                /* with FINISH_ERROR */
    headrace_usage usage;
    uint64_t submit_ns, start_ns, first_ns, end_ns;

    int32_t step_rows, step_first; /* of the step being built */
};

/** Rows still to be computed before the next token can be drawn. */
static inline int32_t sequence_pending(const sequence *s) { return s->n_tokens - s->n_computed; }
/** Positions whose keys and values the worst case stores: all but the last generated token. */
static inline int32_t sequence_max_positions(const sequence *s) { return s->max_new > 0 ? s->n_prompt + s->max_new - 1 : s->n_prompt; }

#endif
