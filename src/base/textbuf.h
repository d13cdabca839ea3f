/* SPDX-License-Identifier: Apache-2.0 */
/** Growable text: reports, tables, decoded output. Owned by one thread. A failed append is remembered (`failed`) and checked once. */
#ifndef HEADRACE_BASE_TEXTBUF_H
#define HEADRACE_BASE_TEXTBUF_H

#include "base/alloc.h"

typedef struct textbuf {
    mem *m;
    mem_tag tag;
    char *data; /* NUL-terminated when len > 0; NULL before the first append */
    size_t len, cap;
    bool failed;
} textbuf;

void textbuf_init(textbuf *b, mem *m, mem_tag tag);
void textbuf_deinit(textbuf *b);
void textbuf_clear(textbuf *b);
void textbuf_add(textbuf *b, const char *bytes, size_t n);
void textbuf_adds(textbuf *b, const char *s);
void textbuf_addf(textbuf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
/** Borrowed, "" when empty. */
const char *textbuf_text(const textbuf *b);

#endif
