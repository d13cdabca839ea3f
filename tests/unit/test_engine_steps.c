/* SPDX-License-Identifier: Apache-2.0 */
/* What a step may not do: allocate, use a weight file that shrank, or let one request's trouble reach another. */
#include "support/engine_case.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/temp_dir.h"

static uint64_t hot(headrace_engine *e) {
    headrace_stats st = {.size = sizeof st};
    assert_int_equal(headrace_get_stats(e, &st), HEADRACE_OK);
    return st.n_hot_allocations;
}

/* After the first tokens have come, decoding allocates nothing at all: neither in the guarded part nor round it. */
static void decoding_allocates_nothing(void **state) {
    (void)state;
    headrace_engine *e = engine_case_load(ENGINE_CASE_MODEL, "threads", "2", "max-seqs", "4", NULL);
    static engine_answer a[4];
    memset(a, 0, sizeof a);
    int32_t ids[40];
    for (int i = 0; i < 4; i++) {
        engine_case_ids(ids, 40, (uint32_t)i);
        headrace_request r = engine_case_request(&a[i], ids, 10 * (i + 1), 120);
        r.temperature = i % 2 == 0 ? 0.0f : 0.9f;
        r.top_k = i == 1 ? 20 : 0;
        r.top_p = i == 3 ? 0.9f : 0.0f;
        (void)engine_case_submit(e, &r);
    }
    bool more = true;
    for (int i = 0; i < 4; i++) assert_int_equal(headrace_step(e, &more, NULL), HEADRACE_OK);
    for (int i = 0; i < 4; i++) assert_true(a[i].n_tokens > 0);
    const uint64_t before = mem_alloc_count(e->m);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(headrace_step(e, &more, NULL), HEADRACE_OK);
        assert_true(more);
    }
    assert_int_equal(mem_alloc_count(e->m), before);
    assert_int_equal(hot(e), 0);
    engine_case_run(e);
    for (int i = 0; i < 4; i++) assert_int_equal(a[i].n_tokens, 120);
    assert_int_equal(hot(e), 0);
    engine_case_free(e);
}

static void copy_model(const char *path) {
    FILE *in = fopen(ENGINE_CASE_MODEL, "rb"), *out = fopen(path, "wb");
    assert_non_null(in);
    assert_non_null(out);
    char buffer[65536];
    for (size_t n = fread(buffer, 1, sizeof buffer, in); n > 0; n = fread(buffer, 1, sizeof buffer, in)) assert_int_equal(fwrite(buffer, 1, n, out), n);
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

/* The file loses its weights while it is mapped: requests end with an error that names it, the process lives, an engine that read its file does not care. */
static void a_file_that_shrinks(void **state) {
    (void)state;
    const temp_dir d = temp_dir_make();
    char path[512];
    snprintf(path, sizeof path, "%s/model.gguf", d.path);
    copy_model(path);
    headrace_engine *mapped = engine_case_load(path, "load", "map", "threads", "2", NULL), *read = engine_case_load(path, "load", "read", "threads", "1", NULL);
    static engine_answer a[4];
    memset(a, 0, sizeof a);
    int32_t ids[8];
    engine_case_ids(ids, 8, 5);
    for (int i = 0; i < 3; i++) {
        const headrace_request r = engine_case_request(&a[i], ids, 8, 50);
        (void)engine_case_submit(i < 2 ? mapped : read, &r);
    }
    bool more;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(headrace_step(mapped, &more, NULL), HEADRACE_OK);
        assert_int_equal(headrace_step(read, &more, NULL), HEADRACE_OK);
    }
    const int32_t before = a[0].n_tokens;
    assert_true(before > 0);
    assert_int_equal(truncate(path, 4096), 0);
    engine_case_run(mapped);
    engine_case_run(read);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(a[i].n_done, 1);
        assert_int_equal(a[i].finish, HEADRACE_FINISH_ERROR);
        assert_int_equal(a[i].status, HEADRACE_IO);
        assert_contains(a[i].error, "model.gguf");
        assert_int_equal(a[i].n_tokens, before);
    }
    if (a[2].finish != HEADRACE_FINISH_LENGTH) fail_msg("%s", a[2].error);
    assert_int_equal(a[2].n_tokens, 50);
    const headrace_request r = engine_case_request(&a[3], ids, 8, 50); /* one that comes later fares no better */
    (void)engine_case_submit(mapped, &r);
    engine_case_run(mapped);
    assert_int_equal(a[3].finish, HEADRACE_FINISH_ERROR);
    assert_int_equal(a[3].n_tokens, 0);
    engine_case_free(mapped);
    engine_case_free(read);
    temp_dir_remove(&d);
}

