/* SPDX-License-Identifier: Apache-2.0 */
/* The eviction policy on cases small enough to work out by hand, and the founding failure of its ancestor: a cap on slots that was tested before evicting, so that eviction never ran. */
#include "support/test_case.h"

#include "moe/expert_policy.h"

static expert_policy *make(mem *m, expert_policy_kind kind, int32_t n_slots) {
    error err = {0};
    expert_policy *p = NULL;
    if (expert_policy_create(m, kind, n_slots, 8, 1024, &p, &err) != STATUS_OK) fail_msg("%s", err.text);
    return p;
}

static int32_t place(expert_policy *p, int32_t layer, int32_t expert, int32_t limit) {
    uint64_t n = 0;
    const int32_t slot = expert_policy_place(p, layer, expert, limit, &n);
    assert_true(expert_policy_check(p));
    return slot;
}

static void capacity_24_goes_on_after_it_is_full(void **state) {
    (void)state;
    static const expert_policy_kind kinds[] = {EXPERT_POLICY_LRU, EXPERT_POLICY_DECAY, EXPERT_POLICY_LAYER_QUOTA, EXPERT_POLICY_BLEND};
    for (size_t k = 0; k < 4; k++) {
        mem *m = test_mem();
        expert_policy *p = make(m, kinds[k], 24);
        const uint64_t allocs = mem_alloc_count(m);
        uint64_t n_evicted = 0;
        for (int32_t i = 0; i < 10000; i++) {
            const int32_t layer = i % 8, expert = i / 8 % 1024;
            if (expert_policy_find(p, layer, expert) < 0) assert_true(expert_policy_place(p, layer, expert, 24, &n_evicted) >= 0);
            assert_true(expert_policy_used(p) <= 24);
            if (i % 8 == 7) expert_policy_step(p);
        }
        assert_int_equal(expert_policy_used(p), 24);
        assert_int_equal(n_evicted, 10000 - 24);
        assert_int_equal(mem_alloc_count(m), allocs);
        assert_true(expert_policy_check(p));
        expert_policy_destroy(p);
        test_mem_check(m);
    }
}

static void the_least_recently_used_goes(void **state) {
    (void)state;
    mem *m = test_mem();
    expert_policy *p = make(m, EXPERT_POLICY_LRU, 3);
    for (int32_t e = 0; e < 3; e++) assert_int_equal(place(p, 0, e, 3), e);
    expert_policy_touch(p, 0);
    assert_int_equal(place(p, 0, 3, 3), 1); /* 1 was used before 2 */
    assert_int_equal(expert_policy_find(p, 0, 1), -1);
    assert_int_equal(expert_policy_find(p, 0, 0), 0);
    expert_policy_destroy(p);
    test_mem_check(m);
}

/* 0 is used three times, then 1 once a step: after n steps 0 has about 3 * 0.98^n, 1 about 50 * (1 - 0.98^n); they cross in the second step. */
static void frequency_fades(void **state) {
    (void)state;
    for (int steps = 0; steps < 6; steps++) {
        mem *m = test_mem();
        expert_policy *p = make(m, EXPERT_POLICY_DECAY, 2);
        double a = 3, b = 1;
        const int32_t s0 = place(p, 0, 0, 2);
        expert_policy_touch(p, s0);
        expert_policy_touch(p, s0);
        const int32_t s1 = place(p, 0, 1, 2);
        for (int i = 0; i < steps; i++) {
            expert_policy_step(p);
            expert_policy_touch(p, s1);
            a *= 0.98;
            b = b * 0.98 + 1;
        }
        assert_int_equal(place(p, 0, 2, 2), a < b ? s0 : s1);
        expert_policy_destroy(p);
        test_mem_check(m);
    }
}

