/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of an engine on its open device: settings, pages and all else that is to be allocated, in bytes, and the verdict. engine_load.c allocates by it. */
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "engine/engine.h"
#include "model/block_moe.h"
#include "moe/staged_upload.h"
#include "vt/pinned.h"

enum {
    PAGE_TOKENS = 16,
    DEFAULT_CTX = 4096,
    MAX_HEAD_ROWS = 64,
    PROCESS_BYTES = 4 << 20, /* of the process itself */
    KERNEL_BYTES = 384 << 10, /* among them, from the start: page tables, stacks and descriptors that the kernel keeps for it */
    DEVICE_BUFFERS = 8 + STEP_MAX_GROUPS, /* each takes up to a unit of the device's memory more than was asked for */
    QUEUE_PER_SEQ = 16,      /* waiting requests per running one */
    SEQUENCE_BYTES = 16384   /* struct, text buffers, lists of ordinary length */
};

static int32_t clamp_i32(int64_t v, int64_t lo, int64_t hi) { return (int32_t)(v < lo ? lo : v > hi ? hi : v); }

static status plan_settings(headrace_engine *e, const config *c, error *err) {
    engine_plan *p = &e->plan;
    const int64_t trained = e->model->hp.n_ctx_train, asked = config_count(c, CONFIG_KEY_CTX);
    if (asked > trained) return error_set(err, STATUS_INVALID, "config: --ctx %lld exceeds the model's %lld", (long long)asked, (long long)trained);
    p->n_ctx = (int32_t)(asked > 0 ? asked : trained < DEFAULT_CTX ? trained : DEFAULT_CTX);
    p->max_seqs = (int32_t)config_count(c, CONFIG_KEY_MAX_SEQS);
    p->max_rows = (int32_t)config_count(c, CONFIG_KEY_MAX_BATCH_TOKENS);
    p->max_queue = p->max_seqs * QUEUE_PER_SEQ;
    p->max_live = p->max_queue + p->max_seqs;
    p->page_tokens = PAGE_TOKENS;
    p->max_pages_per_seq = (p->n_ctx + PAGE_TOKENS - 1) / PAGE_TOKENS;
    p->max_head_rows = clamp_i32(p->max_rows, 1, MAX_HEAD_ROWS);
    const char *kv = config_text(c, CONFIG_KEY_KV_DTYPE), *act = config_text(c, CONFIG_KEY_ACT);
    p->kv_dtype = strcmp(kv, "f32") == 0 ? VT_F32 : strcmp(kv, "bf16") == 0 ? VT_BF16 : VT_F16;
    p->prefix_cache = config_bool(c, CONFIG_KEY_PREFIX_CACHE);
    p->act = strcmp(act, "f32") == 0 ? ACT_F32 : strcmp(act, "q8") == 0 ? ACT_Q8 : strcmp(act, "bf16") == 0 ? ACT_BF16 : ACT_AUTO;
    return STATUS_OK;
}

void engine_kv_options(const headrace_engine *e, kv_cache_options *o) {
    const engine_plan *p = &e->plan;
    *o = (kv_cache_options){.n_groups = e->model->n_groups, .page_tokens = p->page_tokens, .max_pages = p->max_pages_per_seq};
    o->prefix = p->prefix_cache;
    o->n_snapshots = p->n_snapshots;
    o->snapshot_blocks = p->snapshot_blocks;
    for (int32_t g = 0; g < o->n_groups; g++) {
        const kv_group *kg = &e->model->groups[g];
        o->groups[g] = (kv_group_plan){.paged = kg->kind != LAYER_RECURRENT, .window = kg->kind == LAYER_WINDOW ? kg->window : 0, .n_pages = p->n_pages[g]};
    }
}

