/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables over pools, and the prefix cache. The cache is a chained hash table of blocks; a block lists its page per group, and goes when its last page goes. A window group can serve a
 * boundary with the blocks that cover its window alone, so the look-up names every block first and then takes the last boundary for which each group's run of known pages is long enough.
 * Snapshots of states are pages of one more pool, n_groups, at most one per block.
 */
#include "engine/kv_cache.h"

#include <assert.h>
#include <string.h>

static int32_t max_i32(int32_t a, int32_t b) { return a > b ? a : b; }
static int32_t min_i32(int32_t a, int32_t b) { return a < b ? a : b; }

static bool paged(const kv_cache *c, int32_t g) { return c->opt.groups[g].paged; }

static int32_t snapshots_of(const kv_cache_options *o) { return o->prefix ? o->n_snapshots : 0; }

/* Blocks: there can be as many as pages and snapshots, since each has one at least. */
static int32_t block_count(const kv_cache_options *o) {
    int64_t n = snapshots_of(o);
    for (int32_t g = 0; g < o->n_groups; g++) n += o->groups[g].paged ? o->groups[g].n_pages : 0;
    return o->prefix ? (int32_t)(n < INT32_MAX / 4 ? n : INT32_MAX / 4) : 0;
}

static int32_t bucket_count(int32_t n_blocks) {
    int32_t n = 1;
    while (n < n_blocks) n *= 2;
    return n;
}

size_t kv_cache_bytes(const kv_cache_options *o) {
    const size_t blocks = (size_t)block_count(o);
    size_t bytes = blocks * (sizeof(kv_block) + ((size_t)o->n_groups + 1) * sizeof(int32_t)) + (size_t)bucket_count((int32_t)blocks) * sizeof(int32_t);
    for (int32_t g = 0; g < o->n_groups; g++) bytes += o->groups[g].paged ? (size_t)o->groups[g].n_pages * KV_POOL_BYTES_PER_PAGE : 0;
    bytes += (size_t)snapshots_of(o) * KV_POOL_BYTES_PER_PAGE;
    return bytes + ((size_t)o->max_pages + 1) * (sizeof(int32_t) + sizeof(block_name)) + (9 + STEP_MAX_GROUPS) * (size_t)(MEM_HEADER_BYTES + MEM_ALIGN);
}

status kv_cache_init(kv_cache *c, mem *m, const kv_cache_options *opt, error *err) {
    *c = (kv_cache){.m = m, .opt = *opt, .unused = -1};
    c->n_blocks = block_count(opt);
    c->n_buckets = bucket_count(c->n_blocks);
    for (int32_t g = 0; g < opt->n_groups; g++) TRY(kv_pool_init(&c->pools[g], m, paged(c, g) ? opt->groups[g].n_pages : 0, err));
    TRY(kv_pool_init(&c->pools[opt->n_groups], m, snapshots_of(opt), err));
    const size_t columns = (size_t)opt->n_groups + 1;
    void *p;
    TRY(mem_alloc_named(m, MEM_ENGINE, (size_t)c->n_blocks * sizeof *c->blocks, "the prefix cache", &p, err));
    c->blocks = p;
    TRY(mem_alloc_named(m, MEM_ENGINE, (size_t)c->n_blocks * columns * sizeof(int32_t), "the prefix cache", &p, err));
    c->block_pages = p;
    TRY(mem_alloc_named(m, MEM_ENGINE, (size_t)c->n_buckets * sizeof(int32_t), "the prefix cache", &p, err));
    c->buckets = p;
    TRY(mem_alloc_named(m, MEM_ENGINE, ((size_t)opt->max_pages + 1) * sizeof(int32_t), "the prefix cache", &p, err));
    c->match = p;
    TRY(mem_alloc_named(m, MEM_ENGINE, ((size_t)opt->max_pages + 1) * sizeof(block_name), "the prefix cache", &p, err));
    c->names = p;
    for (int32_t i = 0; i < c->n_buckets; i++) c->buckets[i] = -1;
    for (int32_t i = c->n_blocks - 1; i >= 0; i--) {
        c->blocks[i] = (kv_block){.next = c->unused};
        c->unused = i;
    }
    for (size_t i = 0; i < (size_t)c->n_blocks * columns; i++) c->block_pages[i] = -1;
    return STATUS_OK;
}

