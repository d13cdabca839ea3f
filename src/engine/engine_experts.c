/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine does about experts: settings, the store, figures. The choice itself is plan_experts.c. */
#include <string.h>

#include "base/log.h"
#include "engine/engine.h"
#include "model/block_moe.h"
#include "moe/expert_ahead.h"
#include "moe/expert_pack.h"
#include "moe/expert_reader.h"

static load_mode load_setting(const config *c) {
    const char *text = config_text(c, CONFIG_KEY_LOAD);
    return strcmp(text, "map") == 0 ? LOAD_MAP : strcmp(text, "read") == 0 ? LOAD_READ : LOAD_AUTO;
}

/* A size as --host-experts and --device-experts spell it. */
static status read_size(const char *text, const char *flag, plan_host *kind, uint64_t *bytes, error *err) {
    if (text == NULL) return STATUS_OK;
    *kind = PLAN_HOST_BYTES;
    if (strcmp(text, "min") == 0)
        *kind = PLAN_HOST_MIN;
    else if (strcmp(text, "all") == 0)
        *kind = PLAN_HOST_ALL;
    else if (!config_parse_bytes(text, bytes))
        return error_set(err, STATUS_INVALID, "config: %s \"%.40s\" is neither a size (512M, 2G) nor min nor all", flag, text);
    return STATUS_OK;
}

static status read_request(const config *c, plan_experts_request *r, error *err) {
    const char *tier = config_text(c, CONFIG_KEY_EXPERTS);
    *r = (plan_experts_request){.load = load_setting(c)};
    if (strcmp(tier, "auto") != 0) r->tier = strcmp(tier, "stream") == 0 ? PLAN_EXPERTS_STREAM : PLAN_EXPERTS_RESIDENT;
    TRY(read_size(config_text(c, CONFIG_KEY_HOST_EXPERTS), "--host-experts", &r->host, &r->host_bytes, err));
    return read_size(config_text(c, CONFIG_KEY_DEVICE_EXPERTS), "--device-experts", &r->device, &r->device_bytes, err);
}

/* Files are mapped where kernels read them in place; what goes to a device is read once and kept nowhere. */
static status map_source(headrace_engine *e, load_mode load, error *err) { return e->plan.pool == PLAN_POOL_HOST ? source_map(e->src, load, err) : STATUS_OK; }

/* Settings that this kind of device cannot honour. */
static status check_request(const headrace_engine *e, const config *c, const plan_experts_request *r, error *err) {
    const bool experts = e->model->moe->any, host = e->plan.pool == PLAN_POOL_HOST;
    if (!experts && (r->tier != PLAN_EXPERTS_NONE || r->host != PLAN_HOST_AUTO || r->device != PLAN_HOST_AUTO)) {
        return error_set(err, STATUS_INVALID, "config: --experts, --host-experts and --device-experts: %s has no experts", e->model->arch->name);
    }
    if (!experts && config_bool(c, CONFIG_KEY_WARM_EXPERTS)) return error_set(err, STATUS_INVALID, "config: --warm-experts: %s has no experts", e->model->arch->name);
    if (!experts && e->expert_ahead == EXPERT_AHEAD_ON) return error_set(err, STATUS_INVALID, "config: --expert-prefetch: %s has no experts", e->model->arch->name);
    if (!experts && e->expert_read_way > 0) return error_set(err, STATUS_INVALID, "config: --expert-reader: %s has no experts", e->model->arch->name);
    if (host && r->device != PLAN_HOST_AUTO) return error_set(err, STATUS_INVALID, "config: --device-experts: %s computes in host memory; --host-experts says how much of that experts take", e->device_name);
    if (host && config_bytes(c, CONFIG_KEY_DEVICE_MEM) > 0) return error_set(err, STATUS_INVALID, "config: --device-mem: %s computes in host memory", e->device_name);
    if (host && config_text(c, CONFIG_KEY_PINNED_MEM) != NULL) return error_set(err, STATUS_INVALID, "config: --pinned-mem: %s computes in host memory", e->device_name);
    if (!host && r->load == LOAD_MAP) return error_set(err, STATUS_UNSUPPORTED, "config: --load map: %s computes in memory of its own, where nothing stays mapped", e->device_name);
    return STATUS_OK;
}

