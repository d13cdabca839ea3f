/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Attention with BF16 output on matrix units (m16n8k16, or wgmma), for prefill and decode.
 *
 * A block has a tile of query slots: consecutive rows of the step times the query heads of one kv head, so that keys and values are read
 * once for all of them. It walks the positions its rows can see in tiles of BK, anchored at position 0, with the running maximum m, sum l
 * and unnormalised values in registers; keys and values come through the page table by asynchronous copies. WM warps share the slots (MT
 * times sixteen each); WN warps share the keys of a tile while scores are computed and the dimensions while values are added, with the
 * probabilities passed through shared memory. In decode (SPLIT) a block takes one row and a share of its positions, leaves m, l and the
 * sum in the queue's workspace, and attention_merge adds the shares in ascending order.
 *
 * Numbers: dots, m, l and the sum are F32. Queries and probabilities are rounded to the dtype of the cache; to F16 each query after it was
 * multiplied by the power of two that brings its largest element to 2^14 (no element leaves the range), and its scores are divided by it. Which blocks a row gets follows from the numbers of rows, segments and page table entries alone.
 */
#ifndef HEADRACE_VT_CUDA_ATTENTION_TILES_H
#define HEADRACE_VT_CUDA_ATTENTION_TILES_H

#include "vt/cuda/gpu_pages.cuh"
#include "vt/cuda/gpu_wgmma.cuh"

enum attention_rows {
    ATTENTION_ALL_ROWS,     /* tiles of rows, whatever segments they are of */
    ATTENTION_SHARED_ROWS,  /* the same without rows that are their segment's only one */
    ATTENTION_BY_ROW,       /* a row a block */
    ATTENTION_BY_SEGMENT,   /* a segment a block, those with one row */
};

struct attention_tiles_args {
    gpu_view out, query, k, v, sinks;
    page_map map;
    vt_attention_params p;
    int64_t n_rows;
    int32_t rows;                    /* attention_rows */
    int32_t group, heads, n_chunks;  /* query heads of a kv head; of a tile; tiles they are shared out to */
    int32_t tokens;                  /* rows of a tile */
    int32_t n_splits;
    int32_t width, v_width;          /* of keys and queries; of values and output */
    bool aligned;                    /* sixteen bytes at a time; four of the output */
    float *partial;                  /* [item, head, split]: m, l, sum[v_width] */
};

static const float LOG2E = 1.44269504088896340736f;

GPU_FN float attention_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* log2(e) times the soft-capped score: tanh(x) = 1 - 2 / (exp(2 x) + 1). steep = 2 log2(e) / softcap, top = log2(e) softcap. */
GPU_FN float attention_softcap(float s, float steep, float top) { return top * (1.0f - __fdividef(2.0f, attention_exp2(s * steep) + 1.0f)); }

