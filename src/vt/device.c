/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, queues, buffers, copies and fences: the vtable's functions, with the defaults that a NULL stands for.
 *
 * A buffer is charged once. Where a backend takes device memory from the host (host_alloc), the engine's allocator has charged it already,
 * under the buffer's tag; elsewhere it is charged here. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "vt/pinned.h"
#include "vt/runtime_impl.h"

/* ---- what the core lends to an open device ---- */

static void *host_alloc(void *ctx, size_t bytes) {
    vt_device *d = ctx;
    pthread_mutex_lock(&d->lock);
    void *p = mem_alloc(d->m, d->tag, bytes);
    if (p) d->host_bytes += bytes;
    pthread_mutex_unlock(&d->lock);
    return p;
}

static void host_free(void *ctx, void *p) {
    vt_device *d = ctx;
    pthread_mutex_lock(&d->lock);
    d->host_bytes = 0; /* a buffer that is tried in another way: what was taken for it before is gone */
    pthread_mutex_unlock(&d->lock);
    mem_free(d->m, p);
}

static void host_log(void *ctx, int level, const char *line) { ((vt_device *)ctx)->rt->host.log(((vt_device *)ctx)->rt, level, line); }
static const char *host_option(void *ctx, const char *key) { return ((vt_device *)ctx)->rt->host.option(((vt_device *)ctx)->rt, key); }

/* ---- devices ---- */

static bool lock_init(pthread_mutex_t *lock) {
    pthread_mutexattr_t attr;
    if (pthread_mutexattr_init(&attr) != 0) return false;
    bool ok = pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE) == 0 && pthread_mutex_init(lock, &attr) == 0;
    pthread_mutexattr_destroy(&attr);
    return ok;
}

static status check_index(vt_runtime *rt, const backend_entry *e, vt_device_id id, error *err) {
    error why = {0};
    int32_t n = e->vtable.count ? e->vtable.count(&rt->host, &why) : 1;
    if (id.index >= 0 && id.index < n) return STATUS_OK;
    if (n > 0) return error_set(err, STATUS_NOT_FOUND, "vt: no device %s:%d, there are %d", e->vtable.name, (int)id.index, (int)n);
    /* unsupported: one may be there, but for its driver */
    return error_set(err, why.code == STATUS_UNSUPPORTED ? why.code : STATUS_NOT_FOUND, "vt: no device %s:%d: %s", e->vtable.name, (int)id.index,
                     why.text[0] ? why.text : "there is none");
}

status vt_device_open(vt_runtime *rt, vt_device_id id, mem *m, vt_device **out, error *err) {
    const backend_entry *e = runtime_backend(rt, id.type);
    if (!e) return refusal_no_backend(rt, id, err);
    TRY(check_index(rt, e, id, err));
    status rc = STATUS_OK;
    vt_device *d = mem_calloc(m, MEM_PROCESS, 1, sizeof *d);
    if (!d) return error_set(err, STATUS_NO_MEMORY, "vt: no memory for device %s:%d", e->vtable.name, (int)id.index);
    d->rt = rt;
    d->id = id;
    d->m = m;
    d->backend = e;
    d->tag = MEM_PROCESS;
    d->most_pinned = UINT64_MAX;
    d->host = (vt_host_api){sizeof(vt_host_api), host_alloc, host_free, host_log, d, host_option};
    atomic_fetch_add(&rt->n_devices, 1);
    d->has_lock = lock_init(&d->lock);
    if (!d->has_lock) {
        rc = error_set(err, STATUS_FAILED, "vt: no lock for device %s:%d", e->vtable.name, (int)id.index);
        goto fail;
    }
    TRY_GOTO(e->vtable.open(&d->host, id.index, &d->dev, err));
    d->caps = e->vtable.caps ? e->vtable.caps(d->dev) : 0;
    uint64_t free_bytes = 0;
    if (vt_device_memory_info(d, &free_bytes, &d->total_bytes) != STATUS_OK) d->total_bytes = 0;
    if (free_bytes > 0 && free_bytes < d->total_bytes) d->open_bytes = d->total_bytes - free_bytes;
    *out = d;
    return STATUS_OK;
fail:
    d->backend = NULL; /* not open */
    vt_device_close(d);
    return rc;
}

