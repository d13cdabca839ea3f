/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large experts through the stream store by each way of reading: past the page cache with io_uring and with threads, and through it. The file's bytes are a function of their place; experts lie at odd
 * places, alone and side by side. Faults are put below the reader, where the system answers.
 */
#include "support/test_case.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "load/source_impl.h"
#include "moe/expert_ahead.h"
#include "moe/expert_pack.h"
#include "moe/expert_reader_choice.h"
#include "moe/expert_store.h"
#include "support/gguf_writer.h"
#include "support/read_faults.h"
#include "support/scratch_dir.h"

enum { LAYERS = 3, EXPERTS = 8, TOP_K = 2, PARTS = 3, DENSE_BYTES = 12 << 20, FILE_BYTES = 24 << 20, ALL_WAYS = 3 };
static const int64_t part_elems[PARTS] = {50001, 333, 30007}; /* f32, u8, f32 */
static const vt_dtype part_types[PARTS] = {VT_F32, VT_U8, VT_F32};
static const char *const way_names[ALL_WAYS] = {"buffered", "pread", "io_uring"};

/* ---- a rename that is looked at ---- */

static bool try_partial;
static status partial_while_renamed;
status __real_os_rename(const char *from, const char *to, error *err);
status __wrap_os_rename(const char *from, const char *to, error *err);
status __wrap_os_rename(const char *from, const char *to, error *err) {
    os_output *o = NULL;
    mem *m = NULL;
    error why = {0};
    if (try_partial && mem_create(&m) == STATUS_OK) {
        partial_while_renamed = os_output_open(m, from, true, &o, &why);
        os_output_close(o);
        (void)mem_destroy(m);
    }
    return __real_os_rename(from, to, err);
}

/* ---- the checkpoint ---- */

typedef struct reader_case {
    scratch_dir dir;
    char path[SCRATCH_PATH_BYTES];
    mem *m;
    arena *a;
    source *src;
    expert_bank bank;
    uint64_t experts_at; /* of the file */
} reader_case;

static uint8_t byte_at(uint64_t i) { return (uint8_t)((i * UINT64_C(0x9e3779b97f4a7c15)) >> 56); }

/* Layer 0: parts side by side, experts back to back, from an odd place. Layer 1: each part in a region of its own, 4-aligned. Layer 2: side by side but with a hole behind the first. */
static uint64_t span_off(int layer, int e, int p) {
    static const uint64_t base[LAYERS] = {77, (uint64_t)4 << 20, ((uint64_t)8 << 20) + 2};
    size_t bytes[PARTS], sum = 0, before = 0;
    for (int i = 0; i < PARTS; i++) {
        bytes[i] = (size_t)part_elems[i] * vt_dtype_block_bytes(part_types[i]);
        if (i < p) before += bytes[i];
        sum += bytes[i];
    }
    if (layer == 0) return base[0] + (uint64_t)e * sum + before;
    if (layer == 1) return base[1] + (uint64_t)p * ((uint64_t)5 << 18) + (uint64_t)e * ((bytes[p] + 3) / 4 * 4);
    return base[2] + (uint64_t)e * (sum + 1000) + before + (p > 0 ? 1000 : 0);
}

