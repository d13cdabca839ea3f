/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A loaded model: hyper-parameters, bound weights on one device, workspace, and the pass over a step. Opening has three phases with no surprise in between:
 * model_open (headers only: names, shapes, what each layer needs), model_plan (the pass is run against a recorder: which kernels it calls and how much workspace it
 * takes; asks the device for all of them), model_commit (weights onto the device, workspace allocated).
 *
 * Owned by one thread after opening. The source must outlive the model.
 */
#ifndef HEADRACE_MODEL_MODEL_H
#define HEADRACE_MODEL_MODEL_H

#include "base/arena.h"
#include "model/arch.h"
#include "vt/vt.h"

typedef enum layer_kind { LAYER_FULL, LAYER_WINDOW, LAYER_LATENT, LAYER_RECURRENT } layer_kind;

typedef struct rope_spec {
    int64_t n_rot;       /* rotated dimensions */
    float mscale;
    vt_tensor inv_freq;  /* F32 [n_rot / 2] on the device */
} rope_spec;
enum { MODEL_MAX_ROPES = 4, MODEL_MAX_KV_GROUPS = STEP_MAX_GROUPS };

typedef struct layer_info {
    layer_kind kind;
    int32_t kv_group, kv_layer;        /* group of its pages; the layer whose cache it reads (itself, unless shared) */
    int64_t n_heads, n_kv_heads, head_dim, n_ff;
    int64_t window;                    /* 0 = all */
    float attn_scale;
    bool v_norm;                       /* values are normalised, by no weight */
    int32_t rope;                      /* index of rope_spec; -1 = none */
} layer_info;

/** Layers that share one page table: same kind, page shape and life time of pages. */
typedef struct kv_group {
    layer_kind kind;
    int64_t n_kv_heads, head_dim, window;
    int32_t n_layers;                  /* that own a cache */
} kv_group;

typedef struct ignored_name {
    struct ignored_name *next;
    char pattern[];
} ignored_name;

/** A recurrent state: F32 [sequence slots, n_elems], zero at position 0 of whatever sequence holds the slot. */
typedef struct model_state {
    int64_t n_elems;
    vt_tensor t;
} model_state;
enum { MODEL_STATES_PER_LAYER = 2 };

typedef enum act_mode { ACT_AUTO, ACT_F32, ACT_Q8, ACT_BF16 } act_mode;
enum { MODEL_N_PRODUCTS = 4, MODEL_ACTIVATIONS_TEXT = 256 };

/** For checking: sees the residual stream after the embedding (layer 0) and after each layer (1 ...), when the device is done with it. */
typedef void model_observer(void *ctx, int layer, const vt_tensor *x);

/** For checking and recording: the router's choice of a layer, [n_rows, k] each, in the order the router gave them. weights: NULL where observe_only_read is set and the host has no use for them. */
typedef void model_routing_observer(void *ctx, int layer, const int32_t *ids, const float *weights, int32_t n_rows, int32_t k);

/** For replaying: may put other experts, distinct within a row, in the place of the router's; the weights stay. */
typedef void model_routing_override(void *ctx, int layer, int32_t *ids, int32_t n_rows, int32_t k);

typedef struct model_options {
    act_mode act;
    vt_dtype kv_dtype;      /* F32, F16, BF16 */
    int32_t page_tokens;
    int32_t max_rows;       /* of a step */
    int32_t max_segments;
    int32_t max_pages;      /* of one sequence */
    int32_t max_head_rows;  /* logits rows per model_head */
    bool group_experts;     /* experts by tables of addresses also where the host addresses the device's memory, for tests */
    bool capture;           /* steps that repeat are captured, where the device can */
    vt_queue *host_queue;   /* NULL, or a queue of the processor that computes experts which the device lacks (block_moe_host.c) */
    bool guess_experts;     /* ask the next layer's router ahead, where the store of experts wants to know */
    model_observer *observe; /* NULL: none */
    model_routing_observer *observe_routing; /* NULL: none */
    bool observe_only_read; /* the choice is not read for the observer's sake: it sees the layers whose choice the host needs */
    model_routing_override *override_routing; /* NULL: none; before the observer */
    void *observe_ctx;
} model_options;

struct model {
    mem *m;
    source *src;
    vt_device *device;
    vt_queue *queue;
    const arch *arch;
    hparams hp;
    model_options opt;
    arena *arena;           /* what lives as long as the model */
    const char *prefix;     /* of this architecture's keys in a GGUF; "" otherwise */
    void *priv;             /* of the architecture, in the arena */
    ignored_name *ignored;  /* what model_ignore added */

