/* SPDX-License-Identifier: Apache-2.0 */
/* The accountant: charges, limits under concurrency, guards, injected failures, and what it does with pointers that are not its own. */
#include "support/test_case.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"

enum { N_THREADS = 6 };

static size_t used(const mem *m, mem_tag tag) {
    mem_usage u;
    mem_get_usage(m, tag, &u);
    return u.used_bytes;
}

/* The header's formula: requested bytes, rounded up to the alignment, and the header. */
static size_t charge_of(size_t bytes) { return (bytes + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN + MEM_HEADER_BYTES; }

static void charges_are_exact_and_returned(void **state) {
    (void)state;
    mem *m = test_mem();
    static const size_t sizes[] = {0, 1, 63, 64, 65, 1000, 4096, 1 << 20};
    void *blocks[8];
    size_t sum = 0;
    for (int i = 0; i < 8; i++) {
        blocks[i] = mem_alloc(m, MEM_KV, sizes[i]);
        assert_non_null(blocks[i]);
        assert_int_equal((uintptr_t)blocks[i] % MEM_ALIGN, 0);
        memset(blocks[i], 0xA5, sizes[i]);
        for (int k = 0; k < i; k++) assert_ptr_not_equal(blocks[i], blocks[k]);
        sum += charge_of(sizes[i]);
        assert_int_equal(used(m, MEM_KV), sum);
    }
    assert_int_equal(used(m, MEM_WEIGHTS), 0);
    mem_usage u;
    mem_get_total(m, &u);
    assert_int_equal(u.used_bytes, sum);
    assert_int_equal(u.n_allocs, 8);
    assert_int_equal(u.n_live, 8);
    assert_true(u.limit_bytes == SIZE_MAX);
    for (int i = 0; i < 8; i++) mem_free(m, blocks[i]);
    mem_free(m, NULL);
    mem_get_usage(m, MEM_KV, &u);
    assert_int_equal(u.used_bytes, 0);
    assert_int_equal(u.peak_bytes, sum);
    assert_int_equal(u.n_live, 0);
    test_mem_check(m);
}

static void contents_of_calloc_realloc_strdup(void **state) {
    (void)state;
    mem *m = test_mem();
    unsigned char *p = mem_calloc(m, MEM_ENGINE, 100, 3);
    assert_non_null(p);
    for (int i = 0; i < 300; i++) assert_int_equal(p[i], 0);
    for (int i = 0; i < 300; i++) p[i] = (unsigned char)i;
    static const size_t sizes[] = {300, 299, 5000, 200, 10, 0, 64};
    size_t kept = 300;
    for (int k = 0; k < 7; k++) {
        unsigned char *q = mem_realloc(m, MEM_KV, p, sizes[k]); /* the tag of the block stays */
        assert_non_null(q);
        p = q;
        if (sizes[k] < kept) kept = sizes[k];
        for (size_t i = 0; i < kept; i++) assert_int_equal(p[i], (unsigned char)i);
        memset(p + kept, 0, sizes[k] - kept);
        assert_true(used(m, MEM_ENGINE) >= charge_of(sizes[k]));
    }
    assert_int_equal(used(m, MEM_KV), 0);
    mem_free(m, p);
    p = mem_realloc(m, MEM_KV, NULL, 10);
    assert_int_equal(used(m, MEM_KV), charge_of(10));
    mem_free(m, p);
    char *s = mem_strdup(m, MEM_MODEL, "twelve bytes"), *t = mem_strndup(m, MEM_MODEL, "twelve", 3),
         *e = mem_strndup(m, MEM_MODEL, "ab", 9);
    assert_string_equal(s, "twelve bytes");
    assert_string_equal(t, "twe");
    assert_string_equal(e, "ab");
    mem_free(m, s);
    mem_free(m, t);
    mem_free(m, e);
    test_mem_check(m);
}

static void sizes_that_overflow_are_refused(void **state) {
    (void)state;
    mem *m = test_mem();
    /* volatile: the compiler must not judge the sizes */
    volatile size_t max = SIZE_MAX;
    assert_null(mem_alloc(m, MEM_KV, max));
    assert_null(mem_alloc(m, MEM_KV, max - 63));
    assert_null(mem_alloc(m, MEM_KV, max - 127));
    assert_null(mem_calloc(m, MEM_KV, max / 2, 3));
    assert_null(mem_calloc(m, MEM_KV, 3, max / 2));
    void *p = mem_alloc(m, MEM_KV, 100);
    assert_null(mem_realloc(m, MEM_KV, p, max - 8));
    assert_int_equal(used(m, MEM_KV), charge_of(100));
    mem_free(m, p);
    assert_int_equal(mem_charge(m, MEM_KV, 100), STATUS_OK);
    assert_int_equal(mem_charge(m, MEM_KV, max - 50), STATUS_NO_MEMORY);
    mem_uncharge(m, MEM_KV, 100);
    test_mem_check(m);
}

static void limits_hold_to_the_byte(void **state) {
    (void)state;
    mem *m = test_mem();
    assert_int_equal(mem_set_limit(m, MEM_KV, charge_of(1000)), STATUS_OK);
    assert_null(mem_alloc(m, MEM_KV, 1025)); /* 1000 rounds up to 1024 */
    void *p = mem_alloc(m, MEM_KV, 1024);
    assert_non_null(p);
    assert_null(mem_alloc(m, MEM_KV, 0));
    assert_int_equal(mem_charge(m, MEM_KV, 1), STATUS_NO_MEMORY);
    assert_int_equal(mem_charge(m, MEM_WEIGHTS, 1), STATUS_OK); /* another tag */
    assert_int_equal(mem_set_limit(m, MEM_KV, charge_of(1000) - 1), STATUS_DOES_NOT_FIT);
    mem_usage u;
    mem_get_usage(m, MEM_KV, &u);
    assert_int_equal(u.limit_bytes, charge_of(1000));
    mem_free(m, p);

    assert_int_equal(mem_set_total_limit(m, 101), STATUS_OK);
    assert_int_equal(mem_charge(m, MEM_WEIGHTS, 101), STATUS_NO_MEMORY);
    assert_int_equal(used(m, MEM_WEIGHTS), 1);
    assert_int_equal(mem_charge(m, MEM_KV, 100), STATUS_OK);
    assert_int_equal(mem_charge(m, MEM_KV, 1), STATUS_NO_MEMORY);
    assert_int_equal(mem_set_total_limit(m, 100), STATUS_DOES_NOT_FIT);
    mem_uncharge(m, MEM_KV, 100);
    mem_uncharge(m, MEM_WEIGHTS, 1);
    assert_int_equal(mem_set_total_limit(m, 0), STATUS_OK);
    assert_null(mem_alloc(m, MEM_KV, 0));
    test_mem_check(m);
}

static void refusals_have_a_name(void **state) {
    (void)state;
    mem *m = test_mem();
    error err = {0};
    void *p = NULL;
    assert_int_equal(mem_alloc_named(m, MEM_KV, 10, "a page", &p, &err), STATUS_OK);
    assert_non_null(p);
    assert_int_equal(mem_set_limit(m, MEM_KV, 1000), STATUS_OK);
    void *q = p;
    assert_int_equal(mem_alloc_named(m, MEM_KV, 5000, "KV pages", &q, &err), STATUS_NO_MEMORY);
    assert_ptr_equal(q, p); /* written on success only */
    assert_string_equal(err.text, "alloc: 5000 bytes for KV pages refused: tag kv uses 128 of 1000");
    assert_int_equal(err.code, STATUS_NO_MEMORY);
    assert_int_equal(mem_set_total_limit(m, 500), STATUS_OK);
    assert_int_equal(mem_alloc_named(m, MEM_MODEL, 5000, "tables", &q, &err), STATUS_NO_MEMORY);
    assert_contains(err.text, "5000 bytes for tables");
    assert_contains(err.text, "128 of 500");
    assert_int_equal(mem_alloc_named(m, MEM_MODEL, 5000, "tables", &q, NULL), STATUS_NO_MEMORY);
    mem_free(m, p);
    for (int i = 0; i < MEM_TAG_COUNT; i++) assert_true(strlen(mem_tag_name((mem_tag)i)) > 1);
    assert_string_equal(mem_tag_name(MEM_TAG_COUNT), "unknown");
    test_mem_check(m);
}

/* ---- concurrency ---- */

typedef struct shared {
    mem *m;
    _Atomic int n_ok, n_met;
    _Atomic int n_over; /* observations beyond a limit */
    size_t limit_bytes;
    pthread_barrier_t start;
} shared;

static void run_threads(shared *s, void *(*fn)(void *)) {
    pthread_t threads[N_THREADS];
    pthread_barrier_init(&s->start, NULL, N_THREADS);
    for (int i = 0; i < N_THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, fn, s), 0);
    for (int i = 0; i < N_THREADS; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&s->start);
}

