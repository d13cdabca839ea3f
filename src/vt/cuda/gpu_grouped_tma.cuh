/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Grouped products of BF16 rows with BF16 weights on Hopper's matrix units, for groups of many rows.
 *
 * A block stays: it takes tile after tile. A tile is 128 rows of a group's weights (with a gate: 64 of gate and 64 of up) by up to 160 of its rows of x, which are shared out evenly where there are
 * more, in steps of sixteen; the tiles of a group's rows by the same weights are neighbours. One warpgroup brings: weights by tensor copies, rows of x likewise where they follow each other, else piece by
 * piece. The two others take turns with whole tiles, so that one multiplies while the other one stores: through shared memory, where a row of out lies side by side. The weights are the 64 rows of a
 * multiplication, two of which a warpgroup has side by side, rows of x its columns. Layout of a stage: gpu_wgmma.cuh.
 *
 * A tensor copy needs a map of its matrix. Those of the weights are made by a kernel before, from the table of addresses, so that a captured launch follows what the table holds when it is replayed.
 *
 * The order of addition, for an output: k in steps of sixteen, ascending. What else is in the tile changes no bit.
 */
#ifndef HEADRACE_VT_CUDA_GPU_GROUPED_TMA_H
#define HEADRACE_VT_CUDA_GPU_GROUPED_TMA_H

#include "vt/cuda/gpu_grouped_tiles.cuh"

/* BOXES: rows of x follow each other; else they are copied piece by piece. */
template <bool BOXES_, bool GATED_> struct tma_form {
    static const bool BOXES = BOXES_, GATED = GATED_;
    static const int MOST = 160;
    static const int W_ROWS = 128, W_BYTES = W_ROWS * WGMMA_ROW, STAGE = W_BYTES + MOST * WGMMA_ROW, STAGES = 5;
    static const int HALVES = 2, GAP = 144, PUT = 32 * GAP; /* times 64 rows of weights; bytes from row to row of what a warp puts, and of all of it */
    static const int COLUMNS = GATED ? W_ROWS / 2 : W_ROWS, BYTES = STAGES * STAGE + 8 * PUT + 1024; /* COLUMNS: of out */
    static const int BRING_REGISTERS = BOXES ? 56 : 72, MULTIPLY_REGISTERS = BOXES ? 224 : 216;
};

#ifdef GPU_HAS_WGMMA

/* ---- bringing ---- */

/* A stage of weights and, of x, what comes in boxes; one thread. */
template <class F> GPU_FN void tma_bring_stage(const uint8_t *map, const CUtensorMap *of_x, const tma_tile &t, int k, uint32_t at, uint32_t bar) {
    const int n_boxes = F::BOXES ? (t.n + 15) / 16 : 0;
    tma_expect(bar, F::W_BYTES + n_boxes * 16 * WGMMA_ROW);
#pragma unroll
    for (int b = 0; b < 2; b++)
        tma_load(at + b * 64 * WGMMA_ROW, F::GATED ? map + b * TMA_MAP : map, k, F::GATED ? t.at * F::COLUMNS : t.at * F::W_ROWS + b * 64, bar);
    for (int b = 0; b < n_boxes; b++) tma_load(at + F::W_BYTES + b * 16 * WGMMA_ROW, of_x, k, t.begin + b * 16, bar);
}

