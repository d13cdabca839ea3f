/* SPDX-License-Identifier: Apache-2.0 */
/* Where experts go, as a pure function of a bank's sizes, the rest of the plan and the machine: numbers worked out by hand. */
#include "support/test_case.h"

#include "engine/plan.h"

enum { MIB = 1048576, LAYERS = 4, EXPERTS = 16, TOP_K = 2 };

/* Experts of 1 MiB: 64 of them, 8 to a token, 2 to a wave. Everything else: 100 MiB. */
static expert_layer layers[LAYERS];
static expert_bank a_bank(void) {
    for (int l = 0; l < LAYERS; l++) layers[l] = (expert_layer){.n_experts = EXPERTS, .n_parts = 1, .top_k = TOP_K, .slot_bytes = MIB, .file_bytes = MIB};
    return (expert_bank){.n_layers = LAYERS, .layers = layers, .max_slot_bytes = MIB, .stream_slot_bytes = MIB, .max_top_k = TOP_K, .max_experts = EXPERTS, .total_bytes = (uint64_t)LAYERS * EXPERTS * MIB};
}

static engine_plan the_rest(void) { return (engine_plan){.total_bytes = (size_t)100 * MIB}; }

static status choose(plan_tier tier, plan_host host, uint64_t bytes, load_mode load, uint64_t total_mib, uint64_t available_mib, plan_experts *out, error *err) {
    const expert_bank bank = a_bank();
    const engine_plan p = the_rest();
    const plan_experts_request r = {.tier = tier, .host = host, .host_bytes = bytes, .load = load};
    const plan_machine pm = {.total_bytes = total_mib * MIB, .available_bytes = available_mib * MIB};
    *err = (error){0};
    return plan_experts_choose(&bank, &r, &p, &pm, available_mib > 0, out, err);
}

static void auto_takes_what_fits(void **state) {
    (void)state;
    plan_experts x;
    error err;
    assert_int_equal(choose(PLAN_EXPERTS_NONE, PLAN_HOST_AUTO, 0, LOAD_AUTO, 165, 0, &x, &err), STATUS_OK); /* 164, and tables */
    assert_int_equal(x.tier, PLAN_EXPERTS_RESIDENT);
    assert_true(x.tier_chosen);
    assert_int_equal(choose(PLAN_EXPERTS_NONE, PLAN_HOST_AUTO, 0, LOAD_AUTO, 164, 0, &x, &err), STATUS_OK);
    assert_int_equal(x.tier, PLAN_EXPERTS_STREAM);
    assert_int_equal(x.n_slots, 63); /* 64 MiB less tables */
    assert_int_equal(choose(PLAN_EXPERTS_NONE, PLAN_HOST_AUTO, 0, LOAD_AUTO, 103, 0, &x, &err), STATUS_OK);
    assert_int_equal(x.n_slots, 2);
    assert_int_equal(choose(PLAN_EXPERTS_NONE, PLAN_HOST_AUTO, 0, LOAD_AUTO, 102, 0, &x, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "even the least slots for experts, 2 of 1.00 MiB");
    assert_int_equal(choose(PLAN_EXPERTS_NONE, PLAN_HOST_AUTO, 0, LOAD_AUTO, 0, 0, &x, &err), STATUS_OK); /* unknown */
    assert_int_equal(x.tier, PLAN_EXPERTS_RESIDENT);
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_AUTO, 0, LOAD_AUTO, 0, 0, &x, &err), STATUS_OK);
    assert_int_equal(x.n_slots, 8); /* what one token takes, not everything */
}

static void a_size_left_open_follows_the_day(void **state) {
    (void)state;
    plan_experts x;
    error err;
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_AUTO, 0, LOAD_AUTO, 151, 121, &x, &err), STATUS_OK);
    assert_int_equal(x.n_slots, 20);
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_AUTO, 0, LOAD_AUTO, 151, 0, &x, &err), STATUS_OK); /* a verdict does not */
    assert_int_equal(x.n_slots, 50);
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_AUTO, 0, LOAD_AUTO, 151, 50, &x, &err), STATUS_OK); /* one wave: the live check refuses */
    assert_int_equal(x.n_slots, 2);
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_BYTES, (uint64_t)40 * MIB, LOAD_AUTO, 151, 121, &x, &err), STATUS_OK); /* asked for: kept */
    assert_int_equal(x.n_slots, 40);
}

