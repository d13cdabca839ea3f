/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the grouped products of many BF16 rows on Hopper's matrix units share (gpu_grouped_narrow.cuh, gpu_grouped_tma.cuh): a block stays and takes tile after tile. A tile is 128 rows of a group's weights by up to
 * MOST of its rows of x, which are shared out evenly where there are more, in steps of sixteen; the tiles of a group's rows by the same weights are neighbours. Sums go through shared memory, where a
 * row of out lies side by side.
 *
 * A tensor copy needs a map of its matrix. Those of the weights are made by a kernel before, from the table of addresses, so that a captured launch follows what the table holds when it is replayed.
 */
#ifndef HEADRACE_VT_CUDA_GPU_GROUPED_TILES_H
#define HEADRACE_VT_CUDA_GPU_GROUPED_TILES_H

#include "vt/cuda/gpu_grouped_ring.cuh"
#include "vt/cuda/gpu_quads.cuh"
#include "vt/cuda/gpu_tma.cuh"

static const int TMA_FIRST = 512; /* groups whose places are kept in shared memory */

struct tma_args {
    gpu_grouped g;
    const uint8_t *maps; /* a place for two a group: of its weights, or of gate and of up */
    int32_t n_tiles;
    bool quads; /* four neighbours of out lie on an address of their size */
};

#ifdef GPU_HAS_WGMMA

struct tma_tile {
    int group, begin, n, at; /* places begin .. begin + n - 1, tile of weights */
};

/* The next tile that has something to do, from slot on; n < 0: none is left. */
template <class F> GPU_FN tma_tile tma_find(const tma_args &r, const int32_t *first, int &slot) {
    const gpu_grouped &a = r.g;
    for (;; slot += gridDim.x) {
        const gpu_group_found f = gpu_find_group(first, a.n_groups, F::MOST, slot / r.n_tiles);
        if (f.group < 0) return {0, 0, -1, 0};
        const int rows = f.end - f.begin, shares = (rows + F::MOST - 1) / F::MOST, local = slot - f.before * r.n_tiles, share = local % shares;
        const int per = ((rows + shares - 1) / shares + 15) / 16 * 16, begin = f.begin + share * per, left = f.end - begin;
        if (left <= 0 || !a.table[f.group] || (a.extra_table && !a.extra_table[f.group])) continue;
        slot += gridDim.x;
        return {f.group, begin, left < per ? left : per, local / shares};
    }
}

/* What is multiplied of the rows of x. */
GPU_FN int tma_columns(int n) { return n <= 64 ? 64 : (n + 15) / 16 * 16; }

/* ---- storing ---- */

/* What a warp has of 32 rows of x in its part of shared memory, [row][32 weights and a gap], to out: without a gate weights base + 64 h .. base + 64 h + 15, h = 0, 1; with one the gates and the ups of
 * columns base .. base + 15. */
template <class F> GPU_FN void tma_put(const tma_args &r, const uint8_t *bias, uint8_t *out, int n_rows, int base, uint32_t from) {
    const gpu_grouped &a = r.g;
    const int lane = threadIdx.x % 32, part = lane % 4 * 4, STEP = F::GATED ? 8 : 8 / F::HALVES;
    const int row0 = F::GATED ? lane / 4 : lane / (4 * F::HALVES), column = F::GATED ? base + part : base + lane / 4 % F::HALVES * 64 + part, n_columns = F::GATED ? a.n_gated : a.n_n;
    const int last = n_columns - column < 4 ? n_columns - column : 4; /* columns there are */
    if (last <= 0) return;
#pragma unroll 1
    for (int row = row0; row < n_rows; row += STEP) {
        const uint32_t at = from + row * F::GAP + (F::GATED ? part : lane % (4 * F::HALVES) * 4) * 4;
        float v[4], u[4];
        asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "r"(at));
        if (F::GATED) asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(u[0]), "=f"(u[1]), "=f"(u[2]), "=f"(u[3]) : "r"(at + 64));
        if (bias) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (i >= last) break;
                v[i] += gpu_get(a.bias_dtype, bias, F::GATED ? gpu_gate_row(a, column + i, false) : column + i);
                if (F::GATED) u[i] += gpu_get(a.bias_dtype, bias, gpu_gate_row(a, column + i, true));
            }
        }
        if (F::GATED) {
            if (a.gate == VT_GATE_SWIGLU_CLAMP) {
#pragma unroll
                for (int i = 0; i < 4; i++) v[i] = gpu_swiglu(v[i], u[i], a.swiglu.alpha, a.swiglu.limit);
            } else if (a.gate == VT_GATE_SILU) {
#pragma unroll
                for (int i = 0; i < 4; i++) v[i] = gpu_silu(v[i]) * u[i];
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++) v[i] = gpu_gelu(v[i]) * u[i];
            }
        }
        uint8_t *to = out + row * a.out.stride[0];
        if (r.quads && last == 4) {
            gpu_set4(a.out.dtype, to, column / 4, make_float4(v[0], v[1], v[2], v[3]));
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (i < last) gpu_set(a.out.dtype, to, column + i, v[i]);
        }
    }
}

