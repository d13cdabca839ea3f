/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Arenas: many small objects with one lifetime (a model, a request). Grows in chunks from a `mem`; freed as a whole.
 * The step arena has a fixed capacity given at creation and never grows, so that a step can be planned and allocates nothing.
 * Owned by one thread.
 */
#ifndef HEADRACE_BASE_ARENA_H
#define HEADRACE_BASE_ARENA_H

#include "base/alloc.h"

typedef struct arena arena;

/** chunk_bytes: how much is asked from `m` at a time (a larger object gets a chunk of its own). */
NODISCARD status arena_create(mem *m, mem_tag tag, size_t chunk_bytes, arena **out);
/** One block of `capacity_bytes`, never grows. */
NODISCARD status arena_create_fixed(mem *m, mem_tag tag, size_t capacity_bytes, arena **out);
void arena_destroy(arena *a);
/** Forget everything; keeps the first chunk. */
void arena_reset(arena *a);

/** Aligned to MEM_ALIGN; NULL when refused or, in a fixed arena, full. */
NODISCARD void *arena_alloc(arena *a, size_t bytes);
/** Zeroed n * size, product checked. */
NODISCARD void *arena_calloc(arena *a, size_t n, size_t size);
NODISCARD char *arena_strdup(arena *a, const char *s);
NODISCARD char *arena_strndup(arena *a, const char *s, size_t n);
size_t arena_used(const arena *a);
size_t arena_peak(const arena *a);

#endif
