/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The prompts of a command, from -p, -f and --token-ids, in this order, and within each in the order of the command line. Texts are checked
 * to be UTF-8 and lists to be token ids; whether the vocabulary has them is the engine's to say.
 */
#ifndef HEADRACE_CLI_PROMPT_LIST_H
#define HEADRACE_CLI_PROMPT_LIST_H

#include "cli/cli.h"

typedef struct prompt {
    const char *text; /* borrowed; NULL when ids are given */
    size_t n_text;
    int32_t *ids; /* owned; of --token-ids, or set by prompt_list_encode */
    size_t n_ids;
    bool is_ids;   /* from --token-ids */
    char from[32]; /* "-p 2", "-f", "--token-ids 1" */
} prompt;

typedef struct prompt_list {
    mem *m;
    prompt *items;
    size_t n;
    textbuf file; /* the text of -f */
} prompt_list;

enum { PROMPT_TEXT = 1, PROMPT_IDS = 2 };

/**
 * Read what the command line gives; `kinds` says which of -p and -f (PROMPT_TEXT) and --token-ids (PROMPT_IDS) the command has. None given
 * is STATUS_INVALID. *out is valid for prompt_list_deinit in any case.
 */
NODISCARD status prompt_list_init(prompt_list *out, const cli *x, int kinds, error *err);
void prompt_list_deinit(prompt_list *p);
/** Ids for each text, as a request with these settings would get them. */
NODISCARD status prompt_list_encode(prompt_list *p, const cli *x, const headrace_vocab *v, int32_t add_bos, bool no_special, error *err);

/** The whole of a file, or of standard input for "-". Pipes are allowed; more than 1 GiB is refused. */
NODISCARD status prompt_read_file(const char *path, textbuf *out, error *err);
/** "2,295,338": numbers of 0 to 2147483647 separated by commas or white space. `from` names the list in errors. *ids is allocated from m.
 */
NODISCARD status prompt_parse_ids(mem *m, const char *from, const char *text, size_t n, int32_t **ids, size_t *n_ids, error *err);
/** STATUS_INVALID naming `from` and the offset. */
NODISCARD status prompt_check_utf8(const char *from, const char *text, size_t n, error *err);
/** --bos: 1, --no-bos: -1, neither: 0. */
int32_t prompt_add_bos(const config *c);

#endif
