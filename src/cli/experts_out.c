/* SPDX-License-Identifier: Apache-2.0 */
/* Figures of the expert store as the engine counts them. */
#include "cli/experts_out.h"

#include <stdio.h>

static bool get(headrace_engine *e, headrace_stats *st) {
    *st = (headrace_stats){.size = sizeof *st};
    return e != NULL && headrace_get_stats(e, st) == HEADRACE_OK && st->experts_tier != HEADRACE_EXPERTS_NONE;
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
        json_t *d = json_pack("{s:I, s:I, s:I, s:I, s:I}", "hits", (json_int_t)st.device_expert_hits, "misses", (json_int_t)st.device_expert_misses, "evictions",
                              (json_int_t)st.device_expert_evictions, "bytes", (json_int_t)st.device_expert_bytes, "slots", (json_int_t)st.device_expert_slots);
        if (json_object_set_new(x, "device", d) != 0) {
            json_decref(x);
            return false;
        }
    }
    return json_object_set_new(o, "experts", x) == 0;
}

void experts_print_line(headrace_engine *e) {
    headrace_stats st;
    if (!get(e, &st)) return;
    const unsigned long long distinct = st.experts_distinct, total = st.experts_total;
    if (st.experts_tier == HEADRACE_EXPERTS_RESIDENT) {
        fprintf(stderr, "experts resident; %llu used, %llu of %llu distinct\n", (unsigned long long)st.expert_hits, distinct, total);
        return;
    }
    if (st.device_expert_slots > 0) {
        const uint64_t k = st.device_expert_hits + st.device_expert_misses;
        fprintf(stderr, "experts on the device in %llu slots; %llu hits, %llu misses (%.1f %% hits), %llu evictions; %.1f MiB copied\n", (unsigned long long)st.device_expert_slots,
                (unsigned long long)st.device_expert_hits, (unsigned long long)st.device_expert_misses, k > 0 ? 100.0 * (double)st.device_expert_hits / (double)k : 0.0,
                (unsigned long long)st.device_expert_evictions, (double)st.device_expert_bytes / 1048576.0);
    }
    const uint64_t n = st.expert_hits + st.expert_misses;
    fprintf(stderr, "experts streamed through %llu slots of %.2f MiB; %llu hits, %llu misses (%.1f %% hits), %llu evictions; %.1f MiB read, %.2f s waited; %llu of %llu distinct\n",
            (unsigned long long)st.expert_slots, (double)st.expert_slot_bytes / 1048576.0, (unsigned long long)st.expert_hits, (unsigned long long)st.expert_misses,
            n > 0 ? 100.0 * (double)st.expert_hits / (double)n : 0.0, (unsigned long long)st.expert_evictions, (double)st.expert_bytes_read / 1048576.0, (double)st.expert_stall_ns / 1e9,
            distinct, total);
}
