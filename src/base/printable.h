/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Text that is safe to show: names from files and requests end up in error and log lines, so whatever is not UTF-8 or would
 * drive a terminal is replaced, and a cut never splits a code point.
 */
#ifndef HEADRACE_BASE_PRINTABLE_H
#define HEADRACE_BASE_PRINTABLE_H

#include "base/status.h"

/** Replace each byte that is not part of well-formed UTF-8 (RFC 3629) and each C0, DEL or C1 control but '\n' and '\t' by '?'. */
void printable_clean(char *text);

/** How many of the first n bytes, which end in a NUL, are well-formed UTF-8 without a NUL: n when all are. */
size_t printable_utf8_prefix(const char *text, size_t n);

/** Format into out[size] (size >= 1), cut at a code point when too long, then printable_clean. The arguments may point into `out`. */
void printable_vformat(char *out, size_t size, const char *fmt, va_list args);

#endif
