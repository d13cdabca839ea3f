/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Shared blocks: what architecture files are written in. A block takes tensors from the step's workspace, calls ops on the model's queue and returns the first failure.
 * While a plan is made the same code runs against a recorder with no data behind the tensors, so a block never looks at values.
 */
#ifndef HEADRACE_MODEL_BLOCK_H
#define HEADRACE_MODEL_BLOCK_H

#include "model/model.h"

struct block_ctx {
    model *m;
    vt_queue *q;
    int32_t n_rows;
    vt_rows rows[STEP_MAX_GROUPS]; /* per KV group */
    vt_recurrent_rows recurrent;
    vt_tensor ahead;     /* what the layer before made of the next one's input norm, where it did: block_link */
    int32_t ahead_layer; /* whose it is; -1: nobody's */
    error *err;
};

/* Workspace: a stack inside the planned buffer. Take what you need, release to the mark when done. A full workspace is STATUS_BUG (the plan ran the same code). */
size_t ws_mark(const block_ctx *c);
void ws_release(block_ctx *c, size_t mark);
NODISCARD status ws_take(block_ctx *c, vt_dtype t, int64_t rows, int64_t cols, vt_tensor *out);

/** Rows of activations, F32 or BF16, with their other forms, each made once when a weight first asks. A form lives as long as the workspace did when it was made. */
typedef struct block_act {
    vt_tensor f32, bf16, q8_a32, q8_a256;
} block_act;
block_act block_act_of(vt_tensor x);

/**
 * The dtype of the activations that this op's products with these weights take: F32, BF16 or a Q8 form, by --act and the rows that the device has. third: of the scales for
 * matmul_bt_scaled, else of the output.
 */
vt_dtype block_act_dtype(const block_ctx *c, vt_op op, vt_dtype weight, vt_dtype third);
/** For the plan: the signatures that block_act_dtype answers from. */
void block_find_bf16_rows(model *m, const vt_queue *q);
/** x in a form, which is made now if it was not. */
NODISCARD status block_act_form(block_ctx *c, block_act *x, vt_dtype want, vt_tensor **out);
/** The form that this weight takes, made now: before a stretch of workspace that is given back while x is still in use. */
NODISCARD status block_act_ready(block_ctx *c, block_act *x, const vt_tensor *w);
/** What rows are stored in that nothing reads but products with the weights of these slots (absent ones do not count): BF16 where all of them take that, else F32. */
vt_dtype block_feed_dtype(const block_ctx *c, int layer, int n_slots, const int *slots);
#define BLOCK_FEED(c, layer, ...) block_feed_dtype(c, layer, (int)(sizeof((const int[]){__VA_ARGS__}) / sizeof(int)), (const int[]){__VA_ARGS__})
/** What attention writes where only products with the weights of these slots read it: BF16 if they take that and there is a row for it, else F32. */
vt_dtype block_attention_dtype(const block_ctx *c, int layer, int n_slots, const int *slots);
#define BLOCK_ATTENTION_DTYPE(c, layer, ...) block_attention_dtype(c, layer, (int)(sizeof((const int[]){__VA_ARGS__}) / sizeof(int)), (const int[]){__VA_ARGS__})

/** out[T, N] = x . w[N, K]^T (+ bias [N]); the activation form follows the weight's dtype and --act. */
NODISCARD status block_linear(block_ctx *c, vt_tensor out, block_act *x, const vt_tensor *w, const vt_tensor *bias);
/** Two or three products of one x, each as block_linear has it (biases NULL or absent: none); one launch for those of 16-bit weights with BF16 activations, where the device has it. */
typedef struct block_product {
    vt_tensor out;
    const vt_tensor *w, *bias;
} block_product;
NODISCARD status block_linear_several(block_ctx *c, block_act *x, const block_product *products, int n);
/** The same with activations that are not rounded to BF16 whatever --act says: for routers, where a rounding may change a choice. */
NODISCARD status block_linear_f32(block_ctx *c, vt_tensor out, block_act *x, const vt_tensor *w, const vt_tensor *bias);

/** Of the norm with the weight of (slot, layer). */
vt_rms_norm_params block_norm_params(const block_ctx *c, int slot, int layer);
/** out = rms_norm(x) with the weight of (slot, layer); its transform is honoured. out F32, where it may be x, or BF16. */
NODISCARD status block_norm(block_ctx *c, vt_tensor out, vt_tensor x, int slot, int layer);
/** out = rms_norm(x) with a weight of one. out may be x. */
NODISCARD status block_norm_plain(block_ctx *c, vt_tensor out, vt_tensor x);

