/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A tile of out = a . b^T on Hopper's matrix units (wgmma): BF16 rows of a and b, F32 sums. The rows come from a functor, so that a tile may gather rows by index
 * and find its weights in a table; sums go to a functor.
 *
 * A block of 2 warpgroups (256 threads) computes BM = 128 rows of a by BN = 64, 128, 192 or 256 rows of b; warpgroup g has rows 64 g .. 64 g + 63. K goes by in stages of
 * 64 elements: a row of a stage is 128 bytes, sixteen of which are one cp.async; the pieces of row r lie at piece ^ (r % 8), which is the 128-byte swizzle that the
 * matrix unit undoes. While stage i is multiplied, i - 1 is still being multiplied and i + 1 .. i + STAGES - 2 are on their way; one barrier a stage.
 *
 * The order of addition: k ascending in steps of sixteen. How the sixteen products of a step are added is the unit's own; an output does not depend on the tile it
 * is computed in, nor on what lies beside it.
 *
 * Compiled to nothing but for sm_90a (GPU_HAS_WGMMA); who launches asks cuda_runs_wgmma.
 */
#ifndef HEADRACE_VT_CUDA_GPU_WGMMA_H
#define HEADRACE_VT_CUDA_GPU_WGMMA_H

#include "vt/cuda/gpu.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define GPU_HAS_WGMMA 1
#endif

static const int WGMMA_THREADS = 256, WGMMA_BM = 128, WGMMA_BK = 64, WGMMA_ROW = WGMMA_BK * 2;

/* Narrow tiles leave room for a second block on a multiprocessor, which multiplies while the first one stores. */
template <int BN> GPU_HD constexpr int wgmma_blocks() { return BN <= 128 ? 2 : 1; }
template <int BN> GPU_HD constexpr int wgmma_stages() { return BN == 256 ? 4 : BN == 192 ? 5 : BN == 128 ? 3 : 4; }
/* Dynamic shared memory of a block, with room to align it. */
template <int BN> GPU_HD constexpr int wgmma_shared_bytes() { return wgmma_stages<BN>() * (WGMMA_BM + BN) * WGMMA_ROW + 1024; }

static inline bool cuda_runs_wgmma(const vt_queue *q) { return gpu_runs_90a(q); }

#ifdef GPU_HAS_WGMMA
#define WGMMA_R4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_R16(d, i) WGMMA_R4(d, i), WGMMA_R4(d, i + 4), WGMMA_R4(d, i + 8), WGMMA_R4(d, i + 12)

/* d += a . b^T: a 64 by 16, b N by 16, both by descriptor. */
template <int N> struct wgmma_op;
template <> struct wgmma_op<64> {
    static __device__ __forceinline__ void run(float (&d)[32], uint64_t a, uint64_t b) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30"
                 ",%31"
                 "}, %32, %33, 1, 1, 1, 0, 0;"
                 : WGMMA_R16(d, 0), WGMMA_R16(d, 16)
                 : "l"(a), "l"(b));
    }
};

template <> struct wgmma_op<128> {
    static __device__ __forceinline__ void run(float (&d)[64], uint64_t a, uint64_t b) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30"
                 ",%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58"
                 ",%59,%60,%61,%62,%63"
                 "}, %64, %65, 1, 1, 1, 0, 0;"
                 : WGMMA_R16(d, 0), WGMMA_R16(d, 16), WGMMA_R16(d, 32), WGMMA_R16(d, 48)
                 : "l"(a), "l"(b));
    }
};

template <> struct wgmma_op<192> {
    static __device__ __forceinline__ void run(float (&d)[96], uint64_t a, uint64_t b) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30"
                 ",%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58"
                 ",%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86"
                 ",%87,%88,%89,%90,%91,%92,%93,%94,%95"
                 "}, %96, %97, 1, 1, 1, 0, 0;"
                 : WGMMA_R16(d, 0), WGMMA_R16(d, 16), WGMMA_R16(d, 32), WGMMA_R16(d, 48), WGMMA_R16(d, 64), WGMMA_R16(d, 80)
                 : "l"(a), "l"(b));
    }
};

template <> struct wgmma_op<256> {
    static __device__ __forceinline__ void run(float (&d)[128], uint64_t a, uint64_t b) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30"
                 ",%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58"
                 ",%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86"
                 ",%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
                 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
                 "}, %128, %129, 1, 1, 1, 0, 0;"
                 : WGMMA_R16(d, 0), WGMMA_R16(d, 16), WGMMA_R16(d, 32), WGMMA_R16(d, 48), WGMMA_R16(d, 64), WGMMA_R16(d, 80), WGMMA_R16(d, 96), WGMMA_R16(d, 112)
                 : "l"(a), "l"(b));
    }
};

