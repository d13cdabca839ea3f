/* SPDX-License-Identifier: Apache-2.0 */
/*
 * perplexity: exp of the mean negative log-likelihood of a text, measured as llama.cpp's perplexity tool does, so that the two numbers can
 * be compared.
 *
 * The text, without its last newline, is tokenized once (with BOS where the model adds one; special tokens are ordinary text) and cut into
 * windows of n_ctx tokens that do not overlap; what is left over is dropped. Where the model adds BOS, it replaces the first token of each
 * window. Each window is evaluated on its own. Scored are the outputs at positions n_ctx / 2 to n_ctx - 2, each against the token that
 * follows. The last token of a window predicts nothing that is scored and is not computed.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "cli/json_out.h"
#include "cli/prompt_list.h"
#include "cli/session.h"

enum { MIN_WINDOW = 4 };

typedef struct score {
    cli *x;
    headrace_engine *engine;
    headrace_model_info info;
    prompt_list prompts; /* one: the text */
    int32_t bos;         /* what replaces the first token of a window; -1: nothing does */
    int64_t n_ctx, n_windows;
    double *running; /* perplexity after each window */

    double mean, squares; /* of the scores so far: their mean, and the sum of squared distances from it (Welford) */
    int64_t n_scored;

    int32_t *window; /* the ids of the one that runs */
    int32_t n_rows;  /* rows of it that have come */
    bool muted, stop;
    status code;
    error why;
} score;

/* -log softmax(row)[id] */
static double negative_log_likelihood(const float *row, int32_t n, int32_t id) {
    double max = row[0], sum = 0;
    for (int32_t v = 1; v < n; v++)
        if (row[v] > max) max = row[v];
    for (int32_t v = 0; v < n; v++) sum += exp((double)row[v] - max);
    return max + log(sum) - (double)row[id];
}

static void fail(score *s, status code, const char *text) {
    if (!s->stop) {
        s->code = code;
        error_note(&s->why, code, "perplexity: %s", text);
    }
    s->stop = true;
}

static void take_rows(score *s, const headrace_event *event) {
    if (event->first_pos != s->n_rows || event->n_vocab != s->info.n_vocab || event->n_rows > s->n_ctx - 1 - s->n_rows) {
        fail(s, STATUS_BUG, "the engine gave rows that were not asked for");
        return;
    }
    for (int32_t i = 0; i < event->n_rows; i++) {
        int64_t pos = s->n_rows++;
        if (pos < s->n_ctx / 2) continue;
        double nll = negative_log_likelihood(event->logits + (size_t)i * (size_t)event->n_vocab, event->n_vocab, s->window[pos + 1]);
        if (!isfinite(nll)) {
            fail(s, STATUS_FAILED, "the logits are not finite");
            return;
        }
        double distance = nll - s->mean;
        s->n_scored++;
        s->mean += distance / (double)s->n_scored;
        s->squares += distance * (nll - s->mean);
    }
}

static void on_event(const headrace_event *event) {
    score *s = event->user;
    if (s->muted || s->stop) return;
    if (event->kind == HEADRACE_EVENT_LOGITS) take_rows(s, event);
    if (event->kind != HEADRACE_EVENT_DONE) return;
    const char *why;
    status code = session_outcome(event, &why);
    if (code != STATUS_OK) {
        fail(s, code, why);
    } else if (s->n_rows != s->n_ctx - 1) {
        fail(s, STATUS_BUG, "the engine left out rows");
    }
}

static status submit(void *user, size_t i, headrace_id *out, error *err) {
    score *s = user;
    headrace_request r = HEADRACE_REQUEST_INIT;
    headrace_error why = {0};
    (void)i;
    r.ids = s->window;
    r.n_ids = (size_t)(s->n_ctx - 1);
    r.want_logits = true;
    r.callback = on_event;
    r.user = s;
    return session_status(headrace_submit(s->engine, &r, out, &why), &why, err);
}

static status run_window(score *s, int64_t k, error *err) {
    s->window = s->prompts.items[0].ids + k * s->n_ctx;
    if (s->bos >= 0) s->window[0] = s->bos;
    s->n_rows = 0;
    headrace_id id;
    session_run_args args = {.engine = s->engine, .ids = &id, .n = 1, .submit = submit, .user = s, .stop = &s->stop};
    TRY(session_run(&args, err));
    return s->code == STATUS_OK ? STATUS_OK : error_set(err, s->code, "%s", s->why.text);
}

static double perplexity(const score *s) { return exp(s->mean); }

/* Standard error of the mean, carried through exp to first order. */
static double standard_error(const score *s) {
    double n = (double)s->n_scored;
    return n > 1 ? sqrt(s->squares / n / (n - 1)) * perplexity(s) : 0;
}

