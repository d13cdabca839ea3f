/* SPDX-License-Identifier: Apache-2.0 */
/* The typed calls of grouped expert products: what each op asks of its arguments. */
#include <math.h>

#include "vt/op_check.h"
#include "vt/ops.h"

status vt_moe_group(vt_queue *q, const vt_tensor *first, const vt_tensor *pair_row, const vt_tensor *index, const vt_tensor *sorted, const vt_tensor *ids, const vt_tensor *weights,
                    error *err) {
    enum { FIRST, PAIR_ROW, INDEX, SORTED, IDS, WEIGHTS };
    op_check c = op_check_begin(q, VT_OP_MOE_GROUP, err);
    op_check_out(&c, "first", first, 1, 1);
    op_check_out(&c, "pair_row", pair_row, 1, 1);
    op_check_out(&c, "index", index, 2, 2);
    op_check_out(&c, "sorted", sorted, 2, 2);
    op_check_in(&c, "ids", ids, 2, 2);
    op_check_in(&c, "weights", weights, 2, 2);
    for (int i = FIRST; i <= IDS; i++) op_check_dtype(&c, i, i == SORTED ? VT_F32 : VT_I32);
    op_check_dtype(&c, WEIGHTS, VT_F32);
    for (int i = INDEX; i <= WEIGHTS; i++) op_check_same_shape(&c, i, IDS);
    OP_CHECK(&c, op_check_dim(&c, FIRST, 0) >= 2, "first has %lld places, expected one more than there are experts", (long long)op_check_dim(&c, FIRST, 0));
    const int64_t n = op_check_dim(&c, IDS, 0), k = op_check_dim(&c, IDS, 1);
    OP_CHECK(&c, k >= 1 && n <= INT32_MAX / k, "%lld rows of %lld experts", (long long)n, (long long)k);
    OP_CHECK(&c, op_check_dim(&c, PAIR_ROW, 0) == n * k, "pair_row has %lld places, expected %lld", (long long)op_check_dim(&c, PAIR_ROW, 0), (long long)(n * k));
    for (int i = FIRST; i <= SORTED; i++) {
        for (int j = i + 1; j <= WEIGHTS; j++) op_check_apart(&c, i, j);
    }
    return op_check_run(&c, op_check_sig(&c, WEIGHTS, -1, -1), FIRST);
}

/* ---- products: the arguments that all of them have ---- */

enum { OUT, X, FIRST, PAIR_ROW, W, TABLE, BIAS, BIAS_TABLE, EXTRA, EXTRA_TABLE };

static void check_table(op_check *c, int table) {
    op_check_dtype(c, table, VT_I64);
    OP_CHECK(c, op_check_dim(c, table, 0) == op_check_dim(c, FIRST, 0) - 1, "%s has %lld addresses, first %lld places", c->args[table].name, (long long)op_check_dim(c, table, 0),
             (long long)op_check_dim(c, FIRST, 0));
}

static void check_common(op_check *c, const vt_tensor *out, const vt_grouped_rows *rows, const vt_grouped_weights *w, const vt_grouped_params *p) {
    op_check_out(c, "out", out, 2, 2);
    op_check_in(c, "x", &rows->x, 2, 2);
    op_check_in(c, "first", &rows->first, 1, 1);
    const bool chosen = op_check_optional(c, "pair_row", &rows->pair_row, 1, 1);
    if (c->rc == STATUS_OK) OP_CHECK(c, w->w.n_dims == 2, "w has %d dimensions, expected 2", (int)w->w.n_dims);
    (void)op_check_view(c, "w", &w->w, 2, 2);
    op_check_in(c, "table", &w->table, 1, 1);
    op_check_dtype(c, FIRST, VT_I32);
    OP_CHECK(c, op_check_dim(c, FIRST, 0) >= 2, "first has %lld places, expected one more than there are groups", (long long)op_check_dim(c, FIRST, 0));
    check_table(c, TABLE);
    if (chosen) {
        op_check_dtype(c, PAIR_ROW, VT_I32);
        op_check_same_dim(c, PAIR_ROW, 0, OUT, 0);
        op_check_apart(c, OUT, PAIR_ROW);
    } else {
        op_check_same_dim(c, X, 0, OUT, 0);
    }
    if (op_check_view(c, "bias", &w->bias, 1, 1)) {
        const vt_dtype t = c->call.t[BIAS]->dtype;
        OP_CHECK(c, t == VT_F32 || t == VT_F16 || t == VT_BF16, "bias is %s", vt_dtype_name(t));
        op_check_same_dim(c, BIAS, 0, W, 0);
        op_check_in(c, "bias_table", &w->bias_table, 1, 1);
        check_table(c, BIAS_TABLE);
        op_check_apart(c, OUT, BIAS_TABLE);
    } else {
        (void)op_check_optional(c, "bias_table", NULL, 1, 1);
    }
    op_check_same_dim(c, X, 1, W, 1);
    OP_CHECK(c, p->max_rows >= 0, "max_rows is %d", (int)p->max_rows);
    for (int i = X; i <= FIRST; i++) op_check_apart(c, OUT, i);
    op_check_apart(c, OUT, TABLE);
    if (c->rc == STATUS_OK) c->call.p.grouped = *p;
}

