/* SPDX-License-Identifier: Apache-2.0 */
/** Categories and case from utf8proc. */
#include "text/code_point.h"

#include <utf8proc.h>

#include "base/utf8.h"

bool code_point_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool code_point_is_stranger(uint32_t c) {
    static const struct {
        uint32_t first, last;
    } ranges[] = {
#define RANGE(first, last) {first, last},
#include "text/unicode_after_9.def"
#undef RANGE
    };
    size_t low = 0, high = sizeof ranges / sizeof ranges[0];
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (ranges[mid].last < c)
            low = mid + 1;
        else
            high = mid;
    }
    return low < sizeof ranges / sizeof ranges[0] && c >= ranges[low].first;
}

bool code_point_is_mark(uint32_t c) {
    if (code_point_is_stranger(c)) return false;
    if (c == 0x1cf2 || c == 0x1cf3) return true; /* became letters later */
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
}

bool code_point_is_word(uint32_t c) {
    if (c == 0x200c || c == 0x200d) return true;
    /* Letters in circles and squares are alphabetic symbols. */
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

uint32_t code_point_lower(uint32_t c) {
    static const struct {
        uint32_t first, last;
        int32_t step;
    } ranges[] = {
#define RANGE(first, last, set)
#define LOWER(first, last, step) {first, last, step},
#include "text/unicode_since_14.def"
#undef RANGE
#undef LOWER
    };
    uint32_t low = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
    for (size_t i = 0; low == c && i < sizeof ranges / sizeof ranges[0]; i++)
        if (c >= ranges[i].first && c <= ranges[i].last) return (uint32_t)((int32_t)c + ranges[i].step);
    return low;
}

uint32_t code_point_before(const char *text, size_t at, size_t *start) {
    size_t i = at - 1;
    while (i > 0 && ((uint8_t)text[i] & 0xc0) == 0x80) i--;
    uint32_t cp = 0;
    if (utf8_decode(text + i, at - i, &cp) == 0) cp = 0;
    *start = i;
    return cp;
}

size_t code_point_skip_space(const char *text, size_t n, size_t at) {
    uint32_t cp;
    for (size_t len; at < n && (len = utf8_decode(text + at, n - at, &cp)) > 0 && code_point_is_space(cp);) at += len;
    return at;
}

size_t code_point_strip_space(const char *text, size_t from, size_t end) {
    size_t start;
    while (end > from && code_point_is_space(code_point_before(text, end, &start))) end = start;
    return end;
}
