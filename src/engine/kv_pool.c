/* SPDX-License-Identifier: Apache-2.0 */
/* Page pools: a stack of free pages, a count per page, a list by last use. */
#include "engine/kv_pool.h"

#include <assert.h>

static void put_free(kv_pool *p, int32_t page) {
    p->free_at[page] = p->n_free;
    p->free_list[p->n_free++] = page;
}

status kv_pool_init(kv_pool *p, mem *m, int32_t n_pages, error *err) {
    void *memory;
    *p = (kv_pool){.m = m, .oldest = -1, .newest = -1};
    TRY(mem_alloc_named(m, MEM_ENGINE, (size_t)n_pages * KV_POOL_BYTES_PER_PAGE, "the bookkeeping of KV pages", &memory, err));
    const size_t n = (size_t)n_pages;
    p->free_list = memory;
    p->free_at = p->free_list + n;
    p->ref = p->free_list + 2 * n;
    p->block = p->free_list + 3 * n;
    p->older = p->free_list + 4 * n;
    p->newer = p->free_list + 5 * n;
    p->n_pages = n_pages;
    for (int32_t i = n_pages - 1; i >= 0; i--) {
        p->ref[i] = 0;
        p->block[i] = p->older[i] = p->newer[i] = -1;
        put_free(p, i);
    }
    return STATUS_OK;
}

void kv_pool_deinit(kv_pool *p) {
    if (p->m == NULL) return;
    mem_free(p->m, p->free_list);
    *p = (kv_pool){0};
}

int32_t kv_pool_take(kv_pool *p) {
    if (p->n_free == 0) return -1;
    const int32_t page = p->free_list[--p->n_free];
    assert(p->ref[page] == 0 && p->block[page] < 0);
    p->free_at[page] = -1;
    p->ref[page] = 1;
    return page;
}

static void unlink_cached(kv_pool *p, int32_t page) {
    const int32_t o = p->older[page], n = p->newer[page];
    if (o >= 0) {
        p->newer[o] = n;
    } else {
        p->oldest = n;
    }
    if (n >= 0) {
        p->older[n] = o;
    } else {
        p->newest = o;
    }
    p->older[page] = p->newer[page] = -1;
    p->n_cached--;
}

void kv_pool_share(kv_pool *p, int32_t page) {
    assert(p->ref[page] > 0 || p->block[page] >= 0);
    if (p->ref[page]++ == 0) unlink_cached(p, page);
}

bool kv_pool_drop(kv_pool *p, int32_t page) {
    assert(p->ref[page] > 0);
    if (--p->ref[page] > 0) return false;
    if (p->block[page] < 0) {
        put_free(p, page);
        return true;
    }
    p->older[page] = p->newest;
    p->newer[page] = -1;
    if (p->newest >= 0) {
        p->newer[p->newest] = page;
    } else {
        p->oldest = page;
    }
    p->newest = page;
    p->n_cached++;
    return true;
}

void kv_pool_forget(kv_pool *p, int32_t page) {
    if (p->block[page] < 0) return;
    if (p->ref[page] == 0) {
        unlink_cached(p, page);
        put_free(p, page);
    }
    p->block[page] = -1;
}

bool kv_pool_check(const kv_pool *p) {
    int32_t held = 0, n_free = 0, n_cached = 0, listed = 0;
    for (int32_t i = 0; i < p->n_pages; i++) {
        if (p->ref[i] < 0) return false;
        const bool is_free = p->ref[i] == 0 && p->block[i] < 0;
        held += p->ref[i] > 0;
        n_free += is_free;
        n_cached += p->ref[i] == 0 && p->block[i] >= 0;
        /* two entries for one page cannot both be where it says it is */
        if ((p->free_at[i] >= 0) != is_free) return false;
        if (is_free && (p->free_at[i] >= p->n_free || p->free_list[p->free_at[i]] != i)) return false;
    }
    if (n_free != p->n_free || n_cached != p->n_cached || held + n_free + n_cached != p->n_pages) return false;
    for (int32_t i = p->oldest, before = -1; i >= 0; before = i, i = p->newer[i]) {
        if (++listed > n_cached || p->older[i] != before || p->ref[i] != 0 || p->block[i] < 0) return false;
        if (p->newer[i] < 0 && p->newest != i) return false;
    }
    return listed == n_cached;
}
