/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The memory plan of an engine: what every class of memory will need at most, computed before the first large allocation, compared with what the machine has, and then set as
 * the allocator's limits. The load verdict is a pure function of these numbers, MemTotal and the cgroup limit; the live check looks at what is available now.
 */
#ifndef HEADRACE_ENGINE_PLAN_H
#define HEADRACE_ENGINE_PLAN_H

#include "base/os.h"
#include "model/model.h"
#include "moe/expert_store.h"

typedef enum plan_tier { PLAN_EXPERTS_NONE, PLAN_EXPERTS_RESIDENT, PLAN_EXPERTS_STREAM } plan_tier;
typedef enum plan_host { PLAN_HOST_AUTO, PLAN_HOST_MIN, PLAN_HOST_ALL, PLAN_HOST_BYTES } plan_host;
/** Where the memory that the device computes in comes from. */
typedef enum plan_pool {
    PLAN_POOL_HOST,   /* it computes in the host's */
    PLAN_POOL_SHARED, /* buffers of its own, out of one pool with the host */
    PLAN_POOL_OWN     /* memory of its own */
} plan_pool;

/** How streamed experts go from the host's slots to a device with memory of its own. */
typedef enum plan_pin {
    PLAN_PIN_NONE,  /* not at all */
    PLAN_PIN_SLOTS, /* straight: slots are pinned */
    PLAN_PIN_RING,  /* from slots that are not, through pinned staging */
    PLAN_PIN_DRIVER /* through whatever the driver has */
} plan_pin;

/** What the settings ask for. */
typedef struct plan_experts_request {
    plan_tier tier; /* NONE: whichever fits */
    plan_host host;
    uint64_t host_bytes;
    load_mode load;
    plan_host device; /* slots on a device that does not compute in host memory */
    uint64_t device_bytes;
} plan_experts_request;

/** Where experts are. */
typedef struct plan_experts {
    plan_tier tier;
    bool tier_chosen, size_chosen; /* by the plan, not by the settings */
    int64_t n_slots, min_slots, cycle_slots, all_slots; /* n_slots: STREAM only */
    size_t slot_bytes;
    uint64_t file_bytes; /* of all experts */
    int64_t device_slots; /* on a device that does not compute in host memory (RESIDENT: all of them); n_slots are the host's then. 0: there is none */
    bool device_size_chosen;
    plan_pin pin;
    bool pin_refused;            /* what the plan meant to pin, by the device: seen at the start alone */
    size_t staging_bytes;        /* of PLAN_PIN_RING: planned with all streams to a device, whatever is pinned */
    uint64_t pinned_limit_bytes; /* plan_pinned_limit */
    uint64_t exchanged_bytes;    /* that are pinned before either: what else is staging */
} plan_experts;

typedef struct engine_plan {
    /* settings, resolved */
    int32_t n_ctx, max_seqs, max_rows, max_queue, max_live, page_tokens, max_pages_per_seq, max_head_rows, n_threads;
    vt_dtype kv_dtype;
    act_mode act;
    int32_t n_pages[STEP_MAX_GROUPS];
    int32_t n_snapshots, snapshot_blocks; /* of recurrent states: how many, and a sequence's every so many blocks */
    bool prefix_cache;
    /* bytes */
    size_t bytes[MEM_TAG_COUNT]; /* limit of each class */
    size_t mapped_bytes;         /* weights that stay in the file's page cache; not part of the total */
    size_t total_bytes;
    size_t kv_bytes_per_token;
    plan_experts experts;
    plan_pool pool;
    size_t device_bytes[MEM_TAG_COUNT]; /* the part of bytes[] that is the device's; 0 with PLAN_POOL_HOST */
    size_t device_total_bytes;          /* their sum */
} engine_plan;

/** What the verdict may look at. 0 = unknown. */
typedef struct plan_machine {
    uint64_t total_bytes;     /* min(MemTotal, cgroup limit, --mem) */
    bool total_is_set;        /* it is --mem */
    uint64_t available_bytes; /* min(MemAvailable, cgroup limit - used): the live check alone */
    plan_pool pool;
    uint64_t device_total_bytes;     /* probed once */
    uint64_t device_available_bytes; /* the live check alone */
    uint64_t device_budget_bytes;    /* --device-mem */
    bool pinned_given;               /* --pinned-mem */
    uint64_t pinned_bytes;
} plan_machine;

