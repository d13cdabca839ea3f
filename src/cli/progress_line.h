/* SPDX-License-Identifier: Apache-2.0 */
/** One line on the terminal that is rewritten while a model loads. Where standard error is not a terminal, or a dumb one, nothing is
 * written. */
#ifndef HEADRACE_CLI_PROGRESS_LINE_H
#define HEADRACE_CLI_PROGRESS_LINE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct progress {
    bool enabled, shown;
    uint64_t last_ns;
    const char *verb; /* "loading" */
} progress;

void progress_init(progress *p);
/** A headrace_progress; user is the progress. Redraws at most ten times a second. */
void progress_update(void *user, uint64_t done_bytes, uint64_t total_bytes);
/** Take the line off the terminal, if it is there. */
void progress_clear(progress *p);

#endif