status engine_experts_use_bank(headrace_engine *e, const config *c, error *err) {
    if (config_text(c, CONFIG_KEY_EXPERT_BANK) == NULL) return STATUS_OK;
    if (!e->model->moe->any) return error_set(err, STATUS_INVALID, "config: --expert-bank: %s has no experts", e->model->arch->name);
    return expert_pack_use(&e->model->moe->bank, e->model->arena, e->m, err);
}

/* 0: as found best, else expert_read_way + 1. */
static int32_t read_way(const config *c) {
    const char *way = config_text(c, CONFIG_KEY_EXPERT_READER);
    return strcmp(way, "io_uring") == 0 ? EXPERT_READ_RING + 1 : strcmp(way, "pread") == 0 ? EXPERT_READ_PREAD + 1 : strcmp(way, "buffered") == 0 ? EXPERT_READ_BUFFERED + 1 : 0;
}

static int32_t ahead_mode(const config *c) {
    const char *how = config_text(c, CONFIG_KEY_EXPERT_PREFETCH);
    return strcmp(how, "on") == 0 ? EXPERT_AHEAD_ON : strcmp(how, "off") == 0 ? EXPERT_AHEAD_OFF : EXPERT_AHEAD_AUTO;
}

bool engine_experts_guess(const config *c) { return ahead_mode(c) != EXPERT_AHEAD_OFF; }

/* Settings of streaming, now that the tier is known: one that would do nothing is refused where the tier was asked for, and told where it was found. */
static status check_reader(const headrace_engine *e, const config *c, const plan_experts *x, error *err) {
    const expert_bank *bank = &e->model->moe->bank;
    const struct {
        bool given;
        const char *flag;
    } streaming[] = {{e->expert_read_way > 0, "--expert-reader"}, {e->expert_ahead == EXPERT_AHEAD_ON, "--expert-prefetch"}, {config_bool(c, CONFIG_KEY_WARM_EXPERTS), "--warm-experts"}};
    for (size_t i = 0; x->tier == PLAN_EXPERTS_RESIDENT && i < sizeof streaming / sizeof streaming[0]; i++) {
        if (!streaming[i].given) continue;
        if (!x->tier_chosen) return error_set(err, STATUS_INVALID, "config: %s is of streamed experts; --experts resident streams none", streaming[i].flag);
        log_warn("config: %s changes nothing: all experts fit in memory (--experts stream streams them)", streaming[i].flag);
    }
    if (x->tier == PLAN_EXPERTS_RESIDENT && bank->packed != NULL) log_warn("config: --expert-bank changes nothing: experts are resident, and read from the checkpoint");
    if (x->tier == PLAN_EXPERTS_STREAM && !bank->padded && e->expert_read_way > EXPERT_READ_BUFFERED + 1) {
        return error_set(err, STATUS_UNSUPPORTED, "config: --expert-reader %s: experts of %zu bytes are read buffered (below %d KiB; those of headrace pack are not)", config_text(c, CONFIG_KEY_EXPERT_READER), bank->max_slot_bytes,
                         EXPERT_DIRECT_LEAST / 1024);
    }
    return STATUS_OK;
}

status engine_experts_plan(headrace_engine *e, const config *c, const plan_machine *pm, bool live, plan_experts *out, error *err) {
    plan_experts_request r;
    e->expert_read_way = read_way(c);
    e->expert_ahead = ahead_mode(c);
    TRY(read_request(c, &r, err));
    *out = (plan_experts){0};
    TRY(check_request(e, c, &r, err));
    if (!e->model->moe->any) return map_source(e, r.load, err);
    const expert_bank *bank = &e->model->moe->bank;
    if (e->plan.pool != PLAN_POOL_HOST) {
        TRY(plan_experts_choose_device(bank, &r, &e->plan, pm, live, out, err));
        TRY(engine_miss_check(e, out, err));
        return check_reader(e, c, out, err);
    }
    TRY(plan_experts_choose(bank, &r, &e->plan, pm, live, out, err));
    TRY(check_reader(e, c, out, err));
    return out->tier == PLAN_EXPERTS_STREAM ? STATUS_OK : map_source(e, r.load, err);
}

