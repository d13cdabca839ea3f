/* SPDX-License-Identifier: Apache-2.0 */
/* Plans for a device that does not compute in host memory: which pool is charged, what an unknown size admits, and run-time admission on a shared pool. Numbers worked out by hand. */
#include "support/test_case.h"

#include "engine/plan.h"

enum { MIB = 1048576, LAYERS = 4, EXPERTS = 16, TOP_K = 2 };

/* Experts of 1 MiB: 64 of them, 8 to a token, 2 to a wave. Everything else: 60 MiB on the host, 40 MiB on the device, of which 24 are KV. */
static expert_layer layers[LAYERS];
static expert_bank a_bank(void) {
    for (int l = 0; l < LAYERS; l++) layers[l] = (expert_layer){.n_experts = EXPERTS, .n_parts = 1, .top_k = TOP_K, .slot_bytes = MIB, .file_bytes = MIB};
    return (expert_bank){.n_layers = LAYERS, .layers = layers, .max_slot_bytes = MIB, .stream_slot_bytes = MIB, .max_top_k = TOP_K, .max_experts = EXPERTS, .total_bytes = (uint64_t)LAYERS * EXPERTS * MIB};
}

static engine_plan the_rest(plan_pool kind) {
    engine_plan p = {.n_ctx = 4096, .page_tokens = 16, .kv_bytes_per_token = 1024, .pool = kind};
    p.bytes[MEM_WEIGHTS] = p.device_bytes[MEM_WEIGHTS] = (size_t)16 * MIB;
    p.bytes[MEM_KV] = p.device_bytes[MEM_KV] = (size_t)24 * MIB;
    p.bytes[MEM_PROCESS] = (size_t)60 * MIB;
    p.total_bytes = (size_t)100 * MIB;
    p.device_total_bytes = (size_t)40 * MIB;
    return p;
}

static plan_machine machine(plan_pool kind, uint64_t host_mib, uint64_t device_mib) {
    return (plan_machine){.pool = kind, .total_bytes = host_mib * MIB, .device_total_bytes = device_mib * MIB};
}

static status choose(plan_tier tier, plan_host device, uint64_t device_mib, plan_host host, uint64_t host_mib, const plan_machine *pm, bool live, plan_experts *out, error *err) {
    const expert_bank bank = a_bank();
    const engine_plan p = the_rest(pm->pool);
    const plan_experts_request r = {.tier = tier, .device = device, .device_bytes = device_mib * MIB, .host = host, .host_bytes = host_mib * MIB};
    *err = (error){0};
    return plan_experts_choose_device(&bank, &r, &p, pm, live, out, err);
}

static void each_pool_is_charged_its_own(void **state) {
    (void)state;
    error err = {0};
    engine_plan p = the_rest(PLAN_POOL_OWN);
    plan_machine pm = machine(PLAN_POOL_OWN, 60, 40);
    assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_OK);
    pm.device_total_bytes--;
    assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "40.0 MiB are needed on the device (weights 16.0, KV 24.0, activations 0.0, rest 0.0) and 40.0 MiB are all the device has");
    assert_contains(err.text, "--kv-mem 23M would fit");
    pm = machine(PLAN_POOL_OWN, 59, 40);
    assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "60.0 MiB are needed on the host");
    pm = machine(PLAN_POOL_OWN, 0, 40); /* the host's total is unknown: it passes, as it does for a processor */
    assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_OK);
    p.pool = PLAN_POOL_SHARED; /* one pool: the sum, once */
    pm = machine(PLAN_POOL_SHARED, 100, 100);
    assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_OK);
    pm = machine(PLAN_POOL_SHARED, 100, 99);
    assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "100.0 MiB are needed (weights 16.0, KV 24.0");
    pm = machine(PLAN_POOL_SHARED, 99, 100);
    assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_DOES_NOT_FIT);
}

