/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device store over a backend that poses as a GPU: memory of its own that the host must not read, copies that happen as late as a fence allows, fences of consumers that stay open
 * until the test says so, and failures on demand. Whoever reuses a slot, or gives a lower lease back, too early copies the wrong bytes.
 */
#include "support/test_case.h"

#include <time.h>

#include "unit/moe_case.h"

enum { MAX_COPIES = 4096, MAX_FENCES = 256 };

/* ---- the posed device ---- */

typedef struct late_copy {
    void *dst;
    const void *src;
    size_t n;
} late_copy;

static struct posed {
    late_copy copies[MAX_COPIES];
    int n_copies, n_run;
    int at[MAX_FENCES]; /* copies that a fence waits for */
    bool open[MAX_FENCES];
    int n_fences, n_alive, n_allocs, n_syncs;
    int64_t fail_copy, fail_alloc, fail_fence, fail_record; /* the n-th from now on, once; -1: none */
} gpu;

static bool fails(int64_t *n) {
    if (*n < 0) return false;
    return (*n)-- == 0;
}

static void run_copies(int until) {
    for (; gpu.n_run < until; gpu.n_run++) memcpy(gpu.copies[gpu.n_run].dst, gpu.copies[gpu.n_run].src, gpu.copies[gpu.n_run].n);
    if (gpu.n_run == gpu.n_copies) gpu.n_run = gpu.n_copies = 0, memset(gpu.at, 0, sizeof gpu.at);
}

static status g_open(const vt_host_api *host, int32_t index, void **dev, error *err) {
    (void)host;
    (void)index;
    (void)err;
    *dev = &gpu;
    return STATUS_OK;
}
static void g_close(void *dev) { (void)dev; }
static uint64_t g_caps(void *dev) {
    (void)dev;
    return VT_CAP_BIT(VT_CAP_ASYNC_COPY);
}
static status g_memory(void *dev, uint64_t *free_bytes, uint64_t *total_bytes) {
    (void)dev;
    *free_bytes = 1 << 20;
    *total_bytes = 1 << 20;
    return STATUS_OK;
}
static status g_alloc(void *dev, size_t bytes, void **out) {
    (void)dev;
    if (fails(&gpu.fail_alloc)) return STATUS_NO_MEMORY;
    *out = aligned_alloc(256, (bytes + 255) / 256 * 256);
    gpu.n_allocs++;
    return *out != NULL ? STATUS_OK : STATUS_NO_MEMORY;
}
static void g_free(void *dev, void *p) {
    (void)dev;
    run_copies(gpu.n_copies);
    free(p);
}
static status g_copy(void *dev, void *handle, void *dst, const void *src, size_t bytes) {
    (void)dev;
    (void)handle;
    if (fails(&gpu.fail_copy)) return STATUS_FAILED;
    assert_true(gpu.n_copies < MAX_COPIES);
    gpu.copies[gpu.n_copies++] = (late_copy){dst, src, bytes};
    return STATUS_OK;
}
static status g_fill(void *dev, void *handle, void *dst, int value, size_t bytes) {
    (void)dev;
    (void)handle;
    memset(dst, value, bytes);
    return STATUS_OK;
}
static status g_sync(void *dev, void *handle) {
    (void)dev;
    (void)handle;
    gpu.n_syncs++;
    run_copies(gpu.n_copies);
    return STATUS_OK;
}
static status g_fence_create(void *dev, vt_fence *out) {
    (void)dev;
    if (fails(&gpu.fail_fence)) return STATUS_FAILED;
    assert_true(gpu.n_fences + 1 < MAX_FENCES);
    gpu.n_alive++;
    out->handle = &gpu.at[++gpu.n_fences]; /* 0 is no fence */
    return STATUS_OK;
}
static void g_fence_destroy(void *dev, vt_fence f) {
    (void)dev;
    if (f.handle != NULL) gpu.n_alive--;
}
static ptrdiff_t index_of(vt_fence f) { return (int *)f.handle - gpu.at; }
static status g_fence_record(void *dev, void *handle, vt_fence f) {
    (void)dev;
    (void)handle;
    if (fails(&gpu.fail_record)) return STATUS_FAILED;
    gpu.at[index_of(f)] = gpu.n_copies;
    return STATUS_OK;
}
static status g_fence_wait(void *dev, void *handle, vt_fence f) {
    (void)dev;
    (void)handle;
    run_copies(gpu.at[index_of(f)]);
    gpu.open[index_of(f)] = false; /* whoever waits sees it done */
    return STATUS_OK;
}
static bool g_fence_done(void *dev, vt_fence f) {
    (void)dev;
    return !gpu.open[index_of(f)] && gpu.n_run >= gpu.at[index_of(f)];
}

