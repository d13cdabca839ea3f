/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in settings and requests. Counts and bytes are exact integer arithmetic; nothing here depends on the locale. */
#include "base/config.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static const char *skip_digits(const char *s) {
    while (is_digit(*s)) s++;
    return s;
}

/* The unit after a number: 1 for the end of the text, 0 for anything that is no unit. */
static uint64_t unit_of(const char *s, const char *units) {
    if (*s == 0) return 1;
    const char *at = strchr(units, *s);
    if (!at || s[1] != 0) return 0;
    uint64_t unit = 1, base = *s >= 'a' ? 1000 : 1024;
    for (const char *p = units; p <= at; p += 2) unit *= base;
    return unit;
}

/* floor(0.DIGITS * unit), from the last digit on: each step divides what is exact so far by ten, and floors nest. */
static uint64_t fraction_of(const char *digits, const char *end, uint64_t unit, bool *exact) {
    uint64_t sum = 0;
    *exact = true;
    for (const char *p = end; p > digits; p--) {
        sum += (uint64_t)(p[-1] - '0') * unit;
        if (sum % 10) *exact = false;
        sum /= 10;
    }
    return sum;
}

/* DIGITS[.DIGITS][unit] */
static bool parse_unsigned(const char *s, const char *units, bool decimals_of_1024, bool must_be_exact, uint64_t *out) {
    const char *whole_end = skip_digits(s), *end = whole_end;
    if (whole_end == s) return false;
    if (*end == '.') {
        end = skip_digits(end + 1);
        if (end == whole_end + 1) return false;
    }
    bool has_fraction = end != whole_end;
    uint64_t unit = unit_of(end, units), value = 0;
    if (unit == 0 || (has_fraction && (unit == 1 || (!decimals_of_1024 && *end < 'a')))) return false;
    for (const char *p = s; p < whole_end; p++)
        if (!checked_mul_u64(value, 10, &value) || !checked_add_u64(value, (uint64_t)(*p - '0'), &value)) return false;
    if (!checked_mul_u64(value, unit, &value)) return false;
    if (has_fraction) {
        bool exact;
        uint64_t fraction = fraction_of(whole_end + 1, end, unit, &exact);
        if ((must_be_exact && !exact) || !checked_add_u64(value, fraction, &value)) return false;
    }
    *out = value;
    return true;
}

bool config_parse_count(const char *text, int64_t *out) {
    bool negative = *text == '-';
    uint64_t v;
    int64_t value;
    /* Units in pairs: one power for each. */
    if (!parse_unsigned(text + negative, "kKmMgG", false, true, &v) || !checked_u64_to_i64(v, &value)) return false;
    *out = negative ? -value : value;
    return true;
}

bool config_parse_bytes(const char *text, uint64_t *out) { return parse_unsigned(text, "kKmMgGtT", true, false, out); }

bool config_parse_real(const char *text, double *out) {
    const char *s = text + (*text == '-');
    const char *end = skip_digits(s);
    if (end == s) return false;
    if (*end == '.') {
        const char *fraction = end + 1;
        end = skip_digits(fraction);
        if (end == fraction) return false;
    }
    if (*end == 'e' || *end == 'E') {
        const char *exponent = end + 1;
        if (*exponent == '-' || *exponent == '+') exponent++;
        end = skip_digits(exponent);
        if (end == exponent) return false;
    }
    if (*end != 0) return false;
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain) return false;
    double value = strtod_l(text, NULL, plain);
    freelocale(plain);
    if (!isfinite(value)) return false;
    *out = value;
    return true;
}
