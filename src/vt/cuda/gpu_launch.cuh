/* SPDX-License-Identifier: Apache-2.0 */
/** Early launches (gpu_vendor.cuh, "one kernel after another") of grids in three dimensions with dynamic shared memory. */
#ifndef HEADRACE_VT_CUDA_GPU_LAUNCH_H
#define HEADRACE_VT_CUDA_GPU_LAUNCH_H

#include "vt/cuda/gpu.cuh"

/* The kernel calls gpu_await_previous before it touches what queued work writes. */
template <class... Formal, class... Actual> static inline status gpu_launch_grid(const vt_queue *q, void (*kernel)(Formal...), dim3 grid, unsigned n_threads, size_t shared, error *err, const Actual &...args) {
    return cuda_result(gpu_start(kernel, grid, n_threads, shared, gpu_stream(q), gpu_runs_90a(q), args...), "launching a kernel", err);
}

#endif
