/* SPDX-License-Identifier: Apache-2.0 */
/* The command table, help, and the way from a status to an exit code. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/config_hint.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/progress_line.h"

static const cli_command *const commands[] = {&cmd_complete, &cmd_logits, &cmd_perplexity, &cmd_tokenize,
                                              &cmd_inspect,  &cmd_plan,   &cmd_bench,      &cmd_doctor,     &cmd_make_model, &cmd_pack};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

int cli_exit_code(status code) {
    switch (code) {
    case STATUS_OK:
        return EXIT_DONE;
    case STATUS_INVALID:
        return EXIT_USAGE;
    case STATUS_DOES_NOT_FIT:
        return EXIT_DOES_NOT_FIT;
    case STATUS_NOT_NOW:
        return EXIT_NOT_NOW;
    default:
        return EXIT_FAILED;
    }
}

void cli_complain(const cli *x, const char *text) {
    if (x) progress_clear(x->progress);
    fprintf(stderr, "headrace: %s\n", text);
}

static void on_log(void *user, log_level level, const char *line) {
    static const char *const marks[] = {"error: ", "warning: ", "", "debug: "};
    const progress *p = user;
    fprintf(stderr, "%sheadrace: %s%s\n", p->enabled ? "\r\033[K" : "", marks[level], line);
}

static void print_overview(FILE *to) {
    fprintf(to, "usage: headrace COMMAND [options]\n\nRuns large language models.\n\ncommands:\n");
    for (int i = 0; i < N_COMMANDS; i++) fprintf(to, "  %-12s%s\n", commands[i]->name, commands[i]->summary);
    fprintf(to, "\nheadrace COMMAND --help explains a command; headrace --version prints the version.\n"
                "exit codes: 0 done, 1 failed, 2 wrong use, 3 does not fit, 4 does not fit now\n");
}

static status print_help(mem *m, const cli_command *command, error *err) {
    textbuf options;
    textbuf_init(&options, m, MEM_PROCESS);
    config_help(command->where, &options);
    printf("usage: headrace %s %s\n\n%s\n", command->name, command->usage, command->about);
    fputs(textbuf_text(&options), stdout);
    printf("\n  --help                        print this text\n  --version                     print the version\n\nexamples:\n");
    for (const char *line = command->examples; *line;) {
        size_t n = strcspn(line, "\n");
        printf("  headrace %.*s\n", (int)n, line);
        line += n;
        if (*line) line++;
    }
    status rc = options.failed ? error_set(err, STATUS_NO_MEMORY, "no memory for the help") : STATUS_OK;
    textbuf_deinit(&options);
    return rc;
}

static status print_config(const cli *x, uint32_t where, error *err) {
    textbuf out;
    textbuf_init(&out, x->m, MEM_PROCESS);
    config_print(x->c, where, &out);
    fputs(textbuf_text(&out), stdout);
    status rc = out.failed ? error_set(err, STATUS_NO_MEMORY, "no memory for the settings") : STATUS_OK;
    textbuf_deinit(&out);
    return rc;
}

/* Whether the argument is a flag whose value is the next argument. */
static bool wants_value(const cli_command *command, const char *arg) {
    for (int i = 0; i < CONFIG_KEY_COUNT; i++) {
        const config_row *row = &config_rows[i];
        if (!(row->where & command->where) || row->type == CONFIG_BOOL) continue;
        if (arg[0] == '-' && arg[1] == '-' && strcmp(arg + 2, row->key) == 0) return true;
        if (arg[0] == '-' && row->short_flag && arg[1] == row->short_flag && arg[2] == 0) return true;
    }
    return false;
}

/* --help and --version count wherever a flag may stand, also beside flags that are wrong; a value that looks like one does not. */
static bool asks_for(const cli_command *command, const char *flag, int argc, char **argv) {
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], flag) == 0) return true;
        if (wants_value(command, argv[i])) i++;
    }
    return false;
}

static status read_arguments(cli *x, const cli_command *command, int argc, char **argv, error *err) {
    int n_rest = 0;
    const char **rest = mem_calloc(x->m, MEM_PROCESS, (size_t)argc + 1, sizeof *rest);
    if (!rest) return error_set(err, STATUS_NO_MEMORY, "no memory for the arguments");
    status rc = config_read_command_line(x->c, command->where, argc, argv, rest, &n_rest, err);
    int allowed = command->takes_path ? 1 : 0;
    if (rc == STATUS_OK && n_rest > allowed)
        rc = error_set(err, STATUS_INVALID, "%s: unexpected argument '%s'%s; see headrace %s --help", command->name, rest[allowed],
                       wants_value(command, "-m") && !config_is_set(x->c, CONFIG_KEY_MODEL) ? " (a model is given with -m)" : "", command->name);
    if (rc == STATUS_OK && n_rest == 1) x->path = rest[0]; /* points into argv */
    mem_free(x->m, rest);
    if (rc == STATUS_OK && command->set_defaults) rc = command->set_defaults(x->c, err);
    return rc;
}