static void unknown_admits_nothing_without_a_budget(void **state) {
    (void)state;
    for (plan_pool kind = PLAN_POOL_SHARED; kind <= PLAN_POOL_OWN; kind++) {
        error err = {0};
        plan_experts x;
        const engine_plan p = the_rest(kind);
        plan_machine pm = machine(kind, 200, 0);
        assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_DOES_NOT_FIT);
        assert_contains(err.text, "--device-mem SIZE");
        assert_int_equal(choose(PLAN_EXPERTS_NONE, PLAN_HOST_AUTO, 0, PLAN_HOST_AUTO, 0, &pm, false, &x, &err), STATUS_DOES_NOT_FIT);
        assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_MIN, 0, PLAN_HOST_MIN, 0, &pm, false, &x, &err), STATUS_DOES_NOT_FIT);
        assert_contains(err.text, "--device-mem SIZE");
        assert_int_equal(plan_live_check(&p, &pm, &err), STATUS_NOT_NOW);
        pm.device_budget_bytes = (uint64_t)40 * MIB;
        assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_OK);
        assert_int_equal(plan_live_check(&p, &pm, &err), STATUS_OK);
        pm.device_budget_bytes--;
        assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_DOES_NOT_FIT);
        assert_contains(err.text, "what --device-mem allows");
        pm.device_total_bytes = (uint64_t)30 * MIB; /* known, and less than was promised */
        assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_DOES_NOT_FIT);
        assert_contains(err.text, "exceeds the 30.0 MiB that the device has");
    }
}

/* Whatever is free, a verdict has the same text; a live check has its own. */
static void free_memory_does_not_judge_a_load(void **state) {
    (void)state;
    int n = 0;
    for (plan_pool kind = PLAN_POOL_HOST; kind <= PLAN_POOL_OWN; kind++) {
        char first[2048] = "";
        for (uint64_t is_free = 1; is_free <= 4096; is_free *= 8, n++) {
            error err = {0};
            const engine_plan p = the_rest(kind);
            plan_machine pm = machine(kind, 50, 35);
            pm.available_bytes = is_free * MIB;
            pm.device_available_bytes = (5000 - is_free) * MIB;
            assert_int_equal(plan_verdict(&p, &pm, &err), STATUS_DOES_NOT_FIT);
            if (first[0] == '\0') snprintf(first, sizeof first, "%s", err.text);
            assert_string_equal(err.text, first);
        }
    }
    assert_int_equal(n, 15);
    error err = {0};
    engine_plan p = the_rest(PLAN_POOL_OWN);
    plan_machine pm = machine(PLAN_POOL_OWN, 1, 1);
    pm.available_bytes = (uint64_t)60 * MIB;
    pm.device_available_bytes = (uint64_t)40 * MIB;
    assert_int_equal(plan_live_check(&p, &pm, &err), STATUS_OK);
    pm.device_available_bytes--;
    assert_int_equal(plan_live_check(&p, &pm, &err), STATUS_NOT_NOW);
    assert_contains(err.text, "on the device");
    pm.device_available_bytes = UINT64_MAX;
    pm.available_bytes--;
    assert_int_equal(plan_live_check(&p, &pm, &err), STATUS_NOT_NOW);
    assert_contains(err.text, "on the host");
}

