/* SPDX-License-Identifier: Apache-2.0 */
/** How fast this machine reads memory: what a decode step, which reads all weights once, is measured against. */
#ifndef HEADRACE_CLI_READ_BANDWIDTH_H
#define HEADRACE_CLI_READ_BANDWIDTH_H

#include "base/alloc.h"

enum { READ_BANDWIDTH_BYTES = 256 << 20 };

/** Bytes a second of n_threads that sum READ_BANDWIDTH_BYTES: the best of several passes. The buffer is allocated and freed here. */
NODISCARD status read_bandwidth_measure(mem *m, int n_threads, double *out, error *err);

#endif
