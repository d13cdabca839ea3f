/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole model on a device whose memory the host cannot touch (support/posed_device.h): dense weights, pages, states and experts there, resident and streamed through both tiers, give the
 * bits of the processor. What cannot run there is refused with every missing row, or passed over, before anything is uploaded. Whatever fails fails the requests that were there, and no more.
 * Usage: check_device FIXTURE bits|rows|faults
 */
#include "model/model_support.h"

#include "base/log.h"
#include "engine/engine.h"
#include "model/block_moe.h"
#include "support/posed_device.h"

enum { MAX_PROMPTS = 16, MOST_TOGETHER = 5 };

static const char *fixture;
static posed_gpu *gpu;

typedef struct reference {
    support_prompt prompts[MAX_PROMPTS];
    int n;
    int32_t *forced[MAX_PROMPTS], n_forced[MAX_PROMPTS];
    support_run runs[MAX_PROMPTS]; /* on the processor, one prompt at a time */
    bool experts;
    uint64_t least, all, slot_bytes, moe_layers;
    vt_need needs[256];
    int32_t n_needs;
} reference;

static int errors_logged, warnings_logged;
static char warning[4096];
static void on_log(void *user, log_level level, const char *line) {
    (void)user;
    if (level == LOG_LEVEL_ERROR) {
        errors_logged++;
        fprintf(stderr, "logged: %s\n", line);
    }
    if (level != LOG_LEVEL_WARN) return;
    warnings_logged++;
    snprintf(warning, sizeof warning, "%s", line);
}

static headrace_stats stats_of(headrace_engine *e) {
    headrace_stats st = {.size = sizeof st};
    assert_int_equal(headrace_get_stats(e, &st), HEADRACE_OK);
    return st;
}

static headrace_model_info info_of(headrace_engine *e) {
    headrace_model_info i = {.size = sizeof i};
    assert_int_equal(headrace_get_model_info(e, &i), HEADRACE_OK);
    return i;
}

static void forced_run(const reference *a, int i, int chunk, support_run *r) { *r = (support_run){.ids = a->forced[i], .n_ids = a->n_forced[i], .chunk = chunk, .want_logits = true}; }

static int run_reference(void **state) {
    reference *a = calloc(1, sizeof *a);
    char path[512];
    snprintf(path, sizeof path, "%s/expected.json", fixture);
    a->n = support_prompts(path, a->prompts, MAX_PROMPTS);
    headrace_engine *e = support_load(fixture, "device", "cpu", "threads", "2", NULL);
    for (int i = 0; i < a->n; i++) {
        const support_prompt *p = &a->prompts[i];
        a->n_forced[i] = p->n_ids + p->n_greedy - 1;
        a->forced[i] = malloc((size_t)a->n_forced[i] * sizeof(int32_t));
        memcpy(a->forced[i], p->ids, (size_t)p->n_ids * sizeof(int32_t));
        memcpy(a->forced[i] + p->n_ids, p->greedy, (size_t)(p->n_greedy - 1) * sizeof(int32_t));
        forced_run(a, i, 0, &a->runs[i]);
        support_go(e, &a->runs[i], 1);
    }
    const headrace_stats st = stats_of(e);
    const expert_bank *bank = &e->model->moe->bank;
    a->experts = st.experts_tier != HEADRACE_EXPERTS_NONE;
    a->all = st.experts_total;
    a->slot_bytes = bank->max_slot_bytes;
    a->least = (uint64_t)bank->max_top_k;
    for (int32_t l = 0; l < bank->n_layers; l++) a->moe_layers += bank->layers[l].n_experts > 0;
    a->n_needs = e->model->recorder.n;
    memcpy(a->needs, e->model->recorder.needs, (size_t)a->n_needs * sizeof *a->needs);
    headrace_free(e);
    *state = a;
    return 0;
}

static int free_reference(void **state) {
    reference *a = *state;
    for (int i = 0; i < a->n; i++) {
        support_run_free(&a->runs[i]);
        free(a->forced[i]);
    }
    support_prompts_free(a->prompts, a->n);
    free(a);
    return 0;
}

