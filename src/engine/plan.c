/* SPDX-License-Identifier: Apache-2.0 */
/* Verdict, live check and table of the memory plan. */
#include "engine/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/config.h"

static const double MIB = 1024.0 * 1024.0;

void plan_machine_read(plan_machine *out) {
    os_memory om;
    os_get_memory(&om);
    *out = (plan_machine){.total_bytes = os_smaller_known(om.total_bytes, om.cgroup_limit_bytes), .available_bytes = om.available_bytes};
    if (om.cgroup_limit_bytes > 0) {
        const uint64_t left = om.cgroup_limit_bytes > om.cgroup_used_bytes ? om.cgroup_limit_bytes - om.cgroup_used_bytes : 1;
        out->available_bytes = os_smaller_known(om.available_bytes, left);
    }
}

const char *plan_machine_total_text(const plan_machine *pm) { return pm->total_is_set ? "--mem allows" : "this machine or its cgroup has"; }

static status pose_one(const char *key, const char *value, uint64_t *mem_total, uint64_t *device_total, bool *unified, error *err) {
    if (strcmp(key, "unified") == 0 && (strcmp(value, "0") == 0 || strcmp(value, "1") == 0)) {
        *unified = value[0] == '1';
        return STATUS_OK;
    }
    if (strcmp(key, "mem_total") == 0 && config_parse_bytes(value, mem_total)) return STATUS_OK;
    if (strcmp(key, "device_total") == 0 && config_parse_bytes(value, device_total)) return STATUS_OK;
    return error_set(err, STATUS_INVALID, "config: --machine \"%.40s=%.40s\": known are unified=0 or 1, device_total=SIZE, mem_total=SIZE", key, value);
}

status plan_machine_pose(const char *text, plan_machine *out, error *err) {
    uint64_t mem_total = 0, device_total = 0;
    bool unified = false;
    char part[128];
    for (const char *p = text;; p++) {
        const size_t n = strcspn(p, ",");
        if (n >= sizeof part) return error_set(err, STATUS_INVALID, "config: --machine: \"%.40s...\" is too long", p);
        memcpy(part, p, n);
        part[n] = '\0';
        char *value = strchr(part, '=');
        if (n == 0) return error_set(err, STATUS_INVALID, "config: --machine \"%.40s\": nothing stands between two commas or at an end; mem_total=64G,device_total=80G is an example", text);
        if (value != NULL) *value++ = '\0';
        TRY(pose_one(part, value != NULL ? value : "", &mem_total, &device_total, &unified, err));
        p += n;
        if (*p == '\0') break;
    }
    *out = (plan_machine){.total_bytes = unified ? os_smaller_known(mem_total, device_total) : mem_total, .device_total_bytes = device_total};
    if (device_total > 0 && !unified) out->pool = PLAN_POOL_OWN;
    return STATUS_OK;
}

/* One side of a plan: what it needs of one pool, and which part of that the KV pages are. */
typedef struct side {
    uint64_t need, have;
    size_t weights, kv, activations;
    const char *where;
} side;

/* The one knob that shrinks the plan without changing the model is the KV pool; below one sequence of n_ctx tokens it is the context that has to shrink. */
static void smallest_change(const engine_plan *p, const side *s, char *text, size_t n) {
    const size_t excess = (size_t)(s->need - s->have), kv = s->kv, one = p->kv_bytes_per_token * (size_t)p->n_ctx;
    if (kv > excess && kv - excess >= one) {
        snprintf(text, n, "--kv-mem %zuM would fit", (size_t)((double)(kv - excess) / MIB));
    } else if (kv > excess && p->kv_bytes_per_token > 0 && (kv - excess) / p->kv_bytes_per_token >= 16) {
        snprintf(text, n, "--ctx %zu --kv-mem %zuM would fit", (kv - excess) / p->kv_bytes_per_token / 16 * 16, (size_t)((double)(kv - excess) / MIB));
    } else if (p->pool == PLAN_POOL_HOST) {
        snprintf(text, n, "without any KV pages %.1f MiB would still be missing: %sa smaller --max-batch-tokens or --max-seqs, or a smaller model", (double)(excess - kv) / MIB,
                 s->weights > 0 ? "--load map, " : "");
    } else {
        snprintf(text, n, "without any KV pages %.1f MiB would still be missing there: a smaller --max-batch-tokens, --experts stream with a smaller --device-experts, or a smaller model",
                 (double)(excess - kv) / MIB);
    }
}

static status compare(const engine_plan *p, const side *s, const char *what, status code, error *err) {
    if (s->have == 0 || s->need <= s->have) return STATUS_OK;
    char change[224];
    smallest_change(p, s, change, sizeof change);
    return error_set(err, code, "plan: %.1f MiB are needed%s (weights %.1f, KV %.1f, activations %.1f, rest %.1f) and %.1f MiB are %s; %s", (double)s->need / MIB, s->where, (double)s->weights / MIB,
                     (double)s->kv / MIB, (double)s->activations / MIB, (double)(s->need - s->weights - s->kv - s->activations) / MIB, (double)s->have / MIB, what, change);
}

static side whole(const engine_plan *p, uint64_t have) {
    return (side){.need = p->total_bytes, .have = have, .weights = p->bytes[MEM_WEIGHTS], .kv = p->bytes[MEM_KV], .activations = p->bytes[MEM_ACTIVATIONS], .where = ""};
}

static side of_device(const engine_plan *p, uint64_t have) {
    const size_t *b = p->device_bytes;
    return (side){.need = p->device_total_bytes, .have = have, .weights = b[MEM_WEIGHTS], .kv = b[MEM_KV], .activations = b[MEM_ACTIVATIONS], .where = " on the device"};
}