void plan_machine_read(plan_machine *out);
/** Whose the total is, in a refusal: "that %s". */
const char *plan_machine_total_text(const plan_machine *pm);
/**
 * From "mem_total=SIZE,unified=1,device_total=SIZE": where host and device share one pool it is counted once, at the smaller of its two figures; a device_total alone is a device with memory
 * of its own. What is available there is unknown.
 */
NODISCARD status plan_machine_pose(const char *text, plan_machine *out, error *err);

/** STATUS_DOES_NOT_FIT with the numbers and the smallest change that would fit. Never looks at available_bytes. */
NODISCARD status plan_verdict(const engine_plan *p, const plan_machine *pm, error *err);
/** STATUS_NOT_NOW when the plan exceeds what is available at present. Unknown passes. */
NODISCARD status plan_live_check(const engine_plan *p, const plan_machine *pm, error *err);
/**
 * Resident or streamed, and how many slots. `p`: the plan of everything else, dense weights read into memory. Of the machine the verdict takes the total alone; with `live` a size that the
 * settings leave open shrinks to what is available now, but not below one wave. STATUS_DOES_NOT_FIT carries the numbers and the smallest change that would fit.
 */
NODISCARD status plan_experts_choose(const expert_bank *bank, const plan_experts_request *r, const engine_plan *p, const plan_machine *pm, bool live, plan_experts *out, error *err);
/** With the sizes of the bank, and nothing chosen. */
plan_experts plan_experts_of(const expert_bank *bank, plan_tier tier);
/** The most slots of a stream store whose memory on the host, tables included, is at most `room`; 0: none. */
int64_t plan_host_slots_within(const expert_bank *bank, uint64_t room);
/** A number of slots as a flag takes it: in MiB where that holds as many, or else as many as a whole number of MiB below holds. */
void plan_typed_size(const expert_bank *bank, int64_t n_slots, char *text, size_t n);
/** A size as `flag` asked for it, in slots; *out untouched for AUTO. STATUS_DOES_NOT_FIT below the least. */
NODISCARD status plan_asked_slots(const plan_experts *x, plan_host size, uint64_t bytes, const char *flag, int64_t *out, error *err);
/** What the device may hold: the budget, or else the total; 0: unknown, which admits nothing. */
uint64_t plan_device_limit(const plan_machine *pm);
/** The most host memory that may be pinned: as given, or half of the total; UINT64_MAX where that is unknown. */
uint64_t plan_pinned_limit(const plan_machine *pm);
/** plan_experts_choose for a device that does not compute in host memory; `p` has its part of everything else. */
NODISCARD status plan_experts_choose_device(const expert_bank *bank, const plan_experts_request *r, const engine_plan *p, const plan_machine *pm, bool live, plan_experts *out, error *err);

/** A run-time admission to the device, from live figures; 0 = unknown. */
typedef struct plan_admission {
    plan_pool pool;
    uint64_t need_bytes;           /* about to be allocated on the device */
    uint64_t device_free_bytes, host_available_bytes;
    uint64_t host_unused_bytes;    /* that host caches were promised and have not touched: on a shared pool they are still among what is free */
    uint64_t budget_bytes;         /* --device-mem */
} plan_admission;
/** STATUS_NOT_NOW with the numbers. Unknown admits nothing without a budget. */
NODISCARD status plan_admit(const plan_admission *a, const char *what, error *err);

/** One line: the tier, its size, and why. */
void plan_experts_print(const plan_experts *x, textbuf *out);

/** One line on how copies go to the device; nothing where there are none. */
void plan_pin_print(const plan_experts *x, textbuf *out);

/** A table: class, planned, and in use and peak when m is not NULL. */
void plan_print(const engine_plan *p, const mem *m, textbuf *out);

#endif
