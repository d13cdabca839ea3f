/* SPDX-License-Identifier: Apache-2.0 */
/* Heap sort over indices. */
#include "load/sort_index.h"

#include <string.h>

static void sift_down(uint32_t *idx, size_t root, size_t n, sort_index_cmp *cmp, const void *ctx) {
    uint32_t moving = idx[root];
    for (;;) {
        size_t child = 2 * root + 1;
        if (child >= n) break;
        if (child + 1 < n && cmp(ctx, idx[child], idx[child + 1]) < 0) child++;
        if (cmp(ctx, moving, idx[child]) >= 0) break;
        idx[root] = idx[child];
        root = child;
    }
    idx[root] = moving;
}

void sort_index_fill(uint32_t *idx, size_t n, sort_index_cmp *cmp, const void *ctx) {
    for (size_t i = 0; i < n; i++) idx[i] = (uint32_t)i;
    for (size_t i = n / 2; i-- > 0;) sift_down(idx, i, n, cmp, ctx);
    for (size_t end = n; end-- > 1;) {
        uint32_t last = idx[end];
        idx[end] = idx[0];
        idx[0] = last;
        sift_down(idx, 0, end, cmp, ctx);
    }
}

int sort_index_bytes(const char *a, size_t a_len, const char *b, size_t b_len) {
    size_t n = a_len < b_len ? a_len : b_len;
    int c = n > 0 ? memcmp(a, b, n) : 0;
    if (c != 0) return c;
    return a_len < b_len ? -1 : a_len > b_len;
}
