/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BF16 activations times FP8 or MXFP4 weights, and F32 activations times FP8 weights, on matrix units (m16n8k16, the weights are operand a): decode, and everything where there is
 * no wgmma. A block has sixteen rows of weights; its eight warps share K in even parts and their sums are added in ascending order. A lane
 * reads sixteen bytes of a row at a time; which k a place of the multiplication stands for is free, so it is what the lane holds. The parts of one or two rows of F32 activations are columns of
 * one multiplication (COLUMNS), made once for a block in shared memory.
 *
 * Numbers: weights and products are exact; F32 activations are cut into three BF16 parts (gpu_mma.cuh), which go by from the smallest to the largest. FP8: the F32 sum of 64 k, then sum = fma(that, scale, sum). MXFP4: the scale is a power of two
 * and goes into the weight, which stays exact. A NaN weight makes its output NaN.
 */
#include "vt/cuda/gpu_mma.cuh"
#include "vt/cuda/gpu_narrow.cuh"
#include "vt/cuda/matmul_scaled.cuh"

static const int SCALED_WARPS = 8, SCALED_THREADS = SCALED_WARPS * 32, SCALED_ROWS = 16;
static const int MAX_COLUMNS = 64 << 10; /* bytes */

GPU_FN uint4 scaled_stream(const uint8_t *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

/* One chunk of a warp: 64 k of FP8, 128 of FP4. */
template <int TB> struct scaled_chunk {
    static const int PER_LANE = TB == VT_F8_E4M3 ? 16 : 32, K = 4 * PER_LANE;
    uint4 w[2];
    uint32_t e[2]; /* FP4: scales of the two rows */
};

template <int TB> GPU_FN void scaled_load(scaled_chunk<TB> &c, const scaled_args &a, const uint8_t *const (&w)[2], const uint8_t *const (&s)[2], int k, bool inside) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        c.w[h] = make_uint4(0, 0, 0, 0);
        c.e[h] = 0;
        if (!inside) continue;
        c.w[h] = scaled_stream(w[h] + (TB == VT_F8_E4M3 ? k : k / 2));
        if (TB == VT_F4_E2M1) c.e[h] = s[h][k / 32];
    }
}

template <int TA, int TB, int NT> GPU_FN void scaled_multiply(float (&d)[NT][4], const scaled_chunk<TB> &c, const uint8_t *const (&x)[NT], int k, bool inside) {
    const uint32_t w[2][4] = {{c.w[0].x, c.w[0].y, c.w[0].z, c.w[0].w}, {c.w[1].x, c.w[1].y, c.w[1].z, c.w[1].w}};
    if constexpr (TA == VT_F32) {
        static_assert(TB == VT_F8_E4M3, "four activations a word of weights");
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t f[4];
            narrow_e4m3(w[0][j], f[0], f[2]);
            narrow_e4m3(w[1][j], f[1], f[3]);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                const float4 v = inside && x[n] ? ((const float4 *)(x[n] + k * 4))[j] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                uint32_t first[3], second[3];
                mma_split3(v.x, v.y, first);
                mma_split3(v.z, v.w, second);
#pragma unroll
                for (int p = 2; p >= 0; p--) {
                    const uint32_t b[2] = {first[p], second[p]};
                    mma_bf16(d[n], f, b);
                }
            }
        }
    } else if constexpr (TB == VT_F8_E4M3) {
        uint32_t b[NT][8];
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint4 v = inside && x[n] ? ((const uint4 *)(x[n] + k * 2))[i] : make_uint4(0, 0, 0, 0);
                b[n][4 * i] = v.x, b[n][4 * i + 1] = v.y, b[n][4 * i + 2] = v.z, b[n][4 * i + 3] = v.w;
            }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t f[4];
            narrow_e4m3(w[0][j], f[0], f[2]);
            narrow_e4m3(w[1][j], f[1], f[3]);
#pragma unroll
            for (int n = 0; n < NT; n++) mma_bf16(d[n], f, &b[n][2 * j]);
        }
    } else {
        uint32_t by[2], rest[2];
#pragma unroll
        for (int h = 0; h < 2; h++) by[h] = narrow_scale_e2m1(c.e[h]), rest[h] = narrow_rest_e2m1(c.e[h]);
        const bool large = __any_sync(0xFFFFFFFFu, c.e[0] > 128 || c.e[1] > 128);
#pragma unroll
        for (int i = 0; i < 4; i++) { /* words of eight */
            uint32_t f[2][4] = {{narrow_e2m1<0>(w[0][i], by[0]), narrow_e2m1<0>(w[1][i], by[1]), narrow_e2m1<1>(w[0][i], by[0]), narrow_e2m1<1>(w[1][i], by[1])},
                                {narrow_e2m1<2>(w[0][i], by[0]), narrow_e2m1<2>(w[1][i], by[1]), narrow_e2m1<3>(w[0][i], by[0]), narrow_e2m1<3>(w[1][i], by[1])}};
            if (large) {
#pragma unroll
                for (int j = 0; j < 2; j++)
#pragma unroll
                    for (int r = 0; r < 4; r++) f[j][r] = narrow_mul(f[j][r], rest[r & 1]);
            }
#pragma unroll
            for (int n = 0; n < NT; n++) {
                const uint4 v = inside && x[n] ? ((const uint4 *)(x[n] + k * 2))[i] : make_uint4(0, 0, 0, 0);
                const uint32_t b[4] = {__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632), __byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632)};
                mma_bf16(d[n], f[0], b);
                mma_bf16(d[n], f[1], b + 2);
            }
        }
    }
}