static const vt_backend gpu_table = {
    .size = sizeof(vt_backend),
    .abi = VT_BACKEND_ABI,
    .name = "posed",
    .type = VT_DEVICE_CUDA,
    .open = g_open,
    .close = g_close,
    .caps = g_caps,
    .memory_info = g_memory,
    .alloc = g_alloc,
    .free = g_free,
    .sync = g_sync,
    .copy = g_copy,
    .fill = g_fill,
    .fence_create = g_fence_create,
    .fence_destroy = g_fence_destroy,
    .fence_record = g_fence_record,
    .fence_wait = g_fence_wait,
    .fence_done = g_fence_done,
};

typedef struct rig {
    moe_case k;
    vt_runtime *runtime;
    vt_device *device;
    vt_queue *queue;
    expert_store *below, *store;
    staging_ring ring; /* device NULL: copies read the lower slots */
} rig;

static const staging_shape unstaged = {0};
static size_t slots(const moe_case *k, int n) { return (size_t)n * k->bank.stream_slot_bytes; }

/* As large experts: they lie below as in the file, whose parts begin anywhere, and are copied part by part. */
static void pad(rig *r) {
    expert_bank *b = &r->k.bank;
    for (int32_t l = 0; l < b->n_layers; l++) {
        if (b->layers[l].padded_bytes > b->stream_slot_bytes) b->stream_slot_bytes = b->layers[l].padded_bytes;
    }
    b->padded = true;
}

static void rig_open(rig *r) {
    error err = {0};
    memset(&gpu, 0, sizeof gpu);
    gpu.fail_copy = gpu.fail_alloc = gpu.fail_fence = gpu.fail_record = -1;
    memset(r, 0, sizeof *r);
    case_open(&r->k);
    const vt_runtime_options ro = {.search_dirs = (const char *const[]){NULL}};
    if (vt_runtime_create(r->k.m, &ro, &r->runtime, &err) != STATUS_OK || vt_runtime_add(r->runtime, &gpu_table, NULL, 0, &err) != STATUS_OK ||
        vt_device_open(r->runtime, (vt_device_id){.type = VT_DEVICE_CUDA}, r->k.m, &r->device, &err) != STATUS_OK || vt_queue_create(r->device, NULL, &r->queue, &err) != STATUS_OK) {
        fail_msg("%s", err.text);
    }
}

