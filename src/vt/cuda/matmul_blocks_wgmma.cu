/* SPDX-License-Identifier: Apache-2.0 */
/* BF16 activations times GGUF block weights for many rows on Hopper's matrix units. Tiles and numbers: gpu_unit_tiles.cuh. */
#include "vt/cuda/gpu_unit_tiles.cuh"
#include "vt/cuda/matmul_blocks.cuh"

template <int T, int MG> __global__ void __launch_bounds__(WGMMA_THREADS, 1) blocks_wgmma_kernel(const __grid_constant__ block_args a) {
    extern __shared__ uint8_t unit_shared[];
    const int64_t m0 = (int64_t)blockIdx.x * (MG * WGMMA_BM), n0 = (int64_t)blockIdx.y * UNIT_WGMMA_N;
    auto x_row = [&](int i) -> const uint8_t * { return m0 + i < a.m ? a.a + (m0 + i) * a.a_stride : NULL; };
    auto w_row = [&](int j) -> const uint8_t * { return n0 + j < a.n ? a.b + (n0 + j) * a.b_stride : NULL; };
    const bool pairs = (uintptr_t)a.out % 8 == 0 && a.out_stride % 8 == 0;
    auto store = [&](int i, int j, float x, float y) {
        const int64_t m = m0 + i, n = n0 + j;
        if (m >= a.m || n >= a.n) return;
        float *to = (float *)(a.out + m * a.out_stride) + n;
        if (pairs && n + 1 < a.n) {
            *(float2 *)to = make_float2(x, y);
            return;
        }
        to[0] = x;
        if (n + 1 < a.n) to[1] = y;
    };
    unit_wgmma_tile<T, MG>(unit_shared, x_row, w_row, a.k, store);
}

template <int T, int MG> static status run(vt_queue *q, const vt_call *call, const block_args *a, error *err) {
    const int bytes = unit_wide<T, MG>::SHARED;
    TRY(cuda_result(cudaFuncSetAttribute(blocks_wgmma_kernel<T, MG>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory", err));
    blocks_wgmma_kernel<T, MG><<<dim3((unsigned)gpu_ceil(a->m, MG * WGMMA_BM), (unsigned)gpu_ceil(a->n, UNIT_WGMMA_N)), WGMMA_THREADS, bytes, gpu_stream(q)>>>(*a);
    return gpu_launched(call, err);
}

/* Tall tiles unpack weights half as often; where they would leave multiprocessors idle, low ones (but not for a single column of tiles, which has few of either). The sums of both are the same. */
template <int T> static status by_rows(vt_queue *q, const vt_call *call, const block_args *a, error *err) {
    const int64_t tall = gpu_ceil(a->m, 2 * WGMMA_BM) * gpu_ceil(a->n, UNIT_WGMMA_N);
    return a->m > WGMMA_BM && (tall >= gpu_device(q)->n_multiprocessors || a->n <= UNIT_WGMMA_N) ? run<T, 2>(q, call, a, err) : run<T, 1>(q, call, a, err);
}

/* More than 64 rows; half a tile too where there are tiles for most multiprocessors. */
bool cuda_blocks_take_wgmma(const vt_queue *q, const block_args *a) {
    const bool wide = gpu_ceil(a->n, UNIT_WGMMA_N) * 4 >= (int64_t)gpu_device(q)->n_multiprocessors * 3;
    return cuda_runs_wgmma(q) && a->m > (wide ? 32 : 64) && a->n <= 65535 * UNIT_WGMMA_N;
}

status cuda_blocks_wgmma(vt_queue *q, const vt_call *call, const block_args *a, error *err) {
    switch ((int)call->t[2]->dtype) {
#define X(T)                                                                                                                               \
    case T:                                                                                                                                \
        return by_rows<T>(q, call, a, err);
        GPU_UNITS(X)
#undef X
    default:
        return cuda_refuse(err, "matmul_bt: no such block type");
    }
}
