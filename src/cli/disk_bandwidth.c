/* SPDX-License-Identifier: Apache-2.0 */
/* Slices of io_uring, threads and bursts by turns, so that a disk whose speed changes changes all three. */
#include "cli/disk_bandwidth.h"

#include <string.h>

#include "base/os.h"
#include "base/threads.h"

enum { BLOCK_BYTES = 512 << 10, DEPTH = 64, LANES = 8, SLICE_NS = 60 * 1000 * 1000 };

/* Bytes and time of one kind of reading, over its slices. */
typedef struct tally {
    _Alignas(64) uint64_t bytes; /* threads that count do not share a cache line */
    uint64_t ns, n;
    bool failed; /* a read did: no figure, and no more reads of this kind */
} tally;

struct disk_bandwidth {
    mem *m;
    os_file *file;
    os_direct *direct;
    os_ring *ring; /* NULL: refused */
    pool *lanes;
    void *block;
    uint8_t *memory; /* [DEPTH * BLOCK_BYTES], page aligned */
    uint64_t n_blocks, random;
    tally lane[LANES], burst[DEPTH]; /* of the threads, until they are added up */
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
    os_prefer_large_pages(d->block, DEPTH * BLOCK_BYTES + OS_DIRECT_ALIGN); /* as slots are */
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

static double rate(const tally *t) { return !t->failed && t->ns > 0 ? (double)t->bytes * 1e9 / (double)t->ns : 0; }

static void ask(disk_bandwidth *d, uint64_t place) {
    os_ring_read(d->ring, d->direct, random_block(&d->random, d->n_blocks), d->memory + place * BLOCK_BYTES, BLOCK_BYTES, place);
}

static void count(tally *t, int64_t got) {
    if (got == BLOCK_BYTES)
        t->bytes += BLOCK_BYTES;
    else
        t->failed = true;
}

static void add(tally *t, const tally *part) {
    t->bytes += part->bytes;
    t->failed = t->failed || part->failed;
}

static void with_ring(disk_bandwidth *d, tally *t) {
    const uint64_t begin = os_now_ns();
    int64_t got;
    uint64_t user;
    int flying = 0;
    for (; flying < DEPTH; flying++) ask(d, (uint64_t)flying);
    while (flying > 0 && os_ring_next(d->ring, true, &user, &got)) {
        count(t, got);
        if (!t->failed && os_now_ns() - begin < SLICE_NS)
            ask(d, user);
        else
            flying--;
    }
    if (flying > 0) t->failed = true; /* the ring itself */
    t->ns += os_now_ns() - begin;
}

static void run_lane(void *ctx, int64_t begin, int64_t end, int thread) {
    disk_bandwidth *d = ctx;
    (void)end;
    (void)thread;
    uint64_t state = d->random + (uint64_t)begin * 7919;
    while (!d->lane[begin].failed && os_now_ns() < d->until_ns)
        count(&d->lane[begin],
              os_direct_read(d->direct, random_block(&state, d->n_blocks), d->memory + (size_t)begin * BLOCK_BYTES, BLOCK_BYTES));
}

static void with_threads(disk_bandwidth *d, tally *t) {
    const uint64_t begin = os_now_ns();
    memset(d->lane, 0, sizeof d->lane);
    d->until_ns = begin + SLICE_NS;
    pool_run(d->lanes, LANES, 1, run_lane, d);
    d->random += begin;
    for (int i = 0; i < LANES; i++) add(t, &d->lane[i]);
    t->ns += os_now_ns() - begin;
}

static void read_one(void *ctx, int64_t begin, int64_t end, int thread) {
    disk_bandwidth *d = ctx;
    (void)end;
    (void)thread;
    uint64_t state = d->random + (uint64_t)begin * 7919;
    count(&d->burst[begin],
          os_direct_read(d->direct, random_block(&state, d->n_blocks), d->memory + (size_t)begin * BLOCK_BYTES, BLOCK_BYTES));
}

static void one_burst(disk_bandwidth *d, int n, bool ring, tally *t) {
    const uint64_t begin = os_now_ns();
    int64_t got;
    uint64_t user;
    if (ring) {
        int flying = 0;
        for (; flying < n; flying++) ask(d, (uint64_t)flying);
        for (; flying > 0 && os_ring_next(d->ring, true, &user, &got); flying--) count(t, got);
        if (flying > 0) t->failed = true;
    } else {
        memset(d->burst, 0, sizeof d->burst);
        pool_run(d->lanes, n, 1, read_one, d);
        d->random += begin;
        for (int i = 0; i < n; i++) add(t, &d->burst[i]);
    }
    t->ns += os_now_ns() - begin;
    t->n++;
}

static int blocks_of(uint64_t n_bytes) {
    const uint64_t n = (n_bytes + BLOCK_BYTES - 1) / BLOCK_BYTES;
    return n < 1 ? 1 : n < DEPTH ? (int)n : DEPTH;
}

double disk_bandwidth_burst(disk_bandwidth *d, uint64_t n_bytes, uint64_t *bytes) {
    tally t = {0};
    one_burst(d, blocks_of(n_bytes), d->ring != NULL, &t);
    *bytes = t.failed ? 0 : t.bytes;
    return (double)t.ns / 1e9;
}

status disk_bandwidth_measure(disk_bandwidth *d, int ms, uint64_t burst_bytes, disk_rates *out, error *err) {
    const uint64_t until = os_now_ns() + (uint64_t)ms * 1000000;
    const int n = blocks_of(burst_bytes);
    tally ring = {0}, threads = {0}, bursts = {0};
    do {
        if (d->ring != NULL && !ring.failed) with_ring(d, &ring);
        if (!threads.failed) with_threads(d, &threads);
        const bool by_ring = d->ring != NULL && rate(&ring) >= rate(&threads);
        for (const uint64_t begin = os_now_ns(); !bursts.failed && os_now_ns() - begin < SLICE_NS;) one_burst(d, n, by_ring, &bursts);
    } while (!bursts.failed && os_now_ns() < until);
    *out = (disk_rates){.bytes_per_s = rate(&ring) > rate(&threads) ? rate(&ring) : rate(&threads)};
    if (!(out->bytes_per_s > 0) || !(rate(&bursts) > 0))
        return error_set(err, STATUS_IO, "bench: %s could not be read past the page cache", os_file_path(d->file));
    const double late = (double)bursts.ns / 1e9 - (double)bursts.bytes / out->bytes_per_s;
    if (late > 0) out->latency_s = late / (double)bursts.n;
    return STATUS_OK;
}
