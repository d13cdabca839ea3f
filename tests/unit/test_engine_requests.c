/* SPDX-License-Identifier: Apache-2.0 */
/* What a request is refused for, by name; what becomes of one that is accepted; and that nothing of any of them stays behind. */
#include "support/engine_case.h"

#include <math.h>

static headrace_engine *open_engine(void) { return engine_case_load(ENGINE_CASE_MODEL, "threads", "1", "ctx", "64", "max-seqs", "2", "max-batch-tokens", "16", NULL); }

static void refused(headrace_engine *e, const headrace_request *r, headrace_status want, const char *part) {
    headrace_error err = {0};
    headrace_id id = 77;
    assert_int_equal(headrace_submit(e, r, &id, &err), want);
    assert_int_equal(id, 77);
    assert_int_equal(err.code, want);
    assert_contains(err.text, part);
    assert_int_equal(headrace_submit(e, r, NULL, NULL), want);
}

static void numbers_out_of_range(void **state) {
    (void)state;
    headrace_engine *e = open_engine();
    engine_answer a = {0};
    const int32_t ids[3] = {5, 6, 7};
    const headrace_request good = engine_case_request(&a, ids, 3, 4);
    int n = 0;
#define BAD(field, value, part)                    \
    do {                                           \
        headrace_request r = good;                 \
        r.field = (value);                         \
        refused(e, &r, HEADRACE_INVALID, (part));  \
        n++;                                       \
    } while (0)
    BAD(temperature, NAN, "temperature");
    BAD(temperature, INFINITY, "temperature");
    BAD(temperature, -0.5f, "temperature");
    BAD(temperature, 101.0f, "temperature");
    BAD(top_p, NAN, "top_p");
    BAD(top_p, -0.1f, "top_p");
    BAD(top_p, 1.5f, "top_p");
    BAD(top_p, INFINITY, "top_p");
    BAD(min_p, NAN, "min_p");
    BAD(min_p, -INFINITY, "min_p");
    BAD(min_p, 1.01f, "min_p");
    BAD(top_k, -1, "top_k");
    BAD(max_tokens, -1, "max_tokens");
    BAD(chunk, -7, "chunk");
    BAD(callback, NULL, "callback");
    BAD(size, 0, "size");
    BAD(size, 8, "size");
    BAD(size, (uint32_t)sizeof good + 8, "size");
    BAD(prompt, "text", "one of them");
#undef BAD
    assert_int_equal(n, 19);
    engine_case_free(e);
    assert_int_equal(a.n_done, 0);
}

