/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks in a list; the first is there from the start and survives a reset, so a reused arena stops asking for memory. */
#include "base/arena.h"

#include <string.h>

#include "base/checked.h"

typedef struct chunk {
    struct chunk *next;
    size_t capacity_bytes, used_bytes;
    uint8_t padding[MEM_ALIGN - 3 * 8];
} chunk; /* the payload follows */

_Static_assert(sizeof(chunk) == MEM_ALIGN, "the payload is aligned");

struct arena {
    mem *m;
    mem_tag tag;
    bool fixed;
    size_t chunk_bytes;
    chunk *first;   /* of chunk_bytes; lives as long as the arena */
    chunk *current; /* where small objects go */
    chunk *others;  /* every chunk but the first, current among them */
    size_t used_bytes, peak_bytes;
};

static chunk *chunk_create(mem *m, mem_tag tag, size_t capacity_bytes) {
    size_t bytes;
    if (!checked_add_size(capacity_bytes, sizeof(chunk), &bytes)) return NULL;
    chunk *c = mem_alloc(m, tag, bytes);
    if (c) *c = (chunk){.capacity_bytes = capacity_bytes};
    return c;
}

static status create(mem *m, mem_tag tag, size_t bytes, bool fixed, arena **out) {
    size_t rounded;
    if (!checked_align_size(bytes ? bytes : 1, MEM_ALIGN, &rounded)) return STATUS_NO_MEMORY;
    arena *a = mem_alloc(m, tag, sizeof *a);
    if (!a) return STATUS_NO_MEMORY;
    *a = (arena){.m = m, .tag = tag, .fixed = fixed, .chunk_bytes = rounded, .first = chunk_create(m, tag, rounded)};
    if (!a->first) {
        mem_free(m, a);
        return STATUS_NO_MEMORY;
    }
    a->current = a->first;
    *out = a;
    return STATUS_OK;
}

status arena_create(mem *m, mem_tag tag, size_t chunk_bytes, arena **out) { return create(m, tag, chunk_bytes, false, out); }

status arena_create_fixed(mem *m, mem_tag tag, size_t capacity_bytes, arena **out) { return create(m, tag, capacity_bytes, true, out); }

static void free_others(arena *a) {
    while (a->others) {
        chunk *c = a->others;
        a->others = c->next;
        mem_free(a->m, c);
    }
}

void arena_destroy(arena *a) {
    if (!a) return;
    free_others(a);
    mem_free(a->m, a->first);
    mem_free(a->m, a);
}

void arena_reset(arena *a) {
    free_others(a);
    a->first->used_bytes = 0;
    a->current = a->first;
    a->used_bytes = 0;
}

static chunk *chunk_with_room(arena *a, size_t bytes) {
    chunk *c = a->current;
    if (c->capacity_bytes - c->used_bytes >= bytes) return c;
    if (a->fixed) return NULL;
    bool large = bytes > a->chunk_bytes;
    c = chunk_create(a->m, a->tag, large ? bytes : a->chunk_bytes);
    if (!c) return NULL;
    c->next = a->others;
    a->others = c;
    if (!large) a->current = c;
    return c;
}

void *arena_alloc(arena *a, size_t bytes) {
    size_t rounded;
    if (!checked_align_size(bytes ? bytes : 1, MEM_ALIGN, &rounded)) return NULL;
    chunk *c = chunk_with_room(a, rounded);
    if (!c) return NULL;
    void *p = (uint8_t *)(c + 1) + c->used_bytes;
    c->used_bytes += rounded;
    a->used_bytes += rounded;
    if (a->used_bytes > a->peak_bytes) a->peak_bytes = a->used_bytes;
    return p;
}

void *arena_calloc(arena *a, size_t n, size_t size) {
    size_t bytes;
    if (!checked_mul_size(n, size, &bytes)) return NULL;
    void *p = arena_alloc(a, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

char *arena_strdup(arena *a, const char *s) { return arena_strndup(a, s, strlen(s)); }

char *arena_strndup(arena *a, const char *s, size_t n) {
    size_t len = strnlen(s, n), bytes;
    if (!checked_add_size(len, 1, &bytes)) return NULL;
    char *p = arena_alloc(a, bytes);
    if (!p) return NULL;
    memcpy(p, s, len);
    p[len] = 0;
    return p;
}

size_t arena_used(const arena *a) { return a->used_bytes; }
size_t arena_peak(const arena *a) { return a->peak_bytes; }
