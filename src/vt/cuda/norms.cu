/* SPDX-License-Identifier: Apache-2.0 */
/* Norms: of rows alone, and in a link between two stages of a layer (vt_add_norm). A row's sum of squares is added by fma in the order of columns within a thread, then by a tree over the lanes
 * of each warp, then by one over the warps; how many threads a row has follows from its width alone. How columns are moved (QUADS: four at a time) changes no order. */
#include "vt/cuda/gpu.cuh"
#include "vt/cuda/gpu_quads.cuh"

static const int MOST = 1024; /* threads of a row, which is a block */

GPU_FN void norm_square(float &sum, float4 v) { sum = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, sum)))); }

GPU_FN float4 norm_scaled(float4 v, float scale, float4 w, float offset) {
    return make_float4((v.x * scale) * (w.x + offset), (v.y * scale) * (w.y + offset), (v.z * scale) * (w.z + offset), (v.w * scale) * (w.w + offset));
}

/* Over the block; every thread gets it. parts: 32 of shared memory, of this call alone. */
GPU_FN float norm_block_sum(float v, float *parts) {
    const int lane = threadIdx.x % 32, n = blockDim.x / 32;
    v = gpu_warp_sum(v);
    if (n == 1) return v;
    if (lane == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    return gpu_warp_sum(lane < n ? parts[lane] : 0.0f);
}

static inline unsigned norm_threads(int64_t width) {
    const int64_t n = gpu_ceil(gpu_ceil(width, 4), 32) * 32;
    return (unsigned)(n < MOST ? n : MOST);
}

/* f(j, i) for the quads i of this thread, the j-th of those that it keeps; Q 0: it keeps none, and there may be any number. */
template <int Q, class F> GPU_FN void norm_each(int64_t quads, F f) {
    if constexpr (Q > 0) {
#pragma unroll
        for (int j = 0; j < Q; j++)
            if (threadIdx.x + j * (int)blockDim.x < quads) f(j, (int64_t)threadIdx.x + j * (int)blockDim.x);
    } else {
        for (int64_t i = threadIdx.x; i < quads; i += blockDim.x) f(0, i);
    }
}

/* ---- rows alone ---- */

/* Rows of a tensor of two or three dimensions: with what is known of them in the host's hands the kernel indexes no array. */
struct norm_rows {
    uint8_t *data; /* NULL: no weight */
    int64_t outer, inner; /* strides */
    uint32_t n_inner;     /* rows between two steps of the outer one */
    int32_t dtype;
    __device__ uint8_t *at(uint32_t r) const { return data + r / n_inner * outer + r % n_inner * inner; }
};

static norm_rows norm_rows_of(const vt_tensor *t) {
    const gpu_view v = gpu_view_of(t);
    norm_rows r = {v.n_dims != 0 ? v.data : NULL, v.n_dims > 1 ? v.stride[0] : 0, v.n_dims > 2 ? v.stride[1] : 0, v.n_dims > 2 ? (uint32_t)v.dim[1] : 1, v.dtype};
    return r;
}

template <int Q, bool QUADS> __global__ void __launch_bounds__(MOST) norm_wide_kernel(norm_rows out, norm_rows x, norm_rows w, int64_t width, vt_rms_norm_params p) {
    __shared__ float parts[32];
    const int K = Q > 0 ? Q : 1;
    const int64_t quads = (width + 3) / 4;
    const uint8_t *from = x.at(blockIdx.x);
    uint8_t *to = out.at(blockIdx.x);
    const float4 one = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    float4 v[K] = {}, wv[K] = {};
    float sum = 0.0f;
    gpu_let_next_start();
    if constexpr (Q > 0) norm_each<Q>(quads, [&](int j, int64_t i) { wv[j] = w.data ? gpu_get_quad<QUADS>(w.dtype, w.data, i, width) : one; });
    gpu_await_previous();
    if constexpr (Q > 0) norm_each<Q>(quads, [&](int j, int64_t i) { v[j] = gpu_get_quad<QUADS>(VT_F32, from, i, width); });
    norm_each<Q>(quads, [&](int j, int64_t i) { norm_square(sum, Q > 0 ? v[j] : gpu_get_quad<QUADS>(VT_F32, from, i, width)); });
    const float scale = 1.0f / sqrtf(norm_block_sum(sum, parts) / (float)width + p.eps);
    norm_each<Q>(quads, [&](int j, int64_t i) {
        if (Q == 0) v[j] = gpu_get_quad<QUADS>(VT_F32, from, i, width), wv[j] = w.data ? gpu_get_quad<QUADS>(w.dtype, w.data, i, width) : one;
        gpu_put_quad<QUADS>(out.dtype, to, i, width, norm_scaled(v[j], scale, wv[j], p.w_offset));
    });
}

static const int NARROW = 512, NARROW_THREADS = 256; /* up to so many columns a warp a row, eight in a block */

template <bool QUADS> __global__ void __launch_bounds__(NARROW_THREADS) norm_narrow_kernel(norm_rows out, norm_rows x, norm_rows w, int width, vt_rms_norm_params p, uint32_t n_rows) {
    const int Q = NARROW / 4 / 32;
    const int lane = threadIdx.x % 32, quads = (width + 3) / 4;
    const uint32_t r = blockIdx.x * (NARROW_THREADS / 32) + threadIdx.x / 32;
    gpu_let_next_start();
    if (r >= n_rows) return; /* whole warps */
    float4 v[Q], wv[Q];
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < Q; j++) wv[j] = w.data && lane + j * 32 < quads ? gpu_get_quad<QUADS>(w.dtype, w.data, lane + j * 32, width) : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    gpu_await_previous();
    const uint8_t *from = x.at(r);
    uint8_t *to = out.at(r);
#pragma unroll
    for (int j = 0; j < Q; j++) v[j] = lane + j * 32 < quads ? gpu_get_quad<QUADS>(VT_F32, from, lane + j * 32, width) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int j = 0; j < Q; j++) norm_square(sum, v[j]);
    const float scale = 1.0f / sqrtf(gpu_warp_sum(sum) / (float)width + p.eps);
