/* SPDX-License-Identifier: Apache-2.0 */
/* The sum: four lanes of multiply and mix over 32 bytes at a time, so that it takes a fraction of the time of the read. It finds damage; it is no defence against forgery. */
#include "moe/expert_pack.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"

enum { PAGE = EXPERT_PAGE_BYTES, HEAD_BYTES = 32, PATH_BYTES = 4096 };
static const char MAGIC[8] = {'H', 'R', 'B', 'A', 'N', 'K', '0', '1'};
static const uint64_t K[4] = {UINT64_C(0x9e3779b97f4a7c15), UINT64_C(0xbf58476d1ce4e5b9), UINT64_C(0x94d049bb133111eb), UINT64_C(0x2545f4914f6cdd1d)};

uint64_t expert_pack_sum(const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    uint64_t lane[4] = {n ^ K[0], n ^ K[1], n ^ K[2], n ^ K[3]}, w;
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        for (int k = 0; k < 4; k++) {
            memcpy(&w, p + i + 8 * (size_t)k, sizeof w);
            lane[k] = (lane[k] ^ w) * K[k];
            lane[k] ^= lane[k] >> 29;
        }
    }
    for (; i < n; i++) lane[i % 4] = ((lane[i % 4] ^ p[i]) * K[i % 4]) ^ (lane[i % 4] >> 31);
    uint64_t h = 0;
    for (int k = 0; k < 4; k++) h = (h ^ lane[k] ^ (lane[k] >> 32)) * K[3 - k];
    return h ^ (h >> 32);
}

/* ---- shape ---- */

static uint64_t mix(uint64_t h, const void *bytes, size_t n) { return (h ^ expert_pack_sum(bytes, n)) * K[0]; }

static uint64_t fingerprint_of(const expert_bank *b) {
    uint64_t h = 1;
    for (int32_t l = 0; l < b->n_layers; l++) {
        const expert_layer *el = &b->layers[l];
        const tensor_info *last = NULL;
        h = mix(h, &el->n_experts, sizeof el->n_experts);
        for (int64_t i = 0; i < (int64_t)el->n_experts * el->n_parts; i++) {
            const tensor_info *t = el->spans[i].tensor;
            if (t == last) continue;
            last = t;
            const uint64_t numbers[] = {(uint64_t)t->dtype, (uint64_t)t->n_dims, (uint64_t)t->dim[0], (uint64_t)t->dim[1], (uint64_t)t->dim[2], (uint64_t)t->dim[3], t->file, t->off, t->n_bytes};
            h = mix(mix(h, t->name, strlen(t->name)), numbers, sizeof numbers);
        }
    }
    return h;
}

static uint64_t count_records(const expert_bank *b) {
    uint64_t n = 0;
    for (int32_t l = 0; l < b->n_layers; l++) n += (uint64_t)b->layers[l].n_experts;
    return n;
}

static uint64_t whole_pages(uint64_t n) { return (n + PAGE - 1) / PAGE * PAGE; }

/* Offsets and sizes of all records; sums 0. Returns the size of the file. */
static uint64_t lay_out(const expert_bank *b, expert_pack_entry *table) {
    uint64_t at = PAGE + whole_pages(count_records(b) * sizeof *table);
    for (int32_t l = 0; l < b->n_layers; l++) {
        for (int32_t e = 0; e < b->layers[l].n_experts; e++) {
            *table++ = (expert_pack_entry){.off = at, .n_bytes = b->layers[l].slot_bytes};
            at += whole_pages(b->layers[l].slot_bytes);
        }
    }
    return at;
}

static void make_head(const expert_bank *b, const expert_pack_entry *table, uint8_t *page) {
    const uint32_t counts[2] = {(uint32_t)b->n_layers, (uint32_t)count_records(b)};
    const uint64_t fingerprint = fingerprint_of(b), sum = table != NULL ? expert_pack_sum(table, (size_t)count_records(b) * sizeof *table) : 0;
    memset(page, 0, PAGE);
    memcpy(page, MAGIC, sizeof MAGIC);
    memcpy(page + 8, counts, sizeof counts);
    memcpy(page + 16, &fingerprint, sizeof fingerprint);
    memcpy(page + 24, &sum, sizeof sum);
}

/* ---- writing ---- */

typedef struct packer {
    mem *m;
    const expert_bank *b;
    os_output *file;
    expert_pack_entry *table, *found; /* as it is to be; what the partial file has */
    uint64_t n, total, done;
    uint8_t *record; /* [pages of the largest] */
    expert_pack_progress *progress;
    void *user;
    error *err;
} packer;

static void tell(packer *k, uint64_t bytes) {
    k->done += bytes;
    if (k->progress != NULL) k->progress(k->user, k->done, 2 * k->total);
}

