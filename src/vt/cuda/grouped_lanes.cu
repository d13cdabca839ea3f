/* SPDX-License-Identifier: Apache-2.0 */
/* Grouped products of any weight in sixteen lanes, the bits of the scalar row: what matmul_lanes.cuh does for one matrix, with the matrix of a block looked up in the table. */
#include "vt/cuda/gpu_groups.cuh"
#include "vt/cuda/matmul_rounded.cuh"

/* The weights of one group. */
template <int T> GPU_FN void set_group(plain_weights<T> &w, const gpu_grouped &, const uint8_t *data, int) { w.data = data; }
template <int T> GPU_FN void set_group(rounded_weights<T> &w, const gpu_grouped &, const uint8_t *data, int) { w.data = data; }
template <int T> GPU_FN void set_group(strided_weights<T> &w, const gpu_grouped &, const uint8_t *data, int) { w.data = data; }
template <int TB, int TS> GPU_FN void set_group(scaled_weights<TB, TS> &w, const gpu_grouped &a, const uint8_t *data, int group) {
    w.data = data;
    w.scales = a.extra_table[group];
}

/* NR columns of out by TM places a half-warp; with a gate NR = 2: gate and up of one column. */
template <class W, int TX, int TM, int NR, bool GATED> __global__ void __launch_bounds__(LANE_THREADS) grouped_lanes_kernel(W w, gpu_grouped a, int n_columns) {
    const gpu_group_tile g = gpu_find_tile(a.first, a.n_groups, TM, (int)blockIdx.x);
    if (g.n == 0) return;
    const uint8_t *data = a.table[g.group];
    if (!data || (GATED && a.extra_table && !a.extra_table[g.group])) return;
    set_group(w, a, data, g.group);
    const int lane = threadIdx.x % LANES, n_out = GATED ? a.n_gated : a.n_n;
    const int n0 = ((int)blockIdx.y * (LANE_THREADS / LANES) + (int)threadIdx.x / LANES) * n_columns;
    const uint8_t *x[TM];
    typename W::row rows[NR];
    float acc[TM][NR];
#pragma unroll
    for (int i = 0; i < TM; i++) x[i] = gpu_group_x(a, g.begin + (i < g.n ? i : g.n - 1));
    if (GATED) {
        const int j = n0 < n_out ? n0 : n_out - 1;
        W up = w;
        if (a.extra_table) set_group(up, a, a.extra_table[g.group], g.group);
        rows[0] = w.at(gpu_gate_row(a, j, false));
        rows[NR - 1] = up.at(gpu_gate_row(a, j, true));
    } else {
#pragma unroll
        for (int j = 0; j < NR; j++) rows[j] = w.at(n0 + j < n_out ? n0 + j : n_out - 1);
    }
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < NR; j++) acc[i][j] = 0.0f;
    const int U = 4;
    int k = lane;
    for (; k + (U - 1) * LANES < a.n_k; k += U * LANES) {
        float b[U][NR];
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int j = 0; j < NR; j++) b[u][j] = w.value(rows[j], k + u * LANES);
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int i = 0; i < TM; i++) {
                const float v = gpu_weight<TX>(x[i], k + u * LANES);
#pragma unroll
                for (int j = 0; j < NR; j++) acc[i][j] = fmaf(v, b[u][j], acc[i][j]);
            }
    }
    for (; k < a.n_k; k += LANES)
#pragma unroll
        for (int j = 0; j < NR; j++) {
            const float b = w.value(rows[j], k);
#pragma unroll
            for (int i = 0; i < TM; i++) acc[i][j] = fmaf(gpu_weight<TX>(x[i], k), b, acc[i][j]);
        }
    const uint8_t *bias = a.bias_table ? a.bias_table[g.group] : NULL;
#pragma unroll
    for (int i = 0; i < TM; i++) {
        float sum[NR];
#pragma unroll
        for (int j = 0; j < NR; j++) sum[j] = gpu_sum_lanes(acc[i][j]);
        if (lane != 0 || i >= g.n) continue;
        uint8_t *to = a.out.data + (int64_t)(g.begin + i) * a.out.stride[0];
        if (GATED) {
            if (n0 >= n_out) continue;
            if (bias) {
                sum[0] += gpu_get(a.bias_dtype, bias, gpu_gate_row(a, n0, false));
                sum[NR - 1] += gpu_get(a.bias_dtype, bias, gpu_gate_row(a, n0, true));
            }
            gpu_set(a.out.dtype, to, n0, gpu_gate(a.gate, a.swiglu, sum[0], sum[NR - 1]));
        } else {
#pragma unroll
            for (int j = 0; j < NR; j++)
                if (n0 + j < n_out) gpu_set(a.out.dtype, to, n0 + j, bias ? sum[j] + gpu_get(a.bias_dtype, bias, n0 + j) : sum[j]);
        }
    }
}

