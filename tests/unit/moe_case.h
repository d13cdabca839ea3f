/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint file with experts whose bytes are a function of (layer, expert, part, position), its bank, and a reader below the source that fails, waits and counts. Include after test_case.h. */
#ifndef HEADRACE_TESTS_MOE_CASE_H
#define HEADRACE_TESTS_MOE_CASE_H

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "load/source_impl.h"
#include "moe/expert_store.h"
#include "support/gguf_writer.h"
#include "support/scratch_dir.h"

enum { CASE_LAYERS = 4, CASE_EXPERTS = 16, CASE_TOP_K = 3, CASE_PARTS = 3 };
/* Floats of a part. Gate, scale and up lie side by side in the file; the scale ends between two multiples of the slot's alignment, so that up has a read of its own. */
static const int64_t case_part_floats[CASE_PARTS] = {32, 8, 48};

typedef struct moe_case {
    scratch_dir dir;
    char path[SCRATCH_PATH_BYTES];
    mem *m;
    arena *a;
    source *src;
    expert_bank bank;
    /* the reader */
    pthread_mutex_t lock;
    pthread_cond_t change;
    int64_t fail_off_begin, fail_off_end; /* reads that touch this range of the file fail; end 0: none */
    bool gate;                            /* reads wait until it is opened */
    int n_waiting, n_reads;
    uint64_t read_off[512]; /* where each read began, by its number */
} moe_case;

static inline float case_value(int layer, int expert, int part, int64_t i) { return (float)(layer * 100000 + expert * 1000 + part * 100) + (float)i / 64.0f; }

static inline status case_read(void *ctx, const os_file *f, uint64_t off, void *dst, size_t n, error *err) {
    moe_case *k = ctx;
    pthread_mutex_lock(&k->lock);
    k->read_off[k->n_reads++ % 512] = off;
    k->n_waiting++;
    pthread_cond_broadcast(&k->change);
    while (k->gate) pthread_cond_wait(&k->change, &k->lock);
    k->n_waiting--;
    const bool fails = k->fail_off_end > 0 && (int64_t)off < k->fail_off_end && (int64_t)(off + n) > k->fail_off_begin;
    pthread_mutex_unlock(&k->lock);
    if (fails) return error_set(err, STATUS_IO, "os: %s: 0x%llx: expected %zu bytes, got 0: Input/output error", os_file_path(f), (unsigned long long)off, n);
    return os_file_read(f, off, dst, n, err);
}

static inline void case_write_file(moe_case *k) {
    gguf_writer w;
    static float data[CASE_EXPERTS * 64];
    static const char *const names[] = {"gate", "scale", "up"};
    gguf_writer_init(&w, k->m);
    gguf_writer_text(&w, "general.architecture", "llama");
    for (int l = 0; l < CASE_LAYERS; l++) {
        for (int e = 0; e < CASE_EXPERTS && l < CASE_LAYERS - 1; e++) { /* separate tensors, side by side */
            for (int p = 0; p < CASE_PARTS; p++) {
                char name[64];
                snprintf(name, sizeof name, "l.%d.e.%d.%s", l, e, names[p]);
                for (int64_t i = 0; i < case_part_floats[p]; i++) data[i] = case_value(l, e, p, i);
                gguf_writer_tensor(&w, name, GGUF_T_F32, 1, &case_part_floats[p], data, (size_t)case_part_floats[p] * 4);
            }
        }
        for (int p = 0; p < CASE_PARTS && l == CASE_LAYERS - 1; p++) { /* the last layer: stacked */
            char name[64];
            const int64_t n = case_part_floats[p], dim[2] = {CASE_EXPERTS, n};
            snprintf(name, sizeof name, "l.%d.%s", l, names[p]);
            for (int e = 0; e < CASE_EXPERTS; e++) {
                for (int64_t i = 0; i < n; i++) data[e * n + i] = case_value(l, e, p, i);
            }
            gguf_writer_tensor(&w, name, GGUF_T_F32, 2, dim, data, (size_t)(CASE_EXPERTS * n) * 4);
        }
    }
    assert_true(gguf_writer_save(&w, k->path));
    gguf_writer_deinit(&w);
}

static inline void case_make_bank(moe_case *k) {
    error err = {0};
    static const char *const names[] = {"gate", "scale", "up"};
    expert_part parts[CASE_PARTS];
    static expert_span spans[CASE_EXPERTS * CASE_PARTS];
    if (expert_bank_init(&k->bank, k->a, k->src, CASE_LAYERS + 1, &err) != STATUS_OK) fail_msg("%s", err.text); /* layer 0 has none */
    for (int l = 0; l < CASE_LAYERS; l++) {
        const bool stacked = l == CASE_LAYERS - 1;
        for (int p = 0; p < CASE_PARTS; p++) {
            const int64_t n = case_part_floats[p];
            parts[p] = (expert_part){.view = vt_tensor_1d(NULL, VT_F32, (vt_device_id){.type = VT_DEVICE_CPU}, n), .n_bytes = (size_t)n * 4};
            for (int e = 0; e < CASE_EXPERTS; e++) {
                char name[64];
                if (stacked)
                    snprintf(name, sizeof name, "l.%d.%s", l, names[p]);
                else
                    snprintf(name, sizeof name, "l.%d.e.%d.%s", l, e, names[p]);
                spans[e * CASE_PARTS + p] = (expert_span){.tensor = source_find(k->src, name), .off = stacked ? (uint64_t)(e * n * 4) : 0};
                assert_non_null(spans[e * CASE_PARTS + p].tensor);
            }
        }
        if (expert_bank_set_layer(&k->bank, k->a, l + 1, CASE_EXPERTS, CASE_TOP_K, CASE_PARTS, parts, spans, &err) != STATUS_OK) fail_msg("%s", err.text);
        k->bank.layers[l + 1].late_parts = (const uint32_t[]){4, 1, 2, 0}[l % 4]; /* what lies last, first, between others; nothing */
    }
    expert_bank_seal(&k->bank);
}

