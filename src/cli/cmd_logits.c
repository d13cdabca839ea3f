/* SPDX-License-Identifier: Apache-2.0 */
/*
 * logits: the logits of every position of one or more token lists, as raw float32, for comparing with another implementation.
 *
 * The lists run as one batch, so rows arrive interleaved; each is written to its place in the file as it comes, and nothing is held in
 * memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checked.h"
#include "cli/experts_out.h"
#include "cli/json_out.h"
#include "cli/prompt_list.h"
#include "cli/session.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rows are written as they are in memory");

enum { LISTS_AT_ONCE = 32 };

struct dump;

typedef struct dump_list {
    struct dump *all;
    uint64_t first_row; /* in the file */
    uint64_t n_rows, n_written;
} dump_list;

typedef struct dump {
    cli *x;
    prompt_list prompts;
    dump_list *lists;
    headrace_id *request_ids;
    headrace_engine *engine;
    headrace_model_info info;
    const char *path;
    int fd;
    bool muted, stop;
    status code; /* the first failure of a callback */
    error why;
} dump;

static void fail(dump *d, status code, const char *from, const char *text) {
    if (!d->stop) {
        d->code = code;
        error_note(&d->why, code, "%s: %s", from, text);
    }
    d->stop = true;
}

static bool write_at(int fd, const char *bytes, size_t n, uint64_t off) {
    while (n > 0) {
        ssize_t done = pwrite(fd, bytes, n, (off_t)off);
        if (done < 0 && errno == EINTR) continue;
        if (done == 0) errno = ENOSPC;
        if (done <= 0) return false;
        bytes += done;
        n -= (size_t)done;
        off += (uint64_t)done;
    }
    return true;
}

static void take_rows(dump *d, dump_list *l, const headrace_event *event, const char *from) {
    uint64_t row = (uint64_t)event->first_pos, n = (uint64_t)event->n_rows, row_bytes = (uint64_t)event->n_vocab * sizeof(float);
    if (event->first_pos < 0 || event->n_rows < 0 || row != l->n_written || n > l->n_rows - row || event->n_vocab != d->info.n_vocab) {
        fail(d, STATUS_BUG, from, "the engine gave rows that were not asked for");
        return;
    }
    if (!write_at(d->fd, (const char *)event->logits, (size_t)(n * row_bytes), (l->first_row + row) * row_bytes)) {
        fail(d, STATUS_IO, d->path, strerror(errno));
        return;
    }
    l->n_written += n;
}

static void on_event(const headrace_event *event) {
    dump_list *l = event->user;
    dump *d = l->all;
    if (d->muted || d->stop) return;
    const char *from = d->prompts.items[l - d->lists].from;
    if (event->kind == HEADRACE_EVENT_LOGITS) take_rows(d, l, event, from);
    if (event->kind != HEADRACE_EVENT_DONE) return;
    const char *why;
    status code = session_outcome(event, &why);
    if (code != STATUS_OK) {
        fail(d, code, from, why);
    } else if (l->n_written != l->n_rows) {
        fail(d, STATUS_BUG, from, "the engine left out rows");
    }
}

static status prepare(dump *d, error *err) {
    cli *x = d->x;
    if (!config_is_set(x->c, CONFIG_KEY_OUTPUT)) return error_set(err, STATUS_INVALID, "logits: no file to write; use -o FILE");
    d->path = config_text(x->c, CONFIG_KEY_OUTPUT);
    TRY(prompt_list_init(&d->prompts, x, PROMPT_IDS, err));
    size_t n = d->prompts.n;
    d->lists = mem_calloc(x->m, MEM_PROCESS, n, sizeof *d->lists);
    d->request_ids = mem_calloc(x->m, MEM_PROCESS, n, sizeof *d->request_ids);
    if (!d->lists || !d->request_ids) return error_set(err, STATUS_NO_MEMORY, "logits: no memory for %zu lists", n);
    uint64_t rows = 0;
    for (size_t i = 0; i < n; i++) {
        d->lists[i] = (dump_list){.all = d, .first_row = rows, .n_rows = d->prompts.items[i].n_ids};
        rows += d->prompts.items[i].n_ids;
    }
    return STATUS_OK;
}

static status submit(void *user, size_t i, headrace_id *out, error *err) {
    dump *d = user;
    const prompt *p = &d->prompts.items[i];
    headrace_error why = {0};
    headrace_request r = HEADRACE_REQUEST_INIT;
    r.ids = p->ids;
    r.n_ids = p->n_ids;
    r.want_logits = true;
    r.chunk = (int32_t)config_count(d->x->c, CONFIG_KEY_CHUNK);
    r.callback = on_event;
    r.user = &d->lists[i];
    status rc = session_status(headrace_submit(d->engine, &r, out, &why), &why, err);
    if (rc != STATUS_OK) error_prefix(err, "%s", p->from);
    return rc;
}

