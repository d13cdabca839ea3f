/* SPDX-License-Identifier: Apache-2.0 */
/* Row-wise ops but norms (norms.cu): gathering, gated activations, scaling, adding, capping, combining. One block walks one row (or a stretch of
 * one); what needs no sum performs the operations of the scalar row and gives its bits. */
#include "vt/cuda/gpu.cuh"
#include "vt/cuda/gpu_blocks.cuh"
#include "vt/cuda/gpu_launch.cuh"
#include "vt/cuda/gpu_quads.cuh"

static const int THREADS = 256;
static const int64_t MAX_GRID_X = 1 << 30, MAX_GRID_Y = 4096;

/* f(row, column) for every element of an [n_rows, inner] output. */
template <class F> __global__ void each_kernel(F f, int64_t n_rows, int64_t inner) {
    gpu_let_next_start();
    gpu_await_previous();
    for (int64_t r = blockIdx.x; r < n_rows; r += gridDim.x)
        for (int64_t i = (int64_t)blockIdx.y * THREADS + threadIdx.x; i < inner; i += (int64_t)gridDim.y * THREADS) f(r, i);
}

template <class F> static status each(vt_queue *q, const vt_call *call, F f, int64_t n_rows, int64_t inner, error *err) {
    TRY(gpu_enter(q, err));
    if (n_rows <= 0 || inner <= 0) return STATUS_OK;
    int64_t across = gpu_ceil(inner, THREADS);
    dim3 grid((unsigned)(n_rows < MAX_GRID_X ? n_rows : MAX_GRID_X), (unsigned)(across < MAX_GRID_Y ? across : MAX_GRID_Y));
    (void)call;
    return gpu_launch_grid(q, each_kernel<F>, grid, THREADS, 0, err, f, n_rows, inner);
}

/* The same with f.quad(row, i) for four columns from 4 i on: few threads move what they can at once. */
template <class F> __global__ void quads_kernel(F f, int64_t n_rows, int64_t quads) {
    gpu_let_next_start();
    gpu_await_previous();
    for (int64_t r = blockIdx.x; r < n_rows; r += gridDim.x)
        for (int64_t i = (int64_t)blockIdx.y * THREADS + threadIdx.x; i < quads; i += (int64_t)gridDim.y * THREADS) f.quad(r, i);
}

/* Quads where every tensor of the call takes them; those of a single dimension are the same for each row. */
template <class F> static status each_quad(vt_queue *q, const vt_call *call, F f, error *err) {
    const int64_t n_rows = gpu_n_rows(call->t[0]), inner = gpu_inner(call->t[0]);
    bool quads = inner % 4 == 0;
    for (int i = 0; i < call->n_tensors; i++) quads = quads && (call->t[i]->n_dims == 0 || gpu_takes_quads(call->t[i]));
    if (!quads) return each(q, call, f, n_rows, inner, err);
    TRY(gpu_enter(q, err));
    if (n_rows <= 0 || inner <= 0) return STATUS_OK;
    const int64_t across = gpu_ceil(inner / 4, THREADS);
    dim3 grid((unsigned)(n_rows < MAX_GRID_X ? n_rows : MAX_GRID_X), (unsigned)(across < MAX_GRID_Y ? across : MAX_GRID_Y));
    return gpu_launch_grid(q, quads_kernel<F>, grid, THREADS, 0, err, f, n_rows, inner / 4);
}

/* ---- one input ---- */

struct scalar_fn {
    gpu_view out, x;
    float s;
    __device__ void operator()(int64_t r, int64_t i) const { gpu_set(out.dtype, gpu_row(out, r), i, gpu_get(x.dtype, gpu_row(x, r), i) * s); }
    __device__ void quad(int64_t r, int64_t i) const {
        const float4 v = gpu_get4(x.dtype, gpu_row(x, r), i);
        gpu_set4(out.dtype, gpu_row(out, r), i, make_float4(v.x * s, v.y * s, v.z * s, v.w * s));
    }
};

