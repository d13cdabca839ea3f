/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A sequence: one request (or one of the n answers to it) from submit to its last callback. All memory it will ever need is taken at submit (its tokens, its page table, its texts), so
 * that steps allocate nothing.
 *
 *   WAITING --admit: a slot, pages for its first rows--> RUNNING --end token, stop, length, cancel, failure--> DONE (pages back, callback, freed)
 *      ^------------------ preempt: pages and slot back, tokens kept ------------'
 *
 * Invariants: n_computed <= n_tokens <= n_prompt + max_new; while RUNNING every position below n_computed that a later row can see has its keys and values in pages of `kv`, and the
 * rows n_computed .. n_tokens - 1 are still to be computed; while WAITING n_computed = 0 and no page is held. `cancelled` may be set from any thread; the rest belongs to the engine's thread
 * once the sequence has been submitted.
 */
#ifndef HEADRACE_ENGINE_SEQUENCE_H
#define HEADRACE_ENGINE_SEQUENCE_H

#include <stdatomic.h>

#include "engine/kv_cache.h"
#include "engine/sample.h"
#include "engine/stop.h"
#include "headrace/headrace.h"
#include "text/tokenizer.h"

typedef enum sequence_state { SEQUENCE_WAITING, SEQUENCE_RUNNING, SEQUENCE_DONE } sequence_state;

typedef struct sequence sequence;
struct sequence {
    sequence *prev, *next;         /* in one list */
    headrace_id id;
    int32_t index;                 /* among the answers to one request */
    sequence *siblings;            /* held back until this one's prompt is computed, linked by next */
    sequence_state state;
    atomic_bool cancelled;
    headrace_callback *callback;
    void *user;

    int32_t *tokens;               /* [n_prompt + max_new] */
    int32_t n_prompt, max_new, n_tokens, n_computed;
    int32_t n_scored;              /* positions whose logits have been delivered: they need not be computed with a head again */
    kv_table kv;
    block_name salt;
    int32_t n_hit_tokens, n_preempted;

    int32_t priority;              /* higher goes first */
    int64_t rank;                  /* of the scheduler */
    uint64_t order, round;
    int32_t slot;                  /* state slot while running; -1 */
    int32_t chunk;                 /* rows per step at most; 0: no limit */
    int32_t step_rows, step_first; /* of the step being built */

    sample_params sampling;
    void *lists;                   /* what sampling and stop point into: one block */
    const int32_t *stop_ids;
    int32_t n_stop_ids;
    bool ignore_end, want_logits, want_logprobs, prompt_logprobs, no_prefix;
    int32_t top_logprobs;
    headrace_pooling pooling;      /* NONE as soon as the embedding was delivered */
    bool normalize;
    headrace_logits_hook *logits_hook;
    detokenizer detok;
    stop_filter stop;
    textbuf piece, text;           /* reused for each event */

    headrace_finish finish;
    error failure;                 /* with FINISH_ERROR */
    uint64_t submit_ns, start_ns, first_ns, end_ns;
};

typedef struct sequence_list {
    sequence *first, *last;
    int32_t n;
} sequence_list;

/** Rows still to be computed before the next token can be drawn. */
static inline int32_t sequence_pending(const sequence *s) { return s->n_tokens - s->n_computed; }
/** Positions whose keys and values the worst case stores: all but the last generated token. */
static inline int32_t sequence_max_positions(const sequence *s) { return s->max_new > 0 ? s->n_prompt + s->max_new - 1 : s->n_prompt; }
/** Positions that a prefix hit may cover: never the last token, and none whose logits somebody still waits for. */
static inline int32_t sequence_hit_limit(const sequence *s) {
    const int32_t most = s->n_tokens - 1;
    const bool all_rows = s->want_logits || (s->prompt_logprobs && s->n_scored < s->n_prompt - 1);
    const int32_t limit = all_rows ? s->n_scored : most;
    return s->no_prefix ? 0 : limit < most ? limit : most;
}

#endif
