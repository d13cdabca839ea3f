/* SPDX-License-Identifier: Apache-2.0 */
/**
 * From files to device memory through a staging ring of two pieces: one is read into while the other is copied from. Nothing of a checkpoint stays on the host.
 *
 *   begin -> range, range, ... -> end
 *
 * Owned by one thread. A failed range leaves the object to be ended.
 */
#ifndef HEADRACE_MOE_STAGED_UPLOAD_H
#define HEADRACE_MOE_STAGED_UPLOAD_H

#include "load/source.h"
#include "moe/staging_ring.h"

typedef struct staged_upload {
    source *src;
    vt_queue *queue; /* NULL: not begun */
    staging_ring ring;
} staged_upload;

/** What begin allocates for `bytes` to be uploaded in all: a few megabytes at most. */
size_t staged_upload_bytes(uint64_t bytes);
/** *u can be ended whatever comes of it. */
NODISCARD status staged_upload_begin(staged_upload *u, source *src, vt_queue *queue, uint64_t bytes, error *err);
/** Bytes [off, off + n) of a tensor to device address dst. The copies are on the queue, in order. */
NODISCARD status staged_upload_range(staged_upload *u, const tensor_info *t, uint64_t off, uint64_t n, void *dst, error *err);
/** Waits for the copies, and frees. The status says whether all of them arrived. */
NODISCARD status staged_upload_end(staged_upload *u, error *err);

#endif
