/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Page pools: which pages of a KV group are free and who holds the others. Page numbers index the caches of every layer of the group. Pure bookkeeping: no device, no bytes.
 *
 * Invariants (kv_pool_check walks them):
 *   1. n_free + |{p : ref[p] > 0}| = n_pages
 *   2. the free list holds each page with ref 0 exactly once: free_list[free_at[p]] = p
 *   3. a page is handed out with ref 1; releasing a page with ref 0 does not happen
 * Owned by the engine's thread.
 */
#ifndef HEADRACE_ENGINE_KV_H
#define HEADRACE_ENGINE_KV_H

#include <stdint.h>

#include "base/alloc.h"

typedef struct kv_pool {
    mem *m;
    int32_t n_pages, n_free;
    int32_t *free_list; /* stack: the last one is handed out next */
    int32_t *free_at;   /* place of a page in the free list; -1 while it is held */
    int32_t *ref;
} kv_pool;

NODISCARD status kv_pool_init(kv_pool *p, mem *m, int32_t n_pages, error *err);
void kv_pool_deinit(kv_pool *p);
/** n pages into out[], or none and false. */
NODISCARD bool kv_pool_acquire(kv_pool *p, int32_t n, int32_t *out);
void kv_pool_share(kv_pool *p, int32_t page);
void kv_pool_release(kv_pool *p, const int32_t *pages, int32_t n);
/** True when the invariants hold; linear. */
bool kv_pool_check(const kv_pool *p);

#endif
