/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step loop. Between mem_guard_begin and mem_guard_end nothing may allocate: that covers building the step, the pass, the head and the draws; callbacks run outside.
 */
#include <string.h>

#include "base/os.h"
#include "engine/api_impl.h"
#include "engine/engine.h"
#include "model/model_capture.h"

/* ---- life of a sequence ---- */

static void fail(sequence *s, const error *err) {
    if (s->finish != HEADRACE_FINISH_NONE) return;
    s->finish = HEADRACE_FINISH_ERROR;
    s->failure = *err;
}

/* The other answers start when the prompt is known, or when nobody will compute it for them. They keep the first one's rank. */
static void release_siblings(headrace_engine *e, sequence *s) {
    for (sequence *q = s->siblings, *next; q != NULL; q = next) {
        next = q->next;
        q->next = NULL;
        sched_add_beside(&e->sched, q, s);
    }
    s->siblings = NULL;
}

static void retire(headrace_engine *e, sequence *s) {
    sched_remove(&e->sched, s);
    release_siblings(e, s);
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
    event_done(e, s);
    sequence_destroy(e, s);
}

/* Ends what is finished or cancelled; returns how many. */
static int32_t sweep_list(headrace_engine *e, sequence_list *l) {
    int32_t n = 0;
    for (sequence *s = l->first, *next; s != NULL; s = next) {
        next = s->next;
        if (s->finish == HEADRACE_FINISH_NONE && atomic_load(&s->cancelled)) s->finish = HEADRACE_FINISH_CANCELLED;
        if (s->finish == HEADRACE_FINISH_NONE) continue;
        retire(e, s);
        n++;
    }
    return n;
}

/* Again while there is something: an end can release siblings that are cancelled too. */
static void sweep(headrace_engine *e) {
    while (sweep_list(e, &e->sched.running) + sweep_list(e, &e->sched.waiting) > 0) {
    }
}

static void take_incoming(headrace_engine *e) {
    pthread_mutex_lock(&e->lock);
    sequence_list in = e->incoming;
    e->incoming = (sequence_list){0};
    pthread_mutex_unlock(&e->lock);
    for (sequence *s = in.first, *next; s != NULL; s = next) {
        next = s->next;
        sched_add(&e->sched, s);
    }
}

/* ---- a step ---- */

static void build_step(headrace_engine *e, step *st) {
    *st = (step){.ids = e->ids, .pos = e->pos, .segments = e->segments, .n_groups = e->model->n_groups};
    for (sequence *s = e->sched.running.first; s != NULL; s = s->next) {
        if (s->step_rows == 0) continue;
        s->step_first = st->n_rows;
        e->segments[st->n_segments] = (step_segment){.first_row = st->n_rows, .n_rows = s->step_rows, .seq_slot = s->slot};
        e->seg_seq[st->n_segments++] = s;
        for (int32_t i = 0; i < s->step_rows; i++) {
            e->ids[st->n_rows] = s->tokens[s->n_computed + i];
            e->pos[st->n_rows++] = s->n_computed + i;
        }
        const int32_t pages = kv_pages_for(&e->kv, s->n_computed + s->step_rows);
        if (pages > st->max_pages) st->max_pages = pages;
    }
    for (int32_t g = 0; g < st->n_groups; g++) {
        st->pages[g] = e->pages[g];
        for (int32_t i = 0; i < st->n_segments; i++) {
            const sequence *s = e->seg_seq[i];
            int32_t *row = e->pages[g] + (size_t)i * (size_t)st->max_pages;
            const int32_t n = s->kv.n_pages < st->max_pages ? s->kv.n_pages : st->max_pages, have = e->kv.opt.groups[g].paged ? n : 0;
            memcpy(row, s->kv.pages[g], (size_t)have * sizeof *row);
            for (int32_t p = have; p < st->max_pages; p++) row[p] = -1; /* no row of this segment looks there */
        }
    }
}

/* Whether a token is drawn once n_computed of its tokens are computed. */
static bool draws_at(const sequence *s, int32_t n_computed) { return n_computed == s->n_tokens && s->n_tokens < s->n_prompt + s->max_new; }
static bool draws(const sequence *s) { return draws_at(s, s->n_computed); }

/* Whether the logits at a position of s are wanted; `last`: of its rows in this step. */
static bool wants_row(const sequence *s, int32_t pos, bool last) {
    if (last && draws_at(s, pos + 1)) return true;
    if (pos < s->n_scored) return false;
    return s->want_logits || (s->prompt_logprobs && (pos < s->n_prompt - 1 || pos == 0));
}

