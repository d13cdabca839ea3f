/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grouped products with BF16 and F16 weights on matrix units. A block has a tile of one group's rows and a tile of outputs: both go through shared memory in stages of 64 k, so that the
 * weights of a group are read once for all of its rows. Few rows: small tiles, several blocks a multiprocessor, deep stages; many: large ones, and with BF16 throughout those of
 * grouped_wgmma.cu where the device has such units.
 *
 * The order of addition, for an output, in all forms here: k in steps of sixteen, ascending, into one sum. F32 activations are cut into three BF16 parts and F16 weights into two (gpu_mma.cuh);
 * a step then goes over the parts from the smallest product to the largest.
 */
#include "vt/cuda/gpu_once.cuh"
#include "vt/cuda/gpu_grouped_mma.cuh"
#include "vt/cuda/gpu_launch.cuh"
#include "vt/cuda/gpu_wgmma.cuh"

static const int STAGE_K = 64;

/* WN x WM warps on NT outputs by MT rows. */
template <int TX_, int TW_, int MT_, int NT_, int WN_, int WM_, int STAGES_, int BLOCKS_, bool GATED_> struct grouped_form {
    static const int TX = TX_, TW = TW_, MT = MT_, NT = NT_, WN = WN_, WM = WM_, STAGES = STAGES_, BLOCKS = BLOCKS_;
    static const bool GATED = GATED_;
    static const int THREADS = WN * WM * 32, X = NT / WN / 16, Y = MT / WM / 8;
    static const int X_BYTES = TX == VT_F32 ? 256 : 128; /* of a row in a stage */
    static const int STAGE_W = NT * 128, STAGE = STAGE_W + MT * X_BYTES, BYTES = STAGES * STAGE;
};

template <class F> GPU_FN void grouped_store(const gpu_grouped &a, const gpu_group_tile &g, const uint8_t *bias, int tile, int wn, int wm, const float (*acc)[F::Y][4]) {
    const int lane = threadIdx.x % 32, row = lane / 4, quad = lane % 4;
#pragma unroll
    for (int y = 0; y < F::Y; y++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int m = wm + y * 8 + quad * 2 + i;
            if (m >= g.n) continue;
            uint8_t *to = a.out.data + (int64_t)(g.begin + m) * a.out.stride[0];
#pragma unroll
            for (int x = 0; x < F::X; x++) {
                if (F::GATED) {
                    const int j = tile * (F::NT / 2) + (wn / 16 + x) * 8 + row;
                    if (j >= a.n_gated) continue;
                    float gate = acc[x][y][i], up = acc[x][y][2 + i];
                    if (bias) {
                        gate += gpu_get(a.bias_dtype, bias, gpu_gate_row(a, j, false));
                        up += gpu_get(a.bias_dtype, bias, gpu_gate_row(a, j, true));
                    }
                    gpu_set(a.out.dtype, to, j, gpu_gate(a.gate, a.swiglu, gate, up));
                } else {
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        const int n = tile * F::NT + wn + x * 16 + h * 8 + row;
                        if (n >= a.n_n) continue;
                        const float v = acc[x][y][2 * h + i];
                        gpu_set(a.out.dtype, to, n, bias ? v + gpu_get(a.bias_dtype, bias, n) : v);
                    }
                }
            }
        }
}

/* Fragments of the activations of one step: [group of eight rows][part][register]. */
template <class F> GPU_FN void load_x(uint32_t (*b)[F::TX == VT_F32 ? 3 : 1][2], uint32_t stage, int wm, int kk) {
    const int lane = threadIdx.x % 32;
    if constexpr (F::TX == VT_F32) {
#pragma unroll
        for (int y = 0; y < F::Y; y++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float2 v = load_pair(stage + in_stage(wm + y * 8 + lane / 4, kk * 4 + h * 2 + lane % 4 / 2, 256) + lane % 2 * 8);
                uint32_t part[3];
                mma_split3(v.x, v.y, part);
#pragma unroll
                for (int p = 0; p < 3; p++) b[y][p][h] = part[p];
            }
    } else if constexpr (F::Y == 1) {
        load_matrices2(b[0][0], stage + in_stage(wm + lane % 8, kk * 2 + lane / 8 % 2, 128));
    } else {
#pragma unroll
        for (int y = 0; y < F::Y; y += 2) {
            uint32_t r[4];
            load_matrices4(r, stage + in_stage(wm + y * 8 + lane / 16 * 8 + lane % 8, kk * 2 + lane / 8 % 2, 128));
            b[y][0][0] = r[0], b[y][0][1] = r[1], b[y + 1][0][0] = r[2], b[y + 1][0][1] = r[3];
        }
    }
}

