/* SPDX-License-Identifier: Apache-2.0 */
/** Unicode normal forms by utf8proc, on code points in our own memory. Text without a byte above 0x7f is in every normal form already. */
#include "text/normalizer.h"

#include <string.h>
#include <utf8proc.h>

#include "base/checked.h"
#include "text/byte_alphabet.h"
#include "text/code_point.h"
#include "base/utf8.h"

void normalizer_init(normalizer *z, mem *m, const pattern_context *context) {
    memset(z, 0, sizeof *z);
    z->m = m;
    z->context = context;
}

void normalizer_deinit(normalizer *z) {
    for (int i = 0; i < z->n; i++) {
        pattern_destroy(z->steps[i].p);
        mem_free(z->m, z->steps[i].text);
    }
    z->n = 0;
}

/* Takes the next step, with a copy of text. On failure the list is as before. */
static status new_step(normalizer *z, normalizer_kind kind, const char *text, size_t n, normalizer_step **out, error *err) {
    if (z->n == NORMALIZER_MAX_STEPS)
        return error_set(err, STATUS_UNSUPPORTED, "tokenizer: more than %d normalizer steps", NORMALIZER_MAX_STEPS);
    normalizer_step *step = &z->steps[z->n];
    *step = (normalizer_step){.kind = kind, .n_text = n};
    if (text) {
        step->text = mem_strndup(z->m, MEM_TOKENIZER, text, n);
        if (!step->text) return error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory for a normalizer");
    }
    z->n++;
    *out = step;
    return STATUS_OK;
}

status normalizer_add(normalizer *z, normalizer_kind kind, const char *text, size_t n, error *err) {
    normalizer_step *step;
    return new_step(z, kind, text, n, &step, err);
}

status normalizer_add_replace(normalizer *z, const char *source, size_t n, bool literal, const char *text, size_t n_text, error *err) {
    normalizer_step *step = NULL;
    TRY(new_step(z, NORMALIZER_REPLACE, text, n_text, &step, err));
    return pattern_compile(z->context, source, n, literal, &step->p, err);
}

void normalizer_scratch_init(normalizer_scratch *s, mem *m, pattern_search *search) {
    memset(s, 0, sizeof *s);
    textbuf_init(&s->text[0], m, MEM_TOKENIZER);
    textbuf_init(&s->text[1], m, MEM_TOKENIZER);
    s->search = search;
}

void normalizer_scratch_deinit(normalizer_scratch *s) {
    mem *m = s->text[0].m;
    if (!m) return;
    textbuf_deinit(&s->text[0]);
    textbuf_deinit(&s->text[1]);
    mem_free(m, s->code_points);
    s->code_points = NULL;
    s->cap = 0;
}

static bool all_ascii(const char *s, size_t n) {
    unsigned char any = 0;
    for (size_t i = 0; i < n; i++) any |= (unsigned char)s[i];
    return any < 0x80;
}

