/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The ops: one typed call each. A call checks shapes, dtypes, strides and devices (STATUS_INVALID, naming the op and the
 * argument), finds the row (STATUS_UNSUPPORTED: the refusal of refusal.h) and runs it on the queue. Common contract:
 *
 * - float arithmetic in F32 unless stated; one rounding to the output dtype; -ffp-contract=off, fused multiply-add only where the
 *   definition says fma. On the CPU every row of an (op, signature) gives the same bits as its scalar reference row, and a row of the
 *   output depends on nothing but its own inputs: not on batch, threads or neighbours.
 * - outputs must not overlap inputs unless stated. Zero-sized outputs are allowed and touch nothing.
 * - all tensors live on the queue's device. Calls on one queue run in order; kernels may still be running on return unless the
 *   backend is synchronous (CPU).
 */
#ifndef HEADRACE_VT_OPS_H
#define HEADRACE_VT_OPS_H

#include "vt/tensor.h"

typedef struct vt_queue vt_queue;

/**
 * out[M,N] = a[M,K] . b[N,K]^T. a: F32, BF16 or Q8_A32/Q8_A256 (rows quantised by vt_quantize_rows); b: any weight dtype, rows contiguous;
 * out F32 or BF16, row stride free. Accumulates in F32. K order, fixed per signature (d = the dtype of b):
 *   F32 a, elementwise b: sixteen partial sums, lane j takes k = j, j + 16, ... by fma(a, float(b), acc); missing tail elements add
 *   nothing; lanes are summed as ((0+8)+(4+12)) ... : s8[j] = l[j] + l[j+8]; s4[j] = s8[j] + s8[j+4]; s2[j] = s4[j] + s4[j+2]; s2[0] + s2[1].
 *   BF16 a: the same over float(a). F32 a, block b: the same over dequantised values float(b) = the block formula in F32. BF16 a, block b: over float(b) rounded to BF16, to nearest even.
 *   Q8_A32 a, 32-element b: per block the exact int32 S = sum of the 32 products (Q4_0 with q - 8, Q5_0 with q - 16, Q4_1 and Q5_1 with unsigned q, IQ4_NL with v[q]), t = d_b * float(S), and for Q4_1 and Q5_1
 *   then t = fma(m_b, float(sum_a), t); four partial sums, lane i % 4 takes block i by fma(d_a, t, acc); acc = (0 + 2) + (1 + 3).
 *   Q8_A256 a, 256-element b: per block the exact int32 S = sum of scale * q * q_a (Q6_K with q - 32, Q3_K and IQ4_XS with scale - 32); acc = fma(d_a * d_b, float(S), acc) over blocks in
 *   order; with minima (Q2_K, Q4_K, Q5_K) also the exact int32 M = sum of min * (sum of a's sixteen elements), and acc = fma(d_a, fma(-dmin, float(M), d_b * float(S)), acc).
 */
NODISCARD status vt_matmul_bt(vt_queue *q, const vt_tensor *out, const vt_tensor *a, const vt_tensor *b, error *err);

/**
 * out[M,N] = alpha * (a . b^T) + beta * out, one rounding: r = alpha * acc; beta == 0 never reads out (NaN there does not matter), else
 * r = fma(beta, float(out), r). acc as vt_matmul_bt. out F32 or BF16.
 */
NODISCARD status vt_matmul_bt_alpha_beta(vt_queue *q, const vt_tensor *out, const vt_tensor *a, const vt_tensor *b, float alpha, float beta, error *err);

/** out[M,K] = x[M,K] as Q8_A32 or Q8_A256 blocks (dtype.h); K whole blocks. d == 0 for an all-zero block, q = 0. A NaN or infinity in a block gives d = NaN, q = 0. */
NODISCARD status vt_quantize_rows(vt_queue *q, const vt_tensor *out, const vt_tensor *x, error *err);

/** out[i,:] = table[ids[i],:]; table [V,H] any weight dtype; ids I32 [n]; out F32 [n,H]. An id outside 0..V-1 is STATUS_INVALID where the
 *  device is host-addressable; the engine checks ids before a step. */
NODISCARD status vt_gather_rows(vt_queue *q, const vt_tensor *out, const vt_tensor *table, const vt_tensor *ids, error *err);