/* n prompts as one batch; the bits must be those of each alone on the processor. */
static int same_bits(const reference *a, headrace_engine *e, int first, int n, int chunk) {
    support_run r[MOST_TOGETHER];
    for (int i = 0; i < n; i++) forced_run(a, (first + i) % a->n, chunk, &r[i]);
    support_go(e, r, n);
    for (int i = 0; i < n; i++) {
        const support_run *want = &a->runs[(first + i) % a->n];
        if (r[i].finish == HEADRACE_FINISH_ERROR) fail_msg("%s", r[i].error);
        assert_int_equal(r[i].n_rows, want->n_rows);
        assert_memory_equal(r[i].logits, want->logits, (size_t)want->n_rows * (size_t)want->n_vocab * sizeof(float));
        support_run_free(&r[i]);
    }
    return n;
}

/* Every batch size, prompts whole and in pieces. */
static int all_batches(const reference *a, headrace_engine *e) {
    int compared = 0;
    for (int n = 1; n <= MOST_TOGETHER; n++) compared += same_bits(a, e, n - 1, n, n == 2 ? 1 : n == 3 ? 3 : 0);
    return compared;
}

static void nothing_left(void) {
    assert_null(gpu->wrong);
    assert_int_equal(gpu->n.live_allocs, 0);
    assert_int_equal(gpu->n.live_fences, 0);
    assert_int_equal(gpu->n.live_queues, 0);
    assert_int_equal(gpu->n.live_pinned, 0);
    assert_int_equal(gpu->n.open, 0);
    assert_int_equal(errors_logged, 0);
}

/* Settings as key, value, ... NULL. */
static headrace_status try_load(headrace_engine **out, headrace_error *err, const char *const *settings) {
    headrace_config *c = NULL;
    *out = NULL;
    assert_int_equal(headrace_config_create(&c, err), HEADRACE_OK);
    assert_int_equal(headrace_config_set(c, "model", fixture, err), HEADRACE_OK);
    for (; settings[0] != NULL; settings += 2) {
        if (headrace_config_set(c, settings[0], settings[1], err) != HEADRACE_OK) fail_msg("%s", err->text);
    }
    const headrace_status rc = headrace_load(c, NULL, NULL, out, err);
    headrace_config_destroy(c);
    return rc;
}

/* ---- bits ---- */

static void resident(void **state) {
    const reference *a = *state;
    int compared = 0;
    for (posed_time t = POSED_LATE; t <= POSED_MIXED; t++) {
        posed_clear(gpu);
        gpu->time = t;
        headrace_engine *e = support_load(fixture, "device", "cuda", "threads", t == POSED_SOON ? "1" : "2", "prefix-cache", t == POSED_LATE ? "true" : "false", "max-batch-tokens", t == POSED_MIXED ? "37" : "512", NULL);
        assert_true(gpu->n.uploads > 0 && gpu->n.kernels == 0);
        assert_int_equal(gpu->n.downloads, 0);
        const uint64_t allocs = gpu->n.allocs, fences = gpu->n.fences, syncs = gpu->n.syncs, steps = stats_of(e).n_steps;
        compared += all_batches(a, e);
        const headrace_stats st = stats_of(e);
        assert_int_equal(gpu->n.allocs, allocs); /* nothing after warm-up */
        assert_int_equal(gpu->n.fences, fences);
        assert_int_equal(st.n_hot_allocations, 0);
        assert_true(gpu->n.kernels > 0);
        /* a wait in each layer with experts for the router's choice, one for the step, one for each head */
        assert_true(gpu->n.syncs - syncs <= (st.n_steps - steps) * (a->moe_layers + 1) + gpu->n.downloads);
        if (a->experts) {
            assert_int_equal(st.experts_tier, HEADRACE_EXPERTS_RESIDENT);
            assert_true(st.expert_hits > 0 && st.expert_misses == 0);
        }
        assert_string_equal(info_of(e).device_type, "cuda");
        assert_true(info_of(e).device_bytes > 0);
        headrace_free(e);
        nothing_left();
    }
    assert_int_equal(compared, 3 * 15);
}

