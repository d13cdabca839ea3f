/* SPDX-License-Identifier: Apache-2.0 */
/* BF16 activations times GGUF block weights on matrix units: decode, and everything where there is no wgmma. Tiles and numbers: gpu_unit_tiles.cuh. */
#include "vt/cuda/gpu_unit_tiles.cuh"
#include "vt/cuda/matmul_blocks.cuh"

template <int T, int NT, int PARTS> __global__ void __launch_bounds__(UNIT_THREADS, NT <= 4 ? 2 : 1) blocks_mma_kernel(const __grid_constant__ block_args a, int n_tiles) {
    extern __shared__ __align__(16) uint8_t unit_shared[];
    const int TILE = unit_tile_rows<PARTS>();
    const int64_t m0 = (int64_t)blockIdx.y * (8 * NT);
    gpu_let_next_start();
    auto w_row = [&](int tile, int i) {
        const int64_t n = (int64_t)tile * TILE + i;
        return a.b + (n < a.n ? n : a.n - 1) * a.b_stride;
    };
    auto x_row = [&](int j) { return m0 + j < a.m ? a.a + (m0 + j) * a.a_stride : NULL; };
    auto emit = [&](int tile, const float *sums) {
        for (int i = threadIdx.x; i < TILE * 8 * NT; i += UNIT_THREADS) {
            const int64_t n = (int64_t)tile * TILE + i % TILE, m = m0 + i / TILE;
            if (n < a.n && m < a.m) *(float *)(a.out + m * a.out_stride + n * 4) = unit_total<NT, PARTS>(sums, i % TILE, i / TILE);
        }
    };
    unit_tiles<T, NT, PARTS>(unit_shared, (int)blockIdx.x, (int)gridDim.x, n_tiles, w_row, x_row, a.k, emit);
}

template <int T, int NT, int PARTS> static status run(vt_queue *q, const block_args *a, error *err) {
    const int bytes = unit_shared_bytes<T, NT>();
    const int64_t tiles_m = gpu_ceil(a->m, 8 * NT), n_tiles = gpu_ceil(a->n, unit_tile_rows<PARTS>()), most = (int64_t)gpu_device(q)->n_multiprocessors * (NT <= 4 ? 2 : 1);
    if (tiles_m > 65535 || n_tiles > INT32_MAX) return cuda_refuse(err, "a product of too many rows");
    TRY(cuda_result(cudaFuncSetAttribute(blocks_mma_kernel<T, NT, PARTS>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory", err));
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3((unsigned)(n_tiles < most ? n_tiles : most), (unsigned)tiles_m);
    c.blockDim = dim3(UNIT_THREADS);
    c.dynamicSmemBytes = (size_t)bytes;
    c.stream = gpu_stream(q);
    c.attrs = &early;
    c.numAttrs = gpu_runs_90a(q) ? 1 : 0; /* code for other devices has no gpu_await_previous */
    return cuda_result(cudaLaunchKernelEx(&c, blocks_mma_kernel<T, NT, PARTS>, *a, (int)n_tiles), "launching a kernel", err);
}

/* K in eight parts where rows of weights are so few that tiles of 32 would leave multiprocessors idle. */
template <int T> static status by_rows(vt_queue *q, const block_args *a, error *err) {
    const bool narrow = gpu_ceil(a->n, unit_tile_rows<4>()) < gpu_device(q)->n_multiprocessors;
    const int room = gpu_device(q)->shared_bytes;
    if (a->m <= 8) return narrow ? run<T, 1, 8>(q, a, err) : run<T, 1, 4>(q, a, err);
    if (a->m <= 16 || room < unit_shared_bytes<T, 4>()) return narrow ? run<T, 2, 8>(q, a, err) : run<T, 2, 4>(q, a, err);
    if (a->m <= 32 || room < unit_shared_bytes<T, 8>()) return run<T, 4, 4>(q, a, err);
    return run<T, 8, 4>(q, a, err);
}

/* Sixteen bytes of activations at a time; weights at addresses that their words need. */
extern "C" bool cuda_fits_blocks_mma(const vt_call *call) {
    const vt_tensor *x = call->t[1], *b = call->t[2];
    const int64_t k = b->dim[1], stride = b->stride[0] / gpu_block_elems(b->dtype) * gpu_block_bytes(b->dtype);
    if ((uintptr_t)x->data % 16 != 0 || x->stride[0] % 8 != 0 || k <= 0 || k >= INT32_MAX - 1024) return false;
    return gpu_block_bytes(b->dtype) % 4 != 0 || ((uintptr_t)b->data % 4 == 0 && stride % 4 == 0);
}

extern "C" status cuda_matmul_blocks_mma(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    const gpu_view out = gpu_view_of(call->t[0]), x = gpu_view_of(call->t[1]), b = gpu_view_of(call->t[2]);
    const block_args a = {out.data, x.data, b.data, out.stride[0], x.stride[0], b.stride[0], x.dim[0], b.dim[0], (int32_t)b.dim[1]};
    if (a.m <= 0 || a.n <= 0) return STATUS_OK;
    if (cuda_blocks_take_wgmma(q, &a)) return cuda_blocks_wgmma(q, call, &a, err);
    switch ((int)b.dtype) {
#define X(T)                                                                                                                               \
    case T:                                                                                                                                \
        return by_rows<T>(q, &a, err);
        GPU_UNITS(X)
#undef X
    default:
        return cuda_refuse(err, "matmul_bt: no such block type");
    }
}
