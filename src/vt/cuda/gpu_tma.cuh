/* SPDX-License-Identifier: Apache-2.0 */
/** Boxes of a matrix into shared memory by one instruction (Hopper's tensor copies), the maps that describe the matrices, and multiplications of the widths that gpu_ring.cuh does not have. */
#ifndef HEADRACE_VT_CUDA_GPU_TMA_H
#define HEADRACE_VT_CUDA_GPU_TMA_H

#include <cuda.h>

#include "vt/cuda/gpu_ring.cuh"

static const int TMA_MAP = 128; /* bytes of a map */

/* A map of a matrix of BF16 rows in boxes of `box_rows` rows by 64 elements, laid out as gpu_wgmma.cuh wants a stage; what is outside is zero. False: the driver has no such maps, or not of this matrix. */
static inline bool tma_map_of(CUtensorMap *map, int bytes, const void *data, uint64_t rows, uint64_t k, uint64_t stride, uint32_t box_rows) {
    typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                  CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    static encode_fn encode = NULL;
    if (!encode) {
        void *at = NULL;
        cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &at, 12000, cudaEnableDefault, &found) != cudaSuccess || found != cudaDriverEntryPointSuccess) return false;
        encode = (encode_fn)at;
    }
    const cuuint64_t dims[2] = {k, rows}, strides[1] = {stride};
    const cuuint32_t box[2] = {64, box_rows}, steps[2] = {1, 1};
    return encode(map, bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)data, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, bytes == 1 ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

#ifdef GPU_HAS_WGMMA
template <> struct wgmma_op<80> {
    static __device__ __forceinline__ void run(float (&d)[40], uint64_t a, uint64_t b) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 {"
                     "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39"
                     "}, %40, %41, 1, 1, 1, 0, 0;"
                     : WGMMA_R16(d, 0), WGMMA_R16(d, 16), WGMMA_R4(d, 32), WGMMA_R4(d, 36)
                     : "l"(a), "l"(b));
    }
};

template <> struct wgmma_op<112> {
    static __device__ __forceinline__ void run(float (&d)[56], uint64_t a, uint64_t b) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n112k16.f32.bf16.bf16 {"
                     "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55"
                     "}, %56, %57, 1, 1, 1, 0, 0;"
                     : WGMMA_R16(d, 0), WGMMA_R16(d, 16), WGMMA_R16(d, 32), WGMMA_R4(d, 48), WGMMA_R4(d, 52)
                     : "l"(a), "l"(b));
    }
};

template <> struct wgmma_op<144> {
    static __device__ __forceinline__ void run(float (&d)[72], uint64_t a, uint64_t b) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n144k16.f32.bf16.bf16 {"
                     "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71"
                     "}, %72, %73, 1, 1, 1, 0, 0;"
                     : WGMMA_R16(d, 0), WGMMA_R16(d, 16), WGMMA_R16(d, 32), WGMMA_R16(d, 48), WGMMA_R4(d, 64), WGMMA_R4(d, 68)
                     : "l"(a), "l"(b));
    }
};

/* Box of the map at element k of row `row`; the barrier hears of its bytes. */
GPU_FN void tma_load(uint32_t to, const void *map, int k, int row, uint32_t bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map), "r"(k), "r"(row), "r"(bar) : "memory");
}
GPU_FN void tma_fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); } /* barriers are there for copies too */
/* Arrives, and so many bytes are to come. */
GPU_FN void tma_expect(uint32_t bar, uint32_t bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory"); }
/* A map that another kernel wrote may be used behind this. */
GPU_FN void tma_acquire(const void *map) { asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory"); }
GPU_FN void tma_release() { asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory"); }
GPU_FN void tma_set_address(void *map, const void *data) { asm volatile("tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1;" ::"l"(map), "l"(data) : "memory"); }
#endif

#endif
