/* SPDX-License-Identifier: Apache-2.0 */
/* Verdict, live check and table of the memory plan. */
#include "engine/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/config.h"

static const double MIB = 1024.0 * 1024.0;

static uint64_t smaller_known(uint64_t a, uint64_t b) {
    if (a == 0) return b;
    if (b == 0) return a;
    return a < b ? a : b;
}

void plan_machine_read(plan_machine *out) {
    os_memory om;
    os_get_memory(&om);
    out->total_bytes = smaller_known(om.total_bytes, om.cgroup_limit_bytes);
    out->available_bytes = om.available_bytes;
    if (om.cgroup_limit_bytes > 0) {
        const uint64_t left = om.cgroup_limit_bytes > om.cgroup_used_bytes ? om.cgroup_limit_bytes - om.cgroup_used_bytes : 1;
        out->available_bytes = smaller_known(om.available_bytes, left);
    }
}

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
        if (value != NULL) *value++ = '\0';
        TRY(pose_one(part, value != NULL ? value : "", &mem_total, &device_total, &unified, err));
        p += n;
        if (*p == '\0') break;
    }
    if (device_total > 0 && !unified) return error_set(err, STATUS_UNSUPPORTED, "config: --machine device_total without unified=1: no backend of this build has memory of its own to plan for");
    *out = (plan_machine){.total_bytes = unified ? smaller_known(mem_total, device_total) : mem_total};
    return STATUS_OK;
}

/* The one knob that shrinks the plan without changing the model is the KV pool; below one sequence of n_ctx tokens it is the context that has to shrink. */
static void smallest_change(const engine_plan *p, size_t excess, char *text, size_t n) {
    const size_t kv = p->bytes[MEM_KV], one = p->kv_bytes_per_token * (size_t)p->n_ctx;
    if (kv > excess && kv - excess >= one) {
        snprintf(text, n, "--kv-mem %zuM would fit", (size_t)((double)(kv - excess) / MIB));
    } else if (kv > excess && p->kv_bytes_per_token > 0 && (kv - excess) / p->kv_bytes_per_token >= 16) {
        snprintf(text, n, "--ctx %zu --kv-mem %zuM would fit", (kv - excess) / p->kv_bytes_per_token / 16 * 16, (size_t)((double)(kv - excess) / MIB));
    } else {
        snprintf(text, n, "without any KV pages %.1f MiB would still be missing: --load map, a smaller --max-batch-tokens, or a smaller model", (double)(excess - kv) / MIB);
    }
}

static status compare(const engine_plan *p, uint64_t have, const char *what, status code, error *err) {
    if (have == 0 || p->total_bytes <= have) return STATUS_OK;
    char change[160];
    smallest_change(p, p->total_bytes - (size_t)have, change, sizeof change);
    return error_set(err, code,
                     "plan: %.1f MiB are needed (weights %.1f, KV %.1f, activations %.1f, rest %.1f) and %.1f MiB are %s; %s", (double)p->total_bytes / MIB,
                     (double)p->bytes[MEM_WEIGHTS] / MIB, (double)p->bytes[MEM_KV] / MIB, (double)p->bytes[MEM_ACTIVATIONS] / MIB,
                     (double)(p->total_bytes - p->bytes[MEM_WEIGHTS] - p->bytes[MEM_KV] - p->bytes[MEM_ACTIVATIONS]) / MIB, (double)have / MIB, what, change);
}

status plan_verdict(const engine_plan *p, const plan_machine *pm, error *err) { return compare(p, pm->total_bytes, "all this machine or its cgroup has", STATUS_DOES_NOT_FIT, err); }

status plan_live_check(const engine_plan *p, const plan_machine *pm, error *err) { return compare(p, pm->available_bytes, "available now", STATUS_NOT_NOW, err); }

void plan_print(const engine_plan *p, const mem *m, textbuf *out) {
    textbuf_addf(out, "%-12s %12s", "memory", "planned MiB");
    if (m != NULL) textbuf_addf(out, " %12s %12s", "in use MiB", "peak MiB");
    textbuf_adds(out, "\n");
    for (int t = 0; t < MEM_TAG_COUNT; t++) {
        mem_usage u = {0};
        if (m != NULL) mem_get_usage(m, (mem_tag)t, &u);
        if (p->bytes[t] == 0 && u.peak_bytes == 0) continue;
        textbuf_addf(out, "%-12s %12.2f", mem_tag_name((mem_tag)t), (double)p->bytes[t] / MIB);
        if (m != NULL) textbuf_addf(out, " %12.2f %12.2f", (double)u.used_bytes / MIB, (double)u.peak_bytes / MIB);
        textbuf_adds(out, "\n");
    }
    textbuf_addf(out, "%-12s %12.2f", "total", (double)p->total_bytes / MIB);
    if (m != NULL) {
        mem_usage u;
        mem_get_total(m, &u);
        textbuf_addf(out, " %12.2f %12.2f", (double)u.used_bytes / MIB, (double)u.peak_bytes / MIB);
    }
    textbuf_addf(out, "\n%-12s %12.2f   (in the page cache, given back under pressure)\n", "mapped", (double)p->mapped_bytes / MIB);
    plan_experts_print(&p->experts, out);
}
