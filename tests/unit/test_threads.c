/* SPDX-License-Identifier: Apache-2.0 */
/* The pool: each index once, with few and with too many threads, in steps and outside; wake-ups, signals and accounting. */
#include "support/test_case.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/os.h"
#include "base/threads.h"

enum { MAX_N = 5000 };

typedef struct task {
    int counts[MAX_N]; /* not atomic: each index is one thread's, and the caller reads them after the return */
    int64_t n, grain;
    int size;
    _Atomic int n_bad;
} task;

static void count(void *ctx, int64_t begin, int64_t end, int thread) {
    task *t = ctx;
    if (begin < 0 || begin >= end || end > t->n || end - begin > t->grain || thread < 0 || thread >= t->size)
        atomic_fetch_add(&t->n_bad, 1);
    if (begin % t->grain != 0) atomic_fetch_add(&t->n_bad, 1);
    for (int64_t i = begin; i < end; i++) t->counts[i]++;
}

static void run_and_check(pool *p, task *t, int64_t n, int64_t grain) {
    memset(t->counts, 0, sizeof t->counts);
    t->n = n;
    t->grain = grain;
    t->size = pool_size(p);
    pool_run(p, n, grain, count, t);
    for (int64_t i = 0; i < MAX_N; i++)
        if (t->counts[i] != (i < n))
            fail_msg("%d threads, n %d, grain %d: index %d ran %d times", t->size, (int)n, (int)grain, (int)i, t->counts[i]);
}

static void each_index_runs_once(void **state) {
    (void)state;
    mem *m = test_mem();
    static task t;
    static const int64_t ns[] = {1, 2, 3, 7, 64, 65, 999, 5000}, grains[] = {1, 2, 7, 64, 5000};
    static const int sizes[] = {1, 2, 3, 4, 9, 33};
    for (int k = 0; k < 6; k++) {
        pool *p = NULL;
        error err = {0};
        assert_int_equal(pool_create(m, sizes[k], &p, &err), STATUS_OK);
        assert_int_equal(pool_size(p), sizes[k]);
        for (int step = 0; step < 2; step++) {
            if (step) pool_step_begin(p);
            for (int i = 0; i < 8; i++)
                for (int g = 0; g < 5; g++) run_and_check(p, &t, ns[i], grains[g]);
            if (step) pool_step_end(p);
        }
        pool_destroy(p);
    }
    assert_int_equal(t.n_bad, 0);
    test_mem_check(m);
}

static void add_to_sum(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    atomic_fetch_add((_Atomic int64_t *)ctx, (end - 1) / 2 - (begin - 1) / 2 + (begin == 0));
}

static void ranges_reach_the_ends_of_int64(void **state) {
    (void)state;
    mem *m = test_mem();
    pool *p = NULL;
    assert_int_equal(pool_create(m, 4, &p, NULL), STATUS_OK);
    _Atomic int64_t n_even = 0;
    pool_run(p, INT64_MAX, INT64_MAX / 7, add_to_sum, &n_even); /* even numbers of each range */
    assert_true(n_even == INT64_MAX / 2 + 1);
    n_even = 0;
    pool_run(p, 0, 1, add_to_sum, &n_even);
    pool_run(p, -5, 1, add_to_sum, &n_even);
    assert_int_equal(n_even, 0);
    pool_run(p, 10, 0, add_to_sum, &n_even); /* a grain below 1 counts as 1 */
    pool_run(p, 10, -3, add_to_sum, &n_even);
    assert_int_equal(n_even, 10);
    pool_destroy(p);
    test_mem_check(m);
}

static void many_short_jobs(void **state) {
    (void)state;
    mem *m = test_mem();
    static const int sizes[] = {2, 3, 8};
    for (int k = 0; k < 3; k++) {
        pool *p = NULL;
        assert_int_equal(pool_create(m, sizes[k], &p, NULL), STATUS_OK);
        int64_t values[64] = {0}; /* each job builds on the one before */
        for (int i = 0; i < 3000; i++) {
            if (i % 50 == 0) pool_step_begin(p);
            if (i % 50 == 40) pool_step_end(p);
            if (i % 500 == 450) usleep(300); /* let workers fall asleep */
            static task t;
            t.n = 64;
            t.grain = 1 + i % 5;
            t.size = sizes[k];
            memset(t.counts, 0, sizeof(int) * 64);
            pool_run(p, 64, t.grain, count, &t);
            for (int j = 0; j < 64; j++) values[j] += t.counts[j];
            assert_int_equal(t.n_bad, 0);
        }
        for (int j = 0; j < 64; j++) assert_int_equal(values[j], 3000);
        pool_destroy(p);
    }
    test_mem_check(m);
}

