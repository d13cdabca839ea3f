/* SPDX-License-Identifier: Apache-2.0 */
/** Shape limits that kernel_rows.def names. */
#ifndef HEADRACE_VT_CPU_LIMITS_H
#define HEADRACE_VT_CPU_LIMITS_H

#include "vt/cpu/cpu_kernels.h"

/** One scale covers each group of sixteen neighbours of a row. */
bool cpu_scale_covers_lanes(const vt_call *call);

#endif
