/* SPDX-License-Identifier: Apache-2.0 */
/** Recursive only in json_scan_skip, where the depth is bounded. */
#include "base/json_scan.h"

#include <string.h>

#include "base/utf8.h"

status json_scan_fail(const json_scan *s, const char *why) {
    return error_set(s->err, STATUS_FORMAT, "json: %s: %s at byte %zu", s->what, why, s->at);
}

status json_scan_init(json_scan *s, const char *text, size_t n, const char *what, error *err) {
    *s = (json_scan){.text = text, .n = n, .what = what, .err = err};
    if (!utf8_check(text, n, &s->at)) return json_scan_fail(s, "not valid UTF-8");
    s->at = 0;
    return STATUS_OK;
}

static void skip_space(json_scan *s) {
    while (s->at < s->n && (s->text[s->at] == ' ' || s->text[s->at] == '\n' || s->text[s->at] == '\t' || s->text[s->at] == '\r')) s->at++;
}

status json_scan_end(json_scan *s) {
    skip_space(s);
    return s->at == s->n ? STATUS_OK : json_scan_fail(s, "something behind the value");
}

char json_scan_peek(json_scan *s) {
    skip_space(s);
    return s->at < s->n ? s->text[s->at] : '\0';
}

static status enter(json_scan *s, char open) {
    if (json_scan_peek(s) != open) return json_scan_fail(s, open == '{' ? "expected an object" : "expected an array");
    if (s->depth == JSON_SCAN_MAX_DEPTH) return json_scan_fail(s, "nested too deep; at most 64 is allowed");
    s->depth++;
    s->at++;
    return STATUS_OK;
}

status json_scan_object(json_scan *s) { return enter(s, '{'); }
status json_scan_array(json_scan *s) { return enter(s, '['); }

/* Before an element: the end, or a comma where it belongs. */
static status separator(json_scan *s, bool first, char close, bool *more) {
    char c = json_scan_peek(s);
    *more = c != close;
    if (c == close) {
        s->at++;
        s->depth--;
        return STATUS_OK;
    }
    if (first) return STATUS_OK;
    if (c != ',') return json_scan_fail(s, "expected a comma");
    s->at++;
    return json_scan_peek(s) == close ? json_scan_fail(s, "a comma without a value") : STATUS_OK;
}

status json_scan_next_key(json_scan *s, bool first, textbuf *room, const char **key, size_t *n, bool *more) {
    TRY(separator(s, first, '}', more));
    if (!*more) return STATUS_OK;
    TRY(json_scan_text(s, room, key, n));
    if (json_scan_peek(s) != ':') return json_scan_fail(s, "expected a colon");
    s->at++;
    return STATUS_OK;
}

status json_scan_next_item(json_scan *s, bool first, bool *more) { return separator(s, first, ']', more); }

static bool hex4(const json_scan *s, size_t at, uint32_t *out) {
    if (s->n - at < 4) return false;
    *out = 0;
    for (size_t i = at; i < at + 4; i++) {
        char c = s->text[i];
        uint32_t digit;
        if (c >= '0' && c <= '9')
            digit = (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = (uint32_t)(c - 'a') + 10;
        else if (c >= 'A' && c <= 'F')
            digit = (uint32_t)(c - 'A') + 10;
        else
            return false;
        *out = *out << 4 | digit;
    }
    return true;
}

/* An escape at s->at (on the backslash). */
static status unescape(json_scan *s, textbuf *room) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = s->at + 1 < s->n ? s->text[s->at + 1] : '\0';
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        textbuf_add(room, to + (simple - from), 1);
        s->at += 2;
        return STATUS_OK;
    }
    uint32_t cp, low;
    if (c != 'u' || !hex4(s, s->at + 2, &cp)) return json_scan_fail(s, "an escape that is none");
    size_t len = 6;
    if (cp >= 0xd800 && cp < 0xe000) {
        if (cp >= 0xdc00 || s->n - s->at < 12 || s->text[s->at + 6] != '\\' || s->text[s->at + 7] != 'u' || !hex4(s, s->at + 8, &low) ||
            low < 0xdc00 || low > 0xdfff)
            return json_scan_fail(s, "half of a surrogate pair");
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
        len = 12;
    }
    char out[UTF8_MAX_BYTES];
    textbuf_add(room, out, utf8_encode(cp, out));
    s->at += len;
    return STATUS_OK;
}

/* The first byte from s->at on that ends a run of plain text. */
static size_t plain_end(const json_scan *s, size_t at) {
    while (at < s->n && s->text[at] != '"' && s->text[at] != '\\' && (unsigned char)s->text[at] >= 0x20) at++;
    return at;
}