/* Column 3 m + p: part p of row m, in shared memory; a column is not a multiple of the banks. */
GPU_FN int scaled_column(int k) { return k * 2 + 16; }

GPU_FN void scaled_columns(uint8_t *shared, const scaled_args &a) {
    const int k = (int)a.k;
    for (int m = 0; m < (int)a.m; m++) {
        for (int i = threadIdx.x * 4; i < k; i += SCALED_THREADS * 4) {
            const float4 v = *(const float4 *)(a.a + m * a.a_stride + i * 4);
            uint32_t x[3], y[3];
            mma_split3(v.x, v.y, x);
            mma_split3(v.z, v.w, y);
#pragma unroll
            for (int p = 0; p < 3; p++) *(uint2 *)(shared + (3 * m + p) * scaled_column(k) + i * 2) = make_uint2(x[p], y[p]);
        }
    }
    __syncthreads();
}

template <int TA, int TB, int TS, int NT, bool COLUMNS> __global__ void __launch_bounds__(SCALED_THREADS) scaled_mma_kernel(const __grid_constant__ scaled_args a) {
    __shared__ float sums[SCALED_WARPS][SCALED_ROWS][8 * NT + 1];
    extern __shared__ __align__(16) uint8_t columns[];
    if constexpr (COLUMNS) scaled_columns(columns, a);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, q = lane % 4, K = scaled_chunk<TB>::K, U = NT <= 2 ? 4 : 2;
    const int64_t n0 = (int64_t)blockIdx.x * SCALED_ROWS, m0 = (int64_t)blockIdx.y * (8 * NT);
    const uint8_t *w[2], *s[2], *x[NT];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int64_t n = n0 + r + 8 * h < a.n ? n0 + r + 8 * h : a.n - 1;
        w[h] = a.b + n * a.b_stride;
        s[h] = a.scale + n / a.block_n * a.scale_stride;
    }
#pragma unroll
    for (int n = 0; n < NT; n++) x[n] = m0 + n * 8 + r < a.m ? a.a + (m0 + n * 8 + r) * a.a_stride : NULL;
    if constexpr (COLUMNS) x[0] = r < 3 * (int)a.m ? columns + r * scaled_column((int)a.k) : NULL;
    const int n_chunks = ((int)a.k + K - 1) / K, part = (n_chunks + SCALED_WARPS - 1) / SCALED_WARPS, begin = warp * part;
    const int end = begin + part < n_chunks ? begin + part : n_chunks;
    float sum[NT][4];
    uint32_t bad[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < NT; n++) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0.0f;
    for (int c0 = begin; c0 < end; c0 += U) {
        scaled_chunk<TB> c[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            const int k = (c0 + u) * K + q * scaled_chunk<TB>::PER_LANE;
            scaled_load<TB>(c[u], a, w, s, k, c0 + u < end && k < a.k);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            const int k = (c0 + u) * K + q * scaled_chunk<TB>::PER_LANE;
            const bool inside = c0 + u < end && k < a.k;
            if constexpr (TB == VT_F4_E2M1) {
                scaled_multiply<TA, TB, NT>(sum, c[u], x, k, inside);
            } else {
                if (c0 + u >= end) break;
                float d[NT][4];
#pragma unroll
                for (int n = 0; n < NT; n++) d[n][0] = d[n][1] = d[n][2] = d[n][3] = 0.0f;
                scaled_multiply<COLUMNS ? VT_BF16 : TA, TB, NT>(d, c[u], x, k, inside);
                const int block = (c0 + u) * K / a.block_k;
                const float by[2] = {narrow_scale<TS>(s[0], block), narrow_scale<TS>(s[1], block)};
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    sum[n][0] = fmaf(d[n][0], by[0], sum[n][0]), sum[n][1] = fmaf(d[n][1], by[0], sum[n][1]);
                    sum[n][2] = fmaf(d[n][2], by[1], sum[n][2]), sum[n][3] = fmaf(d[n][3], by[1], sum[n][3]);
                }
#pragma unroll
                for (int h = 0; h < 2; h++) bad[h] |= narrow_nan_e4m3(c[u].w[h].x) | narrow_nan_e4m3(c[u].w[h].y) | narrow_nan_e4m3(c[u].w[h].z) | narrow_nan_e4m3(c[u].w[h].w);
            }
        }
    }
    if constexpr (TB == VT_F8_E4M3) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            bad[h] |= __shfl_xor_sync(0xFFFFFFFFu, bad[h], 1);
            bad[h] |= __shfl_xor_sync(0xFFFFFFFFu, bad[h], 2);