/**
 * out[t,:] = x[t,:] / sqrt(mean(x[t,:]^2) + eps) * (w + w_offset). x F32, out F32 or BF16 [T,H] (or [T,n,H]: normalised over the last axis); w [H] F32, F16
 * or BF16, or n_dims == 0 for a weight of one (w=none in the signature). out may be x. Sum of squares in F32, sixteen lanes as vt_matmul_bt. scale = 1.0f / sqrtf(mean + eps);
 * out = (x * scale) * (w + w_offset). Source: Zhang & Sennrich 2019.
 */
typedef struct vt_rms_norm_params { float eps, w_offset; } vt_rms_norm_params;
NODISCARD status vt_rms_norm(vt_queue *q, const vt_tensor *out, const vt_tensor *x, const vt_tensor *w, vt_rms_norm_params p, error *err);

/**
 * Rotary embedding in place. x F32 [T, heads, D]; pos I32 [T]; inv_freq F32 [R/2], R <= D rotated dimensions (the rest untouched).
 * angle = float(pos) * inv_freq[i] (F32), c = cosf, s = sinf, both times `mscale`.
 * VT_ROPE_HALF: pairs (i, i + R/2) ("neox"); VT_ROPE_ADJACENT: pairs (2i, 2i+1). (x0, x1) -> (x0*c - x1*s, x1*c + x0*s).
 * Source: Su et al. 2021.
 */
typedef enum vt_rope_pairing { VT_ROPE_HALF, VT_ROPE_ADJACENT } vt_rope_pairing;
typedef struct vt_rope_params { vt_rope_pairing pairing; float mscale; } vt_rope_params;
NODISCARD status vt_rope(vt_queue *q, const vt_tensor *x, const vt_tensor *pos, const vt_tensor *inv_freq, vt_rope_params p, error *err);

/**
 * The rows of a step as a kernel sees them. All I32 on the queue's device.
 *   pos [T]: absolute position of each row in its sequence
 *   row_seg [T]: index of the row's segment
 *   pages [n_segs, max_pages]: page ids of each segment; entry p holds positions p * page_tokens .. ; entries that no row needs are not read
 */
typedef struct vt_rows { vt_tensor pos, row_seg, pages; } vt_rows;

/**
 * Store x[T, heads, D] F32 into a paged cache [n_pages, heads, page_tokens, D] (F32, F16 or BF16): row t goes to page pages[row_seg[t], pos[t] / page_tokens],
 * place pos[t] % page_tokens. No two rows of a call share a place.
 */
NODISCARD status vt_kv_write(vt_queue *q, const vt_tensor *cache, const vt_tensor *x, const vt_rows *rows, error *err);

/**
 * What the heads of a step's rows go through between products and attention:
 *   q = rope(rms_norm(q, q_norm)), in place;  place in k_cache = rope(rms_norm(k, k_norm));  place in v_cache = rms_norm(v) where p.v_norm, else v
 * q F32 [T,Hq,D]; k, v F32 [T,Hkv,D], unchanged, D <= VT_HEADS_WIDTH; without v (n_dims 0) k as it came takes its place. Norms are over a head, with a weight F32, F16 or BF16 [D] (without
 * one no norm; v's has a weight of one and no w_offset), rotations with inv_freq (n_dims 0: none), places of rows and dtypes of caches as vt_kv_write. Each step does what its op alone does
 * on the same device, with the bits of that (NUMERICS.md).
 */
enum { VT_HEADS_WIDTH = 512 };
typedef struct vt_heads { vt_tensor q, k, v, q_norm, k_norm, inv_freq, k_cache, v_cache; } vt_heads;
typedef struct vt_heads_params { vt_rms_norm_params norm; vt_rope_params rope; bool v_norm; } vt_heads_params;
NODISCARD status vt_prepare_heads(vt_queue *q, const vt_heads *heads, const vt_rows *rows, vt_heads_params p, error *err);

