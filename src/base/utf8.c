/* SPDX-License-Identifier: Apache-2.0 */
/** UTF-8 decoding, checking and lossy streaming. */
#include "base/utf8.h"

#include <string.h>

/* Length that a lead byte announces (0: not a lead byte) and the range of the byte after it. */
static size_t lead_length(uint8_t b, uint8_t *low, uint8_t *high) {
    *low = 0x80;
    *high = 0xbf;
    if (b < 0x80) return 1;
    if (b < 0xc2) return 0;
    if (b < 0xe0) return 2;
    if (b < 0xf0) {
        if (b == 0xe0) *low = 0xa0;
        if (b == 0xed) *high = 0x9f;
        return 3;
    }
    if (b > 0xf4) return 0;
    if (b == 0xf0) *low = 0x90;
    if (b == 0xf4) *high = 0x8f;
    return 4;
}

/* How many of the n >= 1 bytes at s belong to one code point or to one maximal subpart; *whole says which; *open: more bytes could complete
 * it. */
static size_t sequence_length(const char *s, size_t n, bool *whole, bool *open) {
    uint8_t low, high;
    size_t want = lead_length((uint8_t)s[0], &low, &high);
    *whole = *open = false;
    if (want == 0) return 1;
    size_t have = 1;
    while (have < want && have < n) {
        uint8_t b = (uint8_t)s[have];
        if (b < low || b > high) return have;
        low = 0x80;
        high = 0xbf;
        have++;
    }
    *whole = have == want;
    *open = !*whole;
    return have;
}

size_t utf8_decode(const char *s, size_t n, uint32_t *cp) {
    if (n == 0) return 0;
    bool whole, open;
    size_t len = sequence_length(s, n, &whole, &open);
    if (!whole) return 0;
    const uint8_t *b = (const uint8_t *)s;
    switch (len) {
    case 1:
        *cp = b[0];
        break;
    case 2:
        *cp = (b[0] & 0x1fu) << 6 | (b[1] & 0x3fu);
        break;
    case 3:
        *cp = (b[0] & 0x0fu) << 12 | (b[1] & 0x3fu) << 6 | (b[2] & 0x3fu);
        break;
    default:
        *cp = (b[0] & 0x07u) << 18 | (b[1] & 0x3fu) << 12 | (b[2] & 0x3fu) << 6 | (b[3] & 0x3fu);
        break;
    }
    return len;
}

size_t utf8_encode(uint32_t cp, char out[UTF8_MAX_BYTES]) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

bool utf8_check(const char *s, size_t n, size_t *bad_off) {
    size_t i = 0;
    while (i < n) {
        if ((uint8_t)s[i] < 0x80) {
            i++;
            continue;
        }
        bool whole, open;
        size_t len = sequence_length(s + i, n - i, &whole, &open);
        if (!whole) {
            if (bad_off) *bad_off = i;
            return false;
        }
        i += len;
    }
    return true;
}

static const char replacement[] = "\xef\xbf\xbd";

/* Text of s[0..n) into out; returns how many bytes at the end are an unfinished code point. */
static size_t lossy_run(const char *s, size_t n, textbuf *out) {
    size_t i = 0, good = 0; /* s[good..i) is valid and not yet written */
    while (i < n) {
        bool whole, open;
        size_t len = sequence_length(s + i, n - i, &whole, &open);
        if (whole) {
            i += len;
            continue;
        }
        if (i > good) textbuf_add(out, s + good, i - good);
        if (open) return n - i;
        textbuf_add(out, replacement, sizeof replacement - 1);
        i += len;
        good = i;
    }
    if (i > good) textbuf_add(out, s + good, i - good);
    return 0;
}

void utf8_lossy_add(utf8_pending *p, const char *s, size_t n, textbuf *out) {
    size_t used = 0;
    while (p->n > 0 && used < n) {
        /* One byte more at a time until what waits is whole or broken. */
        bool whole, open;
        p->bytes[p->n] = s[used];
        size_t len = sequence_length(p->bytes, p->n + 1, &whole, &open);
        if (whole) {
            textbuf_add(out, p->bytes, len);
            p->n = 0;
            used++;
        } else if (open) {
            p->n++;
            used++;
        } else { /* len == p->n: the new byte does not belong to it */
            textbuf_add(out, replacement, sizeof replacement - 1);
            p->n = 0;
        }
    }
    if (used == n) return;
    size_t rest = lossy_run(s + used, n - used, out);
    memcpy(p->bytes, s + n - rest, rest);
    p->n = rest;
}

void utf8_lossy_finish(utf8_pending *p, textbuf *out) {
    if (p->n > 0) textbuf_add(out, replacement, sizeof replacement - 1);
    p->n = 0;
}