static void *fill_up(void *arg) {
    shared *s = arg;
    pthread_barrier_wait(&s->start);
    for (int i = 0; i < 500; i++)
        if (mem_charge(s->m, MEM_KV, 10) == STATUS_OK) atomic_fetch_add(&s->n_ok, 1);
    return NULL;
}

static void concurrent_charges_stop_exactly_at_the_limit(void **state) {
    (void)state;
    for (int round = 0; round < 20; round++) {
        mem *m = test_mem();
        shared s = {.m = m};
        bool total = round & 1;
        assert_int_equal(total ? mem_set_total_limit(m, 10009) : mem_set_limit(m, MEM_KV, 10009), STATUS_OK);
        run_threads(&s, fill_up);
        assert_int_equal(s.n_ok, 1000);
        assert_int_equal(used(m, MEM_KV), 10000);
        mem_uncharge(m, MEM_KV, 10000);
        test_mem_check(m);
    }
}

static void *churn(void *arg) {
    shared *s = arg;
    pthread_barrier_wait(&s->start);
    void *held[8] = {0};
    for (unsigned i = 0; i < 4000; i++) {
        unsigned at = i * 7 % 8;
        mem_free(s->m, held[at]);
        mem_tag tag = i % 3 ? MEM_KV : MEM_ENGINE;
        held[at] = mem_alloc(s->m, tag, i * 37 % 400);
        if (held[at]) memset(held[at], (int)i, i * 37 % 400);
        if (used(s->m, MEM_KV) > s->limit_bytes) atomic_fetch_add(&s->n_over, 1);
        mem_usage u;
        mem_get_total(s->m, &u);
        if (u.used_bytes > u.limit_bytes) atomic_fetch_add(&s->n_over, 1);
    }
    for (int i = 0; i < 8; i++) mem_free(s->m, held[i]);
    return NULL;
}

