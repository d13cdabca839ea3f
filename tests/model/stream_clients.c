/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two clients on threads of their own, each with requests and cancels, while a third drives the engine, whose experts are streamed through the fewest slots, or a third of all, and whose products run on two threads:
 * what is not cancelled has the tokens that it has alone. For ThreadSanitizer above all, by each way of reading.
 * Usage: stream_clients FIXTURE
 */
#include "model/model_support.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

enum { CLIENTS = 2, EACH = 24, PROMPTS = 6, LENGTH = 14, ANSWER = 6 };

static const char *fixture;
static char bank[64], third[32]; /* of the experts, in bytes */
static int32_t ids[PROMPTS][LENGTH];
static support_run alone[PROMPTS];
static atomic_int n_done;

typedef struct request {
    int prompt, n_tokens, n_done;
    int32_t tokens[ANSWER];
    headrace_finish finish;
    headrace_id id;
} request;

typedef struct client {
    headrace_engine *e;
    uint32_t seed;
    bool failed;
    request r[EACH];
} client;

static void on_event(const headrace_event *ev) {
    request *r = ev->user;
    if (ev->kind == HEADRACE_EVENT_TOKEN && r->n_tokens < ANSWER) r->tokens[r->n_tokens++] = ev->token;
    if (ev->kind != HEADRACE_EVENT_DONE) return;
    r->finish = ev->finish;
    r->n_done++;
    atomic_fetch_add(&n_done, 1);
}

static void *work(void *p) {
    client *c = p;
    uint32_t x = c->seed;
    for (int i = 0; i < EACH; i++) {
        x = x * 1664525u + 1013904223u;
        c->r[i].prompt = (int)((x >> 9) % PROMPTS);
        headrace_request q = HEADRACE_REQUEST_INIT;
        q.ids = ids[c->r[i].prompt];
        q.n_ids = LENGTH;
        q.max_tokens = ANSWER;
        q.chunk = i % 2 ? 5 : 0;
        q.ignore_end = true;
        q.callback = on_event;
        q.user = &c->r[i];
        headrace_status rc;
        while ((rc = headrace_submit(c->e, &q, &c->r[i].id, NULL)) == HEADRACE_FULL) sched_yield();
        headrace_stats st = {.size = sizeof st};
        if (rc != HEADRACE_OK || headrace_get_stats(c->e, &st) != HEADRACE_OK) {
            c->failed = true;
            break;
        }
        if (x >> 29 < 3) (void)headrace_cancel(c->e, c->r[(x >> 15) % (uint32_t)(i + 1)].id); /* this one or an earlier one */
    }
    return NULL;
}

