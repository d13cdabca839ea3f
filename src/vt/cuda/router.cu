/* SPDX-License-Identifier: Apache-2.0 */
/* The router: one warp a row, the operations of the scalar row in its order (sums over the experts ascending), so that ties and weights come
 * out with the same bits. */
#include "vt/cuda/gpu_launch.cuh"

static const int WARPS = 4;

struct router_args {
    gpu_view ids, weights, logits, bias, expert_scale;
    vt_router_params p;
    int64_t n_rows;
    int32_t n_experts, k;
};

/* Shared memory of a warp, in words: what selects, probabilities, scores of groups, the choice and its weights. */
GPU_HD size_t router_shared(int n_experts, int n_groups, int k) { return (size_t)(2 * n_experts + n_groups + 2 * k); }

GPU_FN float extra_of(const gpu_view &v, int64_t e) { return gpu_get(v.dtype, v.data + e * v.stride[0], 0); }

/* Numbers as integers in the same order, -0 as 0; 0: not a number. */
GPU_FN uint32_t router_key(float s) {
    if (s != s) return 0;
    const uint32_t bits = __float_as_uint(s + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__global__ void router_kernel(router_args a) {
    extern __shared__ float shared[];
    const int lane = threadIdx.x % 32, E = a.n_experts, n_groups = a.p.n_groups, size = E / n_groups;
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    float *score = shared + threadIdx.x / 32 * router_shared(E, n_groups, a.k), *prob = score + E, *group = prob + E, *weight = group + n_groups;
    int *chosen = (int *)(weight + a.k);
    gpu_let_next_start();
    gpu_await_previous();
    if (row >= a.n_rows) return;
    const float *logits = (const float *)(a.logits.data + row * a.logits.stride[0]);
    int32_t *ids = (int32_t *)(a.ids.data + row * a.ids.stride[0]);
    float *weights = (float *)(a.weights.data + row * a.weights.stride[0]);
    const bool selected = a.p.mode == VT_ROUTER_SOFTMAX_SELECTED;

    float max = -gpu_infinity();
#pragma unroll 4
    for (int e = lane; e < E; e += 32) {
        const float x = logits[e];
        score[e] = x; /* no other lane's */
        if (gpu_finite(x) && x > max) max = x;
    }
    max = gpu_warp_max(max);
    float sum = 0.0f;
    if (a.p.mode == VT_ROUTER_SOFTMAX) {
        for (int e = lane; e < E; e += 32) prob[e] = gpu_finite(score[e]) ? gpu_expf(score[e] - max) : 0.0f;
        gpu_sync_warp();
#pragma unroll 8
        for (int e = 0; e < E; e++) sum += prob[e]; /* every lane the same; a logit that is not finite adds 0 */
        gpu_sync_warp();
    }
    for (int e = lane; e < E; e += 32) {
        float x = score[e], p = 0.0f, s = -gpu_infinity();
        if (gpu_finite(x)) {
            p = a.p.mode == VT_ROUTER_SIGMOID ? 1.0f / (1.0f + gpu_expf(-x)) : selected ? 0.0f : prob[e] / sum;
            s = selected ? x : p;
            if (a.bias.n_dims) s += extra_of(a.bias, e);
        }
        prob[e] = p;
        score[e] = s;
    }
    gpu_sync_warp();
    if (n_groups > 1) {
        for (int g = lane; g < n_groups; g += 32) {
            float best = -gpu_infinity(), second = -gpu_infinity();
            for (int e = g * size; e < (g + 1) * size; e++) {
                float s = score[e];
                if (s > best) {
                    second = best;
                    best = s;
                } else if (s > second) {
                    second = s;
                }
            }
            group[g] = a.p.group_top2 ? best + second : best;
        }
        gpu_sync_warp();
    }

    /* The k best. Each lane knows the best of its own (the lowest id among equals); the score of one taken, or of a group that is out, becomes NaN, which is above nothing. */
    if (n_groups > 1) {
        for (int e = lane; e < E; e += 32) {
            int g = e / size, before = 0;
            for (int h = 0; h < n_groups; h++) before += group[h] > group[g] || (group[h] == group[g] && h < g);
            if (before >= a.p.top_groups) score[e] = __uint_as_float(0x7FC00000u);
        }
    }
    const uint32_t lowest = router_key(-gpu_infinity());
    uint32_t best = lowest;
    int best_id = E;
    auto scan = [&]() {
        best = lowest, best_id = E;
#pragma unroll 4
        for (int e = lane; e < E; e += 32) {
            const uint32_t key = router_key(score[e]);
            if (key > best) best = key, best_id = e;
        }
    };
    scan();
    int found = 0;
    float kept_first = 0.0f;
    for (int j = 0; j < a.k; j++) {
        const uint32_t top = gpu_reduce_max(best);
        if (top <= lowest) break; /* nothing is left: nor for those that follow */
        const int id = (int)~gpu_reduce_max(best == top ? ~(uint32_t)best_id : 0u);
        found = j + 1;
        const float s = score[id];
        if (j == 0) kept_first = s;
        gpu_sync_warp();
        if (id == best_id) {
            chosen[j] = id;
            weight[j] = selected ? gpu_expf(s - kept_first) : prob[id];
            score[id] = __uint_as_float(0x7FC00000u);
            scan();
        }
    }
    gpu_sync_warp();
    if (lane == 0) {
        for (int j = found; j < a.k; j++) {
            int e = 0;
            for (int i = 0; i < j; i++) { /* the lowest unused one: start over whenever one is taken */
                if (chosen[i] == e) {
                    e++;
                    i = -1;
                }
            }
            chosen[j] = e;
            weight[j] = 0.0f;
        }
    }
    gpu_sync_warp();
    float total = 0.0f;
    for (int j = 0; j < found; j++) total += weight[j]; /* every lane the same */
    for (int j = lane; j < a.k; j += 32) {
        float w = j < found ? weight[j] : 0.0f;
        if (selected)
            w = total > 0.0f ? w / total : 0.0f;
        else if (a.p.renormalize)
            w = total > 0.0f ? w / (total + 1e-20f) : 0.0f;
        w *= a.p.scaling;
        if (a.expert_scale.n_dims) w *= extra_of(a.expert_scale, chosen[j]);
        ids[j] = chosen[j];
        weights[j] = w;
    }
}

extern "C" status cuda_router_topk(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    router_args a = {gpu_view_of(call->t[0]), gpu_view_of(call->t[1]), gpu_view_of(call->t[2]), gpu_view_of(call->t[3]), gpu_view_of(call->t[4]),
                     call->p.router, call->t[2]->dim[0], 0, 0};
    if (a.n_rows <= 0) return STATUS_OK;
    if (call->t[2]->dim[1] > 1 << 20) return cuda_refuse(err, "router_topk: too many experts");
    a.n_experts = (int32_t)call->t[2]->dim[1];
    a.k = (int32_t)call->t[0]->dim[1];
    const size_t bytes = WARPS * router_shared(a.n_experts, a.p.n_groups, a.k) * sizeof(float);
    if (bytes > (size_t)gpu_device(q)->shared_bytes) return cuda_refuse(err, "router_topk: too many experts for shared memory");
    if (bytes > 48 << 10)
        TRY(cuda_result(gpu_allow_shared(router_kernel, bytes), "shared memory", err));
    return gpu_launch_grid(q, router_kernel, dim3((unsigned)gpu_ceil(a.n_rows, WARPS)), WARPS * 32, bytes, err, a);
}
