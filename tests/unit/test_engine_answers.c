/* SPDX-License-Identifier: Apache-2.0 */
/* What a request may ask of its answers beyond sampling: several of them, log-probabilities, stops, biases, a hook, priorities; and what the prefix cache does for it. */
#include "support/engine_case.h"

#include <math.h>

enum { MAX_INDEX = 4, MAX_OUT = 96, VOCAB = 416 };

typedef struct answer_log {
    engine_answer by_index[MAX_INDEX];
    float logprob[MAX_INDEX][MAX_OUT], best[MAX_INDEX][MAX_OUT];
    int32_t best_id[MAX_INDEX][MAX_OUT];
    int32_t prompt[MAX_OUT], n_prompt;
    float prompt_logprob[MAX_OUT];
    char prompt_text[4096];
    size_t n_prompt_text;
    float rows[MAX_OUT][VOCAB]; /* with want_logits */
    int32_t n_rows;
    int n_hook;
} answer_log;

static void on_event(const headrace_event *ev) {
    answer_log *l = ev->user;
    assert_in_range(ev->index, 0, MAX_INDEX - 1);
    engine_answer *a = &l->by_index[ev->index];
    if (ev->kind == HEADRACE_EVENT_PROMPT) {
        assert_int_equal(ev->index, 0);
        assert_int_equal(a->n_tokens, 0);
        l->prompt[l->n_prompt] = ev->token;
        l->prompt_logprob[l->n_prompt++] = ev->logprob;
        memcpy(l->prompt_text + l->n_prompt_text, ev->text, ev->n_text);
        l->n_prompt_text += ev->n_text;
        return;
    }
    if (ev->kind == HEADRACE_EVENT_LOGITS && ev->index == 0) {
        memcpy(l->rows[l->n_rows], ev->logits, (size_t)ev->n_rows * sizeof l->rows[0]);
        l->n_rows += ev->n_rows;
    }
    if (ev->kind == HEADRACE_EVENT_TOKEN) {
        l->logprob[ev->index][a->n_tokens] = ev->logprob;
        if (ev->n_top > 0) {
            l->best[ev->index][a->n_tokens] = ev->top_logprobs[0];
            l->best_id[ev->index][a->n_tokens] = ev->top_ids[0];
        }
    }
    if (ev->kind == HEADRACE_EVENT_DONE && ev->timings.first_token_ns > 0) {
        const headrace_timings *t = &ev->timings;
        assert_true(t->queued_ns + t->prefill_ns == t->first_token_ns);
        assert_true(t->first_token_ns + t->decode_ns == t->total_ns);
    }
    headrace_event copy = *ev;
    copy.user = a;
    engine_case_record(&copy);
}

static answer_log log_a, log_b;

static headrace_request ask(answer_log *l, const int32_t *ids, int32_t n_ids, int32_t max_tokens) {
    memset(l, 0, sizeof *l);
    headrace_request r = engine_case_request(NULL, ids, n_ids, max_tokens);
    r.callback = on_event;
    r.user = l;
    return r;
}

static void go(headrace_engine *e, const headrace_request *r) {
    (void)engine_case_submit(e, r);
    engine_case_run(e);
}

static double logsumexp(const float *row) {
    double best = -INFINITY, sum = 0;
    for (int i = 0; i < VOCAB; i++) best = (double)row[i] > best ? (double)row[i] : best;
    for (int i = 0; i < VOCAB; i++) sum += exp((double)row[i] - best);
    return best + log(sum);
}

