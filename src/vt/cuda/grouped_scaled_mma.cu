/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grouped products with FP8 and MXFP4 weights on matrix units (m16n8k16, the weights are operand a). A block has 64 rows of a group's weights and a tile of its rows; both go through shared
 * memory in stages of 128 k, weights as they are stored, and a warp widens its sixteen rows when it multiplies. Which k a place of a multiplication stands for is free, so it is what a lane
 * reads at a time: four neighbours of FP8, eight of FP4.
 *
 * Numbers: weights are exact, F32 activations are cut into three BF16 parts (gpu_mma.cuh) that go by from the smallest to the largest, k ascends in steps of sixteen. FP8: the F32 sum of 64 k,
 * then sum = fma(that, scale, sum). MXFP4: the scale is a power of two and goes into the weight, which stays exact. A NaN weight makes its output NaN. How many rows a tile has changes no bit.
 */
#include "vt/cuda/gpu_grouped_mma.cuh"
#include "vt/cuda/gpu_grouped_scaled.cuh"
#include "vt/cuda/gpu_wgmma.cuh"

static const int STAGE_K = 128, ROWS = 64, THREADS = 128; /* of weights; a warp has sixteen */

template <int TB_, int TX_, int MT_, int STAGES_, int BLOCKS_> struct scaled_form {
    static const int TB = TB_, TX = TX_, MT = MT_, STAGES = STAGES_, BLOCKS = BLOCKS_, Y = MT / 8;
    static const int W_ROW = TB == VT_F8_E4M3 ? STAGE_K : STAGE_K / 2, X_ROW = STAGE_K * (TX == VT_F32 ? 4 : 2), STAGE_W = ROWS * W_ROW, STAGE = STAGE_W + MT * X_ROW, BYTES = STAGES * STAGE;
};

/* What a lane's two rows of weights are scaled by in a stage. FP8: of two halves; FP4: exponents of four blocks. */
template <class F> struct scaled_by {
    float f[2][2];
    uint32_t e[2];
};

template <class F> GPU_FN void load_scales(scaled_by<F> &s, const gpu_grouped_scaled &a, const uint8_t *const (&row)[2], int stage) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if constexpr (F::TB == VT_F8_E4M3) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int k = stage * STAGE_K + i * 64;
                s.f[h][i] = k < a.g.n_k ? gpu_get(a.scale_dtype, row[h], k / a.block_k) : 0.0f;
            }
        } else {
            s.e[h] = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int block = stage * 4 + i;
                if (block * 32 < a.g.n_k) s.e[h] |= (uint32_t)row[h][block] << (8 * i);
            }
        }
    }
}

/* Four activations as the pairs of a lane's two places, in parts from the largest. */
GPU_FN void parts_of(uint32_t (&b)[3][2], float x, float y, float u, float v) {
    uint32_t low[3], high[3];
    mma_split3(x, y, low);
    mma_split3(u, v, high);
#pragma unroll
    for (int p = 0; p < 3; p++) b[p][0] = low[p], b[p][1] = high[p];
}

GPU_FN uint4 load_chunk(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}

GPU_FN float4 load_four(uint32_t at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at));
    return v;
}

template <class F> GPU_FN void multiply_parts(float (&d)[4], const uint32_t (&w)[4], const uint32_t (&b)[3][2]) {
#pragma unroll
    for (int p = F::TX == VT_F32 ? 2 : 0; p >= 0; p--) mma_bf16(d, w, b[p]);
}

/* Sixteen k of FP8: word `low` of row lane / 4 and `high` of the row eight below. */
template <class F> GPU_FN void multiply_e4m3(float (&d)[F::Y][4], uint32_t low, uint32_t high, uint32_t x, int kk) {
    const int row = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
    uint32_t w[4];
    narrow_e4m3(low, w[0], w[2]);
    narrow_e4m3(high, w[1], w[3]);
#pragma unroll
    for (int y = 0; y < F::Y; y++) {
        uint32_t b[3][2];
        if constexpr (F::TX == VT_F32) {
            const float4 v = load_four(x + in_stage(y * 8 + row, 4 * kk + quad, F::X_ROW));
            parts_of(b, v.x, v.y, v.z, v.w);
        } else {
            const float2 v = load_pair(x + in_stage(y * 8 + row, 2 * kk + quad / 2, F::X_ROW) + quad % 2 * 8);
            b[0][0] = __float_as_uint(v.x), b[0][1] = __float_as_uint(v.y);
        }
        multiply_parts<F>(d[y], w, b);
    }
}

