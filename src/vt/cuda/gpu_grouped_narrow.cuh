/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Grouped products of many BF16 rows with FP8 weights on Hopper's matrix units: the tiles of gpu_grouped_tiles.cuh, of up to 144 rows, with a warpgroup between that makes BF16 of weights. Of four
 * warpgroups one brings rows of x and, by tensor copies into a ring of its own, weights as they are stored; one reads those and writes them to the stages as BF16; two multiply, each by 64 of a tile's
 * 128 rows of weights.
 *
 * The order of addition, for an output: that of gpu_grouped_ring.cuh.
 */
#ifndef HEADRACE_VT_CUDA_GPU_GROUPED_NARROW_H
#define HEADRACE_VT_CUDA_GPU_GROUPED_NARROW_H

#include "vt/cuda/gpu_grouped_tiles.cuh"

template <bool BOXES_, int TS_> struct narrow_form {
    static const int TS = TS_, MOST = 144, HALVES = 1;
    static const bool BOXES = BOXES_, GATED = false;
    static const int W_ROWS = 128, COLUMNS = 128, W_BYTES = W_ROWS * WGMMA_ROW, STAGE = W_BYTES + MOST * WGMMA_ROW, STAGES = 4, RAW = W_ROWS * WGMMA_BK, RAWS = 6;
    static const int GAP = 80, PUT = 32 * GAP, BYTES = STAGES * STAGE + RAWS * RAW + 8 * PUT + 1024;
    static const int COPIERS = 96;
};

static const int NARROW_THREADS = 512;

struct narrow_args {
    tma_args t;
    gpu_grouped_scaled s;
};

#ifdef GPU_HAS_WGMMA

/* Weights as they are stored, by one thread. */
template <class F> GPU_FN void narrow_bring_weights(const narrow_args &r, const int32_t *first, uint32_t raws, uint32_t full, uint32_t empty) {
    const int n_stages = (r.s.g.n_k + WGMMA_BK - 1) / WGMMA_BK;
    ring_turn turn = {0, 0};
    int slot = blockIdx.x;
    for (;;) {
        const tma_tile t = tma_find<F>(r.t, first, slot);
        if (t.n < 0) break;
        const uint8_t *map = r.t.maps + (int64_t)(2 * t.group) * TMA_MAP;
        if (threadIdx.x % 32 == 0) {
            tma_acquire(map);
            for (int i = 0; i < n_stages; i++) {
                ring_wait(empty + 8 * turn.stage, turn.round ^ 1);
                tma_expect(full + 8 * turn.stage, F::RAW);
                tma_load(raws + turn.stage * F::RAW, map, i * WGMMA_BK, t.at * F::W_ROWS, full + 8 * turn.stage);
                ring_next<F::RAWS>(turn);
            }
        }
        __syncwarp();
    }
}

