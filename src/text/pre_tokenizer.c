/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Pieces go through the steps depth first: what a step cuts off is carried to the end before the next cut, so that nothing but one buffer
 * for each rewriting step is held. The merging behaviours need one piece of memory; MergedWithNext, defined from the right, needs one
 * ahead.
 */
#include "text/pre_tokenizer.h"

#include <string.h>

#include "text/byte_alphabet.h"

const char pre_byte_level_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

void pre_tokenizer_init(pre_tokenizer *p, const pattern_context *context) {
    memset(p, 0, sizeof *p);
    p->context = context;
}

void pre_tokenizer_deinit(pre_tokenizer *p) {
    for (int i = 0; i < p->n; i++) pattern_destroy(p->steps[i].p);
    p->n = 0;
}

static status new_step(pre_tokenizer *p, pre_step **out, error *err) {
    if (p->n == PRE_MAX_STEPS) return error_set(err, STATUS_UNSUPPORTED, "tokenizer: more than %d pre-tokenizer steps", PRE_MAX_STEPS);
    *out = &p->steps[p->n];
    **out = (pre_step){0};
    return STATUS_OK;
}

/* White space at the end of a line, as published. Where the start of a run does not match, none of its places does; to look from
   each of them anew would take the square of the run's length. */
static const char line_end[] = "\\s+$", line_end_linear[] = "(?<!\\s)\\s+$";

status pre_tokenizer_add_split(pre_tokenizer *p, const char *source, size_t n, bool literal, pre_behavior behavior, bool invert,
                               error *err) {
    pre_step *step = NULL;
    TRY(new_step(p, &step, err));
    if (!literal && n == sizeof line_end - 1 && memcmp(source, line_end, n) == 0) {
        source = line_end_linear;
        n = sizeof line_end_linear - 1;
    }
    TRY(pattern_compile(p->context, source, n, literal, &step->p, err));
    step->kind = PRE_SPLIT;
    step->behavior = behavior;
    step->invert = invert;
    p->n++;
    return STATUS_OK;
}

status pre_tokenizer_add(pre_tokenizer *p, pre_kind kind, const char *text, error *err) {
    pre_step *step = NULL;
    TRY(new_step(p, &step, err));
    step->kind = kind;
    step->n_text = text ? strlen(text) : 0;
    if (step->n_text > sizeof step->text) return error_set(err, STATUS_UNSUPPORTED, "tokenizer: '%s' as a mark of words", text);
    if (text) memcpy(step->text, text, step->n_text);
    p->n++;
    return STATUS_OK;
}

status pre_scratch_init(pre_scratch *s, mem *m, const pattern_context *context, error *err) {
    memset(s, 0, sizeof *s);
    s->m = m;
    for (int i = 0; i < PRE_MAX_STEPS; i++) textbuf_init(&s->text[i], m, MEM_TOKENIZER);
    return pattern_search_create(context, &s->search, err);
}

void pre_scratch_deinit(pre_scratch *s) {
    if (!s->m) return;
    for (int i = 0; i < PRE_MAX_STEPS; i++) textbuf_deinit(&s->text[i]);
    pattern_search_destroy(s->search);
    s->search = NULL;
}

typedef struct run {
    const pre_tokenizer *p;
    pre_scratch *s;
    pre_word_fn *fn;
    void *ctx;
    error *err;
} run;

typedef struct piece {
    size_t begin, end;
    bool match;
} piece;

/* One split in progress. */
typedef struct splitter {
    run *r;
    int step;
    const char *text;
    bool at_start, waits;
    piece waiting;
} splitter;

static status run_step(run *r, int at, const char *text, size_t n, bool at_start);

static status pass_on(splitter *s, piece q) {
    if (q.begin == q.end) return STATUS_OK;
    return run_step(s->r, s->step + 1, s->text + q.begin, q.end - q.begin, s->at_start && q.begin == 0);
}

static status flush(splitter *s) {
    if (!s->waits) return STATUS_OK;
    s->waits = false;
    return pass_on(s, s->waiting);
}

static void wait_with(splitter *s, piece q) {
    s->waiting = q;
    s->waits = true;
}

