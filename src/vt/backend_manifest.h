/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How a backend folder lists its rows as data, read twice: by the backend (with functions) and by the core (without), so that the core
 * knows the rows of a library it has not found. A folder src/vt/NAME with these files is a backend; nothing in the core is edited for it:
 *
 * src/vt/NAME/kernel_rows.def: lines ROW(OP_ID, A, B, C, need, fits, "name", SWITCH, function): OP_ID as in op.def (MATMUL_BT); A, B, C dtypes
 *   (enumerators, unused places VT_NONE); need an expression of VT_CAP_BIT; fits a function or NULL; SWITCH VT_ALWAYS or a macro that is 1 or 0 in the
 *   build of the backend and whose name is the build switch. Nothing but ROW lines and comments.
 * src/vt/NAME/manifest.def: one line, VT_MANIFEST_BUILTIN(NAME, TYPE) for a backend that is linked in and defines `const vt_backend_tables vt_NAME_tables`,
 *   or VT_MANIFEST_SHARED(NAME, TYPE, SWITCH) for a library found at run time. A build that makes the library says so from the folder's
 *   CMakeLists.txt: target_compile_definitions(hr_vt PRIVATE SWITCH=1).
 * src/vt/NAME/CMakeLists.txt: builds it.
 *
 * The backend makes its table so:
 *   #define ROW VT_ROW_DECLARE
 *   #include "vt/NAME/kernel_rows.def"
 *   #undef ROW
 *   static const vt_row rows[] = {
 *   #define ROW VT_ROW_DEFINE
 *   #include "vt/NAME/kernel_rows.def"
 *   #undef ROW
 *   };
 */
#ifndef HEADRACE_VT_BACKEND_MANIFEST_H
#define HEADRACE_VT_BACKEND_MANIFEST_H

#include "vt/vt.h"

/* The switch of a row that every build of its backend has. */
#define VT_ALWAYS 1

/* For a backend: ROW as a declaration of the function, and as an initialiser of vt_row. A row whose switch is 0 keeps its place, without functions. */
#define VT_ROW_DECLARE(op, a, b, c, need, fits, name, sw, function) vt_kernel_fn function;
#define VT_ROW_DEFINE(op, a, b, c, need, fits, name, sw, function)                                                     \
    {VT_OP_##op, {{a, b, c, VT_NONE}}, need, VT_ROW_IF(sw, fits), name, VT_ROW_LEFT_OUT(sw, #sw), VT_ROW_IF(sw, function)},
#define VT_ROW_IF(sw, x) VT_ROW_PASTE(VT_ROW_IF_, sw)(x)
#define VT_ROW_LEFT_OUT(sw, text) VT_ROW_PASTE(VT_ROW_LEFT_OUT_, sw)(text)
#define VT_ROW_PASTE(a, b) VT_ROW_PASTE_(a, b)
#define VT_ROW_PASTE_(a, b) a##b
#define VT_ROW_IF_1(x) x
#define VT_ROW_IF_0(x) NULL
#define VT_ROW_LEFT_OUT_1(text) NULL
#define VT_ROW_LEFT_OUT_0(text) text

/* For manifest.def. */
#define VT_MANIFEST_BUILTIN(name, type)                                                                                \
    {#name, type, "src/vt/" #name, NULL, false, name##_rows, (int32_t)(sizeof name##_rows / sizeof name##_rows[0]), &vt_##name##_tables, true},
#define VT_MANIFEST_SHARED(name, type, sw)                                                                             \
    {#name, type, "src/vt/" #name, #sw, true, name##_rows, (int32_t)(sizeof name##_rows / sizeof name##_rows[0]), NULL, VT_SWITCH_IS_ON(sw)},
/* 1 where the macro is defined as 1, else 0 (also where it is not defined at all). */
#define VT_SWITCH_IS_ON(sw) VT_SWITCH_TEST(sw)
#define VT_SWITCH_TEST(value) VT_SWITCH_PICK(VT_SWITCH_COMMA_##value)
#define VT_SWITCH_COMMA_1 0,
#define VT_SWITCH_PICK(x) VT_SWITCH_SECOND(x 1, 0, 0)
#define VT_SWITCH_SECOND(a, b, ...) b

extern const vt_manifest vt_manifest_list[];
extern const int32_t vt_manifest_count;

#endif
