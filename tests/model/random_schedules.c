/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same bits whatever happens: each prompt's logits and tokens, greedy and drawn, are first computed alone; then in random batches with requests that join and leave, random chunks,
 * priorities, several answers to one prompt, pools so small that sequences are preempted, and prompts that the prefix cache knows. Every logit and every token is compared, byte by byte.
 * Usage: random_schedules MODEL EXPECTED_DIR SCHEDULES [SEED [stream]]; stream: experts are read from disk into as few slots as can be, and compared with resident ones.
 */
#include "model/model_support.h"

enum { MAX_PROMPTS = 16, MAX_NEW = 40, MAX_REQUESTS = 9, KINDS = 2, SCHEDULES_PER_ENGINE = 10 };

static const char *model_path, *expected_dir;
static int n_schedules;
static bool streams;
static uint64_t rng;

static uint32_t rnd(uint32_t n) {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 33) % n;
}

/* What one request got: kind 0 is greedy, kind 1 is drawn. */
typedef struct record {
    int prompt, kind, index;
    bool wants_logits, cancelled, done;
    int32_t tokens[MAX_NEW], n_tokens, max_new, n_prompt;
    float *logits; /* [n_rows, vocab] of the reference; of a run NULL: rows are compared as they come */
    int32_t n_rows;
    headrace_finish finish;
    headrace_usage usage;
} record;

static support_prompt prompts[MAX_PROMPTS];
static int n_prompts;
static record reference[KINDS][MAX_PROMPTS][3]; /* by index of the answer */
static int32_t n_vocab;
static long n_rows_compared, n_tokens_compared, n_preempted, n_hit, n_cancelled, n_refused;

static headrace_request request_of(record *r) {
    headrace_request q = HEADRACE_REQUEST_INIT;
    q.ids = prompts[r->prompt].ids;
    q.n_ids = (size_t)prompts[r->prompt].n_ids;
    q.max_tokens = r->max_new;
    q.want_logits = r->wants_logits;
    q.ignore_end = true;
    if (r->kind == 1) {
        q.temperature = 0.9f;
        q.top_p = 0.95f;
        q.top_k = 50;
        q.repetition_penalty = 1.2f;
        q.frequency_penalty = 0.1f;
        q.seed = 1000 + (uint64_t)r->prompt;
    }
    q.user = r;
    return q;
}

static void keep(const headrace_event *ev) {
    record *r = (record *)ev->user + ev->index;
    if (ev->kind == HEADRACE_EVENT_LOGITS) {
        const size_t row = (size_t)ev->n_vocab;
        n_vocab = ev->n_vocab;
        r->logits = realloc(r->logits, (size_t)(r->n_rows + ev->n_rows) * row * sizeof(float));
        assert_non_null(r->logits);
        memcpy(r->logits + (size_t)r->n_rows * row, ev->logits, (size_t)ev->n_rows * row * sizeof(float));
        r->n_rows += ev->n_rows;
    }
    if (ev->kind == HEADRACE_EVENT_TOKEN) r->tokens[r->n_tokens++] = ev->token;
    if (ev->kind == HEADRACE_EVENT_DONE) r->finish = ev->finish;
}

static void compare(const headrace_event *ev) {
    record *r = (record *)ev->user + ev->index;
    const record *want = &reference[r->kind][r->prompt][ev->index];
    assert_false(r->done);
    if (ev->kind == HEADRACE_EVENT_LOGITS) {
        assert_true(r->wants_logits);
        assert_int_equal(ev->first_pos, r->n_rows);
        assert_true(r->n_rows + ev->n_rows <= want->n_rows);
        assert_memory_equal(ev->logits, want->logits + (size_t)r->n_rows * (size_t)n_vocab, (size_t)ev->n_rows * (size_t)n_vocab * sizeof(float));
        r->n_rows += ev->n_rows;
        n_rows_compared += ev->n_rows;
    }
    if (ev->kind == HEADRACE_EVENT_TOKEN) {
        assert_true(r->n_tokens < r->max_new);
        if (ev->token != want->tokens[r->n_tokens]) fail_msg("prompt %d, kind %d, answer %d: token %d is %d alone and %d here", r->prompt, r->kind, ev->index, r->n_tokens, want->tokens[r->n_tokens], ev->token);
        r->n_tokens++;
        n_tokens_compared++;
    }
    if (ev->kind != HEADRACE_EVENT_DONE) return;
    r->done = true;
    r->finish = ev->finish;
    n_preempted += ev->usage.preemptions;
    n_hit += ev->usage.prefix_hit_tokens;
    if (r->wants_logits) assert_int_equal(ev->usage.prefix_hit_tokens, 0);
    if (ev->finish == HEADRACE_FINISH_CANCELLED && r->cancelled) {
        n_cancelled++;
        return;
    }
    if (ev->finish != HEADRACE_FINISH_LENGTH) fail_msg("ended with %d: %s", (int)ev->finish, ev->error);
    assert_int_equal(r->n_tokens, r->max_new);
    if (r->wants_logits) assert_int_equal(r->n_rows, prompts[r->prompt].n_ids + (r->max_new > 0 ? r->max_new - 1 : 0));
}