static void experts_over_two_tiers(void **state) {
    (void)state;
    plan_experts x;
    error err;
    plan_machine pm = machine(PLAN_POOL_OWN, 200, 105); /* 65 MiB beside the rest: all 64 */
    assert_int_equal(choose(PLAN_EXPERTS_NONE, PLAN_HOST_AUTO, 0, PLAN_HOST_AUTO, 0, &pm, false, &x, &err), STATUS_OK);
    assert_int_equal(x.tier, PLAN_EXPERTS_RESIDENT);
    assert_int_equal(x.device_slots, 64);
    pm.device_total_bytes = (uint64_t)104 * MIB; /* 64 less what a buffer is aligned by */
    assert_int_equal(choose(PLAN_EXPERTS_NONE, PLAN_HOST_AUTO, 0, PLAN_HOST_AUTO, 0, &pm, false, &x, &err), STATUS_OK);
    assert_int_equal(x.tier, PLAN_EXPERTS_STREAM);
    assert_int_equal(x.device_slots, 63);
    assert_int_equal(x.n_slots, 64); /* 140 MiB of host: all, and no more than all */
    assert_int_equal(choose(PLAN_EXPERTS_RESIDENT, PLAN_HOST_AUTO, 0, PLAN_HOST_AUTO, 0, &pm, false, &x, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "--experts stream --device-experts 63M would fit");
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_BYTES, 63, PLAN_HOST_MIN, 0, &pm, false, &x, &err), STATUS_OK); /* and it does */
    assert_int_equal(x.n_slots, 2);
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_BYTES, 64, PLAN_HOST_MIN, 0, &pm, false, &x, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "--device-experts 63M would fit");
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_BYTES, 1, PLAN_HOST_MIN, 0, &pm, false, &x, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "the least is 2097152 bytes (2 slots of 1048576), --device-experts min");
    assert_int_equal(choose(PLAN_EXPERTS_RESIDENT, PLAN_HOST_MIN, 0, PLAN_HOST_AUTO, 0, &pm, false, &x, &err), STATUS_INVALID);
    pm = machine(PLAN_POOL_OWN, 124, 104); /* 64 MiB are left on the host, and half of it all is the most that is pinned unasked */
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_AUTO, 0, PLAN_HOST_AUTO, 0, &pm, false, &x, &err), STATUS_OK);
    assert_int_equal(x.n_slots, 61);
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_AUTO, 0, PLAN_HOST_BYTES, 63, &pm, false, &x, &err), STATUS_OK);
    assert_int_equal(x.n_slots, 63);
    pm.available_bytes = (uint64_t)100 * MIB; /* 40 beside the rest */
    pm.device_available_bytes = (uint64_t)104 * MIB;
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_AUTO, 0, PLAN_HOST_AUTO, 0, &pm, true, &x, &err), STATUS_OK);
    assert_int_equal(x.n_slots, 39);
    pm = machine(PLAN_POOL_OWN, 70, 200); /* the host is the narrow one: 9 slots and tables */
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_ALL, 0, PLAN_HOST_AUTO, 0, &pm, false, &x, &err), STATUS_OK);
    assert_int_equal(x.device_slots, 64);
    assert_int_equal(x.n_slots, 9);
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_ALL, 0, PLAN_HOST_ALL, 0, &pm, false, &x, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "--host-experts 9M would fit");
    pm = machine(PLAN_POOL_OWN, 200, 41); /* not even one wave */
    assert_int_equal(choose(PLAN_EXPERTS_NONE, PLAN_HOST_AUTO, 0, PLAN_HOST_AUTO, 0, &pm, false, &x, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "the least is 2.0 MiB");
}

/* What the device holds of one pool the host does not. */
static void one_pool_is_shared_out(void **state) {
    (void)state;
    plan_experts x;
    error err;
    plan_machine pm = machine(PLAN_POOL_SHARED, 141, 141); /* 41 MiB beside the rest */
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_AUTO, 0, PLAN_HOST_AUTO, 0, &pm, false, &x, &err), STATUS_OK);
    assert_int_equal(x.n_slots, 5); /* an eighth, less tables */
    assert_in_range(x.device_slots, 34, 35);
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_AUTO, 0, PLAN_HOST_BYTES, 30, &pm, false, &x, &err), STATUS_OK);
    assert_in_range(x.device_slots, 9, 10);
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_BYTES, 20, PLAN_HOST_BYTES, 30, &pm, false, &x, &err), STATUS_DOES_NOT_FIT);
    assert_int_equal(choose(PLAN_EXPERTS_RESIDENT, PLAN_HOST_AUTO, 0, PLAN_HOST_AUTO, 0, &pm, false, &x, &err), STATUS_DOES_NOT_FIT);
    pm.device_budget_bytes = (uint64_t)50 * MIB; /* the flag is a limit of its own */
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_AUTO, 0, PLAN_HOST_MIN, 0, &pm, false, &x, &err), STATUS_OK);
    assert_int_equal(x.device_slots, 9);
}

