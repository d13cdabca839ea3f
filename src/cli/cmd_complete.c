/* SPDX-License-Identifier: Apache-2.0 */
/*
 * complete: the raw continuation of one or more prompts, which run as one batch.
 *
 * Text appears in the order of the prompts: the first that has not ended is printed as it comes, the others are held until it is their
 * turn.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/os.h"
#include "cli/experts_out.h"
#include "cli/json_out.h"
#include "cli/progress_line.h"
#include "cli/prompt_list.h"
#include "cli/session.h"
#include "cli/speed_meter.h"
#include "cli/utf8_text.h"

enum { PROMPTS_AT_ONCE = 32, MAX_STOPS = 64 };

struct completion;

typedef struct answer {
    struct completion *all;
    textbuf text; /* JSON: all of it; else what waits for its turn */
    int32_t *ids; /* JSON only */
    size_t n_ids, cap;
    bool done;
    headrace_finish finish;
    status code;        /* of the outcome */
    textbuf error_text; /* and its reason */
    headrace_usage usage;
    headrace_timings timings;
} answer;

typedef struct completion {
    cli *x;
    prompt_list prompts;
    answer *answers;
    headrace_id *request_ids;
    headrace_engine *engine;
    headrace_model_info info;
    size_t live;           /* whose text is being printed */
    bool started;          /* the first header has been printed */
    bool muted, no_memory; /* muted: nothing more is printed or kept */
    bool stdout_is_tty;
    textbuf shown; /* scratch for the terminal */
    speed_meter speed;
} completion;

static void print_text(completion *all, const char *s, size_t n) {
    if (n == 0) return;
    if (all->stdout_is_tty) {
        textbuf_clear(&all->shown);
        utf8_add_for_terminal(&all->shown, s, n);
        if (!all->shown.failed) fwrite(textbuf_text(&all->shown), 1, all->shown.len, stdout);
    } else {
        fwrite(s, 1, n, stdout);
    }
    fflush(stdout);
}

static void print_header(const completion *all) {
    if (all->prompts.n < 2) return;
    printf("%s==> prompt %zu of %zu (%s) <==\n", all->live ? "\n" : "", all->live + 1, all->prompts.n, all->prompts.items[all->live].from);
    fflush(stdout);
}

/* The live prompt has ended: go on to the next that has not, printing what waited. */
static void print_next(completion *all) {
    while (all->live < all->prompts.n && all->answers[all->live].done) {
        if (all->prompts.n > 1 || all->stdout_is_tty) putchar('\n');
        if (++all->live == all->prompts.n) break;
        print_header(all);
        answer *next = &all->answers[all->live];
        print_text(all, textbuf_text(&next->text), next->text.len);
    }
    fflush(stdout);
}

static bool keep_id(answer *a, int32_t id) {
    if (a->n_ids == a->cap) {
        size_t cap = a->cap ? a->cap * 2 : 256, bytes;
        if (!checked_mul_size(cap, sizeof *a->ids, &bytes)) return false;
        int32_t *ids = a->ids ? mem_realloc(a->all->x->m, MEM_PROCESS, a->ids, bytes) : mem_alloc(a->all->x->m, MEM_PROCESS, bytes);
        if (!ids) return false;
        a->ids = ids;
        a->cap = cap;
    }
    a->ids[a->n_ids++] = id;
    return true;
}

static void on_event(const headrace_event *event) {
    answer *a = event->user;
    completion *all = a->all;
    if (all->muted) return;
    bool is_live = !all->x->json && a == &all->answers[all->live];
    if (is_live) {
        if (!all->started) print_header(all);
        all->started = true;
        print_text(all, event->text, event->n_text);
    } else {
        textbuf_add(&a->text, event->text, event->n_text);
        if (a->text.failed) all->no_memory = true;
    }
    if (event->kind == HEADRACE_EVENT_TOKEN) {
        speed_meter_token(&all->speed, a->n_ids == 0);
        if (!all->x->json)
            a->n_ids++;
        else if (!keep_id(a, event->token))
            all->no_memory = true;
    }
    if (event->kind != HEADRACE_EVENT_DONE) return;
    speed_meter_done(&all->speed, a->n_ids > 0);
    a->done = true;
    a->finish = event->finish;
    const char *why;
    a->code = session_outcome(event, &why);
    if (a->code != STATUS_OK) textbuf_adds(&a->error_text, why);
    a->usage = event->usage;
    a->timings = event->timings;
    if (is_live) print_next(all);
}

