/* SPDX-License-Identifier: Apache-2.0 */
/* What steps cost in bytes of experts: the routing of each step teaches the estimate that the scheduler asks before the next. */
#include "engine/engine.h"
#include "model/block_moe.h"

static uint64_t step_cost(const void *ctx, int32_t n_rows) {
    const headrace_engine *e = ctx;
    return expert_cost_expected_bytes(e->expert_cost, n_rows, e->model->moe->store, e->experts_below);
}

status engine_cost_create(headrace_engine *e, error *err) {
    if (e->plan.experts.tier == PLAN_EXPERTS_NONE) return STATUS_OK;
    TRY(expert_cost_create(e->m, &e->model->moe->bank, &e->expert_cost, err));
    sched_set_cost(&e->sched, step_cost, e);
    return STATUS_OK;
}

void engine_cost_routed(void *engine, int layer, const int32_t *ids, const float *weights, int32_t n_rows, int32_t k) {
    const headrace_engine *e = engine;
    (void)weights;
    if (e->expert_cost != NULL) expert_cost_note(e->expert_cost, layer, ids, n_rows, k);
}

void engine_cost_stats(const headrace_engine *e, headrace_stats *out) {
    if (e->expert_cost == NULL) return;
    out->expert_bytes_needed = expert_cost_noted_bytes(e->expert_cost);
    out->expert_bytes_expected = e->sched.sum_bytes;
    out->step_expert_bytes_expected = e->sched.step_bytes;
}