/* Waits and copies of a step do not grow with what the device is asked to do. */
static void streamed(void **state) {
    const reference *a = *state;
    if (!a->experts) return;
    const uint64_t budgets[] = {a->least, a->least + 1, a->all / 2, a->all};
    int n_both = 0;
    for (int d = 0; d < 4; d++) {
        for (int h = 0; h < 4; h += d % 2 == 0 ? 1 : 3) {
            char device[32], host[32];
            snprintf(device, sizeof device, "%llu", (unsigned long long)(budgets[d] * a->slot_bytes));
            snprintf(host, sizeof host, "%llu", (unsigned long long)(budgets[h] * a->slot_bytes));
            posed_clear(gpu);
            gpu->time = (posed_time)((d + h) % 3);
            headrace_engine *e = support_load(fixture, "device", "cuda", "experts", "stream", "device-experts", d == 0 ? "min" : d == 3 ? "all" : device, "host-experts", h == 0 ? "min" : h == 3 ? "all" : host, "threads",
                                              "2", "prefix-cache", "false", "max-batch-tokens", (d + h) % 2 ? "37" : "512", NULL);
            const uint64_t allocs = gpu->n.allocs, fences = gpu->n.fences;
            assert_int_equal(all_batches(a, e), 15);
            const headrace_stats st = stats_of(e);
            assert_int_equal(gpu->n.allocs, allocs);
            assert_int_equal(gpu->n.fences, fences);
            assert_int_equal(st.n_hot_allocations, 0);
            assert_int_equal(st.experts_tier, HEADRACE_EXPERTS_STREAM);
            assert_int_equal(st.device_expert_slots, budgets[d]);
            assert_int_equal(st.expert_slots, budgets[h]);
            assert_int_equal(st.expert_failures, 0);
            assert_int_equal(st.expert_hits + st.expert_misses, st.device_expert_misses); /* the host is asked for what the device lacks */
            assert_true(st.device_expert_misses >= st.experts_distinct && st.device_expert_bytes > 0);
            const bool device_full = budgets[d] < st.experts_distinct, host_full = budgets[h] < st.experts_distinct;
            if (device_full) assert_true(st.device_expert_evictions > 0 && st.device_expert_misses > st.experts_distinct);
            if (device_full && host_full) {
                assert_true(st.expert_evictions > 0 && st.expert_misses > st.experts_distinct);
                n_both++;
            }
            if (budgets[d] == a->all) assert_true(st.device_expert_evictions == 0 && st.device_expert_hits > 0);
            if (budgets[h] == a->all) assert_int_equal(st.expert_misses, st.experts_distinct);
            headrace_free(e);
            nothing_left();
        }
    }
    assert_true(n_both > 0);
}

static void generated(void **state) {
    const reference *a = *state;
    posed_clear(gpu);
    gpu->time = POSED_LATE;
    for (int i = 0; i < 2; i++) {
        headrace_engine *e = support_load(fixture, "device", i == 0 ? "cpu" : "cuda", "threads", "2", NULL);
        support_run r = {.ids = a->prompts[0].ids, .n_ids = a->prompts[0].n_ids, .max_tokens = a->prompts[0].n_greedy};
        support_go(e, &r, 1);
        assert_int_equal(r.n_tokens, a->prompts[0].n_greedy);
        static int32_t first[512];
        if (i == 0) memcpy(first, r.tokens, (size_t)r.n_tokens * sizeof *first);
        assert_memory_equal(r.tokens, first, (size_t)r.n_tokens * sizeof *first);
        support_run_free(&r);
        headrace_free(e);
    }
    nothing_left();
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    fixture = argv[1];
    log_set(on_log, NULL, LOG_LEVEL_WARN);
    gpu = posed_add(VT_DEVICE_CUDA);
    const struct CMUnitTest bits[] = {cmocka_unit_test(resident), cmocka_unit_test(streamed), cmocka_unit_test(generated)};
    (void)try_load;
    if (strcmp(argv[2], "bits") == 0) return cmocka_run_group_tests(bits, run_reference, free_reference);
    return 2;
}
