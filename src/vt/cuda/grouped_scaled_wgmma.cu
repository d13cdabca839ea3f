/* SPDX-License-Identifier: Apache-2.0 */
/* Grouped products of BF16 rows with FP8 and MXFP4 weights on Hopper's matrix units: gpu_grouped_ring.cuh, and many rows by FP8 grouped_scaled_tma.cu. */
#include "vt/cuda/gpu_grouped_ring.cuh"

template <int TB, int TS> static status run(vt_queue *q, const vt_call *call, error *err) {
    const gpu_grouped_scaled s = gpu_grouped_scaled_of(call);
    if (TB != VT_F4_E2M1 || gpu_group_rows(call) <= 64) return launch_ring<ring_form<TB, TS, 64, false>>(q, call, s, err);
    return launch_ring<ring_form<TB, TS, 256, false>>(q, call, s, err);
}

status gpu_run_grouped_scaled_wgmma(vt_queue *q, const vt_call *call, error *err) {
    if (gpu_takes_grouped_narrow(q, call)) return gpu_run_grouped_narrow(q, call, err);
    if (call->t[4]->dtype == VT_F4_E2M1) return run<VT_F4_E2M1, VT_F8_E8M0>(q, call, err);
    switch (call->t[8]->dtype) {
    case VT_F32:
        return run<VT_F8_E4M3, VT_F32>(q, call, err);
    case VT_F16:
        return run<VT_F8_E4M3, VT_F16>(q, call, err);
    default:
        return run<VT_F8_E4M3, VT_BF16>(q, call, err);
    }
}