void kv_cache_deinit(kv_cache *c) {
    if (c->m == NULL) return;
    for (int32_t g = 0; g <= c->opt.n_groups; g++) kv_pool_deinit(&c->pools[g]);
    void *const all[] = {c->blocks, c->block_pages, c->buckets, c->match, c->names};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) mem_free(c->m, all[i]);
    *c = (kv_cache){0};
}

/* ---- blocks ---- */

static int32_t *pages_of(const kv_cache *c, int32_t block) { return c->block_pages + (size_t)block * ((size_t)c->opt.n_groups + 1); }

static int32_t *snapshot_of(const kv_cache *c, int32_t block) { return &pages_of(c, block)[c->opt.n_groups]; }

static int32_t *bucket_of(const kv_cache *c, block_name name) { return &c->buckets[name.a & (uint64_t)(c->n_buckets - 1)]; }

static int32_t find_block(const kv_cache *c, block_name name) {
    for (int32_t i = *bucket_of(c, name); i >= 0; i = c->blocks[i].next) {
        if (c->blocks[i].name.a == name.a && c->blocks[i].name.b == name.b) return i;
    }
    return -1;
}

static int32_t new_block(kv_cache *c, block_name name) {
    const int32_t i = c->unused;
    if (i < 0) return -1;
    c->unused = c->blocks[i].next;
    int32_t *bucket = bucket_of(c, name);
    c->blocks[i] = (kv_block){.name = name, .next = *bucket};
    *bucket = i;
    return i;
}

static void retire_block(kv_cache *c, int32_t block) {
    int32_t *at = bucket_of(c, c->blocks[block].name);
    while (*at != block) at = &c->blocks[*at].next;
    *at = c->blocks[block].next;
    c->blocks[block] = (kv_block){.next = c->unused};
    c->unused = block;
}

/* Takes a page, or a snapshot, out of its block. */
static void forget_page(kv_cache *c, int32_t g, int32_t page) {
    const int32_t block = c->pools[g].block[page];
    kv_pool_forget(&c->pools[g], page);
    pages_of(c, block)[g] = -1;
    if (--c->blocks[block].n_pages == 0) retire_block(c, block);
}

void kv_forget_all(kv_cache *c) {
    for (int32_t g = 0; g <= c->opt.n_groups; g++) {
        while (c->pools[g].oldest >= 0) forget_page(c, g, c->pools[g].oldest);
    }
}

/* ---- sizes ---- */

int32_t kv_pages_for(const kv_cache *c, int32_t n_positions) { return (n_positions + c->opt.page_tokens - 1) / c->opt.page_tokens; }

int32_t kv_pages_at_most(const kv_cache *c, int32_t g, int32_t n_positions, int32_t chunk) {
    if (!paged(c, g)) return 0;
    const int32_t all = kv_pages_for(c, n_positions);
    const int64_t window = c->opt.groups[g].window;
    if (window == 0) return all;
    /* positions first - window + 1 .. first + chunk - 1, wherever they lie on the pages */
    const int64_t seen = (window - 1 + chunk + c->opt.page_tokens - 2) / c->opt.page_tokens + 1;
    return seen < all ? (int32_t)seen : all;
}

int32_t kv_available(const kv_cache *c, int32_t g) { return c->pools[g].n_free + c->pools[g].n_cached; }

int32_t kv_room(const kv_cache *c, const kv_table *t) {
    int32_t most = c->opt.max_pages;
    for (int32_t g = 0; g < c->opt.n_groups; g++) {
        if (paged(c, g)) most = min_i32(most, t->n_pages + kv_available(c, g));
    }
    return most > INT32_MAX / c->opt.page_tokens ? INT32_MAX : most * c->opt.page_tokens;
}

/* ---- tables ---- */