template <bool HALF> GPU_FN void attention_mma(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    if constexpr (HALF)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* What a query is multiplied by for F16 keys, so that its largest element (of a warp's lanes) is near 2^14, and what undoes it; for BF16 keys nothing. */
template <bool HALF> GPU_FN float2 attention_query_scale(float largest) {
    if constexpr (HALF) {
        const int e = (int)(__float_as_uint(gpu_warp_max(largest)) >> 23 & 255);
        if (e > 20 && e < 255) return make_float2(__uint_as_float((uint32_t)(268 - e) << 23), __uint_as_float((uint32_t)(e - 14) << 23));
    }
    return make_float2(1.0f, 1.0f);
}

template <bool HALF> GPU_FN uint32_t attention_pack(float x, float y) {
    uint32_t r;
    if constexpr (HALF)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(y), "f"(x));
    return r;
}

GPU_FN void attention_ldmatrix(uint32_t r[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

GPU_FN void attention_ldmatrix_t(uint32_t r[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

GPU_FN void attention_copy16(uint32_t to, const void *from, bool there) {
    int n = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n) : "memory");
}

GPU_FN void attention_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> GPU_FN void attention_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

/* Chunk c of sixteen bytes of row r of a tile whose rows have `row_bytes`: the low three bits of c are turned by the row, so that eight rows
 * of a column lie in different banks. */
GPU_FN uint32_t attention_at(uint32_t base, int row_bytes, int r, int c) { return base + (uint32_t)(r * row_bytes + ((c ^ (r & 7)) << 4)); }

/* The same of a tile of `rows` for wgmma: pieces of 64 elements behind each other, each with the 128-byte swizzle. */
template <class S> GPU_FN uint32_t attention_place(uint32_t base, int rows, int row_bytes, int r, int c) {
    return S::WGMMA ? base + (uint32_t)(c / 8 * rows * 128 + r * 128 + ((c % 8 ^ (r & 7)) << 4)) : attention_at(base, row_bytes, r, c);
}

/* Eight elements from `i` on of a row of `width`, one by one: zero behind its end. */
GPU_FN uint4 attention_eight(const uint8_t *row, int i, int width) {
    uint32_t w[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t lo = i + 2 * j < width ? ((const uint16_t *)row)[i + 2 * j] : 0, hi = i + 2 * j + 1 < width ? ((const uint16_t *)row)[i + 2 * j + 1] : 0;
        w[j] = lo | hi << 16;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* One shape of the kernel. STAGES tiles of keys and values are in flight or in use; with one, keys and values wait for each other's turn.
 * SHARE: the values are the keys. WGMMA: on Hopper's matrix units, which take operands from shared memory: WM is 4 or 8, every warp has all
 * keys, and warps of the same slots share the dimensions of the values only. */
template <bool HALF_, int D_, int DV_, int WM_, int WN_, int MT_, int BK_, int STAGES_, bool SHARE_, bool SPLIT_, bool WGMMA_ = false> struct attention_shape_of {
    static const bool HALF = HALF_, SHARE = SHARE_, SPLIT = SPLIT_, WGMMA = WGMMA_, SHARED_KEYS = WN_ > 1 && !WGMMA_;
    static const int D = D_, DV = DV_, WM = WM_, WN = WN_, MT = MT_, BK = BK_, STAGES = STAGES_;
    static const int THREADS = WM * WN * 32, BM = WM * MT * 16, KEYS = SHARED_KEYS ? BK / WN : BK, NT = KEYS / 8, DW = DV / WN, NO = DW / 8;
    static const int K_BYTES = BK * D * 2, V_BYTES = SHARE ? 0 : BK * DV * 2, P_ROW = BK * 2 + 16;
    static const int Q_AT = 0, K_AT = BM * D * 2, V_AT = K_AT + STAGES * K_BYTES, P_AT = V_AT + STAGES * V_BYTES;
    static const int RED_AT = P_AT + (SHARED_KEYS ? BM * P_ROW : 0), ROW_AT = RED_AT + WN * BM * 4, PLACE_AT = ROW_AT + 3 * BM * 4, SEG_AT = PLACE_AT + 4 * BK * 16;
    static const int BYTES = SEG_AT + (BM + 4) * 4 + (WGMMA ? 1024 : 0);
};

#ifdef GPU_HAS_WGMMA
#define ATTENTION_R4(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define ATTENTION_R16(d, n) ATTENTION_R4(d, n), ATTENTION_R4(d, n + 1), ATTENTION_R4(d, n + 2), ATTENTION_R4(d, n + 3)

/* Values have the positions in rows, so the matrix unit reads them turned: pieces of 64 dimensions `piece` bytes apart, eight positions 1,024. */
GPU_FN uint64_t attention_values_descriptor(uint32_t at, uint32_t piece) { return 1ull << 62 | 64ull << 32 | (uint64_t)(piece >> 4) << 16 | (at & 0x3FFFF) >> 4; }

/* s += 64 queries by 64 keys over sixteen dimensions, both by descriptor. */
template <bool HALF> GPU_FN void attention_wgmma_scores(float (&d)[8][4], uint64_t a, uint64_t b) {
    if constexpr (HALF)
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;" : ATTENTION_R16(d, 0), ATTENTION_R16(d, 4) : "l"(a), "l"(b));
    else
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;" : ATTENTION_R16(d, 0), ATTENTION_R16(d, 4) : "l"(a), "l"(b));
}

/* o += 64 queries' probabilities, from registers, by sixteen positions of the values: 128 or 256 dimensions. */
template <bool HALF, int NO> GPU_FN void attention_wgmma_values(float (&d)[NO][4], const uint32_t (&p)[4], uint64_t b) {
    static_assert(NO == 16 || NO == 32, "128 or 256 dimensions");
    if constexpr (NO == 16) {
        if constexpr (HALF)
            asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;" : ATTENTION_R16(d, 0), ATTENTION_R16(d, 4), ATTENTION_R16(d, 8), ATTENTION_R16(d, 12) : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(b));
        else
            asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;" : ATTENTION_R16(d, 0), ATTENTION_R16(d, 4), ATTENTION_R16(d, 8), ATTENTION_R16(d, 12) : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(b));
    } else {
        if constexpr (HALF)
            asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, {%128,%129,%130,%131}, %132, 1, 1, 1, 1;" : ATTENTION_R16(d, 0), ATTENTION_R16(d, 4), ATTENTION_R16(d, 8), ATTENTION_R16(d, 12), ATTENTION_R16(d, 16), ATTENTION_R16(d, 20), ATTENTION_R16(d, 24), ATTENTION_R16(d, 28) : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(b));
        else
            asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, {%128,%129,%130,%131}, %132, 1, 1, 1, 1;" : ATTENTION_R16(d, 0), ATTENTION_R16(d, 4), ATTENTION_R16(d, 8), ATTENTION_R16(d, 12), ATTENTION_R16(d, 16), ATTENTION_R16(d, 20), ATTENTION_R16(d, 24), ATTENTION_R16(d, 28) : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(b));
    }
}
#endif

/* What asynchronous copies and stores put into shared memory is there for wgmma too. */
template <class S> GPU_FN void attention_fence() {
    if constexpr (S::WGMMA) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The first row of a segment: row_seg ascends. A warp looks at 32 places at a time. */
GPU_FN int64_t attention_first_row(const attention_tiles_args &a, int64_t seg) {
    int64_t lo = 0, hi = a.n_rows; /* the answer lies in lo .. hi */
    while (hi > lo) {
        int64_t step = (hi - lo + 31) / 32, at = lo + (threadIdx.x & 31) * step;
        bool below = at < hi && *(const int32_t *)(a.map.row_seg.data + at * a.map.row_seg.stride[0]) < seg;
        int n = __popc(__ballot_sync(0xFFFFFFFFu, below));
        if (n == 0) return lo;
        int64_t next = lo + (int64_t)n * step;
        lo = lo + (int64_t)(n - 1) * step + 1;
        if (next < hi) hi = next;
    }
    return lo;
}

GPU_FN int32_t attention_segment(const attention_tiles_args &a, int64_t row) {
    return row >= 0 && row < a.n_rows ? *(const int32_t *)(a.map.row_seg.data + row * a.map.row_seg.stride[0]) : -1;
}

/* The row of item i (a row or a segment) when a block has one; -1: it has none. */
GPU_FN int64_t attention_row_of(const attention_tiles_args &a, int64_t item) {
    if (a.rows == ATTENTION_BY_ROW) return item;
    int64_t row = attention_first_row(a, item);
    return attention_segment(a, row) == item && attention_segment(a, row + 1) != item ? row : -1;
}

/* Tiles of a share of a row's positions. */
GPU_HD int attention_share(int n_tiles, int n_splits) { return (n_tiles + n_splits - 1) / n_splits; }

template <class S> struct attention_tile {
    const attention_tiles_args &a;
    uint8_t *shared;
    uint32_t base;
    int kv_head;
    int64_t head0;

    __device__ __forceinline__ float *red() const { return (float *)(shared + S::RED_AT); }
    __device__ __forceinline__ int *row_pos() const { return (int *)(shared + S::ROW_AT); }
    __device__ __forceinline__ int *row_start() const { return row_pos() + S::BM; }
    __device__ __forceinline__ float *row_factor() const { return (float *)(row_pos() + 2 * S::BM); }
    /* Of the positions of a tile: bytes into the keys, then into the values; -1 for one that is not read. */
    __device__ __forceinline__ int64_t *places(int tile) const { return (int64_t *)(shared + S::PLACE_AT) + (tile & 3) * (2 * S::BK); }
    __device__ __forceinline__ int *segs() const { return (int *)(shared + S::SEG_AT); }

    /* Queries of rows row0 .. row0 + n - 1 into shared memory. */
    __device__ __forceinline__ void load_queries(int64_t row0, int n) const {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        for (int slot = warp; slot < S::BM; slot += S::THREADS / 32) {
            const int token = slot / a.heads, head = slot % a.heads;
            const bool there = token < n && head0 + head < (int64_t)(kv_head + 1) * a.group;
            const uint8_t *from = a.query.data + (row0 + token) * a.query.stride[0] + (head0 + head) * a.query.stride[1];
            float x[(S::D / 8 + 31) / 32][8], largest = 0.0f;
#pragma unroll
            for (int i = 0; i < (S::D / 8 + 31) / 32; i++) {
                const int c = lane + 32 * i;
                if (there && a.aligned && c * 8 < a.width) {
                    const float4 u = ((const float4 *)from)[2 * c], v = ((const float4 *)from)[2 * c + 1];
                    x[i][0] = u.x, x[i][1] = u.y, x[i][2] = u.z, x[i][3] = u.w, x[i][4] = v.x, x[i][5] = v.y, x[i][6] = v.z, x[i][7] = v.w;
                } else {
#pragma unroll
                    for (int j = 0; j < 8; j++) x[i][j] = there && c * 8 + j < a.width ? ((const float *)from)[c * 8 + j] : 0.0f;
                }
#pragma unroll
                for (int j = 0; S::HALF && j < 8; j++) largest = fmaxf(largest, fabsf(x[i][j]));
            }
            const float2 by = attention_query_scale<S::HALF>(largest);
#pragma unroll
            for (int i = 0; i < (S::D / 8 + 31) / 32; i++) {
                const int c = lane + 32 * i;
                if (c >= S::D / 8) continue;
                uint32_t w[4];
#pragma unroll
                for (int j = 0; j < 4; j++) w[j] = attention_pack<S::HALF>(x[i][2 * j] * by.x, x[i][2 * j + 1] * by.x);
                *(uint4 *)(shared + S::Q_AT + attention_place<S>(0, S::BM, S::D * 2, slot, c)) = make_uint4(w[0], w[1], w[2], w[3]);
            }
            if (lane == 0) row_factor()[slot] = a.p.scale * by.y * (a.p.softcap > 0.0f ? 1.0f : LOG2E);
        }
    }

    __device__ __forceinline__ void find_places(int tile, int seg, int from, int to) const {
        for (int i = threadIdx.x; i < S::BK; i += S::THREADS) {
            const int j = tile * S::BK + i;
            int64_t k = -1, v = -1;
            if (j >= from && j <= to && seg >= 0 && seg < a.map.pages.dim[0]) {
                const int p = j / (int)a.map.page_tokens, slot = j - p * (int)a.map.page_tokens;
                int64_t page = p < a.map.pages.dim[1] ? *(const int32_t *)(a.map.pages.data + seg * a.map.pages.stride[0] + p * a.map.pages.stride[1]) : 0;
                if (page < 0 || page >= a.k.dim[0]) page = 0;
                k = page * a.k.stride[0] + slot * a.k.stride[2];
                v = page * a.v.stride[0] + slot * a.v.stride[2];
            }
            places(tile)[i] = k;
            places(tile)[S::BK + i] = v;
        }
    }

    template <int WIDTH> __device__ __forceinline__ void load(uint32_t to, const gpu_view &cache, int width, const int64_t *place_of) const {
        const uint8_t *from = cache.data + kv_head * cache.stride[1];
        const int N = S::BK * (WIDTH / 8);
#pragma unroll 8
        for (int i0 = 0; i0 < N; i0 += S::THREADS) {
            const int i = i0 + threadIdx.x, r = i / (WIDTH / 8), c = i % (WIDTH / 8);
            if (N % S::THREADS != 0 && i >= N) break;
            const int64_t place = place_of[r];
            const bool there = place >= 0 && c * 8 < width;
            const uint8_t *row = from + (there ? place : 0);
            const uint32_t at = attention_place<S>(to, S::BK, WIDTH * 2, r, c);
            if (a.aligned)
                attention_copy16(at, row + (there ? c * 16 : 0), there);
            else
                *(uint4 *)(shared + (at - base)) = there ? attention_eight(row, c * 8, width) : make_uint4(0, 0, 0, 0);
        }
    }

    __device__ __forceinline__ uint32_t k_at(int stage) const { return base + S::K_AT + stage * S::K_BYTES; }
    __device__ __forceinline__ uint32_t v_at(int stage) const { return S::SHARE ? k_at(stage) : base + S::V_AT + stage * S::V_BYTES; }
    __device__ __forceinline__ void load_keys(int tile, int stage) const { load<S::D>(k_at(stage), a.k, a.width, places(tile)); }
    __device__ __forceinline__ void load_values(int tile, int stage) const {
        if (!S::SHARE) load<S::DV>(v_at(stage), a.v, a.v_width, places(tile) + S::BK);
    }

    /* s = queries of the warp times its keys of the tile. */
    __device__ __forceinline__ void scores(float (&s)[S::MT][S::NT][4], uint32_t keys, int wm, int wn, int lane) const {
#pragma unroll
        for (int m = 0; m < S::MT; m++)
#pragma unroll
            for (int n = 0; n < S::NT; n++) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0.0f;
        const uint32_t q = base + S::Q_AT;
        if constexpr (S::WGMMA) {
#ifdef GPU_HAS_WGMMA
            wgmma_begin();
#pragma unroll
            for (int k = 0; k < S::D / 16; k++)
                attention_wgmma_scores<S::HALF>(s[0], wgmma_descriptor(q + k / 4 * S::BM * 128 + wm / 4 * 64 * 128) + k % 4 * 2, wgmma_descriptor(keys + k / 4 * S::BK * 128) + k % 4 * 2);
            wgmma_commit();
            wgmma_wait<0>();
#endif
        } else if constexpr (S::NT == 1) { /* even and odd steps of sixteen apart: one multiplication need not wait for the other */
            float odd[S::MT][4];
#pragma unroll
            for (int m = 0; m < S::MT; m++) odd[m][0] = odd[m][1] = odd[m][2] = odd[m][3] = 0.0f;
#pragma unroll 4
            for (int k = 0; k < S::D / 32; k++) {
                uint32_t b[4];
                attention_ldmatrix(b, attention_at(keys, S::D * 2, wn * S::KEYS + lane % 8, 4 * k + lane / 8));
#pragma unroll
                for (int m = 0; m < S::MT; m++) {
                    uint32_t x[2][4];
#pragma unroll
                    for (int h = 0; h < 2; h++) attention_ldmatrix(x[h], attention_at(q, S::D * 2, (wm * S::MT + m) * 16 + lane % 16, 4 * k + 2 * h + lane / 16));
                    attention_mma<S::HALF>(s[m][0], x[0], b[0], b[1]);
                    attention_mma<S::HALF>(odd[m], x[1], b[2], b[3]);
                }
            }
#pragma unroll
            for (int m = 0; m < S::MT; m++)
#pragma unroll
                for (int i = 0; i < 4; i++) s[m][0][i] += odd[m][i];
        } else {
#pragma unroll 4
            for (int k = 0; k < S::D / 16; k++) {
                uint32_t x[S::MT][4];
#pragma unroll
                for (int m = 0; m < S::MT; m++) attention_ldmatrix(x[m], attention_at(q, S::D * 2, (wm * S::MT + m) * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
                for (int n = 0; n < S::NT; n += 2) {
                    uint32_t b[4];
                    attention_ldmatrix(b, attention_at(keys, S::D * 2, wn * S::KEYS + n * 8 + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
                    for (int m = 0; m < S::MT; m++) {
                        attention_mma<S::HALF>(s[m][n], x[m], b[0], b[1]);
                        attention_mma<S::HALF>(s[m][n + 1], x[m], b[2], b[3]);
                    }
                }
            }
        }
    }

    /* o += probabilities times the warp's dimensions of the values, sixteen positions. */
    __device__ __forceinline__ void values(float (&o)[S::MT][S::NO][4], const uint32_t (&p)[S::MT][4], uint32_t at, int k, int wn, int lane) const {
#pragma unroll
        for (int n = 0; n < S::NO; n += 2) {
            uint32_t b[4];
            attention_ldmatrix_t(b, attention_at(at, (S::SHARE ? S::D : S::DV) * 2, k * 16 + lane % 16, wn * (S::DW / 8) + n + lane / 16));
#pragma unroll
            for (int m = 0; m < S::MT; m++) {
                attention_mma<S::HALF>(o[m][n], p[m], b[0], b[1]);
                attention_mma<S::HALF>(o[m][n + 1], p[m], b[2], b[3]);
            }
        }
    }
};

/* o += probabilities times the warp's dimensions of the values, all positions of a tile, on wgmma. */
template <class S> GPU_FN void attention_wgmma_tile(float (&o)[S::MT][S::NO][4], const uint32_t (&p)[S::BK / 16][S::MT][4], uint32_t at, int wn) {
#ifdef GPU_HAS_WGMMA
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < S::BK / 16; k++) attention_wgmma_values<S::HALF, S::NO>(o[0], p[k][0], attention_values_descriptor(at + wn * (S::DW / 64) * S::BK * 128 + k * 16 * 128, S::BK * 128));
    wgmma_commit();
    wgmma_wait<0>();
#else
    (void)o, (void)p, (void)at, (void)wn;
#endif
}

GPU_FN float attention_quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, 2));
}

GPU_FN float attention_quad_sum(float v) {
    v += __shfl_xor_sync(0xFFFFFFFFu, v, 1);
    return v + __shfl_xor_sync(0xFFFFFFFFu, v, 2);
}

/* Rows first .. first + n - 1 of the tile, which are of one segment, over the positions they see (in decode: a share of them). */
template <class S> GPU_FN void attention_run(const attention_tile<S> &t, int64_t row0, int first, int n, int seg, int64_t item) {
    const attention_tiles_args &a = t.a;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, wm = S::WGMMA ? warp % S::WM : warp / S::WN, wn = S::WGMMA ? warp / S::WM : warp % S::WN;

    /* positions of the slots, and of all together */
    int lowest_start = INT32_MAX, highest_start = -1, lowest = INT32_MAX, highest = -1;
    for (int i = lane; i < n; i += 32) {
        const int pos = (int)position_of(a.map, row0 + first + i), start = a.p.window > 0 && pos - a.p.window + 1 > 0 ? pos - a.p.window + 1 : 0;
        lowest_start = min(lowest_start, start), highest_start = max(highest_start, start);
        lowest = min(lowest, pos), highest = max(highest, pos);
    }
    lowest_start = __reduce_min_sync(0xFFFFFFFFu, lowest_start), highest_start = __reduce_max_sync(0xFFFFFFFFu, highest_start);
    lowest = __reduce_min_sync(0xFFFFFFFFu, lowest), highest = __reduce_max_sync(0xFFFFFFFFu, highest);
    __syncthreads(); /* the run before is done with shared memory */
    for (int i = threadIdx.x; i < S::BM; i += S::THREADS) {
        const int token = i / a.heads;
        const bool mine = token >= first && token < first + n && t.head0 + i % a.heads < (int64_t)(t.kv_head + 1) * a.group;
        const int pos = mine ? (int)position_of(a.map, row0 + token) : -1;
        t.row_pos()[i] = pos;
        t.row_start()[i] = mine && a.p.window > 0 && pos - a.p.window + 1 > 0 ? pos - a.p.window + 1 : 0;
    }
    int begin = lowest_start / S::BK, end = highest / S::BK + 1;
    int from = lowest_start;
    if constexpr (S::SPLIT) {
        const int share = attention_share(end - begin, a.n_splits), split = blockIdx.x;
        begin += split * share;
        if (begin >= end) return; /* not a share of this row */
        if (begin + share < end) end = begin + share;
    }
    t.find_places(begin, seg, from, highest);
    if (begin + 1 < end) t.find_places(begin + 1, seg, from, highest);
    if (S::STAGES == 3 && begin + 2 < end) t.find_places(begin + 2, seg, from, highest);
    __syncthreads();
    t.load_keys(begin, 0);
    if constexpr (S::STAGES > 1) t.load_values(begin, 0);
    attention_commit();
    if constexpr (S::STAGES == 3) {
        if (begin + 1 < end) {
            t.load_keys(begin + 1, 1);
            t.load_values(begin + 1, 1);
        }
        attention_commit();
    }
    if constexpr (S::SPLIT) {
        t.load_queries(row0, 1);
        __syncthreads();
    }

    int pos[S::MT][2], start[S::MT][2];
    float factor[S::MT][2], m[S::MT][2], l[S::MT][2], o[S::MT][S::NO][4];
#pragma unroll
    for (int i = 0; i < S::MT; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int slot = (wm * S::MT + i) * 16 + h * 8 + lane / 4;
            pos[i][h] = t.row_pos()[slot], start[i][h] = t.row_start()[slot], factor[i][h] = t.row_factor()[slot];
            m[i][h] = -gpu_infinity(), l[i][h] = 0.0f;
        }
#pragma unroll
        for (int j = 0; j < S::NO; j++) o[i][j][0] = o[i][j][1] = o[i][j][2] = o[i][j][3] = 0.0f;
    }

    const float steep = a.p.softcap > 0.0f ? 2.0f * LOG2E / a.p.softcap : 0.0f, cap = LOG2E * a.p.softcap;
    int stage = 0;
    for (int tile = begin; tile < end; tile++) {
        /* this tile is there, and everyone is done with the one before, whose place the next load takes */
        attention_wait<S::STAGES == 1 ? 0 : S::STAGES - 2>();
        attention_fence<S>();
        __syncthreads();
        if constexpr (S::STAGES == 1) {
            t.load_values(tile, 0);
            attention_commit();
        } else {
            const int next = tile + S::STAGES - 1, into = stage == 0 ? S::STAGES - 1 : stage - 1;
            if (next < end) {
                t.load_keys(next, into);
                t.load_values(next, into);
            }
            attention_commit();
            if (next + 1 < end) t.find_places(next + 1, seg, from, highest);
        }
        float s[S::MT][S::NT][4];
        t.scores(s, t.k_at(stage), wm, wn, lane);

        if constexpr (S::WGMMA && S::STAGES == 1) {
            __syncthreads(); /* everyone is done with the keys */
            if (tile + 1 < end) t.load_keys(tile + 1, 0);
            attention_commit();
        }
        const int j0 = tile * S::BK + (S::SHARED_KEYS ? wn * S::KEYS : 0) + lane % 4 * 2;
        const bool softcap = a.p.softcap > 0.0f;
        const bool whole = tile * S::BK >= highest_start && tile * S::BK + S::BK - 1 <= lowest;
        float top[S::MT][2];
#pragma unroll
        for (int i = 0; i < S::MT; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                top[i][h] = -gpu_infinity();
#pragma unroll
                for (int x = 0; x < S::NT; x++)
#pragma unroll
                    for (int y = 0; y < 2; y++) {
                        float &v = s[i][x][2 * h + y];
                        const int j = j0 + x * 8 + y;
                        v *= factor[i][h];
                        if (softcap) v = attention_softcap(v, steep, cap);
                        if (!whole && (j < start[i][h] || j > pos[i][h])) v = -gpu_infinity();
                        top[i][h] = fmaxf(top[i][h], v);
                    }
                top[i][h] = attention_quad_max(top[i][h]);
                if (S::SHARED_KEYS && lane % 4 == 0) t.red()[wn * S::BM + (wm * S::MT + i) * 16 + h * 8 + lane / 4] = top[i][h];
            }
        if constexpr (S::SHARED_KEYS) {
            __syncthreads(); /* and everyone is done with the keys */
            if constexpr (S::STAGES == 1) {
                if (tile + 1 < end) t.load_keys(tile + 1, 0);
                attention_commit();
            }
#pragma unroll
            for (int i = 0; i < S::MT; i++)
#pragma unroll
                for (int h = 0; h < 2; h++)
#pragma unroll
                    for (int w = 0; w < S::WN; w++) top[i][h] = fmaxf(top[i][h], t.red()[w * S::BM + (wm * S::MT + i) * 16 + h * 8 + lane / 4]);
        }
        float keep[S::MT][2];
        bool same = true;
#pragma unroll
        for (int i = 0; i < S::MT; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float m_new = fmaxf(m[i][h], top[i][h]), m_use = m_new == -gpu_infinity() ? 0.0f : m_new;
                keep[i][h] = attention_exp2(m[i][h] - m_use);
                same = same && m_new == m[i][h];
                m[i][h] = m_new;
                float sum = 0.0f;
#pragma unroll
                for (int x = 0; x < S::NT; x++)
#pragma unroll
                    for (int y = 0; y < 2; y++) {
                        float &v = s[i][x][2 * h + y];
                        v = attention_exp2(v - m_use);
                        sum += v;
                    }
                l[i][h] = fmaf(l[i][h], keep[i][h], sum);
            }
        if (!__all_sync(0xFFFFFFFFu, same)) {
#pragma unroll
            for (int i = 0; i < S::MT; i++)
#pragma unroll
                for (int j = 0; j < S::NO; j++) {
                    o[i][j][0] *= keep[i][0], o[i][j][1] *= keep[i][0];
                    o[i][j][2] *= keep[i][1], o[i][j][3] *= keep[i][1];
                }
        }
        if constexpr (S::SHARED_KEYS) {
            uint8_t *p = t.shared + S::P_AT;
#pragma unroll
            for (int i = 0; i < S::MT; i++)
#pragma unroll
                for (int x = 0; x < S::NT; x++)
#pragma unroll
                    for (int h = 0; h < 2; h++)
                        *(uint32_t *)(p + ((wm * S::MT + i) * 16 + h * 8 + lane / 4) * S::P_ROW + (wn * S::KEYS + x * 8 + lane % 4 * 2) * 2) =
                            attention_pack<S::HALF>(s[i][x][2 * h], s[i][x][2 * h + 1]);
            if constexpr (S::STAGES == 1) attention_wait<1>();
            __syncthreads();
            if constexpr (S::STAGES == 1) {
                if (tile + 2 < end) t.find_places(tile + 2, seg, from, highest);
            }
#pragma unroll
            for (int k = 0; k < S::BK / 16; k++) {
                uint32_t x[S::MT][4];
#pragma unroll
                for (int i = 0; i < S::MT; i++)
                    attention_ldmatrix(x[i], t.base + S::P_AT + ((wm * S::MT + i) * 16 + lane % 16) * S::P_ROW + k * 32 + lane / 16 * 16);
                t.values(o, x, t.v_at(stage), k, wn, lane);
            }
        } else {
            uint32_t x[S::BK / 16][S::MT][4];
#pragma unroll
            for (int k = 0; k < S::BK / 16; k++)
#pragma unroll
                for (int i = 0; i < S::MT; i++) {
                    x[k][i][0] = attention_pack<S::HALF>(s[i][2 * k][0], s[i][2 * k][1]);
                    x[k][i][1] = attention_pack<S::HALF>(s[i][2 * k][2], s[i][2 * k][3]);
                    x[k][i][2] = attention_pack<S::HALF>(s[i][2 * k + 1][0], s[i][2 * k + 1][1]);
                    x[k][i][3] = attention_pack<S::HALF>(s[i][2 * k + 1][2], s[i][2 * k + 1][3]);
                }
            if constexpr (S::WGMMA && S::STAGES == 1) {
                attention_wait<1>();
                attention_fence<S>();
                __syncthreads(); /* the values are there */
                if (tile + 2 < end) t.find_places(tile + 2, seg, from, highest);
            }
            if constexpr (S::WGMMA) {
                attention_wgmma_tile<S>(o, x, t.v_at(stage), wn);
            } else {
#pragma unroll
                for (int k = 0; k < S::BK / 16; k++) t.values(o, x[k], t.v_at(stage), k, wn, lane);
            }
        }
        if (S::STAGES > 1) stage = stage + 1 == S::STAGES ? 0 : stage + 1;
    }
    attention_wait<0>();

    /* sums of the warps that shared the keys, in order */
#pragma unroll
    for (int i = 0; i < S::MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) l[i][h] = attention_quad_sum(l[i][h]);
    if constexpr (S::SHARED_KEYS) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < S::MT; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (lane % 4 == 0) t.red()[wn * S::BM + (wm * S::MT + i) * 16 + h * 8 + lane / 4] = l[i][h];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < S::MT; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                l[i][h] = 0.0f;
#pragma unroll
                for (int w = 0; w < S::WN; w++) l[i][h] += t.red()[w * S::BM + (wm * S::MT + i) * 16 + h * 8 + lane / 4];
            }
    }
#pragma unroll
    for (int i = 0; i < S::MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int slot = (wm * S::MT + i) * 16 + h * 8 + lane / 4, token = slot / a.heads;
            if (pos[i][h] < 0) continue;
            const int64_t head = t.head0 + slot % a.heads;
            float by = 1.0f;
            float *partial = NULL;
            uint8_t *out = NULL;
            if (S::SPLIT && a.n_splits > 1) {
                partial = a.partial + ((item * a.query.dim[1] + head) * a.n_splits + blockIdx.x) * (a.v_width + 2);
                if (wn == 0 && lane % 4 == 0) partial[0] = m[i][h], partial[1] = l[i][h];
            } else {
                float sum = l[i][h];
                if (a.sinks.n_dims) {
                    const float sink = *(const float *)(a.sinks.data + head * a.sinks.stride[0]) * LOG2E, m_new = fmaxf(m[i][h], sink);
                    by = attention_exp2(m[i][h] - m_new);
                    sum = sum * by + attention_exp2(sink - m_new);
                }
                by = by / sum;
                out = a.out.data + (row0 + token) * a.out.stride[0] + head * a.out.stride[1];
            }
#pragma unroll
            for (int j = 0; j < S::NO; j++) {
                const int d = wn * S::DW + j * 8 + lane % 4 * 2;
                const float x = o[i][j][2 * h] * by, y = o[i][j][2 * h + 1] * by;
                if (partial) {
                    if (d < a.v_width) partial[2 + d] = x;
                    if (d + 1 < a.v_width) partial[3 + d] = y;
                } else if (a.aligned) {
                    if (d < a.v_width) *(uint32_t *)((uint16_t *)out + d) = attention_pack<false>(x, y);
                } else {
                    if (d < a.v_width) ((uint16_t *)out)[d] = gpu_to_bf16(x);
                    if (d + 1 < a.v_width) ((uint16_t *)out)[d + 1] = gpu_to_bf16(y);
                }
            }
        }
}

template <class S> __global__ void __launch_bounds__(S::THREADS, 1) attention_tiles_kernel(const __grid_constant__ attention_tiles_args a) {
    extern __shared__ __align__(1024) uint8_t attention_dynamic[];
    uint8_t *attention_shared_bytes = attention_dynamic + (S::WGMMA ? (1024 - gpu_shared_at(attention_dynamic) % 1024) % 1024 : 0);
    const int kv_head = blockIdx.y / a.n_chunks;
    const attention_tile<S> t = {a, attention_shared_bytes, (uint32_t)__cvta_generic_to_shared(attention_shared_bytes), kv_head,
                                 (int64_t)kv_head * a.group + blockIdx.y % a.n_chunks * a.heads};
    if constexpr (S::SPLIT) {
        const int64_t row = attention_row_of(a, blockIdx.z);
        if (row < 0) return;
        attention_run<S>(t, row, 0, 1, attention_segment(a, row), blockIdx.z);
        return;
    }
    /* the last tiles have the most to do in a prompt: they come first */
    const int64_t row0 = (int64_t)(gridDim.x - 1 - blockIdx.x) * a.tokens;
    const int n = (int)(a.n_rows - row0 < a.tokens ? a.n_rows - row0 : a.tokens), lane = threadIdx.x % 32;
    for (int i = threadIdx.x; i < n + 2; i += S::THREADS) t.segs()[i] = attention_segment(a, row0 + i - 1);
    t.load_queries(row0, n);
    __syncthreads();
    const int *segs = t.segs() + 1;
    for (int first = 0; first < n;) {
        int end = n;
        for (int i = first + lane; i < n; i += 32)
            if (segs[i] != segs[first] && i < end) end = i;
        end = __reduce_min_sync(0xFFFFFFFFu, end);
        const bool alone = end - first == 1 && segs[first - 1] != segs[first] && segs[end] != segs[first];
        if (!alone || a.rows == ATTENTION_ALL_ROWS) attention_run<S>(t, row0, first, end - first, segs[first], 0);
        first = end;
    }
}

/* The files that hold the kernels. `*fits` is false, and nothing was launched, where the device lacks the shared memory. */
status attention_prefill(vt_queue *q, const vt_call *call, attention_tiles_args *a, bool half, bool *fits, error *err);
status attention_decode(vt_queue *q, const vt_call *call, attention_tiles_args *a, bool half, int64_t n_items, bool *fits, error *err);
/* attention_warps.cu: decode without tiles in shared memory, where a kv head has few query heads. */
bool attention_warps_fit(const vt_queue *q, const attention_tiles_args *a);
status attention_warps(vt_queue *q, const vt_call *call, const attention_tiles_args *a, bool half, int64_t n_items, error *err);

template <class S> static bool attention_has_room(const vt_queue *q) { return S::BYTES <= gpu_device(q)->shared_bytes; }

template <class S> static status attention_launch(vt_queue *q, const vt_call *call, const attention_tiles_args *a, dim3 grid, error *err) {
    TRY(cuda_result(cudaFuncSetAttribute(attention_tiles_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES), "shared memory", err));
    attention_tiles_kernel<S><<<grid, S::THREADS, S::BYTES, gpu_stream(q)>>>(*a);
    return gpu_launched(call, err);
}

#endif
