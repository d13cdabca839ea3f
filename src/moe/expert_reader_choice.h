/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Which way to read, decided when a store is made: what the machine allows, and among that what a short measurement finds fastest. The measurement reads dense weights of the file that holds
 * the experts (never an expert; of a packed bank, which has nothing else, places in its records) into the slots, some tens of MiB for each candidate; without a large enough dense tensor, or for small experts, nothing is measured.
 */
#ifndef HEADRACE_MOE_EXPERT_READER_CHOICE_H
#define HEADRACE_MOE_EXPERT_READER_CHOICE_H

#include "moe/expert_reader.h"

typedef struct expert_reader_choice {
    expert_read_way way;
    int32_t depth;
    double bytes_per_s; /* what the probe found for it; 0: not measured */
    char why[EXPERT_READER_WHY_BYTES]; /* one line for the log */
} expert_reader_choice;

/** way_wanted: 0, or expert_read_way + 1, which is then taken or refused. depth_wanted: 0, or the depth. ahead: as in the reader's options. memory: the slots, page aligned. */
NODISCARD status expert_reader_choose(mem *m, const expert_bank *bank, int32_t way_wanted, int32_t depth_wanted, int32_t n_fills, bool ahead, void *memory, size_t memory_bytes,
                                      expert_reader **out, expert_reader_choice *choice, error *err);
/** "io_uring", "pread", "buffered" */
const char *expert_read_way_name(expert_read_way way);

#endif