#pragma unroll
    for (int j = 0; j < Q; j++)
        if (lane + j * 32 < quads) gpu_put_quad<QUADS>(out.dtype, to, lane + j * 32, width, norm_scaled(v[j], scale, wv[j], p.w_offset));
}

template <bool QUADS> static status launch_norm(vt_queue *q, const vt_call *call, int64_t n_rows, int64_t width, error *err) {
    const norm_rows out = norm_rows_of(call->t[0]), x = norm_rows_of(call->t[1]), w = norm_rows_of(call->t[2]);
    const vt_rms_norm_params p = call->p.rms_norm;
    if (width <= NARROW) return gpu_launch_early(q, norm_narrow_kernel<QUADS>, (unsigned)gpu_ceil(n_rows, NARROW_THREADS / 32), NARROW_THREADS, err, out, x, w, (int)width, p, (uint32_t)n_rows);
    const unsigned threads = norm_threads(width);
    if (width <= 4 * MOST) return gpu_launch_early(q, norm_wide_kernel<1, QUADS>, (unsigned)n_rows, threads, err, out, x, w, width, p);
    if (width <= 8 * MOST) return gpu_launch_early(q, norm_wide_kernel<2, QUADS>, (unsigned)n_rows, threads, err, out, x, w, width, p);
    return gpu_launch_early(q, norm_wide_kernel<0, QUADS>, (unsigned)n_rows, threads, err, out, x, w, width, p);
}

/* Absent, or four neighbours at a time. */
static bool may_take_quads(const vt_tensor *t) { return t->n_dims == 0 || gpu_takes_quads(t); }

extern "C" status cuda_rms_norm(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    const int64_t n_rows = gpu_n_rows(call->t[0]), width = gpu_inner(call->t[0]);
    if (n_rows <= 0 || width <= 0) return STATUS_OK;
    if (n_rows > INT32_MAX) return cuda_refuse(err, "rms_norm: too many rows");
    const bool quads = may_take_quads(call->t[0]) && may_take_quads(call->t[1]) && may_take_quads(call->t[2]);
    return quads ? launch_norm<true>(q, call, n_rows, width, err) : launch_norm<false>(q, call, n_rows, width, err);
}

/* ---- a link between stages ---- */

struct link_view {
    uint8_t *data; /* NULL: not there */
    int64_t stride;
    int32_t dtype;
};

struct link_args {
    link_view x, y, index, weights, y2, out[VT_ADD_NORM_OUTS], y_norm, y2_norm, post, norm[VT_ADD_NORM_OUTS];
    int64_t width, n_y, k;
    vt_add_norm_params p;
};

