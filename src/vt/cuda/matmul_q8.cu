/* SPDX-License-Identifier: Apache-2.0 */
/* Products of quantised activations with GGUF block weights: the exact integer sum of a block, then the operations of ops.h in their order,
 * so the bits are those of the scalar row. Blocks of 32: four threads an output, one a lane. Blocks of 256: a warp an output. */
#include "vt/cuda/matmul_lanes.cuh"

static const int THREADS = 256;

/* Weights of blocks with an even number of bytes lie at even addresses. */
GPU_FN uint32_t word_at(const uint8_t *p) { return (uint32_t)((const uint16_t *)p)[0] | (uint32_t)((const uint16_t *)p)[1] << 16; }

/* Four bits as four bytes of 0 or 16. */
GPU_FN uint32_t fifth_bits(uint32_t four) { return (((four & 15u) * 0x00204081u) & 0x01010101u) << 4; }

GPU_FN uint32_t iq4_word(uint32_t nibbles) {
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) v |= (uint32_t)(uint8_t)gpu_iq4((int)(nibbles >> (8 * i) & 15)) << (8 * i);
    return v;
}

/* A block of 32 as eight words of four int8, in the order of the elements. */
template <int T> GPU_FN void unpack(const uint8_t *b, uint32_t w[8]) {
    if (T == VT_Q8_0) {
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = word_at(b + 2 + 4 * i);
        return;
    }
    const int at = T == VT_Q4_0 || T == VT_IQ4_NL ? 2 : T == VT_Q4_1 ? 4 : T == VT_Q5_0 ? 6 : 8;
    const uint32_t high = T == VT_Q5_0 ? word_at(b + 2) : T == VT_Q5_1 ? word_at(b + 4) : 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t q = word_at(b + at + 4 * i);
        w[i] = q & 0x0F0F0F0Fu;
        w[i + 4] = q >> 4 & 0x0F0F0F0Fu;
        if (T == VT_Q5_0 || T == VT_Q5_1) {
            w[i] |= fifth_bits(high >> (4 * i));
            w[i + 4] |= fifth_bits(high >> (4 * i + 16));
        }
        if (T == VT_IQ4_NL) {
            w[i] = iq4_word(w[i]);
            w[i + 4] = iq4_word(w[i + 4]);
        }
    }
}