void kv_table_begin(const kv_cache *c, kv_table *t, block_name salt) {
    (void)c;
    t->n_pages = t->n_named = t->branch = 0;
    t->restore = -1;
    memset(t->first, 0, sizeof t->first);
    t->name = salt;
}

static int32_t take_page(kv_cache *c, int32_t g) {
    kv_pool *p = &c->pools[g];
    if (p->n_free == 0) {
        assert(p->oldest >= 0);
        const int32_t block = p->block[p->oldest];
        forget_page(c, g, p->oldest);
        const int32_t snapshot = *snapshot_of(c, block); /* of no use without the page */
        if (snapshot >= 0 && c->pools[c->opt.n_groups].ref[snapshot] == 0) forget_page(c, c->opt.n_groups, snapshot);
        c->n_evicted++;
    }
    return kv_pool_take(p);
}

bool kv_grow(kv_cache *c, kv_table *t, int32_t n_positions) {
    const int32_t n = kv_pages_for(c, n_positions);
    for (int32_t g = 0; g < c->opt.n_groups; g++) {
        if (paged(c, g) && n - t->n_pages > kv_available(c, g)) return false;
    }
    for (int32_t g = 0; g < c->opt.n_groups; g++) {
        for (int32_t i = t->n_pages; paged(c, g) && i < n; i++) t->pages[g][i] = take_page(c, g);
    }
    t->n_pages = max_i32(t->n_pages, n);
    return true;
}

static void drop(kv_cache *c, int32_t g, int32_t page) {
    if (kv_pool_drop(&c->pools[g], page)) c->changes++;
}

/* Gives the newest full block its name, and its pages to the block of that name unless that has pages of its own. */
static void name_block(kv_cache *c, kv_table *t) {
    int32_t block = find_block(c, t->name);
    for (int32_t g = 0; g < c->opt.n_groups; g++) {
        if (!paged(c, g) || t->n_named < t->first[g]) continue;
        const int32_t page = t->pages[g][t->n_named];
        if (c->pools[g].block[page] >= 0) continue; /* shared: it has its name */
        if (block < 0) block = new_block(c, t->name);
        if (block < 0 || pages_of(c, block)[g] >= 0) continue;
        pages_of(c, block)[g] = page;
        c->blocks[block].n_pages++;
        c->pools[g].block[page] = block;
        c->changes++;
    }
}

void kv_advance(kv_cache *c, kv_table *t, const int32_t *tokens, int32_t n_computed) {
    const int32_t page_tokens = c->opt.page_tokens;
    while (c->opt.prefix && (t->n_named + 1) * page_tokens <= n_computed) {
        t->name = block_hash_next(c->opt.key, t->name, tokens + (size_t)t->n_named * (size_t)page_tokens, page_tokens);
        name_block(c, t);
        t->n_named++;
    }
    for (int32_t g = 0; g < c->opt.n_groups; g++) {
        const int64_t window = c->opt.groups[g].window;
        if (!paged(c, g) || window == 0) continue;
        const int64_t first_seen = n_computed - window + 1; /* by the next row */
        while (t->first[g] < t->n_pages && (int64_t)(t->first[g] + 1) * page_tokens <= first_seen) {
            drop(c, g, t->pages[g][t->first[g]]);
            t->pages[g][t->first[g]++] = -1;
        }
    }
}

void kv_release(kv_cache *c, kv_table *t) {
    for (int32_t g = 0; g < c->opt.n_groups; g++) {
        for (int32_t i = t->n_pages - 1; paged(c, g) && i >= t->first[g]; i--) drop(c, g, t->pages[g][i]);
    }
    t->n_pages = 0;
    kv_restored(c, t);
}

/* ---- hits ---- */

/* The first block that group g needs to go on at the boundary after `n` blocks. */
static int32_t first_needed(const kv_cache *c, int32_t g, int32_t n) {
    const int64_t window = c->opt.groups[g].window, pos = (int64_t)n * c->opt.page_tokens;
    if (window == 0 || pos < window) return 0;
    return (int32_t)((pos - window + 1) / c->opt.page_tokens);
}

