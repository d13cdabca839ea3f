/* SPDX-License-Identifier: Apache-2.0 */
/* The resident store: every expert in place. Host-addressable devices use the source's bytes where they lie; others get one copy in device memory. */
#include "moe/expert_seen.h"
#include "moe/expert_store.h"
#include "moe/staged_upload.h"

typedef struct resident_store {
    expert_store base;
    mem *m;
    vt_buffer copy;             /* devices that cannot read host memory */
    const uint8_t **part;       /* [layer][expert][part], flattened; first[layer] is where a layer begins */
    size_t *first;
    int64_t *tables;            /* device memory: [layer][part][expert]; NULL: the host's own memory */
    int32_t layer, n, next;     /* the wave begun */
    int32_t *ids;
    int64_t n_leases;
    expert_counters counters;
    expert_seen seen;
} resident_store;

static const uint8_t **parts_of(const resident_store *s, int32_t layer, int32_t expert) {
    return s->part + s->first[layer] + (size_t)expert * (size_t)s->base.bank->layers[layer].n_parts;
}

static int32_t waves(expert_store *base, int32_t layer, const int32_t *ids, int32_t n, int32_t *sizes) {
    (void)base;
    (void)layer;
    (void)ids;
    if (n > 0) sizes[0] = n;
    return n > 0 ? 1 : 0;
}

static status begin(expert_store *base, int32_t layer, const int32_t *ids, int32_t n, error *err) {
    resident_store *s = (resident_store *)base;
    if (n > s->base.bank->max_experts) return error_set(err, STATUS_BUG, "experts: a wave of %d", n);
    s->layer = layer;
    s->n = n;
    s->next = 0;
    for (int32_t i = 0; i < n; i++) {
        s->ids[i] = ids[i];
        expert_seen_add(&s->seen, layer, ids[i]);
    }
    s->counters.waves++;
    s->counters.distinct = s->seen.n;
    return STATUS_OK;
}

static status next_ready(expert_store *base, expert_lease *lease, error *err) {
    (void)err;
    resident_store *s = (resident_store *)base;
    if (s->next == s->n) return STATUS_NOT_FOUND;
    const int32_t e = s->ids[s->next++];
    *lease = (expert_lease){.layer = s->layer, .expert = e, .slot = -1};
    const uint8_t **parts = parts_of(s, s->layer, e);
    for (int32_t p = 0; p < s->base.bank->layers[s->layer].n_parts; p++) lease->part[p] = parts[p];
    s->counters.hits++;
    s->n_leases++;
    return STATUS_OK;
}

static void release(expert_store *base, const expert_lease *lease, vt_fence last_use) {
    (void)lease;
    (void)last_use;
    ((resident_store *)base)->n_leases--;
}

static void cancel(expert_store *base) {
    resident_store *s = (resident_store *)base;
    s->next = s->n;
}

static void counters(expert_store *base, expert_counters *out) { *out = ((resident_store *)base)->counters; }

static status close_store(expert_store *base) {
    resident_store *s = (resident_store *)base;
    const status rc = s->n_leases == 0 ? STATUS_OK : STATUS_BUG;
    vt_buffer_free(&s->copy);
    mem_free(s->m, s->ids);
    mem_free(s->m, s->first);
    mem_free(s->m, s->seen.bits);
    mem_free(s->m, (void *)s->part);
    mem_free(s->m, s);
    return rc;
}

/* An expert with a part at an odd address is copied even where the others are used in place. */
static bool needs_copy(const expert_layer *el, int32_t expert) {
    for (int32_t p = 0; p < el->n_parts; p++) {
        const expert_span *span = &el->spans[(size_t)expert * (size_t)el->n_parts + (size_t)p];
        if ((span->tensor->off + span->off) % vt_dtype_alignment(el->parts[p].view.dtype) != 0) return true;
    }
    return false;
}

/* The addresses of all parts, which lie behind the experts in a copy that kernels read by tables. */
static size_t table_bytes(const expert_bank *bank) {
    size_t n = 0;
    for (int32_t l = 0; l < bank->n_layers; l++) n += (size_t)bank->layers[l].n_experts * (size_t)bank->layers[l].n_parts;
    return n * sizeof(int64_t);
}

size_t expert_store_resident_copy_bytes(const expert_bank *bank, bool host_addressable) {
    size_t bytes = host_addressable ? 0 : table_bytes(bank);
    for (int32_t l = 0; l < bank->n_layers; l++) {
        for (int32_t e = 0; e < bank->layers[l].n_experts; e++) {
            if (!host_addressable || needs_copy(&bank->layers[l], e)) bytes += bank->layers[l].slot_bytes;
        }
    }
    return bytes;
}

/* One part of an expert into the copy: by the processor where it can, through the staging buffer elsewhere. */
static status copy_part(resident_store *s, vt_queue *queue, staged_upload *up, const expert_span *span, size_t n, uint8_t *to, error *err) {
    const void *data;
    if (up != NULL) return staged_upload_range(up, span->tensor, span->off, n, to, err);
    TRY(source_data(s->base.bank->src, span->tensor, &data, err));
    const status rc = vt_copy(queue, to, (const uint8_t *)data + span->off, n);
    return rc == STATUS_OK ? rc : error_set(err, rc, "experts: copying %s failed", span->tensor->name);
}