static void prompts_that_cannot_be(void **state) {
    (void)state;
    headrace_engine *e = open_engine();
    engine_answer a = {0};
    int32_t ids[65];
    engine_case_ids(ids, 65, 1);
    headrace_request r = engine_case_request(&a, ids, 0, 4);
    refused(e, &r, HEADRACE_INVALID, "empty");
    r.ids = NULL;
    refused(e, &r, HEADRACE_INVALID, "neither");
    r.prompt = "";
    r.n_prompt = 0;
    r.add_bos = -1;
    refused(e, &r, HEADRACE_INVALID, "empty");
    r = engine_case_request(&a, ids, 65, 0);
    refused(e, &r, HEADRACE_INVALID, "65 tokens");
    r = engine_case_request(&a, ids, 64, 1);
    refused(e, &r, HEADRACE_INVALID, "no room");
    const int32_t out_of_range[] = {-1, 416, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < 4; i++) {
        const int32_t bad[3] = {5, out_of_range[i], 7};
        r = engine_case_request(&a, bad, 3, 4);
        refused(e, &r, HEADRACE_INVALID, "index 1");
    }
    const char *const not_utf8[] = {"ab\xff", "\xc3", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xc0\xaf"};
    for (size_t i = 0; i < 5; i++) {
        r = (headrace_request)HEADRACE_REQUEST_INIT;
        r.prompt = not_utf8[i];
        r.n_prompt = strlen(not_utf8[i]);
        r.callback = engine_case_record;
        refused(e, &r, HEADRACE_INVALID, "UTF-8");
    }
    char *long_text = malloc(100000);
    assert_non_null(long_text);
    memset(long_text, 'q', 100000);
    r = (headrace_request)HEADRACE_REQUEST_INIT;
    r.prompt = long_text;
    r.n_prompt = 100000;
    r.callback = engine_case_record;
    headrace_error err = {0};
    const headrace_status rc = headrace_submit(e, &r, NULL, &err);
    assert_true(rc == HEADRACE_INVALID || rc == HEADRACE_NO_MEMORY); /* too many tokens, or more of them than requests may hold */
    assert_true(err.text[0] != '\0');
    free(long_text);
    engine_case_free(e);
}

static void edges_that_are_allowed(void **state) {
    (void)state;
    headrace_engine *e = open_engine();
    int32_t ids[64];
    engine_case_ids(ids, 64, 2);
    engine_answer scored = {0}, full = {0}, clamped = {0}, bos = {0}, nothing = {0};
    headrace_request r = engine_case_request(&scored, ids, 64, 0); /* the context exactly, nothing to generate */
    r.want_logits = true;
    (void)engine_case_submit(e, &r);
    r = engine_case_request(&full, ids, 63, 1);
    (void)engine_case_submit(e, &r);
    r = engine_case_request(&clamped, ids, 60, 1000000);
    (void)engine_case_submit(e, &r);
    r = engine_case_request(&bos, NULL, 0, 3); /* an empty text with a token in front */
    r.prompt = "";
    r.add_bos = 1;
    (void)engine_case_submit(e, &r);
    r = engine_case_request(&nothing, ids, 5, 0);
    (void)engine_case_submit(e, &r);
    engine_case_run(e);
    assert_int_equal(scored.n_done, 1);
    assert_int_equal(scored.n_rows, 64);
    assert_int_equal(scored.n_tokens, 0);
    assert_int_equal(full.n_tokens, 1);
    assert_int_equal(clamped.n_tokens, 4);
    assert_int_equal(clamped.finish, HEADRACE_FINISH_LENGTH);
    assert_int_equal(bos.usage.prompt_tokens, 1);
    assert_int_equal(bos.n_tokens, 3);
    assert_int_equal(nothing.n_done, 1);
    assert_int_equal(nothing.n_tokens + nothing.n_rows, 0);
    assert_int_equal(nothing.usage.prompt_tokens, 5);
    engine_case_free(e);
}

static void structs_of_another_size(void **state) {
    (void)state;
    headrace_engine *e = open_engine();
    headrace_stats st = {0};
    headrace_model_info mi = {0};
    assert_int_equal(headrace_get_stats(e, &st), HEADRACE_INVALID);
    assert_int_equal(headrace_get_model_info(e, &mi), HEADRACE_INVALID);
    st.size = sizeof st + 16;
    mi.size = sizeof mi + 16;
    assert_int_equal(headrace_get_stats(e, &st), HEADRACE_INVALID);
    assert_int_equal(headrace_get_model_info(e, &mi), HEADRACE_INVALID);
    headrace_model_info old; /* of a caller that knows no device types and embeddings */
    memset(&old, 0x5a, sizeof old);
    old.size = offsetof(headrace_model_info, device_type);
    assert_int_equal(headrace_get_model_info(e, &old), HEADRACE_OK);
    assert_int_equal(old.n_ctx, 64);
    assert_int_equal(old.n_embd, 0x5a5a5a5a);
    st.size = sizeof st;
    mi.size = sizeof mi;
    assert_int_equal(headrace_get_stats(e, &st), HEADRACE_OK);
    assert_int_equal(headrace_get_model_info(e, &mi), HEADRACE_OK);
    assert_int_equal(mi.n_vocab, 416);
    assert_int_equal(mi.n_ctx, 64);
    engine_case_free(e);
}

/* Load, ten requests, cancel, free: the accountant is at zero, and one that is not would be seen. */
static void nothing_stays_behind(void **state) {
    (void)state;
    headrace_engine *e = open_engine();
    static engine_answer a[12];
    memset(a, 0, sizeof a);
    int32_t ids[20];
    headrace_id id[12];
    for (int i = 0; i < 12; i++) {
        engine_case_ids(ids, 20, (uint32_t)i);
        const headrace_request r = engine_case_request(&a[i], ids, 5 + i, 10 + i);
        id[i] = engine_case_submit(e, &r);
        for (int k = 0; k < i; k++) assert_true(id[k] != id[i]);
    }
    bool more;
    for (int i = 0; i < 6; i++) assert_int_equal(headrace_step(e, &more, NULL), HEADRACE_OK);
    assert_true(more);
    assert_int_equal(headrace_cancel(e, id[0]), HEADRACE_OK);  /* running */
    assert_int_equal(headrace_cancel(e, id[11]), HEADRACE_OK); /* waiting */
    assert_int_equal(headrace_cancel(e, 123456), HEADRACE_NOT_FOUND);
    engine_case_run(e);
    for (int i = 0; i < 12; i++) {
        assert_int_equal(a[i].n_done, 1);
        assert_int_equal(a[i].finish, i == 0 || i == 11 ? HEADRACE_FINISH_CANCELLED : HEADRACE_FINISH_LENGTH);
        if (i != 0 && i != 11) assert_int_equal(a[i].n_tokens, 10 + i);
        assert_int_equal(headrace_cancel(e, id[i]), HEADRACE_NOT_FOUND);
    }
    headrace_stats st = {.size = sizeof st};
    assert_int_equal(headrace_get_stats(e, &st), HEADRACE_OK);
    assert_int_equal(st.n_finished, 12);
    assert_int_equal(st.n_running + st.n_waiting, 0);
    assert_int_equal(st.kv_pages_used, 0);
    mem_usage u;
    mem_get_usage(e->m, MEM_REQUEST, &u);
    assert_int_equal(u.used_bytes, 0);
    engine_case_free(e);

    e = open_engine(); /* requests that live when the engine goes are told */
    memset(a, 0, sizeof a);
    for (int i = 0; i < 5; i++) {
        const headrace_request r = engine_case_request(&a[i], ids, 9, 20);
        (void)engine_case_submit(e, &r);
    }
    for (int i = 0; i < 3; i++) assert_int_equal(headrace_step(e, &more, NULL), HEADRACE_OK);
    engine_case_free(e);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(a[i].n_done, 1);
        assert_int_equal(a[i].finish, HEADRACE_FINISH_CANCELLED);
    }

    e = open_engine(); /* the alarm itself: a block that is not given back is logged as an error */
    void *left = mem_alloc(e->m, MEM_REQUEST, 10);
    assert_non_null(left);
    headrace_free(e);
    assert_true(atomic_exchange(&engine_case_errors, 0) > 0);
    free((char *)left - MEM_HEADER_BYTES); /* the accountant is gone; this is what was left */
}

