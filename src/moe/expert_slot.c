/* SPDX-License-Identifier: Apache-2.0 */
/* Slots, compact or padded. */
#include "moe/expert_slot.h"

#include <string.h>

#include "moe/expert_pack.h"

static const size_t PAGE = EXPERT_PAGE_BYTES;

static const expert_span *span_of(const expert_layer *el, int32_t expert, int32_t part) { return &el->spans[(size_t)expert * (size_t)el->n_parts + (size_t)part]; }
static uint64_t place_of(const expert_span *s) { return s->tensor->off + s->off; }

/* ---- compact: ranges that are neighbours in the file and in the slot become one ---- */

static int32_t compact_ranges(const expert_layer *el, int32_t expert, uint8_t *slot, expert_range *ranges) {
    int32_t n = 0;
    for (int32_t i = 0; i < el->n_parts; i++) {
        const expert_part *part = &el->parts[el->order[i]];
        const expert_span *span = span_of(el, expert, el->order[i]);
        const uint64_t off = place_of(span);
        expert_range *last = n > 0 ? &ranges[n - 1] : NULL;
        if (last != NULL && last->file == span->tensor->file && last->off + last->n_bytes == off && (uint8_t *)last->dst + last->n_bytes == slot + part->slot_off) {
            last->n_bytes += part->n_bytes;
        } else {
            ranges[n++] = (expert_range){.file = span->tensor->file, .off = off, .n_bytes = part->n_bytes, .dst = slot + part->slot_off};
        }
    }
    return n;
}

/* ---- padded ---- */

/* Where the bytes of a group's first part arrive. */
static size_t arrival(const expert_layer *el, const expert_group *g, int32_t expert) { return g->area_off + (size_t)(place_of(span_of(el, expert, el->order[g->first])) % PAGE); }

static bool lies_badly(const expert_layer *el, const expert_group *g, int32_t expert) {
    size_t at = arrival(el, g, expert);
    for (int32_t i = g->first; i < g->first + g->n; i++) {
        const expert_part *part = &el->parts[el->order[i]];
        if (at % vt_dtype_alignment(part->view.dtype) != 0) return true;
        at += part->n_bytes;
    }
    return false;
}

/* Where part i (in the order of the file) of a group would be without the pages: behind the first page of its area, aligned. Never in front of where it arrived. */
static size_t aligned_place(const expert_layer *el, const expert_group *g, int32_t i) {
    size_t at = g->area_off + PAGE;
    for (int32_t j = g->first; j < i; j++) at += (el->parts[el->order[j]].n_bytes + EXPERT_PART_ALIGN - 1) / EXPERT_PART_ALIGN * EXPERT_PART_ALIGN;
    return at;
}

int32_t expert_slot_ranges(const expert_bank *b, int32_t layer, int32_t expert, uint8_t *slot, expert_range *ranges) {
    const expert_layer *el = &b->layers[layer];
    if (b->packed != NULL) {
        const expert_pack_entry *record = &b->packed[el->first_packed + (uint64_t)expert];
        ranges[0] = (expert_range){.file = b->packed_file, .off = record->off, .n_bytes = record->n_bytes, .dst = slot};
        return 1;
    }
    if (!b->padded) return compact_ranges(el, expert, slot, ranges);
    for (int32_t i = 0; i < el->n_groups; i++) {
        const expert_group *g = &el->groups[i];
        const expert_span *first = span_of(el, expert, el->order[g->first]);
        ranges[i] = (expert_range){.file = first->tensor->file, .off = place_of(first), .n_bytes = g->n_bytes, .dst = slot + arrival(el, g, expert)};
    }
    return el->n_groups;
}

void expert_slot_settle(const expert_bank *b, int32_t layer, int32_t expert, uint8_t *slot) {
    const expert_layer *el = &b->layers[layer];
    for (int32_t i = 0; b->padded && b->packed == NULL && i < el->n_groups; i++) {
        const expert_group *g = &el->groups[i];
        if (!lies_badly(el, g, expert)) continue;
        size_t from = arrival(el, g, expert) + g->n_bytes;
        for (int32_t j = g->first + g->n - 1; j >= g->first; j--) { /* the last first: all of them move up */
            const size_t n = el->parts[el->order[j]].n_bytes;
            from -= n;
            memmove(slot + aligned_place(el, g, j), slot + from, n);
        }
    }
}

void expert_slot_parts(const expert_bank *b, int32_t layer, int32_t expert, const uint8_t *slot, const void **part) {
    const expert_layer *el = &b->layers[layer];
    const bool by_group = b->padded && b->packed == NULL;
    for (int32_t p = 0; !by_group && p < el->n_parts; p++) part[p] = slot + el->parts[p].slot_off;
    for (int32_t i = 0; by_group && i < el->n_groups; i++) {
        const expert_group *g = &el->groups[i];
        const bool moved = lies_badly(el, g, expert);
        size_t at = arrival(el, g, expert);
        for (int32_t j = g->first; j < g->first + g->n; j++) {
            part[el->order[j]] = slot + (moved ? aligned_place(el, g, j) : at);
            at += el->parts[el->order[j]].n_bytes;
        }
    }
}