template <class W, int TX, int TM, int NR, bool GATED> static status launch_lanes_tm(vt_queue *q, const vt_call *call, W w, error *err) {
    const int columns = GATED ? 1 : NR;
    dim3 grid((unsigned)gpu_group_slots(call, TM), (unsigned)gpu_ceil(call->t[0]->dim[1], LANE_THREADS / LANES * columns));
    if (grid.y > 65535) return cuda_refuse(err, "a grouped product of too many columns");
    grouped_lanes_kernel<W, TX, TM, NR, GATED><<<grid, LANE_THREADS, 0, gpu_stream(q)>>>(w, gpu_grouped_of(call), columns);
    return gpu_launched(call, err);
}

template <class W, int NR, int TX> static status run_groups(vt_queue *q, const vt_call *call, W w, error *err) {
    TRY(gpu_enter(q, err));
    if (call->t[0]->dim[0] <= 0) return STATUS_OK;
    if (!gpu_grouped_fits(call)) return cuda_refuse(err, "a grouped product of such sizes");
    if (call->op == VT_OP_MATMUL_GROUPED_GATED) return launch_lanes_tm<W, TX, 4, 2, true>(q, call, w, err);
    return launch_lanes_tm<W, TX, 4, NR, false>(q, call, w, err);
}

template <class W, int NR> static status run_groups(vt_queue *q, const vt_call *call, W w, error *err) {
    return call->t[1]->dtype == VT_BF16 ? run_groups<W, NR, VT_BF16>(q, call, w, err) : run_groups<W, NR, VT_F32>(q, call, w, err);
}

/* Blocks: weights are rounded to BF16 beside BF16 activations. */
template <int T> static status run_block_groups(vt_queue *q, const vt_call *call, error *err) {
    const gpu_view w = gpu_view_of(call->t[4]);
    if (call->t[1]->dtype == VT_BF16) return run_groups<rounded_weights<T>, 1, VT_BF16>(q, call, rounded_weights<T>{NULL, w.stride[0]}, err);
    return run_groups<plain_weights<T>, 1, VT_F32>(q, call, plain_weights<T>{NULL, w.stride[0]}, err);
}

template <int T> static status run_element_groups(vt_queue *q, const vt_call *call, error *err) {
    const gpu_view w = gpu_view_of(call->t[4]);
    if (call->t[4]->stride[1] == 1 || call->t[4]->dim[1] == 1) return run_groups<plain_weights<T>, 2>(q, call, plain_weights<T>{NULL, w.stride[0]}, err);
    return run_groups<strided_weights<T>, 2>(q, call, strided_weights<T>{NULL, w.stride[1], w.stride[0]}, err);
}

extern "C" status cuda_matmul_grouped(vt_queue *q, const vt_call *call, error *err) {
    switch ((int)call->t[4]->dtype) {
    case VT_F32:
        return run_element_groups<VT_F32>(q, call, err);
    case VT_F16:
        return run_element_groups<VT_F16>(q, call, err);
    case VT_BF16:
        return run_element_groups<VT_BF16>(q, call, err);
#define X(T)                                                                                                                               \
    case T:                                                                                                                                \
        return run_block_groups<T>(q, call, err);
        X(VT_Q4_0) X(VT_Q4_1) X(VT_Q8_0) X(VT_Q5_0) X(VT_Q5_1) X(VT_IQ4_NL) X(VT_MXFP4)
        X(VT_Q6_K) X(VT_Q2_K) X(VT_Q3_K) X(VT_Q4_K) X(VT_Q5_K) X(VT_IQ4_XS)
#undef X
    default:
        return cuda_refuse(err, "matmul_grouped: no such weights");
    }
}

template <int TB, int TS> static status run_scaled_groups(vt_queue *q, const vt_call *call, error *err) {
    const gpu_view w = gpu_view_of(call->t[4]), s = gpu_view_of(call->t[8]);
    const vt_scale_params p = call->p.grouped.blocks;
    return run_groups<scaled_weights<TB, TS>, 2>(q, call, scaled_weights<TB, TS>{NULL, NULL, w.stride[0], s.stride[0], p.block_n, p.block_k}, err);
}

extern "C" status cuda_matmul_grouped_scaled(vt_queue *q, const vt_call *call, error *err) {
    if (call->t[4]->dtype == VT_F4_E2M1) return run_scaled_groups<VT_F4_E2M1, VT_F8_E8M0>(q, call, err);
    switch (call->t[8]->dtype) {
    case VT_F32:
        return run_scaled_groups<VT_F8_E4M3, VT_F32>(q, call, err);
    case VT_F16:
        return run_scaled_groups<VT_F8_E4M3, VT_F16>(q, call, err);
    default:
        return run_scaled_groups<VT_F8_E4M3, VT_BF16>(q, call, err);
    }
}
