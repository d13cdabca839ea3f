/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A few threads that read byte ranges of the checkpoint. A fill is the set of ranges of one expert; it completes when all of them are there or one failed. Fills are small numbers
 * that the caller hands out; completed ones come back in the order in which they completed.
 *
 *   submit(fill, ranges) ... -> next(wait) -> a completed fill -> outcome(fill)
 *
 * Bounded: as many ranges as were planned at create, no allocation afterwards. All functions belong to one thread (the engine's); the readers are the object's own.
 */
#ifndef HEADRACE_MOE_EXPERT_READER_H
#define HEADRACE_MOE_EXPERT_READER_H

#include "load/source.h"

enum { EXPERT_READER_WHY_BYTES = 512 };

typedef struct expert_range {
    uint32_t file;
    uint64_t off, n_bytes;
    void *dst;
} expert_range;

typedef struct expert_reader expert_reader;

/** n_threads >= 1. Where not all threads can be started, fewer go on (said in the log); none at all is STATUS_FAILED. */
NODISCARD status expert_reader_create(mem *m, const source *src, int32_t n_threads, int32_t n_fills, int32_t max_ranges_per_fill, expert_reader **out, error *err);
/** Drops what is queued, awaits what is being read, joins the threads. */
void expert_reader_destroy(expert_reader *r);
/** Bytes that create allocates, with the allocator's overhead, without the threads' stacks (MEM_PROCESS). */
size_t expert_reader_bytes(int32_t n_fills, int32_t max_ranges_per_fill);

/** n >= 1 ranges; `fill` is not under way. */
void expert_reader_submit(expert_reader *r, int32_t fill, const expert_range *ranges, int32_t n);
/** A completed fill, or -1: nothing is under way, or without `wait` nothing has completed. Time spent waiting is added to *stall_ns. */
int32_t expert_reader_next(expert_reader *r, bool wait, uint64_t *stall_ns);
/** How a fill ended that next has given: STATUS_CANCELLED when it was dropped. */
status expert_reader_outcome(const expert_reader *r, int32_t fill, error *err);
/** Fills that have been submitted and not been given by next. */
int32_t expert_reader_pending(const expert_reader *r);
/** Drop the ranges that no reader has begun. Their fills complete all the same, as cancelled. */
void expert_reader_drop(expert_reader *r);

#endif