static void open_case(reader_case *k) {
    error err = {0};
    memset(k, 0, sizeof *k);
    read_faults_reset();
    k->m = test_mem();
    assert_true(scratch_dir_create(&k->dir));
    scratch_dir_path(&k->dir, "experts.gguf", k->path);
    uint8_t *data = test_malloc(FILE_BYTES);
    for (uint64_t i = 0; i < FILE_BYTES; i++) data[i] = byte_at(i);
    gguf_writer w;
    gguf_writer_init(&w, k->m);
    gguf_writer_text(&w, "general.architecture", "llama");
    const int64_t dense = DENSE_BYTES, rest = FILE_BYTES - DENSE_BYTES;
    gguf_writer_tensor(&w, "dense", GGUF_T_I8, 1, &dense, data, (size_t)dense);
    gguf_writer_tensor(&w, "experts", GGUF_T_I8, 1, &rest, data + dense, (size_t)rest);
    assert_true(gguf_writer_save(&w, k->path));
    gguf_writer_deinit(&w);
    test_free(data);
    const source_options so = {.mode = LOAD_READ};
    if (source_open(k->m, k->path, &so, &k->src, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_int_equal(arena_create(k->m, MEM_MODEL, 65536, &k->a), STATUS_OK);
    assert_int_equal(expert_bank_init(&k->bank, k->a, k->src, LAYERS, &err), STATUS_OK);
    const tensor_info *t = source_find(k->src, "experts");
    k->experts_at = t->off;
    for (int l = 0; l < LAYERS; l++) {
        expert_part parts[PARTS];
        expert_span spans[EXPERTS * PARTS];
        for (int p = 0; p < PARTS; p++) {
            parts[p] = (expert_part){.view = vt_tensor_1d(NULL, part_types[p], (vt_device_id){.type = VT_DEVICE_CPU}, part_elems[p]), .n_bytes = (size_t)part_elems[p] * vt_dtype_block_bytes(part_types[p])};
            for (int e = 0; e < EXPERTS; e++) spans[e * PARTS + p] = (expert_span){.tensor = t, .off = span_off(l, e, p)};
        }
        if (expert_bank_set_layer(&k->bank, k->a, l, EXPERTS, TOP_K, PARTS, parts, spans, &err) != STATUS_OK) fail_msg("%s", err.text);
    }
    expert_bank_seal(&k->bank);
    assert_true(k->bank.padded);
}

static void close_case(reader_case *k) {
    read_faults_reset();
    arena_destroy(k->a);
    source_close(k->src);
    test_mem_check(k->m);
    scratch_dir_destroy(&k->dir);
}

static expert_store *make(reader_case *k, int n_slots, int way) {
    error err = {0};
    expert_store *s = NULL;
    const expert_stream_options opt = {.budget_bytes = (size_t)n_slots * k->bank.stream_slot_bytes, .read_way = way < 0 ? 0 : way + 1};
    if (expert_store_stream_create(k->m, &k->bank, &opt, &s, &err) != STATUS_OK) fail_msg("%s: %s", way < 0 ? "auto" : way_names[way], err.text);
    return s;
}

static expert_counters count(expert_store *s) {
    expert_counters c;
    s->counters(s, &c);
    return c;
}

static void check_lease(const expert_lease *l) {
    for (int p = 0; p < PARTS; p++) {
        const uint8_t *b = l->part[p];
        const size_t n = (size_t)part_elems[p] * vt_dtype_block_bytes(part_types[p]);
        const uint64_t at = DENSE_BYTES + span_off(l->layer, l->expert, p);
        if (part_types[p] == VT_F32) assert_int_equal((uintptr_t)b % 4, 0);
        for (size_t i = 0; i < n; i++) {
            if (b[i] != byte_at(at + i)) fail_msg("layer %d expert %d part %d byte %zu", l->layer, l->expert, p, i);
        }
    }
}

/* A set in waves; each lease is checked. Returns the experts that failed. */
static int run_set(expert_store *s, int layer, const int32_t *ids, int32_t n, error *err) {
    int32_t sizes[EXPERTS], at = 0;
    int failed = 0;
    s->enter(s, layer);
    const int32_t n_waves = s->waves(s, layer, ids, n, sizes);
    for (int32_t w = 0; w < n_waves; w++) {
        assert_int_equal(s->begin(s, layer, ids + at, sizes[w], err), STATUS_OK);
        int given = 0;
        for (expert_lease l;;) {
            const status rc = s->next_ready(s, &l, err);
            if (rc == STATUS_NOT_FOUND) break;
            given++;
            if (rc != STATUS_OK) {
                failed++;
                continue;
            }
            check_lease(&l);
            s->release(s, &l, (vt_fence){0});
        }
        assert_int_equal(given, sizes[w]);
        at += sizes[w];
    }
    return failed;
}

static void good_set(expert_store *s, int layer, const int32_t *ids, int32_t n) {
    error err = {0};
    if (run_set(s, layer, ids, n, &err) != 0) fail_msg("%s", err.text);
}

static expert_store *make_ahead(reader_case *k, int n_slots, int way) {
    error err = {0};
    expert_store *s = NULL;
    const expert_stream_options opt = {.budget_bytes = (size_t)n_slots * k->bank.stream_slot_bytes, .read_way = way + 1, .rolling = true, .ahead = EXPERT_AHEAD_ON};
    if (expert_store_stream_create(k->m, &k->bank, &opt, &s, &err) != STATUS_OK) fail_msg("%s: %s", way_names[way], err.text);
    return s;
}

static const int32_t all[EXPERTS] = {0, 1, 2, 3, 4, 5, 6, 7};

static void sweep(expert_store *s, int steps) {
    uint64_t r = 7;
    for (int i = 0; i < steps; i++) {
        for (int l = 0; l < LAYERS; l++) {
            int32_t ids[EXPERTS], n = 0;
            r = r * UINT64_C(6364136223846793005) + 1442695040888963407u;
            for (int32_t e = 0; e < EXPERTS; e++) {
                if (r >> (33 + e) & 1) ids[n++] = e;
            }
            if (n > 0) good_set(s, l, ids, n);
        }
    }
}

static void put_byte(const char *path, uint64_t off, int flip) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)off, SEEK_SET), 0);
    const int c = fgetc(f);
    assert_int_equal(fseek(f, (long)off, SEEK_SET), 0);
    assert_int_not_equal(fputc(c ^ flip, f), EOF);
    fclose(f);
}

