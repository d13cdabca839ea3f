/* SPDX-License-Identifier: Apache-2.0 */
/** The sorted list is walked like a trie: the range of tokens that share the bytes read so far shrinks byte by byte. */
#include "text/added_tokens.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/utf8.h"

void added_set_init(added_set *s, mem *m) { *s = (added_set){.m = m}; }

void added_set_deinit(added_set *s) {
    if (s->m) mem_free(s->m, s->tokens);
    *s = (added_set){.m = s->m};
}

status added_set_add(added_set *s, const char *text, size_t n, int32_t id, uint32_t flags, error *err) {
    if (n == 0) return STATUS_OK;
    if (n > ADDED_MAX_BYTES)
        return error_set(err, STATUS_UNSUPPORTED, "tokenizer: added token %d has %zu bytes; at most %d are read", id, n, ADDED_MAX_BYTES);
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 64;
        added_token *tokens = s->tokens ? mem_realloc(s->m, MEM_TOKENIZER, s->tokens, cap * sizeof *tokens)
                                        : mem_alloc(s->m, MEM_TOKENIZER, cap * sizeof *tokens);
        if (!tokens) return error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory for %zu added tokens", cap);
        s->tokens = tokens;
        s->cap = cap;
    }
    s->tokens[s->n++] = (added_token){.text = text, .n = (uint32_t)n, .flags = flags, .id = id};
    s->first[(uint8_t)text[0] >> 5] |= 1u << ((uint8_t)text[0] & 31);
    return STATUS_OK;
}

static int compare(const void *a, const void *b) {
    const added_token *x = a, *y = b;
    int c = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);
    if (c != 0) return c;
    return (x->n > y->n) - (x->n < y->n);
}

status added_set_finish(added_set *s, error *err) {
    if (s->n > 1) qsort(s->tokens, s->n, sizeof *s->tokens, compare);
    for (size_t i = 1; i < s->n; i++)
        if (compare(&s->tokens[i - 1], &s->tokens[i]) == 0)
            return error_set(err, STATUS_FORMAT, "tokenizer: added tokens %d and %d have the same text", s->tokens[i - 1].id,
                             s->tokens[i].id);
    return STATUS_OK;
}

/* The longest token at text, or NULL. */
static const added_token *longest(const added_set *s, const char *text, size_t n) {
    size_t low = 0, high = s->n;
    const added_token *best = NULL;
    for (size_t depth = 0; low < high; depth++) {
        if (s->tokens[low].n == depth) {
            if (depth > 0) best = &s->tokens[low];
            low++;
        }
        if (depth == n || low == high) break;
        uint8_t c = (uint8_t)text[depth];
        size_t a = low, b = high; /* first with byte >= c */
        while (a < b) {
            size_t mid = a + (b - a) / 2;
            if ((uint8_t)s->tokens[mid].text[depth] < c)
                a = mid + 1;
            else
                b = mid;
        }
        low = a;
        b = high; /* first with byte > c */
        while (a < b) {
            size_t mid = a + (b - a) / 2;
            if ((uint8_t)s->tokens[mid].text[depth] <= c)
                a = mid + 1;
            else
                b = mid;
        }
        high = a;
    }
    return best;
}

/* White_Space of Unicode. */
static bool is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* \w as Unicode's regular expressions define it (UTS 18): alphabetic, marks, decimal digits, connectors, joiners. */
static bool is_word(uint32_t c) {
    if (c == 0x200c || c == 0x200d) return true;
    if ((c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189))
        return true;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return false;
    }
}

/* The code point that ends before `at` (> 0); *start is where it begins. */
static uint32_t code_point_before(const char *text, size_t at, size_t *start) {
    size_t i = at - 1;
    while (i > 0 && ((uint8_t)text[i] & 0xc0) == 0x80) i--;
    uint32_t cp = 0;
    if (utf8_decode(text + i, at - i, &cp) == 0) cp = 0;
    *start = i;
    return cp;
}

static bool stands_alone(const char *text, size_t n, size_t begin, size_t end) {
    size_t start;
    uint32_t cp;
    if (begin > 0 && is_word(code_point_before(text, begin, &start))) return false;
    return !(end < n && utf8_decode(text + end, n - end, &cp) > 0 && is_word(cp));
}

static size_t strip_left(const char *text, size_t from, size_t begin) {
    size_t start;
    while (begin > from && is_space(code_point_before(text, begin, &start))) begin = start;
    return begin;
}

static size_t strip_right(const char *text, size_t n, size_t end) {
    uint32_t cp;
    for (size_t len; end < n && (len = utf8_decode(text + end, n - end, &cp)) > 0 && is_space(cp);) end += len;
    return end;
}

status added_set_split(const added_set *s, const char *text, size_t n, bool parse_special, added_part_fn *fn, void *ctx, error *err) {
    size_t done = 0, at = 0; /* a token found in white space that the one before took along moves `done` back: so it does upstream */
    while (at < n) {
        uint8_t c = (uint8_t)text[at];
        const added_token *t = s->first[c >> 5] >> (c & 31) & 1 ? longest(s, text + at, n - at) : NULL;
        if (!t) {
            at++;
            continue;
        }
        size_t begin = at, end = at + t->n;
        at = end;
        if ((t->flags & ADDED_SPECIAL) && !parse_special) continue;
        if ((t->flags & ADDED_SINGLE_WORD) && !stands_alone(text, n, begin, end)) continue;
        if (t->flags & ADDED_LSTRIP) begin = strip_left(text, done, begin);
        if (t->flags & ADDED_RSTRIP) end = strip_right(text, n, end);
        if (begin > done) TRY(fn(ctx, -1, text + done, begin - done, err));
        TRY(fn(ctx, t->id, text + begin, end - begin, err));
        done = end;
    }
    return done < n ? fn(ctx, -1, text + done, n - done, err) : STATUS_OK;
}
