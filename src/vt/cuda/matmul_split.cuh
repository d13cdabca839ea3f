/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Up to 64 rows of BF16 activations by BF16 weights on Hopper's matrix units: a tile of 64 rows by SPLIT_N outputs, K shared out to the blocks of a cluster so that few outputs fill the device too.
 * Each block adds its stretch of k ascending in steps of sixteen; the stretches meet in shared memory, in ascending order. How many there are follows from the outputs and K alone.
 * Compiled to nothing but for sm_90a; who launches asks cuda_runs_wgmma.
 */
#ifndef HEADRACE_VT_CUDA_MATMUL_SPLIT_H
#define HEADRACE_VT_CUDA_MATMUL_SPLIT_H

#include "vt/cuda/gpu_wgmma.cuh"
#include "vt/cuda/matmul_fused.cuh"

static const int SPLIT_M = 64, SPLIT_N = 128, SPLIT_STAGES = 9, SPLIT_STAGE = (SPLIT_M + SPLIT_N) * WGMMA_ROW, SPLIT_BYTES = SPLIT_STAGES * SPLIT_STAGE + 1024, SPLIT_MOST = 8;
static const int SPLIT_ABOVE = 16; /* rows: with fewer, weights that go straight into fragments are faster */
static const int SPLIT_SUMS = SPLIT_N + 4; /* floats from a row of sums to the next */

#ifdef GPU_HAS_WGMMA
GPU_FN void split_meet() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Four sums of the block of this rank. */
GPU_FN float4 split_sums(uint32_t at, uint32_t rank) {
    uint32_t there;
    float4 v;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(there) : "memory");
    return v;
}

GPU_FN float4 split_whole(uint32_t at, int n_ranks) {
    float4 s = split_sums(at, 0);
    for (int r = 1; r < n_ranks; r++) {
        const float4 v = split_sums(at, (uint32_t)r);
        s = make_float4(s.x + v.x, s.y + v.y, s.z + v.z, s.w + v.w);
    }
    return s;
}
#endif