/* By a warp: what it has summed. sums[h]: of this thread's weight rows line and line + 8 of the h-th 64 for rows 8 j + 2 (lane % 4) and the next one. */
template <class F> GPU_FN void tma_store(const tma_args &r, const tma_tile &t, uint32_t stage, float (&sums)[2][F::MOST / 2]) {
    const gpu_grouped &a = r.g;
    const int lane = threadIdx.x % 32, quad = lane % 4, line = lane / 4, slab = threadIdx.x / 32 % 4 * 16 + (F::HALVES == 1 ? threadIdx.x / 128 % 2 * 64 : 0);
    const uint8_t *bias = a.bias_table ? a.bias_table[t.group] : NULL;
    const int base = t.at * F::COLUMNS + slab;
    uint8_t *out = a.out.data + (int64_t)t.begin * a.out.stride[0];
    const uint32_t to = stage + 2 * quad * F::GAP + line * 4;
#pragma unroll
    for (int c = 0; c < (F::MOST + 31) / 32; c++) {
        if (32 * c >= t.n) break;
#pragma unroll
        for (int j = 0; j < 4 && 16 * c + 4 * j < F::MOST / 2; j++)
#pragma unroll
            for (int h = 0; h < 4 * F::HALVES; h++) /* the 64, the 8 of them, the row */
                asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + (8 * j + h % 2) * F::GAP + (h / 4 * 16 + h / 2 % 2 * 8) * 4), "f"(sums[h / 4][16 * c + 4 * j + h % 4]) : "memory");
        __syncwarp();
        tma_put<F>(r, bias, out + (int64_t)32 * c * a.out.stride[0], t.n - 32 * c < 32 ? t.n - 32 * c : 32, base, stage);
        __syncwarp();
    }
}
#endif

/* The maps of the weights of all groups, with a gate two each, from one that is like them all but for the address. */
static __global__ void grouped_maps_kernel(const __grid_constant__ CUtensorMap like, gpu_grouped a, int64_t up, uint8_t *maps) {
#ifdef GPU_HAS_WGMMA
    const int i = blockIdx.x * blockDim.x + threadIdx.x, group = i / 2;
    if (group >= a.n_groups || (i % 2 && !a.n_gated)) return;
    const uint8_t *w = a.table[group];
    if (i % 2 && w) w = a.extra_table ? a.extra_table[group] : w + up;
    if (!w) return;
    uint4 *to = (uint4 *)(maps + (int64_t)i * TMA_MAP);
    const uint4 *from = (const uint4 *)&like;
#pragma unroll
    for (int j = 0; j < TMA_MAP / 16; j++) to[j] = from[j];
    tma_set_address(to, w);
    tma_release();
#else
    (void)like, (void)a, (void)up, (void)maps;
#endif
}

/* ---- launching ---- */

/* Maps of the weights of every group, two each, in the queue's workspace. bytes: of a weight. */
static inline status tma_make_maps(vt_queue *q, const vt_call *call, const gpu_grouped &a, int bytes, int box_rows, error *err) {
    const bool between = a.n_gated && !a.extra_table && a.swiglu.interleaved;
    CUtensorMap like;
    if (!tma_map_of(&like, bytes, a.x.data, (uint64_t)(a.n_gated ? a.n_gated : a.n_n), (uint64_t)a.n_k, (uint64_t)a.w_stride[0] * (between ? 2 : 1), (uint32_t)box_rows))
        return cuda_refuse(err, "a grouped product of such weights");
    grouped_maps_kernel<<<(unsigned)gpu_ceil(2 * (int64_t)a.n_groups, 64), 64, 0, gpu_stream(q)>>>(like, a, a.w_stride[0] * (between ? 1 : a.n_gated), (uint8_t *)((cuda_queue *)q->handle)->workspace);
    return gpu_launched(call, err);
}

/* The workspace is the main stream's; it holds the maps of so many groups. */
static inline bool tma_has_room(const vt_queue *q, const vt_call *call) {
    const cuda_queue *queue = (const cuda_queue *)q->handle;
    return queue->stream == queue->main && 2 * TMA_MAP * call->t[2]->dim[0] <= CUDA_WORKSPACE_BYTES;
}

#endif