static void rig_stores(rig *r, int n_device, int n_host, staging_shape staging) {
    error err = {0};
    if (staging.n > 0) assert_int_equal(staging_ring_open(&r->ring, r->device, staging, "a ring", &err), STATUS_OK);
    const expert_stream_options so = {.budget_bytes = slots(&r->k, n_host)};
    const expert_device_options dopt = {.budget_bytes = slots(&r->k, n_device), .staging = staging.n > 0 ? &r->ring : NULL};
    if (expert_store_stream_create(r->k.m, &r->k.bank, &so, &r->below, &err) != STATUS_OK) fail_msg("%s", err.text);
    if (expert_store_device_create(r->k.m, &r->k.bank, r->device, r->queue, r->below, &dopt, &r->store, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static void rig_close(rig *r) {
    if (r->store != NULL) assert_int_equal(r->store->close(r->store), STATUS_OK);
    if (r->below != NULL) assert_int_equal(r->below->close(r->below), STATUS_OK);
    staging_ring_close(&r->ring);
    vt_queue_destroy(r->queue);
    vt_device_close(r->device);
    vt_runtime_destroy(r->runtime);
    assert_int_equal(gpu.n_alive, 0);
    case_close(&r->k);
}

static expert_counters count(expert_store *s) {
    expert_counters c;
    s->counters(s, &c);
    return c;
}

/* A consumer: waits for the lease's fence as a queue would, then reads. */
static void consume(rig *r, const expert_lease *l) {
    assert_non_null(l->ready.handle);
    for (int p = 0; p < CASE_PARTS; p++) assert_int_equal((uintptr_t)l->part[p] % EXPERT_PART_ALIGN, 0);
    for (int p = 0; l->early.handle != NULL && p < CASE_PARTS; p++) { /* what comes first is read first */
        assert_int_equal(vt_fence_wait(r->queue, l->early), STATUS_OK);
        if ((r->k.bank.layers[l->layer].late_parts >> p & 1) == 0) case_check_part(l, p);
    }
    assert_int_equal(vt_fence_wait(r->queue, l->ready), STATUS_OK);
    case_check_lease(&r->k, l);
}

/* What nobody has leased of the lower store may be overwritten at any time: all of it is, and given back. */
static uint8_t *overwrite_lower(rig *r) {
    size_t bytes;
    uint8_t *memory = expert_store_stream_memory(r->below, &bytes), *kept = malloc(bytes);
    assert_non_null(kept);
    memcpy(kept, memory, bytes);
    memset(memory, 0xee, bytes);
    return kept;
}

static void restore_lower(rig *r, uint8_t *kept) {
    size_t bytes;
    void *memory = expert_store_stream_memory(r->below, &bytes);
    memcpy(memory, kept, bytes);
    free(kept);
}

/* Through a ring: no more copies wait than it has pieces, and the lower store has its slots back although none has run. */
static void right_bytes(staging_shape staging, bool padded) {
    for (int n_device = CASE_TOP_K; n_device <= CASE_EXPERTS * CASE_LAYERS; n_device += n_device < 8 ? 1 : 28) {
        for (int n_host = CASE_TOP_K; n_host < 20; n_host += 8) {
            rig r;
            error err = {0};
            rig_open(&r);
            if (padded) pad(&r);
            rig_stores(&r, n_device, n_host, staging);
            const uint64_t allocs = mem_alloc_count(r.k.m);
            const int device_allocs = gpu.n_allocs;
            uint64_t seed = 99 + (uint64_t)n_device;
            for (int i = 0; i < 60; i++) {
                int32_t ids[CASE_EXPERTS], sizes[CASE_EXPERTS], at = 0;
                const int32_t n = case_random_set(&seed, ids, 1), layer = 1 + i % CASE_LAYERS;
                r.store->enter(r.store, layer);
                const int32_t n_waves = r.store->waves(r.store, layer, ids, n, sizes);
                for (int32_t w = 0; w < n_waves; at += sizes[w++]) {
                    int given = 0;
                    assert_int_equal(r.store->begin(r.store, layer, ids + at, sizes[w], &err), STATUS_OK);
                    expert_lease l[CASE_EXPERTS + 1]; /* all of them before the first is used: copies are as late as they may be */
                    while (r.store->next_ready(r.store, &l[given], &err) == STATUS_OK) {
                        given++;
                        if (staging.n > 0) assert_true(gpu.n_copies - gpu.n_run <= staging.n);
                    }
                    uint8_t *kept = staging.n > 0 ? overwrite_lower(&r) : NULL;
                    for (int j = 0; j < given; j++) consume(&r, &l[j]);
                    if (kept != NULL) restore_lower(&r, kept);
                    for (int j = 0; j < given; j++) r.store->release(r.store, &l[j], (vt_fence){0});
                    assert_int_equal(given, sizes[w]);
                }
            }
            const expert_counters c = count(r.store);
            assert_true(c.misses > 0 && (n_device >= CASE_EXPERTS * CASE_LAYERS || c.evictions > 0));
            assert_int_equal(count(r.below).hits + count(r.below).misses, c.misses);
            assert_int_equal(mem_alloc_count(r.k.m), allocs); /* nothing after warm-up, here or on the device */
            assert_int_equal(gpu.n_allocs, device_allocs);
            assert_int_equal(c.bytes_staged, staging.n > 0 ? c.bytes_read : 0);
            assert_true(staging.n > 0 || (padded ? c.reads > c.misses && c.reads <= c.misses * CASE_PARTS : c.reads > c.misses && c.reads <= 2 * c.misses)); /* one copy where parts lie side by side, two for the last of a wave */
            assert_int_equal(gpu.n_syncs, 0);
            rig_close(&r);
        }
    }
}

static void right_bytes_at_every_budget(void **state) {
    (void)state;
    right_bytes(unstaged, false);
    right_bytes(unstaged, true);
}

/* Pieces smaller than a part, of several parts, of a whole expert and of more; one alone, and several. */
static void right_bytes_through_a_ring(void **state) {
    (void)state;
    const staging_shape shapes[] = {{64, 2}, {100, 3}, {256, 1}, {256, 2}, {384, 4}, {4096, STAGING_MOST_PIECES}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) right_bytes(shapes[i], i % 2);
}

/* What the ring costs follows from the size of an expert and how many are on their way. */
static void shapes_of_rings(void **state) {
    (void)state;
    const struct {
        uint64_t unit;
        int in_flight;
        size_t piece;
        int n;
    } want[] = {{0, 4, 0, 0},           {1, 4, 256, 4},      {384, 2, 512, 2},        {300 << 10, 4, 300 << 10, 4},
                {4 << 20, 4, 4 << 20, 4}, {(4 << 20) + 1, 2, 4 << 20, 4}, {(uint64_t)12 << 20, 2, 4 << 20, 6}, {(uint64_t)12 << 20, 4, 4 << 20, 8},
                {UINT64_MAX, 4, 4 << 20, 8}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const staging_shape s = staging_shape_of(want[i].unit, want[i].in_flight);
        assert_int_equal(s.piece, want[i].piece);
        assert_int_equal(s.n, want[i].n);
        assert_int_equal(staging_ring_bytes(s), want[i].piece * (size_t)want[i].n);
    }
}

/* A slot whose consumer has not finished is not filled anew; when nothing else is left it is waited for. */
static void a_slot_waits_for_its_consumer(void **state) {
    (void)state;
    rig r;
    error err = {0};
    rig_open(&r);
    rig_stores(&r, 4, 8, unstaged);
    expert_lease l[4];
    vt_fence use[4];
    assert_int_equal(r.store->begin(r.store, 1, (int32_t[]){0, 1, 2, 3}, 4, &err), STATUS_OK);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(r.store->next_ready(r.store, &l[i], &err), STATUS_OK);
        assert_int_equal(vt_fence_create(r.device, &use[i]), STATUS_OK);
        gpu.open[index_of(use[i])] = true; /* its kernel is still running */
        r.store->release(r.store, &l[i], use[i]);
    }
    assert_int_equal(r.store->next_ready(r.store, &(expert_lease){0}, &err), STATUS_NOT_FOUND);
    gpu.open[index_of(use[0])] = false; /* the first is done */
    assert_int_equal(r.store->begin(r.store, 2, (int32_t[]){5}, 1, &err), STATUS_OK);
    expert_lease n;
    assert_int_equal(r.store->next_ready(r.store, &n, &err), STATUS_OK);
    assert_int_equal(n.slot, l[0].slot);
    for (int i = 1; i < 4; i++) assert_true(gpu.open[index_of(use[i])]); /* nobody waited for the others */
    consume(&r, &n);
    for (int i = 1; i < 4; i++) case_check_lease(&r.k, &l[i]); /* and they hold what their kernels read */
    r.store->release(r.store, &n, (vt_fence){0});
    assert_int_equal(r.store->next_ready(r.store, &n, &err), STATUS_NOT_FOUND);
    /* four at once: the three have to be waited for */
    int32_t sizes[CASE_EXPERTS];
    assert_int_equal(r.store->waves(r.store, 3, (int32_t[]){6, 7, 8, 9}, 4, sizes), 1);
    assert_int_equal(r.store->begin(r.store, 3, (int32_t[]){6, 7, 8, 9}, 4, &err), STATUS_OK);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(r.store->next_ready(r.store, &n, &err), STATUS_OK);
        consume(&r, &n);
        r.store->release(r.store, &n, (vt_fence){0});
    }
    for (int i = 0; i < 4; i++) {
        assert_false(gpu.open[index_of(use[i])]);
        vt_fence_destroy(r.device, use[i]);
    }
    assert_int_equal(r.store->next_ready(r.store, &n, &err), STATUS_NOT_FOUND);
    rig_close(&r);
}

/* Misses that the processor computes: leases of the lower store, in as many waves as that has room for; what comes back is copied behind, late, and out of bytes that stay what they were. */
static void computed_on_the_host(void **state) {
    (void)state;
    uint64_t n_pending = 0;
    for (int n_device = CASE_TOP_K; n_device <= CASE_EXPERTS * CASE_LAYERS; n_device += n_device < 6 ? 1 : 29) {
        for (int n_host = CASE_TOP_K; n_host < 20; n_host += 4) {
            rig r;
            error err = {0};
            rig_open(&r);
            rig_stores(&r, n_device, n_host, unstaged);
            assert_int_equal(r.store->close(r.store), STATUS_OK);
            const expert_device_options dopt = {.budget_bytes = slots(&r.k, n_device), .miss = EXPERT_MISS_HOST};
            assert_int_equal(expert_store_device_create(r.k.m, &r.k.bank, r.device, r.queue, r.below, &dopt, &r.store, &err), STATUS_OK);
            const uint64_t allocs = mem_alloc_count(r.k.m);
            uint64_t seed = 5 + (uint64_t)n_device, n_on_host = 0;
            static int32_t rows[CASE_EXPERTS];
            for (int i = 0; i < 120; i++) {
                int32_t ids[CASE_EXPERTS], sizes[CASE_EXPERTS];
                const int32_t n = case_random_set(&seed, ids, 1), layer = 1 + i % CASE_LAYERS;
                int given = 0;
                r.store->enter(r.store, layer);
                r.store->rows(r.store, rows);
                assert_int_equal(r.store->waves(r.store, layer, ids, n, sizes), 1); /* misses need no slot */
                assert_int_equal(r.store->begin(r.store, layer, ids, n, &err), STATUS_OK);
                const int behind = gpu.n_copies - gpu.n_run;
                for (expert_lease l; r.store->next_ready(r.store, &l, &err) == STATUS_OK; given++) {
                    if (l.on_host) {
                        n_on_host++;
                        assert_null(l.ready.handle);
                        case_check_lease(&r.k, &l);
                    } else {
                        n_pending += !g_fence_done(NULL, l.ready);
                        consume(&r, &l);
                    }
                    r.store->release(r.store, &l, (vt_fence){0});
                }
                assert_int_equal(given, n);
                assert_true(behind <= 4 * EXPERT_MAX_PARTS);
                if (i % 7 == 0) run_copies(gpu.n_copies);
                if (i % 50 == 49) r.store->cancel(r.store);
            }
            const expert_counters c = count(r.store);
            assert_int_equal(c.n_on_host, n_on_host);
            assert_int_equal(c.misses, n_on_host);
            assert_true(c.n_behind > 0 && c.hits > 0);
            assert_true(c.n_behind < n_on_host);
            assert_int_equal(c.bytes_read, c.n_behind * (c.bytes_on_host / n_on_host));
            assert_int_equal(mem_alloc_count(r.k.m), allocs);
            rig_close(&r);
        }
    }
    assert_true(n_pending > 0); /* hits whose copies were under way */
}

static bool all_good(rig *r, int32_t layer) {
    error err = {0};
    int given = 0;
    if (r->store->begin(r->store, layer, (int32_t[]){2, 3, 4}, 3, &err) != STATUS_OK) fail_msg("%s", err.text);
    for (expert_lease l;; given++) {
        const status rc = r->store->next_ready(r->store, &l, &err);
        if (rc == STATUS_NOT_FOUND) break;
        if (rc != STATUS_OK) {
            assert_true(strlen(err.text) > 10);
            r->store->cancel(r->store);
            return false;
        }
        consume(r, &l);
        r->store->release(r->store, &l, (vt_fence){0});
    }
    return given == 3;
}

/* The k-th copy or record of three experts fails, until none is left to; how many of each failed. */
static void copies_fail(staging_shape staging, int64_t *n_copies, int64_t *n_records) {
    int64_t *const faults[] = {&gpu.fail_copy, &gpu.fail_record};
    int64_t *const n[] = {n_copies, n_records};
    for (int what = 0; what < 2; what++) {
        for (*n[what] = 0;; ++*n[what]) {
            rig r;
            rig_open(&r);
            rig_stores(&r, 5, 4, staging);
            *faults[what] = *n[what];
            const bool good = all_good(&r, 1);
            *faults[what] = -1;
            assert_true(all_good(&r, 1));
            assert_true(all_good(&r, 2));
            rig_close(&r);
            if (good) break;
        }
    }
}

/* The k-th copy, fence, allocation or read fails: an error, no lease stays, and the next answer is right. */
static void faults(void **state) {
    (void)state;
    int n_failed = 0;
    int64_t n_copies, n_records;
    copies_fail(unstaged, &n_copies, &n_records);
    assert_int_equal(n_copies, 3 + 1); /* experts: their parts lie side by side; the last goes in two */
    assert_int_equal(n_records, 3 + 1);
    copies_fail((staging_shape){256, 2}, &n_copies, &n_records);
    assert_int_equal(n_copies, 6); /* pieces */
    assert_int_equal(n_records, 6 + 3);
    for (int expert = 2; expert <= 4; expert++) { /* below */
        rig r;
        rig_open(&r);
        rig_stores(&r, 5, 4, unstaged);
        case_fail_expert(&r.k, 1, expert, 0);
        assert_false(all_good(&r, 1));
        case_fail_expert(&r.k, 1, expert, -1);
        assert_true(all_good(&r, 1));
        rig_close(&r);
    }
    for (int what = 0; what < 2; what++) { /* while it is made: memory here, memory there, fences */
        for (int64_t k = 0;; k++) {
            rig r;
            error err = {0};
            rig_open(&r);
            rig_stores(&r, 4, 4, unstaged);
            assert_int_equal(r.store->close(r.store), STATUS_OK);
            r.store = NULL;
            const expert_device_options opt = {.budget_bytes = slots(&r.k, 4)};
            if (what == 0) gpu.fail_alloc = k;
            if (what == 1) gpu.fail_fence = k;
            const status rc = expert_store_device_create(r.k.m, &r.k.bank, r.device, r.queue, r.below, &opt, &r.store, &err);
            if (rc != STATUS_OK) {
                assert_true(strlen(err.text) > 10);
                r.store = NULL;
                n_failed++;
            }
            rig_close(&r);
            if (rc == STATUS_OK) break;
        }
    }
    assert_int_equal(n_failed, 1 + 4 + 1);
}

/* 24 slots, 10,000 admissions: victims go on being found after the slots are full once, and nothing is allocated or drained for them. */
static void capacity_24_goes_on(void **state) {
    (void)state;
    rig r;
    error err = {0};
    rig_open(&r);
    rig_stores(&r, 24, 8, unstaged);
    uint64_t seed = 5, allocs = 0;
    int device_allocs = 0, fences = 0, syncs = 0;
    for (int i = 0; count(r.store).misses < 10000; i++) {
        int32_t ids[CASE_EXPERTS], sizes[CASE_EXPERTS], at = 0;
        const int32_t n = case_random_set(&seed, ids, 1), layer = 1 + i % CASE_LAYERS;
        r.store->enter(r.store, layer);
        const int32_t n_waves = r.store->waves(r.store, layer, ids, n, sizes);
        for (int32_t w = 0; w < n_waves; at += sizes[w++]) {
            expert_lease l;
            assert_int_equal(r.store->begin(r.store, layer, ids + at, sizes[w], &err), STATUS_OK);
            while (r.store->next_ready(r.store, &l, &err) == STATUS_OK) {
                consume(&r, &l);
                assert_in_range(l.slot, 0, 23);
                r.store->release(r.store, &l, (vt_fence){0});
            }
            assert_true(count(r.store).bytes_resident <= slots(&r.k, 24));
        }
        if (i == 20) {
            assert_int_equal(count(r.store).bytes_resident, slots(&r.k, 24)); /* warm: full */
            allocs = mem_alloc_count(r.k.m);
            device_allocs = gpu.n_allocs;
            fences = gpu.n_fences;
            syncs = gpu.n_syncs;
        }
    }
    const expert_counters c = count(r.store);
    assert_int_equal(c.evictions, c.misses - 24);
    assert_int_equal(c.n_slots, 24);
    assert_int_equal(mem_alloc_count(r.k.m), allocs);
    assert_int_equal(gpu.n_allocs, device_allocs);
    assert_int_equal(gpu.n_fences, fences);
    assert_int_equal(gpu.n_syncs, syncs);
    assert_int_equal(syncs, 0);
    rig_close(&r);
}

/* The next layer is read ahead from when this one's reads are queued: into slots whose copies are over, while the device still has the layer before it. */
static void reads_ahead_while_it_copies(void **state) {
    (void)state;
    rig r;
    error err = {0};
    rig_open(&r);
    const expert_stream_options so = {.budget_bytes = slots(&r.k, 3), .ahead = EXPERT_AHEAD_ON};
    const expert_device_options dopt = {.budget_bytes = slots(&r.k, 6), .ahead = EXPERT_AHEAD_AUTO};
    assert_int_equal(expert_store_stream_create(r.k.m, &r.k.bank, &so, &r.below, &err), STATUS_OK);
    assert_int_equal(expert_store_device_create(r.k.m, &r.k.bank, r.device, r.queue, r.below, &dopt, &r.store, &err), STATUS_OK);
    expert_store *s = r.store;
    expert_lease l[3], none;
    for (int32_t layer = 1; layer < 3; layer++) {
        const uint64_t before = count(r.below).reads;
        assert_true(s->wants_hint(s, layer + 1, 3));
        s->enter(s, layer);
        assert_int_equal(s->begin(s, layer, (int32_t[]){2, 3, 4}, 3, &err), STATUS_OK);
        s->hint(s, layer + 1, (int32_t[]){2, 3, 4}, 3);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(s->next_ready(s, &l[i], &err), STATUS_OK);
            consume(&r, &l[i]); /* its copy is over, and nothing goes back before the layer's end */
        }
        assert_int_equal(count(r.below).reads, before + 2 * ((layer == 1 ? 3 : 0) + 2)); /* every slot but the last */
        assert_int_equal(s->next_ready(s, &none, &err), STATUS_NOT_FOUND);
        assert_int_equal(count(r.below).reads, before + 2 * ((layer == 1 ? 3 : 0) + 3));
        for (int i = 0; i < 3; i++) s->release(s, &l[i], (vt_fence){0});
    }
    assert_int_equal(count(r.below).n_prefetch_used, 3);
    rig_close(&r);
}

