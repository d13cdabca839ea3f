/* SPDX-License-Identifier: Apache-2.0 */
/* Cleaning and cutting of text for people. Well-formed sequences are those of table 3-7 of the Unicode standard. */
#include "base/printable.h"

#include <stdio.h>
#include <string.h>

/* Bytes of the well-formed sequence at s (NUL-terminated), 0 when there is none. */
static size_t sequence_bytes(const unsigned char *s) {
    if (s[0] < 0x80) return 1;
    unsigned char lo = 0x80, hi = 0xBF;
    size_t n;
    if (s[0] >= 0xC2 && s[0] <= 0xDF) {
        n = 2;
    } else if (s[0] >= 0xE0 && s[0] <= 0xEF) {
        n = 3;
        if (s[0] == 0xE0) lo = 0xA0;
        if (s[0] == 0xED) hi = 0x9F;
    } else if (s[0] >= 0xF0 && s[0] <= 0xF4) {
        n = 4;
        if (s[0] == 0xF0) lo = 0x90;
        if (s[0] == 0xF4) hi = 0x8F;
    } else {
        return 0;
    }
    if (s[1] < lo || s[1] > hi) return 0;
    for (size_t i = 2; i < n; i++)
        if (s[i] < 0x80 || s[i] > 0xBF) return 0;
    return n;
}

size_t printable_utf8_prefix(const char *text, size_t n) {
    size_t i = 0;
    while (i < n && text[i]) {
        size_t len = sequence_bytes((const unsigned char *)text + i);
        if (len == 0) break;
        i += len;
    }
    return i;
}

void printable_clean(char *text) {
    unsigned char *s = (unsigned char *)text;
    while (*s) {
        size_t n = sequence_bytes(s);
        bool control = (*s < 0x20 && *s != '\n' && *s != '\t') || *s == 0x7F || (n == 2 && s[0] == 0xC2 && s[1] < 0xA0);
        if (n == 0 || control) {
            size_t bad = n ? n : 1;
            memset(s, '?', bad);
            s += bad;
        } else {
            s += n;
        }
    }
}

/* Drop a sequence that the end of the buffer cut in two; s[n] is where the cut was made. */
static void drop_cut_sequence(char *s, size_t n) {
    size_t start = n;
    while (start > 0 && n - start < 3 && ((unsigned char)s[start - 1] & 0xC0) == 0x80) start--;
    if (start == 0) return;
    unsigned char lead = (unsigned char)s[start - 1];
    size_t want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 1;
    if (want > n - (start - 1)) s[start - 1] = 0;
}

void printable_vformat(char *out, size_t size, const char *fmt, va_list args) {
    char text[ERROR_TEXT_BYTES];
    size_t room = size < sizeof text ? size : sizeof text;
    int n = vsnprintf(text, room, fmt, args);
    if (n < 0) {
        snprintf(text, room, "(text could not be formatted)");
    } else if ((size_t)n >= room) {
        drop_cut_sequence(text, room - 1);
    }
    printable_clean(text);
    memcpy(out, text, strlen(text) + 1);
}
