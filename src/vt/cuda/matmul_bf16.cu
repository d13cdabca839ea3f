/* SPDX-License-Identifier: Apache-2.0 */
/* Products of BF16 activations with BF16 and F16 weights on matrix units. Up to 32 rows, and up to DECODE_ROWS where outputs are few: each lane brings the weights of its own fragments, a warp a
 * segment of K for sixteen outputs or thirty-two. More: Hopper's tiles (gpu_wgmma.cuh) where the device has them and weights are BF16, else tiles of 128 by 128 with the matrix instructions of
 * every device from compute capability 8.0 on. F16 weights are two BF16 parts, exactly (gpu_mma.cuh). Which of these runs follows from the numbers of rows and columns. */
#include "vt/cuda/gpu_once.cuh"
#include "vt/cuda/gpu_launch.cuh"
#include "vt/cuda/gpu_mma.cuh"
#include "vt/cuda/gpu_wgmma.cuh"
#include "vt/cuda/matmul_fused.cuh"
#include "vt/cuda/matmul_split.cuh"

static const int DECODE_ROWS = 64, DECODE_WARPS = 8;

/* Eight consecutive activations of a row are the fragments of the two multiplications of a tile as they lie: [multiplication][register]. */
template <int R> struct bf16_activation {
    uint32_t r[2][R];
};

template <int R> GPU_FN void load_activation(bf16_activation<R> &f, int half, const uint4 u) {
    f.r[0][half] = u.x, f.r[0][R / 2 + half] = u.y, f.r[1][half] = u.z, f.r[1][R / 2 + half] = u.w;
}

/* A tile of 32 k for NA weights and NB activations; of F16 weights the smaller part first. d[x][y0 + y]. */
template <int T, int R, int NA, int NB, int ND> GPU_FN void multiply(float (*d)[ND][4], int y0, const mma_weight<T, R> (&w)[NA], const bf16_activation<6 - R> (&a)[NB]) {
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int part = T == VT_F16 ? 1 : 0; part >= 0; part--)
#pragma unroll
            for (int y = 0; y < NB; y++)
#pragma unroll
                for (int x = 0; x < NA; x++) {
                    if constexpr (R == 4)
                        mma_bf16(d[x][y0 + y], w[x].r[m][part], a[y].r[m]);
                    else
                        mma_bf16(d[x][y0 + y], a[y].r[m], w[x].r[m][part]);
                }
}

/* ---- few rows ---- */

/* A block goes through tiles of 16 NA outputs, a warp a segment of K; as many tiles side by side as there are warps for. NB: groups of eight rows of a. Each lane brings the weights that it
 * multiplies into places of its own in shared memory, RING tiles of K ahead, on into the next tile of outputs, and before the activations are there: nobody waits for another. U: tiles of K
 * whose activations wait in registers. */
