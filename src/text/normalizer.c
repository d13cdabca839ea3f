/* SPDX-License-Identifier: Apache-2.0 */
/** Unicode normal forms by utf8proc, on code points in our own memory. Text without a byte above 0x7f is in every normal form already. */
#include "text/normalizer.h"

#include <string.h>
#include <utf8proc.h>

#include "base/checked.h"
#include "text/utf8.h"

void normalizer_init(normalizer *z, mem *m) {
    memset(z, 0, sizeof *z);
    z->m = m;
}

void normalizer_deinit(normalizer *z) { z->n = 0; }

status normalizer_add(normalizer *z, normalizer_kind kind, error *err) {
    if (z->n == NORMALIZER_MAX_STEPS)
        return error_set(err, STATUS_UNSUPPORTED, "tokenizer: more than %d normalizer steps", NORMALIZER_MAX_STEPS);
    z->steps[z->n++] = (normalizer_step){.kind = kind};
    return STATUS_OK;
}

void normalizer_scratch_init(normalizer_scratch *s, mem *m) {
    memset(s, 0, sizeof *s);
    textbuf_init(&s->text[0], m, MEM_TOKENIZER);
    textbuf_init(&s->text[1], m, MEM_TOKENIZER);
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

static status normal_form(normalizer_scratch *s, normalizer_kind kind, const char *text, size_t n, textbuf *out, error *err) {
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
        for (utf8proc_ssize_t i = 0; i < len; i++) {
            char c[UTF8_MAX_BYTES];
            textbuf_add(out, c, utf8_encode((uint32_t)s->code_points[i], c));
        }
        return STATUS_OK;
    }
}

status normalizer_run(const normalizer *z, normalizer_scratch *s, const char *text, size_t n, const char **out, size_t *n_out, error *err) {
    for (int i = 0; i < z->n; i++) {
        if (n == 0 || all_ascii(text, n)) continue;
        textbuf *b = &s->text[i & 1];
        textbuf_clear(b);
        TRY(normal_form(s, z->steps[i].kind, text, n, b, err));
        if (b->failed) return no_memory(n, err);
        text = textbuf_text(b);
        n = b->len;
    }
    *out = text;
    *n_out = n;
    return STATUS_OK;
}