static size_t buffer_bytes(size_t bytes) { return bytes > 0 ? bytes + MEM_HEADER_BYTES + MEM_ALIGN + 256 + sizeof(void *) : 0; } /* a device aligns within what it asks the host for */

/* What the stores will allocate, into the plan. */
void engine_experts_count(headrace_engine *e) {
    engine_plan *p = &e->plan;
    const expert_bank *bank = &e->model->moe->bank;
    const plan_experts *x = &p->experts;
    const bool host = p->pool == PLAN_POOL_HOST;
    p->bytes[MEM_EXPERTS] = 0;
    p->bytes[MEM_ENGINE] += model_moe_scratch_bytes(e->model);
    if (e->model->moe->any) p->bytes[MEM_MODEL] += expert_cost_table_bytes(bank); /* also before a tier is chosen: slots get what is left */
    if (e->model->moe->any && !host && x->tier != PLAN_EXPERTS_RESIDENT) p->bytes[MEM_STAGING] += staging_ring_bytes(expert_store_device_staging(bank));
    if (x->tier == PLAN_EXPERTS_STREAM) {
        p->bytes[MEM_EXPERTS] = expert_store_stream_slot_bytes(bank, x->n_slots);
        p->bytes[MEM_MODEL] += expert_store_stream_table_bytes(bank, x->n_slots);
        if (host) return;
        p->device_bytes[MEM_EXPERTS] = buffer_bytes((size_t)x->device_slots * x->slot_bytes);
        p->bytes[MEM_MODEL] += expert_store_device_table_bytes(bank, x->device_slots);
    } else if (x->tier == PLAN_EXPERTS_RESIDENT) {
        const size_t copies = buffer_bytes(expert_store_resident_copy_bytes(bank, host));
        p->bytes[MEM_MODEL] += expert_store_resident_table_bytes(bank);
        if (!host) {
            p->device_bytes[MEM_EXPERTS] = copies;
            return;
        }
        p->bytes[MEM_EXPERTS] = copies;
        if (source_is_mapped(e->src)) {
            p->mapped_bytes += (size_t)bank->total_bytes;
        } else {
            p->bytes[MEM_WEIGHTS] += (size_t)bank->total_bytes;
        }
    }
}

/* The device's slots are admitted when they are about to be allocated: the host's are promised by then, and hardly touched. */
static status admit_slots(const headrace_engine *e, expert_store *below, error *err) {
    expert_counters c;
    plan_machine now;
    plan_machine_read(&now);
    below->counters(below, &c);
    plan_admission a = {
        .pool = e->plan.pool,
        .need_bytes = e->plan.device_bytes[MEM_EXPERTS],
        .host_available_bytes = now.available_bytes,
        .host_unused_bytes = c.bytes_untouched,
        .budget_bytes = e->machine.device_budget_bytes,
    };
    uint64_t total;
    if (vt_device_memory_info(e->device, &a.device_free_bytes, &total) != STATUS_OK) a.device_free_bytes = 0;
    return plan_admit(&a, "slots for experts", err);
}

/* The ring that copies go through where the slots below are not pinned; none where that is not either. The plan learns what became of it. */
static status open_staging(headrace_engine *e, error *err) {
    plan_experts *x = &e->plan.experts;
    textbuf line;
    if (expert_store_stream_pinned(e->experts_below)) return STATUS_OK;
    x->pin_refused = x->pin == PLAN_PIN_SLOTS;
    if (x->pin != PLAN_PIN_DRIVER) {
        TRY(staging_ring_open(&e->staging, e->device, expert_store_device_staging(&e->model->moe->bank), "staging of experts", err));
        x->pin = PLAN_PIN_RING;
        if (!staging_ring_pinned(&e->staging)) {
            staging_ring_close(&e->staging);
            x->pin_refused = true;
            x->pin = PLAN_PIN_DRIVER;
        }
    }
    textbuf_init(&line, e->m, MEM_PROCESS);
    plan_pin_print(x, &line);
    if (!line.failed) log_write(x->pin_refused ? LOG_LEVEL_WARN : LOG_LEVEL_INFO, "experts: %.*s", (int)line.len - 1, textbuf_text(&line));
    textbuf_deinit(&line);
    return STATUS_OK;
}

