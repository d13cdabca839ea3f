/* SPDX-License-Identifier: Apache-2.0 */
/* Recurrent ops: a segment's rows token by token, the operations of the scalar rows in their order. */
#include "vt/cuda/gpu.cuh"

struct segment_map {
    gpu_view pos, row_seg, seg_slot;
};

static segment_map segment_map_of(const vt_call *call, int first) {
    return {gpu_view_of(call->t[first]), gpu_view_of(call->t[first + 1]), gpu_view_of(call->t[first + 2])};
}

GPU_FN int32_t at(const gpu_view &v, int64_t i) { return *(const int32_t *)(v.data + i * v.stride[0]); }

/* First and past-the-last row of a segment, found by all threads of a block; first == end where it has none. */
GPU_FN void rows_of(const segment_map &m, int seg, int *bounds, int64_t *first, int64_t *end) {
    const int n = (int)m.row_seg.dim[0];
    __syncthreads();
    if (threadIdx.x < 2) bounds[threadIdx.x] = n;
    __syncthreads();
    for (int r = threadIdx.x; r < n; r += blockDim.x)
        if (at(m.row_seg, r) == seg) atomicMin(&bounds[0], r);
    __syncthreads();
    const int begin = bounds[0];
    for (int r = begin + threadIdx.x; r < n; r += blockDim.x)
        if (at(m.row_seg, r) != seg) atomicMin(&bounds[1], r);
    __syncthreads();
    *first = begin;
    *end = bounds[1];
}

GPU_FN float *state_of(const gpu_view &state, const segment_map &m, int seg) {
    int slot = at(m.seg_slot, seg);
    return slot >= 0 && slot < state.dim[0] ? (float *)(state.data + slot * state.stride[0]) : NULL;
}

/* ---- convolution: a thread a channel ---- */

__global__ void conv_kernel(gpu_view out, gpu_view x, gpu_view state, gpu_view w, segment_map m) {
    __shared__ int bounds[2];
    const int64_t channel = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, taps = w.dim[1];
    int64_t first, end;
    rows_of(m, blockIdx.y, bounds, &first, &end);
    float *past = state_of(state, m, blockIdx.y);
    if (channel >= x.dim[1] || first >= end || !past) return;
    past += channel * (taps - 1);
    const uint8_t *weights = w.data + channel * w.stride[0];
    for (int64_t t = first; t < end; t++) {
        const float now = ((const float *)(x.data + t * x.stride[0]))[channel];
        const bool fresh = at(m.pos, t) == 0;
        float acc = 0.0f;
        for (int64_t j = 0; j + 1 < taps; j++) {
            if (fresh) past[j] = 0.0f;
            acc = fmaf(gpu_get(w.dtype, weights, j), past[j], acc);
        }
        acc = fmaf(gpu_get(w.dtype, weights, taps - 1), now, acc);
        for (int64_t j = 0; j + 2 < taps; j++) past[j] = past[j + 1];
        if (taps > 1) past[taps - 2] = now;
        ((float *)(out.data + t * out.stride[0]))[channel] = acc / (1.0f + gpu_expf(-acc));
    }
}

extern "C" status cuda_causal_conv_silu(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    const int64_t n_channels = call->t[1]->dim[1], n_segs = call->t[6]->dim[0];
    if (gpu_count(call->t[1]) <= 0 || n_segs <= 0) return STATUS_OK;
    if (n_segs > 65535 || call->t[1]->dim[0] > INT32_MAX / 2) return cuda_refuse(err, "causal_conv_silu: more than 65535 segments");
    conv_kernel<<<dim3((unsigned)gpu_ceil(n_channels, 128), (unsigned)n_segs), 128, 0, gpu_stream(q)>>>(
        gpu_view_of(call->t[0]), gpu_view_of(call->t[1]), gpu_view_of(call->t[2]), gpu_view_of(call->t[3]), segment_map_of(call, 4));
    return gpu_launched(call, err);
}

/* ---- delta rule: a block a value head, a thread a column of its state ---- */

struct delta_args {
    gpu_view out, qkv, a, b, a_log, dt_bias, state;
    segment_map map;
    vt_gated_delta_params p;
    bool shared_state; /* the state fits shared memory for the time of the call */
};

GPU_FN float inverse_norm(const float *x, int n) {
    float sum = 0.0f;
    for (int i = 0; i < n; i++) sum = fmaf(x[i], x[i], sum);
    return 1.0f / sqrtf(sum + 1e-6f);
}