/**
 * Causal attention over pages. q F32 [T, Hq, D]; k, v caches [n_pages, Hkv, page_tokens, D] of one dtype, Hq a multiple of Hkv; out F32 or BF16 [T, Hq, D].
 * Row t, head h, positions j in max(0, pos - window + 1) .. pos (window 0 = all), kv head h / (Hq / Hkv):
 *   s_j = scale * dot(q, k_j), softcap > 0: s_j = softcap * tanh(s_j / softcap); out = sum softmax(s)_j v_j.
 *   sinks F32 [Hq] (or n_dims 0): one extra logit in the denominator only.
 * Dots in sixteen lanes as vt_matmul_bt; tanh is tanhf. Positions are taken in spans of VT_ATTENTION_SPAN, anchored at absolute position 0: within a span
 * m = max s_j, p_j = exp(s_j - m), l = sum p_j in sixteen lanes (lane j % 16, summed as above), o = sum p_j v_j ascending by fma; spans are merged in ascending order
 * (m' = max(m, m2), o = o * exp(m - m') + o2 * exp(m2 - m'), l likewise); the sink is merged last; out = o / l. exp is vt_expf.
 * v may be the k cache (keys reused as values).
 * With out BF16: the same, rounded once; v [.., Dv] and out [T, Hq, Dv] may be narrower than k (Dv <= D); rows of a segment are neighbours and segments ascend. Such rows are there
 * for speed: a device may round queries and probabilities to the dtype of the cache, of F16 or BF16, in place of the spans (NUMERICS.md).
 */
enum { VT_ATTENTION_SPAN = 256 };
typedef struct vt_attention_params { float scale, softcap; int32_t window; } vt_attention_params;
NODISCARD status vt_paged_attention(vt_queue *q, const vt_tensor *out, const vt_tensor *query, const vt_tensor *k, const vt_tensor *v, const vt_rows *rows,
                                    const vt_tensor *sinks, vt_attention_params p, error *err);

/** out[T,D] = silu(x[:, 0:D]) * x[:, D:2D], silu(g) = g / (1 + exp(-g)) with vt_expf. F32 in; out F32 or BF16. */
NODISCARD status vt_silu_and_mul(vt_queue *q, const vt_tensor *out, const vt_tensor *x, error *err);
/** out[T,D] = gelu_tanh(x[:, 0:D]) * x[:, D:2D]; 0.5 g (1 + tanh(0.7978845608 (g + 0.044715 g^3))), tanh(u) = 1 - 2 / (exp(2u) + 1) with vt_expf. */
NODISCARD status vt_gelu_and_mul(vt_queue *q, const vt_tensor *out, const vt_tensor *x, error *err);
/** out = x * s in F32, one rounding. out may be x. F32 or BF16. */
NODISCARD status vt_mul_scalar(vt_queue *q, const vt_tensor *out, const vt_tensor *x, float s, error *err);
/** out = a + b; b has a's shape, or is [D] and is added to each row. out may be a. F32/BF16 a and out of one dtype; b F32, F16 or BF16. */
NODISCARD status vt_add(vt_queue *q, const vt_tensor *out, const vt_tensor *a, const vt_tensor *b, error *err);

/**
 * out[M,N] = a[M,K] . (b * scale)^T, float(b[n,k]) = value(b[n,k]) * scale[n / block_n, k / block_k], one F32 product; then as vt_matmul_bt with F32 or BF16 a, sixteen lanes.
 * b F8_E4M3 [N,K] with scale F32, BF16 or F16 [ceil(N / block_n), ceil(K / block_k)] (last blocks may be partial; a scale per row: block_n 1, block_k K), or
 * F4_E2M1 [N,K] with scale F8_E8M0 [N, K / 32] (block_n 1, block_k 32). Rows of b are contiguous, their stride is free; so is the row stride of scale. out F32.
 */
typedef struct vt_scale_params { int32_t block_n, block_k; } vt_scale_params;
NODISCARD status vt_matmul_bt_scaled(vt_queue *q, const vt_tensor *out, const vt_tensor *a, const vt_tensor *b, const vt_tensor *scale, vt_scale_params p, error *err);

/** out[M,N] = a[M,K] . b[K,N] with free strides of b in both dimensions; sixteen lanes over k as vt_matmul_bt. a F32, b F32, F16 or BF16, out F32 or BF16. */
NODISCARD status vt_matmul_kn(vt_queue *q, const vt_tensor *out, const vt_tensor *a, const vt_tensor *b, error *err);

