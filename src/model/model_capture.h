/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Steps that repeat: a pass that queues the same kernels over the same memory as the one before is captured, and from then on replayed, as long as its key stays what it was. What differs
 * between two steps of one key (ids, positions, pages, slots) is in the meta buffer, which is sent before the replay. A pass that had to wait for the device inside is never captured.
 */
#ifndef HEADRACE_MODEL_CAPTURE_H
#define HEADRACE_MODEL_CAPTURE_H

#include "model/model.h"

/** Everything that a pass is made of besides the contents of the device's memory. */
typedef struct capture_key {
    int32_t n_rows, n_segments, max_pages, n_head_rows;
    bool best;
} capture_key;

/** What a pass leaves in the model. */
typedef struct capture_result {
    vt_tensor x, head_logits, head_best;
    size_t ws_used;
} capture_result;

enum { CAPTURE_GRAPHS = 16 };
typedef struct captured_pass {
    capture_key key;
    capture_result result;
    void *graph; /* NULL: the place is free */
    uint64_t last_use;
} captured_pass;

typedef struct model_capture {
    bool on;
    bool has_last;
    capture_key last; /* of the step before, where it could have been captured */
    uint64_t clock;
    captured_pass passes[CAPTURE_GRAPHS];
    uint64_t n_captured, n_replayed;
} model_capture;

/** Whether this step may be captured: nothing but decodes, on a device that captures, and nobody looks in between. */
bool model_capture_takes(const model *mo, const step *s);
/** Entries of a page table's row: as the step has them, or for decodes more, so that they change rarely. Not a matter of whether steps are captured: kernels may share work out by it. */
int32_t model_capture_pages(const model *mo, const step *s);
/** Queues the pass, or its replay. key NULL: a pass that is not to be captured. */
typedef status model_pass(model *mo, const step *s, error *err);
NODISCARD status model_capture_run(model *mo, const capture_key *key, model_pass *pass, const step *s, error *err);
/** All graphs go. */
void model_capture_drop(model *mo);

#endif
