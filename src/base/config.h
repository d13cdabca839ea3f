/* SPDX-License-Identifier: Apache-2.0 */
/**
 * One configuration. Every setting is one row of the option table in config_options.def: key, type, range, default, group, help.
 * The same row gives the command-line flag (--max-seqs), the key in a --config file (max-seqs = 8), the environment variable
 * (HEADRACE_MAX_SEQS), the line in --help and the line in --print-config. Precedence: command line > file > environment >
 * default. A key, variable or value that is not known is an error that names it; nothing is ignored in silence.
 *
 * A `config` is plain data owned by the caller (text values point into an arena of its own), constant once built.
 */
#ifndef HEADRACE_BASE_CONFIG_H
#define HEADRACE_BASE_CONFIG_H

#include <stdint.h>

#include "base/alloc.h"
#include "base/textbuf.h"

typedef enum config_type {
    CONFIG_BOOL,   /* --key / --no-key; true|false|1|0|on|off in files and variables */
    CONFIG_COUNT,  /* integer with k (1000), K (1024), m, M, g, G; decimals only with lower case; the range includes limits */
    CONFIG_BYTES,  /* bytes; K M G T are powers of 1024 (KiB...), k m g t powers of 1000; decimals allowed with a suffix */
    CONFIG_REAL,   /* finite number in a range; NaN and infinities are refused */
    CONFIG_CHOICE, /* one of "a|b|c" */
    CONFIG_TEXT,   /* free text */
    CONFIG_LIST    /* may be repeated on the command line; each occurrence is kept in order */
} config_type;

typedef enum config_origin { CONFIG_FROM_DEFAULT, CONFIG_FROM_ENVIRONMENT, CONFIG_FROM_FILE, CONFIG_FROM_COMMAND_LINE } config_origin;

/* Which commands show and accept a row: bits. */
enum {
    CONFIG_COMMON = 1u << 0, /* settings of model and engine; accepted by each command that loads a model, by files and variables */
    CONFIG_COMPLETE = 1u << 1,
    CONFIG_LOGITS = 1u << 2,
    CONFIG_PERPLEXITY = 1u << 3,
    CONFIG_TOKENIZE = 1u << 4,
    CONFIG_INSPECT = 1u << 5,
    CONFIG_BENCH = 1u << 6,
    CONFIG_DOCTOR = 1u << 7,
    CONFIG_PLAN = 1u << 8,
    CONFIG_MAKE_MODEL = 1u << 9,
    CONFIG_PACK = 1u << 10
};

/* One enumerator per row, in the order of the table. */
typedef enum config_key {
#define OPTION(id, key, short_flag, type, choices, def, min, max, where, metavar, help) CONFIG_KEY_##id,
#include "base/config_options.def"
#undef OPTION
    CONFIG_KEY_COUNT
} config_key;

typedef struct config_row {
    config_key id;
    const char *key;     /* "max-seqs" */
    char short_flag;     /* 'm' or 0 */
    config_type type;
    const char *choices; /* for CONFIG_CHOICE */
    const char *def;     /* default as text; NULL = not set */
    double min, max;     /* inclusive, for COUNT, BYTES and REAL */
    uint32_t where;
    const char *metavar, *help;
} config_row;

extern const config_row config_rows[CONFIG_KEY_COUNT];

typedef struct config config;

/** All defaults. */
NODISCARD status config_create(mem *m, config **out, error *err);
void config_destroy(config *c);

/** Set one key from text; checked against the row. The origin must not be lower than the one that set it (then it is ignored). */
NODISCARD status config_set(config *c, const char *key, const char *value, config_origin origin, error *err);
/** Every HEADRACE_* variable of a CONFIG_COMMON row (but print-config); an unknown one is an error (HEADRACE_TEST_* is left to tests). */
NODISCARD status config_read_environment(config *c, error *err);
/**
 * "key = value" lines, # comments (after a value: with a blank in front), blank lines. A value in double quotes takes \\ \" \n \t \xHH. Keys are
 * those of CONFIG_COMMON rows but config and print-config. Sections, unknown or repeated keys, control characters, NUL and what is not UTF-8 are
 * errors with the line number; at most 1 MiB, lines of 16 KiB.
 */
NODISCARD status config_read_file(config *c, const char *path, error *err);
/**
 * argv without the program and command names. Accepts --key value, --key=value, --no-key, -m value; `where` says which rows the
 * command takes; an option but a LIST given twice is an error. Non-flag arguments go to rest[] (room for argc), in order; "--" ends
 * flags. `--config FILE` is read and the environment applied by this call, in the order of precedence. Errors are STATUS_INVALID and
 * name the flag and, when near, a known one.
 */
NODISCARD status config_read_command_line(config *c, uint32_t where, int argc, char **argv, const char **rest, int *n_rest, error *err);

/* Typed readers; the type must match the row (STATUS_BUG is impossible by construction: asserted). */
bool config_is_set(const config *c, config_key key); /* has a value, default or given */
config_origin config_origin_of(const config *c, config_key key);
bool config_bool(const config *c, config_key key);
int64_t config_count(const config *c, config_key key);
uint64_t config_bytes(const config *c, config_key key);
double config_real(const config *c, config_key key);
const char *config_text(const config *c, config_key key); /* CHOICE and TEXT; NULL when not set */
/** The value as it was written, default or given, for any type but LIST; NULL when not set. What a client passes on to headrace_config_set. */
const char *config_value_text(const config *c, config_key key);
int config_list_size(const config *c, config_key key);
const char *config_list_item(const config *c, config_key key, int i);

/** "key = value  # from" for each row of `where`, sorted by table; a valid --config file: what a file may not set is a comment. */
void config_print(const config *c, uint32_t where, textbuf *out);
/** The option part of --help for a command, grouped, wrapped at 100 columns. */
void config_help(uint32_t where, textbuf *out);

/** Parse helpers shared with requests: "32k" -> 32000, "32K" -> 32768; false when malformed or out of range. */
bool config_parse_count(const char *text, int64_t *out);
bool config_parse_bytes(const char *text, uint64_t *out);
bool config_parse_real(const char *text, double *out);

#endif
