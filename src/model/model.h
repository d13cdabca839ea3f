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
    int32_t rope;                      /* index of rope_spec; -1 = none */
} layer_info;

/** Layers that share one page table: same kind, page shape and life time of pages. */
typedef struct kv_group {
    layer_kind kind;
    int64_t n_kv_heads, head_dim, window;
    int32_t n_layers;                  /* that own a cache */
} kv_group;

typedef enum act_mode { ACT_AUTO, ACT_F32, ACT_Q8 } act_mode;

typedef struct model_options {
    act_mode act;
    vt_dtype kv_dtype;      /* F32, F16, BF16 */
    int32_t page_tokens;
    int32_t max_rows;       /* of a step */
    int32_t max_segments;
    int32_t max_pages;      /* of one sequence */
    int32_t max_head_rows;  /* logits rows per model_head */
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
    void *priv;             /* of the architecture, in the arena */

    layer_info *layers;     /* [hp.n_layers] */
    kv_group groups[MODEL_MAX_KV_GROUPS];
    int32_t n_groups;
    rope_spec ropes[MODEL_MAX_ROPES];
    int32_t n_ropes;
    float *rope_host[MODEL_MAX_ROPES]; /* inv_freq before upload */

    binding *binding;
    vt_tensor *weights;     /* [n_slots * (n_layers + 1)] on the device; index by model_weight */
    vt_tensor *k_cache, *v_cache; /* [n_layers], set by model_set_cache */

    vt_recorder recorder;
    size_t plan_workspace_bytes, plan_weight_bytes, weights_read_bytes; /* device bytes; dense bytes one decoded row reads */
    vt_buffer workspace, meta_buf, weight_buf, rope_buf;
    void *host_logits;      /* when the device is not host-addressable */
    vt_tensor ids, pos, row_seg, pages[STEP_MAX_GROUPS], head_rows; /* device copies of the step */
    int32_t *meta_host;
    vt_tensor x;            /* residual stream of the last step */
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

/** Compute the step; the residual stream stays inside for model_head. A device failure leaves the model usable for the next step. */
NODISCARD status model_forward(model *mo, const step *s, error *err);
/** Logits of n (<= max_head_rows) rows of the last step: *logits is host memory [n, vocab], valid until the next call on this model. */
NODISCARD status model_head(model *mo, const int32_t *rows, int32_t n, const float **logits, error *err);

/* For architectures: */
/** The weight of a slot (layer -1: once per model); n_dims 0 when absent. */
const vt_tensor *model_weight(const model *mo, int slot, int layer);
weight_transform model_weight_transform(const model *mo, int slot, int layer);
/** Every layer alike: full attention (or `window`), one KV group, one rope from the hyper-parameters. */
NODISCARD status model_layers_uniform(model *mo, int64_t window, error *err);
/** Add a rope: inverse frequencies theta^(-2i/n_rot) scaled as hp.rope_type says; returns the index through *out. */
NODISCARD status model_add_rope(model *mo, double theta, int64_t n_rot, const char *type, int32_t *out, error *err);
/** Hyper-parameters that most families share. */
extern const hparam_row model_common_hparams[];
extern const size_t model_n_common_hparams;

#endif
