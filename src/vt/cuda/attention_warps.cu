/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on matrix units for one row of a sequence, a warp by itself: sixteen positions at a time go from memory straight into the fragments of
 * a warp, which keeps maximum, sum and values of up to eight query heads and waits for nobody. Keys are operand a as they lie (dimensions of a dot
 * may be taken in any order, the same for queries); probabilities turn into operand b by a transposition in registers, and pairs of positions of
 * the values are packed into operand a. Eight warps of a block take tiles in turn; their results are added in ascending order. A row of few
 * positions has one block; of many, equal shares of whole rounds, and the last block to end adds sixteen neighbours each, then the sums.
 *
 * Numbers as in attention_tiles.cuh. How many shares there are follows from the numbers of rows, heads, page table entries and positions. */
#include "vt/cuda/attention_tiles.cuh"
#include "vt/cuda/gpu_launch.cuh"

static const int WARPS = 8, TILE = 16, HEADS = 8, FAN = 16, MAX_SPLITS = FAN * FAN, ROUND = 128, COUNTERS = FAN + 1;

struct warps_args {
    attention_tiles_args a;
    uint32_t *counters;  /* [item, tile of heads, COUNTERS], zero between launches */
    int32_t page_shift;  /* log2 of the tokens of a page; -1: not a power of two */
    int64_t slot_floats; /* of one share in the workspace: m[HEADS], l[HEADS], sum[heads][v_width rounded up to 64] */
};

/* Keys of up to D, values of up to DV; chunks of 64 dimensions, BUFFERS of which are under way. Values that are keys stay in the first-level cache. */
template <bool HALF_, int D_, int DV_, int BUFFERS_, int BLOCKS_> struct warps_shape {
    static const bool HALF = HALF_, KEPT = D_ != DV_;
    static const int D = D_, DV = DV_, BUFFERS = BUFFERS_, BLOCKS = BLOCKS_, KC = D / 64, VC = DV / 64, CHUNKS = (KC + VC + BUFFERS - 1) / BUFFERS * BUFFERS;
    static const int STEP = DV < ROUND ? DV : ROUND; /* dimensions that are added at a time */
    static const int ITEMS = (HEADS * DV / 4 + WARPS * 32 - 1) / (WARPS * 32); /* fours of a thread in a sum of shares */
    static const int Q_AT = 0, FACTOR_AT = D * 16, ML_AT = FACTOR_AT + HEADS * 4, WEIGHT_AT = ML_AT + WARPS * HEADS * 8, TOTAL_AT = WEIGHT_AT + HEADS * FAN * 4, LAST_AT = TOTAL_AT + HEADS * 8, PART_AT = LAST_AT + 16;
    static const int BYTES = PART_AT + WARPS * HEADS * STEP * 4;
};

template <bool KEPT> GPU_FN uint4 warps_load(const uint8_t *p, bool there) {
    uint4 v;
    if constexpr (KEPT)
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0; @p ld.global.v4.u32 {%0,%1,%2,%3}, [%4]; }" : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w) : "l"(p), "r"((int)there) : "memory");
    else
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0; @p ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4]; }" : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w) : "l"(p), "r"((int)there) : "memory");
    return v;
}