extern "C" status cuda_mul_scalar(vt_queue *q, const vt_call *call, error *err) {
    scalar_fn f = {gpu_view_of(call->t[0]), gpu_view_of(call->t[1]), call->p.scalar};
    return each_quad(q, call, f, err);
}

struct softcap_fn {
    gpu_view out, x;
    float cap;
    __device__ void operator()(int64_t r, int64_t i) const {
        float u = gpu_get(x.dtype, gpu_row(x, r), i) / cap;
        gpu_set(out.dtype, gpu_row(out, r), i, cap * (1.0f - 2.0f / (gpu_expf(2.0f * u) + 1.0f)));
    }
};

extern "C" status cuda_softcap(vt_queue *q, const vt_call *call, error *err) {
    softcap_fn f = {gpu_view_of(call->t[0]), gpu_view_of(call->t[1]), call->p.scalar};
    return each(q, call, f, gpu_n_rows(call->t[0]), gpu_inner(call->t[0]), err);
}

struct gather_fn {
    gpu_view out, table, ids;
    __device__ void operator()(int64_t r, int64_t i) const {
        int64_t id = *(const int32_t *)(ids.data + r * ids.stride[0]);
        float v = id >= 0 && id < table.dim[0] ? gpu_weight_at(table.dtype, table.data + id * table.stride[0], i) : 0.0f;
        ((float *)gpu_row(out, r))[i] = v;
    }
};

extern "C" status cuda_gather_rows(vt_queue *q, const vt_call *call, error *err) {
    gather_fn f = {gpu_view_of(call->t[0]), gpu_view_of(call->t[1]), gpu_view_of(call->t[2])};
    return each(q, call, f, gpu_n_rows(call->t[0]), gpu_inner(call->t[0]), err);
}

/* ---- two inputs ---- */

struct add_fn {
    gpu_view out, a, b;
    __device__ void operator()(int64_t r, int64_t i) const {
        const uint8_t *br = b.n_dims == a.n_dims ? gpu_row(b, r) : b.data;
        gpu_set(out.dtype, gpu_row(out, r), i, gpu_get(a.dtype, gpu_row(a, r), i) + gpu_get(b.dtype, br, i));
    }
    __device__ void quad(int64_t r, int64_t i) const {
        const float4 v = gpu_get4(a.dtype, gpu_row(a, r), i), w = gpu_get4(b.dtype, b.n_dims == a.n_dims ? gpu_row(b, r) : b.data, i);
        gpu_set4(out.dtype, gpu_row(out, r), i, make_float4(v.x + w.x, v.y + w.y, v.z + w.z, v.w + w.w));
    }
};

extern "C" status cuda_add(vt_queue *q, const vt_call *call, error *err) {
    add_fn f = {gpu_view_of(call->t[0]), gpu_view_of(call->t[1]), gpu_view_of(call->t[2])};
    return each_quad(q, call, f, err);
}

struct sigmoid_fn {
    gpu_view out, x, gate;
    __device__ void operator()(int64_t r, int64_t i) const {
        float g = ((const float *)gpu_row(gate, r))[gate.dim[1] == 1 ? 0 : i];
        gpu_set(out.dtype, gpu_row(out, r), i, ((const float *)gpu_row(x, r))[i] / (1.0f + gpu_expf(-g)));
    }
};

extern "C" status cuda_mul_sigmoid(vt_queue *q, const vt_call *call, error *err) {
    sigmoid_fn f = {gpu_view_of(call->t[0]), gpu_view_of(call->t[1]), gpu_view_of(call->t[2])};
    return each(q, call, f, gpu_n_rows(call->t[0]), gpu_inner(call->t[0]), err);
}

/* ---- gates ---- */

