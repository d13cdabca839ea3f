/* SPDX-License-Identifier: Apache-2.0 */
/* The bookkeeping of a wave. */
#include "moe/expert_wave.h"

bool expert_wave_init(expert_wave *w, mem *m, const expert_bank *bank) {
    *w = (expert_wave){.last_layer = INT32_MAX};
    w->hits = mem_calloc(m, MEM_MODEL, (size_t)bank->max_experts, sizeof *w->hits);
    w->misses = mem_calloc(m, MEM_MODEL, (size_t)bank->max_experts, sizeof *w->misses);
    return w->hits != NULL && w->misses != NULL && expert_seen_init(&w->seen, m, bank);
}

void expert_wave_deinit(expert_wave *w, mem *m) {
    mem_free(m, w->hits);
    mem_free(m, w->misses);
    mem_free(m, w->seen.bits);
    *w = (expert_wave){0};
}

size_t expert_wave_bytes(const expert_bank *bank) { return 2 * ((size_t)bank->max_experts * sizeof(int32_t) + MEM_HEADER_BYTES + MEM_ALIGN) + expert_seen_bytes(bank); }

void expert_wave_enter(expert_wave *w, expert_policy *p, int32_t layer) {
    if (layer <= w->last_layer) expert_policy_step(p);
    w->last_layer = layer;
}

int32_t expert_wave_cut(int32_t n, int32_t room, int32_t *sizes) {
    int32_t n_waves = 0;
    if (room < 1) room = 1;
    for (int32_t at = 0; at < n; at += room) sizes[n_waves++] = n - at < room ? n - at : room;
    return n_waves;
}

status expert_wave_check(const expert_wave *w, const expert_bank *bank, int32_t layer, int32_t n, bool busy, error *err) {
    if (n <= bank->max_experts && w->next_hit == w->n_hits && w->next_miss == w->n_misses && !busy) return STATUS_OK;
    return error_set(err, STATUS_BUG, "experts: a wave of %d experts of layer %d while another is under way", n, layer);
}

void expert_wave_begin(expert_wave *w, expert_policy *p, expert_counters *c, int32_t layer, const int32_t *ids, int32_t n) {
    w->layer = layer;
    w->n_hits = w->next_hit = w->n_misses = w->next_miss = 0;
    for (int32_t i = 0; i < n; i++) {
        const int32_t slot = expert_policy_find(p, layer, ids[i]);
        expert_seen_add(&w->seen, layer, ids[i]);
        if (slot < 0) {
            w->misses[w->n_misses++] = ids[i];
            continue;
        }
        expert_policy_touch(p, slot);
        expert_policy_protect(p, slot, true);
        w->hits[w->n_hits++] = slot;
    }
    c->waves++;
    c->hits += (uint64_t)w->n_hits;
    c->misses += (uint64_t)w->n_misses;
}

int32_t expert_wave_next_hit(expert_wave *w, const expert_policy *p, int32_t *expert) {
    int32_t layer;
    if (w->next_hit == w->n_hits) return -1;
    const int32_t slot = w->hits[w->next_hit++];
    expert_policy_holds(p, slot, &layer, expert);
    return slot;
}

void expert_wave_drop_hits(expert_wave *w, expert_policy *p) {
    while (w->next_hit < w->n_hits) expert_policy_protect(p, w->hits[w->next_hit++], false);
}

void expert_wave_count(const expert_wave *w, const expert_policy *p, int32_t n_slots, size_t slot_bytes, expert_counters *out) {
    out->distinct = w->seen.n;
    out->n_slots = (uint64_t)n_slots;
    out->slot_bytes = slot_bytes;
    out->bytes_resident = (uint64_t)expert_policy_used(p) * slot_bytes;
}
