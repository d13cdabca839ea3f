/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step loop. Between mem_guard_begin and mem_guard_end nothing may allocate: that covers building the step, the pass, the head and the draws; callbacks run outside.
 */
#include <string.h>

#include "base/os.h"
#include "engine/api_impl.h"
#include "engine/engine.h"

/* ---- events ---- */

static headrace_timings timings_of(const sequence *s) {
    headrace_timings t = {0};
    if (s->start_ns > 0) t.queued_ns = s->start_ns - s->submit_ns;
    if (s->first_ns > 0) t.first_token_ns = s->first_ns - s->submit_ns;
    if (s->first_ns > 0) t.prefill_ns = s->first_ns - s->start_ns;
    if (s->first_ns > 0 && s->end_ns > s->first_ns) t.decode_ns = s->end_ns - s->first_ns;
    if (s->end_ns > 0) t.total_ns = s->end_ns - s->submit_ns;
    return t;
}

static headrace_event event_of(const headrace_engine *e, const sequence *s, headrace_event_kind kind) {
    return (headrace_event){.size = sizeof(headrace_event), .kind = kind, .id = s->id, .user = s->user, .n_vocab = e->sampler.n_vocab, .usage = s->usage};
}

static void send_token(headrace_engine *e, sequence *s, int32_t token) {
    headrace_event ev = event_of(e, s, HEADRACE_EVENT_TOKEN);
    textbuf_clear(&s->text);
    /* the end token that stops a text is not part of it */
    if (s->finish != HEADRACE_FINISH_STOP && detokenizer_add(&s->detok, token, &s->text) != STATUS_OK) s->text.failed = true;
    if (s->text.failed) {
        error_note(&s->failure, STATUS_NO_MEMORY, "engine: no memory for the text of token %d", token);
        s->finish = HEADRACE_FINISH_ERROR;
        return;
    }
    ev.token = token;
    ev.text = textbuf_text(&s->text);
    ev.n_text = s->text.len;
    s->callback(&ev);
}

static void send_done(headrace_engine *e, sequence *s) {
    s->end_ns = os_now_ns();
    s->usage.completion_tokens = s->n_tokens - s->n_prompt;
    s->usage.prompt_tokens = s->n_prompt;
    textbuf_clear(&s->text);
    detokenizer_finish(&s->detok, &s->text);
    headrace_event ev = event_of(e, s, HEADRACE_EVENT_DONE);
    ev.finish = s->finish;
    ev.status = (headrace_status)s->failure.code;
    ev.error = s->failure.text;
    ev.text = textbuf_text(&s->text);
    ev.n_text = s->text.len;
    ev.timings = timings_of(s);
    s->callback(&ev);
}

/* ---- life of a sequence ---- */

static void fail(sequence *s, const error *err) {
    if (s->finish != HEADRACE_FINISH_NONE) return;
    s->finish = HEADRACE_FINISH_ERROR;
    s->failure = *err;
}

static void retire(headrace_engine *e, sequence *s) {
    if (s->state == SEQUENCE_RUNNING) {
        for (int32_t g = 0; g < e->model->n_groups; g++) kv_pool_release(&e->pools[g], s->pages[g], s->n_pages);
        e->free_slots[e->n_free_slots++] = s->slot;
    }
    s->state = SEQUENCE_DONE;
    pthread_mutex_lock(&e->lock); /* before the callback: it may fill the place, and its id is gone */
    for (int32_t i = 0; i < e->n_live; i++) {
        if (e->live[i] == s) {
            e->live[i] = e->live[--e->n_live];
            break;
        }
    }
    e->stats.n_finished++;
    e->stats.n_prompt_tokens += (uint64_t)s->n_prompt;
    e->stats.n_generated_tokens += (uint64_t)(s->n_tokens - s->n_prompt);
    pthread_mutex_unlock(&e->lock);
    send_done(e, s);
    sequence_destroy(e, s);
}

/* Ends what is finished or cancelled and keeps the rest, in order. */
static void sweep(headrace_engine *e, sequence_list *l) {
    sequence_list keep = {0};
    for (sequence *s = sequence_list_pop(l); s != NULL; s = sequence_list_pop(l)) {
        if (s->finish == HEADRACE_FINISH_NONE && atomic_load(&s->cancelled)) s->finish = HEADRACE_FINISH_CANCELLED;
        if (s->finish != HEADRACE_FINISH_NONE) {
            retire(e, s);
        } else {
            sequence_list_push(&keep, s);
        }
    }
    *l = keep;
}