/* Only now is an existing file overwritten: the settings were right and the model is there. */
static status open_output(dump *d, error *err) {
    struct stat st;
    headrace_error why = {0};
    TRY(session_status(headrace_allow_writing(d->engine, d->path, &why), &why, err));
    if (stat(d->path, &st) == 0 && !S_ISREG(st.st_mode)) return error_set(err, STATUS_INVALID, "-o %s: not a regular file", d->path);
    d->fd = open(d->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return d->fd >= 0 ? STATUS_OK : error_set(err, STATUS_IO, "-o %s: %s", d->path, strerror(errno));
}

static status compute(dump *d, error *err) {
    session_run_args args = {.engine = d->engine, .ids = d->request_ids, .n = d->prompts.n, .submit = submit, .user = d, .stop = &d->stop};
    TRY(session_run(&args, err));
    if (d->code != STATUS_OK) return error_set(err, d->code, "%s", d->why.text);
    int fd = d->fd;
    d->fd = -1;
    if (close(fd) != 0) return error_set(err, STATUS_IO, "-o %s: %s", d->path, strerror(errno));
    return STATUS_OK;
}

static status print_result(const dump *d, error *err) {
    headrace_stats stats = {.size = sizeof stats};
    TRY(session_status(headrace_get_stats(d->engine, &stats), NULL, err));
    json_t *counts = json_array();
    for (size_t i = 0; counts && i < d->prompts.n; i++) {
        if (json_array_append_new(counts, json_integer((json_int_t)d->lists[i].n_rows)) == 0) continue;
        json_decref(counts);
        counts = NULL;
    }
    json_t *o = json_pack("{s:o, s:i, s:I, s:I, s:I, s:I}", "n_tokens", counts, "n_vocab", (int)d->info.n_vocab, "steps", (json_int_t)stats.n_steps,
                          "preemptions", (json_int_t)stats.n_preemptions, "prefix_hit_tokens", (json_int_t)stats.n_prefix_hit_tokens,
                          "hot_allocations", (json_int_t)stats.n_hot_allocations);
    if (o != NULL && !experts_add_json(o, d->engine)) {
        json_decref(o);
        o = NULL;
    }
    return json_print(o, err);
}

static status run(dump *d, error *err) {
    TRY(prepare(d, err));
    TRY(session_load(d->x, &d->engine, &d->info, err));
    TRY(open_output(d, err));
    status rc = compute(d, err);
    if (rc == STATUS_OK) return print_result(d, err);
    unlink(d->path); /* part of a result is none */
    return rc;
}

static status run_logits(cli *x, error *err) {
    dump d = {.x = x, .fd = -1};
    status rc = run(&d, err);
    d.muted = true;
    headrace_free(d.engine);
    if (d.fd >= 0) close(d.fd);
    mem_free(x->m, d.lists);
    mem_free(x->m, d.request_ids);
    prompt_list_deinit(&d.prompts);
    return rc;
}

static status set_defaults(config *c, error *err) {
    int n = config_list_size(c, CONFIG_KEY_TOKEN_IDS);
    char text[16];
    snprintf(text, sizeof text, "%d", n < 1 ? 1 : n > LISTS_AT_ONCE ? LISTS_AT_ONCE : n);
    return config_set(c, "max-seqs", text, CONFIG_FROM_DEFAULT, err);
}

const cli_command cmd_logits = {
    .name = "logits",
    .summary = "write the logits of every position of a token list",
    .usage = "-m MODEL --token-ids LIST [--token-ids LIST ...] -o FILE [options]",
    .about = "Writes float32 little-endian [n_tokens, n_vocab]: row i is what follows token i. Several lists run as one batch, and\n"
             "their rows follow each other in the order of the lists. Prints the numbers of tokens, the size of the vocabulary and\n"
             "counters, always as JSON. Unless given, max-seqs is the number of lists (at most 32).\n",
    .examples = "logits -m model.gguf --token-ids 2,295,338 -o logits.f32\n"
                "logits -m model.gguf --token-ids 2,295 --token-ids 338 --chunk 1 -o logits.f32\n",
    .where = CONFIG_COMMON | CONFIG_LOGITS,
    .set_defaults = set_defaults,
    .run = run_logits,
};
