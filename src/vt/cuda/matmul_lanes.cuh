/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Products with F32 or BF16 (TA) activations, any shape, any weight: sixteen lanes over k as ops.h defines them, a half-warp an output, so the bits are
 * those of the scalar row. A weight is a functor (n, k) -> float; TM rows of a and NR rows of b share what a half-warp loads, which changes
 * no sum. The row functions are in matmul_lanes.cu and matmul_lanes_blocks.cu.
 */
#ifndef HEADRACE_VT_CUDA_MATMUL_LANES_H
#define HEADRACE_VT_CUDA_MATMUL_LANES_H

#include "vt/cuda/gpu_blocks.cuh"

static const int LANES = 16, LANE_THREADS = 256;

struct gpu_epilogue {
    gpu_view out;
    float alpha, beta;
    bool scaled;
};

static inline gpu_epilogue gpu_epilogue_of(const vt_call *call) {
    bool scaled = call->op == VT_OP_MATMUL_BT_ALPHA_BETA;
    return {gpu_view_of(call->t[0]), scaled ? call->p.alpha_beta.alpha : 1.0f, scaled ? call->p.alpha_beta.beta : 0.0f, scaled};
}

GPU_FN void gpu_store(const gpu_epilogue &e, int64_t m, int64_t n, float acc) {
    uint8_t *row = e.out.data + m * e.out.stride[0];
    float r = acc;
    if (e.scaled) {
        r = e.alpha * acc;
        if (e.beta != 0.0f) r = fmaf(e.beta, gpu_get(e.out.dtype, row, n), r);
    }
    gpu_set(e.out.dtype, row, n, r);
}

/* The sixteen lanes of a half-warp as ops.h adds them. */
GPU_FN float gpu_sum_lanes(float l) {
    for (int d = 8; d > 0; d >>= 1) l += gpu_shfl_xor(l, d);
    return l;
}

template <int TA> GPU_FN float lanes_activation(const uint8_t *row, int64_t k) {
    return TA == VT_BF16 ? gpu_bf16(((const uint16_t *)row)[k]) : ((const float *)row)[k];
}

template <class W, int TM, int NR, int TA> __global__ void __launch_bounds__(LANE_THREADS) lanes_kernel(W w, gpu_view a, gpu_epilogue e, int64_t n_m, int64_t n_n, int64_t n_k) {
    const int lane = threadIdx.x % LANES;
    const int64_t n0 = ((int64_t)blockIdx.x * (LANE_THREADS / LANES) + threadIdx.x / LANES) * NR, m0 = (int64_t)blockIdx.y * TM;
    const uint8_t *x[TM];
    typename W::row rows[NR];
    float acc[TM][NR];
#pragma unroll
    for (int i = 0; i < TM; i++) x[i] = a.data + (m0 + i < n_m ? m0 + i : n_m - 1) * a.stride[0];
#pragma unroll
    for (int j = 0; j < NR; j++) rows[j] = w.at(n0 + j < n_n ? n0 + j : n_n - 1);
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < NR; j++) acc[i][j] = 0.0f;
    const int U = 4;
    int64_t k = lane;
    for (; k + (U - 1) * LANES < n_k; k += U * LANES) {
        float b[U][NR];
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int j = 0; j < NR; j++) b[u][j] = w.value(rows[j], k + u * LANES);
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int i = 0; i < TM; i++) {
                float v = lanes_activation<TA>(x[i], k + u * LANES);
#pragma unroll
                for (int j = 0; j < NR; j++) acc[i][j] = fmaf(v, b[u][j], acc[i][j]);
            }
    }
    for (; k < n_k; k += LANES)
#pragma unroll
        for (int j = 0; j < NR; j++) {
            float b = w.value(rows[j], k);
#pragma unroll
            for (int i = 0; i < TM; i++) acc[i][j] = fmaf(lanes_activation<TA>(x[i], k), b, acc[i][j]);
        }
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < NR; j++) {
            float sum = gpu_sum_lanes(acc[i][j]);
            if (lane == 0 && m0 + i < n_m && n0 + j < n_n) gpu_store(e, m0 + i, n0 + j, sum);
        }
}

template <class W, int TM, int NR, int TA> static status launch_lanes(vt_queue *q, const vt_call *call, W w, int64_t n_n, error *err) {
    const vt_tensor *a = call->t[1];
    dim3 grid((unsigned)gpu_ceil(n_n, LANE_THREADS / LANES * NR), (unsigned)gpu_ceil(a->dim[0], TM));
    if (grid.y > 65535) return cuda_refuse(err, "a product of too many rows");
    lanes_kernel<W, TM, NR, TA><<<grid, LANE_THREADS, 0, gpu_stream(q)>>>(w, gpu_view_of(a), gpu_epilogue_of(call), a->dim[0], n_n, a->dim[1]);
    return gpu_launched(call, err);
}

/* NR of wide matrices: as many rows of b as still leave work for every multiprocessor. */
template <class W, int NR, int TA = VT_F32> static status run_lanes(vt_queue *q, const vt_call *call, W w, int64_t n_n, error *err) {
    TRY(gpu_enter(q, err));
    if (call->t[1]->dim[0] <= 0 || n_n <= 0) return STATUS_OK;
    if (call->t[1]->dim[0] > 2) return launch_lanes<W, 8, NR, TA>(q, call, w, n_n, err);
    return n_n >= (int64_t)gpu_device(q)->n_multiprocessors * 64 ? launch_lanes<W, 1, NR, TA>(q, call, w, n_n, err)
                                                                  : launch_lanes<W, 1, 1, TA>(q, call, w, n_n, err);
}

template <int T> struct plain_weights {
    typedef const uint8_t *row;
    const uint8_t *data;
    int64_t stride;
    __device__ row at(int64_t n) const { return data + n * stride; }
    __device__ float value(row r, int64_t k) const { return gpu_weight<T>(r, k); }
};

/* FP8 and FP4 with their scales. */
template <int TB, int TS> struct scaled_weights {
    struct row {
        const uint8_t *b, *scale;
    };
    const uint8_t *data, *scales;
    int64_t stride, scale_stride;
    int32_t block_n, block_k;
    __device__ row at(int64_t n) const { return {data + n * stride, scales + n / block_n * scale_stride}; }
    __device__ float value(row r, int64_t k) const {
        return gpu_weight<TB>(r.b, k) * gpu_weight<TS>(r.scale, (int32_t)k / block_k);
    }
};

/* Strides free in both dimensions. */
template <int T> struct strided_weights {
    typedef const uint8_t *row;
    const uint8_t *data;
    int64_t stride_k, stride_n;
    __device__ row at(int64_t n) const { return data + n * stride_n; }
    __device__ float value(row r, int64_t k) const { return gpu_weight<T>(r + k * stride_k, 0); }
};

template <int T, int NR, int TA = VT_F32> static status run_plain(vt_queue *q, const vt_call *call, error *err) {
    gpu_view b = gpu_view_of(call->t[2]);
    plain_weights<T> w = {b.data, b.stride[0]};
    return run_lanes<plain_weights<T>, NR, TA>(q, call, w, call->t[2]->dim[0], err);
}

#endif