/* A cycle of 4 layers x 3 experts through 8 slots: LRU never hits, quotas of 2 a layer keep what they can. */
static void a_cycle_that_does_not_fit(void **state) {
    (void)state;
    int hits[4] = {0};
    static const expert_policy_kind kinds[] = {EXPERT_POLICY_LRU, EXPERT_POLICY_DECAY, EXPERT_POLICY_LAYER_QUOTA, EXPERT_POLICY_BLEND};
    for (size_t k = 0; k < 4; k++) {
        mem *m = test_mem();
        expert_policy *p = make(m, kinds[k], 8);
        uint64_t n = 0, r = 88172645463325252u;
        for (int step = 0; step < 400; step++) {
            for (int32_t l = 0; l < 4; l++) {
                for (int j = 0; j < 2; j++) {
                    r ^= r << 13;
                    r ^= r >> 7;
                    r ^= r << 17;
                    const int32_t e = (int32_t)(r % 3);
                    const int32_t slot = expert_policy_find(p, l, e);
                    if (slot >= 0) {
                        hits[k]++;
                        expert_policy_touch(p, slot);
                    } else {
                        assert_true(expert_policy_place(p, l, e, 8, &n) >= 0);
                    }
                }
            }
            expert_policy_step(p);
        }
        expert_policy_destroy(p);
        test_mem_check(m);
    }
    print_message("hits of 3200: LRU %d, decay %d, quota %d, blend %d\n", hits[0], hits[1], hits[2], hits[3]);
    assert_true(hits[2] > hits[0] && hits[3] > hits[0]);
}

static void what_is_protected_stays(void **state) {
    (void)state;
    mem *m = test_mem();
    expert_policy *p = make(m, EXPERT_POLICY_LRU, 2);
    const int32_t a = place(p, 0, 0, 2), b = place(p, 0, 1, 2);
    expert_policy_protect(p, a, true);
    expert_policy_protect(p, a, true);
    assert_int_equal(place(p, 0, 2, 2), b);
    expert_policy_protect(p, b, true);
    assert_int_equal(place(p, 0, 3, 2), -1);
    expert_policy_protect(p, a, false);
    assert_int_equal(place(p, 0, 3, 2), -1); /* protected twice */
    expert_policy_protect(p, a, false);
    assert_int_equal(place(p, 0, 3, 2), a);
    expert_policy_protect(p, b, false);
    expert_policy_destroy(p);
    test_mem_check(m);
}

static void forgotten_under_protection(void **state) {
    (void)state;
    mem *m = test_mem();
    expert_policy *p = make(m, EXPERT_POLICY_LRU, 1);
    const int32_t a = place(p, 0, 0, 1);
    expert_policy_protect(p, a, true);
    expert_policy_forget(p, a);
    assert_int_equal(expert_policy_find(p, 0, 0), -1);
    assert_int_equal(expert_policy_used(p), 1);
    assert_int_equal(place(p, 0, 1, 1), -1); /* somebody still writes there */
    expert_policy_protect(p, a, false);
    assert_int_equal(expert_policy_used(p), 0);
    assert_int_equal(place(p, 0, 1, 1), a);
    expert_policy_destroy(p);
    test_mem_check(m);
}

static void a_smaller_limit_evicts_first(void **state) {
    (void)state;
    mem *m = test_mem();
    expert_policy *p = make(m, EXPERT_POLICY_LRU, 8);
    uint64_t n = 0;
    for (int32_t e = 0; e < 8; e++) (void)place(p, 0, e, 8);
    assert_true(expert_policy_place(p, 0, 8, 3, &n) >= 0); /* 6 go, one comes */
    assert_int_equal(n, 6);
    assert_int_equal(expert_policy_used(p), 3);
    assert_int_equal(expert_policy_shrink(p, 1), 2);
    assert_int_equal(expert_policy_find(p, 0, 8) >= 0, true);
    assert_int_equal(place(p, 0, 9, 0), -1);
    assert_int_equal(expert_policy_used(p), 0);
    expert_policy_destroy(p);
    test_mem_check(m);
}

