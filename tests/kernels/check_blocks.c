/* SPDX-License-Identifier: Apache-2.0 */
/* One element at a time, by arithmetic in place of the shifts of the code under test. */
#include "check_blocks.h"

#include <math.h>
#include <string.h>

#include "check_case.h"

static const double iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const double e2m1[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6};

bool is_gguf_block(vt_dtype t) {
    static const vt_dtype types[] = {VT_Q5_0, VT_Q5_1, VT_Q2_K, VT_Q3_K, VT_Q4_K, VT_Q5_K, VT_IQ4_NL, VT_IQ4_XS, VT_MXFP4};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i] == t) return true;
    return false;
}

static double half_at(const uint8_t *p) { return decode_f16((uint16_t)(p[0] + 256 * p[1])); }
static int nibble(int byte, int which) { return which ? byte / 16 : byte % 16; }
static int pair(int byte, int which) { return byte / (1 << (2 * which)) % 4; }
static int bit(int byte, int which) { return byte / (1 << which) % 2; }
static int nibble_of_32(const uint8_t *q, int i) { return nibble(q[i % 16], i / 16); }

/* d * scale, q and dmin * min of element e. */
typedef struct element {
    double scale, q, less;
} element;

static element k4_element(vt_dtype t, const uint8_t *p, int e) {
    const uint8_t *s = p + 4, *q = p + (t == VT_Q5_K ? 48 : 16);
    int g = e / 32, l = e % 32, j = g % 4;
    int scale = g < 4 ? s[j] % 64 : s[8 + j] % 16 + s[j] / 64 * 16;
    int min = g < 4 ? s[4 + j] % 64 : s[8 + j] / 16 + s[4 + j] / 64 * 16;
    int value = nibble(q[g / 2 * 32 + l], g % 2) + (t == VT_Q5_K ? 16 * bit(p[16 + l], g) : 0);
    return (element){half_at(p) * scale, value, half_at(p + 2) * min};
}

static element q3_element(const uint8_t *p, int e) {
    const uint8_t *q = p + 32, *s = p + 96;
    int g = e / 32, l = e % 32, i = e / 16;
    int scale = nibble(s[i % 8], i / 8) + 16 * pair(s[8 + i % 4], i / 4);
    return (element){half_at(p + 108) * (scale - 32), pair(q[e / 128 * 32 + l], g % 4) - (bit(p[l], g) ? 0 : 4), 0};
}

static element element_of(vt_dtype t, const uint8_t *p, int e) {
    switch ((int)t) {
    case VT_Q5_0:
        return (element){half_at(p), nibble_of_32(p + 6, e) + 16 * bit(p[2 + e / 8], e % 8) - 16, 0};
    case VT_Q5_1:
        return (element){half_at(p), nibble_of_32(p + 8, e) + 16 * bit(p[4 + e / 8], e % 8), -half_at(p + 2)};
    case VT_IQ4_NL:
        return (element){half_at(p), iq4[nibble_of_32(p + 2, e)], 0};
    case VT_MXFP4:
        return (element){ldexp(1.0, p[0] - 127), e2m1[nibble_of_32(p + 1, e)], 0};
    case VT_Q2_K:
        return (element){half_at(p + 80) * nibble(p[e / 16], 0), pair(p[16 + e / 128 * 32 + e % 32], e / 32 % 4),
                         half_at(p + 82) * nibble(p[e / 16], 1)};
    case VT_Q3_K:
        return q3_element(p, e);
    case VT_IQ4_XS: {
        int g = e / 32, scale = nibble(p[4 + g / 2], g % 2) + 16 * pair(p[2 + g / 4], g % 4);
        return (element){half_at(p) * (scale - 32), iq4[nibble_of_32(p + 8 + 16 * g, e % 32)], 0};
    }
    default:
        return k4_element(t, p, e);
    }
}

void decode_gguf_block(vt_dtype t, const uint8_t *p, double *out, bool magnitude) {
    for (int e = 0; e < vt_dtype_block_elems(t); e++) {
        element x = element_of(t, p, e);
        out[e] = magnitude ? fabs(x.scale * x.q) + fabs(x.less) : x.scale * x.q - x.less;
    }
}

void finish_gguf_block(vt_dtype t, uint8_t *p, uint16_t d, uint16_t m, int extreme) {
    bool has_min = t == VT_Q5_1 || t == VT_Q2_K || t == VT_Q4_K || t == VT_Q5_K;
    size_t at = t == VT_Q2_K ? 80 : t == VT_Q3_K ? 108 : 0;
    if (t == VT_MXFP4) {
        p[0] = (uint8_t)(118 + d % 16);
        return;
    }
    memcpy(p + at, &d, sizeof d);
    if (has_min) memcpy(p + at + 2, &m, sizeof m);
    if (t == VT_Q3_K && extreme == 1) memset(p, 0, 32);      /* q of -1 .. -4 with scales of 31 */
    if (t == VT_Q3_K && extreme == 2) memset(p + 32, 0, 64); /* -4 with scales of -32 */
}