/**
 * The router: ids I32 [T,k] and weights F32 [T,k] from logits F32 [T,E], k <= E. A logit that is not finite counts as -infinity (probability 0); ties go to the lower id; ids come
 * in descending order of what selects them. When fewer than k are left with a probability, the lowest unused ids fill up with weight 0.
 *   VT_ROUTER_SOFTMAX: p = softmax over all E; select by p.    VT_ROUTER_SIGMOID: p = sigmoid(logit); select by p + bias.
 *   VT_ROUTER_SOFTMAX_SELECTED: select by logit (+ bias); weights = softmax over the selected logits.
 * n_groups > 1: E / n_groups neighbours form a group whose score is the sum of its two best selection values (group_top2) or its best; only experts of the top_groups best groups
 * can be selected. The weight is p of the selected (bias never enters it); renormalize divides by their sum (a sum of 0 divides by 1; + 1e-20 as the reference does); then times
 * scaling; then times expert_scale[id]. bias, expert_scale: F32 or BF16 [E], or n_dims 0. F32 arithmetic, exp is vt_expf.
 */
typedef enum vt_router_mode { VT_ROUTER_SOFTMAX, VT_ROUTER_SIGMOID, VT_ROUTER_SOFTMAX_SELECTED } vt_router_mode;
typedef struct vt_router_params {
    vt_router_mode mode;
    int32_t n_groups, top_groups;
    bool group_top2, renormalize;
    float scaling;
} vt_router_params;
NODISCARD status vt_router_topk(vt_queue *q, const vt_tensor *ids, const vt_tensor *weights, const vt_tensor *logits, const vt_tensor *bias, const vt_tensor *expert_scale,
                                vt_router_params p, error *err);

/**
 * out[t,:] = sum over j = 0 .. k-1, in order, of weights[t,j] * y[index[t,j],:]: r = w0 * y0; r = r + (w * y), each rounded to F32. y F32 [P,H], index I32 [T,k], weights F32 [T,k], out
 * F32 [T,H]. The caller orders j by ascending expert id, which fixes the sum whatever order the experts were computed in.
 */
NODISCARD status vt_moe_combine(vt_queue *q, const vt_tensor *out, const vt_tensor *y, const vt_tensor *index, const vt_tensor *weights, error *err);

/** out[T,D] from x[T,2D] (gate, then up; or with `interleaved` g_i = x[2i], u_i = x[2i + 1]): g = min(gate, limit), u = clamp(up, -limit, limit), out = (u + 1) * (g / (1 + exp(-alpha * g))) with vt_expf. F32 in; out F32 or BF16. */
typedef struct vt_swiglu_params { float alpha, limit; bool interleaved; } vt_swiglu_params;
NODISCARD status vt_swiglu_clamp_and_mul(vt_queue *q, const vt_tensor *out, const vt_tensor *x, vt_swiglu_params p, error *err);

/** out[T,D] = x[T,D] / (1 + exp(-gate)) with vt_expf; gate F32 [T,D], or [T,1] for one gate a row. out may be x. */
NODISCARD status vt_mul_sigmoid(vt_queue *q, const vt_tensor *out, const vt_tensor *x, const vt_tensor *gate, error *err);

/**
 * Which rows go to which expert. ids I32 [T,k], distinct within a row and 0 .. E - 1; weights F32 [T,k]. Pairs (row, expert) get places 0 .. T k - 1: experts ascending, rows ascending
 * within an expert. first I32 [E + 1]: the places of expert e are first[e] .. first[e + 1] - 1; pair_row I32 [T k]: the row of each place; index I32 and sorted F32 [T,k]: for each row its
 * places and their weights by ascending expert, as vt_moe_combine takes them.
 */
NODISCARD status vt_moe_group(vt_queue *q, const vt_tensor *first, const vt_tensor *pair_row, const vt_tensor *index, const vt_tensor *sorted, const vt_tensor *ids,
                              const vt_tensor *weights, error *err);

/** The rows of a grouped product: x F32 or BF16 [T,K]; first I32 [E + 1], as vt_moe_group gives it; pair_row I32 [P], the row of x at each place, or n_dims 0: place i has row i of x. */
typedef struct vt_grouped_rows { vt_tensor x, first, pair_row; } vt_grouped_rows;