    layer_info *layers;     /* [hp.n_layers] */
    kv_group groups[MODEL_MAX_KV_GROUPS];
    int32_t n_groups;
    rope_spec ropes[MODEL_MAX_ROPES];
    int32_t n_ropes;
    float *rope_host[MODEL_MAX_ROPES]; /* inv_freq before upload */

    binding *binding;
    vt_tensor *weights;     /* [n_slots * (n_layers + 1)] on the device; index by model_weight */
    struct model_scale { vt_tensor t; vt_scale_params p; } *scales; /* beside weights: FP8 and MXFP4; t.n_dims 0 = none */
    int32_t scale_block_n, scale_block_k; /* of two-dimensional FP8 scales; 0: not said */
    struct model_moe *moe;  /* block_moe.h */
    model_state *states;    /* [n_layers * MODEL_STATES_PER_LAYER]; n_elems 0: none */
    size_t plan_state_bytes;
    vt_buffer state_buf;
    vt_tensor seg_slot;     /* of the step */
    vt_tensor *k_cache, *v_cache; /* [n_layers], set by model_set_cache */

    vt_recorder recorder;
    uint64_t bf16_rows[MODEL_N_PRODUCTS][VT_DTYPE_COUNT]; /* of the plan, per product and dtype of weights: bits of the third dtype of signatures that take BF16 activations (block_act_dtype) */
    uint64_t bf16_attention; /* of the plan: bits of the dtypes of caches over which attention can write BF16 */
    bool has_links;          /* of the plan: links between stages are one launch (block_link_run) */
    uint64_t several, gated; /* of the plan: bits of the dtypes of weights that several products of one activation, and a gate beside its up, are one launch for */
    char activations[MODEL_ACTIVATIONS_TEXT]; /* of the plan: "bf16 x bf16, f32 x f32": what is multiplied with which weights */
    size_t plan_workspace_bytes, plan_weight_bytes, weights_read_bytes; /* device bytes; dense bytes one decoded row reads */
    size_t plan_copy_bytes; /* of weights that lie in the file where no kernel can read them: copied even where others are aliased */
    size_t plan_meta_bytes;
    vt_buffer workspace, meta_buf, weight_buf, rope_buf;
    vt_buffer host_logits;  /* when the device is not host-addressable */
    vt_tensor ids, pos, row_seg, pages[STEP_MAX_GROUPS], head_rows; /* device copies of the step */
    int32_t step_pages;     /* entries of a page table's row in the step that was sent */
    vt_buffer meta_host;    /* the image of meta_buf on the host */
    vt_tensor x;            /* residual stream of the last step */
    vt_tensor head_logits, head_best; /* of the last step's head rows, where it had any */
    int32_t n_head_rows;    /* whose results are on the host; their list is in meta_host */
    bool head_best_only;
    struct model_capture *capture; /* model_capture.h; NULL: the device captures nothing, or is not to */
    bool pass_waited;       /* for the device, within the pass: whoever does sets it */
    size_t ws_used, ws_peak;
    bool planning;
};

/** Headers only. Errors list every problem of the checkpoint in one text. */
NODISCARD status model_open(mem *m, source *src, model **out, error *err);
/** Which kernels and how much memory; asks the queue's device for every kernel and refuses listing all missing ones. Allocates nothing on the device. */
NODISCARD status model_plan(model *mo, vt_queue *queue, const model_options *opt, error *err);
/** Weights, tables and workspace onto the device. */
NODISCARD status model_commit(model *mo, vt_device *device, error *err);
void model_close(model *mo);

/** Caches of a layer: [n_pages, n_kv_heads, page_tokens, head_dim] of the KV dtype. */
void model_set_cache(model *mo, int layer, vt_tensor k, vt_tensor v);
/** Bytes of one page of a group over all its layers, keys and values. */
size_t model_page_bytes(const model *mo, int group);
/** Caches of one layer of a group: keys and values, or latent rows, which are both. */
int model_caches_of(const kv_group *g);
/** After the plan. Host memory for the logits of a head, where the device's own cannot be read. */
size_t model_logits_bytes(const model *mo);

/** Bytes of the recurrent states of one sequence, packed; 0: the model has none. */
size_t model_state_bytes(const model *mo);
/** Copy the states of a sequence slot to, or from, so many bytes of device memory; queued in order with the steps. */
NODISCARD status model_state_keep(model *mo, int32_t seq_slot, void *kept, error *err);
NODISCARD status model_state_restore(model *mo, int32_t seq_slot, const void *kept, error *err);

/**
 * Compute the step; the residual stream stays inside for model_head. A device failure leaves the model usable for the next step. An expert that cannot be read fails the segments whose rows
 * need it, and the step only where that is all of them: model_segment_outcome tells.
 */
