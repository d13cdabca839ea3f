/* SPDX-License-Identifier: Apache-2.0 */
/* Products with scaled weights, AVX-512. */
#include "vt/cpu/cpu_kernels.h"
#include "vt/cpu/cpu_rows.h"
#include "vt/cpu/x86/v16_avx512.h"

#define ROW_NAME(name) avx512_##name
#include "vt/cpu/x86/matmul_scaled.inc"