/* The products of one step, parts from the smallest to the largest; part_w and part_a as mma_tiles has them. */
template <class F> GPU_FN void multiply(float (*acc)[F::Y][4], const uint32_t (&w)[F::X][4], const uint32_t (*b)[F::TX == VT_F32 ? 3 : 1][2]) {
    const int PARTS = F::TX == VT_F32 ? 3 : 1;
    if constexpr (F::TW == VT_F16) {
        uint32_t part[2][F::X][4];
#pragma unroll
        for (int x = 0; x < F::X; x++)
#pragma unroll
            for (int i = 0; i < 4; i++) mma_split_f16(w[x][i], part[0][x][i], part[1][x][i]);
#pragma unroll
        for (int step = PARTS == 3 ? 0 : 3; step < 5; step++)
#pragma unroll
            for (int y = 0; y < F::Y; y++)
#pragma unroll
                for (int x = 0; x < F::X; x++) mma_bf16(acc[x][y], part[step % 2][x], b[y][2 - (step + 1) / 2]);
    } else {
#pragma unroll
        for (int p = PARTS - 1; p >= 0; p--)
#pragma unroll
            for (int y = 0; y < F::Y; y++)
#pragma unroll
                for (int x = 0; x < F::X; x++) mma_bf16(acc[x][y], w[x], b[y][p]);
    }
}

template <class F> __global__ void __launch_bounds__(F::THREADS, F::BLOCKS) grouped_kernel(gpu_grouped a, int n_tiles) {
    extern __shared__ __align__(128) uint8_t stages[];
    const int tile = (int)blockIdx.x % n_tiles;
    gpu_await_previous();
    gpu_let_next_start();
    const gpu_group_tile g = gpu_find_tile(a.first, a.n_groups, F::MT, (int)blockIdx.x / n_tiles);
    if (g.n == 0) return;
    const uint8_t *w = a.table[g.group], *up = F::GATED && a.extra_table ? a.extra_table[g.group] : w;
    if (!w || !up) return;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wn = warp % F::WN * F::X * 16, wm = warp / F::WN * F::Y * 8;

    grouped_loader<F::THREADS, F::NT, 128> lw;
    grouped_loader<F::THREADS, F::MT, F::X_BYTES> lx;
    lw.there = ~0u;
#pragma unroll
    for (int c = 0; c < lw.C; c++) {
        const int r = lw.row_of(c);
        if (F::GATED) { /* eight rows of gate, eight of up */
            const int j = tile * (F::NT / 2) + r / 16 * 8 + r % 8;
            const bool of_up = r % 16 >= 8;
            lw.from[c] = (of_up ? up : w) + gpu_gate_row(a, j < a.n_gated ? j : a.n_gated - 1, of_up) * a.w_stride[0];
        } else {
            const int n = tile * F::NT + r;
            lw.from[c] = w + (n < a.n_n ? n : a.n_n - 1) * a.w_stride[0];
        }
        lw.from[c] += threadIdx.x % lw.PER_ROW * 16;
    }
    lx.there = 0;
#pragma unroll
    for (int c = 0; c < lx.C; c++) {
        const int r = lx.row_of(c);
        if (r < g.n) lx.there |= 1u << c;
        lx.from[c] = gpu_group_x(a, g.begin + (r < g.n ? r : 0)) + threadIdx.x % lx.PER_ROW * 16;
    }
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(stages);
    const uint64_t policy = F::MT <= 16 ? gpu_read_once() : gpu_read_again(); /* weights of larger tiles are those of their neighbours */
    const int n_k = (a.n_k + STAGE_K - 1) / STAGE_K;
    auto load = [&](int i, int at) {
        if (i < n_k) {
            const uint32_t stage = base + (uint32_t)(at * F::STAGE);
            lw.load(stage, (int64_t)i * 128, (int)(threadIdx.x % lw.PER_ROW) * 8 + i * STAGE_K < a.n_k, policy);
            lx.load(stage + F::STAGE_W, (int64_t)i * F::X_BYTES, (int)(threadIdx.x % lx.PER_ROW) * (1024 / F::X_BYTES) + i * STAGE_K < a.n_k);
        }
        asm volatile("cp.async.commit_group;");
    };
    float acc[F::X][F::Y][4];
#pragma unroll
    for (int j = 0; j < F::X * F::Y * 4; j++) acc[j / (F::Y * 4)][j / 4 % F::Y][j % 4] = 0.0f;
    for (int i = 0; i < F::STAGES - 1; i++) load(i, i);
    const bool busy = wm < g.n; /* a warp whose rows are not there only brings */
    for (int i = 0, at = 0; i < n_k; i++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(F::STAGES - 2));
        __syncthreads();
        load(i + F::STAGES - 1, at == 0 ? F::STAGES - 1 : at - 1);
        const uint32_t sw = base + (uint32_t)(at * F::STAGE), sx = sw + F::STAGE_W;
        at = at + 1 == F::STAGES ? 0 : at + 1;
        if (!busy) continue;
#pragma unroll
        for (int kk = 0; kk < STAGE_K / 16; kk++) {
            uint32_t fw[F::X][4], fx[F::Y][F::TX == VT_F32 ? 3 : 1][2];
#pragma unroll
            for (int x = 0; x < F::X; x++) load_matrices4(fw[x], sw + in_stage(wn + x * 16 + lane / 8 % 2 * 8 + lane % 8, kk * 2 + lane / 16, 128));
            load_x<F>(fx, sx, wm, kk);
            multiply<F>(acc, fw, fx);
        }
    }
    if (busy) grouped_store<F>(a, g, a.bias_table ? a.bias_table[g.group] : NULL, tile, wn, wm, acc);
}

