/* SPDX-License-Identifier: Apache-2.0 */
/* From files, through a ring of two pieces. */
#include "moe/staged_upload.h"

enum { PIECES = 2 };

static staging_shape shape_of(uint64_t bytes) {
    const staging_shape one = staging_shape_of(bytes, 1);
    return (staging_shape){.piece = one.piece, .n = one.n > 0 ? PIECES : 0};
}

size_t staged_upload_bytes(uint64_t bytes) { return staging_ring_bytes(shape_of(bytes)); }

status staged_upload_begin(staged_upload *u, source *src, vt_queue *queue, uint64_t bytes, error *err) {
    *u = (staged_upload){.src = src, .queue = queue};
    return staging_ring_open(&u->ring, queue->owner, shape_of(bytes), "staging of the load", err);
}

/* One piece's worth. */
static status send(staged_upload *u, const tensor_info *t, uint64_t off, size_t n, void *dst, error *err) {
    void *piece;
    status rc = staging_ring_take(&u->ring, &piece);
    if (rc == STATUS_OK) TRY(source_read(u->src, t, off, n, piece, err));
    if (rc == STATUS_OK) rc = staging_ring_send(&u->ring, u->queue, dst, n);
    if (rc != STATUS_OK) return error_set(err, rc, "load: copying %s to the device failed", t->name);
    source_note_progress(u->src, n);
    return STATUS_OK;
}

status staged_upload_range(staged_upload *u, const tensor_info *t, uint64_t off, uint64_t n, void *dst, error *err) {
    for (uint64_t done = 0; done < n;) {
        const size_t most = u->ring.shape.piece, part = n - done < most ? (size_t)(n - done) : most;
        TRY(send(u, t, off + done, part, (uint8_t *)dst + done, err));
        done += part;
    }
    return STATUS_OK;
}

status staged_upload_end(staged_upload *u, error *err) {
    if (u->queue == NULL) return STATUS_OK;
    const status rc = vt_queue_sync(u->queue);
    staging_ring_close(&u->ring);
    *u = (staged_upload){0};
    return rc == STATUS_OK ? rc : error_set(err, rc, "load: a copy to the device failed");
}
