/* SPDX-License-Identifier: Apache-2.0 */
/* Submit and cancel: everything a request can be refused for is refused here or in request_make.c, with the numbers. */
#include <stddef.h>
#include <string.h>

#include "engine/api_impl.h"
#include "engine/engine.h"
#include "base/utf8.h"

enum { MAX_ANSWERS = 128, MAX_STOPS = 64, MAX_STOP_IDS = 1024, MAX_BIASES = 65536, MAX_BAD_WORDS = 1024, MAX_TEXT_BYTES = 1024 };

/* The request in this library's size: fields that the caller's header did not have are zero. */
static status read_request(const headrace_request *r, headrace_request *out, error *err) {
    if (r->size < offsetof(headrace_request, n) || r->size > sizeof *r) {
        return error_set(err, STATUS_INVALID, "request: size %u is not that of a version up to this one (%zu .. %zu)", r->size, offsetof(headrace_request, n), sizeof *r);
    }
    *out = (headrace_request){0};
    memcpy(out, r, r->size);
    return STATUS_OK;
}

static status check_range(const char *name, int64_t value, int64_t lo, int64_t hi, error *err) {
    if (value >= lo && value <= hi) return STATUS_OK;
    return error_set(err, STATUS_INVALID, "request: %s %lld is not in %lld .. %lld", name, (long long)value, (long long)lo, (long long)hi);
}

static status check_list(const char *name, const void *list, size_t n, size_t most, error *err) {
    if (n > 0 && list == NULL) return error_set(err, STATUS_INVALID, "request: %s says %zu and gives none", name, n);
    if (n > most) return error_set(err, STATUS_INVALID, "request: %s has %zu entries and %zu are allowed", name, n, most);
    return STATUS_OK;
}

static status check_ids(const headrace_engine *e, const char *name, const int32_t *ids, size_t n, error *err) {
    const int64_t vocab = e->model->hp.n_vocab;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocab) {
            return error_set(err, STATUS_INVALID, "request: %s %d at index %zu is not in 0 .. %lld", name, ids[i], i, (long long)vocab - 1);
        }
    }
    return STATUS_OK;
}

static status check_texts(const char *name, const char *const *texts, size_t n, error *err) {
    for (size_t i = 0; i < n; i++) {
        size_t bad;
        const size_t len = texts[i] != NULL ? strnlen(texts[i], MAX_TEXT_BYTES + 1) : 0;
        if (len == 0) return error_set(err, STATUS_INVALID, "request: %s text %zu is empty", name, i);
        if (len > MAX_TEXT_BYTES) return error_set(err, STATUS_INVALID, "request: %s text %zu is longer than %d bytes", name, i, MAX_TEXT_BYTES);
        if (!utf8_check(texts[i], len, &bad)) return error_set(err, STATUS_INVALID, "request: %s text %zu is not UTF-8 at byte %zu", name, i, bad);
    }
    return STATUS_OK;
}

static status check_lists(const headrace_engine *e, const headrace_request *r, error *err) {
    TRY(check_list("logit_bias", r->logit_bias, r->n_logit_bias, MAX_BIASES, err));
    TRY(check_list("allowed_ids", r->allowed_ids, r->n_allowed_ids, (size_t)e->model->hp.n_vocab, err));
    TRY(check_list("bad_words", r->bad_words, r->n_bad_words, MAX_BAD_WORDS, err));
    TRY(check_list("stop_ids", r->stop_ids, r->n_stop_ids, MAX_STOP_IDS, err));
    TRY(check_list("stop", r->stop, r->n_stop, MAX_STOPS, err));
    for (size_t i = 0; i < r->n_logit_bias; i++) TRY(check_ids(e, "logit_bias id", &r->logit_bias[i].id, 1, err));
    TRY(check_ids(e, "allowed id", r->allowed_ids, r->n_allowed_ids, err));
    TRY(check_ids(e, "stop id", r->stop_ids, r->n_stop_ids, err));
    TRY(check_texts("bad_words", r->bad_words, r->n_bad_words, err));
    return check_texts("stop", r->stop, r->n_stop, err);
}