static status run_command(cli *x, const cli_command *command, int argc, char **argv, error *err) {
    if (asks_for(command, "--help", argc, argv) || asks_for(command, "-h", argc, argv)) return print_help(x->m, command, err);
    if (asks_for(command, "--version", argc, argv)) {
        printf("headrace %s\n", headrace_version());
        return STATUS_OK;
    }
    TRY(config_create(x->m, &x->c, err));
    TRY(read_arguments(x, command, argc, argv, err));
    if (config_bool(x->c, CONFIG_KEY_PRINT_CONFIG)) return print_config(x, command->where, err);
    x->json = config_bool(x->c, CONFIG_KEY_JSON);
    log_set(on_log, x->progress, config_bool(x->c, CONFIG_KEY_VERBOSE) ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO);
    return command->run(x, err);
}

/* What others call a command, and what there is here instead. */
static const struct {
    const char *name, *here;
} foreign[] = {
    {"serve", "there is no server yet; complete answers several prompts as one batch, and include/headrace/headrace.h takes requests at any time"},
    {"server", "there is no server yet; complete answers several prompts as one batch, and include/headrace/headrace.h takes requests at any time"},
    {"chat", "there are no chat templates yet; complete continues a text as it is written"},
    {"run", "there are no chat templates yet; complete continues a text as it is written"},
    {"generate", "here it is complete"},
    {"quantize", "checkpoints are used as they are published"},
    {"convert", "checkpoints are used as they are published"},
    {"pull", "nothing is fetched here; a model that is in the Hugging Face cache is found there by org/name"},
};

static status unknown_command(const char *name, error *err) {
    char text[CONFIG_HINT_BYTES];
    config_hint hint = config_hint_for(name);
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        if (strcmp(name, foreign[i].name) == 0) return error_set(err, STATUS_INVALID, "no command '%s': %s", name, foreign[i].here);
    }
    for (int i = 0; i < N_COMMANDS; i++) config_hint_consider(&hint, commands[i]->name);
    return error_set(err, STATUS_INVALID, "unknown command '%.100s'%s; see headrace --help", name, config_hint_text(&hint, text));
}

static status dispatch(cli *x, int argc, char **argv, error *err) {
    const char *name = argc > 1 ? argv[1] : NULL;
    if (!name) {
        print_overview(stderr);
        return error_set(err, STATUS_INVALID, "no command given");
    }
    if (strcmp(name, "help") == 0 && argc == 3) {
        for (int i = 0; i < N_COMMANDS; i++) {
            if (strcmp(argv[2], commands[i]->name) == 0) return print_help(x->m, commands[i], err);
        }
        return unknown_command(argv[2], err);
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || (strcmp(name, "help") == 0 && argc == 2)) {
        print_overview(stdout);
        return STATUS_OK;
    }
    if (strcmp(name, "--version") == 0) {
        printf("headrace %s\n", headrace_version());
        return STATUS_OK;
    }
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strcmp(name, commands[i]->name) != 0) continue;
        x->command = name;
        return run_command(x, commands[i], argc - 2, argv + 2, err);
    }
    if (name[0] == '-') return error_set(err, STATUS_INVALID, "unknown option %s: the command comes first; see headrace --help", name);
    return unknown_command(name, err);
}

int main(int argc, char **argv) {
    error err = {0};
    progress line;
    progress_init(&line);
    cli x = {.command = "headrace", .progress = &line};
    status rc = mem_create(&x.m);
    if (rc != STATUS_OK) {
        fputs("headrace: no memory\n", stderr);
        return EXIT_FAILED;
    }
    rc = dispatch(&x, argc, argv, &err);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        int why = errno;
        if (rc == STATUS_OK) rc = error_set(&err, STATUS_IO, "writing to standard output failed: %s", strerror(why));
    }
    if (rc != STATUS_OK) cli_complain(&x, err.text);
    log_set(NULL, NULL, LOG_LEVEL_INFO);
    config_destroy(x.c);
    if (mem_destroy(x.m) != STATUS_OK) fputs("headrace: bug: memory of the command line is still in use\n", stderr);
    return cli_exit_code(rc);
}