template <int T, int TM> __global__ void __launch_bounds__(THREADS) a32_kernel(gpu_view a, gpu_view b, gpu_epilogue e, int64_t n_m, int64_t n_n, int64_t n_blocks) {
    const int lane = threadIdx.x % 4;
    const int64_t n = (int64_t)blockIdx.x * (THREADS / 4) + threadIdx.x / 4, m0 = (int64_t)blockIdx.y * TM;
    const uint8_t *row = b.data + (n < n_n ? n : n_n - 1) * b.stride[0];
    const int zero = T == VT_Q4_0 ? 8 : T == VT_Q5_0 ? 16 : 0;
    float acc[TM];
#pragma unroll
    for (int j = 0; j < TM; j++) acc[j] = 0.0f;
    for (int64_t i = lane; i < n_blocks; i += 4) {
        const uint8_t *block = row + i * gpu_block_bytes(T);
        uint32_t w[8];
        unpack<T>(block, w);
        const float d = gpu_f16(*(const uint16_t *)block);
#pragma unroll
        for (int j = 0; j < TM; j++) {
            const int32_t *x = (const int32_t *)(a.data + (m0 + j < n_m ? m0 + j : n_m - 1) * a.stride[0] + i * 40);
            int sum = 0;
#pragma unroll
            for (int u = 0; u < 8; u++) sum = gpu_dot4((int)w[u], x[2 + u], sum);
            if (zero) sum -= zero * x[1];
            float t = d * (float)sum;
            if (gpu_has_min<T>()) t = fmaf(gpu_f16(((const uint16_t *)block)[1]), (float)x[1], t);
            acc[j] = fmaf(__int_as_float(x[0]), t, acc[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < TM; j++) {
        acc[j] += gpu_shfl_xor(acc[j], 2);
        acc[j] += gpu_shfl_xor(acc[j], 1);
        if (lane == 0 && n < n_n && m0 + j < n_m) gpu_store(e, m0 + j, n, acc[j]);
    }
}

template <int T, int TM> __global__ void __launch_bounds__(THREADS) a256_kernel(gpu_view a, gpu_view b, gpu_epilogue e, int64_t n_m, int64_t n_n, int64_t n_blocks) {
    const int lane = threadIdx.x % 32;
    const int64_t n = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, m0 = (int64_t)blockIdx.y * TM;
    if (n >= n_n) return; /* the whole warp */
    const uint8_t *row = b.data + n * b.stride[0];
    float acc[TM];
#pragma unroll
    for (int j = 0; j < TM; j++) acc[j] = 0.0f;
    for (int64_t i = 0; i < n_blocks; i++) {
        const uint8_t *block = row + i * gpu_block_bytes(T);
        uint32_t w[2] = {0, 0};
#pragma unroll
        for (int u = 0; u < 8; u++) w[u / 4] |= (uint32_t)(uint8_t)gpu_block_int<T>(block, 8 * lane + u) << (8 * (u % 4));
        const int scale = gpu_k_scale<T>(block, lane / 2), min = gpu_has_min<T>() && lane % 2 == 0 ? gpu_k_min<T>(block, lane / 2) : 0;
        const float d = gpu_block_d<T>(block), dmin = gpu_has_min<T>() ? gpu_block_m<T>(block) : 0.0f;
#pragma unroll
        for (int j = 0; j < TM; j++) {
            const uint8_t *x = a.data + (m0 + j < n_m ? m0 + j : n_m - 1) * a.stride[0] + i * 292;
            const int32_t *xq = (const int32_t *)(x + 36) + 2 * lane;
            int sum = scale * gpu_dot4((int)w[1], xq[1], gpu_dot4((int)w[0], xq[0], 0));
            sum = gpu_reduce_add(sum);
            const float da = *(const float *)x;
            if (gpu_has_min<T>()) {
                int less = gpu_reduce_add(min * ((const int16_t *)(x + 4))[lane / 2]);
                acc[j] = fmaf(da, fmaf(-dmin, (float)less, d * (float)sum), acc[j]);
            } else {
                acc[j] = fmaf(da * d, (float)sum, acc[j]);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < TM; j++)
        if (lane == 0 && m0 + j < n_m) gpu_store(e, m0 + j, n, acc[j]);
}

template <int T> static status run_q8(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    const gpu_view a = gpu_view_of(call->t[1]), b = gpu_view_of(call->t[2]);
    const gpu_epilogue e = gpu_epilogue_of(call);
    const int64_t n_m = call->t[1]->dim[0], n_n = call->t[2]->dim[0], n_blocks = call->t[1]->dim[1] / gpu_block_elems(T);
    if (n_m <= 0 || n_n <= 0) return STATUS_OK;
    const bool several = n_m > 1;
    dim3 grid((unsigned)gpu_ceil(n_n, gpu_is_k<T>() ? THREADS / 32 : THREADS / 4), (unsigned)(several ? gpu_ceil(n_m, 4) : 1));
    if (grid.y > 65535) return cuda_refuse(err, "a product of too many rows");
    if constexpr (gpu_is_k<T>()) {
        if (several)
            a256_kernel<T, 4><<<grid, THREADS, 0, gpu_stream(q)>>>(a, b, e, n_m, n_n, n_blocks);
        else
            a256_kernel<T, 1><<<grid, THREADS, 0, gpu_stream(q)>>>(a, b, e, n_m, n_n, n_blocks);
    } else {
        if (several)
            a32_kernel<T, 4><<<grid, THREADS, 0, gpu_stream(q)>>>(a, b, e, n_m, n_n, n_blocks);
        else
            a32_kernel<T, 1><<<grid, THREADS, 0, gpu_stream(q)>>>(a, b, e, n_m, n_n, n_blocks);
    }
    return gpu_launched(call, err);
}

extern "C" status cuda_matmul_q8(vt_queue *q, const vt_call *call, error *err) {
    switch ((int)call->t[2]->dtype) {
#define X(T)                                                                                                                               \
    case T:                                                                                                                                \
        return run_q8<T>(q, call, err);
        X(VT_Q4_0) X(VT_Q4_1) X(VT_Q8_0) X(VT_Q5_0) X(VT_Q5_1) X(VT_IQ4_NL)
        X(VT_Q6_K) X(VT_Q2_K) X(VT_Q3_K) X(VT_Q4_K) X(VT_Q5_K) X(VT_IQ4_XS)
#undef X
    default:
        return cuda_refuse(err, "matmul_bt: no such block type");
    }
}
