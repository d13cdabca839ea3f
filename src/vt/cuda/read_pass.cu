/* SPDX-License-Identifier: Apache-2.0 */
/* Reads memory and does nothing with it, for measuring: sixteen bytes a thread at a time, four of them on their way. What was read is combined, so that no compiler leaves it out. */
#include "vt/cuda/gpu.cuh"

static const int THREADS = 512, BLOCKS_PER_MULTIPROCESSOR = 8;

GPU_FN void take(uint4 &sum, uint4 v) {
    sum.x ^= v.x;
    sum.y ^= v.y;
    sum.z ^= v.z;
    sum.w ^= v.w;
}

__global__ void read_kernel(const uint4 *p, int64_t n, uint4 *never) {
    int64_t step = (int64_t)gridDim.x * blockDim.x, i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint4 sum = make_uint4(0, 0, 0, 0);
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 a = p[i], b = p[i + step], c = p[i + 2 * step], d = p[i + 3 * step];
        take(sum, a);
        take(sum, b);
        take(sum, c);
        take(sum, d);
    }
    for (; i < n; i += step) take(sum, p[i]);
    if ((sum.x & sum.y & sum.z & sum.w) == 0x6B43A9B5u) *never = sum;
}

extern "C" cudaError_t cuda_read_pass(const cuda_device *d, cuda_queue *q, const void *p, size_t bytes) {
    read_kernel<<<(unsigned)(d->n_multiprocessors * BLOCKS_PER_MULTIPROCESSOR), THREADS, 0, q->stream>>>((const uint4 *)p, (int64_t)(bytes / sizeof(uint4)), (uint4 *)q->workspace);
    return cudaGetLastError();
}
