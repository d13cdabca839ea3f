/* SPDX-License-Identifier: Apache-2.0 */
/* Names of ops and signatures, from op.def. */
#include <stdio.h>
#include <string.h>

#include "vt/vt.h"

typedef struct op_row {
    const char *name, *places;
} op_row;

static const op_row ops[VT_OP_COUNT] = {
#define OP(id, name, sig) [VT_OP_##id] = {name, sig},
#include "vt/op.def"
#undef OP
};

const char *vt_op_name(vt_op op) { return (int)op >= 0 && op < VT_OP_COUNT ? ops[op].name : "unknown"; }

vt_sig vt_sig_make(vt_dtype a, vt_dtype b, vt_dtype c) { return (vt_sig){{(uint8_t)a, (uint8_t)b, (uint8_t)c, VT_NONE}}; }

void vt_sig_format(vt_op op, vt_sig sig, char *text, size_t n) {
    if (n == 0) return;
    text[0] = 0;
    const char *place = (int)op >= 0 && op < VT_OP_COUNT ? ops[op].places : "";
    size_t used = 0;
    for (int i = 0; i < VT_SIG_MAX && *place && used < n; i++) {
        int len = (int)strcspn(place, ",");
        int written = snprintf(text + used, n - used, "%s%.*s=%s", i ? " " : "", len, place, vt_dtype_name((vt_dtype)sig.dtype[i]));
        if (written < 0) return;
        used += (size_t)written;
        place += len;
        if (*place == ',') place++;
    }
}
