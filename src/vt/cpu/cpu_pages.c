/* SPDX-License-Identifier: Apache-2.0 */
/* The page tables of a step, checked before anything is read or written through them. */
#include "vt/cpu/cpu_kernels.h"

/* Every place that row t reads (or the one that it writes) must exist. */
static status check_row(const cpu_pages *p, int64_t t, int64_t first_pos, int64_t n_pages, error *err) {
    int64_t seg = p->seg[t], pos = p->pos[t];
    if (seg < 0 || seg >= p->pages->dim[0])
        return error_set(err, STATUS_INVALID, "cpu: row %lld names segment %lld of %lld", (long long)t, (long long)seg,
                         (long long)p->pages->dim[0]);
    if (pos < 0 || pos / p->page_tokens >= p->pages->dim[1])
        return error_set(err, STATUS_INVALID, "cpu: row %lld has position %lld, the page table ends at %lld", (long long)t, (long long)pos,
                         (long long)(p->pages->dim[1] * p->page_tokens));
    for (int64_t i = first_pos / p->page_tokens; i <= pos / p->page_tokens; i++) {
        int64_t page = cpu_page_of(p, t, i * p->page_tokens);
        if (page < 0 || page >= n_pages)
            return error_set(err, STATUS_INVALID, "cpu: page %lld of segment %lld is %lld, the cache has %lld", (long long)i,
                             (long long)seg, (long long)page, (long long)n_pages);
    }
    return STATUS_OK;
}

status cpu_pages_of(const vt_call *call, int first, const vt_tensor *cache, int64_t n_rows, bool whole_past, int32_t window, cpu_pages *out,
                    error *err) {
    cpu_pages p = {call->t[first]->data, call->t[first + 1]->data, call->t[first + 2], cache->dim[2]};
    if (n_rows > 0 && p.page_tokens < 1) return error_set(err, STATUS_INVALID, "cpu: a page holds no position");
    for (int64_t t = 0; t < n_rows; t++) TRY(check_row(&p, t, whole_past ? cpu_first_pos(p.pos[t], window) : p.pos[t], cache->dim[0], err));
    *out = p;
    return STATUS_OK;
}