/* Rows of x, by the first 96 threads, or by one. */
template <class F> GPU_FN void narrow_bring_rows(const narrow_args &r, const CUtensorMap *of_x, const int32_t *first, uint32_t base, uint32_t full, uint32_t empty) {
    const gpu_grouped &a = r.s.g;
    const int n_stages = (a.n_k + WGMMA_BK - 1) / WGMMA_BK, piece = threadIdx.x % 8, row0 = threadIdx.x / 8, STEP = F::COPIERS / 8, NX = F::BOXES ? 1 : F::MOST / STEP;
    static_assert(F::MOST % (F::COPIERS / 8) == 0, "whole passes");
    if (F::BOXES && threadIdx.x >= 32) return;
    ring_turn turn = {0, 0};
    int slot = blockIdx.x;
    for (;;) {
        const tma_tile t = tma_find<F>(r.t, first, slot);
        if (t.n < 0) break;
        const int n_columns = tma_columns(t.n), n_boxes = (t.n + 15) / 16;
        uint32_t x_at[NX];
        if (!F::BOXES) {
#pragma unroll
            for (int c = 0; c < NX; c++) x_at[c] = (uint32_t)((gpu_group_x(a, t.begin + (row0 + STEP * c < t.n ? row0 + STEP * c : 0)) - a.x.data) / 16) + piece;
        }
        for (int i = 0; i < n_stages; i++) {
            const uint32_t at = base + turn.stage * F::STAGE + F::W_BYTES, bar = full + 8 * turn.stage;
            ring_wait(empty + 8 * turn.stage, turn.round ^ 1);
            if (F::BOXES) {
                if (threadIdx.x == 0) {
                    tma_expect(bar, n_boxes * 16 * WGMMA_ROW);
                    for (int b = 0; b < n_boxes; b++) tma_load(at + b * 16 * WGMMA_ROW, of_x, i * WGMMA_BK, t.begin + b * 16, bar);
                }
            } else {
                const int n = i * WGMMA_BK + piece * 8 < a.n_k ? 16 : 0;
                const uint8_t *x_k = a.x.data + i * WGMMA_ROW;
#pragma unroll
                for (int c = 0; c < NX; c++) {
                    const int row = row0 + STEP * c;
                    if (STEP * c >= n_columns) break;
                    gpu_copy16(at + row * WGMMA_ROW + ((piece ^ (row & 7)) << 4), x_k + (uint64_t)x_at[c] * 16, n);
                }
                ring_arrive_copied(bar);
            }
            ring_next<F::STAGES>(turn);
        }
    }
}

/* Sixteen FP8 to BF16, two pieces of a row of a stage. */
GPU_FN void narrow_put(uint4 w, uint32_t row_at, int piece, int row) {
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint4 x;
        narrow_e4m3(words[2 * h], x.x, x.y);
        narrow_e4m3(words[2 * h + 1], x.z, x.w);
        const uint32_t low = narrow_nan_e4m3(words[2 * h]), high = narrow_nan_e4m3(words[2 * h + 1]);
        if ((low | high) != 0) {
            x.x = ring_nan_pair(x.x, low, 0), x.y = ring_nan_pair(x.y, low, 2);
            x.z = ring_nan_pair(x.z, high, 0), x.w = ring_nan_pair(x.w, high, 2);
        }
        asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(row_at + (((piece + h) ^ (row & 7)) << 4)), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
    }
}

template <class F> GPU_FN void narrow_convert(const narrow_args &r, const int32_t *first, uint32_t base, uint32_t full, uint32_t empty, uint32_t raws, uint32_t raw_full, uint32_t raw_empty) {
    const int n_stages = (r.s.g.n_k + WGMMA_BK - 1) / WGMMA_BK, t0 = threadIdx.x % 128, chunk = t0 % 4, row0 = t0 / 4, lane = threadIdx.x % 32;
    ring_turn turn = {0, 0}, raw = {0, 0};
    int slot = blockIdx.x;
    for (;;) {
        const tma_tile t = tma_find<F>(r.t, first, slot);
        if (t.n < 0) break;
        for (int i = 0; i < n_stages; i++) {
            uint4 w[4];
            ring_wait(raw_full + 8 * raw.stage, raw.round);
            const uint32_t from = raws + raw.stage * F::RAW + row0 * WGMMA_BK + chunk * 16;
#pragma unroll
            for (int c = 0; c < 4; c++) asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(w[c].x), "=r"(w[c].y), "=r"(w[c].z), "=r"(w[c].w) : "r"(from + c * 32 * WGMMA_BK) : "memory");
            ring_wait(empty + 8 * turn.stage, turn.round ^ 1);
            const uint32_t at = base + turn.stage * F::STAGE;
#pragma unroll
            for (int c = 0; c < 4; c++) narrow_put(w[c], at + (row0 + 32 * c) * WGMMA_ROW, 2 * chunk, row0);
            ring_fence();
            __syncwarp();
            if (lane == 0) ring_arrive(raw_empty + 8 * raw.stage), ring_arrive(full + 8 * turn.stage);
            ring_next<F::STAGES>(turn);
            ring_next<F::RAWS>(raw);
        }
    }
}

