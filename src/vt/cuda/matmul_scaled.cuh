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
    int64_t part_stride; /* on wgmma: from one BF16 part of F32 activations to the next */
};

/* Many rows on wgmma: whether this call can (f32: what the activations are), and the call. */
bool cuda_scaled_takes_wgmma(const vt_queue *q, const scaled_args *a, bool f32);
status cuda_scaled_wgmma(vt_queue *q, const vt_call *call, const scaled_args *a, error *err);

#endif
