/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's device: which one it is, and, where it has memory of its own, how much of that is in use and how fast it reads and is copied to. */
#include <stddef.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "engine/api_impl.h"
#include "engine/engine.h"
#include "model/model_capture.h"

enum { PASSES = 8, ROUNDS = 3, COPY_ROUND_MIB = 256 };

/* ---- which device ---- */

void engine_device_close(headrace_engine *e) {
    engine_miss_close(e);
    vt_queue_destroy(e->queue);
    vt_device_close(e->device);
    e->queue = NULL;
    e->device = NULL;
}

static status open_device(headrace_engine *e, vt_device_type type, error *err) {
    const vt_device_id id = {.type = type};
    TRY(vt_device_open(e->runtime, id, e->m, &e->device, err));
    TRY(vt_queue_create(e->device, e->threads, &e->queue, err));
    vt_device_describe(e->device, e->device_name, sizeof e->device_name);
    log_debug("engine: device %s, %d threads", e->device_name, e->plan.n_threads);
    return STATUS_OK;
}

/* Whether an open device that was not asked for by name gives way: it lacks something. One that does not open always does. */
static bool gives_way(status rc) { return rc == STATUS_UNSUPPORTED || rc == STATUS_DOES_NOT_FIT || rc == STATUS_NOT_NOW; }

/* Every device but the processor, in the order of the list: the first that can run the model and hold it. *taken: there is one, and e->plan is for it. */
static status find_device(headrace_engine *e, const config *c, bool pure, bool *taken, error *err) {
    *taken = false;
    for (int type = 0; type < VT_DEVICE_TYPE_COUNT; type++) {
        error why = {0};
        if (type == VT_DEVICE_CPU) continue;
        status rc = open_device(e, (vt_device_type)type, &why);
        const bool opened = rc == STATUS_OK, is_there = opened || (rc != STATUS_NOT_FOUND && vt_runtime_has(e->runtime, (vt_device_type)type));
        if (opened) rc = engine_plan_make(e, c, pure, &why);
        if (rc == STATUS_OK) {
            *taken = true;
            return STATUS_OK;
        }
        if (opened && !gives_way(rc)) {
            if (err != NULL) *err = why;
            return rc;
        }
        if (is_there) e->n_passed_over++;
        log_write(is_there ? LOG_LEVEL_WARN : LOG_LEVEL_DEBUG, "engine: %s is passed over: %s", opened ? e->device_name : vt_device_type_name((vt_device_type)type), why.text);
        engine_device_close(e);
    }
    return STATUS_OK;
}

status engine_device_open(headrace_engine *e, const config *c, bool pure, error *err) {
    const char *name = config_text(c, CONFIG_KEY_DEVICE);
    vt_device_type type = VT_DEVICE_CPU;
    bool taken = false;
    if (strcmp(name, "auto") != 0) {
        if (!vt_device_type_from_name(name, &type)) return error_set(err, STATUS_INVALID, "config: device \"%s\" is not known", name);
    } else {
        TRY(find_device(e, c, pure, &taken, err));
    }
    if (taken) return STATUS_OK;
    TRY(open_device(e, type, err));
    return engine_plan_make(e, c, pure, err);
}

/* ---- what is in use ---- */

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