void vt_device_close(vt_device *d) {
    if (!d) return;
    if (d->backend) d->backend->vtable.close(d->dev);
    if (d->has_lock) pthread_mutex_destroy(&d->lock);
    atomic_fetch_sub(&d->rt->n_devices, 1);
    mem_free(d->m, d);
}

vt_device_id vt_device_get_id(const vt_device *d) { return d->id; }
uint64_t vt_device_caps(const vt_device *d) { return d->caps; }
uint64_t vt_device_total_bytes(const vt_device *d) { return d->total_bytes; }
uint64_t vt_device_open_bytes(const vt_device *d) { return d->open_bytes; }
uint64_t vt_device_alloc_unit(const vt_device *d) { return d->backend->vtable.alloc_unit ? d->backend->vtable.alloc_unit(d->dev) : 1; }
uint64_t vt_device_queue_bytes(const vt_device *d) { return d->backend->vtable.queue_bytes ? d->backend->vtable.queue_bytes(d->dev) : 0; }

status vt_device_memory_info(const vt_device *d, uint64_t *free_bytes, uint64_t *total_bytes) {
    uint64_t n_free = 0, n_total = 0;
    if (d->backend->vtable.memory_info) TRY(d->backend->vtable.memory_info(d->dev, &n_free, &n_total));
    *free_bytes = n_free;
    *total_bytes = n_total;
    return STATUS_OK;
}

void vt_device_describe(const vt_device *d, char *text, size_t n) {
    if (n == 0) return;
    text[0] = 0;
    if (d->backend->vtable.describe) {
        d->backend->vtable.describe(d->dev, text, n);
        text[n - 1] = 0;
    } else {
        snprintf(text, n, "%s", d->backend->vtable.name);
    }
}

/* ---- buffers ---- */

static status refuse_buffer(const vt_device *d, mem_tag tag, size_t bytes, const char *what, const char *who, status rc, error *err) {
    mem_usage u;
    mem_get_usage(d->m, tag, &u);
    return error_set(err, rc, "vt: %s:%d: %zu bytes for %s refused by %s: tag %s uses %zu of %zu%s", vt_device_type_name(d->id.type),
                     (int)d->id.index, bytes, what, who, mem_tag_name(tag), u.used_bytes, u.limit_bytes,
                     u.limit_bytes == SIZE_MAX ? " (no limit)" : "");
}

static void give_back(vt_device *d, bool on_host, bool pinned, size_t bytes, void *p) {
    const vt_backend *v = &d->backend->vtable;
    if (!on_host) {
        v->free(d->dev, p);
    } else if (pinned) {
        v->host_free(d->dev, p);
        pthread_mutex_lock(&d->lock);
        d->pinned_bytes -= bytes;
        pthread_mutex_unlock(&d->lock);
    } else {
        mem_free(d->m, p);
    }
}

static status take(vt_device *d, bool on_host, mem_tag tag, size_t bytes, bool *pinned, void **out) {
    const vt_backend *v = &d->backend->vtable;
    if (!on_host) return v->alloc(d->dev, bytes, out);
    if (v->host_alloc && d->pinned_bytes <= d->most_pinned && bytes <= d->most_pinned - d->pinned_bytes && v->host_alloc(d->dev, bytes, out) == STATUS_OK) {
        *pinned = true;
        d->pinned_bytes += bytes;
        return STATUS_OK;
    }
    *out = mem_alloc(d->m, tag, bytes);
    if (*out) d->host_bytes += bytes;
    return *out ? STATUS_OK : STATUS_NO_MEMORY;
}