template <int T, int NA, int NB, int U, int G, int RING, int P, few_mode MODE>
__global__ void __launch_bounds__(DECODE_WARPS * 32, P) bf16_decode_kernel(gpu_view a, gpu_view b, gpu_epilogue e, const __grid_constant__ few_parts f, int n_m, int64_t n_n, int n_tiles,
                                                                           mma_segments seg) {
    extern __shared__ __align__(16) uint8_t ring[];
    const int SUMS = NA * NB * 4, OUTPUTS = MODE == FEW_GATED ? 16 : 16 * NA; /* of a thread; of a tile */
    const bool AT_ONCE = SUMS <= 16;                                          /* all segments meet in shared memory, which has room for them */
    static_assert(MODE != FEW_GATED || NA == 2, "a gate beside its up");
    static_assert(U % G == 0, "whole stages");
    __shared__ float partial[AT_ONCE ? DECODE_WARPS : DECODE_WARPS / 2][32][SUMS + 1];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, quad = lane % 4;
    const int side = warp / seg.n, segment = warp % seg.n;
    const int64_t per_block = (int64_t)(DECODE_WARPS / seg.n) * OUTPUTS, step = gridDim.x * per_block;
    const int first = segment * seg.length, end = first + seg.length < n_tiles ? first + seg.length : n_tiles;
    const bool AHEAD = NB <= 2; /* few activations are fetched before their turn; more have no registers to wait in */
    const int GROUP = NB < 4 ? NB : 4, TILE = NA * 2 * 512, STAGE = G * TILE; /* bytes of a warp's tile of K, and of a stage */
    const uint8_t *rows[NA][2], *x[NB];
    float acc[NA][NB][4];
    const uint4 zero = make_uint4(0, 0, 0, 0);
    uint4 next_x[AHEAD ? U : 1][AHEAD ? NB : 1];
    const uint8_t *const mine = ring + warp * RING * STAGE + lane * 16;
    const uint32_t mine_at = gpu_shared_at(mine);

    int64_t n_ahead = blockIdx.x * per_block + side * OUTPUTS; /* the tile whose weights are brought, and the tile of K there */
    int at = first, in = 0, out = 0;
    const uint64_t policy = gpu_read_once();
    auto begin = [&](int64_t n0) {
#pragma unroll
        for (int y = 0; y < NA * 2; y++) {
            if constexpr (MODE == FEW_PLAIN) {
                const int64_t n = n0 + y * 8 + row;
                rows[y / 2][y % 2] = b.data + (n < n_n ? n : n_n - 1) * b.stride[0] + quad * 16;
            } else if constexpr (MODE == FEW_GATED) {
                const int64_t n = n0 + y % 2 * 8 + row;
                rows[y / 2][y % 2] = f.b[y / 2] + (n < n_n ? n : n_n - 1) * f.b_stride[y / 2] + quad * 16;
            } else {
                const few_part p = few_part_at(f, n0);
                const int64_t n = n0 - p.begin + y * 8 + row;
                rows[y / 2][y % 2] = p.b + (n < p.n ? n : p.n - 1) * p.b_stride + quad * 16;
            }
        }
    };
    auto bring = [&]() {
        if (at < end) {
#pragma unroll
            for (int g = 0; g < G; g++)
                if (g == 0 || at + g < end)
#pragma unroll
                    for (int y = 0; y < NA * 2; y++) gpu_copy16_by(mine_at + (uint32_t)(in * STAGE + g * TILE + y * 512), rows[y / 2][y % 2] + (int64_t)(at + g) * 64, 16, policy);
            at += G;
            if (at >= end) {
                n_ahead += step;
                if (n_ahead - side * OUTPUTS < n_n) {
                    begin(n_ahead);
                    at = first;
                }
            }
        }
        gpu_copy_commit();
        in = in + 1 == RING ? 0 : in + 1;
    };
    auto fetch_x = [&](int i) { /* past the end of a segment: what is read again is not used */
        if constexpr (AHEAD)
#pragma unroll
            for (int j = 0; j < U; j++)
#pragma unroll
                for (int y = 0; y < NB; y++) next_x[j][y] = x[y] ? gpu_load16(x[y] + (int64_t)(i + j < end ? i + j : end - 1) * 64) : zero;
    };
    gpu_let_next_start();
    begin(n_ahead);
#pragma unroll 1
    for (int i = 0; i < RING - 1; i++) bring();
    gpu_await_previous();
#pragma unroll
    for (int g = 0; g < NB; g++) {
        int m = g * 8 + row;
        x[g] = m < n_m ? a.data + m * a.stride[0] + quad * 16 : NULL;
    }
    if (first < end) fetch_x(first);
    int64_t n0 = blockIdx.x * per_block + side * OUTPUTS;
    for (int64_t block0 = blockIdx.x * per_block; block0 < n_n; block0 += step, n0 += step) { /* the same number of rounds for every warp of a block */
#pragma unroll
        for (int j = 0; j < NA * NB * 4; j++) acc[j / (NB * 4)][j / 4 % NB][j % 4] = 0.0f;
        for (int i = first; i < end; i += U) {
            uint4 v[AHEAD ? U : 1][AHEAD ? NB : 1];
            if constexpr (AHEAD)
#pragma unroll
                for (int j = 0; j < U * NB; j++) v[j / NB][j % NB] = next_x[j / NB][j % NB];
            if (i + U < end)
                fetch_x(i + U);
            else if (block0 + step < n_n)
                fetch_x(first);
#pragma unroll
            for (int j = 0; j < U; j++) {
                if (i + j >= end) break;
                if (j % G == 0) {
                    gpu_copy_wait<RING - 2>(); /* what this lane has brought is there */
                    bring();                   /* where the stage before this one was */
                }
                mma_weight<T, 4> w[NA];
#pragma unroll
                for (int y = 0; y < NA * 2; y++) mma_load_weight(w[y / 2], y % 2, *(const uint4 *)(mine + out * STAGE + j % G * TILE + y * 512));
                if (j % G == G - 1 || i + j + 1 == end) out = out + 1 == RING ? 0 : out + 1;
#pragma unroll
                for (int g = 0; g < NB; g += GROUP) {
                    bf16_activation<2> f[GROUP];
#pragma unroll
                    for (int y = 0; y < GROUP; y++) {
                        if constexpr (AHEAD)
                            load_activation(f[y], 0, v[j][g + y]);
                        else
                            load_activation(f[y], 0, x[g + y] ? gpu_load16(x[g + y] + (int64_t)(i + j) * 64) : zero);
                    }
                    multiply(acc, g, w, f);
                }
            }
        }
        const int64_t m_of = quad * 2, n_of = n0 + row;

        const few_part part = MODE == FEW_SEVERAL ? few_part_at(f, n_of - row) : few_part{NULL, NULL, 0, 0, 0, 0};
        auto put = [&](int j, float sum, float up) { /* sum j of a thread */
            const int m = j / 4 % NB * 8 + (int)m_of + j % 2;
            const int64_t n = n_of + j / (NB * 4) * 16 + j % 4 / 2 * 8;
            if constexpr (MODE == FEW_GATED) {
                if (m < n_m && n < n_n) ((uint16_t *)(f.out[0] + m * f.out_stride[0]))[n] = gpu_to_bf16(gpu_gate(f.gate, vt_swiglu_params(), sum, up));
            } else if constexpr (MODE == FEW_SEVERAL) {
                if (m < n_m && n - part.begin < part.n) ((float *)(part.out + m * part.out_stride))[n - part.begin] = sum;
            } else {
                if (m < n_m && n < n_n) gpu_store(e, m, n, sum);
            }
        };
        const int PUTS = MODE == FEW_GATED ? SUMS / 2 : SUMS;

        /* The segments in ascending order; an empty one adds nothing. */
        if (AT_ONCE && seg.n > 1) {
            __syncthreads(); /* the sums of the round before have been read */
#pragma unroll
            for (int j = 0; j < SUMS; j++) partial[warp][lane][j] = acc[j / (NB * 4)][j / 4 % NB][j % 4];
            __syncthreads();
            auto whole = [&](int j) {
                float sum = partial[side * seg.n][lane][j];
                for (int s = 1; s < seg.n && s * seg.length < n_tiles; s++) sum += partial[side * seg.n + s][lane][j];
                return sum;
            };
            for (int j = segment; j < PUTS; j += seg.n) put(j, whole(j), MODE == FEW_GATED ? whole(j + PUTS) : 0.0f);
            continue;
        }
        for (int s = 1; s < seg.n; s++) { /* one at a time through the shared memory */
            const bool there = s * seg.length < n_tiles;
            __syncthreads();
            float *slot = &partial[side][lane][0];
            if (segment == s)
#pragma unroll
                for (int j = 0; j < SUMS; j++) slot[j] = acc[j / (NB * 4)][j / 4 % NB][j % 4];
            __syncthreads();
            if (segment == 0 && there)
#pragma unroll
                for (int j = 0; j < SUMS; j++) acc[j / (NB * 4)][j / 4 % NB][j % 4] += slot[j];
        }
        if (segment != 0) continue;
#pragma unroll
        for (int j = 0; j < PUTS; j++) put(j, acc[j / (NB * 4)][j / 4 % NB][j % 4], MODE == FEW_GATED ? acc[1][j / 4 % NB][j % 4] : 0.0f);
    }
}

