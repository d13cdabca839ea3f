/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Byte-pair encoding (Sennrich, Haddow, Birch 2016): a word's symbols are joined, lowest merge rank first and leftmost among equals, until
 * no adjacent pair has a merge. A heap over a linked list: O(n log n) in the length of the word, whatever the word.
 *
 * Symbols to begin with: of a byte-level model the bytes, otherwise the characters. One without a token becomes the tokens of its bytes
 * (byte fallback; for a byte-level model those of the character that spells it), the unknown token, or nothing, in that order.
 */
#ifndef HEADRACE_TEXT_BPE_H
#define HEADRACE_TEXT_BPE_H

#include "text/tokenizer.h"
#include "text/vocab.h"

typedef struct bpe_merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX = free */
    uint32_t rank;
    int32_t merged; /* id of the joined token */
} bpe_merge;

typedef struct bpe {
    mem *m;
    const vocab *v;
    bpe_merge *slots;
    size_t n_slots; /* a power of two */
    size_t n_merges;
    int32_t byte_ids[256];     /* byte level: the symbol of a byte; -1 = none */
    int32_t fallback_ids[256]; /* the tokens <0xNN>; -1 = none */
    int32_t unk_id;            /* -1 = none */
    bool byte_level, byte_fallback, fuse_unk;
    bool ignore_merges; /* a word that is a token is that token */
} bpe;

/** Tables for n_merges merges over v, which must outlive b. Zero *b before; set the flags, unk_id and ids of bytes after. */
NODISCARD status bpe_init(bpe *b, mem *m, const vocab *v, size_t n_merges, error *err);
void bpe_deinit(bpe *b);

/** The merge of two tokens with a rank. A pair that is given twice keeps the lower rank when keep_first, else the later one. */
NODISCARD status bpe_add_merge(bpe *b, int32_t left, int32_t right, int32_t merged, uint32_t rank, bool keep_first, error *err);
/** Find byte_ids and fallback_ids among the reachable keys. */
void bpe_find_bytes(bpe *b);

typedef struct bpe_symbol {
    int32_t id; /* -1 = joined into its left neighbour */
    uint32_t prev, next;
} bpe_symbol;

typedef struct bpe_candidate {
    uint64_t order; /* rank << 32 | position of the left symbol */
    int32_t merged;
} bpe_candidate;

/** Working memory of one encode call; zero-initialise except m. */
typedef struct bpe_scratch {
    mem *m;
    bpe_symbol *symbols;
    size_t cap_symbols;
    bpe_candidate *heap;
    size_t cap_heap;
    uint64_t n_steps; /* work done so far: symbols made, slots of the merge table looked at, levels of the heap passed */
} bpe_scratch;
void bpe_scratch_deinit(bpe_scratch *s);

/** Append the ids of one word (n >= 1 bytes; UTF-8 unless byte level; less than 2^31 bytes). */
NODISCARD status bpe_encode(const bpe *b, bpe_scratch *s, const char *word, size_t n, token_list *out, error *err);

#endif
