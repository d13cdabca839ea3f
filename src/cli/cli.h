/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The command line: a client of headrace.h. It owns the commands, what they print and the exit codes, and knows nothing of how the engine
 * works.
 *
 * A command is a row: name, help, the option rows it takes, defaults of its own, and a function. Results go to standard output; errors, log
 * lines, progress and the closing speed line go to standard error. The process has one `cli`, used by its main thread.
 */
#ifndef HEADRACE_CLI_CLI_H
#define HEADRACE_CLI_CLI_H

#include "base/config.h"
#include "headrace/headrace.h"

struct progress;

typedef struct cli {
    mem *m;
    config *c;
    const char *command; /* its name, for messages */
    const char *path;    /* the positional argument, NULL when there is none */
    bool json;
    struct progress *progress; /* the progress line on the terminal */
} cli;

typedef struct cli_command {
    const char *name, *summary;
    const char *usage;                             /* what follows the name: "-m MODEL ..." */
    const char *about;                             /* a few lines */
    const char *examples;                          /* lines, each without the program's name */
    uint32_t where;                                /* rows of the option table */
    bool takes_path;                               /* one positional argument is allowed */
    status (*set_defaults)(config *c, error *err); /* defaults that hang on the command; NULL: those of the table */
    status (*run)(cli *x, error *err);
} cli_command;

extern const cli_command cmd_complete, cmd_logits, cmd_perplexity, cmd_tokenize, cmd_inspect, cmd_bench, cmd_doctor, cmd_plan, cmd_make_model, cmd_pack;

enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_DOES_NOT_FIT = 3, EXIT_NOT_NOW = 4 };

/** The exit code for a status. */
int cli_exit_code(status code);
/** "headrace: TEXT" on standard error, the progress line cleared first. */
void cli_complain(const cli *x, const char *text);

#endif
