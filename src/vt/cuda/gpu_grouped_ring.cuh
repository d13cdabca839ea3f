/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Grouped products of BF16 rows on Hopper's matrix units, for groups of more than a few rows: weights of BF16, or of FP8 and MXFP4, which are written to shared memory as BF16.
 *
 * A block stays: it takes tile after tile. A tile is 128 rows of a group's weights by up to MOST of its rows of x, which are shared out evenly where there are more, so that little is multiplied
 * for rows that are not there; the tiles of a group's rows by the same weights are neighbours, so that those come from memory once. The weights are the 64 rows of a multiplication, the rows of x its
 * columns, as many as there are in steps of 32. One warpgroup gathers rows and brings weights in stages of 64 k, as far ahead as the ring has room, also into the next tile; two multiply. Layout
 * of a stage: gpu_wgmma.cuh.
 *
 * The order of addition, for an output: k in steps of sixteen, ascending. FP8: a sum over a block of scales, then total = fma(sum, scale, total). MXFP4: the scale goes into the weight, exactly.
 * A NaN weight makes its output NaN. What else is in the tile changes no bit.
 */
#ifndef HEADRACE_VT_CUDA_GPU_GROUPED_RING_H
#define HEADRACE_VT_CUDA_GPU_GROUPED_RING_H

#include "vt/cuda/gpu_grouped_scaled.cuh"
#include "vt/cuda/gpu_ring.cuh"

template <int TB_, int TS_, int MOST_, bool GATED_> struct ring_form {
    static const int TB = TB_, TS = TS_, MOST = MOST_; /* TS: dtype of scales */
    static const bool GATED = GATED_, NARROW = TB != VT_BF16, SCALED = TB == VT_F8_E4M3;
    static const int W_BYTES = 128 * WGMMA_ROW, STAGE = W_BYTES + MOST * WGMMA_ROW, ROOM = 196608 / STAGE, STAGES = ROOM < 8 ? ROOM : 8, BYTES = STAGES * STAGE + 1024;
    static const int LEAST = MOST > 64 ? 64 : 32; /* columns of the narrowest multiplication */
    static const int BRING_REGISTERS = SCALED ? 104 : 72, MULTIPLY_REGISTERS = SCALED ? 200 : 216;
};

static const int RING_THREADS = 384, RING_FIRST = 1024; /* groups whose places are kept in shared memory */

struct ring_args {
    gpu_grouped_scaled s;
    int32_t n_tiles; /* tiles of weights */
    bool pairs;      /* two neighbours of out lie on an address of their size */
};

/* Once in the code, not for each of a thread's sums; numbers alone, so that nothing goes through memory. */
static __device__ __noinline__ float ring_gate(int gate, float alpha, float limit, float g, float u) {
    vt_swiglu_params p = {};
    p.alpha = alpha;
    p.limit = limit;
    return gpu_gate(gate, p, g, u);
}

#ifdef GPU_HAS_WGMMA

struct ring_tile {
    int group, begin, n, n0; /* places begin .. begin + n - 1, rows of weights from n0 (of a gated output: twice its columns) */
};

/* n < 0: no tile is left. n = 0: nothing to do. */
template <class F> GPU_FN ring_tile ring_find(const ring_args &r, const int32_t *first, int slot) {
    const gpu_grouped &a = r.s.g;
    const gpu_group_found f = gpu_find_group(first, a.n_groups, F::MOST, slot / r.n_tiles);
    if (f.group < 0) return {0, 0, -1, 0};
    const int rows = f.end - f.begin, shares = (rows + F::MOST - 1) / F::MOST, local = slot - f.before * r.n_tiles, share = local % shares;
    const int per = ((rows + shares - 1) / shares + 31) / 32 * 32, begin = f.begin + share * per, left = f.end - begin;
    const bool there = a.table[f.group] && (F::SCALED || F::GATED || F::NARROW ? !a.extra_table || a.extra_table[f.group] : true);
    return {f.group, begin, !there || left < 0 ? 0 : left < per ? left : per, local / shares * 128};
}

/* ---- bringing ---- */

