/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The heap holds one candidate per adjacent pair that had a merge when it was pushed. A popped candidate is stale when its left symbol is
 * gone or when the pair now at that place joins to another token; stale ones are dropped. Each join pushes at most two, so at most 3n are
 * pushed.
 */
#include "text/bpe.h"

#include <string.h>

#include "text/byte_alphabet.h"
#include "base/utf8.h"

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
    for (int i = 0; i < 256; i++) b->byte_ids[i] = b->fallback_ids[i] = -1;
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

static const bpe_merge *find_merge(const bpe *b, bpe_scratch *s, int32_t left, int32_t right) {
    uint64_t pair = pair_key(left, right);
    size_t mask = b->n_slots - 1, i = pair_slot(pair, b->n_slots);
    for (int probe = 0; probe < VOCAB_MAX_PROBES; probe++, i = (i + 1) & mask) {
        const bpe_merge *slot = &b->slots[i];
        s->n_steps++;
        if (slot->pair == pair) return slot;
        if (slot->pair == UINT64_MAX) return NULL;
    }
    return NULL;
}

void bpe_find_bytes(bpe *b) {
    static const char hex[] = "0123456789ABCDEF";
    for (unsigned i = 0; i < 256; i++) {
        char byte = (char)i, code[] = {'<', '0', 'x', hex[i >> 4], hex[i & 15], '>'};
        if (b->byte_level) b->byte_ids[i] = vocab_find(b->v, &byte, 1);
        if (b->byte_fallback) b->fallback_ids[i] = vocab_find(b->v, code, sizeof code);
    }
}

void bpe_scratch_deinit(bpe_scratch *s) {
    mem_free(s->m, s->symbols);
    mem_free(s->m, s->heap);
    *s = (bpe_scratch){.m = s->m};
}

static status no_memory(size_t n, error *err) {
    return error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory for a word of %zu symbols", n);
}

static status reserve_symbols(bpe_scratch *s, size_t n, error *err) {
    if (n > INT32_MAX / 2) return error_set(err, STATUS_INVALID, "tokenizer: a word of %zu bytes is too long", n);
    if (n <= s->cap_symbols) return STATUS_OK;
    size_t cap = s->cap_symbols ? s->cap_symbols : 64;
    while (cap < n) cap *= 2;
    mem_free(s->m, s->symbols);
    s->cap_symbols = 0;
    s->symbols = mem_alloc(s->m, MEM_TOKENIZER, cap * sizeof *s->symbols);
    if (!s->symbols) return no_memory(n, err);
    s->cap_symbols = cap;
    return STATUS_OK;
}

/* Room for one more candidate beside n. */
static status reserve_heap(bpe_scratch *s, size_t n, error *err) {
    if (n < s->cap_heap) return STATUS_OK;
    size_t cap = s->cap_heap ? s->cap_heap * 2 : 64;
    bpe_candidate *heap =
        s->heap ? mem_realloc(s->m, MEM_TOKENIZER, s->heap, cap * sizeof *heap) : mem_alloc(s->m, MEM_TOKENIZER, cap * sizeof *heap);
    if (!heap) return no_memory(n, err);
    s->heap = heap;
    s->cap_heap = cap;
    return STATUS_OK;
}

static void add_symbol(bpe_scratch *s, size_t *n, int32_t id) {
    s->symbols[*n].id = id;
    (*n)++;
    s->n_steps++;
}

/* The tokens of n bytes in place of a symbol; false when not all have one. */
static bool add_fallback(const bpe *b, bpe_scratch *s, size_t *n_symbols, const char *bytes, size_t n) {
    if (!b->byte_fallback) return false;
    for (size_t k = 0; k < n; k++)
        if (b->fallback_ids[(uint8_t)bytes[k]] < 0) return false;
    for (size_t k = 0; k < n; k++) add_symbol(s, n_symbols, b->fallback_ids[(uint8_t)bytes[k]]);
    return true;
}

/* The symbol at word[0] and how many bytes it covers. */
static int32_t next_symbol(const bpe *b, const char *word, size_t n, size_t *len) {
    uint32_t cp;
    if (b->byte_level) {
        *len = 1;
        return b->byte_ids[(uint8_t)word[0]];
    }
    *len = utf8_decode(word, n, &cp);
    if (*len == 0) *len = 1;
    return vocab_find(b->v, word, *len);
}

/* A word as symbols; returns their number. An unknown token waits so that neighbours can fuse with it; tokens of bytes do not flush it,
   which is how the published implementation orders them. */
