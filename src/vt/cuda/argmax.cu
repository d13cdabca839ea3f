/* SPDX-License-Identifier: Apache-2.0 */
/* The largest element of each row. A row is cut into parts, a block walks one; what a part found is a number whose order is that of what it
 * stands for, so that a maximum of numbers is the answer and no order of looking matters. */
#include "vt/cuda/gpu_launch.cuh"

static const int THREADS = 256, WARPS = THREADS / 32, MAX_PARTS = 128;
static const int64_t PART_ELEMS = 2048;

/* The float in the upper half, as an unsigned number of the same order, a NaN above all others; the complement of the place in the lower,
 * so that the first of equals is the largest. */
GPU_FN uint64_t rank_of(float x, uint32_t place) {
    uint32_t bits = __float_as_uint(x == 0.0f ? 0.0f : x), key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    if (x != x) key = 0xFFFFFFFFu;
    return (uint64_t)key << 32 | (uint32_t)~place;
}

GPU_FN int32_t place_of(uint64_t rank) {
    uint32_t key = (uint32_t)(rank >> 32);
    bool finite = key < 0xFF800000u && key > 0x007FFFFFu; /* neither a NaN nor one of the infinities */
    return finite ? (int32_t) ~(uint32_t)rank : -1;
}

GPU_FN uint64_t block_max(uint64_t best) {
    __shared__ uint64_t found[WARPS];
    for (int d = 16; d > 0; d >>= 1) {
        uint64_t other = gpu_shfl_xor(best, d);
        best = other > best ? other : best;
    }
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = best;
    __syncthreads();
    best = threadIdx.x < WARPS ? found[threadIdx.x] : 0;
    for (int d = 16; d > 0; d >>= 1) {
        uint64_t other = gpu_shfl_xor(best, d);
        best = other > best ? other : best;
    }
    return best;
}

__global__ void part_kernel(gpu_view x, int64_t n, int64_t part, bool by_four, uint64_t *found) {
    const float *row = (const float *)(x.data + (int64_t)blockIdx.x * x.stride[0]);
    int64_t begin = (int64_t)blockIdx.y * part, end = begin + part < n ? begin + part : n, i = begin;
    uint64_t best = 0;
    gpu_let_next_start();
    gpu_await_previous();
    if (by_four) {
        for (i = begin + 4 * threadIdx.x; i + 4 <= end; i += 4 * THREADS) {
            float4 v = *(const float4 *)(row + i);
            float e[4] = {v.x, v.y, v.z, v.w};
            for (int k = 0; k < 4; k++) {
                uint64_t rank = rank_of(e[k], (uint32_t)(i + k));
                best = rank > best ? rank : best;
            }
        }
        i = begin + (end - begin) / 4 * 4;
    }
    for (i += threadIdx.x; i < end; i += THREADS) {
        uint64_t rank = rank_of(row[i], (uint32_t)i);
        best = rank > best ? rank : best;
    }
    best = block_max(best);
    if (threadIdx.x == 0) found[(int64_t)blockIdx.x * gridDim.y + blockIdx.y] = best;
}

__global__ void pick_kernel(gpu_view ids, const uint64_t *found, int n_parts) {
    gpu_await_previous();
    uint64_t best = (int)threadIdx.x < n_parts ? found[(int64_t)blockIdx.x * n_parts + threadIdx.x] : 0;
    best = block_max(best);
    if (threadIdx.x == 0) *(int32_t *)(ids.data + blockIdx.x * ids.stride[0]) = place_of(best);
}

extern "C" status cuda_argmax(vt_queue *q, const vt_call *call, error *err) {
    const vt_tensor *x = call->t[1];
    int64_t n_rows = x->dim[0], n = x->dim[1], most = (int64_t)(CUDA_WORKSPACE_BYTES / sizeof(uint64_t));
    TRY(gpu_enter(q, err));
    if (n_rows <= 0) return STATUS_OK;
    if (n_rows > most || n > INT32_MAX) return cuda_refuse(err, "argmax: more rows or columns than one launch takes");
    int64_t parts = gpu_ceil(n, PART_ELEMS);
    if (parts > MAX_PARTS) parts = MAX_PARTS;
    if (parts * n_rows > most) parts = most / n_rows;
    if (parts < 1) parts = 1;
    int64_t part = gpu_ceil(gpu_ceil(n, parts), 4) * 4;
    bool by_four = (uintptr_t)x->data % 16 == 0 && x->stride[0] % 4 == 0;
    uint64_t *found = (uint64_t *)((cuda_queue *)q->handle)->workspace;
    TRY(gpu_launch_grid(q, part_kernel, dim3((unsigned)n_rows, (unsigned)parts), THREADS, 0, err, gpu_view_of(x), n, part, by_four, found));
    return gpu_launch_grid(q, pick_kernel, dim3((unsigned)n_rows), THREADS, 0, err, gpu_view_of(call->t[0]), found, (int)parts);
}