/* Narrow weights of a row in a stage: 64 k. */
template <class F> struct ring_raw {
    static const int WORDS = F::TB == VT_F8_E4M3 ? 4 : 2;
    uint4 v[WORDS];
    uint32_t e; /* MXFP4: two scales */
};

template <class F> GPU_FN void ring_load_raw(ring_raw<F> &w, const uint8_t *row, const uint8_t *scale, int k, int n_k) {
    const int per16 = F::TB == VT_F8_E4M3 ? 16 : 32;
#pragma unroll
    for (int i = 0; i < ring_raw<F>::WORDS; i++) w.v[i] = k + i * per16 < n_k ? gpu_stream16(row + (F::TB == VT_F8_E4M3 ? k : k / 2) + 16 * i) : make_uint4(0, 0, 0, 0);
    if constexpr (F::TB == VT_F4_E2M1) {
        w.e = k < n_k ? scale[k / 32] : 0;
        w.e |= k + 32 < n_k ? (uint32_t)scale[k / 32 + 1] << 8 : 0;
    }
}

/* Pairs of BF16 whose weights are NaN: those of the two bytes of an FP8 word from `byte` on. */
GPU_FN uint32_t ring_nan_pair(uint32_t pair, uint32_t bad, int byte) {
    if (bad >> (8 * byte + 7) & 1) pair = (pair & 0xFFFF0000u) | 0x7FC0u;
    if (bad >> (8 * byte + 15) & 1) pair = (pair & 0xFFFFu) | 0x7FC00000u;
    return pair;
}

template <class F> GPU_FN void ring_store_raw(const ring_raw<F> &w, uint32_t row_at, int row) {
    const uint32_t *words = &w.v[0].x;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint4 x;
        if constexpr (F::TB == VT_F8_E4M3) {
            narrow_e4m3(words[2 * i], x.x, x.y);
            narrow_e4m3(words[2 * i + 1], x.z, x.w);
            const uint32_t low = narrow_nan_e4m3(words[2 * i]), high = narrow_nan_e4m3(words[2 * i + 1]);
            if ((low | high) != 0) {
                x.x = ring_nan_pair(x.x, low, 0), x.y = ring_nan_pair(x.y, low, 2);
                x.z = ring_nan_pair(x.z, high, 0), x.w = ring_nan_pair(x.w, high, 2);
            }
        } else {
            const uint32_t e = i < 4 ? w.e & 255 : w.e >> 8, by = narrow_scale_e2m1(e), rest = narrow_rest_e2m1(e);
            uint32_t p[4] = {narrow_e2m1<0>(words[i], by), narrow_e2m1<1>(words[i], by), narrow_e2m1<2>(words[i], by), narrow_e2m1<3>(words[i], by)};
            if (e > 128) {
#pragma unroll
                for (int j = 0; j < 4; j++) p[j] = narrow_mul(p[j], rest);
            }
            x = make_uint4(__byte_perm(p[0], p[1], 0x5410), __byte_perm(p[2], p[3], 0x5410), __byte_perm(p[0], p[1], 0x7632), __byte_perm(p[2], p[3], 0x7632));
        }
        asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(row_at + ((i ^ (row & 7)) << 4)), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
    }
}

