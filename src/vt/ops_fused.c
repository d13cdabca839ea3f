/* SPDX-License-Identifier: Apache-2.0 */
/* The typed calls of ops that stand for several: what each op asks of its arguments. */
#include <math.h>

#include "vt/op_check.h"
#include "vt/ops.h"

static void check_element_type(op_check *c, int a) {
    const vt_dtype t = c->rc == STATUS_OK ? c->call.t[a]->dtype : VT_F32;
    OP_CHECK(c, t == VT_F32 || t == VT_F16 || t == VT_BF16, "%s is %s, expected f32, f16 or bf16", c->args[a].name, vt_dtype_name(t));
}

/* The weight of a norm over rows of x as the next argument, or none. */
static void add_norm_weight(op_check *c, const char *name, const vt_tensor *w) {
    enum { X };
    const int at = c->call.n_tensors;
    if (!op_check_optional(c, name, w, 1, 1)) return;
    op_check_same_dim(c, at, 0, X, 1);
    check_element_type(c, at);
}

status vt_add_norm(vt_queue *q, const vt_add_norm_args *a, vt_add_norm_params p, error *err) {
    enum { X, OUT, Y = OUT + VT_ADD_NORM_OUTS, INDEX, WEIGHTS, Y_NORM, Y2 };
    static const char *const outs[] = {"out 0", "out 1", "out 2"}, *const norms[] = {"norm 0", "norm 1", "norm 2"};
    op_check c = op_check_begin(q, VT_OP_ADD_NORM, err);
    op_check_out(&c, "x", &a->x, 2, 2);
    for (int i = 0; i < VT_ADD_NORM_OUTS; i++) {
        if (!op_check_optional(&c, outs[i], &a->out[i], 2, 2)) continue;
        op_check_distinct(&c, OUT + i);
        op_check_same_shape(&c, OUT + i, X);
        OP_CHECK(&c, a->out[i].dtype == VT_F32 || a->out[i].dtype == VT_BF16, "%s is %s, expected f32 or bf16", outs[i], vt_dtype_name(a->out[i].dtype));
    }
    op_check_in(&c, "y", &a->y, 2, 2);
    op_check_same_dim(&c, Y, 1, X, 1);
    op_check_dtype(&c, Y, VT_F32);
    if (a->index.n_dims != 0 || a->weights.n_dims != 0) {
        op_check_in(&c, "index", &a->index, 2, 2);
        op_check_in(&c, "weights", &a->weights, 2, 2);
        op_check_dtype(&c, INDEX, VT_I32);
        op_check_dtype(&c, WEIGHTS, VT_F32);
        op_check_same_dim(&c, INDEX, 0, X, 0);
        op_check_same_shape(&c, INDEX, WEIGHTS);
        OP_CHECK(&c, op_check_dim(&c, INDEX, 1) >= 1, "no expert");
        OP_CHECK(&c, op_check_is_empty(&c, X) || op_check_dim(&c, Y, 0) > 0, "y has no rows");
    } else {
        (void)op_check_optional(&c, "index", NULL, 2, 2);
        (void)op_check_optional(&c, "weights", NULL, 2, 2);
        op_check_same_dim(&c, Y, 0, X, 0);
    }
    add_norm_weight(&c, "y_norm", &a->y_norm);
    if (op_check_optional(&c, "y2", &a->y2, 2, 2)) {
        op_check_same_shape(&c, Y2, X);
        op_check_dtype(&c, Y2, VT_F32);
    }
    add_norm_weight(&c, "y2_norm", &a->y2_norm);
    add_norm_weight(&c, "post_norm", &a->post_norm);
    for (int i = 0; i < VT_ADD_NORM_OUTS; i++) add_norm_weight(&c, norms[i], &a->out_norm[i]);
    for (int i = X; i < Y; i++)
        for (int j = i + 1; c.rc == STATUS_OK && j < c.call.n_tensors; j++) op_check_apart(&c, i, j);
    OP_CHECK(&c, isfinite(p.eps) && p.eps >= 0, "eps is %g", (double)p.eps);
    OP_CHECK(&c, isfinite(p.w_offset) && isfinite(p.scale), "w_offset is %g, scale %g", (double)p.w_offset, (double)p.scale);
    for (int i = 0; i < VT_ADD_NORM_OUTS; i++) OP_CHECK(&c, isfinite(p.out_scale[i]), "out_scale is %g", (double)p.out_scale[i]);
    c.call.p.add_norm = p;
    return op_check_run(&c, op_check_sig(&c, X, -1, -1), X);
}

