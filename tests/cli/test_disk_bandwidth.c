/* SPDX-License-Identifier: Apache-2.0 */
/* What the disk benchmark makes of a file that can be read and of one whose every read fails at once. */
#include "support/test_case.h"
#include "support/temp_dir.h"

#include "cli/disk_bandwidth.h"

enum { N_BYTES = 40 << 20, BURST = 4 << 20, NO_DIRECT_READS = 77 };

static temp_dir dir;
static char path[512];

static disk_bandwidth *opened(mem *m) {
    disk_bandwidth *d = NULL;
    error err = {0};
    assert_int_equal(truncate(path, N_BYTES), 0);
    if (disk_bandwidth_open(m, path, &d, &err) != STATUS_OK) fail_msg("%s", err.text);
    return d;
}

static void a_file_has_a_rate(void **state) {
    (void)state;
    mem *m = test_mem();
    disk_bandwidth *d = opened(m);
    disk_rates rates = {0};
    error err = {0};
    if (disk_bandwidth_measure(d, 0, BURST, &rates, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_true(rates.bytes_per_s > 0);
    assert_true(rates.latency_s >= 0);
    disk_bandwidth_close(d);
    test_mem_check(m);
}

/* Thousands of reads that end at once, of each kind. */
static void failed_reads_have_none(void **state) {
    (void)state;
    mem *m = test_mem();
    disk_bandwidth *d = opened(m);
    assert_int_equal(truncate(path, 0), 0);
    for (int i = 0; i < 4; i++) {
        disk_rates rates;
        error err = {0};
        assert_int_equal(disk_bandwidth_measure(d, 200, BURST, &rates, &err), STATUS_IO);
        assert_contains(err.text, "could not be read past the page cache");
    }
    disk_bandwidth_close(d);
    test_mem_check(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_file_has_a_rate), cmocka_unit_test(failed_reads_have_none)};
    mem *m = test_mem();
    disk_bandwidth *d = NULL;
    error err = {0};
    dir = temp_dir_make();
    temp_dir_write(&dir, "file", "", 0, path);
    assert_int_equal(truncate(path, N_BYTES), 0);
    const status rc = disk_bandwidth_open(m, path, &d, &err);
    disk_bandwidth_close(d);
    test_mem_check(m);
    if (rc == STATUS_UNSUPPORTED) fprintf(stderr, "%s\n", err.text);
    const int failed = rc == STATUS_UNSUPPORTED ? NO_DIRECT_READS : cmocka_run_group_tests(tests, NULL, NULL);
    temp_dir_remove(&dir);
    return failed;
}
