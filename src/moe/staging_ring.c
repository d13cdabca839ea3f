/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of one block of pinned memory, each with a fence. */
#include "moe/staging_ring.h"

#include <string.h>

enum { ALIGN = 256, GRAIN_BYTES = 128 << 10 };

staging_shape staging_shape_of(uint64_t unit_bytes, int in_flight) {
    const uint64_t most = STAGING_MOST_BYTES, piece = unit_bytes < most ? (unit_bytes + ALIGN - 1) / ALIGN * ALIGN : most;
    if (piece == 0) return (staging_shape){0};
    const uint64_t per_unit = unit_bytes / piece + (unit_bytes % piece > 0),
                   n = per_unit < STAGING_MOST_PIECES ? per_unit * (uint64_t)in_flight : STAGING_MOST_PIECES;
    return (staging_shape){.piece = (size_t)piece, .n = n < STAGING_MOST_PIECES ? (int)n : STAGING_MOST_PIECES};
}

size_t staging_ring_bytes(staging_shape s) { return (size_t)s.n * s.piece; }

status staging_ring_open(staging_ring *r, vt_device *d, staging_shape s, const char *what, error *err) {
    *r = (staging_ring){.device = d, .shape = s};
    TRY(vt_buffer_alloc_host(d, MEM_STAGING, staging_ring_bytes(s), what, &r->host, err));
    for (; r->n_fences < s.n; r->n_fences++) {
        const status rc = vt_fence_create(d, &r->sent[r->n_fences]);
        if (rc != STATUS_OK) return error_set(err, rc, "vt: the device gives no fence for %s", what);
    }
    return STATUS_OK;
}

bool staging_ring_pinned(const staging_ring *r) { return r->host.pinned; }

status staging_ring_take(staging_ring *r, void **piece) {
    const status rc = r->busy[r->at] ? vt_fence_wait_host(r->device, r->sent[r->at]) : STATUS_OK;
    r->busy[r->at] = false;
    *piece = (uint8_t *)r->host.data + (size_t)r->at * r->shape.piece;
    return rc;
}

status staging_ring_send(staging_ring *r, vt_queue *q, void *dst, size_t n) {
    TRY(vt_copy(q, dst, (const uint8_t *)r->host.data + (size_t)r->at * r->shape.piece, n));
    TRY(vt_fence_record(q, r->sent[r->at]));
    r->busy[r->at] = true;
    r->at = (r->at + 1) % r->shape.n;
    return STATUS_OK;
}

/* ---- filling ---- */

typedef struct fill {
    uint8_t *to;
    const uint8_t *from;
} fill;

static void fill_range(void *ctx, int64_t begin, int64_t end, int thread) {
    const fill *f = ctx;
    (void)thread;
    memcpy(f->to + begin, f->from + begin, (size_t)(end - begin));
}

/* What of the spans lies in [off, off + n) of the stretch. */
static void fill_piece(uint8_t *piece, size_t off, size_t n, pool *threads, const staging_span *spans, int n_spans) {
    for (int i = 0; i < n_spans; i++) {
        const staging_span *s = &spans[i];
        const size_t begin = s->off > off ? s->off : off, end = s->off + s->n_bytes < off + n ? s->off + s->n_bytes : off + n;
        if (begin >= end) continue;
        fill f = {.to = piece + (begin - off), .from = (const uint8_t *)s->from + (begin - s->off)};
        if (threads != NULL)
            pool_run(threads, (int64_t)(end - begin), GRAIN_BYTES, fill_range, &f);
        else
            fill_range(&f, 0, (int64_t)(end - begin), 0);
    }
}

status staging_ring_gather(staging_ring *r, vt_queue *q, pool *threads, void *dst, size_t n_bytes, const staging_span *spans, int n_spans,
                           bool *waited) {
    *waited = false;
    for (size_t off = 0; off < n_bytes;) {
        const size_t left = n_bytes - off, n = left < r->shape.piece ? left : r->shape.piece;
        void *piece;
        const status rc = staging_ring_take(r, &piece);
        *waited = rc != STATUS_OK;
        TRY(rc);
        fill_piece(piece, off, n, threads, spans, n_spans);
        TRY(staging_ring_send(r, q, (uint8_t *)dst + off, n));
        off += n;
    }
    return STATUS_OK;
}

void staging_ring_close(staging_ring *r) {
    for (int i = 0; i < r->n_fences; i++) vt_fence_destroy(r->device, r->sent[i]);
    vt_buffer_free(&r->host);
    *r = (staging_ring){0};
}
