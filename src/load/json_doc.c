/* SPDX-License-Identifier: Apache-2.0 */
/* One pass over the text for its bounds, then jansson. */
#include "load/json_doc.h"

#include <stdint.h>

#include "base/checked.h"

/*
 * Upper bounds of what jansson 2.14 takes from a 64-bit malloc: an empty array is 128 bytes with its first slots, an object 230 with its
 * buckets; a member costs 104 with its share of a grown table, a slot of a grown array 24, a text 80 and its bytes, a number 32. The first
 * value of a container has no separator. While a text is read, a buffer grows to twice its size. tests/unit/test_load_json_doc.c measures
 * it.
 */
enum { BYTES_PER_ARRAY = 224, BYTES_PER_OBJECT = 320, BYTES_PER_SEPARATOR = 112, BYTES_PER_TEXT_BYTE = 3, BYTES_ALWAYS = 4096 };

typedef struct scan {
    size_t n_arrays, n_objects, n_separators, depth, deepest;
} scan;

/* Brackets, commas and colons outside of texts. Broken JSON gives some count; the parser refuses it later. */
static scan scan_text(const char *text, size_t n) {
    scan s = {0};
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
            s.n_objects += c == '{';
            s.n_arrays += c == '[';
            if (++s.depth > s.deepest) s.deepest = s.depth;
            break;
        case '}':
        case ']':
            if (s.depth > 0) s.depth--;
            break;
        case ',':
        case ':':
            s.n_separators++;
            break;
        default:
            break;
        }
    }
    return s;
}

static bool add_product(size_t n, size_t bytes, size_t *sum) {
    size_t product;
    return checked_mul_size(n, bytes, &product) && checked_add_size(*sum, product, sum);
}

static bool tree_bytes(const scan *s, size_t n, size_t *out) {
    size_t sum = BYTES_ALWAYS;
    if (!add_product(s->n_arrays, BYTES_PER_ARRAY, &sum) || !add_product(s->n_objects, BYTES_PER_OBJECT, &sum) ||
        !add_product(s->n_separators, BYTES_PER_SEPARATOR, &sum) || !add_product(n, BYTES_PER_TEXT_BYTE, &sum))
        return false;
    *out = sum;
    return true;
}

status json_doc_parse(mem *m, mem_tag tag, const char *text, size_t n, const char *what, unsigned flags, json_doc *out, error *err) {
    scan s = scan_text(text, n);
    json_doc d = {.m = m, .tag = tag};
    json_error_t why;
    if (s.deepest > JSON_DOC_MAX_DEPTH)
        return error_set(err, STATUS_FORMAT, "json: %s: nested %zu deep; at most %d is allowed", what, s.deepest, JSON_DOC_MAX_DEPTH);
    if (!tree_bytes(&s, n, &d.charged_bytes) || mem_charge(m, tag, d.charged_bytes) != STATUS_OK)
        return error_set(err, STATUS_NO_MEMORY, "json: %s: no memory for the tree of %zu bytes of text", what, n);
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
