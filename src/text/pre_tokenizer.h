/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Pre-tokenizers: what cuts text into the words that the model encodes one by one. A list of steps, each applied to every piece that the
 * one before left; a piece that becomes empty is dropped. Constant once built.
 *
 * All published kinds are made of four: cut at a pattern, put something in front, replace, and respell bytes in the byte-level alphabet.
 */
#ifndef HEADRACE_TEXT_PRE_TOKENIZER_H
#define HEADRACE_TEXT_PRE_TOKENIZER_H

#include "text/pattern.h"

typedef enum pre_behavior { PRE_REMOVED, PRE_ISOLATED, PRE_CONTIGUOUS, PRE_MERGED_WITH_PREVIOUS, PRE_MERGED_WITH_NEXT } pre_behavior;

typedef enum pre_kind {
    PRE_SPLIT,         /* at the matches of pattern */
    PRE_PREFIX,        /* put `text` in front of a piece that does not start with it */
    PRE_PREFIX_FIRST,  /* the same, for the piece at the very start of the input */
    PRE_REPLACE_SPACE, /* ' ' becomes `text` */
    PRE_SPELL,         /* bytes to the byte-level alphabet */
    PRE_UNSPELL        /* and back */
} pre_kind;

enum { PRE_MAX_STEPS = 64 };

typedef struct pre_step {
    pre_kind kind;
    pattern *p;
    pre_behavior behavior;
    bool invert; /* the matches are what stays, the rest is what is cut at */
    char text[8];
    size_t n_text;
} pre_step;

typedef struct pre_tokenizer {
    const pattern_context *context; /* outlives the pre-tokenizer */
    pre_step steps[PRE_MAX_STEPS];
    int n;
} pre_tokenizer;

void pre_tokenizer_init(pre_tokenizer *p, const pattern_context *context);
void pre_tokenizer_deinit(pre_tokenizer *p);
NODISCARD status pre_tokenizer_add_split(pre_tokenizer *p, const char *source, size_t n, bool literal, pre_behavior behavior, bool invert,
                                         error *err);
/** PRE_PREFIX, PRE_PREFIX_FIRST, PRE_REPLACE_SPACE (text up to 8 bytes), PRE_SPELL, PRE_UNSPELL (no text). */
NODISCARD status pre_tokenizer_add(pre_tokenizer *p, pre_kind kind, const char *text, error *err);

/** The split of byte-level tokenizers that bring none of their own (GPT-2, 2019). */
extern const char pre_byte_level_pattern[];

/** Working memory of one encode call. */
typedef struct pre_scratch {
    mem *m;
    pattern_search *search;
    textbuf text[PRE_MAX_STEPS];
} pre_scratch;
NODISCARD status pre_scratch_init(pre_scratch *s, mem *m, const pattern_context *context, error *err);
void pre_scratch_deinit(pre_scratch *s);

/** Called for each word, in order; the word is valid during the call. */
typedef status pre_word_fn(void *ctx, const char *word, size_t n, error *err);
/** text: valid UTF-8. at_start: it begins the whole input. */
NODISCARD status pre_tokenizer_run(const pre_tokenizer *p, pre_scratch *s, const char *text, size_t n, bool at_start, pre_word_fn *fn,
                                   void *ctx, error *err);

/* --- named pre-tokenizers of GGUF files --- */

typedef struct pre_named {
    const char *name; /* as `tokenizer.ggml.pre` spells it */
    const char *const
        *patterns; /* each an isolating split, "" respells the text in the byte alphabet for those behind it; NULL-terminated */
    bool nfc;      /* the family's tokenizer composes its input first (NFC) */
    bool ignore_merges;
    bool adds_bos; /* when the file does not say */
} pre_named;

/** NULL when unknown. */
const pre_named *pre_named_find(const char *name, size_t n);
/** Append the steps. */
NODISCARD status pre_named_add(const pre_named *named, pre_tokenizer *p, error *err);
/** The i-th name for messages, NULL after the last. */
const char *pre_named_at(size_t i);

#endif
