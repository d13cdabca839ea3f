/* SPDX-License-Identifier: Apache-2.0 */
/* Submit and cancel: everything a request can be refused for is refused here, with the numbers. */
#include <string.h>

#include "base/os.h"
#include "engine/api_impl.h"
#include "engine/engine.h"

enum { TEXT_RESERVE = 512 };

void sequence_list_push(sequence_list *l, sequence *s) {
    s->next = NULL;
    if (l->last != NULL) {
        l->last->next = s;
    } else {
        l->first = s;
    }
    l->last = s;
    l->n++;
}

sequence *sequence_list_pop(sequence_list *l) {
    sequence *s = l->first;
    if (s == NULL) return NULL;
    l->first = s->next;
    if (l->first == NULL) l->last = NULL;
    l->n--;
    s->next = NULL;
    return s;
}

void sequence_destroy(headrace_engine *e, sequence *s) {
    if (s == NULL) return;
    textbuf_deinit(&s->text);
    for (int g = 0; g < STEP_MAX_GROUPS; g++) mem_free(e->m, s->pages[g]);
    mem_free(e->m, s->tokens);
    mem_free(e->m, s);
}

static status check_params(const headrace_engine *e, const headrace_request *r, sample_params *sp, error *err) {
    if (r->size != sizeof *r) return error_set(err, STATUS_INVALID, "request: size %u is not that of this version (%zu)", r->size, sizeof *r);
    *sp = (sample_params){.temperature = r->temperature, .top_k = r->top_k, .top_p = r->top_p, .min_p = r->min_p, .seed = r->seed};
    TRY(sample_params_check(sp, err));
    if (r->max_tokens < 0) return error_set(err, STATUS_INVALID, "request: max_tokens %d is negative", r->max_tokens);
    if (r->chunk < 0) return error_set(err, STATUS_INVALID, "request: chunk %d is negative", r->chunk);
    if (r->callback == NULL) return error_set(err, STATUS_INVALID, "request: a callback is needed");
    if (r->ids != NULL && r->prompt != NULL) return error_set(err, STATUS_INVALID, "request: a prompt and ids are given; one of them is expected");
    if (r->ids == NULL && r->prompt == NULL) return error_set(err, STATUS_INVALID, "request: neither a prompt nor ids are given");
    if (r->ids != NULL && r->n_ids > (size_t)e->plan.n_ctx) {
        return error_set(err, STATUS_INVALID, "request: the prompt of %zu tokens exceeds the context of %d", r->n_ids, e->plan.n_ctx);
    }
    return STATUS_OK;
}

/* The prompt's ids: given, or encoded. */
static status prompt_ids(const headrace_engine *e, const headrace_request *r, token_list *ids, error *err) {
    const int64_t vocab = e->model->hp.n_vocab;
    if (r->ids != NULL) {
        for (size_t i = 0; i < r->n_ids; i++) {
            if (r->ids[i] < 0 || r->ids[i] >= vocab) {
                return error_set(err, STATUS_INVALID, "request: token id %d at index %zu is not in 0 .. %lld", r->ids[i], i, (long long)vocab - 1);
            }
            TRY(token_list_add(ids, r->ids[i]));
        }
    } else {
        const tokenizer_bos bos = r->add_bos > 0 ? TOKENIZER_BOS_ADD : r->add_bos < 0 ? TOKENIZER_BOS_OMIT : TOKENIZER_BOS_DEFAULT;
        TRY(tokenizer_encode(e->tok, r->prompt, r->n_prompt, bos, !r->no_special, ids, err));
    }
    if (ids->n == 0) return error_set(err, STATUS_INVALID, "request: the prompt is empty, and this model puts no token in front");
    if (ids->n > (size_t)e->plan.n_ctx) return error_set(err, STATUS_INVALID, "request: the prompt of %zu tokens exceeds the context of %d", ids->n, e->plan.n_ctx);
    return STATUS_OK;
}