/* ---- many rows, any device ---- */

static const int STAGES = 4;

/* WN x WM warps, each 8 X outputs by 16 Y rows. Shared memory of a stage: weights [outputs][64 bytes], activations [rows][64 bytes]. */
template <int T, int WN, int WM, int X, int Y> __global__ void __launch_bounds__(WN *WM * 32) bf16_tile_kernel(gpu_view a, gpu_view b, gpu_epilogue e, int64_t n_m, int64_t n_n, int n_tiles) {
    extern __shared__ __align__(128) uint8_t stages[];
    const int THREADS = WN * WM * 32, TILE_N = WN * X * 8, TILE_M = WM * Y * 16, STAGE_B = TILE_N * 64, STAGE = STAGE_B + TILE_M * 64;
    const int t = threadIdx.x, lane = t % 32, warp = t / 32, row = lane / 4, quad = lane % 4;
    const int64_t n0 = (int64_t)blockIdx.y * TILE_N, m0 = (int64_t)blockIdx.x * TILE_M;
    const int wn = warp % WN * X * 8, wm = warp / WN * Y * 16;
    const int CB = TILE_N * 4 / THREADS, CA = TILE_M * 4 / THREADS, r0 = t / 4;
    static_assert(TILE_N * 4 % THREADS == 0 && TILE_M * 4 % THREADS == 0, "whole pieces");
    const uint8_t *from_b[CB], *from_a[CA];
#pragma unroll
    for (int c = 0; c < CB; c++) {
        const int64_t n = n0 + r0 + c * (THREADS / 4);
        from_b[c] = b.data + (n < n_n ? n : n_n - 1) * b.stride[0] + t % 4 * 16;
    }
#pragma unroll
    for (int c = 0; c < CA; c++) {
        const int64_t m = m0 + r0 + c * (THREADS / 4);
        from_a[c] = a.data + (m < n_m ? m : n_m - 1) * a.stride[0] + t % 4 * 16;
    }
    const uint32_t to = gpu_shared_at(stages) + t * 16;
    auto load = [&](int i) {
        if (i < n_tiles) {
            const uint32_t stage = to + i % STAGES * STAGE;
#pragma unroll
            for (int c = 0; c < CB; c++) gpu_copy16(stage + c * THREADS * 16, from_b[c] + (int64_t)i * 64, 16);
#pragma unroll
            for (int c = 0; c < CA; c++) gpu_copy16(stage + STAGE_B + c * THREADS * 16, from_a[c] + (int64_t)i * 64, 16);
        }
        gpu_copy_commit();
    };
    float acc[X][Y][4];
#pragma unroll
    for (int j = 0; j < X * Y * 4; j++) acc[j / (Y * 4)][j / 4 % Y][j % 4] = 0.0f;
    for (int i = 0; i < STAGES - 1; i++) load(i);
    for (int i = 0; i < n_tiles; i++) {
        gpu_copy_wait<STAGES - 2>();
        __syncthreads();
        load(i + STAGES - 1);
        const uint8_t *sb = stages + i % STAGES * STAGE, *sa = sb + STAGE_B;
        mma_weight<T, 2> w[X];
#pragma unroll
        for (int x = 0; x < X; x++) mma_load_weight(w[x], 0, *(const uint4 *)(sb + (wn + x * 8 + row) * 64 + quad * 16));
#pragma unroll
        for (int y = 0; y < Y; y++) {
            bf16_activation<4> f[1];
#pragma unroll
            for (int z = 0; z < 2; z++) load_activation(f[0], z, *(const uint4 *)(sa + (wm + y * 16 + z * 8 + row) * 64 + quad * 16));
            multiply(acc, y, w, f);
        }
    }
#pragma unroll
    for (int x = 0; x < X; x++)
#pragma unroll
        for (int y = 0; y < Y; y++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int64_t m = m0 + wm + y * 16 + row + j / 2 * 8, n = n0 + wn + x * 8 + quad * 2 + j % 2;
                if (m < n_m && n < n_n) gpu_store(e, m, n, acc[x][y][j]);
            }
}