typedef struct chain {
    headrace_engine *e;
    engine_answer a[3];
    headrace_id id[3];
    int n_submitted;
    bool cancelled_self;
} chain;

static void on_event(const headrace_event *ev) {
    chain *c = ev->user;
    headrace_stats st = {.size = sizeof st};
    assert_int_equal(headrace_get_stats(c->e, &st), HEADRACE_OK);
    int i = 0;
    while (c->id[i] != ev->id) assert_true(++i < 3);
    headrace_event copy = *ev;
    copy.user = &c->a[i];
    engine_case_record(&copy);
    if (ev->kind == HEADRACE_EVENT_DONE) assert_int_equal(headrace_cancel(c->e, ev->id), HEADRACE_NOT_FOUND);
    if (ev->kind == HEADRACE_EVENT_TOKEN && c->a[i].n_tokens == 3 && i == 1) {
        assert_int_equal(headrace_cancel(c->e, ev->id), HEADRACE_OK);
        c->cancelled_self = true;
    }
    if (ev->kind == HEADRACE_EVENT_DONE && c->n_submitted < 3) {
        static const int32_t ids[] = {4, 5, 6, 7};
        headrace_request r = engine_case_request(NULL, ids, 4, 6);
        r.callback = on_event;
        r.user = c;
        c->id[c->n_submitted] = engine_case_submit(c->e, &r);
        c->n_submitted++;
    }
}

/* A callback submits the next request and cancels its own; the run goes on until all are done. */
static void callbacks_submit_and_cancel(void **state) {
    (void)state;
    static chain c;
    memset(&c, 0, sizeof c);
    c.e = engine_case_load(ENGINE_CASE_MODEL, "threads", "1", "max-seqs", "1", NULL);
    const int32_t ids[] = {4, 5, 6, 7};
    headrace_request r = engine_case_request(NULL, ids, 4, 6);
    r.callback = on_event;
    r.user = &c;
    c.id[0] = engine_case_submit(c.e, &r);
    c.n_submitted = 1;
    engine_case_run(c.e);
    assert_int_equal(c.n_submitted, 3);
    assert_true(c.cancelled_self);
    assert_int_equal(c.a[0].n_tokens, 6);
    assert_int_equal(c.a[1].n_tokens, 3);
    assert_int_equal(c.a[1].finish, HEADRACE_FINISH_CANCELLED);
    assert_int_equal(c.a[2].n_tokens, 6);
    assert_memory_equal(c.a[0].tokens, c.a[2].tokens, 6 * sizeof(int32_t));
    engine_case_free(c.e);
}

typedef struct rude {
    headrace_engine *e;
    int n_refused, n_done;
} rude;

/* Does in a callback what callbacks must not do. */
static void misbehave(const headrace_event *ev) {
    rude *x = ev->user;
    headrace_error err = {0};
    bool more = false;
    x->n_done += ev->kind == HEADRACE_EVENT_DONE;
    x->n_refused += headrace_run(x->e, &err) == HEADRACE_INVALID;
    x->n_refused += headrace_step(x->e, &more, &err) == HEADRACE_INVALID;
    assert_contains(err.text, "callback");
    headrace_free(x->e);
    assert_int_equal(atomic_exchange(&engine_case_errors, 0), 1); /* it says so */
}

static void callbacks_that_drive_the_engine(void **state) {
    (void)state;
    static const int32_t ids[] = {4, 5, 6, 7};
    rude x = {.e = engine_case_load(ENGINE_CASE_MODEL, "threads", "1", "max-seqs", "1", NULL)};
    headrace_request r = engine_case_request(NULL, ids, 4, 3);
    r.callback = misbehave;
    r.user = &x;
    (void)engine_case_submit(x.e, &r);
    engine_case_run(x.e);
    assert_int_equal(x.n_done, 1);
    assert_int_equal(x.n_refused, 8); /* three tokens and the end */
    engine_case_free(x.e);
}

