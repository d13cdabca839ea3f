/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The accountant. Each block is [header of 64 bytes | payload]; the charge is the header plus the payload rounded up to the
 * alignment. A charge is made by compare-and-swap, first on the tag and then on the sum, so no interleaving takes `used` past a
 * limit; the limit is read again afterwards, because mem_set_limit stores first and then looks at `used` (one of the two notices).
 */
#include "base/alloc.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/log.h"

#define MAGIC_LIVE UINT64_C(0x6865616472616365)
#define MAGIC_DEAD UINT64_C(0x646561646465616c)

/* The allocator below keeps its own links in the first bytes of a freed block, so the magic is last. */
typedef struct block {
    mem *owner;
    size_t size_bytes, charged_bytes;
    mem_tag tag;
    uint8_t padding[64 - 3 * 8 - 4 - 8];
    uint64_t magic; /* MAGIC_* mixed with the address */
} block;

_Static_assert(sizeof(block) == MEM_HEADER_BYTES, "header size");

typedef struct account {
    _Alignas(64) _Atomic size_t used, peak, limit;
    _Atomic uint64_t n_allocs, n_live;
} account;

struct mem {
    account tags[MEM_TAG_COUNT];
    account total;
    _Atomic uint64_t n_attempts, n_violations;
    _Atomic uint64_t fail_left; /* UINT64_MAX: injection is off */
    _Atomic int n_guards;
    _Atomic pthread_t guard_thread; /* of the guards in force */
    pthread_mutex_t limit_lock;     /* one mem_set_limit at a time */
};

static const char *const tag_names[MEM_TAG_COUNT] = {
#define X(id, name, text) [id] = name,
    MEM_TAG_LIST(X)
#undef X
};

const char *mem_tag_name(mem_tag tag) {
    if ((int)tag < 0 || tag >= MEM_TAG_COUNT) return "unknown";
    return tag_names[tag];
}

status mem_create(mem **out) {
    void *p = NULL;
    if (posix_memalign(&p, MEM_ALIGN, sizeof(mem))) return STATUS_NO_MEMORY;
    mem *m = p;
    memset(m, 0, sizeof *m);
    for (int i = 0; i < MEM_TAG_COUNT; i++) atomic_init(&m->tags[i].limit, SIZE_MAX);
    atomic_init(&m->total.limit, SIZE_MAX);
    atomic_init(&m->fail_left, UINT64_MAX);
    if (pthread_mutex_init(&m->limit_lock, NULL)) {
        free(m);
        return STATUS_FAILED;
    }
    *out = m;
    return STATUS_OK;
}

status mem_destroy(mem *m) {
    if (!m) return STATUS_OK;
    status rc = STATUS_OK;
    for (int i = 0; i < MEM_TAG_COUNT; i++) {
        size_t used = atomic_load(&m->tags[i].used);
        uint64_t n_live = atomic_load(&m->tags[i].n_live);
        if (used == 0 && n_live == 0) continue;
        log_error("alloc: %zu bytes tagged %s not given back (%llu blocks)", used, tag_names[i], (unsigned long long)n_live);
        rc = STATUS_BUG;
    }
    assert(atomic_load(&m->n_guards) == 0);
    pthread_mutex_destroy(&m->limit_lock);
    free(m);
    return rc;
}

static status set_limit(mem *m, account *a, size_t limit_bytes) {
    status rc = STATUS_OK;
    pthread_mutex_lock(&m->limit_lock);
    size_t before = atomic_exchange(&a->limit, limit_bytes);
    if (atomic_load(&a->used) > limit_bytes) {
        atomic_store(&a->limit, before);
        rc = STATUS_DOES_NOT_FIT;
    }
    pthread_mutex_unlock(&m->limit_lock);
    return rc;
}

status mem_set_limit(mem *m, mem_tag tag, size_t limit_bytes) { return set_limit(m, &m->tags[tag], limit_bytes); }
status mem_set_total_limit(mem *m, size_t limit_bytes) { return set_limit(m, &m->total, limit_bytes); }

static void account_subtract(account *a, size_t bytes) {
    size_t before = atomic_fetch_sub(&a->used, bytes);
    assert(before >= bytes);
    (void)before;
}

