/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The numbers of vt_expf, for the scalar function and for vector rows that must give its bits. The operations, in order:
 *   x > HI becomes HI (NaN stays);  n = rint(x * LOG2E);  r = fma(n, -LN2_HI, x);  r = fma(n, -LN2_LO, r);
 *   p = C6;  p = fma(p, r, C5);  ... C4, C3, C2;  p = fma(p, r, 1);  p = fma(p, r, 1);
 *   result p * 2^n (exact: n is in -126 .. 128 and the result is a normal number, so adding n to p's exponent field, two multiplications or a scaling instruction agree);
 *   x < LO gives +0.
 * C2 .. C6: minimax for (exp(r) - 1 - r) / exp(r) on |r| <= ln(2)/2, error 3.1e-9 before rounding, found by Remez exchange.
 */
#ifndef HEADRACE_VT_EXP_CONSTANTS_H
#define HEADRACE_VT_EXP_CONSTANTS_H

#define VT_EXP_LO (-87.3f)
#define VT_EXP_HI 88.7f
#define VT_EXP_LOG2E 0x1.715476p+0f
#define VT_EXP_LN2_HI 0x1.62e43p-1f
#define VT_EXP_LN2_LO (-0x1.05c61p-29f)
#define VT_EXP_C2 0x1.fffffcp-2f
#define VT_EXP_C3 0x1.555492p-3f
#define VT_EXP_C4 0x1.5558f2p-5f
#define VT_EXP_C5 0x1.123a2p-7f
#define VT_EXP_C6 0x1.6a23dp-10f

#endif
