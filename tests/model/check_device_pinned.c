/* SPDX-License-Identifier: Apache-2.0 */
/* The part of check_device about pinned host memory: whatever of it is refused, by the device or by the settings, misses and evictions give
 * the bits of the processor. */
#include "model/check_device.h"

#include "model/block_moe.h"

typedef enum pin_case {
    PINS_ALL,
    PINS_RING,      /* the device pins no more at a time than the ring */
    PINS_NOTHING,   /* nor that */
    ALLOWS_RING,    /* --pinned-mem has room for staging and no slots */
    ALLOWS_NOTHING, /* --pinned-mem 0 */
    PIN_CASES
} pin_case;

typedef struct planned {
    uint64_t staging, ring;
    plan_pin pin;
} planned;

/* The plan that a load with these settings starts from. */
static planned plan_of(const char *const *settings) {
    mem *m;
    headrace_config *c;
    headrace_engine *e;
    headrace_error err = {0};
    error refused = {0}, why = {0};
    assert_int_equal(mem_create(&m), STATUS_OK);
    assert_int_equal(headrace_config_create(&c, &err), HEADRACE_OK);
    assert_int_equal(headrace_config_set(c, "model", fixture, &err), HEADRACE_OK);
    for (; settings[0] != NULL; settings += 2) assert_int_equal(headrace_config_set(c, settings[0], settings[1], &err), HEADRACE_OK);
    assert_int_equal(engine_load_plan(m, c->c, false, &e, &refused, &why), STATUS_OK);
    if (refused.code != STATUS_OK) fail_msg("%s", refused.text);
    const plan_experts *x = &e->plan.experts;
    const planned p = {.staging = e->plan.bytes[MEM_STAGING], .ring = x->staging_bytes, .pin = x->pin};
    assert_int_equal(p.ring, staging_ring_bytes(staging_shape_of(e->model->moe->bank.max_slot_bytes, EXPERT_STAGED)));
    assert_true(p.ring > 0 && p.staging > p.ring);
    headrace_free(e);
    headrace_config_destroy(c);
    return p;
}

uint64_t planned_staging(const char *const *settings) { return plan_of(settings).staging; }

/* What comes of it, whatever was planned. */
static plan_pin outcome_of(pin_case k, uint64_t slots, uint64_t ring) {
    if (k == PINS_NOTHING || k == ALLOWS_NOTHING) return PLAN_PIN_DRIVER;
    return k == PINS_ALL || (k == PINS_RING && slots <= ring) ? PLAN_PIN_SLOTS : PLAN_PIN_RING;
}