static void the_queue_is_bounded(void **state) {
    (void)state;
    headrace_engine *e = engine_case_load(ENGINE_CASE_MODEL, "threads", "1", "ctx", "32", "max-seqs", "1", "max-batch-tokens", "8", NULL);
    static engine_answer a[200];
    memset(a, 0, sizeof a);
    const int32_t ids[2] = {9, 10};
    int n = 0;
    headrace_error err = {0};
    headrace_status rc;
    do {
        const headrace_request r = engine_case_request(&a[n], ids, 2, 2);
        rc = headrace_submit(e, &r, NULL, &err);
        if (rc == HEADRACE_OK) n++;
    } while (rc == HEADRACE_OK && n < 199);
    assert_int_equal(rc, HEADRACE_FULL);
    assert_int_equal(err.code, HEADRACE_FULL);
    assert_contains(err.text, "limit");
    assert_int_equal(n, e->plan.max_live);
    engine_case_run(e);
    for (int i = 0; i < n; i++) assert_int_equal(a[i].n_tokens, 2);
    const headrace_request r = engine_case_request(&a[n], ids, 2, 2);
    (void)engine_case_submit(e, &r); /* there is room again */
    engine_case_run(e);
    assert_int_equal(a[n].n_tokens, 2);
    headrace_request many = r;
    many.n = e->plan.max_live + 1; /* can never have room: trying again would be in vain */
    refused(e, &many, HEADRACE_DOES_NOT_FIT, "answers");
    engine_case_free(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_out_of_range), cmocka_unit_test(prompts_that_cannot_be), cmocka_unit_test(edges_that_are_allowed),
        cmocka_unit_test(structs_of_another_size), cmocka_unit_test(nothing_stays_behind), cmocka_unit_test(the_queue_is_bounded),
    };
    return cmocka_run_group_tests(tests, engine_case_setup, NULL);
}
