/* SPDX-License-Identifier: Apache-2.0 */
/* The typed calls of routing and expert products: what each op asks of its arguments. */
#include <math.h>

#include "vt/op_check.h"
#include "vt/ops.h"

static int64_t blocks_of(int64_t n, int64_t block) { return (n + block - 1) / block; }

status vt_matmul_bt_scaled(vt_queue *q, const vt_tensor *out, const vt_tensor *a, const vt_tensor *b, const vt_tensor *scale, vt_scale_params p, error *err) {
    enum { OUT, A, B, SCALE };
    op_check c = op_check_begin(q, VT_OP_MATMUL_BT_SCALED, err);
    op_check_out(&c, "out", out, 2, 2);
    op_check_in(&c, "a", a, 2, 2);
    op_check_in(&c, "b", b, 2, 2);
    op_check_in(&c, "scale", scale, 2, 2);
    op_check_same_dim(&c, OUT, 0, A, 0);
    op_check_same_dim(&c, OUT, 1, B, 0);
    op_check_same_dim(&c, A, 1, B, 1);
    OP_CHECK(&c, p.block_n > 0 && p.block_k > 0, "blocks of %d x %d", (int)p.block_n, (int)p.block_k);
    if (c.rc == STATUS_OK) {
        const int64_t rows = blocks_of(op_check_dim(&c, B, 0), p.block_n), cols = blocks_of(op_check_dim(&c, B, 1), p.block_k);
        OP_CHECK(&c, op_check_dim(&c, SCALE, 0) == rows && op_check_dim(&c, SCALE, 1) == cols, "scale is [%lld, %lld], expected [%lld, %lld]",
                 (long long)op_check_dim(&c, SCALE, 0), (long long)op_check_dim(&c, SCALE, 1), (long long)rows, (long long)cols);
    }
    for (int i = A; i <= SCALE; i++) op_check_apart(&c, OUT, i);
    c.call.p.scale = p;
    op_check_dtype(&c, OUT, VT_F32);
    return op_check_run(&c, op_check_sig(&c, A, B, SCALE), OUT);
}

status vt_matmul_kn(vt_queue *q, const vt_tensor *out, const vt_tensor *a, const vt_tensor *b, error *err) {
    enum { OUT, A, B };
    op_check c = op_check_begin(q, VT_OP_MATMUL_KN, err);
    op_check_out(&c, "out", out, 2, 2);
    op_check_in(&c, "a", a, 2, 2);
    op_check_in_strided(&c, "b", b, 2, 2);
    op_check_same_dim(&c, OUT, 0, A, 0);
    op_check_same_dim(&c, OUT, 1, B, 1);
    op_check_same_dim(&c, A, 1, B, 0);
    op_check_apart(&c, OUT, A);
    op_check_apart(&c, OUT, B);
    return op_check_run(&c, op_check_sig(&c, A, B, OUT), OUT);
}

static void check_router_params(op_check *c, const vt_router_params *p, int64_t n_experts, int64_t k) {
    OP_CHECK(c, p->mode >= VT_ROUTER_SOFTMAX && p->mode <= VT_ROUTER_SOFTMAX_SELECTED, "no such mode (%d)", (int)p->mode);
    OP_CHECK(c, isfinite(p->scaling), "scaling is %g", (double)p->scaling);
    OP_CHECK(c, p->n_groups >= 1 && n_experts % p->n_groups == 0, "%lld experts in %d groups", (long long)n_experts, (int)p->n_groups);
    OP_CHECK(c, p->n_groups == 1 || (p->top_groups >= 1 && p->top_groups <= p->n_groups), "%d of %d groups", (int)p->top_groups, (int)p->n_groups);
    OP_CHECK(c, p->n_groups == 1 || k <= n_experts / p->n_groups * p->top_groups, "%lld experts from %d groups of %lld", (long long)k, (int)p->top_groups,
             (long long)(n_experts / p->n_groups));
    OP_CHECK(c, p->n_groups == 1 || !p->group_top2 || n_experts / p->n_groups >= 2, "groups of one expert have no second best");
}