/**
 * The weights of a grouped product: views that all groups share, whose data are not looked at, and for each a table I64 [E] of addresses on the queue's device. w [N,K], free strides for
 * element types; bias F32, F16 or BF16 [N], or n_dims 0; scale as vt_matmul_bt_scaled has it. Address 0: the group is not there. Where the host cannot address the device's memory the
 * addresses are multiples of 64. up_table: of vt_matmul_grouped_gated.
 */
typedef struct vt_grouped_weights { vt_tensor w, table, bias, bias_table, scale, scale_table, up_table; } vt_grouped_weights;

/** What a gate does with (gate, up): vt_silu_and_mul, vt_gelu_and_mul, vt_swiglu_clamp_and_mul. */
typedef enum vt_gate { VT_GATE_SILU, VT_GATE_GELU, VT_GATE_SWIGLU_CLAMP } vt_gate;

/** max_rows: the most rows that a group can have (T), which with P and E chooses the kernel; blocks: of scale; gate and swiglu: of vt_matmul_grouped_gated. */
typedef struct vt_grouped_params { int32_t max_rows; vt_scale_params blocks; vt_gate gate; vt_swiglu_params swiglu; } vt_grouped_params;

/**
 * out[i,:] = x[row(i),:] . W_e^T (+ bias_e) for first[e] <= i < first[e + 1]; rows of groups that are not there stay as they are. The bits of a row do not depend on which groups are there:
 * on a processor they are those of vt_matmul_bt over x as F32 (sixteen lanes; also with free strides; weights of blocks rounded beside BF16 x), then vt_add, one rounding to out. out F32 or BF16 [P,N].
 */
NODISCARD status vt_matmul_grouped(vt_queue *q, const vt_tensor *out, const vt_grouped_rows *rows, const vt_grouped_weights *weights, vt_grouped_params p, error *err);

/** The same with the weights of vt_matmul_bt_scaled; out F32. */
NODISCARD status vt_matmul_grouped_scaled(vt_queue *q, const vt_tensor *out, const vt_grouped_rows *rows, const vt_grouped_weights *weights, vt_grouped_params p, error *err);

/**
 * out[i,j] = gate(g, u) with the outputs g and u of vt_matmul_grouped in F32: W has 2 D rows, g is row j and u row D + j, or with swiglu.interleaved rows 2j and 2j + 1 (bias alike). With
 * up_table W has D rows: g is row j of the matrix in table, u of the one in up_table, and there is no bias. out F32 or BF16 [P,D].
 */
NODISCARD status vt_matmul_grouped_gated(vt_queue *q, const vt_tensor *out, const vt_grouped_rows *rows, const vt_grouped_weights *weights, vt_grouped_params p, error *err);

/** out = cap * tanh(x / cap), cap > 0; tanh(u) = 1 - 2 / (exp(2u) + 1) with vt_expf. F32. out may be x. */
NODISCARD status vt_softcap(vt_queue *q, const vt_tensor *out, const vt_tensor *x, float cap, error *err);

/**
 * Recurrent ops go through a segment's rows token by token and keep a state per slot: `seg_slot` I32 [n_segs] is the slot of each segment. A row with pos 0 starts from a zero state, whatever
 * the slot held. The result of a row depends on its sequence alone: not on chunking, batch or threads.
 *
 * out[t,c] = silu(sum over j = 0 .. K-1 ascending, by fma, of w[c,j] * x[t-K+1+j, c]), silu as vt_silu_and_mul; inputs before position 0 are 0. x, out F32 [T,C]; w [C,K] F32, F16 or BF16;
 * state F32 [slots, C * (K - 1)]: the last K - 1 inputs of each channel, oldest first. out may be x's place only if they are the same view; here they must be apart.
 */
typedef struct vt_recurrent_rows { vt_tensor pos, row_seg, seg_slot; } vt_recurrent_rows;
NODISCARD status vt_causal_conv_silu(vt_queue *q, const vt_tensor *out, const vt_tensor *x, const vt_tensor *state, const vt_tensor *w, const vt_recurrent_rows *rows, error *err);