/* The last boundary, in blocks, that every group can serve, of the n first; *branch: that those with pages can serve. Fills names and match. */
static int32_t longest_hit(kv_cache *c, const kv_table *t, const int32_t *tokens, int32_t n, int32_t *branch) {
    int32_t run[STEP_MAX_GROUPS] = {0}, best = 0;
    bool states = false;
    for (int32_t g = 0; g < c->opt.n_groups; g++) states |= !paged(c, g);
    *branch = 0;
    c->names[0] = t->name;
    for (int32_t i = 0; i < n; i++) {
        bool all = true;
        c->names[i + 1] = block_hash_next(c->opt.key, c->names[i], tokens + (size_t)i * (size_t)c->opt.page_tokens, c->opt.page_tokens);
        c->match[i] = find_block(c, c->names[i + 1]);
        for (int32_t g = 0; g < c->opt.n_groups; g++) {
            if (!paged(c, g)) continue;
            run[g] = c->match[i] >= 0 && pages_of(c, c->match[i])[g] >= 0 ? run[g] + 1 : 0;
            all = all && run[g] >= i + 1 - first_needed(c, g, i + 1);
        }
        if (!all) continue;
        *branch = i + 1;
        if (!states || (c->match[i] >= 0 && *snapshot_of(c, c->match[i]) >= 0)) best = i + 1;
    }
    if (*branch == best) *branch = 0;
    return best;
}

int32_t kv_attach(kv_cache *c, kv_table *t, const int32_t *tokens, int32_t limit) {
    assert(t->n_pages == 0 && t->n_named == 0 && t->restore < 0);
    if (!c->opt.prefix || c->n_blocks == 0) return 0;
    const int32_t best = longest_hit(c, t, tokens, min_i32(limit / c->opt.page_tokens, c->opt.max_pages), &t->branch);
    for (int32_t g = 0; g < c->opt.n_groups; g++) {
        if (!paged(c, g)) continue;
        t->first[g] = best > 0 ? first_needed(c, g, best) : 0;
        for (int32_t i = 0; i < t->first[g]; i++) t->pages[g][i] = -1;
        for (int32_t i = t->first[g]; i < best; i++) {
            t->pages[g][i] = pages_of(c, c->match[i])[g];
            kv_pool_share(&c->pools[g], t->pages[g][i]);
        }
    }
    if (best > 0 && c->match[best - 1] >= 0) t->restore = *snapshot_of(c, c->match[best - 1]);
    if (t->restore >= 0) kv_pool_share(&c->pools[c->opt.n_groups], t->restore);
    t->n_pages = t->n_named = best;
    t->name = c->names[best];
    return best * c->opt.page_tokens;
}

/* ---- snapshots ---- */

void kv_restored(kv_cache *c, kv_table *t) {
    if (t->restore >= 0) (void)kv_pool_drop(&c->pools[c->opt.n_groups], t->restore);
    t->restore = -1;
}

int32_t kv_next_snapshot(const kv_cache *c, const kv_table *t, int32_t n_computed, int32_t n_prompt) {
    if (c->pools[c->opt.n_groups].n_pages == 0) return INT32_MAX;
    const int32_t page_tokens = c->opt.page_tokens, done = n_computed / page_tokens, every = c->opt.snapshot_blocks;
    const int32_t last = (n_prompt - 1) / page_tokens;
    int32_t next = c->opt.max_pages + 1;
    if (every > 0) next = min_i32(next, (done / every + 1) * every);
    if (last > done) next = min_i32(next, last);
    if (t->branch > done) next = min_i32(next, t->branch);
    return next <= c->opt.max_pages ? next * page_tokens : INT32_MAX;
}