template <class F, int N> GPU_FN void narrow_multiply(const narrow_args &r, const tma_tile &t, float (&sums)[2][F::MOST / 2], uint32_t base, uint32_t full, uint32_t empty, ring_turn turn) {
    const gpu_grouped &a = r.s.g;
    const int group = threadIdx.x / 128 - 2, lane = threadIdx.x % 32, n_stages = (a.n_k + WGMMA_BK - 1) / WGMMA_BK, of_block = r.s.block_k < a.n_k ? r.s.block_k / WGMMA_BK : n_stages;
    float(&acc)[N / 2] = reinterpret_cast<float(&)[N / 2]>(sums[1]);
    const uint8_t *scale[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int n = t.at * F::W_ROWS + group * 64 + (int)threadIdx.x / 32 % 4 * 16 + lane / 4 + 8 * h;
        scale[h] = a.extra_table[t.group] + (int64_t)(n < a.n_n ? n : a.n_n - 1) / r.s.block_n * r.s.scale_stride;
    }
    int held = -1;
    for (int from = 0, block = 0; from < n_stages; from += of_block, block++) {
        const int to = from + of_block < n_stages ? from + of_block : n_stages;
        float by[2];
#pragma unroll
        for (int h = 0; h < 2; h++) by[h] = narrow_scale<F::TS>(scale[h], block);
#pragma unroll
        for (int j = 0; j < N / 2; j++) acc[j] = 0.0f;
        for (int i = from; i < to; i++) {
            ring_wait(full + 8 * turn.stage, turn.round);
            ring_fence();
            const uint32_t at = base + turn.stage * F::STAGE;
            const uint64_t da = wgmma_descriptor(at + group * 64 * WGMMA_ROW), db = wgmma_descriptor(at + F::W_BYTES);
            wgmma_begin();
#pragma unroll
            for (int k = 0; k < WGMMA_BK / 16; k++) wgmma_op<N>::run(acc, da + 2 * k, db + 2 * k);
            wgmma_commit();
            wgmma_wait<1>();
            if (held >= 0 && lane == 0) ring_arrive(empty + 8 * held);
            held = turn.stage;
            ring_next<F::STAGES>(turn);
        }
        wgmma_wait<0>();
        if (lane == 0) ring_arrive(empty + 8 * held);
        held = -1;
#pragma unroll
        for (int j = 0; j < N / 2; j++) sums[0][j] = fmaf(acc[j], by[j / 2 % 2], sums[0][j]);
    }
}

template <class F> GPU_FN void narrow_tile_of(const narrow_args &r, const tma_tile &t, uint32_t stage, uint32_t base, uint32_t full, uint32_t empty, const ring_turn &turn) {
    float sums[2][F::MOST / 2];
#pragma unroll
    for (int i = 0; i < F::MOST / 2; i++) sums[0][i] = 0.0f;
    switch ((t.n + 15) / 16) {
    case 5:
        narrow_multiply<F, 80>(r, t, sums, base, full, empty, turn);
        break;
    case 6:
        narrow_multiply<F, 96>(r, t, sums, base, full, empty, turn);
        break;
    case 7:
        narrow_multiply<F, 112>(r, t, sums, base, full, empty, turn);
        break;
    case 8:
        narrow_multiply<F, 128>(r, t, sums, base, full, empty, turn);
        break;
    case 9:
        narrow_multiply<F, 144>(r, t, sums, base, full, empty, turn);
        break;
    default:
        narrow_multiply<F, 64>(r, t, sums, base, full, empty, turn);
    }
    tma_store<F>(r.t, t, stage, sums);
}
#endif

