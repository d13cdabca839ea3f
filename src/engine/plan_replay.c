/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/plan_replay.h"

#include <math.h>

#include "moe/expert_whatif.h"

enum { MAX_BUDGETS = 10, N_POLICIES = 5 };
static const int32_t policies[N_POLICIES] = {EXPERT_POLICY_LRU, EXPERT_POLICY_DECAY, EXPERT_POLICY_LAYER_QUOTA, EXPERT_POLICY_BLEND,
                                             EXPERT_WHATIF_BELADY};
static const char *const policy_names[N_POLICIES] = {"lru", "decay", "quota", "blend", "belady"};

double plan_layer_seconds(const plan_replay_request *r, uint64_t expert_bytes, int32_t n, int32_t n_missing) {
    if (r->disk_bytes_per_s == 0) return NAN;
    const double product = r->memory_bytes_per_s > 0 ? (double)expert_bytes / (double)r->memory_bytes_per_s : 0;
    const double reads = n_missing > 0 ? r->disk_latency_s + (double)n_missing * (double)expert_bytes / (double)r->disk_bytes_per_s : 0;
    const double before = (n - 1) * product;
    return (reads > before ? reads : before) + product;
}

/* From one wave to everything, ascending, each once. */
static int list_budgets(const expert_bank *bank, int64_t n_slots, int64_t *out) {
    const int64_t all = expert_stream_all_slots(bank);
    const int64_t wanted[MAX_BUDGETS] = {
        expert_stream_min_slots(bank), expert_stream_cycle_slots(bank), all * 12 / 100, all / 4, all / 2, all * 3 / 4, all, n_slots};
    int n = 0;
    for (int i = 0; i < 8; i++) {
        const int64_t v = wanted[i];
        if (v < expert_stream_min_slots(bank) || v > all) continue;
        int at = n;
        bool have = false;
        for (int j = 0; j < n; j++) have = have || out[j] == v;
        if (have) continue;
        for (; at > 0 && out[at - 1] > v; at--) out[at] = out[at - 1];
        out[at] = v;
        n++;
    }
    return n;
}

static uint64_t cycle_bytes(const expert_bank *bank) {
    uint64_t n = 0;
    for (int32_t l = 0; l < bank->n_layers; l++) n += (uint64_t)bank->layers[l].top_k * bank->layers[l].file_bytes;
    return n;
}

static json_t *number(double v) { return isfinite(v) ? json_real(v) : json_null(); }

/* Bytes and seconds of the layers of a walk, by walk: with slots that begin empty, and full. */
typedef struct walk_sums {
    const expert_bank *bank;
    const plan_replay_request *r;
    double bytes[2], seconds[2];
} walk_sums;

static void add_layer(void *ctx, int32_t walk, int32_t layer, int32_t n, int32_t n_missing) {
    walk_sums *s = ctx;
    const uint64_t each = s->bank->layers[layer].file_bytes;
    s->bytes[walk] += (double)n_missing * (double)each;
    s->seconds[walk] += plan_layer_seconds(s->r, each, n, n_missing);
}

/* Bytes a step and steps a second of each walk, with what is not experts. */
static void add_speeds(const walk_sums *s, const plan_replay_request *r, double n_steps, double dense, textbuf *text, json_t *o) {
    static const char *const bytes_names[2] = {"bytes_per_step", "warm_bytes_per_step"}, *const speed_names[2] = {"steps_per_s",
                                                                                                                  "warm_steps_per_s"};
    for (int walk = 0; walk < 2; walk++) {
        const double seconds = s->seconds[walk] / n_steps + (r->memory_bytes_per_s > 0 ? dense / (double)r->memory_bytes_per_s : 0);
        textbuf_addf(text, " %10.1f", s->bytes[walk] / n_steps / 1e6);
        if (isfinite(seconds)) textbuf_addf(text, " %9.2f", 1 / seconds);
        json_object_set_new(o, bytes_names[walk], number(s->bytes[walk] / n_steps));
        json_object_set_new(o, speed_names[walk], number(1 / seconds));
    }
    textbuf_adds(text, "\n");
}

static status one_budget(mem *m, const expert_bank *bank, const plan_replay_request *r, const expert_trace *t, int64_t n_slots,
                         textbuf *text, json_t *list, error *err) {
    const double all = (double)expert_stream_all_slots(bank), each = (double)bank->total_bytes / all;
    json_t *o = json_pack("{s:I, s:f}", "slots", (json_int_t)n_slots, "share", (double)n_slots / all);
    walk_sums sums = {.bank = bank, .r = r};
    expert_whatif w[2];
    status rc = STATUS_OK;
    textbuf_addf(text, "%8lld %6.1f %%", (long long)n_slots, 100.0 * (double)n_slots / all);
    for (int p = 0; rc == STATUS_OK && p < N_POLICIES; p++) {
        rc = expert_whatif_run(m, t, policies[p], (int32_t)n_slots, w, err);
        if (rc != STATUS_OK) break;
        const double hits = (double)w->hits / (double)(w->hits + w->misses);
        textbuf_addf(text, " %7.2f", 100 * hits);
        json_object_set_new(
            o, policy_names[p],
            json_pack("{s:f, s:I, s:f}", "hit_share", hits, "misses", (json_int_t)w->misses, "bytes", (double)w->misses * each));
    }
    if (rc == STATUS_OK)
        rc = expert_whatif_walks(m, t, (expert_policy_kind)expert_stream_policy(bank, n_slots), (int32_t)n_slots, add_layer, &sums, w, err);
    if (rc != STATUS_OK) {
        json_decref(o);
        return rc;
    }
    add_speeds(&sums, r, (double)t->n_steps, (double)r->weight_bytes - (double)cycle_bytes(bank), text, o);
    return json_array_append_new(list, o) == 0 ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "plan: no memory for a report");
}

