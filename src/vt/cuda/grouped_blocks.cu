/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grouped products of BF16 rows with GGUF block weights on matrix units: the tiles of gpu_unit_tiles.cuh, whose rows are gathered and whose weights are looked up. Few rows a group: small tiles;
 * many: those of Hopper, where the device has them. Which, follows from the rows of the step, the experts and how many a row takes.
 */
#include "vt/cuda/gpu_groups.cuh"
#include "vt/cuda/gpu_unit_tiles.cuh"

/* One output, or a gate and its up. */
template <bool GATED> GPU_FN void group_store(const gpu_grouped &a, uint8_t *to, const uint8_t *bias, int column, float x, float y) {
    if (GATED) {
        if (bias) {
            x += gpu_get(a.bias_dtype, bias, gpu_gate_row(a, column, false));
            y += gpu_get(a.bias_dtype, bias, gpu_gate_row(a, column, true));
        }
        gpu_set(a.out.dtype, to, column, gpu_gate(a.gate, a.swiglu, x, y));
    } else {
        gpu_set(a.out.dtype, to, column, bias ? x + gpu_get(a.bias_dtype, bias, column) : x);
    }
}

/* Rows of weights of a tile; with a gate even ones are gate and odd ones up. */
template <bool GATED> GPU_FN const uint8_t *group_w(const gpu_grouped &a, const uint8_t *w, const uint8_t *up, int n, bool clamp) {
    const int last = (GATED ? a.n_gated : a.n_n) - 1, column = GATED ? n / 2 : n;
    if (column > last && !clamp) return NULL;
    const int at = column < last ? column : last;
    if (!GATED) return w + (int64_t)at * a.w_stride[0];
    return (n % 2 ? up : w) + (int64_t)gpu_gate_row(a, at, n % 2) * a.w_stride[0];
}

template <int T, int NT, bool GATED> __global__ void __launch_bounds__(UNIT_THREADS, NT <= 4 ? 2 : 1) grouped_units_kernel(const __grid_constant__ gpu_grouped a, int n_tiles) {
    extern __shared__ __align__(16) uint8_t unit_shared[];
    const gpu_group_tile g = gpu_find_tile(a.first, a.n_groups, 8 * NT, (int)blockIdx.x / n_tiles);
    if (g.n == 0) return;
    const uint8_t *w = a.table[g.group], *up = GATED && a.extra_table ? a.extra_table[g.group] : w, *bias = a.bias_table ? a.bias_table[g.group] : NULL;
    if (!w || !up) return;
    const int TILE = unit_tile_rows<4>(), COLUMNS = GATED ? TILE / 2 : TILE, n0 = (int)blockIdx.x % n_tiles * TILE, last = GATED ? a.n_gated : a.n_n;
    auto w_row = [&](int, int i) { return group_w<GATED>(a, w, up, n0 + i, true); };
    auto x_row = [&](int j) -> const uint8_t * { return j < g.n ? gpu_group_x(a, g.begin + j) : NULL; };
    auto emit = [&](int, const float *sums) {
        for (int i = threadIdx.x; i < COLUMNS * g.n; i += UNIT_THREADS) {
            const int c = i % COLUMNS, j = i / COLUMNS, column = (GATED ? n0 / 2 : n0) + c;
            if (column >= last) continue;
            const float x = unit_total<NT, 4>(sums, GATED ? 2 * c : c, j), y = GATED ? unit_total<NT, 4>(sums, 2 * c + 1, j) : 0.0f;
            group_store<GATED>(a, a.out.data + (int64_t)(g.begin + j) * a.out.stride[0], bias, column, x, y);
        }
    };
    unit_tiles<T, NT, 4>(unit_shared, 0, 1, 1, w_row, x_row, a.n_k, emit);
}

