/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BF16 activations times FP8 or MXFP4 weights, and F32 activations times FP8 weights, for many rows on Hopper's matrix units: a block makes 128 rows by 128 columns. F32 activations are first
 * cut into three BF16 parts (gpu_mma.cuh), which lie in the queue's workspace, as many rows at a time as it holds. Activations come by asynchronous copies; weights come as they are stored, two stages of 64 k ahead, and are written to shared memory as BF16, where
 * the matrix unit reads both (layout and descriptors as in gpu_wgmma.cuh).
 *
 * Numbers: as matmul_scaled_mma.cu, but that FP8 sums run over a whole block of scales (all of K where a row has one), with F32 activations over 256 k of it at most.
 */
#include "vt/cuda/gpu_mma.cuh"
#include "vt/cuda/gpu_narrow.cuh"
#include "vt/cuda/gpu_wgmma.cuh"
#include "vt/cuda/matmul_scaled.cuh"

static const int TILE = 128, B_STAGES = 3, STAGE_BYTES = TILE * WGMMA_ROW;
/* P: parts of the activations. Where things lie in shared memory, and how many scales a row may have. */
template <int P> struct scaled_form {
    static const int A_STAGES = P == 1 ? 4 : 3, A_STAGE = P * STAGE_BYTES, B_AT = A_STAGES * A_STAGE, BAD_AT = B_AT + B_STAGES * STAGE_BYTES, SCALES_AT = BAD_AT + TILE * 4;
    static const int MAX_SCALES = P == 1 ? 192 : 64;
};

#ifdef GPU_HAS_WGMMA
/* 32 weights of a row as BF16, sixteen bytes to a piece. */
template <int TB> struct raw_weights {
    uint4 v[TB == VT_F8_E4M3 ? 2 : 1];
    uint32_t e;
};

template <int TB> GPU_FN void raw_load(raw_weights<TB> &w, const uint8_t *b, const uint8_t *scale, int k, bool inside) {
#pragma unroll
    for (int i = 0; i < (TB == VT_F8_E4M3 ? 2 : 1); i++) w.v[i] = make_uint4(0, 0, 0, 0);
    w.e = 0;
    if (!inside) return;
    if constexpr (TB == VT_F8_E4M3) {
        w.v[0] = *(const uint4 *)(b + k);
        w.v[1] = *(const uint4 *)(b + k + 16);
    } else {
        w.v[0] = *(const uint4 *)(b + k / 2);
        w.e = scale[k / 32];
    }
}

template <int TB> GPU_FN void raw_store(const raw_weights<TB> &w, uint8_t *to, int row, int piece, uint32_t &bad) {
    const uint32_t by = narrow_scale_e2m1(w.e), rest = narrow_rest_e2m1(w.e);
    const uint32_t *words = &w.v[0].x;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 x;
        if constexpr (TB == VT_F8_E4M3) {
            narrow_e4m3(words[2 * i], x.x, x.y);
            narrow_e4m3(words[2 * i + 1], x.z, x.w);
            bad |= narrow_nan_e4m3(words[2 * i]) | narrow_nan_e4m3(words[2 * i + 1]);
        } else {
            uint32_t p[4] = {narrow_e2m1<0>(words[i], by), narrow_e2m1<1>(words[i], by), narrow_e2m1<2>(words[i], by), narrow_e2m1<3>(words[i], by)};
            if (w.e > 128) {
#pragma unroll
                for (int j = 0; j < 4; j++) p[j] = narrow_mul(p[j], rest);
            }
            x = make_uint4(__byte_perm(p[0], p[1], 0x5410), __byte_perm(p[2], p[3], 0x5410), __byte_perm(p[0], p[1], 0x7632), __byte_perm(p[2], p[3], 0x7632));
        }
        *(uint4 *)(to + row * WGMMA_ROW + ((piece + i) ^ (row & 7)) * 16) = x;
    }
}
#endif