/* Where a swizzled matrix begins: groups of eight rows 1,024 bytes apart. */
GPU_FN uint64_t wgmma_descriptor(uint32_t at) { return 1ull << 62 | 64ull << 32 | 1ull << 16 | (at & 0x3FFFF) >> 4; }
GPU_FN void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
GPU_FN void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> GPU_FN void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
#endif

/**
 * One tile. a_row(i), i in 0 .. 127, and b_row(j), j in 0 .. BN - 1: the address of a row (sixteen-byte aligned), or NULL for a row of zeros; asked once, before the
 * first load. n_k: elements of K, a multiple of 8. store(i, j, x, y) gets the sums of row i and columns j and j + 1 (j even): for every i and j of the tile, those of
 * NULL rows as well. `shared`: wgmma_shared_bytes<BN>() bytes. All 256 threads of the block call it together.
 */
template <int BN, class A, class B, class S> GPU_FN void wgmma_tile(uint8_t *shared, A a_row, B b_row, int n_k, S store) {
#ifdef GPU_HAS_WGMMA
    const int t = threadIdx.x, group = t / 128, piece = t % 8, row0 = t / 8, CA = WGMMA_BM / 32, CB = BN / 32, STAGE = (WGMMA_BM + BN) * WGMMA_ROW, STAGES = wgmma_stages<BN>();
    const uint32_t base = (gpu_shared_at(shared) + 1023) / 1024 * 1024;
    const uint8_t *from[CA + CB];
#pragma unroll
    for (int c = 0; c < CA; c++) from[c] = a_row(row0 + 32 * c);
#pragma unroll
    for (int c = 0; c < CB; c++) from[CA + c] = b_row(row0 + 32 * c);
    uint32_t there = 0; /* a bit a row that is not zeros */
#pragma unroll
    for (int c = 0; c < CA + CB; c++) {
        if (from[c] != NULL) there |= 1u << c;
        from[c] = from[c] != NULL ? from[c] + piece * 16 : (const uint8_t *)0 + 16; /* never read */
    }
    const uint32_t to = base + row0 * WGMMA_ROW + (piece ^ (row0 & 7)) * 16;
    const int n_stages = (n_k + WGMMA_BK - 1) / WGMMA_BK;
    auto load = [&](int i) { /* rows of a, then of b: 32 rows are 4,096 bytes */
        if (i < n_stages) {
            const uint32_t stage = to + i % STAGES * STAGE;
            const bool inside = i * WGMMA_BK + piece * 8 < n_k;
#pragma unroll
            for (int c = 0; c < CA + CB; c++) {
                gpu_copy16(stage + c * 4096, from[c], inside && (there >> c & 1) ? 16 : 0);
                from[c] += WGMMA_ROW;
            }
        }
        gpu_copy_commit();
    };
    float acc[BN / 2];
#pragma unroll
    for (int j = 0; j < BN / 2; j++) acc[j] = 0.0f;
    for (int i = 0; i < STAGES - 2; i++) load(i);
    for (int i = 0; i < n_stages; i++) {
        gpu_copy_wait<STAGES - 3>();                               /* stage i of this thread */
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* for the matrix unit too */
        __syncthreads();                                             /* of every thread; and nobody multiplies i - 2 any more */
        const uint32_t at = base + i % STAGES * STAGE;
        const uint64_t da = wgmma_descriptor(at + group * 64 * WGMMA_ROW), db = wgmma_descriptor(at + WGMMA_BM * WGMMA_ROW);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < WGMMA_BK / 16; k++) wgmma_op<BN>::run(acc, da + 2 * k, db + 2 * k);
        wgmma_commit();
        load(i + STAGES - 2);
        wgmma_wait<1>();
    }
    wgmma_wait<0>();
    gpu_copy_wait<0>();
    const int lane = t % 32, row = group * 64 + t / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        store(row, j * 8 + lane % 4 * 2, acc[4 * j], acc[4 * j + 1]);
        store(row + 8, j * 8 + lane % 4 * 2, acc[4 * j + 2], acc[4 * j + 3]);
    }
    __syncthreads(); /* shared memory is free for another tile */
#else
    (void)shared, (void)a_row, (void)b_row, (void)n_k, (void)store;
#endif
}

#endif