/* A model goes before the store below its own does, and what experts are read by goes with it: nothing that the model's store had read ahead may be under way then. */
static void closing_ends_reads_ahead(void **state) {
    (void)state;
    rig r;
    error err = {0};
    rig_open(&r);
    const expert_stream_options so = {.budget_bytes = slots(&r.k, 6), .ahead = EXPERT_AHEAD_ON};
    const expert_device_options dopt = {.budget_bytes = slots(&r.k, 6), .ahead = EXPERT_AHEAD_AUTO};
    assert_int_equal(expert_store_stream_create(r.k.m, &r.k.bank, &so, &r.below, &err), STATUS_OK);
    assert_int_equal(expert_store_device_create(r.k.m, &r.k.bank, r.device, r.queue, r.below, &dopt, &r.store, &err), STATUS_OK);
    expert_lease l;
    assert_true(r.store->wants_hint(r.store, 2, 3));
    r.store->enter(r.store, 1);
    assert_int_equal(r.store->begin(r.store, 1, (int32_t[]){2, 3, 4}, 3, &err), STATUS_OK);
    r.store->hint(r.store, 2, (int32_t[]){2, 3, 4}, 3);
    while (r.store->next_ready(r.store, &l, &err) == STATUS_OK) r.store->release(r.store, &l, (vt_fence){0});
    assert_int_equal(count(r.below).reads, 2 * (3 + 3));
    (void)nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL); /* so that the reads are there: what had not begun is dropped unseen */
    assert_int_equal(r.store->close(r.store), STATUS_OK);
    r.store = NULL;
    expert_layer *layers = r.k.bank.layers;
    r.k.bank.layers = NULL;
    assert_int_equal(r.below->close(r.below), STATUS_OK);
    r.below = NULL;
    r.k.bank.layers = layers;
    rig_close(&r);
}

