/* SPDX-License-Identifier: Apache-2.0 */
/* One shape per op. Rows of block types are one block of 256, which is whole blocks of every type. */
#include "plugin/vt_sample.h"

#include <setjmp.h>
#include <sys/mman.h>

#include <cmocka.h>

enum { K = 256 };

typedef struct placer {
    vt_device_id dev;
    char *at;
    size_t left;
} placer;

static vt_tensor place(placer *p, vt_dtype dtype, int64_t a, int64_t b, int64_t c, int64_t d) {
    vt_tensor t = d   ? vt_tensor_4d(p->at, dtype, p->dev, a, b, c, d)
                  : c ? vt_tensor_3d(p->at, dtype, p->dev, a, b, c)
                  : b ? vt_tensor_2d(p->at, dtype, p->dev, a, b)
                      : vt_tensor_1d(p->at, dtype, p->dev, a);
    size_t bytes = 0;
    bool ok = vt_tensor_bytes(&t, &bytes);
    bytes = (bytes + 255) / 256 * 256;
    if (!ok || bytes > p->left) fail_msg("no room for a sample of %s", vt_dtype_name(dtype));
    p->at += bytes;
    p->left -= bytes;
    return t;
}

static void place_rows(vt_sample *s, placer *p, int at) {
    s->t[at] = place(p, VT_I32, 1, 0, 0, 0);
    s->t[at + 1] = place(p, VT_I32, 1, 0, 0, 0);
    s->t[at + 2] = place(p, VT_I32, 1, 1, 0, 0);
}