struct silu_fn {
    gpu_view out, x;
    __device__ void operator()(int64_t r, int64_t i) const {
        const float *row = (const float *)gpu_row(x, r);
        gpu_set(out.dtype, gpu_row(out, r), i, gpu_silu(row[i]) * row[out.dim[1] + i]);
    }
    __device__ void quad(int64_t r, int64_t i) const {
        const float4 g = gpu_get4(VT_F32, gpu_row(x, r), i), u = gpu_get4(VT_F32, gpu_row(x, r), out.dim[1] / 4 + i);
        gpu_set4(out.dtype, gpu_row(out, r), i, make_float4(gpu_silu(g.x) * u.x, gpu_silu(g.y) * u.y, gpu_silu(g.z) * u.z, gpu_silu(g.w) * u.w));
    }
};

extern "C" status cuda_silu_and_mul(vt_queue *q, const vt_call *call, error *err) {
    silu_fn f = {gpu_view_of(call->t[0]), gpu_view_of(call->t[1])};
    return each_quad(q, call, f, err);
}

struct gelu_fn {
    gpu_view out, x;
    __device__ void operator()(int64_t r, int64_t i) const {
        const float *row = (const float *)gpu_row(x, r);
        gpu_set(out.dtype, gpu_row(out, r), i, gpu_gelu(row[i]) * row[out.dim[1] + i]);
    }
    __device__ void quad(int64_t r, int64_t i) const {
        const float4 g = gpu_get4(VT_F32, gpu_row(x, r), i), u = gpu_get4(VT_F32, gpu_row(x, r), out.dim[1] / 4 + i);
        gpu_set4(out.dtype, gpu_row(out, r), i, make_float4(gpu_gelu(g.x) * u.x, gpu_gelu(g.y) * u.y, gpu_gelu(g.z) * u.z, gpu_gelu(g.w) * u.w));
    }
};

extern "C" status cuda_gelu_and_mul(vt_queue *q, const vt_call *call, error *err) {
    gelu_fn f = {gpu_view_of(call->t[0]), gpu_view_of(call->t[1])};
    return each_quad(q, call, f, err);
}

struct swiglu_fn {
    gpu_view out, x;
    vt_swiglu_params p;
    __device__ void operator()(int64_t r, int64_t i) const {
        const float *row = (const float *)gpu_row(x, r);
        float g = p.interleaved ? row[2 * i] : row[i], u = p.interleaved ? row[2 * i + 1] : row[out.dim[1] + i];
        gpu_set(out.dtype, gpu_row(out, r), i, gpu_swiglu(g, u, p.alpha, p.limit));
    }
};

extern "C" status cuda_swiglu_clamp_and_mul(vt_queue *q, const vt_call *call, error *err) {
    swiglu_fn f = {gpu_view_of(call->t[0]), gpu_view_of(call->t[1]), call->p.swiglu};
    return each(q, call, f, gpu_n_rows(call->t[0]), gpu_inner(call->t[0]), err);
}

/* ---- combination: j ascending, each product and each sum rounded ---- */

struct combine_fn {
    gpu_view out, y, index, weights;
    __device__ void operator()(int64_t r, int64_t i) const {
        const int32_t *at = (const int32_t *)gpu_row(index, r);
        const float *w = (const float *)gpu_row(weights, r);
        float sum = 0.0f;
        for (int64_t j = 0; j < index.dim[1]; j++) {
            int64_t from = at[j] >= 0 && at[j] < y.dim[0] ? at[j] : 0;
            float v = w[j] * ((const float *)(y.data + from * y.stride[0]))[i];
            sum = j == 0 ? v : sum + v;
        }
        ((float *)gpu_row(out, r))[i] = sum;
    }
};

