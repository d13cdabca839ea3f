/* SPDX-License-Identifier: Apache-2.0 */
/**
 * PCRE2 behind the interface. Steps of one match are limited relative to the length of the text, so that a pattern that backtracks without
 * bound ends in an error; the compiled code falls back to the interpreter where its stack is too small.
 */
#include "text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

struct pattern_context {
    mem *m;
    mem_tag tag;
    pcre2_general_context *general;
    pcre2_compile_context *compile;
    uint64_t *steps; /* NULL: not counted */
};

struct pattern {
    mem *m;
    mem_tag tag;
    pcre2_code *code;
    size_t jit_bytes; /* charged: mapped by PCRE2, not allocated through mem */
};

struct pattern_search {
    mem *m;
    uint64_t *steps;
    size_t at; /* where the last counted step was */
    pcre2_match_data *data;
    pcre2_match_context *limits;
};

static void *context_alloc(PCRE2_SIZE n, void *user) {
    pattern_context *c = user;
    return mem_alloc(c->m, c->tag, n);
}

static void context_free(void *p, void *user) {
    pattern_context *c = user;
    mem_free(c->m, p);
}

status pattern_context_create(mem *m, mem_tag tag, pattern_context **out, error *err) {
    pattern_context *c = mem_calloc(m, tag, 1, sizeof *c);
    if (!c) return error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory for patterns");
    c->m = m;
    c->tag = tag;
    c->general = pcre2_general_context_create(context_alloc, context_free, c);
    c->compile = c->general ? pcre2_compile_context_create(c->general) : NULL;
    if (!c->compile) {
        pattern_context_destroy(c);
        return error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory for patterns");
    }
    pcre2_set_newline(c->compile, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(c->compile, 100);
    *out = c;
    return STATUS_OK;
}

void pattern_context_destroy(pattern_context *c) {
    if (!c) return;
    pcre2_compile_context_free(c->compile);
    pcre2_general_context_free(c->general);
    mem_free(c->m, c);
}

void pattern_context_count(pattern_context *c, uint64_t *steps) { c->steps = steps; }

static int count_step(pcre2_callout_block *b, void *user) {
    pattern_search *s = user;
    size_t at = b->current_position;
    *s->steps += 1 + (at > s->at ? at - s->at : s->at - at);
    s->at = at;
    return 0;
}

static void compile_jit(pattern *p) {
    if (pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) != 0) return;
    size_t bytes = 0;
    if (pcre2_pattern_info(p->code, PCRE2_INFO_JITSIZE, &bytes) != 0) return;
    if (mem_charge(p->m, p->tag, bytes) == STATUS_OK) p->jit_bytes = bytes;
}

status pattern_compile(const pattern_context *c, const char *source, size_t n, bool literal, pattern **out, error *err) {
    textbuf text;
    status rc = STATUS_OK;
    textbuf_init(&text, c->m, c->tag);
    pattern *p = mem_calloc(c->m, c->tag, 1, sizeof *p);
    if (!p) return error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory for a pattern");
    p->m = c->m;
    p->tag = c->tag;
    int shown = n < 120 ? (int)n : 120;
    if (literal)
        textbuf_add(&text, source, n);
    else
        TRY_GOTO(pattern_translate(source, n, &text, err));
    if (text.failed) {
        rc = error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory for a pattern");
        goto fail;
    }
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    if (literal) options = PCRE2_UTF | PCRE2_LITERAL;
    if (c->steps) options |= PCRE2_AUTO_CALLOUT;
    int code;
    PCRE2_SIZE off;
    p->code = pcre2_compile((PCRE2_SPTR)textbuf_text(&text), text.len, options, &code, &off, c->compile);
    if (!p->code) {
        char why[160];
        if (pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why) < 0) why[0] = '\0';
        rc = code == PCRE2_ERROR_NOMEMORY || code == PCRE2_ERROR_HEAP_FAILED
                 ? error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory for a pattern")
                 : error_set(err, STATUS_UNSUPPORTED, "tokenizer: pattern '%.*s': %s (at byte %zu of its translation)", shown, source, why,
                             (size_t)off);
        goto fail;
    }
    compile_jit(p);
    textbuf_deinit(&text);
    *out = p;
    return STATUS_OK;
