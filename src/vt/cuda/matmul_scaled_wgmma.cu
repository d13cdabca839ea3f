/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BF16 activations times FP8 or MXFP4 weights for many rows on Hopper's matrix units: a block makes 128 rows by 128 columns. Activations
 * come by asynchronous copies; weights come as they are stored, two stages of 64 k ahead, and are written to shared memory as BF16, where
 * the matrix unit reads both (layout and descriptors as in gpu_wgmma.cuh).
 *
 * Numbers: as matmul_scaled_mma.cu, but that FP8 sums run over a whole block of scales (all of K where a row has one).
 */
#include "vt/cuda/gpu_narrow.cuh"
#include "vt/cuda/gpu_wgmma.cuh"
#include "vt/cuda/matmul_scaled.cuh"

static const int TILE = 128, A_STAGES = 4, B_STAGES = 3, STAGE_BYTES = TILE * WGMMA_ROW, MAX_SCALES = 192;
enum { A_AT = 0, B_AT = A_STAGES * STAGE_BYTES, BAD_AT = B_AT + B_STAGES * STAGE_BYTES, SCALES_AT = BAD_AT + TILE * 4 }; /* in shared memory */

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

template <int TB, int TS> __global__ void __launch_bounds__(WGMMA_THREADS, 1) scaled_wgmma_kernel(const __grid_constant__ scaled_args a) {
#ifdef GPU_HAS_WGMMA
    extern __shared__ uint8_t scaled_shared[];
    uint8_t *shared = scaled_shared + (1024 - gpu_shared_at(scaled_shared) % 1024) % 1024;
    const uint32_t base = gpu_shared_at(shared);
    const int t = threadIdx.x, group = t / 128, lane = t % 32, piece = t % 8, row0 = t / 8, brow = t / 2, bk = t % 2 * 32;
    const int64_t m0 = (int64_t)blockIdx.x * TILE, n0 = (int64_t)blockIdx.y * TILE;
    const int n_k = (int)a.k, n_stages = (n_k + WGMMA_BK - 1) / WGMMA_BK, n_blocks = (n_k + a.block_k - 1) / a.block_k;
    uint32_t *bad_of = (uint32_t *)(shared + BAD_AT);
    float *scales = (float *)(shared + SCALES_AT);
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
            for (int c = 0; c < 4; c++) {
                const int64_t m = m0 + row0 + 32 * c;
                const bool there = m < a.m && k < n_k;
                gpu_copy16(base + A_AT + i % A_STAGES * STAGE_BYTES + (row0 + 32 * c) * WGMMA_ROW + (piece ^ (row0 & 7)) * 16, there ? a.a + m * a.a_stride + k * 2 : a.a, there ? 16 : 0);
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
    for (int i = 0; i < A_STAGES - 2; i++) load_a(i);
#pragma unroll
    for (int i = 0; i < 2; i++) raw_load<TB>(raw[i], b, scale, i * WGMMA_BK + bk, n < a.n && i * WGMMA_BK + bk < n_k);
    const int stages_of_block = a.block_k < n_k ? a.block_k / WGMMA_BK : n_stages;
    int left = stages_of_block, block = 0;
    auto step = [&](int i, raw_weights<TB> &w) {
        raw_store<TB>(w, shared + B_AT + i % B_STAGES * STAGE_BYTES, brow, bk / 8, bad);
        raw_load<TB>(w, b, scale, (i + 2) * WGMMA_BK + bk, n < a.n && (i + 2) * WGMMA_BK + bk < n_k);
        gpu_copy_wait<A_STAGES - 3>();
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads(); /* stage i is there; nobody multiplies i - 2 any more */
        const uint64_t da = wgmma_descriptor(base + A_AT + i % A_STAGES * STAGE_BYTES + group * 64 * WGMMA_ROW), db = wgmma_descriptor(base + B_AT + i % B_STAGES * STAGE_BYTES);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < WGMMA_BK / 16; k++) wgmma_op<TILE>::run(acc, da + 2 * k, db + 2 * k);
        wgmma_commit();
        load_a(i + A_STAGES - 2);
        if constexpr (TB == VT_F8_E4M3) {
            if (--left == 0 || i + 1 == n_stages) {
                wgmma_wait<0>();
#pragma unroll
                for (int j = 0; j < 16; j++) {
                    const float2 s = *(const float2 *)(scales + block * TILE + j * 8 + lane % 4 * 2);
                    total[4 * j] = fmaf(acc[4 * j], s.x, total[4 * j]), total[4 * j + 1] = fmaf(acc[4 * j + 1], s.y, total[4 * j + 1]);
                    total[4 * j + 2] = fmaf(acc[4 * j + 2], s.x, total[4 * j + 2]), total[4 * j + 3] = fmaf(acc[4 * j + 3], s.y, total[4 * j + 3]);
                    acc[4 * j] = acc[4 * j + 1] = acc[4 * j + 2] = acc[4 * j + 3] = 0.0f;
                }
                left = stages_of_block;
                block++;
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

template <int TB, int TS> static status run(vt_queue *q, const vt_call *call, const scaled_args *a, error *err) {
    const int64_t n_scales = TB == VT_F8_E4M3 ? gpu_ceil(a->k, a->block_k) : 0;
    const int bytes = SCALES_AT + (int)n_scales * TILE * 4 + 1024;
    TRY(cuda_result(cudaFuncSetAttribute(scaled_wgmma_kernel<TB, TS>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory", err));
    scaled_wgmma_kernel<TB, TS><<<dim3((unsigned)gpu_ceil(a->m, TILE), (unsigned)gpu_ceil(a->n, TILE)), WGMMA_THREADS, bytes, gpu_stream(q)>>>(*a);
    return gpu_launched(call, err);
}

/* A thread reads 32 weights at a time. */
bool cuda_scaled_takes_wgmma(const vt_queue *q, const scaled_args *a) {
    return cuda_runs_wgmma(q) && a->k % 32 == 0 && a->m > 64 && a->n <= 65535 * TILE && gpu_ceil(a->k, a->block_k) <= MAX_SCALES;
}

status cuda_scaled_wgmma(vt_queue *q, const vt_call *call, const scaled_args *a, error *err) {
    if (call->t[2]->dtype == VT_F4_E2M1) return run<VT_F4_E2M1, VT_F8_E8M0>(q, call, a, err);
    switch (call->t[3]->dtype) {
    case VT_F32:
        return run<VT_F8_E4M3, VT_F32>(q, call, a, err);
    case VT_F16:
        return run<VT_F8_E4M3, VT_F16>(q, call, a, err);
    default:
        return run<VT_F8_E4M3, VT_BF16>(q, call, a, err);
    }
}
