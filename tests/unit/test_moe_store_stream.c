/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream store on a file of its own: right bytes whatever the budget, never more slots than the budget allows, no allocation after create, and every failure where it belongs. The
 * bytes of an expert are a function of its name, so a slot that holds another's is seen.
 */
#include "support/test_case.h"

#include <errno.h>

#include "unit/moe_case.h"

static int refuse_threads_after = -1;
int __real_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *x);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *x);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *x) {
    if (refuse_threads_after == 0) return EAGAIN;
    if (refuse_threads_after > 0) refuse_threads_after--;
    return __real_pthread_create(t, a, f, x);
}

static size_t slots(const moe_case *k, int n) { return (size_t)n * k->bank.max_slot_bytes; }

static expert_store *make(moe_case *k, expert_stream_options opt) {
    error err = {0};
    expert_store *s = NULL;
    if (expert_store_stream_create(k->m, &k->bank, &opt, &s, &err) != STATUS_OK) fail_msg("%s", err.text);
    return s;
}

static expert_counters count(expert_store *s) {
    expert_counters c;
    s->counters(s, &c);
    return c;
}

static void slots_follow_the_file(void **state) {
    (void)state;
    moe_case k;
    case_open(&k);
    assert_int_equal(k.bank.max_slot_bytes, 128 + 64 + 192);
    assert_int_equal(k.bank.layers[1].file_bytes, 128 + 32 + 192);
    assert_int_equal(expert_stream_min_slots(&k.bank), CASE_TOP_K);
    assert_int_equal(expert_stream_cycle_slots(&k.bank), CASE_TOP_K * CASE_LAYERS);
    assert_int_equal(expert_stream_all_slots(&k.bank), CASE_EXPERTS * CASE_LAYERS);
    /* side by side, but for a gap in the slot: two reads; stacked: one each */
    expert_store *s = make(&k, (expert_stream_options){.budget_bytes = slots(&k, 8)});
    const int32_t ids[] = {5};
    (void)case_run_set(&k, s, 1, ids, 1);
    assert_int_equal(k.n_reads, 2);
    (void)case_run_set(&k, s, CASE_LAYERS, ids, 1);
    assert_int_equal(k.n_reads, 5);
    assert_int_equal(count(s).reads, 5);
    assert_int_equal(s->close(s), STATUS_OK);
    case_close(&k);
}

static void right_bytes_at_every_budget(void **state) {
    (void)state;
    long sets = 0;
    for (int n_slots = CASE_TOP_K; n_slots <= CASE_EXPERTS * CASE_LAYERS; n_slots += n_slots < 20 ? 1 : 11) {
        for (int policy = 0; policy <= 4; policy++) {
            moe_case k;
            case_open(&k);
            expert_store *s = make(&k, (expert_stream_options){.budget_bytes = slots(&k, n_slots), .policy = policy});
            const uint64_t allocs = mem_alloc_count(k.m);
            uint64_t r = 88172645463325252u + (uint64_t)n_slots, asked = 0;
            mem_guard_begin(k.m);
            for (int step = 0; step < 10; step++) {
                for (int l = 1; l <= CASE_LAYERS; l++) {
                    int32_t ids[CASE_EXPERTS];
                    const int32_t n = case_random_set(&r, ids, 1);
                    const int n_waves = case_run_set(&k, s, l, ids, n);
                    assert_int_equal(n_waves, (n + n_slots - 1) / n_slots);
                    asked += (uint64_t)n;
                    sets++;
                }
            }
            mem_guard_end(k.m);
            assert_int_equal(mem_guard_violations(k.m), 0);
            assert_int_equal(mem_alloc_count(k.m), allocs);
            const expert_counters c = count(s);
            assert_int_equal(c.hits + c.misses, asked);
            assert_true(c.misses >= c.distinct && c.distinct <= CASE_EXPERTS * CASE_LAYERS);
            assert_int_equal(c.bytes_read, c.misses * k.bank.layers[1].file_bytes);
            assert_int_equal(c.n_slots, n_slots);
            if (n_slots == CASE_EXPERTS * CASE_LAYERS) {
                assert_int_equal(c.misses, c.distinct);
                assert_int_equal(c.evictions, 0);
            } else if (n_slots < 20) {
                assert_true(c.evictions > 0);
            }
            assert_int_equal(s->close(s), STATUS_OK);
            case_close(&k);
        }
    }
    assert_true(sets > 1000);
}