/* A sweep whose layers hint at what comes next, rightly for most; short and interrupted reads on the way. Returns how many experts of the hints were taken. */
static uint64_t sweep_ahead(expert_store *s, int steps) {
    uint64_t r = 7;
    int32_t ids[EXPERTS], n = 3, next[EXPERTS] = {1, 4, 6};
    for (int i = 0; i < steps * LAYERS; i++) {
        error err = {0};
        memcpy(ids, next, sizeof ids);
        const int32_t now = n;
        int32_t hint[EXPERTS], n_hint = 0;
        r = r * UINT64_C(6364136223846793005) + 1442695040888963407u;
        n = 0;
        for (int32_t e = 0; e < EXPERTS; e++) {
            if (r >> (33 + e) & 1) next[n++] = e;
            if ((r >> (33 + e) & 1) != (r >> (41 + e) % 16 == 0)) hint[n_hint++] = e;
        }
        if (n == 0) next[n++] = 2;
        s->enter(s, i % LAYERS);
        assert_int_equal(s->begin(s, i % LAYERS, ids, now, &err), STATUS_OK);
        s->hint(s, (i + 1) % LAYERS, hint, n_hint);
        int given = 0;
        for (expert_lease l; s->next_ready(s, &l, &err) == STATUS_OK; given++) {
            check_lease(&l);
            s->release(s, &l, (vt_fence){0});
        }
        assert_int_equal(given, now);
    }
    return count(s).n_prefetch_used;
}

/* ---- ways that this machine has ---- */

static bool have_way[ALL_WAYS] = {true, true, true};

/* Each that is refused is named once; threads past the page cache are too common to do without. */
static int find_ways(void **state) {
    (void)state;
    reader_case k;
    error err = {0};
    os_ring *ring;
    os_direct *d;
    read_faults_reset();
    open_case(&k);
    have_way[EXPERT_READ_PREAD] = os_direct_open(k.m, source_file(k.src, 0), &d, &err) == STATUS_OK;
    if (have_way[EXPERT_READ_PREAD])
        os_direct_close(d);
    else
        print_message("FAILED: no way past the page cache: %s\n", err.text);
    have_way[EXPERT_READ_RING] = have_way[EXPERT_READ_PREAD] && os_ring_create(k.m, 64, &ring, &err) == STATUS_OK;
    if (have_way[EXPERT_READ_RING])
        os_ring_destroy(ring);
    else
        print_message("left out: io_uring: %s\n", err.text);
    close_case(&k);
    return have_way[EXPERT_READ_PREAD] ? 0 : -1;
}

static void need_ring(void) {
    if (!have_way[EXPERT_READ_RING]) skip();
}

/* ---- tests ---- */

static void right_bytes_by_each_way(void **state) {
    (void)state;
    reader_case k;
    open_case(&k);
    static const int budgets[] = {TOP_K, 3, TOP_K * LAYERS, 13, EXPERTS * LAYERS};
    for (int way = 0; way < ALL_WAYS; way++) {
        if (!have_way[way]) continue;
        for (size_t b = 0; b < sizeof budgets / sizeof budgets[0]; b++) {
            expert_store *s = make(&k, budgets[b], way);
            const uint64_t allocs = mem_alloc_count(k.m);
            sweep(s, 4);
            const expert_counters c = count(s);
            assert_int_equal(c.read_way, way);
            assert_int_equal(c.n_slots, budgets[b]);
            assert_true(c.misses > 0 && c.disk_ns > 0);
            assert_true(budgets[b] == EXPERTS * LAYERS ? c.evictions == 0 : c.evictions > 0);
            assert_int_equal(mem_alloc_count(k.m), allocs);
            assert_int_equal(s->close(s), STATUS_OK);
        }
    }
    close_case(&k);
}

static void neighbours_are_one_read(void **state) {
    (void)state;
    need_ring();
    reader_case k;
    open_case(&k);
    expert_store *s = make(&k, 8, EXPERT_READ_RING);
    static const uint64_t groups[LAYERS] = {1, 3, 2};
    for (int l = 0; l < LAYERS; l++) {
        const uint64_t before = count(s).reads;
        assert_int_equal(k.bank.layers[l].n_groups, groups[l]);
        good_set(s, l, all + 3, 1);
        assert_int_equal(count(s).reads - before, groups[l]);
    }
    assert_int_equal(s->close(s), STATUS_OK);
    close_case(&k);
}

static void short_and_interrupted_reads_go_on(void **state) {
    (void)state;
    reader_case k;
    open_case(&k);
    for (int way = EXPERT_READ_PREAD; way <= EXPERT_READ_RING; way++) {
        if (!have_way[way]) continue;
        for (int every = 2; every <= 3; every++) {
            expert_store *s = make(&k, 5, way);
            fault.short_every = every;
            fault.interrupt_every = 5;
            sweep(s, 3);
            assert_true(fault.n > 50);
            assert_int_equal(count(s).failed, 0);
            assert_int_equal(s->close(s), STATUS_OK);
            read_faults_reset();
        }
    }
    close_case(&k);
}

