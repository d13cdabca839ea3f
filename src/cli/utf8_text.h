/* SPDX-License-Identifier: Apache-2.0 */
/** UTF-8 on its way in (refused with the offset) and on its way out (made valid for JSON, harmless for a terminal). */
#ifndef HEADRACE_CLI_UTF8_TEXT_H
#define HEADRACE_CLI_UTF8_TEXT_H

#include "base/textbuf.h"

/** Offset of the first byte that is not part of well-formed UTF-8 (RFC 3629); n when all is well. NUL is a character like others. */
size_t utf8_valid_bytes(const char *s, size_t n);
/** Append s with each offending byte replaced by U+FFFD. */
void utf8_add_valid(textbuf *out, const char *s, size_t n);
/** Append s with what could drive a terminal (C0 and C1 controls but newline, tab and carriage return; DEL; broken bytes) replaced by
 * U+FFFD. */
void utf8_add_for_terminal(textbuf *out, const char *s, size_t n);

#endif
