/* SPDX-License-Identifier: Apache-2.0 */
/* Settings from the command line. */
#include <stdio.h>
#include <string.h>

#include "base/config_source.h"

typedef struct reader {
    config *c;
    uint32_t where;
    int argc;
    char **argv;
    int at;                       /* the next argument */
    bool given[CONFIG_KEY_COUNT]; /* on this command line */
} reader;

static const char *const command_names[] = {"engine", "complete", "logits", "perplexity", "tokenize", "inspect", "bench", "doctor", "plan", "make-model", "pack"};

/* "tokenize, bench": which commands take the row. */
static const char *takers(const config_row *row, char out[CONFIG_NAME_BYTES]) {
    size_t n = 0;
    out[0] = 0;
    for (unsigned i = 0; i < sizeof command_names / sizeof command_names[0]; i++) {
        if (!(row->where & (1u << i))) continue;
        const char *name = i == 0 ? "commands that load a model" : command_names[i];
        int added = snprintf(out + n, CONFIG_NAME_BYTES - n, "%s%s", n ? ", " : "", name);
        if (added < 0 || (size_t)added >= CONFIG_NAME_BYTES - n) break;
        n += (size_t)added;
    }
    return out;
}

static status not_here(const config_row *row, const char *flag, error *err) {
    char list[CONFIG_NAME_BYTES];
    return error_set(err, STATUS_INVALID, "config: %.100s is no option of this command (it is one of: %s)", flag, takers(row, list));
}

static status unknown_flag(const reader *r, const char *flag, error *err) {
    char name[CONFIG_NAME_BYTES], text[CONFIG_HINT_BYTES];
    const char *here = config_foreign(flag);
    if (here != NULL) return error_set(err, STATUS_INVALID, "config: unknown option %.100s; %s", flag, here);
    config_hint hint = config_hint_for(flag);
    for (int i = 0; i < CONFIG_KEY_COUNT; i++) {
        const config_row *row = &config_rows[i];
        if (!(row->where & r->where)) continue;
        snprintf(name, sizeof name, "--%s", row->key);
        config_hint_consider(&hint, name);
        if (row->type != CONFIG_BOOL) continue;
        snprintf(name, sizeof name, "--no-%s", row->key);
        config_hint_consider(&hint, name);
    }
    return error_set(err, STATUS_INVALID, "config: unknown option %.100s%s", flag, config_hint_text(&hint, text));
}

static status apply(reader *r, const config_row *row, const char *flag, const char *value, error *err) {
    if (r->given[row->id] && row->type != CONFIG_LIST) return error_set(err, STATUS_INVALID, "config: --%s is given twice", row->key);
    r->given[row->id] = true;
    return config_apply(r->c, row, flag, value, CONFIG_FROM_COMMAND_LINE, err);
}

/* The value that follows as an argument of its own. */
static status apply_next(reader *r, const config_row *row, const char *flag, error *err) {
    if (row->type == CONFIG_BOOL) return apply(r, row, flag, "true", err);
    if (r->at >= r->argc) return error_set(err, STATUS_INVALID, "config: %s wants a value: %s %s", flag, flag, row->metavar);
    return apply(r, row, flag, r->argv[r->at++], err);
}

static status read_short(reader *r, const char *arg, error *err) {
    const config_row *elsewhere = NULL;
    for (int i = 0; i < CONFIG_KEY_COUNT; i++) {
        const config_row *row = &config_rows[i];
        if (row->short_flag != arg[1]) continue;
        if (!(row->where & r->where)) {
            if (!elsewhere) elsewhere = row;
            continue;
        }
        char flag[3] = {'-', row->short_flag, 0};
        if (arg[2] != 0 && config_foreign(arg) != NULL) return unknown_flag(r, arg, err);
        if (arg[2] != 0)
            return error_set(err, STATUS_INVALID, "config: unknown option %.100s; %s and its value are two arguments, and -- ends options",
                             arg, flag);
        return apply_next(r, row, flag, err);
    }
    if (elsewhere && arg[2] == 0) return not_here(elsewhere, arg, err);
    return unknown_flag(r, arg, err);
}

static status read_long(reader *r, const char *arg, error *err) {
    const char *key = arg + 2, *equals = strchr(key, '=');
    size_t n = equals ? (size_t)(equals - key) : strlen(key);
    char flag[CONFIG_NAME_BYTES];
    snprintf(flag, sizeof flag, "%.*s", n + 2 < sizeof flag ? (int)n + 2 : (int)sizeof flag - 1, arg);
    const config_row *row = config_find(key, n);
    bool negated = false;
    if (!row && n > 3 && strncmp(key, "no-", 3) == 0) {
        row = config_find(key + 3, n - 3);
        negated = row != NULL;
    }
    if (!row) return unknown_flag(r, flag, err);
    if (!(row->where & r->where)) return not_here(row, flag, err);
    if (negated && row->type != CONFIG_BOOL) return error_set(err, STATUS_INVALID, "config: %s: only yes-or-no options take \"no-\"", flag);
    if (negated && equals) return error_set(err, STATUS_INVALID, "config: %s takes no value", flag);
    if (negated) return apply(r, row, flag, "false", err);
    if (equals) return apply(r, row, flag, equals + 1, err);
    return apply_next(r, row, flag, err);
}

status config_read_command_line(config *c, uint32_t where, int argc, char **argv, const char **rest, int *n_rest, error *err) {
    reader r = {.c = c, .where = where, .argc = argc, .argv = argv};
    int n = 0;
    bool flags_ended = false;
    while (r.at < argc) {
        const char *arg = argv[r.at++];
        if (flags_ended || arg[0] != '-' || arg[1] == 0) {
            rest[n++] = arg;
        } else if (strcmp(arg, "--") == 0) {
            flags_ended = true;
        } else if (arg[1] == '-') {
            TRY(read_long(&r, arg, err));
        } else {
            TRY(read_short(&r, arg, err));
        }
    }
    /* Lower origins do not replace what is set, so the order of reading does not matter; only here the file's name is known. */
    TRY(config_read_environment(c, err));
    const char *path = config_text(c, CONFIG_KEY_CONFIG);
    if (path) TRY(config_read_file(c, path, err));
    *n_rest = n;
    return STATUS_OK;
}