static void take_incoming(headrace_engine *e) {
    pthread_mutex_lock(&e->lock);
    sequence_list in = e->incoming;
    e->incoming = (sequence_list){0};
    pthread_mutex_unlock(&e->lock);
    for (sequence *s = sequence_list_pop(&in); s != NULL; s = sequence_list_pop(&in)) sequence_list_push(&e->waiting, s);
}

static bool take_pages(headrace_engine *e, sequence *s) {
    for (int32_t g = 0; g < e->model->n_groups; g++) {
        if (kv_pool_acquire(&e->pools[g], s->n_pages, s->pages[g])) continue;
        while (g-- > 0) kv_pool_release(&e->pools[g], s->pages[g], s->n_pages);
        return false;
    }
    return true;
}

static void admit(headrace_engine *e) {
    while (e->waiting.first != NULL && e->n_free_slots > 0 && take_pages(e, e->waiting.first)) {
        sequence *s = sequence_list_pop(&e->waiting);
        s->slot = e->free_slots[--e->n_free_slots];
        s->state = SEQUENCE_RUNNING;
        s->start_ns = os_now_ns();
        sequence_list_push(&e->running, s);
    }
}

/* ---- a step ---- */

static void build_step(headrace_engine *e, step *st) {
    const int32_t page_tokens = e->plan.page_tokens;
    *st = (step){.ids = e->ids, .pos = e->pos, .segments = e->segments, .n_groups = e->model->n_groups};
    for (sequence *s = e->running.first; s != NULL; s = s->next) {
        if (s->step_rows == 0) continue;
        s->step_first = st->n_rows;
        e->segments[st->n_segments] = (step_segment){.first_row = st->n_rows, .n_rows = s->step_rows, .seq_slot = s->slot};
        e->seg_seq[st->n_segments++] = s;
        for (int32_t i = 0; i < s->step_rows; i++) {
            e->ids[st->n_rows] = s->tokens[s->n_computed + i];
            e->pos[st->n_rows++] = s->n_computed + i;
        }
        const int32_t pages = (s->n_computed + s->step_rows + page_tokens - 1) / page_tokens;
        if (pages > st->max_pages) st->max_pages = pages;
    }
    for (int32_t g = 0; g < st->n_groups; g++) {
        st->pages[g] = e->pages[g];
        for (int32_t i = 0; i < st->n_segments; i++) {
            const sequence *s = e->seg_seq[i];
            int32_t *row = e->pages[g] + (size_t)i * (size_t)st->max_pages;
            const int32_t have = s->n_pages < st->max_pages ? s->n_pages : st->max_pages;
            memcpy(row, s->pages[g], (size_t)have * sizeof *row);
            for (int32_t p = have; p < st->max_pages; p++) row[p] = -1; /* no row of this segment looks there */
        }
    }
}

static bool draws(const sequence *s) { return s->n_computed == s->n_tokens && s->n_tokens < s->n_prompt + s->max_new; }

/* The rows whose logits somebody wants, in row order. */
static int32_t list_head_rows(headrace_engine *e, const step *st) {
    int32_t n = 0;
    for (int32_t i = 0; i < st->n_segments; i++) {
        const sequence *s = e->seg_seq[i];
        const int32_t first = s->want_logits ? 0 : draws(s) ? s->step_rows - 1 : s->step_rows;
        for (int32_t r = first; r < s->step_rows; r++) e->head_rows[n++] = s->step_first + r;
    }
    return n;
}

static void accept(headrace_engine *e, sequence *s, int32_t token) {
    if (s->first_ns == 0) s->first_ns = os_now_ns();
    s->tokens[s->n_tokens++] = token;
    if (!s->ignore_end && tokenizer_is_end(e->tok, token)) {
        s->finish = HEADRACE_FINISH_STOP;
    } else if (s->n_tokens == s->n_prompt + s->max_new) {
        s->finish = HEADRACE_FINISH_LENGTH;
    }
    send_token(e, s, token);
}

/* One batch of logits rows: those of one sequence lie together. */
static void use_logits(headrace_engine *e, const float *logits, const int32_t *rows, int32_t n, int32_t *seg) {
    const size_t vocab = (size_t)e->sampler.n_vocab;
    for (int32_t i = 0; i < n;) {
        while (rows[i] >= e->segments[*seg].first_row + e->segments[*seg].n_rows) ++*seg;
        sequence *s = e->seg_seq[*seg];
        const int32_t end_row = s->step_first + s->step_rows;
        int32_t k = i;
        while (k < n && rows[k] < end_row) k++;
        if (s->finish == HEADRACE_FINISH_NONE && s->want_logits) {
            headrace_event ev = event_of(e, s, HEADRACE_EVENT_LOGITS);
            ev.logits = logits + (size_t)i * vocab;
            ev.n_rows = k - i;
            ev.first_pos = e->pos[rows[i]];
            s->callback(&ev);
        }
        if (s->finish == HEADRACE_FINISH_NONE && rows[k - 1] == end_row - 1 && draws(s)) {
            error err = {0};
            int32_t token;
            mem_guard_begin(e->m);
            const status rc = sampler_draw(&e->sampler, logits + (size_t)(k - 1) * vocab, &s->sampling, s->n_tokens, &token, &err);
            mem_guard_end(e->m);
            if (rc != STATUS_OK) {
                fail(s, &err);
            } else {
                accept(e, s, token);
            }
        }
        i = k;
    }
}

