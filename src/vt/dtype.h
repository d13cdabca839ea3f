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
    X(VT_F4_E2M1, "f4_e2m1", 2, 1, -1, VT_F32)

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
vt_dtype vt_dtype_q8_activation(vt_dtype weight); /* what --act q8 uses with this weight; VT_F32 = no q8 form; VT_NONE = not a weight */
/** Bytes of n consecutive elements; false when n is negative, not whole blocks, or the size overflows. */
NODISCARD bool vt_dtype_row_bytes(vt_dtype t, int64_t n, size_t *out);

/* Scalar conversions used by kernels, loaders and tests: exact widening; narrowing rounds to nearest even. */
float vt_f16_to_f32(uint16_t h);
uint16_t vt_f32_to_f16(float f);
float vt_bf16_to_f32(uint16_t h);
uint16_t vt_f32_to_bf16(float f);

#endif
