/* SPDX-License-Identifier: Apache-2.0 */
/** One pool of bytes, offsets by id, and an open-addressing table of reachable ids at most two thirds full. */
#include "text/vocab.h"

#include <string.h>

#include "base/checked.h"

static uint64_t mix(uint64_t a, uint64_t b) {
    __extension__ typedef unsigned __int128 wide;
    wide r = (wide)a * b;
    return (uint64_t)r ^ (uint64_t)(r >> 64);
}

uint64_t vocab_hash(const char *s, size_t n) {
    uint64_t h = 0x9e3779b97f4a7c15u ^ n, w;
    while (n >= 8) {
        memcpy(&w, s, 8);
        h = mix(h ^ w, 0xd6e8feb86659fd93u);
        s += 8;
        n -= 8;
    }
    w = 0;
    if (n > 0) memcpy(&w, s, n);
    return mix(h ^ w, 0xa0761d6478bd642fu);
}

status vocab_init(vocab *v, mem *m, size_t n, size_t room_bytes, error *err) {
    if (n == 0 || n > VOCAB_MAX_TOKENS)
        return error_set(err, STATUS_FORMAT, "tokenizer: %zu tokens; between 1 and %d are read", n, VOCAB_MAX_TOKENS);
    v->m = m;
    v->n = (int32_t)n;
    v->n_slots = 16;
    while (v->n_slots < n + n / 2) v->n_slots *= 2;
    v->cap_bytes = room_bytes > 64 ? room_bytes : 64;
    v->bytes = mem_alloc(m, MEM_TOKENIZER, v->cap_bytes);
    v->key_off = mem_calloc(m, MEM_TOKENIZER, n, sizeof *v->key_off);
    v->key_len = mem_calloc(m, MEM_TOKENIZER, n, sizeof *v->key_len);
    v->piece_off = mem_calloc(m, MEM_TOKENIZER, n, sizeof *v->piece_off);
    v->piece_len = mem_calloc(m, MEM_TOKENIZER, n, sizeof *v->piece_len);
    v->attr = mem_calloc(m, MEM_TOKENIZER, n, sizeof *v->attr);
    v->slots = mem_calloc(m, MEM_TOKENIZER, v->n_slots, sizeof *v->slots);
    if (!v->bytes || !v->key_off || !v->key_len || !v->piece_off || !v->piece_len || !v->attr || !v->slots)
        return error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory for the tables of %zu tokens", n);
    return STATUS_OK;
}

void vocab_deinit(vocab *v) {
    if (!v->m) return;
    mem_free(v->m, v->bytes);
    mem_free(v->m, v->key_off);
    mem_free(v->m, v->key_len);
    mem_free(v->m, v->piece_off);
    mem_free(v->m, v->piece_len);
    mem_free(v->m, v->attr);
    mem_free(v->m, v->slots);
    memset(v, 0, sizeof *v);
}

static status append_bytes(vocab *v, const char *s, size_t n, uint32_t *off, error *err) {
    size_t need;
    if (!checked_add_size(v->n_bytes, n, &need) || need > UINT32_MAX)
        return error_set(err, STATUS_FORMAT, "tokenizer: the tokens together are longer than 4 GiB");
    if (need > v->cap_bytes) {
        size_t cap = v->cap_bytes;
        while (cap < need) cap *= 2;
        char *bytes = mem_realloc(v->m, MEM_TOKENIZER, v->bytes, cap);
        if (!bytes) return error_set(err, STATUS_NO_MEMORY, "tokenizer: no memory for %zu bytes of tokens", cap);
        v->bytes = bytes;
        v->cap_bytes = cap;
    }
    if (n > 0) memcpy(v->bytes + v->n_bytes, s, n);
    *off = (uint32_t)v->n_bytes;
    v->n_bytes = need;
    return STATUS_OK;
}

static uint64_t key_hash(const char *key, size_t n, uint32_t which) {
    return vocab_hash(key, n) ^ (which == VOCAB_HIDDEN ? 0x5555555555555555u : 0);
}

/* The slot of a key, or the free slot where it belongs; SIZE_MAX when the probe runs too long. Reachable and hidden keys share the table.
 */
static size_t find_slot(const vocab *v, const char *key, size_t n, uint64_t h, uint32_t which) {
    size_t mask = v->n_slots - 1, i = (size_t)h & mask;
    uint32_t tag = (uint32_t)(h >> 32);
    for (int probe = 0; probe < VOCAB_MAX_PROBES; probe++, i = (i + 1) & mask) {
        int32_t id = v->slots[i].id_plus_1 - 1;
        if (id < 0) return i;
        if (v->slots[i].tag == tag && (v->attr[id] & which) && v->key_len[id] == n && memcmp(v->bytes + v->key_off[id], key, n) == 0)
            return i;
    }
    return SIZE_MAX;
}

status vocab_set(vocab *v, int32_t id, const char *key, size_t n, uint32_t attr, error *err) {
    size_t slot = SIZE_MAX;
    uint64_t h = 0;
    uint32_t which = attr & (VOCAB_REACHABLE | VOCAB_HIDDEN);
    if (which) {
        h = key_hash(key, n, which);
        slot = find_slot(v, key, n, h, which);
        if (slot == SIZE_MAX) return error_set(err, STATUS_FORMAT, "tokenizer: token %d: too many tokens share a hash", id);
        if (v->slots[slot].id_plus_1 > 0)
            return error_set(err, STATUS_FORMAT, "tokenizer: tokens %d and %d have the same text", v->slots[slot].id_plus_1 - 1, id);
    }
    TRY(append_bytes(v, key, n, &v->key_off[id], err));
    v->key_len[id] = v->piece_len[id] = (uint32_t)n;
    v->piece_off[id] = v->key_off[id];
    v->attr[id] = (uint8_t)(attr | VOCAB_PRESENT);
    if (which) v->slots[slot] = (vocab_slot){.id_plus_1 = id + 1, .tag = (uint32_t)(h >> 32)};
    if (attr & VOCAB_REACHABLE) v->n_reachable++;
    return STATUS_OK;
}

status vocab_set_piece(vocab *v, int32_t id, const char *piece, size_t n, error *err) {
    uintptr_t at = (uintptr_t)piece, from = (uintptr_t)v->bytes;
    if (at >= from && at - from < v->n_bytes) { /* a part of a text that is here already */
        v->piece_off[id] = (uint32_t)(at - from);
        v->piece_len[id] = (uint32_t)n;
        return STATUS_OK;
    }
    TRY(append_bytes(v, piece, n, &v->piece_off[id], err));
    v->piece_len[id] = (uint32_t)n;
    return STATUS_OK;
}

int32_t vocab_find(const vocab *v, const char *key, size_t n) {
    size_t slot = find_slot(v, key, n, key_hash(key, n, VOCAB_REACHABLE), VOCAB_REACHABLE);
    return slot == SIZE_MAX ? -1 : v->slots[slot].id_plus_1 - 1;
}

int32_t vocab_find_hidden(const vocab *v, const char *key, size_t n) {
    size_t slot = find_slot(v, key, n, key_hash(key, n, VOCAB_HIDDEN), VOCAB_HIDDEN);
    return slot == SIZE_MAX ? -1 : v->slots[slot].id_plus_1 - 1;
}