/* Pages are shared out so that each group is full with the same number of longest sequences. */
static status plan_kv(headrace_engine *e, const config *c, const plan_machine *pm, error *err) {
    engine_plan *p = &e->plan;
    kv_cache_options ko;
    engine_kv_options(e, &ko);
    const kv_cache shape = {.opt = ko};
    size_t page_bytes = 0, seq_bytes = 0, need[STEP_MAX_GROUPS] = {0};
    for (int32_t g = 0; g < ko.n_groups; g++) {
        if (!ko.groups[g].paged) continue;
        size_t bytes;
        need[g] = (size_t)kv_pages_at_most(&shape, g, p->max_pages_per_seq * p->page_tokens, p->max_rows);
        if (!checked_mul_size(need[g], model_page_bytes(e->model, g), &bytes) || !checked_add_size(seq_bytes, bytes, &seq_bytes)) {
            return error_set(err, STATUS_INVALID, "plan: the KV pages of one sequence overflow");
        }
        page_bytes += model_page_bytes(e->model, g);
    }
    if (seq_bytes == 0) return error_set(err, STATUS_BUG, "engine: the model has no KV pages");
    engine_snapshots_plan(e, page_bytes);
    size_t snapshots = engine_snapshots_per_seq(e);
    size_t bytes;
    if (!engine_snapshots_bytes(e, snapshots, &bytes) || !checked_add_size(seq_bytes, bytes, &seq_bytes)) return error_set(err, STATUS_INVALID, "plan: the snapshots of one sequence overflow");
    p->kv_bytes_per_token = page_bytes / (size_t)p->page_tokens;
    const uint64_t asked = config_bytes(c, CONFIG_KEY_KV_MEM);
    if (asked > 0 && asked < page_bytes) {
        return error_set(err, STATUS_DOES_NOT_FIT, "plan: --kv-mem %llu holds no page; one page of %d tokens takes %zu bytes", (unsigned long long)asked, p->page_tokens, page_bytes);
    }
    if (asked > 0 && (double)asked * (double)snapshots < (double)seq_bytes) { /* not one */
        seq_bytes -= bytes;
        snapshots = 0;
    }
    double seqs = asked > 0 ? (double)asked / (double)seq_bytes : (double)p->max_seqs;
    const uint64_t have = p->pool == PLAN_POOL_HOST ? pm->total_bytes : plan_device_limit(pm);
    if (asked == 0 && have > 0 && seqs * (double)seq_bytes > (double)have / 4) {
        seqs = (double)have / 4 / (double)seq_bytes;
        if (seqs < 1) seqs = 1; /* one sequence; the verdict judges */
    }
    p->n_snapshots = clamp_i32((int64_t)fmin((double)snapshots * seqs, 1e6), 0, INT32_MAX / 16);
    if (!engine_snapshots_bytes(e, (size_t)p->n_snapshots, &p->bytes[MEM_KV])) return error_set(err, STATUS_INVALID, "plan: the snapshots overflow");
    for (int32_t g = 0; g < ko.n_groups; g++) {
        if (!ko.groups[g].paged) continue;
        p->n_pages[g] = clamp_i32((int64_t)fmin((double)need[g] * seqs, 1e9), 1, INT32_MAX / 16);
        if (!checked_mul_size((size_t)p->n_pages[g], model_page_bytes(e->model, g), &bytes) || !checked_add_size(p->bytes[MEM_KV], bytes, &p->bytes[MEM_KV])) {
            return error_set(err, STATUS_INVALID, "plan: the KV pool overflows");
        }
    }
    /* a buffer per group and one of snapshots, two parts per layer, each aligned */
    if (!checked_add_size(p->bytes[MEM_KV], e->model->plan_state_bytes, &p->bytes[MEM_KV])) return error_set(err, STATUS_INVALID, "plan: the recurrent states overflow");
    p->bytes[MEM_KV] += (size_t)e->model->n_groups * 2 * (size_t)e->model->hp.n_layers * 512 + 4096;
    return STATUS_OK;
}

static size_t used_now(const headrace_engine *e, mem_tag tag) {
    mem_usage u;
    mem_get_usage(e->m, tag, &u);
    return u.used_bytes;
}

