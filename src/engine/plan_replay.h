/* SPDX-License-Identifier: Apache-2.0 */
/** What several budgets for streamed experts would do with a recorded routing: hits by policy, those of the best choice in hindsight,
 * bytes, and tokens a second. Pure but for the trace's file. */
#ifndef HEADRACE_ENGINE_PLAN_REPLAY_H
#define HEADRACE_ENGINE_PLAN_REPLAY_H

#include <jansson.h>

#include "engine/plan.h"

typedef struct plan_replay_request {
    const char *path;
    uint64_t disk_bytes_per_s, memory_bytes_per_s; /* 0: not given */
    double disk_latency_s;                         /* from asking for a layer's experts to when they flow */
    int64_t device_slots;                          /* of the plan; 0: none */
    uint64_t weight_bytes;                         /* that a step of one row reads, experts included */
} plan_replay_request;

/**
 * Seconds of a layer's n experts of expert_bytes each, n_missing of them read: its reads are asked for at once, when the router has chosen,
 * and flow after the latency; what is there is computed meanwhile, and each that arrives. So it takes the longer of the reads and the
 * products of all but one, and the product of that last one. NAN without a disk bandwidth.
 */
double plan_layer_seconds(const plan_replay_request *r, uint64_t expert_bytes, int32_t n, int32_t n_missing);

/** A table into text, the same as "replay" into json. n_slots: of the plan; 0: none. */
NODISCARD status plan_replay(mem *m, const expert_bank *bank, const plan_replay_request *r, int64_t n_slots, textbuf *text, json_t *json,
                             error *err);

#endif
