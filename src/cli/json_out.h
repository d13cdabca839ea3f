/* SPDX-License-Identifier: Apache-2.0 */
/** JSON on standard output: one value, compact, one line. What cannot be built (no memory) becomes one error at the end. */
#ifndef HEADRACE_CLI_JSON_OUT_H
#define HEADRACE_CLI_JSON_OUT_H

#include <jansson.h>

#include "cli/cli.h"

/** Text as a JSON string; bytes that are not UTF-8 become U+FFFD. NULL without memory, as all of these. */
json_t *json_text(mem *m, const char *s, size_t n);
json_t *json_ids(const int32_t *ids, size_t n);
/** null where the number is not finite. */
json_t *json_number(double v);
/** count / ns as a rate per second; null when there is nothing to divide. */
json_t *json_rate(double count, uint64_t ns);

/** Print, and drop the reference. NULL is STATUS_NO_MEMORY. */
NODISCARD status json_print(json_t *v, error *err);

#endif
