/* SPDX-License-Identifier: Apache-2.0 */
/* Products of F32 activations with BF16 and F16 weights on matrix units (gpu_mma.cuh: numbers and order). Up to DECODE_ROWS rows: weights go
 * straight from memory into fragments, a warp a segment of K for sixteen outputs or thirty-two. More: tiles of 128 by 128, or 64 by 64 where
 * those are few, through shared memory; activations are then operand a, whose fragments are made and not loaded, and weights operand b, whose
 * registers lie as they were loaded, so that none is moved. */
#include "vt/cuda/gpu_launch.cuh"
#include "vt/cuda/gpu_mma.cuh"

static const int DECODE_ROWS = 64, DECODE_WARPS = 8, NARROW_SUMS = DECODE_WARPS * 32 * 5 * 4;

/* ---- few rows ---- */

/* A block: NA tiles of sixteen outputs, a warp a segment of K. NB: groups of eight rows of a; blockIdx.y counts what has more. */
template <int T, int NA, int NB> __global__ void __launch_bounds__(DECODE_WARPS * 32) decode_kernel(gpu_view a, gpu_view b, gpu_epilogue e, int n_m, int64_t n_n, int n_tiles, mma_segments seg) {
    __shared__ float partial[DECODE_WARPS / 2][32][NA * NB * 4 + 1];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, quad = lane % 4;
    const int per_block = DECODE_WARPS / seg.n, segment = warp % seg.n;
    const int64_t n0 = ((int64_t)blockIdx.x * per_block + warp / seg.n) * 16 * NA;
    const int m0 = blockIdx.y * NB * 8, first = segment * seg.length, end = first + seg.length < n_tiles ? first + seg.length : n_tiles;
    const uint8_t *rows[NA][2], *x[NB];
    float acc[NA][NB][4];
#pragma unroll
    for (int i = 0; i < NA; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int64_t n = n0 + i * 16 + j * 8 + row;
            rows[i][j] = b.data + (n < n_n ? n : n_n - 1) * b.stride[0] + quad * 16;
        }
#pragma unroll
    for (int g = 0; g < NB; g++) {
        int m = m0 + g * 8 + row;
        x[g] = m < n_m ? a.data + m * a.stride[0] + quad * 32 : NULL;
#pragma unroll
        for (int i = 0; i < NA; i++) acc[i][g][0] = acc[i][g][1] = acc[i][g][2] = acc[i][g][3] = 0.0f;
    }
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const int U = NB <= 2 ? 4 : 2, GROUP = NB < 4 ? NB : 4;
    uint4 next[U][NA][2];
    auto fetch = [&](int i) { /* past the end of a segment: what is read again is not used */
#pragma unroll
        for (int j = 0; j < U; j++)
#pragma unroll
            for (int y = 0; y < NA * 2; y++) next[j][y / 2][y % 2] = gpu_stream16(rows[y / 2][y % 2] + (int64_t)(i + j < end ? i + j : end - 1) * 64);
    };
    if (first < end) fetch(first);
    for (int i = first; i < end; i += U) {
        uint4 u[U][NA][2];
#pragma unroll
        for (int j = 0; j < U * NA * 2; j++) u[j / (NA * 2)][j / 2 % NA][j % 2] = next[j / (NA * 2)][j / 2 % NA][j % 2];
        if (i + U < end) fetch(i + U); /* under way while this stretch is multiplied */
#pragma unroll
        for (int j = 0; j < U; j++) {
            if (i + j >= end) break;
            mma_weight<T, 4> w[NA];
#pragma unroll
            for (int y = 0; y < NA * 2; y++) mma_load_weight(w[y / 2], y % 2, u[j][y / 2][y % 2]);
#pragma unroll
            for (int g = 0; g < NB; g += GROUP) {
                mma_activation<2> f[GROUP];
#pragma unroll
                for (int y = 0; y < GROUP; y++) {
                    const float4 *p = (const float4 *)(x[g + y] + (int64_t)(i + j) * 128);
                    mma_load_activation(f[y], 0, x[g + y] ? __ldg(p) : zero, x[g + y] ? __ldg(p + 1) : zero);
                }
                mma_tiles(acc, g, w, f);
            }
        }
    }

    /* The segments in ascending order: half of the warps at a time fit the shared memory. */
    for (int s = 1; s < seg.n; s++) {
        const bool there = s * seg.length < n_tiles; /* an empty segment adds nothing */
        __syncthreads();
        float *slot = &partial[warp / seg.n][lane][0];
        if (segment == s)
#pragma unroll
            for (int j = 0; j < NA * NB * 4; j++) slot[j] = acc[j / (NB * 4)][j / 4 % NB][j % 4];
        __syncthreads();
        if (segment == 0 && there)
#pragma unroll
            for (int j = 0; j < NA * NB * 4; j++) acc[j / (NB * 4)][j / 4 % NB][j % 4] += slot[j];
    }
    if (segment != 0) return;
#pragma unroll
    for (int i = 0; i < NA; i++)
#pragma unroll
        for (int g = 0; g < NB; g++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int m = m0 + g * 8 + quad * 2 + j % 2;
                int64_t n = n0 + i * 16 + row + j / 2 * 8;
                if (m < n_m && n < n_n) gpu_store(e, m, n, acc[i][g][j]);
            }
}

