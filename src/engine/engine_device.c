/* SPDX-License-Identifier: Apache-2.0 */
/* What a device with memory of its own says of itself: how much is in use, and how fast it reads and is copied to. */
#include <stddef.h>
#include <string.h>

#include "base/os.h"
#include "engine/api_impl.h"
#include "engine/engine.h"
#include "model/model_capture.h"

enum { PASSES = 8, ROUNDS = 3, COPY_ROUND_MIB = 256 };

void engine_device_look(headrace_engine *e) {
    uint64_t is_free, total;
    const uint64_t before = vt_device_open_bytes(e->device);
    if (e->plan.pool != PLAN_POOL_OWN || before == 0 || vt_device_memory_info(e->device, &is_free, &total) != STATUS_OK || is_free == 0 || is_free > total) return;
    const uint64_t used = total - is_free > before ? total - is_free - before : 0;
    if (used > e->device_peak_bytes) e->device_peak_bytes = used;
}

void engine_device_look_again(headrace_engine *e, bool idle) {
    const uint64_t n = e->model->capture != NULL ? e->model->capture->n_captured : 0;
    if (idle || n != e->n_captured_seen) engine_device_look(e);
    e->n_captured_seen = n;
}

/* ---- speed ---- */

typedef status one_pass(headrace_engine *e, vt_queue *q, size_t bytes);

static status read_once(headrace_engine *e, vt_queue *q, size_t bytes) { return vt_read_pass(q, e->model->weight_buf.data, bytes); }

/* From the pinned memory that logits come back into to the workspace: nothing of a step lives there between steps but what its head still wants. */
static status copy_once(headrace_engine *e, vt_queue *q, size_t bytes) { return vt_copy(q, e->model->workspace.data, e->model->host_logits.data, bytes); }

/* Bytes a second of so many passes queued at once, the best of a few rounds. */
static status measure(headrace_engine *e, vt_queue *q, one_pass *pass, size_t bytes, int n, double *out, error *err) {
    *out = 0;
    for (int round = 0; round <= ROUNDS; round++) { /* the first warms up */
        const uint64_t begin = os_now_ns();
        status rc = STATUS_OK;
        for (int i = 0; rc == STATUS_OK && i < n; i++) rc = pass(e, q, bytes);
        const status end = vt_queue_sync(q);
        if (rc == STATUS_OK) rc = end;
        if (rc != STATUS_OK) return error_set(err, rc, "engine: %s cannot be measured (%s)", e->device_name, status_name(rc));
        const double speed = (double)bytes * n * 1e9 / (double)(os_now_ns() - begin + 1);
        if (round > 0 && speed > *out) *out = speed;
    }
    return STATUS_OK;
}

static status measure_both(headrace_engine *e, headrace_device_speed *s, error *err) {
    const model *mo = e->model;
    const size_t copied = mo->host_logits.bytes < mo->workspace.bytes ? mo->host_logits.bytes : mo->workspace.bytes, round = (size_t)COPY_ROUND_MIB << 20;
    if (e->plan.pool == PLAN_POOL_HOST || mo->host_logits.data == NULL) return error_set(err, STATUS_UNSUPPORTED, "engine: %s computes in the host's memory", e->device_name);
    TRY(measure(e, e->queue, read_once, mo->weight_buf.bytes / 256 * 256, PASSES, &s->read_bytes_per_s, err));
    return measure(e, e->copies != NULL ? e->copies : e->queue, copy_once, copied, (int)(round / copied) + 1, &s->upload_bytes_per_s, err);
}

headrace_status headrace_measure_device(headrace_engine *e, headrace_device_speed *out, headrace_error *herr) {
    error err = {0};
    const uint32_t size = out->size;
    headrace_device_speed s = {.size = size};
    if (size > sizeof s || size < offsetof(headrace_device_speed, upload_bytes_per_s) + sizeof s.upload_bytes_per_s) return HEADRACE_INVALID;
    if (atomic_exchange(&e->driven, true)) return api_error(herr, error_set(&err, STATUS_INVALID, "engine: a device is measured between steps"), &err);
    const status rc = measure_both(e, &s, &err);
    e->model->n_head_rows = 0;
    atomic_store(&e->driven, false);
    if (rc == STATUS_OK) memcpy(out, &s, size);
    return api_error(herr, rc, &err);
}