static void a_read_error_fails_one_expert(void **state) {
    (void)state;
    reader_case k;
    open_case(&k);
    for (int way = EXPERT_READ_PREAD; way <= EXPERT_READ_RING; way++) {
        if (!have_way[way]) continue;
        expert_store *s = make(&k, 10, way);
        error err = {0};
        fault.fail_begin = k.experts_at + span_off(1, 5, 2) + 60000;
        fault.fail_end = fault.fail_begin + 1;
        assert_int_equal(run_set(s, 1, all + 2, 4, &err), 1);
        assert_contains(err.text, "expert 5 of layer 1");
        assert_contains(err.text, "experts.gguf");
        assert_contains(err.text, "expected 120028 bytes");
        assert_contains(err.text, "Input/output error");
        fault.fail_end = 0;
        good_set(s, 1, all + 2, 4);
        assert_int_equal(count(s).failed, 1);
        assert_int_equal(count(s).misses, 5);
        assert_int_equal(s->close(s), STATUS_OK);
    }
    close_case(&k);
}

static void a_file_cut_short(void **state) {
    (void)state;
    for (int way = 0; way < ALL_WAYS; way++) {
        if (!have_way[way]) continue;
        reader_case k;
        open_case(&k);
        expert_store *s = make(&k, 10, way);
        error err = {0};
        good_set(s, 2, all, 4);
        assert_int_equal(truncate(k.path, (off_t)(k.experts_at + span_off(2, 4, 2) + 5001)), 0);
        assert_int_equal(run_set(s, 2, all, 5, &err), 1); /* expert 4 alone */
        assert_contains(err.text, "expert 4 of layer 2");
        assert_contains(err.text, "the file ends there");
        assert_int_equal(run_set(s, 2, all + 5, 1, &err), 1);
        good_set(s, 2, all, 4);
        assert_int_equal(s->close(s), STATUS_OK);
        close_case(&k);
    }
}

/* What was read before is good; what is read afterwards may be anything, whole as it is. Another file under the name is nobody's business. */
static void a_file_written_to(void **state) {
    (void)state;
    char other[SCRATCH_PATH_BYTES];
    for (int way = 0; way < ALL_WAYS; way++) {
        if (!have_way[way]) continue;
        reader_case k;
        open_case(&k);
        scratch_dir_path(&k.dir, "other", other);
        expert_store *s = make(&k, 10, way);
        error err = {0};
        good_set(s, 2, all, 2);
        assert_int_equal(rename(k.path, other), 0);
        assert_true(scratch_dir_write(&k.dir, "experts.gguf", "x", 1));
        good_set(s, 2, all, 4);
        put_byte(other, k.experts_at + span_off(2, 4, 1), 1);
        assert_int_equal(run_set(s, 2, all, 6, &err), 2);
        assert_contains(err.text, " of layer 2: experts: ");
        assert_contains(err.text, "experts.gguf: read at offset ");
        assert_contains(err.text, "was written to after it was opened");
        good_set(s, 2, all, 4);
        assert_int_equal(s->close(s), STATUS_OK);
        close_case(&k);
    }
}

/* One read that comes last of all: the others are given out meanwhile. */
/* Reading ahead by each way, with experts of several pieces: right bytes also where reads come short or are interrupted, and an error ahead is nobody's. */
static void ahead_by_each_way(void **state) {
    (void)state;
    for (int way = 0; way < ALL_WAYS; way++) {
        if (!have_way[way]) continue;
        for (int spoilt = 0; spoilt < 2; spoilt++) {
            reader_case k;
            open_case(&k);
            expert_store *s = make_ahead(&k, 8, way);
            fault.short_every = spoilt ? 3 : 0;
            fault.interrupt_every = spoilt ? 5 : 0;
            const uint64_t allocs = mem_alloc_count(k.m);
            assert_true(sweep_ahead(s, 40) > 0);
            assert_int_equal(mem_alloc_count(k.m), allocs);
            const expert_counters c = count(s);
            assert_true(c.misses > 0 && c.evictions > 0 && c.failed == 0 && c.disk_ns > 0);
            assert_int_equal(s->close(s), STATUS_OK);
            close_case(&k);
        }
        if (way == EXPERT_READ_BUFFERED) continue; /* whose errors test_moe_ahead makes */
        reader_case k;
        error err = {0};
        open_case(&k);
        expert_store *s = make_ahead(&k, 8, way);
        const int32_t hint[] = {2, 5}, others[] = {3, 5};
        for (int wanted = 0; wanted < 2; wanted++) {
            s->enter(s, 0);
            assert_int_equal(s->begin(s, 0, all, 0, &err), STATUS_OK);
            pthread_mutex_lock(&fault.lock);
            fault.fail_begin = k.experts_at + span_off(1, 2, 0);
            fault.fail_end = fault.fail_begin + 1;
            pthread_mutex_unlock(&fault.lock);
            s->hint(s, 1, hint, 2);
            if (wanted == 0) {
                good_set(s, 1, others, 2); /* 2 fails, or is dropped; nobody wanted it */
            } else {
                const int failed = run_set(s, 1, hint, 2, &err);
                assert_int_equal(failed, 1);
                assert_contains(err.text, "expert 2 of layer 1");
            }
            pthread_mutex_lock(&fault.lock);
            fault.fail_end = 0;
            pthread_mutex_unlock(&fault.lock);
            good_set(s, 1, hint, 2);
            good_set(s, 2, all, EXPERTS);
        }
        assert_int_equal(count(s).failed, 1);
        assert_int_equal(s->close(s), STATUS_OK);
        close_case(&k);
    }
}

