/* SPDX-License-Identifier: Apache-2.0 */
/** Weights of blocks beside BF16 activations, for the sixteen lanes: rounded to BF16. */
#ifndef HEADRACE_VT_CUDA_MATMUL_ROUNDED_H
#define HEADRACE_VT_CUDA_MATMUL_ROUNDED_H

#include "vt/cuda/matmul_lanes.cuh"

template <int T> struct rounded_weights {
    typedef const uint8_t *row;
    const uint8_t *data;
    int64_t stride;
    __device__ row at(int64_t n) const { return data + n * stride; }
    __device__ float value(row r, int64_t k) const { return gpu_bf16(gpu_to_bf16(gpu_weight<T>(r, k))); }
};

#endif