static void concurrent_churn_never_passes_a_limit(void **state) {
    (void)state;
    mem *m = test_mem();
    shared s = {.m = m, .limit_bytes = 4000};
    assert_int_equal(mem_set_limit(m, MEM_KV, s.limit_bytes), STATUS_OK);
    assert_int_equal(mem_set_total_limit(m, 6000), STATUS_OK);
    run_threads(&s, churn);
    assert_int_equal(s.n_over, 0);
    mem_usage u;
    mem_get_total(m, &u);
    assert_int_equal(u.used_bytes, 0);
    assert_int_equal(u.n_live, 0);
    assert_true(u.peak_bytes > 0 && u.peak_bytes <= 6000);
    assert_true(u.n_allocs > 1000);
    test_mem_check(m);
}

/* A charge races a limit that has no room for it: one of the two has to lose. */
enum { N_RACES = 20000 };

/* A barrier of two that lets both go within nanoseconds; the window of the race is not longer. */
static void meet(shared *s, int *round) {
    atomic_fetch_add(&s->n_met, 1);
    *round += 2;
    for (int spins = 0; atomic_load(&s->n_met) < *round; spins++)
        if (spins > 2000) sched_yield();
}

static void *charge_each_round(void *arg) {
    shared *s = arg;
    int round = 0;
    for (int i = 0; i < N_RACES; i++) {
        meet(s, &round);
        for (int k = 0; k < i % 64; k++) atomic_signal_fence(memory_order_seq_cst); /* a little later each time */
        atomic_store(&s->n_ok, mem_charge(s->m, MEM_KV, 100) == STATUS_OK);
        meet(s, &round);
    }
    return NULL;
}

