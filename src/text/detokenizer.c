/* SPDX-License-Identifier: Apache-2.0 */
/** Decoding: pieces joined as bytes, then made text. The one-shot form is the streaming one, so that both always agree. */
#include <string.h>

#include "text/tokenizer_impl.h"
#include "base/utf8.h"

void detokenizer_init(detokenizer *d, const tokenizer *t, bool skip_special) { *d = (detokenizer){.t = t, .skip_special = skip_special}; }

static void add_bytes(detokenizer *d, const char *bytes, size_t n, textbuf *out) {
    utf8_pending p = {.n = d->n_pending};
    memcpy(p.bytes, d->pending, d->n_pending);
    utf8_lossy_add(&p, bytes, n, out);
    memcpy(d->pending, p.bytes, p.n);
    d->n_pending = p.n;
}

/* The first token where some character is dropped from it: its key without that character. */
static void add_first_without(detokenizer *d, int32_t id, textbuf *out) {
    const decode_rule *rule = &d->t->decode;
    size_t n, n_drop = rule->n_drop_char, from = 0;
    const char *key = vocab_key(&d->t->v, id, &n);
    for (size_t i = 0; i + n_drop <= n;) {
        if (memcmp(key + i, rule->drop_char, n_drop) != 0) {
            i++;
            continue;
        }
        add_bytes(d, key + from, i - from, out);
        i += n_drop;
        from = i;
    }
    add_bytes(d, key + from, n - from, out);
}

static bool has_char(const char *text, size_t n, const char *c, size_t n_c) { return n_c > 0 && memmem(text, n, c, n_c) != NULL; }

status detokenizer_add(detokenizer *d, int32_t id, textbuf *out) {
    const decode_rule *rule = &d->t->decode;
    if (id < 0 || id >= d->t->v.n) return STATUS_INVALID;
    if (d->skip_special && tokenizer_is_special(d->t, id)) return STATUS_OK;
    size_t n, n_key;
    const char *piece = tokenizer_piece(d->t, id, &n), *key = vocab_key(&d->t->v, id, &n_key);
    bool first = !d->started;
    d->started = true;
    if (first) d->n_strip = rule->n_strip;
    if (!first && rule->spaces) add_bytes(d, " ", 1, out);
    if (first && has_char(key, n_key, rule->drop_char, rule->n_drop_char)) {
        add_first_without(d, id, out);
        return out->failed ? STATUS_NO_MEMORY : STATUS_OK;
    }
    while (d->n_strip > 0 && n >= rule->n_strip_char && memcmp(piece, rule->strip_char, rule->n_strip_char) == 0) {
        piece += rule->n_strip_char;
        n -= rule->n_strip_char;
        d->n_strip--;
    }
    if (n > 0) d->n_strip = 0;
    add_bytes(d, piece, n, out);
    return out->failed ? STATUS_NO_MEMORY : STATUS_OK;
}

void detokenizer_finish(detokenizer *d, textbuf *out) {
    utf8_pending p = {.n = d->n_pending};
    utf8_lossy_finish(&p, out);
    d->n_pending = 0;
}

status tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, bool skip_special, textbuf *out, error *err) {
    detokenizer d;
    detokenizer_init(&d, t, skip_special);
    for (size_t i = 0; i < n; i++) {
        status rc = detokenizer_add(&d, ids[i], out);
        if (rc == STATUS_INVALID) return error_set(err, rc, "tokenizer: id %d is not in 0..%d", ids[i], t->v.n - 1);
        if (rc != STATUS_OK) return error_set(err, rc, "tokenizer: no memory for %zu bytes of text", out->len);
    }
    detokenizer_finish(&d, out);
    return out->failed ? error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory for %zu bytes of text", out->len) : STATUS_OK;
}
