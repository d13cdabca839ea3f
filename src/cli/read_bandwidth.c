/* SPDX-License-Identifier: Apache-2.0 */
/* The sums are kept, so that no compiler drops the reading; eight of them, so that adding never holds it up. */
#include "cli/read_bandwidth.h"

#include <string.h>

#include "base/os.h"
#include "base/threads.h"

enum { BLOCK_BYTES = 1 << 20, PASSES = 6, SUMS = 8, PAD = 8 };

typedef struct reading {
    uint64_t *words;
    uint64_t *totals; /* one a thread, PAD words apart */
} reading;

static void fill_blocks(void *ctx, int64_t begin, int64_t end, int thread) {
    reading *r = ctx;
    (void)thread;
    size_t words = BLOCK_BYTES / sizeof *r->words;
    memset(r->words + (size_t)begin * words, 1, (size_t)(end - begin) * BLOCK_BYTES);
}

static void sum_blocks(void *ctx, int64_t begin, int64_t end, int thread) {
    reading *r = ctx;
    size_t words = BLOCK_BYTES / sizeof *r->words;
    const uint64_t *p = r->words + (size_t)begin * words;
    size_t n = (size_t)(end - begin) * words;
    uint64_t sums[SUMS] = {0}, total = 0;
    for (size_t i = 0; i < n; i += SUMS)
        for (size_t k = 0; k < SUMS; k++) sums[k] += p[i + k];
    for (size_t k = 0; k < SUMS; k++) total += sums[k];
    r->totals[thread * PAD] += total;
}

status read_bandwidth_measure(mem *m, int n_threads, double *out, error *err) {
    reading r = {0};
    pool *threads = NULL;
    void *words = NULL;
    status rc = mem_alloc_named(m, MEM_STAGING, READ_BANDWIDTH_BYTES, "the read benchmark", &words, err);
    r.words = words;
    if (rc == STATUS_OK) rc = pool_create(m, n_threads, &threads, err);
    if (rc == STATUS_OK) {
        r.totals = mem_calloc(m, MEM_STAGING, (size_t)n_threads, PAD * sizeof *r.totals);
        if (!r.totals) rc = error_set(err, STATUS_NO_MEMORY, "bench: no memory for the read benchmark");
    }
    if (rc == STATUS_OK) {
        int64_t blocks = READ_BANDWIDTH_BYTES / BLOCK_BYTES;
        uint64_t best = UINT64_MAX, sum = 0;
        pool_run(threads, blocks, 1, fill_blocks, &r);
        for (int pass = 0; pass < PASSES; pass++) {
            memset(r.totals, 0, (size_t)n_threads * PAD * sizeof *r.totals);
            uint64_t start = os_now_ns();
            pool_run(threads, blocks, 1, sum_blocks, &r);
            uint64_t ns = os_now_ns() - start;
            if (ns > 0 && ns < best) best = ns;
        }
        for (int t = 0; t < n_threads; t++) sum += r.totals[t * PAD];
        uint64_t expected = UINT64_C(0x0101010101010101) * (READ_BANDWIDTH_BYTES / sizeof *r.words);
        if (sum != expected || best == UINT64_MAX)
            rc = error_set(err, STATUS_BUG, "bench: the read benchmark did not read everything");
        else
            *out = (double)READ_BANDWIDTH_BYTES * 1e9 / (double)best;
    }
    pool_destroy(threads);
    mem_free(m, r.totals);
    mem_free(m, r.words);
    return rc;
}
