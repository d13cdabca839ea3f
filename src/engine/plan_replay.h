/* SPDX-License-Identifier: Apache-2.0 */
/** What several budgets for streamed experts would do with a recorded routing: hits by policy, those of the best choice in hindsight, bytes, and tokens a second. Pure but for the trace's file. */
#ifndef HEADRACE_ENGINE_PLAN_REPLAY_H
#define HEADRACE_ENGINE_PLAN_REPLAY_H

#include <jansson.h>

#include "engine/plan.h"

typedef struct plan_replay_request {
    const char *path;
    uint64_t disk_bytes_per_s, memory_bytes_per_s; /* 0: not given */
    uint64_t weight_bytes;                         /* that a step of one row reads, experts included */
} plan_replay_request;

/**
 * Seconds of a step that reads miss_bytes: dense weights, then, since a layer's reads wait for its router, the longer of its reads and its products. NAN without a disk bandwidth.
 */
double plan_step_seconds(const plan_replay_request *r, double dense_bytes, double expert_bytes, double miss_bytes);

/** A table into text, the same as "replay" into json. n_slots: of the plan; 0: none. */
NODISCARD status plan_replay(mem *m, const expert_bank *bank, const plan_replay_request *r, int64_t n_slots, textbuf *text, json_t *json, error *err);

#endif