/* The same four columns at a time. */
struct combine4_fn {
    gpu_view out, y, index, weights;
    __device__ void operator()(int64_t r, int64_t i) const {
        const int32_t *at = (const int32_t *)gpu_row(index, r);
        const float *w = (const float *)gpu_row(weights, r);
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
        for (int64_t j = 0; j < index.dim[1]; j++) {
            const int64_t from = at[j] >= 0 && at[j] < y.dim[0] ? at[j] : 0;
            const float4 v = ((const float4 *)(y.data + from * y.stride[0]))[i];
            const float4 t = make_float4(w[j] * v.x, w[j] * v.y, w[j] * v.z, w[j] * v.w);
            sum = j == 0 ? t : make_float4(sum.x + t.x, sum.y + t.y, sum.z + t.z, sum.w + t.w);
        }
        ((float4 *)gpu_row(out, r))[i] = sum;
    }
};

extern "C" status cuda_moe_combine(vt_queue *q, const vt_call *call, error *err) {
    const vt_tensor *out = call->t[0], *y = call->t[1];
    if (out->dim[1] % 4 == 0 && out->stride[0] % 4 == 0 && y->stride[0] % 4 == 0 && (uintptr_t)out->data % 16 == 0 && (uintptr_t)y->data % 16 == 0) {
        combine4_fn f = {gpu_view_of(out), gpu_view_of(y), gpu_view_of(call->t[2]), gpu_view_of(call->t[3])};
        return each(q, call, f, gpu_n_rows(out), gpu_inner(out) / 4, err);
    }
    combine_fn f = {gpu_view_of(call->t[0]), gpu_view_of(call->t[1]), gpu_view_of(call->t[2]), gpu_view_of(call->t[3])};
    return each(q, call, f, gpu_n_rows(call->t[0]), gpu_inner(call->t[0]), err);
}

/* ---- quantisation: one warp a block of 32 or 256 ---- */

__global__ void quantize_kernel(gpu_view out, gpu_view x, int64_t n_blocks, int64_t per_row) {
    int64_t b = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (b >= n_blocks) return;
    const int lane = threadIdx.x % 32;
    const bool wide = out.dtype == VT_Q8_A256;
    const int per_lane = wide ? 8 : 1;
    const float *from = (const float *)gpu_row(x, b / per_row) + b % per_row * (wide ? 256 : 32) + lane * per_lane;
    uint8_t *to = gpu_row(out, b / per_row) + b % per_row * (wide ? 292 : 40);
    float max = 0.0f;
    bool finite = true;
    for (int i = 0; i < per_lane; i++) {
        float v = fabsf(from[i]);
        if (!gpu_finite(v)) finite = false;
        if (v > max) max = v;
    }
    finite = gpu_all(finite);
    max = gpu_warp_max(max);
    float d = finite ? max / 127.0f : __uint_as_float(0x7FC00000u);
    int sum = 0;
    for (int i = 0; i < per_lane; i++) {
        float r = finite && d > 0.0f ? rintf(from[i] / d) : 0.0f;
        r = r > 127.0f ? 127.0f : r < -127.0f ? -127.0f : r;
        int v = (int)r;
        to[(wide ? 36 : 8) + lane * per_lane + i] = (uint8_t)v;
        sum += v;
    }
    if (wide) {
        sum += gpu_shfl_xor(sum, 1);
        if (lane % 2 == 0) ((int16_t *)(to + 4))[lane / 2] = (int16_t)sum;
    } else {
        for (int s = 16; s > 0; s >>= 1) sum += gpu_shfl_xor(sum, s);
        if (lane == 0) *(int32_t *)(to + 4) = sum;
    }
    if (lane == 0) *(float *)to = d;
}

extern "C" status cuda_quantize_rows(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    gpu_view out = gpu_view_of(call->t[0]), x = gpu_view_of(call->t[1]);
    int64_t per_row = gpu_inner(call->t[1]) / gpu_block_elems(out.dtype), n_blocks = gpu_n_rows(call->t[1]) * per_row;
    if (n_blocks <= 0) return STATUS_OK;
    quantize_kernel<<<(unsigned)gpu_ceil(n_blocks, THREADS / 32), THREADS, 0, gpu_stream(q)>>>(out, x, n_blocks, per_row);
    return gpu_launched(call, err);
}