static bool is_given(const config *c, config_key key) { return config_origin_of(c, key) != CONFIG_FROM_DEFAULT; }

/* Flags, and where --model-sampling asks for it, the checkpoint's values for those that are not given. */
static status set_sampling(const completion *all, headrace_request *r, error *err) {
    const config *c = all->x->c;
    const bool model = config_bool(c, CONFIG_KEY_MODEL_SAMPLING);
    headrace_error why = {0};
    if (model) TRY(session_status(headrace_model_sampling(all->engine, r, &why), &why, err));
    if (!model || is_given(c, CONFIG_KEY_TEMP)) r->temperature = (float)config_real(c, CONFIG_KEY_TEMP);
    if (!model || is_given(c, CONFIG_KEY_TOP_K)) r->top_k = (int32_t)config_count(c, CONFIG_KEY_TOP_K);
    if (!model || is_given(c, CONFIG_KEY_TOP_P)) r->top_p = (float)config_real(c, CONFIG_KEY_TOP_P);
    if (!model || is_given(c, CONFIG_KEY_MIN_P)) r->min_p = (float)config_real(c, CONFIG_KEY_MIN_P);
    if (!model || is_given(c, CONFIG_KEY_REPETITION_PENALTY)) r->repetition_penalty = (float)config_real(c, CONFIG_KEY_REPETITION_PENALTY);
    if (r->top_p == 0) r->temperature = 0; /* the fewest tokens that reach 0; in a request 0 is off */
    return STATUS_OK;
}

static status submit(void *user, size_t i, headrace_id *out, error *err) {
    completion *all = user;
    const config *c = all->x->c;
    const prompt *p = &all->prompts.items[i];
    headrace_error why = {0};
    headrace_request r = HEADRACE_REQUEST_INIT;
    if (p->ids) {
        r.ids = p->ids;
        r.n_ids = p->n_ids;
    } else {
        r.prompt = p->text;
        r.n_prompt = p->n_text;
        r.add_bos = prompt_add_bos(c);
        r.no_special = !config_bool(c, CONFIG_KEY_SPECIAL);
    }
    r.max_tokens = (int32_t)config_count(c, CONFIG_KEY_N_PREDICT);
    r.ignore_end = config_bool(c, CONFIG_KEY_IGNORE_EOS);
    TRY(set_sampling(all, &r, err));
    r.seed = (uint64_t)config_count(c, CONFIG_KEY_SEED);
    r.chunk = (int32_t)config_count(c, CONFIG_KEY_CHUNK);
    r.frequency_penalty = (float)config_real(c, CONFIG_KEY_FREQUENCY_PENALTY);
    r.presence_penalty = (float)config_real(c, CONFIG_KEY_PRESENCE_PENALTY);
    r.min_tokens = (int32_t)config_count(c, CONFIG_KEY_MIN_TOKENS);
    const char *stop[MAX_STOPS];
    r.stop = stop;
    r.n_stop = (size_t)config_list_size(c, CONFIG_KEY_STOP);
    if (r.n_stop > MAX_STOPS) return error_set(err, STATUS_INVALID, "complete: --stop is given %zu times and %d are allowed", r.n_stop, MAX_STOPS);
    for (size_t k = 0; k < r.n_stop; k++) stop[k] = config_list_item(c, CONFIG_KEY_STOP, (int)k);
    r.callback = on_event;
    r.user = &all->answers[i];
    status rc = session_status(headrace_submit(all->engine, &r, out, &why), &why, err);
    if (rc != STATUS_OK) error_prefix(err, "%s", p->from);
    return rc;
}

static void on_step(void *user, uint64_t before_ns, uint64_t after_ns) {
    completion *all = user;
    speed_meter_step(&all->speed, before_ns, after_ns);
}

static const char *finish_name(headrace_finish f) {
    switch (f) {
    case HEADRACE_FINISH_STOP:
        return "stop";
    case HEADRACE_FINISH_LENGTH:
        return "length";
    case HEADRACE_FINISH_CANCELLED:
        return "cancelled";
    case HEADRACE_FINISH_ERROR:
        return "error";
    case HEADRACE_FINISH_NONE:
        break;
    }
    return "error";
}

