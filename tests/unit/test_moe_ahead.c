/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading ahead, on the stream store's checkpoint: hints are read when nothing else is left to begin, whoever takes them gets the right bytes and only when they are complete, wrong hints cost nothing
 * but their bytes, failures fail nobody, and what does not pay stops.
 */
#include "support/test_case.h"

#include "moe/expert_ahead.h"
#include "moe/expert_policy.h"
#include "unit/moe_case.h"

static size_t slots(const moe_case *k, int n) { return (size_t)n * k->bank.max_slot_bytes; }

static expert_store *make(moe_case *k, int n_slots, int n_readers, expert_ahead_mode mode) {
    error err = {0};
    expert_store *s = NULL;
    const expert_stream_options opt = {.budget_bytes = slots(k, n_slots), .n_readers = n_readers, .rolling = true, .ahead = (int32_t)mode};
    if (expert_store_stream_create(k->m, &k->bank, &opt, &s, &err) != STATUS_OK) fail_msg("%s", err.text);
    return s;
}

static expert_counters count(expert_store *s) {
    expert_counters c;
    s->counters(s, &c);
    return c;
}

/* What is left of a wave: every lease is checked and goes back. Returns how many were given; failures are counted in *n_failed. */
static int drain(moe_case *k, expert_store *s, int *n_failed) {
    error err = {0};
    int given = 0;
    for (expert_lease l;;) {
        const status rc = s->next_ready(s, &l, &err);
        if (rc == STATUS_NOT_FOUND) return given;
        if (rc != STATUS_OK) {
            if (n_failed == NULL) fail_msg("%s", err.text);
            ++*n_failed;
            continue;
        }
        case_check_lease(k, &l);
        s->release(s, &l, (vt_fence){0});
        given++;
    }
}

static void begin(expert_store *s, int layer, const int32_t *ids, int32_t n) {
    error err = {0};
    s->enter(s, layer);
    if (s->begin(s, layer, ids, n, &err) != STATUS_OK) fail_msg("%s", err.text);
}

/* A layer whose wave gives a hint about another. */
static void layer_with_hint(moe_case *k, expert_store *s, int layer, const int32_t *ids, int32_t n, int about, const int32_t *hint, int32_t n_hint) {
    begin(s, layer, ids, n);
    s->hint(s, about, hint, n_hint);
    assert_int_equal(drain(k, s, NULL), n);
}

/* Waits until so many reads have begun. */
static void await_begun(moe_case *k, int n) {
    for (int begun = 0; begun < n; usleep(100)) {
        pthread_mutex_lock(&k->lock);
        begun = k->n_reads;
        pthread_mutex_unlock(&k->lock);
    }
}

static const int32_t three[] = {4, 5, 6}, others[] = {1, 2};

static void a_right_hint_is_hits(void **state) {
    (void)state;
    moe_case k;
    case_open(&k);
    expert_store *s = make(&k, 12, 0, EXPERT_AHEAD_ON);
    layer_with_hint(&k, s, 1, others, 2, 2, three, 3);
    begin(s, 2, three, 3);
    assert_int_equal(drain(&k, s, NULL), 3);
    const expert_counters c = count(s);
    assert_int_equal(c.hits, 3);
    assert_int_equal(c.misses, 2);
    assert_int_equal(c.n_prefetched, 3);
    assert_int_equal(c.n_prefetch_used, 3);
    assert_int_equal(c.prefetch_used, 3 * k.bank.layers[2].file_bytes);
    assert_int_equal(c.n_prefetch_wasted + c.prefetch_wasted, 0);
    assert_int_equal(c.bytes_read, 5 * k.bank.layers[1].file_bytes);
    begin(s, 2, three, 3); /* taken once: now they are hits like others */
    assert_int_equal(drain(&k, s, NULL), 3);
    assert_int_equal(count(s).n_prefetch_used, 3);
    assert_int_equal(s->close(s), STATUS_OK);
    case_close(&k);
}

