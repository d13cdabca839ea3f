/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How an expert lies in a slot of the stream store, and the reads that bring it there.
 *
 * Small experts: each part at its slot_off, compact. Large ones (EXPERT_DIRECT_LEAST and up) are read past the page cache, in whole pages: parts that are neighbours in the file form a group, and
 * a group has an area of whole pages with a page to spare on both sides, in which it lies at the file's own offset within a page. So one read brings a group, whatever its alignment,
 * and nothing is copied. A part whose address does not suit its elements is moved, after the read, to where the part would be without all this.
 *
 * Of a packed bank (expert_pack.h), a record: whole pages, one read, compact.
 *
 * Pure; knows no reader.
 */
#ifndef HEADRACE_MOE_EXPERT_SLOT_H
#define HEADRACE_MOE_EXPERT_SLOT_H

#include "moe/expert_bank.h"

typedef struct expert_range {
    uint32_t file;
    uint64_t off, n_bytes;
    void *dst; /* of a padded slot: at the same offset within a page as `off`, and the whole pages round the range belong to it */
} expert_range;

/** The reads of one expert; at most n_parts. */
int32_t expert_slot_ranges(const expert_bank *b, int32_t layer, int32_t expert, uint8_t *slot, expert_range *ranges);
/** After the reads: moves parts that lie badly. */
void expert_slot_settle(const expert_bank *b, int32_t layer, int32_t expert, uint8_t *slot);
/** Where each part is then. */
void expert_slot_parts(const expert_bank *b, int32_t layer, int32_t expert, const uint8_t *slot, const void **part);

#endif
