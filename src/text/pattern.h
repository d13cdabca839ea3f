/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Regular expressions as tokenizers write them: the dialect of Oniguruma (Ruby syntax, Unicode), which is what the published tokenizers run
 * on, carried out by PCRE2. A pattern is translated where the two read it differently and refused, naming the construct, where it cannot
 * be.
 *
 * All memory comes from a `mem`, also PCRE2's. A pattern is constant once compiled and may be searched from several threads, each with its
 * own search.
 */
#ifndef HEADRACE_TEXT_PATTERN_H
#define HEADRACE_TEXT_PATTERN_H

#include "base/alloc.h"
#include "base/textbuf.h"

enum { PATTERN_MAX_BYTES = 64 * 1024 };

typedef struct pattern_context pattern_context; /* what patterns of one tokenizer share */
typedef struct pattern pattern;

NODISCARD status pattern_context_create(mem *m, mem_tag tag, pattern_context **out, error *err);
void pattern_context_destroy(pattern_context *c);
/** For tests, before anything is compiled: *steps grows by what each search does, 1 a step of a pattern and 1 a byte that it moves over. */
void pattern_context_count(pattern_context *c, uint64_t *steps);

/** Compile n bytes of source; literal: match the bytes as they are. JIT where the system has it. Bad or untranslated: STATUS_UNSUPPORTED
 * with the pattern and the place. */
NODISCARD status pattern_compile(const pattern_context *c, const char *source, size_t n, bool literal, pattern **out, error *err);
void pattern_destroy(pattern *p);

/** The translation alone, for tests. */
NODISCARD status pattern_translate(const char *source, size_t n, textbuf *out, error *err);

/** Working memory of searches of one thread. */
typedef struct pattern_search pattern_search;
NODISCARD status pattern_search_create(const pattern_context *c, pattern_search **out, error *err);
void pattern_search_destroy(pattern_search *s);

/** One pass over a text, from left to right: non-overlapping matches; an empty match right behind the last one is passed over. */
typedef struct pattern_walk {
    const pattern *p;
    pattern_search *s;
    const char *text; /* UTF-8 */
    size_t n, at, last_end;
    bool any;
} pattern_walk;
void pattern_walk_init(pattern_walk *w, const pattern *p, pattern_search *s, const char *text, size_t n);
/** *found says whether [*begin, *end) is the next match. STATUS_FAILED when the pattern needs more steps than the limit. */
NODISCARD status pattern_walk_next(pattern_walk *w, bool *found, size_t *begin, size_t *end, error *err);

#endif