#pragma unroll
            for (int n = 0; n < NT; n++)
                if (bad[h] != 0) sum[n][2 * h] = sum[n][2 * h + 1] = __uint_as_float(0x7FC00000u);
        }
    }
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) sums[warp][r + 8 * (i / 2)][n * 8 + q * 2 + i % 2] = sum[n][i];
    __syncthreads();
    for (int i = threadIdx.x; i < SCALED_ROWS * 8 * NT; i += SCALED_THREADS) {
        const int row = i % SCALED_ROWS, token = i / SCALED_ROWS;
        if (n0 + row >= a.n || m0 + token >= a.m) continue;
        auto column = [&](int i) {
            float total = sums[0][row][i];
#pragma unroll
            for (int j = 1; j < SCALED_WARPS; j++) total += sums[j][row][i];
            return total;
        };
        const float total = COLUMNS ? (column(3 * token + 2) + column(3 * token + 1)) + column(3 * token) : column(token);
        *(float *)(a.out + (m0 + token) * a.out_stride + (n0 + row) * 4) = total;
    }
}

template <int TA, int TB, int TS, int NT, bool COLUMNS = false> static status run(vt_queue *q, const vt_call *call, const scaled_args *a, error *err) {
    const int bytes = COLUMNS ? (int)a->m * 3 * ((int)a->k * 2 + 16) : 0;
    dim3 grid((unsigned)gpu_ceil(a->n, SCALED_ROWS), (unsigned)gpu_ceil(a->m, 8 * NT));
    if (grid.y > 65535) return cuda_refuse(err, "a product of too many rows");
    if (bytes > 32 << 10) TRY(cuda_result(cudaFuncSetAttribute(scaled_mma_kernel<TA, TB, TS, NT, COLUMNS>, cudaFuncAttributeMaxDynamicSharedMemorySize, MAX_COLUMNS), "shared memory", err));
    scaled_mma_kernel<TA, TB, TS, NT, COLUMNS><<<grid, SCALED_THREADS, bytes, gpu_stream(q)>>>(*a);
    return gpu_launched(call, err);
}

template <int TA, int TB, int TS> static status by_rows(vt_queue *q, const vt_call *call, const scaled_args *a, error *err) {
    if constexpr (TA == VT_F32)
        if (a->m <= 2 && a->m * 3 * (a->k * 2 + 16) <= MAX_COLUMNS) return run<TA, TB, TS, 1, true>(q, call, a, err);
    if (a->m <= 8) return run<TA, TB, TS, 1>(q, call, a, err);
    if (a->m <= 16) return run<TA, TB, TS, 2>(q, call, a, err);
    if (a->m <= 32) return run<TA, TB, TS, 4>(q, call, a, err);
    return run<TA, TB, TS, 8>(q, call, a, err);
}

template <int TA> static status fp8_by_rows(vt_queue *q, const vt_call *call, const scaled_args *a, error *err) {
    switch (call->t[3]->dtype) {
    case VT_F32:
        return by_rows<TA, VT_F8_E4M3, VT_F32>(q, call, a, err);
    case VT_F16:
        return by_rows<TA, VT_F8_E4M3, VT_F16>(q, call, a, err);
    default:
        return by_rows<TA, VT_F8_E4M3, VT_BF16>(q, call, a, err);
    }
}

static bool on_sixteen(const vt_tensor *t) {
    return (((uint64_t)(uintptr_t)t->data | (uint64_t)(t->stride[0] / gpu_block_elems(t->dtype) * gpu_block_bytes(t->dtype))) & 15) == 0;
}

/* Sixteen bytes of weights lie in one block of scales, and so do the 64 that are added before it is applied. */
extern "C" bool cuda_fits_scaled(const vt_call *call) {
    const int64_t k = call->t[2]->dim[1], block_k = call->p.scale.block_k;
    if (!on_sixteen(call->t[1]) || !on_sixteen(call->t[2])) return false;
    if (call->t[2]->dtype == VT_F4_E2M1) return k % 32 == 0 && k < INT32_MAX - 1024 && block_k == 32;
    return k % 16 == 0 && k < INT32_MAX - 1024 && (block_k % 64 == 0 || block_k >= k);
}

extern "C" status cuda_matmul_scaled_mma(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    const gpu_view out = gpu_view_of(call->t[0]), x = gpu_view_of(call->t[1]), b = gpu_view_of(call->t[2]), s = gpu_view_of(call->t[3]);
    const scaled_args a = {out.data, x.data, b.data, s.data, out.stride[0], x.stride[0], b.stride[0], s.stride[0], x.dim[0], b.dim[0], b.dim[1], call->p.scale.block_n, call->p.scale.block_k, 0};
    if (a.m <= 0 || a.n <= 0) return STATUS_OK;
    const bool f32 = x.dtype == VT_F32;
    if (cuda_scaled_takes_wgmma(q, &a, f32)) return cuda_scaled_wgmma(q, call, &a, err);
    if (b.dtype == VT_F4_E2M1) return by_rows<VT_BF16, VT_F4_E2M1, VT_F8_E8M0>(q, call, &a, err);
    return f32 ? fp8_by_rows<VT_F32>(q, call, &a, err) : fp8_by_rows<VT_BF16>(q, call, &a, err);
}