/* With one reader the order of reads is the order of service. */
static void what_is_wanted_goes_first(void **state) {
    (void)state;
    moe_case k;
    case_open(&k);
    expert_store *s = make(&k, 16, 1, EXPERT_AHEAD_ON);
    layer_with_hint(&k, s, 1, others, 2, 1, others, 0);
    case_gate(&k, true);
    s->hint(s, 2, three, 3);
    case_await_reads(&k, 1); /* the first piece of 4, before the gate */
    pthread_mutex_lock(&k.lock);
    const int before = k.n_reads;
    pthread_mutex_unlock(&k.lock);
    error err = {0};
    assert_int_equal(s->begin(s, 3, others, 2, &err), STATUS_OK); /* not the hinted layer: what is queued waits */
    case_gate(&k, false);
    assert_int_equal(drain(&k, s, NULL), 2);
    begin(s, 2, three, 3);
    assert_int_equal(drain(&k, s, NULL), 3);
    assert_int_equal(count(s).n_prefetch_used, 3);
    /* layers 1 to 3 lie one after the other in the file: nothing of layer 2 was read before all of layer 3 */
    const uint64_t third = k.bank.layers[3].spans[0].tensor->off;
    for (int i = before; i < before + 4; i++) assert_true(k.read_off[i] >= third);
    for (int i = before + 4; i < k.n_reads; i++) assert_true(k.read_off[i] < third);
    assert_int_equal(k.n_reads, before + 4 + 5);
    assert_int_equal(s->close(s), STATUS_OK);
    case_close(&k);
}

/* Reads before the closed gate, once there are n of them, or none has come for a while. */
static int count_waiting(moe_case *k, int n) {
    int waiting = 0;
    for (int tries = 0; tries < 200 && waiting < n; tries++) {
        usleep(1000);
        pthread_mutex_lock(&k->lock);
        if (k->n_waiting > waiting) tries = 0;
        waiting = k->n_waiting;
        pthread_mutex_unlock(&k->lock);
    }
    return waiting;
}

/* Four pieces that are wanted and still being read have what is read ahead beside them, so that the disk has no pause; more of them have not. */
static void only_the_last_have_company(void **state) {
    (void)state;
    moe_case k;
    case_open(&k);
    expert_store *s = make(&k, 16, 16, EXPERT_AHEAD_ON);
    case_gate(&k, true);
    begin(s, 1, others, 2); /* of each expert two reads */
    s->hint(s, 2, three, 3);
    const int beside_few = count_waiting(&k, 4 + 6);
    case_gate(&k, false);
    assert_int_equal(drain(&k, s, NULL), 2);
    begin(s, 2, three, 3);
    assert_int_equal(drain(&k, s, NULL), 3);
    assert_int_equal(count(s).n_prefetch_used, 3);
    case_gate(&k, true);
    begin(s, 3, three, 3);
    s->hint(s, 2, others, 2);
    const int beside_many = count_waiting(&k, 6 + 1);
    case_gate(&k, false);
    assert_int_equal(drain(&k, s, NULL), 3);
    assert_int_equal(s->close(s), STATUS_OK);
    case_close(&k);
    assert_int_equal(beside_few, 4 + 6);
    assert_int_equal(beside_many, 6);
}

/* Slots that are being filled for the layer are no reason to cut its wave; and a slot that comes back is filled for the next layer at once. */
static void the_fewest_slots_are_one_wave(void **state) {
    (void)state;
    moe_case k;
    error err = {0};
    int32_t sizes[CASE_EXPERTS];
    case_open(&k);
    const expert_stream_options opt = {.budget_bytes = slots(&k, 3), .n_readers = 8, .ahead = EXPERT_AHEAD_ON};
    expert_store *s = NULL;
    assert_int_equal(expert_store_stream_create(k.m, &k.bank, &opt, &s, &err), STATUS_OK);
    expert_lease l[2], none;
    begin(s, 1, others, 2);
    s->hint(s, 2, three, 3);
    for (int i = 0; i < 2; i++) assert_int_equal(s->next_ready(s, &l[i], &err), STATUS_OK);
    assert_int_equal(s->next_ready(s, &none, &err), STATUS_NOT_FOUND);
    case_gate(&k, true);
    assert_int_equal(count(s).reads, 2 * 3); /* one slot was free */
    for (int i = 0; i < 2; i++) {
        s->release(s, &l[i], (vt_fence){0});
        assert_int_equal(count(s).reads, 2 * (4 + i));
    }
    s->enter(s, 2);
    assert_int_equal(s->waves(s, 2, three, 3, sizes), 1);
    assert_int_equal(s->begin(s, 2, three, 3, &err), STATUS_OK);
    case_gate(&k, false);
    assert_int_equal(drain(&k, s, NULL), 3);
    assert_int_equal(count(s).n_prefetch_used, 3);
    assert_int_equal(s->close(s), STATUS_OK);
    case_close(&k);
}

