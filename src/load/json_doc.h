/* SPDX-License-Identifier: Apache-2.0 */
/**
 * JSON from files that may be hostile: a scan of the text bounds its depth and what its tree can cost before jansson builds it; the bound is charged to the
 * accountant for as long as the tree lives (jansson allocates outside of base/alloc). Strict: valid UTF-8, no repeated keys, nothing behind the value.
 */
#ifndef HEADRACE_LOAD_JSON_DOC_H
#define HEADRACE_LOAD_JSON_DOC_H

#include <jansson.h>

#include "base/alloc.h"

enum { JSON_DOC_MAX_DEPTH = 64 };
/* Integers that 64 bits do not hold make the parser read all numbers as reals instead of failing (model_max_length of tokenizer configurations). */
enum { JSON_DOC_BIG_INTEGERS = 1 };

typedef struct json_doc {
    json_t *root;
    mem *m;
    mem_tag tag;
    size_t charged_bytes;
} json_doc;

/** `what` (a path) begins the error text. STATUS_FORMAT, or STATUS_NO_MEMORY where the budget does not hold the tree. */
NODISCARD status json_doc_parse(mem *m, mem_tag tag, const char *text, size_t n, const char *what, unsigned flags, json_doc *out, error *err);
void json_doc_free(json_doc *d);

#endif