GPU_FN uint32_t warps_turn(uint32_t x) {
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* Tiles of a share: whole rounds of the block's warps. */
GPU_HD int warps_share(int n_tiles, int n_splits) { return ((n_tiles + n_splits - 1) / n_splits + WARPS - 1) / WARPS * WARPS; }

/* Where positions of a tile lie, in units of sixteen bytes from the head's first key and value; ~0: not read. Lane i knows position i % 16. */
struct warps_places {
    uint32_t k, v;
};

GPU_FN warps_places warps_find(const warps_args &w, int seg, int tile, int end, int start, int pos) {
    const attention_tiles_args &a = w.a;
    const int j = tile * TILE + (int)(threadIdx.x & 15);
    warps_places at = {~0u, ~0u};
    if (tile >= end || j < start || j > pos || seg < 0 || seg >= a.map.pages.dim[0]) return at;
    const int p = w.page_shift >= 0 ? j >> w.page_shift : j / (int)a.map.page_tokens, slot = j - p * (int)a.map.page_tokens;
    int64_t page = p < a.map.pages.dim[1] ? *(const int32_t *)(a.map.pages.data + seg * a.map.pages.stride[0] + p * a.map.pages.stride[1]) : 0;
    if (page < 0 || page >= a.k.dim[0]) page = 0;
    at.k = (uint32_t)((page * a.k.stride[0] + slot * a.k.stride[2]) >> 4);
    at.v = (uint32_t)((page * a.v.stride[0] + slot * a.v.stride[2]) >> 4);
    return at;
}

/* A warp's head of the row into shared memory, as the fragments of operand b lie, and what its scores are multiplied by. */
template <class S> GPU_FN void warps_query(const attention_tiles_args &a, uint8_t *shared, int64_t row, int64_t head0, int n_heads) {
    const int h = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float4 *from = (const float4 *)(a.query.data + row * a.query.stride[0] + (head0 + h) * a.query.stride[1]);
    float x[(S::KC + 3) / 4][8], largest = 0.0f;
#pragma unroll
    for (int i = 0; i < (S::KC + 3) / 4; i++) {
        const int c = lane + 32 * i;
        float4 u = make_float4(0.0f, 0.0f, 0.0f, 0.0f), v = u;
        if (h < n_heads && c * 8 < a.width) u = from[2 * c], v = from[2 * c + 1];
        x[i][0] = u.x, x[i][1] = u.y, x[i][2] = u.z, x[i][3] = u.w, x[i][4] = v.x, x[i][5] = v.y, x[i][6] = v.z, x[i][7] = v.w;
#pragma unroll
        for (int j = 0; S::HALF && j < 8; j++) largest = fmaxf(largest, fabsf(x[i][j]));
    }
    const float2 by = attention_query_scale<S::HALF>(largest);
#pragma unroll
    for (int i = 0; i < (S::KC + 3) / 4; i++) {
        const int c = lane + 32 * i;
        if (c >= S::D / 8) continue;
        uint32_t p[4];
#pragma unroll
        for (int j = 0; j < 4; j++) p[j] = attention_pack<S::HALF>(x[i][2 * j] * by.x, x[i][2 * j + 1] * by.x);
        ((uint4 *)(shared + S::Q_AT))[c / 4 * 32 + h * 4 + c % 4] = make_uint4(p[0], p[1], p[2], p[3]);
    }
    if (lane == 0) ((float *)(shared + S::FACTOR_AT))[h] = a.p.scale * by.y * (a.p.softcap > 0.0f ? 1.0f : LOG2E);
}

/* Weights of `n` results with maximum m and sum l each, by head: warp h makes those of head h. With the sink at the end of it all. */
template <class S, class F> GPU_FN void warps_weigh(const attention_tiles_args &a, uint8_t *shared, int n, bool last, int64_t head0, int n_heads, F ml) {
    const int h = threadIdx.x / 32, lane = threadIdx.x % 32;
    float2 *total = (float2 *)(shared + S::TOTAL_AT);
    if (h < n_heads) {
        const float2 mine = lane < n ? ml(lane, h) : make_float2(-gpu_infinity(), 0.0f);
        const bool sinks = last && a.sinks.n_dims != 0;
        const float sink = sinks ? *(const float *)(a.sinks.data + (head0 + h) * a.sinks.stride[0]) * LOG2E : -gpu_infinity();
        const float m = fmaxf(gpu_warp_max(mine.x), sink), by = attention_exp2(mine.x - m);
        float l = gpu_warp_sum(lane < n ? mine.y * by : 0.0f);
        if (sinks) l += attention_exp2(sink - m);
        if (lane < n) ((float *)(shared + S::WEIGHT_AT))[h * FAN + lane] = by;
        if (lane == 0) total[h] = make_float2(m, l);
    }
    __syncthreads();
}

/* Four dimensions of a head: the output where this is the end, else into a share's slot. */
template <class S> GPU_FN void warps_store(const attention_tiles_args &a, const uint8_t *shared, float *slot, int64_t row, int64_t head0, int h, int d, float4 o) {
    if (slot) {
        __stcg((float4 *)(slot + 2 * HEADS + h * S::DV + d), o);
        return;
    }
    if (d >= a.v_width) return;
    const float l = ((const float2 *)(shared + S::TOTAL_AT))[h].y;
    uint8_t *out = a.out.data + row * a.out.stride[0] + (head0 + h) * a.out.stride[1] + d * 2;
    ((uint32_t *)out)[0] = attention_pack<false>(o.x / l, o.y / l);
    ((uint32_t *)out)[1] = attention_pack<false>(o.z / l, o.w / l);
}

/* Whether this block is the last of `n` at a counter, which then is zero again. */
template <class S> GPU_FN bool warps_last(uint8_t *shared, uint32_t *counter, int n) {
    __threadfence();
    __syncthreads();
    uint32_t *last = (uint32_t *)(shared + S::LAST_AT);
    if (threadIdx.x == 0) {
        *last = atomicAdd(counter, 1) + 1 == (uint32_t)n;
        if (*last) *counter = 0;
    }
    __syncthreads();
    __threadfence();
    return *last != 0;
}

template <class S> __global__ void __launch_bounds__(WARPS * 32, S::BLOCKS) attention_warps_kernel(const __grid_constant__ warps_args w) {
    extern __shared__ __align__(16) uint8_t warps_shared[];
    const attention_tiles_args &a = w.a;
    uint8_t *shared = warps_shared;
    gpu_let_next_start();
    gpu_await_previous();
    const int64_t item = blockIdx.z, row = attention_row_of(a, item);
    if (row < 0) return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, c = lane % 4, split = blockIdx.x;
    const int kv_head = blockIdx.y / a.n_chunks, first_head = blockIdx.y % a.n_chunks * HEADS, n_heads = a.group - first_head < HEADS ? a.group - first_head : HEADS;
    const int64_t head0 = (int64_t)kv_head * a.group + first_head;
    const int pos = (int)position_of(a.map, row), seg = attention_segment(a, row), start = a.p.window > 0 && pos - a.p.window + 1 > 0 ? pos - a.p.window + 1 : 0;
    const int all_begin = start / TILE, all_end = pos / TILE + 1, share = warps_share(all_end - all_begin, a.n_splits), n_used = (all_end - all_begin + share - 1) / share;
    if (split >= n_used) return;
    const int begin = all_begin + split * share, end = begin + share < all_end ? begin + share : all_end;

    const uint8_t *keys = a.k.data + kv_head * a.k.stride[1] + c * 16, *values = a.v.data + kv_head * a.v.stride[1] + r * 16, *krow[2], *vrow[4];
    bool kt[2], vt[4];
    warps_places at = warps_find(w, seg, begin + warp, end, start, pos);
    uint4 buf[S::BUFFERS][4];
    auto issue = [&](int chunk) {
        if (chunk == 0)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t u = __shfl_sync(0xFFFFFFFFu, at.k, r + 8 * i);
                kt[i] = u != ~0u, krow[i] = keys + ((uint64_t)u << 4);
            }
        if (chunk == S::KC)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t u = __shfl_sync(0xFFFFFFFFu, at.v, 2 * c + i % 2 + i / 2 * 8);
                vt[i] = u != ~0u, vrow[i] = values + ((uint64_t)u << 4);
            }
        if (chunk < S::KC)
#pragma unroll
            for (int i = 0; i < 4; i++) buf[chunk % S::BUFFERS][i] = warps_load<S::KEPT>(krow[i % 2] + (2 * chunk + i / 2) * 64, kt[i % 2] && (2 * chunk + i / 2) * 32 + c * 8 < a.width);
        else if (chunk < S::KC + S::VC)
#pragma unroll
            for (int i = 0; i < 4; i++) buf[chunk % S::BUFFERS][i] = warps_load<S::KEPT>(vrow[i] + (chunk - S::KC) * 128, vt[i] && (chunk - S::KC) * 64 + r * 8 < a.v_width);
    };