static int32_t list_head_rows(headrace_engine *e, const step *st) {
    int32_t n = 0;
    for (int32_t i = 0; i < st->n_segments; i++) {
        const sequence *s = e->seg_seq[i];
        if (s->finish != HEADRACE_FINISH_NONE) continue; /* failed alone */
        for (int32_t r = s->step_first; r < s->step_first + s->step_rows; r++) {
            if (wants_row(s, e->pos[r], r == s->step_first + s->step_rows - 1)) e->head_rows[n++] = r;
        }
    }
    return n;
}

static bool wants_embedding(const sequence *s) { return s->pooling != HEADRACE_POOLING_NONE && s->finish == HEADRACE_FINISH_NONE; }

/* Whether of a row of s nothing but the most likely id is used. */
static bool wants_best(const sequence *s) {
    return s->sampling.temperature == 0.0f && !sample_params_adjust(&s->sampling) && s->logits_hook == NULL && !s->want_logits && !s->want_logprobs && !s->prompt_logprobs;
}

/* The rows of the head go with the step, where they are few and nothing else of the model is asked for in between. */
static void carry_head(headrace_engine *e, step *st) {
    const int32_t n = list_head_rows(e, st);
    if (n > e->plan.max_head_rows) return;
    st->best_only = true;
    for (int32_t i = 0; i < st->n_segments; i++) {
        if (wants_embedding(e->seg_seq[i])) return;
        if (!wants_best(e->seg_seq[i])) st->best_only = false;
    }
    st->head_rows = e->head_rows;
    st->n_head_rows = n;
}

static bool is_stop_id(const sequence *s, int32_t token) {
    for (int32_t i = 0; i < s->n_stop_ids; i++) {
        if (s->stop_ids[i] == token) return true;
    }
    return false;
}

static void accept(headrace_engine *e, sequence *s, int32_t token, const float *row) {
    if (s->first_ns == 0) s->first_ns = os_now_ns();
    s->tokens[s->n_tokens++] = token;
    if ((!s->ignore_end && tokenizer_is_end(e->tok, token)) || is_stop_id(s, token)) s->finish = HEADRACE_FINISH_STOP;
    event_token(e, s, row);
    if (s->finish == HEADRACE_FINISH_NONE && s->n_tokens == s->n_prompt + s->max_new) s->finish = HEADRACE_FINISH_LENGTH;
}

/* row NULL: all that is known of it is its most likely id. */
static status draw(headrace_engine *e, sequence *s, const float *row, int32_t best, int32_t *token, error *err) {
    const float *used = row;
    if (row == NULL) {
        *token = best;
        return best >= 0 ? STATUS_OK : sampler_refuse(s->n_tokens, err);
    }
    const bool adjust = sample_params_adjust(&s->sampling);
    if (adjust || s->logits_hook != NULL) {
        float *own = e->sampler.row;
        memcpy(own, row, (size_t)e->sampler.n_vocab * sizeof *own);
        if (s->logits_hook != NULL) s->logits_hook(s->user, s->id, s->index, s->tokens, s->n_tokens, own, e->sampler.n_vocab);
        if (adjust) sampler_adjust(&e->sampler, own, &s->sampling, s->tokens, s->n_prompt, s->n_tokens);
        used = own;
    }
    mem_guard_begin(e->m);
    const status rc = sampler_draw(&e->sampler, used, &s->sampling, s->n_tokens, token, err);
    mem_guard_end(e->m);
    return rc;
}

/* What one row of logits is for: a token of the prompt that it foretells, the next token. */
static void use_row(headrace_engine *e, sequence *s, int32_t r, const float *row, int32_t best) {
    const int32_t pos = e->pos[r];
    if (s->prompt_logprobs && pos >= s->n_scored && pos < s->n_prompt) {
        if (pos == 0) event_prompt(e, s, 0, NULL);
        if (pos + 1 < s->n_prompt) event_prompt(e, s, pos + 1, row);
    }
    if (pos >= s->n_scored) s->n_scored = pos + 1;
    if (s->finish != HEADRACE_FINISH_NONE || r != s->step_first + s->step_rows - 1 || !draws(s)) return;
    error err = {0};
    int32_t token;
    if (draw(e, s, row, best, &token, &err) != STATUS_OK) {
        fail(s, &err);
    } else {
        accept(e, s, token, row);
    }
}

