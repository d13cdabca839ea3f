/* SPDX-License-Identifier: Apache-2.0 */
/* Candidates in the order of preference; a later one has to be clearly faster. */
#include "moe/expert_reader_choice.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "moe/expert_pack.h"

enum { PROBE_RANGE_BYTES = 1 << 20, PROBE_MAX_RANGES = 16, PROBE_ROUNDS = 3, LEAST_REGION_BYTES = 8 << 20 };
/* Pinning all slots at once saves a little time with each read, and costs the start of a run: not for large memory. */
static const size_t MOST_REGISTERED_BYTES = (size_t)1 << 30;

typedef struct candidate {
    expert_read_way way;
    int32_t depth;
    double gain; /* to be taken before what was found so far it has to be this much faster */
} candidate;
static const candidate candidates[] = {{EXPERT_READ_RING, 64, 1}, {EXPERT_READ_RING, 16, 1.1}, {EXPERT_READ_PREAD, 8, 1.1}, {EXPERT_READ_BUFFERED, 4, 1.25}};
enum { N_CANDIDATES = sizeof candidates / sizeof candidates[0] };

typedef struct chooser {
    mem *m;
    const expert_bank *bank;
    int32_t n_fills;
    bool ahead;
    uint8_t *memory;
    size_t memory_bytes;
    tensor_info region; /* what the probe reads: file, off, n_bytes; 0: nothing */
    uint64_t random;
} chooser;

const char *expert_read_way_name(expert_read_way way) { return way == EXPERT_READ_RING ? "io_uring" : way == EXPERT_READ_PREAD ? "pread" : "buffered"; }

/* ---- what to read ---- */

static status find_region(chooser *k, error *err) {
    const source *src = k->bank->src;
    if (k->bank->packed != NULL) { /* the disk of the packed bank, which holds nothing but records */
        const uint64_t size = os_file_size(source_file(src, k->bank->packed_file)), first = k->bank->packed[0].off;
        if (size >= first + LEAST_REGION_BYTES) k->region = (tensor_info){.file = k->bank->packed_file, .off = first, .n_bytes = size - first};
        return STATUS_OK;
    }
    const size_t n = source_n_tensors(src);
    bool *is_expert = mem_calloc(k->m, MEM_MODEL, n, sizeof *is_expert);
    if (is_expert == NULL) return error_set(err, STATUS_NO_MEMORY, "experts: no memory for the table of tensors");
    uint32_t file = 0;
    for (int32_t l = 0; l < k->bank->n_layers; l++) {
        const expert_layer *el = &k->bank->layers[l];
        for (int64_t i = 0; i < (int64_t)el->n_experts * el->n_parts; i++) {
            is_expert[el->spans[i].tensor - source_tensor(src, 0)] = true;
            file = el->spans[i].tensor->file;
        }
    }
    for (size_t i = 0; i < n; i++) {
        const tensor_info *t = source_tensor(src, i);
        if (!is_expert[i] && t->file == file && t->n_bytes >= LEAST_REGION_BYTES && t->n_bytes > k->region.n_bytes) k->region = *t;
    }
    mem_free(k->m, is_expert);
    return STATUS_OK;
}

/* ---- measuring ---- */

/* One round of reads at random places; bytes a second, 0 when it failed. */
static double round_speed(chooser *k, expert_reader *r) {
    int32_t n = k->n_fills < PROBE_MAX_RANGES ? k->n_fills : PROBE_MAX_RANGES;
    if ((size_t)n > k->memory_bytes / PROBE_RANGE_BYTES) n = (int32_t)(k->memory_bytes / PROBE_RANGE_BYTES);
    if (n < 2) return 0;
    const uint64_t first = (k->region.off + EXPERT_PAGE_BYTES - 1) / EXPERT_PAGE_BYTES, last = (k->region.off + k->region.n_bytes - PROBE_RANGE_BYTES) / EXPERT_PAGE_BYTES;
    if (expert_reader_way(r) == EXPERT_READ_BUFFERED) os_file_forget(source_file(k->bank->src, k->region.file), k->region.off, k->region.n_bytes);
    const uint64_t begin = os_now_ns();
    uint64_t stall = 0;
    bool good = true;
    for (int32_t i = 0; i < n; i++) {
        k->random = k->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const uint64_t page = first + (k->random >> 33) % (last - first + 1);
        const expert_range range = {.file = k->region.file, .off = page * EXPERT_PAGE_BYTES, .n_bytes = PROBE_RANGE_BYTES, .dst = k->memory + (size_t)i * PROBE_RANGE_BYTES};
        expert_reader_submit(r, i, &range, 1);
    }
    for (int32_t fill; (fill = expert_reader_next(r, true, &stall)) >= 0;) good = good && expert_reader_outcome(r, fill, NULL) == STATUS_OK;
    const uint64_t ns = os_now_ns() - begin;
    return good && ns > 0 ? (double)n * PROBE_RANGE_BYTES * 1e9 / (double)ns : 0;
}

