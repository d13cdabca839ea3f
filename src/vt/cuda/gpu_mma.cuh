/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Matrix units: what decode and prefill share, so that both give the same bits.
 *
 * The F32 activations are cut into three BF16 parts by truncation (8 + 8 + 8 bits of the significand: exactly the number), BF16 weights are
 * one part, F16 weights two (8 + 3 bits: exact); products of parts are exact in F32 and are added by the matrix unit in F32. Parts whose
 * product lies below 2^-24 of the whole are left out. An infinite activation gives NaN (infinity less infinity).
 *
 * The order of addition, for an output: k in tiles of 32, ascending; in a tile two multiplications of sixteen, the first over k % 8 < 4, the
 * second over the rest, each over the parts from the smallest product to the largest. K is cut into segments (mma_segments) that are added
 * in ascending order. Segments follow from K alone, so an output does not depend on how many rows and columns there are.
 */
#ifndef HEADRACE_VT_CUDA_GPU_MMA_H
#define HEADRACE_VT_CUDA_GPU_MMA_H

#include "vt/cuda/matmul_lanes.cuh"

static const int MMA_K = 32; /* of a tile */

/* Segments of K: eight where it is long enough, so that narrow matrices too fill a device in decode. A length in tiles, and how many. */
struct mma_segments {
    int32_t length, n; /* tiles of a segment; segments (1, 2, 4 or 8, the last ones may be empty) */
};

static inline mma_segments mma_segments_of(int64_t n_k) {
    int64_t tiles = n_k / MMA_K, want = 8;
    while (want > 1 && tiles < 4 * want) want /= 2;
    return {(int32_t)gpu_ceil(tiles, want), (int32_t)want};
}

/* d += a . b of m16n8k16, BF16 in, F32 out. One operand is weights and the other activations: which is which does not change a bit. */
GPU_FN void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* The upper halves of two words: x in the low half. */
GPU_FN uint32_t mma_pack(uint32_t x, uint32_t y) { return __byte_perm(x, y, 0x7632); }

/* Two floats as three pairs of BF16, largest first. */
GPU_FN void mma_split3(float x, float y, uint32_t part[3]) {
    uint32_t bx = __float_as_uint(x), by = __float_as_uint(y);
    part[0] = mma_pack(bx, by);
    float rx = x - __uint_as_float(bx & 0xFFFF0000u), ry = y - __uint_as_float(by & 0xFFFF0000u);
    bx = __float_as_uint(rx), by = __float_as_uint(ry);
    part[1] = mma_pack(bx, by);
    rx = rx - __uint_as_float(bx & 0xFFFF0000u), ry = ry - __uint_as_float(by & 0xFFFF0000u);
    part[2] = mma_pack(__float_as_uint(rx), __float_as_uint(ry));
}

/* Eight consecutive activations of a row as fragments of the two multiplications of a tile: [multiplication][part][register]. R registers: two
 * for the eight rows of operand b, four for the sixteen of operand a, half 0 of which are rows r and half 1 rows r + 8. */
template <int R> struct mma_activation {
    uint32_t r[2][3][R];
};

template <int R> GPU_FN void mma_load_activation(mma_activation<R> &f, int half, const float4 u, const float4 v) {
    const float x[2][4] = {{u.x, u.y, u.z, u.w}, {v.x, v.y, v.z, v.w}};
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t p[3];
            mma_split3(x[m][i * 2], x[m][i * 2 + 1], p);
            f.r[m][0][i * (R / 2) + half] = p[0], f.r[m][1][i * (R / 2) + half] = p[1], f.r[m][2][i * (R / 2) + half] = p[2];
        }
}

/* Eight consecutive weights of an output likewise. F16 gives two parts, BF16 one. */
template <int T, int R> struct mma_weight {
    uint32_t r[2][T == VT_F16 ? 2 : 1][R];
};

GPU_FN void mma_split_f16(uint32_t pair, uint32_t &high, uint32_t &low) {
    float x = gpu_f16((uint16_t)pair), y = gpu_f16((uint16_t)(pair >> 16));
    uint32_t bx = __float_as_uint(x), by = __float_as_uint(y);
    high = mma_pack(bx, by);
    low = mma_pack(__float_as_uint(x - __uint_as_float(bx & 0xFFFF0000u)), __float_as_uint(y - __uint_as_float(by & 0xFFFF0000u)));
}

template <int T, int R> GPU_FN void mma_load_weight(mma_weight<T, R> &f, int half, const uint4 u) {
    const uint32_t w[2][2] = {{u.x, u.y}, {u.z, u.w}};
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if constexpr (T == VT_F16)
                mma_split_f16(w[m][i], f.r[m][0][i * (R / 2) + half], f.r[m][1][i * (R / 2) + half]);
            else
                f.r[m][0][i * (R / 2) + half] = w[m][i];
        }
}

/* One tile of 32 k for NA weights and NB activations, each in the order stated above; neighbours in time are independent, which hides how
 * long a multiplication takes. d[x][y0 + y]. */
template <int T, int R, int NA, int NB, int ND> GPU_FN void mma_tiles(float (*d)[ND][4], int y0, const mma_weight<T, R> (&w)[NA], const mma_activation<6 - R> (&a)[NB]) {
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int step = 0; step < 5; step++) {
            if (T != VT_F16 && step % 2) continue; /* steps of the second part of the weights */
            const int part_w = T == VT_F16 ? step % 2 : 0, part_a = 2 - (step + 1) / 2;
#pragma unroll
            for (int y = 0; y < NB; y++)
#pragma unroll
                for (int x = 0; x < NA; x++) {
                    if constexpr (R == 4)
                        mma_bf16(d[x][y0 + y], w[x].r[m][part_w], a[y].r[m][part_a]);
                    else
                        mma_bf16(d[x][y0 + y], a[y].r[m][part_a], w[x].r[m][part_w]);
                }
        }
}

#endif