static status allocate(vt_device *d, bool on_host, mem_tag tag, size_t bytes, const char *what, vt_buffer *out, error *err) {
    if (bytes == 0) {
        *out = (vt_buffer){.device = d, .tag = tag, .on_host = on_host};
        return STATUS_OK;
    }
    void *data = NULL;
    pthread_mutex_lock(&d->lock);
    d->tag = tag;
    d->host_bytes = 0;
    bool pinned = false;
    status rc = take(d, on_host, tag, bytes, &pinned, &data);
    bool is_charged = d->host_bytes >= bytes;
    d->tag = MEM_PROCESS;
    pthread_mutex_unlock(&d->lock);
    if (rc != STATUS_OK) return refuse_buffer(d, tag, bytes, what, "the device", rc, err);
    if ((uintptr_t)data % MEM_ALIGN != 0 || !data) {
        give_back(d, on_host, pinned, bytes, data);
        return error_set(err, STATUS_FAILED, "vt: backend %s gave a buffer that is not aligned to %d bytes", d->backend->vtable.name,
                         MEM_ALIGN);
    }
    if (!is_charged && mem_charge(d->m, tag, bytes) != STATUS_OK) {
        give_back(d, on_host, pinned, bytes, data);
        return refuse_buffer(d, tag, bytes, what, "the budget", STATUS_NO_MEMORY, err);
    }
    if (on_host && !pinned && d->backend->vtable.host_alloc) {
        log_info("vt: %s:%d pins no %zu bytes for %s: ordinary memory, and slower copies", d->backend->vtable.name, (int)d->id.index, bytes, what);
    }
    *out = (vt_buffer){data, bytes, d, tag, is_charged ? 0 : bytes, on_host, pinned};
    return STATUS_OK;
}

status vt_buffer_alloc(vt_device *d, mem_tag tag, size_t bytes, const char *what, vt_buffer *out, error *err) {
    return allocate(d, false, tag, bytes, what, out, err);
}

status vt_buffer_alloc_host(vt_device *d, mem_tag tag, size_t bytes, const char *what, vt_buffer *out, error *err) {
    return allocate(d, true, tag, bytes, what, out, err);
}

void vt_device_limit_pinned(vt_device *d, uint64_t bytes) {
    pthread_mutex_lock(&d->lock);
    d->most_pinned = bytes;
    pthread_mutex_unlock(&d->lock);
}

void vt_buffer_free(vt_buffer *b) {
    if (b->device && b->data) {
        give_back(b->device, b->on_host, b->pinned, b->bytes, b->data);
        if (b->charged_bytes) mem_uncharge(b->device->m, b->tag, b->charged_bytes);
    }
    *b = (vt_buffer){0};
}

/* ---- queues ---- */

/* Ids are unique in the process, so that two runtimes never share one: the only state here that belongs to no object. */
static uint64_t next_queue_id(void) {
    static _Atomic uint64_t last;
    return atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
}

status vt_queue_create(vt_device *d, pool *threads, vt_queue **out, error *err) {
    const vt_backend *v = &d->backend->vtable;
    vt_queue *q = mem_calloc(d->m, MEM_PROCESS, 1, sizeof *q);
    if (!q) return error_set(err, STATUS_NO_MEMORY, "vt: no memory for a queue on %s:%d", v->name, (int)d->id.index);
    *q = (vt_queue){
        .device = d->id, .id = next_queue_id(), .runtime = d->rt, .owner = d, .dev = d->dev, .threads = threads, .caps = d->caps};
    status rc = v->queue_create ? v->queue_create(d->dev, &q->handle) : STATUS_OK;
    if (rc != STATUS_OK) {
        mem_free(d->m, q);
        return error_set(err, rc, "vt: %s:%d gives no queue: %s", v->name, (int)d->id.index, status_name(rc));
    }
    *out = q;
    return STATUS_OK;
}

void vt_queue_destroy(vt_queue *q) {
    if (!q) return;
    const vt_backend *v = &q->owner->backend->vtable;
    if (v->queue_destroy) v->queue_destroy(q->dev, q->handle);
    mem_free(q->owner->m, q);
}

vt_queue vt_queue_pose(vt_runtime *rt, vt_device_id id, uint64_t caps) {
    return (vt_queue){.device = id, .id = next_queue_id(), .runtime = rt, .caps = caps};
}

