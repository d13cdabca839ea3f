/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary embedding, the paged cache and attention over it.
 *
 * Attention: a block takes one row of the step and up to HEADS query heads of one kv head, and goes through the spans of VT_ATTENTION_SPAN
 * positions, anchored at absolute position 0: a thread computes the scores of one position for all its heads; threads then share the
 * dimensions of the values. With few rows in a step each span has a block of its own, which leaves maximum, denominator and unnormalised
 * sum in the queue's workspace, and a second kernel merges them in ascending order: the operations of the walk through all spans, so both
 * ways give the same bits. */
#include "vt/cuda/gpu_pages.cuh"
#include "vt/cuda/gpu_quads.cuh"

static const int THREADS = 256, WARPS = THREADS / 32, SPAN = VT_ATTENTION_SPAN;

/* ---- rotary embedding ---- */

static const int ROPE_HEADS = 4; /* of a row that share an angle's sine and cosine */

/* A block: a row, ROPE_HEADS heads of it. */
__global__ void rope_kernel(gpu_view x, gpu_view pos, gpu_view inv_freq, vt_rope_params p) {
    const int64_t n_pairs = inv_freq.dim[0], head = (int64_t)blockIdx.y * ROPE_HEADS, n = x.dim[1] - head < ROPE_HEADS ? x.dim[1] - head : ROPE_HEADS;
    for (int64_t r = blockIdx.x; r < x.dim[0]; r += gridDim.x) {
        const float position = (float)*(const int32_t *)(pos.data + r * pos.stride[0]);
        uint8_t *heads = x.data + r * x.stride[0] + head * x.stride[1];
        for (int64_t i = threadIdx.x; i < n_pairs; i += blockDim.x) {
            const float angle = position * ((const float *)inv_freq.data)[i];
            const float c = cosf(angle) * p.mscale, s = sinf(angle) * p.mscale;
            const int64_t i0 = p.pairing == VT_ROPE_HALF ? i : 2 * i, i1 = p.pairing == VT_ROPE_HALF ? i + n_pairs : 2 * i + 1;
            float a[ROPE_HEADS], b[ROPE_HEADS];
#pragma unroll
            for (int h = 0; h < ROPE_HEADS; h++) {
                const float *row = (const float *)(heads + h * x.stride[1]);
                a[h] = h < n ? row[i0] : 0.0f, b[h] = h < n ? row[i1] : 0.0f;
            }
#pragma unroll
            for (int h = 0; h < ROPE_HEADS; h++) {
                float *row = (float *)(heads + h * x.stride[1]);
                if (h < n) row[i0] = a[h] * c - b[h] * s, row[i1] = b[h] * c + a[h] * s;
            }
        }
    }
}

extern "C" status cuda_rope(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    const vt_tensor *x = call->t[0];
    const int64_t n_pairs = call->t[2]->dim[0], most = 1 << 20, across = gpu_ceil(x->dim[1], ROPE_HEADS);
    if (gpu_count(x) <= 0 || n_pairs <= 0) return STATUS_OK;
    if (across > 65535) return cuda_refuse(err, "a rotation of too many heads");
    dim3 grid((unsigned)(x->dim[0] < most ? x->dim[0] : most), (unsigned)across);
    rope_kernel<<<grid, n_pairs <= 64 ? 64 : 128, 0, gpu_stream(q)>>>(gpu_view_of(x), gpu_view_of(call->t[1]), gpu_view_of(call->t[2]), call->p.rope);
    return gpu_launched(call, err);
}

/* ---- pages ---- */

/* STEP columns at a time, four where x and the cache take quads. */
template <int STEP> __global__ void kv_write_kernel(gpu_view cache, gpu_view x, page_map m, int64_t n) {
    const int64_t heads = x.dim[1], width = x.dim[2] / STEP;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < n; at += (int64_t)gridDim.x * blockDim.x) {
        int64_t i = at % width, head = at / width % heads, row = at / width / heads, pos = position_of(m, row);
        uint8_t *to = cache.data + page_of(m, row, pos, cache.dim[0]) * cache.stride[0] + head * cache.stride[1] +
                      pos % m.page_tokens * cache.stride[2];
        const uint8_t *from = x.data + row * x.stride[0] + head * x.stride[1];
        if (STEP == 4)
            gpu_set4(cache.dtype, to, i, gpu_get4(VT_F32, from, i));
        else
            gpu_set(cache.dtype, to, i, ((const float *)from)[i]);
    }
}

