/* SPDX-License-Identifier: Apache-2.0 */
/* Heads between products and attention in one launch: norm, rotation and place in the cache, a warp a head. A block takes a row, or eight heads of one where rows are few; the sines and
 * cosines of its position are made once. The operations are those of rms_norm, rope and kv_write, in their order, so that the bits are theirs. */
#include "vt/cuda/gpu_launch.cuh"
#include "vt/cuda/gpu_pages.cuh"
#include "vt/cuda/gpu_quads.cuh"

static const int WARPS = 8, KEPT = VT_HEADS_WIDTH / 128; /* quads of a lane */

struct heads_args {
    gpu_view q, k, v, q_norm, k_norm, inv_freq, k_cache, v_cache;
    page_map map;
    vt_heads_params p;
    int32_t width, n_q, n_kv, n_pairs, n_block; /* n_block: heads of a block */
};

/* Heads of a row in order: of q, of k, of v. */
struct heads_head {
    int kind, at; /* 0: q, 1: k, 2: v */
};

GPU_FN heads_head heads_of(const heads_args &a, int h) {
    if (h < a.n_q) return {0, h};
    return h < a.n_q + a.n_kv ? heads_head{1, h - a.n_q} : heads_head{2, h - a.n_q - a.n_kv};
}

GPU_FN uint8_t *heads_source(const heads_args &a, heads_head h, int64_t row) {
    if (h.kind == 0) return a.q.data + row * a.q.stride[0] + h.at * a.q.stride[1];
    if (h.kind == 1 || a.v.n_dims == 0) return a.k.data + row * a.k.stride[0] + h.at * a.k.stride[1];
    return a.v.data + row * a.v.stride[0] + h.at * a.v.stride[1];
}

template <bool QUADS> __global__ void __launch_bounds__(WARPS * 32) heads_kernel(const __grid_constant__ heads_args a) {
    extern __shared__ __align__(16) float heads_shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, width = a.width, quads = (width + 3) / 4, n_pairs = a.n_pairs;
    const int first = blockIdx.y * a.n_block, all = a.n_q + 2 * a.n_kv, end = first + a.n_block < all ? first + a.n_block : all;
    const int64_t row = blockIdx.x;
    float *cosines = heads_shared, *sines = cosines + (n_pairs + 3) / 4 * 4, *mine = sines + (n_pairs + 3) / 4 * 4 + warp * quads * 4;
    float4 x[KEPT], by[KEPT];
    auto load = [&](int h) {
        const uint8_t *from = heads_source(a, heads_of(a, h), row);
#pragma unroll
        for (int j = 0; j < KEPT; j++) x[j] = lane + j * 32 < quads ? gpu_get_quad<QUADS>(VT_F32, from, lane + j * 32, width) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    };
    auto load_norm = [&](int h) {
        const heads_head head = heads_of(a, h);
        const gpu_view &w = head.kind == 0 ? a.q_norm : a.k_norm;
#pragma unroll
        for (int j = 0; j < KEPT; j++)
            by[j] = head.kind != 2 && w.n_dims != 0 && lane + j * 32 < quads ? gpu_get_quad<QUADS>(w.dtype, w.data, lane + j * 32, width) : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    };
    int h = first + warp;
    gpu_let_next_start();
    if (h < end) load_norm(h); /* norms, positions and page tables are there before the heads are: no kernel writes them */
    const int64_t pos = position_of(a.map, row);
    const int64_t page = page_of(a.map, row, pos, a.k_cache.dim[0]), place = pos % a.map.page_tokens;
    for (int i = threadIdx.x; i < n_pairs; i += WARPS * 32) {
        const float angle = (float)(int32_t)pos * ((const float *)a.inv_freq.data)[i];
        cosines[i] = cosf(angle) * a.p.rope.mscale;
        sines[i] = sinf(angle) * a.p.rope.mscale;
    }
    __syncthreads();
    gpu_await_previous();
    if (h < end) load(h);
    for (; h < end; h += WARPS) {
        const heads_head head = heads_of(a, h);
        const gpu_view &w = head.kind == 0 ? a.q_norm : a.k_norm;
        if (head.kind == 2 ? a.p.v_norm : w.n_dims != 0) {
            const bool weighted = head.kind != 2;
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < KEPT; j++) sum = fmaf(x[j].w, x[j].w, fmaf(x[j].z, x[j].z, fmaf(x[j].y, x[j].y, fmaf(x[j].x, x[j].x, sum))));
            sum = gpu_warp_sum(sum);
            const float scale = 1.0f / sqrtf(sum / (float)width + a.p.norm.eps), offset = weighted ? a.p.norm.w_offset : 0.0f;
#pragma unroll
            for (int j = 0; j < KEPT; j++) {
                if (lane + j * 32 >= quads) continue;
                x[j] = make_float4((x[j].x * scale) * (by[j].x + offset), (x[j].y * scale) * (by[j].y + offset), (x[j].z * scale) * (by[j].z + offset), (x[j].w * scale) * (by[j].w + offset));
            }
        }
        if (head.kind != 2 && n_pairs > 0) {
#pragma unroll
            for (int j = 0; j < KEPT; j++)
                if (lane + j * 32 < quads) ((float4 *)mine)[lane + j * 32] = x[j];
            gpu_sync_warp();
            const bool half = a.p.rope.pairing == VT_ROPE_HALF;
            if (half && n_pairs % 4 == 0) {
                for (int i = lane; i < n_pairs / 4; i += 32) {
                    float4 *to = (float4 *)mine + i;
                    const float4 c = ((const float4 *)cosines)[i], s = ((const float4 *)sines)[i], u = to[0], v = to[n_pairs / 4];
                    to[0] = make_float4(u.x * c.x - v.x * s.x, u.y * c.y - v.y * s.y, u.z * c.z - v.z * s.z, u.w * c.w - v.w * s.w);
                    to[n_pairs / 4] = make_float4(v.x * c.x + u.x * s.x, v.y * c.y + u.y * s.y, v.z * c.z + u.z * s.z, v.w * c.w + u.w * s.w);
                }
            } else {
                for (int i = lane; i < n_pairs; i += 32) {
                    const int i0 = half ? i : 2 * i, i1 = half ? i + n_pairs : 2 * i + 1;
                    const float c = cosines[i], s = sines[i], u = mine[i0], v = mine[i1];
                    mine[i0] = u * c - v * s;
                    mine[i1] = v * c + u * s;
                }
            }
            gpu_sync_warp();
#pragma unroll
            for (int j = 0; j < KEPT; j++)
                if (lane + j * 32 < quads) x[j] = ((const float4 *)mine)[lane + j * 32];
            gpu_sync_warp(); /* the next head takes its place */
        }
        const gpu_view &cache = head.kind == 1 ? a.k_cache : a.v_cache;
        uint8_t *to = head.kind == 0 ? heads_source(a, head, row) : cache.data + page * cache.stride[0] + head.at * cache.stride[1] + place * cache.stride[2];
        const int dtype = head.kind == 0 ? VT_F32 : cache.dtype;
#pragma unroll
        for (int j = 0; j < KEPT; j++)
            if (lane + j * 32 < quads) gpu_put_quad<QUADS>(dtype, to, lane + j * 32, width, x[j]);
        if (h + WARPS < end) load(h + WARPS), load_norm(h + WARPS);
    }
}

