/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Devices that pose as GPUs: the processor's kernels over memory that the host cannot touch, for tests of everything above the tensor runtime. A program that links
 * this library finds the devices that posed_add made in every runtime it creates (vt_runtime_create is wrapped at the link; no other backend library is looked for).
 *
 *   memory     a device address is in a range without access: who reads or writes it on the host dies. Kernels and copies go through a second view of it. Every tensor of a kernel
 *              must lie in one live allocation, every copy too, or the call fails. Fresh memory holds NaN
 *   time       queues keep their commands until somebody waits (POSED_LATE), run them at once (POSED_SOON), or some of them now and then (POSED_MIXED); fences complete in that order
 *   capture    a queue that captures keeps kernels, copies and fills with their addresses and shapes as they are, and runs none of them; a replay queues them again. Waits, fences and copies
 *              from ordinary host memory are errors there
 *   rows       those of the processor, one per op and signature, or of these those alone that the real backend for the type lists; an op, or one signature of it, can be removed
 *   branches   what is queued in one waits for the join, so that whatever else is queued comes before it
 *   faults     the n-th kernel, allocation, upload, fence ... fails, once; a late one is only seen by whoever waits next
 *   counters   what was uploaded, allocated, run
 *
 * One thread. Settings hold for the devices opened and the calls made afterwards.
 */
#ifndef HEADRACE_TESTS_POSED_DEVICE_H
#define HEADRACE_TESTS_POSED_DEVICE_H

#include "vt/vt.h"

typedef enum posed_time { POSED_LATE, POSED_SOON, POSED_MIXED } posed_time;

/* X(field): what can be made to fail */
#define POSED_FAULTS(X)                                                                                                \
    X(kernel)       /* its launch is refused */                                                                        \
    X(late_kernel)  /* it is launched, writes nothing, and the next wait says so */                                    \
    X(alloc)        /* device memory */                                                                                \
    X(pinned)       /* host memory of the device */                                                                    \
    X(upload)       /* a copy from the host */                                                                         \
    X(late_upload)                                                                                                     \
    X(download)                                                                                                        \
    X(fence_create)                                                                                                    \
    X(fence_record)                                                                                                    \
    X(fence_wait)   /* of a queue or of the host */                                                                    \
    X(sync)                                                                                                            \
    X(queue)                                                                                                           \
    X(capture_begin)                                                                                                   \
    X(capture_end)                                                                                                     \
    X(replay)

typedef struct posed_gpu {
    vt_device_type type;
    uint64_t free_bytes, total_bytes; /* what memory_info says; 0: unknown */
    int64_t probes;                   /* after so many more answers free_bytes is free_then; -1: never */
    uint64_t free_then;
    uint64_t caps;
    posed_time time;
    uint64_t seed;                    /* POSED_MIXED */
    bool exact;                       /* what is free follows what is allocated, and what exceeds total_bytes is refused; free_then are bytes that somebody else has by then */
    uint64_t queue_bytes, graph_bytes, alloc_unit, others; /* alloc_unit 0: 1 */
    uint64_t most_pinned;             /* of one block of host memory: larger ones are not pinned; 0: all are */
    status refusal;                   /* of the queue that fails; 0: STATUS_FAILED */
    bool removed[VT_OP_COUNT];        /* ops without rows, from the next runtime on */
    vt_need removed_row;              /* and one signature of an op (dtype[0] VT_NONE: none) */
    bool listed;                      /* no rows but those that src/vt/NAME/kernel_rows.def lists, with the properties that they need */
    struct {
#define X(field) int64_t field;
        POSED_FAULTS(X)
#undef X
    } fail;                           /* -1: none; n: n more succeed, the next one fails, once */
    struct {
        uint64_t kernels, uploads, upload_bytes, downloads, device_copies, allocs, syncs, fences, faults, captures, replays, branches;
        int64_t live_allocs, live_fences, live_queues, live_pinned, live_graphs, open;
    } n;
    const char *wrong;                /* what somebody did that a device would not survive; NULL: nothing */
} posed_gpu;

enum { POSED_MAX = 2 };

/** A further device (POSED_MAX at most): POSED_MIXED, half a gigabyte of which half is free, copies beside kernels, capture, no faults. The name is that of the type. */
posed_gpu *posed_add(vt_device_type type);
/** Forget all devices. None may be open. */
void posed_reset(void);
/** No faults, counters at zero; live ones stay. */
void posed_clear(posed_gpu *g);

#endif