extern "C" status cuda_kv_write(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    const bool quads = gpu_takes_quads(call->t[0]) && gpu_takes_quads(call->t[1]);
    const int64_t n = gpu_count(call->t[1]) / (quads ? 4 : 1), most = 1 << 20;
    if (n <= 0) return STATUS_OK;
    const int64_t blocks = gpu_ceil(n, THREADS);
    const unsigned grid = (unsigned)(blocks < most ? blocks : most);
    const gpu_view cache = gpu_view_of(call->t[0]), x = gpu_view_of(call->t[1]);
    const page_map map = page_map_of(call, 2, call->t[0]);
    if (quads)
        kv_write_kernel<4><<<grid, THREADS, 0, gpu_stream(q)>>>(cache, x, map, n);
    else
        kv_write_kernel<1><<<grid, THREADS, 0, gpu_stream(q)>>>(cache, x, map, n);
    return gpu_launched(call, err);
}

/* ---- attention ---- */

struct attention_args {
    gpu_view out, query, k, v, sinks;
    page_map map;
    vt_attention_params p;
    int32_t group, n_chunks; /* query heads of a kv head; blocks they are shared out to */
    int32_t n_splits;        /* 1: a block walks all spans; else one span a block, through the workspace */
    float *partial;          /* [row, head, span]: maximum, denominator, sum[D] */
};

/* Shared memory of a block, in floats: queries, running sums and probabilities of each head, sums of thread groups, reductions. */
struct attention_shape {
    int width, padded, units, groups; /* whole fours of dimensions; pairs of them; groups of threads that share the positions */
};

GPU_HD attention_shape shape_of(int64_t width) {
    attention_shape s;
    s.width = (int)width;
    s.padded = (int)((width + 3) / 4 * 4);
    s.units = (int)((width + 1) / 2);
    s.groups = s.units >= THREADS ? 1 : THREADS / s.units;
    if (s.groups > 8) s.groups = 8;
    return s;
}

GPU_HD size_t attention_shared(int heads, int64_t width) {
    attention_shape s = shape_of(width);
    size_t padded = (size_t)s.padded;
    return ((size_t)heads * padded * (2 + s.groups) + (size_t)heads * SPAN + 2 * (size_t)SPAN + (size_t)heads * (WARPS + 2)) * 4 + 16;
}

/* q . key over the width: four partial sums, element i in sum i % 4, (0 + 2) + (1 + 3). */
template <int HEADS> GPU_FN void scores_of(const attention_args &a, const float *q, const uint8_t *key, int width, int padded, float *s) {
    float acc[HEADS][4];
#pragma unroll
    for (int h = 0; h < HEADS; h++) acc[h][0] = acc[h][1] = acc[h][2] = acc[h][3] = 0.0f;
    const bool half = a.k.dtype != VT_F32, aligned = ((uintptr_t)key & 15) == 0;
    int i = 0;
    if (aligned) {
#pragma unroll 2
        for (; i + 8 <= width; i += 8) {
            float x[8];
            if (half) {
                uint4 raw = *(const uint4 *)((const uint16_t *)key + i);
                uint32_t w[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    uint16_t bits = (uint16_t)(w[j / 2] >> (16 * (j % 2)));
                    x[j] = a.k.dtype == VT_F16 ? gpu_f16(bits) : gpu_bf16(bits);
                }
            } else {
                float4 u = *(const float4 *)((const float *)key + i), v = *(const float4 *)((const float *)key + i + 4);
                x[0] = u.x, x[1] = u.y, x[2] = u.z, x[3] = u.w, x[4] = v.x, x[5] = v.y, x[6] = v.z, x[7] = v.w;
            }
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                const float4 *qh = (const float4 *)(q + h * padded + i);
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const float4 y = qh[j];
                    acc[h][0] = fmaf(y.x, x[4 * j], acc[h][0]);
                    acc[h][1] = fmaf(y.y, x[4 * j + 1], acc[h][1]);
                    acc[h][2] = fmaf(y.z, x[4 * j + 2], acc[h][2]);
                    acc[h][3] = fmaf(y.w, x[4 * j + 3], acc[h][3]);
                }
            }
        }
    }
    for (; i < width; i++) {
        float x = gpu_get(a.k.dtype, key, i);
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (i % 4 == j) acc[h][j] = fmaf(q[h * padded + i], x, acc[h][j]);
        }
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) s[h] = (acc[h][0] + acc[h][2]) + (acc[h][1] + acc[h][3]);
}

