/* SPDX-License-Identifier: Apache-2.0 */
/* Products with scaled weights, AVX2. */
#include "vt/cpu/cpu_kernels.h"
#include "vt/cpu/cpu_rows.h"
#include "vt/cpu/x86/v16_avx2.h"

#define ROW_NAME(name) avx2_##name
#include "vt/cpu/x86/matmul_scaled.inc"
