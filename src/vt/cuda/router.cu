/* SPDX-License-Identifier: Apache-2.0 */
/* The router: one warp a row, the operations of the scalar row in its order (sums over the experts ascending), so that ties and weights come
 * out with the same bits. */
#include "vt/cuda/gpu.cuh"

static const int WARPS = 4;

struct router_args {
    gpu_view ids, weights, logits, bias, expert_scale;
    vt_router_params p;
    int64_t n_rows;
    int32_t n_experts, k;
};

/* Shared memory of a warp: what selects, probabilities, scores of groups. */
GPU_HD size_t router_shared(int n_experts, int n_groups) { return (size_t)(2 * n_experts + n_groups) * sizeof(float); }

GPU_FN float extra_of(const gpu_view &v, int64_t e) { return gpu_get(v.dtype, v.data + e * v.stride[0], 0); }

/* Best of (score, lowest id) over the warp; -1 where nothing is above -infinity. */
GPU_FN int warp_best(float score, int id) {
    for (int d = 16; d > 0; d >>= 1) {
        float other = __shfl_xor_sync(0xFFFFFFFFu, score, d);
        int other_id = __shfl_xor_sync(0xFFFFFFFFu, id, d);
        bool take = other_id >= 0 && (id < 0 || other > score || (other == score && other_id < id));
        score = take ? other : score;
        id = take ? other_id : id;
    }
    return id;
}

__global__ void router_kernel(router_args a) {
    extern __shared__ float shared[];
    const int lane = threadIdx.x % 32, E = a.n_experts, n_groups = a.p.n_groups, size = E / n_groups;
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    float *score = shared + (size_t)(threadIdx.x / 32) * (2 * E + n_groups), *prob = score + E, *group = prob + E;
    if (row >= a.n_rows) return;
    const float *logits = (const float *)(a.logits.data + row * a.logits.stride[0]);
    int32_t *ids = (int32_t *)(a.ids.data + row * a.ids.stride[0]);
    float *weights = (float *)(a.weights.data + row * a.weights.stride[0]);
    const bool selected = a.p.mode == VT_ROUTER_SOFTMAX_SELECTED;

    float max = -gpu_infinity();
    for (int e = lane; e < E; e += 32)
        if (gpu_finite(logits[e]) && logits[e] > max) max = logits[e];
    max = gpu_warp_max(max);
    for (int e = lane; e < E; e += 32) prob[e] = gpu_finite(logits[e]) ? gpu_expf(logits[e] - max) : 0.0f;
    __syncwarp();
    float sum = 0.0f;
    for (int e = 0; e < E; e++) sum += prob[e]; /* every lane the same; a logit that is not finite adds 0 */
    __syncwarp();
    for (int e = lane; e < E; e += 32) {
        float x = logits[e], p = 0.0f, s = -gpu_infinity();
        if (gpu_finite(x)) {
            p = a.p.mode == VT_ROUTER_SIGMOID ? 1.0f / (1.0f + gpu_expf(-x)) : prob[e] / sum;
            s = selected ? x : p;
            if (a.bias.n_dims) s += extra_of(a.bias, e);
        }
        prob[e] = p;
        score[e] = s;
    }
    __syncwarp();
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
        __syncwarp();
    }

    /* The k best. The score of one taken becomes NaN, which is above nothing; its value is kept for the weights. */
    int found = 0;
    float kept_first = 0.0f;
    for (int j = 0; j < a.k; j++) {
        float best = -gpu_infinity();
        int id = -1;
        for (int e = lane; e < E; e += 32) {
            float s = score[e];
            if (!(s > best)) continue;
            if (n_groups > 1) {
                int g = e / size, before = 0;
                for (int h = 0; h < n_groups; h++) before += group[h] > group[g] || (group[h] == group[g] && h < g);
                if (before >= a.p.top_groups) continue;
            }
            best = s;
            id = e;
        }
        id = warp_best(best, id);
        if (id >= 0) {
            found = j + 1;
            float s = score[id];
            if (j == 0) kept_first = s;
            __syncwarp();
            if (lane == 0) {
                score[id] = __uint_as_float(0x7FC00000u);
                ids[j] = id;
                weights[j] = selected ? gpu_expf(s - kept_first) : prob[id];
            }
        } else if (lane == 0) {
            int e = 0;
            for (int i = 0; i < j; i++) { /* the lowest unused one: start over whenever one is taken */
                if (ids[i] == e) {
                    e++;
                    i = -1;
                }
            }
            ids[j] = e;
            weights[j] = 0.0f;
        }
        __syncwarp();
    }
    if (lane != 0) return;
    float total = 0.0f;
    for (int j = 0; j < a.k; j++) total += j < found ? weights[j] : 0.0f;
    for (int j = 0; j < a.k; j++) {
        float w = j < found ? weights[j] : 0.0f;
        if (selected)
            w = total > 0.0f ? w / total : 0.0f;
        else if (a.p.renormalize)
            w = total > 0.0f ? w / (total + 1e-20f) : 0.0f;
        w *= a.p.scaling;
        if (a.expert_scale.n_dims) w *= extra_of(a.expert_scale, ids[j]);
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
    const size_t bytes = WARPS * router_shared(a.n_experts, a.p.n_groups);
    if (bytes > (size_t)gpu_device(q)->shared_bytes) return cuda_refuse(err, "router_topk: too many experts for shared memory");
    if (bytes > 48 << 10)
        TRY(cuda_result(cudaFuncSetAttribute(router_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes), "shared memory", err));
    router_kernel<<<(unsigned)gpu_ceil(a.n_rows, WARPS), WARPS * 32, bytes, gpu_stream(q)>>>(a);
    return gpu_launched(call, err);
}
