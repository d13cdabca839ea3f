/* SPDX-License-Identifier: Apache-2.0 */
/* Several products of one activation, and the gated one, for any shape: in sixteen lanes, with the bits of the scalar rows. */
#include "vt/cuda/matmul_fused.cuh"
#include "vt/cuda/matmul_lanes.cuh"

extern "C" status cuda_matmul_several(vt_queue *q, const vt_call *call, error *err) {
    for (int i = 0; i < VT_SEVERAL; i++) {
        const vt_call one = fused_part_of(call, i);
        if (one.t[0]->n_dims != 0) TRY(cuda_matmul_bf16(q, &one, err));
    }
    return STATUS_OK;
}

/* A half-warp an output: its gate, then its up. */
template <int T> __global__ void __launch_bounds__(LANE_THREADS) gated_lanes_kernel(gpu_view out, gpu_view a, gpu_view gate_w, gpu_view up_w, int gate) {
    const int lane = threadIdx.x % LANES;
    const int64_t n = (int64_t)blockIdx.x * (LANE_THREADS / LANES) + threadIdx.x / LANES, n_n = out.dim[1], m = blockIdx.y;
    const uint8_t *x = a.data + m * a.stride[0], *rows[2] = {gate_w.data + (n < n_n ? n : n_n - 1) * gate_w.stride[0], up_w.data + (n < n_n ? n : n_n - 1) * up_w.stride[0]};
    float both[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum = 0.0f;
        for (int64_t k = lane; k < a.dim[1]; k += LANES) sum = fmaf(lanes_activation<VT_BF16>(x, k), gpu_weight<T>(rows[i], k), sum);
        both[i] = gpu_sum_lanes(sum);
    }
    if (lane == 0 && n < n_n) gpu_set(VT_BF16, out.data + m * out.stride[0], n, gpu_gate(gate, vt_swiglu_params(), both[0], both[1]));
}

extern "C" status cuda_matmul_gated(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    const gpu_view out = gpu_view_of(call->t[0]), a = gpu_view_of(call->t[1]), g = gpu_view_of(call->t[2]), u = gpu_view_of(call->t[3]);
    if (out.dim[0] <= 0 || out.dim[1] <= 0) return STATUS_OK;
    if (out.dim[0] > 65535) return cuda_refuse(err, "a product of too many rows");
    const dim3 grid((unsigned)gpu_ceil(out.dim[1], LANE_THREADS / LANES), (unsigned)out.dim[0]);
    if (g.dtype == VT_F16)
        gated_lanes_kernel<VT_F16><<<grid, LANE_THREADS, 0, gpu_stream(q)>>>(out, a, g, u, (int)call->p.gate);
    else
        gated_lanes_kernel<VT_BF16><<<grid, LANE_THREADS, 0, gpu_stream(q)>>>(out, a, g, u, (int)call->p.gate);
    return gpu_launched(call, err);
}
