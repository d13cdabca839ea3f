/* SPDX-License-Identifier: Apache-2.0 */
/* --record-routing and --replay: between the router and the experts. */
#include "base/log.h"
#include "engine/engine.h"
#include "model/block_moe.h"

static void observe(void *ctx, int layer, const int32_t *ids, const float *weights, int32_t n_rows, int32_t k) {
    expert_trace_writer_add(((headrace_engine *)ctx)->trace, layer, ids, n_rows);
    engine_cost_routed(ctx, layer, ids, weights, n_rows, k);
}

static void force(void *ctx, int layer, int32_t *ids, int32_t n_rows, int32_t k) {
    (void)k;
    expert_replay_take(((headrace_engine *)ctx)->replay, layer, ids, n_rows);
}

status engine_routing_open(headrace_engine *e, const config *c, bool run, error *err) {
    const char *to = config_text(c, CONFIG_KEY_RECORD_ROUTING), *from = config_text(c, CONFIG_KEY_REPLAY);
    const hparams *h = &e->model->hp;
    if (!run && to != NULL) return error_set(err, STATUS_INVALID, "config: --record-routing: a plan runs nothing that could be recorded");
    if (!run || e->trace != NULL || e->replay != NULL || (to == NULL && from == NULL)) return STATUS_OK;
    if (!e->model->moe->any) return error_set(err, STATUS_INVALID, "config: --record-routing and --replay: %s has no experts", e->model->arch->name);
    if (from != NULL) TRY(expert_replay_create(e->m, from, (int32_t)h->n_layers, (int32_t)h->n_experts, (int32_t)h->n_experts_used, &e->replay, err));
    if (to == NULL) return STATUS_OK;
    if (from != NULL && os_same_file(to, from)) return error_set(err, STATUS_INVALID, "config: --record-routing %s: is the file of --replay", to);
    TRY(source_allow_writing(e->src, to, err));
    return expert_trace_writer_open(e->m, to, (int32_t)h->n_layers, (int32_t)h->n_experts, (int32_t)h->n_experts_used, &e->trace, err);
}

void engine_routing_options(headrace_engine *e, model_options *mo) {
    mo->observe_routing = e->trace != NULL ? observe : engine_cost_routed;
    mo->observe_only_read = e->trace == NULL; /* what experts cost is asked of those that are streamed */
    if (e->replay != NULL) mo->override_routing = force;
    mo->observe_ctx = e;
}

status engine_routing_flush(headrace_engine *e, error *err) {
    if (e->trace == NULL || expert_trace_writer_flush(e->trace, err) == STATUS_OK) return STATUS_OK;
    error_prefix(err, "--record-routing");
    return err->code;
}

void engine_routing_close(headrace_engine *e) {
    error err = {0};
    if (expert_trace_writer_close(e->trace, &err) != STATUS_OK) log_error("routing was not recorded: %s", err.text);
    expert_replay_destroy(e->replay);
    e->trace = NULL;
    e->replay = NULL;
}
