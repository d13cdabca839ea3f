/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A pool of worker threads for data-parallel kernels. The caller takes part, so a pool of n has n - 1 workers. Workers spin
 * for a bounded time between the tasks of one step (pool_step_begin .. pool_step_end) and sleep on a condition between steps.
 *
 * Splitting never changes results: a task is a range of independent rows or columns, and which thread runs it is not observable.
 * One pool is driven by one thread at a time (pool_run is not re-entrant); two engines have two pools.
 */
#ifndef HEADRACE_BASE_THREADS_H
#define HEADRACE_BASE_THREADS_H

#include <stdint.h>

#include "base/alloc.h"

typedef struct pool pool;

/** Called for half-open index ranges [begin, end) that together cover 0..n once; thread in 0..pool_size-1. */
typedef void pool_fn(void *ctx, int64_t begin, int64_t end, int thread);

/** n_threads >= 1 (1: everything runs on the caller). Workers block all signals except synchronous faults. */
NODISCARD status pool_create(mem *m, int n_threads, pool **out, error *err);
void pool_destroy(pool *p);
int pool_size(const pool *p);

/**
 * Run fn over 0..n in chunks of `grain` (the last may be shorter), handed out dynamically; returns when all are done.
 * n <= grain, or a pool of one: runs on the caller, in chunks too. All writes of the tasks happen before the return.
 */
void pool_run(pool *p, int64_t n, int64_t grain, pool_fn *fn, void *ctx);

/** Brackets of a step: workers stay awake (bounded spin) between the two. Optional; nests not. */
void pool_step_begin(pool *p);
void pool_step_end(pool *p);

#endif
