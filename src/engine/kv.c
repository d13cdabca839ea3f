/* SPDX-License-Identifier: Apache-2.0 */
/* Page pools: a stack of free pages and a reference count per page. */
#include "engine/kv.h"

#include <assert.h>

status kv_pool_init(kv_pool *p, mem *m, int32_t n_pages, error *err) {
    void *free_list, *ref;
    *p = (kv_pool){.m = m};
    TRY(mem_alloc_named(m, MEM_ENGINE, (size_t)n_pages * sizeof(int32_t), "the free list of KV pages", &free_list, err));
    const status rc = mem_alloc_named(m, MEM_ENGINE, (size_t)n_pages * sizeof(int32_t), "the reference counts of KV pages", &ref, err);
    if (rc != STATUS_OK) {
        mem_free(m, free_list);
        return rc;
    }
    p->free_list = free_list;
    p->ref = ref;
    p->n_pages = p->n_free = n_pages;
    for (int32_t i = 0; i < n_pages; i++) {
        p->free_list[i] = n_pages - 1 - i;
        p->ref[i] = 0;
    }
    return STATUS_OK;
}

void kv_pool_deinit(kv_pool *p) {
    if (p->m == NULL) return;
    mem_free(p->m, p->free_list);
    mem_free(p->m, p->ref);
    *p = (kv_pool){0};
}

bool kv_pool_acquire(kv_pool *p, int32_t n, int32_t *out) {
    if (n > p->n_free) return false;
    for (int32_t i = 0; i < n; i++) {
        const int32_t page = p->free_list[--p->n_free];
        assert(p->ref[page] == 0);
        p->ref[page] = 1;
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
        if (--p->ref[pages[i]] == 0) p->free_list[p->n_free++] = pages[i];
    }
}

bool kv_pool_check(const kv_pool *p) {
    int32_t held = 0;
    for (int32_t i = 0; i < p->n_pages; i++) {
        if (p->ref[i] < 0) return false;
        held += p->ref[i] > 0;
    }
    if (held + p->n_free != p->n_pages) return false;
    for (int32_t i = 0; i < p->n_free; i++) {
        const int32_t page = p->free_list[i];
        if (page < 0 || page >= p->n_pages || p->ref[page] != 0) return false;
        for (int32_t j = 0; j < i; j++) {
            if (p->free_list[j] == page) return false;
        }
    }
    return true;
}
