/* SPDX-License-Identifier: Apache-2.0 */
/* Shares by layer and expert, and what follows from them for n rows. */
#include "moe/expert_cost.h"

enum { PRIOR = 8, HALVE = 8192 };

struct expert_cost {
    mem *m;
    const expert_bank *bank;
    double *taken;     /* [n_layers, max_experts]: rows that took an expert, the prior included */
    double *rows;      /* [n_layers] */
    uint64_t *note;    /* [max_experts]: the last note that had this expert */
    uint64_t n_notes, noted_bytes;
};

static size_t table_size(const expert_bank *b) { return (size_t)b->n_layers * (size_t)b->max_experts; }

size_t expert_cost_table_bytes(const expert_bank *b) {
    return sizeof(expert_cost) + (table_size(b) + (size_t)b->n_layers) * sizeof(double) + (size_t)b->max_experts * sizeof(uint64_t) + 4 * (size_t)(MEM_HEADER_BYTES + MEM_ALIGN);
}

status expert_cost_create(mem *m, const expert_bank *bank, expert_cost **out, error *err) {
    expert_cost *c = mem_calloc(m, MEM_MODEL, 1, sizeof *c);
    if (c == NULL) return error_set(err, STATUS_NO_MEMORY, "experts: no memory for the cost of steps");
    *c = (expert_cost){.m = m, .bank = bank};
    c->taken = mem_calloc(m, MEM_MODEL, table_size(bank) > 0 ? table_size(bank) : 1, sizeof *c->taken);
    c->rows = mem_calloc(m, MEM_MODEL, (size_t)bank->n_layers, sizeof *c->rows);
    c->note = mem_calloc(m, MEM_MODEL, bank->max_experts > 0 ? (size_t)bank->max_experts : 1, sizeof *c->note);
    if (c->taken == NULL || c->rows == NULL || c->note == NULL) {
        expert_cost_destroy(c);
        return error_set(err, STATUS_NO_MEMORY, "experts: no memory for the cost of steps");
    }
    for (int32_t l = 0; l < bank->n_layers; l++) {
        const expert_layer *el = &bank->layers[l];
        c->rows[l] = PRIOR;
        for (int32_t e = 0; e < el->n_experts; e++) c->taken[(size_t)l * (size_t)bank->max_experts + (size_t)e] = (double)PRIOR * el->top_k / el->n_experts;
    }
    *out = c;
    return STATUS_OK;
}

void expert_cost_destroy(expert_cost *c) {
    if (c == NULL) return;
    mem_free(c->m, c->taken);
    mem_free(c->m, c->rows);
    mem_free(c->m, c->note);
    mem_free(c->m, c);
}

void expert_cost_note(expert_cost *c, int32_t layer, const int32_t *ids, int32_t n_rows, int32_t k) {
    const expert_layer *el = &c->bank->layers[layer];
    double *taken = c->taken + (size_t)layer * (size_t)c->bank->max_experts;
    c->n_notes++;
    for (int64_t i = 0; i < (int64_t)n_rows * k; i++) {
        taken[ids[i]] += 1;
        if (c->note[ids[i]] == c->n_notes) continue;
        c->note[ids[i]] = c->n_notes;
        c->noted_bytes += el->file_bytes;
    }
    c->rows[layer] += n_rows;
    if (c->rows[layer] < 2 * HALVE) return;
    c->rows[layer] /= 2;
    for (int32_t e = 0; e < el->n_experts; e++) taken[e] /= 2;
}

uint64_t expert_cost_noted_bytes(const expert_cost *c) { return c->noted_bytes; }

/* x^n, 0 <= x <= 1. */
static double power(double x, int32_t n) {
    double y = 1;
    for (; n > 0; n >>= 1, x *= x) {
        if (n & 1) y *= x;
    }
    return y;
}

static bool held(const expert_store *s, int32_t layer, int32_t expert) { return s != NULL && (s->holds == NULL || s->holds(s, layer, expert)); }

uint64_t expert_cost_expected_bytes(const expert_cost *c, int32_t n_rows, const expert_store *store, const expert_store *below) {
    double sum = 0;
    if (store != NULL && store->holds == NULL) return 0; /* everything is there */
    for (int32_t l = 0; l < c->bank->n_layers; l++) {
        const expert_layer *el = &c->bank->layers[l];
        const double *taken = c->taken + (size_t)l * (size_t)c->bank->max_experts;
        double n = 0; /* of experts */
        for (int32_t e = 0; e < el->n_experts; e++) {
            if (held(store, l, e) || held(below, l, e)) continue;
            const double share = taken[e] / c->rows[l];
            n += 1 - power(share < 1 ? 1 - share : 0, n_rows);
        }
        sum += n * (double)el->file_bytes;
    }
    return (uint64_t)sum;
}