static status fetch(packer *k, int32_t layer, int32_t expert) {
    const expert_layer *el = &k->b->layers[layer];
    memset(k->record, 0, (size_t)whole_pages(el->slot_bytes));
    for (int32_t p = 0; p < el->n_parts; p++) {
        const expert_span *s = &el->spans[(size_t)expert * (size_t)el->n_parts + (size_t)p];
        TRY(source_read(k->b->src, s->tensor, s->off, el->parts[p].n_bytes, k->record + el->parts[p].slot_off, k->err));
        if (el->parts[p].n_bytes >= EXPERT_DIRECT_LEAST) os_file_forget(source_file(k->b->src, s->tensor->file), s->tensor->off + s->off, el->parts[p].n_bytes);
    }
    return STATUS_OK;
}

static bool is_there(packer *k, const expert_pack_entry *e, const expert_pack_entry *found) {
    error none = {0};
    return found->off == e->off && found->n_bytes == e->n_bytes && found->checksum != 0 && os_output_read(k->file, e->off, k->record, (size_t)e->n_bytes, &none) == STATUS_OK &&
           expert_pack_sum(k->record, (size_t)e->n_bytes) == found->checksum;
}

/* One layer: its records, to the disk, and only then into the table of the partial file. */
static status write_layer(packer *k, int32_t layer, uint64_t first, expert_pack_result *out) {
    const expert_layer *el = &k->b->layers[layer];
    bool wrote = false;
    for (int32_t e = 0; e < el->n_experts; e++) {
        expert_pack_entry *entry = &k->table[first + (uint64_t)e];
        if (is_there(k, entry, &k->found[first + (uint64_t)e])) {
            entry->checksum = k->found[first + (uint64_t)e].checksum;
            out->n_resumed++;
        } else {
            TRY(fetch(k, layer, e));
            entry->checksum = expert_pack_sum(k->record, (size_t)entry->n_bytes);
            TRY(os_output_write(k->file, entry->off, k->record, (size_t)whole_pages(entry->n_bytes), k->err));
            wrote = true;
        }
        tell(k, entry->n_bytes);
    }
    if (!wrote || el->n_experts == 0) return STATUS_OK;
    TRY(os_output_sync(k->file, k->err));
    return os_output_write(k->file, PAGE + first * sizeof *k->table, &k->table[first], (size_t)el->n_experts * sizeof *k->table, k->err);
}

static status verify(packer *k) {
    for (uint64_t i = 0; i < k->n; i++) {
        const expert_pack_entry *e = &k->table[i];
        TRY(os_output_read(k->file, e->off, k->record, (size_t)e->n_bytes, k->err));
        if (expert_pack_sum(k->record, (size_t)e->n_bytes) != e->checksum) return error_set(k->err, STATUS_IO, "pack: the record at byte %llu does not read back as it was written", (unsigned long long)e->off);
        tell(k, e->n_bytes);
    }
    return STATUS_OK;
}

/* What a partial file of this checkpoint has; any other is begun anew. */
static status look_at_partial(packer *k, const uint8_t *head) {
    uint8_t there[PAGE];
    error none = {0};
    if (os_output_size(k->file) >= PAGE + k->n * sizeof *k->found && os_output_read(k->file, 0, there, PAGE, &none) == STATUS_OK && memcmp(there, head, HEAD_BYTES) == 0) {
        return os_output_read(k->file, PAGE, k->found, (size_t)k->n * sizeof *k->found, k->err);
    }
    TRY(os_output_truncate(k->file, 0, k->err));
    TRY(os_output_write(k->file, 0, head, PAGE, k->err));
    return os_output_write(k->file, PAGE, k->found, (size_t)k->n * sizeof *k->found, k->err);
}

static status pack_all(packer *k, uint64_t file_bytes, expert_pack_result *out) {
    uint8_t head[PAGE];
    uint64_t first = 0;
    make_head(k->b, NULL, head);
    TRY(look_at_partial(k, head));
    TRY(os_output_truncate(k->file, file_bytes, k->err));
    for (int32_t l = 0; l < k->b->n_layers; first += (uint64_t)k->b->layers[l++].n_experts) TRY(write_layer(k, l, first, out));
    TRY(os_output_sync(k->file, k->err));
    TRY(verify(k));
    make_head(k->b, k->table, head);
    TRY(os_output_write(k->file, 0, head, PAGE, k->err));
    return os_output_sync(k->file, k->err);
}

