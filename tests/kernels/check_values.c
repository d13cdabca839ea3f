/* SPDX-License-Identifier: Apache-2.0 */
/* Values of every dtype: random ones, and their meaning, decoded here from the text of dtype.h and independently of the code under test. */
#include "check_blocks.h"
#include "check_case.h"

#include <math.h>
#include <string.h>

static uint16_t u16_at(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

static float f32_at(const uint8_t *p) {
    float f;
    memcpy(&f, p, sizeof f);
    return f;
}

double decode_f16(uint16_t h) {
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double v = exponent == 31 ? (fraction ? (double)NAN : (double)INFINITY)
               : exponent     ? ldexp(1024 + fraction, exponent - 25)
                              : ldexp(fraction, -24);
    return h & 0x8000 ? -v : v;
}

static double decode_bf16(uint16_t h) {
    int exponent = h >> 7 & 255, fraction = h & 127;
    double v = exponent == 255 ? (fraction ? (double)NAN : (double)INFINITY)
               : exponent      ? ldexp(128 + fraction, exponent - 134)
                               : ldexp(fraction, -133);
    return h & 0x8000 ? -v : v;
}

static double decode_f8_e4m3(uint8_t v) {
    int exponent = v >> 3 & 15, fraction = v & 7;
    double x = (v & 127) == 127 ? (double)NAN : exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
    return v & 128 ? -x : x;
}

static double decode_f4_e2m1(int v) {
    int exponent = v >> 1 & 3, fraction = v & 1;
    double x = exponent ? ldexp(2 + fraction, exponent - 2) : fraction * 0.5;
    return v & 8 ? -x : x;
}

/* Nibble i of a 16-byte group of 32: the low halves first. */
static int nibble(const uint8_t *q, int i) { return i < 16 ? q[i] % 16 : q[i - 16] / 16; }

static int q6(const uint8_t *ql, const uint8_t *qh, int e) {
    int half = e / 128, quarter = e / 32 % 4, lane = e % 32;
    int byte = ql[half * 64 + quarter % 2 * 32 + lane];
    int low = quarter < 2 ? byte % 16 : byte / 16;
    int high = (qh[half * 32 + lane] >> quarter * 2) % 4;
    return low + 16 * high - 32;
}

static void decode_block(vt_dtype t, const uint8_t *p, double *out, bool magnitude) {
    if (is_gguf_block(t)) {
        decode_gguf_block(t, p, out, magnitude);
        return;
    }
    double d = t == VT_F4_E2M1 ? 0.0 : decode_f16(u16_at(p));
    switch ((int)t) {
    case VT_Q4_0:
        for (int i = 0; i < 32; i++) out[i] = d * (nibble(p + 2, i) - 8);
        break;
    case VT_Q4_1:
        for (int i = 0; i < 32; i++) {
            double q = d * nibble(p + 4, i), m = decode_f16(u16_at(p + 2));
            out[i] = magnitude ? fabs(q) + fabs(m) : q + m;
        }
        break;
    case VT_Q8_0:
        for (int i = 0; i < 32; i++) out[i] = d * (int8_t)p[2 + i];
        break;
    case VT_Q6_K:
        d = decode_f16(u16_at(p + 208));
        for (int i = 0; i < 256; i++) out[i] = d * (int8_t)p[192 + i / 16] * q6(p, p + 128, i);
        break;
    case VT_Q8_A32:
        for (int i = 0; i < 32; i++) out[i] = (double)f32_at(p) * (int8_t)p[8 + i];
        break;
    case VT_F4_E2M1:
        out[0] = decode_f4_e2m1(p[0] % 16);
        out[1] = decode_f4_e2m1(p[0] / 16);
        break;
    default: /* VT_Q8_A256 */
        for (int i = 0; i < 256; i++) out[i] = (double)f32_at(p) * (int8_t)p[36 + i];
        break;
    }
    if (magnitude)
        for (int i = 0; i < vt_dtype_block_elems(t); i++) out[i] = fabs(out[i]);
}

static double decode_element(vt_dtype t, const uint8_t *p) {
    switch ((int)t) {
    case VT_F32:
        return (double)f32_at(p);
    case VT_F16:
        return decode_f16(u16_at(p));
    case VT_BF16:
        return decode_bf16(u16_at(p));
    case VT_F8_E4M3:
        return decode_f8_e4m3(p[0]);
    case VT_F8_E8M0:
        return p[0] == 255 ? (double)NAN : ldexp(1.0, p[0] - 127);
    default:
        return (double)NAN;
    }
}

static void decode(vt_dtype t, const uint8_t *p, int64_t n, double *out, bool magnitude) {
    int64_t block = vt_dtype_block_elems(t);
    size_t bytes = vt_dtype_block_bytes(t);
    for (int64_t i = 0; i < n; i += block, p += bytes) {
        if (block > 1)
            decode_block(t, p, out + i, magnitude);
        else
            out[i] = decode_element(t, p);
        if (magnitude && block == 1) out[i] = fabs(out[i]);
    }
}

void decode_row(vt_dtype t, const uint8_t *p, int64_t n, double *out) { decode(t, p, n, out, false); }
void decode_row_mag(vt_dtype t, const uint8_t *p, int64_t n, double *out) { decode(t, p, n, out, true); }

static double round_to_bf16(double v) {
    const float f = (float)v;
    if (isnan(f) || isinf(f) || f == 0.0f) return (double)f;
    int e;
    (void)frexp((double)f, &e);
    const double ulp = ldexp(1.0, (e < -125 ? -125 : e) - 8);
    return nearbyint((double)f / ulp) * ulp; /* to even */
}

void decode_row_beside(vt_dtype activation, vt_dtype t, const uint8_t *p, int64_t n, double *out) {
    decode_row(t, p, n, out);
    if (activation != VT_BF16 || vt_dtype_block_elems(t) < 32) return;
    for (int64_t i = 0; i < n; i++) out[i] = round_to_bf16(out[i]);
}

static void put(uint8_t *p, const void *v, size_t n) { memcpy(p, v, n); }

/* A normal half between 2^-9 and 1 in magnitude. */
static uint16_t random_scale(rng *r) { return (uint16_t)((rng_next(r) & 0x83FF) | (uint64_t)(6 + rng_below(r, 9)) << 10); }

static void fill_float(rng *r, vt_dtype t, uint8_t *p, double v) {
    float f = (float)v;
    if (t == VT_F8_E4M3 || t == VT_F8_E8M0) { /* any byte; no NaN unless v is one */
        uint8_t byte = (uint8_t)rng_next(r), nan = t == VT_F8_E4M3 ? 0x7F : 0xFF;
        if ((byte & nan) == nan) byte = 0;
        *p = isnan(v) ? nan : t == VT_F8_E8M0 ? (uint8_t)(120 + byte % 16) : byte;
        return;
    }
    uint16_t h = t == VT_F16 ? vt_f32_to_f16(f) : vt_f32_to_bf16(f);
    if (t == VT_F32)
        put(p, &f, sizeof f);
    else
        put(p, &h, sizeof h);
}

/* extreme: every quantised value as large as it gets, so that a sum that saturates or overflows shows. */
static void fill_block(rng *r, vt_dtype t, uint8_t *p, int extreme, bool special) {
    size_t bytes = vt_dtype_block_bytes(t);
    for (size_t i = 0; i < bytes; i++) p[i] = extreme == 0 ? (uint8_t)rng_next(r) : extreme == 1 ? 0xFF : 0x00;
    uint16_t d = random_scale(r), m = random_scale(r);
    if (special && rng_one_in(r, 4)) d = (uint16_t)RNG_PICK(r, 0x7C00, 0xFC00, 0x7E00, 0x0000, 0x0001);
    if (t == VT_Q4_0 || t == VT_Q4_1 || t == VT_Q8_0) put(p, &d, 2);
    if (t == VT_Q4_1) put(p + 2, &m, 2);
    if (t == VT_Q8_0 && extreme) memset(p + 2, extreme == 1 ? 0x80 : 0x7F, 32);
    if (t == VT_Q6_K) put(p + 208, &d, 2);
    if (t == VT_Q6_K && extreme) memset(p + 192, 0x80, 16);
    if (is_gguf_block(t)) finish_gguf_block(t, p, d, m, extreme);
    if (t != VT_Q8_A32 && t != VT_Q8_A256) return;

    float scale = (float)(0.01 + fabs(rng_unit(r)));
    if (special && rng_one_in(r, 4)) scale = rng_one_in(r, 2) ? NAN : 0.0f;
    put(p, &scale, sizeof scale);
    int n = (int)vt_dtype_block_elems(t);
    int8_t *q = (int8_t *)p + (bytes - (size_t)n);
    int16_t sums[16] = {0};
    int32_t sum = 0;
    for (int i = 0; i < n; i++) {
        q[i] = (int8_t)(extreme ? (extreme == 1 ? 127 : -127) : rng_below(r, 255) - 127);
        sum += q[i];
        sums[i / 16] = (int16_t)(sums[i / 16] + q[i]);
    }
    if (t == VT_Q8_A32)
        put(p + 4, &sum, sizeof sum);
    else
        put(p + 4, sums, sizeof sums);
}

void case_fill(check_case *c, int index, double scale) {
    const vt_tensor *t = &c->t[index];
    if (t->n_dims == 0 || vt_tensor_elems(t) == 0) return;
    int64_t block = vt_dtype_block_elems(t->dtype);
    size_t bytes = vt_dtype_block_bytes(t->dtype);
    int extreme = rng_one_in(&c->r, 6) ? 1 + (int)rng_below(&c->r, 2) : 0;
    for (int64_t r = 0; r < tensor_rows(t); r++) {
        uint8_t *p = tensor_row_at(t, r);
        for (int64_t i = 0; i < tensor_inner(t); i += block, p += bytes) {
            if (block > 1) {
                fill_block(&c->r, t->dtype, p, extreme, c->special);
                continue;
            }
            double v = scale * rng_unit(&c->r);
            if (rng_one_in(&c->r, 16)) v = 0.0;
            if (c->special && rng_one_in(&c->r, 12)) {
                const double odd[] = {(double)NAN, (double)INFINITY, -(double)INFINITY, 3e38, -3e38, 1e-40, -1e-45, -0.0};
                v = odd[rng_below(&c->r, 8)];
            }
            fill_float(&c->r, t->dtype, p, v);
        }
    }
}