/* What is allocated already is known; what follows is counted from the plan's own numbers. */
static void plan_rest(headrace_engine *e) {
    engine_plan *p = &e->plan;
    const model *mo = e->model;
    const size_t rows = (size_t)p->max_rows, seqs = (size_t)p->max_seqs, pages = (size_t)p->max_pages_per_seq, vocab = (size_t)mo->hp.n_vocab;
    const size_t slack = 64 * 1024; /* headers and alignment of a few hundred blocks */
    const bool host = p->pool == PLAN_POOL_HOST;
    kv_cache_options ko;
    engine_kv_options(e, &ko);
    const size_t tables = (3 * rows + (size_t)p->max_head_rows + (size_t)mo->n_groups * seqs * pages) * sizeof(int32_t);
    const size_t activations = mo->plan_workspace_bytes + mo->plan_meta_bytes + model_choices_bytes(mo), ropes = 1024 * 1024;
    memset(p->device_bytes, 0, sizeof p->device_bytes);
    p->bytes[MEM_ACTIVATIONS] = used_now(e, MEM_ACTIVATIONS) + activations + slack;
    p->bytes[MEM_STAGING] = used_now(e, MEM_STAGING) + mo->plan_meta_bytes + model_choices_bytes(mo) + model_moe_exchange_bytes(mo) + slack;
    p->bytes[MEM_WEIGHTS] = host && source_is_mapped(e->src) ? (mo->plan_copy_bytes > 0 ? mo->plan_copy_bytes + slack : 0)
                                                             : mo->plan_weight_bytes + slack + (host ? 128 * source_n_tensors(e->src) : 0);
    p->mapped_bytes = source_is_mapped(e->src) ? mo->plan_weight_bytes : 0;
    p->bytes[MEM_MODEL] = used_now(e, MEM_MODEL) + ropes;
    if (!host) {
        const uint64_t experts = mo->moe->bank.total_bytes;
        p->bytes[MEM_STAGING] += model_logits_bytes(mo) + staged_upload_bytes(experts > mo->plan_weight_bytes ? experts : mo->plan_weight_bytes);
        p->device_bytes[MEM_ACTIVATIONS] = activations + slack;
        p->device_bytes[MEM_WEIGHTS] = p->bytes[MEM_WEIGHTS];
        p->device_bytes[MEM_KV] = p->bytes[MEM_KV];
        p->device_bytes[MEM_MODEL] = ropes;
        p->device_bytes[MEM_PROCESS] = vt_device_queue_bytes(e->device) * (mo->moe->any ? 2 : 1) + model_capture_bytes(mo, e->device) + DEVICE_BUFFERS * (size_t)(vt_device_alloc_unit(e->device) - 1); /* copies of experts have a queue of their own */
    }
    p->bytes[MEM_TOKENIZER] = used_now(e, MEM_TOKENIZER) + slack;
    p->bytes[MEM_ENGINE] = used_now(e, MEM_ENGINE) + kv_cache_bytes(&ko) + vocab * SAMPLER_BYTES_PER_ID + (size_t)mo->hp.n_embd * sizeof(float) + tables +
                           seqs * (sizeof(step_segment) + sizeof(void *) + sizeof(int32_t)) + (size_t)p->max_live * sizeof(void *) + slack;
    p->bytes[MEM_REQUEST] = (size_t)p->max_live * (SEQUENCE_BYTES + (size_t)p->n_ctx * sizeof(int32_t) + (size_t)mo->n_groups * pages * sizeof(int32_t)) + slack;
    p->bytes[MEM_PROCESS] = used_now(e, MEM_PROCESS) + PROCESS_BYTES + p->device_bytes[MEM_PROCESS];
    engine_experts_count(e);
    p->bytes[MEM_EXPERTS] += p->device_bytes[MEM_EXPERTS];
    p->total_bytes = p->device_total_bytes = 0;
    for (int t = 0; t < MEM_TAG_COUNT; t++) {
        p->total_bytes += p->bytes[t];
        p->device_total_bytes += p->device_bytes[t];
    }
}

/* What this process has in use is a part of the plan, and no longer available: it is not to be there twice. */
static void count_own(const headrace_engine *e, plan_machine *pm) {
    mem_usage u;
    mem_get_total(e->m, &u);
    const uint64_t planned = (uint64_t)u.used_bytes + PROCESS_BYTES, own = os_process_anon_bytes() + KERNEL_BYTES;
    if (pm->available_bytes > 0) pm->available_bytes += own < planned ? own : planned;
}