template <int HEADS> __global__ void __launch_bounds__(THREADS) attention_kernel(attention_args a) {
    extern __shared__ float shared[];
    const attention_shape shape = shape_of(a.query.dim[2]);
    const int width = shape.width, v_width = (int)a.v.dim[3], padded = shape.padded, t = threadIdx.x;
    float *q = shared, *sum = q + HEADS * padded, *parts = sum + HEADS * padded, *prob = parts + (size_t)shape.groups * HEADS * padded;
    float *warp_of = prob + HEADS * SPAN, *m_of = warp_of + HEADS * WARPS, *l_of = m_of + HEADS;
    int64_t *places = (int64_t *)(((uintptr_t)(l_of + HEADS) + 7) & ~(uintptr_t)7); /* page of each position of the span */

    const int64_t row = blockIdx.x, pos = position_of(a.map, row);
    const int kv_head = blockIdx.y / a.n_chunks, first = blockIdx.y % a.n_chunks * HEADS;
    const int n_heads = a.group - first < HEADS ? a.group - first : HEADS;
    const int64_t head0 = (int64_t)kv_head * a.group + first;
    const int64_t start = a.p.window > 0 && pos - a.p.window + 1 > 0 ? pos - a.p.window + 1 : 0;
    int64_t span = start / SPAN, last = pos / SPAN;
    if (a.n_splits > 1) {
        if (span > (int64_t)blockIdx.z || last < (int64_t)blockIdx.z) return;
        span = last = blockIdx.z;
    }

    for (int i = t; i < HEADS * padded; i += THREADS) {
        int h = i / padded, d = i % padded;
        q[i] = h < n_heads && d < width ? ((const float *)(a.query.data + row * a.query.stride[0] + (head0 + h) * a.query.stride[1]))[d] : 0.0f;
        sum[i] = 0.0f;
    }
    if (t < HEADS) {
        m_of[t] = -gpu_infinity();
        l_of[t] = 0.0f;
    }
    bool first_span = true;
    for (; span <= last; span++, first_span = false) {
        const int64_t j = span * SPAN + t;
        const bool in = j >= start && j <= pos;
        __syncthreads();
        float s[HEADS];
        if (in) {
            int64_t page = page_of(a.map, row, j, a.k.dim[0]), place = j % a.map.page_tokens;
            places[t] = page * a.v.stride[0] + place * a.v.stride[2];
            scores_of<HEADS>(a, q, a.k.data + page * a.k.stride[0] + kv_head * a.k.stride[1] + place * a.k.stride[2], width, padded, s);
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            s[h] = in ? a.p.scale * s[h] : -gpu_infinity();
            if (in && a.p.softcap > 0.0f) s[h] = a.p.softcap * tanhf(s[h] / a.p.softcap);
            float m = gpu_warp_max(s[h]);
            if (t % 32 == 0) warp_of[h * WARPS + t / 32] = m;
        }
        __syncthreads();
        float m2[HEADS];
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            m2[h] = warp_of[h * WARPS];
            for (int w = 1; w < WARPS; w++) m2[h] = warp_of[h * WARPS + w] > m2[h] ? warp_of[h * WARPS + w] : m2[h];
        }
        __syncthreads();
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float p = in ? gpu_expf(s[h] - m2[h]) : 0.0f;
            prob[h * SPAN + t] = p;
            float l = gpu_warp_sum(p);
            if (t % 32 == 0) warp_of[h * WARPS + t / 32] = l;
        }
        __syncthreads();

        /* values: group g of threads takes positions g, g + groups, ... ascending */
        const int begin = (int)(start > span * SPAN ? start - span * SPAN : 0), end = (int)(pos - span * SPAN < SPAN - 1 ? pos - span * SPAN + 1 : SPAN);
        const int g = t / shape.units;
        for (int u = shape.groups == 1 ? t : t % shape.units; g < shape.groups || shape.groups == 1; u += THREADS) {
            if (u >= shape.units) break;
            float o[HEADS][2];
#pragma unroll
            for (int h = 0; h < HEADS; h++) o[h][0] = o[h][1] = 0.0f;
            const int from = shape.groups == 1 ? 0 : g;
            int jj = from;
            if (jj < begin) jj += (begin - jj + shape.groups - 1) / shape.groups * shape.groups;
            if (2 * u >= v_width) {
                if (shape.groups > 1) break;
                continue;
            }
            const bool pair = 2 * u + 1 < v_width;
            const bool words = a.v.dtype != VT_F32 && pair && (((uintptr_t)a.v.data | a.v.stride[0] | a.v.stride[1] | a.v.stride[2]) & 3) == 0;
#pragma unroll 4
            for (; jj < end; jj += shape.groups) {
                const uint8_t *value = a.v.data + places[jj] + kv_head * a.v.stride[1];
                float x0, x1;
                if (words) {
                    const uint32_t bits = ((const uint32_t *)value)[u];
                    x0 = a.v.dtype == VT_F16 ? gpu_f16((uint16_t)bits) : gpu_bf16((uint16_t)bits);
                    x1 = a.v.dtype == VT_F16 ? gpu_f16((uint16_t)(bits >> 16)) : gpu_bf16((uint16_t)(bits >> 16));
                } else {
                    x0 = gpu_get(a.v.dtype, value, 2 * u);
                    x1 = pair ? gpu_get(a.v.dtype, value, 2 * u + 1) : 0.0f;
                }
#pragma unroll
                for (int h = 0; h < HEADS; h++) {
                    o[h][0] = fmaf(prob[h * SPAN + jj], x0, o[h][0]);
                    o[h][1] = fmaf(prob[h * SPAN + jj], x1, o[h][1]);
                }
            }
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                parts[((size_t)from * HEADS + h) * padded + 2 * u] = o[h][0];
                if (pair) parts[((size_t)from * HEADS + h) * padded + 2 * u + 1] = o[h][1];
            }
            if (shape.groups > 1) break;
        }
        __syncthreads();
        for (int i = t; i < HEADS * padded; i += THREADS) {
            int h = i / padded;
            if (i % padded >= v_width) continue;
            float o2 = parts[i];
            for (int w = 1; w < shape.groups; w++) o2 += parts[(size_t)w * HEADS * padded + i];
            float l2 = warp_of[h * WARPS];
            for (int w = 1; w < WARPS; w++) l2 += warp_of[h * WARPS + w];
            if (a.n_splits > 1) {
                if (h < n_heads) {
                    float *to = a.partial + ((row * a.query.dim[1] + head0 + h) * a.n_splits + span) * (width + 2);
                    to[2 + i % padded] = o2;
                    if (i % padded == 0) to[1] = l2;
                }
                continue;
            }
            float m_old = m_of[h], m_span = m2[0];
#pragma unroll
            for (int x = 1; x < HEADS; x++) m_span = h == x ? m2[x] : m_span;
            float m_new = m_old > m_span ? m_old : m_span;
            float keep = gpu_expf(m_old - m_new), take = gpu_expf(m_span - m_new);
            sum[i] = first_span ? o2 : sum[i] * keep + o2 * take;
        }
        if (a.n_splits > 1) {
            if (t < n_heads) {
                float m_span = m2[0];
#pragma unroll
                for (int x = 1; x < HEADS; x++) m_span = t == x ? m2[x] : m_span;
                a.partial[((row * a.query.dim[1] + head0 + t) * a.n_splits + span) * (width + 2)] = m_span;
            }
            return;
        }
        __syncthreads();
        if (t < HEADS) {
            float l2 = warp_of[t * WARPS];
            for (int w = 1; w < WARPS; w++) l2 += warp_of[t * WARPS + w];
            float m_old = m_of[t], m_span = m2[0];
#pragma unroll
            for (int x = 1; x < HEADS; x++) m_span = t == x ? m2[x] : m_span;
            float m_new = m_old > m_span ? m_old : m_span;
            l_of[t] = first_span ? l2 : l_of[t] * gpu_expf(m_old - m_new) + l2 * gpu_expf(m_span - m_new);
            m_of[t] = first_span ? m_span : m_new;
        }
    }
    __syncthreads();
    for (int i = t; i < HEADS * padded; i += THREADS) {
        int h = i / padded, d = i % padded;
        if (h >= n_heads || d >= v_width) continue;
        float o = sum[i], l = l_of[h];
        if (a.sinks.n_dims) {
            float sink = *(const float *)(a.sinks.data + (head0 + h) * a.sinks.stride[0]);
            float m_new = m_of[h] > sink ? m_of[h] : sink, keep = gpu_expf(m_of[h] - m_new);
            o = o * keep;
            l = l * keep + gpu_expf(sink - m_new);
        }
        gpu_set(a.out.dtype, a.out.data + row * a.out.stride[0] + (head0 + h) * a.out.stride[1], d, o / l);
    }
}

