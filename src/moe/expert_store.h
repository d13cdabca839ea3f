/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The expert store: a layer asks for the experts of a step and gets leases. Which tier they are in is the store's business; a resident expert and one in a slot have the same parts
 * in the same layout and run the same kernels, so the bits are the same.
 *
 *   enter(layer) -> a step has come to this layer
 *   waves(layer, ids) -> how the set is cut so that each wave fits (a rolling store cuts nothing)
 *   begin(layer, ids of one wave) -> n leases are under way
 *   hint(layer, ids) -> after the last begin of a layer: what a layer to come is likely to take, to be read while nothing else is
 *   next_ready() -> one lease whose parts may be read (in any order of arrival), or the failure of one expert
 *   release(lease, fence) -> the slot may be reused once `fence` (the last queued consumer) has completed
 *
 * Invariants:
 *   1. a leased slot, and one being filled, is never evicted; its generation does not change while the lease is held
 *   2. every part of an expert moves together; a slot is valid only when all parts arrived in full length
 *   3. a failed fill leaves the slot empty and fails that expert alone, with file, offset, expected and got
 *   4. eviction comes before the capacity test; the budget is read at each decision
 *   5. after warm-up nothing is allocated, freed or drained
 *   6. keys are (layer, expert), never addresses; a store belongs to one model
 *   7. what is read ahead takes a slot that is free or worth less (expert_policy_place_ahead), never delays a read that is wanted by more than the pieces under way, is given out only
 *      when it is complete, and fails nobody: whoever wants it then has it read again
 * Owned by the engine's thread; reads may run on threads of its own. Destroy requires that no lease is outstanding (STATUS_BUG otherwise).
 */
#ifndef HEADRACE_MOE_EXPERT_STORE_H
#define HEADRACE_MOE_EXPERT_STORE_H

#include "moe/expert_ahead.h"
#include "moe/expert_bank.h"
#include "moe/expert_miss.h"
#include "moe/staging_ring.h"

typedef struct expert_store expert_store;

typedef struct expert_lease {
    int32_t layer, expert;
    int32_t slot;                               /* -1: resident */
    uint64_t generation;                        /* of the slot at acquire */
    const void *part[EXPERT_MAX_PARTS];         /* device addresses, in the order of the layer's parts */
    vt_fence ready;                             /* what a queue has to wait for before it reads the parts; handle NULL: nothing */
    vt_fence early;                             /* handle NULL: none; else what to wait for before reading any but the layer's late_parts, which arrive last */
    bool on_host;                               /* of a device store: not on the device; the parts are host memory, for the processor to compute with, and the lease goes back when it has */
} expert_lease;

typedef struct expert_counters {
    uint64_t hits, misses, evictions, bytes_read, reads, failed;
    uint64_t distinct; /* different experts asked for, ever */
    uint64_t waves;
    uint64_t prefetch_used, prefetch_wasted; /* bytes read ahead that were then taken, or given up without */
    uint64_t n_prefetched, n_prefetch_used, n_prefetch_wasted; /* experts */
    uint64_t stall_ns; /* of the engine's thread, waiting for reads */
    uint64_t n_slots, slot_bytes, bytes_resident;
    uint64_t bytes_untouched;  /* of slots in host memory, that the machine still counts as free: never used, and neither pinned nor registered */
    uint64_t compute_ns;       /* of the engine's thread, in waves and not waiting */
    uint64_t disk_ns;          /* while reads were under way */
    uint64_t disk_bytes_per_s; /* what the disk can give, as measured when the store was made; 0: not measured */
    int32_t read_way, read_depth; /* expert_read_way */
    uint64_t bytes_staged;     /* of a device store: copied through the staging ring */
    uint64_t n_on_host, bytes_on_host; /* of a device store: misses that the processor computed, and their bytes, which nobody waited for */
    uint64_t n_behind;                 /* ... and how many of these were copied to the device afterwards */
} expert_counters;

/** The interface that stores implement; first member of each. */
struct expert_store {
    const char *name; /* "resident", "stream", "device" */
    const expert_bank *bank;
    /* Cuts ids (ascending, distinct) into waves: writes the size of each into sizes[] (room for n), returns the number of waves. */
    int32_t (*waves)(expert_store *s, int32_t layer, const int32_t *ids, int32_t n, int32_t *sizes);
    status (*begin)(expert_store *s, int32_t layer, const int32_t *ids, int32_t n, error *err);
    /*
     * One expert of the wave begun. STATUS_NOT_FOUND when all were given. STATUS_IO with lease->expert >= 0: this expert could not be read; there is nothing to release, and the others follow. Any
     * other failure is not of one expert, and the wave has to be cancelled.
     */
    status (*next_ready)(expert_store *s, expert_lease *lease, error *err);
    void (*release)(expert_store *s, const expert_lease *lease, vt_fence last_use);
    /* These experts, the likeliest first, may be wanted when the turn of that layer comes; idle link time only. NULL: ignored. */
    void (*hint)(expert_store *s, int32_t layer, const int32_t *ids, int32_t n);
    /* Give up what is left of the wave begun (after a failure of the step, wherever it was); pending reads are awaited or dropped, copies under way are not trusted, no lease stays. */
    void (*cancel)(expert_store *s);
    void (*counters)(expert_store *s, expert_counters *out);
    status (*close)(expert_store *s); /* frees; STATUS_BUG when leases are outstanding */
    /* Whether the expert could be given out without a read; no use of it. NULL: all could. */
    bool (*holds)(const expert_store *s, int32_t layer, int32_t expert);
    /* Once for each layer of a step, before its waves; one that is not after the last begins a step, with which policies age. NULL: nothing ages. */
    void (*enter)(expert_store *s, int32_t layer);
    /* Whether a hint about the layer is worth making, when n_asked (row, expert) pairs will choose among its experts: asked once in each step. NULL: never. */
    bool (*wants_hint)(expert_store *s, int32_t layer, int64_t n_asked);
    /* Of experts that stay where they are: device memory that holds the addresses of the layer's parts, int64 [part][expert]. NULL, or NULL returned: they are leased. */
    const void *(*tables)(const expert_store *s, int32_t layer);
    /* Before the waves of a layer: how many rows of the step each of its experts has. Borrowed until the layer's last wave is over. NULL: nobody wants to know. */
    void (*rows)(expert_store *s, const int32_t *n_rows);
};