static void fail_step(headrace_engine *e, const step *st, const error *err) {
    for (int32_t i = 0; i < st->n_segments; i++) fail(e->seg_seq[i], err);
}

/* A weight file that shrank gave zeros somewhere: nothing computed with it may be used. */
static status check_source(const headrace_engine *e, error *err) {
    if (!source_is_mapped(e->src) || source_intact(e->src)) return STATUS_OK; /* what was read is ours */
    return error_set(err, STATUS_IO, "engine: %s shrank while its weights were mapped; start again with the whole file, or use --load read", source_path(e->src));
}

static status compute(headrace_engine *e, const step *st, error *err) {
    mem_guard_begin(e->m);
    status rc = model_forward(e->model, st, err);
    mem_guard_end(e->m);
    if (rc == STATUS_OK) rc = check_source(e, err);
    return rc;
}

static status run_heads(headrace_engine *e, const step *st, error *err) {
    int32_t seg = 0;
    const int32_t n = list_head_rows(e, st), most = e->plan.max_head_rows;
    for (int32_t i = 0; i < n; i += most) {
        const int32_t k = n - i < most ? n - i : most;
        const float *logits;
        mem_guard_begin(e->m);
        status rc = model_head(e->model, e->head_rows + i, k, &logits, err);
        mem_guard_end(e->m);
        if (rc == STATUS_OK) rc = check_source(e, err);
        TRY(rc);
        use_logits(e, logits, e->head_rows + i, k, &seg);
    }
    return STATUS_OK;
}

static void run_step(headrace_engine *e) {
    error err = {0};
    step st;
    mem_guard_begin(e->m);
    build_step(e, &st);
    mem_guard_end(e->m);
    if (e->threads != NULL) pool_step_begin(e->threads);
    status rc = compute(e, &st, &err);
    if (rc == STATUS_OK) {
        for (int32_t i = 0; i < st.n_segments; i++) e->seg_seq[i]->n_computed += e->seg_seq[i]->step_rows;
        rc = run_heads(e, &st, &err);
    }
    if (e->threads != NULL) pool_step_end(e->threads);
    if (rc != STATUS_OK) {
        if (err.code == STATUS_OK) error_note(&err, rc, "engine: the step failed (%s)", status_name(rc));
        fail_step(e, &st, &err);
        return;
    }
    for (int32_t i = 0; i < st.n_segments; i++) {
        sequence *s = e->seg_seq[i];
        if (s->finish == HEADRACE_FINISH_NONE && s->max_new == 0 && s->n_computed == s->n_prompt) {
            s->first_ns = os_now_ns();
            s->finish = HEADRACE_FINISH_LENGTH;
        }
    }
}

status engine_step(headrace_engine *e, bool *more, error *err) {
    take_incoming(e);
    sweep(e, &e->waiting);
    sweep(e, &e->running);
    admit(e);
    if (e->running.first == NULL && e->waiting.first != NULL) {
        return error_set(err, STATUS_BUG, "engine: a waiting request cannot be admitted although nothing runs");
    }
    if (sched_pick(&e->sched, e->running.first) > 0) {
        run_step(e);
        sweep(e, &e->running);
    }
    pthread_mutex_lock(&e->lock);
    e->stats.n_steps++;
    e->stats.n_running = (uint32_t)e->running.n;
    e->stats.n_waiting = (uint32_t)(e->waiting.n + e->incoming.n);
    e->stats.kv_pages_used = (uint64_t)(e->pools[0].n_pages - e->pools[0].n_free);
    *more = e->n_live > 0;
    pthread_mutex_unlock(&e->lock);
    return STATUS_OK;
}

void engine_finish_all(headrace_engine *e) {
    if (e->live == NULL) return;
    take_incoming(e);
    sequence_list *const lists[] = {&e->waiting, &e->running};
    for (int i = 0; i < 2; i++) {
        for (sequence *s = lists[i]->first; s != NULL; s = s->next) atomic_store(&s->cancelled, true);
        sweep(e, lists[i]);
    }
}
