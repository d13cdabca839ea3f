/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grouped products of BF16 rows with BF16 weights on Hopper's matrix units: more than a few rows a group in the ring of gpu_grouped_ring.cuh, many in the tiles of gpu_grouped_tma.cuh. Both add in the
 * same order.
 */
#include "vt/cuda/gpu_grouped_tma.cuh"

template <bool GATED> static status run(vt_queue *q, const vt_call *call, error *err) {
    if (gpu_group_rows(call) <= 64 || !tma_has_room(q, call)) {
        const gpu_grouped_scaled s = {gpu_grouped_of(call), 0, 0, 0, 0};
        return launch_ring<ring_form<VT_BF16, VT_F32, 64, GATED>>(q, call, s, err);
    }
    const bool in_place = call->t[3]->n_dims == 0; /* rows of x follow each other */
    return in_place ? launch_tma<tma_form<true, GATED>>(q, call, err) : launch_tma<tma_form<false, GATED>>(q, call, err);
}

status gpu_run_grouped_wgmma(vt_queue *q, const vt_call *call, error *err) { return call->op == VT_OP_MATMUL_GROUPED_GATED ? run<true>(q, call, err) : run<false>(q, call, err); }