/** All experts in place: views over the source's bytes (host-addressable devices), or copied to device memory once (charged to MEM_EXPERTS). */
NODISCARD status expert_store_resident_create(mem *m, const expert_bank *bank, vt_queue *queue, expert_store **out, error *err);
/** Copies (MEM_EXPERTS) of the resident store: every expert and the tables of their addresses, or on a host-addressable device those that the file has at odd addresses. */
size_t expert_store_resident_copy_bytes(const expert_bank *bank, bool host_addressable);
/** Tables (MEM_MODEL) of the resident store. */
size_t expert_store_resident_table_bytes(const expert_bank *bank);

typedef struct expert_stream_options {
    size_t budget_bytes; /* of slots; must hold one wave: max_top_k slots of the largest layer (STATUS_DOES_NOT_FIT names the number) */
    size_t (*budget)(void *ctx); /* NULL, or read at each decision: may shrink and grow below budget_bytes. Below one wave experts come one after the other; below one slot they fail */
    void *budget_ctx;
    int32_t n_readers;   /* threads that read, or reads with the kernel; 0: as found best */
    int32_t read_way;    /* 0: as found best, else expert_read_way + 1 */
    int32_t policy;      /* 0: by size, else expert_policy_kind + 1 */
    vt_device *consumer; /* NULL, or whose fences release() brings: awaited there */
    /* Leases go back one by one, each before the next expert is asked for, or soon: a set larger than the slots is one wave, whose reads follow as slots come back, so that the disk has
     * something to do until the last of them. Whoever holds all slots and asks on gets STATUS_DOES_NOT_FIT. */
    bool rolling;
    int32_t ahead; /* expert_ahead_mode */
    vt_device *copied_to; /* NULL, or a device that slots are copied to: they are host memory of its kind (vt_buffer_alloc_host) */
} expert_stream_options;
/**
 * Experts stay on disk; a bounded number of slots in host memory (MEM_EXPERTS, one allocation), filled by reading, never through a mapping. All reads of a wave are in flight while experts
 * that are there are given out. A budget below one step's cycle (top_k of every layer) is said in the log.
 */
NODISCARD status expert_store_stream_create(mem *m, const expert_bank *bank, const expert_stream_options *opt, expert_store **out, error *err);
/** The memory of its slots, for measuring before the first is asked for. */
void *expert_store_stream_memory(const expert_store *s, size_t *bytes);
/** Whether its slots are the pinned memory of the device that they are copied to. */
bool expert_store_stream_pinned(const expert_store *s);
/** Slots for one wave, for one step of one row, and for everything; bytes of a slot. */
int64_t expert_stream_min_slots(const expert_bank *bank);
int64_t expert_stream_cycle_slots(const expert_bank *bank);
int64_t expert_stream_all_slots(const expert_bank *bank);
/** The policy (an expert_policy_kind) that a store of n_slots has by itself. */
int32_t expert_stream_policy(const expert_bank *bank, int64_t n_slots);
/** What a store of n_slots allocates: slots (MEM_EXPERTS) and tables (MEM_MODEL), with the allocator's overhead. SIZE_MAX: too many. */
size_t expert_store_stream_slot_bytes(const expert_bank *bank, int64_t n_slots);
size_t expert_store_stream_table_bytes(const expert_bank *bank, int64_t n_slots);

enum { EXPERT_MOST_BEHIND = 4, /* copies behind, or ahead, at a time */
       EXPERT_STAGED = 4 /* experts on their way through a staging ring */ };
typedef struct expert_device_options {
    size_t budget_bytes;     /* of device slots */
    expert_miss_mode miss;
    expert_miss_costs costs; /* EXPERT_MISS_AUTO */
    expert_ahead_mode ahead; /* EXPERT_AHEAD_ON: hinted experts that the lower store holds are copied while the link has nothing to do */
    staging_ring *staging;   /* NULL: copies read the lower store's slots. Else they go through it, and a lower lease goes back as soon as its bytes are there. Outlives the store */
    pool *threads;           /* that fill it; NULL: the caller alone */
} expert_device_options;
/**
 * Slots in device memory over the vtable (alloc once, copy, fence), filled from a lower store (owned by the caller). A miss that the processor is to compute (expert_miss.h) is given out as a
 * lease of the lower store (on_host); once that has come back the expert is copied behind, if the copy queue has nothing that is wanted, and the policy a slot that is worth less.
 */
NODISCARD status expert_store_device_create(mem *m, const expert_bank *bank, vt_device *device, vt_queue *copy_queue, expert_store *below, const expert_device_options *opt,
                                            expert_store **out, error *err);

/** The ring for copies of this model's experts. */
staging_shape expert_store_device_staging(const expert_bank *bank);
/** Tables (MEM_MODEL) of a device store of n_slots. SIZE_MAX: too many. */
size_t expert_store_device_table_bytes(const expert_bank *bank, int64_t n_slots);

#endif
