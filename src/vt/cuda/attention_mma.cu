/* SPDX-License-Identifier: Apache-2.0 */
/* The row of attention on matrix units: which of its kernels a call takes. */
#include <stdio.h>

#include <atomic>

#include "vt/cuda/attention_limits.cuh"
#include "vt/cuda/attention_tiles.cuh"

extern "C" status cuda_paged_attention(vt_queue *q, const vt_call *call, error *err);

/* Rows that a step may have and still be computed one by one, each over the whole device. */
static const int64_t FEW_ROWS = 8;

/* The keys are the values, or the first of their dimensions. */
static bool shares(const vt_tensor *k, const vt_tensor *v) {
    return k->data == v->data && k->stride[0] == v->stride[0] && k->stride[1] == v->stride[1] && k->stride[2] == v->stride[2];
}

/* Matrix units take heads up to 512 wide, and latent ones of 576 whose first 512 are the values. */
extern "C" bool cuda_fits_attention(const vt_call *call) {
    const int64_t width = call->t[2]->dim[3], v_width = call->t[3]->dim[3];
    return width <= 512 || (width <= 576 && v_width <= 512 && shares(call->t[2], call->t[3]));
}

static bool whole(const gpu_view &t, uint64_t bytes, int n_strides) {
    uint64_t bits = (uint64_t)(uintptr_t)t.data;
    for (int i = 0; i < n_strides; i++) bits |= (uint64_t)t.stride[i];
    return bits % bytes == 0;
}

/* Shared memory for no shape of the tiles: the ordinary cores, which is said, once. */
static status on_ordinary_cores(vt_queue *q, const vt_call *call, error *err) {
    static std::atomic_flag said = ATOMIC_FLAG_INIT;
    const cuda_device *d = gpu_device(q);
    if (!said.test_and_set() && d->host->log) {
        char line[256];
        snprintf(line, sizeof line, "cuda: attention over heads of %lld takes the ordinary cores: a block has %d KiB of shared memory, matrix units are used up to heads of %d",
                 (long long)call->t[2]->dim[3], d->shared_bytes >> 10, cuda_attention_widest(d));
        d->host->log(d->host->ctx, 1, line);
    }
    return cuda_paged_attention(q, call, err);
}

extern "C" status cuda_paged_attention_mma(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    attention_tiles_args a = {};
    a.out = gpu_view_of(call->t[0]);
    a.query = gpu_view_of(call->t[1]);
    a.k = gpu_view_of(call->t[2]);
    a.v = gpu_view_of(call->t[3]);
    a.sinks = gpu_view_of(call->t[7]);
    a.map = page_map_of(call, 4, call->t[2]);
    a.p = call->p.attention;
    if (gpu_count(call->t[0]) <= 0) return STATUS_OK;
    a.n_rows = a.query.dim[0];
    a.group = (int32_t)(a.query.dim[1] / a.k.dim[1]);
    a.width = (int32_t)a.query.dim[2];
    a.v_width = (int32_t)a.v.dim[3];
    a.aligned = a.width % 8 == 0 && a.v_width % 8 == 0 && whole(a.query, 16, 2) && whole(a.k, 16, 3) && whole(a.v, 16, 3) && whole(a.out, 4, 2);
    const bool half = a.k.dtype == VT_F16;
    const int64_t n_segs = a.map.pages.dim[0];
    if (a.query.dim[1] > 65535 || n_segs > 65535 || a.map.pages.dim[1] * a.map.page_tokens > INT32_MAX) return cuda_refuse(err, "paged_attention: more than 65535 heads or segments");
    bool fits = true;
    if (a.n_rows <= n_segs || a.n_rows <= FEW_ROWS) {
        a.rows = ATTENTION_BY_ROW;
        TRY(attention_decode(q, call, &a, half, a.n_rows, &fits, err));
    } else {
        a.rows = n_segs > 1 ? ATTENTION_SHARED_ROWS : ATTENTION_ALL_ROWS;
        TRY(attention_prefill(q, call, &a, half, &fits, err));
        if (fits && n_segs > 1) {
            a.rows = ATTENTION_BY_SEGMENT;
            TRY(attention_decode(q, call, &a, half, n_segs, &fits, err));
        }
    }
    return fits ? STATUS_OK : on_ordinary_cores(q, call, err);
}
