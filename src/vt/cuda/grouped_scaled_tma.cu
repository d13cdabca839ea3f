/* SPDX-License-Identifier: Apache-2.0 */
/* Grouped products of many BF16 rows with FP8 weights on Hopper's matrix units: gpu_grouped_narrow.cuh. */
#include "vt/cuda/gpu_grouped_narrow.cuh"

template <int TS> static status run(vt_queue *q, const vt_call *call, error *err) {
    const gpu_grouped_scaled s = gpu_grouped_scaled_of(call);
    const bool in_place = call->t[3]->n_dims == 0; /* rows of x follow each other */
    return in_place ? launch_narrow<narrow_form<true, TS>>(q, call, s, err) : launch_narrow<narrow_form<false, TS>>(q, call, s, err);
}

bool gpu_takes_grouped_narrow(const vt_queue *q, const vt_call *call) { return call->t[4]->dtype == VT_F8_E4M3 && gpu_group_rows(call) > 16 && tma_has_room(q, call); }

status gpu_run_grouped_narrow(vt_queue *q, const vt_call *call, error *err) {
    switch (call->t[8]->dtype) {
    case VT_F32:
        return run<VT_F32>(q, call, err);
    case VT_F16:
        return run<VT_F16>(q, call, err);
    default:
        return run<VT_BF16>(q, call, err);
    }
}