/* Four columns of y; of a combination, j ascending, each product and each sum rounded. */
template <bool QUADS> GPU_FN float4 link_y(const link_args &g, int64_t row, int64_t i) {
    if (g.index.data == NULL) return gpu_get_quad<QUADS>(VT_F32, g.y.data + row * g.y.stride, i, g.width);
    const int32_t *at = (const int32_t *)(g.index.data + row * g.index.stride);
    const float *w = (const float *)(g.weights.data + row * g.weights.stride);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
    for (int64_t j = 0; j < g.k; j++) {
        const int64_t from = at[j] >= 0 && at[j] < g.n_y ? at[j] : 0;
        const float4 v = gpu_get_quad<QUADS>(VT_F32, g.y.data + from * g.y.stride, i, g.width);
        const float4 t = make_float4(w[j] * v.x, w[j] * v.y, w[j] * v.z, w[j] * v.w);
        sum = j == 0 ? t : make_float4(sum.x + t.x, sum.y + t.y, sum.z + t.z, sum.w + t.w);
    }
    return sum;
}

/* A block a row. What a thread keeps (Q quads) it reads once; else each pass reads anew, x what the pass before wrote. */
template <int Q, bool QUADS> __global__ void __launch_bounds__(MOST) add_norm_kernel(const __grid_constant__ link_args g) {
    __shared__ float parts[4][32];
    const int K = Q > 0 ? Q : 1, N = VT_ADD_NORM_OUTS;
    const int64_t r = blockIdx.x, width = g.width, quads = (width + 3) / 4;
    const float offset = g.p.w_offset;
    uint8_t *const xr = g.x.data + r * g.x.stride;
    const uint8_t *const cr = g.y2.data != NULL ? g.y2.data + r * g.y2.stride : NULL;
    float4 b[K] = {}, c[K] = {}, x[K] = {}, wb[K] = {}, wc[K] = {}, wp[K] = {}, wn[N][K] = {};
    float scale_b = 0.0f, scale_c = 0.0f, scale_p = 0.0f, sum = 0.0f;
    auto weight = [&](const link_view &w, int64_t i) { return gpu_get_quad<QUADS>(w.dtype, w.data, i, width); };
    auto out_weight = [&](int n, int64_t i) { return g.norm[n].data ? weight(g.norm[n], i) : make_float4(1.0f, 1.0f, 1.0f, 1.0f); };
    gpu_let_next_start();
    if constexpr (Q == 1)
        norm_each<Q>(quads, [&](int j, int64_t i) {
            if (g.y_norm.data) wb[j] = weight(g.y_norm, i);
            if (g.y2_norm.data) wc[j] = weight(g.y2_norm, i);
            if (g.post.data) wp[j] = weight(g.post, i);
#pragma unroll
            for (int n = 0; n < N; n++)
                if (g.out[n].data) wn[n][j] = out_weight(n, i);
        });
    gpu_await_previous();
    if constexpr (Q > 0)
        norm_each<Q>(quads, [&](int j, int64_t i) {
            x[j] = gpu_get_quad<QUADS>(VT_F32, xr, i, width);
            if (cr) c[j] = gpu_get_quad<QUADS>(VT_F32, cr, i, width);
            b[j] = link_y<QUADS>(g, r, i);
        });
    if (g.y_norm.data) {
        norm_each<Q>(quads, [&](int j, int64_t i) { norm_square(sum, Q > 0 ? b[j] : link_y<QUADS>(g, r, i)); });
        scale_b = 1.0f / sqrtf(norm_block_sum(sum, parts[0]) / (float)width + g.p.eps);
    }
    if (cr && g.y2_norm.data) {
        sum = 0.0f;
        norm_each<Q>(quads, [&](int j, int64_t i) { norm_square(sum, Q > 0 ? c[j] : gpu_get_quad<QUADS>(VT_F32, cr, i, width)); });
        scale_c = 1.0f / sqrtf(norm_block_sum(sum, parts[1]) / (float)width + g.p.eps);
    }
    auto branches = [&](int j, int64_t i) {
        float4 s = Q > 0 ? b[j] : link_y<QUADS>(g, r, i);
        if (g.y_norm.data) s = norm_scaled(s, scale_b, Q == 1 ? wb[j] : weight(g.y_norm, i), offset);
        if (!cr) return s;
        float4 v = Q > 0 ? c[j] : gpu_get_quad<QUADS>(VT_F32, cr, i, width);
        if (g.y2_norm.data) v = norm_scaled(v, scale_c, Q == 1 ? wc[j] : weight(g.y2_norm, i), offset);
        return make_float4(s.x + v.x, s.y + v.y, s.z + v.z, s.w + v.w);
    };
    if constexpr (Q > 0) norm_each<Q>(quads, [&](int j, int64_t i) { b[j] = branches(j, i); });
    if (g.post.data) {
        sum = 0.0f;
        norm_each<Q>(quads, [&](int j, int64_t i) { norm_square(sum, Q > 0 ? b[j] : branches(j, i)); });
        scale_p = 1.0f / sqrtf(norm_block_sum(sum, parts[2]) / (float)width + g.p.eps);
    }
    sum = 0.0f;
    norm_each<Q>(quads, [&](int j, int64_t i) {
        float4 s = Q > 0 ? b[j] : branches(j, i);
        if (g.post.data) s = norm_scaled(s, scale_p, Q == 1 ? wp[j] : weight(g.post, i), offset);
        const float4 v = Q > 0 ? x[j] : gpu_get_quad<QUADS>(VT_F32, xr, i, width);
        x[j] = make_float4((v.x + s.x) * g.p.scale, (v.y + s.y) * g.p.scale, (v.z + s.z) * g.p.scale, (v.w + s.w) * g.p.scale);
        gpu_put_quad<QUADS>(VT_F32, xr, i, width, x[j]);
        norm_square(sum, x[j]);
    });
    if (!g.out[0].data && !g.out[1].data && !g.out[2].data) return;
    const float scale = 1.0f / sqrtf(norm_block_sum(sum, parts[3]) / (float)width + g.p.eps);
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (!g.out[n].data) continue;
        const float by = g.p.out_scale[n];
        uint8_t *const to = g.out[n].data + r * g.out[n].stride;
        norm_each<Q>(quads, [&](int j, int64_t i) {
            const float4 v = norm_scaled(Q > 0 ? x[j] : gpu_get_quad<QUADS>(VT_F32, xr, i, width), scale, Q == 1 ? wn[n][j] : out_weight(n, i), g.norm[n].data ? offset : 0.0f);
            gpu_put_quad<QUADS>(g.out[n].dtype, to, i, width, make_float4(v.x * by, v.y * by, v.z * by, v.w * by));
        });
    }
}