vt_sample vt_sample_make(vt_op op, vt_sig sig, vt_device_id dev, void *data) {
    vt_sample s = {.op = op};
    placer p = {dev, data, VT_SAMPLE_BYTES};
    vt_dtype a = (vt_dtype)sig.dtype[0], b = (vt_dtype)sig.dtype[1], c = (vt_dtype)sig.dtype[2];
    switch (op) {
    case VT_OP_MATMUL_BT:
    case VT_OP_MATMUL_BT_ALPHA_BETA:
        s.t[0] = place(&p, c, 2, 3, 0, 0);
        s.t[1] = place(&p, a, 2, K, 0, 0);
        s.t[2] = place(&p, b, 3, K, 0, 0);
        break;
    case VT_OP_QUANTIZE_ROWS:
        s.t[0] = place(&p, b, 2, K, 0, 0);
        s.t[1] = place(&p, a, 2, K, 0, 0);
        break;
    case VT_OP_GATHER_ROWS:
        s.t[0] = place(&p, b, 2, K, 0, 0);
        s.t[1] = place(&p, a, 5, K, 0, 0);
        s.t[2] = place(&p, VT_I32, 2, 0, 0, 0);
        break;
    case VT_OP_RMS_NORM:
        s.t[0] = place(&p, c, 2, K, 0, 0);
        s.t[1] = place(&p, a, 2, K, 0, 0);
        if (b != VT_NONE) s.t[2] = place(&p, b, K, 0, 0, 0);
        break;
    case VT_OP_ROPE:
        s.t[0] = place(&p, a, 2, 2, 8, 0);
        s.t[1] = place(&p, VT_I32, 2, 0, 0, 0);
        s.t[2] = place(&p, VT_F32, 4, 0, 0, 0);
        break;
    case VT_OP_KV_WRITE:
        s.t[0] = place(&p, b, 1, 2, 16, 8);
        s.t[1] = place(&p, a, 1, 2, 8, 0);
        place_rows(&s, &p, 2);
        break;
    case VT_OP_PREPARE_HEADS:
        s.t[0] = place(&p, a, 1, 4, 8, 0);
        s.t[1] = place(&p, VT_F32, 1, 2, 8, 0);
        s.t[2] = place(&p, VT_F32, 1, 2, 8, 0);
        s.t[3] = place(&p, VT_F32, 8, 0, 0, 0);
        s.t[4] = place(&p, VT_F32, 8, 0, 0, 0);
        s.t[5] = place(&p, VT_F32, 4, 0, 0, 0);
        s.t[6] = place(&p, b, 1, 2, 16, 8);
        s.t[7] = place(&p, b, 1, 2, 16, 8);
        place_rows(&s, &p, 8);
        break;
    case VT_OP_PAGED_ATTENTION:
        s.t[0] = place(&p, c, 1, 4, 8, 0);
        s.t[1] = place(&p, a, 1, 4, 8, 0);
        s.t[2] = place(&p, b, 1, 2, 16, 8);
        s.t[3] = place(&p, b, 1, 2, 16, 8);
        place_rows(&s, &p, 4);
        break;
    case VT_OP_SILU_AND_MUL:
    case VT_OP_GELU_AND_MUL:
        s.t[0] = place(&p, b, 2, 8, 0, 0);
        s.t[1] = place(&p, a, 2, 16, 0, 0);
        break;
    case VT_OP_MUL_SCALAR:
        s.t[0] = place(&p, b, 2, 8, 0, 0);
        s.t[1] = place(&p, a, 2, 8, 0, 0);
        break;
    case VT_OP_ADD:
        s.t[0] = place(&p, c, 2, 8, 0, 0);
        s.t[1] = place(&p, a, 2, 8, 0, 0);
        s.t[2] = place(&p, b, 2, 8, 0, 0);
        break;
    case VT_OP_MATMUL_BT_SCALED:
        s.t[0] = place(&p, VT_F32, 2, 3, 0, 0);
        s.t[1] = place(&p, a, 2, K, 0, 0);
        s.t[2] = place(&p, b, 3, K, 0, 0);
        s.t[3] = place(&p, c, 3, K / 32, 0, 0);
        break;
    case VT_OP_MATMUL_KN:
        s.t[0] = place(&p, c, 2, 3, 0, 0);
        s.t[1] = place(&p, a, 2, K, 0, 0);
        s.t[2] = place(&p, b, K, 3, 0, 0);
        break;
    case VT_OP_ROUTER_TOPK:
        s.t[0] = place(&p, VT_I32, 2, 3, 0, 0);
        s.t[1] = place(&p, VT_F32, 2, 3, 0, 0);
        s.t[2] = place(&p, a, 2, 8, 0, 0);
        if (b != VT_NONE) s.t[3] = place(&p, b, 8, 0, 0, 0);
        if (c != VT_NONE) s.t[4] = place(&p, c, 8, 0, 0, 0);
        break;
    case VT_OP_MOE_COMBINE:
        s.t[0] = place(&p, b, 2, 8, 0, 0);
        s.t[1] = place(&p, a, 6, 8, 0, 0);
        s.t[2] = place(&p, VT_I32, 2, 3, 0, 0);
        s.t[3] = place(&p, VT_F32, 2, 3, 0, 0);
        break;
    case VT_OP_SWIGLU_CLAMP_AND_MUL:
        s.t[0] = place(&p, b, 2, 8, 0, 0);
        s.t[1] = place(&p, a, 2, 16, 0, 0);
        break;
    case VT_OP_MUL_SIGMOID:
        s.t[0] = place(&p, c, 2, 8, 0, 0);
        s.t[1] = place(&p, a, 2, 8, 0, 0);
        s.t[2] = place(&p, b, 2, 8, 0, 0);
        break;
    case VT_OP_SOFTCAP:
        s.t[0] = place(&p, b, 2, 8, 0, 0);
        s.t[1] = place(&p, a, 2, 8, 0, 0);
        break;
    case VT_OP_CAUSAL_CONV_SILU:
        s.t[0] = place(&p, c, 1, 8, 0, 0);
        s.t[1] = place(&p, a, 1, 8, 0, 0);
        s.t[2] = place(&p, VT_F32, 2, 24, 0, 0);
        s.t[3] = place(&p, b, 8, 4, 0, 0);
        for (int i = 4; i < 7; i++) s.t[i] = place(&p, VT_I32, 1, 0, 0, 0);
        break;
    case VT_OP_GATED_DELTA:
        s.t[0] = place(&p, c, 1, 4, 0, 0);
        s.t[1] = place(&p, a, 1, 8, 0, 0);
        s.t[2] = place(&p, VT_F32, 1, 2, 0, 0);
        s.t[3] = place(&p, VT_F32, 1, 2, 0, 0);
        s.t[4] = place(&p, b, 2, 0, 0, 0);
        s.t[5] = place(&p, b, 2, 0, 0, 0);
        s.t[6] = place(&p, VT_F32, 2, 8, 0, 0);
        for (int i = 7; i < 10; i++) s.t[i] = place(&p, VT_I32, 1, 0, 0, 0);
        break;
    case VT_OP_ADD_NORM: /* x, outs, y with index and weights, its norm, y2 with its norm, the norm behind both, norms of the outs */
        for (int i = 0; i < 4; i++) s.t[i] = place(&p, i == 2 ? VT_BF16 : a, 2, K, 0, 0);
        s.t[4] = place(&p, VT_F32, 6, K, 0, 0);
        s.t[5] = place(&p, VT_I32, 2, 3, 0, 0);
        s.t[6] = place(&p, VT_F32, 2, 3, 0, 0);
        for (int i = 7; i < 14; i++) s.t[i] = i == 8 ? place(&p, VT_F32, 2, K, 0, 0) : place(&p, VT_BF16, K, 0, 0, 0);
        break;
    case VT_OP_MATMUL_BT_SEVERAL:
        s.t[1] = place(&p, a, 2, K, 0, 0);
        for (int i = 0; i < VT_SEVERAL; i++) {
            s.t[i == 0 ? 0 : 1 + 2 * i] = place(&p, c, 2, 3 + i, 0, 0);
            s.t[i == 0 ? 2 : 2 + 2 * i] = place(&p, b, 3 + i, K, 0, 0);
        }
        break;
    case VT_OP_MATMUL_BT_GATED:
        s.t[0] = place(&p, c, 2, 3, 0, 0);
        s.t[1] = place(&p, a, 2, K, 0, 0);
        for (int i = 2; i < 4; i++) s.t[i] = place(&p, b, 3, K, 0, 0);
        break;
    case VT_OP_ARGMAX:
        s.t[0] = place(&p, VT_I32, 2, 0, 0, 0);
        s.t[1] = place(&p, a, 2, 8, 0, 0);
        break;
    case VT_OP_MOE_GROUP:
        s.t[0] = place(&p, VT_I32, 5, 0, 0, 0);
        s.t[1] = place(&p, VT_I32, 6, 0, 0, 0);
        s.t[2] = place(&p, VT_I32, 2, 3, 0, 0);
        s.t[3] = place(&p, VT_F32, 2, 3, 0, 0);
        s.t[4] = place(&p, VT_I32, 2, 3, 0, 0);
        s.t[5] = place(&p, a, 2, 3, 0, 0);
        break;
    case VT_OP_MATMUL_GROUPED:
    case VT_OP_MATMUL_GROUPED_SCALED:
    case VT_OP_MATMUL_GROUPED_GATED:
        s.t[0] = place(&p, op == VT_OP_MATMUL_GROUPED_SCALED ? VT_F32 : c, 4, 3, 0, 0);
        s.t[1] = place(&p, a, 2, K, 0, 0);
        s.t[2] = place(&p, VT_I32, 3, 0, 0, 0);
        s.t[3] = place(&p, VT_I32, 4, 0, 0, 0);
        s.t[4] = place(&p, b, op == VT_OP_MATMUL_GROUPED_GATED ? 6 : 3, K, 0, 0);
        s.t[5] = place(&p, VT_I64, 2, 0, 0, 0);
        if (op != VT_OP_MATMUL_GROUPED_SCALED) break;
        s.t[8] = place(&p, c, 3, K / 32, 0, 0);
        s.t[9] = place(&p, VT_I64, 2, 0, 0, 0);
        break;
    default:
        fail_msg("op %s has no sample: add one", vt_op_name(op));
    }
    return s;
}