static void logprobs_of_prompt_and_answer(void **state) {
    (void)state;
    headrace_engine *e = engine_case_load(ENGINE_CASE_MODEL, "threads", "1", "max-batch-tokens", "7", NULL);
    int32_t ids[20];
    engine_case_ids(ids, 20, 11);
    headrace_request r = ask(&log_a, ids, 20, 12);
    r.want_logits = true;
    r.want_logprobs = r.prompt_logprobs = true;
    r.top_logprobs = 3;
    go(e, &r);
    assert_int_equal(log_a.n_rows, 31);
    assert_int_equal(log_a.n_prompt, 20);
    assert_true(isnan(log_a.prompt_logprob[0]));
    for (int i = 0; i < 20; i++) {
        assert_int_equal(log_a.prompt[i], ids[i]);
        if (i > 0) assert_true(fabs((double)log_a.prompt_logprob[i] - ((double)log_a.rows[i - 1][ids[i]] - logsumexp(log_a.rows[i - 1]))) < 1e-4);
    }
    for (int i = 0; i < 12; i++) {
        const float *row = log_a.rows[19 + i];
        const int32_t id = log_a.by_index[0].tokens[i];
        assert_true(fabs((double)log_a.logprob[0][i] - ((double)row[id] - logsumexp(row))) < 1e-4);
        assert_int_equal(log_a.best_id[0][i], id); /* greedy */
        assert_true(log_a.best[0][i] == log_a.logprob[0][i]);
    }
    /* scores only, with the prompt's pages known: a request for prompt log-probabilities takes no hit, and says the same */
    headrace_request s = ask(&log_b, ids, 20, 0);
    s.prompt_logprobs = true;
    go(e, &s);
    assert_int_equal(log_b.n_prompt, 20);
    assert_int_equal(log_b.by_index[0].usage.prefix_hit_tokens, 0);
    assert_memory_equal(log_b.prompt_logprob + 1, log_a.prompt_logprob + 1, 19 * sizeof(float));
    /* with nothing asked for beside them, and greedy: more than the most likely id comes back */
    s = ask(&log_b, ids, 20, 12);
    s.want_logprobs = true;
    go(e, &s);
    assert_memory_equal(log_b.by_index[0].tokens, log_a.by_index[0].tokens, 12 * sizeof(int32_t));
    assert_memory_equal(log_b.logprob[0], log_a.logprob[0], 12 * sizeof(float));
    const headrace_request one = (s = ask(&log_b, ids, 1, 0), s.prompt_logprobs = true, s);
    go(e, &one);
    assert_int_equal(log_b.n_prompt, 1);
    engine_case_free(e);
}

static void several_answers(void **state) {
    (void)state;
    headrace_engine *e = engine_case_load(ENGINE_CASE_MODEL, "threads", "1", "max-seqs", "3", NULL);
    int32_t ids[40];
    engine_case_ids(ids, 40, 3);
    headrace_request r = ask(&log_a, ids, 40, 20);
    r.n = MAX_INDEX;
    r.temperature = 1;
    r.seed = 77;
    go(e, &r);
    headrace_request one = ask(&log_b, ids, 40, 20);
    one.temperature = 1;
    one.seed = 77;
    go(e, &one);
    assert_memory_equal(log_a.by_index[0].tokens, log_b.by_index[0].tokens, 20 * sizeof(int32_t));
    for (int i = 0; i < MAX_INDEX; i++) {
        assert_int_equal(log_a.by_index[i].n_done, 1);
        assert_int_equal(log_a.by_index[i].n_tokens, 20);
        assert_int_equal(log_a.by_index[i].usage.prefix_hit_tokens, i == 0 ? 0 : 32); /* the prompt is computed once */
        for (int k = 0; k < i; k++) assert_memory_not_equal(log_a.by_index[i].tokens, log_a.by_index[k].tokens, 20 * sizeof(int32_t));
    }
    /* all are cancelled by the one id, also those that have not begun */
    r = ask(&log_a, ids, 40, 200);
    r.n = MAX_INDEX;
    const headrace_id id = engine_case_submit(e, &r);
    bool more;
    assert_int_equal(headrace_step(e, &more, NULL), HEADRACE_OK);
    assert_int_equal(headrace_cancel(e, id), HEADRACE_OK);
    engine_case_run(e);
    for (int i = 0; i < MAX_INDEX; i++) {
        assert_int_equal(log_a.by_index[i].n_done, 1);
        assert_int_equal(log_a.by_index[i].finish, HEADRACE_FINISH_CANCELLED);
    }
    engine_case_free(e);
}

