/* SPDX-License-Identifier: Apache-2.0 */
/* One pass over the text for its bounds, then jansson. */
#include "load/json_doc.h"

#include <stdint.h>

#include "base/checked.h"

/* Upper bounds of what jansson 2.14 allocates on a 64-bit system, with the allocator's own overhead. */
enum { BYTES_PER_CONTAINER = 384, BYTES_PER_VALUE = 160, BYTES_PER_TEXT_BYTE = 3 };

typedef struct scan {
    size_t n_containers, n_values, depth, deepest;
} scan;

/* Brackets, commas and colons outside of texts. Broken JSON gives some count; the parser refuses it later. */
static scan scan_text(const char *text, size_t n) {
    scan s = {.n_values = 1};
    bool in_text = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_text) {
            if (c == '\\')
                i++;
            else
                in_text = c != '"';
            continue;
        }
        switch (c) {
        case '"':
            in_text = true;
            break;
        case '{':
        case '[':
            s.n_containers++;
            if (++s.depth > s.deepest) s.deepest = s.depth;
            break;
        case '}':
        case ']':
            if (s.depth > 0) s.depth--;
            break;
        case ',':
        case ':':
            s.n_values++;
            break;
        default:
            break;
        }
    }
    return s;
}

static bool tree_bytes(const scan *s, size_t n, size_t *out) {
    size_t a, b, c;
    return checked_mul_size(s->n_containers, BYTES_PER_CONTAINER, &a) && checked_mul_size(s->n_values, BYTES_PER_VALUE, &b) &&
           checked_mul_size(n, BYTES_PER_TEXT_BYTE, &c) && checked_add_size(a, b, &a) && checked_add_size(a, c, out);
}

status json_doc_parse(mem *m, mem_tag tag, const char *text, size_t n, const char *what, unsigned flags, json_doc *out, error *err) {
    scan s = scan_text(text, n);
    json_doc d = {.m = m, .tag = tag};
    json_error_t why;
    if (s.deepest > JSON_DOC_MAX_DEPTH)
        return error_set(err, STATUS_FORMAT, "json: %s: nested %zu deep; at most %d is allowed", what, s.deepest, JSON_DOC_MAX_DEPTH);
    if (!tree_bytes(&s, n, &d.charged_bytes) || mem_charge(m, tag, d.charged_bytes) != STATUS_OK)
        return error_set(err, STATUS_NO_MEMORY, "json: %s: no memory for %zu values", what, s.n_values);
    d.root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (d.root == NULL && (flags & JSON_DOC_BIG_INTEGERS) != 0 && json_error_code(&why) == json_error_numeric_overflow)
        d.root = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &why);
    if (d.root == NULL) {
        mem_uncharge(m, tag, d.charged_bytes);
        bool memory = json_error_code(&why) == json_error_out_of_memory;
        return error_set(err, memory ? STATUS_NO_MEMORY : STATUS_FORMAT, "json: %s: line %d: %s", what, why.line, why.text);
    }
    *out = d;
    return STATUS_OK;
}

void json_doc_free(json_doc *d) {
    if (d->root == NULL) return;
    json_decref(d->root);
    mem_uncharge(d->m, d->tag, d->charged_bytes);
    *d = (json_doc){0};
}
