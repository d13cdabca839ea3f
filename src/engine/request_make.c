/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a checked request to sequences. All that a request lists (biases, ids, stop strings) is copied into one block that its answers share; the block is laid out twice by the same code,
 * once to measure it.
 */
#include <string.h>

#include "base/checked.h"
#include "base/os.h"
#include "engine/engine.h"

enum { TEXT_RESERVE = 512 };

typedef struct request_lists {
    int32_t n_users;
    int32_t n_end_ids;
    sample_bias *biases;
    int32_t *allowed, *bad_words, *end_ids, *stop_ids;
    stop_string *stops;
    char *texts;
} request_lists;

typedef struct draft {
    headrace_engine *e;
    const headrace_request *r;
    token_list ids, bad;  /* bad: length, ids, length, ids ... */
    int32_t n_bad_words;
    request_lists *lists;
} draft;

/* ---- prompt and bad words ---- */

static status prompt_ids(draft *d, error *err) {
    const headrace_request *r = d->r;
    const engine_plan *p = &d->e->plan;
    if (r->ids != NULL) {
        for (size_t i = 0; i < r->n_ids; i++) TRY(token_list_add(&d->ids, r->ids[i]));
    } else {
        const tokenizer_bos bos = r->add_bos > 0 ? TOKENIZER_BOS_ADD : r->add_bos < 0 ? TOKENIZER_BOS_OMIT : TOKENIZER_BOS_DEFAULT;
        TRY(tokenizer_encode(d->e->tok, r->prompt, r->n_prompt, bos, !r->no_special, &d->ids, err));
    }
    if (d->ids.n == 0) return error_set(err, STATUS_INVALID, "request: the prompt is empty, and this model puts no token in front");
    if (d->ids.n > (size_t)p->n_ctx) return error_set(err, STATUS_INVALID, "request: the prompt of %zu tokens exceeds the context of %d", d->ids.n, p->n_ctx);
    if (r->max_tokens > 0 && d->ids.n == (size_t)p->n_ctx) {
        return error_set(err, STATUS_INVALID, "request: the prompt of %zu tokens leaves no room in the context of %d", d->ids.n, p->n_ctx);
    }
    return STATUS_OK;
}

static status add_bad_word(draft *d, const char *text, size_t n, error *err) {
    const size_t at = d->bad.n;
    TRY(token_list_add(&d->bad, 0));
    TRY(tokenizer_encode(d->e->tok, text, n, TOKENIZER_BOS_OMIT, false, &d->bad, err));
    const size_t len = d->bad.n - at - 1;
    if (len == 0) {
        d->bad.n = at; /* nothing that could be drawn */
    } else {
        d->bad.ids[at] = (int32_t)len;
        d->n_bad_words++;
    }
    return STATUS_OK;
}

static status bad_words(draft *d, error *err) {
    for (size_t i = 0; i < d->r->n_bad_words; i++) {
        char spaced[1100];
        const size_t n = strlen(d->r->bad_words[i]); /* bounded by the check */
        spaced[0] = ' ';
        memcpy(spaced + 1, d->r->bad_words[i], n);
        TRY(add_bad_word(d, spaced + 1, n, err));
        TRY(add_bad_word(d, spaced, n + 1, err));
    }
    return STATUS_OK;
}

/* ---- lists ---- */

static void *place(char *base, size_t *off, size_t n, size_t size) {
    void *p = base != NULL ? base + *off : NULL;
    *off += (n * size + 15) / 16 * 16; /* n is bounded by the checks of request.c */
    return p;
}

static size_t lay_out(const draft *d, char *base, request_lists *l) {
    size_t off = 0, n_end, n_text = 0;
    const headrace_request *r = d->r;
    (void)tokenizer_end_ids(d->e->tok, &n_end);
    for (size_t i = 0; i < r->n_stop; i++) n_text += strlen(r->stop[i]);
    (void)place(base, &off, 1, sizeof *l);
    l->biases = place(base, &off, r->n_logit_bias, sizeof *l->biases);
    l->allowed = place(base, &off, r->n_allowed_ids, sizeof *l->allowed);
    l->bad_words = place(base, &off, d->bad.n, sizeof *l->bad_words);
    l->end_ids = place(base, &off, n_end + r->n_stop_ids, sizeof *l->end_ids);
    l->stop_ids = place(base, &off, r->n_stop_ids, sizeof *l->stop_ids);
    l->stops = place(base, &off, r->n_stop, sizeof *l->stops);
    l->texts = place(base, &off, n_text, 1);
    return off;
}

