/* SPDX-License-Identifier: Apache-2.0 */
/** What the files of products with scaled weights share. */
#ifndef HEADRACE_VT_CUDA_MATMUL_SCALED_H
#define HEADRACE_VT_CUDA_MATMUL_SCALED_H

#include "vt/cuda/gpu.cuh"

/* out[m, n] = a[m, k] . (b * scale)[n, k]^T; strides in bytes. */
struct scaled_args {
    uint8_t *out;
    const uint8_t *a, *b, *scale;
    int64_t out_stride, a_stride, b_stride, scale_stride, m, n, k;
    int32_t block_n, block_k;
};

/* Many rows on wgmma: whether this call can, and the call. */
bool cuda_scaled_takes_wgmma(const vt_queue *q, const scaled_args *a);
status cuda_scaled_wgmma(vt_queue *q, const vt_call *call, const scaled_args *a, error *err);

#endif
