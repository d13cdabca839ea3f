/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The packed bank: all experts of a checkpoint again, in one file beside it, each as one aligned record with a checksum. One read brings an expert, whatever the checkpoint's layout, and what
 * arrives is compared with what was packed. Dense weights stay in the checkpoint.
 *
 * The file, little endian: a page with "HRBANK01", u32 layers, u32 records, u64 fingerprint of the checkpoint, u64 checksum of the table; then the table, one entry for each expert of each
 * layer in order {u64 offset, u64 bytes, u64 checksum}, to a whole page; then the records at whole pages: the parts at their places in a compact slot (expert_part.slot_off), zeros between. The
 * fingerprint is a hash of name, dtype, shape, file, place and size of every tensor that experts have, so a bank of another checkpoint, or of one that was written anew with another layout, is refused;
 * a checkpoint rewritten in place with other numbers is not seen by it.
 */
#ifndef HEADRACE_MOE_EXPERT_PACK_H
#define HEADRACE_MOE_EXPERT_PACK_H

#include "moe/expert_bank.h"

typedef struct expert_pack_entry {
    uint64_t off, n_bytes, checksum;
} expert_pack_entry;

typedef void expert_pack_progress(void *user, uint64_t done, uint64_t total);

typedef struct expert_pack_result {
    uint64_t n_records, n_resumed, file_bytes;
} expert_pack_result;

/**
 * Writes the bank of b to path. It goes to path.partial first, is read back and compared when it is whole, and then put in place. A partial file of the same checkpoint is gone on with: records
 * that are noted in its table and give their checksum are kept.
 */
NODISCARD status expert_pack_write(mem *m, const expert_bank *b, const char *path, expert_pack_progress *progress, void *user, expert_pack_result *out, error *err);

/** Makes b read from the bank that the source was opened with (source_options.extra_path). Memory from the arena. STATUS_FORMAT: damaged or of another checkpoint. */
NODISCARD status expert_pack_use(expert_bank *b, arena *a, mem *m, error *err);
/** The checksum of n bytes. */
uint64_t expert_pack_sum(const void *bytes, size_t n);
/** Compares a record that has arrived; STATUS_IO names file, offset and both sums. */
NODISCARD status expert_pack_check(const expert_bank *b, int32_t layer, int32_t expert, const uint8_t *slot, error *err);

#endif
