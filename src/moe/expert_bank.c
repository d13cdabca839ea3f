/* SPDX-License-Identifier: Apache-2.0 */
/* The bank: tables only. */
#include "moe/expert_bank.h"

#include <string.h>

#include "base/checked.h"

status expert_bank_init(expert_bank *b, arena *a, source *src, int32_t n_layers, error *err) {
    *b = (expert_bank){.src = src, .n_layers = n_layers};
    b->layers = arena_calloc(a, (size_t)n_layers, sizeof *b->layers);
    return b->layers != NULL ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "experts: no memory for a bank of %d layers", n_layers);
}

static bool lies_before(const expert_span *a, const expert_span *b) {
    const uint64_t at_a = a->tensor->off + a->off, at_b = b->tensor->off + b->off;
    return a->tensor->file != b->tensor->file ? a->tensor->file < b->tensor->file : at_a < at_b;
}

/* Parts lie in a slot in the order in which expert 0 has them in the file, so that neighbours can be read at once. */
static status lay_out_slot(expert_layer *el, const expert_span *spans, error *err) {
    int32_t order[EXPERT_MAX_PARTS];
    size_t off = 0, file = 0;
    for (int32_t p = 0; p < el->n_parts; p++) {
        int32_t i = p;
        for (; i > 0 && lies_before(&spans[p], &spans[order[i - 1]]); i--) order[i] = order[i - 1];
        order[i] = p;
    }
    for (int32_t i = 0; i < el->n_parts; i++) {
        expert_part *p = &el->parts[order[i]];
        p->slot_off = off;
        if (!checked_add_size(file, p->n_bytes, &file) || !checked_add_size(off, p->n_bytes, &off) || !checked_align_size(off, EXPERT_PART_ALIGN, &off)) {
            return error_set(err, STATUS_FORMAT, "experts: the size of an expert overflows");
        }
    }
    el->slot_bytes = off;
    el->file_bytes = file;
    return STATUS_OK;
}

status expert_bank_set_layer(expert_bank *b, arena *a, int32_t layer, int32_t n_experts, int32_t top_k, int32_t n_parts, const expert_part *parts, const expert_span *spans,
                             error *err) {
    if (layer < 0 || layer >= b->n_layers || n_experts < 1 || top_k < 1 || top_k > n_experts || n_parts < 1 || n_parts > EXPERT_MAX_PARTS) {
        return error_set(err, STATUS_BUG, "experts: layer %d of %d with %d experts of %d parts", layer, b->n_layers, n_experts, n_parts);
    }
    expert_layer el = {.n_experts = n_experts, .n_parts = n_parts, .top_k = top_k};
    memcpy(el.parts, parts, (size_t)n_parts * sizeof *parts);
    TRY(lay_out_slot(&el, spans, err));
    const size_t n = (size_t)n_experts * (size_t)n_parts;
    el.spans = arena_calloc(a, n, sizeof *el.spans);
    if (el.spans == NULL) return error_set(err, STATUS_NO_MEMORY, "experts: no memory for the places of %d experts", n_experts);
    memcpy(el.spans, spans, n * sizeof *spans);
    for (size_t i = 0; i < n; i++) {
        const expert_part *p = &el.parts[i % (size_t)n_parts];
        if (spans[i].off > spans[i].tensor->n_bytes || p->n_bytes > spans[i].tensor->n_bytes - spans[i].off) {
            return error_set(err, STATUS_FORMAT, "experts: %s holds %llu bytes; expert %zu wants %zu at %llu", spans[i].tensor->name, (unsigned long long)spans[i].tensor->n_bytes,
                             i / (size_t)n_parts, p->n_bytes, (unsigned long long)spans[i].off);
        }
    }
    b->layers[layer] = el;
    return STATUS_OK;
}

void expert_bank_seal(expert_bank *b) {
    b->max_slot_bytes = 0;
    b->max_top_k = b->max_experts = 0;
    b->total_bytes = 0;
    for (int32_t l = 0; l < b->n_layers; l++) {
        const expert_layer *el = &b->layers[l];
        if (el->slot_bytes > b->max_slot_bytes) b->max_slot_bytes = el->slot_bytes;
        if (el->top_k > b->max_top_k) b->max_top_k = el->top_k;
        if (el->n_experts > b->max_experts) b->max_experts = el->n_experts;
        b->total_bytes += (uint64_t)el->n_experts * el->file_bytes;
    }
}
