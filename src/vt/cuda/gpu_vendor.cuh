/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the kernel files need that each vendor's compiler writes differently: exchanges between the lanes of a warp, a product of bytes,
 * waiting for what is queued, starting a kernel. The kernels without matrix instructions use these names and compile for NVIDIA and, as
 * HIP, for AMD (tests/hip_compile.sh); the last part is for the files of NVIDIA's matrix units alone.
 *
 * A warp is 32 lanes that follow each other in a block, on every device: blocks, shared memory and the order of sums are made for that. On
 * AMD hardware with waves of 64 lanes two warps share a wave; each exchange then stays within its half, so the same code gives the same
 * sums. A warp that has left, or is in another round of a loop, disturbs the other half in nothing: its lanes are switched off.
 */
#ifndef HEADRACE_VT_CUDA_GPU_VENDOR_H
#define HEADRACE_VT_CUDA_GPU_VENDOR_H

#include <stdint.h>

#include "vt/cuda/gpu_runtime.h"

#define GPU_FN static __device__ __forceinline__
#define GPU_HD static __host__ __device__ __forceinline__

#if defined(__HIP_PLATFORM_AMD__)

#include <hip/hip_fp16.h>

/* Arguments lie in constant memory anyway. */
#define __grid_constant__

/* ---- lanes of a warp ---- */

template <class T> GPU_FN T gpu_shfl(T v, int lane) { return __shfl(v, lane, 32); }
template <class T> GPU_FN T gpu_shfl_up(T v, int d) { return __shfl_up(v, (unsigned)d, 32); }
template <class T> GPU_FN T gpu_shfl_xor(T v, int d) { return __shfl_xor(v, d, 32); }

/* The warp's half of a wave of 64; of a wave of 32 all. */
GPU_FN uint32_t gpu_ballot(bool p) { return (uint32_t)(__ballot(p) >> (__lane_id() & 32u)); }
GPU_FN bool gpu_all(bool p) { return gpu_ballot(!p) == 0; }

GPU_FN int gpu_reduce_add(int v) {
    for (int d = 16; d > 0; d >>= 1) v += gpu_shfl_xor(v, d);
    return v;
}

GPU_FN uint32_t gpu_reduce_max(uint32_t v) {
    for (int d = 16; d > 0; d >>= 1) {
        const uint32_t w = gpu_shfl_xor(v, d);
        v = w > v ? w : v;
    }
    return v;
}

/* Lanes of a wave go on together; the compiler must keep accesses on their side. */
GPU_FN void gpu_sync_warp() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

/* ---- arithmetic ---- */

/* c and the products of four signed bytes. */
GPU_FN int gpu_dot4(int a, int b, int c) {
#if defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx1030__)
    return __builtin_amdgcn_sdot4(a, b, c, false);
#else
    for (int i = 0; i < 32; i += 8) c += (int8_t)(a >> i) * (int8_t)(b >> i);
    return c;
#endif
}

/* ---- one kernel after another: each starts when the one before it is done ---- */

GPU_FN void gpu_let_next_start() {}
GPU_FN void gpu_await_previous() {}

template <class... Formal, class... Actual>
static inline cudaError_t gpu_start(void (*kernel)(Formal...), dim3 grid, unsigned n_threads, size_t shared, cudaStream_t stream,
                                    bool early, const Actual &...args) {
    (void)early;
    kernel<<<grid, n_threads, shared, stream>>>(Formal(args)...);
    return hipGetLastError();
}

/* Shared memory that a launch may ask for beyond what needs no leave. */
template <class... Formal> static inline cudaError_t gpu_allow_shared(void (*kernel)(Formal...), size_t bytes) {
    return hipFuncSetAttribute((const void *)kernel, hipFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

#else

#include <cuda_fp16.h>

/* ---- lanes of a warp ---- */

template <class T> GPU_FN T gpu_shfl(T v, int lane) { return __shfl_sync(0xFFFFFFFFu, v, lane); }
template <class T> GPU_FN T gpu_shfl_up(T v, int d) { return __shfl_up_sync(0xFFFFFFFFu, v, (unsigned)d); }
template <class T> GPU_FN T gpu_shfl_xor(T v, int d) { return __shfl_xor_sync(0xFFFFFFFFu, v, d); }
GPU_FN uint32_t gpu_ballot(bool p) { return __ballot_sync(0xFFFFFFFFu, p); }
GPU_FN bool gpu_all(bool p) { return __all_sync(0xFFFFFFFFu, p); }
GPU_FN int gpu_reduce_add(int v) { return __reduce_add_sync(0xFFFFFFFFu, v); }
GPU_FN uint32_t gpu_reduce_max(uint32_t v) { return __reduce_max_sync(0xFFFFFFFFu, v); }
GPU_FN void gpu_sync_warp() { __syncwarp(); }

/* ---- arithmetic ---- */

GPU_FN int gpu_dot4(int a, int b, int c) { return __dp4a(a, b, c); }

/* ---- one kernel after another ----
 * A kernel that is started early starts when every block of the one before it on the stream has started (gpu_let_next_start) or ended, not
 * when it is done. It may then read what no queued work writes (weights), and calls gpu_await_previous before anything else: from there on
 * all that came before is done and seen. Loads behind that call must not be ld.global.nc, which the compiler may move in front of it. */

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

template <class... Formal, class... Actual>
static inline cudaError_t gpu_start(void (*kernel)(Formal...), dim3 grid, unsigned n_threads, size_t shared, cudaStream_t stream,
                                    bool early, const Actual &...args) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = dim3(n_threads);
    c.dynamicSmemBytes = shared;
    c.stream = stream;
    c.attrs = &attribute;
    c.numAttrs = early ? 1 : 0;
    return cudaLaunchKernelEx(&c, kernel, Formal(args)...);
}

template <class... Formal> static inline cudaError_t gpu_allow_shared(void (*kernel)(Formal...), size_t bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

/* ---- for the files of matrix units ---- */

/* Weights pass through once: past the first-level cache, and in the order written, so that a stretch of loads is under way before its use.
 */
GPU_FN uint4 gpu_stream16(const uint8_t *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

GPU_FN uint4 gpu_load16(const uint8_t *p) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}

/* Into shared memory while the thread goes on; of the sixteen bytes n are read and the rest is zero. */
GPU_FN uint32_t gpu_shared_at(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
GPU_FN void gpu_copy16(uint32_t to, const void *from, int n) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n) : "memory");
}
GPU_FN void gpu_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> GPU_FN void gpu_copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

#endif
#endif