int32_t kv_keep_state(kv_cache *c, kv_table *t, int32_t n_computed, int32_t n_prompt) {
    kv_pool *p = &c->pools[c->opt.n_groups];
    if (n_computed < 1 || kv_next_snapshot(c, t, n_computed - 1, n_prompt) != n_computed) return -1;
    const int32_t block = find_block(c, t->name);
    if (block < 0) return -1;
    if (*snapshot_of(c, block) >= 0) { /* the same past: it is younger now */
        kv_pool_share(p, *snapshot_of(c, block));
        (void)kv_pool_drop(p, *snapshot_of(c, block));
        return -1;
    }
    if (p->n_free == 0 && p->oldest >= 0) forget_page(c, c->opt.n_groups, p->oldest);
    const int32_t snapshot = kv_pool_take(p);
    if (snapshot < 0) return -1; /* all are about to be restored */
    *snapshot_of(c, block) = snapshot;
    p->block[snapshot] = block;
    c->blocks[block].n_pages++;
    drop(c, c->opt.n_groups, snapshot);
    return snapshot;
}

void kv_forget_snapshot(kv_cache *c, int32_t snapshot) { forget_page(c, c->opt.n_groups, snapshot); }

/* ---- check ---- */

static bool check_blocks(const kv_cache *c) {
    int32_t used = 0, unused = 0;
    for (int32_t i = 0; i < c->n_blocks; i++) {
        int32_t n = 0;
        for (int32_t g = 0; g <= c->opt.n_groups; g++) {
            const int32_t page = pages_of(c, i)[g];
            if (page < 0) continue;
            if (page >= c->pools[g].n_pages || c->pools[g].block[page] != i) return false;
            n++;
        }
        if (n != c->blocks[i].n_pages) return false;
        used += n > 0;
        if (n > 0 && find_block(c, c->blocks[i].name) != i) return false;
    }
    for (int32_t i = c->unused; i >= 0; i = c->blocks[i].next) {
        if (++unused > c->n_blocks || c->blocks[i].n_pages != 0) return false;
    }
    return used + unused == c->n_blocks;
}

static bool check_refs(const kv_cache *c, int32_t g, const kv_table *const *tables, int32_t n_tables, int32_t *count, int32_t *last) {
    const kv_pool *p = &c->pools[g];
    for (int32_t i = 0; i < p->n_pages; i++) {
        count[i] = 0;
        last[i] = -1;
        const int32_t block = p->block[i];
        if (block >= 0 && (block >= c->n_blocks || pages_of(c, block)[g] != i)) return false;
    }
    for (int32_t k = 0; k < n_tables; k++) {
        const kv_table *t = tables[k];
        for (int32_t i = 0; i < t->n_pages; i++) {
            const int32_t page = t->pages[g][i];
            if (i < t->first[g]) {
                if (page != -1) return false;
                continue;
            }
            if (page < 0 || page >= p->n_pages || last[page] == k) return false;
            last[page] = k;
            count[page]++;
        }
    }
    return memcmp(count, p->ref, (size_t)p->n_pages * sizeof *count) == 0;
}

static bool check_snapshots(const kv_cache *c, const kv_table *const *tables, int32_t n_tables) {
    const kv_pool *p = &c->pools[c->opt.n_groups];
    for (int32_t i = 0; i < p->n_pages; i++) {
        int32_t n = 0;
        for (int32_t k = 0; k < n_tables; k++) n += tables[k]->restore == i;
        if (n != p->ref[i] || (p->ref[i] > 0 && p->block[i] < 0)) return false;
        if (p->block[i] >= 0 && (p->block[i] >= c->n_blocks || *snapshot_of(c, p->block[i]) != i)) return false;
    }
    for (int32_t k = 0; k < n_tables; k++) {
        if (tables[k]->restore >= p->n_pages) return false;
    }
    return kv_pool_check(p);
}

bool kv_cache_check(const kv_cache *c, const kv_table *const *tables, int32_t n_tables) {
    bool good = check_blocks(c) && check_snapshots(c, tables, n_tables);
    for (int32_t g = 0; good && g < c->opt.n_groups; g++) {
        const size_t n = (size_t)c->pools[g].n_pages;
        if (!paged(c, g)) continue;
        int32_t *scratch = mem_calloc(c->m, MEM_ENGINE, 2 * n + 1, sizeof *scratch);
        good = scratch != NULL && kv_pool_check(&c->pools[g]) && check_refs(c, g, tables, n_tables, scratch, scratch + n);
        mem_free(c->m, scratch);
    }
    return good;
}
