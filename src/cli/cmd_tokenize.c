/* SPDX-License-Identifier: Apache-2.0 */
/* tokenize: text to token ids, or with --decode ids to text. Reads the vocabulary only, no weights. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "cli/json_out.h"
#include "cli/prompt_list.h"
#include "cli/session.h"
#include "cli/utf8_text.h"

static status decode(const headrace_vocab *v, const int32_t *ids, size_t n, bool skip_special, char **text, size_t *n_text, error *err) {
    headrace_error why = {0};
    return session_status(headrace_decode(v, ids, n, skip_special, text, n_text, &why), &why, err);
}

/* One line an id: the id and its text as a JSON string, which shows spaces and newlines. */
static status print_pieces(const cli *x, const headrace_vocab *v, const prompt *p, error *err) {
    for (size_t i = 0; i < p->n_ids; i++) {
        char *text = NULL;
        size_t n = 0;
        TRY(decode(v, &p->ids[i], 1, false, &text, &n, err));
        json_t *piece = json_text(x->m, text, n);
        headrace_text_free(text);
        char *shown = piece ? json_dumps(piece, JSON_ENCODE_ANY) : NULL;
        json_decref(piece);
        if (!shown) return error_set(err, STATUS_NO_MEMORY, "tokenize: no memory for a piece");
        printf("%8d  %s\n", (int)p->ids[i], shown);
        json_free_t release;
        json_get_alloc_funcs(NULL, &release);
        release(shown);
    }
    return STATUS_OK;
}

static status print_ids(const cli *x, const headrace_vocab *v, const prompt *p, error *err) {
    if (config_bool(x->c, CONFIG_KEY_VERBOSE)) return print_pieces(x, v, p, err);
    for (size_t i = 0; i < p->n_ids; i++) printf("%s%d", i ? " " : "", (int)p->ids[i]);
    putchar('\n');
    return STATUS_OK;
}

static status print_decoded(const cli *x, const headrace_vocab *v, const prompt *p, bool several, json_t **out, error *err) {
    char *text = NULL;
    size_t n = 0;
    status rc = decode(v, p->ids, p->n_ids, !config_bool(x->c, CONFIG_KEY_SPECIAL), &text, &n, err);
    if (rc != STATUS_OK) {
        error_prefix(err, "%s", p->from);
        return rc;
    }
    bool to_terminal = os_stream_is_tty(STDOUT_FILENO);
    if (x->json) {
        *out = json_pack("{s:o, s:I}", "text", json_text(x->m, text, n), "n", (json_int_t)p->n_ids);
    } else if (to_terminal) {
        textbuf shown;
        textbuf_init(&shown, x->m, MEM_PROCESS);
        utf8_add_for_terminal(&shown, text, n);
        if (shown.failed) rc = error_set(err, STATUS_NO_MEMORY, "tokenize: no memory for the text");
        fwrite(textbuf_text(&shown), 1, shown.len, stdout);
        textbuf_deinit(&shown);
    } else {
        fwrite(text, 1, n, stdout);
    }
    if (!x->json && (several || to_terminal)) putchar('\n');
    headrace_text_free(text);
    return rc;
}

static status print_all(const cli *x, const headrace_vocab *v, const prompt_list *prompts, bool decoding, error *err) {
    json_t *list = prompts->n > 1 && x->json ? json_array() : NULL;
    for (size_t i = 0; i < prompts->n; i++) {
        const prompt *p = &prompts->items[i];
        json_t *one = NULL;
        status rc = STATUS_OK;
        if (decoding)
            rc = print_decoded(x, v, p, prompts->n > 1, &one, err);
        else if (x->json)
            one = json_pack("{s:o, s:I}", "ids", json_ids(p->ids, p->n_ids), "n", (json_int_t)p->n_ids);
        else
            rc = print_ids(x, v, p, err);
        if (rc == STATUS_OK && x->json && prompts->n == 1)
            rc = json_print(one, err);
        else if (rc == STATUS_OK && x->json && json_array_append_new(list, one) != 0)
            rc = error_set(err, STATUS_NO_MEMORY, "tokenize: no memory for the result");
        if (rc == STATUS_OK) continue;
        json_decref(list);
        return rc;
    }
    return list ? json_print(list, err) : STATUS_OK;
}

static status run(const cli *x, prompt_list *prompts, headrace_vocab **vocab, error *err) {
    bool decoding = config_bool(x->c, CONFIG_KEY_DECODE);
    if (decoding && config_is_set(x->c, CONFIG_KEY_BOS))
        return error_set(err, STATUS_INVALID, "tokenize: --bos and --no-bos have no meaning with --decode");
    TRY(prompt_list_init(prompts, x, PROMPT_TEXT, err));
    for (size_t i = 0; decoding && i < prompts->n; i++) {
        prompt *p = &prompts->items[i];
        TRY(prompt_parse_ids(x->m, p->from, p->text, p->n_text, &p->ids, &p->n_ids, err));
    }
    TRY(session_vocab(x, vocab, err));
    if (!decoding) TRY(prompt_list_encode(prompts, x, *vocab, prompt_add_bos(x->c), !config_bool(x->c, CONFIG_KEY_SPECIAL), err));
    return print_all(x, *vocab, prompts, decoding, err);
}

static status run_tokenize(cli *x, error *err) {
    prompt_list prompts;
    headrace_vocab *vocab = NULL;
    prompts = (prompt_list){.m = x->m};
    textbuf_init(&prompts.file, x->m, MEM_PROCESS);
    status rc = run(x, &prompts, &vocab, err);
    headrace_vocab_free(vocab);
    prompt_list_deinit(&prompts);
    return rc;
}

const cli_command cmd_tokenize = {
    .name = "tokenize",
    .summary = "turn text into token ids, or ids into text",
    .usage = "-m MODEL (-p TEXT | -f FILE) [--decode] [options]",
    .about = "Prints the ids of each text on a line; with -v one line an id, with its text. With --decode the text is a list of\n"
             "ids, as this command prints them, and what they say is printed. Reads the vocabulary only.\n",
    .examples = "tokenize -m model.gguf -p 'Hello, world'\n"
                "tokenize -m model.gguf -p '9 338 264' --decode\n"
                "tokenize -m model.gguf -f text.txt --json\n",
    .where = CONFIG_TOKENIZE,
    .run = run_tokenize,
};