template <int P, int TB, int TS> __global__ void __launch_bounds__(WGMMA_THREADS, 1) scaled_wgmma_kernel(const __grid_constant__ scaled_args a) {
#ifdef GPU_HAS_WGMMA
    typedef scaled_form<P> F;
    extern __shared__ uint8_t scaled_shared[];
    uint8_t *shared = scaled_shared + (1024 - gpu_shared_at(scaled_shared) % 1024) % 1024;
    const uint32_t base = gpu_shared_at(shared);
    const int t = threadIdx.x, group = t / 128, lane = t % 32, piece = t % 8, row0 = t / 8, brow = t / 2, bk = t % 2 * 32;
    const int64_t m0 = (int64_t)blockIdx.x * TILE, n0 = (int64_t)blockIdx.y * TILE;
    const int n_k = (int)a.k, n_stages = (n_k + WGMMA_BK - 1) / WGMMA_BK, n_blocks = (n_k + a.block_k - 1) / a.block_k;
    uint32_t *bad_of = (uint32_t *)(shared + F::BAD_AT);
    float *scales = (float *)(shared + F::SCALES_AT);
    const int64_t n = n0 + brow;
    const uint8_t *b = a.b + (n < a.n ? n : 0) * a.b_stride, *scale = a.scale + (n < a.n ? n : 0) / a.block_n * a.scale_stride;
    if (t < TILE) bad_of[t] = 0;
    if constexpr (TB == VT_F8_E4M3) {
        for (int i = t % 2; i < n_blocks; i += 2) scales[i * TILE + brow] = n < a.n ? narrow_scale<TS>(scale, i) : 0.0f;
    }
    auto load_a = [&](int i) {
        if (i < n_stages) {
            const int k = i * WGMMA_BK + piece * 8;
#pragma unroll
            for (int c = 0; c < 4 * P; c++) {
                const int row = row0 + 32 * (c % 4);
                const int64_t m = m0 + row;
                const bool there = m < a.m && k < n_k;
                gpu_copy16(base + i % F::A_STAGES * F::A_STAGE + c / 4 * STAGE_BYTES + row * WGMMA_ROW + (piece ^ (row0 & 7)) * 16,
                           there ? a.a + c / 4 * a.part_stride + m * a.a_stride + k * 2 : a.a, there ? 16 : 0);
            }
        }
        gpu_copy_commit();
    };
    float acc[64], total[TB == VT_F8_E4M3 ? 64 : 1];
#pragma unroll
    for (int i = 0; i < 64; i++) acc[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < (TB == VT_F8_E4M3 ? 64 : 1); i++) total[i] = 0.0f;
    uint32_t bad = 0;
    raw_weights<TB> raw[2];
    for (int i = 0; i < F::A_STAGES - 2; i++) load_a(i);
#pragma unroll
    for (int i = 0; i < 2; i++) raw_load<TB>(raw[i], b, scale, i * WGMMA_BK + bk, n < a.n && i * WGMMA_BK + bk < n_k);
    const int stages_of_block = a.block_k < n_k ? a.block_k / WGMMA_BK : n_stages;
    const int most = P == 1 ? n_stages : 4; /* the unit's sums lose a little at each step, and three parts are three times the steps */
    int left = stages_of_block, block = 0, since = 0;
    auto step = [&](int i, raw_weights<TB> &w) {
        raw_store<TB>(w, shared + F::B_AT + i % B_STAGES * STAGE_BYTES, brow, bk / 8, bad);
        raw_load<TB>(w, b, scale, (i + 2) * WGMMA_BK + bk, n < a.n && (i + 2) * WGMMA_BK + bk < n_k);
        gpu_copy_wait<F::A_STAGES - 3>();
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads(); /* stage i is there; nobody multiplies i - 2 any more */
        const uint64_t db = wgmma_descriptor(base + F::B_AT + i % B_STAGES * STAGE_BYTES);
        wgmma_begin();
#pragma unroll
        for (int p = P - 1; p >= 0; p--) {
            const uint64_t da = wgmma_descriptor(base + i % F::A_STAGES * F::A_STAGE + p * STAGE_BYTES + group * 64 * WGMMA_ROW);
#pragma unroll
            for (int k = 0; k < WGMMA_BK / 16; k++) wgmma_op<TILE>::run(acc, da + 2 * k, db + 2 * k);
        }
        wgmma_commit();
        load_a(i + F::A_STAGES - 2);
        if constexpr (TB == VT_F8_E4M3) {
            left--, since++;
            if (left == 0 || since == most || i + 1 == n_stages) {
                wgmma_wait<0>();
#pragma unroll
                for (int j = 0; j < 16; j++) {
                    const float2 s = *(const float2 *)(scales + block * TILE + j * 8 + lane % 4 * 2);
                    total[4 * j] = fmaf(acc[4 * j], s.x, total[4 * j]), total[4 * j + 1] = fmaf(acc[4 * j + 1], s.y, total[4 * j + 1]);
                    total[4 * j + 2] = fmaf(acc[4 * j + 2], s.x, total[4 * j + 2]), total[4 * j + 3] = fmaf(acc[4 * j + 3], s.y, total[4 * j + 3]);
                    acc[4 * j] = acc[4 * j + 1] = acc[4 * j + 2] = acc[4 * j + 3] = 0.0f;
                }
                since = 0;
                if (left == 0) left = stages_of_block, block++;
                return;
            }
        }
        wgmma_wait<1>();
    };
    for (int i = 0; i < n_stages; i += 2) {
        step(i, raw[0]);
        if (i + 1 < n_stages) step(i + 1, raw[1]);
    }
    wgmma_wait<0>();
    gpu_copy_wait<0>();
    if (bad != 0) atomicOr(bad_of + brow, 1u);
    __syncthreads();
    const int64_t row = m0 + group * 64 + t / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < 16; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int64_t m = row + i / 2 * 8;
            const int column = j * 8 + lane % 4 * 2 + i % 2;
            float v = TB == VT_F8_E4M3 ? total[TB == VT_F8_E4M3 ? 4 * j + i : 0] : acc[4 * j + i];
            if (TB == VT_F8_E4M3 && bad_of[column] != 0) v = __uint_as_float(0x7FC00000u);
            if (m < a.m && n0 + column < a.n) *(float *)(a.out + m * a.out_stride + (n0 + column) * 4) = v;
        }
