/* SPDX-License-Identifier: Apache-2.0 */
/**
 * One pool of KV pages: which are free, which are held and by how many, and which nobody holds but the prefix cache still knows. Page numbers index the caches of every layer of a
 * KV group. Pure bookkeeping: no device, no bytes.
 *
 *   FREE (ref 0, no block) --take--> HELD (ref >= 1) --drop, no block--> FREE
 *                                    HELD --drop, of a block--> CACHED (ref 0, in the list of least recent use) --share--> HELD
 *                                    CACHED --forget--> FREE
 *
 * Invariants (kv_pool_check walks them, linear):
 *   1. n_free + n_cached + |{p : ref[p] > 0}| = n_pages
 *   2. the free list holds each free page exactly once: free_list[free_at[p]] = p; free_at[p] = -1 for all others
 *   3. the list of least recent use holds each cached page exactly once, oldest first, and nothing else
 * Owned by the engine's thread.
 */
#ifndef HEADRACE_ENGINE_KV_POOL_H
#define HEADRACE_ENGINE_KV_POOL_H

#include <stdint.h>

#include "base/alloc.h"

typedef struct kv_pool {
    mem *m;
    int32_t n_pages, n_free, n_cached;
    int32_t *free_list, *free_at;    /* stack: the last one is handed out next */
    int32_t *ref;
    int32_t *block;                  /* block of the prefix cache that this page belongs to; -1: none */
    int32_t *older, *newer;          /* neighbours in the list of least recent use; -1: none */
    int32_t oldest, newest;
} kv_pool;

enum { KV_POOL_BYTES_PER_PAGE = 6 * sizeof(int32_t) };

/** n_pages 0: a group without pages. */
NODISCARD status kv_pool_init(kv_pool *p, mem *m, int32_t n_pages, error *err);
void kv_pool_deinit(kv_pool *p);
/** A free page, held once by the caller; -1 when none is free. */
int32_t kv_pool_take(kv_pool *p);
/** One holder more of a held or cached page. */
void kv_pool_share(kv_pool *p, int32_t page);
/** One holder less; true when it was the last. */
bool kv_pool_drop(kv_pool *p, int32_t page);
/** The page no longer belongs to a block; a cached one becomes free. */
void kv_pool_forget(kv_pool *p, int32_t page);
bool kv_pool_check(const kv_pool *p);

#endif