/* Thirty-two k of FP4, one block of scales. */
template <class F> GPU_FN void multiply_e2m1(float (&d)[F::Y][4], uint32_t low, uint32_t high, uint32_t e_low, uint32_t e_high, uint32_t x, int block) {
    const int row = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
    const uint32_t by[2] = {narrow_scale_e2m1(e_low), narrow_scale_e2m1(e_high)}, rest[2] = {narrow_rest_e2m1(e_low), narrow_rest_e2m1(e_high)};
    /* elements (0, 4), (1, 5) and (2, 6), (3, 7) of the words */
    uint32_t w[2][4] = {{narrow_e2m1<0>(low, by[0]), narrow_e2m1<0>(high, by[1]), narrow_e2m1<1>(low, by[0]), narrow_e2m1<1>(high, by[1])},
                        {narrow_e2m1<2>(low, by[0]), narrow_e2m1<2>(high, by[1]), narrow_e2m1<3>(low, by[0]), narrow_e2m1<3>(high, by[1])}};
    if (__any_sync(0xFFFFFFFFu, e_low > 128 || e_high > 128)) {
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int r = 0; r < 4; r++) w[j][r] = narrow_mul(w[j][r], rest[r & 1]);
    }
#pragma unroll
    for (int y = 0; y < F::Y; y++) {
        uint32_t b[2][3][2];
        if constexpr (F::TX == VT_F32) {
            const float4 u = load_four(x + in_stage(y * 8 + row, 8 * block + 2 * quad, F::X_ROW)), v = load_four(x + in_stage(y * 8 + row, 8 * block + 2 * quad + 1, F::X_ROW));
            parts_of(b[0], u.x, v.x, u.y, v.y);
            parts_of(b[1], u.z, v.z, u.w, v.w);
        } else {
            const uint4 v = load_chunk(x + in_stage(y * 8 + row, 4 * block + quad, F::X_ROW));
            b[0][0][0] = __byte_perm(v.x, v.z, 0x5410), b[0][0][1] = __byte_perm(v.x, v.z, 0x7632);
            b[1][0][0] = __byte_perm(v.y, v.w, 0x5410), b[1][0][1] = __byte_perm(v.y, v.w, 0x7632);
        }
        multiply_parts<F>(d[y], w[0], b[0]);
        multiply_parts<F>(d[y], w[1], b[1]);
    }
}

/* A stage of a warp. bad: not zero where a row has a NaN. */
template <class F> GPU_FN void multiply_stage(float (&sum)[F::Y][4], uint32_t (&bad)[2], const scaled_by<F> &s, uint32_t w, uint32_t x, int left) {
    const int lane = threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane / 8 % 2 * 8 + lane % 8, second = lane / 16;
    if constexpr (F::TB == VT_F8_E4M3) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (h * 64 >= left) break;
            float d[F::Y][4];
#pragma unroll
            for (int y = 0; y < F::Y; y++) d[y][0] = d[y][1] = d[y][2] = d[y][3] = 0.0f;
#pragma unroll
            for (int kk = 4 * h; kk < 4 * h + 4; kk += 2) {
                uint32_t r[4];
                load_matrices4(r, w + in_stage(row, kk + second, F::W_ROW));
                multiply_e4m3<F>(d, r[0], r[1], x, kk);
                multiply_e4m3<F>(d, r[2], r[3], x, kk + 1);
                bad[0] |= narrow_nan_e4m3(r[0]) | narrow_nan_e4m3(r[2]);
                bad[1] |= narrow_nan_e4m3(r[1]) | narrow_nan_e4m3(r[3]);
            }
#pragma unroll
            for (int y = 0; y < F::Y; y++)
#pragma unroll
                for (int i = 0; i < 4; i++) sum[y][i] = fmaf(d[y][i], s.f[i / 2][h], sum[y][i]);
        }
    } else {
#pragma unroll
        for (int block = 0; block < 4; block += 2) {
            uint32_t r[4];
            load_matrices4(r, w + (uint32_t)(row * F::W_ROW + ((block + second) ^ (row / 2 & 3)) * 16));
            multiply_e2m1<F>(sum, r[0], r[1], s.e[0] >> (8 * block) & 255, s.e[1] >> (8 * block) & 255, x, block);
            multiply_e2m1<F>(sum, r[2], r[3], s.e[0] >> (8 * block + 8) & 255, s.e[1] >> (8 * block + 8) & 255, x, block + 1);
        }
    }
}

