/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Ctrl-C. Between interrupt_begin and interrupt_end the first SIGINT or SIGTERM is only noted, so that the caller can cancel its requests
 * and print what it has; the second one ends the process, as both do outside. The note stays: it may have come in the last step of a run,
 * and ends the next before it begins. Signals are process-wide, so the note is too: one pair at a time.
 */
#ifndef HEADRACE_CLI_INTERRUPT_H
#define HEADRACE_CLI_INTERRUPT_H

#include <stdbool.h>

void interrupt_begin(void);
bool interrupt_requested(void);
void interrupt_end(void);

#endif
