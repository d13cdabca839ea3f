/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The scheduler: who runs, who waits, and which rows the next step computes. Pure: it moves sequences between its lists and pages between them and the cache, and knows no time, no
 * device and no callbacks, so that a simulator drives the same code. What a step of n rows costs in bytes of experts it asks through one function (sched_step_bytes); so far it counts them
 * and decides nothing by them.
 *
 * Order. Each sequence has a rank = (step of its arrival) - priority * SCHED_STEPS_PER_PRIORITY; lower is better, and the order of arrival decides between equals. With equal priorities that
 * is first come, first served. Because the rank never changes, a sequence is overtaken only by those that arrive within (difference of priority) * SCHED_STEPS_PER_PRIORITY steps after it.
 *
 * A step has at most max_rows rows. Sequences that decode get their row first, in rounds when there are more of them than rows (nobody has a second row of a round before all have one); then prompts take what is left in order of rank, each at
 * most its own chunk; then waiting ones are admitted in order of rank. While prompts run or one could be admitted, one row is kept back from the decodes (with max_rows = 1 they take turns).
 *
 * Pages grow as rows are computed. When a group has none left, cached ones are evicted; then the running sequence of the worst rank is preempted: it gives up its pages and waits again,
 * keeping its tokens, and is computed anew later (from what the prefix cache still knows). Rows of a sequence end where a snapshot of its state is due (kv_next_snapshot). Admission wants pages for the whole prompt and one more for every fourth running sequence.
 *
 * No starvation. Let W = 2 * (ceil(max_seqs / max(1, max_rows - 1)) + 1), and twice that with max_rows = 1. (1) A running decode gets a row, or is preempted, within W steps; so does the running prompt of the best rank.
 * (2) The running sequence of the best rank is never preempted, so it ends within W * (rows that it still needs) steps once no prompt of better rank runs. (3) The first of the waiting is
 * admitted at the latest when all that run have ended, and nobody passes it but those of better rank. So every sequence ends within W * L steps, preemptions included, with L the rows of
 * itself and of all that are before it in rank or run when it arrives, and for each that passes it later its rows and those of one longest sequence (which the best of the running may lose).
 * Owned by the engine's thread.
 */
#ifndef HEADRACE_ENGINE_SCHED_H
#define HEADRACE_ENGINE_SCHED_H

#include "engine/sequence.h"

enum { SCHED_STEPS_PER_PRIORITY = 64, SCHED_MAX_PRIORITY = 100 };

typedef struct sched_limits {
    int32_t max_rows, max_seqs;
} sched_limits;

/** Bytes of experts that a step of n_rows rows (>= 1) is expected to read, one union per layer; grows with n_rows. */
typedef uint64_t sched_cost(const void *ctx, int32_t n_rows);

typedef struct sched {
    sched_limits limits;
    kv_cache *kv;
    sequence_list waiting, running;    /* best rank first */
    int32_t *free_slots, n_free_slots; /* [max_seqs], given by the owner */
    uint64_t step;                     /* steps so far: the clock of ranks */
    uint64_t n_arrived;
    uint64_t round;                    /* of decodes */
    uint64_t refused_at;               /* kv->changes when the first of the waiting was last refused */
    const sequence *refused;
    uint64_t n_preempted, n_hit_tokens;
    sched_cost *cost;                  /* NULL: steps read no experts */
    const void *cost_ctx;
    uint64_t step_bytes, sum_bytes;    /* expected of the step chosen last, and of all */
} sched;

void sched_init(sched *s, sched_limits limits, kv_cache *kv, int32_t *free_slots);
/** From now on steps have a cost. */
void sched_set_cost(sched *s, sched_cost *cost, const void *ctx);
/** What a step of n_rows is expected to read; 0 rows: nothing. For policies: what a row more would add is the difference of two such figures. */
uint64_t sched_step_bytes(const sched *s, int32_t n_rows);
/** A new sequence: gets its rank and waits. */
void sched_add(sched *s, sequence *q);
/** As sched_add, with the rank of another. */
void sched_add_beside(sched *s, sequence *q, const sequence *first);
/** Take a sequence out of its list, with its pages and slot given back. */
void sched_remove(sched *s, sequence *q);
/** Whether a sequence of these figures could ever run to its end; else the group that is too small, through *group. */
bool sched_can_ever_run(const kv_cache *kv, int32_t max_positions, int32_t *group, int32_t *needs);
/** Admit, preempt, and fill step_rows of every running sequence (0: not in this step); pages for those rows are held on return. Returns the number of rows; 0 only when nothing lives. */
int32_t sched_step(sched *s);
/** The step was computed: positions below n_computed are stored. Call for each sequence with step_rows > 0. Returns the snapshot that its state is to be copied to now; -1: none. */
int32_t sched_computed(sched *s, sequence *q);
/** Invariants of lists, slots and pages. Linear; allocates scratch. */
bool sched_check(const sched *s);

/* Lists: doubly linked through the sequences. */
void sequence_list_push(sequence_list *l, sequence *s);
void sequence_list_remove(sequence_list *l, sequence *s);

#endif
