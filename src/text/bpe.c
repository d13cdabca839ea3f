/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The heap holds one candidate per adjacent pair that had a merge when it was pushed. A popped candidate is stale when its left symbol is
 * gone or when the pair now at that place joins to another token; stale ones are dropped. Each join pushes at most two, so at most 3n are
 * pushed.
 */
#include "text/bpe.h"

#include <string.h>

#include "base/checked.h"
#include "text/utf8.h"

static const uint32_t none = UINT32_MAX;

static uint64_t pair_key(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

static size_t pair_slot(uint64_t pair, size_t n_slots) {
    uint64_t h = pair * 0x9e3779b97f4a7c15u;
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    return (size_t)(h >> 20) & (n_slots - 1);
}

status bpe_init(bpe *b, mem *m, const vocab *v, size_t n_merges, error *err) {
    if (n_merges > VOCAB_MAX_TOKENS)
        return error_set(err, STATUS_FORMAT, "tokenizer: %zu merges; at most %d are read", n_merges, VOCAB_MAX_TOKENS);
    b->m = m;
    b->v = v;
    b->unk_id = -1;
    for (int i = 0; i < 256; i++) b->byte_ids[i] = -1;
    b->n_slots = 16;
    while (b->n_slots < n_merges + n_merges / 2) b->n_slots *= 2;
    void *slots = NULL;
    TRY(mem_alloc_named(m, MEM_TOKENIZER, b->n_slots * sizeof *b->slots, "the table of merges", &slots, err));
    b->slots = slots;
    memset(slots, 0xff, b->n_slots * sizeof *b->slots);
    return STATUS_OK;
}

void bpe_deinit(bpe *b) {
    if (b->m) mem_free(b->m, b->slots);
    memset(b, 0, sizeof *b);
}

status bpe_add_merge(bpe *b, int32_t left, int32_t right, int32_t merged, uint32_t rank, bool keep_first, error *err) {
    uint64_t pair = pair_key(left, right);
    size_t mask = b->n_slots - 1, i = pair_slot(pair, b->n_slots);
    for (int probe = 0; probe < VOCAB_MAX_PROBES; probe++, i = (i + 1) & mask) {
        bpe_merge *slot = &b->slots[i];
        if (slot->pair == pair && keep_first) return STATUS_OK;
        if (slot->pair != pair && slot->pair != UINT64_MAX) continue;
        if (slot->pair == UINT64_MAX) b->n_merges++;
        *slot = (bpe_merge){.pair = pair, .rank = rank, .merged = merged};
        return STATUS_OK;
    }
    return error_set(err, STATUS_FORMAT, "tokenizer: merge %u: too many merges share a hash", rank);
}

static const bpe_merge *find_merge(const bpe *b, int32_t left, int32_t right) {
    uint64_t pair = pair_key(left, right);
    size_t mask = b->n_slots - 1, i = pair_slot(pair, b->n_slots);
    for (int probe = 0; probe < VOCAB_MAX_PROBES; probe++, i = (i + 1) & mask) {
        const bpe_merge *slot = &b->slots[i];
        if (slot->pair == pair) return slot;
        if (slot->pair == UINT64_MAX) return NULL;
    }
    return NULL;
}

void bpe_find_bytes(bpe *b) {
    static const char hex[] = "0123456789ABCDEF";
    for (unsigned i = 0; i < 256; i++) {
        char byte = (char)i, code[] = {'<', '0', 'x', hex[i >> 4], hex[i & 15], '>'};
        b->byte_ids[i] = b->byte_level ? vocab_find(b->v, &byte, 1) : vocab_find(b->v, code, sizeof code);
    }
}

void bpe_scratch_deinit(bpe_scratch *s) {
    mem_free(s->m, s->symbols);
    mem_free(s->m, s->heap);
    *s = (bpe_scratch){.m = s->m};
}

/* Room for the symbols and candidates of a word of n bytes. */
static status reserve(bpe_scratch *s, size_t n, error *err) {
    if (n > INT32_MAX / 4) return error_set(err, STATUS_INVALID, "tokenizer: a word of %zu bytes is too long", n);
    if (n > s->cap_symbols) {
        size_t cap = s->cap_symbols ? s->cap_symbols : 64;
        while (cap < n) cap *= 2;
        mem_free(s->m, s->symbols);
        mem_free(s->m, s->heap);
        s->cap_symbols = s->cap_heap = 0;
        s->symbols = mem_alloc(s->m, MEM_TOKENIZER, cap * sizeof *s->symbols);
        s->heap = mem_alloc(s->m, MEM_TOKENIZER, 3 * cap * sizeof *s->heap);
        if (!s->symbols || !s->heap) return error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory for a word of %zu bytes", n);
        s->cap_symbols = cap;
        s->cap_heap = 3 * cap;
    }
    return STATUS_OK;
}

static void add_symbol(bpe_scratch *s, size_t *n, int32_t id) {
    s->symbols[*n].id = id;
    (*n)++;
}

/* The characters of a word as symbols; returns their number. An unknown token waits (in *unk) so that neighbours can fuse with it; it is
   not flushed by byte tokens, which is how the published implementation orders them. */
static size_t character_symbols(const bpe *b, bpe_scratch *s, const char *word, size_t n) {
    size_t n_symbols = 0;
    bool unk_waits = false;
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = utf8_decode(word + i, n - i, &cp);
        if (len == 0) len = 1;
        int32_t id = vocab_find(b->v, word + i, len);
        if (id >= 0) {
            if (unk_waits) add_symbol(s, &n_symbols, b->unk_id);
            unk_waits = false;
            add_symbol(s, &n_symbols, id);
            continue;
        }
        bool bytes = b->byte_fallback;
        for (size_t k = 0; bytes && k < len; k++) bytes = b->byte_ids[(uint8_t)word[i + k]] >= 0;
        if (bytes) {
            for (size_t k = 0; k < len; k++) add_symbol(s, &n_symbols, b->byte_ids[(uint8_t)word[i + k]]);
        } else if (b->unk_id >= 0) {
            if (unk_waits && !b->fuse_unk) add_symbol(s, &n_symbols, b->unk_id);
            unk_waits = true;
        }
    }
    if (unk_waits) add_symbol(s, &n_symbols, b->unk_id);
    return n_symbols;
}