status vt_matmul_bt_several(vt_queue *q, const vt_tensor *a, const vt_several *parts, error *err) {
    enum { OUT, A, B };
    static const char *const outs[] = {"out 0", "out 1", "out 2"}, *const weights[] = {"b 0", "b 1", "b 2"};
    op_check c = op_check_begin(q, VT_OP_MATMUL_BT_SEVERAL, err);
    op_check_out(&c, outs[0], &parts->out[0], 2, 2);
    op_check_in(&c, "a", a, 2, 2);
    op_check_in(&c, weights[0], &parts->b[0], 2, 2);
    const bool third = parts->out[2].n_dims != 0 || parts->b[2].n_dims != 0;
    for (int i = 1; i < VT_SEVERAL; i++) {
        if (i == 1 || third) {
            op_check_out(&c, outs[i], &parts->out[i], 2, 2);
            op_check_in(&c, weights[i], &parts->b[i], 2, 2);
        } else {
            (void)op_check_optional(&c, outs[i], NULL, 2, 2);
            (void)op_check_optional(&c, weights[i], NULL, 2, 2);
        }
    }
    for (int i = 0; i < (third ? 3 : 2); i++) {
        const int out = i == 0 ? OUT : 1 + 2 * i, b = i == 0 ? B : 2 + 2 * i;
        op_check_same_dim(&c, out, 0, A, 0);
        op_check_same_dim(&c, out, 1, b, 0);
        op_check_same_dim(&c, A, 1, b, 1);
        op_check_dtype(&c, out, VT_F32);
        if (c.rc == STATUS_OK) op_check_dtype(&c, b, parts->b[0].dtype);
        for (int j = 0; c.rc == STATUS_OK && j < c.call.n_tensors; j++)
            if (j != out) op_check_apart(&c, out, j);
    }
    return op_check_run(&c, op_check_sig(&c, A, B, OUT), A);
}

status vt_matmul_bt_gated(vt_queue *q, const vt_tensor *out, const vt_tensor *a, const vt_tensor *gate_w, const vt_tensor *up_w, vt_gate gate, error *err) {
    enum { OUT, A, GATE, UP };
    op_check c = op_check_begin(q, VT_OP_MATMUL_BT_GATED, err);
    op_check_out(&c, "out", out, 2, 2);
    op_check_in(&c, "a", a, 2, 2);
    op_check_in(&c, "gate_w", gate_w, 2, 2);
    op_check_in(&c, "up_w", up_w, 2, 2);
    op_check_same_dim(&c, OUT, 0, A, 0);
    op_check_same_dim(&c, OUT, 1, GATE, 0);
    op_check_same_dim(&c, A, 1, GATE, 1);
    op_check_same_shape(&c, UP, GATE);
    if (c.rc == STATUS_OK) op_check_dtype(&c, UP, gate_w->dtype);
    OP_CHECK(&c, gate == VT_GATE_SILU || gate == VT_GATE_GELU, "no such gate (%d)", (int)gate);
    for (int i = A; i <= UP; i++) op_check_apart(&c, OUT, i);
    c.call.p.gate = gate;
    return op_check_run(&c, op_check_sig(&c, A, GATE, OUT), OUT);
}
