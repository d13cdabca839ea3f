/* SPDX-License-Identifier: Apache-2.0 */
/** What the files of grouped products with FP8 and MXFP4 weights share. */
#ifndef HEADRACE_VT_CUDA_GPU_GROUPED_SCALED_H
#define HEADRACE_VT_CUDA_GPU_GROUPED_SCALED_H

#include "vt/cuda/gpu_groups.cuh"
#include "vt/cuda/gpu_narrow.cuh"

struct gpu_grouped_scaled {
    gpu_grouped g; /* extra_table: of scales */
    int64_t scale_stride; /* bytes */
    int32_t block_n, block_k, scale_dtype;
};

static inline gpu_grouped_scaled gpu_grouped_scaled_of(const vt_call *call) {
    return {gpu_grouped_of(call), gpu_view_of(call->t[8]).stride[0], call->p.grouped.blocks.block_n, call->p.grouped.blocks.block_k, (int32_t)call->t[8]->dtype};
}

#endif
