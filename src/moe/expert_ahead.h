/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What is to be read ahead, and whether it pays. A hint names experts of a layer that is still to come, the likeliest first; the store reads them while its disk has nothing else to do. A
 * hint is over when another layer's turn comes, or the next hint.
 *
 * Whether it pays is measured, apart for layers whose rows ask for few experts (decode) and for those that may take most of them (prefill), since one may be right where the other is not:
 * what was read ahead and taken saved a wait of at most its own read; what was read and not taken cost at most a later read of what it replaced. So it pays while at least half is taken.
 * Where less was, over EXPERT_AHEAD_WINDOW reads, it is off for EXPERT_AHEAD_REST layers, then twice as many, and so on up to EXPERT_AHEAD_MOST_REST; after each such rest it is tried
 * again. Pure: no time, no I/O.
 */
#ifndef HEADRACE_MOE_EXPERT_AHEAD_H
#define HEADRACE_MOE_EXPERT_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/alloc.h"

typedef enum expert_ahead_mode { EXPERT_AHEAD_OFF, EXPERT_AHEAD_AUTO, EXPERT_AHEAD_ON } expert_ahead_mode;

enum { EXPERT_AHEAD_WINDOW = 64, EXPERT_AHEAD_REST = 1024, EXPERT_AHEAD_MOST_REST = 65536 };

typedef struct expert_ahead_ledger {
    int32_t n_read, n_taken; /* of the window */
    int32_t rest, next_rest; /* layers that are left to pass without a hint, and how many the next time */
} expert_ahead_ledger;

typedef struct expert_ahead {
    expert_ahead_mode mode;
    int32_t layer;         /* that the hint is about; -1: there is none */
    bool few;              /* its layer's rows ask for at most half of the experts */
    bool next_few;         /* as the last question was */
    bool due;              /* the layer's turn has come */
    int32_t *ids, n, next; /* [max_experts] */
    int32_t *slots, n_slots; /* [2 * max_experts]: protected until the layer's turn, some of them twice where two hints were about it */
    int32_t n_read, n_taken;
    expert_ahead_ledger ledgers[2]; /* by `few` */
} expert_ahead;

NODISCARD bool expert_ahead_init(expert_ahead *a, mem *m, expert_ahead_mode mode, int32_t max_experts);
void expert_ahead_deinit(expert_ahead *a, mem *m);
/** Bytes that init allocates, with the allocator's overhead. */
size_t expert_ahead_bytes(int32_t max_experts);

/** Whether a hint of a layer where n_asked (row, expert) pairs choose among n_experts would be used: called once for each such layer, of which it counts the rests. */
bool expert_ahead_wants(expert_ahead *a, int64_t n_asked, int32_t n_experts);
/** The hint that the last expert_ahead_wants was about. */
void expert_ahead_set(expert_ahead *a, int32_t layer, const int32_t *ids, int32_t n);
/** The hint is over: what became of it goes into the books. */
void expert_ahead_end(expert_ahead *a);
/** n_read experts were read ahead, of which n_taken were then taken. */
void expert_ahead_book(expert_ahead_ledger *l, int32_t n_read, int32_t n_taken);

#endif