/* One batch of logits rows, or of their most likely ids: those of one sequence lie together. */
static void use_logits(headrace_engine *e, const float *logits, const int32_t *best, const int32_t *rows, int32_t n, int32_t *seg) {
    const size_t vocab = (size_t)e->sampler.n_vocab;
    for (int32_t i = 0; i < n;) {
        while (rows[i] >= e->segments[*seg].first_row + e->segments[*seg].n_rows) ++*seg;
        sequence *s = e->seg_seq[*seg];
        int32_t k = i, sent = i;
        while (k < n && rows[k] < s->step_first + s->step_rows) k++;
        while (sent < k && e->pos[rows[sent]] < s->n_scored) sent++; /* computed anew after a preemption */
        if (s->finish == HEADRACE_FINISH_NONE && s->want_logits && sent < k) event_logits(e, s, logits + (size_t)sent * vocab, k - sent, e->pos[rows[sent]]);
        for (; i < k; i++) {
            if (s->finish == HEADRACE_FINISH_NONE) use_row(e, s, rows[i], logits != NULL ? logits + (size_t)i * vocab : NULL, best != NULL ? best[i] : -1);
        }
    }
}

static void fail_step(headrace_engine *e, const step *st, const error *err) {
    for (int32_t i = 0; i < st->n_segments; i++) fail(e->seg_seq[i], err);
}

/* What the step computed is remembered; of a sequence that needed what could not be read, nothing is. */
static status keep_step(headrace_engine *e, const step *st, error *err) {
    for (int32_t i = 0; i < st->n_segments; i++) {
        sequence *s = e->seg_seq[i];
        error alone = {0};
        if (model_segment_outcome(e->model, i, &alone) != STATUS_OK)
            fail(s, &alone);
        else
            TRY(engine_snapshot_keep(e, s, sched_computed(&e->sched, s), err));
    }
    return STATUS_OK;
}

/* A weight file that shrank gave zeros somewhere, and one that was written to other numbers: nothing computed with it may be used. */
static status check_source(const headrace_engine *e, error *err) {
    if (!source_is_mapped(e->src) || source_intact(e->src)) return STATUS_OK; /* what was read is ours */
    return error_set(err, STATUS_IO, "engine: %s changed while its weights were mapped; start again with the file as it is to be, or use --load read", source_path(e->src));
}

static status compute(headrace_engine *e, const step *st, error *err) {
    mem_guard_begin(e->m);
    status rc = STATUS_OK;
    for (int32_t i = 0; i < st->n_segments && rc == STATUS_OK; i++) rc = engine_snapshot_restore(e, e->seg_seq[i], err);
    if (rc == STATUS_OK) rc = model_forward(e->model, st, err);
    mem_guard_end(e->m);
    if (rc == STATUS_OK) rc = check_source(e, err);
    return rc;
}

static status run_heads(headrace_engine *e, const step *st, error *err) {
    int32_t seg = 0;
    const int32_t n = list_head_rows(e, st), most = e->plan.max_head_rows;
    for (int32_t i = 0; i < n; i += most) {
        const int32_t k = n - i < most ? n - i : most;
        const float *logits = NULL;
        const int32_t *best = NULL;
        mem_guard_begin(e->m);
        status rc = model_best(e->model, e->head_rows + i, k, &best) ? STATUS_OK : model_head(e->model, e->head_rows + i, k, &logits, err);
        mem_guard_end(e->m);
        if (rc == STATUS_OK) rc = check_source(e, err);
        TRY(rc);
        use_logits(e, logits, best, e->head_rows + i, k, &seg);
    }
    return STATUS_OK;
}

static bool gives_embedding(const sequence *s) { return wants_embedding(s) && s->n_computed >= s->n_prompt; }

/* For the sequences whose prompt ended in this step, a batch of rows at a time. */
static status run_embeddings(headrace_engine *e, const step *st, error *err) {
    for (int32_t i = 0; i < st->n_segments;) {
        int32_t n = 0;
        const int32_t first = i;
        for (; i < st->n_segments && n < e->plan.max_head_rows; i++) {
            const sequence *s = e->seg_seq[i];
            if (gives_embedding(s)) e->head_rows[n++] = s->step_first + s->step_rows - 1 - (s->n_computed - s->n_prompt);
        }
        if (n == 0) break;
        const float *hidden;
        mem_guard_begin(e->m);
        status rc = model_hidden(e->model, e->head_rows, n, &hidden, err);
        mem_guard_end(e->m);
        if (rc == STATUS_OK) rc = check_source(e, err);
        TRY(rc);
        for (int32_t k = first; k < i; k++) {
            sequence *s = e->seg_seq[k];
            if (!gives_embedding(s)) continue;
            s->pooling = HEADRACE_POOLING_NONE;
            event_embedding(e, s, hidden);
            hidden += e->model->hp.n_embd;
        }
    }
    return STATUS_OK;
}