static void submit_again(const headrace_event *ev) {
    rude *x = ev->user;
    static const int32_t ids[] = {4, 5, 6, 7};
    if (ev->kind != HEADRACE_EVENT_DONE) return;
    headrace_request r = engine_case_request(NULL, ids, 4, 3);
    headrace_error err = {0};
    r.callback = submit_again;
    r.user = x;
    x->n_done++;
    x->n_refused += headrace_submit(x->e, &r, NULL, &err) == HEADRACE_CANCELLED;
    assert_contains(err.text, "freed");
}

/* Whoever always asks for more is refused when the engine goes. */
static void nothing_is_taken_while_it_is_freed(void **state) {
    (void)state;
    static const int32_t ids[] = {4, 5, 6, 7};
    rude x = {.e = engine_case_load(ENGINE_CASE_MODEL, "threads", "1", "max-seqs", "1", NULL)};
    bool more;
    for (int i = 0; i < 3; i++) {
        headrace_request r = engine_case_request(NULL, ids, 4, 30);
        r.callback = submit_again;
        r.user = &x;
        (void)engine_case_submit(x.e, &r);
    }
    for (int i = 0; i < 4; i++) assert_int_equal(headrace_step(x.e, &more, NULL), HEADRACE_OK);
    engine_case_free(x.e);
    assert_int_equal(x.n_done, 3);
    assert_int_equal(x.n_refused, 3);
}

/* Cancelled while its prompt is being computed: at most one more step. */
static void cancel_in_prefill(void **state) {
    (void)state;
    headrace_engine *e = engine_case_load(ENGINE_CASE_MODEL, "threads", "1", "max-seqs", "1", NULL);
    static engine_answer a;
    memset(&a, 0, sizeof a);
    int32_t ids[200];
    engine_case_ids(ids, 200, 9);
    headrace_request r = engine_case_request(&a, ids, 200, 5);
    r.chunk = 10;
    const headrace_id id = engine_case_submit(e, &r);
    bool more;
    for (int i = 0; i < 3; i++) assert_int_equal(headrace_step(e, &more, NULL), HEADRACE_OK);
    assert_int_equal(headrace_cancel(e, id), HEADRACE_OK);
    assert_int_equal(headrace_step(e, &more, NULL), HEADRACE_OK);
    assert_false(more);
    assert_int_equal(a.n_done, 1);
    assert_int_equal(a.finish, HEADRACE_FINISH_CANCELLED);
    assert_int_equal(a.n_tokens, 0);
    engine_case_free(e);
}

/* The same seed gives the same tokens alone and in a batch with others; another seed gives others. */
static void a_seed_fixes_the_text(void **state) {
    (void)state;
    headrace_engine *e = engine_case_load(ENGINE_CASE_MODEL, "threads", "2", "max-seqs", "4", "max-batch-tokens", "13", NULL);
    static engine_answer alone[4], batch[4], other;
    memset(alone, 0, sizeof alone);
    memset(batch, 0, sizeof batch);
    memset(&other, 0, sizeof other);
    int32_t ids[30];
    headrace_request r[4];
    for (int i = 0; i < 4; i++) {
        engine_case_ids(ids, 30, (uint32_t)i);
        r[i] = engine_case_request(&alone[i], ids, 30 - 5 * i, 40);
        r[i].temperature = 1.0f;
        r[i].seed = 100 + (uint64_t)i;
        r[i].top_p = i == 2 ? 0.8f : 1.0f;
        (void)engine_case_submit(e, &r[i]);
        engine_case_run(e);
    }
    for (int i = 0; i < 4; i++) {
        engine_case_ids(ids, 30, (uint32_t)i);
        r[i].user = &batch[i];
        (void)engine_case_submit(e, &r[i]);
    }
    r[3].seed = 5;
    r[3].user = &other;
    (void)engine_case_submit(e, &r[3]);
    engine_case_run(e);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(alone[i].n_tokens, 40);
        assert_memory_equal(alone[i].tokens, batch[i].tokens, 40 * sizeof(int32_t));
    }
    assert_memory_not_equal(other.tokens, batch[3].tokens, 40 * sizeof(int32_t));
    engine_case_free(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding_allocates_nothing),
        cmocka_unit_test(a_file_that_shrinks),
        cmocka_unit_test(callbacks_submit_and_cancel),
        cmocka_unit_test(callbacks_that_drive_the_engine),
        cmocka_unit_test(nothing_is_taken_while_it_is_freed),
        cmocka_unit_test(cancel_in_prefill),
        cmocka_unit_test(a_seed_fixes_the_text),
    };
    return cmocka_run_group_tests(tests, engine_case_setup, NULL);
}
