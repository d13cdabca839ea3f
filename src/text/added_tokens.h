/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Tokens that are matched in text before the model sees it: control tokens and the words that a vocabulary's author added. At each place
 * the longest one matches; matches do not overlap. A match that its flags discard still covers its text, as in the published
 * implementation.
 */
#ifndef HEADRACE_TEXT_ADDED_TOKENS_H
#define HEADRACE_TEXT_ADDED_TOKENS_H

#include <stdint.h>

#include "base/textbuf.h"

enum {
    ADDED_SPECIAL = 1u << 0,     /* matched only when special tokens are parsed */
    ADDED_SINGLE_WORD = 1u << 1, /* only between characters that are not of words */
    ADDED_LSTRIP = 1u << 2,      /* takes the white space to its left along */
    ADDED_RSTRIP = 1u << 3
};

enum { ADDED_MAX_BYTES = 4096 };

typedef struct added_token {
    uint32_t off, n; /* of its text in the set's bytes */
    uint32_t flags;
    int32_t id;
} added_token;

typedef struct added_set {
    mem *m;
    added_token *tokens; /* sorted by text once finished */
    size_t n, cap;
    textbuf bytes;
    uint32_t first[8]; /* bit b: some token begins with byte b */
} added_set;

static inline const char *added_text(const added_set *s, const added_token *t) { return s->bytes.data + t->off; }

void added_set_init(added_set *s, mem *m);
void added_set_deinit(added_set *s);
/** Copies text; empty text is left out. */
NODISCARD status added_set_add(added_set *s, const char *text, size_t n, int32_t id, uint32_t flags, error *err);
/** Sort; two tokens with one text are STATUS_FORMAT. */
NODISCARD status added_set_finish(added_set *s, error *err);

/** The id of a text among all tokens of the set, or -1; slow. with: flags it must have. */
int32_t added_set_find(const added_set *s, const char *text, size_t n, uint32_t with);

/** Called for each part of the text, in order: a token (id >= 0) or text between tokens (id -1), never empty. */
typedef status added_part_fn(void *ctx, int32_t id, const char *text, size_t n, error *err);
NODISCARD status added_set_split(const added_set *s, const char *text, size_t n, bool parse_special, added_part_fn *fn, void *ctx,
                                 error *err);

#endif
