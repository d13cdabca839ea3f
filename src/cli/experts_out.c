/* SPDX-License-Identifier: Apache-2.0 */
/* Figures of the expert store as the engine counts them. */
#include "cli/experts_out.h"

#include <math.h>
#include <stdio.h>

static bool get(headrace_engine *e, headrace_stats *st) {
    *st = (headrace_stats){.size = sizeof *st};
    return e != NULL && headrace_get_stats(e, st) == HEADRACE_OK && st->experts_tier != HEADRACE_EXPERTS_NONE;
}

/* Bytes read in the time that reads were under way, as a part of what the disk gave when it was measured. NAN: it was not. */
static double disk_share(const headrace_stats *st) {
    if (st->expert_disk_bytes_per_s == 0 || st->expert_disk_ns == 0) return NAN;
    return (double)st->expert_bytes_read * 1e9 / (double)st->expert_disk_ns / (double)st->expert_disk_bytes_per_s;
}

static json_t *measured(uint64_t bytes_per_s) { return bytes_per_s > 0 ? json_number((double)bytes_per_s) : json_null(); }

static const char *reader_name(const headrace_stats *st) {
    static const char *const names[] = {"none", "buffered", "pread", "io_uring"};
    return names[st->expert_reader];
}

/* What only a stream has. */
static bool add_stream(json_t *x, const headrace_stats *st) {
    json_t *more = json_pack("{s:s, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I}", "reader", reader_name(st), "compute_s", json_number((double)st->expert_compute_ns / 1e9), "disk_s",
                             json_number((double)st->expert_disk_ns / 1e9), "disk_limit_bytes_per_s", st->expert_disk_bytes_per_s > 0 ? json_number((double)st->expert_disk_bytes_per_s) : json_null(),
                             "disk_share", json_number(disk_share(st)), "prefetch_used_bytes", (json_int_t)st->expert_prefetch_used, "prefetch_wasted_bytes", (json_int_t)st->expert_prefetch_wasted, "prefetched",
                             (json_int_t)st->experts_prefetched, "prefetch_used", (json_int_t)st->experts_prefetch_used, "prefetch_wasted", (json_int_t)st->experts_prefetch_wasted);
    const bool good = x != NULL && more != NULL && json_object_update(x, more) == 0;
    json_decref(more);
    return good;
}

bool experts_add_json(json_t *o, headrace_engine *e) {
    headrace_stats st;
    if (o == NULL) return false;
    if (!get(e, &st)) return true;
    json_t *x = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "tier", st.experts_tier == HEADRACE_EXPERTS_STREAM ? "stream" : "resident", "hits",
                          (json_int_t)st.expert_hits, "misses", (json_int_t)st.expert_misses, "evictions", (json_int_t)st.expert_evictions, "bytes",
                          (json_int_t)st.expert_bytes_read, "reads", (json_int_t)st.expert_reads, "distinct", (json_int_t)st.experts_distinct, "total",
                          (json_int_t)st.experts_total, "slots", (json_int_t)st.expert_slots, "slot_bytes", (json_int_t)st.expert_slot_bytes, "stall_s",
                          json_number((double)st.expert_stall_ns / 1e9));
    if (st.device_expert_slots > 0) {
        json_t *d = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "hits", (json_int_t)st.device_expert_hits, "misses", (json_int_t)st.device_expert_misses, "evictions",
                              (json_int_t)st.device_expert_evictions, "bytes", (json_int_t)st.device_expert_bytes, "slots", (json_int_t)st.device_expert_slots, "bytes_staged", (json_int_t)st.device_expert_bytes_staged, "staging_bytes", (json_int_t)st.device_staging_bytes, "on_cpu", (json_int_t)st.device_experts_on_cpu,
                              "bytes_on_cpu", (json_int_t)st.device_expert_bytes_on_cpu, "copied_behind", (json_int_t)st.device_experts_behind, "copied_ahead", (json_int_t)st.device_experts_ahead, "ahead_used", (json_int_t)st.device_experts_ahead_used, "miss_copy_bytes_per_s", measured(st.miss_copy_bytes_per_s),
                              "miss_cpu_bytes_per_s", measured(st.miss_cpu_bytes_per_s));
        if (json_object_set_new(x, "device", d) != 0) {
            json_decref(x);
            return false;
        }
    }
    if (st.experts_tier == HEADRACE_EXPERTS_STREAM && !add_stream(x, &st)) {
        json_decref(x);
        return false;
    }
    return json_object_set_new(o, "experts", x) == 0;
}

