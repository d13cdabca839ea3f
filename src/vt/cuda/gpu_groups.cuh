/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the grouped products share: their arguments, the tables of addresses, and which rows of which group a block works on. A launch has as many slots as there can be tiles, which
 * follows from the numbers of places and groups; slot s has the s-th tile of the groups that have rows, and what is past the last ends at once.
 */
#ifndef HEADRACE_VT_CUDA_GPU_GROUPS_H
#define HEADRACE_VT_CUDA_GPU_GROUPS_H

#include "vt/cuda/gpu.cuh"

struct gpu_grouped {
    gpu_view out, x;
    const int32_t *first, *pair_row; /* pair_row may be NULL */
    const uint8_t *const *table, *const *bias_table, *const *extra_table; /* the last two may be NULL; extra: of scales, or of the matrices of up */
    int64_t w_stride[2];             /* bytes */
    int32_t n_groups, n_n, n_k, bias_dtype; /* n_n: rows of w */
    int32_t gate, n_gated;           /* n_gated: columns of out; 0: no gate */
    vt_swiglu_params swiglu;
};

static inline gpu_grouped gpu_grouped_of(const vt_call *call) {
    enum { OUT, X, FIRST, PAIR_ROW, W, TABLE, BIAS, BIAS_TABLE, EXTRA, EXTRA_TABLE };
    gpu_grouped a = {};
    const gpu_view w = gpu_view_of(call->t[W]);
    const bool scaled = call->op == VT_OP_MATMUL_GROUPED_SCALED, gated = call->op == VT_OP_MATMUL_GROUPED_GATED;
    a.out = gpu_view_of(call->t[OUT]);
    a.x = gpu_view_of(call->t[X]);
    a.first = (const int32_t *)call->t[FIRST]->data;
    a.pair_row = call->t[PAIR_ROW]->n_dims ? (const int32_t *)call->t[PAIR_ROW]->data : NULL;
    a.table = (const uint8_t *const *)call->t[TABLE]->data;
    a.bias_table = call->t[BIAS_TABLE]->n_dims ? (const uint8_t *const *)call->t[BIAS_TABLE]->data : NULL;
    const int extra = scaled ? EXTRA_TABLE : EXTRA;
    a.extra_table = (scaled || gated) && call->t[extra]->n_dims ? (const uint8_t *const *)call->t[extra]->data : NULL;
    a.w_stride[0] = w.stride[0];
    a.w_stride[1] = w.stride[1];
    a.n_groups = (int32_t)(call->t[FIRST]->dim[0] - 1);
    a.n_n = (int32_t)call->t[W]->dim[0];
    a.n_k = (int32_t)call->t[W]->dim[1];
    a.bias_dtype = call->t[BIAS]->dtype;
    a.gate = call->p.grouped.gate;
    a.n_gated = gated ? (int32_t)call->t[OUT]->dim[1] : 0;
    a.swiglu = call->p.grouped.swiglu;
    return a;
}

/* Sizes that the kernels count in 32 bits. */
static inline bool gpu_grouped_fits(const vt_call *call) {
    return call->t[0]->dim[0] <= 1 << 28 && call->t[2]->dim[0] <= 1 << 20 && call->t[4]->dim[0] <= 1 << 24 && call->t[4]->dim[1] <= 1 << 28;
}

/* Tiles of `rows` rows that there can be. */
static inline int64_t gpu_group_slots(const vt_call *call, int rows) {
    const int64_t places = call->t[0]->dim[0], groups = call->t[2]->dim[0] - 1, most = places / rows + groups;
    return places < most ? places : most;
}

/* Rows that most groups have at most, from the places, the groups and the rows of the step: what chooses a kernel, so that it never depends on which groups are there. */
static inline int gpu_group_rows(const vt_call *call) {
    const int64_t places = call->t[0]->dim[0], groups = call->t[2]->dim[0] - 1, mean = places / groups, most = call->p.grouped.max_rows;
    const int64_t want = mean + mean / 2 + 4;
    return (int)(most > 0 && most < want ? most : want);
}

struct gpu_group_tile {
    int32_t group, begin, n; /* places begin .. begin + n - 1 of out */
};

/* Where the index-th tile lies: its group, the tiles of groups before, and the places of the group; group -1: there are not so many. Every warp finds it for itself; a lane counts the tiles of
 * neighbouring groups. */
struct gpu_group_found {
    int32_t group, before, begin, end;
};

GPU_FN gpu_group_found gpu_find_group(const int32_t *first, int n_groups, int rows, int index) {
    const int lane = threadIdx.x % 32, per = (n_groups + 31) / 32, lo = lane * per < n_groups ? lane * per : n_groups, hi = lo + per < n_groups ? lo + per : n_groups;
    int tiles = 0, from = first[lo];
    const int mine = from;
#pragma unroll 4
    for (int g = lo; g < hi; g++) {
        const int to = first[g + 1];
        tiles += (to - from + rows - 1) / rows;
        from = to;
    }
    int upto = tiles;
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        const int other = gpu_shfl_up(upto, d);
        if (lane >= d) upto += other;
    }
    const uint32_t past = gpu_ballot(upto > index);
    gpu_group_found f = {-1, 0, 0, 0};
    if (past == 0) return f;
    const int owner = __ffs(past) - 1;
    if (lane == owner) {
        int before = upto - tiles, begin = mine;
        for (int g = lo; g < hi; g++) {
            const int end = first[g + 1], here = (end - begin + rows - 1) / rows;
            if (index < before + here) {
                f = {g, before, begin, end};
                break;
            }
            before += here;
            begin = end;
        }
    }
    f.group = gpu_shfl(f.group, owner);
    f.before = gpu_shfl(f.before, owner);
    f.begin = gpu_shfl(f.begin, owner);
    f.end = gpu_shfl(f.end, owner);
    return f;
}

/* The tile of a slot; n = 0: there is none. */
GPU_FN gpu_group_tile gpu_find_tile(const int32_t *first, int n_groups, int rows, int slot) {
    const gpu_group_found f = gpu_find_group(first, n_groups, rows, slot);
    if (f.group < 0) return {0, 0, 0};
    const int begin = f.begin + (slot - f.before) * rows;
    return {f.group, begin, f.end - begin < rows ? f.end - begin : rows};
}

/* grouped_wgmma.cu and grouped_scaled_wgmma.cu: BF16 x, and weights of BF16 or narrower; where cuda_runs_wgmma says so. */
status gpu_run_grouped_wgmma(vt_queue *q, const vt_call *call, error *err);
status gpu_run_grouped_scaled_wgmma(vt_queue *q, const vt_call *call, error *err);
/* grouped_scaled_tma.cu: many rows by FP8. */
bool gpu_takes_grouped_narrow(const vt_queue *q, const vt_call *call);
status gpu_run_grouped_narrow(vt_queue *q, const vt_call *call, error *err);

/* The row of x at a place. */
GPU_FN const uint8_t *gpu_group_x(const gpu_grouped &a, int place) {
    int64_t row = a.pair_row ? a.pair_row[place] : place;
    if (row < 0 || row >= a.x.dim[0]) row = 0;
    return a.x.data + row * a.x.stride[0];
}

/* The rows of w behind column j of a gated output. */
GPU_FN int gpu_gate_row(const gpu_grouped &a, int j, bool up) { return a.extra_table ? j : a.swiglu.interleaved ? 2 * j + up : j + (up ? a.n_gated : 0); }

#endif