static void (*enter_below)(expert_store *, int32_t);
static int n_entered, last_entered;
static void count_entered(expert_store *below, int32_t layer) {
    n_entered++;
    last_entered = layer;
    enter_below(below, layer);
}

/* However many waves a layer takes on the device, it is one layer of one step below; also when the device has all of it. */
static void lower_tier_ages_once(void **state) {
    (void)state;
    rig r;
    error err = {0};
    rig_open(&r);
    rig_stores(&r, 4, 8, unstaged);
    enter_below = r.below->enter;
    r.below->enter = count_entered;
    n_entered = 0;
    int32_t ids[12], sizes[CASE_EXPERTS];
    for (int32_t i = 0; i < 12; i++) ids[i] = i;
    for (int i = 0; i < 6; i++) {
        const int32_t layer = 1 + i % CASE_LAYERS, n = i < 3 ? 12 : 2;
        r.store->enter(r.store, layer);
        assert_int_equal(last_entered, layer);
        const int32_t n_waves = r.store->waves(r.store, layer, ids, n, sizes);
        assert_int_equal(n_waves, i < 3 ? 3 : 1);
        for (int32_t w = 0, at = 0; w < n_waves; at += sizes[w++]) {
            assert_int_equal(r.store->begin(r.store, layer, ids + at, sizes[w], &err), STATUS_OK);
            for (expert_lease l; r.store->next_ready(r.store, &l, &err) == STATUS_OK;) {
                consume(&r, &l);
                r.store->release(r.store, &l, (vt_fence){0});
            }
        }
        assert_int_equal(n_entered, i + 1);
    }
    rig_close(&r);
}

static void too_small(void **state) {
    (void)state;
    rig r;
    error err = {0};
    rig_open(&r);
    rig_stores(&r, 3, 3, unstaged);
    expert_store *s = NULL;
    const expert_device_options opt = {.budget_bytes = slots(&r.k, 3) - 1};
    assert_int_equal(expert_store_device_create(r.k.m, &r.k.bank, r.device, r.queue, r.below, &opt, &s, &err), STATUS_DOES_NOT_FIT);
    assert_contains(err.text, "the least is 1152 bytes");
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_bytes_at_every_budget),
        cmocka_unit_test(right_bytes_through_a_ring),
        cmocka_unit_test(shapes_of_rings),
        cmocka_unit_test(a_slot_waits_for_its_consumer),
        cmocka_unit_test(capacity_24_goes_on),
        cmocka_unit_test(faults),
        cmocka_unit_test(reads_ahead_while_it_copies),
        cmocka_unit_test(closing_ends_reads_ahead),
        cmocka_unit_test(lower_tier_ages_once),
        cmocka_unit_test(too_small),
        cmocka_unit_test(computed_on_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