/**
 * out[T, embd] = attention of the layer over x (already normed): projections, head norms, rotary, cache write, paged attention, output projection. Without a
 * weight for values the keys' projection gives them. A layer that reads the cache of another (kv_layer) computes queries only.
 */
NODISCARD status block_attention(block_ctx *c, vt_tensor out, vt_tensor x, int layer);

typedef enum block_activation { BLOCK_SILU, BLOCK_GELU } block_activation;
/** out[T, embd] = down(act(gate x) * up x), with weights of these slots, n_ff wide; and with the layer's own. */
NODISCARD status block_gated_mlp(block_ctx *c, vt_tensor out, vt_tensor x, int layer, int gate_slot, int up_slot, int down_slot, int64_t n_ff, block_activation act);
NODISCARD status block_mlp(block_ctx *c, vt_tensor out, vt_tensor x, int layer, block_activation act);

/** block_attention of the normed rows (W_ATTN_NORM), which nothing else reads. */
NODISCARD status block_normed_attention(block_ctx *c, vt_tensor out, vt_tensor x, int layer);
/** The second half of a layer, whose first gave y: x += norm(y, attention_post); y = mlp(norm(x, W_FFN_NORM)); x = (x + norm(y, post)) * scale. y is overwritten. */
typedef enum block_ahead { AHEAD_NONE, AHEAD_F32, AHEAD_PRODUCTS } block_ahead;
typedef struct block_half {
    block_activation act;
    int attention_post, post; /* slots; NO_NORM */
    float scale;              /* 0: 1 */
    block_ahead ahead;        /* whether x is the next layer's then, and what its attention takes (block_link_ahead) */
} block_half;
NODISCARD status block_mlp_half(block_ctx *c, vt_tensor x, vt_tensor y, int layer, const block_half *half);

/**
 * The link between two stages of a layer: x = (x + s) * scale, s = norm(post, norm(b.norm, b) + norm(c.norm, c)) of one branch or two, then norms of x for those who read it next. Slots are
 * of `layer`, NO_NORM: none; a branch is overwritten at will. One launch where the device has it (vt_add_norm), and op by op with the same bits elsewhere.
 */
enum { NO_NORM = -1 };
typedef struct block_branch {
    vt_tensor y;
    vt_tensor index, weights; /* of a sum of experts (vt_moe_combine), whose slab y is; n_dims 0: none */
    int norm;
} block_branch;
typedef struct block_normed {
    vt_tensor out;
    int slot, layer;
    float scale; /* 0: 1 */
} block_normed;
typedef struct block_link {
    int layer, post, n_outs;
    float scale; /* 0: 1 */
    block_branch b, c; /* c.y n_dims 0: one branch */
    block_normed out[VT_ADD_NORM_OUTS];
} block_link;
NODISCARD status block_link_run(block_ctx *c, vt_tensor x, const block_link *link);
/** For the plan: whether links, several products and gated ones go in one launch. */
void block_find_fused(model *m, const vt_queue *q);
/** Where links are one launch: the norm in front of the next layer's attention joins the outputs of a layer's last link, for block_attention_input to find. */
void block_link_ahead(block_ctx *c, block_link *link, block_ahead what);
/** h = norm(x) in front of the attention of a layer: found, or made now in the workspace. */
NODISCARD status block_attention_input(block_ctx *c, vt_tensor x, int layer, vt_dtype dtype, vt_tensor *h);

/** x += y. */
NODISCARD status block_add(block_ctx *c, vt_tensor x, vt_tensor y);
/** x *= s. */
NODISCARD status block_scale(block_ctx *c, vt_tensor x, float s);

/** One layer of the plain decoder, in place: x += attention(norm x); x += mlp(norm x). */
NODISCARD status block_decoder_layer(block_ctx *c, int layer, vt_tensor x);
/** The same between norms on both sides: x += norm(attention(norm x)); x = (x + norm(mlp(norm x))) * scale. is_all: nothing else of the layer changes x. */
NODISCARD status block_sandwich_layer(block_ctx *c, int layer, vt_tensor x, block_activation act, float scale, bool is_all);

/** The plain forms: table lookup; final norm then head (or the tied table), soft-capped where the hyper-parameters say so. */
NODISCARD status block_embed(block_ctx *c, vt_tensor x);
NODISCARD status block_head(block_ctx *c, vt_tensor x, vt_tensor logits);

#endif
