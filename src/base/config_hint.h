/* SPDX-License-Identifier: Apache-2.0 */
/**
 * For the refusal of a name that is not known: what other engines' flags are called here, and the nearest of the names there are.
 */
#ifndef HEADRACE_BASE_CONFIG_HINT_H
#define HEADRACE_BASE_CONFIG_HINT_H

#include <stddef.h>

/** Room for "--no-" or "HEADRACE_" and any key of the table; and for a hint's text. */
enum { CONFIG_NAME_BYTES = 80, CONFIG_HINT_BYTES = 160 };

/** Flags of other engines ("-a|--b"), and what to use here instead. */
typedef struct config_foreign_row {
    const char *flags, *here;
} config_foreign_row;
extern const config_foreign_row config_foreign_rows[];
extern const size_t config_n_foreign_rows;
/** What to use here instead of `flag`; NULL: it is of no engine that is listed. */
const char *config_foreign(const char *flag);

/** Remembers the nearest of several names. */
typedef struct config_hint {
    const char *word;
    size_t distance;
    char nearest[CONFIG_NAME_BYTES];
} config_hint;

config_hint config_hint_for(const char *word);
void config_hint_consider(config_hint *h, const char *name);
/** "; did you mean NAME?" or "". */
const char *config_hint_text(const config_hint *h, char out[CONFIG_HINT_BYTES]);

#endif
