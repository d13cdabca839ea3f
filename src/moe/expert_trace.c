/* SPDX-License-Identifier: Apache-2.0 */
/* Traces: a buffer on its way to a file, and the file in memory. */
#include "moe/expert_trace.h"

#include <string.h>

#include "base/checked.h"

enum { BUFFER_WORDS = 32 * 1024, HEADER_BYTES = 20 };
static const char MAGIC[8] = {'H', 'R', 'R', 'O', 'U', 'T', 'E', '1'};
static const uint64_t MOST_BYTES = (uint64_t)1 << 32;

/* ---- writing ---- */

struct expert_trace_writer {
    mem *m;
    os_output *file;
    int32_t top_k;
    uint64_t at;
    size_t n_words;
    status rc;
    error why;
    uint16_t words[BUFFER_WORDS];
};

static void flush(expert_trace_writer *w) {
    if (w->rc == STATUS_OK && w->n_words > 0) w->rc = os_output_write(w->file, w->at, w->words, w->n_words * sizeof w->words[0], &w->why);
    w->at += w->n_words * sizeof w->words[0];
    w->n_words = 0;
}

static void put(expert_trace_writer *w, int32_t v) {
    if (w->n_words == BUFFER_WORDS) flush(w);
    w->words[w->n_words++] = (uint16_t)v;
}

status expert_trace_writer_open(mem *m, const char *path, int32_t n_layers, int32_t n_experts, int32_t top_k, expert_trace_writer **out, error *err) {
    if (n_layers > UINT16_MAX || n_experts > UINT16_MAX || top_k < 1) return error_set(err, STATUS_UNSUPPORTED, "experts: routing of %d layers of %d experts is not recorded", n_layers, n_experts);
    expert_trace_writer *w = mem_calloc(m, MEM_PROCESS, 1, sizeof *w);
    if (w == NULL) return error_set(err, STATUS_NO_MEMORY, "experts: no memory to record routing");
    w->m = m;
    w->top_k = top_k;
    status rc = os_output_open(m, path, false, &w->file, err);
    const uint32_t numbers[3] = {(uint32_t)n_layers, (uint32_t)n_experts, (uint32_t)top_k};
    if (rc == STATUS_OK) rc = os_output_write(w->file, 0, MAGIC, sizeof MAGIC, err);
    if (rc == STATUS_OK) rc = os_output_write(w->file, sizeof MAGIC, numbers, sizeof numbers, err);
    if (rc != STATUS_OK) {
        os_output_close(w->file);
        mem_free(m, w);
        return rc;
    }
    w->at = HEADER_BYTES;
    *out = w;
    return STATUS_OK;
}

void expert_trace_writer_add(expert_trace_writer *w, int32_t layer, const int32_t *ids, int32_t n_rows) {
    for (int32_t row = 0; row < n_rows;) {
        const int32_t n = n_rows - row < EXPERT_TRACE_MAX_ROWS ? n_rows - row : EXPERT_TRACE_MAX_ROWS;
        put(w, layer);
        put(w, n);
        for (int64_t i = (int64_t)row * w->top_k; i < (int64_t)(row + n) * w->top_k; i++) put(w, ids[i]);
        row += n;
    }
}

status expert_trace_writer_flush(expert_trace_writer *w, error *err) {
    flush(w);
    return w->rc == STATUS_OK ? STATUS_OK : error_set(err, w->rc, "%s", w->why.text);
}

status expert_trace_writer_close(expert_trace_writer *w, error *err) {
    if (w == NULL) return STATUS_OK;
    const status rc = expert_trace_writer_flush(w, err);
    os_output_close(w->file);
    mem_free(w->m, w);
    return rc;
}

/* ---- reading ---- */

static status bad(error *err, const char *path, size_t word, const char *what) {
    return error_set(err, STATUS_FORMAT, "experts: %s: byte %zu: %s", path, HEADER_BYTES + word * sizeof(uint16_t), what);
}

