/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on matrix units for one row of a sequence: positions in shares, so that few sequences fill the device too, and their sum. */
#include "vt/cuda/attention_tiles.cuh"

static const int MERGE_THREADS = 128, MAX_SPLITS = 256;

template <bool H, int D, int BK> using narrow = attention_shape_of<H, D, D, 1, 4, 1, BK, 3, false, true>;
template <bool H> using latent_few = attention_shape_of<H, 576, 512, 1, 8, 1, 64, 2, true, true>;
template <bool H> using latent = attention_shape_of<H, 576, 512, 4, 2, 1, 32, 3, true, true>;

/* One head of one item: its shares in ascending order, weighted by two to the difference of their maximum and the largest. */
__global__ void __launch_bounds__(MERGE_THREADS) attention_merge(const __grid_constant__ attention_tiles_args a, int tile) {
    __shared__ float weight[MAX_SPLITS];
    const int64_t head = blockIdx.x, item = blockIdx.y, row = attention_row_of(a, item);
    if (row < 0) return;
    const int pos = (int)position_of(a.map, row), start = a.p.window > 0 && pos - a.p.window + 1 > 0 ? pos - a.p.window + 1 : 0;
    const int n_tiles = pos / tile + 1 - start / tile, share = attention_share(n_tiles, a.n_splits), n = (n_tiles + share - 1) / share;
    const int64_t stride = a.v_width + 2;
    const float *from = a.partial + (item * a.query.dim[1] + head) * a.n_splits * stride;
    const float sink = a.sinks.n_dims ? *(const float *)(a.sinks.data + head * a.sinks.stride[0]) * LOG2E : -gpu_infinity();
    float m = sink;
    for (int i = threadIdx.x % 32; i < n; i += 32) m = fmaxf(m, from[i * stride]);
    m = gpu_warp_max(m);
    if (threadIdx.x < 32)
        for (int i = threadIdx.x; i < n; i += 32) weight[i] = attention_exp2(from[i * stride] - m);
    __syncthreads();
    float l = a.sinks.n_dims ? attention_exp2(sink - m) : 0.0f;
#pragma unroll 4
    for (int i = 0; i < n; i++) l = fmaf(from[i * stride + 1], weight[i], l);
    uint8_t *out = a.out.data + row * a.out.stride[0] + head * a.out.stride[1];
    for (int d = threadIdx.x; d < a.v_width; d += MERGE_THREADS) {
        float o = 0.0f;
#pragma unroll 8
        for (int i = 0; i < n; i++) o = fmaf(from[i * stride + 2 + d], weight[i], o);
        ((uint16_t *)out)[d] = gpu_to_bf16(o / l);
    }
}

/* Shares: enough blocks for three rounds over the device, as far as the tables could hold tiles and the workspace holds sums. */
template <class S> static int32_t splits_of(const vt_queue *q, const attention_tiles_args *a, int64_t n_items) {
    const int64_t resident = (gpu_device(q)->shared_bytes + 1024) / (S::BYTES + 1024), slots = (resident < 8 ? resident : 8) * gpu_device(q)->n_multiprocessors;
    const int64_t blocks = n_items * a->k.dim[1] * a->n_chunks, tiles = gpu_ceil(a->map.pages.dim[1] * a->map.page_tokens, S::BK);
    const int64_t window = a->p.window > 0 ? a->p.window / S::BK + 2 : tiles;
    int64_t n = gpu_ceil(3 * slots, blocks), most = window < tiles ? window : tiles;
    if (n > most) n = most;
    const int64_t each = n_items * a->query.dim[1] * (a->v_width + 2) * 4, room = CUDA_WORKSPACE_BYTES / (each > 0 ? each : 1);
    if (n > room) n = room;
    if (n > MAX_SPLITS) n = MAX_SPLITS;
    return n > 1 ? (int32_t)n : 1;
}

template <class S> static status run(vt_queue *q, const vt_call *call, attention_tiles_args *a, int64_t n_items, bool *fits, error *err) {
    *fits = attention_has_room<S>(q);
    if (!*fits) return STATUS_OK;
    a->heads = a->group < S::BM ? a->group : S::BM;
    a->n_chunks = (int32_t)gpu_ceil(a->group, a->heads);
    a->tokens = 1;
    a->n_splits = splits_of<S>(q, a, n_items);
    a->partial = (float *)((cuda_queue *)q->handle)->workspace;
    TRY(attention_launch<S>(q, call, a, dim3((unsigned)a->n_splits, (unsigned)(a->k.dim[1] * a->n_chunks), (unsigned)n_items), err));
    if (a->n_splits == 1) return STATUS_OK;
    attention_merge<<<dim3((unsigned)a->query.dim[1], (unsigned)n_items), MERGE_THREADS, 0, gpu_stream(q)>>>(*a, S::BK);
    return gpu_launched(call, err);
}

template <bool H> static status by_width(vt_queue *q, const vt_call *call, attention_tiles_args *a, int64_t n_items, bool *fits, error *err) {
    if (a->width > 512)
        return a->group > 16 ? run<latent<H>>(q, call, a, n_items, fits, err) : run<latent_few<H>>(q, call, a, n_items, fits, err);
    if (a->width > 256) return run<narrow<H, 512, 32>>(q, call, a, n_items, fits, err);
    if (a->width > 128) return run<narrow<H, 256, 32>>(q, call, a, n_items, fits, err);
    if (a->width > 64) return run<narrow<H, 128, 32>>(q, call, a, n_items, fits, err);
    return run<narrow<H, 64, 64>>(q, call, a, n_items, fits, err);
}

status attention_decode(vt_queue *q, const vt_call *call, attention_tiles_args *a, bool half, int64_t n_items, bool *fits, error *err) {
    if (attention_warps_fit(q, a)) {
        *fits = true;
        return attention_warps(q, call, a, half, n_items, err);
    }
    return half ? by_width<true>(q, call, a, n_items, fits, err) : by_width<false>(q, call, a, n_items, fits, err);
}
