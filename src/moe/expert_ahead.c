/* SPDX-License-Identifier: Apache-2.0 */
/* The list of a hint, and the books. */
#include "moe/expert_ahead.h"

#include <string.h>

bool expert_ahead_init(expert_ahead *a, mem *m, expert_ahead_mode mode, int32_t max_experts) {
    *a = (expert_ahead){.mode = mode, .layer = -1};
    a->ids = mem_calloc(m, MEM_MODEL, (size_t)max_experts, sizeof *a->ids);
    a->slots = mem_calloc(m, MEM_MODEL, 2 * (size_t)max_experts, sizeof *a->slots);
    return a->ids != NULL && a->slots != NULL;
}

void expert_ahead_deinit(expert_ahead *a, mem *m) {
    mem_free(m, a->ids);
    mem_free(m, a->slots);
    *a = (expert_ahead){.layer = -1};
}

size_t expert_ahead_bytes(int32_t max_experts) { return 3 * (size_t)max_experts * sizeof(int32_t) + 2 * (size_t)(MEM_HEADER_BYTES + MEM_ALIGN); }

static bool is_few(int64_t n, int32_t n_experts) { return 2 * n <= n_experts; }

bool expert_ahead_wants(expert_ahead *a, int64_t n_asked, int32_t n_experts) {
    a->next_few = is_few(n_asked, n_experts);
    expert_ahead_ledger *l = &a->ledgers[a->next_few];
    if (a->mode != EXPERT_AHEAD_AUTO) return a->mode == EXPERT_AHEAD_ON;
    if (l->rest == 0) return true;
    l->rest--;
    return false;
}

void expert_ahead_set(expert_ahead *a, int32_t layer, const int32_t *ids, int32_t n) {
    expert_ahead_end(a);
    a->layer = layer;
    a->few = a->next_few;
    a->n = n;
    memcpy(a->ids, ids, (size_t)n * sizeof *ids);
}

void expert_ahead_end(expert_ahead *a) {
    if (a->layer >= 0) expert_ahead_book(&a->ledgers[a->few], a->n_read, a->n_taken);
    a->layer = -1;
    a->due = false;
    a->n = a->next = a->n_slots = a->n_read = a->n_taken = 0;
}

void expert_ahead_book(expert_ahead_ledger *l, int32_t n_read, int32_t n_taken) {
    l->n_read += n_read;
    l->n_taken += n_taken;
    if (l->n_read < EXPERT_AHEAD_WINDOW) return;
    const bool pays = 2 * l->n_taken >= l->n_read;
    if (pays) {
        l->next_rest = 0;
    } else {
        const int32_t next = l->next_rest > 0 ? 2 * l->next_rest : EXPERT_AHEAD_REST;
        l->rest = l->next_rest = next < EXPERT_AHEAD_MOST_REST ? next : EXPERT_AHEAD_MOST_REST;
    }
    l->n_read = l->n_taken = 0;
}