static size_t make_symbols(const bpe *b, bpe_scratch *s, const char *word, size_t n) {
    size_t n_symbols = 0;
    bool unk_waits = false;
    for (size_t i = 0, len; i < n; i += len) {
        int32_t id = next_symbol(b, word + i, n - i, &len);
        if (id >= 0) {
            if (unk_waits) add_symbol(s, &n_symbols, b->unk_id);
            unk_waits = false;
            add_symbol(s, &n_symbols, id);
            continue;
        }
        char spelled[UTF8_MAX_BYTES];
        const char *bytes = word + i;
        size_t n_bytes = len;
        if (b->byte_level) {
            n_bytes = byte_alphabet_spell(word + i, 1, spelled);
            bytes = spelled;
        }
        if (add_fallback(b, s, &n_symbols, bytes, n_bytes) || b->unk_id < 0) continue;
        if (unk_waits && !b->fuse_unk) add_symbol(s, &n_symbols, b->unk_id);
        unk_waits = true;
    }
    if (unk_waits) add_symbol(s, &n_symbols, b->unk_id);
    return n_symbols;
}

static void push(bpe_scratch *s, size_t *n, bpe_candidate c) {
    bpe_candidate *heap = s->heap;
    size_t i = (*n)++;
    while (i > 0) {
        s->n_steps++;
        size_t parent = (i - 1) / 2;
        if (heap[parent].order <= c.order) break;
        heap[i] = heap[parent];
        i = parent;
    }
    heap[i] = c;
}

static bpe_candidate pop(bpe_scratch *s, size_t *n) {
    bpe_candidate *heap = s->heap;
    bpe_candidate top = heap[0], last = heap[--*n];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < *n) {
        s->n_steps++;
        if (child + 1 < *n && heap[child + 1].order < heap[child].order) child++;
        if (last.order <= heap[child].order) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

static status push_pair(const bpe *b, bpe_scratch *s, size_t *n_heap, uint32_t left, uint32_t right, error *err) {
    const bpe_merge *merge = find_merge(b, s, s->symbols[left].id, s->symbols[right].id);
    if (!merge) return STATUS_OK;
    TRY(reserve_heap(s, *n_heap, err));
    push(s, n_heap, (bpe_candidate){.order = (uint64_t)merge->rank << 32 | left, .merged = merge->merged});
    return STATUS_OK;
}

static status join_symbols(const bpe *b, bpe_scratch *s, size_t n, error *err) {
    size_t n_heap = 0;
    bpe_symbol *symbols = s->symbols;
    for (size_t i = 0; i < n; i++) {
        symbols[i].prev = i > 0 ? (uint32_t)(i - 1) : none;
        symbols[i].next = i + 1 < n ? (uint32_t)(i + 1) : none;
        if (i > 0) TRY(push_pair(b, s, &n_heap, (uint32_t)(i - 1), (uint32_t)i, err));
    }
    while (n_heap > 0) {
        bpe_candidate top = pop(s, &n_heap);
        uint32_t at = (uint32_t)top.order, next = symbols[at].next;
        if (symbols[at].id < 0 || next == none) continue;
        const bpe_merge *merge = find_merge(b, s, symbols[at].id, symbols[next].id);
        if (!merge || merge->merged != top.merged) continue;
        symbols[at].id = top.merged;
        symbols[at].next = symbols[next].next;
        symbols[next].id = -1;
        if (symbols[at].next != none) {
            symbols[symbols[at].next].prev = at;
            TRY(push_pair(b, s, &n_heap, at, symbols[at].next, err));
        }
        if (symbols[at].prev != none) TRY(push_pair(b, s, &n_heap, symbols[at].prev, at, err));
    }
    return STATUS_OK;
}

status bpe_encode(const bpe *b, bpe_scratch *s, const char *word, size_t n, token_list *out, error *err) {
    if (b->ignore_merges) {
        int32_t id = vocab_find(b->v, word, n);
        if (id >= 0) return token_list_add(out, id);
    }
    TRY(reserve_symbols(s, b->byte_level && b->byte_fallback ? 2 * n : n, err));
    size_t n_symbols = make_symbols(b, s, word, n);
    if (n_symbols > 1) TRY(join_symbols(b, s, n_symbols, err));
    for (size_t i = 0; i < n_symbols; i++)
        if (s->symbols[i].id >= 0) TRY(token_list_add(out, s->symbols[i].id));
    return STATUS_OK;
}
