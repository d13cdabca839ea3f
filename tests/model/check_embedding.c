/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Embeddings are the hidden states that Transformers recorded behind the final norm (hidden.N of expected.safetensors, N the number of
 * layers): of every position of the first prompt, alone and in one batch, in chunks, after prefix hits, beside an answer; and what they do
 * not go with is refused by name. Usage: check_embedding FIXTURE TOLERANCE
 */
#include "model/model_support.h"

#include <math.h>

#include "engine/engine.h"

enum { MAX_PROMPTS = 16, MOST = 128, WIDTH = 1024 };

static const char *fixture;
static double tolerance;
static support_prompt prompts[MAX_PROMPTS];
static int n_prompts;
static int32_t ids[MOST], n_ids;
static float *want; /* [n_ids, n_embd] */
static int32_t n_embd;

typedef struct got {
    float v[WIDTH];
    int32_t n, n_events, n_tokens, hit;
    headrace_finish finish;
} got;

static void on_event(const headrace_event *ev) {
    got *g = ev->user;
    if (ev->kind == HEADRACE_EVENT_TOKEN) g->n_tokens++;
    if (ev->kind == HEADRACE_EVENT_DONE) {
        g->finish = ev->finish;
        g->hit = ev->usage.prefix_hit_tokens;
    }
    if (ev->kind != HEADRACE_EVENT_EMBEDDING) return;
    assert_int_equal(ev->index, 0);
    assert_int_equal(g->n_tokens, 0);
    assert_in_range(ev->n_embd, 1, WIDTH);
    g->n = ev->n_embd;
    g->n_events++;
    memcpy(g->v, ev->embedding, (size_t)ev->n_embd * sizeof(float));
}

static headrace_request request_of(got *g, int32_t n) {
    headrace_request q = HEADRACE_REQUEST_INIT;
    memset(g, 0, sizeof *g);
    q.ids = ids;
    q.n_ids = (size_t)n;
    q.pooling = HEADRACE_POOLING_LAST;
    q.ignore_end = true;
    q.callback = on_event;
    q.user = g;
    return q;
}

static void submit(headrace_engine *e, const headrace_request *q) {
    headrace_error err = {0};
    if (headrace_submit(e, q, NULL, &err) != HEADRACE_OK) fail_msg("%s", err.text);
}

static void run(headrace_engine *e) {
    headrace_error err = {0};
    if (headrace_run(e, &err) != HEADRACE_OK) fail_msg("%s", err.text);
}

static void compare(const got *g, int32_t position, double *largest) {
    assert_int_equal(g->finish, HEADRACE_FINISH_LENGTH);
    assert_int_equal(g->n_events, 1);
    assert_int_equal(g->n, n_embd);
    for (int32_t i = 0; i < n_embd; i++) {
        const double w = (double)want[(size_t)position * (size_t)n_embd + (size_t)i],
                     d = fabs((double)g->v[i] - w) / (fabs(w) > 1 ? fabs(w) : 1);
        if (!(d <= tolerance)) fail_msg("position %d, number %d: %g, recorded %g", position, i, (double)g->v[i], w);
        if (d > *largest) *largest = d;
    }
}

static int setup(void **state) {
    char path[512], name[32];
    int64_t rows, cols;
    snprintf(path, sizeof path, "%s/expected.json", fixture);
    n_prompts = support_prompts(path, prompts, MAX_PROMPTS);
    n_ids = prompts[0].n_forced;
    assert_in_range(n_ids, 20, MOST);
    memcpy(ids, prompts[0].forced, (size_t)n_ids * sizeof *ids);
    headrace_engine *e =
        support_load(fixture, "act", "f32", "kv-dtype", "f32", "threads", "2", "max-seqs", "8", "max-batch-tokens", "96", NULL);
    headrace_model_info mi = {.size = sizeof mi};
    assert_int_equal(headrace_get_model_info(e, &mi), HEADRACE_OK);
    snprintf(name, sizeof name, "hidden.%d", mi.n_layers);
    snprintf(path, sizeof path, "%s/expected.safetensors", fixture);
    want = support_tensor(path, name, &rows, &cols);
    n_embd = mi.n_embd;
    assert_int_equal(rows, n_ids);
    assert_int_equal(cols, n_embd);
    *state = e;
    return 0;
}

