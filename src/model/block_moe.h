/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The mixture-of-experts block: one code for decode, batch and prefill, whatever tier the experts are in.
 *
 *   router -> distinct experts of the step (ascending) -> waves that fit the store -> per expert: its rows gathered once, gate and up, activation, down, into a slab
 *          -> combine: F32, ascending expert id, one rounding
 *
 * or, on a device whose kernels take the layer's weights by a table of addresses (grouped): router -> groups, on the device -> gate and up of all experts that are there, down of all,
 * into the slab -> combine. Resident experts then need nothing of the host; others are leased as above and computed in several such rounds.
 *
 * Where the store reads ahead, the next layer's router is asked too, about the residual stream as it is before this layer's experts: a guess that the store takes as a hint.
 *
 * Experts may arrive in any order: each writes its own rows of the slab, and the combination fixes the order of the sum.
 */
#ifndef HEADRACE_MODEL_BLOCK_MOE_H
#define HEADRACE_MODEL_BLOCK_MOE_H

#include "model/block.h"
#include "moe/expert_store.h"

typedef enum moe_activation { MOE_SILU, MOE_GELU, MOE_SWIGLU_CLAMP } moe_activation;

typedef struct block_moe_params {
    vt_router_params router;
    moe_activation activation;
    vt_swiglu_params swiglu; /* interleaved is set by the block from the weight's transform */
    status (*attention)(block_ctx *c, vt_tensor out, vt_tensor x, int layer); /* of block_moe_layer; NULL: block_attention */
    status (*router_input)(block_ctx *c, vt_tensor out, vt_tensor x, int layer); /* what a layer's router sees of the residual stream; NULL: its norm (W_FFN_NORM) */
    status (*beside)(block_ctx *c, int layer, void *ctx); /* NULL, or work of the layer that needs nothing of its experts: queued while they are on their way */
    void *beside_ctx;
    bool branched;          /* of block_moe itself: `beside` is under way in a branch of the queue, which is joined before the experts' sum */
    const block_link *link; /* NULL, or what the sum of the experts goes into as its branch b: `out` of block_moe is the residual stream then */
} block_moe_params;

/** What block_moe's x may be stored in where nothing else reads it: F32, or BF16 where all that the layer's experts do takes that. */
vt_dtype block_moe_feed_dtype(block_ctx *c, int layer);

/** out[T, embd] = the weighted experts of x; the router sees x_router (W_ROUTER, W_ROUTER_BIAS; W_SELECT_BIAS selects only; W_EXPERT_SCALE). */
NODISCARD status block_moe(block_ctx *c, vt_tensor out, vt_tensor x, vt_tensor x_router, int layer, const block_moe_params *p);

/** out[T, embd] = the shared expert (W_SHARED_*), times the sigmoid of its own gate where there is one. */
NODISCARD status block_shared_expert(block_ctx *c, vt_tensor out, vt_tensor x, int layer);

/** One pre-norm layer, in place: x += attention(norm x); x += experts(norm x) (+ the shared expert), or a dense MLP in the first n_dense_layers. */
NODISCARD status block_moe_layer(block_ctx *c, int layer, vt_tensor x, const block_moe_params *p);

/* model_moe.c: what a model keeps for its experts. */

/** Which part of an expert is what; -1: not there. */
typedef struct moe_parts {
    int gate, up, gate_up, down, gate_bias, up_bias, gate_up_bias, down_bias;
    int gate_scale, up_scale, gate_up_scale, down_scale;
    vt_scale_params gate_blocks, up_blocks, gate_up_blocks, down_blocks;
    bool interleaved, gate_up_transposed, down_transposed;
    bool grouped, gated;        /* found when planning: the layer goes by tables, with the gate within the product */
    vt_dtype x_dtype, mid_dtype; /* of the activations in front of gate and up, and of down, where it does */
} moe_parts;

enum { MOE_USE_FENCES = 8, MOE_TABLES = 32 };

typedef struct model_moe {
    expert_bank bank;
    moe_parts *parts;      /* [n_layers] */
    expert_store *store;   /* owned; NULL before model_moe_attach */
    bool any, any_grouped; /* some layer has experts; some goes by tables */
    /* host scratch of the step, sized by the plan; what is copied from and to the device lies in `exchange` */
    int32_t *ids, *pair_row, *index;
    int32_t *guessed;      /* ids that the next layer's router may choose */
    int32_t *hint, *votes; /* [experts]: of them, the likeliest first, and by how many rows each was chosen */
    float *weights, *sorted;
    vt_buffer exchange;
    int64_t *tables;       /* [MOE_TABLES][table_entries]: addresses of leases, each read by a copy to the device; n_tables are in use */
    size_t table_entries;
    int32_t n_tables;
    int32_t *order, *count, *first, *distinct, *wave;
    expert_lease *held;    /* [experts]: of the wave, read by queued work */
    int32_t n_held;
    const int32_t *row_seg; /* of the step, on the host */
    error *failures;       /* [max_segments]: of those of the step's sequences that need an expert that could not be read, the first */
    int32_t n_segments, n_failures;
    vt_fence used[MOE_USE_FENCES]; /* behind the work of a wave, in turn; one that is recorded anew ends later, which is safe */
    int32_t next_used, n_used;
    struct moe_host *host; /* block_moe_host.c; NULL: the processor computes no expert beside the device */
    vt_buffer chosen, chosen_host; /* model_choices.c: [layers, pairs of the step], on the device and behind the step on the host */
} model_moe;

/** Addresses of experts that are resident and never asked for, on the device; NULL: they are leased. */
const void *moe_resident_tables(const model *mo, int layer);
/** Whether somebody outside wants each choice inside the pass. */
bool moe_is_watched(const model *mo);