static void storm(const char *reader) {
    headrace_engine *e = NULL;
    if (reader != NULL) {
        headrace_config *c = NULL;
        headrace_error err = {0};
        const char *const keys[][2] = {{"model", fixture}, {"experts", "stream"}, {"host-experts", third}, {"threads", "2"}, {"max-seqs", "3"}, {"max-batch-tokens", "24"}, {"expert-bank", bank}, {"expert-reader", reader}};
        assert_int_equal(headrace_config_create(&c, &err), HEADRACE_OK);
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) assert_int_equal(headrace_config_set(c, keys[i][0], keys[i][1], &err), HEADRACE_OK);
        const headrace_status rc = headrace_load(c, NULL, NULL, &e, &err);
        headrace_config_destroy(c);
        if (rc == HEADRACE_UNSUPPORTED && strcmp(reader, "io_uring") == 0) {
            print_message("left out: %s\n", err.text);
            return;
        }
        if (rc != HEADRACE_OK) fail_msg("%s: %s", reader, err.text);
    } else {
        e = support_load(fixture, "experts", "stream", "host-experts", "min", "threads", "2", "max-seqs", "3", "max-batch-tokens", "24", NULL);
    }
    static client c[CLIENTS];
    pthread_t t[CLIENTS];
    memset(c, 0, sizeof c);
    atomic_store(&n_done, 0);
    for (int i = 0; i < CLIENTS; i++) {
        c[i].e = e;
        c[i].seed = (uint32_t)i + 1;
        assert_int_equal(pthread_create(&t[i], NULL, work, &c[i]), 0);
    }
    while (atomic_load(&n_done) < CLIENTS * EACH) {
        bool more;
        assert_int_equal(headrace_step(e, &more, NULL), HEADRACE_OK);
        if (!more) sched_yield();
    }
    int n_whole = 0, n_cancelled = 0;
    for (int i = 0; i < CLIENTS; i++) {
        assert_int_equal(pthread_join(t[i], NULL), 0);
        assert_false(c[i].failed);
        for (int k = 0; k < EACH; k++) {
            const request *r = &c[i].r[k];
            assert_int_equal(r->n_done, 1);
            assert_true(r->finish == HEADRACE_FINISH_LENGTH || r->finish == HEADRACE_FINISH_CANCELLED);
            n_whole += r->finish == HEADRACE_FINISH_LENGTH;
            n_cancelled += r->finish == HEADRACE_FINISH_CANCELLED;
            if (r->finish == HEADRACE_FINISH_LENGTH) assert_int_equal(r->n_tokens, ANSWER);
            assert_memory_equal(r->tokens, alone[r->prompt].tokens, (size_t)r->n_tokens * sizeof(int32_t));
        }
    }
    const headrace_stats st = support_stats(e);
    print_message("%s: %d whole, %d cancelled; %llu hits, %llu misses, %llu evictions\n", reader != NULL ? reader : "as published", n_whole, n_cancelled, (unsigned long long)st.expert_hits,
                  (unsigned long long)st.expert_misses, (unsigned long long)st.expert_evictions);
    assert_true(n_whole > EACH / 2 && n_cancelled > 0);
    assert_true(st.expert_misses > 100 && st.expert_evictions > 100 && (reader == NULL || st.expert_hits > 20));
    assert_true(st.memory_peak_bytes <= st.memory_planned_bytes);
    assert_int_equal(st.expert_failures + st.n_hot_allocations + st.kv_pages_used, 0);
    headrace_free(e);
}

static int setup(void **state) {
    (void)state;
    headrace_config *c = NULL;
    headrace_error err = {0};
    headrace_pack_result made = {.size = sizeof made};
    char dir[] = "/tmp/headrace-clients-XXXXXX";
    assert_non_null(mkdtemp(dir));
    snprintf(bank, sizeof bank, "%s/bank", dir);
    assert_int_equal(headrace_config_create(&c, &err), HEADRACE_OK);
    assert_int_equal(headrace_config_set(c, "model", fixture, &err), HEADRACE_OK);
    if (headrace_pack(c, bank, NULL, NULL, &made, &err) != HEADRACE_OK) fail_msg("%s", err.text);
    headrace_config_destroy(c);
    headrace_engine *e = support_load(fixture, "experts", "stream", "expert-bank", bank, "host-experts", "min", NULL);
    bool more;
    assert_int_equal(headrace_step(e, &more, NULL), HEADRACE_OK); /* after which figures are there */
    const headrace_stats st = support_stats(e);
    snprintf(third, sizeof third, "%llu", (unsigned long long)(st.experts_total / 3 * st.expert_slot_bytes));
    headrace_free(e);
    e = support_load(fixture, "experts", "resident", "threads", "1", NULL);
    uint32_t x = 9;
    for (int i = 0; i < PROMPTS; i++) {
        for (int k = 0; k < LENGTH; k++) {
            x = x * 1664525u + 1013904223u;
            ids[i][k] = 3 + (int32_t)((x >> 8) % 200u);
        }
        alone[i] = (support_run){.ids = ids[i], .n_ids = LENGTH, .max_tokens = ANSWER};
        support_go(e, &alone[i], 1);
    }
    headrace_free(e);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (int i = 0; i < PROMPTS; i++) support_run_free(&alone[i]);
    unlink(bank);
    *strrchr(bank, '/') = '\0';
    return rmdir(bank);
}

static void as_published(void **state) {
    (void)state;
    storm(NULL);
}
static void by_threads(void **state) {
    (void)state;
    storm("pread");
}
static void by_io_uring(void **state) {
    (void)state;
    storm("io_uring");
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    fixture = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_published), cmocka_unit_test(by_threads), cmocka_unit_test(by_io_uring)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