/* The stages of a tile, by the 128 threads that bring. */
template <class F> GPU_FN void ring_bring(const ring_args &r, const ring_tile &t, uint32_t base, uint32_t full, uint32_t empty, ring_turn &turn) {
    const gpu_grouped &a = r.s.g;
    const int piece = threadIdx.x % 8, row0 = threadIdx.x / 8, CX = F::MOST / 16, n_stages = (a.n_k + WGMMA_BK - 1) / WGMMA_BK;
    const int n_c = ((t.n + 31) / 32 * 32 < F::LEAST ? F::LEAST : (t.n + 31) / 32 * 32) / 16; /* what is multiplied of the rows of x */
    const uint8_t *w = a.table[t.group], *scale = NULL;
    uint32_t x_at[CX], w_at[8]; /* of rows, in units of sixteen bytes */
    /* In the place of what is not there is something that is: nobody reads its sums. */
#pragma unroll
    for (int c = 0; c < CX; c++) {
        const int i = row0 + 16 * c;
        x_at[c] = (uint32_t)((gpu_group_x(a, t.begin + (i < t.n ? i : 0)) - a.x.data) / 16) + piece;
    }
    if constexpr (F::NARROW) { /* one row a thread */
        const int n = t.n0 + (int)threadIdx.x < a.n_n ? t.n0 + (int)threadIdx.x : a.n_n - 1;
        w += n * a.w_stride[0];
        scale = a.extra_table[t.group] + (int64_t)n / r.s.block_n * r.s.scale_stride;
    } else {
        if (F::GATED && row0 >= 8 && a.extra_table) w = a.extra_table[t.group]; /* eight rows of gate, eight of up */
#pragma unroll
        for (int c = 0; c < 8; c++) {
            const int j = t.n0 / 2 + c * 8 + row0 % 8, n = t.n0 + c * 16 + row0;
            const int row = F::GATED ? gpu_gate_row(a, j < a.n_gated ? j : a.n_gated - 1, row0 >= 8) : n < a.n_n ? n : a.n_n - 1;
            w_at[c] = (uint32_t)(row * (a.w_stride[0] / 16)) + piece;
        }
    }
    const uint32_t to = row0 * WGMMA_ROW + ((piece ^ (row0 & 7)) << 4);
    ring_raw<F> raw[2];
    if constexpr (F::NARROW) {
        ring_load_raw<F>(raw[0], w, scale, 0, a.n_k);
        ring_load_raw<F>(raw[1], w, scale, WGMMA_BK, a.n_k);
    }
    auto stage = [&](int i, ring_raw<F> &mine) {
        const uint32_t at = base + turn.stage * F::STAGE;
        const int n = i * WGMMA_BK + piece * 8 < a.n_k ? 16 : 0;
        const uint8_t *w_k = w + i * WGMMA_ROW, *x_k = a.x.data + i * WGMMA_ROW;
        ring_wait(empty + 8 * turn.stage, turn.round ^ 1);
        if constexpr (!F::NARROW) {
#pragma unroll
            for (int c = 0; c < 8; c++) gpu_copy16(at + to + c * 2048, w_k + (uint64_t)w_at[c] * 16, n);
        }
#pragma unroll
        for (int c = 0; c < CX; c++) {
            if (c >= n_c) break;
            gpu_copy16(at + F::W_BYTES + to + c * 2048, x_k + (uint64_t)x_at[c] * 16, n);
        }
        ring_arrive_copied(full + 8 * turn.stage);
        if constexpr (F::NARROW) {
            ring_store_raw<F>(mine, at + threadIdx.x * WGMMA_ROW, threadIdx.x);
            ring_fence();
            ring_arrive(full + 8 * turn.stage);
            ring_load_raw<F>(mine, w, scale, (i + 2) * WGMMA_BK, a.n_k);
        }
        ring_next<F::STAGES>(turn);
    };
    for (int i = 0; i < n_stages; i += 2) {
        stage(i, raw[0]);
        if (i + 1 < n_stages) stage(i + 1, raw[1]);
    }
}

/* ---- multiplying ---- */

/* Eight by eight halves of a warp: what was row i is column i. */
GPU_FN uint32_t ring_transpose(uint32_t v) {
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
    return r;
}

