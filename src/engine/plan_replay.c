/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/plan_replay.h"

#include <math.h>

#include "moe/expert_whatif.h"

enum { MAX_BUDGETS = 10, N_POLICIES = 5 };
static const int32_t policies[N_POLICIES] = {EXPERT_POLICY_LRU, EXPERT_POLICY_DECAY, EXPERT_POLICY_LAYER_QUOTA, EXPERT_POLICY_BLEND, EXPERT_WHATIF_BELADY};
static const char *const policy_names[N_POLICIES] = {"lru", "decay", "quota", "blend", "belady"};

double plan_step_seconds(const plan_replay_request *r, double dense_bytes, double expert_bytes, double miss_bytes) {
    if (r->disk_bytes_per_s == 0) return NAN;
    const double reads = miss_bytes / (double)r->disk_bytes_per_s;
    if (r->memory_bytes_per_s == 0) return reads;
    const double products = expert_bytes / (double)r->memory_bytes_per_s;
    return dense_bytes / (double)r->memory_bytes_per_s + (reads > products ? reads : products);
}

/* From one wave to everything, ascending, each once. */
static int list_budgets(const expert_bank *bank, int64_t n_slots, int64_t *out) {
    const int64_t all = expert_stream_all_slots(bank);
    const int64_t wanted[MAX_BUDGETS] = {expert_stream_min_slots(bank), expert_stream_cycle_slots(bank), all * 12 / 100, all / 4, all / 2, all * 3 / 4, all, n_slots};
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

static status one_budget(mem *m, const expert_bank *bank, const plan_replay_request *r, const expert_trace *t, int64_t n_slots, textbuf *text, json_t *list, error *err) {
    const double all = (double)expert_stream_all_slots(bank), each = (double)bank->total_bytes / all, cycle = (double)cycle_bytes(bank), dense = (double)r->weight_bytes - cycle;
    json_t *o = json_pack("{s:I, s:f}", "slots", (json_int_t)n_slots, "share", (double)n_slots / all);
    double per_step = NAN;
    textbuf_addf(text, "%8lld %6.1f %%", (long long)n_slots, 100.0 * (double)n_slots / all);
    for (int p = 0; p < N_POLICIES; p++) {
        expert_whatif w;
        const status rc = expert_whatif_run(m, t, policies[p], (int32_t)n_slots, &w, err);
        if (rc != STATUS_OK) {
            json_decref(o);
            return rc;
        }
        const double hits = (double)w.hits / (double)(w.hits + w.misses);
        textbuf_addf(text, " %7.2f", 100 * hits);
        json_object_set_new(o, policy_names[p], json_pack("{s:f, s:I, s:f}", "hit_share", hits, "misses", (json_int_t)w.misses, "bytes", (double)w.misses * each));
        if (policies[p] == (int32_t)expert_stream_policy(bank, n_slots)) per_step = (double)w.misses * each / (double)t->n_steps;
    }
    const double seconds = plan_step_seconds(r, dense, cycle, per_step);
    textbuf_addf(text, " %10.1f", per_step / 1e6);
    if (isfinite(seconds)) textbuf_addf(text, " %9.2f", 1 / seconds);
    textbuf_adds(text, "\n");
    json_object_set_new(o, "bytes_per_step", number(per_step));
    json_object_set_new(o, "steps_per_s", number(1 / seconds));
    return json_array_append_new(list, o) == 0 ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "plan: no memory for a report");
}

status plan_replay(mem *m, const expert_bank *bank, const plan_replay_request *r, int64_t n_slots, textbuf *text, json_t *json, error *err) {
    expert_trace t;
    int64_t budgets[MAX_BUDGETS];
    TRY(expert_trace_read(m, r->path, (expert_trace_shape){bank->n_layers, bank->max_experts, bank->max_top_k}, &t, err));
    json_t *list = json_array();
    expert_whatif w = {0};
    double overlap = 0;
    status rc = expert_whatif_run(m, &t, EXPERT_POLICY_LRU, (int32_t)expert_stream_all_slots(bank), &w, err);
    if (rc == STATUS_OK) rc = expert_whatif_overlap(&t, &overlap, err);
    if (rc == STATUS_OK) {
        textbuf_addf(text, "replay of %s: %llu steps, %llu rows; %llu of %lld experts distinct; %.1f %% as the row before\n%8s %8s %7s %7s %7s %7s %7s %10s%s\n", r->path, (unsigned long long)t.n_steps, (unsigned long long)t.n_rows,
                     (unsigned long long)w.distinct, (long long)expert_stream_all_slots(bank), 100 * overlap, "slots", "", "lru", "decay", "quota", "blend", "belady", "MB/step", r->disk_bytes_per_s > 0 ? "   steps/s" : "");
    }
    const int n = list_budgets(bank, n_slots, budgets);
    for (int i = 0; rc == STATUS_OK && i < n; i++) rc = one_budget(m, bank, r, &t, budgets[i], text, list, err);
    if (rc != STATUS_OK)
        json_decref(list);
    else if (json_object_set_new(json, "replay", json_pack("{s:I, s:I, s:I, s:f, s:o}", "steps", (json_int_t)t.n_steps, "rows", (json_int_t)t.n_rows, "distinct", (json_int_t)w.distinct, "overlap", overlap, "budgets", list)) != 0)
        rc = error_set(err, STATUS_NO_MEMORY, "plan: no memory for a report");
    expert_trace_free(&t);
    return rc;
}
