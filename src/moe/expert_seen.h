/* SPDX-License-Identifier: Apache-2.0 */
/** Which experts have been asked for since the store was made: one bit each, and their number. For the stores' counter `distinct`. */
#ifndef HEADRACE_MOE_EXPERT_SEEN_H
#define HEADRACE_MOE_EXPERT_SEEN_H

#include "moe/expert_bank.h"

typedef struct expert_seen {
    uint64_t *bits;
    size_t per_layer;
    uint64_t n;
} expert_seen;

static inline size_t expert_seen_words(const expert_bank *b) { return ((size_t)b->n_layers * (size_t)b->max_experts + 63) / 64 + 1; }
static inline size_t expert_seen_bytes(const expert_bank *b) { return expert_seen_words(b) * sizeof(uint64_t) + MEM_HEADER_BYTES + MEM_ALIGN; }

static inline bool expert_seen_init(expert_seen *s, mem *m, const expert_bank *b) {
    s->bits = mem_calloc(m, MEM_MODEL, expert_seen_words(b), sizeof *s->bits);
    s->per_layer = (size_t)b->max_experts;
    return s->bits != NULL;
}

static inline void expert_seen_add(expert_seen *s, int32_t layer, int32_t expert) {
    const size_t i = (size_t)layer * s->per_layer + (size_t)expert;
    const uint64_t bit = (uint64_t)1 << (i % 64);
    if ((s->bits[i / 64] & bit) == 0) s->n++;
    s->bits[i / 64] |= bit;
}

#endif