static json_t *answer_json(const completion *all, size_t i) {
    const answer *a = &all->answers[i];
    const headrace_timings *t = &a->timings;
    mem *m = all->x->m;
    int32_t computed = a->usage.prompt_tokens - a->usage.prefix_hit_tokens;
    json_t *o = json_pack("{s:o, s:o, s:o, s:s}", "prompt_ids", json_ids(all->prompts.items[i].ids, all->prompts.items[i].n_ids), "ids",
                          json_ids(a->ids, a->n_ids), "text", json_text(m, textbuf_text(&a->text), a->text.len), "finish_reason",
                          finish_name(a->finish));
    json_t *usage =
        json_pack("{s:i, s:i}", "prompt_tokens", (int)a->usage.prompt_tokens, "completion_tokens", (int)a->usage.completion_tokens);
    json_t *timings =
        json_pack("{s:o, s:o, s:o, s:o, s:i, s:i}", "load_s", json_number((double)all->info.load_ns / 1e9), "ttft_s",
                  a->usage.completion_tokens ? json_number((double)t->first_token_ns / 1e9) : json_null(), "prefill_tokens_per_s",
                  json_rate(computed, t->prefill_ns), "decode_tokens_per_s", json_rate(a->usage.completion_tokens - 1, t->decode_ns),
                  "preemptions", (int)a->usage.preemptions, "prefix_hit_tokens", (int)a->usage.prefix_hit_tokens);
    bool good = json_object_set_new(o, "usage", usage) == 0 && json_object_set_new(o, "timings", timings) == 0;
    if (a->finish == HEADRACE_FINISH_ERROR)
        good = json_object_set_new(o, "error", json_text(m, textbuf_text(&a->error_text), a->error_text.len)) == 0 && good;
    good = experts_add_json(o, all->engine) && good;
    if (good) return o;
    json_decref(o);
    return NULL;
}

static status print_json(const completion *all, error *err) {
    if (all->prompts.n == 1) return json_print(answer_json(all, 0), err);
    json_t *list = json_array();
    for (size_t i = 0; list && i < all->prompts.n; i++) {
        if (json_array_append_new(list, answer_json(all, i)) == 0) continue;
        json_decref(list);
        list = NULL;
    }
    return json_print(list, err);
}

static void print_speed(const completion *all) {
    int64_t prefill = 0, hits = 0;
    for (size_t i = 0; i < all->prompts.n; i++) {
        prefill += all->answers[i].usage.prompt_tokens;
        hits += all->answers[i].usage.prefix_hit_tokens;
    }
    const speed_meter *s = &all->speed;
    fprintf(stderr, "prefill %lld tokens", (long long)prefill);
    if (s->prefill_ns && prefill > hits) fprintf(stderr, ", %.1f tok/s", (double)(prefill - hits) * 1e9 / (double)s->prefill_ns);
    fprintf(stderr, "; decode %llu tokens", (unsigned long long)s->decode_tokens);
    if (s->decode_ns) fprintf(stderr, ", %.1f tok/s", (double)s->decode_tokens * 1e9 / (double)s->decode_ns);
    fprintf(stderr, "; load %.2f s\n", (double)all->info.load_ns / 1e9);
    experts_print_line(all->engine);
}

/* What went wrong with single prompts: all but the last are printed here, the last is the command's error. */
static status failures(const completion *all, error *err) {
    status rc = STATUS_OK;
    error why = {0};
    for (size_t i = 0; i < all->prompts.n; i++) {
        const answer *a = &all->answers[i];
        if (a->code == STATUS_OK) continue;
        if (rc != STATUS_OK) cli_complain(all->x, why.text);
        const char *text = a->error_text.len ? textbuf_text(&a->error_text) : status_name(a->code);
        rc = all->prompts.n > 1 ? error_set(&why, a->code, "%s: %s", all->prompts.items[i].from, text)
                                : error_set(&why, a->code, "%s", text);
    }
    return rc == STATUS_OK ? STATUS_OK : error_set(err, rc, "%s", why.text);
}

static status check_bos(const completion *all, error *err) {
    const config *c = all->x->c;
    bool any_text = false;
    for (size_t i = 0; i < all->prompts.n; i++) any_text = any_text || !all->prompts.items[i].is_ids;
    if (any_text) return STATUS_OK;
    if (config_is_set(c, CONFIG_KEY_BOS))
        return error_set(err, STATUS_INVALID, "complete: --bos and --no-bos concern text; --token-ids are taken as they are");
    if (!config_bool(c, CONFIG_KEY_SPECIAL))
        return error_set(err, STATUS_INVALID, "complete: --no-special concerns text; --token-ids are taken as they are");
    return STATUS_OK;
}

