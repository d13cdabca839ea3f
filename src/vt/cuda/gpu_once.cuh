/* SPDX-License-Identifier: Apache-2.0 */
/** Copies into shared memory of what is read once, weights above all: the second-level cache gives it up first, and keeps what is small and read in every layer. */
#ifndef HEADRACE_VT_CUDA_GPU_ONCE_H
#define HEADRACE_VT_CUDA_GPU_ONCE_H

#include "vt/cuda/gpu.cuh"

/* What the second-level cache is to do with what a copy reads. */
GPU_FN uint64_t gpu_read_once() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

GPU_FN uint64_t gpu_read_again() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* gpu_copy16 with such a policy. */
GPU_FN void gpu_copy16_by(uint32_t to, const void *from, int n, uint64_t policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(n), "l"(policy) : "memory");
}

#endif