/* The spans of one row and head, ascending: what the walk of attention_kernel does with them. */
__global__ void merge_kernel(attention_args a) {
    const int64_t row = blockIdx.x, head = blockIdx.y, width = a.query.dim[2], v_width = a.v.dim[3], pos = position_of(a.map, row);
    const int64_t start = a.p.window > 0 && pos - a.p.window + 1 > 0 ? pos - a.p.window + 1 : 0;
    const int64_t begin = start / SPAN, last = pos / SPAN;
    const float *from = a.partial + (row * a.query.dim[1] + head) * a.n_splits * (width + 2);
    for (int64_t d = threadIdx.x; d < v_width; d += blockDim.x) {
        float m = -gpu_infinity(), l = 0.0f, o = 0.0f;
        for (int64_t s = begin; s <= last; s++) {
            const float *p = from + s * (width + 2);
            float m_new = m > p[0] ? m : p[0], keep = gpu_expf(m - m_new), take = gpu_expf(p[0] - m_new);
            o = s == begin ? p[2 + d] : o * keep + p[2 + d] * take;
            l = s == begin ? p[1] : l * keep + p[1] * take;
            m = s == begin ? p[0] : m_new;
        }
        if (a.sinks.n_dims) {
            float sink = *(const float *)(a.sinks.data + head * a.sinks.stride[0]);
            float m_new = m > sink ? m : sink, keep = gpu_expf(m - m_new);
            o = o * keep;
            l = l * keep + gpu_expf(sink - m_new);
        }
        gpu_set(a.out.dtype, a.out.data + row * a.out.stride[0] + head * a.out.stride[1], d, o / l);
    }
}