/* Slots on the device over the store below, which stays the engine's. */
static status attach_device(headrace_engine *e, error *err) {
    const plan_experts *x = &e->plan.experts;
    expert_store *store;
    TRY(vt_queue_create(e->device, NULL, &e->copies, err));
    TRY(open_staging(e, err));
    TRY(engine_miss_measure(e, e->experts_below, err));
    const expert_device_options opt = {.budget_bytes = (size_t)x->device_slots * x->slot_bytes, .miss = e->miss, .costs = e->miss_costs, .ahead = (expert_ahead_mode)e->expert_ahead,
                                       .staging = e->staging.device != NULL ? &e->staging : NULL, .threads = e->threads};
    TRY(admit_slots(e, e->experts_below, err));
    TRY(expert_store_device_create(e->m, &e->model->moe->bank, e->device, e->copies, e->experts_below, &opt, &store, err));
    model_moe_attach(e->model, store);
    return STATUS_OK;
}

status engine_experts_attach(headrace_engine *e, error *err) {
    const plan_experts *x = &e->plan.experts;
    const expert_bank *bank = &e->model->moe->bank;
    expert_store *store;
    if (x->tier == PLAN_EXPERTS_NONE) return STATUS_OK;
    if (x->tier == PLAN_EXPERTS_STREAM) {
        const expert_stream_options opt = {
            .budget_bytes = (size_t)x->n_slots * x->slot_bytes,
            .read_way = e->expert_read_way,
            .rolling = e->plan.pool == PLAN_POOL_HOST && !model_moe_holds_leases(e->model),
            .ahead = e->expert_ahead,
            .copied_to = x->pin == PLAN_PIN_SLOTS ? e->device : NULL,
        };
        TRY(expert_store_stream_create(e->m, bank, &opt, &store, err));
    } else {
        TRY(expert_store_resident_create(e->m, bank, e->queue, &store, err));
    }
    if (x->tier == PLAN_EXPERTS_STREAM && e->plan.pool != PLAN_POOL_HOST) {
        e->experts_below = store;
        TRY(attach_device(e, err));
    } else {
        model_moe_attach(e->model, store);
    }
    textbuf line;
    textbuf_init(&line, e->m, MEM_PROCESS);
    plan_experts_print(x, &line);
    if (!line.failed && x->tier_chosen && x->tier == PLAN_EXPERTS_STREAM) log_info("%.*s", (int)line.len - 1, textbuf_text(&line));
    textbuf_deinit(&line);
    return STATUS_OK;
}

/* One wave of the host's store, and nothing is kept of it but the slots. */
static status warm_wave(expert_store *store, int32_t layer, const int32_t *ids, int32_t n, error *err) {
    TRY(store->begin(store, layer, ids, n, err));
    for (;;) {
        expert_lease lease;
        const status rc = store->next_ready(store, &lease, err);
        if (rc == STATUS_NOT_FOUND) return STATUS_OK;
        if (rc != STATUS_OK) {
            store->cancel(store);
            return rc;
        }
        store->release(store, &lease, (vt_fence){0});
    }
}

