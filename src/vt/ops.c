/* SPDX-License-Identifier: Apache-2.0 */
/* The typed calls: what each op asks of its arguments. The names kept in the enums are the arguments' places in the declaration. */
#include "vt/ops.h"

#include <math.h>

#include "vt/op_check.h"

static void check_matmul(op_check *c, const vt_tensor *out, const vt_tensor *a, const vt_tensor *b) {
    enum { OUT, A, B };
    op_check_out(c, "out", out, 2, 2);
    op_check_in(c, "a", a, 2, 2);
    op_check_in(c, "b", b, 2, 2);
    op_check_same_dim(c, OUT, 0, A, 0);
    op_check_same_dim(c, OUT, 1, B, 0);
    op_check_same_dim(c, A, 1, B, 1);
    op_check_apart(c, OUT, A);
    op_check_apart(c, OUT, B);
}

status vt_matmul_bt(vt_queue *q, const vt_tensor *out, const vt_tensor *a, const vt_tensor *b, error *err) {
    enum { OUT, A, B };
    op_check c = op_check_begin(q, VT_OP_MATMUL_BT, err);
    check_matmul(&c, out, a, b);
    return op_check_run(&c, op_check_sig(&c, A, B, OUT), OUT);
}

status vt_matmul_bt_alpha_beta(vt_queue *q, const vt_tensor *out, const vt_tensor *a, const vt_tensor *b, float alpha, float beta,
                               error *err) {
    enum { OUT, A, B };
    op_check c = op_check_begin(q, VT_OP_MATMUL_BT_ALPHA_BETA, err);
    check_matmul(&c, out, a, b);
    c.call.p.alpha_beta.alpha = alpha;
    c.call.p.alpha_beta.beta = beta;
    return op_check_run(&c, op_check_sig(&c, A, B, OUT), OUT);
}

status vt_quantize_rows(vt_queue *q, const vt_tensor *out, const vt_tensor *x, error *err) {
    enum { OUT, X };
    op_check c = op_check_begin(q, VT_OP_QUANTIZE_ROWS, err);
    op_check_out(&c, "out", out, 2, 2);
    op_check_in(&c, "x", x, 2, 2);
    op_check_same_shape(&c, OUT, X);
    op_check_apart(&c, OUT, X);
    return op_check_run(&c, op_check_sig(&c, X, OUT, -1), OUT);
}

status vt_gather_rows(vt_queue *q, const vt_tensor *out, const vt_tensor *table, const vt_tensor *ids, error *err) {
    enum { OUT, TABLE, IDS };
    op_check c = op_check_begin(q, VT_OP_GATHER_ROWS, err);
    op_check_out(&c, "out", out, 2, 2);
    op_check_in(&c, "table", table, 2, 2);
    op_check_in(&c, "ids", ids, 1, 1);
    op_check_dtype(&c, IDS, VT_I32);
    op_check_same_dim(&c, OUT, 0, IDS, 0);
    op_check_same_dim(&c, OUT, 1, TABLE, 1);
    OP_CHECK(&c, op_check_is_empty(&c, OUT) || op_check_dim(&c, TABLE, 0) > 0, "table has no rows");
    op_check_apart(&c, OUT, TABLE);
    op_check_apart(&c, OUT, IDS);
    return op_check_run(&c, op_check_sig(&c, TABLE, OUT, -1), OUT);
}

status vt_rms_norm(vt_queue *q, const vt_tensor *out, const vt_tensor *x, const vt_tensor *w, vt_rms_norm_params p, error *err) {
    enum { OUT, X, W };
    op_check c = op_check_begin(q, VT_OP_RMS_NORM, err);
    op_check_out(&c, "out", out, 2, 3);
    op_check_in(&c, "x", x, 2, 3);
    bool has_weight = op_check_optional(&c, "w", w, 1, 1);
    op_check_same_shape(&c, OUT, X);
    if (has_weight) {
        op_check_same_dim(&c, W, 0, X, -1);
        op_check_apart(&c, OUT, W);
    }
    op_check_apart_or_same(&c, OUT, X);
    OP_CHECK(&c, isfinite(p.eps) && p.eps >= 0, "eps is %g", (double)p.eps);
    OP_CHECK(&c, isfinite(p.w_offset), "w_offset is %g", (double)p.w_offset);
    c.call.p.rms_norm = p;
    return op_check_run(&c, op_check_sig(&c, X, W, OUT), OUT);
}