static void copy(void *to, const void *from, size_t bytes) {
    if (bytes > 0) memcpy(to, from, bytes);
}

static status make_lists(draft *d, error *err) {
    const headrace_request *r = d->r;
    request_lists measure, *l;
    char *block = mem_alloc(d->e->m, MEM_REQUEST, lay_out(d, NULL, &measure));
    if (block == NULL) return error_set(err, STATUS_NO_MEMORY, "request: no memory for its lists");
    d->lists = l = (request_lists *)(void *)block;
    *l = (request_lists){0};
    (void)lay_out(d, block, l);
    copy(l->biases, r->logit_bias, r->n_logit_bias * sizeof *l->biases);
    copy(l->allowed, r->allowed_ids, r->n_allowed_ids * sizeof *l->allowed);
    copy(l->bad_words, d->bad.ids, d->bad.n * sizeof *l->bad_words);
    copy(l->stop_ids, r->stop_ids, r->n_stop_ids * sizeof *l->stop_ids);
    size_t n_end;
    const int32_t *end = tokenizer_end_ids(d->e->tok, &n_end);
    for (size_t i = 0; i < n_end && !r->ignore_end; i++) l->end_ids[l->n_end_ids++] = end[i];
    for (size_t i = 0; i < r->n_stop_ids; i++) l->end_ids[l->n_end_ids++] = r->stop_ids[i];
    char *text = l->texts;
    for (size_t i = 0; i < r->n_stop; i++) {
        l->stops[i] = (stop_string){.text = text, .n = strlen(r->stop[i])};
        memcpy(text, r->stop[i], l->stops[i].n);
        text += l->stops[i].n;
    }
    return STATUS_OK;
}

static void release_lists(headrace_engine *e, request_lists *l) {
    if (l != NULL && --l->n_users <= 0) mem_free(e->m, l);
}

/* ---- sequences ---- */

void sequence_destroy(headrace_engine *e, sequence *s) {
    if (s == NULL) return;
    release_lists(e, s->lists);
    stop_filter_deinit(&s->stop);
    textbuf_deinit(&s->piece);
    textbuf_deinit(&s->text);
    for (int g = 0; g < STEP_MAX_GROUPS; g++) mem_free(e->m, s->kv.pages[g]);
    mem_free(e->m, s->tokens);
    mem_free(e->m, s);
}

/* Grown once, then cleared. */
static bool reserve(textbuf *b, size_t n) {
    static const char blank[64] = "                                                               ";
    for (size_t i = 0; i < n; i += sizeof blank) textbuf_add(b, blank, sizeof blank);
    const bool good = !b->failed;
    textbuf_clear(b);
    return good;
}

static void set_params(const draft *d, sequence *s, int32_t index) {
    const headrace_request *r = d->r;
    const request_lists *l = d->lists;
    s->index = index;
    s->callback = r->callback;
    s->user = r->user;
    s->sampling = (sample_params){
        .temperature = r->temperature,
        .top_k = r->top_k,
        .top_p = r->top_p,
        .min_p = r->min_p,
        .seed = sample_seed_of(r->seed, index),
        .repetition = r->repetition_penalty,
        .frequency = r->frequency_penalty,
        .presence = r->presence_penalty,
        .min_tokens = r->min_tokens,
        .biases = l->biases,
        .allowed = l->allowed,
        .bad_words = l->bad_words,
        .end_ids = l->end_ids,
        .n_biases = (int32_t)r->n_logit_bias,
        .n_allowed = (int32_t)r->n_allowed_ids,
        .n_bad_words = d->n_bad_words,
        .n_end_ids = l->n_end_ids,
    };
    s->stop_ids = l->stop_ids;
    s->n_stop_ids = (int32_t)r->n_stop_ids;
    s->ignore_end = r->ignore_end;
    s->want_logits = r->want_logits;
    s->want_logprobs = r->want_logprobs;
    s->prompt_logprobs = r->prompt_logprobs && index == 0;
    s->top_logprobs = r->top_logprobs;
    s->pooling = index == 0 ? r->pooling : HEADRACE_POOLING_NONE;
    s->normalize = r->normalize;
    s->no_prefix = r->no_prefix_cache;
    s->logits_hook = r->logits_hook;
    s->priority = r->priority;
    s->chunk = r->chunk;
    s->slot = -1;
    const char *tenant = r->cache_salt != NULL ? r->cache_salt : "";
    s->salt = block_hash(d->e->salt, tenant, strlen(tenant));
}

