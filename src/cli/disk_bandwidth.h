/* SPDX-License-Identifier: Apache-2.0 */
/** How fast a file can be read past the page cache, in no order: what streamed experts are measured against. */
#ifndef HEADRACE_CLI_DISK_BANDWIDTH_H
#define HEADRACE_CLI_DISK_BANDWIDTH_H

#include "base/alloc.h"

typedef struct disk_bandwidth disk_bandwidth;

/** STATUS_UNSUPPORTED: its file system knows no such reads. */
NODISCARD status disk_bandwidth_open(mem *m, const char *path, disk_bandwidth **out, error *err);
void disk_bandwidth_close(disk_bandwidth *d);
/** Bytes a second of about `ms` milliseconds of reads of 512 KiB at random places, 64 at once: the better of io_uring and (where it is refused, only) threads. */
NODISCARD status disk_bandwidth_measure(disk_bandwidth *d, int ms, double *out, error *err);

#endif
