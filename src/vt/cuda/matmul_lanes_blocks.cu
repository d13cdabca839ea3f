/* SPDX-License-Identifier: Apache-2.0 */
/* Products of F32 or BF16 activations with GGUF block weights, dequantised element by element. */
#include "vt/cuda/matmul_rounded.cuh"

extern "C" status cuda_matmul_blocks_f32(vt_queue *q, const vt_call *call, error *err) {
    switch ((int)call->t[2]->dtype) {
#define X(T)                                                                                                                               \
    case T:                                                                                                                                \
        return run_plain<T, 1>(q, call, err);
        X(VT_Q4_0) X(VT_Q4_1) X(VT_Q8_0) X(VT_Q5_0) X(VT_Q5_1) X(VT_IQ4_NL) X(VT_MXFP4)
        X(VT_Q6_K) X(VT_Q2_K) X(VT_Q3_K) X(VT_Q4_K) X(VT_Q5_K) X(VT_IQ4_XS)
#undef X
    default:
        return cuda_refuse(err, "matmul_bt: no such block type");
    }
}

template <int T> static status run_rounded(vt_queue *q, const vt_call *call, error *err) {
    const gpu_view b = gpu_view_of(call->t[2]);
    return run_lanes<rounded_weights<T>, 1, VT_BF16>(q, call, rounded_weights<T>{b.data, b.stride[0]}, call->t[2]->dim[0], err);
}

extern "C" status cuda_matmul_blocks_bf16(vt_queue *q, const vt_call *call, error *err) {
    switch ((int)call->t[2]->dtype) {
#define X(T)                                                                                                                               \
    case T:                                                                                                                                \
        return run_rounded<T>(q, call, err);
        X(VT_Q4_0) X(VT_Q4_1) X(VT_Q8_0) X(VT_Q5_0) X(VT_Q5_1) X(VT_IQ4_NL) X(VT_MXFP4)
        X(VT_Q6_K) X(VT_Q2_K) X(VT_Q3_K) X(VT_Q4_K) X(VT_Q5_K) X(VT_IQ4_XS)
#undef X
    default:
        return cuda_refuse(err, "matmul_bt: no such block type");
    }
}
