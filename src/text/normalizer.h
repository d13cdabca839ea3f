/* SPDX-License-Identifier: Apache-2.0 */
/** Normalizers: what a tokenizer does to text before it is cut. A list of steps over the whole text. Constant once built. */
#ifndef HEADRACE_TEXT_NORMALIZER_H
#define HEADRACE_TEXT_NORMALIZER_H

#include "text/pattern.h"

typedef enum normalizer_kind {
    NORMALIZER_NFC,
    NORMALIZER_NFD,
    NORMALIZER_NFKC,
    NORMALIZER_NFKD,
    NORMALIZER_REPLACE,    /* each match of the pattern becomes `text` */
    NORMALIZER_PREPEND,    /* `text` in front of what is not empty */
    NORMALIZER_LOWERCASE,  /* each code point on its own, no context */
    NORMALIZER_STRIP_LEFT, /* white space */
    NORMALIZER_STRIP_RIGHT,
    NORMALIZER_STRIP_ACCENTS, /* all marks */
    NORMALIZER_NMT,           /* control characters go, odd spaces become ' ' (the rules of sentencepiece's "nmt") */
    NORMALIZER_SPELL          /* bytes to the byte-level alphabet */
} normalizer_kind;

enum { NORMALIZER_MAX_STEPS = 32 };

typedef struct normalizer_step {
    normalizer_kind kind;
    pattern *p;
    char *text;
    size_t n_text;
} normalizer_step;

typedef struct normalizer {
    mem *m;
    const pattern_context *context; /* outlives the normalizer */
    normalizer_step steps[NORMALIZER_MAX_STEPS];
    int n;
} normalizer;

void normalizer_init(normalizer *z, mem *m, const pattern_context *context);
void normalizer_deinit(normalizer *z);
/** A step without a pattern; text for NORMALIZER_PREPEND, else NULL. */
NODISCARD status normalizer_add(normalizer *z, normalizer_kind kind, const char *text, size_t n, error *err);
NODISCARD status normalizer_add_replace(normalizer *z, const char *source, size_t n, bool literal, const char *text, size_t n_text,
                                        error *err);

/** Working memory of one encode call; search is borrowed. */
typedef struct normalizer_scratch {
    textbuf text[2]; /* steps go back and forth */
    int32_t *code_points;
    size_t cap;
    pattern_search *search;
} normalizer_scratch;
void normalizer_scratch_init(normalizer_scratch *s, mem *m, pattern_search *search);
void normalizer_scratch_deinit(normalizer_scratch *s);

/** text: valid UTF-8. *out points into text or into s, valid until the next call with s. */
NODISCARD status normalizer_run(const normalizer *z, normalizer_scratch *s, const char *text, size_t n, const char **out, size_t *n_out,
                                error *err);

#endif
