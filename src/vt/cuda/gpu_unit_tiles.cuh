/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Tiles of products of BF16 activations with GGUF block weights, which a dense and a grouped product share. Rows come from functors, as in gpu_wgmma.cuh. Weights are rounded to BF16
 * (gpu_units.cuh); products are exact.
 */
#ifndef HEADRACE_VT_CUDA_GPU_UNIT_TILES_H
#define HEADRACE_VT_CUDA_GPU_UNIT_TILES_H

#include "vt/cuda/gpu_mma.cuh"
#include "vt/cuda/gpu_units.cuh"
#include "vt/cuda/gpu_wgmma.cuh"

/* ---- few rows ----
 * Tiles of 8 SIDES x 16 rows of weights by 8 NT of activations (m16n8k16, the weights are operand a), one after another. A warp has sixteen rows of weights and one of PARTS parts of K, and
 * brings them as they are stored, two slabs ahead and from tile to tile, into shared memory of its own; a lane makes whole units of two rows into BF16. Which k a place of the multiplication
 * stands for is free, so it is what the lane holds. The parts are whole slabs, each ascending, added in ascending order: an output depends on its own rows and on PARTS alone. */
static const int UNIT_ROWS = 16, UNIT_WARPS = 8, UNIT_THREADS = UNIT_WARPS * 32;
template <int PARTS> GPU_HD constexpr int unit_tile_rows() { return UNIT_WARPS / PARTS * UNIT_ROWS; }

/* What a warp brings at a time of a row: ELEMS weights, in pieces of sixteen bytes that may begin in front of them. */
template <int T> struct unit_slab {
    static const int ELEMS = T == VT_Q8_0 ? 128 : 256, BYTES = ELEMS / (gpu_is_k<T>() ? 256 : 32) * unit_block_bytes<T>();
    static const int PIECES = (15 + BYTES + 15) / 16, PITCH = (PIECES | 1) * 16; /* an odd number of pieces: rows in different banks */
    static const int STAGES = 3, STAGE = UNIT_ROWS * PITCH, SHARED = UNIT_WARPS * STAGES * STAGE;
};

/* Sums of a tile: [part][row of the tile][row of the activations], twice where there is room, so that one is written while the other is read. */
template <int NT> GPU_HD constexpr int unit_sums_width() { return 8 * NT + 1; }
template <int NT> GPU_HD constexpr int unit_sums_bytes() { return UNIT_WARPS * UNIT_ROWS * unit_sums_width<NT>() * 4; }
template <int NT> GPU_HD constexpr int unit_buffers() { return NT == 1 ? 2 : 1; }
template <int T, int NT> static constexpr int unit_shared_bytes() { return unit_slab<T>::SHARED + unit_buffers<NT>() * unit_sums_bytes<NT>(); }

/* The sum of row i of the weights and row j of the activations. */
template <int NT, int PARTS> GPU_FN float unit_total(const float *sums, int i, int j) {
    const float *at = sums + i * unit_sums_width<NT>() + j;
    float total = at[0];
#pragma unroll
    for (int p = 1; p < PARTS; p++) total += at[p * unit_tile_rows<PARTS>() * unit_sums_width<NT>()];
    return total;
}

/* Tiles first, first + step, ... below n_tiles. w_row(tile, i), i < unit_tile_rows: the address of a row of weights, always one. x_row(j), j < 8 NT: of a row of activations, or NULL for zeros;
 * asked after gpu_await_previous. n_k: elements of K. emit(tile, sums) of each, by all 256 threads, which call this together. */
