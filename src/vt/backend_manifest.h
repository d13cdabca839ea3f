/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How a backend folder lists its rows as data, read twice: by the backend (with functions) and by the core (without), so that the core
 * knows the rows of a library it has not found.
 *
 * src/vt/NAME/kernel_rows.def: lines ROW(OP_ID, A, B, C, need, fits, "name", SWITCH, function) with A, B, C dtypes (enumerators), need an expression of
 *   VT_CAP_BIT, fits a function or NULL, SWITCH a macro that is 1 or 0 in the build of the backend and whose name is the build switch.
 * src/vt/NAME/manifest.def: one initialiser of vt_manifest using NAME_rows.
 */
#ifndef HEADRACE_VT_BACKEND_MANIFEST_H
#define HEADRACE_VT_BACKEND_MANIFEST_H

#include "vt/vt.h"

extern const vt_manifest vt_manifest_list[];
extern const int32_t vt_manifest_count;

#endif
