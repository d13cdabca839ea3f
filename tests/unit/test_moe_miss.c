/* SPDX-License-Identifier: Apache-2.0 */
/* Which misses the processor takes: by hand, and against every way of sharing them out. */
#include "support/test_case.h"

#include "moe/expert_miss.h"

enum { N = 9 };

static double side(const expert_miss_costs *c, const int32_t *rows, uint32_t of_host, int n) {
    double host = 0, copies = 0;
    for (int i = 0; i < n; i++) {
        if (of_host >> i & 1)
            host += (1 + c->host_row_share * (rows[i] - 1)) / c->host_bytes_per_s;
        else
            copies += 1 / c->copy_bytes_per_s;
    }
    return host > copies ? host : copies;
}

/* What comes back are the same ids, both parts ascending; the bits of those that are the processor's. */
static uint32_t split(expert_miss_mode mode, const expert_miss_costs *c, const int32_t *rows, int n) {
    int32_t ids[N];
    uint32_t host = 0, seen = 0;
    for (int i = 0; i < n; i++) ids[i] = i;
    const int32_t copied = expert_miss_split(mode, c, rows, ids, n);
    assert_in_range(copied, 0, n);
    for (int i = 0; i < n; i++) {
        seen |= 1u << ids[i];
        if (i >= copied) host |= 1u << ids[i];
        if (i > 0 && i != copied) assert_true(ids[i] > ids[i - 1]);
    }
    assert_int_equal(seen, (1u << n) - 1);
    return host;
}

static void by_hand(void **state) {
    (void)state;
    const int32_t one[N] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, many[N] = {1, 64, 1, 64, 1, 64, 1, 64, 64};
    const expert_miss_costs even = {.copy_bytes_per_s = 50, .host_bytes_per_s = 50, .host_row_share = 0.1}, slow = {.copy_bytes_per_s = 50, .host_bytes_per_s = 5}, none = {.copy_bytes_per_s = 50};
    assert_int_equal(split(EXPERT_MISS_UPLOAD, &even, one, 8), 0);
    assert_int_equal(split(EXPERT_MISS_HOST, &slow, many, 8), 0xff);
    assert_int_equal(split(EXPERT_MISS_AUTO, &none, one, 8), 0); /* not measured: not used */
    assert_int_equal(__builtin_popcount(split(EXPERT_MISS_AUTO, &even, one, 8)), 4); /* half and half */
    assert_int_equal(split(EXPERT_MISS_AUTO, &slow, one, 8), 0); /* eight copies take less than one product */
    assert_int_equal(split(EXPERT_MISS_AUTO, &even, many, 9) & ~0x55u, 0); /* those of one row alone */
    assert_int_equal(split(EXPERT_MISS_AUTO, &even, one, 0), 0);
}

static void the_shortest_of_all_ways(void **state) {
    (void)state;
    uint64_t z = 7;
    int n_mixed = 0;
    for (int t = 0; t < 400; t++) {
        int32_t rows[N];
        for (int i = 0; i < N; i++) {
            z = z * UINT64_C(6364136223846793005) + 1442695040888963407u;
            rows[i] = 1 + (int32_t)(z >> 60) * (int32_t)(z >> 58 & 3);
        }
        const int n = 1 + t % N;
        const expert_miss_costs c = {.copy_bytes_per_s = 40 + t % 7 * 10, .host_bytes_per_s = 5 + t % 11 * 15, .host_row_share = (t % 4) * 0.2};
        const uint32_t got = split(EXPERT_MISS_AUTO, &c, rows, n);
        double least = side(&c, rows, 0, n);
        for (uint32_t m = 1; m < 1u << n; m++) {
            const double s = side(&c, rows, m, n);
            if (s < least) least = s;
        }
        assert_true(side(&c, rows, got, n) <= least * (1 + 1e-9));
        n_mixed += got != 0 && got != (1u << n) - 1;
    }
    assert_true(n_mixed > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(by_hand), cmocka_unit_test(the_shortest_of_all_ways)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