/* Beginnings of the first prompts, shorter than a page: such sequences grow most after they were admitted, also behind windows. */
static void add_short_prompts(void) {
    for (int i = 0; i < 2 && n_prompts < MAX_PROMPTS; i++) {
        support_prompt p = {.n_ids = 3 + 4 * i};
        p.ids = malloc((size_t)p.n_ids * sizeof *p.ids);
        assert_non_null(p.ids);
        memcpy(p.ids, prompts[i].ids, (size_t)p.n_ids * sizeof *p.ids);
        prompts[n_prompts++] = p;
    }
}

/* The row that a token is about to be drawn from, also of those that take hits. */
static void compare_row(void *user, headrace_id id, int32_t index, const int32_t *tokens, int32_t n_tokens, float *logits, int32_t vocab) {
    (void)id;
    (void)tokens;
    const record *r = (const record *)user + index, *want = &reference[r->kind][r->prompt][index];
    assert_int_equal(vocab, n_vocab);
    assert_in_range(n_tokens, 1, want->n_rows);
    assert_memory_equal(logits, want->logits + (size_t)(n_tokens - 1) * (size_t)n_vocab, (size_t)n_vocab * sizeof(float));
    n_rows_compared++;
}

static int setup(void **state) {
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s/expected.json", expected_dir);
    n_prompts = support_prompts(path, prompts, MAX_PROMPTS);
    add_short_prompts();
    headrace_engine *e = support_load(model_path, "threads", "1", "ctx", "128", "prefix-cache", "false", NULL);
    for (int kind = 0; kind < KINDS; kind++) {
        for (int p = 0; p < n_prompts; p++) {
            record *r = reference[kind][p];
            if (prompts[p].n_ids + MAX_NEW > 128) prompts[p].n_ids = 128 - MAX_NEW;
            for (int i = 0; i < 3; i++) r[i] = (record){.prompt = p, .kind = kind, .index = i, .wants_logits = true, .max_new = MAX_NEW};
            headrace_request q = request_of(r);
            headrace_error err = {0};
            q.n = 3;
            q.callback = keep;
            if (headrace_submit(e, &q, NULL, &err) != HEADRACE_OK || headrace_run(e, &err) != HEADRACE_OK) fail_msg("%s", err.text);
            for (int i = 0; i < 3; i++) assert_int_equal(r[i].n_tokens, MAX_NEW);
        }
    }
    headrace_free(e);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        for (int p = 0; p < n_prompts; p++) {
            for (int i = 0; i < 3; i++) free(reference[kind][p][i].logits);
        }
    }
    support_prompts_free(prompts, n_prompts);
    return 0;
}

/* least_bytes: pages of a longest sequence computed row by row, and snapshots of its states. */
static headrace_engine *random_engine(uint64_t least_bytes) {
    char kv[32], rows[16], seqs[16], threads[2] = {(char)('1' + rnd(3)), '\0'};
    /* in two of three engines there is room for few, one, or not even that */
    snprintf(kv, sizeof kv, "%llu", (unsigned long long)(rnd(3) == 0 ? 0 : least_bytes * (6 + rnd(11)) / 8));
    snprintf(rows, sizeof rows, "%u", rnd(2) == 0 ? 1 + rnd(8) : 2 + rnd(90));
    snprintf(seqs, sizeof seqs, "%u", 2 + rnd(7));
    const char *const prefix = rnd(5) == 0 ? "false" : "true";
    if (streams) {
        return support_load(model_path, "ctx", "128", "kv-mem", kv, "max-batch-tokens", rows, "max-seqs", seqs, "threads", threads, "prefix-cache", prefix, "experts", "stream", "host-experts", "min", NULL);
    }
    return support_load(model_path, "ctx", "128", "kv-mem", kv, "max-batch-tokens", rows, "max-seqs", seqs, "threads", threads, "prefix-cache", prefix, NULL);
}

static uint64_t kv_bytes(const char *max_seqs) {
    headrace_engine *e = support_load(model_path, "ctx", "128", "max-seqs", max_seqs, "max-batch-tokens", "1", NULL);
    headrace_model_info mi = {.size = sizeof mi};
    assert_int_equal(headrace_get_model_info(e, &mi), HEADRACE_OK);
    headrace_free(e);
    return mi.kv_bytes;
}

