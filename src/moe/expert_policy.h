/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The eviction policy, pure: which slot to give up. Scores decay by step and grow by use; ties go to the least recently used, then to the lower slot. Protected slots (leased or being
 * filled) are never chosen. No I/O, no allocation after init, no time: traces replay exactly.
 */
#ifndef HEADRACE_MOE_EXPERT_POLICY_H
#define HEADRACE_MOE_EXPERT_POLICY_H

#include <stdint.h>

#include "base/alloc.h"

typedef enum expert_policy_kind { EXPERT_POLICY_LRU, EXPERT_POLICY_DECAY, EXPERT_POLICY_LAYER_QUOTA } expert_policy_kind;

typedef struct expert_policy expert_policy;

NODISCARD status expert_policy_create(mem *m, expert_policy_kind kind, int32_t n_slots, int32_t n_layers, int32_t max_experts, expert_policy **out, error *err);
void expert_policy_destroy(expert_policy *p);
/** The slot that holds (layer, expert), or -1. Does not count as a use. */
int32_t expert_policy_find(const expert_policy *p, int32_t layer, int32_t expert);
/** A use of a held expert. */
void expert_policy_touch(expert_policy *p, int32_t slot);
/** A slot for (layer, expert): a free one, or the victim, whose key is forgotten (*evicted true). -1: everything is protected or beyond `limit` slots in use. */
int32_t expert_policy_place(expert_policy *p, int32_t layer, int32_t expert, int32_t limit, bool *evicted);
/** Forget what a slot holds (a failed fill, a smaller budget). */
void expert_policy_forget(expert_policy *p, int32_t slot);
void expert_policy_protect(expert_policy *p, int32_t slot, bool on); /* counts: on and off must pair */
/** One more step has ended: scores decay. */
void expert_policy_step(expert_policy *p);
int32_t expert_policy_used(const expert_policy *p);
/** Walks the invariants; for debug builds and simulation. */
bool expert_policy_check(const expert_policy *p);

#endif
