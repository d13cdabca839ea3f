/* SPDX-License-Identifier: Apache-2.0 */
/** Four neighbours of a row at a time, for kernels that only move and combine elements. */
#ifndef HEADRACE_VT_CUDA_GPU_QUADS_H
#define HEADRACE_VT_CUDA_GPU_QUADS_H

#include "vt/cuda/gpu.cuh"

/* Four neighbours of a row that gpu_takes_quads allows: elements 4 i .. 4 i + 3. */
GPU_FN float4 gpu_get4(int dtype, const uint8_t *row, int64_t i) {
    if (dtype == VT_F32) return ((const float4 *)row)[i];
    const ushort4 h = ((const ushort4 *)row)[i];
    return dtype == VT_F16 ? make_float4(gpu_f16(h.x), gpu_f16(h.y), gpu_f16(h.z), gpu_f16(h.w)) : make_float4(gpu_bf16(h.x), gpu_bf16(h.y), gpu_bf16(h.z), gpu_bf16(h.w));
}

GPU_FN void gpu_set4(int dtype, uint8_t *row, int64_t i, float4 v) {
    if (dtype == VT_F32)
        ((float4 *)row)[i] = v;
    else if (dtype == VT_F16)
        ((ushort4 *)row)[i] = make_ushort4(gpu_to_f16(v.x), gpu_to_f16(v.y), gpu_to_f16(v.z), gpu_to_f16(v.w));
    else
        ((ushort4 *)row)[i] = make_ushort4(gpu_to_bf16(v.x), gpu_to_bf16(v.y), gpu_to_bf16(v.z), gpu_to_bf16(v.w));
}

/* Four columns from 4 i on of a row: together where QUADS, else one by one, with 0 behind its end. */
template <bool QUADS> GPU_FN float4 gpu_get_quad(int dtype, const uint8_t *row, int64_t i, int64_t width) {
    if constexpr (QUADS) {
        return gpu_get4(dtype, row, i);
    } else {
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = 4 * i + j < width ? gpu_get(dtype, row, 4 * i + j) : 0.0f;
        return make_float4(v[0], v[1], v[2], v[3]);
    }
}

template <bool QUADS> GPU_FN void gpu_put_quad(int dtype, uint8_t *row, int64_t i, int64_t width, float4 v) {
    if constexpr (QUADS) {
        gpu_set4(dtype, row, i, v);
    } else {
        const float r[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (4 * i + j < width) gpu_set(dtype, row, 4 * i + j, r[j]);
    }
}

/* Whether four neighbours of every row of a tensor of F32, F16 or BF16 lie together on an address of their size. */
static inline bool gpu_takes_quads(const vt_tensor *t) {
    if ((uintptr_t)t->data % (t->dtype == VT_F32 ? 16 : 8) != 0 || t->n_dims < 1 || t->dim[t->n_dims - 1] % 4 != 0) return false;
    for (int d = 0; d < t->n_dims - 1; d++)
        if (t->stride[d] % 4 != 0) return false;
    return true;
}

#endif