static void a_limit_set_under_load_holds(void **state) {
    (void)state;
    mem *m = test_mem();
    shared s = {.m = m};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, charge_each_round, &s), 0);
    int n_both = 0, n_neither = 0, round = 0;
    for (int i = 0; i < N_RACES; i++) {
        meet(&s, &round);
        bool limited = (i & 1 ? mem_set_limit(m, MEM_KV, 99) : mem_set_total_limit(m, 99)) == STATUS_OK;
        meet(&s, &round);
        bool charged = s.n_ok;
        n_both += limited && charged;
        n_neither += !limited && !charged;
        if (charged) mem_uncharge(m, MEM_KV, 100);
        if (mem_set_limit(m, MEM_KV, SIZE_MAX) != STATUS_OK || mem_set_total_limit(m, SIZE_MAX) != STATUS_OK) n_both++;
    }
    pthread_join(thread, NULL);
    assert_int_equal(n_both, 0);
    assert_true(n_neither < N_RACES); /* both may lose, when each saw the other; not always */
    assert_int_equal(used(m, MEM_KV), 0);
    test_mem_check(m);
}

static void *alloc_until_refused(void *arg) {
    shared *s = arg;
    pthread_barrier_wait(&s->start);
    for (int i = 0; i < 300; i++) {
        void *p = mem_alloc(s->m, MEM_ENGINE, 16);
        if (!p) continue;
        atomic_fetch_add(&s->n_ok, 1);
        mem_free(s->m, p);
    }
    return NULL;
}

static void injected_failures_count_across_threads(void **state) {
    (void)state;
    mem *m = test_mem();
    shared s = {.m = m};
    uint64_t before = mem_alloc_count(m);
    mem_fail_after(m, 777);
    run_threads(&s, alloc_until_refused);
    assert_int_equal(s.n_ok, 777);
    assert_int_equal(mem_alloc_count(m) - before, 300 * N_THREADS);
    assert_null(mem_alloc(m, MEM_KV, 1));
    assert_int_equal(mem_charge(m, MEM_KV, 1), STATUS_NO_MEMORY);
    mem_fail_off(m);
    void *p = mem_alloc(m, MEM_KV, 1);
    assert_non_null(p);
    mem_fail_after(m, 0);
    assert_null(mem_realloc(m, MEM_KV, p, 100000));    /* p stays valid */
    assert_ptr_equal(mem_realloc(m, MEM_KV, p, 0), p); /* shrinking always succeeds */
    mem_free(m, p);
    test_mem_check(m);
}

static void *alloc_once(void *arg) {
    mem *m = arg;
    return mem_alloc(m, MEM_ENGINE, 10);
}

