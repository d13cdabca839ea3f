/* SPDX-License-Identifier: Apache-2.0 */
/* Products with F32 activations in sixteen lanes: elementwise weights, scaled ones (FP8, FP4) and free strides. */
#include "vt/cuda/matmul_lanes.cuh"

extern "C" status cuda_matmul_f32(vt_queue *q, const vt_call *call, error *err) {
    switch (call->t[2]->dtype) {
    case VT_F32:
        return run_plain<VT_F32, 4>(q, call, err);
    case VT_F16:
        return run_plain<VT_F16, 4>(q, call, err);
    default:
        return run_plain<VT_BF16, 4>(q, call, err);
    }
}

extern "C" status cuda_matmul_bf16(vt_queue *q, const vt_call *call, error *err) {
    return call->t[2]->dtype == VT_F16 ? run_plain<VT_F16, 4, VT_BF16>(q, call, err) : run_plain<VT_BF16, 4, VT_BF16>(q, call, err);
}

/* ---- scaled ---- */

template <int TB, int TS, int TA> static status run_scaled(vt_queue *q, const vt_call *call, error *err) {
    gpu_view b = gpu_view_of(call->t[2]), s = gpu_view_of(call->t[3]);
    scaled_weights<TB, TS> w = {b.data, s.data, b.stride[0], s.stride[0], call->p.scale.block_n, call->p.scale.block_k};
    if (call->t[2]->dim[1] > INT32_MAX) return cuda_refuse(err, "matmul_bt_scaled: rows too long");
    return run_lanes<scaled_weights<TB, TS>, 2, TA>(q, call, w, call->t[2]->dim[0], err);
}

template <int TA> static status scaled_of(vt_queue *q, const vt_call *call, error *err) {
    if (call->t[2]->dtype == VT_F4_E2M1) return run_scaled<VT_F4_E2M1, VT_F8_E8M0, TA>(q, call, err);
    switch (call->t[3]->dtype) {
    case VT_F32:
        return run_scaled<VT_F8_E4M3, VT_F32, TA>(q, call, err);
    case VT_F16:
        return run_scaled<VT_F8_E4M3, VT_F16, TA>(q, call, err);
    default:
        return run_scaled<VT_F8_E4M3, VT_BF16, TA>(q, call, err);
    }
}

extern "C" status cuda_matmul_scaled(vt_queue *q, const vt_call *call, error *err) {
    return call->t[1]->dtype == VT_BF16 ? scaled_of<VT_BF16>(q, call, err) : scaled_of<VT_F32>(q, call, err);
}

/* ---- free strides ---- */

template <int T> static status run_strided(vt_queue *q, const vt_call *call, error *err) {
    gpu_view b = gpu_view_of(call->t[2]);
    strided_weights<T> w = {b.data, b.stride[0], b.stride[1]};
    return run_lanes<strided_weights<T>, 2>(q, call, w, call->t[2]->dim[1], err);
}

extern "C" status cuda_matmul_kn(vt_queue *q, const vt_call *call, error *err) {
    switch (call->t[2]->dtype) {
    case VT_F32:
        return run_strided<VT_F32>(q, call, err);
    case VT_F16:
        return run_strided<VT_F16>(q, call, err);
    default:
        return run_strided<VT_BF16>(q, call, err);
    }
}