template <int HEADS> static status run_attention(vt_queue *q, const vt_call *call, attention_args *a, error *err) {
    const int64_t n_rows = call->t[1]->dim[0], n_heads = call->t[1]->dim[1], width = call->t[1]->dim[2], n_kv = call->t[2]->dim[1];
    const size_t bytes = attention_shared(HEADS, width);
    if (bytes > (size_t)gpu_device(q)->shared_bytes) return cuda_refuse(err, "paged_attention: heads too wide for shared memory");
    if (bytes > 48 << 10)
        TRY(cuda_result(gpu_allow_shared(attention_kernel<HEADS>, bytes), "shared memory", err));
    a->n_chunks = (int32_t)gpu_ceil(a->group, HEADS);
    const int64_t blocks = n_rows * n_kv * a->n_chunks, spans = gpu_ceil(a->map.pages.dim[1] * a->map.page_tokens, SPAN);
    const bool few = blocks < 2 * gpu_device(q)->n_multiprocessors;
    a->n_splits = 1;
    if (few && spans > 1 && spans <= 65535 && n_rows * n_heads * spans * (width + 2) * 4 <= (int64_t)CUDA_WORKSPACE_BYTES) {
        a->n_splits = (int32_t)spans;
        a->partial = (float *)((cuda_queue *)q->handle)->workspace;
    }
    dim3 grid((unsigned)n_rows, (unsigned)(n_kv * a->n_chunks), (unsigned)a->n_splits);
    attention_kernel<HEADS><<<grid, THREADS, bytes, gpu_stream(q)>>>(*a);
    TRY(gpu_launched(call, err));
    if (a->n_splits == 1) return STATUS_OK;
    merge_kernel<<<dim3((unsigned)n_rows, (unsigned)n_heads), 128, 0, gpu_stream(q)>>>(*a);
    return gpu_launched(call, err);
}

extern "C" status cuda_paged_attention(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    attention_args a = {};
    a.out = gpu_view_of(call->t[0]);
    a.query = gpu_view_of(call->t[1]);
    a.k = gpu_view_of(call->t[2]);
    a.v = gpu_view_of(call->t[3]);
    a.sinks = gpu_view_of(call->t[7]);
    a.map = page_map_of(call, 4, call->t[2]);
    a.p = call->p.attention;
    if (gpu_count(call->t[0]) <= 0) return STATUS_OK;
    a.group = (int32_t)(call->t[1]->dim[1] / call->t[2]->dim[1]);
    if (call->t[2]->dim[1] * a.group > 65535) return cuda_refuse(err, "paged_attention: more than 65535 heads");
    return a.group == 1   ? run_attention<1>(q, call, &a, err)
           : a.group == 2 ? run_attention<2>(q, call, &a, err)
           : a.group <= 4 ? run_attention<4>(q, call, &a, err)
                          : run_attention<8>(q, call, &a, err);
}