status json_scan_text(json_scan *s, textbuf *room, const char **text, size_t *n) {
    if (json_scan_peek(s) != '"') return json_scan_fail(s, "expected a text");
    size_t begin = ++s->at;
    s->at = plain_end(s, begin);
    if (s->at < s->n && s->text[s->at] == '"') {
        *text = s->text + begin;
        *n = s->at - begin;
        s->at++;
        return STATUS_OK;
    }
    textbuf_clear(room);
    textbuf_add(room, s->text + begin, s->at - begin);
    while (s->at < s->n && s->text[s->at] != '"') {
        if (s->text[s->at] != '\\') return json_scan_fail(s, "a control character in a text");
        TRY(unescape(s, room));
        begin = s->at;
        s->at = plain_end(s, begin);
        textbuf_add(room, s->text + begin, s->at - begin);
    }
    if (s->at == s->n) return json_scan_fail(s, "a text without end");
    s->at++;
    if (room->failed) return error_set(s->err, STATUS_NO_MEMORY, "json: %s: no memory for a text", s->what);
    *text = textbuf_text(room);
    *n = room->len;
    return STATUS_OK;
}

static size_t digits(const json_scan *s, size_t at) {
    while (at < s->n && s->text[at] >= '0' && s->text[at] <= '9') at++;
    return at;
}

/* A number's end by the grammar; *whole: it has neither fraction nor exponent. */
static status number(json_scan *s, size_t *end, bool *whole) {
    size_t at = s->at + (s->text[s->at] == '-' ? 1u : 0u), from = at;
    at = digits(s, from);
    if (at == from || (at > from + 1 && s->text[from] == '0')) return json_scan_fail(s, "a number that is none");
    *whole = true;
    if (at < s->n && s->text[at] == '.') {
        from = ++at;
        at = digits(s, from);
        *whole = false;
        if (at == from) return json_scan_fail(s, "a number that is none");
    }
    if (at < s->n && (s->text[at] == 'e' || s->text[at] == 'E')) {
        at++;
        if (at < s->n && (s->text[at] == '+' || s->text[at] == '-')) at++;
        from = at;
        at = digits(s, from);
        *whole = false;
        if (at == from) return json_scan_fail(s, "a number that is none");
    }
    *end = at;
    return STATUS_OK;
}

status json_scan_int(json_scan *s, int64_t *out) {
    char c = json_scan_peek(s);
    size_t end = 0;
    bool whole = false;
    if (c != '-' && (c < '0' || c > '9')) return json_scan_fail(s, "expected a number");
    TRY(number(s, &end, &whole));
    if (!whole || end - s->at > 18) return json_scan_fail(s, "expected a whole number");
    int64_t v = 0;
    for (size_t i = s->at + (c == '-' ? 1u : 0u); i < end; i++) v = v * 10 + (s->text[i] - '0');
    *out = c == '-' ? -v : v;
    s->at = end;
    return STATUS_OK;
}

static status skip_text(json_scan *s) {
    for (s->at++; s->at < s->n; s->at++) {
        s->at = plain_end(s, s->at);
        if (s->at == s->n) break;
        if (s->text[s->at] == '"') {
            s->at++;
            return STATUS_OK;
        }
        if (s->text[s->at] != '\\') return json_scan_fail(s, "a control character in a text");
        s->at++;
    }
    return json_scan_fail(s, "a text without end");
}

static status skip_word(json_scan *s, const char *word) {
    size_t n = strlen(word);
    if (s->n - s->at < n || memcmp(s->text + s->at, word, n) != 0) return json_scan_fail(s, "expected a value");
    s->at += n;
    return STATUS_OK;
}

static status skip_value(json_scan *s) {
    char c = json_scan_peek(s);
    bool more = true, first = true, whole;
    size_t end = 0;
    switch (c) {
    case '{':
    case '[':
        TRY(enter(s, c));
        for (;; first = false) {
            TRY(separator(s, first, c == '{' ? '}' : ']', &more));
            if (!more) return STATUS_OK;
            if (c == '{') {
                if (json_scan_peek(s) != '"') return json_scan_fail(s, "expected a key");
                TRY(skip_text(s));
                if (json_scan_peek(s) != ':') return json_scan_fail(s, "expected a colon");
                s->at++;
            }
            TRY(skip_value(s));
        }
    case '"':
        return skip_text(s);
    case 't':
        return skip_word(s, "true");
    case 'f':
        return skip_word(s, "false");
    case 'n':
        return skip_word(s, "null");
    default:
        if (c != '-' && (c < '0' || c > '9')) return json_scan_fail(s, "expected a value");
        TRY(number(s, &end, &whole));
        s->at = end;
        return STATUS_OK;
    }
}

status json_scan_skip(json_scan *s, size_t *begin, size_t *end) {
    (void)json_scan_peek(s);
    *begin = s->at;
    TRY(skip_value(s));
    *end = s->at;
    return STATUS_OK;
}