status vt_rope(vt_queue *q, const vt_tensor *x, const vt_tensor *pos, const vt_tensor *inv_freq, vt_rope_params p, error *err) {
    enum { X, POS, INV_FREQ };
    op_check c = op_check_begin(q, VT_OP_ROPE, err);
    op_check_out(&c, "x", x, 3, 3);
    op_check_in(&c, "pos", pos, 1, 1);
    op_check_in(&c, "inv_freq", inv_freq, 1, 1);
    op_check_dtype(&c, POS, VT_I32);
    op_check_dtype(&c, INV_FREQ, VT_F32);
    op_check_same_dim(&c, X, 0, POS, 0);
    OP_CHECK(&c, op_check_dim(&c, INV_FREQ, 0) <= op_check_dim(&c, X, 2) / 2,
             "inv_freq has %lld frequencies, more than half of %lld dimensions", (long long)op_check_dim(&c, INV_FREQ, 0),
             (long long)op_check_dim(&c, X, 2));
    op_check_apart(&c, X, POS);
    op_check_apart(&c, X, INV_FREQ);
    OP_CHECK(&c, p.pairing == VT_ROPE_HALF || p.pairing == VT_ROPE_ADJACENT, "no such pairing (%d)", (int)p.pairing);
    OP_CHECK(&c, isfinite(p.mscale), "mscale is %g", (double)p.mscale);
    c.call.p.rope = p;
    return op_check_run(&c, op_check_sig(&c, X, -1, -1), X);
}

/* pos, row_seg and pages as the next three arguments; `x` has a row per row of the step, `cache` holds the pages. */
static void check_rows(op_check *c, const vt_rows *rows, int x, int cache) {
    int pos = c->call.n_tensors, row_seg = pos + 1, pages = pos + 2;
    OP_CHECK(c, rows, "rows: missing");
    if (c->rc != STATUS_OK) return;
    op_check_in(c, "pos", &rows->pos, 1, 1);
    op_check_in(c, "row_seg", &rows->row_seg, 1, 1);
    op_check_in(c, "pages", &rows->pages, 2, 2);
    if (c->rc != STATUS_OK) return;
    for (int i = pos; i <= pages; i++) op_check_dtype(c, i, VT_I32);
    op_check_same_dim(c, pos, 0, x, 0);
    op_check_same_dim(c, row_seg, 0, x, 0);
    if (op_check_is_empty(c, x)) return;
    OP_CHECK(c, !op_check_is_empty(c, pages), "pages is empty");
    OP_CHECK(c, !op_check_is_empty(c, cache), "%s has no places", c->args[cache].name);
}

status vt_kv_write(vt_queue *q, const vt_tensor *cache, const vt_tensor *x, const vt_rows *rows, error *err) {
    enum { CACHE, X, POS };
    op_check c = op_check_begin(q, VT_OP_KV_WRITE, err);
    op_check_out(&c, "cache", cache, 4, 4);
    op_check_in(&c, "x", x, 3, 3);
    check_rows(&c, rows, X, CACHE);
    op_check_same_dim(&c, X, 1, CACHE, 1);
    op_check_same_dim(&c, X, 2, CACHE, 3);
    for (int i = X; c.rc == STATUS_OK && i < c.call.n_tensors; i++) op_check_apart(&c, CACHE, i);
    return op_check_run(&c, op_check_sig(&c, X, CACHE, -1), X);
}

/* A norm's weight of one head, or none. */
static void check_head_norm(op_check *c, const char *name, const vt_tensor *w, int x) {
    const int at = c->call.n_tensors;
    if (!op_check_optional(c, name, w, 1, 1)) return;
    op_check_same_dim(c, at, 0, x, 2);
    const vt_dtype t = c->rc == STATUS_OK ? c->call.t[at]->dtype : VT_F32;
    OP_CHECK(c, t == VT_F32 || t == VT_F16 || t == VT_BF16, "%s is %s, expected f32, f16 or bf16", name, vt_dtype_name(t));
}

