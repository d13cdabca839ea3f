/* SPDX-License-Identifier: Apache-2.0 */
/* Where experts that the device lacks are computed (--miss): the processor beside the device, and what it and the link are measured at. */
#include <string.h>

#include "base/log.h"
#include "engine/engine.h"
#include "model/block_moe.h"

enum { TRIED_ROWS = 8, ROUNDS = 3 };
static const size_t TRIED_BYTES = (size_t)256 << 20; /* of slots: more than a processor keeps in its caches */

void engine_miss_close(headrace_engine *e) {
    vt_queue_destroy(e->host_queue);
    vt_device_close(e->host_device);
    e->host_queue = NULL;
    e->host_device = NULL;
}

status engine_miss_open(headrace_engine *e, const config *c, error *err) {
    const char *how = config_text(c, CONFIG_KEY_MISS);
    engine_miss_close(e);
    e->miss = strcmp(how, "cpu") == 0 ? EXPERT_MISS_HOST : strcmp(how, "auto") == 0 ? EXPERT_MISS_AUTO : EXPERT_MISS_UPLOAD;
    if (e->miss == EXPERT_MISS_UPLOAD) return STATUS_OK;
    if (!e->model->moe->any) return error_set(err, STATUS_INVALID, "config: --miss %s: %s has no experts", how, e->model->arch->name);
    if (e->plan.pool == PLAN_POOL_HOST) return error_set(err, STATUS_INVALID, "config: --miss %s: %s computes in host memory, where an expert that was read is missing nowhere", how, e->device_name);
    TRY(vt_device_open(e->runtime, (vt_device_id){.type = VT_DEVICE_CPU}, e->m, &e->host_device, err));
    return vt_queue_create(e->host_device, e->threads, &e->host_queue, err);
}

status engine_miss_check(headrace_engine *e, const plan_experts *x, error *err) {
    if (e->miss == EXPERT_MISS_UPLOAD || x->tier == PLAN_EXPERTS_STREAM) return STATUS_OK;
    if (!x->tier_chosen) return error_set(err, STATUS_INVALID, "config: --miss is of streamed experts; --experts resident streams none");
    log_warn("config: --miss changes nothing: all experts fit on the device (--experts stream streams them)");
    e->miss = EXPERT_MISS_UPLOAD;
    moe_host_drop(e->model);
    return STATUS_OK;
}

const char *engine_miss_text(const headrace_engine *e) {
    static const char *const texts[] = {
        [EXPERT_MISS_UPLOAD] = "copied to the device",
        [EXPERT_MISS_HOST] = "computed by the processor out of host memory: outside the promise of equal bits",
        [EXPERT_MISS_AUTO] = "copied to the device or computed by the processor, as measured at the start: outside the promise of equal bits",
    };
    return texts[e->miss];
}

/* ---- measuring ---- */

static double rate(size_t bytes, uint64_t begin_ns) { return (double)bytes * 1e9 / (double)(os_now_ns() - begin_ns + 1); }

/* As an expert goes: straight, or through the ring. */
static status copy_one(headrace_engine *e, const uint8_t *from, size_t bytes) {
    const staging_span all = {.n_bytes = bytes, .from = from};
    bool waited;
    if (e->staging.device == NULL) return vt_copy(e->copies, e->model->workspace.data, from, bytes);
    return staging_ring_gather(&e->staging, e->copies, e->threads, e->model->workspace.data, bytes, &all, 1, &waited);
}

/* The host's slots to the workspace, which holds nothing between steps; the best of a few rounds. */
static status try_copies(headrace_engine *e, const uint8_t *slots, size_t bytes, double *best, error *err) {
    const size_t room = e->model->workspace.bytes, each = e->plan.experts.slot_bytes < room ? e->plan.experts.slot_bytes : room;
    *best = 0;
    for (int round = 0; round <= ROUNDS; round++) { /* the first warms up */
        const uint64_t begin = os_now_ns();
        size_t done = 0;
        status rc = STATUS_OK;
        for (; rc == STATUS_OK && done + each <= bytes; done += each) rc = copy_one(e, slots + done, each);
        const status end = vt_queue_sync(e->copies);
        if (rc == STATUS_OK) rc = end;
        if (rc != STATUS_OK) return error_set(err, rc, "engine: copies to %s cannot be measured (%s)", e->device_name, status_name(rc));
        const double r = rate(done, begin);
        if (round > 0 && r > *best) *best = r;
    }
    return STATUS_OK;
}

/* Experts of n_rows each in all slots that are tried, one after the other. */
static status try_products(headrace_engine *e, const uint8_t *slots, size_t bytes, int32_t n_rows, double *best, error *err) {
    const size_t slot = e->plan.experts.slot_bytes;
    *best = 0;
    for (int round = 0; round <= ROUNDS; round++) {
        const uint64_t begin = os_now_ns();
        size_t done = 0, one;
        for (size_t at = 0; at + slot <= bytes; at += slot) {
            TRY(moe_host_try(e->model, slots + at, n_rows, &one, err));
            done += one;
        }
        const double r = rate(done, begin);
        if (round > 0 && r > *best) *best = r;
    }
    return STATUS_OK;
}

/* Of a layer of one token that finds nothing on the device, how many experts the processor takes. */
static int32_t taken_of(const headrace_engine *e, int32_t n) {
    int32_t ids[64], rows[64];
    if (n > 64) n = 64;
    for (int32_t i = 0; i < n; i++) ids[i] = i, rows[i] = 1;
    return n - expert_miss_split(EXPERT_MISS_AUTO, &e->miss_costs, rows, ids, n);
}

status engine_miss_measure(headrace_engine *e, expert_store *host, error *err) {
    expert_miss_costs *costs = &e->miss_costs;
    const int32_t k = e->model->moe->bank.max_top_k;
    double many;
    size_t bytes;
    if (e->miss == EXPERT_MISS_UPLOAD) return STATUS_OK;
    if (e->miss == EXPERT_MISS_HOST) {
        log_info("experts: what the device lacks is %s", engine_miss_text(e));
        return STATUS_OK;
    }
    uint8_t *slots = expert_store_stream_memory(host, &bytes);
    if (bytes > TRIED_BYTES) bytes = TRIED_BYTES;
    memset(slots, 0, bytes); /* so that no product is slow for what happens to lie there */
    TRY(try_copies(e, slots, bytes, &costs->copy_bytes_per_s, err));
    TRY(try_products(e, slots, bytes, 1, &costs->host_bytes_per_s, err));
    TRY(try_products(e, slots, bytes, TRIED_ROWS, &many, err));
    costs->host_row_share = (costs->host_bytes_per_s / many - 1) / (TRIED_ROWS - 1);
    if (costs->host_row_share < 0) costs->host_row_share = 0;
    log_info("experts: --miss auto: copies to the device %.2f GB/s, the processor's products %.2f GB/s at one row and %.2f GB/s at %d: of %d misses of one row it takes %d, outside the promise of equal bits",
             costs->copy_bytes_per_s / 1e9, costs->host_bytes_per_s / 1e9, many / 1e9, TRIED_ROWS, k, taken_of(e, k));
    return STATUS_OK;
}
