/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Data types of tensors. Element types have one element per block; block types hold `block_elems` consecutive elements of a row
 * in `block_bytes` bytes and have no element size. A type is one row of VT_DTYPE_LIST (plus kernel rows that use it).
 *
 * Weight block layouts are those of the GGUF files they come from (ggml's public format), little endian:
 *   Q4_0  32: f16 d; 16 bytes, element i < 16 in the low nibble of byte i, i >= 16 in the high nibble of byte i - 16; d * (q - 8)
 *   Q4_1  32: f16 d, f16 m; 16 bytes as Q4_0;                                        d * q + m
 *   Q8_0  32: f16 d; 32 int8;                                                        d * q
 *   Q6_K 256: ql[128], qh[64], int8 scales[16], f16 d;                               d * scale * (q - 32)
 *             element e = 128 h + 32 g + l (h < 2, g < 4, l < 32): scale[e / 16]; low four bits of q: nibble g / 2 (0 low) of ql[64 h + 32 (g % 2) + l],
 *             high two bits: bits 2 g, 2 g + 1 of qh[32 h + l]
 *   Q5_0  32: f16 d; 4 bytes qh, little endian; 16 bytes as Q4_0 for the low four bits of q, bit i of qh is the fifth of element i; d * (q - 16)
 *   Q5_1  32: f16 d, f16 m; qh and 16 bytes as Q5_0;                                 d * q + m
 *   IQ4_NL 32: f16 d; 16 bytes as Q4_0;                                              d * v[q], v = -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113
 *   MXFP4 32: e; 16 bytes as Q4_0;  2^(e - 127) * the value of F4_E2M1; e = 255 is 2^128 here, not NaN (as ggml reads it). Blocks of 17 bytes lie at odd addresses.
 *   K types, 256 elements; group g = e / 32 and l = e % 32 of element e; a scale (and minimum) for sixteen elements, index e / 16, or for thirty-two, index g:
 *   Q2_K: scales[16] (scale low four bits, minimum high four); q[64], bits 2 (g % 4) and the next of q[32 (g / 4) + l]; f16 d, f16 dmin;  d * scale * q - dmin * min
 *   Q3_K: qh[32]; q[64] as Q2_K, 4 less where bit g of qh[l] is 0; scales[12]; f16 d;  d * (scale - 32) * q
 *         scale i < 8 has its low four bits in the low nibble of scales[i], i >= 8 in the high nibble of scales[i - 8]; the two high ones are bits 2 (i / 4) and the next of scales[8 + i % 4]
 *   Q4_K: f16 d, f16 dmin; scales[12]; q[128], nibble g % 2 of q[32 (g / 2) + l];    d * scale * q - dmin * min, by group
 *         i < 4: scale = low six bits of scales[i], minimum = of scales[4 + i]; i >= 4: low (minimum: high) nibble of scales[4 + i] and, above it, the two high bits of scales[i - 4] (minimum: scales[i])
 *   Q5_K: as Q4_K with qh[32] before q: bit g of qh[l] is the fifth of q
 *   IQ4_XS: f16 d; u16 scales_h; scales_l[4]; q[128], sixteen bytes a group as Q4_0;  d * (scale - 32) * v[q], by group
 *         scale g: nibble g % 2 of scales_l[g / 2], above it bits 2 g and the next of scales_h
 *   F4_E2M1    2: element 2i in the low nibble of byte i; 0 0.5 1 1.5 2 3 4 6 and their negatives. F8_E8M0: 2^(e - 127), 255 is NaN; scales of F4_E2M1.
 * Activation blocks (ours, never in a file):
 *   Q8_A32   32: f32 d, int32 sum of the q, int8 q[32];  d = max|x| / 127, q = round_to_nearest_even(x / d) limited to -127 .. 127
 *   Q8_A256 256: f32 d, int16 sums[16] (of 16 consecutive q), int8 q[256];  d and q as Q8_A32
 */
#ifndef HEADRACE_VT_DTYPE_H
#define HEADRACE_VT_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* X(enumerator, name, elements per block, bytes per block, GGUF type id or -1, dtype of activations for --act q8 or VT_F32) */
#define VT_DTYPE_LIST(X)                                                                                               \
    X(VT_NONE, "none", 1, 0, -1, VT_NONE)                                                                              \
    X(VT_F32, "f32", 1, 4, 0, VT_F32)                                                                                  \
    X(VT_F16, "f16", 1, 2, 1, VT_F32)                                                                                  \
    X(VT_BF16, "bf16", 1, 2, 30, VT_F32)                                                                               \
    X(VT_I8, "i8", 1, 1, 24, VT_NONE)                                                                                  \
    X(VT_I32, "i32", 1, 4, 26, VT_NONE)                                                                                \
    X(VT_I64, "i64", 1, 8, 27, VT_NONE)                                                                                \
    X(VT_U8, "u8", 1, 1, -1, VT_NONE)                                                                                  \
    X(VT_F8_E4M3, "f8_e4m3", 1, 1, -1, VT_F32)                                                                         \
    X(VT_Q8_A32, "q8_a32", 32, 40, -1, VT_NONE)                                                                        \
    X(VT_Q8_A256, "q8_a256", 256, 292, -1, VT_NONE)                                                                    \
    X(VT_Q4_0, "q4_0", 32, 18, 2, VT_Q8_A32)                                                                           \
    X(VT_Q4_1, "q4_1", 32, 20, 3, VT_Q8_A32)                                                                           \
    X(VT_Q8_0, "q8_0", 32, 34, 8, VT_Q8_A32)                                                                           \
    X(VT_Q6_K, "q6_k", 256, 210, 14, VT_Q8_A256)                                                                       \
    X(VT_F8_E8M0, "f8_e8m0", 1, 1, -1, VT_NONE)                                                                        \
    X(VT_F4_E2M1, "f4_e2m1", 2, 1, -1, VT_F32)                                                                         \
    X(VT_Q5_0, "q5_0", 32, 22, 6, VT_Q8_A32)                                                                           \
    X(VT_Q5_1, "q5_1", 32, 24, 7, VT_Q8_A32)                                                                           \
    X(VT_Q2_K, "q2_k", 256, 84, 10, VT_Q8_A256)                                                                        \
    X(VT_Q3_K, "q3_k", 256, 110, 11, VT_Q8_A256)                                                                       \
    X(VT_Q4_K, "q4_k", 256, 144, 12, VT_Q8_A256)                                                                       \
    X(VT_Q5_K, "q5_k", 256, 176, 13, VT_Q8_A256)                                                                       \
    X(VT_IQ4_NL, "iq4_nl", 32, 18, 20, VT_Q8_A32)                                                                      \
    X(VT_IQ4_XS, "iq4_xs", 256, 136, 23, VT_Q8_A256)                                                                   \
    X(VT_MXFP4, "mxfp4", 32, 17, 39, VT_F32)

typedef enum vt_dtype {
#define X(id, name, elems, bytes, gguf, act) id,
    VT_DTYPE_LIST(X)
#undef X
        VT_DTYPE_COUNT
} vt_dtype;

const char *vt_dtype_name(vt_dtype t);          /* "q4_1"; "unknown" outside the list */
bool vt_dtype_from_name(const char *name, vt_dtype *out);
bool vt_dtype_from_gguf(uint32_t type_id, vt_dtype *out); /* false: not known here */
const char *vt_gguf_type_name(uint32_t type_id); /* also of types we cannot read, "unknown" otherwise, for refusals */
int64_t vt_dtype_block_elems(vt_dtype t);
size_t vt_dtype_block_bytes(vt_dtype t);
bool vt_dtype_is_block(vt_dtype t);
/**
 * What an element's address is a multiple of. Kernels read weight blocks through their 16-bit scale, activation blocks through 32-bit ones; blocks of an odd number of bytes
 * follow each other at any address.
 */
size_t vt_dtype_alignment(vt_dtype t);
vt_dtype vt_dtype_q8_activation(vt_dtype weight); /* what --act q8 uses with this weight; VT_F32 = no q8 form; VT_NONE = not a weight */
/** Bytes of n consecutive elements; false when n is negative, not whole blocks, or the size overflows. */
NODISCARD bool vt_dtype_row_bytes(vt_dtype t, int64_t n, size_t *out);

/* Scalar conversions used by kernels, loaders and tests: exact widening; narrowing rounds to nearest even. */
float vt_f16_to_f32(uint16_t h);
uint16_t vt_f32_to_f16(float f);
float vt_bf16_to_f32(uint16_t h);
float vt_f8_e4m3_to_f32(uint8_t v); /* exact; 0x7F and 0xFF are NaN */
uint16_t vt_f32_to_bf16(float f);

#endif