static inline void case_open(moe_case *k) {
    error err = {0};
    memset(k, 0, sizeof *k);
    assert_int_equal(pthread_mutex_init(&k->lock, NULL), 0);
    assert_int_equal(pthread_cond_init(&k->change, NULL), 0);
    assert_true(scratch_dir_create(&k->dir));
    scratch_dir_path(&k->dir, "experts.gguf", k->path);
    k->m = test_mem();
    case_write_file(k);
    const source_options so = {.mode = LOAD_READ};
    if (source_open_with(k->m, k->path, &so, case_read, k, &k->src, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_int_equal(arena_create(k->m, MEM_MODEL, 65536, &k->a), STATUS_OK);
    case_make_bank(k);
    k->n_reads = 0;
}

static inline void case_close(moe_case *k) {
    arena_destroy(k->a);
    source_close(k->src);
    test_mem_check(k->m);
    scratch_dir_destroy(&k->dir);
    pthread_mutex_destroy(&k->lock);
    pthread_cond_destroy(&k->change);
}

static inline void case_gate(moe_case *k, bool closed) {
    pthread_mutex_lock(&k->lock);
    k->gate = closed;
    pthread_cond_broadcast(&k->change);
    pthread_mutex_unlock(&k->lock);
}

/* Waits until n reads stand before the closed gate. */
static inline void case_await_reads(moe_case *k, int n) {
    pthread_mutex_lock(&k->lock);
    while (k->n_waiting < n) pthread_cond_wait(&k->change, &k->lock);
    pthread_mutex_unlock(&k->lock);
}

/* Reads of this expert's parts fail from now on; part -1: none do any more. */
static inline void case_fail_expert(moe_case *k, int layer, int expert, int part) {
    pthread_mutex_lock(&k->lock);
    k->fail_off_begin = k->fail_off_end = 0;
    if (part >= 0) {
        const expert_span *s = &k->bank.layers[layer].spans[expert * CASE_PARTS + part];
        k->fail_off_begin = (int64_t)(s->tensor->off + s->off);
        k->fail_off_end = k->fail_off_begin + (int64_t)k->bank.layers[layer].parts[part].n_bytes;
    }
    pthread_mutex_unlock(&k->lock);
}

/* The parts of a lease hold what the file says, in host memory. */
static inline void case_check_part(const expert_lease *l, int p) {
    const float *v = l->part[p];
    assert_non_null(v);
    assert_int_equal((uintptr_t)v % EXPERT_PART_ALIGN, 0);
    for (int64_t i = 0; i < case_part_floats[p]; i++) {
        const float expected = case_value(l->layer - 1, l->expert, p, i);
        assert_memory_equal(&v[i], &expected, sizeof expected);
    }
}

static inline void case_check_lease(const moe_case *k, const expert_lease *l) {
    for (int p = 0; p < k->bank.layers[l->layer].n_parts; p++) case_check_part(l, p);
}

/* One set through the store in its waves, every lease checked; returns the number of waves. */
static inline int case_run_set(moe_case *k, expert_store *s, int layer, const int32_t *ids, int32_t n) {
    error err = {0};
    int32_t sizes[CASE_EXPERTS], at = 0, total = 0;
    s->enter(s, layer);
    const int32_t n_waves = s->waves(s, layer, ids, n, sizes);
    for (int32_t w = 0; w < n_waves; w++) {
        if (s->begin(s, layer, ids + at, sizes[w], &err) != STATUS_OK) fail_msg("%s", err.text);
        uint64_t given = 0;
        for (expert_lease l;;) {
            const status rc = s->next_ready(s, &l, &err);
            if (rc == STATUS_NOT_FOUND) break;
            if (rc != STATUS_OK) fail_msg("%s", err.text);
            case_check_lease(k, &l);
            assert_false(given >> l.expert & 1);
            given |= (uint64_t)1 << l.expert;
            s->release(s, &l, (vt_fence){0});
            total++;
        }
        for (int32_t i = 0; i < sizes[w]; i++) assert_true(given >> ids[at + i] & 1);
        at += sizes[w];
    }
    assert_int_equal(at, n);
    assert_int_equal(total, n);
    return n_waves;
}

static inline uint64_t case_random(uint64_t *s) {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

/* A random ascending set of distinct experts. */
static inline int32_t case_random_set(uint64_t *r, int32_t *ids, int32_t at_least) {
    uint64_t mask = 0;
    int32_t n = 0;
    const int32_t want = at_least + (int32_t)(case_random(r) % (CASE_EXPERTS - (uint64_t)at_least + 1));
    while (n < want) {
        const uint64_t bit = (uint64_t)1 << case_random(r) % CASE_EXPERTS;
        if ((mask & bit) == 0) n++;
        mask |= bit;
    }
    n = 0;
    for (int32_t e = 0; e < CASE_EXPERTS; e++) {
        if (mask >> e & 1) ids[n++] = e;
    }
    return n;
}

#endif
