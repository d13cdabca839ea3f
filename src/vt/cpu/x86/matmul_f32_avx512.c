/* SPDX-License-Identifier: Apache-2.0 */
/* Products with F32 activations, AVX-512: a tile of 24 sums leaves eight registers for operands. */
#include "vt/cpu/cpu_rows.h"
#include "vt/cpu/x86/store_avx2.h"
#include "vt/cpu/x86/v16_avx512.h"

#define ROW_NAME(name) avx512_##name
#define TILE_ROWS 6
#define TILE_COLUMNS 4
#include "vt/cpu/x86/matmul_f32.inc"