template <int T, int NT, int PARTS, class W, class X, class E> GPU_FN void unit_tiles(uint8_t *shared, int first, int step, int n_tiles, W w_row, X x_row, int n_k, E emit) {
    typedef unit_slab<T> S;
    const int warp = threadIdx.x / 32, part = warp % PARTS, side = warp / PARTS, lane = threadIdx.x % 32, r = lane / 4, q = lane % 4;
    const int n_slabs = (n_k + S::ELEMS - 1) / S::ELEMS, length = (n_slabs + PARTS - 1) / PARTS, begin = part * length;
    const int end = begin + length < n_slabs ? begin + length : n_slabs;
    const int64_t row_bytes = (int64_t)(n_k / (gpu_is_k<T>() ? 256 : 32)) * unit_block_bytes<T>();
    uint8_t *mine = shared + warp * (S::STAGES * S::STAGE);
    const uint32_t to = gpu_shared_at(mine) + (lane / 2) * S::PITCH + lane % 2 * 16;
    int next_tile = begin < end ? first : n_tiles, next_slab = begin, next_stage = 0;
    const uint8_t *from = next_tile < n_tiles ? w_row(next_tile, side * UNIT_ROWS + lane / 2) : NULL;
    auto bring = [&]() {
        if (next_tile < n_tiles) {
            const uint8_t *p = from + (int64_t)next_slab * S::BYTES, *at = p - ((uintptr_t)p & 15) + lane % 2 * 16;
            const int64_t rest = row_bytes - (int64_t)next_slab * S::BYTES;
            const int bytes = (rest < S::BYTES ? (int)rest : S::BYTES) + (int)((uintptr_t)p & 15) - lane % 2 * 16; /* from `at` on */
            const uint32_t stage = to + next_stage * S::STAGE;
            if (rest >= S::BYTES + 48) { /* whole pieces, which may reach into what comes next in the row */
#pragma unroll
                for (int c = 0; c < (S::PIECES + 1) / 2; c++)
                    if (S::PIECES % 2 == 0 || c * 2 + 1 < S::PIECES || lane % 2 == 0) gpu_copy16(stage + c * 32, at + c * 32, 16);
            } else {
#pragma unroll
                for (int c = 0; c < (S::PIECES + 1) / 2; c++) {
                    const int left = bytes - c * 32;
                    if (c * 2 + lane % 2 < S::PIECES) gpu_copy16(stage + c * 32, left > 0 ? at + c * 32 : p - ((uintptr_t)p & 15), left >= 16 ? 16 : left > 0 ? left : 0);
                }
            }
            if (++next_slab == end) {
                next_slab = begin;
                next_tile += step;
                if (next_tile < n_tiles) from = w_row(next_tile, side * UNIT_ROWS + lane / 2);
            }
        }
        next_stage = next_stage + 1 == S::STAGES ? 0 : next_stage + 1;
        gpu_copy_commit();
    };
#pragma unroll
    for (int i = 0; i < S::STAGES - 1; i++) bring();
    gpu_await_previous();
    const uint8_t *x[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) x[n] = x_row(n * 8 + r);
    const uint4 zero = make_uint4(0, 0, 0, 0);
    float *sums = (float *)(shared + S::SHARED);
    int at_stage = 0;
    for (int tile = first; tile < n_tiles; tile += step) {
        uint32_t off[2];
#pragma unroll
        for (int h = 0; h < 2; h++) off[h] = (uint32_t)(uintptr_t)w_row(tile, side * UNIT_ROWS + r + 8 * h);
        float sum[NT][4];
#pragma unroll
        for (int n = 0; n < NT; n++) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0.0f;
        for (int i = begin; i < end; i++) {
            gpu_copy_wait<S::STAGES - 2>();
            __syncwarp();
            bring();
            const uint8_t *stage = mine + at_stage * S::STAGE;
            at_stage = at_stage + 1 == S::STAGES ? 0 : at_stage + 1;
#pragma unroll
            for (int j = 0; j < S::ELEMS / 128; j++) {
                const int u = 4 * j + q, k = i * S::ELEMS + u * UNIT_ELEMS;
                const bool inside = k < n_k;
                uint4 v[NT <= 2 ? NT : 1][4];
                if constexpr (NT <= 2)
#pragma unroll
                    for (int y = 0; y < NT * 4; y++) v[y / 4][y % 4] = inside && x[y / 4] ? gpu_load16(x[y / 4] + k * 2 + y % 4 * 16) : zero;
                uint32_t w[2][16];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const uint8_t *row = stage + (r + 8 * h) * S::PITCH + ((off[h] + (uint32_t)i * (uint32_t)S::BYTES) & 15);
                    unit_raw<T> raw;
                    unit_load<T, true>(raw, unit_block<T>(row, u), u % 8);
                    unit_unpack<T>(w[h], raw, u % 8);
                }
#pragma unroll
                for (int t = 0; t < 4; t++) {
                    const uint32_t f[2][4] = {{w[0][4 * t], w[1][4 * t], w[0][4 * t + 1], w[1][4 * t + 1]}, {w[0][4 * t + 2], w[1][4 * t + 2], w[0][4 * t + 3], w[1][4 * t + 3]}};
#pragma unroll
                    for (int n = 0; n < NT; n++) {
                        uint4 b;
                        if constexpr (NT <= 2)
                            b = v[n][t];
                        else
                            b = inside && x[n] ? gpu_load16(x[n] + k * 2 + t * 16) : zero;
                        const uint32_t b0[2] = {b.x, b.y}, b1[2] = {b.z, b.w};
                        mma_bf16(sum[n], f[0], b0);
                        mma_bf16(sum[n], f[1], b1);
                    }
                }
            }
            __syncwarp(); /* the stage may be written again */
        }
        if (unit_buffers<NT>() == 1) __syncthreads(); /* nobody reads the last tile's any more */
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[(part * unit_tile_rows<PARTS>() + side * UNIT_ROWS + r + 8 * (i / 2)) * unit_sums_width<NT>() + n * 8 + q * 2 + i % 2] = sum[n][i];
        __syncthreads();
        emit(tile, (const float *)sums);
        if (unit_buffers<NT>() == 2) sums = (float *)(shared + S::SHARED) + (sums == (float *)(shared + S::SHARED) ? unit_sums_bytes<NT>() / 4 : 0);
    }
    gpu_copy_wait<0>();
}