static void sizes_that_were_asked_for(void **state) {
    (void)state;
    plan_experts x;
    error err;
    assert_int_equal(choose(PLAN_EXPERTS_NONE, PLAN_HOST_MIN, 0, LOAD_AUTO, 500, 0, &x, &err), STATUS_OK);
    assert_int_equal(x.tier, PLAN_EXPERTS_STREAM);
    assert_int_equal(x.n_slots, 2);
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_ALL, 0, LOAD_AUTO, 500, 0, &x, &err), STATUS_OK);
    assert_int_equal(x.n_slots, 64);
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_BYTES, (uint64_t)900 * MIB, LOAD_AUTO, 500, 0, &x, &err), STATUS_OK);
    assert_int_equal(x.n_slots, 64);
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_BYTES, (uint64_t)2 * MIB - 1, LOAD_AUTO, 500, 0, &x, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "the least is 2097152 bytes (2 slots of 1048576), --host-experts min");
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_ALL, 0, LOAD_AUTO, 151, 0, &x, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "--host-experts 50M would fit");
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_BYTES, (uint64_t)50 * MIB, LOAD_AUTO, 151, 0, &x, &err), STATUS_OK); /* and it does */
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_BYTES, (uint64_t)51 * MIB, LOAD_AUTO, 151, 0, &x, &err), STATUS_DOES_NOT_FIT); /* and is the most */
}

static void resident_that_does_not_fit(void **state) {
    (void)state;
    plan_experts x;
    error err;
    assert_int_equal(choose(PLAN_EXPERTS_RESIDENT, PLAN_HOST_AUTO, 0, LOAD_AUTO, 151, 0, &x, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "resident experts of 64.0 MiB and 100.0 MiB for everything else exceed the 151.0 MiB");
    assert_contains(err.text, "--experts stream --host-experts 50M would fit");
    assert_int_equal(choose(PLAN_EXPERTS_NONE, PLAN_HOST_AUTO, 0, LOAD_MAP, 151, 0, &x, &err), STATUS_DOES_NOT_FIT); /* mapped was asked for */
    assert_int_equal(choose(PLAN_EXPERTS_RESIDENT, PLAN_HOST_AUTO, 0, LOAD_AUTO, 101, 0, &x, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "streaming takes at least 102.1 MiB");
}

static void flags_that_contradict(void **state) {
    (void)state;
    plan_experts x;
    error err;
    assert_int_equal(choose(PLAN_EXPERTS_RESIDENT, PLAN_HOST_MIN, 0, LOAD_AUTO, 500, 0, &x, &err), STATUS_INVALID);
    assert_int_equal(choose(PLAN_EXPERTS_STREAM, PLAN_HOST_AUTO, 0, LOAD_MAP, 500, 0, &x, &err), STATUS_INVALID);
    assert_int_equal(choose(PLAN_EXPERTS_NONE, PLAN_HOST_MIN, 0, LOAD_MAP, 500, 0, &x, &err), STATUS_INVALID);
}

static void machines_by_name(void **state) {
    (void)state;
    plan_machine pm;
    error err = {0};
    assert_int_equal(plan_machine_pose("unified=1,device_total=100,mem_total=120", &pm, &err), STATUS_OK);
    assert_int_equal(pm.total_bytes, 100);
    assert_int_equal(pm.available_bytes, 0);
    assert_int_equal(plan_machine_pose("unified=1,device_total=2G", &pm, &err), STATUS_OK);
    assert_int_equal(pm.total_bytes, (uint64_t)2 << 30);
    assert_int_equal(plan_machine_pose("mem_total=1M", &pm, &err), STATUS_OK);
    assert_int_equal(pm.total_bytes, MIB);
    assert_int_equal(plan_machine_pose("unified=1", &pm, &err), STATUS_OK);
    assert_int_equal(pm.total_bytes, 0);
    assert_int_equal(pm.pool, PLAN_POOL_HOST);
    assert_int_equal(plan_machine_pose("device_total=1G,mem_total=2G", &pm, &err), STATUS_OK); /* memory of its own */
    assert_int_equal(pm.pool, PLAN_POOL_OWN);
    assert_int_equal(pm.total_bytes, (uint64_t)2 << 30);
    assert_int_equal(pm.device_total_bytes, (uint64_t)1 << 30);
    static const char *const bad[] = {"", "x", "mem_total", "mem_total=", "mem_total=-1", "unified=2", "mem_total=1G,", ",", "free=3"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_int_equal(plan_machine_pose(bad[i], &pm, &err), STATUS_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(auto_takes_what_fits),       cmocka_unit_test(a_size_left_open_follows_the_day), cmocka_unit_test(sizes_that_were_asked_for),
        cmocka_unit_test(resident_that_does_not_fit), cmocka_unit_test(flags_that_contradict),            cmocka_unit_test(machines_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
