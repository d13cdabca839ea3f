/* SPDX-License-Identifier: Apache-2.0 */
/** Decoding: pieces joined as bytes, then made text. The one-shot form is the streaming one, so that both always agree. */
#include <string.h>

#include "text/tokenizer_impl.h"
#include "text/utf8.h"

void detokenizer_init(detokenizer *d, const tokenizer *t, bool skip_special) { *d = (detokenizer){.t = t, .skip_special = skip_special}; }

static void add_bytes(detokenizer *d, const char *bytes, size_t n, textbuf *out) {
    utf8_pending p = {.n = d->n_pending};
    memcpy(p.bytes, d->pending, d->n_pending);
    utf8_lossy_add(&p, bytes, n, out);
    memcpy(d->pending, p.bytes, p.n);
    d->n_pending = p.n;
}

status detokenizer_add(detokenizer *d, int32_t id, textbuf *out) {
    if (id < 0 || id >= d->t->v.n) return STATUS_INVALID;
    if (d->skip_special && tokenizer_is_special(d->t, id)) return STATUS_OK;
    size_t n;
    const char *piece = tokenizer_piece(d->t, id, &n);
    d->started = true;
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
