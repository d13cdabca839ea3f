/* SPDX-License-Identifier: Apache-2.0 */
/** How fast a file can be read past the page cache, in no order: what streamed experts are measured against. */
#ifndef HEADRACE_CLI_DISK_BANDWIDTH_H
#define HEADRACE_CLI_DISK_BANDWIDTH_H

#include "base/alloc.h"

typedef struct disk_bandwidth disk_bandwidth;

/** STATUS_UNSUPPORTED: its file system knows no such reads. */
NODISCARD status disk_bandwidth_open(mem *m, const char *path, disk_bandwidth **out, error *err);
void disk_bandwidth_close(disk_bandwidth *d);
typedef struct disk_rates {
    double bytes_per_s;
    double latency_s; /* of a burst: what it takes longer than its bytes at that rate; 0 where it takes no longer */
} disk_rates;

/**
 * About `ms` milliseconds in slices, by turns: reads of 512 KiB at random places, 64 at once, by io_uring and (where it is refused, only)
 * by threads, of which the better counts; and bursts of such reads of burst_bytes together, asked for at once and waited for, as a layer
 * waits for what it misses.
 */
NODISCARD status disk_bandwidth_measure(disk_bandwidth *d, int ms, uint64_t burst_bytes, disk_rates *out, error *err);
/** One burst of about n_bytes (at most 64 reads): seconds until all of it has come, and its bytes, 0 when a read failed. */
double disk_bandwidth_burst(disk_bandwidth *d, uint64_t n_bytes, uint64_t *bytes);

#endif
