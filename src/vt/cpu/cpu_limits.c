/* SPDX-License-Identifier: Apache-2.0 */
/* Shape limits of rows. */
#include "vt/cpu/cpu_limits.h"

bool cpu_scale_covers_lanes(const vt_call *call) { return call->p.scale.block_k % CPU_LANES == 0 || call->p.scale.block_k >= call->t[1]->dim[1]; }