status vt_prepare_heads(vt_queue *q, const vt_heads *heads, const vt_rows *rows, vt_heads_params p, error *err) {
    enum { Q, K, V, Q_NORM, K_NORM, INV_FREQ, K_CACHE, V_CACHE };
    op_check c = op_check_begin(q, VT_OP_PREPARE_HEADS, err);
    op_check_out(&c, "q", &heads->q, 3, 3);
    op_check_in(&c, "k", &heads->k, 3, 3);
    op_check_dtype(&c, K, VT_F32);
    op_check_same_dim(&c, K, 0, Q, 0);
    op_check_same_dim(&c, K, 2, Q, 2);
    if (op_check_optional(&c, "v", &heads->v, 3, 3)) {
        op_check_dtype(&c, V, VT_F32);
        op_check_same_shape(&c, V, K);
    }
    check_head_norm(&c, "q_norm", &heads->q_norm, Q);
    check_head_norm(&c, "k_norm", &heads->k_norm, Q);
    if (op_check_optional(&c, "inv_freq", &heads->inv_freq, 1, 1)) {
        op_check_dtype(&c, INV_FREQ, VT_F32);
        OP_CHECK(&c, op_check_dim(&c, INV_FREQ, 0) <= op_check_dim(&c, Q, 2) / 2, "inv_freq has %lld frequencies, more than half of %lld dimensions", (long long)op_check_dim(&c, INV_FREQ, 0),
                 (long long)op_check_dim(&c, Q, 2));
    }
    op_check_out(&c, "k_cache", &heads->k_cache, 4, 4);
    op_check_out(&c, "v_cache", &heads->v_cache, 4, 4);
    OP_CHECK(&c, heads->k_cache.dtype == heads->v_cache.dtype, "k_cache is %s, v_cache is %s", vt_dtype_name(heads->k_cache.dtype), vt_dtype_name(heads->v_cache.dtype));
    op_check_same_shape(&c, V_CACHE, K_CACHE);
    op_check_same_dim(&c, K, 1, K_CACHE, 1);
    op_check_same_dim(&c, K, 2, K_CACHE, 3);
    check_rows(&c, rows, Q, K_CACHE);
    OP_CHECK(&c, op_check_dim(&c, Q, 2) <= VT_HEADS_WIDTH, "heads of %lld dimensions, at most %d", (long long)op_check_dim(&c, Q, 2), VT_HEADS_WIDTH);
    const int written[] = {Q, K_CACHE, V_CACHE};
    for (int w = 0; w < 3; w++)
        for (int i = 0; c.rc == STATUS_OK && i < c.call.n_tensors; i++)
            if (i != written[w]) op_check_apart(&c, written[w], i);
    OP_CHECK(&c, isfinite(p.norm.eps) && p.norm.eps >= 0, "eps is %g", (double)p.norm.eps);
    OP_CHECK(&c, isfinite(p.norm.w_offset), "w_offset is %g", (double)p.norm.w_offset);
    OP_CHECK(&c, p.rope.pairing == VT_ROPE_HALF || p.rope.pairing == VT_ROPE_ADJACENT, "no such pairing (%d)", (int)p.rope.pairing);
    OP_CHECK(&c, isfinite(p.rope.mscale), "mscale is %g", (double)p.rope.mscale);
    c.call.p.heads = p;
    return op_check_run(&c, op_check_sig(&c, Q, K_CACHE, -1), K);
}

status vt_paged_attention(vt_queue *q, const vt_tensor *out, const vt_tensor *query, const vt_tensor *k, const vt_tensor *v,
                          const vt_rows *rows, const vt_tensor *sinks, vt_attention_params p, error *err) {
    enum { OUT, QUERY, K, V, POS, ROW_SEG, PAGES, SINKS };
    op_check c = op_check_begin(q, VT_OP_PAGED_ATTENTION, err);
    op_check_out(&c, "out", out, 3, 3);
    op_check_in(&c, "query", query, 3, 3);
    op_check_in(&c, "k", k, 4, 4);
    op_check_in(&c, "v", v, 4, 4);
    check_rows(&c, rows, QUERY, K);
    if (op_check_optional(&c, "sinks", sinks, 1, 1)) {
        op_check_dtype(&c, SINKS, VT_F32);
        op_check_same_dim(&c, SINKS, 0, QUERY, 1);
    }
    for (int i = 0; i < 2; i++) op_check_same_dim(&c, OUT, i, QUERY, i);
    for (int i = 0; i < 3; i++) op_check_same_dim(&c, K, i, V, i);
    op_check_same_dim(&c, OUT, 2, V, 3);
    const int64_t width = op_check_dim(&c, K, 3), v_width = op_check_dim(&c, V, 3);
    OP_CHECK(&c, v_width == width || (v_width < width && c.call.t[OUT]->dtype == VT_BF16), "k is %lld wide, v %lld", (long long)width,
             (long long)v_width);
    OP_CHECK(&c, c.call.t[K]->dtype == c.call.t[V]->dtype, "k is %s, v is %s", vt_dtype_name(c.call.t[K]->dtype),
             vt_dtype_name(c.call.t[V]->dtype));
    op_check_same_dim(&c, QUERY, 2, K, 3);
    int64_t n_heads = op_check_dim(&c, QUERY, 1), n_kv_heads = op_check_dim(&c, K, 1);
    OP_CHECK(&c, n_heads == 0 || (n_kv_heads > 0 && n_heads % n_kv_heads == 0), "%lld heads over %lld kv heads", (long long)n_heads,
             (long long)n_kv_heads);
    for (int i = QUERY; c.rc == STATUS_OK && i < c.call.n_tensors; i++) op_check_apart(&c, OUT, i);
    OP_CHECK(&c, isfinite(p.scale), "scale is %g", (double)p.scale);
    OP_CHECK(&c, isfinite(p.softcap) && p.softcap >= 0, "softcap is %g", (double)p.softcap);
    OP_CHECK(&c, p.window >= 0, "window is %d", (int)p.window);
    c.call.p.attention = p;
    return op_check_run(&c, op_check_sig(&c, QUERY, K, OUT), OUT);
}