/* A size that is left open shrinks to what is there now; one that was asked for does not. */
static void what_is_open_follows_the_day(void **state) {
    (void)state;
    plan_experts x;
    error err;
    plan_machine pm = machine(PLAN_POOL_OWN, 300, 141);
    pm.available_bytes = (uint64_t)300 * MIB;
    pm.device_available_bytes = (uint64_t)61 * MIB;
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_AUTO, 0, PLAN_HOST_AUTO, 0, &pm, true, &x, &err), STATUS_OK);
    assert_int_equal(x.device_slots, 20);
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_AUTO, 0, PLAN_HOST_AUTO, 0, &pm, false, &x, &err), STATUS_OK);
    assert_int_equal(x.device_slots, 64);
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_BYTES, 50, PLAN_HOST_AUTO, 0, &pm, true, &x, &err), STATUS_OK);
    assert_int_equal(x.device_slots, 50);
}

/* Slots are pinned where they and everything else that is fit the limit; else the ring is, which is a part of everything else; else nothing. */
static void pins_within_a_limit(void **state) {
    (void)state;
    const expert_bank bank = a_bank();
    const size_t ring = (size_t)4 * MIB, others = (size_t)7 * MIB; /* four experts on their way, each in a piece; others: with it */
    assert_int_equal(staging_ring_bytes(expert_store_device_staging(&bank)), ring);
    const uint64_t eight = expert_store_stream_slot_bytes(&bank, 8);
    const struct {
        bool given;
        uint64_t pinned, host;
        plan_pin pin;
        const char *says;
    } cases[] = {
        {true, others + eight, 200, PLAN_PIN_SLOTS, "host slots: pinned (of 15.0 MiB that may be)"},
        {true, others + eight - 1, 200, PLAN_PIN_RING, "host slots: not pinned, 8.0 MiB (of 15.0 MiB that may be): copies are staged through 4.0 MiB"},
        {true, others, 200, PLAN_PIN_RING, "staged through 4.0 MiB"},
        {true, others - 1, 200, PLAN_PIN_DRIVER, "host slots: not pinned, 8.0 MiB, nor the 4.0 MiB to stage them beside 3.0 MiB of other staging (of 7.0 MiB that may be): copies go through the driver"},
        {true, 0, 200, PLAN_PIN_DRIVER, "through the driver"},
        {false, 0, 200, PLAN_PIN_SLOTS, "pinned (of 100.0 MiB"},
        {false, 0, 0, PLAN_PIN_SLOTS, "host slots: pinned\n"}, /* nobody knows how much there is: nothing limits it */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (plan_pool kind = PLAN_POOL_SHARED; kind <= PLAN_POOL_OWN; kind++) {
            engine_plan p = the_rest(kind);
            plan_machine pm = machine(kind, cases[i].host, 200);
            plan_experts x;
            error err = {0};
            mem *m;
            textbuf line;
            p.bytes[MEM_STAGING] = others;
            pm.pinned_given = cases[i].given;
            pm.pinned_bytes = cases[i].pinned;
            const plan_experts_request r = {.tier = PLAN_EXPERTS_STREAM, .device = PLAN_HOST_MIN, .host = PLAN_HOST_BYTES, .host_bytes = (uint64_t)8 * MIB};
            assert_int_equal(plan_experts_choose_device(&bank, &r, &p, &pm, false, &x, &err), STATUS_OK);
            assert_int_equal(x.pin, cases[i].pin == PLAN_PIN_SLOTS && kind == PLAN_POOL_SHARED ? PLAN_PIN_RING : cases[i].pin); /* of one pool slots are never pinned */
            assert_int_equal(x.staging_bytes, ring);
            if (kind == PLAN_POOL_SHARED) continue;
            assert_int_equal(mem_create(&m), STATUS_OK);
            textbuf_init(&line, m, MEM_PROCESS);
            plan_pin_print(&x, &line);
            assert_contains(textbuf_text(&line), cases[i].says);
            textbuf_deinit(&line);
            assert_int_equal(mem_destroy(m), STATUS_OK);
        }
    }
}

