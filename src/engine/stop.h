/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Stop strings over streamed text: what could be the beginning of one is held back until it is decided, so that nothing of a stop string ever gets out. The earliest match ends the text; of
 * those that end first, the one that begins first. Memory is reserved by the owner (stop_filter_init); adding allocates nothing while pieces stay below the reserve.
 */
#ifndef HEADRACE_ENGINE_STOP_H
#define HEADRACE_ENGINE_STOP_H

#include "base/textbuf.h"

typedef struct stop_string {
    const char *text; /* borrowed */
    size_t n;         /* at least 1 */
} stop_string;

typedef struct stop_filter {
    const stop_string *strings; /* borrowed */
    int32_t n_strings;          /* 0: everything passes */
    textbuf held;
    bool stopped;
} stop_filter;

/** reserve_bytes: of a piece, beyond the longest string. */
NODISCARD status stop_filter_init(stop_filter *f, mem *m, const stop_string *strings, int32_t n_strings, size_t reserve_bytes);
void stop_filter_deinit(stop_filter *f);
/** Append to `out` what became certain of held text + piece. `armed` false: strings are not looked for, everything passes. True in f->stopped when a string was met; then nothing more comes. */
void stop_filter_add(stop_filter *f, const char *piece, size_t n, bool armed, textbuf *out);
/** The text has ended without a stop string: what was held back is part of it. */
void stop_filter_finish(stop_filter *f, textbuf *out);

#endif