static void one_schedule(headrace_engine *e) {
    static record r[MAX_REQUESTS][3];
    headrace_id id[MAX_REQUESTS];
    const int n = 2 + (int)rnd(MAX_REQUESTS - 1);
    memset(r, 0, sizeof r);
    int submitted = 0;
    for (bool more = true; more || submitted < n;) {
        while (submitted < n && rnd(3) != 0) {
            const record one = {.prompt = (int)rnd((uint32_t)n_prompts), .kind = (int)rnd(KINDS), .wants_logits = rnd(4) == 0, .max_new = rnd(2) == 0 ? MAX_NEW : (int32_t)rnd(MAX_NEW + 1)};
            for (int i = 0; i < 3; i++) r[submitted][i] = one;
            headrace_request q = request_of(r[submitted]);
            headrace_error err = {0};
            q.n = rnd(4) == 0 ? 1 + (int32_t)rnd(3) : 1;
            q.chunk = rnd(2) == 0 ? 0 : 1 + (int32_t)rnd(20);
            q.priority = (int32_t)rnd(3) - 1;
            q.no_prefix_cache = rnd(8) == 0;
            q.logits_hook = q.want_logits ? NULL : compare_row;
            q.callback = compare;
            const headrace_status rc = headrace_submit(e, &q, &id[submitted], &err);
            if (rc != HEADRACE_OK && rc != HEADRACE_DOES_NOT_FIT) fail_msg("%s", err.text);
            if (rc != HEADRACE_OK) id[submitted] = 0; /* refused at once, never parked */
            n_refused += rc != HEADRACE_OK;
            for (int i = rc == HEADRACE_OK ? q.n : 0; i < 3; i++) r[submitted][i].done = true;
            submitted++;
        }
        if (rnd(80) == 0 && submitted > 0) {
            const uint32_t k = rnd((uint32_t)submitted);
            for (int i = 0; i < 3; i++) r[k][i].cancelled = true;
            (void)headrace_cancel(e, id[k]);
        }
        headrace_error err = {0};
        if (headrace_step(e, &more, &err) != HEADRACE_OK) fail_msg("%s", err.text);
    }
    for (int k = 0; k < n; k++) {
        for (int i = 0; i < 3; i++) assert_true(r[k][i].done);
    }
}

static void the_same_bits_whatever_happens(void **state) {
    (void)state;
    headrace_engine *e = NULL;
    const uint64_t least_bytes = kv_bytes("3") - kv_bytes("2");
    headrace_stats experts = {0}; /* of all engines */
    for (int i = 0; i < n_schedules; i++) {
        if (i % SCHEDULES_PER_ENGINE == 0) {
            headrace_free(e);
            e = random_engine(least_bytes);
        }
        one_schedule(e);
        headrace_stats st = {.size = sizeof st};
        assert_int_equal(headrace_get_stats(e, &st), HEADRACE_OK);
        assert_int_equal(st.kv_pages_used, 0);
        assert_int_equal(st.n_hot_allocations, 0);
        if ((i + 1) % SCHEDULES_PER_ENGINE != 0 && i + 1 < n_schedules) continue;
        experts.expert_misses += st.expert_misses;
        experts.expert_evictions += st.expert_evictions;
        experts.expert_bytes_read += st.expert_bytes_read;
        experts.expert_prefetch_wasted += st.expert_prefetch_wasted;
        experts.expert_bytes_needed += st.expert_bytes_needed;
        experts.expert_bytes_expected += st.expert_bytes_expected;
        if (streams) assert_int_equal(st.experts_tier, HEADRACE_EXPERTS_STREAM);
    }
    headrace_free(e);
    print_message("%d schedules: %ld rows of logits, %ld tokens, %ld preemptions, %ld tokens from the prefix cache, %ld cancelled, %ld refused\n", n_schedules, n_rows_compared, n_tokens_compared, n_preempted,
                  n_hit, n_cancelled, n_refused);
    assert_true(n_rows_compared > 0 && n_tokens_compared > 0 && n_cancelled > 0 && n_hit > 0);
    if (n_schedules >= 40) assert_true(n_preempted > 0); /* a shorter run may not meet one */
    if (!streams) return;
    print_message("streamed: %llu misses, %llu evictions; bytes of experts: %llu needed, %llu expected to be read, %llu read\n", (unsigned long long)experts.expert_misses,
                  (unsigned long long)experts.expert_evictions, (unsigned long long)experts.expert_bytes_needed, (unsigned long long)experts.expert_bytes_expected,
                  (unsigned long long)experts.expert_bytes_read);
    assert_true(experts.expert_misses > 0 && experts.expert_evictions > 0);
    assert_true(experts.expert_bytes_read > 0 && experts.expert_bytes_read - experts.expert_prefetch_wasted <= experts.expert_bytes_needed);
    assert_in_range(experts.expert_bytes_expected, experts.expert_bytes_read / 2, experts.expert_bytes_read * 2);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: random_schedules MODEL EXPECTED_DIR SCHEDULES [SEED [stream]]\n");
        return 2;
    }
    model_path = argv[1];
    expected_dir = argv[2];
    n_schedules = atoi(argv[3]);
    rng = argc > 4 ? strtoull(argv[4], NULL, 10) : 88172645463325252u;
    if (rng == 0) rng = 1;
    streams = argc > 5 && strcmp(argv[5], "stream") == 0;
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_bits_whatever_happens)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