/* model_choices.c: what routers chose in layers whose choice nobody reads inside the pass, shown to the observer behind the step (without weights). */
size_t model_choices_bytes(const model *mo); /* after the plan; of the device, and as much of the host */
NODISCARD status model_choices_commit(model *mo, error *err);
void model_choices_close(model *mo);
/** Where a layer's choice goes; NULL: wherever the step likes. */
void *model_choices_place(const model *mo, int layer, int32_t n_rows);
/** Behind the pass; and when the device is done with it. */
NODISCARD status model_choices_queue(const model *mo, int32_t n_rows);
void model_choices_show(const model *mo, int32_t n_rows);

/* block_moe.c, for block_moe_grouped.c: */
/** What the router chose, and guessed of the layer guessed_layer (-1: nothing); x: the rows that experts see. */
typedef struct moe_choice {
    vt_tensor ids, weights, guessed, x;
    int32_t guessed_layer;
} moe_choice;
/** Of moe->ids: count and first of each expert, and the list of those that have rows, whose number is returned. */
int32_t moe_count_rows(model_moe *moe, int32_t n_pairs, int32_t n_experts);
/** The router's choice on the host (the one wait inside a layer), replaced and shown where somebody wants that. */
NODISCARD status moe_read_choice(block_ctx *c, int layer, const moe_choice *choice, bool weights);
/** One expert over n rows: y = down(act(gate x, up x)), x gathered by `rows`. */
NODISCARD status moe_run_expert(block_ctx *c, int layer, const expert_lease *lease, vt_tensor x, vt_tensor rows, vt_tensor y, const block_moe_params *p);
/** Tells the store what the next layer may take. */
void moe_give_hint(model_moe *moe, int32_t layer, int32_t n_rows);
NODISCARD status moe_activate(block_ctx *c, vt_tensor mid, vt_tensor gate_up, const block_moe_params *p, bool interleaved);
NODISCARD status moe_release_held(block_ctx *c);
/** What was begun beside in a branch is done from here on. */
NODISCARD status moe_join(block_ctx *c);
/** The sum of the slab's rows: into out, or into the link that wants it. */
NODISCARD status moe_combine(block_ctx *c, vt_tensor out, vt_tensor slab, vt_tensor index, vt_tensor weights, const block_moe_params *p);
/** What the layer has to do beside its experts, once. */
NODISCARD status moe_beside(block_ctx *c, int layer, const block_moe_params *p);
/** An expert that could not be read: zeros in its places of the slab, and the sequences that need it have failed; the error, where no other sequence is left. */
NODISCARD status moe_do_without(block_ctx *c, int32_t expert, vt_tensor slab);

/* block_moe_grouped.c */
/** While planning: whether the layer goes by tables. Asks the queue for every op that this needs; the host's own device goes expert by expert unless the options say otherwise. */
void moe_grouped_choose(block_ctx *c, int layer);
NODISCARD status moe_grouped(block_ctx *c, vt_tensor out, vt_tensor x, int layer, const block_moe_params *p, const moe_choice *choice);

/*
 * block_moe_host.c: experts that the device lacks, computed by the processor out of the host's slots (--miss). The layer's rows come to the host with the router's choice; what an expert makes of
 * its rows goes back into their places of the slab. The processor's sums are not those of the device, so the bits differ.
 */
/** While planning: the processor's part of the layer, on the options' host queue. */
NODISCARD status moe_host_plan(block_ctx *c, int layer, vt_tensor x, const block_moe_params *p);
/** After the layers of a plan: whether the processor has every kernel that its part needs. */
NODISCARD status moe_host_ask(const model *mo, error *err);
/** After the plan: pinned memory for it (MEM_STAGING); 0: it has no part. */
size_t moe_host_bytes(const model *mo);
NODISCARD status moe_host_commit(model *mo, error *err);
void moe_host_close(model *mo);
/** All experts turned out to be resident: it has no part. */
void moe_host_drop(model *mo);
/** With the router's choice: the layer's rows, on their way to the host. */
NODISCARD status moe_host_read_rows(block_ctx *c, const vt_tensor *x);
/** The lease of an expert on the host (lease->on_host): its rows of the slab; the lease goes back, whatever comes of it. Waits for the processor alone. */
NODISCARD status moe_host_run(block_ctx *c, int layer, const expert_lease *lease, vt_tensor slab, const block_moe_params *p);
/** For measuring: the products of an expert of some layer whose parts lie in `slot`, over n rows (MOE_HOST_ROWS at most) of whatever is there. *bytes: of the expert. */
NODISCARD status moe_host_try(model *mo, const void *slot, int32_t n_rows, size_t *bytes, error *err);
enum { MOE_HOST_ROWS = 64 };

/** What the hyper-parameters say of experts makes sense; a line for each thing that does not. */
void model_moe_check(const model *mo, textbuf *report);
/** After binding: the bank over every layer whose expert slots are bound. No layer: any = false. */
NODISCARD status model_moe_open(model *mo, error *err);
/** Host scratch for max_rows. */
NODISCARD status model_moe_commit(model *mo, error *err);
/** After the commit: leases go back when a wave ends, because queued work still reads them; else each does before the next expert is asked for. */
bool model_moe_holds_leases(const model *mo);
/** A step begins: which segment each of its rows is of. */
void model_moe_begin(model *mo, const int32_t *row_seg, int32_t n_segments);
/** Takes the store over. */
void model_moe_attach(model *mo, expert_store *store);
void model_moe_close(model *mo);
size_t model_moe_scratch_bytes(const model *mo);  /* MEM_ENGINE */
size_t model_moe_exchange_bytes(const model *mo); /* MEM_STAGING */

#endif
