/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Reads byte ranges of the checkpoint while the engine goes on. A fill is the set of ranges of one expert; it completes when all of them are there or one failed. Fills are small
 * numbers that the caller hands out; completed ones come back in the order in which they completed.
 *
 *   submit(fill, ranges) ... -> next(wait) -> a completed fill -> outcome(fill)
 *
 * Three ways, same results, same errors:
 *   RING      io_uring past the page cache: `depth` pieces of a range are with the kernel, no thread of ours waits
 *   PREAD     threads that read past the page cache, piece by piece
 *   BUFFERED  threads that read whole ranges through the page cache and drop them from it, where the file system knows no other way
 * Lengths are exact: what comes short is asked for again, and the end of a file is an error. No single read exceeds a piece, so none meets the kernel's limit of 2 GiB.
 *
 * Bounded: as many ranges as were planned at create, no allocation afterwards. All functions belong to one thread (the engine's); the readers are the object's own.
 */
#ifndef HEADRACE_MOE_EXPERT_READER_H
#define HEADRACE_MOE_EXPERT_READER_H

#include "load/source.h"
#include "moe/expert_slot.h"

enum { EXPERT_READER_WHY_BYTES = 512, EXPERT_READER_MAX_DEPTH = 256, EXPERT_READER_PIECE_BYTES = 512 * 1024 };

typedef enum expert_read_way { EXPERT_READ_BUFFERED, EXPERT_READ_PREAD, EXPERT_READ_RING } expert_read_way;

typedef struct expert_reader_options {
    expert_read_way way;   /* PREAD and RING: ranges are those of padded slots */
    int32_t depth;         /* threads, or pieces with the kernel: 1 .. EXPERT_READER_MAX_DEPTH */
    int32_t n_fills, max_ranges; /* at once; of one fill */
    bool ahead;            /* it can read ahead too: RING starts threads for that, which read as PREAD does */
    void *memory;          /* NULL, or what ranges lie in: to be registered */
    size_t memory_bytes;
} expert_reader_options;

typedef struct expert_reader expert_reader;

/**
 * Where not all threads can be started, fewer go on (said in the log); none at all is STATUS_FAILED. STATUS_UNSUPPORTED: the file system or the kernel refuses this way; the text says what would
 * help.
 */
NODISCARD status expert_reader_create(mem *m, const source *src, const expert_reader_options *opt, expert_reader **out, error *err);
/** Drops what is queued, awaits what is being read, joins the threads. */
void expert_reader_destroy(expert_reader *r);
/** Bytes that create allocates at most, with the allocator's overhead, without the threads' stacks (MEM_PROCESS). */
size_t expert_reader_bytes(int32_t n_fills, int32_t max_ranges_per_fill);

/** n >= 1 ranges; `fill` is not under way. */
void expert_reader_submit(expert_reader *r, int32_t fill, const expert_range *ranges, int32_t n);
/** Whether it was made to, and has threads to do it. */
bool expert_reader_can_read_ahead(const expert_reader *r);
/** As submit, but read only while of what submit and want asked for nothing is queued and only the last few pieces are being read: a piece at a time on each thread, so that those never wait for more than that. */
void expert_reader_submit_ahead(expert_reader *r, int32_t fill, const expert_range *ranges, int32_t n);
/** A fill that is under way as one of submit from now on. */
void expert_reader_want(expert_reader *r, int32_t fill);
/** Drop the ranges of submit_ahead that no reader has begun. */
void expert_reader_drop_ahead(expert_reader *r);
/** A completed fill, or -1: nothing is under way, or without `wait` nothing has completed. Time spent waiting is added to *stall_ns. */
int32_t expert_reader_next(expert_reader *r, bool wait, uint64_t *stall_ns);
/** Hands over what can be handed over; whoever computes for long without next calls it now and then. */
void expert_reader_go_on(expert_reader *r);
/** How a fill ended that next has given: STATUS_CANCELLED when it was dropped. */
status expert_reader_outcome(const expert_reader *r, int32_t fill, error *err);
/** Drop the ranges that no reader has begun. Their fills complete all the same, as cancelled. */
void expert_reader_drop(expert_reader *r);
/** How it reads, and whether its memory is registered. */
expert_read_way expert_reader_way(const expert_reader *r);
bool expert_reader_registered(const expert_reader *r);
/** Nanoseconds in which reads were queued or under way. */
uint64_t expert_reader_busy_ns(expert_reader *r);

#endif