/* ---- many rows, Hopper ----
 * 128 MG rows of activations by 128 of weights. Activations and weights, as they are stored, come by asynchronous copies, weights a slab ahead; two threads a row write them to shared memory as
 * BF16, where the matrix unit reads both (layout and descriptors as in gpu_wgmma.cuh). The order of addition: k ascending in steps of sixteen. */
static const int UNIT_WGMMA_N = 128, UNIT_B_STAGES = 3, UNIT_B_STAGE = UNIT_WGMMA_N * WGMMA_ROW;
template <int T, int MG> struct unit_wide {
    typedef unit_slab<T> S;
    static const int PER_SLAB = S::ELEMS / WGMMA_BK;                /* stages */
    static const int A_STAGES = MG == 1 && PER_SLAB == 4 ? 4 : 3; /* a slab must be there before its first stage: A_STAGES - 2 stages behind its copies */
    static const int A_STAGE = MG * WGMMA_BM * WGMMA_ROW, RAW_STAGE = UNIT_WGMMA_N * S::PITCH;
    static const int B_AT = A_STAGES * A_STAGE, RAW_AT = B_AT + UNIT_B_STAGES * UNIT_B_STAGE, SHARED = RAW_AT + 2 * RAW_STAGE + 1024;
};

/* x_row(i), i < 128 MG, and w_row(j), j < 128: the address of a row, or NULL for zeros. store(i, j, x, y) gets the sums of row i and rows j and j + 1 of the weights. */
template <int T, int MG, class X, class W, class S> GPU_FN void unit_wgmma_tile(uint8_t *dynamic, X x_row, W w_row, int n_k, S store) {
#ifdef GPU_HAS_WGMMA
    typedef unit_wide<T, MG> F;
    typedef unit_slab<T> R;
    uint8_t *shared = dynamic + (1024 - gpu_shared_at(dynamic) % 1024) % 1024;
    const uint32_t base = gpu_shared_at(shared);
    const int t = threadIdx.x, group = t / 128, lane = t % 32, piece = t % 8, row0 = t / 8, brow = t / 2, half = t % 2;
    const int n_stages = (n_k + WGMMA_BK - 1) / WGMMA_BK, n_slabs = (n_k + R::ELEMS - 1) / R::ELEMS;
    const int64_t row_bytes = (int64_t)(n_k / (gpu_is_k<T>() ? 256 : 32)) * unit_block_bytes<T>();
    const uint8_t *b = w_row(brow), *from[4 * MG];
    uint32_t there = 0; /* a bit a row that is not zeros */
#pragma unroll
    for (int c = 0; c < 4 * MG; c++) {
        from[c] = x_row(row0 + 32 * c);
        if (from[c] != NULL) there |= 1u << c;
        from[c] = from[c] != NULL ? from[c] + piece * 16 : (const uint8_t *)0 + 16; /* never read */
    }
    auto load_a = [&](int i) {
        if (i < n_stages) {
            const bool inside = i * WGMMA_BK + piece * 8 < n_k;
#pragma unroll
            for (int c = 0; c < 4 * MG; c++) {
                gpu_copy16(base + i % F::A_STAGES * F::A_STAGE + (row0 + 32 * c) * WGMMA_ROW + (piece ^ (row0 & 7)) * 16, from[c], inside && (there >> c & 1) ? 16 : 0);
                from[c] += WGMMA_ROW;
            }
        }
        gpu_copy_commit();
    };
    auto bring = [&](int slab) { /* goes with the next commit */
        if (b == NULL || slab >= n_slabs) return;
        const uint8_t *p = b + (int64_t)slab * R::BYTES, *at = p - ((uintptr_t)p & 15) + half * 16;
        const int64_t rest = row_bytes - (int64_t)slab * R::BYTES;
        const int bytes = (rest < R::BYTES ? (int)rest : R::BYTES) + (int)((uintptr_t)p & 15) - half * 16; /* from `at` on */
        const uint32_t to = base + F::RAW_AT + slab % 2 * F::RAW_STAGE + brow * R::PITCH + half * 16;
#pragma unroll
        for (int c = 0; c < (R::PIECES + 1) / 2; c++) {
            const int left = bytes - c * 32;
            if (left > 0) gpu_copy16(to + c * 32, at + c * 32, left >= 16 ? 16 : left);
        }
    };
    auto load_b = [&](unit_raw<T> &r, int i) {
        const int u = 2 * i + half, slab = i / F::PER_SLAB;
        if (b == NULL || u * UNIT_ELEMS >= n_k) return;
        const uint8_t *row = shared + F::RAW_AT + slab % 2 * F::RAW_STAGE + brow * R::PITCH + ((uint32_t)(uintptr_t)b + (uint32_t)slab * (uint32_t)R::BYTES & 15);
        unit_load<T, true>(r, unit_block<T>(row, u % (R::ELEMS / UNIT_ELEMS)), u % 8);
    };
    float acc[MG][64];
#pragma unroll
    for (int i = 0; i < MG * 64; i++) acc[i / 64][i % 64] = 0.0f;
    unit_raw<T> raw;
    bring(0);
    for (int i = 0; i < F::A_STAGES - 2; i++) load_a(i);
    gpu_copy_wait<0>();
    __syncwarp(); /* a row's two threads are of one warp */
    load_b(raw, 0);
    for (int i = 0; i < n_stages; i++) {
        const int u = 2 * i + half;
        if (i % F::PER_SLAB == 0) bring(i / F::PER_SLAB + 1);
        uint8_t *to = shared + F::B_AT + i % UNIT_B_STAGES * UNIT_B_STAGE + brow * WGMMA_ROW;
        uint32_t w[16];
        if (b != NULL && u * UNIT_ELEMS < n_k) {
            unit_unpack<T>(w, raw, u % 8);
        } else {
#pragma unroll
            for (int j = 0; j < 16; j++) w[j] = 0;
        }
#pragma unroll
        for (int j = 0; j < 4; j++) *(uint4 *)(to + ((half * 4 + j) ^ (brow & 7)) * 16) = make_uint4(w[4 * j], w[4 * j + 1], w[4 * j + 2], w[4 * j + 3]);
        gpu_copy_wait<F::A_STAGES - 3>();
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads(); /* stage i is there; nobody multiplies i - 2 any more */
        const uint64_t db = wgmma_descriptor(base + F::B_AT + i % UNIT_B_STAGES * UNIT_B_STAGE);
        wgmma_begin();
#pragma unroll
        for (int g = 0; g < MG; g++) {
            const uint64_t da = wgmma_descriptor(base + i % F::A_STAGES * F::A_STAGE + (group * MG + g) * 64 * WGMMA_ROW);
#pragma unroll
            for (int k = 0; k < WGMMA_BK / 16; k++) wgmma_op<UNIT_WGMMA_N>::run(acc[g], da + 2 * k, db + 2 * k);
        }
        wgmma_commit();
        load_a(i + F::A_STAGES - 2);
        load_b(raw, i + 1);
        wgmma_wait<1>();
    }
    wgmma_wait<0>();
    gpu_copy_wait<0>();
#pragma unroll
    for (int g = 0; g < MG; g++)
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const int row = (group * MG + g) * 64 + t / 32 % 4 * 16 + lane / 4;
            store(row, j * 8 + lane % 4 * 2, acc[g][4 * j], acc[g][4 * j + 1]);
            store(row + 8, j * 8 + lane % 4 * 2, acc[g][4 * j + 2], acc[g][4 * j + 3]);
        }
#else
    (void)dynamic, (void)x_row, (void)w_row, (void)n_k, (void)store;
#endif
}

#endif