static void stops(void **state) {
    (void)state;
    headrace_engine *e = engine_case_load(ENGINE_CASE_MODEL, "threads", "1", NULL);
    int32_t ids[12];
    engine_case_ids(ids, 12, 8);
    headrace_request r = ask(&log_a, ids, 12, 40);
    go(e, &r);
    const engine_answer plain = log_a.by_index[0];
    assert_int_equal(plain.finish, HEADRACE_FINISH_LENGTH);
    /* a stop id: the answer ends with it, its text does not come */
    int at = 10;
    while (at > 0) { /* its first appearance */
        int k = 0;
        while (plain.tokens[k] != plain.tokens[at]) k++;
        if (k == at) break;
        at--;
    }
    r = ask(&log_a, ids, 12, 40);
    r.stop_ids = &plain.tokens[at];
    r.n_stop_ids = 1;
    go(e, &r);
    assert_int_equal(log_a.by_index[0].finish, HEADRACE_FINISH_STOP);
    assert_int_equal(log_a.by_index[0].n_tokens, at + 1);
    assert_true(strncmp(log_a.by_index[0].text, plain.text, log_a.by_index[0].n_text) == 0);
    /* held back until min_tokens */
    r.min_tokens = 30;
    log_a = (answer_log){0};
    go(e, &r);
    assert_true(log_a.by_index[0].n_tokens >= 30);
    for (int i = 0; i < 30; i++) assert_int_not_equal(log_a.by_index[0].tokens[i], plain.tokens[at]);
    /* every substring of 1 to 6 bytes as a stop string, cut at code points */
    int n = 0;
    for (size_t from = 0; from < 24; from++) {
        for (size_t len = 1; len <= 6; len++) {
            char text[8];
            if (((unsigned char)plain.text[from] & 0xc0) == 0x80 || ((unsigned char)plain.text[from + len] & 0xc0) == 0x80) continue;
            memcpy(text, plain.text + from, len);
            text[len] = '\0';
            const char *const list[] = {text};
            r = ask(&log_a, ids, 12, 40);
            r.stop = list;
            r.n_stop = 1;
            go(e, &r);
            const engine_answer *a = &log_a.by_index[0];
            const size_t first = (size_t)(strstr(plain.text, text) - plain.text);
            assert_int_equal(a->finish, HEADRACE_FINISH_STOP);
            assert_int_equal(a->n_text, first);
            assert_memory_equal(a->text, plain.text, first);
            if (++n % 8 != 0) continue;
            r.min_tokens = 30; /* what comes before ends nothing, and is there */
            log_a = (answer_log){0};
            go(e, &r);
            assert_true(a->n_tokens >= 30);
            assert_memory_equal(a->tokens, plain.tokens, 30 * sizeof plain.tokens[0]);
            assert_true(a->n_text > first && a->n_text <= plain.n_text);
            assert_memory_equal(a->text, plain.text, a->n_text);
        }
    }
    assert_true(n > 20);
    engine_case_free(e);
}

static void double_the_best(void *user, headrace_id id, int32_t index, const int32_t *tokens, int32_t n_tokens, float *logits, int32_t n_vocab) {
    answer_log *l = user;
    (void)id;
    assert_int_equal(index, 0);
    assert_int_equal(n_vocab, VOCAB);
    assert_int_equal(n_tokens, 5 + l->n_hook);
    for (int i = 0; i < n_vocab; i++) logits[i] = i == 100 + l->n_hook ? 50.0f : logits[i];
    assert_true(tokens[0] >= 0);
    l->n_hook++;
}

static void nan_everywhere(void *user, headrace_id id, int32_t index, const int32_t *tokens, int32_t n_tokens, float *logits, int32_t n_vocab) {
    (void)user, (void)id, (void)index, (void)tokens, (void)n_tokens;
    for (int i = 0; i < n_vocab; i++) logits[i] = NAN;
}

