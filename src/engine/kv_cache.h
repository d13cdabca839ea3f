/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The KV pages of an engine: one pool per KV group, a page table per sequence, and the prefix cache over both. Pure bookkeeping; which bytes a page is, the model knows.
 *
 * A table's entries are absolute page indices of a sequence (entry i: positions i * page_tokens ..). All groups grow in step; a group with a window gives up the pages that no later row
 * can see, and their entries are -1. A full page whose block of tokens is computed gets a name (block_hash.h, chained, starting from a salt) and is found by later sequences with the same
 * beginning: they share it, nothing is copied, and since only full pages have names and the last token is always computed anew, a shared page is never written again.
 *
 * Groups without pages (recurrent layers) keep one state per running sequence, which cannot be shared and holds the whole past. Snapshots of it are kept at some boundaries, in a pool of
 * their own, as a part of the block that ends there; a boundary without one can serve nobody. They are taken at the last boundary in front of a prompt's last token, every snapshot_blocks
 * blocks (so that what is computed anew is bounded), and at a boundary that a look-up found every other group to know (where prompts part that begin alike). A chunk of rows ends at each.
 *
 * Invariants (kv_cache_check walks them, given all tables):
 *   1. each pool's own; ref of a page = number of tables that hold it
 *   2. a block has at least one page, is found under its name, and pool.block of its pages names it; each page with a block is one of that block's pages
 *   3. a table holds exactly the entries [first[g], n_pages) of group g; no page twice within a table
 *   4. snapshots are a pool too: each that is not free belongs to a block, and its ref = number of tables that are to be restored from it
 * Least recently used pages go first, and of one sequence the last ones, because a hit needs the beginning. A snapshot goes with any page of its block, or when another needs its place.
 * Owned by the engine's thread.
 */
#ifndef HEADRACE_ENGINE_KV_CACHE_H
#define HEADRACE_ENGINE_KV_CACHE_H

#include "engine/block_hash.h"
#include "engine/kv_pool.h"
#include "model/step.h"

typedef struct kv_group_plan {
    bool paged;      /* false: state per sequence slot, no pages (recurrent layers) */
    int64_t window;  /* positions a row sees, itself included; 0 = all */
    int32_t n_pages;
} kv_group_plan;

typedef struct kv_cache_options {
    int32_t n_groups, page_tokens, max_pages; /* max_pages: of one sequence */
    kv_group_plan groups[STEP_MAX_GROUPS];
    int32_t n_snapshots, snapshot_blocks;     /* of groups without pages: how many are kept at most; a sequence's every so many blocks */
    bool prefix;                              /* false: no page is remembered */
    block_name key;
} kv_cache_options;

typedef struct kv_table {
    int32_t *pages[STEP_MAX_GROUPS]; /* [capacity], owned by the sequence */
    int32_t n_pages;                 /* entries in use, of every paged group */
    int32_t first[STEP_MAX_GROUPS];  /* entries before are given up */
    block_name name;                 /* of the n_named first blocks */
    int32_t n_named;
    int32_t restore;                 /* snapshot that the state has to be copied from before the next row, held until then; -1: none */
    int32_t branch;                  /* blocks that all groups with pages could have served, more than the hit; 0 */
} kv_table;

typedef struct kv_block {
    block_name name;
    int32_t next;    /* in the bucket, or in the list of unused blocks */
    int32_t n_pages; /* groups that have a page of it, and its snapshot; 0: unused */
} kv_block;

typedef struct kv_cache {
    mem *m;
    kv_cache_options opt;
    kv_pool pools[STEP_MAX_GROUPS + 1]; /* one after the groups: snapshots */
    kv_block *blocks;
    int32_t *block_pages; /* [n_blocks, n_groups + 1]; -1 */
    int32_t *buckets;     /* [n_buckets], a power of two */
    int32_t *match;       /* [max_pages]: scratch of a look-up */
    block_name *names;    /* [max_pages + 1]: likewise */
    int32_t n_blocks, n_buckets, unused;
    uint64_t n_evicted;
    uint64_t changes;     /* grows whenever a page became available or got a name: a refused admission need not be tried again before */
} kv_cache;

NODISCARD status kv_cache_init(kv_cache *c, mem *m, const kv_cache_options *opt, error *err);
void kv_cache_deinit(kv_cache *c);
/** Bytes that init allocates. */
size_t kv_cache_bytes(const kv_cache_options *opt);

/** Start a table whose names continue from `salt` (block_hash of model, numerics and tenant). */
void kv_table_begin(const kv_cache *c, kv_table *t, block_name salt);
int32_t kv_pages_for(const kv_cache *c, int32_t n_positions);
/** Pages of a group that a sequence computed in chunks of up to chunk rows holds at most, up to n_positions. */
int32_t kv_pages_at_most(const kv_cache *c, int32_t g, int32_t n_positions, int32_t chunk);
/** Free or cached pages of a group. */
int32_t kv_available(const kv_cache *c, int32_t g);
/** The largest number of positions the table could hold without anyone giving up a page. */
int32_t kv_room(const kv_cache *c, const kv_table *t);

/** Hold pages for n_positions; false, and nothing changed, when a group has too few. Evicts cached pages. */
NODISCARD bool kv_grow(kv_cache *c, kv_table *t, int32_t n_positions);
/** Positions below n_computed are computed: name the full blocks among them, give up what is behind the windows. */
void kv_advance(kv_cache *c, kv_table *t, const int32_t *tokens, int32_t n_computed);
/**
 * For an empty table: share the pages of the longest known beginning of tokens[0, n), at most `limit` positions, that every group can serve. Returns the positions, whole pages; with
 * t->restore >= 0 the owner copies that snapshot before it computes on, and says so by kv_restored.
 */
int32_t kv_attach(kv_cache *c, kv_table *t, const int32_t *tokens, int32_t limit);
void kv_restored(kv_cache *c, kv_table *t);
/** The first position behind n_computed at which the state of a sequence with this prompt is to be kept: no chunk of rows may pass it. INT32_MAX: none. */
int32_t kv_next_snapshot(const kv_cache *c, const kv_table *t, int32_t n_computed, int32_t n_prompt);
/** After kv_advance: the snapshot that takes the sequence's state now (the owner copies it at once, or calls kv_forget_snapshot); -1: none is due or its place is taken. */
int32_t kv_keep_state(kv_cache *c, kv_table *t, int32_t n_computed, int32_t n_prompt);
void kv_forget_snapshot(kv_cache *c, int32_t snapshot);
/** Give up every page; the table can begin anew. */
void kv_release(kv_cache *c, kv_table *t);
/** Forget every cached page. */
void kv_forget_all(kv_cache *c);

/** All invariants, given every table that holds pages. Linear in pages, blocks and table entries; allocates scratch from m. */
bool kv_cache_check(const kv_cache *c, const kv_table *const *tables, int32_t n_tables);

#endif
