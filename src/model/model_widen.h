/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Quantised weights that are used in parts which no blocks or scales follow (WEIGHT_WIDENED): stored in F32 in the weight buffer, at their exact values. The model's view of such a weight
 * is F32 from the start, so that plan and pass know no difference.
 */
#ifndef HEADRACE_MODEL_MODEL_WIDEN_H
#define HEADRACE_MODEL_MODEL_WIDEN_H

#include "model/block.h"

/** Whether the weight is quantised and one of those. */
bool model_is_widened(const model *mo, int slot, const bound_weight *b);
/** Of the F32 form; false on overflow. */
NODISCARD bool model_widened_bytes(const bound_weight *b, size_t *out);
/** For the plan: the ops that widening asks for. */
NODISCARD status model_plan_widening(block_ctx *c);
/** From the stored form on the device (`narrow`; FP8 is read from the file instead) into out, F32. mo->ids is scratch. */
NODISCARD status model_widen(model *mo, const bound_weight *b, vt_tensor narrow, vt_tensor out, error *err);

#endif
