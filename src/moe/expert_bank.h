/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The bank: where every expert's bytes are in the checkpoint, as published. One expert of a layer is a unit of parts (matrices, their scales, biases); a part is one byte
 * range per expert and one view (dtype, shape, strides) that all experts of the layer share. Works for separate tensors per expert and for slices of a stacked tensor alike.
 *
 * Knows files and views, not models or sequences. Constant after it is built; any thread may read it.
 */
#ifndef HEADRACE_MOE_EXPERT_BANK_H
#define HEADRACE_MOE_EXPERT_BANK_H

#include "base/arena.h"
#include "load/source.h"

enum { EXPERT_MAX_PARTS = 12, EXPERT_PART_ALIGN = 64, EXPERT_PAGE_BYTES = 4096, EXPERT_DIRECT_LEAST = 256 * 1024 };

typedef struct expert_part {
    vt_tensor view;   /* of one expert, data NULL */
    size_t n_bytes;   /* of one expert */
    size_t slot_off;  /* where the part begins in a slot: multiple of EXPERT_PART_ALIGN */
} expert_part;

/** Where part p of expert e is. */
typedef struct expert_span {
    const tensor_info *tensor;
    uint64_t off; /* within the tensor */
} expert_span;

/** Parts that lie side by side in the file for every expert of the layer: positions first .. first + n - 1 of `order`. */
typedef struct expert_group {
    int32_t first, n;
    size_t n_bytes;  /* of one expert, as in the file */
    size_t area_off; /* of the group's pages in a padded slot */
} expert_group;

typedef struct expert_layer {
    int32_t n_experts, n_parts; /* n_experts 0: not a layer with experts */
    int32_t top_k;              /* experts of one row */
    expert_part parts[EXPERT_MAX_PARTS];
    int32_t order[EXPERT_MAX_PARTS];      /* parts as they follow each other in the file (of expert 0) */
    expert_group groups[EXPERT_MAX_PARTS];
    int32_t n_groups;
    uint32_t late_parts;        /* bit p: the last of its products alone reads part p; 0: nobody said so */
    size_t slot_bytes;          /* all parts with their alignment */
    size_t padded_bytes;        /* of a padded slot (expert_slot.h) */
    uint64_t first_packed;      /* of the layer's records in a packed bank */
    size_t file_bytes;          /* of one expert, without alignment */
    expert_span *spans;         /* [n_experts * n_parts] */
} expert_layer;

typedef struct expert_bank {
    source *src;
    int32_t n_layers;
    expert_layer *layers;       /* [n_layers] */
    size_t max_slot_bytes;      /* of the largest layer */
    size_t stream_slot_bytes;   /* of a slot of the stream store: padded where experts are large */
    bool padded;
    const struct expert_pack_entry *packed; /* NULL, or the records of a packed bank (expert_pack.h), in this file */
    uint32_t packed_file;
    int32_t max_top_k, max_experts;
    uint64_t total_bytes;       /* all experts of all layers */
} expert_bank;

/** Memory from the arena, which must outlive the bank. expert_bank_set_layer is called once per layer with experts; then expert_bank_seal. */
NODISCARD status expert_bank_init(expert_bank *b, arena *a, source *src, int32_t n_layers, error *err);
/** Copies parts and spans; lays the parts out in a slot. n_parts <= EXPERT_MAX_PARTS. */
NODISCARD status expert_bank_set_layer(expert_bank *b, arena *a, int32_t layer, int32_t n_experts, int32_t top_k, int32_t n_parts, const expert_part *parts,
                                       const expert_span *spans, error *err);
void expert_bank_seal(expert_bank *b);
/** The file that experts are read from: the packed bank, or the largest that holds any. */
uint32_t expert_bank_file(const expert_bank *b);
/** Whether the files that hold the expert's parts, as published, are as they were opened; STATUS_IO names one that is not, and where in it the expert is. After a read: what it brought is of that file. */
NODISCARD status expert_bank_intact(const expert_bank *b, int32_t layer, int32_t expert, error *err);

#endif
