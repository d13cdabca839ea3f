/* SPDX-License-Identifier: Apache-2.0 */
/* vt_expf. A NaN goes through every operation and out again; the comparisons are written so that it takes neither clamp. */
#include <math.h>
#include <string.h>

#include "vt/exp_constants.h"
#include "vt/vt.h"

float vt_expf(float x) {
    if (x < VT_EXP_LO) return 0.0f;
    if (isnan(x)) return x;
    if (x > VT_EXP_HI) x = VT_EXP_HI;
    float n = rintf(x * VT_EXP_LOG2E);
    float r = fmaf(n, -VT_EXP_LN2_HI, x);
    r = fmaf(n, -VT_EXP_LN2_LO, r);
    float p = VT_EXP_C6;
    p = fmaf(p, r, VT_EXP_C5);
    p = fmaf(p, r, VT_EXP_C4);
    p = fmaf(p, r, VT_EXP_C3);
    p = fmaf(p, r, VT_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    uint32_t bits;
    memcpy(&bits, &p, sizeof bits);
    bits += (uint32_t)(int32_t)n << 23; /* p is in [0.7, 1.5]: the exponent field stays within 1 .. 254 */
    memcpy(&p, &bits, sizeof p);
    return p;
}