status vt_matmul_grouped(vt_queue *q, const vt_tensor *out, const vt_grouped_rows *rows, const vt_grouped_weights *weights, vt_grouped_params p, error *err) {
    op_check c = op_check_begin(q, VT_OP_MATMUL_GROUPED, err);
    check_common(&c, out, rows, weights, &p);
    op_check_same_dim(&c, OUT, 1, W, 0);
    return op_check_run(&c, op_check_sig(&c, X, W, OUT), OUT);
}

static int64_t blocks_of(int64_t n, int64_t block) { return (n + block - 1) / block; }

status vt_matmul_grouped_scaled(vt_queue *q, const vt_tensor *out, const vt_grouped_rows *rows, const vt_grouped_weights *weights, vt_grouped_params p, error *err) {
    op_check c = op_check_begin(q, VT_OP_MATMUL_GROUPED_SCALED, err);
    check_common(&c, out, rows, weights, &p);
    op_check_same_dim(&c, OUT, 1, W, 0);
    op_check_dtype(&c, OUT, VT_F32);
    OP_CHECK(&c, weights->scale.n_dims == 2, "scale has %d dimensions, expected 2", (int)weights->scale.n_dims);
    (void)op_check_view(&c, "scale", &weights->scale, 2, 2);
    op_check_in(&c, "scale_table", &weights->scale_table, 1, 1);
    check_table(&c, EXTRA_TABLE);
    OP_CHECK(&c, p.blocks.block_n > 0 && p.blocks.block_k > 0, "blocks of %d x %d", (int)p.blocks.block_n, (int)p.blocks.block_k);
    if (c.rc == STATUS_OK) {
        const int64_t n = blocks_of(op_check_dim(&c, W, 0), p.blocks.block_n), k = blocks_of(op_check_dim(&c, W, 1), p.blocks.block_k);
        OP_CHECK(&c, op_check_dim(&c, EXTRA, 0) == n && op_check_dim(&c, EXTRA, 1) == k, "scale is [%lld, %lld], expected [%lld, %lld]", (long long)op_check_dim(&c, EXTRA, 0),
                 (long long)op_check_dim(&c, EXTRA, 1), (long long)n, (long long)k);
    }
    op_check_apart(&c, OUT, EXTRA_TABLE);
    return op_check_run(&c, op_check_sig(&c, X, W, EXTRA), OUT);
}

status vt_matmul_grouped_gated(vt_queue *q, const vt_tensor *out, const vt_grouped_rows *rows, const vt_grouped_weights *weights, vt_grouped_params p, error *err) {
    op_check c = op_check_begin(q, VT_OP_MATMUL_GROUPED_GATED, err);
    check_common(&c, out, rows, weights, &p);
    const bool apart = op_check_optional(&c, "up_table", &weights->up_table, 1, 1);
    if (apart) {
        check_table(&c, EXTRA);
        op_check_same_dim(&c, OUT, 1, W, 0);
        OP_CHECK(&c, weights->bias.n_dims == 0, "gate and up apart have no bias");
        op_check_apart(&c, OUT, EXTRA);
    } else {
        OP_CHECK(&c, op_check_dim(&c, W, 0) % 2 == 0 && op_check_dim(&c, W, 0) / 2 == op_check_dim(&c, OUT, 1), "w has %lld rows, expected twice %lld", (long long)op_check_dim(&c, W, 0),
                 (long long)op_check_dim(&c, OUT, 1));
    }
    OP_CHECK(&c, p.gate >= VT_GATE_SILU && p.gate <= VT_GATE_SWIGLU_CLAMP, "no such gate (%d)", (int)p.gate);
    OP_CHECK(&c, p.gate != VT_GATE_SWIGLU_CLAMP || (isfinite(p.swiglu.alpha) && isfinite(p.swiglu.limit) && p.swiglu.limit > 0), "alpha %g, limit %g", (double)p.swiglu.alpha,
             (double)p.swiglu.limit);
    return op_check_run(&c, op_check_sig(&c, X, W, OUT), OUT);
}
