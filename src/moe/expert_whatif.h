/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a number of slots and a policy would do with a recorded routing: the stream store's way through a trace (hits before misses,
 * protection of what has not been given back), without bytes. And what the best possible choice would do that knows the future (Belady:
 * gives up what is needed last).
 */
#ifndef HEADRACE_MOE_EXPERT_WHATIF_H
#define HEADRACE_MOE_EXPERT_WHATIF_H

#include "moe/expert_policy.h"
#include "moe/expert_trace.h"

typedef struct expert_whatif {
    uint64_t hits, misses;
    uint64_t distinct; /* different experts of the trace: no budget misses less */
} expert_whatif;

/** policy: an expert_policy_kind, or EXPERT_WHATIF_BELADY. */
enum { EXPERT_WHATIF_BELADY = -1 };
NODISCARD status expert_whatif_run(mem *m, const expert_trace *t, int32_t policy, int32_t n_slots, expert_whatif *out, error *err);

/** Told of each layer of each step: how many experts it takes, and how many of them are missing. walk: 0, then 1. */
typedef void (*expert_whatif_set)(void *ctx, int32_t walk, int32_t layer, int32_t n, int32_t n_missing);
/** The trace, and once more with what is held then: [0] of slots that begin empty, [1] of slots that are full. */
NODISCARD status expert_whatif_walks(mem *m, const expert_trace *t, expert_policy_kind policy, int32_t n_slots, expert_whatif_set each,
                                     void *ctx, expert_whatif out[2], error *err);
/** Slots on a device whose misses the processor computes (expert_store_device.c): what becomes worth a slot is copied behind, most_behind of a layer, as if each copy were over before the next. */
typedef struct expert_whatif_computed {
    uint64_t hits, misses, behind;
} expert_whatif_computed;
NODISCARD status expert_whatif_compute(mem *m, const expert_trace *t, expert_policy_kind policy, int32_t n_slots, int32_t most_behind, expert_whatif_computed *out, error *err);
/** The part of a row's experts that the row before (of the same layer) took too. */
NODISCARD status expert_whatif_overlap(const expert_trace *t, double *out, error *err);

#endif