static bool account_add(account *a, size_t bytes) {
    size_t used = atomic_load(&a->used), after;
    do {
        if (!checked_add_size(used, bytes, &after) || after > atomic_load(&a->limit)) return false;
    } while (!atomic_compare_exchange_weak(&a->used, &used, after));
    if (after > atomic_load(&a->limit)) {
        account_subtract(a, bytes);
        return false;
    }
    size_t peak = atomic_load_explicit(&a->peak, memory_order_relaxed);
    while (peak < after && !atomic_compare_exchange_weak_explicit(&a->peak, &peak, after, memory_order_relaxed, memory_order_relaxed)) {}
    return true;
}

/* Whether guard and injection let an attempt through; counts it. */
static bool attempt_allowed(mem *m) {
    atomic_fetch_add_explicit(&m->n_attempts, 1, memory_order_relaxed);
    if (atomic_load(&m->n_guards) > 0 && pthread_equal(atomic_load(&m->guard_thread), pthread_self())) {
        atomic_fetch_add(&m->n_violations, 1);
        return false;
    }
    uint64_t left = atomic_load(&m->fail_left);
    do {
        if (left == UINT64_MAX) return true;
        if (left == 0) return false;
    } while (!atomic_compare_exchange_weak(&m->fail_left, &left, left - 1));
    return true;
}

static bool charge(mem *m, mem_tag tag, size_t bytes) {
    if (!attempt_allowed(m)) return false;
    if (!account_add(&m->tags[tag], bytes)) return false;
    if (!account_add(&m->total, bytes)) {
        account_subtract(&m->tags[tag], bytes);
        return false;
    }
    return true;
}

static void uncharge(mem *m, mem_tag tag, size_t bytes) {
    account_subtract(&m->total, bytes);
    account_subtract(&m->tags[tag], bytes);
}

status mem_charge(mem *m, mem_tag tag, size_t bytes) {
    assert((int)tag >= 0 && tag < MEM_TAG_COUNT);
    return charge(m, tag, bytes) ? STATUS_OK : STATUS_NO_MEMORY;
}

void mem_uncharge(mem *m, mem_tag tag, size_t bytes) {
    assert((int)tag >= 0 && tag < MEM_TAG_COUNT);
    uncharge(m, tag, bytes);
}

static uint64_t magic_at(uint64_t magic, const block *b) { return magic ^ (uint64_t)(uintptr_t)b; }

void *mem_alloc(mem *m, mem_tag tag, size_t bytes) {
    assert((int)tag >= 0 && tag < MEM_TAG_COUNT);
    size_t rounded, charged;
    if (!checked_align_size(bytes, MEM_ALIGN, &rounded) || !checked_add_size(rounded, MEM_HEADER_BYTES, &charged) ||
        charged > PTRDIFF_MAX) {
        attempt_allowed(m); /* counts */
        return NULL;
    }
    if (!charge(m, tag, charged)) return NULL;
    void *p = NULL;
    if (posix_memalign(&p, MEM_ALIGN, MEM_HEADER_BYTES + bytes)) { /* not rounded: an overrun is visible to ASan */
        uncharge(m, tag, charged);
        return NULL;
    }
    block *b = p;
    *b = (block){.owner = m, .size_bytes = bytes, .charged_bytes = charged, .tag = tag, .magic = magic_at(MAGIC_LIVE, b)};
    atomic_fetch_add_explicit(&m->tags[tag].n_allocs, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->tags[tag].n_live, 1, memory_order_relaxed);
    return b + 1;
}

