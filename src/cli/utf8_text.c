/* SPDX-License-Identifier: Apache-2.0 */
/* Well-formed sequences are those of table 3-7 of the Unicode standard: no overlong forms, no surrogates, nothing above U+10FFFF. */
#include "cli/utf8_text.h"

#include <stdint.h>

#define REPLACEMENT "\xEF\xBF\xBD"

/* Bytes of the well-formed sequence at s, of which n >= 1 bytes are there; 0 when there is none. */
static size_t sequence_bytes(const uint8_t *s, size_t n) {
    uint8_t b = s[0], lo = 0x80, hi = 0xBF;
    if (b < 0x80) return 1;
    size_t need = b >= 0xC2 && b <= 0xDF ? 2 : b >= 0xE0 && b <= 0xEF ? 3 : b >= 0xF0 && b <= 0xF4 ? 4 : 0;
    if (need == 0 || need > n) return 0;
    if (b == 0xE0) lo = 0xA0; /* the shortest form starts here */
    if (b == 0xF0) lo = 0x90;
    if (b == 0xED) hi = 0x9F; /* surrogates start here */
    if (b == 0xF4) hi = 0x8F; /* U+10FFFF ends here */
    if (s[1] < lo || s[1] > hi) return 0;
    for (size_t i = 2; i < need; i++)
        if (s[i] < 0x80 || s[i] > 0xBF) return 0;
    return need;
}

size_t utf8_valid_bytes(const char *s, size_t n) {
    size_t i = 0;
    while (i < n) {
        size_t step = sequence_bytes((const uint8_t *)s + i, n - i);
        if (step == 0) return i;
        i += step;
    }
    return n;
}

static bool drives_terminal(const uint8_t *s, size_t n) {
    if (n == 1) return (s[0] < 0x20 && s[0] != '\n' && s[0] != '\t' && s[0] != '\r') || s[0] == 0x7F;
    return n == 2 && s[0] == 0xC2 && s[1] < 0xA0;
}

static void add_clean(textbuf *out, const char *s, size_t n, bool for_terminal) {
    size_t i = 0, kept = 0; /* kept: start of what is still to be copied */
    while (i < n) {
        size_t step = sequence_bytes((const uint8_t *)s + i, n - i);
        if (step && !(for_terminal && drives_terminal((const uint8_t *)s + i, step))) {
            i += step;
            continue;
        }
        textbuf_add(out, s + kept, i - kept);
        textbuf_adds(out, REPLACEMENT);
        i += step ? step : 1;
        kept = i;
    }
    if (n > kept) textbuf_add(out, s + kept, n - kept);
}

void utf8_add_valid(textbuf *out, const char *s, size_t n) { add_clean(out, s, n, false); }
void utf8_add_for_terminal(textbuf *out, const char *s, size_t n) { add_clean(out, s, n, true); }
