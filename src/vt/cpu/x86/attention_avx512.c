/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over pages, AVX-512. */
#include "vt/cpu/cpu_kernels.h"
#include "vt/cpu/cpu_rows.h"
#include "vt/cpu/x86/v16_avx512.h"

#define ROW_NAME(name) avx512_##name
#define QUERY_TILE 4
#define VALUE_TILE 4
#include "vt/cpu/x86/attention.inc"