/* ---- many rows, Hopper ---- */

struct tile_rows {
    const uint8_t *data;
    int64_t stride, first, n;
    __device__ const uint8_t *operator()(int i) const { return first + i < n ? data + (first + i) * stride : NULL; }
};

struct tile_store {
    uint8_t *data;
    int64_t stride, m0, n0, n_m, n_n;
    bool pairs; /* two sums are one store */
    __device__ void operator()(int i, int j, float x, float y) const {
        const int64_t m = m0 + i, n = n0 + j;
        if (m >= n_m || n >= n_n) return;
        float *to = (float *)(data + m * stride) + n;
        if (pairs && n + 1 < n_n) {
            *(float2 *)to = make_float2(x, y);
            return;
        }
        to[0] = x;
        if (n + 1 < n_n) to[1] = y;
    }
};

/* Blocks run down eight tiles of rows before they go to the next columns, so that what is read lies in the second-level cache. */
template <int BN> __global__ void __launch_bounds__(WGMMA_THREADS, wgmma_blocks<BN>()) bf16_wgmma_kernel(gpu_view a, gpu_view b, gpu_view out, int64_t n_m, int64_t n_n, int n_k, bool pairs) {
    extern __shared__ uint8_t stages[];
    const int64_t tiles_m = (n_m + WGMMA_BM - 1) / WGMMA_BM, tiles_n = (n_n + BN - 1) / BN, band = 8 * tiles_n, first = blockIdx.x / band * 8;
    const int64_t high = tiles_m - first < 8 ? tiles_m - first : 8, at = blockIdx.x % band;
    const int64_t m0 = (first + at % high) * WGMMA_BM, n0 = at / high * BN;
    wgmma_tile<BN>(stages, tile_rows{a.data, a.stride[0], m0, n_m}, tile_rows{b.data, b.stride[0], n0, n_n}, n_k, tile_store{out.data, out.stride[0], m0, n0, n_m, n_n, pairs});
}

