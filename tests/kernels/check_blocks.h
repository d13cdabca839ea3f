/* SPDX-License-Identifier: Apache-2.0 */
/** The GGUF blocks beyond Q4_0, Q4_1, Q8_0 and Q6_K for check_values.c: their meaning in double, from the text of dtype.h, and random ones.
 */
#ifndef HEADRACE_CHECK_BLOCKS_H
#define HEADRACE_CHECK_BLOCKS_H

#include "vt/dtype.h"

/** Whether the type is one of them. */
bool is_gguf_block(vt_dtype t);
/** Elements of a block; with `magnitude` |d q| + |what is added| of each. */
void decode_gguf_block(vt_dtype t, const uint8_t *p, double *out, bool magnitude);
/** Puts scale (and minimum, where there is one) into a block of random or extreme bytes; sharpens extreme ones. */
void finish_gguf_block(vt_dtype t, uint8_t *p, uint16_t d, uint16_t m, int extreme);

#endif