static void a_late_read_holds_up_nobody(void **state) {
    (void)state;
    need_ring();
    reader_case k;
    open_case(&k);
    expert_store *s = make(&k, 10, EXPERT_READ_RING);
    error err = {0};
    fault.hold_one = true;
    assert_int_equal(s->begin(s, 0, all, 6, &err), STATUS_OK);
    for (int i = 0; i < 6; i++) {
        expert_lease l;
        if (i == 5) fault.hold_one = false; /* now it comes */
        assert_int_equal(s->next_ready(s, &l, &err), STATUS_OK);
        check_lease(&l);
        s->release(s, &l, (vt_fence){0});
    }
    assert_int_equal(fault.n_held, 1);
    expert_lease none;
    assert_int_equal(s->next_ready(s, &none, &err), STATUS_NOT_FOUND);
    assert_int_equal(s->close(s), STATUS_OK);
    close_case(&k);
}

/* A ring that refuses once: what the kernel holds arrives, the rest fails by name, nothing hangs, and nothing is read with it any more. */
static void a_ring_that_fails(void **state) {
    (void)state;
    need_ring();
    reader_case k;
    open_case(&k);
    for (int good = 0; good < 4; good++) {
        expert_store *s = make(&k, 10, EXPERT_READ_RING);
        error err = {0};
        expert_lease l;
        alarm(60);
        fault.submit_error = -ENOMEM;
        fault.submits_left = good;
        assert_int_equal(run_set(s, 0, all, 8, &err), 8 - good); /* leases that are given are checked */
        assert_contains(err.text, "Input/output error");
        assert_int_equal(run_set(s, 1, all, 8, &err), 8);
        assert_int_equal(s->begin(s, 2, all, 3, &err), STATUS_OK);
        s->cancel(s);
        assert_int_equal(s->next_ready(s, &l, &err), STATUS_NOT_FOUND);
        assert_int_equal(s->close(s), STATUS_OK);
        fault.submit_error = -EAGAIN; /* no room for a moment is no failure */
        fault.submits_left = good;
        s = make(&k, 10, EXPERT_READ_RING);
        sweep(s, 2);
        assert_int_equal(count(s).failed, 0);
        assert_int_equal(s->close(s), STATUS_OK);
        alarm(0);
    }
    close_case(&k);
}

static void cancel_in_mid_wave(void **state) {
    (void)state;
    reader_case k;
    open_case(&k);
    for (int way = 0; way < ALL_WAYS; way++) {
        if (!have_way[way]) continue;
        for (int taken = 0; taken < 3; taken++) {
            expert_store *s = make(&k, 10, way);
            error err = {0};
            expert_lease l;
            assert_int_equal(s->begin(s, 1, all, 8, &err), STATUS_OK);
            for (int i = 0; i < taken; i++) {
                assert_int_equal(s->next_ready(s, &l, &err), STATUS_OK);
                s->release(s, &l, (vt_fence){0});
            }
            s->cancel(s);
            assert_int_equal(s->next_ready(s, &l, &err), STATUS_NOT_FOUND);
            good_set(s, 1, all, 8);
            assert_int_equal(s->begin(s, 2, all, 8, &err), STATUS_OK); /* and closed with reads under way */
            assert_int_equal(s->close(s), STATUS_OK);
        }
    }
    close_case(&k);
}

static char last_line[1024];
static void keep_line(void *user, log_level level, const char *line) {
    (void)user;
    (void)level;
    if (strstr(line, "experts are read by") != NULL) snprintf(last_line, sizeof last_line, "%s", line);
}

static expert_read_way chosen(reader_case *k) {
    expert_store *s = make(k, 12, -1);
    good_set(s, 0, all, 8);
    const expert_read_way way = (expert_read_way)count(s).read_way;
    assert_int_equal(s->close(s), STATUS_OK);
    return way;
}