/* ---- launching ---- */

template <class F> static status launch_grouped(vt_queue *q, const vt_call *call, error *err) {
    const int bytes = F::BYTES;
    const gpu_grouped a = gpu_grouped_of(call);
    const int64_t n_tiles = gpu_ceil(a.n_gated ? 2 * (int64_t)a.n_gated : a.n_n, F::NT), n_blocks = n_tiles * gpu_group_slots(call, F::MT);
    if (n_blocks > INT32_MAX) return cuda_refuse(err, "a grouped product of such sizes");
    TRY(cuda_result(cudaFuncSetAttribute(grouped_kernel<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory", err));
    return gpu_launch_grid(q, grouped_kernel<F>, dim3((unsigned)n_blocks), F::THREADS, bytes, err, a, (int)n_tiles);
}

template <int TX, int TW, bool GATED> static status run_forms(vt_queue *q, const vt_call *call, error *err) {
    TRY(gpu_enter(q, err));
    if (call->t[0]->dim[0] <= 0) return STATUS_OK;
    if (!gpu_grouped_fits(call)) return cuda_refuse(err, "a grouped product of such sizes");
    const int rows = gpu_group_rows(call);
    constexpr bool f32 = TX == VT_F32;
    if (rows <= 8) return launch_grouped<grouped_form<TX, TW, 8, 64, 4, 1, 6, 3, GATED>>(q, call, err);
    if (rows <= 16) return launch_grouped<grouped_form<TX, TW, 16, 64, 4, 1, 5, 3, GATED>>(q, call, err);
    if (rows > 20 && TX == VT_BF16 && TW == VT_BF16 && cuda_runs_wgmma(q)) return gpu_run_grouped_wgmma(q, call, err);
    if (rows <= 32) return launch_grouped<grouped_form<TX, TW, 32, 128, 4, 2, 4, 2, GATED>>(q, call, err);
    /* the largest form only where a multiprocessor has the shared memory: the sums of all forms are the same */
    if (rows <= 64 || grouped_form<TX, TW, 128, 128, 2, 4, f32 ? 4 : 3, f32 ? 1 : 2, GATED>::BYTES > gpu_device(q)->shared_bytes) return launch_grouped<grouped_form<TX, TW, 64, 128, 4, 2, f32 ? 3 : 4, 2, GATED>>(q, call, err);
    return launch_grouped<grouped_form<TX, TW, 128, 128, 2, 4, f32 ? 4 : 3, f32 ? 1 : 2, GATED>>(q, call, err);
}

template <int TX, int TW> static status run_gate(vt_queue *q, const vt_call *call, error *err) {
    return call->op == VT_OP_MATMUL_GROUPED_GATED ? run_forms<TX, TW, true>(q, call, err) : run_forms<TX, TW, false>(q, call, err);
}

extern "C" status cuda_matmul_grouped_mma(vt_queue *q, const vt_call *call, error *err) {
    const bool f16 = call->t[4]->dtype == VT_F16;
    if (call->t[1]->dtype == VT_F32) return f16 ? run_gate<VT_F32, VT_F16>(q, call, err) : run_gate<VT_F32, VT_BF16>(q, call, err);
    return f16 ? run_gate<VT_BF16, VT_F16>(q, call, err) : run_gate<VT_BF16, VT_BF16>(q, call, err);
}

/* Sixteen bytes at a time; addresses of the tables are multiples of 64. */
extern "C" bool cuda_fits_grouped_mma(const vt_call *call) {
    const vt_tensor *x = call->t[1], *w = call->t[4];
    const int64_t per16 = x->dtype == VT_F32 ? 4 : 8;
    return w->dim[1] > 0 && w->dim[1] % 8 == 0 && w->stride[1] == 1 && w->stride[0] % 8 == 0 && (uintptr_t)x->data % 16 == 0 && x->stride[0] % per16 == 0;
}