void *mem_calloc(mem *m, mem_tag tag, size_t n, size_t size) {
    size_t bytes;
    if (!checked_mul_size(n, size, &bytes)) {
        attempt_allowed(m); /* counts */
        return NULL;
    }
    void *p = mem_alloc(m, tag, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

/* The header of a live block of m; NULL (after an assertion in debug builds) for anything else. */
static block *block_of(const mem *m, void *p) {
    block *b = (block *)p - 1;
    bool ours = ((uintptr_t)p % MEM_ALIGN) == 0 && b->magic == magic_at(MAGIC_LIVE, b) && b->owner == m;
    assert(ours && "double free, foreign pointer, or a write before the block");
    if (!ours) {
        log_error("alloc: %p is no live block of this allocator; left alone", p);
        return NULL;
    }
    return b;
}

void mem_free(mem *m, void *p) {
    if (!p) return;
    block *b = block_of(m, p);
    if (!b) return;
    mem_tag tag = b->tag;
    size_t charged = b->charged_bytes;
    b->magic = magic_at(MAGIC_DEAD, b);
    free(b);
    atomic_fetch_sub_explicit(&m->tags[tag].n_live, 1, memory_order_relaxed);
    uncharge(m, tag, charged);
}

/* A larger block is a new one: while both exist, both are charged. Shrinking a little stays in place and keeps its charge. */
void *mem_realloc(mem *m, mem_tag tag, void *p, size_t bytes) {
    if (!p) return mem_alloc(m, tag, bytes);
    block *b = block_of(m, p);
    if (!b) return NULL;
    if (bytes <= b->size_bytes && bytes >= b->size_bytes / 2) return p;
    void *q = mem_alloc(m, b->tag, bytes);
    if (!q) return bytes <= b->size_bytes ? p : NULL;
    size_t keep = bytes < b->size_bytes ? bytes : b->size_bytes;
    if (keep) memcpy(q, p, keep);
    mem_free(m, p);
    return q;
}

char *mem_strdup(mem *m, mem_tag tag, const char *s) { return mem_strndup(m, tag, s, strlen(s)); }

char *mem_strndup(mem *m, mem_tag tag, const char *s, size_t n) {
    size_t len = strnlen(s, n), bytes;
    if (!checked_add_size(len, 1, &bytes)) return NULL;
    char *p = mem_alloc(m, tag, bytes);
    if (!p) return NULL;
    memcpy(p, s, len);
    p[len] = 0;
    return p;
}

status mem_alloc_named(mem *m, mem_tag tag, size_t bytes, const char *what, void **out, error *err) {
    void *p = mem_alloc(m, tag, bytes);
    if (p) {
        *out = p;
        return STATUS_OK;
    }
    mem_usage u, total;
    mem_get_usage(m, tag, &u);
    mem_get_total(m, &total);
    if (u.limit_bytes != SIZE_MAX)
        return error_set(err, STATUS_NO_MEMORY, "alloc: %zu bytes for %s refused: tag %s uses %zu of %zu", bytes, what, mem_tag_name(tag),
                         u.used_bytes, u.limit_bytes);
    if (total.limit_bytes != SIZE_MAX)
        return error_set(err, STATUS_NO_MEMORY, "alloc: %zu bytes for %s refused: tag %s uses %zu, all tags use %zu of %zu", bytes, what,
                         mem_tag_name(tag), u.used_bytes, total.used_bytes, total.limit_bytes);
    return error_set(err, STATUS_NO_MEMORY, "alloc: %zu bytes for %s refused: tag %s uses %zu, without a limit", bytes, what,
                     mem_tag_name(tag), u.used_bytes);
}

static void read_account(const account *a, mem_usage *out) {
    /* The casts drop const for compilers whose atomic_load wants a non-const object. */
    account *v = (account *)(uintptr_t)a;
    out->used_bytes = atomic_load(&v->used);
    out->peak_bytes = atomic_load(&v->peak);
    out->limit_bytes = atomic_load(&v->limit);
    out->n_allocs = atomic_load(&v->n_allocs);
    out->n_live = atomic_load(&v->n_live);
}

void mem_get_usage(const mem *m, mem_tag tag, mem_usage *out) {
    assert((int)tag >= 0 && tag < MEM_TAG_COUNT);
    read_account(&m->tags[tag], out);
}

void mem_get_total(const mem *m, mem_usage *out) {
    read_account(&m->total, out);
    for (int i = 0; i < MEM_TAG_COUNT; i++) {
        mem_usage u;
        read_account(&m->tags[i], &u);
        out->n_allocs += u.n_allocs;
        out->n_live += u.n_live;
    }
}

void mem_guard_begin(mem *m) {
    assert(atomic_load(&m->n_guards) == 0 || pthread_equal(atomic_load(&m->guard_thread), pthread_self()));
    atomic_store(&m->guard_thread, pthread_self());
    atomic_fetch_add(&m->n_guards, 1);
}

void mem_guard_end(mem *m) {
    int before = atomic_fetch_sub(&m->n_guards, 1);
    assert(before > 0);
    (void)before;
}

uint64_t mem_guard_violations(const mem *m) { return atomic_load(&((mem *)(uintptr_t)m)->n_violations); }

void mem_fail_after(mem *m, uint64_t n) { atomic_store(&m->fail_left, n < UINT64_MAX ? n : UINT64_MAX - 1); }
void mem_fail_off(mem *m) { atomic_store(&m->fail_left, UINT64_MAX); }
uint64_t mem_alloc_count(const mem *m) { return atomic_load(&((mem *)(uintptr_t)m)->n_attempts); }
