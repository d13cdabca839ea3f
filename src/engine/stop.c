/* SPDX-License-Identifier: Apache-2.0 */
/* What is held is never longer than the longest string less one byte, so the search stays short. */
#include "engine/stop.h"

#include <string.h>

static size_t longest(const stop_filter *f) {
    size_t n = 0;
    for (int32_t i = 0; i < f->n_strings; i++) n = f->strings[i].n > n ? f->strings[i].n : n;
    return n;
}

status stop_filter_init(stop_filter *f, mem *m, const stop_string *strings, int32_t n_strings, size_t reserve_bytes) {
    *f = (stop_filter){.strings = strings, .n_strings = n_strings};
    textbuf_init(&f->held, m, MEM_REQUEST);
    if (n_strings == 0) return STATUS_OK;
    for (size_t n = 0; n < longest(f) + reserve_bytes; n += 64) textbuf_add(&f->held, "                                                                ", 64);
    const bool failed = f->held.failed;
    textbuf_clear(&f->held);
    return failed ? STATUS_NO_MEMORY : STATUS_OK;
}

void stop_filter_deinit(stop_filter *f) {
    if (f->held.m != NULL) textbuf_deinit(&f->held);
}

/* Where the first complete string begins: of those that end first, the one that begins first; SIZE_MAX: none. */
static size_t find_stop(const stop_filter *f) {
    size_t first_end = SIZE_MAX, begin = SIZE_MAX;
    for (int32_t i = 0; i < f->n_strings; i++) {
        const stop_string *s = &f->strings[i];
        const char *at = f->held.len >= s->n ? memmem(f->held.data, f->held.len, s->text, s->n) : NULL;
        if (at == NULL) continue;
        const size_t from = (size_t)(at - f->held.data), to = from + s->n;
        if (to > first_end || (to == first_end && from > begin)) continue;
        first_end = to;
        begin = from;
    }
    return begin;
}

/* Length of the longest end of the held text that begins a string. */
static size_t undecided(const stop_filter *f) {
    const size_t n = f->held.len, most = longest(f) - 1;
    for (size_t k = n < most ? n : most; k > 0; k--) {
        for (int32_t i = 0; i < f->n_strings; i++) {
            if (f->strings[i].n > k && memcmp(f->held.data + n - k, f->strings[i].text, k) == 0) return k;
        }
    }
    return 0;
}

void stop_filter_add(stop_filter *f, const char *piece, size_t n, bool armed, textbuf *out) {
    if (f->stopped) return;
    if (f->n_strings == 0 || !armed) {
        textbuf_add(out, piece, n);
        return;
    }
    textbuf_add(&f->held, piece, n);
    if (f->held.failed) {
        out->failed = true;
        return;
    }
    if (f->held.len == 0) return;
    const size_t at = find_stop(f);
    if (at != SIZE_MAX) {
        textbuf_add(out, f->held.data, at);
        textbuf_clear(&f->held);
        f->stopped = true;
        return;
    }
    const size_t keep = undecided(f), go = f->held.len - keep;
    textbuf_add(out, f->held.data, go);
    memmove(f->held.data, f->held.data + go, keep);
    f->held.len = keep;
    f->held.data[keep] = '\0';
}

void stop_filter_finish(stop_filter *f, textbuf *out) {
    if (f->n_strings > 0 && !f->stopped) textbuf_add(out, textbuf_text(&f->held), f->held.len);
    if (f->held.m != NULL) textbuf_clear(&f->held);
}