#pragma unroll
    for (int i = 0; i < S::BUFFERS; i++) issue(i);
    warps_places next = warps_find(w, seg, begin + warp + WARPS, end, start, pos);

    warps_query<S>(a, shared, row, head0, n_heads);
    __syncthreads();
    const uint4 *query = (const uint4 *)(shared + S::Q_AT) + lane;
    const float *factors = (const float *)(shared + S::FACTOR_AT);
    const float factor[2] = {factors[2 * c], factors[2 * c + 1]}, steep = a.p.softcap > 0.0f ? 2.0f * LOG2E / a.p.softcap : 0.0f, cap = LOG2E * a.p.softcap;
    float m[2] = {-gpu_infinity(), -gpu_infinity()}, l[2] = {0.0f, 0.0f}, o[S::VC * 4][4];
#pragma unroll
    for (int i = 0; i < S::VC * 4; i++) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0.0f;

#pragma unroll 1
    for (int tile = begin + warp; tile < end; tile += WARPS) {
        float s[2][4] = {{0.0f, 0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
        uint32_t p[2] = {0, 0};
#pragma unroll
        for (int chunk = 0; chunk < S::CHUNKS; chunk++) {
            const uint4 *x = buf[chunk % S::BUFFERS];
            if (chunk < S::KC) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint4 q = query[(2 * chunk + i) * 32], u = x[2 * i], v = x[2 * i + 1];
                    const uint32_t low[4] = {u.x, v.x, u.y, v.y}, high[4] = {u.z, v.z, u.w, v.w};
                    attention_mma<S::HALF>(s[0], low, q.x, q.y);
                    attention_mma<S::HALF>(s[1], high, q.z, q.w);
                }
            } else if (chunk < S::KC + S::VC) {
                const uint32_t y[4][4] = {{x[0].x, x[0].y, x[0].z, x[0].w}, {x[1].x, x[1].y, x[1].z, x[1].w}, {x[2].x, x[2].y, x[2].z, x[2].w}, {x[3].x, x[3].y, x[3].z, x[3].w}};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint32_t f[4] = {__byte_perm(y[0][i], y[1][i], 0x5410), __byte_perm(y[0][i], y[1][i], 0x7632), __byte_perm(y[2][i], y[3][i], 0x5410), __byte_perm(y[2][i], y[3][i], 0x7632)};
                    attention_mma<S::HALF>(o[(chunk - S::KC) * 4 + i], f, p[0], p[1]);
                }
            }
            if (chunk + S::BUFFERS == S::CHUNKS) {
                at = next;
                next = warps_find(w, seg, tile + 2 * WARPS, end, start, pos);
            }
            issue((chunk + S::BUFFERS) % S::CHUNKS);
            if (chunk != S::KC - 1) continue;
            /* scores: of key r and r + 8 for heads 2 c and 2 c + 1 */
            float keep[2], v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int j = tile * TILE + r + i / 2 * 8;
                v[i] = (s[0][i] + s[1][i]) * factor[i % 2];
                if (a.p.softcap > 0.0f) v[i] = attention_softcap(v[i], steep, cap);
                if (j < start || j > pos) v[i] = -gpu_infinity();
            }
            bool same = true;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float top = fmaxf(v[h], v[2 + h]);
