/* SPDX-License-Identifier: Apache-2.0 */
/* Two halves of host memory, read into and copied from in turn. */
#include "moe/staged_upload.h"

enum { HALF_BYTES = 4 << 20 };

static size_t half_of(uint64_t bytes) { return bytes < HALF_BYTES ? (size_t)bytes : HALF_BYTES; }

size_t staged_upload_bytes(uint64_t bytes) { return 2 * half_of(bytes); }

status staged_upload_begin(staged_upload *u, source *src, vt_queue *queue, uint64_t bytes, error *err) {
    *u = (staged_upload){.src = src, .device = queue->owner, .queue = queue, .half = half_of(bytes)};
    TRY(vt_buffer_alloc_host(u->device, MEM_STAGING, staged_upload_bytes(bytes), "staging of the load", &u->host, err));
    for (; u->n_fences < 2; u->n_fences++) {
        const status rc = vt_fence_create(u->device, &u->sent[u->n_fences]);
        if (rc != STATUS_OK) return error_set(err, rc, "load: the device gives no fence");
    }
    return STATUS_OK;
}

/* One half's worth. */
static status send(staged_upload *u, const tensor_info *t, uint64_t off, size_t n, void *dst, error *err) {
    const int h = u->at;
    uint8_t *half = (uint8_t *)u->host.data + (size_t)h * u->half;
    status rc = u->busy[h] ? vt_fence_wait_host(u->device, u->sent[h]) : STATUS_OK;
    u->busy[h] = false;
    if (rc == STATUS_OK) TRY(source_read(u->src, t, off, n, half, err));
    if (rc == STATUS_OK) rc = vt_copy(u->queue, dst, half, n);
    if (rc == STATUS_OK) rc = vt_fence_record(u->queue, u->sent[h]);
    if (rc != STATUS_OK) return error_set(err, rc, "load: copying %s to the device failed", t->name);
    u->busy[h] = true;
    u->at = 1 - h;
    source_note_progress(u->src, n);
    return STATUS_OK;
}

status staged_upload_range(staged_upload *u, const tensor_info *t, uint64_t off, uint64_t n, void *dst, error *err) {
    for (uint64_t done = 0; done < n;) {
        const size_t part = n - done < u->half ? (size_t)(n - done) : u->half;
        TRY(send(u, t, off + done, part, (uint8_t *)dst + done, err));
        done += part;
    }
    return STATUS_OK;
}

status staged_upload_end(staged_upload *u, error *err) {
    if (u->device == NULL) return STATUS_OK;
    const status rc = vt_queue_sync(u->queue);
    for (int i = 0; i < u->n_fences; i++) vt_fence_destroy(u->device, u->sent[i]);
    vt_buffer_free(&u->host);
    *u = (staged_upload){0};
    return rc == STATUS_OK ? rc : error_set(err, rc, "load: a copy to the device failed");
}