static void *open_later(void *ctx) {
    moe_case *k = ctx;
    case_await_reads(k, 3);
    usleep(50000); /* only a store that gives out too early is done before */
    case_gate(k, false);
    return NULL;
}

/* What is still being read when it is wanted is waited for. */
static void nothing_is_given_out_early(void **state) {
    (void)state;
    moe_case k;
    pthread_t t;
    case_open(&k);
    static const int32_t taken[] = {4, 5, 9};
    expert_store *s = make(&k, 12, 0, EXPERT_AHEAD_ON);
    layer_with_hint(&k, s, 1, others, 2, 1, others, 0);
    case_gate(&k, true);
    s->hint(s, 2, three, 2);
    case_await_reads(&k, 2);
    assert_false(s->holds(s, 2, 4) || s->holds(s, 2, 5));
    begin(s, 2, taken, 3);
    assert_int_equal(pthread_create(&t, NULL, open_later, &k), 0);
    for (int i = 0; i < 3; i++) {
        error err = {0};
        expert_lease l;
        assert_int_equal(s->next_ready(s, &l, &err), STATUS_OK);
        pthread_mutex_lock(&k.lock);
        assert_false(k.gate);
        pthread_mutex_unlock(&k.lock);
        case_check_lease(&k, &l);
        s->release(s, &l, (vt_fence){0});
    }
    assert_int_equal(drain(&k, s, NULL), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(count(s).n_prefetch_used, 2);
    assert_int_equal(count(s).misses, 3);
    assert_int_equal(s->close(s), STATUS_OK);
    case_close(&k);
}

/* A hint never takes the slot of a lease, of what the wave has not given out yet, or of what it names itself. */
static void what_is_held_stays(void **state) {
    (void)state;
    moe_case k;
    error err = {0};
    case_open(&k);
    static const int32_t wave[] = {0, 1, 2, 3}, many[] = {4, 5, 6, 7, 8, 9};
    expert_store *s = make(&k, 4, 0, EXPERT_AHEAD_ON);
    expert_lease l[4];
    begin(s, 1, wave, 4);
    s->hint(s, 2, many, 6);
    for (int i = 0; i < 4; i++) assert_int_equal(s->next_ready(s, &l[i], &err), STATUS_OK);
    expert_lease none;
    assert_int_equal(s->next_ready(s, &none, &err), STATUS_NOT_FOUND);
    assert_int_equal(count(s).evictions, 0);
    for (int i = 0; i < 4; i++) case_check_lease(&k, &l[i]);
    s->release(s, &l[0], (vt_fence){0}); /* one slot: one of the hinted */
    assert_int_equal(s->next_ready(s, &none, &err), STATUS_NOT_FOUND);
    assert_int_equal(count(s).evictions, 1);
    for (int i = 1; i < 4; i++) case_check_lease(&k, &l[i]);
    for (int i = 1; i < 4; i++) s->release(s, &l[i], (vt_fence){0});
    s->enter(s, 2);
    /* the first of a hint is held: it is not given up for the others */
    begin(s, 2, many, 1);
    assert_int_equal(drain(&k, s, NULL), 1);
    begin(s, 3, wave, 3);
    assert_int_equal(drain(&k, s, NULL), 3);
    s->hint(s, 2, many, 6);
    const uint64_t misses = count(s).misses;
    begin(s, 2, many, 1);
    assert_int_equal(drain(&k, s, NULL), 1);
    assert_int_equal(count(s).misses, misses);
    assert_int_equal(s->close(s), STATUS_OK);
    case_close(&k);
}

/* By the policy's own measure: an expert that was used twice in a row is worth more than one that would be used for the first time; one that was used once, longer ago, is not. */
static void a_victim_is_worth_less(void **state) {
    (void)state;
    mem *m = test_mem();
    error err = {0};
    expert_policy *p = NULL;
    uint64_t n = 0;
    assert_int_equal(expert_policy_create(m, EXPERT_POLICY_BLEND, 2, 4, 16, &p, &err), STATUS_OK);
    assert_int_equal(expert_policy_place_ahead(p, 0, 0, 2, &n), 0); /* a free slot; not a use */
    expert_policy_touch(p, 0);
    const int32_t slot = expert_policy_place(p, 0, 1, 2, &n);
    for (int step = 0; step < 2; step++) {
        expert_policy_step(p);
        expert_policy_touch(p, 0);
        expert_policy_touch(p, slot);
    }
    assert_int_equal(expert_policy_place_ahead(p, 1, 5, 2, &n), -1);
    assert_int_equal(n, 0);
    for (int step = 0; step < 3; step++) { /* 1 is not used any more */
        expert_policy_step(p);
        expert_policy_touch(p, 0);
    }
    assert_int_equal(expert_policy_place_ahead(p, 1, 5, 2, &n), slot);
    assert_int_equal(n, 1);
    assert_true(expert_policy_check(p));
    assert_int_equal(expert_policy_find(p, 1, 5), slot);
    expert_policy_protect(p, slot, true);
    expert_policy_protect(p, 0, true);
    assert_int_equal(expert_policy_place_ahead(p, 1, 6, 2, &n), -1); /* both are protected */
    assert_int_equal(expert_policy_place_ahead(p, 1, 6, 1, &n), -1); /* and more are in use than may be */
    expert_policy_protect(p, slot, false);
    expert_policy_protect(p, 0, false);
    assert_true(expert_policy_check(p));
    expert_policy_destroy(p);
    test_mem_check(m);
}

/* A read ahead that fails fails nobody: who does not want it never hears of it, who wants it has it read again, and is told what that finds. */
static void a_failed_read_fails_nobody(void **state) {
    (void)state;
    for (int under_way = 0; under_way < 2; under_way++) {
        for (int mended = 0; mended < 2; mended++) {
            moe_case k;
            pthread_t t;
            case_open(&k);
            static const int32_t taken[] = {4, 5, 9};
            int n_failed = 0;
            expert_store *s = make(&k, 12, 0, EXPERT_AHEAD_ON);
            layer_with_hint(&k, s, 1, others, 2, 1, others, 0);
            case_fail_expert(&k, 2, 4, 0);
            case_gate(&k, under_way);
            s->hint(s, 2, three, 3);
            if (under_way) {
                case_await_reads(&k, 3);
                begin(s, 2, taken, 3);
                assert_int_equal(pthread_create(&t, NULL, open_later, &k), 0);
                if (mended) { /* the failure is that of the first read of 4 alone: it has been decided when the gate opens */
                    assert_int_equal(pthread_join(t, NULL), 0);
                    pthread_mutex_lock(&k.lock);
                    while (k.n_waiting > 0) {
                        pthread_mutex_unlock(&k.lock);
                        usleep(1000);
                        pthread_mutex_lock(&k.lock);
                    }
                    pthread_mutex_unlock(&k.lock);
                    case_fail_expert(&k, 2, 4, -1);
                }
            } else {
                static const int32_t alone[] = {5};
                begin(s, 2, alone, 1); /* 4 is not needed, whatever became of it */
                assert_int_equal(drain(&k, s, NULL), 1);
                if (mended) case_fail_expert(&k, 2, 4, -1);
                begin(s, 2, taken, 3);
            }
            assert_int_equal(drain(&k, s, &n_failed), mended ? 3 : 2);
            assert_int_equal(n_failed, mended ? 0 : 1);
            assert_int_equal(count(s).failed, mended ? 0 : 1);
            if (under_way && !mended) assert_int_equal(pthread_join(t, NULL), 0);
            case_fail_expert(&k, 2, 4, -1);
            begin(s, 2, taken, 3);
            assert_int_equal(drain(&k, s, NULL), 3);
            assert_int_equal(s->close(s), STATUS_OK);
            case_close(&k);
        }
    }
}

static void cancel_leaves_nothing(void **state) {
    (void)state;
    moe_case k;
    error err = {0};
    case_open(&k);
    int32_t all[CASE_EXPERTS], sizes[CASE_EXPERTS];
    for (int32_t i = 0; i < CASE_EXPERTS; i++) all[i] = i;
    const expert_stream_options opt = {.budget_bytes = slots(&k, 12), .n_readers = 2, .ahead = EXPERT_AHEAD_ON};
    expert_store *s = NULL;
    assert_int_equal(expert_store_stream_create(k.m, &k.bank, &opt, &s, &err), STATUS_OK);
    for (int wanted = 0; wanted < 3; wanted++) {
        layer_with_hint(&k, s, 1, others, 2, 1, others, 0);
        case_gate(&k, true);
        s->hint(s, 2, all, 10);
        case_await_reads(&k, wanted == 0 ? 2 : 1); /* some are being read, others are queued */
        if (wanted > 0) begin(s, 2, all, wanted == 1 ? 3 : 10);
        case_gate(&k, false);
        expert_lease l;
        if (wanted == 2 && s->next_ready(s, &l, &err) == STATUS_OK) s->release(s, &l, (vt_fence){0});
        s->cancel(s);
        assert_int_equal(s->waves(s, 3, all, 12, sizes), 1); /* no slot is protected, which is what a cut looks at */
        assert_int_equal(s->next_ready(s, &l, &err), STATUS_NOT_FOUND);
        (void)case_run_set(&k, s, 3, all, 12);
        assert_int_equal(count(s).failed, 0);
    }
    case_gate(&k, true); /* and close cancels */
    s->hint(s, 2, all, 10);
    case_await_reads(&k, 2);
    case_gate(&k, false);
    assert_int_equal(s->close(s), STATUS_OK);
    case_close(&k);
}

/* Wrong hints: each is read, none is taken, all are given up for what is wanted, in due time; then hints are not wanted for a while. */
static void what_does_not_pay_stops(void **state) {
    (void)state;
    moe_case k;
    case_open(&k);
    expert_store *s = make(&k, 14, 0, EXPERT_AHEAD_AUTO); /* eleven are taken again and again; hints are about eight others in turn */
    int32_t asked = 0;
    while (s->wants_hint(s, 2, 2)) {
        const int32_t wrong[] = {8 + 2 * (asked % 4), 9 + 2 * (asked % 4)};
        layer_with_hint(&k, s, 1, others, 2, 2, wrong, 2);
        await_begun(&k, (int)count(s).reads); /* of each expert two */
        begin(s, 2, three, 3);
        assert_int_equal(drain(&k, s, NULL), 3);
        begin(s, 3, three, 3);
        assert_int_equal(drain(&k, s, NULL), 3);
        begin(s, 4, three, 3);
        assert_int_equal(drain(&k, s, NULL), 3);
        assert_true(++asked < 1000);
    }
    const expert_counters c = count(s);
    assert_true(c.n_prefetched >= EXPERT_AHEAD_WINDOW && c.n_prefetch_used == 0);
    assert_true(c.n_prefetch_wasted > 0 && c.n_prefetch_wasted <= c.n_prefetched && c.n_prefetched - c.n_prefetch_wasted <= 14);
    assert_int_equal(c.prefetch_wasted, c.n_prefetch_wasted * k.bank.layers[2].file_bytes);
    assert_true(s->wants_hint(s, 2, 12)); /* where most experts are taken the books are others */
    assert_int_equal(s->close(s), STATUS_OK);
    s = make(&k, 8, 0, EXPERT_AHEAD_OFF);
    assert_false(s->wants_hint(s, 2, 2));
    const int reads = k.n_reads;
    s->hint(s, 2, three, 3);
    begin(s, 1, others, 1);
    assert_int_equal(drain(&k, s, NULL), 1);
    assert_int_equal(count(s).n_prefetched, 0);
    assert_true(k.n_reads > reads);
    assert_int_equal(s->close(s), STATUS_OK);
    case_close(&k);
}

/* Whoever holds everything has no use for a guess. */
static void all_held_wants_none(void **state) {
    (void)state;
    moe_case k;
    case_open(&k);
    expert_store *s = make(&k, CASE_LAYERS * CASE_EXPERTS, 0, EXPERT_AHEAD_ON);
    int32_t ids[CASE_EXPERTS];
    for (int32_t e = 0; e < CASE_EXPERTS; e++) ids[e] = e;
    for (int layer = 1; layer <= CASE_LAYERS; layer++) {
        assert_true(s->wants_hint(s, 2, 2));
        begin(s, layer, ids, CASE_EXPERTS);
        assert_int_equal(drain(&k, s, NULL), CASE_EXPERTS);
    }
    assert_false(s->wants_hint(s, 2, 2));
    assert_int_equal(s->close(s), STATUS_OK);
    case_close(&k);
}

static void rests_grow(void **state) {
    (void)state;
    mem *m = test_mem();
    expert_ahead a;
    assert_true(expert_ahead_init(&a, m, EXPERT_AHEAD_AUTO, 16));
    int32_t expected = EXPERT_AHEAD_REST;
    for (int i = 0; i < 9; i++) {
        assert_true(expert_ahead_wants(&a, 2, 16));
        expert_ahead_book(&a.ledgers[1], EXPERT_AHEAD_WINDOW - 1, 0);
        assert_true(expert_ahead_wants(&a, 2, 16)); /* not before the window is full */
        expert_ahead_book(&a.ledgers[1], 1, 1);
        int32_t n = 0;
        while (!expert_ahead_wants(&a, 2, 16)) n++;
        assert_int_equal(n, expected);
        expected = 2 * expected < EXPERT_AHEAD_MOST_REST ? 2 * expected : EXPERT_AHEAD_MOST_REST;
    }
    expert_ahead_book(&a.ledgers[1], EXPERT_AHEAD_WINDOW, EXPERT_AHEAD_WINDOW / 2); /* half: it pays, and all is forgiven */
    assert_true(expert_ahead_wants(&a, 2, 16));
    expert_ahead_book(&a.ledgers[1], EXPERT_AHEAD_WINDOW, EXPERT_AHEAD_WINDOW / 2 - 1);
    assert_false(expert_ahead_wants(&a, 2, 16));
    assert_int_equal(a.ledgers[1].rest, EXPERT_AHEAD_REST - 1);
    assert_true(expert_ahead_wants(&a, 9, 16));
    /* a hint is in the books of the question before it, whatever it names */
    assert_true(expert_ahead_wants(&a, 9, 16));
    expert_ahead_set(&a, 1, (const int32_t[]){3}, 1);
    a.n_read = EXPERT_AHEAD_WINDOW;
    expert_ahead_end(&a);
    assert_false(expert_ahead_wants(&a, 9, 16));
    a.mode = EXPERT_AHEAD_ON;
    assert_true(expert_ahead_wants(&a, 2, 16));
    expert_ahead_deinit(&a, m);
    test_mem_check(m);
}

/* Random sets, and hints of which some are right, at every budget, rolling or cut: right bytes, no allocation, never more slots than there are. */
static void right_bytes_at_every_budget(void **state) {
    (void)state;
    uint64_t used = 0, wasted = 0;
    for (int n_slots = CASE_TOP_K; n_slots <= CASE_EXPERTS * CASE_LAYERS; n_slots += n_slots < 20 ? 1 : 11) {
        for (int kind = 0; kind < 10; kind++) {
            moe_case k;
            error err = {0};
            case_open(&k);
            const expert_stream_options opt = {.budget_bytes = slots(&k, n_slots), .rolling = kind % 2 == 0, .policy = kind / 2, .ahead = EXPERT_AHEAD_ON};
            expert_store *s = NULL;
            assert_int_equal(expert_store_stream_create(k.m, &k.bank, &opt, &s, &err), STATUS_OK);
            uint64_t r = 1 + (uint64_t)(n_slots * 10 + kind), asked = 0;
            int32_t next[CASE_EXPERTS], n_next = case_random_set(&r, next, 1);
            mem_guard_begin(k.m);
            for (int i = 0; i < 40; i++) {
                const int layer = 1 + i % CASE_LAYERS, about = 1 + (i + 1) % CASE_LAYERS;
                int32_t ids[CASE_EXPERTS], hint[CASE_EXPERTS], sizes[CASE_EXPERTS], n = n_next, n_hint = 0, at = 0;
                memcpy(ids, next, sizeof ids);
                n_next = case_random_set(&r, next, 1);
                for (int32_t j = 0; j < n_next; j++) { /* half of them right, the others by chance */
                    const int32_t e = case_random(&r) % 2 ? next[j] : (int32_t)(case_random(&r) % CASE_EXPERTS);
                    bool new = true;
                    for (int32_t h = 0; h < n_hint; h++) new = new && hint[h] != e;
                    if (new) hint[n_hint++] = e;
                }
                s->enter(s, layer);
                const int32_t n_waves = s->waves(s, layer, ids, n, sizes);
                for (int32_t w = 0; w < n_waves; at += sizes[w++]) {
                    assert_int_equal(s->begin(s, layer, ids + at, sizes[w], &err), STATUS_OK);
                    if (w == n_waves - 1) s->hint(s, about, hint, n_hint);
                    assert_int_equal(drain(&k, s, NULL), sizes[w]);
                    assert_true(count(s).bytes_resident <= slots(&k, n_slots));
                }
                asked += (uint64_t)n;
            }
            mem_guard_end(k.m);
            assert_int_equal(mem_guard_violations(k.m), 0);
            const expert_counters c = count(s);
            assert_int_equal(c.hits + c.misses, asked);
            assert_int_equal(c.failed, 0);
            assert_int_equal(c.bytes_read, (c.misses + c.n_prefetched) * k.bank.layers[1].file_bytes);
            assert_true(c.n_prefetched >= c.n_prefetch_used + c.n_prefetch_wasted && c.misses + c.n_prefetch_used >= c.distinct);
            used += c.n_prefetch_used;
            wasted += c.n_prefetch_wasted;
            s->cancel(s);
            int32_t sizes[CASE_EXPERTS];
            assert_int_equal(s->waves(s, 1, next, n_slots < n_next ? n_slots : n_next, sizes), 1); /* nothing is protected any more */
            assert_int_equal(s->close(s), STATUS_OK);
            case_close(&k);
        }
    }
    assert_true(used > 1000 && wasted > 100);
}

static void every_failing_allocation(void **state) {
    (void)state;
    moe_case k;
    case_open(&k);
    error err = {0};
    expert_store *s = NULL;
    const expert_stream_options opt = {.budget_bytes = slots(&k, 8), .ahead = EXPERT_AHEAD_AUTO};
    for (uint64_t n = 0;; n++) {
        mem_fail_after(k.m, n);
        const status rc = expert_store_stream_create(k.m, &k.bank, &opt, &s, &err);
        mem_fail_off(k.m);
        if (rc == STATUS_OK) break;
        assert_int_equal(rc, STATUS_NO_MEMORY);
    }
    mem_usage before, after;
    mem_get_usage(k.m, MEM_MODEL, &after);
    assert_int_equal(s->close(s), STATUS_OK);
    mem_get_usage(k.m, MEM_MODEL, &before);
    assert_true(after.used_bytes - before.used_bytes <= expert_store_stream_table_bytes(&k.bank, 8));
    case_close(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_hint_is_hits),
        cmocka_unit_test(what_is_wanted_goes_first),
        cmocka_unit_test(only_the_last_have_company),
        cmocka_unit_test(the_fewest_slots_are_one_wave),
        cmocka_unit_test(nothing_is_given_out_early),
        cmocka_unit_test(what_is_held_stays),
        cmocka_unit_test(a_victim_is_worth_less),
        cmocka_unit_test(a_failed_read_fails_nobody),
        cmocka_unit_test(cancel_leaves_nothing),
        cmocka_unit_test(what_does_not_pay_stops),
        cmocka_unit_test(all_held_wants_none),
        cmocka_unit_test(rests_grow),
        cmocka_unit_test(right_bytes_at_every_budget),
        cmocka_unit_test(every_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