static void what_may_be_drawn(void **state) {
    (void)state;
    headrace_engine *e = engine_case_load(ENGINE_CASE_MODEL, "threads", "1", NULL);
    int32_t ids[5];
    engine_case_ids(ids, 5, 8);
    headrace_request r = ask(&log_a, ids, 5, 8);
    r.logits_hook = double_the_best;
    go(e, &r);
    assert_int_equal(log_a.n_hook, 8);
    for (int i = 0; i < 8; i++) assert_int_equal(log_a.by_index[0].tokens[i], 100 + i);
    const headrace_bias against = {.id = 100, .bias = -1000}; /* the hook comes first, and what follows has the last word */
    r = ask(&log_a, ids, 5, 1);
    r.logits_hook = double_the_best;
    r.logit_bias = &against;
    r.n_logit_bias = 1;
    go(e, &r);
    assert_int_equal(log_a.n_hook, 1);
    assert_int_not_equal(log_a.by_index[0].tokens[0], 100);
    r = ask(&log_a, ids, 5, 8);
    r.logits_hook = nan_everywhere;
    go(e, &r);
    assert_int_equal(log_a.by_index[0].finish, HEADRACE_FINISH_ERROR);
    assert_contains(log_a.by_index[0].error, "not finite");
    const int32_t allowed[] = {40, 41};
    r = ask(&log_a, ids, 5, 30);
    r.allowed_ids = allowed;
    r.n_allowed_ids = 2;
    r.temperature = 1;
    go(e, &r);
    for (int i = 0; i < 30; i++) assert_in_range(log_a.by_index[0].tokens[i], 40, 41);
    const headrace_bias bias = {.id = 77, .bias = 500};
    r = ask(&log_a, ids, 5, 4);
    r.logit_bias = &bias;
    r.n_logit_bias = 1;
    go(e, &r);
    for (int i = 0; i < 4; i++) assert_int_equal(log_a.by_index[0].tokens[i], 77);
    /* a bad word: the text of the second token, alone, may not come again */
    r = ask(&log_a, ids, 5, 20);
    go(e, &r);
    const engine_answer plain = log_a.by_index[0];
    char piece[64];
    size_t n_piece;
    const char *bytes = tokenizer_piece(e->tok, plain.tokens[1], &n_piece);
    if (n_piece > 0 && n_piece < sizeof piece && memchr(bytes, 0xc3, n_piece) == NULL && (unsigned char)bytes[0] < 0x80) {
        memcpy(piece, bytes, n_piece);
        piece[n_piece] = '\0';
        const char *const words[] = {piece};
        r = ask(&log_a, ids, 5, 20);
        r.bad_words = words;
        r.n_bad_words = 1;
        go(e, &r);
        assert_null(strstr(log_a.by_index[0].text, piece));
    }
    engine_case_free(e);
}

/* The one id of " WORD", where WORD alone is other ids: a bad word WORD forbids it too. */
static void bad_words_behind_a_space(void **state) {
    (void)state;
    headrace_engine *e = engine_case_load(ENGINE_CASE_MODEL, "threads", "1", NULL);
    headrace_vocab v = {.m = e->m, .tok = e->tok};
    int32_t ids[5];
    int n = 0;
    engine_case_ids(ids, 5, 8);
    for (int c = 'A'; c <= 'z'; c++) {
        for (int d = 'a' - 1; d <= 'z'; d++) {
            const char spaced[] = {' ', (char)c, d >= 'a' ? (char)d : '\0', '\0'}, *const word = spaced + 1;
            int32_t *with = NULL, *without = NULL;
            size_t n_with = 0, n_without = 0;
            headrace_error err = {0};
            assert_int_equal(headrace_encode(&v, spaced, strlen(spaced), -1, true, &with, &n_with, &err), HEADRACE_OK);
            assert_int_equal(headrace_encode(&v, word, strlen(word), -1, true, &without, &n_without, &err), HEADRACE_OK);
            if (n_with == 1 && (n_without != 1 || without[0] != with[0]) && n < 4) {
                const headrace_bias likely = {.id = with[0], .bias = 500};
                const char *const words[] = {word};
                headrace_request r = ask(&log_a, ids, 5, 3);
                r.logit_bias = &likely;
                r.n_logit_bias = 1;
                go(e, &r);
                assert_int_equal(log_a.by_index[0].tokens[0], with[0]);
                log_a = (answer_log){0};
                r.bad_words = words;
                r.n_bad_words = 1;
                go(e, &r);
                for (int i = 0; i < 3; i++) assert_int_not_equal(log_a.by_index[0].tokens[i], with[0]);
                n++;
            }
            headrace_ids_free(with);
            headrace_ids_free(without);
        }
    }
    assert_true(n > 0);
    engine_case_free(e);
}