#else
    (void)a;
#endif
}

template <int P, int TB, int TS> static status run(vt_queue *q, const vt_call *call, const scaled_args *a, error *err) {
    const int64_t n_scales = TB == VT_F8_E4M3 ? gpu_ceil(a->k, a->block_k) : 0;
    const int bytes = scaled_form<P>::SCALES_AT + (int)n_scales * TILE * 4 + 1024;
    TRY(cuda_result(cudaFuncSetAttribute(scaled_wgmma_kernel<P, TB, TS>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory", err));
    scaled_wgmma_kernel<P, TB, TS><<<dim3((unsigned)gpu_ceil(a->m, TILE), (unsigned)gpu_ceil(a->n, TILE)), WGMMA_THREADS, bytes, gpu_stream(q)>>>(*a);
    return gpu_launched(call, err);
}

/* ---- F32 activations ---- */

/* Four activations at a time; parts lie one behind another. */
__global__ void __launch_bounds__(256) scaled_split_kernel(const uint8_t *a, int64_t a_stride, uint8_t *parts, int64_t part_stride, int64_t n, int32_t quads) {
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const float4 v = *(const float4 *)(a + i / quads * a_stride + i % quads * 16);
    uint32_t x[3], y[3];
    mma_split3(v.x, v.y, x);
    mma_split3(v.z, v.w, y);
#pragma unroll
    for (int p = 0; p < 3; p++) *(uint2 *)(parts + p * part_stride + i * 8) = make_uint2(x[p], y[p]);
}

/* Rows whose parts the workspace holds, in whole tiles. */
static int64_t split_rows(int64_t k) { return CUDA_WORKSPACE_BYTES / (6 * k) / TILE * TILE; }

template <int TS> static status run_split(vt_queue *q, const vt_call *call, const scaled_args *all, error *err) {
    uint8_t *parts = (uint8_t *)((cuda_queue *)q->handle)->workspace;
    const int64_t most = split_rows(all->k);
    for (int64_t m = 0; m < all->m; m += most) {
        scaled_args a = *all;
        a.m = all->m - m < most ? all->m - m : most;
        a.out += m * a.out_stride;
        a.part_stride = a.m * a.k * 2;
        const int64_t n = a.m * a.k / 4;
        scaled_split_kernel<<<(unsigned)gpu_ceil(n, 256), 256, 0, gpu_stream(q)>>>(a.a + m * a.a_stride, a.a_stride, parts, a.part_stride, n, (int32_t)(a.k / 4));
        TRY(gpu_launched(call, err));
        a.a = parts;
        a.a_stride = a.k * 2;
        TRY((run<3, VT_F8_E4M3, TS>(q, call, &a, err)));
    }
    return STATUS_OK;
}

/* A thread reads 32 weights at a time. */
bool cuda_scaled_takes_wgmma(const vt_queue *q, const scaled_args *a, bool f32) {
    const int most = f32 ? scaled_form<3>::MAX_SCALES : scaled_form<1>::MAX_SCALES;
    return cuda_runs_wgmma(q) && a->k % 32 == 0 && a->m > (f32 ? 16 : 64) && a->n <= 65535 * TILE && gpu_ceil(a->k, a->block_k) <= most && (!f32 || split_rows(a->k) > 0);
}

template <int TS> static status run_fp8(vt_queue *q, const vt_call *call, const scaled_args *a, error *err) {
    return call->t[1]->dtype == VT_F32 ? run_split<TS>(q, call, a, err) : run<1, VT_F8_E4M3, TS>(q, call, a, err);
}

status cuda_scaled_wgmma(vt_queue *q, const vt_call *call, const scaled_args *a, error *err) {
    if (call->t[2]->dtype == VT_F4_E2M1) return run<1, VT_F4_E2M1, VT_F8_E8M0>(q, call, a, err);
    switch (call->t[3]->dtype) {
    case VT_F32:
        return run_fp8<VT_F32>(q, call, a, err);
    case VT_F16:
        return run_fp8<VT_F16>(q, call, a, err);
    default:
        return run_fp8<VT_BF16>(q, call, a, err);
    }
}