extern "C" status cuda_prepare_heads(vt_queue *q, const vt_call *call, error *err) {
    enum { Q, K, V, Q_NORM, K_NORM, INV_FREQ, K_CACHE, V_CACHE, POS };
    TRY(gpu_enter(q, err));
    const vt_tensor *x = call->t[Q], *k = call->t[K];
    heads_args a = {gpu_view_of(x), gpu_view_of(k), gpu_view_of(call->t[V]), gpu_view_of(call->t[Q_NORM]), gpu_view_of(call->t[K_NORM]), gpu_view_of(call->t[INV_FREQ]), gpu_view_of(call->t[K_CACHE]),
                    gpu_view_of(call->t[V_CACHE]), page_map_of(call, POS, call->t[K_CACHE]), call->p.heads, 0, 0, 0, 0, 0};
    const int64_t rows = x->dim[0], n = x->dim[1] + 2 * k->dim[1], width = x->dim[2];
    if (rows <= 0 || n <= 0 || width <= 0) return STATUS_OK;
    if (rows > INT32_MAX || n > 65535 * WARPS) return cuda_refuse(err, "prepare_heads: too many rows or heads");
    a.width = (int32_t)width, a.n_q = (int32_t)x->dim[1], a.n_kv = (int32_t)k->dim[1];
    a.n_pairs = call->t[INV_FREQ]->n_dims ? (int32_t)call->t[INV_FREQ]->dim[0] : 0;
    a.n_block = rows * gpu_ceil(n, WARPS) <= 4 * (int64_t)gpu_device(q)->n_multiprocessors ? WARPS : (int32_t)n;
    const dim3 grid((unsigned)rows, (unsigned)gpu_ceil(n, a.n_block));
    const size_t shared = (size_t)((a.n_pairs + 3) / 4 * 8 + WARPS * ((a.width + 3) / 4 * 4)) * sizeof(float);
    bool quads = true;
    for (int i = Q; i <= V_CACHE; i++) quads = quads && (i == INV_FREQ || call->t[i]->n_dims == 0 || gpu_takes_quads(call->t[i]));
    return quads ? gpu_launch_grid(q, heads_kernel<true>, grid, WARPS * 32, shared, err, a) : gpu_launch_grid(q, heads_kernel<false>, grid, WARPS * 32, shared, err, a);
}