template <class F> GPU_FN void store_sums(const gpu_grouped &a, const gpu_group_tile &g, int n0, float (&sum)[F::Y][4], uint32_t (&bad)[2]) {
    const int lane = threadIdx.x % 32, quad = lane % 4;
    const uint8_t *bias = a.bias_table ? a.bias_table[g.group] : NULL;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        bad[h] |= __shfl_xor_sync(0xFFFFFFFFu, bad[h], 1);
        bad[h] |= __shfl_xor_sync(0xFFFFFFFFu, bad[h], 2);
        const int n = n0 + (int)threadIdx.x / 32 * 16 + lane / 4 + 8 * h;
        if (n >= a.n_n) continue;
        const float more = bias ? gpu_get(a.bias_dtype, bias, n) : 0.0f;
#pragma unroll
        for (int y = 0; y < F::Y; y++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int m = y * 8 + quad * 2 + i;
                if (m >= g.n) continue;
                const float v = bad[h] != 0 ? __uint_as_float(0x7FC00000u) : sum[y][2 * h + i];
                *((float *)(a.out.data + (int64_t)(g.begin + m) * a.out.stride[0]) + n) = bias ? v + more : v;
            }
    }
}

template <class F> __global__ void __launch_bounds__(THREADS, F::BLOCKS) grouped_scaled_kernel(const __grid_constant__ gpu_grouped_scaled s, int n_tiles) {
    extern __shared__ __align__(128) uint8_t stages[];
    const gpu_grouped &a = s.g;
    const int tile = (int)blockIdx.x % n_tiles, n0 = tile * ROWS, lane = threadIdx.x % 32;
    const gpu_group_tile g = gpu_find_tile(a.first, a.n_groups, F::MT, (int)blockIdx.x / n_tiles);
    if (g.n == 0) return;
    const uint8_t *w = a.table[g.group], *scales = a.extra_table[g.group], *scale[2];
    if (!w || !scales) return;
    /* in the place of rows that are not there come others, whose sums nobody stores */
    grouped_loader<THREADS, F::MT, F::X_ROW> lx;
    lx.there = ~0u;
#pragma unroll
    for (int c = 0; c < lx.C; c++) lx.from[c] = gpu_group_x(a, g.begin + (lx.row_of(c) < g.n ? lx.row_of(c) : 0)) + threadIdx.x % lx.PER_ROW * 16;
    const int PER_ROW = F::W_ROW / 16, STEP = THREADS / PER_ROW, C = ROWS / STEP, chunk = threadIdx.x % PER_ROW, row0 = (int)threadIdx.x / PER_ROW;
    const uint8_t *from[C];
#pragma unroll
    for (int c = 0; c < C; c++) {
        const int n = n0 + row0 + c * STEP;
        from[c] = w + (n < a.n_n ? n : a.n_n - 1) * a.w_stride[0] + chunk * 16;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int n = n0 + (int)threadIdx.x / 32 * 16 + lane / 4 + 8 * h;
        scale[h] = scales + (int64_t)(n < a.n_n ? n : a.n_n - 1) / s.block_n * s.scale_stride;
    }
    const uint32_t base = gpu_shared_at(stages);
    const int n_k = (a.n_k + STAGE_K - 1) / STAGE_K;
    auto load = [&](int i, int at) {
        if (i < n_k) {
            const uint32_t stage = base + (uint32_t)(at * F::STAGE);
            const bool inside = i * STAGE_K + chunk * (STAGE_K / PER_ROW) < a.n_k;
#pragma unroll
            for (int c = 0; c < C; c++) {
                const int row = row0 + c * STEP, place = F::TB == VT_F8_E4M3 ? chunk ^ (row & 7) : chunk ^ (row / 2 & 3);
                gpu_copy16(stage + row * F::W_ROW + place * 16, from[c] + (inside ? (int64_t)i * F::W_ROW : 0), inside ? 16 : 0);
            }
            lx.load(stage + F::STAGE_W, (int64_t)i * F::X_ROW, i * STAGE_K + (int)(threadIdx.x % lx.PER_ROW) * (STAGE_K / lx.PER_ROW) < a.n_k);
        }
        gpu_copy_commit();
    };
    float sum[F::Y][4];
    uint32_t bad[2] = {0, 0};
#pragma unroll
    for (int y = 0; y < F::Y; y++) sum[y][0] = sum[y][1] = sum[y][2] = sum[y][3] = 0.0f;
    for (int i = 0; i < F::STAGES - 1; i++) load(i, i);
    scaled_by<F> now, next;
    load_scales<F>(now, s, scale, 0);
    for (int i = 0, at = 0; i < n_k; i++) {
        gpu_copy_wait<F::STAGES - 2>();
        __syncthreads();
        load(i + F::STAGES - 1, at == 0 ? F::STAGES - 1 : at - 1);
        load_scales<F>(next, s, scale, i + 1);
        const uint32_t stage = base + (uint32_t)(at * F::STAGE);
        multiply_stage<F>(sum, bad, now, stage, stage + F::STAGE_W, a.n_k - i * STAGE_K);
        now = next;
        at = at + 1 == F::STAGES ? 0 : at + 1;
    }
    store_sums<F>(a, g, n0, sum, bad);
}