static uint64_t run_one(const reference *a, pin_case k, uint64_t device, uint64_t host) {
    char device_text[32], host_text[32], pinned[32] = "0";
    snprintf(device_text, sizeof device_text, "%llu", (unsigned long long)(device * a->slot_bytes));
    snprintf(host_text, sizeof host_text, "%llu", (unsigned long long)(host * a->slot_bytes));
    const bool limited = k == ALLOWS_RING || k == ALLOWS_NOTHING;
    const char *settings[] = {"device",
                              "cuda",
                              "experts",
                              "stream",
                              "device-experts",
                              device_text,
                              "host-experts",
                              host_text,
                              "threads",
                              (device + host) % 2 ? "1" : "3",
                              "prefix-cache",
                              "false",
                              "expert-prefetch",
                              (device + host) % 3 ? "off" : "on",
                              limited ? "pinned-mem" : NULL,
                              pinned,
                              NULL};
    headrace_engine *e;
    headrace_error err = {0};
    posed_clear(gpu);
    gpu->most_pinned = 0;
    if (k == ALLOWS_RING)
        snprintf(pinned, sizeof pinned, "%llu",
                 (unsigned long long)planned_staging(settings)); /* no part of it depends on what is pinned */
    const planned p = plan_of(settings);
    const plan_pin outcome = outcome_of(k, host * a->slot_bytes, p.ring);
    assert_int_equal(p.pin, limited ? outcome : PLAN_PIN_SLOTS);
    gpu->most_pinned = k == PINS_RING ? p.ring : k == PINS_NOTHING ? 1 : 0;
    gpu->time = (posed_time)(host % 3);
    warnings_logged = 0;
    if (try_load(&e, &err, settings) != HEADRACE_OK) fail_msg("%s", err.text);
    const plan_experts *x = &e->plan.experts;
    const bool refused = outcome != p.pin;
    assert_int_equal(x->pin, outcome);
    assert_int_equal(x->pin_refused, refused);
    assert_int_equal(e->plan.bytes[MEM_STAGING], p.staging);
    assert_true(!refused || (warnings_logged > 0 && strstr(warning, "pinning refused") != NULL &&
                             strstr(warning, outcome == PLAN_PIN_RING ? "staged through" : "through the driver") != NULL));
    assert_int_equal(gpu->n.live_pinned == 0, outcome == PLAN_PIN_DRIVER);
    const uint64_t allocs = gpu->n.allocs, fences = gpu->n.fences, syncs = gpu->n.syncs, before = support_stats(e).n_steps;
    const int64_t live_pinned = gpu->n.live_pinned;
    int compared = 0;
    for (int n = 1; n <= SUPPORT_MOST_TOGETHER; n++) compared += support_same_bits(&a->alone, e, n - 1, n, n == 2 ? 1 : n == 3 ? 3 : 0);
    assert_int_equal(compared, 15);
    const headrace_stats st = support_stats(e);
    const uint64_t n_steps = st.n_steps - before;
    assert_true(gpu->n.syncs - syncs <= n_steps * (a->moe_layers + 1) + n_steps / 4); /* as where slots are pinned: no drain */
    assert_int_equal(gpu->n.allocs, allocs);
    assert_int_equal(gpu->n.fences, fences);
    assert_int_equal(gpu->n.live_pinned, live_pinned);
    assert_int_equal(st.n_hot_allocations, 0);
    assert_int_equal(st.expert_failures, 0);
    assert_true(st.memory_peak_bytes <= st.memory_planned_bytes);
    assert_int_equal(st.device_staging_bytes, outcome == PLAN_PIN_RING ? p.ring : 0);
    assert_int_equal(st.device_expert_bytes_staged, outcome == PLAN_PIN_RING ? st.device_expert_bytes : 0);
    assert_true(st.device_expert_misses + st.device_experts_ahead >= st.experts_distinct && st.device_expert_bytes > 0);
    if (device < st.experts_distinct) assert_true(st.device_expert_evictions > 0);
    if (host < st.experts_distinct) assert_true(st.expert_evictions > 0);
    headrace_free(e);
    gpu->most_pinned = 0;
    nothing_left();
    return st.device_expert_evictions;
}

void pinned_or_staged(void **state) {
    const reference *a = *state;
    if (!a->experts) return;
    const uint64_t budgets[] = {a->least, a->least + 1, a->all / 2, a->all};
    uint64_t n_evicted[PIN_CASES] = {0};
    for (int k = 0; k < PIN_CASES; k++) {
        for (int d = 0; d < 4; d++) {
            for (int h = k == PINS_ALL || d % 2 ? 3 : 0; h < 4; h += 1 + (d > 0))
                n_evicted[k] += run_one(a, (pin_case)k, budgets[d], budgets[h]);
        }
        assert_true(n_evicted[k] > 0);
    }
}

/* A size of the wrong form, and a device that has nothing pinned. */
void pinned_refused(void **state) {
    const reference *a = *state;
    headrace_engine *e;
    const struct {
        const char *device, *size, *says;
    } cases[] = {{"cuda", "some", "--pinned-mem \"some\" is no size"}, {"cpu", "1G", "--pinned-mem: "}};
    (void)a;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        headrace_error err = {0};
        posed_clear(gpu);
        assert_int_equal(try_load(&e, &err, (const char *const[]){"device", cases[i].device, "pinned-mem", cases[i].size, NULL}),
                         HEADRACE_INVALID);
        if (strstr(err.text, cases[i].says) == NULL) fail_msg("\"%s\"", err.text);
        nothing_left();
    }
}
