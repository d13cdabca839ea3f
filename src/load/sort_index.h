/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Sorting of 32-bit indices with a guaranteed n log n and no memory of its own (heap sort), because the keys come from hostile files:
 * a hash table can be flooded and qsort may allocate. Not stable; a comparison that falls back to the index makes it so.
 */
#ifndef HEADRACE_LOAD_SORT_INDEX_H
#define HEADRACE_LOAD_SORT_INDEX_H

#include <stddef.h>
#include <stdint.h>

/** Negative, zero or positive as the item of index a sorts before, with or after that of b. */
typedef int sort_index_cmp(const void *ctx, uint32_t a, uint32_t b);

/** Fill idx with 0..n-1 and sort. */
void sort_index_fill(uint32_t *idx, size_t n, sort_index_cmp *cmp, const void *ctx);

/** Order of two byte strings: bytes as unsigned, then length. */
int sort_index_bytes(const char *a, size_t a_len, const char *b, size_t b_len);

#endif