static status check_pages(const draft *d, const sequence *s, error *err) {
    int32_t group, needs;
    if (sched_can_ever_run(&d->e->kv, sequence_max_positions(s), &group, &needs)) return STATUS_OK;
    return error_set(err, STATUS_DOES_NOT_FIT, "request: %d prompt and %d new tokens need %d KV pages of group %d and the pool has %d: raise --kv-mem or ask for fewer tokens", s->n_prompt,
                     s->max_new, needs, group, d->e->plan.n_pages[group]);
}

static status make_one(const draft *d, int32_t index, sequence **out, error *err) {
    headrace_engine *e = d->e;
    sequence *s = mem_calloc(e->m, MEM_REQUEST, 1, sizeof *s);
    if (s == NULL) return error_set(err, STATUS_NO_MEMORY, "request: no memory for another request");
    const int32_t room = e->plan.n_ctx - (int32_t)d->ids.n;
    s->n_prompt = s->n_tokens = (int32_t)d->ids.n;
    s->max_new = d->r->max_tokens < room ? d->r->max_tokens : room;
    s->submit_ns = os_now_ns();
    s->lists = d->lists;
    d->lists->n_users++;
    set_params(d, s, index);
    detokenizer_init(&s->detok, e->tok, false);
    s->detok.started = true; /* the text goes on after the prompt: a space in front of it stays */
    textbuf_init(&s->piece, e->m, MEM_REQUEST);
    textbuf_init(&s->text, e->m, MEM_REQUEST);
    status rc = check_pages(d, s, err);
    if (rc == STATUS_OK) {
        const size_t piece = e->longest_piece + TEXT_RESERVE, stop = d->r->n_stop > 0 ? 1024 : 0;
        const size_t n_pages = (size_t)kv_pages_for(&e->kv, sequence_max_positions(s));
        bool good = stop_filter_init(&s->stop, e->m, d->lists->stops, (int32_t)d->r->n_stop, piece) == STATUS_OK;
        good = good && reserve(&s->piece, piece) && reserve(&s->text, piece + stop);
        s->tokens = good ? mem_alloc(e->m, MEM_REQUEST, (size_t)(s->n_prompt + s->max_new) * sizeof(int32_t)) : NULL;
        good = s->tokens != NULL;
        for (int32_t g = 0; good && g < e->model->n_groups; g++) {
            s->kv.pages[g] = mem_alloc(e->m, MEM_REQUEST, n_pages * sizeof(int32_t));
            good = s->kv.pages[g] != NULL;
        }
        if (!good) rc = error_set(err, STATUS_NO_MEMORY, "request: no memory for a request of %d tokens", s->n_prompt + s->max_new);
    }
    if (rc != STATUS_OK) {
        sequence_destroy(e, s);
        return rc;
    }
    memcpy(s->tokens, d->ids.ids, (size_t)s->n_prompt * sizeof(int32_t));
    *out = s;
    return STATUS_OK;
}

static status make_all(const draft *d, sequence **out, error *err) {
    sequence *first = NULL, **at = &first;
    const int32_t n = d->r->n > 0 ? d->r->n : 1;
    for (int32_t i = 0; i < n; i++) {
        const status rc = make_one(d, i, at, err);
        if (rc == STATUS_OK) {
            at = &(*at)->next;
            continue;
        }
        for (sequence *s = first, *next; s != NULL; s = next) {
            next = s->next;
            sequence_destroy(d->e, s);
        }
        return rc;
    }
    *out = first;
    return STATUS_OK;
}

status request_make(headrace_engine *e, const headrace_request *r, sequence **out, error *err) {
    draft d = {.e = e, .r = r};
    token_list_init(&d.ids, e->m, MEM_REQUEST);
    token_list_init(&d.bad, e->m, MEM_REQUEST);
    status rc = prompt_ids(&d, err);
    if (rc == STATUS_OK) rc = bad_words(&d, err);
    if (rc == STATUS_OK) rc = make_lists(&d, err);
    if (rc == STATUS_OK) {
        d.lists->n_users++; /* of this draft */
        rc = make_all(&d, out, err);
        release_lists(e, d.lists);
    }
    token_list_deinit(&d.bad);
    token_list_deinit(&d.ids);
    return rc;
}