/* The tier above: what its slots would find, and what a step would copy there, or have the processor compute. */
static status add_device(mem *m, const expert_bank *bank, const plan_replay_request *r, const expert_trace *t, textbuf *text, json_t *json, error *err) {
    const double each = (double)bank->total_bytes / (double)expert_stream_all_slots(bank) / (double)t->n_steps;
    const expert_policy_kind policy = (expert_policy_kind)expert_stream_policy(bank, r->device_slots);
    expert_whatif copied;
    expert_whatif_computed computed;
    if (r->device_slots == 0) return STATUS_OK;
    TRY(expert_whatif_run(m, t, (int32_t)policy, (int32_t)r->device_slots, &copied, err));
    TRY(expert_whatif_compute(m, t, policy, (int32_t)r->device_slots, EXPERT_MOST_BEHIND, &computed, err));
    const double n = (double)(copied.hits + copied.misses);
    textbuf_addf(text, "%lld slots on the device: %.2f %% hits and %.1f MB/step copied; --miss cpu: %.2f %% hits, %.1f MB/step computed by the processor and %.1f MB/step copied behind\n", (long long)r->device_slots,
                 100 * (double)copied.hits / n, (double)copied.misses * each / 1e6, 100 * (double)computed.hits / n, (double)computed.misses * each / 1e6, (double)computed.behind * each / 1e6);
    json_t *o = json_pack("{s:I, s:f, s:I, s:f, s:I, s:I}", "slots", (json_int_t)r->device_slots, "hit_share", (double)copied.hits / n, "misses", (json_int_t)copied.misses, "cpu_hit_share",
                          (double)computed.hits / n, "cpu_misses", (json_int_t)computed.misses, "cpu_copied_behind", (json_int_t)computed.behind);
    return json_object_set_new(json, "device", o) == 0 ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "plan: no memory for a report");
}

status plan_replay(mem *m, const expert_bank *bank, const plan_replay_request *r, int64_t n_slots, textbuf *text, json_t *json,
                   error *err) {
    expert_trace t;
    int64_t budgets[MAX_BUDGETS];
    TRY(expert_trace_read(m, r->path, (expert_trace_shape){bank->n_layers, bank->max_experts, bank->max_top_k}, &t, err));
    json_t *list = json_array();
    expert_whatif w = {0};
    double overlap = 0;
    status rc = expert_whatif_run(m, &t, EXPERT_POLICY_LRU, (int32_t)expert_stream_all_slots(bank), &w, err);
    if (rc == STATUS_OK) rc = expert_whatif_overlap(&t, &overlap, err);
    if (rc == STATUS_OK) {
        const char *speed = r->disk_bytes_per_s > 0 ? "   steps/s" : "";
        textbuf_addf(text,
                     "replay of %s: %llu steps, %llu rows; %llu of %lld experts distinct; %.1f %% as the row before\n%8s %8s %7s %7s %7s "
                     "%7s %7s %10s%s %10s%s\n",
                     r->path, (unsigned long long)t.n_steps, (unsigned long long)t.n_rows, (unsigned long long)w.distinct,
                     (long long)expert_stream_all_slots(bank), 100 * overlap, "slots", "", "lru", "decay", "quota", "blend", "belady",
                     "MB/step", speed, "warm MB", speed);
    }
    const int n = list_budgets(bank, n_slots, budgets);
    for (int i = 0; rc == STATUS_OK && i < n; i++) rc = one_budget(m, bank, r, &t, budgets[i], text, list, err);
    if (rc != STATUS_OK)
        json_decref(list);
    else if (json_object_set_new(json, "replay",
                                 json_pack("{s:I, s:I, s:I, s:f, s:o}", "steps", (json_int_t)t.n_steps, "rows", (json_int_t)t.n_rows,
                                           "distinct", (json_int_t)w.distinct, "overlap", overlap, "budgets", list)) != 0)
        rc = error_set(err, STATUS_NO_MEMORY, "plan: no memory for a report");
    if (rc == STATUS_OK) rc = add_device(m, bank, r, &t, text, json_object_get(json, "replay"), err);
    expert_trace_free(&t);
    return rc;
}