static void guards_refuse_and_count_on_their_thread(void **state) {
    (void)state;
    mem *m = test_mem();
    void *p = mem_alloc(m, MEM_ENGINE, 10);
    mem_guard_begin(m);
    mem_guard_begin(m);
    assert_null(mem_alloc(m, MEM_ENGINE, 10));
    pthread_t thread;
    void *got = NULL;
    assert_int_equal(pthread_create(&thread, NULL, alloc_once, m), 0);
    pthread_join(thread, &got);
    assert_non_null(got); /* a client that submits meanwhile goes on */
    mem_free(m, got);
    mem_guard_end(m);
    assert_null(mem_calloc(m, MEM_ENGINE, 1, 10));
    assert_int_equal(mem_charge(m, MEM_ENGINE, 10), STATUS_NO_MEMORY);
    assert_int_equal(mem_guard_violations(m), 3);
    mem_free(m, p); /* giving back is allowed */
    mem_guard_end(m);
    p = mem_alloc(m, MEM_ENGINE, 10);
    assert_non_null(p);
    mem_free(m, p);
    assert_int_equal(mem_guard_violations(m), 3);
    test_mem_check(m);
}

/* ---- misuse ---- */

typedef struct caught {
    int n_lines;
    char first[300];
} caught;

static void catch_line(void *user, log_level level, const char *line) {
    caught *c = user;
    if (c->n_lines++ == 0) snprintf(c->first, sizeof c->first, "%d %s", (int)level, line);
}

static void leaks_are_named(void **state) {
    (void)state;
    mem *m = test_mem();
    caught c = {0};
    log_set(catch_line, &c, LOG_LEVEL_INFO);
    assert_int_equal(mem_charge(m, MEM_STAGING, 4096), STATUS_OK);
    assert_int_equal(mem_destroy(m), STATUS_BUG);
    log_set(NULL, NULL, LOG_LEVEL_INFO);
    assert_int_equal(c.n_lines, 1);
    assert_string_equal(c.first, "0 alloc: 4096 bytes tagged staging not given back (0 blocks)");
    assert_int_equal(mem_destroy(NULL), STATUS_OK);
}

/* True when `misuse` ends its process by an assertion (or by a sanitizer's report). */
static bool dies(void (*misuse)(mem *)) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(0);
        mem *m = NULL;
        if (mem_create(&m) != STATUS_OK) _exit(0);
        misuse(m);
        _exit(0);
    }
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    return !(WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

static void no_misuse(mem *m) { mem_free(m, mem_alloc(m, MEM_KV, 100)); }

static void free_twice(mem *m) {
    void *p = mem_alloc(m, MEM_KV, 100);
    mem_free(m, p);
    mem_free(m, p);
}

static void free_foreign(mem *m) {
    static _Alignas(64) char block[256];
    mem_free(m, block + 128);
}

static void free_in_another(mem *m) {
    mem *other = NULL;
    if (mem_create(&other) != STATUS_OK || !mem_alloc(other, MEM_KV, 1000)) return; /* the counters alone would not notice */
    mem_free(other, mem_alloc(m, MEM_KV, 100));
}

static void write_before_the_block(mem *m) {
    char *p = mem_alloc(m, MEM_KV, 100);
    p[-1] = (char)(p[-1] + 1);
    mem_free(m, p);
}

static void uncharge_too_much(mem *m) { mem_uncharge(m, MEM_KV, 1); }

static void misuse_is_an_assertion(void **state) {
    (void)state;
#ifdef NDEBUG
    skip();
#else
    assert_false(dies(no_misuse));
    assert_true(dies(free_twice));
    assert_true(dies(free_foreign));
    assert_true(dies(free_in_another));
    assert_true(dies(write_before_the_block));
    assert_true(dies(uncharge_too_much));
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(charges_are_exact_and_returned),
        cmocka_unit_test(contents_of_calloc_realloc_strdup),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(limits_hold_to_the_byte),
        cmocka_unit_test(refusals_have_a_name),
        cmocka_unit_test(concurrent_charges_stop_exactly_at_the_limit),
        cmocka_unit_test(concurrent_churn_never_passes_a_limit),
        cmocka_unit_test(a_limit_set_under_load_holds),
        cmocka_unit_test(injected_failures_count_across_threads),
        cmocka_unit_test(guards_refuse_and_count_on_their_thread),
        cmocka_unit_test(leaks_are_named),
        cmocka_unit_test(misuse_is_an_assertion),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