__global__ void delta_kernel(delta_args a) {
    extern __shared__ float shared[];
    __shared__ int bounds[2];
    __shared__ float norms[2];
    const int head = blockIdx.x, seg = blockIdx.y, t = threadIdx.x, d_k = a.p.d_k, d_v = a.p.d_v;
    const int key_head = a.p.k_tiled ? head % a.p.n_k : head / (a.p.n_v / a.p.n_k);
    const int64_t keys = (int64_t)a.p.n_k * d_k, size = (int64_t)d_k * d_v;
    int64_t first, end;
    rows_of(a.map, seg, bounds, &first, &end);
    float *kept = state_of(a.state, a.map, seg);
    if (first >= end || !kept) return; /* the whole block */
    kept += head * size;
    float *q = shared, *k = q + d_k, *S = a.shared_state ? k + d_k : kept;
    if (a.shared_state)
        for (int64_t i = t; i < size; i += blockDim.x) S[i] = kept[i];
    const float decay = a.p.a_is_decay ? gpu_get(a.a_log.dtype, a.a_log.data + head * a.a_log.stride[0], 0)
                                       : -gpu_expf(gpu_get(a.a_log.dtype, a.a_log.data + head * a.a_log.stride[0], 0));
    const float dt = gpu_get(a.dt_bias.dtype, a.dt_bias.data + head * a.dt_bias.stride[0], 0);
    for (int64_t r = first; r < end; r++) {
        const float *row = (const float *)(a.qkv.data + r * a.qkv.stride[0]);
        __syncthreads();
        for (int i = t; i < d_k; i += blockDim.x) {
            q[i] = row[key_head * d_k + i];
            k[i] = row[keys + key_head * d_k + i];
        }
        __syncthreads();
        if (t == 0) norms[0] = inverse_norm(q, d_k) * (1.0f / sqrtf((float)d_k));
        if (t == 32) norms[1] = inverse_norm(k, d_k);
        __syncthreads();
        const float qn = norms[0], kn = norms[1];
        for (int i = t; i < d_k; i += blockDim.x) {
            q[i] = q[i] * qn;
            k[i] = k[i] * kn;
        }
        const float x = ((const float *)(a.a.data + r * a.a.stride[0]))[head] + dt, bh = ((const float *)(a.b.data + r * a.b.stride[0]))[head];
        const float g = gpu_expf(decay * (x > 20.0f ? x : log1pf(gpu_expf(x)))), beta = 1.0f / (1.0f + gpu_expf(-bh));
        const bool fresh = at(a.map.pos, r) == 0;
        __syncthreads();
        for (int j = t; j < d_v; j += blockDim.x) {
            float m = 0.0f, o = 0.0f;
            for (int i = 0; i < d_k; i++) {
                float s = fresh ? 0.0f : S[(int64_t)i * d_v + j];
                s *= g;
                S[(int64_t)i * d_v + j] = s;
                m = fmaf(s, k[i], m);
            }
            const float delta = (row[2 * keys + (int64_t)head * d_v + j] - m) * beta;
            for (int i = 0; i < d_k; i++) {
                float s = fmaf(k[i], delta, S[(int64_t)i * d_v + j]);
                S[(int64_t)i * d_v + j] = s;
                o = fmaf(s, q[i], o);
            }
            ((float *)(a.out.data + r * a.out.stride[0]))[(int64_t)head * d_v + j] = o;
        }
    }
    __syncthreads();
    if (a.shared_state)
        for (int64_t i = t; i < size; i += blockDim.x) kept[i] = S[i];
}

extern "C" status cuda_gated_delta(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    delta_args a = {gpu_view_of(call->t[0]), gpu_view_of(call->t[1]), gpu_view_of(call->t[2]), gpu_view_of(call->t[3]), gpu_view_of(call->t[4]),
                    gpu_view_of(call->t[5]), gpu_view_of(call->t[6]), segment_map_of(call, 7), call->p.gated_delta, false};
    const int64_t n_segs = call->t[9]->dim[0];
    if (gpu_count(call->t[0]) <= 0 || n_segs <= 0) return STATUS_OK;
    if (n_segs > 65535 || call->t[1]->dim[0] > INT32_MAX / 2) return cuda_refuse(err, "gated_delta: more than 65535 segments");
    const int64_t room = gpu_device(q)->shared_bytes - 1024, vectors = (int64_t)a.p.d_k * 8, state = (int64_t)a.p.d_k * a.p.d_v * 4;
    if (vectors > room) return cuda_refuse(err, "gated_delta: keys too wide for shared memory");
    a.shared_state = vectors + state <= room;
    const size_t bytes = (size_t)(vectors + (a.shared_state ? state : 0));
    if (bytes > 48 << 10)
        TRY(cuda_result(gpu_allow_shared(delta_kernel, bytes), "shared memory", err));
    int threads = a.p.d_v <= 64 ? 64 : a.p.d_v <= 128 ? 128 : 256;
    delta_kernel<<<dim3((unsigned)a.p.n_v, (unsigned)n_segs), threads, bytes, gpu_stream(q)>>>(a);
    return gpu_launched(call, err);
}