static void what_is_refused_is_not_chosen(void **state) {
    (void)state;
    reader_case k;
    open_case(&k);
    error err = {0};
    expert_store *s;
    log_set(keep_line, NULL, LOG_LEVEL_INFO);
    fault.no_ring = true;
    assert_int_not_equal(chosen(&k), EXPERT_READ_RING);
    assert_contains(last_line, "no io_uring: the test has said so");
    const expert_stream_options ring = {.budget_bytes = 8 * k.bank.stream_slot_bytes, .read_way = EXPERT_READ_RING + 1};
    assert_int_equal(expert_store_stream_create(k.m, &k.bank, &ring, &s, &err), STATUS_UNSUPPORTED); /* asked for by name: refused */
    fault.no_direct = true;
    assert_int_equal(chosen(&k), EXPERT_READ_BUFFERED);
    assert_contains(last_line, "no direct reads");
    read_faults_reset();
    fault.no_register = true;
    s = make(&k, 8, have_way[EXPERT_READ_RING] ? EXPERT_READ_RING : EXPERT_READ_PREAD);
    sweep(s, 1);
    assert_int_equal(s->close(s), STATUS_OK);
    read_faults_reset();
    /* no descriptor is left */
    struct rlimit before, none;
    const int fd = dup(0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = (rlim_t)fd;
    close(fd);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const expert_read_way way = chosen(&k);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(way, EXPERT_READ_BUFFERED);
    assert_contains(last_line, "Too many open files");
    log_set(NULL, NULL, LOG_LEVEL_INFO);
    close_case(&k);
}

/* The probe measures, and reads dense weights only. */
static void no_expert_is_read_at_load(void **state) {
    (void)state;
    reader_case k;
    open_case(&k);
    read_faults_reset();
    expert_store *s = make(&k, 12, -1);
    assert_true(fault.n_reads > (have_way[EXPERT_READ_RING] ? 50 : 15));
    assert_true(fault.highest <= k.experts_at && fault.lowest < fault.highest);
    assert_true(count(s).disk_bytes_per_s > 0);
    assert_int_equal(count(s).bytes_read, 0);
    assert_int_equal(s->close(s), STATUS_OK);
    close_case(&k);
}

/* ---- packed ---- */

/* The same bank over a source that has the packed file beside it. */
static status open_packed(reader_case *k, const char *bank_path, expert_bank *packed, source **src, error *err) {
    const source_options so = {.mode = LOAD_READ, .extra_path = bank_path};
    TRY(source_open(k->m, k->path, &so, src, err));
    *packed = k->bank;
    packed->src = *src;
    packed->layers = arena_calloc(k->a, LAYERS, sizeof *packed->layers);
    memcpy(packed->layers, k->bank.layers, LAYERS * sizeof *packed->layers);
    const status rc = expert_pack_use(packed, k->a, k->m, err);
    if (rc != STATUS_OK) source_close(*src);
    return rc;
}

static void a_packed_bank(void **state) {
    (void)state;
    reader_case k, other;
    char path[SCRATCH_PATH_BYTES];
    open_case(&k);
    scratch_dir_path(&k.dir, "bank", path);
    error err = {0};
    expert_pack_result made;
    if (expert_pack_write(k.m, &k.bank, path, NULL, NULL, &made, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_int_equal(made.n_records * 1000 + made.n_resumed, LAYERS * EXPERTS * 1000);
    expert_bank packed;
    source *src;
    if (open_packed(&k, path, &packed, &src, &err) != STATUS_OK) fail_msg("%s", err.text);
    read_faults_reset();
    expert_store *found;
    const expert_stream_options freely = {.budget_bytes = 12 * packed.stream_slot_bytes};
    if (expert_store_stream_create(k.m, &packed, &freely, &found, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_true(made.file_bytes < (uint64_t)8 << 20 ? count(found).disk_bytes_per_s == 0 && fault.n_reads == 0 : count(found).disk_bytes_per_s > 0 && fault.highest <= made.file_bytes); /* the bank's disk or none */
    sweep(found, 2);
    assert_int_equal(found->close(found), STATUS_OK);
    for (int way = 0; way < ALL_WAYS; way++) {
        if (!have_way[way]) continue;
        expert_store *s;
        const expert_stream_options opt = {.budget_bytes = 5 * packed.stream_slot_bytes, .read_way = way + 1};
        if (expert_store_stream_create(k.m, &packed, &opt, &s, &err) != STATUS_OK) fail_msg("%s", err.text);
        sweep(s, 3);
        const expert_counters c = count(s);
        assert_true(c.evictions > 0 && c.reads == c.misses); /* one read each */
        /* a bit falls over: that expert alone, by name; and it is asked for again afterwards */
        const uint64_t at = packed.packed[packed.layers[1].first_packed + 5].off + 60000;
        put_byte(path, at, 16);
        assert_int_equal(run_set(s, 1, all + 2, 4, &err), 1);
        assert_contains(err.text, "expert 5 of layer 1");
        assert_contains(err.text, "is damaged: expected checksum");
        put_byte(path, at, 16);
        good_set(s, 1, all + 2, 4);
        assert_int_equal(s->close(s), STATUS_OK);
    }
    source_close(src);
    /* refused: damage in head or table, a file cut short, another version, another checkpoint */
    static const struct {
        uint64_t at;
        const char *says;
    } damage[] = {{0, "no packed bank"}, {7, "another version"}, {9, "another checkpoint"}, {20, "another checkpoint"}, {25, "table is damaged"}, {4096 + 17, "table is damaged"}};
    for (size_t i = 0; i < sizeof damage / sizeof damage[0]; i++) {
        put_byte(path, damage[i].at, 4);
        assert_int_equal(open_packed(&k, path, &packed, &src, &err), STATUS_FORMAT);
        assert_contains(err.text, damage[i].says);
        put_byte(path, damage[i].at, 4);
    }
    assert_int_equal(truncate(path, (off_t)made.file_bytes - 4096), 0);
    assert_int_equal(open_packed(&k, path, &packed, &src, &err), STATUS_FORMAT);
    assert_contains(err.text, "are not those of a whole bank");
    assert_int_equal(truncate(path, 5000), 0);
    assert_int_equal(open_packed(&k, path, &packed, &src, &err), STATUS_FORMAT);
    open_case(&other);
    ((expert_span *)other.bank.layers[0].spans)[0].tensor = source_find(other.src, "dense");
    scratch_dir_path(&other.dir, "bank", path);
    assert_int_equal(expert_pack_write(other.m, &other.bank, path, NULL, NULL, &made, &err), STATUS_OK);
    assert_int_equal(open_packed(&k, path, &packed, &src, &err), STATUS_FORMAT);
    assert_contains(err.text, "another checkpoint");
    close_case(&other);
    close_case(&k);
}

/* Interrupted after each number of reads of the checkpoint: the next call goes on, and the file is the same. */
static int n_pack_reads, pack_reads_left = -1;
static status failing_read(void *ctx, const os_file *f, uint64_t off, void *dst, size_t n, error *err) {
    (void)ctx;
    n_pack_reads++;
    if (pack_reads_left >= 0 && pack_reads_left-- == 0) return error_set(err, STATUS_IO, "os: the test ends it here");
    return os_file_read(f, off, dst, n, err);
}

static char *whole_file(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *n = (size_t)ftell(f);
    rewind(f);
    char *p = test_malloc(*n);
    assert_int_equal(fread(p, 1, *n, f), *n);
    fclose(f);
    return p;
}

static void packing_goes_on(void **state) {
    (void)state;
    reader_case k;
    char path[SCRATCH_PATH_BYTES], again[SCRATCH_PATH_BYTES], partial[SCRATCH_PATH_BYTES + 16];
    open_case(&k);
    scratch_dir_path(&k.dir, "bank", path);
    scratch_dir_path(&k.dir, "again", again);
    snprintf(partial, sizeof partial, "%s.partial", again);
    error err = {0};
    expert_pack_result made;
    assert_int_equal(expert_pack_write(k.m, &k.bank, path, NULL, NULL, &made, &err), STATUS_OK);
    try_partial = true;
    assert_int_equal(expert_pack_write(k.m, &k.bank, path, NULL, NULL, &made, &err), STATUS_OK);
    assert_int_equal(partial_while_renamed, STATUS_NOT_NOW); /* nobody else may write what gets the name */
    try_partial = false;
    size_t n, n_again;
    char *good = whole_file(path, &n);
    source *src;
    const source_options so = {.mode = LOAD_READ};
    assert_int_equal(source_open_with(k.m, k.path, &so, failing_read, NULL, &src, &err), STATUS_OK);
    expert_bank bank = k.bank;
    bank.src = src;
    for (int stop = 3; stop < LAYERS * EXPERTS * PARTS; stop += 11) {
        pack_reads_left = stop;
        assert_int_equal(expert_pack_write(k.m, &bank, again, NULL, NULL, &made, &err), STATUS_IO);
        assert_int_equal(access(again, F_OK), -1);
        if (stop > 2 * EXPERTS * PARTS) put_byte(partial, 4096 * 40, 1); /* what was written is damaged meanwhile: it is written anew */
        pack_reads_left = -1;
        n_pack_reads = 0;
        assert_int_equal(expert_pack_write(k.m, &bank, again, NULL, NULL, &made, &err), STATUS_OK);
        const int kept = stop / (EXPERTS * PARTS) * EXPERTS - (stop > 2 * EXPERTS * PARTS ? 1 : 0);
        assert_int_equal(made.n_resumed, kept);
        assert_int_equal(n_pack_reads, (LAYERS * EXPERTS - kept) * PARTS);
        char *bytes = whole_file(again, &n_again);
        assert_int_equal(n_again, n);
        assert_memory_equal(bytes, good, n);
        test_free(bytes);
        assert_int_equal(access(partial, F_OK), -1);
        assert_int_equal(unlink(again), 0);
    }
    test_free(good);
    source_close(src);
    close_case(&k);
}

/* Under whatever name, also as what is written first. */
static void the_checkpoint_is_not_written_over(void **state) {
    (void)state;
    reader_case k;
    char other[SCRATCH_PATH_BYTES], partial[SCRATCH_PATH_BYTES];
    open_case(&k);
    scratch_dir_path(&k.dir, "other", other);
    scratch_dir_path(&k.dir, "bank.partial", partial);
    assert_int_equal(symlink(k.path, other), 0);
    assert_int_equal(link(k.path, partial), 0);
    size_t n, n_after;
    char *before = whole_file(k.path, &n);
    char bank[SCRATCH_PATH_BYTES];
    scratch_dir_path(&k.dir, "bank", bank);
    const char *const targets[] = {k.path, other, bank};
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        error err = {0};
        expert_pack_result made;
        assert_int_equal(expert_pack_write(k.m, &k.bank, targets[i], NULL, NULL, &made, &err), STATUS_INVALID);
        assert_contains(err.text, "experts.gguf");
        assert_contains(err.text, "would be destroyed");
        char *after = whole_file(k.path, &n_after);
        assert_int_equal(n, n_after);
        assert_memory_equal(after, before, n);
        test_free(after);
    }
    test_free(before);
    close_case(&k);
}

static void every_failing_allocation(void **state) {
    (void)state;
    reader_case k;
    open_case(&k);
    for (int way = -1; way < ALL_WAYS; way++) {
        if (way >= 0 && !have_way[way]) continue;
        int n_failed = 0;
        for (uint64_t n = 0;; n++) {
            error err = {0};
            expert_store *s = NULL;
            const expert_stream_options opt = {.budget_bytes = 8 * k.bank.stream_slot_bytes, .read_way = way + 1, .ahead = EXPERT_AHEAD_AUTO};
            mem_fail_after(k.m, n);
            const status rc = expert_store_stream_create(k.m, &k.bank, &opt, &s, &err);
            mem_fail_off(k.m);
            if (rc == STATUS_OK) {
                assert_int_equal(s->close(s), STATUS_OK);
                break;
            }
            assert_int_equal(rc, STATUS_NO_MEMORY);
            n_failed++;
        }
        assert_true(n_failed > 10);
    }
    mem_usage tables, experts, before;
    mem_get_usage(k.m, MEM_MODEL, &before);
    expert_store *s = make(&k, 8, have_way[EXPERT_READ_RING] ? EXPERT_READ_RING : EXPERT_READ_PREAD);
    mem_get_usage(k.m, MEM_MODEL, &tables);
    mem_get_usage(k.m, MEM_EXPERTS, &experts);
    assert_true(tables.used_bytes - before.used_bytes <= expert_store_stream_table_bytes(&k.bank, 8));
    assert_true(experts.used_bytes <= expert_store_stream_slot_bytes(&k.bank, 8));
    assert_int_equal(s->close(s), STATUS_OK);
    close_case(&k);
}

/* Many slots begin at a page of 2 MiB, as reads into small pages are slow, and take no more than was planned; few at a page. */
static void slots_begin_at_a_page(void **state) {
    (void)state;
    reader_case k;
    open_case(&k);
    static const struct { int n_slots; size_t page; } cases[] = {{8, 4096}, {24, 2 << 20}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mem_usage experts;
        size_t bytes;
        expert_store *s = make(&k, cases[i].n_slots, EXPERT_READ_PREAD);
        const uint8_t *memory = expert_store_stream_memory(s, &bytes);
        assert_int_equal((uintptr_t)memory % cases[i].page, 0);
        assert_int_equal(bytes, (size_t)cases[i].n_slots * k.bank.stream_slot_bytes);
        mem_get_usage(k.m, MEM_EXPERTS, &experts);
        assert_in_range(experts.used_bytes, bytes + cases[i].page, expert_store_stream_slot_bytes(&k.bank, cases[i].n_slots));
        assert_int_equal(s->close(s), STATUS_OK);
    }
    close_case(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_bytes_by_each_way),
        cmocka_unit_test(ahead_by_each_way),
        cmocka_unit_test(neighbours_are_one_read),
        cmocka_unit_test(short_and_interrupted_reads_go_on),
        cmocka_unit_test(a_read_error_fails_one_expert),
        cmocka_unit_test(a_file_cut_short),
        cmocka_unit_test(a_file_written_to),
        cmocka_unit_test(a_late_read_holds_up_nobody),
        cmocka_unit_test(a_ring_that_fails),
        cmocka_unit_test(cancel_in_mid_wave),
        cmocka_unit_test(what_is_refused_is_not_chosen),
        cmocka_unit_test(no_expert_is_read_at_load),
        cmocka_unit_test(a_packed_bank),
        cmocka_unit_test(packing_goes_on),
        cmocka_unit_test(the_checkpoint_is_not_written_over),
        cmocka_unit_test(every_failing_allocation),
        cmocka_unit_test(slots_begin_at_a_page),
    };
    return cmocka_run_group_tests(tests, find_ways, NULL);
}
