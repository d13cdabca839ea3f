/* SPDX-License-Identifier: Apache-2.0 */
/** What became of the experts of a mixture: an object for JSON, a closing line for people. */
#ifndef HEADRACE_CLI_EXPERTS_OUT_H
#define HEADRACE_CLI_EXPERTS_OUT_H

#include "cli/json_out.h"

/** Adds "experts" to `o` when the model has any. False without memory. */
bool experts_add_json(json_t *o, headrace_engine *e);
/** One line on standard error; nothing for a model without experts. */
void experts_print_line(headrace_engine *e);

#endif
