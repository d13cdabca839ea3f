/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The runtime library under its names in the kernel files, which are CUDA's: streams, events, errors and the few calls that start a kernel.
 * A HIP compiler (it defines __HIP_PLATFORM_AMD__, or the build of a C file does) gets HIP's under the same names; what is not here belongs
 * to a backend's own C file. C17 and C++17.
 */
#ifndef HEADRACE_VT_CUDA_GPU_RUNTIME_H
#define HEADRACE_VT_CUDA_GPU_RUNTIME_H

#if defined(__HIP_PLATFORM_AMD__)

#if defined(__HIP__)
#include <hip/hip_runtime.h>
#else
#include <hip/hip_runtime_api.h>
#endif

typedef hipError_t cudaError_t;
typedef hipStream_t cudaStream_t;
typedef hipEvent_t cudaEvent_t;

#define cudaSuccess hipSuccess
#define cudaGetLastError hipGetLastError
#define cudaGetDevice hipGetDevice
#define cudaSetDevice hipSetDevice

#else

#include <cuda_runtime_api.h>

#endif
#endif