/* sums: of this thread's weight rows m and m + 8 for rows 8 j + 2 (lane % 4) and the next one. */
template <class F, int N> GPU_FN void ring_store(const ring_args &r, const ring_tile &t, float (&sums)[N / 2]) {
    const gpu_grouped &a = r.s.g;
    const int lane = threadIdx.x % 32, quad = lane % 4, line = lane / 4, slab = t.n0 + (int)(threadIdx.x - 128) / 32 * 16;
    const uint8_t *bias = a.bias_table ? a.bias_table[t.group] : NULL;
    uint8_t *out = a.out.data + (int64_t)t.begin * a.out.stride[0];
    if constexpr (F::GATED) {
        const int column = slab / 2 + line, first = slab / 2 + 2 * quad;
        float of_gate = 0.0f, of_up = 0.0f;
        if (bias && column < a.n_gated) of_gate = gpu_get(a.bias_dtype, bias, gpu_gate_row(a, column, false)), of_up = gpu_get(a.bias_dtype, bias, gpu_gate_row(a, column, true));
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            if (8 * j >= t.n) break;
            float v[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float g = bias ? sums[4 * j + i] + of_gate : sums[4 * j + i], u = bias ? sums[4 * j + 2 + i] + of_up : sums[4 * j + 2 + i];
                v[i] = ring_gate(a.gate, a.swiglu.alpha, a.swiglu.limit, g, u);
            }
            if (a.out.dtype == VT_BF16) { /* turned, so that neighbours of a row lie side by side */
                const uint32_t pair = ring_transpose((uint32_t)gpu_to_bf16(v[0]) | (uint32_t)gpu_to_bf16(v[1]) << 16);
                const int m = 8 * j + line;
                if (m >= t.n || first >= a.n_gated) continue;
                uint16_t *to = (uint16_t *)(out + m * a.out.stride[0]) + first;
                if (r.pairs && first + 1 < a.n_gated) {
                    *(uint32_t *)to = pair;
                } else {
                    to[0] = (uint16_t)pair;
                    if (first + 1 < a.n_gated) to[1] = (uint16_t)(pair >> 16);
                }
            } else if (column < a.n_gated) {
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (8 * j + 2 * quad + i < t.n) gpu_set(a.out.dtype, out + (8 * j + 2 * quad + i) * a.out.stride[0], column, v[i]);
            }
        }
    } else {
        const int n = slab + line;
        float of_bias[2] = {0.0f, 0.0f};
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (bias && n + 8 * h < a.n_n) of_bias[h] = gpu_get(a.bias_dtype, bias, n + 8 * h);
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int m = 8 * j + 2 * quad + i;
                if (m >= t.n) continue;
                uint8_t *to = out + m * a.out.stride[0];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const float v = bias ? sums[4 * j + 2 * h + i] + of_bias[h] : sums[4 * j + 2 * h + i];
                    if (n + 8 * h >= a.n_n) continue;
                    if (a.out.dtype == VT_F32)
                        ((float *)to)[n + 8 * h] = v;
                    else
                        gpu_set(a.out.dtype, to, n + 8 * h, v);
                }
            }
    }
}

template <class F, int N> GPU_FN void ring_multiply(const ring_args &r, const ring_tile &t, uint32_t base, uint32_t full, uint32_t empty, ring_turn &turn) {
    const gpu_grouped &a = r.s.g;
    const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, n_stages = (a.n_k + WGMMA_BK - 1) / WGMMA_BK;
    float acc[N / 2], total[F::SCALED ? N / 2 : 1];
#pragma unroll
    for (int i = 0; i < N / 2; i++) acc[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < (F::SCALED ? N / 2 : 1); i++) total[i] = 0.0f;
    const uint8_t *scale[2] = {NULL, NULL};
    const int of_block = F::SCALED && r.s.block_k < a.n_k ? r.s.block_k / WGMMA_BK : n_stages;
    if constexpr (F::SCALED) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int n = t.n0 + (int)(threadIdx.x - 128) / 32 * 16 + lane / 4 + 8 * h;
            scale[h] = a.extra_table[t.group] + (int64_t)(n < a.n_n ? n : a.n_n - 1) / r.s.block_n * r.s.scale_stride;
        }
    }
    int held = -1; /* a stage that is being multiplied */
    for (int from = 0, block = 0; from < n_stages; from += of_block, block++) {
        const int to = from + of_block < n_stages ? from + of_block : n_stages;
        float by[2] = {1.0f, 1.0f};
        if constexpr (F::SCALED) {
#pragma unroll
            for (int h = 0; h < 2; h++) by[h] = narrow_scale<F::TS>(scale[h], block);
#pragma unroll
            for (int j = 0; j < N / 2; j++) acc[j] = 0.0f;
        }
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
        if constexpr (F::SCALED) {
#pragma unroll
            for (int j = 0; j < N / 2; j++) total[j] = fmaf(acc[j], by[j / 2 % 2], total[j]);
        }
    }
    if constexpr (F::SCALED)
        ring_store<F, N>(r, t, total);
    else
        ring_store<F, N>(r, t, acc);
}