static status prepare(completion *all, error *err) {
    cli *x = all->x;
    TRY(prompt_list_init(&all->prompts, x, PROMPT_TEXT | PROMPT_IDS, err));
    TRY(check_bos(all, err));
    size_t n = all->prompts.n;
    all->answers = mem_calloc(x->m, MEM_PROCESS, n, sizeof *all->answers);
    all->request_ids = mem_calloc(x->m, MEM_PROCESS, n, sizeof *all->request_ids);
    if (!all->answers || !all->request_ids) return error_set(err, STATUS_NO_MEMORY, "complete: no memory for %zu prompts", n);
    for (size_t i = 0; i < n; i++) {
        all->answers[i].all = all;
        textbuf_init(&all->answers[i].text, x->m, MEM_PROCESS);
        textbuf_init(&all->answers[i].error_text, x->m, MEM_PROCESS);
    }
    if (!x->json) return STATUS_OK; /* ids are only shown in JSON; a text is the engine's to encode otherwise */
    headrace_vocab *vocab = NULL;
    TRY(session_vocab(x, &vocab, err));
    status rc = prompt_list_encode(&all->prompts, x, vocab, prompt_add_bos(x->c), !config_bool(x->c, CONFIG_KEY_SPECIAL), err);
    headrace_vocab_free(vocab);
    return rc;
}

static status run(completion *all, error *err) {
    TRY(prepare(all, err));
    TRY(session_load(all->x, &all->engine, &all->info, err));
    all->stdout_is_tty = os_stream_is_tty(STDOUT_FILENO);
    speed_meter_init(&all->speed, all->prompts.n, false);
    session_run_args args = {.engine = all->engine,
                             .ids = all->request_ids,
                             .n = all->prompts.n,
                             .submit = submit,
                             .on_step = on_step,
                             .user = all,
                             .stop = &all->no_memory};
    TRY(session_run(&args, err));
    if (all->no_memory) return error_set(err, STATUS_NO_MEMORY, "complete: no memory for the answer");
    for (size_t i = 0; i < all->prompts.n; i++) { /* after Ctrl-C some may not have been submitted */
        if (all->answers[i].done) continue;
        all->answers[i].finish = HEADRACE_FINISH_CANCELLED;
        all->answers[i].code = STATUS_CANCELLED;
    }
    if (all->x->json)
        TRY(print_json(all, err));
    else
        print_speed(all);
    return failures(all, err);
}

static status run_complete(cli *x, error *err) {
    completion all = {.x = x};
    textbuf_init(&all.shown, x->m, MEM_PROCESS);
    status rc = run(&all, err);
    all.muted = true; /* headrace_free ends what is left, after a failure */
    headrace_free(all.engine);
    for (size_t i = 0; all.answers && i < all.prompts.n; i++) {
        textbuf_deinit(&all.answers[i].text);
        textbuf_deinit(&all.answers[i].error_text);
        mem_free(x->m, all.answers[i].ids);
    }
    mem_free(x->m, all.answers);
    mem_free(x->m, all.request_ids);
    prompt_list_deinit(&all.prompts);
    textbuf_deinit(&all.shown);
    return rc;
}

/* KV pages for as many sequences as there are prompts. */
static status set_defaults(config *c, error *err) {
    int n =
        config_list_size(c, CONFIG_KEY_PROMPT) + config_list_size(c, CONFIG_KEY_TOKEN_IDS) + (config_is_set(c, CONFIG_KEY_FILE) ? 1 : 0);
    char text[16];
    snprintf(text, sizeof text, "%d", n < 1 ? 1 : n > PROMPTS_AT_ONCE ? PROMPTS_AT_ONCE : n);
    return config_set(c, "max-seqs", text, CONFIG_FROM_DEFAULT, err);
}

const cli_command cmd_complete = {
    .name = "complete",
    .summary = "continue one or more prompts",
    .usage = "-m MODEL (-p TEXT | -f FILE | --token-ids LIST) [options]",
    .about = "Prints the raw continuation of a prompt as it is generated, and the speed on standard error. Several prompts run\n"
             "as one batch and are printed one after the other: texts of -p first, then -f, then --token-ids.\n"
             "Unless given, max-seqs is the number of prompts (at most 32).\n",
    .examples = "complete -m model.gguf -p 'The capital of France is' -n 32\n"
                "complete -m model.gguf -p 'Once upon a time' --temp 0.8 --top-p 0.95 --seed 7\n"
                "complete -m model.gguf --token-ids 2,295,338 --token-ids 1,2 --json\n",
    .where = CONFIG_COMMON | CONFIG_COMPLETE,
    .set_defaults = set_defaults,
    .run = run_complete,
};