static void lists_are_checked(void **state) {
    (void)state;
    headrace_engine *e = engine_case_load(ENGINE_CASE_MODEL, "threads", "1", NULL);
    int32_t ids[5];
    engine_case_ids(ids, 5, 8);
    const int32_t far[] = {3, 416};
    const headrace_bias far_bias = {.id = -1, .bias = 1}, big_bias = {.id = 1, .bias = 1e9f};
    const char *const empty[] = {""}, *const broken[] = {"a", "b\xff"}, *const none[] = {NULL};
    char long_text[1100];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    const char *const too_long[] = {long_text};
    int n = 0;
#define BAD(part, ...)                                              \
    do {                                                            \
        headrace_request r = ask(&log_a, ids, 5, 8);                \
        headrace_error err = {0};                                   \
        __VA_ARGS__;                                                \
        assert_int_equal(headrace_submit(e, &r, NULL, &err), HEADRACE_INVALID); \
        assert_contains(err.text, part);                            \
        n++;                                                        \
    } while (0)
    BAD("n 129", r.n = 129);
    BAD("n -1", r.n = -1);
    BAD("priority 101", r.priority = 101);
    BAD("top_logprobs 65", (r.top_logprobs = 65, r.want_logprobs = true));
    BAD("top_logprobs needs", r.top_logprobs = 5);
    BAD("min_tokens 9 exceeds", r.min_tokens = 9);
    BAD("repetition_penalty", r.repetition_penalty = NAN);
    BAD("frequency_penalty", r.frequency_penalty = 1000);
    BAD("presence_penalty", r.presence_penalty = -INFINITY);
    BAD("allowed id 416 at index 1", (r.allowed_ids = far, r.n_allowed_ids = 2));
    BAD("stop id 416", (r.stop_ids = far, r.n_stop_ids = 2));
    BAD("stop_ids says 2", r.n_stop_ids = 2);
    BAD("logit_bias id -1", (r.logit_bias = &far_bias, r.n_logit_bias = 1));
    BAD("logit_bias 1e+09", (r.logit_bias = &big_bias, r.n_logit_bias = 1));
    BAD("stop text 0 is empty", (r.stop = empty, r.n_stop = 1));
    BAD("stop text 0 is empty", (r.stop = none, r.n_stop = 1));
    BAD("stop text 1 is not UTF-8 at byte 1", (r.stop = broken, r.n_stop = 2));
    BAD("longer than 1024", (r.stop = too_long, r.n_stop = 1));
    BAD("bad_words text 1", (r.bad_words = broken, r.n_bad_words = 2));
    BAD("entries", (r.stop = empty, r.n_stop = 1000));
#undef BAD
    assert_int_equal(n, 20);
    engine_case_free(e);
}

static void the_prefix_cache(void **state) {
    (void)state;
    headrace_engine *e = engine_case_load(ENGINE_CASE_MODEL, "threads", "1", NULL);
    int32_t ids[60];
    engine_case_ids(ids, 60, 21);
    const struct {
        const char *salt;
        bool off, logits;
        int32_t n_ids, hit;
    } cases[] = {
        {NULL, false, false, 60, 0},  {NULL, false, false, 60, 48}, {NULL, false, false, 49, 48}, {NULL, false, false, 48, 32} /* the last token is computed */,
        {"a", false, false, 60, 0},   {"a", false, false, 60, 48},  {"b", false, false, 60, 0},   {NULL, true, false, 60, 0},
        {NULL, false, true, 60, 0},   {"", false, false, 60, 48},   {"a tenant whose name goes on, and on, and ends in 1", false, false, 60, 0},
        {"a tenant whose name goes on, and on, and ends in 2", false, false, 60, 0},
    };
    uint64_t n_prompt_tokens = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        n_prompt_tokens += (uint64_t)cases[i].n_ids;
        headrace_request r = ask(&log_b, ids, cases[i].n_ids, 3);
        r.cache_salt = cases[i].salt;
        r.no_prefix_cache = cases[i].off;
        r.want_logits = cases[i].logits;
        go(e, &r);
        if (log_b.by_index[0].usage.prefix_hit_tokens != cases[i].hit) fail_msg("case %zu: %d tokens hit, %d expected", i, log_b.by_index[0].usage.prefix_hit_tokens, cases[i].hit);
        if (i == 0) log_a = log_b;
        if (cases[i].n_ids == 60) assert_memory_equal(log_a.by_index[0].tokens, log_b.by_index[0].tokens, 3 * sizeof(int32_t));
    }
    headrace_stats st = {.size = sizeof st};
    assert_int_equal(headrace_get_stats(e, &st), HEADRACE_OK);
    assert_true(st.kv_pages_cached > 0);
    assert_int_equal(st.n_prefix_hit_tokens, 48 * 4 + 32);
    assert_int_equal(st.n_prompt_tokens, n_prompt_tokens);
    assert_int_equal(st.n_generated_tokens, 3 * sizeof cases / sizeof cases[0]);
    assert_int_equal(st.n_finished, sizeof cases / sizeof cases[0]);
    engine_case_free(e);
    e = engine_case_load(ENGINE_CASE_MODEL, "threads", "1", "prefix-cache", "false", NULL);
    for (int i = 0; i < 2; i++) {
        const headrace_request r = ask(&log_b, ids, 60, 3);
        go(e, &r);
        assert_int_equal(log_b.by_index[0].usage.prefix_hit_tokens, 0);
    }
    engine_case_free(e);
}

