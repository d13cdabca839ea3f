/* SPDX-License-Identifier: Apache-2.0 */
/** Normalizers: what a tokenizer does to text before it is cut. A list of steps over the whole text. Constant once built. */
#ifndef HEADRACE_TEXT_NORMALIZER_H
#define HEADRACE_TEXT_NORMALIZER_H

#include "text/pattern.h"

typedef enum normalizer_kind { NORMALIZER_NFC, NORMALIZER_NFD, NORMALIZER_NFKC, NORMALIZER_NFKD } normalizer_kind;

enum { NORMALIZER_MAX_STEPS = 32 };

typedef struct normalizer_step {
    normalizer_kind kind;
} normalizer_step;

typedef struct normalizer {
    mem *m;
    normalizer_step steps[NORMALIZER_MAX_STEPS];
    int n;
} normalizer;

void normalizer_init(normalizer *z, mem *m);
void normalizer_deinit(normalizer *z);
NODISCARD status normalizer_add(normalizer *z, normalizer_kind kind, error *err);

/** Working memory of one encode call. */
typedef struct normalizer_scratch {
    textbuf text[2]; /* steps go back and forth */
    int32_t *code_points;
    size_t cap;
} normalizer_scratch;
void normalizer_scratch_init(normalizer_scratch *s, mem *m);
void normalizer_scratch_deinit(normalizer_scratch *s);

/** text: valid UTF-8. *out points into text or into s, valid until the next call with s. */
NODISCARD status normalizer_run(const normalizer *z, normalizer_scratch *s, const char *text, size_t n, const char **out, size_t *n_out,
                                error *err);

#endif
