/* SPDX-License-Identifier: Apache-2.0 */
/* What a caller is told: logits, tokens with the text that became certain, and the end. */
#include <math.h>

#include "base/os.h"
#include "engine/engine.h"

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
    return (headrace_event){
        .size = sizeof(headrace_event),
        .kind = kind,
        .id = s->id,
        .index = s->index,
        .user = s->user,
        .n_vocab = e->sampler.n_vocab,
        .usage = {.prompt_tokens = s->n_prompt, .completion_tokens = s->n_tokens - s->n_prompt, .prefix_hit_tokens = s->n_hit_tokens, .preemptions = s->n_preempted},
    };
}

static void set_text(headrace_event *ev, const textbuf *b) {
    ev->text = textbuf_text(b);
    ev->n_text = b->len;
}

static void set_logprobs(headrace_engine *e, const sequence *s, headrace_event *ev, int32_t token, const float *row) {
    const int32_t n_top = s->top_logprobs < e->sampler.n_vocab ? s->top_logprobs : e->sampler.n_vocab;
    sampler_logprobs(&e->sampler, row, token, n_top, &e->logprobs);
    ev->logprob = e->logprobs.logprob;
    ev->n_top = e->logprobs.n_top;
    ev->top_ids = e->logprobs.top_ids;
    ev->top_logprobs = e->logprobs.top_logprobs;
}

static bool text_failed(sequence *s) {
    if (!s->piece.failed && !s->text.failed) return false;
    s->finish = HEADRACE_FINISH_ERROR;
    error_note(&s->failure, STATUS_NO_MEMORY, "engine: no memory for the text of a token");
    return true;
}

void event_logits(const headrace_engine *e, sequence *s, const float *logits, int32_t n_rows, int32_t first_pos) {
    headrace_event ev = event_of(e, s, HEADRACE_EVENT_LOGITS);
    ev.logits = logits;
    ev.n_rows = n_rows;
    ev.first_pos = first_pos;
    s->callback(&ev);
}

void event_prompt(headrace_engine *e, sequence *s, int32_t pos, const float *row) {
    headrace_event ev = event_of(e, s, HEADRACE_EVENT_PROMPT);
    textbuf_clear(&s->text);
    if (pos == 0) s->detok.started = false; /* the prompt's own text begins here */
    if (detokenizer_add(&s->detok, s->tokens[pos], &s->text) != STATUS_OK) s->text.failed = true;
    if (pos == s->n_prompt - 1) { /* the answer's text begins anew */
        detokenizer_finish(&s->detok, &s->text);
        detokenizer_init(&s->detok, e->tok, false);
        s->detok.started = true;
    }
    if (text_failed(s)) return;
    set_text(&ev, &s->text);
    ev.token = s->tokens[pos];
    ev.logprob = NAN;
    if (row != NULL) set_logprobs(e, s, &ev, ev.token, row);
    s->callback(&ev);
}

void event_embedding(headrace_engine *e, sequence *s, const float *hidden) {
    headrace_event ev = event_of(e, s, HEADRACE_EVENT_EMBEDDING);
    const int32_t n = ev.n_embd = (int32_t)e->model->hp.n_embd;
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)hidden[i] * (double)hidden[i];
    if (!isfinite(sum)) {
        s->finish = HEADRACE_FINISH_ERROR;
        error_note(&s->failure, STATUS_FAILED, "engine: the hidden state at position %d is not finite", s->n_prompt - 1);
        return;
    }
    const double scale = s->normalize && sum > 0 ? 1 / sqrt(sum) : 1;
    for (int32_t i = 0; i < n; i++) e->embedding[i] = (float)((double)hidden[i] * scale);
    ev.embedding = e->embedding;
    s->callback(&ev);
}

void event_token(headrace_engine *e, sequence *s, const float *row) {
    headrace_event ev = event_of(e, s, HEADRACE_EVENT_TOKEN);
    const int32_t token = s->tokens[s->n_tokens - 1];
    textbuf_clear(&s->piece);
    textbuf_clear(&s->text);
    if (s->finish != HEADRACE_FINISH_STOP) { /* the token that ends a text is not part of it */
        if (detokenizer_add(&s->detok, token, &s->piece) != STATUS_OK) s->piece.failed = true;
        stop_filter_add(&s->stop, textbuf_text(&s->piece), s->piece.len, s->n_tokens - s->n_prompt > s->sampling.min_tokens, &s->text);
        if (text_failed(s)) return;
        if (s->stop.stopped) s->finish = HEADRACE_FINISH_STOP;
    }
    ev.token = token;
    set_text(&ev, &s->text);
    if (s->want_logprobs) set_logprobs(e, s, &ev, token, row);
    s->callback(&ev);
}

void event_done(headrace_engine *e, sequence *s) {
    s->end_ns = os_now_ns();
    textbuf_clear(&s->piece);
    textbuf_clear(&s->text);
    if (s->n_tokens > s->n_prompt && !s->piece.failed) detokenizer_finish(&s->detok, &s->piece);
    stop_filter_add(&s->stop, textbuf_text(&s->piece), s->piece.len, s->n_tokens - s->n_prompt > s->sampling.min_tokens, &s->text);
    stop_filter_finish(&s->stop, &s->text);
    headrace_event ev = event_of(e, s, HEADRACE_EVENT_DONE);
    ev.finish = s->finish;
    ev.status = (headrace_status)s->failure.code;
    ev.error = s->failure.text;
    set_text(&ev, &s->text);
    ev.timings = timings_of(s);
    s->callback(&ev);
}
