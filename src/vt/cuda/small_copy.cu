/* SPDX-License-Identifier: Apache-2.0 */
/* A thread for each 16 bytes, or for each 4. */
#include "vt/cuda/small_copy.cuh"

#include <stdint.h>

static const int THREADS = 128;

template <typename T> __global__ void small_copy_kernel(T *dst, const T *src, int n) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) dst[i] = src[i];
}

template <typename T> static cudaError_t launch(cudaStream_t stream, void *dst, const void *src, size_t bytes) {
    int n = (int)(bytes / sizeof(T));
    small_copy_kernel<T><<<(unsigned)((n + THREADS - 1) / THREADS), THREADS, 0, stream>>>((T *)dst, (const T *)src, n);
    return cudaGetLastError();
}

extern "C" cudaError_t cuda_small_copy(cudaStream_t stream, void *dst, const void *src, size_t bytes) {
    bool wide = (((uintptr_t)dst | (uintptr_t)src | bytes) & 15) == 0;
    return wide ? launch<uint4>(stream, dst, src, bytes) : launch<uint32_t>(stream, dst, src, bytes);
}
