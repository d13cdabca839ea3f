/* SPDX-License-Identifier: Apache-2.0 */
/** Copies of a few kilobytes between pinned host memory and the device by a kernel: a copy engine would take turns with large copies of
 * other queues, and hand over to the queue's kernels and back. */
#ifndef HEADRACE_VT_CUDA_SMALL_COPY_CUH
#define HEADRACE_VT_CUDA_SMALL_COPY_CUH

#include <stddef.h>

#include "vt/cuda/gpu_runtime.h"

/* The most bytes that go this way. */
enum { CUDA_SMALL_BYTES = 32 << 10 };

#ifdef __cplusplus
extern "C" {
#endif
/** Addresses and size are multiples of four; a device reaches both. */
cudaError_t cuda_small_copy(cudaStream_t stream, void *dst, const void *src, size_t bytes);
#ifdef __cplusplus
}
#endif
#endif