/* Every part of every expert: its address in the source, or in the copy at *off. */
static status place_all(resident_store *s, vt_queue *queue, staged_upload *up, error *err) {
    const expert_bank *bank = s->base.bank;
    size_t off = 0;
    for (int32_t l = 0; l < bank->n_layers; l++) {
        const expert_layer *el = &bank->layers[l];
        for (int32_t e = 0; e < el->n_experts; e++) {
            const bool in_place = up == NULL && !needs_copy(el, e);
            for (int32_t p = 0; p < el->n_parts; p++) {
                const expert_span *span = &el->spans[(size_t)e * (size_t)el->n_parts + (size_t)p];
                if (in_place) {
                    const void *data;
                    TRY(source_data(bank->src, span->tensor, &data, err));
                    parts_of(s, l, e)[p] = (const uint8_t *)data + span->off;
                    continue;
                }
                uint8_t *to = (uint8_t *)s->copy.data + off + el->parts[p].slot_off;
                TRY(copy_part(s, queue, up, span, el->parts[p].n_bytes, to, err));
                parts_of(s, l, e)[p] = to;
            }
            if (!in_place) off += el->slot_bytes;
        }
    }
    return STATUS_OK;
}

/* The tables: [layer][part][expert], each layer's where its parts are listed. */
static status send_tables(resident_store *s, vt_queue *queue, error *err) {
    const expert_bank *bank = s->base.bank;
    const size_t bytes = table_bytes(bank);
    if (bytes == 0) return STATUS_OK;
    int64_t *table = mem_alloc(s->m, MEM_STAGING, bytes);
    if (table == NULL) return error_set(err, STATUS_NO_MEMORY, "experts: no memory for their addresses");
    for (int32_t l = 0; l < bank->n_layers; l++) {
        const size_t n_experts = (size_t)bank->layers[l].n_experts, n_parts = (size_t)bank->layers[l].n_parts;
        for (size_t e = 0; e < n_experts; e++) {
            for (size_t p = 0; p < n_parts; p++) table[s->first[l] + p * n_experts + e] = (int64_t)(uintptr_t)parts_of(s, l, (int32_t)e)[p];
        }
    }
    s->tables = (int64_t *)(void *)((uint8_t *)s->copy.data + s->copy.bytes - bytes);
    status rc = vt_copy(queue, s->tables, table, bytes);
    if (rc == STATUS_OK) rc = vt_queue_sync(queue);
    mem_free(s->m, table);
    return rc == STATUS_OK ? rc : error_set(err, rc, "experts: copying their addresses failed");
}

static const void *tables(const expert_store *base, int32_t layer) {
    const resident_store *s = (const resident_store *)base;
    return s->tables != NULL ? s->tables + s->first[layer] : NULL;
}

static status upload_all(resident_store *s, vt_queue *queue, error *err) {
    staged_upload up;
    status rc = staged_upload_begin(&up, s->base.bank->src, queue, s->base.bank->total_bytes, err);
    if (rc == STATUS_OK) rc = place_all(s, queue, &up, err);
    const status end = staged_upload_end(&up, rc == STATUS_OK ? err : NULL);
    if (rc == STATUS_OK) rc = end;
    return rc == STATUS_OK ? send_tables(s, queue, err) : rc;
}

size_t expert_store_resident_table_bytes(const expert_bank *bank) {
    size_t n_parts = 0;
    for (int32_t l = 0; l < bank->n_layers; l++) n_parts += (size_t)bank->layers[l].n_experts * (size_t)bank->layers[l].n_parts;
    return sizeof(resident_store) + n_parts * sizeof(uint8_t *) + (size_t)bank->n_layers * sizeof(size_t) + (size_t)bank->max_experts * sizeof(int32_t) + expert_seen_bytes(bank) +
           5 * (size_t)(MEM_HEADER_BYTES + MEM_ALIGN);
}

status expert_store_resident_create(mem *m, const expert_bank *bank, vt_queue *queue, expert_store **out, error *err) {
    resident_store *s = mem_calloc(m, MEM_MODEL, 1, sizeof *s);
    size_t n_parts = 0;
    status rc = STATUS_NO_MEMORY;
    if (s == NULL) return error_set(err, rc, "experts: no memory for a store");
    s->base = (expert_store){"resident", bank, waves, begin, next_ready, release, NULL, cancel, counters, close_store, NULL, NULL, NULL, tables, NULL};
    s->m = m;
    s->first = mem_calloc(m, MEM_MODEL, (size_t)bank->n_layers, sizeof *s->first);
    s->ids = mem_calloc(m, MEM_MODEL, (size_t)bank->max_experts, sizeof *s->ids);
    if (s->first == NULL || s->ids == NULL || !expert_seen_init(&s->seen, m, bank)) goto fail;
    for (int32_t l = 0; l < bank->n_layers; l++) {
        s->first[l] = n_parts;
        n_parts += (size_t)bank->layers[l].n_experts * (size_t)bank->layers[l].n_parts;
    }
    s->part = mem_calloc(m, MEM_MODEL, n_parts, sizeof *s->part);
    if (s->part == NULL) goto fail;
    const bool alias = (queue->caps & VT_CAP_BIT(VT_CAP_HOST_ADDRESSABLE)) != 0;
    const size_t bytes = expert_store_resident_copy_bytes(bank, alias);
    if (bytes > 0) TRY_GOTO(vt_buffer_alloc(queue->owner, MEM_EXPERTS, bytes, "resident experts", &s->copy, err));
    TRY_GOTO(alias ? place_all(s, queue, NULL, err) : upload_all(s, queue, err));
    s->counters.bytes_resident = bank->total_bytes;
    *out = &s->base;
    return STATUS_OK;
fail:
    if (err != NULL && err->code == STATUS_OK) error_note(err, rc, "experts: no memory for a store");
    (void)close_store(&s->base);
    return rc;
}
