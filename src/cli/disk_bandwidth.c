/* SPDX-License-Identifier: Apache-2.0 */
/* Half of the time with io_uring and half with threads; what the disk gives is the better of both. */
#include "cli/disk_bandwidth.h"

#include <string.h>

#include "base/os.h"
#include "base/threads.h"

enum { BLOCK_BYTES = 512 << 10, DEPTH = 64, LANES = 8 };

struct disk_bandwidth {
    mem *m;
    os_file *file;
    os_direct *direct;
    os_ring *ring; /* NULL: refused */
    pool *lanes;
    void *block;
    uint8_t *memory; /* [DEPTH * BLOCK_BYTES], page aligned */
    uint64_t n_blocks, random;
    int64_t lane_bytes[LANES * 8]; /* one a lane, a cache line apart */
    uint64_t until_ns;
};

static status open_all(disk_bandwidth *d, const char *path, error *err) {
    error why = {0};
    TRY(os_file_open(d->m, path, &d->file, err));
    TRY(os_direct_open(d->m, d->file, &d->direct, err));
    d->n_blocks = os_file_size(d->file) / BLOCK_BYTES;
    if (d->n_blocks < DEPTH) return error_set(err, STATUS_INVALID, "bench: %s is too small to measure its disk", path);
    if (os_ring_create(d->m, DEPTH, &d->ring, &why) != STATUS_OK) d->ring = NULL;
    TRY(mem_alloc_named(d->m, MEM_STAGING, DEPTH * BLOCK_BYTES + OS_DIRECT_ALIGN, "the disk benchmark", &d->block, err));
    d->memory = (uint8_t *)(((uintptr_t)d->block + OS_DIRECT_ALIGN - 1) / OS_DIRECT_ALIGN * OS_DIRECT_ALIGN);
    return pool_create(d->m, LANES, &d->lanes, err);
}

status disk_bandwidth_open(mem *m, const char *path, disk_bandwidth **out, error *err) {
    disk_bandwidth *d = mem_calloc(m, MEM_STAGING, 1, sizeof *d);
    if (d == NULL) return error_set(err, STATUS_NO_MEMORY, "bench: no memory for the disk benchmark");
    d->m = m;
    d->random = os_now_ns();
    const status rc = open_all(d, path, err);
    if (rc != STATUS_OK) {
        disk_bandwidth_close(d);
        return rc;
    }
    *out = d;
    return STATUS_OK;
}

void disk_bandwidth_close(disk_bandwidth *d) {
    if (d == NULL) return;
    pool_destroy(d->lanes);
    os_ring_destroy(d->ring);
    os_direct_close(d->direct);
    os_file_close(d->file);
    mem_free(d->m, d->block);
    mem_free(d->m, d);
}

static uint64_t random_block(uint64_t *state, uint64_t n) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*state >> 20) % n * BLOCK_BYTES;
}

static double rate(int64_t bytes, uint64_t ns) { return bytes > 0 && ns > 0 ? (double)bytes * 1e9 / (double)ns : 0; }

static double with_ring(disk_bandwidth *d, uint64_t ns) {
    const uint64_t begin = os_now_ns();
    int64_t bytes = 0, got;
    uint64_t user;
    int flying = 0;
    for (; flying < DEPTH; flying++) os_ring_read(d->ring, d->direct, random_block(&d->random, d->n_blocks), d->memory + (size_t)flying * BLOCK_BYTES, BLOCK_BYTES, (uint64_t)flying);
    while (flying > 0 && os_ring_next(d->ring, true, &user, &got)) {
        if (got != BLOCK_BYTES) bytes = INT64_MIN / 2; /* an error: no figure */
        bytes += got;
        if (os_now_ns() - begin < ns)
            os_ring_read(d->ring, d->direct, random_block(&d->random, d->n_blocks), d->memory + user * BLOCK_BYTES, BLOCK_BYTES, user);
        else
            flying--;
    }
    return flying > 0 ? 0 : rate(bytes, os_now_ns() - begin); /* a ring that failed: no figure */
}

static void run_lane(void *ctx, int64_t begin, int64_t end, int thread) {
    disk_bandwidth *d = ctx;
    (void)end;
    (void)thread;
    uint64_t state = d->random + (uint64_t)begin * 7919;
    while (os_now_ns() < d->until_ns) {
        const int64_t got = os_direct_read(d->direct, random_block(&state, d->n_blocks), d->memory + (size_t)begin * BLOCK_BYTES, BLOCK_BYTES);
        d->lane_bytes[begin * 8] += got == BLOCK_BYTES ? got : INT64_MIN / 64;
    }
}

static double with_threads(disk_bandwidth *d, uint64_t ns) {
    const uint64_t begin = os_now_ns();
    int64_t bytes = 0;
    memset(d->lane_bytes, 0, sizeof d->lane_bytes);
    d->until_ns = begin + ns;
    pool_run(d->lanes, LANES, 1, run_lane, d);
    d->random += begin;
    for (int i = 0; i < LANES; i++) bytes += d->lane_bytes[i * 8];
    return rate(bytes, os_now_ns() - begin);
}

status disk_bandwidth_measure(disk_bandwidth *d, int ms, double *out, error *err) {
    const uint64_t half = (uint64_t)ms * 500000;
    const double ring = d->ring != NULL ? with_ring(d, half) : 0, threads = with_threads(d, half);
    *out = ring > threads ? ring : threads;
    return *out > 0 ? STATUS_OK : error_set(err, STATUS_IO, "bench: %s could not be read past the page cache", os_file_path(d->file));
}