/* ---- launching ---- */

template <class F> static status launch_scaled(vt_queue *q, const vt_call *call, error *err) {
    const int bytes = F::BYTES;
    const int64_t n_tiles = gpu_ceil(call->t[4]->dim[0], ROWS), n_blocks = n_tiles * gpu_group_slots(call, F::MT);
    if (n_blocks > INT32_MAX) return cuda_refuse(err, "a grouped product of such sizes");
    TRY(cuda_result(cudaFuncSetAttribute(grouped_scaled_kernel<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory", err));
    grouped_scaled_kernel<F><<<(unsigned)n_blocks, THREADS, bytes, gpu_stream(q)>>>(gpu_grouped_scaled_of(call), (int)n_tiles);
    return gpu_launched(call, err);
}

template <int TB, int TX> static status by_rows(vt_queue *q, const vt_call *call, error *err) {
    const int rows = gpu_group_rows(call);
    constexpr bool f4 = TB == VT_F4_E2M1, f32 = TX == VT_F32;
    if (rows <= 8) return launch_scaled<scaled_form<TB, TX, 8, f4 ? 8 : 6, 3>>(q, call, err);
    if (rows <= 16) return launch_scaled<scaled_form<TB, TX, 16, f4 ? 6 : f32 ? 4 : 5, 3>>(q, call, err);
    if (TX == VT_BF16 && cuda_runs_wgmma(q)) return gpu_run_grouped_scaled_wgmma(q, call, err);
    return launch_scaled<scaled_form<TB, TX, 32, 4, f32 ? 2 : 3>>(q, call, err);
}

extern "C" status cuda_matmul_grouped_scaled_mma(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    if (call->t[0]->dim[0] <= 0) return STATUS_OK;
    if (!gpu_grouped_fits(call)) return cuda_refuse(err, "a grouped product of such sizes");
    const bool bf16 = call->t[1]->dtype == VT_BF16;
    if (call->t[4]->dtype == VT_F4_E2M1) return bf16 ? by_rows<VT_F4_E2M1, VT_BF16>(q, call, err) : by_rows<VT_F4_E2M1, VT_F32>(q, call, err);
    return bf16 ? by_rows<VT_F8_E4M3, VT_BF16>(q, call, err) : by_rows<VT_F8_E4M3, VT_F32>(q, call, err);
}

/* Sixteen bytes of weights lie in one block of scales, and so do the 64 that are added before it is applied; addresses of the tables are multiples of 64. */
extern "C" bool cuda_fits_grouped_scaled(const vt_call *call) {
    const vt_tensor *x = call->t[1], *w = call->t[4];
    const int64_t k = w->dim[1], block_k = call->p.grouped.blocks.block_k, per16 = x->dtype == VT_F32 ? 4 : 8;
    if (k < 1 || (uintptr_t)x->data % 16 != 0 || x->stride[0] % per16 != 0) return false;
    if (w->dtype == VT_F4_E2M1) return k % 32 == 0 && w->stride[0] % 32 == 0 && block_k == 32;
    return k % 16 == 0 && w->stride[0] % 16 == 0 && (block_k % 64 == 0 || block_k >= k);
}
