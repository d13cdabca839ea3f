/* SPDX-License-Identifier: Apache-2.0 */
/** The sorted list is walked like a trie: the range of tokens that share the bytes read so far shrinks byte by byte. */
#include "text/added_tokens.h"

#include <string.h>

#include "load/sort_index.h"
#include "text/code_point.h"
#include "base/utf8.h"

void added_set_init(added_set *s, mem *m) {
    *s = (added_set){.m = m};
    textbuf_init(&s->bytes, m, MEM_TOKENIZER);
}

void added_set_deinit(added_set *s) {
    if (!s->m) return;
    mem_free(s->m, s->tokens);
    textbuf_deinit(&s->bytes);
    added_set_init(s, s->m);
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
    size_t off = s->bytes.len;
    if (off > UINT32_MAX - ADDED_MAX_BYTES) return error_set(err, STATUS_UNSUPPORTED, "tokenizer: the added tokens are too long together");
    textbuf_add(&s->bytes, text, n);
    if (s->bytes.failed) return error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory for added token %d", id);
    s->tokens[s->n++] = (added_token){.off = (uint32_t)off, .n = (uint32_t)n, .flags = flags, .id = id};
    s->first[(uint8_t)text[0] >> 5] |= 1u << ((uint8_t)text[0] & 31);
    return STATUS_OK;
}

static int by_text(const void *ctx, uint32_t a, uint32_t b) {
    const added_set *s = ctx;
    const added_token *x = &s->tokens[a], *y = &s->tokens[b];
    return sort_index_bytes(added_text(s, x), x->n, added_text(s, y), y->n);
}

status added_set_finish(added_set *s, error *err) {
    if (s->n < 2) return STATUS_OK;
    uint32_t *order = mem_calloc(s->m, MEM_TOKENIZER, s->n, sizeof *order);
    added_token *sorted = mem_calloc(s->m, MEM_TOKENIZER, s->n, sizeof *sorted);
    status rc = STATUS_OK;
    if (!order || !sorted) TRY_GOTO(error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory for %zu added tokens", s->n));
    sort_index_fill(order, s->n, by_text, s);
    for (size_t i = 0; i < s->n; i++) {
        sorted[i] = s->tokens[order[i]];
        if (i > 0 && by_text(s, order[i - 1], order[i]) == 0)
            TRY_GOTO(error_set(err, STATUS_FORMAT, "tokenizer: added tokens %d and %d have the same text", s->tokens[order[i - 1]].id,
                               s->tokens[order[i]].id));
    }
    memcpy(s->tokens, sorted, s->n * sizeof *sorted);
fail:
    mem_free(s->m, order);
    mem_free(s->m, sorted);
    return rc;
}

int32_t added_set_find(const added_set *s, const char *text, size_t n, uint32_t with) {
    for (size_t i = 0; i < s->n; i++) {
        const added_token *t = &s->tokens[i];
        if ((t->flags & with) == with && t->n == n && memcmp(added_text(s, t), text, n) == 0) return t->id;
    }
    return -1;
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
            if ((uint8_t)added_text(s, &s->tokens[mid])[depth] < c)
                a = mid + 1;
            else
                b = mid;
        }
        low = a;
        b = high; /* first with byte > c */
        while (a < b) {
            size_t mid = a + (b - a) / 2;
            if ((uint8_t)added_text(s, &s->tokens[mid])[depth] <= c)
                a = mid + 1;
            else
                b = mid;
        }
        high = a;
    }
    return best;
}

static bool stands_alone(const char *text, size_t n, size_t begin, size_t end) {
    size_t start;
    uint32_t cp;
    if (begin > 0 && code_point_is_word(code_point_before(text, begin, &start))) return false;
    return !(end < n && utf8_decode(text + end, n - end, &cp) > 0 && code_point_is_word(cp));
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
        if (t->flags & ADDED_LSTRIP) begin = begin > done ? code_point_strip_space(text, done, begin) : done;
        if (t->flags & ADDED_RSTRIP) end = code_point_skip_space(text, n, end);
        if (begin > done) TRY(fn(ctx, -1, text + done, begin - done, err));
        if (begin < end) TRY(fn(ctx, t->id, text + begin, end - begin, err)); /* else a token before took it along whole */
        done = end;
    }
    return done < n ? fn(ctx, -1, text + done, n - done, err) : STATUS_OK;
}
