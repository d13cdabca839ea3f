/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the kernel files share: views of tensors as a kernel takes them, elements of each dtype, the arithmetic of vt_expf, and launching.
 * What a vendor's compiler has in a form of its own is in gpu_vendor.cuh. This file and the kernels without matrix instructions compile as
 * HIP too; which ones do is the list in tests/hip_compile.sh, the others are NVIDIA's alone.
 *
 * Every kernel is compiled without contraction of a * b + c, so that a fused multiply-add happens exactly where fmaf is written, and keeps
 * the rule of the whole backend: the same batch gives the same bits. No kernel adds with atomics; which sums are split by how many rows
 * there are is said in docs/NUMERICS.md.
 */
#ifndef HEADRACE_VT_CUDA_GPU_H
#define HEADRACE_VT_CUDA_GPU_H

#include <stdint.h>
#include <string.h>

#include "vt/cuda/cuda_device.cuh"
#include "vt/cuda/gpu_vendor.cuh"
#include "vt/exp_constants.h"

/* ---- dtypes ---- */

GPU_HD int64_t gpu_block_elems(int t) {
    switch (t) {
#define X(id, name, elems, bytes, gguf, act)                                                                                               \
    case id:                                                                                                                               \
        return elems;
        VT_DTYPE_LIST(X)
#undef X
    default:
        return 1;
    }
}

GPU_HD int64_t gpu_block_bytes(int t) {
    switch (t) {
#define X(id, name, elems, bytes, gguf, act)                                                                                               \
    case id:                                                                                                                               \
        return bytes;
        VT_DTYPE_LIST(X)
#undef X
    default:
        return 0;
    }
}

/* ---- views ---- */

struct gpu_view {
    uint8_t *data;
    int64_t dim[VT_MAX_DIMS], stride[VT_MAX_DIMS]; /* strides in bytes */
    int32_t n_dims, dtype;
};

static inline gpu_view gpu_view_of(const vt_tensor *t) {
    gpu_view v = {};
    v.data = (uint8_t *)t->data;
    v.n_dims = t->n_dims;
    v.dtype = t->dtype;
    for (int d = 0; d < VT_MAX_DIMS; d++) {
        v.dim[d] = t->dim[d];
        v.stride[d] = t->stride[d] / gpu_block_elems(t->dtype) * gpu_block_bytes(t->dtype);
    }
    return v;
}

static inline int64_t gpu_n_rows(const vt_tensor *t) {
    int64_t n = 1;
    for (int d = 0; d < t->n_dims - 1; d++) n *= t->dim[d];
    return n;
}

static inline int64_t gpu_count(const vt_tensor *t) { return gpu_n_rows(t) * t->dim[t->n_dims - 1]; }
static inline int64_t gpu_inner(const vt_tensor *t) { return t->dim[t->n_dims - 1]; }

/* Address of row r of the innermost dimension, counted through the outer ones. */
GPU_FN uint8_t *gpu_row(const gpu_view &t, int64_t r) {
    if (t.n_dims < 2) return t.data;
    if (t.n_dims == 2) return t.data + r * t.stride[0];
    int64_t off = 0;
#pragma unroll
    for (int d = VT_MAX_DIMS - 2; d > 0; d--) { /* dimensions by their numbers alone: a view that is indexed is copied to memory first */
        if (d > t.n_dims - 2) continue;
        off += r % t.dim[d] * t.stride[d];
        r /= t.dim[d];
    }
    return t.data + off + r * t.stride[0];
}

/* ---- elements ---- */

GPU_FN float gpu_bits_float(uint32_t bits) { return __uint_as_float(bits); }
GPU_FN float gpu_bf16(uint16_t h) { return __uint_as_float((uint32_t)h << 16); }
GPU_FN float gpu_f16(uint16_t h) { return __half2float(__ushort_as_half(h)); }

GPU_FN uint16_t gpu_to_bf16(float f) {
    uint32_t bits = __float_as_uint(f);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

GPU_FN uint16_t gpu_to_f16(float f) {
    uint32_t bits = __float_as_uint(f);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)((bits >> 16 & 0x8000u) | 0x7E00u | (bits >> 13 & 0x1FFu));
    return __half_as_ushort(__float2half_rn(f));
}

/* An element of F32, F16 or BF16. */
GPU_FN float gpu_get(int dtype, const uint8_t *row, int64_t i) {
    if (dtype == VT_F32) return ((const float *)row)[i];
    uint16_t h = ((const uint16_t *)row)[i];
    return dtype == VT_F16 ? gpu_f16(h) : gpu_bf16(h);
}

GPU_FN void gpu_set(int dtype, uint8_t *row, int64_t i, float v) {
    if (dtype == VT_F32)
        ((float *)row)[i] = v;
    else
        ((uint16_t *)row)[i] = dtype == VT_F16 ? gpu_to_f16(v) : gpu_to_bf16(v);
}

GPU_FN uint16_t gpu_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
GPU_FN uint32_t gpu_u32(const uint8_t *p) { return (uint32_t)gpu_u16(p) | (uint32_t)gpu_u16(p + 2) << 16; }