void *vt_sample_forbidden(void) {
    static void *page;
    if (!page) page = mmap(NULL, VT_SAMPLE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) fail_msg("no forbidden page");
    return page;
}

status vt_sample_run(const vt_sample *s, vt_queue *q, error *err) {
    const vt_tensor *t = s->t;
    switch (s->op) {
    case VT_OP_MATMUL_BT:
        return vt_matmul_bt(q, &t[0], &t[1], &t[2], err);
    case VT_OP_MATMUL_BT_ALPHA_BETA:
        return vt_matmul_bt_alpha_beta(q, &t[0], &t[1], &t[2], 2.0f, 1.0f, err);
    case VT_OP_QUANTIZE_ROWS:
        return vt_quantize_rows(q, &t[0], &t[1], err);
    case VT_OP_GATHER_ROWS:
        return vt_gather_rows(q, &t[0], &t[1], &t[2], err);
    case VT_OP_RMS_NORM:
        return vt_rms_norm(q, &t[0], &t[1], &t[2], (vt_rms_norm_params){1e-5f, 0}, err);
    case VT_OP_ROPE:
        return vt_rope(q, &t[0], &t[1], &t[2], (vt_rope_params){VT_ROPE_HALF, 1}, err);
    case VT_OP_KV_WRITE:
        return vt_kv_write(q, &t[0], &t[1], &(vt_rows){t[2], t[3], t[4]}, err);
    case VT_OP_PREPARE_HEADS:
        return vt_prepare_heads(q, &(vt_heads){t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]}, &(vt_rows){t[8], t[9], t[10]}, (vt_heads_params){{1e-5f, 0}, {VT_ROPE_HALF, 1}, true}, err);
    case VT_OP_PAGED_ATTENTION:
        return vt_paged_attention(q, &t[0], &t[1], &t[2], &t[3], &(vt_rows){t[4], t[5], t[6]}, &t[7], (vt_attention_params){1, 0, 0}, err);
    case VT_OP_SILU_AND_MUL:
        return vt_silu_and_mul(q, &t[0], &t[1], err);
    case VT_OP_GELU_AND_MUL:
        return vt_gelu_and_mul(q, &t[0], &t[1], err);
    case VT_OP_MUL_SCALAR:
        return vt_mul_scalar(q, &t[0], &t[1], 2.0f, err);
    case VT_OP_ADD:
        return vt_add(q, &t[0], &t[1], &t[2], err);
    case VT_OP_MATMUL_BT_SCALED:
        return vt_matmul_bt_scaled(q, &t[0], &t[1], &t[2], &t[3], (vt_scale_params){1, 32}, err);
    case VT_OP_MATMUL_KN:
        return vt_matmul_kn(q, &t[0], &t[1], &t[2], err);
    case VT_OP_ROUTER_TOPK:
        return vt_router_topk(q, &t[0], &t[1], &t[2], &t[3], &t[4], (vt_router_params){.n_groups = 1, .scaling = 1}, err);
    case VT_OP_MOE_COMBINE:
        return vt_moe_combine(q, &t[0], &t[1], &t[2], &t[3], err);
    case VT_OP_SWIGLU_CLAMP_AND_MUL:
        return vt_swiglu_clamp_and_mul(q, &t[0], &t[1], (vt_swiglu_params){1.7f, 7, false}, err);
    case VT_OP_MUL_SIGMOID:
        return vt_mul_sigmoid(q, &t[0], &t[1], &t[2], err);
    case VT_OP_ADD_NORM: {
        const vt_add_norm_args args = {t[0], t[4], t[5], t[6], t[7], t[8], t[9], t[10], {t[1], t[2], t[3]}, {t[11], t[12], t[13]}};
        return vt_add_norm(q, &args, (vt_add_norm_params){1e-5f, 0, 1, {1, 1, 1}}, err);
    }
    case VT_OP_MATMUL_BT_SEVERAL: {
        const vt_several parts = {{t[0], t[3], t[5]}, {t[2], t[4], t[6]}};
        return vt_matmul_bt_several(q, &t[1], &parts, err);
    }
    case VT_OP_MATMUL_BT_GATED:
        return vt_matmul_bt_gated(q, &t[0], &t[1], &t[2], &t[3], VT_GATE_SILU, err);
    case VT_OP_ARGMAX:
        return vt_argmax(q, &s->t[0], &s->t[1], err);
    case VT_OP_SOFTCAP:
        return vt_softcap(q, &t[0], &t[1], 30.0f, err);
    case VT_OP_CAUSAL_CONV_SILU:
        return vt_causal_conv_silu(q, &t[0], &t[1], &t[2], &t[3], &(vt_recurrent_rows){t[4], t[5], t[6]}, err);
    case VT_OP_GATED_DELTA:
        return vt_gated_delta(q, &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &(vt_recurrent_rows){t[7], t[8], t[9]}, (vt_gated_delta_params){1, 2, 2, 2, false, false}, err);
    case VT_OP_MOE_GROUP:
        return vt_moe_group(q, &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], err);
    case VT_OP_MATMUL_GROUPED:
    case VT_OP_MATMUL_GROUPED_SCALED:
    case VT_OP_MATMUL_GROUPED_GATED: {
        const vt_grouped_rows rows = {t[1], t[2], t[3]};
        const vt_grouped_weights w = {.w = t[4], .table = t[5], .scale = t[8], .scale_table = t[9]};
        const vt_grouped_params params = {.max_rows = 2, .blocks = {1, 32}};
        if (s->op == VT_OP_MATMUL_GROUPED_SCALED) return vt_matmul_grouped_scaled(q, &t[0], &rows, &w, params, err);
        return s->op == VT_OP_MATMUL_GROUPED ? vt_matmul_grouped(q, &t[0], &rows, &w, params, err) : vt_matmul_grouped_gated(q, &t[0], &rows, &w, params, err);
    }
    default:
        return error_set(err, STATUS_BUG, "no sample");
    }
}
