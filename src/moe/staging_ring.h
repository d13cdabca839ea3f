/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A small ring of pinned host memory that bytes go through on their way to a device, where what they come from is not pinned: one piece is
 * filled while those before it are copied. A piece is free again when the fence behind its copy is done; nobody waits for any other copy.
 * What bytes came from is the caller's again as soon as they are in the ring.
 *
 *   open -> take, fill, send, take, ... -> close          or gather, which does all three
 *
 * Nothing is allocated after open. Owned by one thread. A wait that fails tells of a copy that was sent before, whosever it was; after a
 * send that fails the queue is to be waited for.
 */
#ifndef HEADRACE_MOE_STAGING_RING_H
#define HEADRACE_MOE_STAGING_RING_H

#include "vt/vt.h"

enum { STAGING_MOST_PIECES = 8, STAGING_MOST_BYTES = 4 << 20 /* of a piece */ };

typedef struct staging_shape {
    size_t piece;
    int n; /* pieces */
} staging_shape;

typedef struct staging_ring {
    vt_device *device; /* NULL: not open */
    vt_buffer host;    /* MEM_STAGING */
    staging_shape shape;
    vt_fence sent[STAGING_MOST_PIECES]; /* behind the newest copy out of a piece */
    bool busy[STAGING_MOST_PIECES];     /* that fence has not been seen done */
    int n_fences, at;                   /* at: the piece that is taken next */
} staging_ring;

/** Bytes that lie somewhere on the host and belong at `off` of a stretch of device memory. */
typedef struct staging_span {
    size_t off, n_bytes;
    const void *from;
} staging_span;

/** For units of so many bytes of which in_flight may be under way at a time. */
staging_shape staging_shape_of(uint64_t unit_bytes, int in_flight);
/** What open allocates. */
size_t staging_ring_bytes(staging_shape s);
/** *r can be closed whatever comes of it. Memory that the device does not pin is taken all the same: ask staging_ring_pinned. */
NODISCARD status staging_ring_open(staging_ring *r, vt_device *d, staging_shape s, const char *what, error *err);
bool staging_ring_pinned(const staging_ring *r);
/** The next piece, free to be written: waits for its own copy, if that is under way. */
NODISCARD status staging_ring_take(staging_ring *r, void **piece);
/** Queues the copy of the first n bytes of the piece that was taken. */
NODISCARD status staging_ring_send(staging_ring *r, vt_queue *q, void *dst, size_t n);
/** n_bytes to dst, as the spans say, piece by piece, each filled by all threads (NULL: the caller's alone). Bytes between spans are
 * anything. *waited: the failure was that of a wait. */
NODISCARD status staging_ring_gather(staging_ring *r, vt_queue *q, pool *threads, void *dst, size_t n_bytes, const staging_span *spans,
                                     int n_spans, bool *waited);
/** Waits for nothing: the queues have been waited for. */
void staging_ring_close(staging_ring *r);

#endif