static int teardown(void **state) {
    headrace_free(*state);
    support_prompts_free(prompts, n_prompts);
    free(want);
    return 0;
}

static void every_position_alone_and_together(void **state) {
    headrace_engine *e = *state;
    static got alone[MOST], together[MOST];
    double largest = 0;
    int hits = 0;
    for (int32_t n = 1; n <= n_ids; n++) {
        headrace_request q = request_of(&alone[n - 1], n);
        q.no_prefix_cache = true;
        submit(e, &q);
        run(e);
        compare(&alone[n - 1], n - 1, &largest);
    }
    for (int32_t n = 1; n <= n_ids; n++) {
        headrace_request q = request_of(&together[n - 1], n);
        q.chunk = n % 3 == 0 ? 0 : n % 7 + 1;
        submit(e, &q);
    }
    run(e);
    for (int32_t n = 1; n <= n_ids; n++) {
        assert_int_equal(together[n - 1].n_events, 1);
        assert_memory_equal(together[n - 1].v, alone[n - 1].v, (size_t)n_embd * sizeof(float));
        hits += together[n - 1].hit > 0;
    }
    assert_true(hits > 0);
    print_message("%d embeddings of %d, largest difference %.3g (tolerance %g), %d after a hit\n", n_ids, n_embd, largest, tolerance, hits);
}

static void of_length_one(void **state) {
    got plain, one;
    headrace_request q = request_of(&plain, n_ids);
    submit(*state, &q);
    run(*state);
    q = request_of(&one, n_ids);
    q.normalize = true;
    submit(*state, &q);
    run(*state);
    double norm = 0, dot = 0, length = 0;
    for (int32_t i = 0; i < n_embd; i++) {
        norm += (double)one.v[i] * (double)one.v[i];
        dot += (double)one.v[i] * (double)plain.v[i];
        length += (double)plain.v[i] * (double)plain.v[i];
    }
    assert_true(fabs(norm - 1) < 1e-6);
    assert_true(fabs(dot - sqrt(length)) < 1e-5 * sqrt(length)); /* the same direction */
}

/* Once, before the first of three answers, which are those of a request without one. */
static void beside_answers(void **state) {
    got g, none;
    headrace_request q = request_of(&g, n_ids - 10);
    double largest = 0;
    q.max_tokens = 5;
    q.n = 3;
    submit(*state, &q);
    run(*state);
    compare(&g, n_ids - 11, &largest);
    assert_int_equal(g.n_tokens, 15);
    q = request_of(&none, n_ids);
    q.pooling = HEADRACE_POOLING_NONE;
    submit(*state, &q);
    run(*state);
    assert_int_equal(none.n_events, 0);
}

static status another_head(block_ctx *c, vt_tensor x, vt_tensor logits) {
    (void)c;
    (void)x;
    (void)logits;
    return STATUS_BUG;
}

static void refused(headrace_engine *e, const headrace_request *q, headrace_status code, const char *text) {
    headrace_error err = {0};
    assert_int_equal(headrace_submit(e, q, NULL, &err), code);
    if (strstr(err.text, text) == NULL) fail_msg("\"%s\" does not say \"%s\"", err.text, text);
}

static void refused_by_name(void **state) {
    headrace_engine *e = *state;
    got g;
    headrace_request q = request_of(&g, 5);
    q.pooling = (headrace_pooling)7;
    refused(e, &q, HEADRACE_INVALID, "pooling 7 is not in 0 .. 1");
    q.pooling = HEADRACE_POOLING_NONE;
    q.normalize = true;
    refused(e, &q, HEADRACE_INVALID, "normalize needs pooling");
    const arch *own = e->model->arch;
    arch other = *own;
    other.head = another_head;
    e->model->arch = &other;
    q = request_of(&g, 5);
    refused(e, &q, HEADRACE_UNSUPPORTED, own->name);
    headrace_model_info mi = {.size = sizeof mi};
    assert_int_equal(headrace_get_model_info(e, &mi), HEADRACE_OK);
    assert_int_equal(mi.n_embd, 0);
    e->model->arch = own;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: check_embedding FIXTURE TOLERANCE\n");
        return 2;
    }
    fixture = argv[1];
    tolerance = atof(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_position_alone_and_together),
        cmocka_unit_test(of_length_one),
        cmocka_unit_test(beside_answers),
        cmocka_unit_test(refused_by_name),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