static status take_piece(splitter *s, pre_behavior behavior, piece q) {
    switch (behavior) {
    case PRE_REMOVED:
        return q.match ? STATUS_OK : pass_on(s, q);
    case PRE_ISOLATED:
        return pass_on(s, q);
    case PRE_CONTIGUOUS:
        if (s->waits && s->waiting.match == q.match) {
            s->waiting.end = q.end;
            return STATUS_OK;
        }
        TRY(flush(s));
        wait_with(s, q);
        return STATUS_OK;
    case PRE_MERGED_WITH_PREVIOUS:
        if (s->waits && q.match && !s->waiting.match) {
            s->waiting.end = q.end;
            s->waiting.match = true;
            return STATUS_OK;
        }
        TRY(flush(s));
        wait_with(s, q);
        return STATUS_OK;
    default: /* PRE_MERGED_WITH_NEXT */
        if (s->waits && s->waiting.match && !q.match) {
            s->waits = false;
            return pass_on(s, (piece){s->waiting.begin, q.end, false});
        }
        TRY(flush(s));
        wait_with(s, q);
        return STATUS_OK;
    }
}

static status run_split(run *r, int at, const char *text, size_t n, bool at_start) {
    const pre_step *step = &r->p->steps[at];
    splitter s = {.r = r, .step = at, .text = text, .at_start = at_start};
    pattern_walk walk;
    pattern_walk_init(&walk, step->p, r->s->search, text, n);
    size_t done = 0, begin = 0, end = 0;
    for (;;) {
        bool found;
        TRY(pattern_walk_next(&walk, &found, &begin, &end, r->err));
        if (!found) break;
        if (begin > done) TRY(take_piece(&s, step->behavior, (piece){done, begin, step->invert}));
        TRY(take_piece(&s, step->behavior, (piece){begin, end, !step->invert}));
        done = end;
    }
    if (done < n) TRY(take_piece(&s, step->behavior, (piece){done, n, step->invert}));
    return flush(&s);
}

/* Steps that write the piece anew. */
static status run_rewrite(run *r, int at, const char *text, size_t n, bool at_start) {
    const pre_step *step = &r->p->steps[at];
    textbuf *b = &r->s->text[at];
    textbuf_clear(b);
    switch (step->kind) {
    case PRE_PREFIX_FIRST:
    case PRE_PREFIX:
        if ((step->kind == PRE_PREFIX_FIRST && !at_start) || (n >= step->n_text && memcmp(text, step->text, step->n_text) == 0))
            return run_step(r, at + 1, text, n, at_start);
        textbuf_add(b, step->text, step->n_text);
        textbuf_add(b, text, n);
        break;
    case PRE_REPLACE_SPACE:
        for (size_t i = 0, from = 0; i <= n; i++) {
            if (i < n && text[i] != ' ') continue;
            if (i > from) textbuf_add(b, text + from, i - from);
            if (i < n) textbuf_add(b, step->text, step->n_text);
            from = i + 1;
        }
        break;
    default:
        for (size_t i = 0; i < n;) {
            char out[128];
            size_t take = n - i < sizeof out / 2 ? n - i : sizeof out / 2, n_out = 0;
            if (step->kind == PRE_SPELL) {
                n_out = byte_alphabet_spell(text + i, take, out);
            } else {
                while (i + take < n && ((unsigned char)text[i + take] & 0xc0) == 0x80) take--;
                if (!byte_alphabet_to_bytes(text + i, take, out, &n_out))
                    return error_set(r->err, STATUS_BUG, "tokenizer: a word is not spelled in the byte alphabet");
            }
            textbuf_add(b, out, n_out);
            i += take;
        }
        break;
    }
    if (b->failed) return error_set(r->err, STATUS_NO_MEMORY, "tokenizer: no memory for %zu bytes of text", n);
    return b->len == 0 ? STATUS_OK : run_step(r, at + 1, b->data, b->len, at_start);
}

static status run_step(run *r, int at, const char *text, size_t n, bool at_start) {
    if (at == r->p->n) return r->fn(r->ctx, text, n, r->err);
    if (r->p->steps[at].kind == PRE_SPLIT) return run_split(r, at, text, n, at_start);
    return run_rewrite(r, at, text, n, at_start);
}

status pre_tokenizer_run(const pre_tokenizer *p, pre_scratch *s, const char *text, size_t n, bool at_start, pre_word_fn *fn, void *ctx,
                         error *err) {
    if (n == 0) return STATUS_OK;
    run r = {.p = p, .s = s, .fn = fn, .ctx = ctx, .err = err};
    return run_step(&r, 0, text, n, at_start);
}