#pragma unroll
                for (int d = 4; d < 32; d *= 2) top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, d));
                const float m_new = fmaxf(m[h], top), m_use = m_new == -gpu_infinity() ? 0.0f : m_new;
                keep[h] = attention_exp2(m[h] - m_use);
                same = same && m_new == m[h];
                m[h] = m_new;
                v[h] = attention_exp2(v[h] - m_use);
                v[2 + h] = attention_exp2(v[2 + h] - m_use);
                l[h] = fmaf(l[h], keep[h], v[h] + v[2 + h]);
            }
            if (!__all_sync(0xFFFFFFFFu, same))
#pragma unroll
                for (int i = 0; i < S::VC * 4; i++) o[i][0] *= keep[0], o[i][1] *= keep[1], o[i][2] *= keep[0], o[i][3] *= keep[1];
            p[0] = warps_turn(attention_pack<S::HALF>(v[0], v[1]));
            p[1] = warps_turn(attention_pack<S::HALF>(v[2], v[3]));
        }
    }

    /* what the warps have, in ascending order */
    float2 *ml = (float2 *)(shared + S::ML_AT);
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int d = 4; d < 32; d *= 2) l[h] += __shfl_xor_sync(0xFFFFFFFFu, l[h], d);
        if (r == 0) ml[warp * HEADS + 2 * c + h] = make_float2(m[h], l[h]);
    }
    __syncthreads();
    const int64_t place = item * gridDim.y + blockIdx.y;
    float *slots = a.partial + place * a.n_splits * w.slot_floats;
    bool last = n_used == 1;
    float *slot = last ? NULL : slots + split * w.slot_floats;
    warps_weigh<S>(a, shared, WARPS, last, head0, n_heads, [&](int i, int h) { return ml[i * HEADS + h]; });
    float *part = (float *)(shared + S::PART_AT), *weight = (float *)(shared + S::WEIGHT_AT);
    const float2 *total = (const float2 *)(shared + S::TOTAL_AT);