/* By the 128 threads that bring. Where the rows of the next tile lie is asked early in this one. */
template <class F> GPU_FN void tma_bring(const tma_args &r, const CUtensorMap *of_x, const int32_t *first, uint32_t base, uint32_t full, uint32_t empty) {
    const gpu_grouped &a = r.g;
    const int n_stages = (a.n_k + WGMMA_BK - 1) / WGMMA_BK, piece = threadIdx.x % 8, row0 = threadIdx.x / 8, NX = F::BOXES ? 1 : F::MOST / 16;
    const uint32_t to = F::W_BYTES + row0 * WGMMA_ROW + ((piece ^ (row0 & 7)) << 4);
    if (F::BOXES && threadIdx.x >= 32) return;
    ring_turn turn = {0, 0};
    int slot = blockIdx.x;
    tma_tile t = tma_find<F>(r, first, slot), next = t;
    uint32_t x_at[NX], x_next[NX]; /* in units of sixteen bytes */
    auto prepare = [&](const tma_tile &of) {
        if (of.n < 0) return;
#pragma unroll
        for (int c = 0; c < NX && !F::BOXES; c++) { /* in the place of what is not there is something that is: nobody reads its sums */
            const int i = row0 + 16 * c;
            x_next[c] = (uint32_t)((gpu_group_x(a, of.begin + (i < of.n ? i : 0)) - a.x.data) / 16) + piece;
        }
        if (threadIdx.x != 0) return;
        tma_acquire(r.maps + (int64_t)(2 * of.group) * TMA_MAP);
        if (F::GATED) tma_acquire(r.maps + (int64_t)(2 * of.group + 1) * TMA_MAP);
    };
    prepare(t);
    while (t.n >= 0) {
#pragma unroll
        for (int c = 0; c < NX; c++) x_at[c] = x_next[c];
        const int n_columns = tma_columns(t.n);
        const uint8_t *map = r.maps + (int64_t)(2 * t.group) * TMA_MAP;
        for (int i = 0; i < n_stages; i++) {
            const uint32_t at = base + turn.stage * F::STAGE, bar = full + 8 * turn.stage;
            ring_wait(empty + 8 * turn.stage, turn.round ^ 1);
            if (threadIdx.x == 0) tma_bring_stage<F>(map, of_x, t, i * WGMMA_BK, at, bar);
            if constexpr (!F::BOXES) {
                const int n = i * WGMMA_BK + piece * 8 < a.n_k ? 16 : 0;
                const uint8_t *x_k = a.x.data + i * WGMMA_ROW;
#pragma unroll
                for (int c = 0; c < NX; c++) {
                    if (16 * c >= n_columns) break;
                    gpu_copy16(at + to + c * 2048, x_k + (uint64_t)x_at[c] * 16, n);
                }
                ring_arrive_copied(bar);
            }
            ring_next<F::STAGES>(turn);
            if (i == n_stages / 4) {
                next = tma_find<F>(r, first, slot);
                prepare(next);
            }
        }
        t = next;
    }
}

/* ---- multiplying ---- */

template <class F, int N> GPU_FN void tma_multiply(int n_stages, float (&sums)[2][F::MOST / 2], uint32_t other, uint32_t base, uint32_t full, uint32_t empty, ring_turn turn) {
    float(&low)[N / 2] = reinterpret_cast<float(&)[N / 2]>(sums[0]), (&high)[N / 2] = reinterpret_cast<float(&)[N / 2]>(sums[1]);
    const int lane = threadIdx.x % 32;
    int held = -1; /* a stage that is being multiplied */
    for (int i = 0; i < n_stages; i++) {
        ring_wait(full + 8 * turn.stage, turn.round);
        if (!F::BOXES) ring_fence();
        const uint32_t at = base + turn.stage * F::STAGE;
        const uint64_t da = wgmma_descriptor(at), db = wgmma_descriptor(at + F::W_BYTES);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < WGMMA_BK / 16; k++) {
            wgmma_op<N>::run(low, da + 2 * k, db + 2 * k);
            wgmma_op<N>::run(high, da + 512 + 2 * k, db + 2 * k); /* 64 rows on */
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (held >= 0 && lane == 0) ring_arrive(empty + 8 * held);
        held = turn.stage;
        ring_next<F::STAGES>(turn);
    }
    if (lane == 0) ring_arrive(other); /* the other warpgroup's turn to multiply */
    wgmma_wait<0>();
    if (lane == 0) ring_arrive(empty + 8 * held);
}

/* By the rows that a tile has. */
template <class F> GPU_FN void tma_tile_of(const tma_args &r, const tma_tile &t, uint32_t other, uint32_t stage, uint32_t base, uint32_t full, uint32_t empty, const ring_turn &turn) {
    const int n_stages = (r.g.n_k + WGMMA_BK - 1) / WGMMA_BK;
    float sums[2][F::MOST / 2];
#pragma unroll
    for (int i = 0; i < F::MOST / 2; i++) sums[0][i] = 0.0f, sums[1][i] = 0.0f;
    switch ((t.n + 15) / 16) {
    case 5:
        tma_multiply<F, 80>(n_stages, sums, other, base, full, empty, turn);
        break;
    case 6:
        tma_multiply<F, 96>(n_stages, sums, other, base, full, empty, turn);
        break;
    case 7:
        tma_multiply<F, 112>(n_stages, sums, other, base, full, empty, turn);
        break;
    case 8:
        tma_multiply<F, 128>(n_stages, sums, other, base, full, empty, turn);
        break;
    case 9:
        tma_multiply<F, 144>(n_stages, sums, other, base, full, empty, turn);
        break;
    case 10:
        tma_multiply<F, 160>(n_stages, sums, other, base, full, empty, turn);
        break;
    default:
        tma_multiply<F, 64>(n_stages, sums, other, base, full, empty, turn);
    }
    tma_store<F>(r, t, stage, sums);
}
#endif

