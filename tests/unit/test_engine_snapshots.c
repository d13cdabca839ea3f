/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefix hits of a model with recurrent layers: how long each hit is (the numbers follow from the rule in kv_cache.h: blocks of 16, a
 * snapshot for every 9 of this fixture, one in front of the prompt's last token, one where two prompts part), and that every row of logits
 * after it is that of an engine without a prefix cache.
 */
#include "support/engine_case.h"

#define MODEL HEADRACE_TEST_DATA "/../fixtures/qwen3_5-moe"
enum { N_NEW = 6, LONG = 300, MOST = 400 };

typedef struct rows {
    engine_answer a;
    float *logits; /* [n, n_vocab] of the tokens drawn */
    int32_t n, n_vocab;
} rows;

static void keep_row(void *user, headrace_id id, int32_t index, const int32_t *tokens, int32_t n_tokens, float *logits, int32_t n_vocab) {
    (void)id;
    (void)index;
    (void)tokens;
    (void)n_tokens;
    rows *r = user;
    r->n_vocab = n_vocab;
    r->logits = realloc(r->logits, (size_t)(r->n + 1) * (size_t)n_vocab * sizeof(float));
    assert_non_null(r->logits);
    memcpy(r->logits + (size_t)r->n++ * (size_t)n_vocab, logits, (size_t)n_vocab * sizeof(float));
}

static rows *go(headrace_engine *e, const int32_t *ids, int32_t n, const char *tenant) {
    rows *r = calloc(1, sizeof *r);
    headrace_request q = engine_case_request(&r->a, ids, n, N_NEW);
    q.logits_hook = keep_row;
    q.cache_salt = tenant;
    (void)engine_case_submit(e, &q);
    engine_case_run(e);
    assert_int_equal(r->a.finish, HEADRACE_FINISH_LENGTH);
    assert_int_equal(r->n, N_NEW);
    return r;
}

static void drop(rows *r) {
    free(r->logits);
    free(r);
}

static void hits_of_a_recurrent_model(void **state) {
    (void)state;
    static int32_t ids[5][MOST];
    engine_case_ids(ids[0], MOST, 7);
    for (int i = 1; i < 5; i++) {
        engine_case_ids(ids[i], MOST, 100u + (uint32_t)i);
        memcpy(ids[i], ids[0], sizeof(int32_t) * (i == 4 ? LONG : 200)); /* 1, 2, 3 part from 0 after 200 */
    }
    const struct {
        int which;
        int32_t n, hit;
        const char *tenant;
    } runs[] = {
        {0, LONG, 0, NULL},        {0, LONG, 288, NULL},                       /* in front of the last token: 18 blocks */
        {4, LONG + 50, 288, NULL},                                             /* the prompt goes on */
        {1, 250, 144, NULL},                                                   /* pages are known up to 192, a state every 9 blocks */
        {2, 250, 192, NULL},                                                   /* that was found, and kept */
        {3, 205, 192, NULL},       {0, 150, 144, NULL},     {0, 140, 0, NULL}, /* shorter than any snapshot */
        {0, 140, 128, NULL},       {0, LONG, 0, "another"},                    /* another tenant sees nothing of it */
        {0, LONG, 288, "another"},
    };
    headrace_engine *e = engine_case_load(MODEL, "threads", "2", "ctx", "512", "max-seqs", "8", "max-batch-tokens", "64", NULL);
    headrace_engine *plain =
        engine_case_load(MODEL, "threads", "1", "ctx", "512", "max-seqs", "1", "max-batch-tokens", "400", "prefix-cache", "false", NULL);
    assert_int_equal(e->plan.snapshot_blocks, 9);
    assert_int_equal(plain->plan.n_snapshots, 0);
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        rows *got = go(e, ids[runs[i].which], runs[i].n, runs[i].tenant), *want = go(plain, ids[runs[i].which], runs[i].n, NULL);
        if (got->a.usage.prefix_hit_tokens != runs[i].hit)
            fail_msg("run %zu: a hit of %d tokens, %d expected", i, got->a.usage.prefix_hit_tokens, runs[i].hit);
        assert_int_equal(want->a.usage.prefix_hit_tokens, 0);
        assert_memory_equal(got->logits, want->logits, (size_t)want->n * (size_t)want->n_vocab * sizeof(float));
        sum += (uint64_t)runs[i].hit;
        drop(got);
        drop(want);
    }
    headrace_stats st = {.size = sizeof st};
    assert_int_equal(headrace_get_stats(e, &st), HEADRACE_OK);
    assert_int_equal(st.n_prefix_hit_tokens, sum);
    assert_int_equal(st.n_hot_allocations, 0);
    assert_true(kv_cache_check(&e->kv, NULL, 0));
    engine_case_free(e);
    engine_case_free(plain);
}

/* Snapshots are memory of the plan: --kv-mem pays for them, and what holds none has no hits. */
static void snapshots_are_planned(void **state) {
    (void)state;
    headrace_engine *e = engine_case_load(MODEL, "threads", "1", "ctx", "512", "max-seqs", "4", NULL);
    const engine_plan *p = &e->plan;
    assert_int_equal(p->n_snapshots, 4 * (p->max_pages_per_seq / p->snapshot_blocks + 1));
    mem_usage u;
    mem_get_usage(e->m, MEM_KV, &u);
    assert_true(u.peak_bytes <= p->bytes[MEM_KV]);
    assert_true(u.used_bytes >= (size_t)p->n_snapshots * model_state_bytes(e->model) + e->model->plan_state_bytes);
    engine_case_free(e);
    static int32_t ids[64];
    engine_case_ids(ids, 64, 3);
    e = engine_case_load(MODEL, "threads", "1", "ctx", "512", "kv-mem", "12288", NULL); /* six pages; a snapshot weighs more */
    assert_int_equal(e->plan.n_snapshots, 0);
    assert_int_equal(e->plan.n_pages[0] + e->plan.n_pages[1], 6);
    for (int i = 0; i < 2; i++) {
        rows *r = go(e, ids, 40, NULL);
        assert_int_equal(r->a.usage.prefix_hit_tokens, 0);
        drop(r);
    }
    engine_case_free(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hits_of_a_recurrent_model),
        cmocka_unit_test(snapshots_are_planned),
    };
    return cmocka_run_group_tests(tests, engine_case_setup, NULL);
}
