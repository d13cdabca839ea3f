/* SPDX-License-Identifier: Apache-2.0 */
/* Weight rows as F32, one scalar formula per dtype. */
#include "vt/cpu/cpu_blocks.h"

static void from_q4_0(const cpu_q4_0 *b, float *y) {
    float d = vt_f16_to_f32(cpu_u16(b->d));
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)((b->q[i] & 15) - 8);
        y[i + 16] = d * (float)((b->q[i] >> 4) - 8);
    }
}

static void from_q4_1(const cpu_q4_1 *b, float *y) {
    float d = vt_f16_to_f32(cpu_u16(b->d)), m = vt_f16_to_f32(cpu_u16(b->m));
    for (int i = 0; i < 16; i++) {
        y[i] = d * (float)(b->q[i] & 15) + m;
        y[i + 16] = d * (float)(b->q[i] >> 4) + m;
    }
}

static void from_q8_0(const cpu_q8_0 *b, float *y) {
    float d = vt_f16_to_f32(cpu_u16(b->d));
    for (int i = 0; i < 32; i++) y[i] = d * (float)b->q[i];
}

static void from_q6_k(const cpu_q6_k *b, float *y) {
    float d = vt_f16_to_f32(cpu_u16(b->d));
    for (int e = 0; e < 256; e++) {
        int h = e / 128, g = e % 128 / 32, l = e % 32;
        int low = b->ql[64 * h + 32 * (g % 2) + l] >> (g / 2 * 4) & 15;
        int high = b->qh[32 * h + l] >> (2 * g) & 3;
        y[e] = d * (float)b->scale[e / 16] * (float)((high << 4 | low) - 32);
    }
}

void cpu_dequantize(vt_dtype t, const uint8_t *row, int64_t k0, int64_t n, float *out) {
    int64_t elems = vt_dtype_block_elems(t);
    const uint8_t *p = row + k0 / elems * (int64_t)vt_dtype_block_bytes(t);
    for (int64_t i = 0; i < n; i += elems, p += vt_dtype_block_bytes(t)) {
        switch ((int)t) {
        case VT_F32:
            memcpy(out + i, p, sizeof *out);
            break;
        case VT_F16:
            out[i] = vt_f16_to_f32(cpu_u16(p));
            break;
        case VT_BF16:
            out[i] = vt_bf16_to_f32(cpu_u16(p));
            break;
        case VT_Q4_0:
            from_q4_0((const void *)p, out + i);
            break;
        case VT_Q4_1:
            from_q4_1((const void *)p, out + i);
            break;
        case VT_Q8_0:
            from_q8_0((const void *)p, out + i);
            break;
        case VT_Q6_K:
            from_q6_k((const void *)p, out + i);
            break;
        case VT_Q5_0:
        case VT_Q5_1:
        case VT_IQ4_NL:
        case VT_MXFP4:
        case VT_Q2_K:
        case VT_Q3_K:
        case VT_Q4_K:
        case VT_Q5_K:
        case VT_IQ4_XS:
            cpu_dequantize_block(t, p, out + i);
            break;
        default:
            out[i] = NAN;
            break; /* no row has such a signature */
        }
    }
}

void cpu_round_bf16(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = vt_bf16_to_f32(vt_f32_to_bf16(x[i]));
}