static link_view link_view_of(const vt_tensor *t) {
    const gpu_view v = gpu_view_of(t);
    return {v.n_dims != 0 ? v.data : NULL, v.n_dims == 2 ? v.stride[0] : 0, v.dtype};
}

template <bool QUADS> static status launch_link(vt_queue *q, const link_args &g, unsigned n_rows, error *err) {
    const unsigned threads = norm_threads(g.width);
    if (g.width <= 4 * MOST) return gpu_launch_early(q, add_norm_kernel<1, QUADS>, n_rows, threads, err, g);
    if (g.width <= 8 * MOST) return gpu_launch_early(q, add_norm_kernel<2, QUADS>, n_rows, threads, err, g);
    return gpu_launch_early(q, add_norm_kernel<0, QUADS>, n_rows, threads, err, g);
}

extern "C" status cuda_add_norm(vt_queue *q, const vt_call *call, error *err) {
    enum { X, OUT, Y = OUT + VT_ADD_NORM_OUTS, INDEX, WEIGHTS, Y_NORM, Y2, Y2_NORM, POST, NORM };
    TRY(gpu_enter(q, err));
    link_args g = {};
    bool quads = true;
    for (int i = 0; i < call->n_tensors; i++) quads = quads && (i == INDEX || i == WEIGHTS || may_take_quads(call->t[i]));
    g.x = link_view_of(call->t[X]), g.y = link_view_of(call->t[Y]), g.index = link_view_of(call->t[INDEX]), g.weights = link_view_of(call->t[WEIGHTS]), g.y2 = link_view_of(call->t[Y2]);
    g.y_norm = link_view_of(call->t[Y_NORM]), g.y2_norm = link_view_of(call->t[Y2_NORM]), g.post = link_view_of(call->t[POST]);
    for (int n = 0; n < VT_ADD_NORM_OUTS; n++) g.out[n] = link_view_of(call->t[OUT + n]), g.norm[n] = link_view_of(call->t[NORM + n]);
    g.width = call->t[X]->dim[1], g.n_y = call->t[Y]->dim[0], g.k = call->t[INDEX]->dim[1], g.p = call->p.add_norm;
    const int64_t n_rows = call->t[X]->dim[0];
    if (n_rows <= 0 || g.width <= 0) return STATUS_OK;
    if (n_rows > INT32_MAX) return cuda_refuse(err, "add_norm: too many rows");
    return quads ? launch_link<true>(q, g, (unsigned)n_rows, err) : launch_link<false>(q, g, (unsigned)n_rows, err);
}
