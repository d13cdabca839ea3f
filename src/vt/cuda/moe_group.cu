/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows go to which expert: a block an expert goes through all ids, so that places follow from counting alone and nothing is ordered by atomics. */
#include "vt/cuda/gpu_launch.cuh"

static const int THREADS = 512, AHEAD = 16, KEPT = 128, FEW = 128; /* KEPT: pairs of its expert that a warp remembers; FEW: pairs that one block goes through */

struct group_args {
    gpu_view index, sorted, ids, weights;
    int32_t *first, *pair_row;
    int32_t n_pairs, k;
    bool flat; /* rows of ids follow each other */
};

GPU_FN int id_of(const group_args &a, int pair) {
    if (a.flat) return ((const int32_t *)a.ids.data)[pair];
    return ((const int32_t *)(a.ids.data + pair / a.k * a.ids.stride[0]))[pair % a.k];
}

/* A pair of expert e gets its place. */
GPU_FN void give_place(const group_args &a, int e, int pair, int place) {
    const int row = pair / a.k, j = pair % a.k;
    int rank = 0;
#pragma unroll 4
    for (int other = 0; other < a.k; other++) {
        const int id = id_of(a, row * a.k + other);
        rank += id < e || (id == e && other < j);
    }
    a.pair_row[place] = row;
    ((int32_t *)(a.index.data + row * a.index.stride[0]))[rank] = place;
    ((float *)(a.sorted.data + row * a.sorted.stride[0]))[rank] = ((const float *)(a.weights.data + row * a.weights.stride[0]))[j];
}

/* A warp has a stretch of the pairs, thirty-two at a time: first it counts, then, knowing what lies in front of it, it gives out places: a lane a pair, or, where there were more of its expert
 * than it remembers, going through the stretch again. */
__global__ void __launch_bounds__(THREADS) group_kernel(group_args a) {
    const int WARPS = THREADS / 32;
    __shared__ int of_less[WARPS], of_equal[WARPS], kept[WARPS][KEPT];
    const int e = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, per = (a.n_pairs + THREADS - 1) / THREADS * 32;
    const int64_t from = (int64_t)warp * per;
    gpu_await_previous();
    gpu_let_next_start();
    const int lo = from < a.n_pairs ? (int)from : a.n_pairs, hi = from + per < a.n_pairs ? (int)(from + per) : a.n_pairs;
    int less = 0, equal = 0;
    for (int i = lo; i < hi; i += 32 * AHEAD) { /* a stretch of ids is under way before the first one is looked at */
        int ids[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) ids[j] = i + 32 * j + lane < hi ? id_of(a, i + 32 * j + lane) : INT32_MAX;
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            if (i + 32 * j >= hi) break;
            const uint32_t all = gpu_ballot(ids[j] == e);
            less += __popc(gpu_ballot(ids[j] < e));
            if (ids[j] == e) {
                const int at = equal + __popc(all & ((1u << lane) - 1));
                if (at < KEPT) kept[warp][at] = i + 32 * j + lane;
            }
            equal += __popc(all);
        }
    }
    if (lane == 0) of_less[warp] = less, of_equal[warp] = equal;
    __syncthreads();
    int base = 0, before = 0, mine = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        base += of_less[i];
        before += i < warp ? of_equal[i] : 0;
        mine += of_equal[i];
    }
    if (threadIdx.x == 0) {
        a.first[e] = base;
        if (e + 1 == (int)gridDim.x) a.first[e + 1] = base + mine;
    }
    if (equal == 0) return;
    int next = base + before;
    if (equal <= KEPT) {
        for (int i = lane; i < equal; i += 32) give_place(a, e, kept[warp][i], next + i);
        return;
    }
    for (int i = lo; i < hi; i += 32) {
        const bool is_mine = i + lane < hi && id_of(a, i + lane) == e;
        const uint32_t all = gpu_ballot(is_mine);
        if (is_mine) give_place(a, e, i + lane, next + __popc(all & ((1u << lane) - 1)));
        next += __popc(all);
    }
}

/* Few pairs: a thread counts for an expert, then for a pair. */
__global__ void __launch_bounds__(FEW) group_few_kernel(group_args a, int n_experts) {
    __shared__ int ids[FEW];
    gpu_await_previous();
    gpu_let_next_start();
    for (int i = threadIdx.x; i < a.n_pairs; i += FEW) ids[i] = id_of(a, i);
    __syncthreads();
    for (int e = threadIdx.x; e < n_experts; e += FEW) {
        int less = 0, equal = 0;
        for (int i = 0; i < a.n_pairs; i++) less += ids[i] < e, equal += ids[i] == e;
        a.first[e] = less;
        if (e + 1 == n_experts) a.first[e + 1] = less + equal;
    }
    for (int i = threadIdx.x; i < a.n_pairs; i += FEW) {
        const int id = ids[i], row = i / a.k, j = i % a.k;
        int place = 0, rank = 0;
        for (int other = 0; other < a.n_pairs; other++) place += ids[other] < id || (ids[other] == id && other < i);
        for (int other = 0; other < a.k; other++) rank += ids[row * a.k + other] < id || (ids[row * a.k + other] == id && other < j);
        a.pair_row[place] = row;
        ((int32_t *)(a.index.data + row * a.index.stride[0]))[rank] = place;
        ((float *)(a.sorted.data + row * a.sorted.stride[0]))[rank] = ((const float *)(a.weights.data + row * a.weights.stride[0]))[j];
    }
}

extern "C" status cuda_moe_group(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    group_args a = {gpu_view_of(call->t[2]), gpu_view_of(call->t[3]), gpu_view_of(call->t[4]), gpu_view_of(call->t[5]), (int32_t *)call->t[0]->data, (int32_t *)call->t[1]->data, 0, 0, false};
    if (call->t[0]->dim[0] > 1 << 20) return cuda_refuse(err, "moe_group: too many experts");
    a.n_pairs = (int32_t)call->t[1]->dim[0];
    a.k = (int32_t)call->t[4]->dim[1];
    a.flat = a.ids.stride[0] == (int64_t)a.k * 4;
    const unsigned n_experts = (unsigned)(call->t[0]->dim[0] - 1);
    if (a.n_pairs <= FEW) return gpu_launch_grid(q, group_few_kernel, dim3(1), FEW, 0, err, a, (int)n_experts);
    return gpu_launch_grid(q, group_kernel, dim3(n_experts), THREADS, 0, err, a);
}