/* What is left for the host, whose pool is its own. */
static side of_host(const engine_plan *p, uint64_t have) {
    side s = whole(p, have), d = of_device(p, 0);
    s.need -= d.need;
    s.weights -= d.weights;
    s.kv -= d.kv;
    s.activations -= d.activations;
    s.where = " on the host";
    return s;
}

uint64_t plan_device_limit(const plan_machine *pm) { return pm->device_budget_bytes > 0 ? pm->device_budget_bytes : pm->device_total_bytes; }

status plan_verdict(const engine_plan *p, const plan_machine *pm, error *err) {
    char all[64];
    snprintf(all, sizeof all, "all that %s", plan_machine_total_text(pm));
    if (p->pool == PLAN_POOL_HOST) {
        const side s = whole(p, pm->total_bytes);
        return compare(p, &s, all, STATUS_DOES_NOT_FIT, err);
    }
    const uint64_t limit = plan_device_limit(pm);
    if (limit == 0) return error_set(err, STATUS_DOES_NOT_FIT, "plan: the device does not say how much memory it has; nothing is put there without --device-mem SIZE");
    if (pm->device_total_bytes > 0 && limit > pm->device_total_bytes) {
        return error_set(err, STATUS_DOES_NOT_FIT, "plan: --device-mem of %.1f MiB exceeds the %.1f MiB that the device has", (double)limit / MIB, (double)pm->device_total_bytes / MIB);
    }
    const side d = of_device(p, limit), s = p->pool == PLAN_POOL_SHARED ? whole(p, os_smaller_known(pm->total_bytes, pm->device_total_bytes)) : of_host(p, pm->total_bytes);
    TRY(compare(p, &d, pm->device_budget_bytes > 0 ? "what --device-mem allows" : "all the device has", STATUS_DOES_NOT_FIT, err));
    return compare(p, &s, p->pool == PLAN_POOL_SHARED ? "all that this machine and its device share" : all, STATUS_DOES_NOT_FIT, err);
}

status plan_live_check(const engine_plan *p, const plan_machine *pm, error *err) {
    static const char *const now = "available now";
    const side s = p->pool == PLAN_POOL_OWN ? of_host(p, pm->available_bytes) : whole(p, pm->available_bytes);
    TRY(compare(p, &s, now, STATUS_NOT_NOW, err));
    if (p->pool == PLAN_POOL_HOST) return STATUS_OK;
    if (pm->device_available_bytes == 0 && pm->device_budget_bytes == 0) {
        return error_set(err, STATUS_NOT_NOW, "plan: the device does not say how much memory is free; nothing is put there without --device-mem SIZE");
    }
    const side d = of_device(p, pm->device_available_bytes);
    return compare(p, &d, now, STATUS_NOT_NOW, err);
}

status plan_admit(const plan_admission *a, const char *what, error *err) {
    uint64_t room = a->device_free_bytes;
    if (room == 0) {
        if (a->budget_bytes > 0 && a->budget_bytes >= a->need_bytes) return STATUS_OK;
        return error_set(err, STATUS_NOT_NOW, "plan: the device does not say how much memory is free; %s of %.1f MiB are not put there without --device-mem", what, (double)a->need_bytes / MIB);
    }
    if (a->pool == PLAN_POOL_SHARED) {
        room = os_smaller_known(room, a->host_available_bytes);
        room = room > a->host_unused_bytes ? room - a->host_unused_bytes : 0;
    }
    if (a->need_bytes <= room) return STATUS_OK;
    if (a->pool == PLAN_POOL_SHARED) {
        return error_set(err, STATUS_NOT_NOW, "plan: %s of %.1f MiB do not fit the device now: host and device share one pool, and less than %.1f MiB of it are free beside the %.1f MiB that host caches have yet to use",
                         what, (double)a->need_bytes / MIB, ((double)room + 1) / MIB, (double)a->host_unused_bytes / MIB);
    }
    return error_set(err, STATUS_NOT_NOW, "plan: %s of %.1f MiB do not fit the %.1f MiB that are free on the device now", what, (double)a->need_bytes / MIB, (double)room / MIB);
}

void plan_print(const engine_plan *p, const mem *m, textbuf *out) {
    const bool device = p->pool != PLAN_POOL_HOST;
    textbuf_addf(out, "%-12s %12s", "memory", "planned MiB");
    if (device) textbuf_addf(out, " %12s %12s", "device MiB", "host MiB");
    if (m != NULL) textbuf_addf(out, " %12s %12s", "in use MiB", "peak MiB");
    textbuf_adds(out, "\n");
    for (int t = 0; t <= MEM_TAG_COUNT; t++) {
        const bool total = t == MEM_TAG_COUNT;
        const size_t bytes = total ? p->total_bytes : p->bytes[t], on_device = total ? p->device_total_bytes : p->device_bytes[t];
        mem_usage u = {0};
        if (m != NULL && total) mem_get_total(m, &u);
        if (m != NULL && !total) mem_get_usage(m, (mem_tag)t, &u);
        if (!total && bytes == 0 && u.peak_bytes == 0) continue;
        textbuf_addf(out, "%-12s %12.2f", total ? "total" : mem_tag_name((mem_tag)t), (double)bytes / MIB);
        if (device) textbuf_addf(out, " %12.2f %12.2f", (double)on_device / MIB, (double)(bytes - on_device) / MIB);
        if (m != NULL) textbuf_addf(out, " %12.2f %12.2f", (double)u.used_bytes / MIB, (double)u.peak_bytes / MIB);
        textbuf_adds(out, "\n");
    }
    textbuf_addf(out, "%-12s %12.2f   (in the page cache, given back under pressure)\n", "mapped", (double)p->mapped_bytes / MIB);
    plan_experts_print(&p->experts, out);
    plan_pin_print(&p->experts, out);
}
