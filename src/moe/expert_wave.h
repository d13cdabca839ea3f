/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What stores with slots keep of the wave that is under way: which of its experts are held (protected until they are given out), which are missing and in which order they get slots. How a
 * missing one gets its bytes is the store's business.
 */
#ifndef HEADRACE_MOE_EXPERT_WAVE_H
#define HEADRACE_MOE_EXPERT_WAVE_H

#include "moe/expert_policy.h"
#include "moe/expert_seen.h"
#include "moe/expert_store.h"

typedef struct expert_wave {
    int32_t layer;
    int32_t *hits, n_hits, next_hit;      /* slots that hold experts of the wave */
    int32_t *misses, n_misses, next_miss; /* experts of the wave; the first next_miss have slots */
    int32_t last_layer;                   /* that was entered */
    expert_seen seen;
} expert_wave;

/** Tables for a wave of every expert of a layer (MEM_MODEL); false: no memory. */
NODISCARD bool expert_wave_init(expert_wave *w, mem *m, const expert_bank *bank);
void expert_wave_deinit(expert_wave *w, mem *m);
/** Bytes that init allocates, with the allocator's overhead. */
size_t expert_wave_bytes(const expert_bank *bank);

/** expert_store.enter. */
void expert_wave_enter(expert_wave *w, expert_policy *p, int32_t layer);
/** expert_store.waves for `room` slots (below one counts as one). */
int32_t expert_wave_cut(int32_t n, int32_t room, int32_t *sizes);
/** STATUS_BUG while something of the last wave has not been given out. */
NODISCARD status expert_wave_check(const expert_wave *w, const expert_bank *bank, int32_t layer, int32_t n, bool busy, error *err);
/** Protects and uses what is held, lists what is missing, counts both. */
void expert_wave_begin(expert_wave *w, expert_policy *p, expert_counters *c, int32_t layer, const int32_t *ids, int32_t n);
/** The slot and the expert of the next hit, still protected; -1: all were given. */
int32_t expert_wave_next_hit(expert_wave *w, const expert_policy *p, int32_t *expert);
/** No hit is given out any more. */
void expert_wave_drop_hits(expert_wave *w, expert_policy *p);
/** The figures that both kinds of slots have, on top of the store's own. */
void expert_wave_count(const expert_wave *w, const expert_policy *p, int32_t n_slots, size_t slot_bytes, expert_counters *out);

#endif