/* By the rows that a tile has. */
template <class F> GPU_FN void ring_wide(const ring_args &r, const ring_tile &t, uint32_t base, uint32_t full, uint32_t empty, ring_turn &turn) {
    if (t.n <= 64) return ring_multiply<F, 64>(r, t, base, full, empty, turn);
    if (t.n <= 96) return ring_multiply<F, 96>(r, t, base, full, empty, turn);
    if (F::MOST <= 128 || t.n <= 128) return ring_multiply<F, 128>(r, t, base, full, empty, turn);
    if constexpr (F::MOST > 128) {
        if (t.n <= 160) return ring_multiply<F, 160>(r, t, base, full, empty, turn);
        if (t.n <= 192) return ring_multiply<F, 192>(r, t, base, full, empty, turn);
        if (t.n <= 224) return ring_multiply<F, 224>(r, t, base, full, empty, turn);
        ring_multiply<F, 256>(r, t, base, full, empty, turn);
    }
}

#endif

template <class F> __global__ void __launch_bounds__(RING_THREADS, 1) grouped_ring_kernel(const __grid_constant__ ring_args r) {
#ifdef GPU_HAS_WGMMA
    extern __shared__ uint8_t ring_shared[];
    __shared__ uint64_t bars[2 * F::STAGES];
    __shared__ int32_t places[RING_FIRST + 1];
    const uint32_t base = (gpu_shared_at(ring_shared) + 1023) / 1024 * 1024, full = gpu_shared_at(bars), empty = full + 8 * F::STAGES;
    const int32_t *first = r.s.g.first;
    if (threadIdx.x < F::STAGES) {
        ring_init(full + 8 * threadIdx.x, F::NARROW ? 256 : 128);
        ring_init(empty + 8 * threadIdx.x, 8);
    }
    if (r.s.g.n_groups <= RING_FIRST) {
        for (int i = threadIdx.x; i <= r.s.g.n_groups; i += RING_THREADS) places[i] = first[i];
        first = places;
    }
    __syncthreads();
    ring_turn turn = {0, 0};
    if (threadIdx.x < 128) {
        ring_fewer_registers<F::BRING_REGISTERS>();
        for (int slot = blockIdx.x;; slot += gridDim.x) {
            const ring_tile t = ring_find<F>(r, first, slot);
            if (t.n < 0) break;
            if (t.n > 0) ring_bring<F>(r, t, base, full, empty, turn);
        }
    } else {
        ring_more_registers<F::MULTIPLY_REGISTERS>();
        for (int slot = blockIdx.x;; slot += gridDim.x) {
            const ring_tile t = ring_find<F>(r, first, slot);
            if (t.n < 0) break;
            if (t.n == 0) continue;
            if constexpr (F::MOST <= 64) {
                if (t.n <= 32)
                    ring_multiply<F, 32>(r, t, base, full, empty, turn);
                else
                    ring_multiply<F, 64>(r, t, base, full, empty, turn);
            } else {
                ring_wide<F>(r, t, base, full, empty, turn);
            }
        }
    }
#else
    (void)r;
#endif
}

/* ---- launching ---- */

template <class F> static status launch_ring(vt_queue *q, const vt_call *call, const gpu_grouped_scaled &s, error *err) {
    const int bytes = F::BYTES;
    const int64_t n_tiles = gpu_ceil(F::GATED ? 2 * (int64_t)s.g.n_gated : s.g.n_n, 128), slots = n_tiles * gpu_group_slots(call, F::MOST), blocks = gpu_device(q)->n_multiprocessors;
    const uint64_t at = (uint64_t)(uintptr_t)s.g.out.data | (uint64_t)s.g.out.stride[0];
    const ring_args r = {s, (int32_t)n_tiles, at % 4 == 0};
    if (slots > INT32_MAX - blocks) return cuda_refuse(err, "a grouped product of such sizes");
    TRY(cuda_result(cudaFuncSetAttribute(grouped_ring_kernel<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory", err));
    grouped_ring_kernel<F><<<(unsigned)(slots < blocks ? slots : blocks), RING_THREADS, bytes, gpu_stream(q)>>>(r);
    return gpu_launched(call, err);
}

#endif
