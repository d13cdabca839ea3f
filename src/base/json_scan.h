/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Reads JSON without a tree, for the files where a tree costs more than the work: a tokenizer.json has a million texts, the header of a
 * mixture's safetensors names a hundred thousand tensors. Strict as RFC 8259: valid UTF-8, no lone surrogates, no control characters in texts, nothing behind the value, nesting up to JSON_SCAN_MAX_DEPTH. Owned
 * by one thread; the text outlives the scan.
 *
 * A value is taken by exactly one of: json_scan_object, json_scan_array, json_scan_text, json_scan_int, json_scan_skip.
 */
#ifndef HEADRACE_BASE_JSON_SCAN_H
#define HEADRACE_BASE_JSON_SCAN_H

#include <stdint.h>

#include "base/textbuf.h"

enum { JSON_SCAN_MAX_DEPTH = 64 };

typedef struct json_scan {
    const char *text;
    size_t n, at;
    int depth;
    const char *what; /* begins error texts */
    error *err;
} json_scan;

/** The whole text is checked to be UTF-8 here. */
NODISCARD status json_scan_init(json_scan *s, const char *text, size_t n, const char *what, error *err);
/** Nothing but white space is left. */
NODISCARD status json_scan_end(json_scan *s);

/** The first byte of the value that comes next: one of { [ " t f n - or a digit; 0 at the end of the text. */
char json_scan_peek(json_scan *s);

/** Enter; then call next until *more is false, and take the value after each true. */
NODISCARD status json_scan_object(json_scan *s);
/** *key: as json_scan_text gives it. first: true for the first call of this object. */
NODISCARD status json_scan_next_key(json_scan *s, bool first, textbuf *room, const char **key, size_t *n, bool *more);
NODISCARD status json_scan_array(json_scan *s);
NODISCARD status json_scan_next_item(json_scan *s, bool first, bool *more);

/** A text: points into the scanned text, or, when it has escapes, into room (cleared first), valid until room changes. */
NODISCARD status json_scan_text(json_scan *s, textbuf *room, const char **text, size_t *n);
NODISCARD status json_scan_int(json_scan *s, int64_t *out);
/** Any value; its bytes are text[*begin..*end). */
NODISCARD status json_scan_skip(json_scan *s, size_t *begin, size_t *end);

/** STATUS_FORMAT with the place. */
NODISCARD status json_scan_fail(const json_scan *s, const char *why);

#endif