fail:
    textbuf_deinit(&text);
    pattern_destroy(p);
    return rc;
}

void pattern_destroy(pattern *p) {
    if (!p) return;
    pcre2_code_free(p->code);
    if (p->jit_bytes > 0) mem_uncharge(p->m, p->tag, p->jit_bytes);
    mem_free(p->m, p);
}

status pattern_search_create(const pattern_context *c, pattern_search **out, error *err) {
    pattern_search *s = mem_calloc(c->m, c->tag, 1, sizeof *s);
    if (!s) return error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory to match patterns");
    s->m = c->m;
    s->data = pcre2_match_data_create(1, c->general);
    s->limits = pcre2_match_context_create(c->general);
    if (!s->data || !s->limits) {
        pattern_search_destroy(s);
        return error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory to match patterns");
    }
    pcre2_set_heap_limit(s->limits, 64 * 1024); /* KiB */
    s->steps = c->steps;
    if (s->steps) pcre2_set_callout(s->limits, count_step, s);
    *out = s;
    return STATUS_OK;
}

void pattern_search_destroy(pattern_search *s) {
    if (!s) return;
    pcre2_match_data_free(s->data);
    pcre2_match_context_free(s->limits);
    mem_free(s->m, s);
}

void pattern_walk_init(pattern_walk *w, const pattern *p, pattern_search *s, const char *text, size_t n) {
    *w = (pattern_walk){.p = p, .s = s, .text = text, .n = n};
}

static status match_once(pattern_walk *w, bool *found, size_t *begin, size_t *end, error *err) {
    PCRE2_SPTR text = (PCRE2_SPTR)w->text;
    w->s->at = w->at;
    pcre2_set_match_limit(w->s->limits, w->n < 1u << 20 ? 200000u + 16u * (uint32_t)w->n : 20000000u);
    int r = pcre2_match(w->p->code, text, w->n, w->at, PCRE2_NO_UTF_CHECK, w->s->data, w->s->limits);
    if (r == PCRE2_ERROR_JIT_STACKLIMIT)
        r = pcre2_match(w->p->code, text, w->n, w->at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, w->s->data, w->s->limits);
    *found = r >= 0;
    if (r >= 0) {
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(w->s->data);
        *begin = range[0];
        *end = range[1] < range[0] ? range[0] : range[1];
        return STATUS_OK;
    }
    if (r == PCRE2_ERROR_NOMATCH) return STATUS_OK;
    char why[160];
    if (pcre2_get_error_message(r, (PCRE2_UCHAR *)why, sizeof why) < 0) why[0] = '\0';
    return error_set(err, r == PCRE2_ERROR_NOMEMORY ? STATUS_NO_MEMORY : STATUS_FAILED,
                     "tokenizer: matching a pattern at byte %zu of %zu: %s", w->at, w->n, why);
}

status pattern_walk_next(pattern_walk *w, bool *found, size_t *begin, size_t *end, error *err) {
    while (w->at <= w->n) {
        TRY(match_once(w, found, begin, end, err));
        if (!*found) break;
        if (*begin < *end || !w->any || w->last_end != *end) {
            w->any = true;
            w->at = w->last_end = *end;
            return STATUS_OK;
        }
        /* Empty, where the last match ended: step over one code point. */
        if (w->at == w->n) break;
        do w->at++;
        while (w->at < w->n && ((unsigned char)w->text[w->at] & 0xc0) == 0x80);
    }
    *found = false;
    w->at = w->n + 1;
    return STATUS_OK;
}
