/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on matrix units for many rows: the shapes of attention_tiles.cuh by the width of a head. */
#include "vt/cuda/attention_limits.cuh"
#include "vt/cuda/attention_tiles.cuh"

/* 128 slots, each warp with sixteen of them and all keys, up to 256 wide; 64 slots and warps that share keys and dimensions above. */
template <bool H, int D> using narrow = attention_shape_of<H, D, D, 8, 1, 1, 64, 2, false, false>;
template <bool H> using wide = attention_shape_of<H, 512, 512, 2, 4, 2, 64, 1, false, false>;
template <bool H> using latent = attention_shape_of<H, 576, 512, 4, 2, 1, 32, 3, true, false>;
/* The same slots on wgmma. */
template <bool H, int D> using narrow_wgmma = attention_shape_of<H, D, D, 8, 1, 1, 64, 2, false, false, true>;
template <bool H> using wide_wgmma = attention_shape_of<H, 512, 512, 4, 2, 1, 64, 1, false, false, true>;
template <bool H> using latent_wgmma = attention_shape_of<H, 576, 512, 4, 2, 1, 64, 2, true, false, true>;

template <class S> static status run(vt_queue *q, const vt_call *call, attention_tiles_args *a, bool *fits, error *err) {
    *fits = attention_has_room<S>(q);
    if (!*fits) return STATUS_OK;
    a->heads = a->group < S::BM ? a->group : S::BM;
    a->n_chunks = (int32_t)gpu_ceil(a->group, a->heads);
    a->tokens = S::BM / a->heads;
    a->n_splits = 1;
    return attention_launch<S>(q, call, a, dim3((unsigned)gpu_ceil(a->n_rows, a->tokens), (unsigned)(a->k.dim[1] * a->n_chunks)), err);
}

/* The shape for wgmma where the device has that, else the other. */
template <class W, class S> static status either(vt_queue *q, const vt_call *call, attention_tiles_args *a, bool *fits, error *err) {
    return cuda_runs_wgmma(q) ? run<W>(q, call, a, fits, err) : run<S>(q, call, a, fits, err);
}

/* Widths whose tiles a device has the shared memory for, as by_width takes them. */
extern "C" int32_t cuda_attention_widest(const cuda_device *d) {
    vt_queue any = {};
    any.dev = (decltype(any.dev))(void *)const_cast<cuda_device *>(d);
    const bool hopper = cuda_runs_wgmma(&any);
    const struct {
        int32_t width, bytes, bytes_wgmma;
    } shapes[] = {{64, narrow<true, 64>::BYTES, narrow<true, 64>::BYTES},
                  {128, narrow<true, 128>::BYTES, narrow_wgmma<true, 128>::BYTES},
                  {256, narrow<true, 256>::BYTES, narrow_wgmma<true, 256>::BYTES},
                  {512, wide<true>::BYTES, wide_wgmma<true>::BYTES},
                  {CUDA_ATTENTION_WIDTH, latent<true>::BYTES, latent_wgmma<true>::BYTES}};
    int32_t widest = 0;
    for (const auto &s : shapes) {
        if ((hopper ? s.bytes_wgmma : s.bytes) > d->shared_bytes) break;
        widest = s.width;
    }
    return widest;
}

template <bool H> static status by_width(vt_queue *q, const vt_call *call, attention_tiles_args *a, bool *fits, error *err) {
    if (a->width > 512) return either<latent_wgmma<H>, latent<H>>(q, call, a, fits, err);
    if (a->width > 256) return either<wide_wgmma<H>, wide<H>>(q, call, a, fits, err);
    if (a->width > 128) return either<narrow_wgmma<H, 256>, narrow<H, 256>>(q, call, a, fits, err);
    if (a->width > 64) return either<narrow_wgmma<H, 128>, narrow<H, 128>>(q, call, a, fits, err);
    return run<narrow<H, 64>>(q, call, a, fits, err);
}

status attention_prefill(vt_queue *q, const vt_call *call, attention_tiles_args *a, bool half, bool *fits, error *err) {
    return half ? by_width<true>(q, call, a, fits, err) : by_width<false>(q, call, a, fits, err);
}
