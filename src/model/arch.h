/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What an architecture file gives: `const arch arch_NAME` in src/model/arch/NAME.c, found by the build (no list to edit). Tables say what a checkpoint holds; three
 * functions say what a layer computes, in terms of the shared blocks. An architecture knows no devices, no dtypes and no sequences.
 */
#ifndef HEADRACE_MODEL_ARCH_H
#define HEADRACE_MODEL_ARCH_H

#include "load/bind.h"
#include "load/hparams.h"
#include "model/slots.h"
#include "model/step.h"

typedef struct model model;
typedef struct block_ctx block_ctx;

typedef struct arch {
    const char *name;
    const char *const *hf_names;   /* config.json architectures[0] or model_type; NULL-terminated; NULL: none */
    const char *const *gguf_names; /* general.architecture */
    const hparam_row *hparams;     /* beyond model_common_hparams; a row for one of their fields takes the place of theirs */
    size_t n_hparams;
    const hparam_row *own_hparams; /* rows (HPARAM_IN) into model->priv, of own_bytes, zero before */
    size_t n_own_hparams, own_bytes;
    const weight_row *weights;
    size_t n_weights;
    int n_slots;                   /* W_COMMON_COUNT, or more with private slots */
    bool needs_experts;            /* not without them; of two architectures with one name in a GGUF this one is meant where the file counts experts */
    bool dense_beside_experts;     /* layers with experts have a dense MLP too */
    const char *const *ignore;     /* tensors that may be there and are not used */

    /** After the hyper-parameters are read: check what this family requires and fill layers and KV groups (model_layers_uniform and model_group_layers help). */
    status (*configure)(model *m, error *err);
    /** Once, when the weights are there and before the first step: read the few values that ops take as parameters (model_read_value). NULL: none. */
    status (*prepare)(model *m, error *err);
    /** Shape symbols of its own; negative = not mine (then the common ones). NULL: none. */
    int64_t (*dim)(const model *m, const char *symbol, size_t n, int layer);
    /** NULL: every row applies to every layer. */
    bool (*applies)(const model *m, const weight_row *row, int layer);

    /** x = embedding of the rows (model_embed does the plain form). */
    status (*embed)(block_ctx *c, vt_tensor x);
    /** One layer, in place on the residual stream x F32 [rows, embd]. */
    status (*layer)(block_ctx *c, int layer, vt_tensor x);
    /** logits F32 [n, vocab] of gathered rows x [n, embd] (destroyed). */
    status (*head)(block_ctx *c, vt_tensor x, vt_tensor logits);
} arch;

/** Generated: every architecture of the build, NULL-terminated. */
extern const arch *const arch_list[];

#endif
