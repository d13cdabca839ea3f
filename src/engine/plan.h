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

/** What the settings ask for. */
typedef struct plan_experts_request {
    plan_tier tier; /* NONE: whichever fits */
    plan_host host;
    uint64_t host_bytes;
    load_mode load;
} plan_experts_request;

/** Where experts are. */
typedef struct plan_experts {
    plan_tier tier;
    bool tier_chosen, size_chosen; /* by the plan, not by the settings */
    int64_t n_slots, min_slots, cycle_slots, all_slots; /* n_slots: STREAM only */
    size_t slot_bytes;
    uint64_t file_bytes; /* of all experts */
} plan_experts;

typedef struct engine_plan {
    /* settings, resolved */
    int32_t n_ctx, max_seqs, max_rows, max_queue, max_live, page_tokens, max_pages_per_seq, max_head_rows, n_threads;
    vt_dtype kv_dtype;
    act_mode act;
    int32_t n_pages[STEP_MAX_GROUPS];
    bool prefix_cache;
    /* bytes */
    size_t bytes[MEM_TAG_COUNT]; /* limit of each class */
    size_t mapped_bytes;         /* weights that stay in the file's page cache; not part of the total */
    size_t total_bytes;
    size_t kv_bytes_per_token;
    plan_experts experts;
} engine_plan;

/** What the verdict may look at. 0 = unknown. */
typedef struct plan_machine {
    uint64_t total_bytes;     /* min(MemTotal, cgroup limit) */
    uint64_t available_bytes; /* min(MemAvailable, cgroup limit - used): the live check alone */
} plan_machine;

void plan_machine_read(plan_machine *out);
/** From "mem_total=SIZE,unified=1,device_total=SIZE": where host and device share one pool it is counted once, at the smaller of its two figures. What is available there is unknown. */
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
/** One line: the tier, its size, and why. */
void plan_experts_print(const plan_experts *x, textbuf *out);

/** A table: class, planned, and in use and peak when m is not NULL. */
void plan_print(const engine_plan *p, const mem *m, textbuf *out);

#endif