/* ---- launching ---- */

/* P: blocks of a multiprocessor. */
template <int T, int NA, int NB, int U, int P, few_mode MODE, int G = (U < 4 / NA ? U : 4 / NA), int RING = 12 / NA / G>
static status launch_few(vt_queue *q, const vt_tensor *a, const gpu_view &b, const gpu_epilogue &e, const few_parts &f, int64_t n_n, error *err) {
    const mma_segments seg = mma_segments_of(a->dim[1]);
    const int64_t tiles = gpu_ceil(n_n, (MODE == FEW_GATED ? 16 : 16 * NA) * (DECODE_WARPS / seg.n)), most = (int64_t)gpu_device(q)->n_multiprocessors * P, blocks = tiles < most ? tiles : most;
    const int bytes = DECODE_WARPS * RING * G * NA * 1024;
    TRY(cuda_result(cudaFuncSetAttribute(bf16_decode_kernel<T, NA, NB, U, G, RING, P, MODE>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory", err));
    return gpu_launch_grid(q, bf16_decode_kernel<T, NA, NB, U, G, RING, P, MODE>, dim3((unsigned)blocks), DECODE_WARPS * 32, (size_t)bytes, err, gpu_view_of(a), b, e, f, (int)a->dim[0], n_n,
                           (int)(a->dim[1] / MMA_K), seg);
}

template <int T, int NA, int NB, int U, int P> static status launch_decode(vt_queue *q, const vt_call *call, error *err) {
    return launch_few<T, NA, NB, U, P, FEW_PLAIN>(q, call->t[1], gpu_view_of(call->t[2]), gpu_epilogue_of(call), few_parts(), call->t[2]->dim[0], err);
}

template <int T, int WN, int WM, int X, int Y> static status launch_tiles(vt_queue *q, const vt_call *call, error *err) {
    const int64_t n_m = call->t[1]->dim[0], n_n = call->t[2]->dim[0];
    const int bytes = STAGES * 64 * (WN * X * 8 + WM * Y * 16);
    TRY(cuda_result(cudaFuncSetAttribute(bf16_tile_kernel<T, WN, WM, X, Y>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory", err));
    dim3 grid((unsigned)gpu_ceil(n_m, WM * Y * 16), (unsigned)gpu_ceil(n_n, WN * X * 8));
    if (grid.y > 65535) return cuda_refuse(err, "a product of too many columns");
    bf16_tile_kernel<T, WN, WM, X, Y><<<grid, WN * WM * 32, bytes, gpu_stream(q)>>>(gpu_view_of(call->t[1]), gpu_view_of(call->t[2]), gpu_epilogue_of(call), n_m, n_n,
                                                                                  (int)(call->t[1]->dim[1] / MMA_K));
    return gpu_launched(call, err);
}

template <int BN> static status launch_wgmma(vt_queue *q, const vt_call *call, error *err) {
    const vt_tensor *out = call->t[0];
    const int64_t n_m = call->t[1]->dim[0], n_n = call->t[2]->dim[0], blocks = gpu_ceil(n_m, WGMMA_BM) * gpu_ceil(n_n, BN);
    const bool pairs = (uintptr_t)out->data % 8 == 0 && out->stride[0] % 2 == 0;
    if (blocks > INT32_MAX) return cuda_refuse(err, "a product of too many tiles");
    TRY(cuda_result(cudaFuncSetAttribute(bf16_wgmma_kernel<BN>, cudaFuncAttributeMaxDynamicSharedMemorySize, wgmma_shared_bytes<BN>()), "shared memory", err));
    bf16_wgmma_kernel<BN><<<(unsigned)blocks, WGMMA_THREADS, wgmma_shared_bytes<BN>(), gpu_stream(q)>>>(gpu_view_of(call->t[1]), gpu_view_of(call->t[2]), gpu_view_of(out), n_m,
                                                                                                       n_n, (int)call->t[1]->dim[1], pairs);
    return gpu_launched(call, err);
}

/* The width of tiles that ends first: waves of blocks times what one takes, in columns and a constant. */
static int wgmma_width(int64_t n_m, int64_t n_n, int64_t n_multiprocessors) {
    static const struct {
        int width, per_multiprocessor, cost;
    } kinds[] = {{256, 1, 256 + 32}, {192, 1, 192 + 32}, {128, 2, 2 * (128 + 24)}, {64, 2, 2 * (64 + 32)}};
    int best = 0;
    int64_t least = INT64_MAX;
    for (const auto &k : kinds) {
        const int64_t tiles = gpu_ceil(n_m, WGMMA_BM) * gpu_ceil(n_n, k.width), cost = gpu_ceil(tiles, n_multiprocessors * k.per_multiprocessor) * k.cost;
        if (cost < least) least = cost, best = k.width;
    }
    return best;
}

/* One weight as the only part of several. */
static status run_split(vt_queue *q, const vt_call *call, error *err) {
    static const vt_tensor absent = {};
    vt_call one = *call;
    few_parts f = {};
    for (int i = 3; i < 2 * VT_SEVERAL + 1; i++) one.t[i] = &absent;
    const int64_t n = several_parts(&one, SPLIT_N, &f);
    return launch_split<FEW_SEVERAL>(q, call->t[1], f, n, err);
}

template <int T> static status run_bf16(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    const int64_t n_m = call->t[1]->dim[0], n_n = call->t[2]->dim[0], sms = gpu_device(q)->n_multiprocessors;
    if (n_m <= 0 || n_n <= 0) return STATUS_OK;
    const int U = T == VT_F16 ? 3 : 4; /* as many as 128 registers hold */
    const bool wgmma = T == VT_BF16 && cuda_runs_wgmma(q);
    if (wgmma && n_m > SPLIT_ABOVE && n_m <= DECODE_ROWS && call->op == VT_OP_MATMUL_BT) return run_split(q, call, err);
    if (n_m <= 8) return launch_decode<T, 1, 1, U, 2>(q, call, err);
    if (n_m <= 16) return launch_decode<T, 1, 2, U - 1, 2>(q, call, err);
    if (n_m <= 32) return launch_decode<T, 1, 4, 2, 2>(q, call, err);
    if (n_m <= DECODE_ROWS && !wgmma) return launch_decode<T, 2, 8, 1, 1>(q, call, err);
    if (wgmma) {
        switch (wgmma_width(n_m, n_n, sms)) {
        case 256:
            return launch_wgmma<256>(q, call, err);
        case 192:
            return launch_wgmma<192>(q, call, err);
        case 128:
            return launch_wgmma<128>(q, call, err);
        default:
            return launch_wgmma<64>(q, call, err);
        }
    }
    const bool few = gpu_ceil(n_m, 128) * gpu_ceil(n_n, 128) < sms;
    return few ? launch_tiles<T, 2, 2, 4, 2>(q, call, err) : launch_tiles<T, 4, 2, 4, 4>(q, call, err);
}

extern "C" status cuda_matmul_bf16_mma(vt_queue *q, const vt_call *call, error *err) {
    return call->t[2]->dtype == VT_F16 ? run_bf16<VT_F16>(q, call, err) : run_bf16<VT_BF16>(q, call, err);
}

/* ---- several weights, and a gate beside its up ---- */

template <int T> static status run_several(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    const vt_tensor *a = call->t[1];
    const int U = T == VT_F16 ? 3 : 4;
    const gpu_view none = {};
    const gpu_epilogue no_epilogue = {};
    few_parts f = {};
    if (a->dim[0] <= 0) return STATUS_OK;
    if (a->dim[0] > DECODE_ROWS) {
        for (int i = 0; i < VT_SEVERAL; i++) {
            const vt_call one = fused_part_of(call, i);
            if (one.t[0]->n_dims != 0) TRY(run_bf16<T>(q, &one, err));
        }
        return STATUS_OK;
    }
    const bool split = T == VT_BF16 && a->dim[0] > SPLIT_ABOVE && cuda_runs_wgmma(q);
    const int64_t n = several_parts(call, split ? SPLIT_N : a->dim[0] <= 32 ? 16 : 32, &f);
    if (n == 0) return STATUS_OK;
    if (split) return launch_split<FEW_SEVERAL>(q, a, f, n, err);
    if (a->dim[0] <= 8) return launch_few<T, 1, 1, U, 2, FEW_SEVERAL>(q, a, none, no_epilogue, f, n, err);
    if (a->dim[0] <= 16) return launch_few<T, 1, 2, U - 1, 2, FEW_SEVERAL>(q, a, none, no_epilogue, f, n, err);
    if (a->dim[0] <= 32) return launch_few<T, 1, 4, 2, 2, FEW_SEVERAL>(q, a, none, no_epilogue, f, n, err);
    return launch_few<T, 2, 8, 1, 1, FEW_SEVERAL>(q, a, none, no_epilogue, f, n, err);
}

extern "C" status cuda_matmul_several_mma(vt_queue *q, const vt_call *call, error *err) {
    return call->t[2]->dtype == VT_F16 ? run_several<VT_F16>(q, call, err) : run_several<VT_BF16>(q, call, err);
}

template <int T> static status run_gated(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    const int64_t n_m = call->t[1]->dim[0], n_n = call->t[0]->dim[1];
    const gpu_view none = {};
    const gpu_epilogue no_epilogue = {};
    few_parts f = {};
    if (n_n <= 0) return STATUS_OK;
    for (int i = 0; i < 2; i++) {
        const gpu_view b = gpu_view_of(call->t[2 + i]);
        f.b[i] = b.data, f.b_stride[i] = b.stride[0];
    }
    f.gate = (int)call->p.gate;
    for (int64_t m = 0; m < n_m; m += DECODE_ROWS) { /* many rows have better ways: this one is there for few */
        const int64_t rows = n_m - m < DECODE_ROWS ? n_m - m : DECODE_ROWS;
        vt_tensor a = *call->t[1];
        const gpu_view out = gpu_view_of(call->t[0]);
        a.data = (uint16_t *)a.data + m * a.stride[0];
        a.dim[0] = rows;
        f.out[0] = out.data + m * out.stride[0], f.out_stride[0] = out.stride[0];
        status rc;
        if (T == VT_BF16 && rows > SPLIT_ABOVE && cuda_runs_wgmma(q))
            rc = launch_split<FEW_GATED>(q, &a, f, n_n, err);
        else if (rows <= 8)
            rc = launch_few<T, 2, 1, 2, 2, FEW_GATED>(q, &a, none, no_epilogue, f, n_n, err);
        else if (rows <= 16)
            rc = launch_few<T, 2, 2, T == VT_F16 ? 1 : 2, 2, FEW_GATED>(q, &a, none, no_epilogue, f, n_n, err);
        else if (rows <= 32)
            rc = launch_few<T, 2, 4, 1, 2, FEW_GATED>(q, &a, none, no_epilogue, f, n_n, err);
        else
            rc = launch_few<T, 2, 8, 1, 1, FEW_GATED>(q, &a, none, no_epilogue, f, n_n, err);
        TRY(rc);
    }
    return STATUS_OK;
}

extern "C" status cuda_matmul_gated_mma(vt_queue *q, const vt_call *call, error *err) {
    return call->t[2]->dtype == VT_F16 ? run_gated<VT_F16>(q, call, err) : run_gated<VT_BF16>(q, call, err);
}

/* Sixteen bytes at a time, whole tiles of K. */
extern "C" bool cuda_fits_bf16_mma(const vt_call *call) {
    const vt_tensor *a = call->t[1], *b = call->t[2];
    const int64_t k = a->dim[1];
    return k > 0 && k % MMA_K == 0 && k < INT32_MAX && (uintptr_t)a->data % 16 == 0 && (uintptr_t)b->data % 16 == 0 && a->stride[0] % 8 == 0 && b->stride[0] % 8 == 0;
}

extern "C" bool cuda_fits_several_mma(const vt_call *call) {
    for (int i = 0; i < VT_SEVERAL; i++) {
        const vt_call one = fused_part_of(call, i);
        if (one.t[0]->n_dims != 0 && !cuda_fits_bf16_mma(&one)) return false;
    }
    return true;
}

extern "C" bool cuda_fits_gated_mma(const vt_call *call) {
    vt_call one = *call;
    if (!cuda_fits_bf16_mma(&one)) return false;
    one.t[2] = call->t[3];
    return cuda_fits_bf16_mma(&one);
}
