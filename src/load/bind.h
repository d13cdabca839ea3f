/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Binding: which tensor of a checkpoint fills which slot of an architecture. A weight row gives name patterns per container ("{l}" is the layer; alternatives
 * separated by '|'), a symbolic shape, and per container the transform that turns the stored numbers into what the blocks expect. A transform is a parameter of
 * an op or of a view and never a rewrite of bytes.
 *
 * Names in the safetensors container are also found below the prefixes of multimodal checkpoints (model.language_model. and the like), so a row spells only the
 * text model's name. Dimensions of 1 do not matter when shapes are compared; the view has the shape of the row.
 *
 * After binding, a tensor that no row, and no ignore pattern, names is an error; so is a missing one, or a wrong shape or dtype. All problems go into one report
 * (tensor, expected, found, file).
 */
#ifndef HEADRACE_LOAD_BIND_H
#define HEADRACE_LOAD_BIND_H

#include "load/source.h"

enum { WEIGHT_PER_LAYER = 1, WEIGHT_OPTIONAL = 2, WEIGHT_ELEMENT_TYPES = 4 /* F32, F16, BF16 only (norms, biases) */, WEIGHT_TABLE = 8 /* a row of it is looked up, the others are not read */,
       WEIGHT_WIDENED = 32 /* used in parts that no blocks or scales follow: quantised, it is widened to F32 at load */,
       WEIGHT_EXPERTS = 16 /* the first symbol of the shape counts experts: a name with "{e}" is one tensor per expert, another is stacked */ };

typedef enum weight_transform {
    WEIGHT_AS_IS,
    WEIGHT_NORM_PLUS_ONE,  /* a norm weight w stored for (1 + w) */
    WEIGHT_ROPE_ADJACENT,  /* rows of q or k are ordered so that rotary pairs are adjacent */
    WEIGHT_TRANSPOSED,     /* an expert matrix stored [in, out] */
    WEIGHT_INTERLEAVED,    /* fused gate and up alternate: rows (or, transposed, columns) 2i and 2i + 1 */
    WEIGHT_TRANSPOSED_INTERLEAVED
} weight_transform;

typedef struct weight_row {
    int slot;
    const char *hf, *gguf;   /* NULL: the container never has it */
    const char *shape;       /* "q,embd": symbols separated by ','; a symbol may also be a number */
    int flags;
    weight_transform hf_transform, gguf_transform;
} weight_row;

/**
 * A weight in FP8 (F8_E4M3) or MXFP4 comes with scales in a tensor of its own: NAME_scale or NAME_scale_inv for NAME, X_scales for X_blocks. They are bound with it, so that no architecture
 * names them: [N], [N, 1] (a scale per row), one value (for the tensor), or [ceil(N / block_n), ceil(K / block_k)]. An FP8 weight without scales is a problem.
 * Stacked experts have stacked scales.
 */
typedef struct bound_weight {
    const tensor_info *info; /* NULL: optional and absent */
    vt_tensor view;          /* host view with dtype and shape, data NULL (source_data gives the bytes); n_dims 0 when absent */
    weight_transform transform;
    const tensor_info *scale; /* NULL: none */
    vt_tensor scale_view;     /* [scale rows, scale columns] of one matrix, or [experts, ...] when stacked; data NULL */
    int32_t block_n, block_k; /* elements of the weight that share a scale */
    bool stacked;             /* experts lie in one tensor, outermost dimension first */
} bound_weight;

typedef struct binding binding;

/** The value of a shape symbol for a layer (layer -1: not per layer); negative: unknown symbol (a bug of the architecture). */
typedef int64_t bind_dim_fn(void *ctx, const char *symbol, size_t symbol_len, int layer);

typedef struct bind_options {
    const weight_row *rows;
    size_t n_rows;
    int n_slots, n_layers;
    const char *const *ignore; /* glob patterns with '*', NULL-terminated; NULL: none */
    bind_dim_fn *dim;
    void *dim_ctx;
    int32_t block_n, block_k; /* of two-dimensional FP8 scales, as the configuration says; 0: not said */
    /* NULL, or says whether a row applies to a layer (per-kind rows) */
    bool (*applies)(void *ctx, const weight_row *row, int layer);
} bind_options;

/** The tensor that a row's names find ("{l}" is layer 0), as bind_weights looks for it; NULL when absent. */
const tensor_info *bind_find(const source *s, const char *alternatives);

NODISCARD status bind_weights(mem *m, source *s, const bind_options *opt, binding **out, textbuf *report);
void binding_destroy(binding *b);
/** Borrowed; layer -1 for rows that are not per layer. */
const bound_weight *binding_get(const binding *b, int slot, int layer);
/** The weight of one expert: its own tensor, or the stacked one (then `stacked` is set and the caller takes the slice). Absent: info NULL. */
const bound_weight *binding_get_expert(const binding *b, int slot, int layer, int expert);
/** Tensors that an ignore pattern took. */
size_t binding_n_ignored(const binding *b);
const tensor_info *binding_ignored(const binding *b, size_t i);

#endif
