/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels go to the device when it is opened, not when each is first used: what they take there is then part of what was in use before anything was planned. The compiler registers every kernel
 * of the library when the library is opened; the link sends that through here (--wrap), which remembers them. */
#include <vector_types.h>

#include "vt/cuda/cuda_device.cuh"

enum { MOST_KERNELS = 4096 };

/* Written by the library's constructors alone, before anybody can call it. */
static const void *kernels[MOST_KERNELS];
static int n_kernels;

void __real___cudaRegisterFunction(void **module, const char *host, char *device, const char *name, int threads, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid, int *warp);
void __wrap___cudaRegisterFunction(void **module, const char *host, char *device, const char *name, int threads, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid, int *warp);

void __wrap___cudaRegisterFunction(void **module, const char *host, char *device, const char *name, int threads, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid, int *warp) {
    if (n_kernels < MOST_KERNELS) kernels[n_kernels++] = host;
    __real___cudaRegisterFunction(module, host, device, name, threads, tid, bid, block, grid, warp);
}

cudaError_t cuda_load_kernels(void) {
    for (int i = 0; i < n_kernels; i++) {
        struct cudaFuncAttributes a;
        cudaError_t rc = cudaFuncGetAttributes(&a, kernels[i]);
        if (rc != cudaSuccess) return rc;
    }
    return cudaSuccess;
}