/* What is computed elsewhere: a free slot at once, that of another only when it was used again, and is worth more. */
static void uses_without_a_slot(void **state) {
    (void)state;
    mem *m = test_mem();
    expert_policy *p = make(m, EXPERT_POLICY_BLEND, 2);
    uint64_t n = 0;
    for (int32_t e = 0; e < 2; e++) {
        expert_policy_use(p, 0, e);
        assert_int_equal(expert_policy_place_used(p, 0, e, 2, &n), e);
    }
    expert_policy_touch(p, 0);
    expert_policy_touch(p, 1);
    expert_policy_step(p);
    expert_policy_use(p, 0, 2);
    assert_int_equal(expert_policy_place_used(p, 0, 2, 2, &n), -1); /* its first use */
    expert_policy_use(p, 1, 7);
    assert_int_equal(expert_policy_place_used(p, 1, 7, 2, &n), -1);
    expert_policy_touch(p, 1);
    for (int i = 0; i < 2; i++) {
        expert_policy_step(p);
        expert_policy_use(p, 0, 2);
        expert_policy_touch(p, 1);
    }
    assert_int_equal(expert_policy_place_used(p, 0, 2, 2, &n), 0); /* 0 has not been used for long, 1 has */
    assert_int_equal(n, 1);
    assert_int_equal(expert_policy_find(p, 0, 0), -1);
    expert_policy_use(p, 0, 0);
    assert_int_equal(expert_policy_place_used(p, 0, 0, 2, &n), -1); /* used before, and worth less than both */
    expert_policy_protect(p, 0, true);
    expert_policy_protect(p, 1, true);
    for (int i = 0; i < 9; i++) expert_policy_use(p, 0, 0);
    assert_int_equal(expert_policy_place_used(p, 0, 0, 2, &n), -1);
    expert_policy_protect(p, 0, false);
    expert_policy_protect(p, 1, false);
    assert_true(expert_policy_place_used(p, 0, 0, 2, &n) >= 0);
    assert_true(expert_policy_check(p));
    expert_policy_destroy(p);
    test_mem_check(m);
}

static void no_memory_and_nonsense_are_refused(void **state) {
    (void)state;
    mem *m = test_mem();
    error err = {0};
    expert_policy *p = NULL;
    int n_failed = 0;
    for (uint64_t n = 0; n < 6; n++) {
        mem_fail_after(m, n);
        if (expert_policy_create(m, EXPERT_POLICY_LRU, 4, 2, 8, &p, &err) == STATUS_NO_MEMORY) n_failed++;
        mem_fail_off(m);
    }
    assert_int_equal(n_failed, 6);
    assert_int_equal(expert_policy_create(m, EXPERT_POLICY_LRU, 0, 2, 8, &p, &err), STATUS_INVALID);
    assert_int_equal(expert_policy_create(m, EXPERT_POLICY_LRU, 4, 1 << 20, 1 << 20, &p, &err), STATUS_INVALID);
    mem_usage before, after;
    mem_get_total(m, &before);
    assert_int_equal(expert_policy_create(m, EXPERT_POLICY_LRU, 1000, 93, 512, &p, &err), STATUS_OK);
    mem_get_total(m, &after);
    assert_true(after.used_bytes - before.used_bytes <= expert_policy_bytes(1000, 93, 512));
    expert_policy_destroy(p);
    test_mem_check(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(capacity_24_goes_on_after_it_is_full), cmocka_unit_test(the_least_recently_used_goes),
        cmocka_unit_test(frequency_fades),                      cmocka_unit_test(a_cycle_that_does_not_fit),
        cmocka_unit_test(what_is_protected_stays),              cmocka_unit_test(forgotten_under_protection),
        cmocka_unit_test(a_smaller_limit_evicts_first),         cmocka_unit_test(no_memory_and_nonsense_are_refused),
        cmocka_unit_test(uses_without_a_slot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
