/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Where an expert that the device lacks is computed: there, once it has been copied, or on the processor, out of the host's slot. Pure.
 *
 * The link and the processor work side by side, so the choice is about a layer's misses together: a copy takes as long as its bytes, a product on the processor as long as its bytes and more
 * with each row. Those of the fewest rows go to the processor, as many as make the longer of the two sides the shortest.
 */
#ifndef HEADRACE_MOE_EXPERT_MISS_H
#define HEADRACE_MOE_EXPERT_MISS_H

#include <stddef.h>
#include <stdint.h>

typedef enum expert_miss_mode {
    EXPERT_MISS_UPLOAD, /* every miss is copied to the device */
    EXPERT_MISS_HOST,   /* every miss is computed on the processor */
    EXPERT_MISS_AUTO    /* by the costs */
} expert_miss_mode;

/** As measured; bytes are those of an expert's parts. */
typedef struct expert_miss_costs {
    double copy_bytes_per_s; /* host to device */
    double host_bytes_per_s; /* of the processor's products of one row; 0: it is not to be used */
    double host_row_share;   /* what each further row takes, in parts of the first */
} expert_miss_costs;

/**
 * Orders ids (n of one layer, ascending) so that those that are copied come first, and the processor's behind, both ascending; returns the number of the former. rows[id]: rows of the step that
 * take the expert (EXPERT_MISS_AUTO).
 */
int32_t expert_miss_split(expert_miss_mode mode, const expert_miss_costs *c, const int32_t *rows, int32_t *ids, int32_t n);

#endif