template <class F> __global__ void __launch_bounds__(RING_THREADS, 1) grouped_tma_kernel(const __grid_constant__ tma_args r, const __grid_constant__ CUtensorMap of_x) {
#ifdef GPU_HAS_WGMMA
    extern __shared__ uint8_t ring_shared[];
    __shared__ uint64_t bars[2 * F::STAGES + 2];
    __shared__ int32_t places[TMA_FIRST + 1];
    const uint32_t base = (gpu_shared_at(ring_shared) + 1023) / 1024 * 1024, full = gpu_shared_at(bars), empty = full + 8 * F::STAGES, turns = empty + 8 * F::STAGES;
    const int32_t *first = r.g.first;
    if (threadIdx.x < F::STAGES) {
        ring_init(full + 8 * threadIdx.x, F::BOXES ? 1 : 129);
        ring_init(empty + 8 * threadIdx.x, 4);
        if (threadIdx.x < 2) ring_init(turns + 8 * threadIdx.x, 4);
        tma_fence_init();
    }
    if (r.g.n_groups <= TMA_FIRST) {
        for (int i = threadIdx.x; i <= r.g.n_groups; i += RING_THREADS) places[i] = first[i];
        first = places;
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        ring_fewer_registers<F::BRING_REGISTERS>();
        tma_bring<F>(r, &of_x, first, base, full, empty);
    } else {
        ring_more_registers<F::MULTIPLY_REGISTERS>();
        const int n_stages = (r.g.n_k + WGMMA_BK - 1) / WGMMA_BK, group = threadIdx.x / 128 - 1;
        ring_turn turn = {0, 0};
        int slot = blockIdx.x;
        for (int i = 0;; i++) {
            const tma_tile t = tma_find<F>(r, first, slot);
            if (t.n < 0) break;
            if (i % 2 == group) {
                ring_wait(turns + 8 * group, (uint32_t)(i / 2 + 1 - group) & 1); /* only the next stage to come may be waited for: a parity does not tell it from the one after that */
                tma_tile_of<F>(r, t, turns + 8 * (group ^ 1), base + F::STAGES * F::STAGE + (threadIdx.x / 32 - 4) * F::PUT, base, full, empty, turn);
            }
            turn.round ^= (turn.stage + n_stages) / F::STAGES & 1;
            turn.stage = (turn.stage + n_stages) % F::STAGES;
        }
    }
#else
    (void)r, (void)of_x;
#endif
}

/* ---- launching ---- */

template <class F> static status launch_tma(vt_queue *q, const vt_call *call, error *err) {
    tma_args r = {gpu_grouped_of(call), (const uint8_t *)((cuda_queue *)q->handle)->workspace, 0, false};
    const gpu_grouped &a = r.g;
    const int64_t blocks = gpu_device(q)->n_multiprocessors;
    const uint64_t at = (uint64_t)(uintptr_t)a.out.data | (uint64_t)a.out.stride[0];
    r.n_tiles = (int32_t)gpu_ceil(a.n_gated ? a.n_gated : a.n_n, F::COLUMNS);
    r.quads = at % (a.out.dtype == VT_F32 ? 16 : 8) == 0;
    const int64_t slots = r.n_tiles * gpu_group_slots(call, F::MOST);
    if (slots > INT32_MAX - 2 * blocks) return cuda_refuse(err, "a grouped product of such sizes");
    CUtensorMap of_x;
    if (!tma_map_of(&of_x, 2, a.x.data, (uint64_t)a.x.dim[0], (uint64_t)a.n_k, (uint64_t)a.x.stride[0], 16)) return cuda_refuse(err, "a grouped product of such rows");
    TRY(tma_make_maps(q, call, a, 2, 64, err));
    TRY(cuda_result(cudaFuncSetAttribute(grouped_tma_kernel<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, F::BYTES), "shared memory", err));
    grouped_tma_kernel<F><<<(unsigned)(slots < blocks ? slots : blocks), RING_THREADS, F::BYTES, gpu_stream(q)>>>(r, of_x);
    return gpu_launched(call, err);
}

#endif
