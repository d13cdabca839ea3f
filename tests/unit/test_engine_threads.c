/* SPDX-License-Identifier: Apache-2.0 */
/* Submit, cancel and figures from several threads while one drives the engine: for ThreadSanitizer, and for the counters afterwards. */
#include "support/engine_case.h"

#include <pthread.h>
#include <sched.h>

enum { THREADS = 4, EACH = 250 };

typedef struct client {
    headrace_engine *e;
    uint32_t seed;
    atomic_int *n_done;
    int n_submitted, n_cancelled, n_full;
    atomic_int done[EACH];
} client;

typedef struct ticket {
    client *c;
    int i;
} ticket;

static atomic_bool stop;

static void on_event(const headrace_event *ev) {
    if (ev->kind != HEADRACE_EVENT_DONE) return;
    const ticket *t = ev->user;
    atomic_fetch_add(&t->c->done[t->i], 1);
    atomic_fetch_add(t->c->n_done, 1);
}

static void *work(void *p) {
    client *c = p;
    static const char text[] = "The water came down the race";
    ticket *own = calloc(EACH, sizeof *own); /* handed back: callbacks read it until all have come */
    headrace_id id[EACH];
    int32_t ids[24];
    uint32_t x = c->seed;
    for (int i = 0; i < EACH;) {
        own[i] = (ticket){c, i};
        x = x * 1664525u + 1013904223u;
        engine_case_ids(ids, 24, x);
        headrace_request r = HEADRACE_REQUEST_INIT;
        if (i % 3 == 0) {
            r.prompt = text;
            r.n_prompt = strlen(text);
        } else {
            r.ids = ids;
            r.n_ids = 1 + (x >> 20) % 24;
        }
        r.max_tokens = (int32_t)(x >> 10) % 12 + 1;
        r.temperature = i % 2 == 0 ? 0.0f : 1.0f;
        r.seed = x;
        r.callback = on_event;
        r.user = &own[i];
        const headrace_status rc = headrace_submit(c->e, &r, &id[i], NULL);
        if (rc == HEADRACE_FULL) {
            c->n_full++;
            sched_yield();
            continue;
        }
        if (rc != HEADRACE_OK) break;
        c->n_submitted++;
        if ((x >> 5) % 3 == 0 && headrace_cancel(c->e, id[(x >> 15) % (uint32_t)(i + 1)]) == HEADRACE_OK) c->n_cancelled++;
        headrace_stats st = {.size = sizeof st};
        if (headrace_get_stats(c->e, &st) != HEADRACE_OK) break;
        i++;
    }
    return own;
}

typedef struct cost {
    uint64_t steps, allocations, used_bytes;
} cost;

/* What one request takes of an idle engine. */
static cost cost_of_a_request(headrace_engine *e) {
    static engine_answer a;
    headrace_stats before = {.size = sizeof before}, after = {.size = sizeof after};
    int32_t ids[30];
    memset(&a, 0, sizeof a);
    engine_case_ids(ids, 30, 99);
    assert_int_equal(headrace_get_stats(e, &before), HEADRACE_OK);
    const uint64_t allocations = mem_alloc_count(e->m);
    headrace_request r = engine_case_request(&a, ids, 30, 20);
    r.no_prefix_cache = true;
    (void)engine_case_submit(e, &r);
    engine_case_run(e);
    assert_int_equal(a.n_tokens, 20);
    assert_int_equal(headrace_get_stats(e, &after), HEADRACE_OK);
    return (cost){after.n_steps - before.n_steps, mem_alloc_count(e->m) - allocations, after.memory_used_bytes};
}

/* A thousand requests with random cancels from four threads; afterwards the engine is as it was. */
static void storm_of_cancels(void **state) {
    (void)state;
    headrace_engine *e = engine_case_load(ENGINE_CASE_MODEL, "threads", "2", "ctx", "64", "max-seqs", "3", "max-batch-tokens", "20", NULL);
    const cost before = cost_of_a_request(e);
    static client c[THREADS];
    memset(c, 0, sizeof c);
    pthread_t t[THREADS];
    atomic_int n_done = 0;
    for (int i = 0; i < THREADS; i++) {
        c[i] = (client){.e = e, .seed = (uint32_t)i + 1, .n_done = &n_done};
        assert_int_equal(pthread_create(&t[i], NULL, work, &c[i]), 0);
    }
    while (atomic_load(&n_done) < THREADS * EACH) {
        bool more;
        assert_int_equal(headrace_step(e, &more, NULL), HEADRACE_OK);
        if (!more) sched_yield();
    }
    int n_cancelled = 0;
    for (int i = 0; i < THREADS; i++) {
        void *own;
        assert_int_equal(pthread_join(t[i], &own), 0);
        free(own);
        assert_int_equal(c[i].n_submitted, EACH);
        n_cancelled += c[i].n_cancelled;
        for (int k = 0; k < EACH; k++) assert_int_equal(atomic_load(&c[i].done[k]), 1);
    }
    assert_true(n_cancelled > 0);
    bool more;
    assert_int_equal(headrace_step(e, &more, NULL), HEADRACE_OK);
    assert_false(more);
    headrace_stats st = {.size = sizeof st};
    assert_int_equal(headrace_get_stats(e, &st), HEADRACE_OK);
    assert_int_equal(st.n_finished, THREADS * EACH + 1);
    assert_int_equal(st.n_running + st.n_waiting, 0);
    assert_int_equal(st.kv_pages_used, 0);
    assert_int_equal(st.n_hot_allocations, 0);
    mem_usage u;
    mem_get_usage(e->m, MEM_REQUEST, &u);
    assert_int_equal(u.used_bytes, 0);
    assert_true(sched_check(&e->sched));
    const cost after = cost_of_a_request(e);
    assert_int_equal(after.steps, before.steps);
    assert_int_equal(after.allocations, before.allocations);
    assert_int_equal(after.used_bytes, before.used_bytes);
    engine_case_free(e);
}

static void *drive(void *p) {
    headrace_engine *e = p;
    bool more = true;
    while (!atomic_load(&stop) || more) {
        if (headrace_step(e, &more, NULL) != HEADRACE_OK) break;
    }
    return NULL;
}

/* Two engines in one process, each driven by its own thread, do not know of each other. */
static void two_engines_at_once(void **state) {
    (void)state;
    headrace_engine *e[2];
    static engine_answer a[2][3];
    memset(a, 0, sizeof a);
    pthread_t t[2];
    int32_t ids[10];
    engine_case_ids(ids, 10, 3);
    atomic_store(&stop, false);
    for (int i = 0; i < 2; i++) {
        e[i] = engine_case_load(ENGINE_CASE_MODEL, "threads", i == 0 ? "1" : "2", "max-seqs", "2", NULL);
        assert_int_equal(pthread_create(&t[i], NULL, drive, e[i]), 0);
    }
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 2; i++) {
            const headrace_request r = engine_case_request(&a[i][k], ids, 10, 20);
            (void)engine_case_submit(e[i], &r);
        }
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(t[i], NULL), 0);
        engine_case_run(e[i]); /* what came after the last look */
        engine_case_free(e[i]);
    }
    for (int k = 0; k < 3; k++) {
        assert_int_equal(a[0][k].n_tokens, 20);
        assert_memory_equal(a[0][k].tokens, a[1][k].tokens, 20 * sizeof(int32_t));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(storm_of_cancels), cmocka_unit_test(two_engines_at_once)};
    return cmocka_run_group_tests(tests, engine_case_setup, NULL);
}
