/* SPDX-License-Identifier: Apache-2.0 */
/* Page pools: a stack of free pages and a reference count per page. */
#include "engine/kv.h"

#include <assert.h>

static void put_free(kv_pool *p, int32_t page) {
    p->free_at[page] = p->n_free;
    p->free_list[p->n_free++] = page;
}

status kv_pool_init(kv_pool *p, mem *m, int32_t n_pages, error *err) {
    void *block;
    *p = (kv_pool){.m = m};
    TRY(mem_alloc_named(m, MEM_ENGINE, (size_t)n_pages * 3 * sizeof(int32_t), "the bookkeeping of KV pages", &block, err));
    p->free_list = block;
    p->free_at = p->free_list + n_pages;
    p->ref = p->free_at + n_pages;
    p->n_pages = n_pages;
    for (int32_t i = n_pages - 1; i >= 0; i--) {
        p->ref[i] = 0;
        put_free(p, i);
    }
    return STATUS_OK;
}

void kv_pool_deinit(kv_pool *p) {
    if (p->m == NULL) return;
    mem_free(p->m, p->free_list);
    *p = (kv_pool){0};
}

bool kv_pool_acquire(kv_pool *p, int32_t n, int32_t *out) {
    if (n > p->n_free) return false;
    for (int32_t i = 0; i < n; i++) {
        const int32_t page = p->free_list[--p->n_free];
        assert(p->ref[page] == 0);
        p->ref[page] = 1;
        p->free_at[page] = -1;
        out[i] = page;
    }
    return true;
}

void kv_pool_share(kv_pool *p, int32_t page) {
    assert(p->ref[page] > 0);
    p->ref[page]++;
}

void kv_pool_release(kv_pool *p, const int32_t *pages, int32_t n) {
    for (int32_t i = n - 1; i >= 0; i--) {
        assert(p->ref[pages[i]] > 0);
        if (--p->ref[pages[i]] == 0) put_free(p, pages[i]);
    }
}

bool kv_pool_check(const kv_pool *p) {
    int32_t held = 0;
    for (int32_t i = 0; i < p->n_pages; i++) {
        if (p->ref[i] < 0) return false;
        held += p->ref[i] > 0;
        /* a page in the free list says where: two entries for one page cannot both be right */
        const int32_t at = p->free_at[i];
        if ((at >= 0) != (p->ref[i] == 0)) return false;
        if (at >= 0 && (at >= p->n_free || p->free_list[at] != i)) return false;
    }
    return held + p->n_free == p->n_pages;
}