/* A size that nobody asked for leaves room for what else is pinned, and takes more than half of the host where more may be pinned. */
static void slots_unasked_are_pinned(void **state) {
    (void)state;
    const expert_bank bank = a_bank();
    const plan_experts_request r = {.tier = PLAN_EXPERTS_STREAM, .device = PLAN_HOST_MIN};
    for (uint64_t given = 0; given <= 60; given += 20) {
        engine_plan p = the_rest(PLAN_POOL_OWN);
        plan_machine pm = machine(PLAN_POOL_OWN, 124, 200);
        plan_experts x;
        error err = {0};
        p.bytes[MEM_STAGING] = (size_t)30 * MIB; /* of 62; 64 are left on the host */
        pm.pinned_given = given > 0;
        pm.pinned_bytes = given == 60 ? (uint64_t)80 * MIB : given * MIB;
        assert_int_equal(plan_experts_choose_device(&bank, &r, &p, &pm, false, &x, &err), STATUS_OK);
        assert_int_equal(x.n_slots, given == 60 ? 49 : 31);
        assert_int_equal(x.pin, given == 20 ? PLAN_PIN_DRIVER : given == 40 ? PLAN_PIN_RING : PLAN_PIN_SLOTS);
    }
}

static void admission_at_run_time(void **state) {
    (void)state;
    error err = {0};
    plan_admission a = {.pool = PLAN_POOL_OWN, .need_bytes = (uint64_t)30 * MIB, .device_free_bytes = (uint64_t)30 * MIB, .host_available_bytes = 1, .host_unused_bytes = (uint64_t)99 * MIB};
    assert_int_equal(plan_admit(&a, "slots", &err), STATUS_OK); /* what hosts do is their own business */
    a.need_bytes++;
    assert_int_equal(plan_admit(&a, "slots", &err), STATUS_NOT_NOW);
    a = (plan_admission){.pool = PLAN_POOL_SHARED, .need_bytes = (uint64_t)30 * MIB, .device_free_bytes = (uint64_t)90 * MIB, .host_available_bytes = (uint64_t)80 * MIB, .host_unused_bytes = (uint64_t)50 * MIB};
    assert_int_equal(plan_admit(&a, "slots", &err), STATUS_OK); /* 80 - 50 */
    a.host_unused_bytes++;
    assert_int_equal(plan_admit(&a, "slots", &err), STATUS_NOT_NOW);
    assert_contains(err.text, "host and device share one pool");
    a.host_unused_bytes = (uint64_t)100 * MIB; /* more than is free */
    assert_int_equal(plan_admit(&a, "slots", &err), STATUS_NOT_NOW);
    a.host_available_bytes = 0; /* unknown: the device's figure alone */
    a.host_unused_bytes = (uint64_t)60 * MIB;
    assert_int_equal(plan_admit(&a, "slots", &err), STATUS_OK);
    for (plan_pool kind = PLAN_POOL_SHARED; kind <= PLAN_POOL_OWN; kind++) {
        a = (plan_admission){.pool = kind, .need_bytes = (uint64_t)30 * MIB, .host_available_bytes = (uint64_t)999 * MIB};
        assert_int_equal(plan_admit(&a, "slots", &err), STATUS_NOT_NOW);
        assert_contains(err.text, "without --device-mem");
        a.budget_bytes = a.need_bytes - 1;
        assert_int_equal(plan_admit(&a, "slots", &err), STATUS_NOT_NOW);
        a.budget_bytes++;
        assert_int_equal(plan_admit(&a, "slots", &err), STATUS_OK);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_pool_is_charged_its_own), cmocka_unit_test(unknown_admits_nothing_without_a_budget), cmocka_unit_test(free_memory_does_not_judge_a_load),
        cmocka_unit_test(experts_over_two_tiers),       cmocka_unit_test(one_pool_is_shared_out),                  cmocka_unit_test(what_is_open_follows_the_day),
        cmocka_unit_test(admission_at_run_time),   cmocka_unit_test(pins_within_a_limit),                     cmocka_unit_test(slots_unasked_are_pinned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
