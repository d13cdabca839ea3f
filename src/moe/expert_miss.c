/* SPDX-License-Identifier: Apache-2.0 */
/* Which misses the processor takes. */
#include "moe/expert_miss.h"

static double host_cost(const expert_miss_costs *c, int32_t rows) { return (1 + c->host_row_share * (rows > 1 ? rows - 1 : 0)) / c->host_bytes_per_s; }

/* By one key at a time: an insertion sort, for lists that are short or nearly in order. */
static void sort(int32_t *ids, int32_t n, const int32_t *key) {
    for (int32_t i = 1; i < n; i++) {
        const int32_t e = ids[i];
        int32_t at = i;
        for (; at > 0 && (key != NULL ? key[ids[at - 1]] > key[e] : ids[at - 1] > e); at--) ids[at] = ids[at - 1];
        ids[at] = e;
    }
}

/* Of ids by ascending rows, how many of the first make the longer side the shortest. */
static int32_t count_for_host(const expert_miss_costs *c, const int32_t *rows, const int32_t *ids, int32_t n) {
    double host = 0, least = n / c->copy_bytes_per_s;
    int32_t best = 0;
    for (int32_t k = 1; k <= n; k++) {
        host += host_cost(c, rows[ids[k - 1]]);
        const double copies = (n - k) / c->copy_bytes_per_s, longer = host > copies ? host : copies;
        if (longer < least) {
            least = longer;
            best = k;
        }
        if (host > copies) break;
    }
    return best;
}

int32_t expert_miss_split(expert_miss_mode mode, const expert_miss_costs *c, const int32_t *rows, int32_t *ids, int32_t n) {
    if (mode == EXPERT_MISS_UPLOAD) return n;
    if (mode == EXPERT_MISS_HOST) return 0;
    if (!(c->host_bytes_per_s > 0) || !(c->copy_bytes_per_s > 0)) return n;
    sort(ids, n, rows);
    const int32_t n_host = count_for_host(c, rows, ids, n), n_copied = n - n_host;
    for (int32_t i = 0; i < n / 2; i++) { /* the processor's are first: turn the list round */
        const int32_t e = ids[i];
        ids[i] = ids[n - 1 - i];
        ids[n - 1 - i] = e;
    }
    sort(ids, n_copied, NULL);
    sort(ids + n_copied, n_host, NULL);
    return n_copied;
}
