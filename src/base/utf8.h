/* SPDX-License-Identifier: Apache-2.0 */
/**
 * UTF-8 by the letter of the standard: no overlong forms, no surrogates, nothing above U+10FFFF. Bytes that are not UTF-8 are cut into
 * "maximal subparts" (Unicode, section 3.9), each of which becomes one U+FFFD: what Python's errors="replace" and Rust's from_utf8_lossy
 * do.
 */
#ifndef HEADRACE_BASE_UTF8_H
#define HEADRACE_BASE_UTF8_H

#include <stdint.h>

#include "base/textbuf.h"

enum { UTF8_MAX_BYTES = 4 };

/** Length of the code point at s (n >= 1 bytes), and the code point; 0 when the bytes are not UTF-8 or end within it. */
size_t utf8_decode(const char *s, size_t n, uint32_t *cp);

/** Write a code point (valid, not a surrogate); returns 1 to 4. */
size_t utf8_encode(uint32_t cp, char out[UTF8_MAX_BYTES]);

/** True when all of s is UTF-8; otherwise *bad_off is the offset of the first byte that does not start a code point. */
bool utf8_check(const char *s, size_t n, size_t *bad_off);

/** The bytes of an unfinished code point. Zero-initialise. */
typedef struct utf8_pending {
    char bytes[UTF8_MAX_BYTES];
    size_t n;
} utf8_pending;

/** Append the text of more bytes; an unfinished code point at the end waits in p. */
void utf8_lossy_add(utf8_pending *p, const char *s, size_t n, textbuf *out);
/** Append U+FFFD for what waits in p, if anything. */
void utf8_lossy_finish(utf8_pending *p, textbuf *out);

#endif
