/* SPDX-License-Identifier: Apache-2.0 */
/** The 68 moved bytes are 0x00-0x20, 0x7f-0xa0 and 0xad; arithmetic instead of tables. */
#include "text/byte_alphabet.h"

#include <string.h>

#include "base/utf8.h"

uint32_t byte_alphabet_char(uint8_t b) {
    if (b <= 0x20) return 0x100u + b;
    if (b >= 0x7f && b <= 0xa0) return 0x121u + (b - 0x7fu);
    if (b == 0xad) return 0x143u;
    return b;
}

int byte_alphabet_byte(uint32_t cp) {
    if (cp >= 0x100 && cp <= 0x120) return (int)(cp - 0x100);
    if (cp >= 0x121 && cp <= 0x142) return (int)(cp - 0x121 + 0x7f);
    if (cp == 0x143) return 0xad;
    if (cp > 0xff || cp <= 0x20 || (cp >= 0x7f && cp <= 0xa0) || cp == 0xad) return -1;
    return (int)cp;
}

bool byte_alphabet_to_bytes(const char *s, size_t n, char *out, size_t *n_out) {
    size_t i = 0, o = 0;
    while (i < n) {
        uint32_t cp;
        size_t len = utf8_decode(s + i, n - i, &cp);
        if (len == 0) return false;
        int byte = byte_alphabet_byte(cp);
        if (byte < 0) return false;
        out[o++] = (char)byte;
        i += len;
    }
    *n_out = o;
    return true;
}

size_t byte_alphabet_spell(const char *bytes, size_t n, char *out) {
    size_t o = 0;
    for (size_t i = 0; i < n; i++) {
        char c[UTF8_MAX_BYTES];
        size_t len = utf8_encode(byte_alphabet_char((uint8_t)bytes[i]), c);
        for (size_t k = 0; k < len; k++) out[o++] = c[k];
    }
    return o;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int byte_token_value(const char *s, size_t n) {
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    int high = hex_digit(s[3]), low = hex_digit(s[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}
