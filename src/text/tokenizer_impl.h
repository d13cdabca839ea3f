/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a tokenizer is made of, for the files that build one from a container. Text goes: added tokens that are matched in raw text,
 * normalizer, added tokens that are matched in normalized text, pre-tokenizer, byte-pair encoding; then ids that the post-processor puts
 * around it.
 *
 * A builder fills the parts of a zeroed tokenizer (tokenizer_new) and calls tokenizer_finish; tokenizer_close accepts a half-built one.
 */
#ifndef HEADRACE_TEXT_TOKENIZER_IMPL_H
#define HEADRACE_TEXT_TOKENIZER_IMPL_H

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"

enum { TOKENIZER_MAX_AFFIX = 16, TOKENIZER_MAX_ENDS = 32 };

/* What decoding does to the joined pieces; what it does to each piece is done when the tokenizer is built. */
typedef struct decode_rule {
    bool spaces;        /* a space between tokens: files without a decoder */
    char strip_char[8]; /* at the very start up to n_strip of this character go (n_strip_char bytes; 0 = none) */
    uint32_t n_strip_char, n_strip;
    char drop_char[8]; /* in the very first token all of this character go: its text is taken from the key */
    uint32_t n_drop_char;
} decode_rule;

struct tokenizer {
    mem *m;
    char kind[64];
    vocab v;
    bpe model;
    pattern_context *patterns;
    normalizer norm;
    decode_rule decode;
    pre_tokenizer pre;
    added_set added_raw, added_normalized;
    int32_t bos_id;
    bool adds_bos;
    int32_t prefix[TOKENIZER_MAX_AFFIX], suffix[TOKENIZER_MAX_AFFIX]; /* what the post-processor adds, bos_id included */
    int n_prefix, n_suffix;
    int32_t ends[TOKENIZER_MAX_ENDS];
    size_t n_ends;
    char *chat_template;
    uint64_t *work; /* for tests: encoding adds the steps of bpe_scratch to it; NULL otherwise */
};

NODISCARD status tokenizer_new(mem *m, tokenizer **out, error *err);
/** Sort the added tokens, find bytes, check ids. */
NODISCARD status tokenizer_finish(tokenizer *t, const tokenizer_options *opt, error *err);
/** Ids out of range and repeated ones are left out; more than TOKENIZER_MAX_ENDS too. */
void tokenizer_add_end(tokenizer *t, int64_t id);
/** Find control tokens by the texts that published models end a turn or a document with. */
void tokenizer_find_ends(tokenizer *t);

/** Leave out the added tokens with ids from `rows` on: the model has no rows for them. STATUS_FORMAT when the model can produce one. */
NODISCARD status tokenizer_limit(tokenizer *t, int64_t rows, error *err);

/** Build from the tokenizer.json of a directory. */
NODISCARD status tokenizer_from_json(tokenizer *t, const source *s, error *err);
/** The same from its text. */
NODISCARD status tokenizer_from_json_text(tokenizer *t, const char *text, size_t n, error *err);

/** Build from GGUF metadata. */
NODISCARD status tokenizer_from_gguf(tokenizer *t, const meta *gguf, error *err);

#endif
