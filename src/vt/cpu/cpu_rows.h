/* SPDX-License-Identifier: Apache-2.0 */
/** Declarations of the row functions that kernel_rows.def names. */
#ifndef HEADRACE_VT_CPU_ROWS_H
#define HEADRACE_VT_CPU_ROWS_H

#include "vt/backend_manifest.h"

#define ROW VT_ROW_DECLARE
#include "vt/cpu/kernel_rows.def"
#undef ROW

#endif