static status no_memory(size_t n, error *err) { return error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory to normalize %zu bytes", n); }

static void put(textbuf *out, uint32_t cp) {
    char c[UTF8_MAX_BYTES];
    textbuf_add(out, c, utf8_encode(cp, c));
}

static status known_normal_form(normalizer_scratch *s, normalizer_kind kind, const char *text, size_t n, textbuf *out, error *err) {
    utf8proc_option_t options = UTF8PROC_STABLE;
    options |= kind == NORMALIZER_NFC || kind == NORMALIZER_NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    if (kind == NORMALIZER_NFKC || kind == NORMALIZER_NFKD) options |= UTF8PROC_COMPAT;
    for (;;) {
        utf8proc_ssize_t want =
            utf8proc_decompose((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, s->code_points, (utf8proc_ssize_t)s->cap, options);
        if (want < 0) return error_set(err, STATUS_FAILED, "tokenizer: normalizing: %s", utf8proc_errmsg(want));
        if ((size_t)want > s->cap) {
            size_t bytes;
            mem_free(out->m, s->code_points);
            s->code_points = NULL;
            s->cap = 0;
            if (!checked_mul_size((size_t)want, sizeof *s->code_points, &bytes)) return no_memory(n, err);
            s->code_points = mem_alloc(out->m, out->tag, bytes);
            if (!s->code_points) return no_memory(n, err);
            s->cap = (size_t)want;
            continue;
        }
        utf8proc_ssize_t len = utf8proc_normalize_utf32(s->code_points, want, options);
        if (len < 0) return error_set(err, STATUS_FAILED, "tokenizer: normalizing: %s", utf8proc_errmsg(len));
        for (utf8proc_ssize_t i = 0; i < len; i++) put(out, (uint32_t)s->code_points[i]);
        return STATUS_OK;
    }
}

/* The published normal forms know Unicode 9. Younger code points neither decompose nor combine there: text is normalized between them. */
static status normal_form(normalizer_scratch *s, normalizer_kind kind, const char *text, size_t n, textbuf *out, error *err) {
    size_t done = 0;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp = 0;
        len = 1;
        if ((unsigned char)text[i] < 0x80) continue;
        len = utf8_decode(text + i, n - i, &cp);
        if (len == 0) len = 1;
        if (!code_point_is_stranger(cp)) continue;
        if (i > done) TRY(known_normal_form(s, kind, text + done, i - done, out, err));
        textbuf_add(out, text + i, len);
        done = i + len;
    }
    return n > done ? known_normal_form(s, kind, text + done, n - done, out, err) : STATUS_OK;
}

static status replace(const normalizer_step *step, normalizer_scratch *s, const char *text, size_t n, textbuf *out, error *err) {
    pattern_walk walk;
    size_t done = 0, begin = 0, end = 0;
    pattern_walk_init(&walk, step->p, s->search, text, n);
    for (;;) {
        bool found = false;
        TRY(pattern_walk_next(&walk, &found, &begin, &end, err));
        if (!found) break;
        textbuf_add(out, text + done, begin - done);
        textbuf_add(out, step->text, step->n_text);
        done = end;
    }
    textbuf_add(out, text + done, n - done);
    return STATUS_OK;
}

/* The rules of "nmt": 0 = goes, else what the code point becomes. */
static uint32_t nmt(uint32_t c) {
    if ((c >= 1 && c <= 8) || c == 0x0b || (c >= 0x0e && c <= 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f) return 0;
    if (c == 9 || c == 10 || c == 12 || c == 13 || c == 0x1680 || (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 ||
        c == 0x2581 || c == 0xfeff || c == 0xfffd)
        return ' ';
    return c;
}

/* Steps that look at one code point at a time. */
static void map_code_points(normalizer_kind kind, const char *text, size_t n, textbuf *out) {
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        size_t len = utf8_decode(text + i, n - i, &cp);
        if (len == 0) len = 1;
        i += len;
        if (kind == NORMALIZER_LOWERCASE) {
            if (cp == 0x130) { /* the one letter whose lower case is two code points */
                put(out, 'i');
                put(out, 0x307);
            } else {
                put(out, code_point_lower(cp));
            }
        } else if (kind == NORMALIZER_STRIP_ACCENTS) {
            if (!code_point_is_mark(cp)) put(out, cp);
        } else if (cp == 0 || nmt(cp) != 0) {
            put(out, cp == 0 ? 0 : nmt(cp));
        }
    }
}

static void spell(const char *text, size_t n, textbuf *out) {
    for (size_t i = 0; i < n;) {
        char spelled[128];
        size_t take = n - i < 64 ? n - i : 64;
        textbuf_add(out, spelled, byte_alphabet_spell(text + i, take, spelled));
        i += take;
    }
}

static status run_step(const normalizer_step *step, normalizer_scratch *s, textbuf *out, const char **text, size_t *n, error *err) {
    size_t end;
    switch (step->kind) {
    case NORMALIZER_NFC:
    case NORMALIZER_NFD:
    case NORMALIZER_NFKC:
    case NORMALIZER_NFKD:
        if (all_ascii(*text, *n)) return STATUS_OK;
        TRY(normal_form(s, step->kind, *text, *n, out, err));
        break;
    case NORMALIZER_REPLACE:
        TRY(replace(step, s, *text, *n, out, err));
        break;
    case NORMALIZER_PREPEND:
        textbuf_add(out, step->text, step->n_text);
        textbuf_add(out, *text, *n);
        break;
    case NORMALIZER_STRIP_LEFT:
        end = code_point_skip_space(*text, *n, 0);
        *text += end;
        *n -= end;
        return STATUS_OK;
    case NORMALIZER_STRIP_RIGHT:
        *n = code_point_strip_space(*text, 0, *n);
        return STATUS_OK;
    case NORMALIZER_SPELL:
        spell(*text, *n, out);
        break;
    default:
        map_code_points(step->kind, *text, *n, out);
        break;
    }
    if (out->failed) return no_memory(*n, err);
    *text = textbuf_text(out);
    *n = out->len;
    return STATUS_OK;
}

status normalizer_run(const normalizer *z, normalizer_scratch *s, const char *text, size_t n, const char **out, size_t *n_out, error *err) {
    int which = 0;
    for (int i = 0; i < z->n && n > 0; i++) {
        textbuf *b = &s->text[which];
        textbuf_clear(b);
        TRY(run_step(&z->steps[i], s, b, &text, &n, err));
        if (text == textbuf_text(b)) which ^= 1; /* the step wrote; the next one reads from here */
    }
    *out = text;
    *n_out = n;
    return STATUS_OK;
}