/* Work of a queue that is not an op: nothing on a recorder, refused on a queue that poses. */
static const vt_backend *working(const vt_queue *q) { return q->owner && !q->recorder ? &q->owner->backend->vtable : NULL; }
static status idle(const vt_queue *q) { return q->recorder ? STATUS_OK : STATUS_INVALID; }

status vt_queue_sync(vt_queue *q) {
    const vt_backend *v = working(q);
    if (!v) return idle(q);
    return v->sync ? v->sync(q->dev, q->handle) : STATUS_OK;
}

status vt_copy(vt_queue *q, void *dst, const void *src, size_t bytes) {
    const vt_backend *v = working(q);
    if (!v) return idle(q);
    return bytes ? v->copy(q->dev, q->handle, dst, src, bytes) : STATUS_OK;
}

status vt_fill(vt_queue *q, void *dst, int value, size_t bytes) {
    const vt_backend *v = working(q);
    if (!v) return idle(q);
    return bytes ? v->fill(q->dev, q->handle, dst, value, bytes) : STATUS_OK;
}

/* ---- fences ---- */

status vt_fence_create(vt_device *d, vt_fence *out) {
    vt_fence f = {NULL};
    if (d->backend->vtable.fence_create) TRY(d->backend->vtable.fence_create(d->dev, &f));
    *out = f;
    return STATUS_OK;
}

void vt_fence_destroy(vt_device *d, vt_fence f) {
    if (d->backend->vtable.fence_destroy) d->backend->vtable.fence_destroy(d->dev, f);
}

status vt_fence_record(vt_queue *q, vt_fence f) {
    const vt_backend *v = working(q);
    if (!v) return idle(q);
    return v->fence_record ? v->fence_record(q->dev, q->handle, f) : STATUS_OK;
}

status vt_fence_wait(vt_queue *q, vt_fence f) {
    const vt_backend *v = working(q);
    if (!v) return idle(q);
    return v->fence_wait ? v->fence_wait(q->dev, q->handle, f) : STATUS_OK;
}

status vt_fence_wait_host(vt_device *d, vt_fence f) {
    return d->backend->vtable.fence_wait ? d->backend->vtable.fence_wait(d->dev, NULL, f) : STATUS_OK;
}

bool vt_fence_done(vt_device *d, vt_fence f) { return d->backend->vtable.fence_done ? d->backend->vtable.fence_done(d->dev, f) : true; }

/* ---- capture ---- */

status vt_capture_begin(vt_queue *q) {
    const vt_backend *v = working(q);
    if (!v || !v->capture_begin || (q->caps & VT_CAP_BIT(VT_CAP_CAPTURE)) == 0) return STATUS_UNSUPPORTED;
    return v->capture_begin(q->dev, q->handle);
}

status vt_capture_end(vt_queue *q, void **graph) {
    const vt_backend *v = working(q);
    *graph = NULL;
    return v && v->capture_end ? v->capture_end(q->dev, q->handle, graph) : STATUS_UNSUPPORTED;
}

status vt_replay(vt_queue *q, void *graph) {
    const vt_backend *v = working(q);
    return v && v->replay ? v->replay(q->dev, q->handle, graph) : STATUS_UNSUPPORTED;
}

void vt_graph_destroy(vt_device *d, void *graph) {
    if (graph && d->backend->vtable.graph_destroy) d->backend->vtable.graph_destroy(d->dev, graph);
}

status vt_branch(vt_queue *q, vt_branch_step step) {
    const vt_backend *v = q->recorder ? NULL : working(q);
    return v && v->branch ? v->branch(q->dev, q->handle, step) : STATUS_OK;
}

status vt_read_pass(vt_queue *q, const void *p, size_t bytes) {
    const vt_backend *v = working(q);
    return v && v->read_pass ? v->read_pass(q->dev, q->handle, p, bytes) : STATUS_UNSUPPORTED;
}

uint64_t vt_device_graph_bytes(const vt_device *d) { return d->backend->vtable.graph_bytes ? d->backend->vtable.graph_bytes(d->dev) : 0; }
