/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the sources of settings (command line, file, environment) share. Private to src/base/config*.c.
 *
 * A label is how a message calls the place of a value: "--max-seqs", "HEADRACE_MAX_SEQS", "FILE:3: max-seqs".
 */
#ifndef HEADRACE_BASE_CONFIG_SOURCE_H
#define HEADRACE_BASE_CONFIG_SOURCE_H

#include "base/arena.h"
#include "base/config.h"
#include "base/config_hint.h"

typedef struct config_value {
    bool is_set;
    config_origin origin;
    const char *text; /* as written; every type but LIST */
    union {
        bool flag;
        int64_t count;
        uint64_t bytes;
        double real;
    } as;
    const char **items; /* LIST */
    int n_items, items_capacity;
} config_value;

struct config {
    mem *m;
    arena *text;
    config_value values[CONFIG_KEY_COUNT];
};

/** The row with this key (n bytes), or NULL. */
const config_row *config_find(const char *key, size_t n);
/** Check `value` against the row and store it unless a higher origin has set the row. */
NODISCARD status config_apply(config *c, const config_row *row, const char *label, const char *value, config_origin origin, error *err);
/** Rows that act on one invocation and are no settings: config, print-config. */
bool config_is_action(const config_row *row);
/** "HEADRACE_MAX_SEQS" for "max-seqs". */
void config_variable_name(const config_row *row, char out[CONFIG_NAME_BYTES]);

#endif
