/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the kernel files share: views of tensors as a kernel takes them, elements of each dtype, the arithmetic of vt_expf, and launching.
 * A HIP compiler has what is used here but for the functions that hold PTX (loads and copies past the first level, early starts), which
 * want a form of their own there; so do the files with matrix instructions (gpu_mma.cuh, gpu_wgmma.cuh and what includes them).
 *
 * Every kernel is compiled without contraction of a * b + c, so that a fused multiply-add happens exactly where fmaf is written, and keeps
 * the rule of the whole backend: the same batch gives the same bits. No kernel adds with atomics; which sums are split by how many rows
 * there are is said in docs/NUMERICS.md.
 */
#ifndef HEADRACE_VT_CUDA_GPU_H
#define HEADRACE_VT_CUDA_GPU_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>
#include <string.h>

#include "vt/cuda/cuda_device.cuh"
#include "vt/exp_constants.h"

#define GPU_FN static __device__ __forceinline__
#define GPU_HD static __host__ __device__ __forceinline__

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
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xFFFFFFFFu, v, d);
    return v;
}

GPU_FN float gpu_warp_max(float v) {
    for (int d = 16; d > 0; d >>= 1) {
        float w = __shfl_xor_sync(0xFFFFFFFFu, v, d);
        v = w > v ? w : v;
    }
    return v;
}

/* ---- sixteen bytes at a time ---- */

/* Weights pass through once: past the first-level cache, and in the order written, so that a stretch of loads is under way before its use. */
GPU_FN uint4 gpu_stream16(const uint8_t *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

/* Into shared memory while the thread goes on; of the sixteen bytes n are read and the rest is zero. */
GPU_FN uint32_t gpu_shared_at(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
GPU_FN void gpu_copy16(uint32_t to, const void *from, int n) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n) : "memory"); }
GPU_FN void gpu_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> GPU_FN void gpu_copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

/* ---- one kernel after another ----
 * A kernel launched by gpu_launch_early starts when every block of the one before it on the stream has started (gpu_let_next_start) or ended, not when it is done. It may then read what
 * no queued work writes (weights), and calls gpu_await_previous before anything else: from there on all that came before is done and seen. Loads behind that call must not be
 * ld.global.nc, which the compiler may move in front of it. */
GPU_FN void gpu_let_next_start() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

GPU_FN void gpu_await_previous() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

GPU_FN uint4 gpu_load16(const uint8_t *p) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
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

template <class... Formal, class... Actual> static inline status gpu_launch_early(const vt_queue *q, void (*kernel)(Formal...), unsigned n_blocks, unsigned n_threads, error *err, Actual... args) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(n_blocks);
    c.blockDim = dim3(n_threads);
    c.stream = gpu_stream(q);
    c.attrs = &early;
    c.numAttrs = gpu_runs_90a(q) ? 1 : 0; /* code for other devices has no gpu_await_previous */
    return cuda_result(cudaLaunchKernelEx(&c, kernel, Formal(args)...), "launching a kernel", err);
}

#endif
