/* SPDX-License-Identifier: Apache-2.0 */
/* The typed calls of recurrent layers: what each op asks of its arguments. */
#include "vt/op_check.h"
#include "vt/ops.h"

/* pos, row_seg and seg_slot as the next three arguments; `x` has a row per row of the step. */
static void check_rows(op_check *c, const vt_recurrent_rows *rows, int x) {
    const int pos = c->call.n_tensors, row_seg = pos + 1, seg_slot = pos + 2;
    OP_CHECK(c, rows, "rows: missing");
    if (c->rc != STATUS_OK) return;
    op_check_in(c, "pos", &rows->pos, 1, 1);
    op_check_in(c, "row_seg", &rows->row_seg, 1, 1);
    op_check_in(c, "seg_slot", &rows->seg_slot, 1, 1);
    if (c->rc != STATUS_OK) return;
    for (int i = pos; i <= seg_slot; i++) op_check_dtype(c, i, VT_I32);
    op_check_same_dim(c, pos, 0, x, 0);
    op_check_same_dim(c, row_seg, 0, x, 0);
    OP_CHECK(c, op_check_is_empty(c, x) || !op_check_is_empty(c, seg_slot), "seg_slot is empty");
}

status vt_causal_conv_silu(vt_queue *q, const vt_tensor *out, const vt_tensor *x, const vt_tensor *state, const vt_tensor *w, const vt_recurrent_rows *rows, error *err) {
    enum { OUT, X, STATE, W };
    op_check c = op_check_begin(q, VT_OP_CAUSAL_CONV_SILU, err);
    op_check_out(&c, "out", out, 2, 2);
    op_check_in(&c, "x", x, 2, 2);
    op_check_out(&c, "state", state, 2, 2);
    op_check_in(&c, "w", w, 2, 2);
    check_rows(&c, rows, X);
    op_check_same_shape(&c, OUT, X);
    op_check_same_dim(&c, W, 0, X, 1);
    op_check_dtype(&c, STATE, VT_F32);
    OP_CHECK(&c, op_check_dim(&c, W, 1) >= 1 && op_check_dim(&c, STATE, 1) == op_check_dim(&c, W, 0) * (op_check_dim(&c, W, 1) - 1), "state has rows of %lld for %lld x %lld taps",
             (long long)op_check_dim(&c, STATE, 1), (long long)op_check_dim(&c, W, 0), (long long)op_check_dim(&c, W, 1));
    for (int i = X; i <= W; i++) op_check_apart(&c, OUT, i);
    op_check_apart(&c, STATE, X);
    return op_check_run(&c, op_check_sig(&c, X, W, OUT), OUT);
}

status vt_gated_delta(vt_queue *q, const vt_tensor *out, const vt_tensor *qkv, const vt_tensor *a, const vt_tensor *b, const vt_tensor *a_log, const vt_tensor *dt_bias,
                      const vt_tensor *state, const vt_recurrent_rows *rows, vt_gated_delta_params p, error *err) {
    enum { OUT, QKV, A, B, A_LOG, DT_BIAS, STATE };
    op_check c = op_check_begin(q, VT_OP_GATED_DELTA, err);
    op_check_out(&c, "out", out, 2, 2);
    op_check_in(&c, "qkv", qkv, 2, 2);
    op_check_in(&c, "a", a, 2, 2);
    op_check_in(&c, "b", b, 2, 2);
    op_check_in(&c, "a_log", a_log, 1, 1);
    op_check_in(&c, "dt_bias", dt_bias, 1, 1);
    op_check_out(&c, "state", state, 2, 2);
    check_rows(&c, rows, QKV);
    OP_CHECK(&c, p.n_k > 0 && p.d_k > 0 && p.n_v > 0 && p.d_v > 0 && p.n_v % p.n_k == 0, "%d key heads of %d, %d value heads of %d", p.n_k, p.d_k, p.n_v, p.d_v);
    if (c.rc == STATUS_OK) {
        const int64_t keys = (int64_t)p.n_k * p.d_k, values = (int64_t)p.n_v * p.d_v;
        OP_CHECK(&c, op_check_dim(&c, QKV, 1) == 2 * keys + values && op_check_dim(&c, OUT, 1) == values, "rows of %lld and %lld for %d x %d and %d x %d",
                 (long long)op_check_dim(&c, QKV, 1), (long long)op_check_dim(&c, OUT, 1), p.n_k, p.d_k, p.n_v, p.d_v);
        OP_CHECK(&c, op_check_dim(&c, STATE, 1) == values * p.d_k, "state has rows of %lld", (long long)op_check_dim(&c, STATE, 1));
        for (int i = A; i <= DT_BIAS; i++) OP_CHECK(&c, op_check_dim(&c, i, -1) == p.n_v, "%s has rows of %lld for %d heads", c.args[i].name, (long long)op_check_dim(&c, i, -1), p.n_v);
    }
    op_check_same_dim(&c, OUT, 0, QKV, 0);
    op_check_same_dim(&c, A, 0, QKV, 0);
    op_check_same_dim(&c, B, 0, QKV, 0);
    for (int i = QKV; c.rc == STATUS_OK && i <= STATE; i++) {
        if (i == DT_BIAS)
            op_check_dtype(&c, i, c.call.t[A_LOG]->dtype);
        else if (i != A_LOG)
            op_check_dtype(&c, i, VT_F32);
        op_check_apart(&c, OUT, i);
    }
    c.call.p.gated_delta = p;
    return op_check_run(&c, op_check_sig(&c, QKV, A_LOG, OUT), OUT);
}
