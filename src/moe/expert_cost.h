/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a step will ask of the experts, in bytes, before its rows are routed: each layer takes the union of what its rows choose, once. Pure: no I/O, no time, no allocation after create.
 *
 * From the routing of past steps each layer knows which share of the rows took each expert; new rows are believed to choose alike and apart from each other, so that an expert is in the
 * union of n rows with probability 1 - (1 - share)^n. Rows of one text choose more alike than that: the estimate errs upwards. Shares begin even (top_k of n_experts, with the weight of
 * PRIOR rows), and what was seen counts half after every HALVE rows.
 * Owned by the engine's thread.
 */
#ifndef HEADRACE_MOE_EXPERT_COST_H
#define HEADRACE_MOE_EXPERT_COST_H

#include "moe/expert_store.h"

typedef struct expert_cost expert_cost;

NODISCARD status expert_cost_create(mem *m, const expert_bank *bank, expert_cost **out, error *err);
void expert_cost_destroy(expert_cost *c);
/** Bytes that create allocates (MEM_MODEL), with the allocator's overhead. */
size_t expert_cost_table_bytes(const expert_bank *bank);

/** A layer of a step was routed: ids [n_rows, k], any order. */
void expert_cost_note(expert_cost *c, int32_t layer, const int32_t *ids, int32_t n_rows, int32_t k);
/** Bytes of the unions that were noted so far, one per layer and step. */
uint64_t expert_cost_noted_bytes(const expert_cost *c);

/**
 * Expected bytes of the unions of a step of n_rows, over all layers; without those of experts that one of two stores (NULL: none) holds now. Grows with n_rows, and never exceeds the bank.
 * A few operations per expert of the model.
 */
uint64_t expert_cost_expected_bytes(const expert_cost *c, int32_t n_rows, const expert_store *store, const expert_store *below);

#endif
