/* SPDX-License-Identifier: Apache-2.0 */
/** The page tables of a step as kernels see them. */
#ifndef HEADRACE_VT_CUDA_GPU_PAGES_H
#define HEADRACE_VT_CUDA_GPU_PAGES_H

#include "vt/cuda/gpu.cuh"

struct page_map {
    gpu_view pos, row_seg, pages;
    int64_t page_tokens;
};

static inline page_map page_map_of(const vt_call *call, int first, const vt_tensor *cache) {
    return {gpu_view_of(call->t[first]), gpu_view_of(call->t[first + 1]), gpu_view_of(call->t[first + 2]), cache->dim[2]};
}

GPU_FN int64_t position_of(const page_map &m, int64_t row) { return *(const int32_t *)(m.pos.data + row * m.pos.stride[0]); }

/* The page that holds a position of a row's segment; 0 for one outside the table, which a step that was checked does not name. */
GPU_FN int64_t page_of(const page_map &m, int64_t row, int64_t pos, int64_t n_pages) {
    int64_t seg = *(const int32_t *)(m.row_seg.data + row * m.row_seg.stride[0]), p = pos / m.page_tokens;
    if (seg < 0 || seg >= m.pages.dim[0] || p >= m.pages.dim[1]) return 0;
    int64_t page = *(const int32_t *)(m.pages.data + seg * m.pages.stride[0] + p * m.pages.stride[1]);
    return page >= 0 && page < n_pages ? page : 0;
}

#endif