/* Few outputs, a router's: a block sixteen of them and eight rows, a warp a segment of K. All weights of a segment go into shared memory before the kernel in front has ended, each lane's into
 * places of its own; behind it only the activations are waited for, KEPT tiles of them at once. The order of addition is decode_kernel's. */
template <int T> __global__ void __launch_bounds__(DECODE_WARPS * 32) narrow_kernel(gpu_view a, gpu_view b, gpu_epilogue e, int n_m, int64_t n_n, int n_tiles, mma_segments seg) {
    extern __shared__ __align__(16) uint8_t brought[];
    __shared__ float partial[DECODE_WARPS][32][5];
    const int KEPT = 12;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, quad = lane % 4;
    const int per_block = DECODE_WARPS / seg.n, segment = warp % seg.n;
    const int64_t n0 = ((int64_t)blockIdx.x * per_block + warp / seg.n) * 16;
    const int m = blockIdx.y * 8 + row, first = segment * seg.length, end = first + seg.length < n_tiles ? first + seg.length : n_tiles;
    const uint8_t *const mine = brought + (size_t)warp * seg.length * 1024 + lane * 16, *x = m < n_m ? a.data + m * a.stride[0] + quad * 32 : NULL;
    float acc[1][1][4] = {};
    gpu_let_next_start();
    for (int y = 0; y < 2; y++) {
        const int64_t n = n0 + y * 8 + row;
        const uint8_t *from = b.data + (n < n_n ? n : n_n - 1) * b.stride[0] + quad * 16;
        for (int i = first; i < end; i++) gpu_copy16(gpu_shared_at(mine) + (i - first) * 1024 + y * 512, from + (int64_t)i * 64, 16);
    }
    gpu_copy_commit();
    gpu_await_previous();
    for (int i = first; i < end; i += KEPT) {
        float4 v[KEPT][2];
#pragma unroll
        for (int j = 0; j < KEPT; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint4 u = x && i + j < end ? gpu_load16(x + (int64_t)(i + j) * 128 + h * 16) : make_uint4(0, 0, 0, 0);
                v[j][h] = make_float4(__uint_as_float(u.x), __uint_as_float(u.y), __uint_as_float(u.z), __uint_as_float(u.w));
            }
        gpu_copy_wait<0>();
#pragma unroll
        for (int j = 0; j < KEPT; j++) {
            if (i + j >= end) break;
            mma_weight<T, 4> w[1];
            mma_activation<2> f[1];
#pragma unroll
            for (int y = 0; y < 2; y++) mma_load_weight(w[0], y, *(const uint4 *)(mine + (i + j - first) * 1024 + y * 512));
            mma_load_activation(f[0], 0, v[j][0], v[j][1]);
            mma_tiles(acc, 0, w, f);
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++) partial[warp][lane][j] = acc[0][0][j];
    __syncthreads();
    for (int j = segment; j < 4; j += seg.n) { /* the segments in ascending order; an empty one adds nothing */
        float sum = partial[warp - segment][lane][j];
        for (int s = 1; s < seg.n && s * seg.length < n_tiles; s++) sum += partial[warp - segment + s][lane][j];
        const int mm = blockIdx.y * 8 + quad * 2 + j % 2;
        const int64_t n = n0 + row + j / 2 * 8;
        if (mm < n_m && n < n_n) gpu_store(e, mm, n, sum);
    }
}

/* ---- many rows ---- */

static const int STAGES = 4;

/* WN x WM warps, each 8 X outputs by 16 Y rows. Shared memory of a stage: weights [outputs][64 bytes], activations [rows][128 bytes], sixteen
 * bytes of the latter swapped with their neighbours in odd rows, so that reading them hits all banks. */
template <int T, int WN, int WM, int X, int Y> __global__ void __launch_bounds__(WN *WM * 32, 1) prefill_kernel(gpu_view a, gpu_view b, gpu_epilogue e, int64_t n_m, int64_t n_n, int n_tiles, mma_segments seg) {
    extern __shared__ __align__(128) uint8_t stages[];
    const int THREADS = WN * WM * 32, TILE_N = WN * X * 8, TILE_M = WM * Y * 16, STAGE_B = TILE_N * 64, STAGE_A = TILE_M * 128;
    const int t = threadIdx.x, lane = t % 32, warp = t / 32, row = lane / 4, quad = lane % 4;
    const int64_t n0 = (int64_t)blockIdx.y * TILE_N, m0 = (int64_t)blockIdx.x * TILE_M;
    const int wn = warp % WN * X * 8, wm = warp / WN * Y * 16;

    /* What a thread brings of every stage: CB and CA pieces of sixteen bytes, one row of it each, so that a stage only moves the pointers. */
    const int CB = TILE_N * 4 / THREADS, CA = TILE_M * 8 / THREADS, rb = t / 4, ra = t / 8;
    static_assert(TILE_N * 4 % THREADS == 0 && TILE_M * 8 % THREADS == 0 && THREADS % 16 == 0, "whole pieces, rows of a an even number apart");
    const uint8_t *from_b[CB], *from_a[CA];
#pragma unroll
    for (int c = 0; c < CB; c++) {
        const int64_t n = n0 + rb + c * (THREADS / 4);
        from_b[c] = b.data + (n < n_n ? n : n_n - 1) * b.stride[0] + t % 4 * 16;
    }
#pragma unroll
    for (int c = 0; c < CA; c++) {
        const int64_t m = m0 + ra + c * (THREADS / 8);
        from_a[c] = a.data + (m < n_m ? m : n_m - 1) * a.stride[0] + t % 8 * 16;
    }
    const int to_b = rb * 64 + t % 4 * 16, to_a = ra * 128 + (t % 8 ^ (ra & 1)) * 16;
    auto load = [&](int i) {
        uint8_t *sb = stages + (size_t)(i % STAGES) * (STAGE_A + STAGE_B), *sa = sb + STAGE_B;
        if (i < n_tiles) {
#pragma unroll
            for (int c = 0; c < CB; c++) {
                gpu_copy16(gpu_shared_at(sb) + to_b + c * (THREADS / 4) * 64, from_b[c], 16);
                from_b[c] += 64;
            }
#pragma unroll
            for (int c = 0; c < CA; c++) {
                gpu_copy16(gpu_shared_at(sa) + to_a + c * (THREADS / 8) * 128, from_a[c], m0 + ra + c * (THREADS / 8) < n_m ? 16 : 0);
                from_a[c] += 128;
            }
        }
        gpu_copy_commit();
    };
    float acc[X][Y][4], total[X][Y][4];
#pragma unroll
    for (int j = 0; j < X * Y * 4; j++) acc[j / (Y * 4)][j / 4 % Y][j % 4] = 0.0f;
    for (int i = 0; i < STAGES - 1; i++) load(i);
    int left = seg.length;
    for (int i = 0; i < n_tiles; i++) {
        gpu_copy_wait<STAGES - 2>();
        __syncthreads();
        load(i + STAGES - 1);
        const uint8_t *sb = stages + (size_t)(i % STAGES) * (STAGE_A + STAGE_B), *sa = sb + STAGE_B;
        mma_weight<T, 2> w[X];
#pragma unroll
        for (int x = 0; x < X; x++) mma_load_weight(w[x], 0, *(const uint4 *)(sb + (wn + x * 8 + row) * 64 + quad * 16));
#pragma unroll
        for (int y = 0; y < Y; y++) {
            mma_activation<4> f[1];
#pragma unroll
            for (int z = 0; z < 2; z++) {
                const int r = wm + y * 16 + z * 8 + row;
                const uint8_t *p = sa + r * 128;
                mma_load_activation(f[0], z, *(const float4 *)(p + ((2 * quad) ^ (r & 1)) * 16), *(const float4 *)(p + ((2 * quad + 1) ^ (r & 1)) * 16));
            }
            mma_tiles(acc, y, w, f);
        }
        if (--left == 0 || i + 1 == n_tiles) {
            const bool first = i < seg.length;
            left = seg.length;
#pragma unroll
            for (int j = 0; j < X * Y * 4; j++) {
                float &sum = total[j / (Y * 4)][j / 4 % Y][j % 4], &part = acc[j / (Y * 4)][j / 4 % Y][j % 4];
                sum = first ? part : sum + part;
                part = 0.0f;
            }
        }
    }
#pragma unroll
    for (int x = 0; x < X; x++)
#pragma unroll
        for (int y = 0; y < Y; y++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int64_t m = m0 + wm + y * 16 + row + j / 2 * 8, n = n0 + wn + x * 8 + quad * 2 + j % 2;
                if (m < n_m && n < n_n) gpu_store(e, m, n, total[x][y][j]);
            }
}

/* ---- launching ---- */

template <int T, int WN, int WM, int X, int Y> static status launch_prefill(vt_queue *q, const vt_call *call, mma_segments seg, error *err) {
    const int64_t n_m = call->t[1]->dim[0], n_n = call->t[2]->dim[0];
    const int bytes = STAGES * (WN * X * 8 * 64 + WM * Y * 16 * 128);
    TRY(cuda_result(cudaFuncSetAttribute(prefill_kernel<T, WN, WM, X, Y>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory", err));
    dim3 grid((unsigned)gpu_ceil(n_m, WM * Y * 16), (unsigned)gpu_ceil(n_n, WN * X * 8));
    if (grid.y > 65535) return cuda_refuse(err, "a product of too many columns");
    prefill_kernel<T, WN, WM, X, Y><<<grid, WN * WM * 32, bytes, gpu_stream(q)>>>(gpu_view_of(call->t[1]), gpu_view_of(call->t[2]), gpu_epilogue_of(call), n_m, n_n,
                                                                               (int)(call->t[1]->dim[1] / MMA_K), seg);
    return gpu_launched(call, err);
}

static int64_t decode_blocks(int64_t n_n, int na, mma_segments seg) { return gpu_ceil(n_n, 16 * na * (DECODE_WARPS / seg.n)); }

template <int T, int NA, int NB> static status launch_decode(vt_queue *q, const vt_call *call, mma_segments seg, error *err) {
    const int64_t n_m = call->t[1]->dim[0], n_n = call->t[2]->dim[0];
    const dim3 grid((unsigned)decode_blocks(n_n, NA, seg), (unsigned)gpu_ceil(n_m, 8 * NB));
    decode_kernel<T, NA, NB><<<grid, DECODE_WARPS * 32, 0, gpu_stream(q)>>>(gpu_view_of(call->t[1]), gpu_view_of(call->t[2]), gpu_epilogue_of(call), (int)n_m, n_n, (int)(call->t[1]->dim[1] / MMA_K), seg);
    return gpu_launched(call, err);
}

static int64_t narrow_bytes(mma_segments seg) { return (int64_t)DECODE_WARPS * seg.length * 1024; }

template <int T> static status launch_narrow(vt_queue *q, const vt_call *call, mma_segments seg, error *err) {
    const int64_t n_m = call->t[1]->dim[0], n_n = call->t[2]->dim[0], bytes = narrow_bytes(seg);
    const dim3 grid((unsigned)decode_blocks(n_n, 1, seg), (unsigned)gpu_ceil(n_m, 8));
    TRY(cuda_result(cudaFuncSetAttribute(narrow_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes), "shared memory", err));
    return gpu_launch_grid(q, narrow_kernel<T>, grid, DECODE_WARPS * 32, (size_t)bytes, err, gpu_view_of(call->t[1]), gpu_view_of(call->t[2]), gpu_epilogue_of(call), (int)n_m, n_n, (int)(call->t[1]->dim[1] / MMA_K), seg);
}

template <int T> static status run_mma(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    const int64_t n_m = call->t[1]->dim[0], n_n = call->t[2]->dim[0];
    if (n_m <= 0 || n_n <= 0) return STATUS_OK;
    const mma_segments seg = mma_segments_of(call->t[1]->dim[1]);
    /* few outputs (a router's): small blocks of rows still fit the device at once */
    const int64_t blocks = decode_blocks(n_n, 1, seg), at_once = gpu_device(q)->n_multiprocessors;
    const bool narrow = n_m <= DECODE_ROWS ? blocks * gpu_ceil(n_m, 8) <= at_once : blocks * gpu_ceil(n_m, 16) <= 2 * at_once;
    if (narrow && n_m <= DECODE_ROWS && narrow_bytes(seg) + NARROW_SUMS <= gpu_device(q)->shared_bytes) return launch_narrow<T>(q, call, seg, err);
    if (n_m <= 8) return launch_decode<T, 1, 1>(q, call, seg, err);
    if (n_m <= 16 || narrow) return launch_decode<T, 1, 2>(q, call, seg, err);
    if (n_m <= 32) return launch_decode<T, 1, 4>(q, call, seg, err);
    if (n_m <= DECODE_ROWS) return launch_decode<T, 2, 8>(q, call, seg, err);
    const bool few = gpu_ceil(n_m, 128) * gpu_ceil(n_n, 128) < gpu_device(q)->n_multiprocessors;
    return few ? launch_prefill<T, 1, 4, 8, 1>(q, call, seg, err) : launch_prefill<T, 2, 4, 8, 2>(q, call, seg, err);
}

extern "C" status cuda_matmul_mma(vt_queue *q, const vt_call *call, error *err) {
    return call->t[2]->dtype == VT_F16 ? run_mma<VT_F16>(q, call, err) : run_mma<VT_BF16>(q, call, err);
}

/* Sixteen bytes at a time, whole tiles of K. Of a, the row stride must do for one row as for many: a caller that slices rows changes nothing. */
extern "C" bool cuda_fits_mma(const vt_call *call) {
    const vt_tensor *a = call->t[1], *b = call->t[2];
    const int64_t k = a->dim[1];
    return k > 0 && k % MMA_K == 0 && k / MMA_K < INT32_MAX && (uintptr_t)a->data % 16 == 0 && (uintptr_t)b->data % 16 == 0 && a->stride[0] % 4 == 0 &&
           b->stride[0] % 8 == 0;
}
