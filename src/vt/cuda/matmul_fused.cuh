/* SPDX-License-Identifier: Apache-2.0 */
/** The arguments of vt_matmul_bt_several and vt_matmul_bt_gated taken apart. */
#ifndef HEADRACE_VT_CUDA_MATMUL_FUSED_H
#define HEADRACE_VT_CUDA_MATMUL_FUSED_H

#include "vt/cuda/gpu.cuh"

extern "C" status cuda_matmul_bf16(vt_queue *q, const vt_call *call, error *err);

/* The i-th product of several as a call of vt_matmul_bt; its out has n_dims 0 where there is none. */
static inline vt_call fused_part_of(const vt_call *call, int i) {
    vt_call one = *call;
    one.op = VT_OP_MATMUL_BT;
    one.n_tensors = 3;
    one.t[0] = call->t[i == 0 ? 0 : 1 + 2 * i];
    one.t[2] = call->t[i == 0 ? 2 : 2 + 2 * i];
    return one;
}

/* What few rows are multiplied with: one weight, several whose outputs are apart (FEW_SEVERAL: a part begins where a tile does), or a gate and its up (FEW_GATED: the first half
 * of a tile are gates of the outputs whose ups the second half are). */
enum few_mode { FEW_PLAIN, FEW_SEVERAL, FEW_GATED };

struct few_parts {
    const uint8_t *b[VT_SEVERAL];
    uint8_t *out[VT_SEVERAL];
    int64_t b_stride[VT_SEVERAL], out_stride[VT_SEVERAL], n[VT_SEVERAL], begin[VT_SEVERAL];
    int gate;
};

/* The part of a tile, without indexing what the launch gave. */
struct few_part {
    const uint8_t *b;
    uint8_t *out;
    int64_t b_stride, out_stride, n, begin;
};

GPU_FN few_part few_part_at(const few_parts &f, int64_t n0) {
    if (n0 >= f.begin[2]) return {f.b[2], f.out[2], f.b_stride[2], f.out_stride[2], f.n[2], f.begin[2]};
    if (n0 >= f.begin[1]) return {f.b[1], f.out[1], f.b_stride[1], f.out_stride[1], f.n[1], f.begin[1]};
    return {f.b[0], f.out[0], f.b_stride[0], f.out_stride[0], f.n[0], 0};
}

/* Parts that have columns, each from a multiple of `width` on; returns how many columns there are. */
static inline int64_t several_parts(const vt_call *call, int width, few_parts *f) {
    int64_t at = 0;
    int n = 0;
    for (int i = 0; i < VT_SEVERAL; i++) f->begin[i] = INT64_MAX;
    for (int i = 0; i < VT_SEVERAL; i++) {
        const vt_call one = fused_part_of(call, i);
        if (one.t[0]->n_dims == 0 || one.t[2]->dim[0] == 0) continue;
        const gpu_view b = gpu_view_of(one.t[2]), out = gpu_view_of(one.t[0]);
        f->b[n] = b.data, f->b_stride[n] = b.stride[0], f->out[n] = out.data, f->out_stride[n] = out.stride[0], f->n[n] = b.dim[0], f->begin[n] = at;
        at += gpu_ceil(b.dim[0], width) * width;
        n++;
    }
    return at;
}

#endif