/* 10,000 admissions through 24 slots: evictions happen, never more than 24 in use, nothing is allocated after the first. */
static void capacity_24(void **state) {
    (void)state;
    moe_case k;
    case_open(&k);
    expert_store *s = make(&k, (expert_stream_options){.budget_bytes = slots(&k, 24) + 100});
    const uint64_t allocs = mem_alloc_count(k.m);
    int32_t ids[CASE_EXPERTS];
    for (int32_t i = 0; i < CASE_EXPERTS; i++) ids[i] = i;
    for (int i = 0; count(s).misses < 10000; i++) {
        (void)case_run_set(&k, s, 1 + i % CASE_LAYERS, ids + i / CASE_LAYERS % 5, 8 + i / 20 % 4);
        assert_true(count(s).bytes_resident <= slots(&k, 24));
    }
    const expert_counters c = count(s);
    assert_int_equal(c.n_slots, 24);
    assert_int_equal(c.evictions, c.misses - 24);
    assert_int_equal(mem_alloc_count(k.m), allocs);
    assert_int_equal(s->close(s), STATUS_OK);
    case_close(&k);
}

static void below_one_wave_is_refused(void **state) {
    (void)state;
    moe_case k;
    case_open(&k);
    error err = {0};
    expert_store *s = NULL;
    const expert_stream_options opt = {.budget_bytes = slots(&k, CASE_TOP_K) - 1};
    assert_int_equal(expert_store_stream_create(k.m, &k.bank, &opt, &s, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "the least is 1152 bytes (3 slots of 384)");
    case_close(&k);
}

/* While reads are under way, what is held is given out; a lease keeps its slot. */
static void hits_come_first_and_leases_hold(void **state) {
    (void)state;
    moe_case k;
    case_open(&k);
    error err = {0};
    expert_store *s = make(&k, (expert_stream_options){.budget_bytes = slots(&k, 6)});
    (void)case_run_set(&k, s, 1, (int32_t[]){2, 9}, 2);
    case_gate(&k, true);
    assert_int_equal(s->begin(s, 1, (int32_t[]){1, 2, 3, 9}, 4, &err), STATUS_OK);
    expert_lease l[4];
    assert_int_equal(s->next_ready(s, &l[0], &err), STATUS_OK);
    assert_int_equal(s->next_ready(s, &l[1], &err), STATUS_OK);
    assert_int_equal(l[0].expert, 2);
    assert_int_equal(l[1].expert, 9);
    case_await_reads(&k, 2); /* both missing ones are being read meanwhile */
    case_gate(&k, false);
    assert_int_equal(s->next_ready(s, &l[2], &err), STATUS_OK);
    assert_int_equal(s->next_ready(s, &l[3], &err), STATUS_OK);
    assert_int_equal(s->next_ready(s, &(expert_lease){0}, &err), STATUS_NOT_FOUND);
    for (int i = 0; i < 4; i++) case_check_lease(&k, &l[i]);
    /* four of six slots are leased: sets of five are cut into waves of two */
    int32_t sizes[CASE_EXPERTS];
    assert_int_equal(s->waves(s, 2, (int32_t[]){0, 1, 2, 3, 4}, 5, sizes), 3);
    assert_int_equal(sizes[0] * 100 + sizes[1] * 10 + sizes[2], 221);
    (void)case_run_set(&k, s, 2, (int32_t[]){0, 1, 2, 3, 4}, 5);
    for (int i = 0; i < 4; i++) case_check_lease(&k, &l[i]);
    for (int i = 0; i < 4; i++) s->release(s, &l[i], (vt_fence){0});
    assert_int_equal(s->close(s), STATUS_OK);
    case_close(&k);
}

static size_t budget_now;
static size_t read_budget(void *ctx) {
    (void)ctx;
    return budget_now;
}

static void a_budget_that_moves(void **state) {
    (void)state;
    moe_case k;
    case_open(&k);
    error err = {0};
    budget_now = slots(&k, 12);
    expert_store *s = make(&k, (expert_stream_options){.budget_bytes = slots(&k, 12), .budget = read_budget});
    uint64_t r = 5;
    for (int i = 0; i < 300; i++) {
        int32_t ids[CASE_EXPERTS];
        const int32_t n = case_random_set(&r, ids, 1);
        const int n_slots = 1 + (int)(case_random(&r) % 14);
        budget_now = slots(&k, n_slots);
        (void)case_run_set(&k, s, 1 + i % CASE_LAYERS, ids, n);
        assert_true(count(s).bytes_resident <= budget_now);
    }
    /* it shrinks between the cut and the wave, and within it: the experts come one after the other */
    budget_now = slots(&k, 12);
    int32_t sizes[CASE_EXPERTS];
    assert_int_equal(s->waves(s, 1, (int32_t[]){0, 1, 2, 3}, 4, sizes), 1);
    budget_now = slots(&k, 2);
    assert_int_equal(s->begin(s, 1, (int32_t[]){0, 1, 2, 3}, 4, &err), STATUS_OK);
    for (int i = 0; i < 4; i++) {
        expert_lease l;
        budget_now = slots(&k, 1);
        assert_int_equal(s->next_ready(s, &l, &err), STATUS_OK);
        case_check_lease(&k, &l);
        s->release(s, &l, (vt_fence){0});
    }
    assert_int_equal(s->next_ready(s, &(expert_lease){0}, &err), STATUS_NOT_FOUND);
    budget_now = 0;
    assert_int_equal(s->begin(s, 1, (int32_t[]){7}, 1, &err), STATUS_OK);
    expert_lease l;
    assert_int_equal(s->next_ready(s, &l, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "expert 7 of layer 1 finds no slot");
    s->cancel(s);
    assert_int_equal(s->close(s), STATUS_OK);
    case_close(&k);
}

static void a_failed_read_fails_one_expert(void **state) {
    (void)state;
    for (int part = 0; part < CASE_PARTS; part++) {
        moe_case k;
        case_open(&k);
        expert_store *s = make(&k, (expert_stream_options){.budget_bytes = slots(&k, 8)});
        for (int layer = 1; layer <= CASE_LAYERS; layer++) {
            int n_failed = 0, n_good = 0;
            error err = {0};
            case_fail_expert(&k, layer, 6, part);
            assert_int_equal(s->begin(s, layer, (int32_t[]){4, 5, 6, 7}, 4, &err), STATUS_OK);
            for (expert_lease l;;) {
                const status rc = s->next_ready(s, &l, &err);
                if (rc == STATUS_NOT_FOUND) break;
                if (rc == STATUS_OK) {
                    case_check_lease(&k, &l);
                    s->release(s, &l, (vt_fence){0});
                    n_good++;
                    continue;
                }
                char where[64];
                snprintf(where, sizeof where, "expert 6 of layer %d", layer);
                assert_int_equal(rc, STATUS_IO);
                assert_int_equal(l.expert, 6);
                assert_contains(err.text, where);
                assert_contains(err.text, "experts.gguf");
                assert_contains(err.text, "expected");
                n_failed++;
            }
            assert_int_equal(n_failed, 1);
            assert_int_equal(n_good, 3);
            case_fail_expert(&k, layer, 6, -1);
            const uint64_t misses = count(s).misses;
            (void)case_run_set(&k, s, layer, (int32_t[]){4, 5, 6, 7}, 4); /* the slot was empty, not wrong */
            assert_int_equal(count(s).misses, misses + 1);
        }
        assert_int_equal(count(s).failed, CASE_LAYERS);
        assert_int_equal(s->close(s), STATUS_OK);
        case_close(&k);
    }
}

static void a_file_cut_short(void **state) {
    (void)state;
    moe_case k;
    case_open(&k);
    error err = {0};
    expert_store *s = make(&k, (expert_stream_options){.budget_bytes = slots(&k, 8)});
    (void)case_run_set(&k, s, 1, (int32_t[]){0, 1}, 2);
    const tensor_info *last = k.bank.layers[CASE_LAYERS].spans[0].tensor;
    assert_int_equal(truncate(k.path, (off_t)(last->off + 40)), 0);
    assert_int_equal(s->begin(s, CASE_LAYERS, (int32_t[]){0, 1, 2}, 3, &err), STATUS_OK);
    expert_lease l;
    assert_int_equal(s->next_ready(s, &l, &err), STATUS_IO);
    assert_contains(err.text, "experts.gguf");
    assert_contains(err.text, "expected");
    assert_contains(err.text, "got");
    s->cancel(s);
    (void)case_run_set(&k, s, 1, (int32_t[]){0, 1}, 2); /* what was read before is still good */
    assert_int_equal(s->close(s), STATUS_OK);
    case_close(&k);
}

static void cancel_in_mid_wave(void **state) {
    (void)state;
    moe_case k;
    case_open(&k);
    error err = {0};
    expert_store *s = make(&k, (expert_stream_options){.budget_bytes = slots(&k, 10), .n_readers = 2});
    (void)case_run_set(&k, s, 1, (int32_t[]){3}, 1);
    case_gate(&k, true);
    assert_int_equal(s->begin(s, 1, (int32_t[]){1, 3, 4, 5, 6, 7, 8, 9}, 8, &err), STATUS_OK);
    expert_lease l;
    assert_int_equal(s->next_ready(s, &l, &err), STATUS_OK);
    s->release(s, &l, (vt_fence){0});
    case_await_reads(&k, 2); /* two are being read, five are queued */
    case_gate(&k, false);
    s->cancel(s);
    assert_int_equal(s->next_ready(s, &l, &err), STATUS_NOT_FOUND);
    assert_int_equal(count(s).failed, 0);
    int32_t sizes[CASE_EXPERTS], all[CASE_EXPERTS];
    for (int32_t i = 0; i < CASE_EXPERTS; i++) all[i] = i;
    assert_int_equal(s->waves(s, 1, all, 10, sizes), 1); /* no lease stayed */
    (void)case_run_set(&k, s, 1, all, CASE_EXPERTS);
    assert_int_equal(s->close(s), STATUS_OK);

    /* close cancels too, and tells of a lease that was not given back */
    s = make(&k, (expert_stream_options){.budget_bytes = slots(&k, 10), .n_readers = 2});
    assert_int_equal(s->begin(s, 1, all, 8, &err), STATUS_OK);
    assert_int_equal(s->next_ready(s, &l, &err), STATUS_OK);
    assert_int_equal(s->begin(s, 1, all, 2, &err), STATUS_BUG);
    assert_int_equal(s->close(s), STATUS_BUG);
    case_close(&k);
}

static void every_failing_allocation_and_thread(void **state) {
    (void)state;
    moe_case k;
    case_open(&k);
    error err = {0};
    expert_store *s = NULL;
    const expert_stream_options opt = {.budget_bytes = slots(&k, 8)};
    int n_failed = 0;
    for (uint64_t n = 0;; n++) {
        mem_fail_after(k.m, n);
        const status rc = expert_store_stream_create(k.m, &k.bank, &opt, &s, &err);
        mem_fail_off(k.m);
        if (rc == STATUS_OK) break;
        assert_int_equal(rc, STATUS_NO_MEMORY);
        n_failed++;
    }
    assert_true(n_failed > 10);
    mem_usage tables, experts;
    assert_int_equal(s->close(s), STATUS_OK);
    mem_usage before;
    mem_get_usage(k.m, MEM_MODEL, &before);
    s = make(&k, opt);
    mem_get_usage(k.m, MEM_MODEL, &tables);
    mem_get_usage(k.m, MEM_EXPERTS, &experts);
    assert_true(tables.used_bytes - before.used_bytes <= expert_store_stream_table_bytes(&k.bank, 8));
    assert_true(experts.used_bytes <= expert_store_stream_slot_bytes(&k.bank, 8));
    assert_int_equal(s->close(s), STATUS_OK);

    refuse_threads_after = 0;
    assert_int_equal(expert_store_stream_create(k.m, &k.bank, &opt, &s, &err), STATUS_FAILED);
    assert_contains(err.text, "no thread to read with");
    refuse_threads_after = 1; /* fewer do as well */
    s = make(&k, opt);
    refuse_threads_after = -1;
    (void)case_run_set(&k, s, 1, (int32_t[]){1, 2, 3, 4}, 4);
    assert_int_equal(s->close(s), STATUS_OK);
    case_close(&k);
}

/*
 * A rolling store takes a set larger than its slots as one wave: experts that are held are hits whatever comes before them, and the reads of what follows are under way while an expert is
 * out; the slots never suffice for all.
 */
static void a_rolling_wave(void **state) {
    (void)state;
    moe_case k;
    case_open(&k);
    error err = {0};
    int32_t all[CASE_EXPERTS], sizes[CASE_EXPERTS];
    for (int32_t i = 0; i < CASE_EXPERTS; i++) all[i] = i;
    expert_store *s = make(&k, (expert_stream_options){.budget_bytes = slots(&k, 4), .rolling = true});
    assert_int_equal(s->waves(s, 1, all, CASE_EXPERTS, sizes), 1);
    assert_int_equal(sizes[0], CASE_EXPERTS);
    for (int round = 0; round < 20; round++) assert_int_equal(case_run_set(&k, s, 1 + round % CASE_LAYERS, all, CASE_EXPERTS), 1);
    /* the last in file order are what is held now, and each is a hit though it comes last */
    const expert_counters before = count(s);
    assert_true(before.hits < before.misses && before.evictions > 0);
    int32_t held = 0;
    for (int32_t i = 0; i < CASE_EXPERTS; i++) held += s->holds(s, CASE_LAYERS, i);
    assert_int_equal(held, 4);
    (void)case_run_set(&k, s, CASE_LAYERS, all, CASE_EXPERTS);
    assert_int_equal(count(s).hits, before.hits + 4);
    /* while one expert is out, the reads into the other slots are under way, and no more than that */
    case_gate(&k, true);
    assert_int_equal(s->begin(s, 1, all, CASE_EXPERTS, &err), STATUS_OK);
    case_await_reads(&k, 4);
    case_gate(&k, false);
    expert_lease out[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(s->next_ready(s, &out[i], &err), STATUS_OK);
        assert_true(count(s).bytes_resident <= slots(&k, 4));
    }
    expert_lease none;
    assert_int_equal(s->next_ready(s, &none, &err), STATUS_DOES_NOT_FIT); /* who holds them all and asks on */
    for (int i = 0; i < 4; i++) case_check_lease(&k, &out[i]);
    case_gate(&k, true);
    s->release(s, &out[0], (vt_fence){0});
    case_gate(&k, false);
    assert_int_equal(s->next_ready(s, &out[0], &err), STATUS_OK);
    for (int i = 0; i < 4; i++) s->release(s, &out[i], (vt_fence){0});
    s->cancel(s);
    (void)case_run_set(&k, s, 2, all, CASE_EXPERTS);
    assert_int_equal(s->close(s), STATUS_OK);
    case_close(&k);
}

/* Two stores over one checkpoint know nothing of each other. */
static void two_stores(void **state) {
    (void)state;
    moe_case k, k2;
    case_open(&k);
    case_open(&k2);
    expert_store *a = make(&k, (expert_stream_options){.budget_bytes = slots(&k, 4)}), *b = make(&k2, (expert_stream_options){.budget_bytes = slots(&k2, 30)});
    uint64_t r = 17;
    for (int i = 0; i < 200; i++) {
        int32_t ids[CASE_EXPERTS];
        const int32_t n = case_random_set(&r, ids, 1);
        (void)case_run_set(i % 2 ? &k : &k2, i % 2 ? a : b, 1 + i / 2 % CASE_LAYERS, ids, n);
    }
    assert_true(count(a).evictions > count(b).evictions);
    assert_int_equal(a->close(a), STATUS_OK);
    (void)case_run_set(&k2, b, 1, (int32_t[]){1, 2}, 2);
    assert_int_equal(b->close(b), STATUS_OK);
    case_close(&k);
    case_close(&k2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_follow_the_file),
        cmocka_unit_test(right_bytes_at_every_budget),
        cmocka_unit_test(capacity_24),
        cmocka_unit_test(below_one_wave_is_refused),
        cmocka_unit_test(hits_come_first_and_leases_hold),
        cmocka_unit_test(a_budget_that_moves),
        cmocka_unit_test(a_failed_read_fails_one_expert),
        cmocka_unit_test(a_file_cut_short),
        cmocka_unit_test(cancel_in_mid_wave),
        cmocka_unit_test(every_failing_allocation_and_thread),
        cmocka_unit_test(a_rolling_wave),
        cmocka_unit_test(two_stores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
