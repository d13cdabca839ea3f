/* SPDX-License-Identifier: Apache-2.0 */
/* Products with F32 activations, AVX2: a sum is two registers. */
#include "vt/cpu/cpu_rows.h"
#include "vt/cpu/x86/store_avx2.h"
#include "vt/cpu/x86/v16_avx2.h"

#define ROW_NAME(name) avx2_##name
#define TILE_ROWS 3
#define TILE_COLUMNS 2
#include "vt/cpu/x86/matmul_f32.inc"