static void run_step(headrace_engine *e) {
    error err = {0};
    step st;
    mem_guard_begin(e->m);
    build_step(e, &st);
    carry_head(e, &st);
    mem_guard_end(e->m);
    if (e->threads != NULL) pool_step_begin(e->threads);
    status rc = compute(e, &st, &err);
    if (rc == STATUS_OK) {
        mem_guard_begin(e->m);
        rc = keep_step(e, &st, &err);
        mem_guard_end(e->m);
        if (rc == STATUS_OK) rc = run_embeddings(e, &st, &err);
        if (rc == STATUS_OK) rc = run_heads(e, &st, &err);
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
        if (s->siblings != NULL && s->n_computed >= s->n_prompt) release_siblings(e, s);
    }
}

static void update_stats(headrace_engine *e, bool *more) {
    uint64_t held = 0, cached = 0;
    for (int32_t g = 0; g < e->kv.opt.n_groups; g++) {
        const kv_pool *p = &e->kv.pools[g];
        held += (uint64_t)(p->n_pages - p->n_free - p->n_cached);
        cached += (uint64_t)p->n_cached;
    }
    pthread_mutex_lock(&e->lock);
    e->stats.n_steps++;
    e->stats.n_running = (uint32_t)e->sched.running.n;
    e->stats.n_waiting = (uint32_t)(e->sched.waiting.n + e->incoming.n);
    e->stats.n_preemptions = e->sched.n_preempted;
    e->stats.n_prefix_hit_tokens = e->sched.n_hit_tokens;
    e->stats.kv_pages_used = held;
    e->stats.kv_pages_cached = cached;
    e->stats.n_evicted = e->kv.n_evicted;
    engine_experts_stats(e, &e->stats);
    engine_cost_stats(e, &e->stats);
    e->stats.device_peak_bytes = e->device_peak_bytes;
    if (e->model->capture != NULL) {
        e->stats.n_captured_steps = e->model->capture->n_captured;
        e->stats.n_replayed_steps = e->model->capture->n_replayed;
    }
    *more = e->n_live > 0;
    pthread_mutex_unlock(&e->lock);
}

static bool invariants_hold(const headrace_engine *e) {
    kv_cache kv = e->kv;
    sched s = e->sched;
    if (!ENGINE_CHECKS) return true;
    kv.m = e->check_m;
    s.kv = &kv;
    return sched_check(&s);
}

status engine_step(headrace_engine *e, bool *more, error *err) {
    take_incoming(e);
    sweep(e);
    mem_guard_begin(e->m);
    const int32_t n_rows = sched_step(&e->sched);
    mem_guard_end(e->m);
    if (n_rows == 0 && (e->sched.running.n > 0 || e->sched.waiting.n > 0)) {
        return error_set(err, STATUS_BUG, "engine: %d requests run and %d wait, and none can go on", e->sched.running.n, e->sched.waiting.n);
    }
    for (sequence *s = e->sched.running.last; s != NULL; s = s->prev) {
        if (s->start_ns == 0) s->start_ns = os_now_ns();
    }
    if (n_rows > 0) {
        run_step(e);
        sweep(e);
    }
    engine_device_look_again(e, e->sched.running.n + e->sched.waiting.n == 0);
    update_stats(e, more);
    return invariants_hold(e) ? STATUS_OK : error_set(err, STATUS_BUG, "engine: an invariant of scheduler, page tables or pools is broken");
}

void engine_finish_all(headrace_engine *e) {
    if (e->live == NULL) return;
    pthread_mutex_lock(&e->lock);
    e->closing = true; /* whatever callbacks ask for from here on is refused */
    for (int32_t i = 0; i < e->n_live; i++) atomic_store(&e->live[i]->cancelled, true);
    pthread_mutex_unlock(&e->lock);
    take_incoming(e);
    sweep(e);
}