NODISCARD status model_forward(model *mo, const step *s, error *err);
/** How a segment of a step that model_forward has computed fared: of one that failed nothing (pages, states, logits) may be used. */
NODISCARD status model_segment_outcome(const model *mo, int32_t segment, error *err);
/** After the plan. Device memory that captured steps take at most. */
size_t model_capture_bytes(const model *mo, const vt_device *device);
/** Whether the step carried these head rows as best_only; *ids is host memory [n], valid until the next call on this model: the most likely id of each, -1 where a row holds a NaN or no finite maximum. */
bool model_best(const model *mo, const int32_t *rows, int32_t n, const int32_t **ids);
/** Logits of n (<= max_head_rows) rows of the last step: *logits is host memory [n, vocab], valid until the next call on this model. */
NODISCARD status model_head(model *mo, const int32_t *rows, int32_t n, const float **logits, error *err);
/** Whether the head is the plain one (block_head), so that what it multiplies is a hidden state worth having. */
bool model_gives_hidden(const model *mo);
/** As model_head: the residual stream behind the final norm, [n, embd]. */
NODISCARD status model_hidden(model *mo, const int32_t *rows, int32_t n, const float **hidden, error *err);

/* For architectures: */
/** The weight of a slot (layer -1: once per model); n_dims 0 when absent. */
const vt_tensor *model_weight(const model *mo, int slot, int layer);
weight_transform model_weight_transform(const model *mo, int slot, int layer);
/** A value of the metadata under its name in this container, found as hparams_read finds it; NULL when absent. */
const meta_value *model_find(const model *mo, const char *hf, const char *gguf);
/** A count of one layer: element `layer` of an array, or the number itself; `otherwise` when absent. */
NODISCARD status model_layer_count(const model *mo, const char *hf, const char *gguf, int layer, int64_t otherwise, int64_t *out, error *err);
/** Every layer alike: full attention (or `window`), one KV group, one rope from the hyper-parameters. */
NODISCARD status model_layers_uniform(model *mo, int64_t window, error *err);
/** A window that a configuration switches on, and from which layer: own hyper-parameters of families that share these rows. */
typedef struct model_window_switch {
    int64_t use, first_layer;
} model_window_switch;
enum { MODEL_N_WINDOW_SWITCH_HPARAMS = 2 };
extern const hparam_row model_window_switch_hparams[MODEL_N_WINDOW_SWITCH_HPARAMS];
/** Every layer alike, but with a window, where it is on, on the layers from first_layer, or those that layer_types names so. */
NODISCARD status model_layers_switched_window(model *mo, const model_window_switch *sw, error *err);
/**
 * Which layers see only a window, into is_window[n_layers]: layer_types, or sliding_window_pattern (every pattern-th layer is full; a GGUF may list them),
 * or else `pattern` (0: none is full).
 */
NODISCARD status model_window_layers(const model *mo, int64_t pattern, bool *is_window, error *err);
/** Groups of layers that own a cache (kv_layer is the layer itself) by kind, sizes and window, and kv_group of every layer. */
NODISCARD status model_group_layers(model *mo, error *err);
/** Add a rope over n_dims dimensions of a head, scaled as h->type says; returns the index through *out. */
NODISCARD status model_add_rope(model *mo, const rope_hparams *h, int64_t n_dims, int32_t *out, error *err);
/** For configure: a tensor that may be there and is not used; "{l}" in the pattern is the layer. */
NODISCARD status model_ignore(model *mo, const char *pattern, int layer, error *err);
/** The activation, where the file names one, is among `known` ("silu|swish"). */
NODISCARD status model_require_activation(const model *mo, const char *known, error *err);
/** What a GGUF says of how the router weighs is what the architecture does (hparams.gating; 0 goes with anything). */
NODISCARD status model_require_gating(const model *mo, int64_t known, error *err);
/** The factor of the chosen experts' weights; 1 where the file gives none. */
float model_router_scaling(const model *mo);
/** The chosen experts' weights are divided by their sum; `otherwise` where the file does not say. */
bool model_router_norm(const model *mo, bool otherwise);
/** For prepare: a weight that is one number; `otherwise` when absent. */
NODISCARD status model_read_value(const model *mo, int slot, int layer, float otherwise, float *out, error *err);
/** Hyper-parameters that most families share. */
extern const hparam_row model_common_hparams[];
extern const size_t model_n_common_hparams;
/** Tensors that no family uses: towers of other senses, tables that are computed. */
extern const char *const model_common_ignore[];

#endif