/* The machine as it is, or as --machine poses it. `pure` as of engine_plan_make. */
static status read_machine(headrace_engine *e, const config *c, bool pure, plan_machine *pm, error *err) {
    const uint64_t caps = vt_device_caps(e->device);
    uint64_t total = 0;
    plan_machine_read(pm);
    if (!pure) count_own(e, pm);
    pm->device_total_bytes = vt_device_total_bytes(e->device);
    if (!pure && vt_device_memory_info(e->device, &pm->device_available_bytes, &total) != STATUS_OK) pm->device_available_bytes = 0;
    if (pm->device_available_bytes > 0) pm->device_available_bytes += vt_device_queue_bytes(e->device); /* of e->queue, which the plan has too */
    if (config_is_set(c, CONFIG_KEY_MACHINE)) {
        if (!pure) return error_set(err, STATUS_INVALID, "config: --machine is for plans; a model is loaded on the machine there is");
        TRY(plan_machine_pose(config_text(c, CONFIG_KEY_MACHINE), pm, err));
    }
    if ((caps & VT_CAP_BIT(VT_CAP_HOST_ADDRESSABLE)) == 0 && pm->pool == PLAN_POOL_HOST) pm->pool = (caps & VT_CAP_BIT(VT_CAP_UNIFIED)) != 0 ? PLAN_POOL_SHARED : PLAN_POOL_OWN;
    const uint64_t most = config_bytes(c, CONFIG_KEY_MEM);
    if (most > 0 && (pm->total_bytes == 0 || most < pm->total_bytes)) { /* as if that were all there is */
        pm->total_bytes = most;
        pm->total_is_set = true;
    }
    pm->device_budget_bytes = config_bytes(c, CONFIG_KEY_DEVICE_MEM);
    const char *pinned = config_text(c, CONFIG_KEY_PINNED_MEM);
    pm->pinned_given = pinned != NULL;
    if (pinned != NULL && !config_parse_bytes(pinned, &pm->pinned_bytes)) return error_set(err, STATUS_INVALID, "config: --pinned-mem \"%.40s\" is no size (0, 512M, 2G)", pinned);
    vt_device_limit_pinned(e->device, plan_pinned_limit(pm));
    e->machine = *pm;
    e->plan.pool = pm->pool;
    return STATUS_OK;
}

status engine_plan_make(headrace_engine *e, const config *c, bool pure, error *err) {
    engine_plan *p = &e->plan;
    plan_machine pm;
    p->experts = (plan_experts){0}; /* of a device that was passed over */
    TRY(read_machine(e, c, pure, &pm, err));
    TRY(plan_settings(e, c, err));
    model_options mo = {
        .act = p->act,
        .kv_dtype = p->kv_dtype,
        .page_tokens = p->page_tokens,
        .max_rows = p->max_rows,
        .max_segments = p->max_seqs,
        .max_pages = p->max_pages_per_seq,
        .max_head_rows = p->max_head_rows,
        .capture = strcmp(config_text(c, CONFIG_KEY_CAPTURE), "off") != 0,
        .guess_experts = engine_experts_guess(c),
    };
    TRY(engine_routing_open(e, c, !pure, err));
    TRY(engine_miss_open(e, c, err));
    mo.host_queue = e->host_queue;
    engine_routing_options(e, &mo);
    TRY(model_plan(e->model, e->queue, &mo, err));
    TRY(plan_kv(e, c, &pm, err));
    plan_rest(e); /* as if nothing were mapped and there were no experts */
    TRY(engine_experts_plan(e, c, &pm, !pure, &p->experts, err));
    if (source_is_mapped(e->src)) TRY(model_plan(e->model, e->queue, &mo, err)); /* which weights lie where kernels can read them */
    plan_rest(e);
    TRY(plan_verdict(p, &pm, err));
    if (!pure) TRY(plan_live_check(p, &pm, err));
    for (int t = 0; t < MEM_TAG_COUNT; t++) TRY(mem_set_limit(e->m, (mem_tag)t, p->bytes[t]));
    return mem_set_total_limit(e->m, p->total_bytes);
}