void experts_print_line(headrace_engine *e) {
    headrace_stats st;
    if (!get(e, &st)) return;
    const unsigned long long distinct = st.experts_distinct, total = st.experts_total;
    if (st.experts_tier == HEADRACE_EXPERTS_RESIDENT) {
        if (st.expert_hits == 0) { /* found by a device's tables, without asking */
            fprintf(stderr, "experts resident; %llu\n", total);
            return;
        }
        fprintf(stderr, "experts resident; %llu used, %llu of %llu distinct\n", (unsigned long long)st.expert_hits, distinct, total);
        return;
    }
    if (st.device_expert_slots > 0) {
        const uint64_t k = st.device_expert_hits + st.device_expert_misses;
        fprintf(stderr, "experts on the device in %llu slots; %llu hits, %llu misses (%.1f %% hits), %llu evictions; %.1f MiB copied\n", (unsigned long long)st.device_expert_slots,
                (unsigned long long)st.device_expert_hits, (unsigned long long)st.device_expert_misses, k > 0 ? 100.0 * (double)st.device_expert_hits / (double)k : 0.0,
                (unsigned long long)st.device_expert_evictions, (double)st.device_expert_bytes / 1048576.0);
        if (st.device_staging_bytes > 0) fprintf(stderr, "%.1f MiB of them staged through %.1f MiB of pinned memory\n", (double)st.device_expert_bytes_staged / 1048576.0, (double)st.device_staging_bytes / 1048576.0);
        if (st.device_experts_ahead > 0) {
            fprintf(stderr, "%llu experts copied ahead of their layer, %llu of them taken\n", (unsigned long long)st.device_experts_ahead, (unsigned long long)st.device_experts_ahead_used);
        }
        if (st.device_experts_on_cpu > 0) {
            fprintf(stderr, "%llu of the misses computed by the processor (%.1f MiB not waited for), %llu of them copied behind\n", (unsigned long long)st.device_experts_on_cpu,
                    (double)st.device_expert_bytes_on_cpu / 1048576.0, (unsigned long long)st.device_experts_behind);
        }
    }
    const uint64_t n = st.expert_hits + st.expert_misses;
    fprintf(stderr, "experts streamed through %llu slots of %.2f MiB; %llu hits, %llu misses (%.1f %% hits), %llu evictions; %llu of %llu distinct\n", (unsigned long long)st.expert_slots,
            (double)st.expert_slot_bytes / 1048576.0, (unsigned long long)st.expert_hits, (unsigned long long)st.expert_misses, n > 0 ? 100.0 * (double)st.expert_hits / (double)n : 0.0,
            (unsigned long long)st.expert_evictions, distinct, total);
    fprintf(stderr, "%.1f MiB read by %s in %.2f s", (double)st.expert_bytes_read / 1048576.0, reader_name(&st), (double)st.expert_disk_ns / 1e9);
    if (isfinite(disk_share(&st))) fprintf(stderr, " (%.0f %% of the %.2f GB/s that the disk gave at the start)", 100 * disk_share(&st), (double)st.expert_disk_bytes_per_s / 1e9);
    fprintf(stderr, "; waited %.2f s, computed %.2f s\n", (double)st.expert_stall_ns / 1e9, (double)st.expert_compute_ns / 1e9);
    if (st.experts_prefetched > 0) {
        fprintf(stderr, "%llu experts read ahead of their layer; %llu of them taken (%.1f MiB), %llu given up unused (%.1f MiB)\n", (unsigned long long)st.experts_prefetched,
                (unsigned long long)st.experts_prefetch_used, (double)st.expert_prefetch_used / 1048576.0, (unsigned long long)st.experts_prefetch_wasted, (double)st.expert_prefetch_wasted / 1048576.0);
    }
}