template <int T, bool GATED> __global__ void __launch_bounds__(WGMMA_THREADS, 1) grouped_units_wgmma_kernel(const __grid_constant__ gpu_grouped a, int n_tiles) {
    extern __shared__ uint8_t unit_shared[];
    const gpu_group_tile g = gpu_find_tile(a.first, a.n_groups, WGMMA_BM, (int)blockIdx.x / n_tiles);
    if (g.n == 0) return;
    const uint8_t *w = a.table[g.group], *up = GATED && a.extra_table ? a.extra_table[g.group] : w, *bias = a.bias_table ? a.bias_table[g.group] : NULL;
    if (!w || !up) return;
    const int n0 = (int)blockIdx.x % n_tiles * UNIT_WGMMA_N, last = GATED ? a.n_gated : a.n_n;
    auto w_row = [&](int j) { return group_w<GATED>(a, w, up, n0 + j, false); };
    auto x_row = [&](int i) -> const uint8_t * { return i < g.n ? gpu_group_x(a, g.begin + i) : NULL; };
    auto store = [&](int i, int j, float x, float y) {
        if (i >= g.n) return;
        uint8_t *to = a.out.data + (int64_t)(g.begin + i) * a.out.stride[0];
        if (GATED) {
            if ((n0 + j) / 2 < last) group_store<true>(a, to, bias, (n0 + j) / 2, x, y);
            return;
        }
        if (n0 + j < last) group_store<false>(a, to, bias, n0 + j, x, 0.0f);
        if (n0 + j + 1 < last) group_store<false>(a, to, bias, n0 + j + 1, y, 0.0f);
    };
    unit_wgmma_tile<T, 1>(unit_shared, x_row, w_row, a.n_k, store);
}

template <class K> static status launch(vt_queue *q, const vt_call *call, K kernel, int bytes, int tile_rows, int tile_columns, int n_threads, error *err) {
    const gpu_grouped a = gpu_grouped_of(call);
    const int64_t n_tiles = gpu_ceil(a.n_gated ? 2 * (int64_t)a.n_gated : a.n_n, tile_columns), n_blocks = n_tiles * gpu_group_slots(call, tile_rows);
    if (n_blocks > INT32_MAX) return cuda_refuse(err, "a grouped product of such sizes");
    TRY(cuda_result(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory", err));
    kernel<<<(unsigned)n_blocks, n_threads, bytes, gpu_stream(q)>>>(a, (int)n_tiles);
    return gpu_launched(call, err);
}

/* Rows of a tile: what most groups have at most, from the places, the groups and the rows of the step. */
static int64_t rows_of_tile(const vt_call *call) {
    const int64_t places = call->t[0]->dim[0], groups = call->t[2]->dim[0] - 1, mean = places / groups, most = call->p.grouped.max_rows, want = mean + mean / 2 + 4;
    return most > 0 && most < want ? most : want;
}

template <int T, int NT, bool GATED> static status launch_few(vt_queue *q, const vt_call *call, error *err) {
    return launch(q, call, grouped_units_kernel<T, NT, GATED>, unit_shared_bytes<T, NT>(), 8 * NT, unit_tile_rows<4>(), UNIT_THREADS, err);
}

template <int T, bool GATED> static status by_rows(vt_queue *q, const vt_call *call, error *err) {
    const int64_t rows = rows_of_tile(call);
    if (rows <= 8) return launch_few<T, 1, GATED>(q, call, err);
    if (rows <= 16 || gpu_device(q)->shared_bytes < unit_shared_bytes<T, 4>()) return launch_few<T, 2, GATED>(q, call, err);
    if (rows <= 32 || !cuda_runs_wgmma(q)) return launch_few<T, 4, GATED>(q, call, err);
    return launch(q, call, grouped_units_wgmma_kernel<T, GATED>, unit_wide<T, 1>::SHARED, WGMMA_BM, UNIT_WGMMA_N, WGMMA_THREADS, err);
}

/* Sixteen bytes of rows at a time; addresses of the tables are multiples of 64. */
extern "C" bool cuda_fits_grouped_blocks(const vt_call *call) {
    const vt_tensor *x = call->t[1], *w = call->t[4];
    const int64_t stride = w->stride[0] / gpu_block_elems(w->dtype) * gpu_block_bytes(w->dtype);
    return w->dim[1] > 0 && (uintptr_t)x->data % 16 == 0 && x->stride[0] % 8 == 0 && (gpu_block_bytes(w->dtype) % 4 != 0 || stride % 4 == 0);
}

extern "C" status cuda_matmul_grouped_blocks(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    if (call->t[0]->dim[0] <= 0) return STATUS_OK;
    if (!gpu_grouped_fits(call)) return cuda_refuse(err, "a grouped product of such sizes");
    const bool gated = call->op == VT_OP_MATMUL_GROUPED_GATED;
    switch ((int)call->t[4]->dtype) {
#define X(T)                                                                                                                               \
    case T:                                                                                                                                \
        return gated ? by_rows<T, true>(q, call, err) : by_rows<T, false>(q, call, err);
        GPU_UNITS(X)
#undef X
    default:
        return cuda_refuse(err, "matmul_grouped: no such weights");
    }
}