/* Every layer gets its share of the slots. */
status engine_experts_warm(headrace_engine *e, error *err) {
    model_moe *moe = e->model->moe;
    const plan_experts *x = &e->plan.experts;
    expert_store *store = e->experts_below != NULL ? e->experts_below : moe->store;
    if (x->tier != PLAN_EXPERTS_STREAM) return STATUS_OK;
    int64_t left = x->n_slots, all = x->all_slots;
    for (int32_t l = 0; l < moe->bank.n_layers; l++) {
        const int32_t n_experts = moe->bank.layers[l].n_experts;
        if (n_experts == 0) continue;
        const int64_t share = left * n_experts / all;
        const int32_t n = (int32_t)(share < n_experts ? share : n_experts);
        left -= n;
        all -= n_experts;
        for (int32_t i = 0; i < n; i++) moe->distinct[i] = i;
        if (store->enter != NULL) store->enter(store, l);
        const int32_t n_waves = n > 0 ? store->waves(store, l, moe->distinct, n, moe->wave) : 0;
        for (int32_t w = 0, at = 0; w < n_waves; at += moe->wave[w++]) TRY(warm_wave(store, l, moe->distinct + at, moe->wave[w], err));
    }
    return STATUS_OK;
}

void engine_experts_close(headrace_engine *e) {
    if (e->experts_below != NULL && e->experts_below->close(e->experts_below) != STATUS_OK) log_error("engine: experts were still leased when the engine was freed");
    vt_queue_destroy(e->copies);
    staging_ring_close(&e->staging);
    e->experts_below = NULL;
    e->copies = NULL;
}

void engine_experts_stats(const headrace_engine *e, headrace_stats *out) {
    expert_store *store = e->model->moe->store;
    if (store == NULL) return;
    expert_counters c;
    store->counters(store, &c);
    out->experts_distinct = c.distinct;
    out->expert_failures = c.failed; /* of two tiers the upper one counts what fails below it too */
    if (e->experts_below != NULL) { /* two tiers: the device's over the host's */
        out->device_expert_hits = c.hits;
        out->device_expert_misses = c.misses;
        out->device_expert_evictions = c.evictions;
        out->device_expert_bytes = c.bytes_read;
        out->device_expert_slots = c.n_slots;
        out->device_expert_bytes_staged = c.bytes_staged;
        out->device_staging_bytes = e->staging.host.bytes;
        out->device_experts_on_cpu = c.n_on_host;
        out->device_expert_bytes_on_cpu = c.bytes_on_host;
        out->device_experts_behind = c.n_behind;
        out->device_experts_ahead = c.n_prefetched;
        out->device_experts_ahead_used = c.n_prefetch_used;
        out->miss_copy_bytes_per_s = (uint64_t)e->miss_costs.copy_bytes_per_s;
        out->miss_cpu_bytes_per_s = (uint64_t)e->miss_costs.host_bytes_per_s;
        e->experts_below->counters(e->experts_below, &c);
    }
    out->experts_tier = e->plan.experts.tier == PLAN_EXPERTS_STREAM ? HEADRACE_EXPERTS_STREAM : HEADRACE_EXPERTS_RESIDENT;
    out->expert_hits = c.hits;
    out->expert_misses = c.misses;
    out->expert_evictions = c.evictions;
    out->expert_bytes_read = c.bytes_read;
    out->expert_reads = c.reads;
    out->expert_stall_ns = c.stall_ns;
    out->expert_slots = c.n_slots;
    out->expert_slot_bytes = c.slot_bytes;
    out->expert_compute_ns = c.compute_ns;
    out->expert_disk_ns = c.disk_ns;
    out->expert_disk_bytes_per_s = c.disk_bytes_per_s;
    out->expert_prefetch_used = c.prefetch_used;
    out->expert_prefetch_wasted = c.prefetch_wasted;
    out->experts_prefetched = c.n_prefetched;
    out->experts_prefetch_used = c.n_prefetch_used;
    out->experts_prefetch_wasted = c.n_prefetch_wasted;
    out->expert_reader = e->plan.experts.tier != PLAN_EXPERTS_STREAM ? HEADRACE_READER_NONE : c.read_way == EXPERT_READ_RING ? HEADRACE_READER_IO_URING : c.read_way == EXPERT_READ_PREAD ? HEADRACE_READER_PREAD : HEADRACE_READER_BUFFERED;
    out->experts_total = (uint64_t)e->plan.experts.all_slots;
}