/**
 * The gated delta rule (Yang et al. 2024), one head h of n_v value heads at a time, its key head h / (n_v / n_k), or with k_tiled h % n_k:
 *   q, k = x / sqrt(sum x^2 + 1e-6); q *= 1 / sqrt(d_k);  g = exp(decay * softplus(a + dt_bias)), decay = -exp(a_log) (a_is_decay: a_log itself);  beta = 1 / (1 + exp(-b))
 *   S = S * g;  m = S^T k;  S = S + k (x) ((v - m) * beta);  out = S^T q
 * qkv F32 [T, 2 n_k d_k + n_v d_v]: all of q, all of k, all of v; a, b F32 [T, n_v]; a_log, dt_bias [n_v] of one dtype, F32, F16 or BF16; state F32 [slots, n_v * d_k * d_v], d_v
 * innermost; out F32 [T, n_v * d_v]. Sums over d_k ascending by fma; exp is vt_expf, softplus(x) = x above 20, else log1pf(expf(x)).
 */
typedef struct vt_gated_delta_params { int32_t n_k, d_k, n_v, d_v; bool a_is_decay, k_tiled; } vt_gated_delta_params;
NODISCARD status vt_gated_delta(vt_queue *q, const vt_tensor *out, const vt_tensor *qkv, const vt_tensor *a, const vt_tensor *b, const vt_tensor *a_log, const vt_tensor *dt_bias,
                                const vt_tensor *state, const vt_recurrent_rows *rows, vt_gated_delta_params p, error *err);

/**
 * A link between two stages of a layer, all of it for one row at a time: what a stage gave is added to the residual stream, and what the next stages read is made of that.
 *   b = y, or with index and weights vt_moe_combine(y, index, weights);  with y_norm: b = rms_norm(b, y_norm);  c likewise of y2 and y2_norm, where there is y2
 *   s = b, or b + c;  with post_norm: s = rms_norm(s, post_norm)
 *   x = (x + s) * scale
 *   out[j] = rms_norm(x, out_norm[j]) * out_scale[j], where there is out[j]; without out_norm[j] with a weight of one, and no w_offset
 * x F32 [T,H], in place; y F32 [T,H], or [P,H] with index I32 [T,k] and weights F32 [T,k]; y2 F32 [T,H]; weights of norms F32, F16 or BF16 [H]; out F32 or BF16 [T,H]. What is not there has
 * n_dims 0. rms_norm as vt_rms_norm, with one eps and one w_offset for all; every product and sum is rounded to F32 as the ops one by one do, and out once, behind out_scale. Nothing overlaps.
 */
enum { VT_ADD_NORM_OUTS = 3 };
typedef struct vt_add_norm_args { vt_tensor x, y, index, weights, y_norm, y2, y2_norm, post_norm, out[VT_ADD_NORM_OUTS], out_norm[VT_ADD_NORM_OUTS]; } vt_add_norm_args;
typedef struct vt_add_norm_params { float eps, w_offset, scale, out_scale[VT_ADD_NORM_OUTS]; } vt_add_norm_params;
NODISCARD status vt_add_norm(vt_queue *q, const vt_add_norm_args *a, vt_add_norm_params p, error *err);

/**
 * out[i][M,N_i] = a[M,K] . b[i][N_i,K]^T for two or three weights of one dtype, each with the bits that vt_matmul_bt has for it (on a device: for some choice of its kernels that follows
 * from the shapes alone). a BF16, out F32. The third is there or not (n_dims 0).
 */
enum { VT_SEVERAL = 3 };
typedef struct vt_several { vt_tensor out[VT_SEVERAL], b[VT_SEVERAL]; } vt_several;
NODISCARD status vt_matmul_bt_several(vt_queue *q, const vt_tensor *a, const vt_several *parts, error *err);

/** out[M,N] = gate(g, u) with g = a . gate_w[N,K]^T and u = a . up_w[N,K]^T in F32 as vt_matmul_bt; the weights are of one dtype. a BF16, out BF16. silu or gelu (vt_silu_and_mul, vt_gelu_and_mul). */
NODISCARD status vt_matmul_bt_gated(vt_queue *q, const vt_tensor *out, const vt_tensor *a, const vt_tensor *gate_w, const vt_tensor *up_w, vt_gate gate, error *err);

/** ids[t] = the first place of the largest of x[t,:], or -1 where the row holds a NaN or its largest is not finite. x F32 [T,N], N >= 1; ids I32 [T]. */
NODISCARD status vt_argmax(vt_queue *q, const vt_tensor *ids, const vt_tensor *x, error *err);

#endif