static status make(const chooser *k, expert_read_way way, int32_t depth, bool chosen, expert_reader **out, error *err) {
    expert_reader_options opt = {.way = way, .depth = depth, .n_fills = k->n_fills, .max_ranges = EXPERT_MAX_PARTS, .ahead = chosen && k->ahead};
    if (chosen && way == EXPERT_READ_RING && k->memory_bytes <= MOST_REGISTERED_BYTES) {
        opt.memory = k->memory;
        opt.memory_bytes = k->memory_bytes;
    }
    return expert_reader_create(k->m, k->bank->src, &opt, out, err);
}

typedef struct trial {
    status rc[N_CANDIDATES];       /* whether it could be made */
    double speed[N_CANDIDATES];    /* best round; 0: none */
    char refused[N_CANDIDATES][EXPERT_READER_WHY_BYTES]; /* why not */
} trial;

/* The best of a few rounds of every candidate, taken in turns; one reader exists at a time, as the plan says. */
static void try_all(chooser *k, trial *t) {
    for (int round = 0; round < (k->region.n_bytes > 0 ? PROBE_ROUNDS : 1); round++) {
        for (int i = 0; i < N_CANDIDATES; i++) {
            error why = {0};
            expert_reader *r;
            if (round > 0 && t->rc[i] != STATUS_OK) continue;
            t->rc[i] = make(k, candidates[i].way, candidates[i].depth, false, &r, &why);
            if (t->rc[i] != STATUS_OK) {
                snprintf(t->refused[i], sizeof t->refused[i], "%.*s", EXPERT_READER_WHY_BYTES - 1, why.text);
                continue;
            }
            const double v = k->region.n_bytes > 0 ? round_speed(k, r) : 0;
            if (v > t->speed[i]) t->speed[i] = v;
            expert_reader_destroy(r);
        }
    }
}

static void explain(const trial *t, int best, expert_reader_choice *c) {
    size_t n = (size_t)snprintf(c->why, sizeof c->why, "experts are read by %s, depth %d", expert_read_way_name(c->way), c->depth);
    for (int i = 0; t->speed[best] > 0 && i < N_CANDIDATES && n < sizeof c->why; i++) {
        if (t->speed[i] > 0) n += (size_t)snprintf(c->why + n, sizeof c->why - n, "%s %s/%d %.2f GB/s", i == 0 ? ";" : ",", expert_read_way_name(candidates[i].way), candidates[i].depth, t->speed[i] / 1e9);
    }
    for (int i = 0; i < N_CANDIDATES; i++) {
        if (t->refused[i][0] == '\0' || n >= sizeof c->why) continue;
        snprintf(c->why + n, sizeof c->why - n, "; %.300s", t->refused[i]); /* of the way that was preferred */
        break;
    }
}

static status choose_freely(chooser *k, expert_reader **out, expert_reader_choice *choice, error *err) {
    trial t = {0};
    int best = -1;
    TRY(find_region(k, err));
    try_all(k, &t);
    for (int i = 0; i < N_CANDIDATES; i++) {
        if (t.rc[i] == STATUS_NO_MEMORY) return error_set(err, STATUS_NO_MEMORY, "%s", t.refused[i]);
        if (t.rc[i] == STATUS_OK && (best < 0 || t.speed[i] > t.speed[best] * candidates[i].gain)) best = i;
    }
    if (best < 0) return error_set(err, t.rc[N_CANDIDATES - 1], "%s", t.refused[N_CANDIDATES - 1]);
    TRY(make(k, candidates[best].way, candidates[best].depth, true, out, err));
    *choice = (expert_reader_choice){.way = candidates[best].way, .depth = candidates[best].depth, .bytes_per_s = t.speed[best]};
    explain(&t, best, choice);
    return STATUS_OK;
}

status expert_reader_choose(mem *m, const expert_bank *bank, int32_t way_wanted, int32_t depth_wanted, int32_t n_fills, bool ahead, void *memory, size_t memory_bytes,
                            expert_reader **out, expert_reader_choice *choice, error *err) {
    static const int32_t depths[] = {4, 8, 64}; /* by way */
    chooser k = {.m = m, .bank = bank, .n_fills = n_fills, .ahead = ahead, .memory = memory, .memory_bytes = memory_bytes, .random = 1};
    if (bank->padded && way_wanted == 0 && source_is_plain(bank->src)) return choose_freely(&k, out, choice, err);
    const expert_read_way way = way_wanted > 0 && bank->padded ? (expert_read_way)(way_wanted - 1) : EXPERT_READ_BUFFERED;
    const int32_t depth = depth_wanted > 0 ? depth_wanted : depths[way];
    TRY(make(&k, way, depth, true, out, err));
    *choice = (expert_reader_choice){.way = way, .depth = depth};
    snprintf(choice->why, sizeof choice->why, "experts are read by %s, depth %d%s", expert_read_way_name(way), depth, bank->padded ? "" : ": they are small");
    return STATUS_OK;
}