GPU_FN float gpu_e4m3(uint32_t v) {
    uint32_t e = v >> 3 & 15, m = v & 7;
    float f = e == 0 ? (float)m * 0x1p-9f : __uint_as_float((e + 120) << 23 | m << 20);
    if ((v & 0x7F) == 0x7F) f = __uint_as_float(0x7FC00000u);
    return v & 0x80 ? -f : f;
}

GPU_FN float gpu_e2m1(uint32_t v) {
    uint32_t magnitude = v & 7;
    float f = magnitude < 2 ? 0.5f * (float)magnitude : __uint_as_float(((magnitude >> 1) + 126) << 23 | (magnitude & 1) << 22);
    return v & 8 ? -f : f;
}

GPU_FN float gpu_e8m0(uint32_t v) { return v == 255 ? __uint_as_float(0x7FC00000u) : v == 0 ? 0x1p-127f : __uint_as_float(v << 23); }

/* ---- arithmetic ---- */

/* vt_expf, the same operations. */
GPU_FN float gpu_expf(float x) {
    if (x < VT_EXP_LO) return 0.0f;
    if (x != x) return x;
    if (x > VT_EXP_HI) x = VT_EXP_HI;
    float n = rintf(x * VT_EXP_LOG2E);
    float r = fmaf(n, -VT_EXP_LN2_HI, x);
    r = fmaf(n, -VT_EXP_LN2_LO, r);
    float p = VT_EXP_C6;
    p = fmaf(p, r, VT_EXP_C5);
    p = fmaf(p, r, VT_EXP_C4);
    p = fmaf(p, r, VT_EXP_C3);
    p = fmaf(p, r, VT_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    return __uint_as_float(__float_as_uint(p) + ((uint32_t)(int32_t)n << 23));
}

GPU_FN float gpu_silu(float g) { return g / (1.0f + gpu_expf(-g)); }

GPU_FN float gpu_gelu(float g) {
    float u = 0.7978845608f * (g + 0.044715f * (g * g * g));
    float tanh_u = 1.0f - 2.0f / (gpu_expf(2.0f * u) + 1.0f);
    return (0.5f * g) * (1.0f + tanh_u);
}

GPU_FN float gpu_swiglu(float g, float u, float alpha, float limit) {
    if (g > limit) g = limit;
    if (u > limit) u = limit;
    if (u < -limit) u = -limit;
    return (u + 1.0f) * (g / (1.0f + gpu_expf(-alpha * g)));
}

GPU_FN float gpu_gate(int gate, vt_swiglu_params p, float g, float u) {
    if (gate == VT_GATE_SWIGLU_CLAMP) return gpu_swiglu(g, u, p.alpha, p.limit);
    return (gate == VT_GATE_SILU ? gpu_silu(g) : gpu_gelu(g)) * u;
}

GPU_FN bool gpu_finite(float x) { return (__float_as_uint(x) & 0x7F800000u) != 0x7F800000u; }
GPU_FN float gpu_infinity() { return __uint_as_float(0x7F800000u); }

GPU_FN float gpu_warp_sum(float v) {
    for (int d = 16; d > 0; d >>= 1) v += gpu_shfl_xor(v, d);
    return v;
}

GPU_FN float gpu_warp_max(float v) {
    for (int d = 16; d > 0; d >>= 1) {
        float w = gpu_shfl_xor(v, d);
        v = w > v ? w : v;
    }
    return v;
}

/* ---- launching ---- */

static inline cudaStream_t gpu_stream(const vt_queue *q) { return ((cuda_queue *)q->handle)->stream; }
static inline const cuda_device *gpu_device(const vt_queue *q) { return (const cuda_device *)q->dev; }

/* After a launch, which sets the device first through gpu_enter. */
static inline status gpu_launched(const vt_call *call, error *err) {
    (void)call;
    return cuda_result(cudaGetLastError(), "launching a kernel", err);
}

static inline status gpu_enter(const vt_queue *q, error *err) {
    int now = -1;
    if (cudaGetDevice(&now) == cudaSuccess && now == gpu_device(q)->index) return STATUS_OK;
    return cuda_result(cudaSetDevice(gpu_device(q)->index), "choosing the device", err);
}

static inline int64_t gpu_ceil(int64_t n, int64_t d) { return (n + d - 1) / d; }

/* The code for sm_90a is in this build, and the device is one that runs it: then it is the code that was loaded. */
static inline bool gpu_runs_90a(const vt_queue *q) {
#ifdef HEADRACE_CUDA_WGMMA
    return gpu_device(q)->major == 9 && gpu_device(q)->minor == 0;
#else
    (void)q;
    return false;
#endif
}

/* A kernel that may start early ("one kernel after another"), in blocks of one dimension. Code for devices other than 9.0 has no gpu_await_previous: there it starts in its turn. */
template <class... Formal, class... Actual> static inline status gpu_launch_early(const vt_queue *q, void (*kernel)(Formal...), unsigned n_blocks, unsigned n_threads, error *err, Actual... args) {
    return cuda_result(gpu_start(kernel, dim3(n_blocks), n_threads, 0, gpu_stream(q), gpu_runs_90a(q), args...), "launching a kernel", err);
}

#endif
