/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of recurrent ops: rows of several segments over states in slots. */
#include "check_case.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_SEGS = 3, MAX_STATE = 1 << 15 };
static double state_want[MAX_STATE], state_mag[MAX_STATE]; /* every slot after the call */
static double x_row[4096], w_row[4096];

static vt_dtype sig(const check_case *c, int i) { return (vt_dtype)c->row->sig.dtype[i]; }
static int32_t i32(const check_case *c, int index, int64_t i) { return ((const int32_t *)c->t[index].data)[i]; }
static double silu(double x) { return x / (1.0 + exp(-x)); }

/* pos, row_seg, seg_slot for n_rows rows in up to three segments; a segment begins at 0 or goes on. */
static bool add_rows(check_case *c, int64_t n_rows, int64_t n_slots) {
    int64_t n_segs = 1 + rng_below(&c->r, n_slots < MAX_SEGS ? n_slots : MAX_SEGS), shift = rng_below(&c->r, n_slots), t = 0;
    int pos = CASE_ADD(c, VT_I32, false, n_rows), seg = CASE_ADD(c, VT_I32, false, n_rows), slots = CASE_ADD(c, VT_I32, false, n_segs);
    if (pos < 0 || seg < 0 || slots < 0) return false;
    for (int64_t g = 0; g < n_segs; g++) {
        int64_t rows = g == n_segs - 1 ? n_rows - t : rng_below(&c->r, n_rows - t + 1),
                begin = rng_one_in(&c->r, 2) ? 0 : 1 + rng_below(&c->r, 50);
        case_set_i32(c, slots, g, (int32_t)((g + shift) % n_slots));
        for (int64_t i = 0; i < rows; i++, t++) {
            case_set_i32(c, pos, t, (int32_t)(begin + i));
            case_set_i32(c, seg, t, (int32_t)g);
        }
    }
    return true;
}

/* What the states are before the call. */
static void read_states(const check_case *c, int index) {
    const vt_tensor *t = &c->t[index];
    for (int64_t s = 0; s < t->dim[0]; s++) decode_row(VT_F32, tensor_row_at(t, s), t->dim[1], state_want + s * t->dim[1]);
    for (int64_t i = 0; i < t->dim[0] * t->dim[1]; i++) state_mag[i] = fabs(state_want[i]);
}

static const char *verify_states(check_case *c, int index, double c_eps, char *text, size_t n) {
    const vt_tensor *t = &c->t[index];
    if (c->special) return NULL;
    for (int64_t s = 0; s < t->dim[0]; s++) {
        const float *got = (const float *)(const void *)tensor_row_at(t, s);
        for (int64_t i = 0; i < t->dim[1]; i++) {
            double want = state_want[s * t->dim[1] + i], tol = c_eps * 0x1p-23 * state_mag[s * t->dim[1] + i] + 0x1p-149;
            if (fabs((double)got[i] - want) <= tol) continue;
            snprintf(text, n, "state %lld element %lld is %.9g, expected %.9g within %.3g", (long long)s, (long long)i, (double)got[i],
                     want, tol);
            return text;
        }
    }
    return NULL;
}

/* causal_conv_silu: out, x, state, w, pos, row_seg, seg_slot */

static bool add_conv(check_case *c, int64_t rows, int64_t channels, int64_t taps, int64_t slots, bool pad) {
    c->outputs = 1u << 0 | 1u << 2;
    if (CASE_ADD(c, VT_F32, pad, rows, channels) < 0 || CASE_ADD(c, VT_F32, pad, rows, channels) < 0) return false;
    if (CASE_ADD(c, VT_F32, pad, slots, channels * (taps - 1)) < 0 || CASE_ADD(c, sig(c, 1), pad, channels, taps) < 0) return false;
    if (!add_rows(c, rows, slots)) return false;
    for (int i = 1; i < 4; i++) case_fill(c, i, 2.0);
    c->by_row = 1u << 0 | 1u << 1 | 1u << 4 | 1u << 5;
    c->n_rows = rows;
    return true;
}

static bool make_conv(check_case *c, int64_t i) {
    static const int64_t channels[] = {1, 3, 8, 15, 16, 17, 33, 64, 70};
    c->special = i % 8 == 5;
    return add_conv(c, i == 1 ? 0 : 1 + rng_below(&c->r, 12), channels[i % 9], 1 + rng_below(&c->r, 4), 1 + rng_below(&c->r, 4), true);
}

