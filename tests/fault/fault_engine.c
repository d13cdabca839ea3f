/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine when memory runs out: load and submit let one more allocation through each round until they succeed. Each refusal says so, leaves nothing behind and harms no other
 * request.
 */
#include "support/engine_case.h"

static headrace_config *config_of(const char *path, ...) {
    va_list ap;
    va_start(ap, path);
    headrace_config *c = engine_case_config(path, ap);
    va_end(ap);
    return c;
}

static void load_until_it_succeeds(void **state) {
    (void)state;
    static const char *const how[] = {"map", "read"};
    for (int k = 0; k < 2; k++) {
        headrace_config *c = config_of(ENGINE_CASE_MODEL, "load", how[k], "threads", "2", "ctx", "64", "max-seqs", "2", "max-batch-tokens", "16", NULL);
        int rounds = 0;
        for (;; rounds++) {
            mem *m = test_mem();
            error err = {0};
            headrace_engine *e = NULL;
            mem_fail_after(m, (uint64_t)rounds);
            const status rc = engine_load(m, c->c, NULL, NULL, &e, &err);
            assert_int_equal(atomic_load(&engine_case_errors), 0); /* the accountant was at zero when it went */
            if (rc == STATUS_OK) {
                mem_fail_off(m);
                engine_case_free(e);
                break;
            }
            assert_null(e);
            if (rc != STATUS_NO_MEMORY || strlen(err.text) < 10) fail_msg("round %d: %s: \"%s\"", rounds, status_name(rc), err.text);
            assert_int_equal(err.code, STATUS_NO_MEMORY);
        }
        print_message("load %s: %d allocations\n", how[k], rounds);
        assert_true(rounds > 20);
        headrace_config_destroy(c);
    }
}

static void submit_until_it_succeeds(void **state) {
    (void)state;
    headrace_engine *e = engine_case_load(ENGINE_CASE_MODEL, "threads", "1", "ctx", "64", "max-seqs", "2", NULL);
    static engine_answer other, a;
    memset(&other, 0, sizeof other);
    memset(&a, 0, sizeof a);
    int32_t ids[8];
    engine_case_ids(ids, 8, 1);
    headrace_request r = engine_case_request(&other, ids, 8, 30);
    (void)engine_case_submit(e, &r);
    bool more;
    assert_int_equal(headrace_step(e, &more, NULL), HEADRACE_OK);
    const char text[] = "The water came down the race";
    for (int k = 0; k < 2; k++) {
        r = engine_case_request(&a, ids, 8, 20);
        if (k == 1) {
            r.ids = NULL;
            r.prompt = text;
            r.n_prompt = strlen(text);
        }
        mem_usage before, after;
        mem_get_total(e->m, &before);
        int rounds = 0;
        for (;; rounds++) {
            headrace_error err = {0};
            mem_fail_after(e->m, (uint64_t)rounds);
            const headrace_status rc = headrace_submit(e, &r, NULL, &err);
            mem_fail_off(e->m);
            if (rc == HEADRACE_OK) break;
            assert_int_equal(rc, HEADRACE_NO_MEMORY);
            assert_true(strlen(err.text) > 10);
            mem_get_total(e->m, &after);
            assert_int_equal(after.used_bytes, before.used_bytes);
            assert_int_equal(headrace_step(e, &more, NULL), HEADRACE_OK); /* life goes on */
        }
        print_message("submit: %d allocations\n", rounds);
        assert_true(rounds > 2);
        engine_case_run(e);
        assert_int_equal(a.n_tokens, 20);
        memset(&a, 0, sizeof a);
    }
    assert_int_equal(other.n_tokens, 30);
    engine_case_free(e);
}

/* With no memory at all, what was accepted runs to its end: all of a request's memory was taken at submit. */
static void a_request_needs_no_more(void **state) {
    (void)state;
    headrace_engine *e = engine_case_load(ENGINE_CASE_MODEL, "threads", "2", "ctx", "128", "max-seqs", "2", NULL);
    static engine_answer a[3];
    memset(a, 0, sizeof a);
    int32_t ids[30];
    engine_case_ids(ids, 30, 4);
    for (int i = 0; i < 3; i++) {
        const headrace_request r = engine_case_request(&a[i], ids, 10 * (i + 1), 90);
        (void)engine_case_submit(e, &r);
    }
    mem_fail_after(e->m, 0);
    engine_case_run(e);
    mem_fail_off(e->m);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(a[i].finish, HEADRACE_FINISH_LENGTH);
        assert_int_equal(a[i].n_tokens, 90);
    }
    engine_case_free(e);
}

static void a_plan_that_does_not_fit(void **state) {
    (void)state;
    headrace_error err = {0};
    headrace_engine *e = NULL;
    headrace_config *c = config_of(ENGINE_CASE_MODEL, "kv-mem", "100", NULL);
    assert_int_equal(headrace_load(c, NULL, NULL, &e, &err), HEADRACE_DOES_NOT_FIT);
    assert_contains(err.text, "--kv-mem 100 holds no page");
    headrace_config_destroy(c);
    c = config_of(ENGINE_CASE_MODEL, "kv-mem", "900T", NULL);
    const headrace_status rc = headrace_load(c, NULL, NULL, &e, &err);
    assert_true(rc == HEADRACE_DOES_NOT_FIT || rc == HEADRACE_NOT_NOW || rc == HEADRACE_INVALID);
    headrace_config_destroy(c);
    assert_null(e);
    assert_int_equal(atomic_load(&engine_case_errors), 0);
    /* a request that could never have its pages is refused at once, with the numbers */
    e = engine_case_load(ENGINE_CASE_MODEL, "kv-mem", "40K", "ctx", "512", "max-seqs", "2", NULL);
    static engine_answer a;
    memset(&a, 0, sizeof a);
    int32_t ids[400];
    engine_case_ids(ids, 400, 4);
    const headrace_request r = engine_case_request(&a, ids, 400, 10);
    assert_int_equal(headrace_submit(e, &r, NULL, &err), HEADRACE_DOES_NOT_FIT);
    assert_contains(err.text, "pages");
    const headrace_request fits = engine_case_request(&a, ids, 20, 10);
    (void)engine_case_submit(e, &fits);
    engine_case_run(e);
    assert_int_equal(a.n_tokens, 10);
    engine_case_free(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(load_until_it_succeeds),
        cmocka_unit_test(submit_until_it_succeeds),
        cmocka_unit_test(a_request_needs_no_more),
        cmocka_unit_test(a_plan_that_does_not_fit),
    };
    return cmocka_run_group_tests(tests, engine_case_setup, NULL);
}