static status make_sequence(headrace_engine *e, const headrace_request *r, const sample_params *sp, const token_list *ids, sequence **out, error *err) {
    const engine_plan *p = &e->plan;
    const int32_t n_prompt = (int32_t)ids->n, room = p->n_ctx - n_prompt;
    if (r->max_tokens > 0 && room == 0) return error_set(err, STATUS_INVALID, "request: the prompt of %d tokens leaves no room in the context of %d", n_prompt, p->n_ctx);
    const int32_t max_new = r->max_tokens < room ? r->max_tokens : room;
    sequence *s = mem_calloc(e->m, MEM_REQUEST, 1, sizeof *s);
    if (s == NULL) return error_set(err, STATUS_NO_MEMORY, "request: no memory for another request");
    s->callback = r->callback;
    s->user = r->user;
    s->n_prompt = s->n_tokens = n_prompt;
    s->max_new = max_new;
    s->sampling = *sp;
    s->ignore_end = r->ignore_end;
    s->want_logits = r->want_logits;
    s->chunk = r->chunk;
    s->slot = -1;
    s->n_pages = (sequence_max_positions(s) + p->page_tokens - 1) / p->page_tokens;
    s->submit_ns = os_now_ns();
    detokenizer_init(&s->detok, e->tok, false);
    textbuf_init(&s->text, e->m, MEM_REQUEST);
    if (s->n_pages > p->n_pages) {
        const status rc = error_set(err, STATUS_DOES_NOT_FIT, "request: %d prompt and %d new tokens need %d KV pages and the pool has %d: raise --kv-mem or ask for fewer tokens", n_prompt,
                                    max_new, s->n_pages, p->n_pages);
        sequence_destroy(e, s);
        return rc;
    }
    bool ok = true;
    s->tokens = mem_alloc(e->m, MEM_REQUEST, (size_t)(n_prompt + max_new) * sizeof(int32_t));
    ok = s->tokens != NULL;
    for (int32_t g = 0; ok && g < e->model->n_groups; g++) {
        s->pages[g] = mem_alloc(e->m, MEM_REQUEST, (size_t)s->n_pages * sizeof(int32_t));
        ok = s->pages[g] != NULL;
    }
    for (int i = 0; ok && i < TEXT_RESERVE; i++) textbuf_add(&s->text, " ", 1); /* grown once, then cleared */
    ok = ok && !s->text.failed;
    textbuf_clear(&s->text);
    if (!ok) {
        sequence_destroy(e, s);
        return error_set(err, STATUS_NO_MEMORY, "request: no memory for a request of %d tokens", n_prompt + max_new);
    }
    memcpy(s->tokens, ids->ids, (size_t)n_prompt * sizeof(int32_t));
    *out = s;
    return STATUS_OK;
}

static status queue_full(const headrace_engine *e, error *err) {
    return error_set(err, STATUS_FULL, "request: %d requests are waiting or running, which is the limit", e->n_live);
}

/* Before anything is read of a request that has no place; the place itself is taken at the end. */
static status check_room(headrace_engine *e, error *err) {
    pthread_mutex_lock(&e->lock);
    const status rc = e->n_live == e->plan.max_live ? queue_full(e, err) : STATUS_OK;
    pthread_mutex_unlock(&e->lock);
    return rc;
}

headrace_status headrace_submit(headrace_engine *e, const headrace_request *r, headrace_id *out, headrace_error *herr) {
    error err = {0};
    sample_params sp;
    sequence *s = NULL;
    token_list ids;
    token_list_init(&ids, e->m, MEM_REQUEST);
    status rc = check_params(e, r, &sp, &err);
    if (rc == STATUS_OK) rc = check_room(e, &err);
    if (rc == STATUS_OK) rc = prompt_ids(e, r, &ids, &err);
    if (rc == STATUS_OK) rc = make_sequence(e, r, &sp, &ids, &s, &err);
    token_list_deinit(&ids);
    if (rc != STATUS_OK) {
        if (err.code == STATUS_OK) error_note(&err, rc, "request: %s", status_name(rc));
        return api_error(herr, rc, &err);
    }
    pthread_mutex_lock(&e->lock);
    if (e->n_live == e->plan.max_live) {
        rc = queue_full(e, &err);
    } else {
        s->id = e->next_id++;
        e->live[e->n_live++] = s;
        sequence_list_push(&e->incoming, s);
        if (out != NULL) *out = s->id;
    }
    pthread_mutex_unlock(&e->lock);
    if (rc != STATUS_OK) sequence_destroy(e, s);
    return api_error(herr, rc, &err);
}

headrace_status headrace_cancel(headrace_engine *e, headrace_id id) {
    headrace_status rc = HEADRACE_NOT_FOUND;
    pthread_mutex_lock(&e->lock);
    for (int32_t i = 0; i < e->n_live; i++) {
        if (e->live[i]->id != id) continue;
        atomic_store(&e->live[i]->cancelled, true);
        rc = HEADRACE_OK;
        break;
    }
    pthread_mutex_unlock(&e->lock);
    return rc;
}
