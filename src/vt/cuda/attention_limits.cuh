/* SPDX-License-Identifier: Apache-2.0 */
/** What attention on matrix units asks of a device. C17 and C++17. */
#ifndef HEADRACE_VT_CUDA_ATTENTION_LIMITS_H
#define HEADRACE_VT_CUDA_ATTENTION_LIMITS_H

#include "vt/cuda/cuda_device.cuh"

#ifdef __cplusplus
extern "C" {
#endif

/** The widest heads whose tiles for many rows fit a block's shared memory (attention_prefill.cu); wider ones take the ordinary cores. */
enum { CUDA_ATTENTION_WIDTH = 576 };
int32_t cuda_attention_widest(const cuda_device *d);

#ifdef __cplusplus
}
#endif

#endif