static size_t byte_symbols(const bpe *b, bpe_scratch *s, const char *word, size_t n) {
    size_t n_symbols = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t id = b->byte_ids[(uint8_t)word[i]];
        if (id < 0) id = b->unk_id;
        if (id >= 0) add_symbol(s, &n_symbols, id);
    }
    return n_symbols;
}

static void push(bpe_candidate *heap, size_t *n, bpe_candidate c) {
    size_t i = (*n)++;
    while (i > 0) {
        size_t parent = (i - 1) / 2;
        if (heap[parent].order <= c.order) break;
        heap[i] = heap[parent];
        i = parent;
    }
    heap[i] = c;
}

static bpe_candidate pop(bpe_candidate *heap, size_t *n) {
    bpe_candidate top = heap[0], last = heap[--*n];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < *n) {
        if (child + 1 < *n && heap[child + 1].order < heap[child].order) child++;
        if (last.order <= heap[child].order) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

static void push_pair(const bpe *b, bpe_scratch *s, size_t *n_heap, uint32_t left, uint32_t right) {
    const bpe_merge *merge = find_merge(b, s->symbols[left].id, s->symbols[right].id);
    if (merge) push(s->heap, n_heap, (bpe_candidate){.order = (uint64_t)merge->rank << 32 | left, .merged = merge->merged});
}

static void join_symbols(const bpe *b, bpe_scratch *s, size_t n) {
    size_t n_heap = 0;
    bpe_symbol *symbols = s->symbols;
    for (size_t i = 0; i < n; i++) {
        symbols[i].prev = i > 0 ? (uint32_t)(i - 1) : none;
        symbols[i].next = i + 1 < n ? (uint32_t)(i + 1) : none;
        if (i > 0) push_pair(b, s, &n_heap, (uint32_t)(i - 1), (uint32_t)i);
    }
    while (n_heap > 0) {
        bpe_candidate top = pop(s->heap, &n_heap);
        uint32_t at = (uint32_t)top.order, next = symbols[at].next;
        if (symbols[at].id < 0 || next == none) continue;
        const bpe_merge *merge = find_merge(b, symbols[at].id, symbols[next].id);
        if (!merge || merge->merged != top.merged) continue;
        symbols[at].id = top.merged;
        symbols[at].next = symbols[next].next;
        symbols[next].id = -1;
        if (symbols[at].next != none) {
            symbols[symbols[at].next].prev = at;
            push_pair(b, s, &n_heap, at, symbols[at].next);
        }
        if (symbols[at].prev != none) push_pair(b, s, &n_heap, symbols[at].prev, at);
    }
}

status bpe_encode(const bpe *b, bpe_scratch *s, const char *word, size_t n, token_list *out, error *err) {
    if (b->ignore_merges) {
        int32_t id = vocab_find(b->v, word, n);
        if (id >= 0) return token_list_add(out, id);
    }
    TRY(reserve(s, n, err));
    size_t n_symbols = b->byte_level ? byte_symbols(b, s, word, n) : character_symbols(b, s, word, n);
    if (n_symbols > 1) join_symbols(b, s, n_symbols);
    for (size_t i = 0; i < n_symbols; i++)
        if (s->symbols[i].id >= 0) TRY(token_list_add(out, s->symbols[i].id));
    return STATUS_OK;
}
