/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grouped products of BF16 rows with BF16 weights on Hopper's matrix units: more than a few rows a group in the ring of gpu_grouped_ring.cuh, many in tiles of gpu_wgmma.cuh whose rows are
 * gathered and whose weights are looked up. The ring with tiles of up to 320 rows lost to them (945 and 795 us for gate, up and down of 4,096 rows by 8 of 128 experts): one warpgroup does not
 * bring enough.
 */
#include "vt/cuda/gpu_grouped_ring.cuh"

/* Two columns of out. */
GPU_FN void store_pair(const gpu_grouped &a, uint8_t *to, const uint8_t *bias, int n, float x, float y) {
    if (bias) x += gpu_get(a.bias_dtype, bias, n);
    if (bias && n + 1 < a.n_n) y += gpu_get(a.bias_dtype, bias, n + 1);
    if (n + 1 < a.n_n && a.out.dtype == VT_F32 && a.out.stride[0] % 8 == 0 && (uintptr_t)a.out.data % 8 == 0) {
        *(float2 *)((float *)to + n) = make_float2(x, y);
        return;
    }
    if (n < a.n_n) gpu_set(a.out.dtype, to, n, x);
    if (n + 1 < a.n_n) gpu_set(a.out.dtype, to, n + 1, y);
}

/* With a gate: even columns of the tile are gate, odd ones up. */
template <int BN, bool GATED> __global__ void __launch_bounds__(WGMMA_THREADS, wgmma_blocks<BN>()) grouped_wgmma_kernel(gpu_grouped a, int n_tiles) {
    extern __shared__ uint8_t shared[];
    const gpu_group_tile g = gpu_find_tile(a.first, a.n_groups, WGMMA_BM, (int)blockIdx.x / n_tiles);
    if (g.n == 0) return;
    const uint8_t *w = a.table[g.group], *up = GATED && a.extra_table ? a.extra_table[g.group] : w, *bias = a.bias_table ? a.bias_table[g.group] : NULL;
    if (!w || !up) return;
    const int n0 = (int)blockIdx.x % n_tiles * BN;
    auto x_row = [&](int i) -> const uint8_t * { return i < g.n ? gpu_group_x(a, g.begin + i) : NULL; };
    auto w_row = [&](int j) -> const uint8_t * {
        if (!GATED) return n0 + j < a.n_n ? w + (n0 + j) * a.w_stride[0] : NULL;
        const int column = (n0 + j) / 2;
        return column < a.n_gated ? (j % 2 ? up : w) + gpu_gate_row(a, column, j % 2) * a.w_stride[0] : NULL;
    };
    auto store = [&](int i, int j, float x, float y) {
        if (i >= g.n) return;
        uint8_t *to = a.out.data + (int64_t)(g.begin + i) * a.out.stride[0];
        if (!GATED) {
            store_pair(a, to, bias, n0 + j, x, y);
            return;
        }
        const int column = (n0 + j) / 2;
        if (column >= a.n_gated) return;
        if (bias) {
            x += gpu_get(a.bias_dtype, bias, gpu_gate_row(a, column, false));
            y += gpu_get(a.bias_dtype, bias, gpu_gate_row(a, column, true));
        }
        gpu_set(a.out.dtype, to, column, ring_gate(a.gate, a.swiglu.alpha, a.swiglu.limit, x, y));
    };
    wgmma_tile<BN>(shared, x_row, w_row, a.n_k, store);
}

template <int BN, bool GATED> static status launch_wgmma(vt_queue *q, const vt_call *call, error *err) {
    const int bytes = wgmma_shared_bytes<BN>();
    const gpu_grouped a = gpu_grouped_of(call);
    const int64_t n_tiles = gpu_ceil(GATED ? 2 * (int64_t)a.n_gated : a.n_n, BN), n_blocks = n_tiles * gpu_group_slots(call, WGMMA_BM);
    if (n_blocks > INT32_MAX) return cuda_refuse(err, "a grouped product of such sizes");
    TRY(cuda_result(cudaFuncSetAttribute(grouped_wgmma_kernel<BN, GATED>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory", err));
    grouped_wgmma_kernel<BN, GATED><<<(unsigned)n_blocks, WGMMA_THREADS, bytes, gpu_stream(q)>>>(a, (int)n_tiles);
    return gpu_launched(call, err);
}

/* Wide tiles read the rows of x less often; narrow ones where wide ones would be half empty, or K is so short that a second block had better multiply while the first one stores. */
status gpu_run_grouped_wgmma(vt_queue *q, const vt_call *call, error *err) {
    const bool gated = call->op == VT_OP_MATMUL_GROUPED_GATED;
    if (gpu_group_rows(call) <= 64) {
        const gpu_grouped_scaled s = {gpu_grouped_of(call), 0, 0, 0, 0};
        return gated ? launch_ring<ring_form<VT_BF16, VT_F32, 64, true>>(q, call, s, err) : launch_ring<ring_form<VT_BF16, VT_F32, 64, false>>(q, call, s, err);
    }
    const int64_t n = gated ? 2 * call->t[0]->dim[1] : call->t[0]->dim[1];
    if (n <= 128 || call->t[4]->dim[1] < 1024) return gated ? launch_wgmma<128, true>(q, call, err) : launch_wgmma<128, false>(q, call, err);
    return gated ? launch_wgmma<256, true>(q, call, err) : launch_wgmma<256, false>(q, call, err);
}