static status check_params(const headrace_engine *e, const headrace_request *r, error *err) {
    if (r->callback == NULL) return error_set(err, STATUS_INVALID, "request: a callback is needed");
    TRY(check_range("max_tokens", r->max_tokens, 0, INT32_MAX, err));
    TRY(check_range("chunk", r->chunk, 0, INT32_MAX, err));
    TRY(check_range("n", r->n, 0, MAX_ANSWERS, err));
    TRY(check_range("priority", r->priority, -SCHED_MAX_PRIORITY, SCHED_MAX_PRIORITY, err));
    TRY(check_range("top_logprobs", r->top_logprobs, 0, SAMPLE_MAX_TOP, err));
    TRY(check_range("pooling", (int64_t)r->pooling, HEADRACE_POOLING_NONE, HEADRACE_POOLING_LAST, err));
    if (r->pooling != HEADRACE_POOLING_NONE && !model_gives_hidden(e->model)) {
        return error_set(err, STATUS_UNSUPPORTED, "request: embeddings: %s has a head of its own, and what it takes is not said (src/model/arch/%s.c)", e->model->arch->name, e->model->arch->name);
    }
    if (r->normalize && r->pooling == HEADRACE_POOLING_NONE) return error_set(err, STATUS_INVALID, "request: normalize needs pooling");
    if (r->min_tokens > r->max_tokens) return error_set(err, STATUS_INVALID, "request: min_tokens %d exceeds max_tokens %d", r->min_tokens, r->max_tokens);
    if (r->top_logprobs > 0 && !r->want_logprobs && !r->prompt_logprobs) {
        return error_set(err, STATUS_INVALID, "request: top_logprobs needs want_logprobs or prompt_logprobs");
    }
    if (r->ids != NULL && r->prompt != NULL) return error_set(err, STATUS_INVALID, "request: a prompt and ids are given; one of them is expected");
    if (r->ids == NULL && r->prompt == NULL) return error_set(err, STATUS_INVALID, "request: neither a prompt nor ids are given");
    if (r->ids != NULL && r->n_ids > (size_t)e->plan.n_ctx) {
        return error_set(err, STATUS_INVALID, "request: the prompt of %zu tokens exceeds the context of %d", r->n_ids, e->plan.n_ctx);
    }
    if (r->ids != NULL) TRY(check_ids(e, "token id", r->ids, r->n_ids, err));
    TRY(check_lists(e, r, err));
    const sample_params sp = {
        .temperature = r->temperature,
        .top_k = r->top_k,
        .top_p = r->top_p,
        .min_p = r->min_p,
        .repetition = r->repetition_penalty,
        .frequency = r->frequency_penalty,
        .presence = r->presence_penalty,
        .min_tokens = r->min_tokens,
        .n_biases = (int32_t)r->n_logit_bias,
        .biases = (const sample_bias *)r->logit_bias,
    };
    return sample_params_check(&sp, err);
}

_Static_assert(sizeof(sample_bias) == sizeof(headrace_bias) && offsetof(sample_bias, bias) == offsetof(headrace_bias, bias), "public and internal biases agree");

static int32_t answers_of(const headrace_request *r) { return r->n > 0 ? r->n : 1; }

static status check_room(const headrace_engine *e, int32_t n, error *err) {
    if (e->closing) return error_set(err, STATUS_CANCELLED, "request: the engine is being freed");
    if (n > e->plan.max_live) return error_set(err, STATUS_DOES_NOT_FIT, "request: %d answers, and this engine holds %d at most: raise --max-seqs", n, e->plan.max_live);
    if (n <= e->plan.max_live - e->n_live) return STATUS_OK;
    return error_set(err, STATUS_FULL, "request: %d answers find %d waiting or running, and the limit is %d", n, e->n_live, e->plan.max_live);
}

/* Before anything is read of a request that has no place; the place itself is taken at the end. */
static status check_room_now(headrace_engine *e, int32_t n, error *err) {
    pthread_mutex_lock(&e->lock);
    const status rc = check_room(e, n, err);
    pthread_mutex_unlock(&e->lock);
    return rc;
}

/* All answers go live; the first is queued and holds the others. */
static status publish(headrace_engine *e, sequence *first, int32_t n, headrace_id *out, error *err) {
    pthread_mutex_lock(&e->lock);
    const status rc = check_room(e, n, err);
    if (rc == STATUS_OK) {
        const headrace_id id = e->next_id++;
        for (sequence *s = first; s != NULL; s = s->next) {
            s->id = id;
            e->live[e->n_live++] = s;
        }
        first->siblings = first->next;
        first->next = NULL;
        sequence_list_push(&e->incoming, first);
        if (out != NULL) *out = id;
    }
    pthread_mutex_unlock(&e->lock);
    return rc;
}

headrace_status headrace_submit(headrace_engine *e, const headrace_request *request, headrace_id *out, headrace_error *herr) {
    error err = {0};
    headrace_request r;
    sequence *first = NULL;
    status rc = read_request(request, &r, &err);
    if (rc == STATUS_OK) rc = check_params(e, &r, &err);
    if (rc == STATUS_OK) rc = check_room_now(e, answers_of(&r), &err);
    if (rc == STATUS_OK) rc = request_make(e, &r, &first, &err);
    if (rc == STATUS_OK) {
        rc = publish(e, first, answers_of(&r), out, &err);
        if (rc == STATUS_OK) return HEADRACE_OK;
        for (sequence *s = first, *next; s != NULL; s = next) {
            next = s->next;
            sequence_destroy(e, s);
        }
    }
    if (err.code == STATUS_OK) error_note(&err, rc, "request: %s", status_name(rc));
    return api_error(herr, rc, &err);
}

headrace_status headrace_cancel(headrace_engine *e, headrace_id id) {
    headrace_status rc = HEADRACE_NOT_FOUND;
    pthread_mutex_lock(&e->lock);
    for (int32_t i = 0; i < e->n_live; i++) {
        if (e->live[i]->id != id) continue;
        atomic_store(&e->live[i]->cancelled, true);
        rc = HEADRACE_OK;
    }
    pthread_mutex_unlock(&e->lock);
    return rc;
}