static status gated(vt_queue *q, vt_op op, const vt_tensor *out, const vt_tensor *x, error *err) {
    enum { OUT, X };
    op_check c = op_check_begin(q, op, err);
    op_check_out(&c, "out", out, 2, 2);
    op_check_in(&c, "x", x, 2, 2);
    op_check_same_dim(&c, OUT, 0, X, 0);
    int64_t half = op_check_dim(&c, OUT, 1), whole = op_check_dim(&c, X, 1);
    OP_CHECK(&c, whole % 2 == 0 && whole / 2 == half, "x has rows of %lld, expected twice %lld", (long long)whole, (long long)half);
    op_check_apart(&c, OUT, X);
    return op_check_run(&c, op_check_sig(&c, X, OUT, -1), OUT);
}

status vt_silu_and_mul(vt_queue *q, const vt_tensor *out, const vt_tensor *x, error *err) {
    return gated(q, VT_OP_SILU_AND_MUL, out, x, err);
}

status vt_gelu_and_mul(vt_queue *q, const vt_tensor *out, const vt_tensor *x, error *err) {
    return gated(q, VT_OP_GELU_AND_MUL, out, x, err);
}

status vt_mul_scalar(vt_queue *q, const vt_tensor *out, const vt_tensor *x, float s, error *err) {
    enum { OUT, X };
    op_check c = op_check_begin(q, VT_OP_MUL_SCALAR, err);
    op_check_out(&c, "out", out, 1, VT_MAX_DIMS);
    op_check_in(&c, "x", x, 1, VT_MAX_DIMS);
    op_check_same_shape(&c, OUT, X);
    op_check_apart_or_same(&c, OUT, X);
    c.call.p.scalar = s;
    return op_check_run(&c, op_check_sig(&c, X, OUT, -1), OUT);
}

status vt_softcap(vt_queue *q, const vt_tensor *out, const vt_tensor *x, float cap, error *err) {
    enum { OUT, X };
    op_check c = op_check_begin(q, VT_OP_SOFTCAP, err);
    op_check_out(&c, "out", out, 1, VT_MAX_DIMS);
    op_check_in(&c, "x", x, 1, VT_MAX_DIMS);
    op_check_same_shape(&c, OUT, X);
    op_check_apart_or_same(&c, OUT, X);
    OP_CHECK(&c, isfinite(cap) && cap > 0, "cap is %g", (double)cap);
    c.call.p.scalar = cap;
    return op_check_run(&c, op_check_sig(&c, X, OUT, -1), OUT);
}

status vt_add(vt_queue *q, const vt_tensor *out, const vt_tensor *a, const vt_tensor *b, error *err) {
    enum { OUT, A, B };
    op_check c = op_check_begin(q, VT_OP_ADD, err);
    op_check_out(&c, "out", out, 1, VT_MAX_DIMS);
    op_check_in(&c, "a", a, 1, VT_MAX_DIMS);
    op_check_in(&c, "b", b, 1, VT_MAX_DIMS);
    op_check_same_shape(&c, OUT, A);
    if (c.rc == STATUS_OK && b->n_dims == 1) {
        op_check_same_dim(&c, B, 0, A, -1);
    } else {
        op_check_same_shape(&c, B, A);
    }
    op_check_apart_or_same(&c, OUT, A);
    op_check_apart(&c, OUT, B);
    return op_check_run(&c, op_check_sig(&c, A, B, OUT), OUT);
}

status vt_argmax(vt_queue *q, const vt_tensor *ids, const vt_tensor *x, error *err) {
    enum { IDS, X };
    op_check c = op_check_begin(q, VT_OP_ARGMAX, err);
    op_check_out(&c, "ids", ids, 1, 1);
    op_check_in(&c, "x", x, 2, 2);
    op_check_dtype(&c, IDS, VT_I32);
    op_check_same_dim(&c, IDS, 0, X, 0);
    OP_CHECK(&c, op_check_is_empty(&c, IDS) || (op_check_dim(&c, X, 1) > 0 && op_check_dim(&c, X, 1) <= INT32_MAX), "x has rows of %lld",
             (long long)op_check_dim(&c, X, 1));
    op_check_apart(&c, IDS, X);
    return op_check_run(&c, op_check_sig(&c, X, -1, -1), IDS);
}