#pragma unroll
    for (int d0 = 0; d0 < S::DV; d0 += S::STEP) {
        if (d0 > 0) __syncthreads();
#pragma unroll
        for (int g = 0; g < S::STEP / 64; g++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if (2 * c + h >= n_heads) continue;
                float4 *to = (float4 *)(part + (warp * n_heads + 2 * c + h) * S::STEP + g * 64 + r * 8);
                const float(*x)[4] = &o[(d0 / 64 + g) * 4];
                to[0] = make_float4(x[0][h], x[0][2 + h], x[1][h], x[1][2 + h]);
                to[1] = make_float4(x[2][h], x[2][2 + h], x[3][h], x[3][2 + h]);
            }
        __syncthreads();
        for (int i = threadIdx.x; i < n_heads * (S::STEP / 4); i += WARPS * 32) {
            const int h = i / (S::STEP / 4), d = i % (S::STEP / 4) * 4;
            float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
            for (int x = 0; x < WARPS; x++) {
                const float4 v = *(const float4 *)(part + (x * n_heads + h) * S::STEP + d);
                const float by = weight[h * FAN + x];
                sum = make_float4(fmaf(v.x, by, sum.x), fmaf(v.y, by, sum.y), fmaf(v.z, by, sum.z), fmaf(v.w, by, sum.w));
            }
            warps_store<S>(a, shared, slot, row, head0, h, d0 + d, sum);
        }
    }

    /* what the blocks have: sixteen neighbours, then sums of sixteen */
    int count = n_used, index = split, apart = 1;
    uint32_t *counter = w.counters + place * COUNTERS;
    while (!last) {
        if (threadIdx.x < n_heads) {
            __stcg(slot + threadIdx.x, total[threadIdx.x].x);
            __stcg(slot + HEADS + threadIdx.x, total[threadIdx.x].y);
        }
        const int group = index / FAN, n = count - group * FAN < FAN ? count - group * FAN : FAN;
        if (!warps_last<S>(shared, counter + (apart == 1 ? group : FAN), n)) return;
        const float *from = slots + (int64_t)group * FAN * apart * w.slot_floats;
        const int64_t step = apart * w.slot_floats;
        count = (count + FAN - 1) / FAN, index = group, apart *= FAN;
        last = count == 1;
        slot = last ? NULL : slots + (int64_t)index * apart * w.slot_floats;
        warps_weigh<S>(a, shared, n, last, head0, n_heads, [&](int i, int h) { return make_float2(__ldcg(from + i * step + h), __ldcg(from + i * step + HEADS + h)); });
        float4 sum[S::ITEMS];
#pragma unroll
        for (int y = 0; y < S::ITEMS; y++) sum[y] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        const int n_items = n_heads * (S::DV / 4);
        for (int x0 = 0; x0 < n; x0 += 4) { /* what a thread reads of four shares is under way together */
            float4 v[S::ITEMS][4];
#pragma unroll
            for (int y = 0; y < S::ITEMS; y++)
#pragma unroll
                for (int x = 0; x < 4; x++)
                    if (x0 + x < n && threadIdx.x + y * WARPS * 32 < n_items) v[y][x] = __ldcg((const float4 *)(from + (x0 + x) * step + 2 * HEADS) + threadIdx.x + y * WARPS * 32);
#pragma unroll
            for (int y = 0; y < S::ITEMS; y++)
#pragma unroll
                for (int x = 0; x < 4; x++) {
                    if (x0 + x >= n || threadIdx.x + y * WARPS * 32 >= n_items) continue;
                    const float by = weight[(threadIdx.x + y * WARPS * 32) / (S::DV / 4) * FAN + x0 + x];
                    sum[y] = make_float4(fmaf(v[y][x].x, by, sum[y].x), fmaf(v[y][x].y, by, sum[y].y), fmaf(v[y][x].z, by, sum[y].z), fmaf(v[y][x].w, by, sum[y].w));
                }
        }
#pragma unroll
        for (int y = 0; y < S::ITEMS; y++) {
            const int i = threadIdx.x + y * WARPS * 32;
            if (i < n_items) warps_store<S>(a, shared, slot, row, head0, i / (S::DV / 4), i % (S::DV / 4) * 4, sum[y]);
        }
    }
}