/* length: stages of 64 elements of K that a block has. */
template <few_mode MODE> __global__ void __launch_bounds__(WGMMA_THREADS, 1) split_kernel(gpu_view a, const __grid_constant__ few_parts f, int n_m, int64_t n_n, int n_k, int length, int n_ranks) {
#ifdef GPU_HAS_WGMMA
    extern __shared__ uint8_t stages[];
    const int t = threadIdx.x, group = t / 128, piece = t % 8, row0 = t / 8, CA = SPLIT_M / 32, CB = SPLIT_N / 32, OUTPUTS = MODE == FEW_GATED ? SPLIT_N / 2 : SPLIT_N;
    const int rank = blockIdx.x % n_ranks, first = rank * length, all = (n_k + WGMMA_BK - 1) / WGMMA_BK, n_stages = first >= all ? 0 : first + length < all ? length : all - first;
    const int64_t n0 = (int64_t)(blockIdx.x / n_ranks) * OUTPUTS;
    const uint32_t base = (gpu_shared_at(stages) + 1023) / 1024 * 1024, to = base + row0 * WGMMA_ROW + (piece ^ (row0 & 7)) * 16;
    const few_part part = MODE == FEW_SEVERAL ? few_part_at(f, n0) : few_part{NULL, f.out[0], 0, f.out_stride[0], n_n, 0};
    const uint8_t *from_a[CA], *from_b[CB];
    uint32_t there = 0; /* a bit a row that is not zeros */
#pragma unroll
    for (int c = 0; c < CA; c++) {
        const int m = row0 + 32 * c;
        if (m < n_m) there |= 1u << c;
        from_a[c] = a.data + (int64_t)(m < n_m ? m : 0) * a.stride[0] + piece * 16 + (int64_t)first * WGMMA_ROW;
    }
#pragma unroll
    for (int c = 0; c < CB; c++) {
        const int j = row0 + 32 * c, half = MODE == FEW_GATED ? j / OUTPUTS : 0;
        const int64_t n = n0 - part.begin + j - half * OUTPUTS;
        const uint8_t *b = MODE == FEW_SEVERAL ? part.b : half == 0 ? f.b[0] : f.b[1];
        const int64_t stride = MODE == FEW_SEVERAL ? part.b_stride : half == 0 ? f.b_stride[0] : f.b_stride[1];
        if (n < part.n) there |= 1u << (CA + c);
        from_b[c] = b + (n < part.n ? n : 0) * stride + piece * 16 + (int64_t)first * WGMMA_ROW;
    }
    auto inside = [&](int i) { return (first + i) * WGMMA_BK + piece * 8 < n_k; };
    auto load_b = [&](int i) {
        if (i >= n_stages) return;
#pragma unroll
        for (int c = 0; c < CB; c++) {
            gpu_copy16(to + i % SPLIT_STAGES * SPLIT_STAGE + (CA + c) * 4096, inside(i) ? from_b[c] + (int64_t)i * WGMMA_ROW : a.data, inside(i) && (there >> (CA + c) & 1) ? 16 : 0);
        }
    };
    auto load_a = [&](int i) {
        if (i < n_stages) {
#pragma unroll
            for (int c = 0; c < CA; c++) gpu_copy16(to + i % SPLIT_STAGES * SPLIT_STAGE + c * 4096, inside(i) ? from_a[c] + (int64_t)i * WGMMA_ROW : a.data, inside(i) && (there >> c & 1) ? 16 : 0);
        }
        gpu_copy_commit();
    };
    float acc[SPLIT_N / 4];
#pragma unroll
    for (int j = 0; j < SPLIT_N / 4; j++) acc[j] = 0.0f;
    gpu_let_next_start();
    for (int i = 0; i < SPLIT_STAGES - 2; i++) load_b(i); /* weights are there before the activations are */
    gpu_await_previous();
    for (int i = 0; i < SPLIT_STAGES - 2; i++) load_a(i);
    for (int i = 0; i < n_stages; i++) {
        gpu_copy_wait<SPLIT_STAGES - 3>();                           /* stage i of this thread */
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* for the matrix unit too */
        __syncthreads();                                             /* of every thread; and nobody multiplies i - 2 any more */
        const uint32_t at = base + i % SPLIT_STAGES * SPLIT_STAGE;
        const uint64_t da = wgmma_descriptor(at), db = wgmma_descriptor(at + (SPLIT_M + group * 64) * WGMMA_ROW);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < WGMMA_BK / 16; k++) wgmma_op<64>::run(acc, da + 2 * k, db + 2 * k);
        wgmma_commit();
        load_b(i + SPLIT_STAGES - 2);
        load_a(i + SPLIT_STAGES - 2);
        wgmma_wait<1>();
    }
    wgmma_wait<0>();
    gpu_copy_wait<0>();
    __syncthreads();
    float *sums = (float *)(stages + (base - gpu_shared_at(stages)));
    const int lane = t % 32, row = t / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float *s = sums + row * SPLIT_SUMS + group * 64 + j * 8 + lane % 4 * 2;
        *(float2 *)s = make_float2(acc[4 * j], acc[4 * j + 1]);
        *(float2 *)(s + 8 * SPLIT_SUMS) = make_float2(acc[4 * j + 2], acc[4 * j + 3]);
    }
    split_meet();
    const int quads = n_m * (OUTPUTS / 4);
    for (int q = rank * WGMMA_THREADS + t; q < quads; q += n_ranks * WGMMA_THREADS) {
        const int m = q / (OUTPUTS / 4), j = q % (OUTPUTS / 4) * 4;
        const int64_t n = n0 - part.begin + j;
        const uint32_t at = base + (uint32_t)(m * SPLIT_SUMS + j) * 4;
        if (n >= part.n) continue;
        const float4 v = split_whole(at, n_ranks);
        float r[4] = {v.x, v.y, v.z, v.w};
        uint8_t *out = part.out + m * part.out_stride;
        if (MODE == FEW_GATED) {
            const float4 w = split_whole(at + OUTPUTS * 4, n_ranks);
            const float u[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (n + i < part.n) ((uint16_t *)out)[n + i] = gpu_to_bf16(gpu_gate(f.gate, vt_swiglu_params(), r[i], u[i]));
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (n + i < part.n) ((float *)out)[n + i] = r[i];
        }
    }
    split_meet(); /* nobody reads this block's sums any more */
#else
    (void)a, (void)f, (void)n_m, (void)n_n, (void)n_k, (void)length, (void)n_ranks;
#endif
}

/* n_n: outputs, those of several parts as several_parts lays them out. */
template <few_mode MODE> static status launch_split(vt_queue *q, const vt_tensor *a, const few_parts &f, int64_t n_n, error *err) {
    const int64_t tiles = gpu_ceil(n_n, MODE == FEW_GATED ? SPLIT_N / 2 : SPLIT_N), sms = gpu_device(q)->n_multiprocessors, all = gpu_ceil(a->dim[1], WGMMA_BK);
    int64_t ranks = tiles < sms ? sms / tiles : 1;
    if (ranks > SPLIT_MOST) ranks = SPLIT_MOST;
    if (ranks > all) ranks = all;
    if (tiles * ranks > INT32_MAX) return cuda_refuse(err, "a product of too many tiles");
    TRY(cuda_result(cudaFuncSetAttribute(split_kernel<MODE>, cudaFuncAttributeMaxDynamicSharedMemorySize, SPLIT_BYTES), "shared memory", err));
    cudaLaunchAttribute attrs[2] = {};
    attrs[0].id = cudaLaunchAttributeClusterDimension;
    attrs[0].val.clusterDim.x = (unsigned)ranks, attrs[0].val.clusterDim.y = attrs[0].val.clusterDim.z = 1;
    attrs[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attrs[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3((unsigned)(tiles * ranks));
    c.blockDim = dim3(WGMMA_THREADS);
    c.dynamicSmemBytes = SPLIT_BYTES;
    c.stream = gpu_stream(q);
    c.attrs = attrs;
    c.numAttrs = 2;
    return cuda_result(cudaLaunchKernelEx(&c, split_kernel<MODE>, gpu_view_of(a), f, (int)a->dim[0], n_n, (int)a->dim[1], (int)gpu_ceil(all, ranks), (int)ranks), "launching a kernel", err);
}

#endif
