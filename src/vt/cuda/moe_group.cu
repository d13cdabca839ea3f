/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows go to which expert: a block an expert goes through all ids, so that places follow from counting alone and nothing is ordered by atomics. */
#include "vt/cuda/gpu.cuh"

static const int THREADS = 512;

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

/* A warp has a stretch of the pairs, thirty-two at a time: first it counts, then, knowing what lies in front of it, it gives out places. */
__global__ void __launch_bounds__(THREADS) group_kernel(group_args a) {
    const int WARPS = THREADS / 32;
    __shared__ int of_less[WARPS], of_equal[WARPS];
    const int e = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, per = (a.n_pairs + THREADS - 1) / THREADS * 32;
    const int64_t from = (int64_t)warp * per;
    const int lo = from < a.n_pairs ? (int)from : a.n_pairs, hi = from + per < a.n_pairs ? (int)(from + per) : a.n_pairs;
    int less = 0, equal = 0;
#pragma unroll 4
    for (int i = lo; i < hi; i += 32) {
        const int id = i + lane < hi ? id_of(a, i + lane) : INT32_MAX;
        less += __popc(gpu_ballot(id < e));
        equal += __popc(gpu_ballot(id == e));
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
    for (int i = lo; i < hi; i += 32) {
        const bool is_mine = i + lane < hi && id_of(a, i + lane) == e;
        const uint32_t all = gpu_ballot(is_mine);
        if (is_mine) {
            const int place = next + __popc(all & ((1u << lane) - 1)), row = (i + lane) / a.k, j = (i + lane) % a.k;
            int rank = 0;
            for (int other = 0; other < a.k; other++) {
                const int id = id_of(a, row * a.k + other);
                rank += id < e || (id == e && other < j);
            }
            a.pair_row[place] = row;
            ((int32_t *)(a.index.data + row * a.index.stride[0]))[rank] = place;
            ((float *)(a.sorted.data + row * a.sorted.stride[0]))[rank] = ((const float *)(a.weights.data + row * a.weights.stride[0]))[j];
        }
        next += __popc(all);
    }
}

extern "C" status cuda_moe_group(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    group_args a = {gpu_view_of(call->t[2]), gpu_view_of(call->t[3]), gpu_view_of(call->t[4]), gpu_view_of(call->t[5]), (int32_t *)call->t[0]->data, (int32_t *)call->t[1]->data, 0, 0, false};
    if (call->t[0]->dim[0] > 1 << 20) return cuda_refuse(err, "moe_group: too many experts");
    a.n_pairs = (int32_t)call->t[1]->dim[0];
    a.k = (int32_t)call->t[4]->dim[1];
    a.flat = a.ids.stride[0] == (int64_t)a.k * 4;
    group_kernel<<<(unsigned)(call->t[0]->dim[0] - 1), THREADS, 0, gpu_stream(q)>>>(a);
    return gpu_launched(call, err);
}