/* Two that do not fit together: the second is set back and finds its own pages again, which is no hit. */
static void its_own_pages_are_no_hit(void **state) {
    (void)state;
    headrace_engine *e = engine_case_load(ENGINE_CASE_MODEL, "threads", "1", "ctx", "128", "max-seqs", "2", NULL);
    const size_t page = e->plan.kv_bytes_per_token * (size_t)e->plan.page_tokens;
    engine_case_free(e);
    char room[32];
    snprintf(room, sizeof room, "%zu", 10 * page);
    e = engine_case_load(ENGINE_CASE_MODEL, "threads", "1", "ctx", "128", "max-seqs", "2", "kv-mem", room, NULL);
    int32_t ids[2][40];
    engine_case_ids(ids[0], 40, 5);
    engine_case_ids(ids[1], 40, 6);
    const headrace_request a = ask(&log_a, ids[0], 40, 80), b = ask(&log_b, ids[1], 40, 80);
    (void)engine_case_submit(e, &a);
    go(e, &b);
    const headrace_usage *first = &log_a.by_index[0].usage, *second = &log_b.by_index[0].usage;
    assert_int_equal(first->preemptions, 0);
    assert_true(second->preemptions > 0);
    assert_int_equal(first->prefix_hit_tokens, 0);
    assert_int_equal(second->prefix_hit_tokens, 0);
    headrace_stats st = {.size = sizeof st};
    assert_int_equal(headrace_get_stats(e, &st), HEADRACE_OK);
    assert_int_equal(st.n_prefix_hit_tokens, 0);
    assert_int_equal(st.n_preemptions, (uint64_t)second->preemptions);
    engine_case_free(e);
}

static int order[3], n_ordered;
static void note_end(const headrace_event *ev) {
    if (ev->kind == HEADRACE_EVENT_DONE) order[n_ordered++] = *(const int *)ev->user;
}

static void priority_goes_first(void **state) {
    (void)state;
    headrace_engine *e = engine_case_load(ENGINE_CASE_MODEL, "threads", "1", "max-seqs", "1", NULL);
    static const int number[3] = {0, 1, 2};
    int32_t ids[5];
    engine_case_ids(ids, 5, 8);
    n_ordered = 0;
    for (int i = 0; i < 3; i++) {
        headrace_request r = engine_case_request(NULL, ids, 5, 4);
        r.callback = note_end;
        r.user = (void *)(uintptr_t)&number[i];
        r.priority = i - 1;
        (void)engine_case_submit(e, &r);
    }
    engine_case_run(e);
    assert_int_equal(n_ordered, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(order[i], 2 - i);
    engine_case_free(e);
}

/* A caller compiled with the first version of the header: its structs are shorter. */
static void older_callers(void **state) {
    (void)state;
    headrace_engine *e = engine_case_load(ENGINE_CASE_MODEL, "threads", "1", NULL);
    int32_t ids[5];
    engine_case_ids(ids, 5, 8);
    headrace_request r = ask(&log_a, ids, 5, 4);
    r.size = offsetof(headrace_request, n);
    r.n = -77; /* beyond what it knows of */
    r.priority = 5000;
    go(e, &r);
    assert_int_equal(log_a.by_index[0].n_tokens, 4);
    headrace_stats st;
    memset(&st, 0x5a, sizeof st);
    st.size = offsetof(headrace_stats, kv_pages_cached);
    const uint64_t before = st.kv_pages_cached;
    assert_int_equal(headrace_get_stats(e, &st), HEADRACE_OK);
    assert_int_equal(st.n_finished, 1);
    assert_true(st.kv_pages_cached == before);
    engine_case_free(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logprobs_of_prompt_and_answer), cmocka_unit_test(several_answers),     cmocka_unit_test(stops),
        cmocka_unit_test(what_may_be_drawn),             cmocka_unit_test(lists_are_checked),   cmocka_unit_test(the_prefix_cache),
        cmocka_unit_test(priority_goes_first),           cmocka_unit_test(older_callers),
        cmocka_unit_test(bad_words_behind_a_space),      cmocka_unit_test(its_own_pages_are_no_hit),
    };
    return cmocka_run_group_tests(tests, engine_case_setup, NULL);
}
