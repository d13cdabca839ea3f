/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The tokens of a tokenizer: id to bytes, and bytes to id for the tokens that the model may produce ("reachable"). Built once, then
 * constant.
 *
 * A token has two texts: its key, in the model's spelling (what merges and look-ups compare; for byte-level vocabularies the raw bytes),
 * and its piece, the bytes it contributes to decoded text. They share storage where they are equal.
 */
#ifndef HEADRACE_TEXT_VOCAB_H
#define HEADRACE_TEXT_VOCAB_H

#include <stdint.h>

#include "base/alloc.h"

enum {
    VOCAB_PRESENT = 1u << 0,   /* the id has a token */
    VOCAB_REACHABLE = 1u << 1, /* found by its key */
    VOCAB_SPECIAL = 1u << 2,   /* control: BOS, end of turn, ... */
    VOCAB_ADDED = 1u << 3,     /* matched in text before the model runs */
    VOCAB_HIDDEN = 1u << 4,    /* not reachable, but found by vocab_find_hidden */
    VOCAB_REWRITTEN = 1u << 5  /* while a vocabulary is built: the piece holds the token's normalized text, not yet decoded */
};

enum { VOCAB_MAX_TOKENS = 1 << 24, VOCAB_MAX_PROBES = 8192 };

typedef struct vocab_slot {
    int32_t id_plus_1; /* 0 = free */
    uint32_t tag;      /* more of the hash, so that a miss seldom looks at the token */
} vocab_slot;

typedef struct vocab {
    mem *m;
    int32_t n; /* ids are 0..n-1 */
    char *bytes;
    size_t n_bytes, cap_bytes;
    uint32_t *key_off, *key_len, *piece_off, *piece_len;
    uint8_t *attr;
    vocab_slot *slots;
    size_t n_slots; /* a power of two */
    size_t n_reachable;
} vocab;

/** n ids without tokens; room_bytes is a hint. Zero *v before. */
NODISCARD status vocab_init(vocab *v, mem *m, size_t n, size_t room_bytes, error *err);
void vocab_deinit(vocab *v);

/** Give id (in range, not present) a key; its piece is the same. Reachable keys must be unique, and so must hidden
 * ones among themselves: STATUS_FORMAT names both ids.
 */
NODISCARD status vocab_set(vocab *v, int32_t id, const char *key, size_t n, uint32_t attr, error *err);
/** Give id another piece, copied, or shared where it is part of a key. */
NODISCARD status vocab_set_piece(vocab *v, int32_t id, const char *piece, size_t n, error *err);

/** The reachable id of a key, or -1. */
int32_t vocab_find(const vocab *v, const char *key, size_t n);
/** The hidden id of a key, or -1. */
int32_t vocab_find_hidden(const vocab *v, const char *key, size_t n);

static inline const char *vocab_key(const vocab *v, int32_t id, size_t *n) {
    *n = v->key_len[id];
    return v->bytes + v->key_off[id];
}

static inline const char *vocab_piece(const vocab *v, int32_t id, size_t *n) {
    *n = v->piece_len[id];
    return v->bytes + v->piece_off[id];
}

/** A well-mixed hash of bytes; not secret, so tables bound their probes. */
uint64_t vocab_hash(const char *s, size_t n);

#endif
