/* SPDX-License-Identifier: Apache-2.0 */
/* Closes what manifest_begin.h opened. No include guard. */
#undef ROW