/* The ids of the text, with BOS in front where windows begin with one. */
static status encode(score *s, error *err) {
    cli *x = s->x;
    if (!config_is_set(x->c, CONFIG_KEY_FILE)) return error_set(err, STATUS_INVALID, "perplexity: no text; use -f FILE");
    TRY(prompt_list_init(&s->prompts, x, PROMPT_TEXT, err));
    prompt *p = &s->prompts.items[0];
    if (p->n_text && p->text[p->n_text - 1] == '\n') p->n_text--;
    headrace_vocab *vocab = NULL;
    TRY(session_vocab(x, &vocab, err));
    int32_t add_bos = prompt_add_bos(x->c);
    bool adds = add_bos > 0 || (add_bos == 0 && headrace_vocab_adds_bos(vocab));
    s->bos = adds ? headrace_vocab_bos(vocab) : -1;
    status rc = adds && s->bos < 0 ? error_set(err, STATUS_INVALID, "perplexity: --bos: the model has no beginning-of-sequence token")
                                   : prompt_list_encode(&s->prompts, x, vocab, adds ? 1 : -1, true, err);
    headrace_vocab_free(vocab);
    return rc;
}

static status plan_windows(score *s, error *err) {
    int64_t n_ids = (int64_t)s->prompts.items[0].n_ids;
    if (s->n_ctx < MIN_WINDOW)
        return error_set(err, STATUS_INVALID, "perplexity: -c %lld: a window has at least %d tokens", (long long)s->n_ctx, MIN_WINDOW);
    if (n_ids < 2 * s->n_ctx)
        return error_set(err, STATUS_INVALID, "perplexity: the text has %lld tokens; two windows of %lld (-c) need at least %lld",
                         (long long)n_ids, (long long)s->n_ctx, (long long)(2 * s->n_ctx));
    s->n_windows = n_ids / s->n_ctx;
    mem_free(s->x->m, s->running);
    s->running = mem_calloc(s->x->m, MEM_PROCESS, (size_t)s->n_windows, sizeof *s->running);
    return s->running ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "perplexity: no memory for %lld windows", (long long)s->n_windows);
}

static status print_json(const score *s, error *err) {
    json_t *running = json_array();
    for (int64_t k = 0; running && k < s->n_windows; k++) {
        if (json_array_append_new(running, json_number(s->running[k])) == 0) continue;
        json_decref(running);
        running = NULL;
    }
    return json_print(json_pack("{s:o, s:o, s:I, s:I, s:I, s:I, s:o}", "perplexity", json_number(perplexity(s)), "standard_error",
                                json_number(standard_error(s)), "n_ctx", (json_int_t)s->n_ctx, "n_tokens",
                                (json_int_t)s->prompts.items[0].n_ids, "n_chunks", (json_int_t)s->n_windows, "n_scored",
                                (json_int_t)s->n_scored, "chunks", running),
                      err);
}

static status run(score *s, error *err) {
    cli *x = s->x;
    TRY(encode(s, err));
    s->n_ctx = config_count(x->c, CONFIG_KEY_CTX);
    if (s->n_ctx > 0) TRY(plan_windows(s, err)); /* before the weights are read */
    TRY(session_load(x, &s->engine, &s->info, err));
    if (s->n_ctx == 0) {
        s->n_ctx = s->info.n_ctx;
        TRY(plan_windows(s, err));
    }
    if (!x->json)
        printf("%zu tokens, %lld windows of %lld, %lld scored in each\n", s->prompts.items[0].n_ids, (long long)s->n_windows,
               (long long)s->n_ctx, (long long)(s->n_ctx - s->n_ctx / 2 - 1));
    for (int64_t k = 0; k < s->n_windows; k++) {
        TRY(run_window(s, k, err));
        s->running[k] = perplexity(s);
        if (x->json) continue;
        printf("window %lld: perplexity so far %.4f\n", (long long)(k + 1), s->running[k]);
        fflush(stdout);
    }
    if (x->json) return print_json(s, err);
    printf("perplexity %.4f +/- %.5f (%lld tokens scored)\n", perplexity(s), standard_error(s), (long long)s->n_scored);
    return STATUS_OK;
}

static status run_perplexity(cli *x, error *err) {
    score s = {.x = x, .bos = -1};
    status rc = run(&s, err);
    s.muted = true;
    headrace_free(s.engine);
    mem_free(x->m, s.running);
    prompt_list_deinit(&s.prompts);
    return rc;
}

/* One window at a time. */
static status set_defaults(config *c, error *err) {
    TRY(config_set(c, "ctx", "512", CONFIG_FROM_DEFAULT, err));
    return config_set(c, "max-seqs", "1", CONFIG_FROM_DEFAULT, err);
}

const cli_command cmd_perplexity = {
    .name = "perplexity",
    .summary = "measure the perplexity of a text",
    .usage = "-m MODEL -f FILE [-c 512] [options]",
    .about = "Cuts the text into windows of -c tokens (default 512) and scores the second half of each, as llama.cpp's tool does.\n"
             "The text must give at least two windows. One newline at its end is not part of it. max-seqs is 1 unless given.\n",
    .examples = "perplexity -m model.gguf -f text.txt\n"
                "perplexity -m model.gguf -f text.txt -c 1024 --json\n",
    .where = CONFIG_COMMON | CONFIG_PERPLEXITY,
    .set_defaults = set_defaults,
    .run = run_perplexity,
};
