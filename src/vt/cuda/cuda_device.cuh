/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the files of the CUDA backend share: the state of a device and of a queue, and how a CUDA error becomes a status. C17 and C++17.
 * The library links nothing of the core: what crosses it is vt/backend.h and nothing else.
 */
#ifndef HEADRACE_VT_CUDA_DEVICE_H
#define HEADRACE_VT_CUDA_DEVICE_H

#include "vt/cuda/gpu_runtime.h"
#include "vt/vt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Device memory of a queue for partial results of attention, and behind them counters of blocks, zero between launches: taken with the queue, never grown. */
enum { CUDA_COUNTER_BYTES = 64 << 10, CUDA_WORKSPACE_BYTES = (32 << 20) - CUDA_COUNTER_BYTES };
/* Device memory that a graph takes at most: 2 MiB for up to 1,600 kernels, 4 MiB for 3,200, where it was measured. More are refused. */
enum { CUDA_GRAPH_BYTES = 4 << 20, CUDA_GRAPH_NODES = 3200 };
/* The driver maps device memory in pages of this size. */
enum { CUDA_ALLOC_UNIT = 2 << 20 };

typedef struct cuda_device {
    const vt_host_api *host;
    int32_t index, n_multiprocessors;
    int32_t major, minor; /* compute capability */
    int32_t shared_bytes; /* most shared memory that a block may ask for */
    uint64_t caps, total_bytes;
} cuda_device;

typedef struct cuda_queue {
    cudaStream_t stream;      /* where calls go: main, or within a branch side */
    cudaStream_t main, side;
    cudaEvent_t forked, done; /* the branch may start; it has ended */
    void *workspace; /* CUDA_WORKSPACE_BYTES, then CUDA_COUNTER_BYTES: of the main stream alone */
} cuda_queue;

/** STATUS_OK, or the status of the error with "cuda: WHAT: NAME: text"; err may be NULL. */
status cuda_result(cudaError_t rc, const char *what, error *err);
/** load_kernels.c: every kernel of the library onto the current device. */
cudaError_t cuda_load_kernels(void);
/** read_pass.cu: reads all of it. */
cudaError_t cuda_read_pass(const cuda_device *d, cuda_queue *q, const void *p, size_t bytes);
/** A refusal of a launcher: STATUS_INVALID with a text. */
status cuda_refuse(error *err, const char *what);

#ifdef __cplusplus
}
#endif
#endif
