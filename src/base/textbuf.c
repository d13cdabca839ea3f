/* SPDX-License-Identifier: Apache-2.0 */
/* Growth doubles. After a failed append the text stays as it was and later appends are dropped, until textbuf_clear. */
#include "base/textbuf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"

void textbuf_init(textbuf *b, mem *m, mem_tag tag) { *b = (textbuf){.m = m, .tag = tag}; }

void textbuf_deinit(textbuf *b) {
    mem_free(b->m, b->data);
    *b = (textbuf){.m = b->m, .tag = b->tag};
}

void textbuf_clear(textbuf *b) {
    b->len = 0;
    b->failed = false;
    if (b->data) b->data[0] = 0;
}

/* Room for n more bytes and a NUL. */
static bool reserve(textbuf *b, size_t n) {
    if (b->failed) return false;
    size_t need;
    b->failed = true;
    if (!checked_add_size(b->len, n, &need) || !checked_add_size(need, 1, &need)) return false;
    if (need > b->cap) {
        size_t cap = b->cap > SIZE_MAX / 2 ? need : b->cap * 2;
        if (cap < need) cap = need;
        if (cap < 128) cap = 128;
        char *data = mem_realloc(b->m, b->tag, b->data, cap);
        if (!data) return false;
        b->data = data;
        b->cap = cap;
    }
    b->failed = false;
    return true;
}

void textbuf_add(textbuf *b, const char *bytes, size_t n) {
    if (!reserve(b, n)) return;
    if (n) memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = 0;
}

void textbuf_adds(textbuf *b, const char *s) { textbuf_add(b, s, strlen(s)); }

void textbuf_addf(textbuf *b, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0) {
        b->failed = true;
        return;
    }
    if (!reserve(b, (size_t)n)) return;
    va_start(args, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, args);
    va_end(args);
    b->len += (size_t)n;
}

const char *textbuf_text(const textbuf *b) { return b->data ? b->data : ""; }