static status check_records(expert_trace *t, const char *path, error *err) {
    expert_trace_record r;
    uint64_t *rows = mem_calloc(t->m, MEM_PROCESS, (size_t)t->n_layers, sizeof *rows), row = 0;
    uint64_t *seen = mem_calloc(t->m, MEM_PROCESS, (size_t)t->n_experts, sizeof *seen); /* the row that has taken it last, counted from 1 */
    status rc = rows == NULL || seen == NULL ? error_set(err, STATUS_NO_MEMORY, "experts: no memory for a trace") : STATUS_OK;
    for (expert_trace_cursor c = {0}; rc == STATUS_OK && c.at < t->n_words;) {
        const size_t at = c.at, before = c.at;
        const size_t left = t->n_words - at;
        if (left < 2 || t->words[at + 1] < 1 || t->words[at + 1] > EXPERT_TRACE_MAX_ROWS || (size_t)t->words[at + 1] * (size_t)t->top_k > left - 2) {
            rc = bad(err, path, at, "no whole record");
            break;
        }
        if (!expert_trace_next(t, &c, &r) || r.layer >= t->n_layers) {
            rc = bad(err, path, before, "no such layer");
            break;
        }
        for (int32_t i = 0; rc == STATUS_OK && i < r.n_rows * t->top_k; i++) {
            if (i % t->top_k == 0) row++;
            if (r.ids[i] >= t->n_experts)
                rc = bad(err, path, before, "no such expert");
            else if (seen[r.ids[i]] == row)
                rc = bad(err, path, before, "an expert twice in a row");
            else
                seen[r.ids[i]] = row;
        }
        if (r.new_step) t->n_steps++;
        rows[r.layer] += (uint64_t)r.n_rows;
        if (rows[r.layer] > t->n_rows) t->n_rows = rows[r.layer];
    }
    mem_free(t->m, rows);
    mem_free(t->m, seen);
    return rc == STATUS_OK && t->n_words == 0 ? bad(err, path, 0, "no records") : rc;
}

static status read_all(expert_trace *t, const os_file *f, expert_trace_shape of, error *err) {
    uint8_t header[HEADER_BYTES];
    uint32_t numbers[3];
    const uint64_t size = os_file_size(f);
    if (size < HEADER_BYTES || size > MOST_BYTES || (size - HEADER_BYTES) % 2 != 0) return error_set(err, STATUS_FORMAT, "experts: %s: %llu bytes are no trace of routing", os_file_path(f), (unsigned long long)size);
    TRY(os_file_read(f, 0, header, sizeof header, err));
    memcpy(numbers, header + sizeof MAGIC, sizeof numbers);
    if (memcmp(header, MAGIC, sizeof MAGIC) != 0 || numbers[0] < 1 || numbers[0] > UINT16_MAX || numbers[1] < 1 || numbers[1] > UINT16_MAX || numbers[2] < 1 || numbers[2] > numbers[1]) {
        return error_set(err, STATUS_FORMAT, "experts: %s: no trace of routing, or of another version", os_file_path(f));
    }
    t->n_layers = (int32_t)numbers[0];
    t->n_experts = (int32_t)numbers[1];
    t->top_k = (int32_t)numbers[2];
    if (t->n_layers != of.n_layers || t->n_experts != of.n_experts || t->top_k != of.top_k) {
        return error_set(err, STATUS_INVALID, "experts: %s is of %d layers of %d experts, top %d; this model has %d of %d, top %d", os_file_path(f), t->n_layers, t->n_experts, t->top_k, of.n_layers, of.n_experts, of.top_k);
    }
    t->n_words = (size_t)(size - HEADER_BYTES) / 2;
    void *p;
    TRY(mem_alloc_named(t->m, MEM_PROCESS, t->n_words * sizeof t->words[0], "a trace of routing", &p, err));
    t->words = p;
    TRY(os_file_read(f, HEADER_BYTES, t->words, t->n_words * sizeof t->words[0], err));
    return check_records(t, os_file_path(f), err);
}

status expert_trace_read(mem *m, const char *path, expert_trace_shape of, expert_trace *out, error *err) {
    os_file *f;
    *out = (expert_trace){.m = m};
    TRY(os_file_open(m, path, &f, err));
    const status rc = read_all(out, f, of, err);
    os_file_close(f);
    if (rc != STATUS_OK) expert_trace_free(out);
    return rc;
}

void expert_trace_free(expert_trace *t) {
    if (t->m != NULL) mem_free(t->m, t->words);
    t->words = NULL;
    t->n_words = 0;
}