status expert_pack_write(mem *m, const expert_bank *b, const char *path, expert_pack_progress *progress, void *user, expert_pack_result *out, error *err) {
    char partial[PATH_BYTES];
    packer k = {.m = m, .b = b, .n = count_records(b), .progress = progress, .user = user, .err = err};
    *out = (expert_pack_result){.n_records = k.n};
    if (k.n == 0 || k.n > UINT32_MAX) return error_set(err, STATUS_INVALID, "pack: %llu experts", (unsigned long long)k.n);
    if ((size_t)snprintf(partial, sizeof partial, "%s.partial", path) >= sizeof partial) return error_set(err, STATUS_INVALID, "pack: the path is too long");
    k.table = mem_calloc(m, MEM_MODEL, (size_t)k.n, sizeof *k.table);
    k.found = mem_calloc(m, MEM_MODEL, (size_t)k.n, sizeof *k.found);
    k.record = mem_alloc(m, MEM_STAGING, (size_t)whole_pages(b->max_slot_bytes));
    status rc = k.table == NULL || k.found == NULL || k.record == NULL ? error_set(err, STATUS_NO_MEMORY, "pack: no memory for %llu records", (unsigned long long)k.n) : STATUS_OK;
    if (rc == STATUS_OK) {
        out->file_bytes = lay_out(b, k.table);
        for (uint64_t i = 0; i < k.n; i++) k.total += k.table[i].n_bytes;
        rc = source_allow_writing(b->src, path, err);
        if (rc == STATUS_OK) rc = source_allow_writing(b->src, partial, err);
        if (rc == STATUS_OK) rc = os_replaceable(path, err);
        if (rc == STATUS_OK) rc = os_output_open(m, partial, true, &k.file, err);
    }
    if (rc == STATUS_OK) rc = pack_all(&k, out->file_bytes, out);
    if (rc == STATUS_OK) rc = os_rename(partial, path, err); /* before the lock ends with close: nobody may open what is about to have the name */
    os_output_close(k.file);
    mem_free(m, k.table);
    mem_free(m, k.found);
    mem_free(m, k.record);
    return rc;
}

/* ---- using ---- */

static status read_table(const expert_bank *b, uint32_t file, const uint8_t *head, expert_pack_entry *table, expert_pack_entry *expected, error *err) {
    const char *path = os_file_path(source_file(b->src, file));
    const uint64_t n = count_records(b), size = os_file_size(source_file(b->src, file));
    uint64_t sum;
    TRY(source_read_range(b->src, file, PAGE, n * sizeof *table, table, err));
    memcpy(&sum, head + 24, sizeof sum);
    if (expert_pack_sum(table, (size_t)n * sizeof *table) != sum) return error_set(err, STATUS_FORMAT, "experts: %s: its table is damaged", path);
    if (lay_out(b, expected) != size) return error_set(err, STATUS_FORMAT, "experts: %s: %llu bytes are not those of a whole bank", path, (unsigned long long)size);
    for (uint64_t i = 0; i < n; i++) {
        if (table[i].off != expected[i].off || table[i].n_bytes != expected[i].n_bytes) return error_set(err, STATUS_FORMAT, "experts: %s: record %llu is not where it belongs", path, (unsigned long long)i);
    }
    return STATUS_OK;
}

status expert_pack_use(expert_bank *b, arena *a, mem *m, error *err) {
    uint32_t file;
    uint8_t head[HEAD_BYTES], expected[PAGE];
    if (!source_extra_file(b->src, &file)) return error_set(err, STATUS_BUG, "experts: no packed bank was opened");
    const os_file *f = source_file(b->src, file);
    const uint64_t n = count_records(b);
    if (os_file_size(f) < PAGE + whole_pages(n * sizeof(expert_pack_entry))) return error_set(err, STATUS_FORMAT, "experts: %s: no packed bank of this checkpoint, or cut short", os_file_path(f));
    TRY(source_read_range(b->src, file, 0, sizeof head, head, err));
    make_head(b, NULL, expected);
    if (memcmp(head, MAGIC, sizeof MAGIC) != 0) return error_set(err, STATUS_FORMAT, "experts: %s: no packed bank, or of another version", os_file_path(f));
    if (memcmp(head, expected, 24) != 0) return error_set(err, STATUS_FORMAT, "experts: %s: packed from another checkpoint", os_file_path(f));
    expert_pack_entry *table = arena_calloc(a, (size_t)n, sizeof *table), *places = mem_calloc(m, MEM_MODEL, (size_t)n, sizeof *places);
    status rc = table == NULL || places == NULL ? error_set(err, STATUS_NO_MEMORY, "experts: no memory for the table of a packed bank") : read_table(b, file, head, table, places, err);
    mem_free(m, places);
    if (rc != STATUS_OK) return rc;
    b->packed = table;
    b->packed_file = file;
    uint64_t first = 0;
    size_t slot = 0;
    for (int32_t l = 0; l < b->n_layers; first += (uint64_t)b->layers[l++].n_experts) {
        b->layers[l].first_packed = first;
        if (b->layers[l].slot_bytes > slot) slot = b->layers[l].slot_bytes;
    }
    b->padded = true; /* records are whole pages */
    b->stream_slot_bytes = (size_t)whole_pages(slot);
    return STATUS_OK;
}

status expert_pack_check(const expert_bank *b, int32_t layer, int32_t expert, const uint8_t *slot, error *err) {
    const expert_pack_entry *e = &b->packed[b->layers[layer].first_packed + (uint64_t)expert];
    const uint64_t sum = expert_pack_sum(slot, (size_t)e->n_bytes);
    if (sum == e->checksum) return STATUS_OK;
    return error_set(err, STATUS_IO, "experts: %s: the record of %llu bytes at offset %llu is damaged: expected checksum %016llx, got %016llx", os_file_path(source_file(b->src, b->packed_file)),
                     (unsigned long long)e->n_bytes, (unsigned long long)e->off, (unsigned long long)e->checksum, (unsigned long long)sum);
}
