/* SPDX-License-Identifier: Apache-2.0 */
/* Data types: the table and the scalar conversions. A NaN that is converted stays a NaN, quiet, with the top of its payload, as the F16C
 * instructions do. */
#include "vt/dtype.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"

typedef struct dtype_row {
    const char *name;
    int64_t block_elems;
    size_t block_bytes;
    int32_t gguf_type;
    vt_dtype activation;
} dtype_row;

static const dtype_row rows[VT_DTYPE_COUNT] = {
#define X(id, name, elems, bytes, gguf, act) [id] = {name, elems, bytes, gguf, act},
    VT_DTYPE_LIST(X)
#undef X
};

/* Type ids of GGUF files (ggml's public list); NULL: never used or withdrawn. */
static const char *const gguf_names[] = {
    [0] = "f32",      [1] = "f16",    [2] = "q4_0",    [3] = "q4_1",   [6] = "q5_0",   [7] = "q5_1",    [8] = "q8_0",     [9] = "q8_1",
    [10] = "q2_k",    [11] = "q3_k",  [12] = "q4_k",   [13] = "q5_k",  [14] = "q6_k",  [15] = "q8_k",   [16] = "iq2_xxs", [17] = "iq2_xs",
    [18] = "iq3_xxs", [19] = "iq1_s", [20] = "iq4_nl", [21] = "iq3_s", [22] = "iq2_s", [23] = "iq4_xs", [24] = "i8",      [25] = "i16",
    [26] = "i32",     [27] = "i64",   [28] = "f64",    [29] = "iq1_m", [30] = "bf16",  [34] = "tq1_0",  [35] = "tq2_0",   [39] = "mxfp4",
};

static bool known(vt_dtype t) { return (int)t >= 0 && t < VT_DTYPE_COUNT; }

const char *vt_dtype_name(vt_dtype t) { return known(t) ? rows[t].name : "unknown"; }

bool vt_dtype_from_name(const char *name, vt_dtype *out) {
    for (int i = 0; i < VT_DTYPE_COUNT; i++) {
        if (strcmp(rows[i].name, name) != 0) continue;
        *out = (vt_dtype)i;
        return true;
    }
    return false;
}

bool vt_dtype_from_gguf(uint32_t type_id, vt_dtype *out) {
    for (int i = 0; i < VT_DTYPE_COUNT; i++) {
        if (rows[i].gguf_type < 0 || (uint32_t)rows[i].gguf_type != type_id) continue;
        *out = (vt_dtype)i;
        return true;
    }
    return false;
}

const char *vt_gguf_type_name(uint32_t type_id) {
    const char *name = type_id < sizeof gguf_names / sizeof gguf_names[0] ? gguf_names[type_id] : NULL;
    return name ? name : "unknown";
}

int64_t vt_dtype_block_elems(vt_dtype t) { return known(t) ? rows[t].block_elems : 1; }
size_t vt_dtype_block_bytes(vt_dtype t) { return known(t) ? rows[t].block_bytes : 0; }
bool vt_dtype_is_block(vt_dtype t) { return known(t) && rows[t].block_elems > 1; }

size_t vt_dtype_alignment(vt_dtype t) {
    const size_t bytes = vt_dtype_block_bytes(t);
    if (t == VT_Q8_A32 || t == VT_Q8_A256) return 4;
    if (vt_dtype_is_block(t)) return bytes % 2 != 0 ? 1 : 2;
    return bytes > 0 ? bytes : 1;
}
vt_dtype vt_dtype_q8_activation(vt_dtype weight) { return known(weight) ? rows[weight].activation : VT_NONE; }

bool vt_dtype_row_bytes(vt_dtype t, int64_t n, size_t *out) {
    if (!known(t) || n < 0 || n % rows[t].block_elems != 0) return false;
    size_t n_blocks;
    if (!checked_u64_to_size((uint64_t)(n / rows[t].block_elems), &n_blocks)) return false;
    return checked_mul_size(n_blocks, rows[t].block_bytes, out);
}

static float float_from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t bits_from_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

float vt_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1Fu, fraction = h & 0x3FFu;
    if (exponent == 31) return float_from_bits(sign | 0x7F800000u | (fraction ? 0x400000u : 0) | fraction << 13);
    if (exponent == 0) { /* fraction * 2^-24, exact in F32 */
        float magnitude = (float)fraction * 0x1p-24f;
        return float_from_bits(sign | bits_from_float(magnitude));
    }
    return float_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t vt_f32_to_f16(float f) {
    uint32_t bits = bits_from_float(f);
    uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return (uint16_t)(sign | 0x7E00u | (magnitude >> 13 & 0x1FFu));
    if (magnitude >= 0x477FF000u) return (uint16_t)(sign | 0x7C00u); /* 65520 and above round to infinity */
    uint32_t half, rest, mid;
    if (magnitude >= 0x38800000u) { /* normal: 2^-14 and above */
        half = (magnitude - 0x38000000u) >> 13;
        rest = magnitude & 0x1FFFu;
        mid = 0x1000u;
    } else if (magnitude >= 0x33000000u) { /* 2^-25 and above: units of 2^-24 */
        uint32_t shift = 126 - (magnitude >> 23), fraction = (magnitude & 0x7FFFFFu) | 0x800000u;
        half = fraction >> shift;
        rest = fraction & ((1u << shift) - 1);
        mid = 1u << (shift - 1);
    } else {
        return (uint16_t)sign;
    }
    if (rest > mid || (rest == mid && (half & 1))) half++;
    return (uint16_t)(sign | half);
}

float vt_bf16_to_f32(uint16_t h) { return float_from_bits((uint32_t)h << 16); }

float vt_f8_e4m3_to_f32(uint8_t v) {
    const int e = v >> 3 & 15, m = v & 7;
    if (e == 15 && m == 7) return NAN;
    const float f = e == 0 ? ldexpf((float)m, -9) : ldexpf((float)(8 + m), e - 10);
    return v & 0x80 ? -f : f;
}

uint16_t vt_f32_to_bf16(float f) {
    uint32_t bits = bits_from_float(f);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}