status vt_router_topk(vt_queue *q, const vt_tensor *ids, const vt_tensor *weights, const vt_tensor *logits, const vt_tensor *bias, const vt_tensor *expert_scale,
                      vt_router_params p, error *err) {
    enum { IDS, WEIGHTS, LOGITS, BIAS, EXPERT_SCALE };
    op_check c = op_check_begin(q, VT_OP_ROUTER_TOPK, err);
    op_check_out(&c, "ids", ids, 2, 2);
    op_check_out(&c, "weights", weights, 2, 2);
    op_check_in(&c, "logits", logits, 2, 2);
    if (op_check_optional(&c, "bias", bias, 1, 1)) op_check_same_dim(&c, BIAS, 0, LOGITS, 1);
    if (op_check_optional(&c, "expert_scale", expert_scale, 1, 1)) op_check_same_dim(&c, EXPERT_SCALE, 0, LOGITS, 1);
    op_check_dtype(&c, IDS, VT_I32);
    op_check_dtype(&c, WEIGHTS, VT_F32);
    op_check_same_shape(&c, IDS, WEIGHTS);
    op_check_same_dim(&c, IDS, 0, LOGITS, 0);
    const int64_t k = op_check_dim(&c, IDS, 1), n_experts = op_check_dim(&c, LOGITS, 1);
    OP_CHECK(&c, k >= 1 && k <= n_experts, "%lld of %lld experts", (long long)k, (long long)n_experts);
    check_router_params(&c, &p, n_experts, k);
    for (int i = LOGITS; i <= EXPERT_SCALE; i++) {
        if (c.rc != STATUS_OK || (i > LOGITS && (c.call.t[i] == NULL || c.call.t[i]->n_dims == 0))) continue;
        op_check_apart(&c, IDS, i);
        op_check_apart(&c, WEIGHTS, i);
    }
    op_check_apart(&c, IDS, WEIGHTS);
    c.call.p.router = p;
    return op_check_run(&c, op_check_sig(&c, LOGITS, BIAS, EXPERT_SCALE), IDS);
}

status vt_moe_combine(vt_queue *q, const vt_tensor *out, const vt_tensor *y, const vt_tensor *index, const vt_tensor *weights, error *err) {
    enum { OUT, Y, INDEX, WEIGHTS };
    op_check c = op_check_begin(q, VT_OP_MOE_COMBINE, err);
    op_check_out(&c, "out", out, 2, 2);
    op_check_in(&c, "y", y, 2, 2);
    op_check_in(&c, "index", index, 2, 2);
    op_check_in(&c, "weights", weights, 2, 2);
    op_check_dtype(&c, INDEX, VT_I32);
    op_check_dtype(&c, WEIGHTS, VT_F32);
    op_check_same_dim(&c, OUT, 0, INDEX, 0);
    op_check_same_dim(&c, OUT, 1, Y, 1);
    op_check_same_shape(&c, INDEX, WEIGHTS);
    OP_CHECK(&c, op_check_dim(&c, INDEX, 1) >= 1, "no expert");
    for (int i = Y; i <= WEIGHTS; i++) op_check_apart(&c, OUT, i);
    return op_check_run(&c, op_check_sig(&c, Y, OUT, -1), OUT);
}

status vt_swiglu_clamp_and_mul(vt_queue *q, const vt_tensor *out, const vt_tensor *x, vt_swiglu_params p, error *err) {
    enum { OUT, X };
    op_check c = op_check_begin(q, VT_OP_SWIGLU_CLAMP_AND_MUL, err);
    op_check_out(&c, "out", out, 2, 2);
    op_check_in(&c, "x", x, 2, 2);
    op_check_same_dim(&c, OUT, 0, X, 0);
    OP_CHECK(&c, op_check_dim(&c, X, 1) % 2 == 0 && op_check_dim(&c, X, 1) / 2 == op_check_dim(&c, OUT, 1), "x has rows of %lld, expected twice %lld",
             (long long)op_check_dim(&c, X, 1), (long long)op_check_dim(&c, OUT, 1));
    OP_CHECK(&c, isfinite(p.alpha) && isfinite(p.limit) && p.limit > 0, "alpha %g, limit %g", (double)p.alpha, (double)p.limit);
    op_check_apart(&c, OUT, X);
    c.call.p.swiglu = p;
    return op_check_run(&c, op_check_sig(&c, X, OUT, -1), OUT);
}

status vt_mul_sigmoid(vt_queue *q, const vt_tensor *out, const vt_tensor *x, const vt_tensor *gate, error *err) {
    enum { OUT, X, GATE };
    op_check c = op_check_begin(q, VT_OP_MUL_SIGMOID, err);
    op_check_out(&c, "out", out, 2, 2);
    op_check_in(&c, "x", x, 2, 2);
    op_check_in(&c, "gate", gate, 2, 2);
    op_check_same_shape(&c, OUT, X);
    op_check_same_dim(&c, GATE, 0, X, 0);
    OP_CHECK(&c, op_check_dim(&c, GATE, 1) == 1 || op_check_dim(&c, GATE, 1) == op_check_dim(&c, X, 1), "gate has rows of %lld, expected 1 or %lld",
             (long long)op_check_dim(&c, GATE, 1), (long long)op_check_dim(&c, X, 1));
    op_check_apart_or_same(&c, OUT, X);
    op_check_apart(&c, OUT, GATE);
    return op_check_run(&c, op_check_sig(&c, X, GATE, OUT), OUT);
}
