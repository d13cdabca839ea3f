/* SPDX-License-Identifier: Apache-2.0 */
/** What the files of products of BF16 activations with GGUF block weights share. */
#ifndef HEADRACE_VT_CUDA_MATMUL_BLOCKS_H
#define HEADRACE_VT_CUDA_MATMUL_BLOCKS_H

#include "vt/cuda/gpu.cuh"

/* out[m, n] = a[m, k] . b[n, k]^T, F32; strides in bytes. */
struct block_args {
    uint8_t *out;
    const uint8_t *a, *b;
    int64_t out_stride, a_stride, b_stride, m, n;
    int32_t k;
};

/* Many rows on wgmma. */
bool cuda_blocks_take_wgmma(const vt_queue *q, const block_args *a);
status cuda_blocks_wgmma(vt_queue *q, const vt_call *call, const block_args *a, error *err);

#endif
