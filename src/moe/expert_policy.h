/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The eviction policy, pure: which slot to give up. Protected slots (leased or being filled) are never chosen. No I/O, no allocation after create, no time: traces replay exactly.
 *
 *   LRU          the least recently used
 *   DECAY        the lowest score: +1 for each use, times 0.98 for each step; ties go to the least recently used
 *   LAYER_QUOTA  each layer seen so far may hold an equal part of the slots: a layer at its quota gives up its own least recently used slot, one below it takes from the layers above
 *                theirs. Under a cycle of layers that does not fit, LRU gives up exactly what comes next; this keeps a part of every layer
 *   BLEND       the lowest score of two, both of all uses ever seen, also of experts that were given up since: frequency (+1 for each use, times 0.98 for each step) and 8 times recency (the same, times
 *               0.3). Steps are those of the expert's own layer, so that in a cycle of layers what was just used is worth no more than what comes next; ties go to the least recently used
 *
 * A slot is in use while it holds an expert or is protected. A victim costs a scan of the slots; everything else is constant time.
 */
#ifndef HEADRACE_MOE_EXPERT_POLICY_H
#define HEADRACE_MOE_EXPERT_POLICY_H

#include <stdint.h>

#include "base/alloc.h"

typedef enum expert_policy_kind { EXPERT_POLICY_LRU, EXPERT_POLICY_DECAY, EXPERT_POLICY_LAYER_QUOTA, EXPERT_POLICY_BLEND } expert_policy_kind;

typedef struct expert_policy expert_policy;

NODISCARD status expert_policy_create(mem *m, expert_policy_kind kind, int32_t n_slots, int32_t n_layers, int32_t max_experts, expert_policy **out, error *err);
void expert_policy_destroy(expert_policy *p);
/** The slot that holds (layer, expert), or -1. Does not count as a use. */
int32_t expert_policy_find(const expert_policy *p, int32_t layer, int32_t expert);
/** A use of a held expert. */
void expert_policy_touch(expert_policy *p, int32_t slot);
/**
 * A slot for (layer, expert), counted as a use: first victims are given up until fewer than `limit` slots are in use, then a free one is taken. *n_evicted is raised by the number of
 * victims, also when the result is -1: everything in use is protected, or the limit is below 1.
 */
int32_t expert_policy_place(expert_policy *p, int32_t layer, int32_t expert, int32_t limit, uint64_t *n_evicted);
/**
 * A slot for an expert that may be wanted next; no use of it. A free one, or that of one victim which is worth less than the expert will be once it is used, so that the policy would give
 * it up before; -1: there is none, or more than `limit` slots are in use.
 */
int32_t expert_policy_place_ahead(expert_policy *p, int32_t layer, int32_t expert, int32_t limit, uint64_t *n_evicted);
/** A use of an expert that is not held, and gets no slot for it. */
void expert_policy_use(expert_policy *p, int32_t layer, int32_t expert);
/**
 * A slot for an expert whose use is remembered already (expert_policy_use); no further use of it. A free one, or that of one victim which is worth less than the expert is now, if the expert has
 * been used before its last use, not long ago: a first use alone drives nothing out. -1: there is none.
 */
int32_t expert_policy_place_used(expert_policy *p, int32_t layer, int32_t expert, int32_t limit, uint64_t *n_evicted);
/** Give up victims until at most `limit` slots are in use, or only protected ones are; returns how many. */
int32_t expert_policy_shrink(expert_policy *p, int32_t limit);
/** Forget what a slot holds (a failed fill). A protected one stays in use, empty, until its protection ends. */
void expert_policy_forget(expert_policy *p, int32_t slot);
void expert_policy_protect(expert_policy *p, int32_t slot, bool on); /* counts: on and off must pair */
/** One more step has ended: scores decay. */
void expert_policy_step(expert_policy *p);
int32_t expert_policy_used(const expert_policy *p);
int32_t expert_policy_n_protected(const expert_policy *p);
/** What a slot holds; layer -1: nothing. */
void expert_policy_holds(const expert_policy *p, int32_t slot, int32_t *layer, int32_t *expert);
/** Bytes that create allocates, with the allocator's overhead. SIZE_MAX: too many. */
size_t expert_policy_bytes(int32_t n_slots, int32_t n_layers, int32_t max_experts);
/** Walks the invariants; for debug builds and simulation. */
bool expert_policy_check(const expert_policy *p);

#endif
