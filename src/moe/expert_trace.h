/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Recorded routing: which experts every row of every layer took, in the order of the steps. Written while a model runs, read to replay it and to ask what another budget or policy would do.
 *
 * The file, little endian: "HRROUTE1"; u32 layers, experts, top-k; then records until its end: u16 layer, u16 rows (1 or more), u16 ids[rows * top-k]. A record is one layer of one step, of at most
 * EXPERT_TRACE_MAX_ROWS rows (more follow as further records of the same step and layer); a step begins where the layer is below that of the record before, or equal to it and not its continuation:
 * a continuation is what follows a record of exactly EXPERT_TRACE_MAX_ROWS rows. Layers without experts have no records.
 */
#ifndef HEADRACE_MOE_EXPERT_TRACE_H
#define HEADRACE_MOE_EXPERT_TRACE_H

#include "base/os.h"

enum { EXPERT_TRACE_MAX_ROWS = 4096 };

/* ---- writing ---- */

typedef struct expert_trace_writer expert_trace_writer;
NODISCARD status expert_trace_writer_open(mem *m, const char *path, int32_t n_layers, int32_t n_experts, int32_t top_k, expert_trace_writer **out, error *err);
/** Allocates nothing. A failed write is told by flush and close. */
void expert_trace_writer_add(expert_trace_writer *w, int32_t layer, const int32_t *ids, int32_t n_rows);
/** What was added is in the file; else how the first failing write went. */
NODISCARD status expert_trace_writer_flush(expert_trace_writer *w, error *err);
/** Also frees. */
status expert_trace_writer_close(expert_trace_writer *w, error *err);

/* ---- reading ---- */

/** Of the model that a trace is of, or must be of. */
typedef struct expert_trace_shape {
    int32_t n_layers, n_experts, top_k;
} expert_trace_shape;

typedef struct expert_trace {
    mem *m;
    int32_t n_layers, n_experts, top_k;
    uint16_t *words; /* the records */
    size_t n_words;
    uint64_t n_steps, n_rows; /* n_rows: of the layer that has the most */
} expert_trace;

/** One layer of one step. */
typedef struct expert_trace_record {
    int32_t layer, n_rows;
    const uint16_t *ids; /* [n_rows * top_k] */
    bool new_step;
} expert_trace_record;

/** Every record is checked: ids, layers and lengths in range. STATUS_FORMAT names the place; STATUS_INVALID, before any record is read: it is of a model of another shape. */
NODISCARD status expert_trace_read(mem *m, const char *path, expert_trace_shape of, expert_trace *out, error *err);
void expert_trace_free(expert_trace *t);
/** All zero at first. */
typedef struct expert_trace_cursor {
    size_t at;          /* word of the next record */
    int32_t last_layer; /* one more than the layer of the record before */
    bool last_full;
} expert_trace_cursor;
/** The next record; false at the end. */
bool expert_trace_next(const expert_trace *t, expert_trace_cursor *c, expert_trace_record *out);

/* ---- forcing ---- */

/** Hands out a trace's rows layer by layer, from the first again behind the last. */
typedef struct expert_replay expert_replay;
NODISCARD status expert_replay_create(mem *m, const char *path, int32_t n_layers, int32_t n_experts, int32_t top_k, expert_replay **out, error *err);
void expert_replay_destroy(expert_replay *r);
/** The next n_rows rows of the layer into ids; left alone where the trace has none of it. */
void expert_replay_take(expert_replay *r, int32_t layer, int32_t *ids, int32_t n_rows);

#endif
