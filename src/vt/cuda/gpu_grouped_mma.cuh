/* SPDX-License-Identifier: Apache-2.0 */
/** What grouped products with m16n8k16 share: stages in shared memory, filled by asynchronous copies, and fragments read from them. */
#ifndef HEADRACE_VT_CUDA_GPU_GROUPED_MMA_H
#define HEADRACE_VT_CUDA_GPU_GROUPED_MMA_H

#include "vt/cuda/gpu_groups.cuh"
#include "vt/cuda/gpu_mma.cuh"
#include "vt/cuda/gpu_once.cuh"

GPU_FN void grouped_copy16(uint32_t to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0));
}

GPU_FN void load_matrices4(uint32_t r[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

GPU_FN void load_matrices2(uint32_t r[2], uint32_t at) { asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at)); }

GPU_FN float2 load_pair(uint32_t at) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at));
    return v;
}

/* Sixteen bytes `chunk` of a row: swizzled, so that eight rows of one chunk lie in different banks. */
GPU_FN uint32_t in_stage(int row, int chunk, int row_bytes) { return (uint32_t)(row * row_bytes + ((chunk ^ (row & 7)) << 4)); }

/* What a thread brings of each stage: C pieces of one place in a row, rows apart. */
template <int THREADS, int ROWS, int ROW_BYTES> struct grouped_loader {
    static const int PER_ROW = ROW_BYTES / 16, STEP = THREADS / PER_ROW, C = (ROWS + STEP - 1) / STEP;
    const uint8_t *from[C];
    uint32_t there; /* a bit a piece */

    static __device__ __forceinline__ int row_of(int c) { return (int)threadIdx.x / PER_ROW + c * STEP; }
    __device__ void load(uint32_t stage, int64_t offset, bool in_k) const {
        const int chunk = threadIdx.x % PER_ROW;
#pragma unroll
        for (int c = 0; c < C; c++)
            if (ROWS % STEP == 0 || row_of(c) < ROWS) grouped_copy16(stage + in_stage(row_of(c), chunk, ROW_BYTES), from[c] + (in_k ? offset : 0), in_k && (there >> c & 1));
    }
    /* policy: of gpu_once.cuh */
    __device__ void load(uint32_t stage, int64_t offset, bool in_k, uint64_t policy) const {
        const int chunk = threadIdx.x % PER_ROW;
#pragma unroll
        for (int c = 0; c < C; c++)
            if (ROWS % STEP == 0 || row_of(c) < ROWS) gpu_copy16_by(stage + in_stage(row_of(c), chunk, ROW_BYTES), from[c] + (in_k ? offset : 0), in_k && (there >> c & 1) ? 16 : 0, policy);
    }
};

#endif
