/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the reading of a kernel_rows.def as rows of vt_manifest_row: no function is named, so nothing of the backend is linked. No include guard. */
#ifdef ROW
#error "a kernel_rows.def is being read already"
#endif
#define ROW(op, a, b, c, need, fits, name, sw, function) {VT_OP_##op, {{a, b, c, VT_NONE}}, need, name, #sw},