template <class F> __global__ void __launch_bounds__(NARROW_THREADS, 1) grouped_narrow_kernel(const __grid_constant__ narrow_args r, const __grid_constant__ CUtensorMap of_x) {
#ifdef GPU_HAS_WGMMA
    extern __shared__ uint8_t ring_shared[];
    __shared__ uint64_t bars[2 * F::STAGES + 2 * F::RAWS];
    __shared__ int32_t places[TMA_FIRST + 1];
    const uint32_t base = (gpu_shared_at(ring_shared) + 1023) / 1024 * 1024, full = gpu_shared_at(bars), empty = full + 8 * F::STAGES, raw_full = empty + 8 * F::STAGES, raw_empty = raw_full + 8 * F::RAWS;
    const uint32_t raws = base + F::STAGES * F::STAGE, puts = raws + F::RAWS * F::RAW;
    const int32_t *first = r.s.g.first;
    if (threadIdx.x < F::STAGES) {
        ring_init(full + 8 * threadIdx.x, 4 + (F::BOXES ? 1 : F::COPIERS));
        ring_init(empty + 8 * threadIdx.x, 8);
    }
    if (threadIdx.x < F::RAWS) {
        ring_init(raw_full + 8 * threadIdx.x, 1);
        ring_init(raw_empty + 8 * threadIdx.x, 4);
    }
    tma_fence_init();
    if (r.s.g.n_groups <= TMA_FIRST) {
        for (int i = threadIdx.x; i <= r.s.g.n_groups; i += NARROW_THREADS) places[i] = first[i];
        first = places;
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        ring_fewer_registers<64>();
        if (threadIdx.x >= F::COPIERS)
            narrow_bring_weights<F>(r, first, raws, raw_full, raw_empty);
        else
            narrow_bring_rows<F>(r, &of_x, first, base, full, empty);
    } else if (threadIdx.x < 256) {
        ring_fewer_registers<64>();
        narrow_convert<F>(r, first, base, full, empty, raws, raw_full, raw_empty);
    } else {
        ring_more_registers<192>();
        const int n_stages = (r.s.g.n_k + WGMMA_BK - 1) / WGMMA_BK;
        ring_turn turn = {0, 0};
        int slot = blockIdx.x;
        for (;;) {
            const tma_tile t = tma_find<F>(r.t, first, slot);
            if (t.n < 0) break;
            narrow_tile_of<F>(r, t, puts + (threadIdx.x / 32 - 8) * F::PUT, base, full, empty, turn);
            turn.round ^= (turn.stage + n_stages) / F::STAGES & 1;
            turn.stage = (turn.stage + n_stages) % F::STAGES;
        }
    }
#else
    (void)r, (void)of_x;
#endif
}

/* ---- launching ---- */

template <class F> static status launch_narrow(vt_queue *q, const vt_call *call, const gpu_grouped_scaled &s, error *err) {
    const uint64_t at = (uint64_t)(uintptr_t)s.g.out.data | (uint64_t)s.g.out.stride[0];
    const narrow_args r = {{s.g, (const uint8_t *)((cuda_queue *)q->handle)->workspace, (int32_t)gpu_ceil(s.g.n_n, F::W_ROWS), at % 16 == 0}, s};
    const int64_t blocks = gpu_device(q)->n_multiprocessors, slots = r.t.n_tiles * gpu_group_slots(call, F::MOST);
    if (slots > INT32_MAX - 2 * blocks) return cuda_refuse(err, "a grouped product of such sizes");
    CUtensorMap of_x;
    if (!tma_map_of(&of_x, 2, s.g.x.data, (uint64_t)s.g.x.dim[0], (uint64_t)s.g.n_k, (uint64_t)s.g.x.stride[0], 16)) return cuda_refuse(err, "a grouped product of such rows");
    TRY(tma_make_maps(q, call, s.g, 1, F::W_ROWS, err));
    TRY(cuda_result(cudaFuncSetAttribute(grouped_narrow_kernel<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, F::BYTES), "shared memory", err));
    grouped_narrow_kernel<F><<<(unsigned)(slots < blocks ? slots : blocks), NARROW_THREADS, F::BYTES, gpu_stream(q)>>>(r, of_x);
    return gpu_launched(call, err);
}

#endif