static void expect_conv(check_case *c) {
    const vt_tensor *x = &c->t[1], *w = &c->t[3];
    int64_t channels = x->dim[1], taps = w->dim[1];
    read_states(c, 2);
    for (int64_t t = 0; t < x->dim[0]; t++) {
        double *past = state_want + i32(c, 6, i32(c, 5, t)) * channels * (taps - 1);
        double *past_mag = state_mag + (past - state_want);
        decode_row(VT_F32, tensor_row_at(x, t), channels, x_row);
        for (int64_t ch = 0; ch < channels; ch++, past += taps - 1, past_mag += taps - 1) {
            decode_row(w->dtype, tensor_row_at(w, ch), taps, w_row);
            double sum = w_row[taps - 1] * x_row[ch], mag = fabs(sum);
            for (int64_t j = 0; j + 1 < taps; j++) {
                if (i32(c, 4, t) == 0) past[j] = 0.0;
                sum += w_row[j] * past[j];
                mag += fabs(w_row[j] * past[j]);
            }
            for (int64_t j = 0; j + 1 < taps; j++) {
                past[j] = j + 2 < taps ? past[j + 1] : x_row[ch];
                past_mag[j] = 0.0; /* copies are exact */
            }
            c->want[t * channels + ch] = silu(sum);
            c->mag[t * channels + ch] = mag * 2.0;
        }
    }
}

static const char *verify_conv(check_case *c, char *text, size_t n) { return verify_states(c, 2, 0.0, text, n); }

static void bench_conv(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n) {
    int64_t rows = shape == 0 ? 1 : shape == 1 ? 128 : 2, channels = shape == 2 ? 64 : 8192;
    if (!add_conv(c, rows, channels, 4, shape == 2 ? 2 : 1, false)) return;
    *bytes = (double)(rows * channels) * 8.0;
    *flops = 0.0;
    snprintf(label, n, "rows=%lld channels=%lld", (long long)rows, (long long)channels);
}

/* gated_delta: out, qkv, a, b, a_log, dt_bias, state, pos, row_seg, seg_slot */

enum { OUT, QKV, A, B, A_LOG, DT_BIAS, STATE, POS, SEG, SLOT };

static bool add_delta(check_case *c, int64_t rows, vt_gated_delta_params p, int64_t slots, bool pad) {
    int64_t keys = (int64_t)p.n_k * p.d_k, values = (int64_t)p.n_v * p.d_v;
    c->outputs = 1u << OUT | 1u << STATE;
    c->call.p.gated_delta = p;
    if (CASE_ADD(c, VT_F32, pad, rows, values) < 0 || CASE_ADD(c, VT_F32, pad, rows, 2 * keys + values) < 0) return false;
    if (CASE_ADD(c, VT_F32, pad, rows, p.n_v) < 0 || CASE_ADD(c, VT_F32, pad, rows, p.n_v) < 0) return false;
    if (CASE_ADD(c, sig(c, 1), false, p.n_v) < 0 || CASE_ADD(c, sig(c, 1), false, p.n_v) < 0) return false;
    if (CASE_ADD(c, VT_F32, pad, slots, values * p.d_k) < 0 || !add_rows(c, rows, slots)) return false;
    for (int i = QKV; i <= STATE; i++) case_fill(c, i, i == A ? 3.0 : 1.0);
    c->by_row = 1u << OUT | 1u << QKV | 1u << A | 1u << B | 1u << POS | 1u << SEG;
    c->n_rows = rows;
    return true;
}

static bool make_delta(check_case *c, int64_t i) {
    rng *r = &c->r;
    vt_gated_delta_params p = {.n_k = 1 + (int32_t)rng_below(r, 2),
                               .d_k = (int32_t)RNG_PICK(r, 1, 4, 8, 16, 17, 20),
                               .d_v = (int32_t)RNG_PICK(r, 1, 5, 8, 16, 17, 32)};
    p.n_v = p.n_k * (1 + (int32_t)rng_below(r, 2));
    p.a_is_decay = rng_one_in(r, 2);
    p.k_tiled = rng_one_in(r, 2);
    c->special = i % 8 == 5;
    if (!add_delta(c, i == 1 ? 0 : 1 + rng_below(r, 9), p, 1 + rng_below(r, 4), true)) return false;
    /* a decay is negative, where it is given as such */
    for (int64_t h = 0; p.a_is_decay && h < p.n_v; h++) {
        uint16_t *half = (uint16_t *)c->t[A_LOG].data + h;
        if (sig(c, 1) == VT_F32)
            ((float *)c->t[A_LOG].data)[h] = -fabsf(((float *)c->t[A_LOG].data)[h]);
        else
            *half |= 0x8000;
    }
    return true;
}

static double scale_of(const double *x, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return 1.0 / sqrt(sum + 1e-6);
}