bool expert_trace_next(const expert_trace *t, expert_trace_cursor *c, expert_trace_record *out) {
    if (c->at >= t->n_words) return false;
    const uint16_t *w = t->words + c->at;
    const int32_t layer = w[0] + 1;
    *out = (expert_trace_record){.layer = w[0], .n_rows = w[1], .ids = w + 2, .new_step = c->last_layer == 0 || layer < c->last_layer || (layer == c->last_layer && !c->last_full)};
    *c = (expert_trace_cursor){.at = c->at + 2 + (size_t)w[1] * (size_t)t->top_k, .last_layer = layer, .last_full = w[1] == EXPERT_TRACE_MAX_ROWS};
    return true;
}

/* ---- forcing ---- */

struct expert_replay {
    mem *m;
    int32_t top_k;
    uint16_t *rows;  /* all rows of layer 0, of layer 1, ... */
    uint64_t *first; /* [n_layers + 1] */
    uint64_t *next;  /* [n_layers]: of the layer's rows */
};

static status sort_rows(expert_replay *r, const expert_trace *t, error *err) {
    expert_trace_record rec;
    r->first = mem_calloc(r->m, MEM_PROCESS, (size_t)t->n_layers + 1, sizeof *r->first);
    r->next = mem_calloc(r->m, MEM_PROCESS, (size_t)t->n_layers, sizeof *r->next);
    r->rows = mem_alloc(r->m, MEM_PROCESS, t->n_words * sizeof *r->rows);
    if (r->first == NULL || r->next == NULL || r->rows == NULL) return error_set(err, STATUS_NO_MEMORY, "experts: no memory to replay routing");
    for (expert_trace_cursor c = {0}; expert_trace_next(t, &c, &rec);) r->first[rec.layer + 1] += (uint64_t)rec.n_rows;
    for (int32_t l = 0; l < t->n_layers; l++) r->first[l + 1] += r->first[l];
    for (expert_trace_cursor c = {0}; expert_trace_next(t, &c, &rec);) {
        const size_t at = (size_t)(r->first[rec.layer] + r->next[rec.layer]);
        memcpy(r->rows + at * (size_t)t->top_k, rec.ids, (size_t)rec.n_rows * (size_t)t->top_k * sizeof *r->rows);
        r->next[rec.layer] += (uint64_t)rec.n_rows;
    }
    memset(r->next, 0, (size_t)t->n_layers * sizeof *r->next);
    return STATUS_OK;
}

status expert_replay_create(mem *m, const char *path, int32_t n_layers, int32_t n_experts, int32_t top_k, expert_replay **out, error *err) {
    expert_trace t;
    TRY(expert_trace_read(m, path, (expert_trace_shape){n_layers, n_experts, top_k}, &t, err));
    status rc = STATUS_OK;
    expert_replay *r = mem_calloc(m, MEM_PROCESS, 1, sizeof *r);
    if (r == NULL) {
        rc = error_set(err, STATUS_NO_MEMORY, "experts: no memory to replay routing");
    }
    if (rc == STATUS_OK) {
        r->m = m;
        r->top_k = top_k;
        rc = sort_rows(r, &t, err);
    }
    expert_trace_free(&t);
    if (rc == STATUS_OK) {
        *out = r;
    } else if (r != NULL) {
        r->m = m;
        expert_replay_destroy(r);
    }
    return rc;
}

void expert_replay_destroy(expert_replay *r) {
    if (r == NULL) return;
    mem_free(r->m, r->rows);
    mem_free(r->m, r->first);
    mem_free(r->m, r->next);
    mem_free(r->m, r);
}

void expert_replay_take(expert_replay *r, int32_t layer, int32_t *ids, int32_t n_rows) {
    const uint64_t n = r->first[layer + 1] - r->first[layer];
    for (int32_t i = 0; n > 0 && i < n_rows; i++) {
        const uint16_t *row = r->rows + (size_t)(r->first[layer] + r->next[layer]) * (size_t)r->top_k;
        for (int32_t j = 0; j < r->top_k; j++) ids[(int64_t)i * r->top_k + j] = row[j];
        r->next[layer] = (r->next[layer] + 1) % n;
    }
}
