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
    size_t off = 0, file = 0;
    for (int32_t p = 0; p < el->n_parts; p++) {
        int32_t i = p;
        for (; i > 0 && lies_before(&spans[p], &spans[el->order[i - 1]]); i--) el->order[i] = el->order[i - 1];
        el->order[i] = p;
    }
    for (int32_t i = 0; i < el->n_parts; i++) {
        expert_part *p = &el->parts[el->order[i]];
        p->slot_off = off;
        if (!checked_add_size(file, p->n_bytes, &file) || !checked_add_size(off, p->n_bytes, &off) || !checked_align_size(off, EXPERT_PART_ALIGN, &off)) {
            return error_set(err, STATUS_FORMAT, "experts: the size of an expert overflows");
        }
    }
    el->slot_bytes = off;
    el->file_bytes = file;
    return STATUS_OK;
}

/* Whether part b begins where part a ends, for every expert. */
static bool are_neighbours(const expert_layer *el, int32_t a, int32_t b) {
    for (int32_t e = 0; e < el->n_experts; e++) {
        const expert_span *x = &el->spans[(size_t)e * (size_t)el->n_parts + (size_t)a], *y = &el->spans[(size_t)e * (size_t)el->n_parts + (size_t)b];
        if (x->tensor->file != y->tensor->file || x->tensor->off + x->off + el->parts[a].n_bytes != y->tensor->off + y->off) return false;
    }
    return true;
}

/* The padded slot. Two pages more than the parts with their alignment hold a group wherever it begins in a page. */
static status lay_out_pages(expert_layer *el, error *err) {
    size_t end = 0, area = 0;
    for (int32_t i = 0; i < el->n_parts; i++) {
        size_t aligned;
        const size_t n = el->parts[el->order[i]].n_bytes;
        if (i == 0 || !are_neighbours(el, el->order[i - 1], el->order[i])) {
            end += area;
            area = 2 * EXPERT_PAGE_BYTES;
            el->groups[el->n_groups++] = (expert_group){.first = i, .area_off = end};
        }
        expert_group *g = &el->groups[el->n_groups - 1];
        g->n++;
        g->n_bytes += n;
        if (!checked_align_size(n, EXPERT_PART_ALIGN, &aligned) || !checked_add_size(area, aligned, &area)) return error_set(err, STATUS_FORMAT, "experts: the size of an expert overflows");
        if (i + 1 == el->n_parts || !are_neighbours(el, el->order[i], el->order[i + 1])) {
            if (!checked_align_size(area, EXPERT_PAGE_BYTES, &area) || area > SIZE_MAX / 2 - end) return error_set(err, STATUS_FORMAT, "experts: the size of an expert overflows");
        }
    }
    el->padded_bytes = end + area;
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
    TRY(lay_out_pages(&el, err));
    b->layers[layer] = el;
    return STATUS_OK;
}

void expert_bank_seal(expert_bank *b) {
    b->max_slot_bytes = b->stream_slot_bytes = 0;
    b->max_top_k = b->max_experts = 0;
    b->total_bytes = 0;
    for (int32_t l = 0; l < b->n_layers; l++) {
        const expert_layer *el = &b->layers[l];
        if (el->slot_bytes > b->max_slot_bytes) b->max_slot_bytes = el->slot_bytes;
        if (el->top_k > b->max_top_k) b->max_top_k = el->top_k;
        if (el->n_experts > b->max_experts) b->max_experts = el->n_experts;
        b->total_bytes += (uint64_t)el->n_experts * el->file_bytes;
        if (el->padded_bytes > b->stream_slot_bytes) b->stream_slot_bytes = el->padded_bytes;
    }
    b->padded = b->max_slot_bytes >= EXPERT_DIRECT_LEAST;
    if (!b->padded) b->stream_slot_bytes = b->max_slot_bytes;
}

uint32_t expert_bank_file(const expert_bank *b) {
    uint32_t file = b->packed_file;
    uint64_t most = 0;
    for (int32_t l = 0; b->packed == NULL && l < b->n_layers; l++) {
        const expert_layer *el = &b->layers[l];
        for (int64_t i = 0; i < (int64_t)el->n_experts * el->n_parts; i++) {
            const uint32_t f = el->spans[i].tensor->file;
            const uint64_t bytes = f == file && most > 0 ? 0 : os_file_size(source_file(b->src, f));
            if (bytes <= most) continue;
            most = bytes;
            file = f;
        }
    }
    return file;
}

status expert_bank_intact(const expert_bank *b, int32_t layer, int32_t expert, error *err) {
    const expert_layer *el = &b->layers[layer];
    const expert_span *spans = &el->spans[(size_t)expert * (size_t)el->n_parts];
    const os_file *last = NULL;
    for (int32_t p = 0; p < el->n_parts; p++) {
        const os_file *f = source_file(b->src, spans[p].tensor->file);
        if (f == last) continue;
        if (!os_file_intact(f)) {
            return error_set(err, STATUS_IO, "experts: %s: read at offset %llu: the file was written to after it was opened, so nobody knows whose bytes these are; start again", os_file_path(f),
                             (unsigned long long)(spans[p].tensor->off + spans[p].off));
        }
        last = f;
    }
    return STATUS_OK;
}