/* Shares of a row: as few as fill the device nearly in whole waves, twice over where rows may differ in length. */
static int32_t warps_splits(const vt_queue *q, const attention_tiles_args *a, int64_t n_items, int64_t blocks_at_once, int64_t slot_floats) {
    const int64_t slots = blocks_at_once * gpu_device(q)->n_multiprocessors, blocks = n_items * a->k.dim[1] * a->n_chunks, enough = n_items > 1 ? 2 * slots : slots;
    int64_t positions = a->map.pages.dim[1] * a->map.page_tokens;
    if (a->p.window > 0 && a->p.window < positions) positions = a->p.window + TILE - 1;
    int64_t most = gpu_ceil(gpu_ceil(positions, TILE) + 1, WARPS);
    const int64_t room = CUDA_WORKSPACE_BYTES / (blocks * slot_floats * 4);
    if (most > room) most = room;
    if (most > MAX_SPLITS) most = MAX_SPLITS;
    if (blocks * COUNTERS * 4 > CUDA_COUNTER_BYTES) most = 1;
    int64_t best = 1, best_used = 0; /* of a thousand */
    for (int64_t n = 1; n <= most; n++) {
        const int64_t waves = gpu_ceil(blocks * n, slots), used = blocks * n * 1000 / (waves * slots);
        if (used > best_used) best = n, best_used = used;
        if (blocks * n * 10 >= enough * 9 && best_used >= 900) break;
        if (blocks * n > 4 * slots) break;
    }
    return (int32_t)best;
}

template <class S> static status run(vt_queue *q, const vt_call *call, attention_tiles_args a, int64_t n_items, error *err) {
    a.heads = a.group < HEADS ? a.group : HEADS;
    a.n_chunks = (int32_t)gpu_ceil(a.group, HEADS);
    warps_args w = {};
    w.slot_floats = 2 * HEADS + (int64_t)a.heads * S::DV;
    a.n_splits = warps_splits(q, &a, n_items, S::BLOCKS, w.slot_floats);
    uint8_t *workspace = (uint8_t *)((cuda_queue *)q->handle)->workspace;
    a.partial = (float *)workspace;
    w.counters = (uint32_t *)(workspace + CUDA_WORKSPACE_BYTES);
    w.page_shift = -1;
    for (int i = 0; i < 31; i++)
        if (a.map.page_tokens == 1 << i) w.page_shift = i;
    w.a = a;
    TRY(cuda_result(cudaFuncSetAttribute(attention_warps_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES), "shared memory", err));
    (void)call;
    return gpu_launch_grid(q, attention_warps_kernel<S>, dim3((unsigned)a.n_splits, (unsigned)(a.k.dim[1] * a.n_chunks), (unsigned)n_items), WARPS * 32, S::BYTES, err, w);
}

template <bool H> static status by_width(vt_queue *q, const vt_call *call, const attention_tiles_args *a, int64_t n_items, error *err) {
    if (a->width > 512) return run<warps_shape<H, 576, 512, 3, 1>>(q, call, *a, n_items, err);
    if (a->width > 256) return run<warps_shape<H, 512, 512, 4, 1>>(q, call, *a, n_items, err);
    if (a->width > 128) return run<warps_shape<H, 256, 256, 8, 1>>(q, call, *a, n_items, err);
    if (a->width > 64) return run<warps_shape<H, 128, 128, 4, 2>>(q, call, *a, n_items, err);
    return run<warps_shape<H, 64, 64, 2, 2>>(q, call, *a, n_items, err);
}

bool attention_warps_fit(const vt_queue *q, const attention_tiles_args *a) {
    const int64_t most = (int64_t)UINT32_MAX << 4;
    return warps_shape<true, 576, 512, 3, 1>::BYTES <= gpu_device(q)->shared_bytes && a->aligned && a->group <= 2 * HEADS && a->k.dim[0] * a->k.stride[0] < most && a->v.dim[0] * a->v.stride[0] < most && a->k.dim[1] * 2 <= 65535;
}

status attention_warps(vt_queue *q, const vt_call *call, const attention_tiles_args *a, bool half, int64_t n_items, error *err) {
    return half ? by_width<true>(q, call, a, n_items, err) : by_width<false>(q, call, a, n_items, err);
}
