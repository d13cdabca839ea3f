/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine does about experts: settings, the store, figures. The choice itself is plan_experts.c. */
#include <string.h>

#include "base/log.h"
#include "engine/engine.h"
#include "model/block_moe.h"

static load_mode load_setting(const config *c) {
    const char *text = config_text(c, CONFIG_KEY_LOAD);
    return strcmp(text, "map") == 0 ? LOAD_MAP : strcmp(text, "read") == 0 ? LOAD_READ : LOAD_AUTO;
}

static status read_request(const config *c, plan_experts_request *r, error *err) {
    const char *tier = config_text(c, CONFIG_KEY_EXPERTS), *host = config_text(c, CONFIG_KEY_HOST_EXPERTS);
    *r = (plan_experts_request){.load = load_setting(c)};
    if (strcmp(tier, "auto") != 0) r->tier = strcmp(tier, "stream") == 0 ? PLAN_EXPERTS_STREAM : PLAN_EXPERTS_RESIDENT;
    if (host == NULL) return STATUS_OK;
    if (strcmp(host, "min") == 0) {
        r->host = PLAN_HOST_MIN;
    } else if (strcmp(host, "all") == 0) {
        r->host = PLAN_HOST_ALL;
    } else if (config_parse_bytes(host, &r->host_bytes)) {
        r->host = PLAN_HOST_BYTES;
    } else {
        return error_set(err, STATUS_INVALID, "config: --host-experts \"%.40s\" is neither a size (512M, 2G) nor min nor all", host);
    }
    return STATUS_OK;
}

status engine_experts_plan(headrace_engine *e, const config *c, const plan_machine *pm, bool live, plan_experts *out, error *err) {
    plan_experts_request r;
    TRY(read_request(c, &r, err));
    *out = (plan_experts){0};
    if (!e->model->moe->any) {
        if (r.tier != PLAN_EXPERTS_NONE || r.host != PLAN_HOST_AUTO) return error_set(err, STATUS_INVALID, "config: --experts and --host-experts: %s has no experts", e->model->arch->name);
        return source_map(e->src, r.load, err);
    }
    TRY(plan_experts_choose(&e->model->moe->bank, &r, &e->plan, pm, live, out, err));
    if (out->tier == PLAN_EXPERTS_STREAM) {
        if ((vt_device_caps(e->device) & VT_CAP_BIT(VT_CAP_HOST_ADDRESSABLE)) == 0) {
            return error_set(err, STATUS_UNSUPPORTED, "plan: --experts stream to a device that cannot read host memory is not written yet (src/engine/engine_experts.c)");
        }
        return STATUS_OK;
    }
    return source_map(e->src, r.load, err);
}

/* What the store will allocate, into the plan. */
void engine_experts_count(headrace_engine *e) {
    engine_plan *p = &e->plan;
    const expert_bank *bank = &e->model->moe->bank;
    const plan_experts *x = &p->experts;
    const bool host = (vt_device_caps(e->device) & VT_CAP_BIT(VT_CAP_HOST_ADDRESSABLE)) != 0;
    p->bytes[MEM_EXPERTS] = 0;
    p->bytes[MEM_ENGINE] += model_moe_scratch_bytes(e->model);
    if (x->tier == PLAN_EXPERTS_STREAM) {
        p->bytes[MEM_EXPERTS] = expert_store_stream_slot_bytes(bank, x->n_slots);
        p->bytes[MEM_MODEL] += expert_store_stream_table_bytes(bank, x->n_slots);
    } else if (x->tier == PLAN_EXPERTS_RESIDENT) {
        p->bytes[MEM_MODEL] += expert_store_resident_table_bytes(bank);
        p->bytes[MEM_EXPERTS] = expert_store_resident_copy_bytes(bank, host);
        if (p->bytes[MEM_EXPERTS] > 0) p->bytes[MEM_EXPERTS] += MEM_HEADER_BYTES + 256;
        if (!host) {
            /* all of them are copies */
        } else if (source_is_mapped(e->src)) {
            p->mapped_bytes += (size_t)bank->total_bytes;
        } else {
            p->bytes[MEM_WEIGHTS] += (size_t)bank->total_bytes;
        }
    }
}

status engine_experts_attach(headrace_engine *e, error *err) {
    const plan_experts *x = &e->plan.experts;
    const expert_bank *bank = &e->model->moe->bank;
    expert_store *store;
    if (x->tier == PLAN_EXPERTS_NONE) return STATUS_OK;
    if (x->tier == PLAN_EXPERTS_STREAM) {
        const expert_stream_options opt = {.budget_bytes = (size_t)x->n_slots * x->slot_bytes};
        TRY(expert_store_stream_create(e->m, bank, &opt, &store, err));
    } else {
        TRY(expert_store_resident_create(e->m, bank, e->queue, &store, err));
    }
    model_moe_attach(e->model, store);
    textbuf line;
    textbuf_init(&line, e->m, MEM_PROCESS);
    plan_experts_print(x, &line);
    if (!line.failed && x->tier_chosen && x->tier == PLAN_EXPERTS_STREAM) log_info("%.*s", (int)line.len - 1, textbuf_text(&line));
    textbuf_deinit(&line);
    return STATUS_OK;
}

void engine_experts_stats(const headrace_engine *e, headrace_stats *out) {
    expert_store *store = e->model->moe->store;
    if (store == NULL) return;
    expert_counters c;
    store->counters(store, &c);
    out->experts_tier = e->plan.experts.tier == PLAN_EXPERTS_STREAM ? HEADRACE_EXPERTS_STREAM : HEADRACE_EXPERTS_RESIDENT;
    out->expert_hits = c.hits;
    out->expert_misses = c.misses;
    out->expert_evictions = c.evictions;
    out->expert_bytes_read = c.bytes_read;
    out->expert_reads = c.reads;
    out->expert_failures = c.failed;
    out->experts_distinct = c.distinct;
    out->expert_stall_ns = c.stall_ns;
    out->expert_slots = c.n_slots;
    out->expert_slot_bytes = c.slot_bytes;
    out->experts_total = (uint64_t)e->plan.experts.all_slots;
}