/* ---- workers take part ---- */

typedef struct meeting {
    _Atomic int n_arrived;
    _Atomic bool all_met;
    int n_wanted;
    _Atomic int n_unblocked; /* signals that a worker would take */
    _Atomic int n_fault_blocked;
} meeting;

static void meet(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)begin;
    (void)end;
    meeting *w = ctx;
    if (thread > 0) {
        sigset_t set;
        pthread_sigmask(SIG_BLOCK, NULL, &set);
        static const int blocked[] = {SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGCHLD, SIGUSR1, SIGUSR2, SIGPIPE, SIGQUIT};
        static const int open[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
        for (int i = 0; i < 9; i++) atomic_fetch_add(&w->n_unblocked, !sigismember(&set, blocked[i]));
        for (int i = 0; i < 4; i++) atomic_fetch_add(&w->n_fault_blocked, sigismember(&set, open[i]));
    }
    if (atomic_fetch_add(&w->n_arrived, 1) + 1 == w->n_wanted) atomic_store(&w->all_met, true);
    uint64_t until = os_now_ns() + 20000000000u;
    while (!atomic_load(&w->all_met) && os_now_ns() < until) sched_yield();
}

static void workers_wake_and_block_signals(void **state) {
    (void)state;
    if (os_cpu_count() < 2) skip(); /* one processor: nobody is woken */
    mem *m = test_mem();
    pool *p = NULL;
    assert_int_equal(pool_create(m, 2, &p, NULL), STATUS_OK);
    for (int i = 0; i < 200; i++) {
        meeting w = {.n_wanted = 2};
        if (i % 4 == 1) pool_step_begin(p);
        if (i % 7 == 0) usleep(400);
        pool_run(p, 2, 1, meet, &w);
        if (i % 4 == 2) pool_step_end(p);
        assert_true(w.all_met);
        assert_int_equal(w.n_unblocked, 0);
        assert_int_equal(w.n_fault_blocked, 0);
    }
    pool_destroy(p);
    sigset_t set;
    pthread_sigmask(SIG_BLOCK, NULL, &set);
    assert_false(sigismember(&set, SIGTERM)); /* ours is as it was */
    test_mem_check(m);
}

static void *drive(void *arg) {
    pool *p = arg;
    task *t = calloc(1, sizeof *t);
    if (!t) return p;
    for (int i = 0; i < 300; i++) run_and_check(p, t, 200, 1 + i % 9);
    bool bad = t->n_bad != 0;
    free(t);
    return bad ? p : NULL;
}

static void two_pools_do_not_meet(void **state) {
    (void)state;
    mem *m = test_mem();
    pool *pools[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) assert_int_equal(pool_create(m, 3, &pools[i], NULL), STATUS_OK);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, drive, pools[i]), 0);
    for (int i = 0; i < 2; i++) {
        void *bad = NULL;
        pthread_join(threads[i], &bad);
        assert_null(bad);
        pool_destroy(pools[i]);
    }
    test_mem_check(m);
}

static void sizes_and_stacks(void **state) {
    (void)state;
    mem *m = test_mem();
    error err = {0};
    pool *p = NULL;
    static const int bad[] = {0, -1, 1025, 1 << 30};
    for (int i = 0; i < 4; i++) assert_int_equal(pool_create(m, bad[i], &p, &err), STATUS_INVALID);
    assert_contains(err.text, "1 to 1024");
    assert_null(p);
    mem_usage one, five;
    assert_int_equal(pool_create(m, 1, &p, &err), STATUS_OK);
    mem_get_usage(m, MEM_PROCESS, &one);
    pool_destroy(p);
    assert_int_equal(pool_create(m, 5, &p, &err), STATUS_OK);
    mem_get_usage(m, MEM_PROCESS, &five);
    pool_destroy(p);
    assert_true(five.used_bytes - one.used_bytes >= 4 * (1 << 20)); /* a stack for each worker */
    assert_int_equal(mem_set_limit(m, MEM_PROCESS, 2 << 20), STATUS_OK);
    p = NULL;
    assert_int_equal(pool_create(m, 5, &p, &err), STATUS_NO_MEMORY);
    assert_contains(err.text, "stacks of 4 workers");
    assert_null(p);
    pool_destroy(NULL);
    test_mem_check(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_index_runs_once),  cmocka_unit_test(ranges_reach_the_ends_of_int64),
        cmocka_unit_test(many_short_jobs),       cmocka_unit_test(workers_wake_and_block_signals),
        cmocka_unit_test(two_pools_do_not_meet), cmocka_unit_test(sizes_and_stacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
