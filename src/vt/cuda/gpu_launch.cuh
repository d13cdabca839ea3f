/* SPDX-License-Identifier: Apache-2.0 */
/** Early launches (gpu.cuh, "one kernel after another") of grids in three dimensions with dynamic shared memory. */
#ifndef HEADRACE_VT_CUDA_GPU_LAUNCH_H
#define HEADRACE_VT_CUDA_GPU_LAUNCH_H

#include "vt/cuda/gpu.cuh"

/* The kernel calls gpu_await_previous before it touches what queued work writes. */
template <class... Formal, class... Actual> static inline status gpu_launch_grid(const vt_queue *q, void (*kernel)(Formal...), dim3 grid, unsigned n_threads, size_t shared, error *err, const Actual &...args) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = dim3(n_threads);
    c.dynamicSmemBytes = shared;
    c.stream = gpu_stream(q);
    c.attrs = &early;
    c.numAttrs = gpu_runs_90a(q) ? 1 : 0; /* code for other devices has no gpu_await_previous */
    return cuda_result(cudaLaunchKernelEx(&c, kernel, Formal(args)...), "launching a kernel", err);
}

#endif