/* One token of one value head; S and its magnitudes are d_k rows of d_v. */
static void delta_head(const check_case *c, int64_t t, int64_t h, double *s, double *m) {
    vt_gated_delta_params p = c->call.p.gated_delta;
    int64_t keys = (int64_t)p.n_k * p.d_k, kh = p.k_tiled ? h % p.n_k : h / (p.n_v / p.n_k);
    const double *q = x_row + kh * p.d_k, *k = x_row + keys + kh * p.d_k, *v = x_row + 2 * keys + h * p.d_v;
    double a, b, a_log, bias;
    decode_row(VT_F32, tensor_row_at(&c->t[A], t) + 4 * h, 1, &a);
    decode_row(VT_F32, tensor_row_at(&c->t[B], t) + 4 * h, 1, &b);
    size_t elem = vt_dtype_block_bytes(sig(c, 1));
    decode_row(sig(c, 1), (const uint8_t *)c->t[A_LOG].data + (size_t)h * elem, 1, &a_log);
    decode_row(sig(c, 1), (const uint8_t *)c->t[DT_BIAS].data + (size_t)h * elem, 1, &bias);
    double g = exp((p.a_is_decay ? a_log : -exp(a_log)) * log1p(exp(a + bias))), beta = 1.0 / (1.0 + exp(-b));
    double q_scale = scale_of(q, p.d_k) / sqrt((double)p.d_k), k_scale = scale_of(k, p.d_k);
    if (i32(c, POS, t) == 0)
        for (int64_t i = 0; i < (int64_t)p.d_k * p.d_v; i++) s[i] = m[i] = 0.0;
    for (int64_t j = 0; j < p.d_v; j++) {
        double memory = 0.0, memory_mag = 0.0, out = 0.0, out_mag = 0.0;
        for (int64_t i = 0; i < p.d_k; i++) {
            s[i * p.d_v + j] *= g;
            memory += s[i * p.d_v + j] * k[i] * k_scale;
            memory_mag += m[i * p.d_v + j] * fabs(k[i]) * k_scale;
        }
        for (int64_t i = 0; i < p.d_k; i++) {
            double key = k[i] * k_scale;
            s[i * p.d_v + j] += key * (v[j] - memory) * beta;
            m[i * p.d_v + j] = m[i * p.d_v + j] * 1.5 + fabs(key) * (fabs(v[j]) + memory_mag);
            out += s[i * p.d_v + j] * q[i] * q_scale;
            out_mag += m[i * p.d_v + j] * fabs(q[i]) * q_scale;
        }
        c->want[(t * p.n_v + h) * p.d_v + j] = out;
        c->mag[(t * p.n_v + h) * p.d_v + j] = out_mag;
    }
}

static void expect_delta(check_case *c) {
    vt_gated_delta_params p = c->call.p.gated_delta;
    int64_t per_head = (int64_t)p.d_k * p.d_v;
    read_states(c, STATE);
    for (int64_t t = 0; t < c->t[QKV].dim[0]; t++) {
        decode_row(VT_F32, tensor_row_at(&c->t[QKV], t), c->t[QKV].dim[1], x_row);
        int64_t base = i32(c, SLOT, i32(c, SEG, t)) * p.n_v * per_head;
        for (int64_t h = 0; h < p.n_v; h++) delta_head(c, t, h, state_want + base + h * per_head, state_mag + base + h * per_head);
    }
}

static const char *verify_delta(check_case *c, char *text, size_t n) { return verify_states(c, STATE, 16.0, text, n); }

static void bench_delta(check_case *c, int shape, double *bytes, double *flops, char *label, size_t n) {
    int64_t rows = shape == 0 ? 1 : shape == 1 ? 64 : 2;
    vt_gated_delta_params p = {.n_k = 16, .d_k = 128, .n_v = 32, .d_v = 128};
    if (shape == 2) p = (vt_gated_delta_params){.n_k = 1, .d_k = 16, .n_v = 2, .d_v = 16};
    if (!add_delta(c, rows, p, shape == 2 ? 2 : 1, false)) return;
    *bytes = (double)p.n_v * p.d_k * p.d_v * 8.0;
    *flops = 6.0 * (double)rows * p.n_v * p.d_k * p.d_v;
    snprintf(label, n, "rows=%lld heads=%d d=%d", (long long)rows, (int)p.n_v, (int)p.d_k);
}

const check_op check_causal_conv_silu = {VT_OP_CAUSAL_CONV_SILU, 8.0, make_conv, expect_conv, verify_conv, bench_conv, 3};
const check_op check_gated_delta = {VT_OP_GATED_DELTA, 16.0, make_delta, expect_delta, verify_delta, bench_delta, 3};
