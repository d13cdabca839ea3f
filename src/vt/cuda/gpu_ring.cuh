/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A ring of stages in shared memory between warps that bring and warps that multiply (Hopper): the barriers, whose turn it is, and multiplications of the widths that gpu_wgmma.cuh does not
 * have. A stage is filled again when every warp that multiplies has given it back.
 */
#ifndef HEADRACE_VT_CUDA_GPU_RING_H
#define HEADRACE_VT_CUDA_GPU_RING_H

#include "vt/cuda/gpu_wgmma.cuh"

#ifdef GPU_HAS_WGMMA
template <> struct wgmma_op<32> {
    static __device__ __forceinline__ void run(float (&d)[16], uint64_t a, uint64_t b) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                     "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
                     "}, %16, %17, 1, 1, 1, 0, 0;"
                     : WGMMA_R16(d, 0)
                     : "l"(a), "l"(b));
    }
};

template <> struct wgmma_op<96> {
    static __device__ __forceinline__ void run(float (&d)[48], uint64_t a, uint64_t b) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
                     "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28"
                     ",%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
                     "}, %48, %49, 1, 1, 1, 0, 0;"
                     : WGMMA_R16(d, 0), WGMMA_R16(d, 16), WGMMA_R16(d, 32)
                     : "l"(a), "l"(b));
    }
};

template <> struct wgmma_op<160> {
    static __device__ __forceinline__ void run(float (&d)[80], uint64_t a, uint64_t b) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 {"
                     "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28"
                     ",%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54"
                     ",%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
                     "}, %80, %81, 1, 1, 1, 0, 0;"
                     : WGMMA_R16(d, 0), WGMMA_R16(d, 16), WGMMA_R16(d, 32), WGMMA_R16(d, 48), WGMMA_R16(d, 64)
                     : "l"(a), "l"(b));
    }
};

template <> struct wgmma_op<224> {
    static __device__ __forceinline__ void run(float (&d)[112], uint64_t a, uint64_t b) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n224k16.f32.bf16.bf16 {"
                     "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28"
                     ",%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54"
                     ",%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80"
                     ",%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104"
                     ",%105,%106,%107,%108,%109,%110,%111"
                     "}, %112, %113, 1, 1, 1, 0, 0;"
                     : WGMMA_R16(d, 0), WGMMA_R16(d, 16), WGMMA_R16(d, 32), WGMMA_R16(d, 48), WGMMA_R16(d, 64), WGMMA_R16(d, 80), WGMMA_R16(d, 96)
                     : "l"(a), "l"(b));
    }
};

GPU_FN void ring_init(uint32_t bar, int arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory"); }
GPU_FN void ring_arrive(uint32_t bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
/* Arrives when the copies that this thread has begun are there. */
GPU_FN void ring_arrive_copied(uint32_t bar) { asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory"); }
GPU_FN void ring_wait(uint32_t bar, uint32_t parity) {
    asm volatile("{\n.reg .pred p;\nRING_AGAIN_%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra RING_AGAIN_%=;\n}" ::"r"(bar), "r"(parity) : "memory");
}
GPU_FN void ring_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); } /* what was written is there for the matrix unit too */
template <int N> GPU_FN void ring_more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> GPU_FN void ring_fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }

/* Whose turn it is: the stage, and the parity of its round. */
struct ring_turn {
    int stage;
    uint32_t round;
};
template <int STAGES> GPU_FN void ring_next(ring_turn &t) {
    if (++t.stage == STAGES) t.stage = 0, t.round ^= 1;
}
#endif

#endif
