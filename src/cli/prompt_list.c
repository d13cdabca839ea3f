/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of -p stay where the configuration keeps them; the text of -f is owned here. */
#include "cli/prompt_list.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "cli/session.h"
#include "cli/utf8_text.h"

enum { MAX_FILE_BYTES = 1 << 30, READ_BYTES = 1 << 16 };

int32_t prompt_add_bos(const config *c) {
    if (!config_is_set(c, CONFIG_KEY_BOS)) return 0;
    return config_bool(c, CONFIG_KEY_BOS) ? 1 : -1;
}

status prompt_check_utf8(const char *from, const char *text, size_t n, error *err) {
    size_t good = utf8_valid_bytes(text, n);
    if (good == n) return STATUS_OK;
    return error_set(err, STATUS_INVALID, "%s: not UTF-8: byte 0x%02x at offset %zu", from, (unsigned)(unsigned char)text[good], good);
}

status prompt_read_file(const char *path, textbuf *out, error *err) {
    bool is_stdin = strcmp(path, "-") == 0;
    const char *name = is_stdin ? "standard input" : path;
    int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return error_set(err, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO, "-f %s: %s", name, strerror(errno));
    char block[READ_BYTES];
    status rc = STATUS_OK;
    for (;;) {
        ssize_t got = read(fd, block, sizeof block);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) rc = error_set(err, STATUS_IO, "-f %s: reading failed: %s", name, strerror(errno));
        if (got <= 0) break;
        textbuf_add(out, block, (size_t)got);
        if (out->failed) rc = error_set(err, STATUS_NO_MEMORY, "-f %s: no memory for its text", name);
        if (rc == STATUS_OK && out->len > MAX_FILE_BYTES) rc = error_set(err, STATUS_INVALID, "-f %s: more than 1 GiB of text", name);
        if (rc != STATUS_OK) break;
    }
    if (!is_stdin) close(fd);
    return rc;
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static status bad_item(const char *from, size_t item, const char *text, size_t n, error *err) {
    char shown[33];
    size_t m = n < sizeof shown - 1 ? n : sizeof shown - 1;
    memcpy(shown, text, m);
    shown[m] = 0;
    if (m == 0) return error_set(err, STATUS_INVALID, "%s: item %zu is empty; expected token ids such as 2,295,338", from, item);
    return error_set(err, STATUS_INVALID, "%s: item %zu, '%s', is not a token id (a whole number of 0 to 2147483647)", from, item, shown);
}

/* Digits only, so no sign, no hexadecimal and no locale. */
static bool parse_id(const char *s, size_t n, int32_t *out) {
    int64_t value = 0;
    if (n == 0) return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        value = value * 10 + (s[i] - '0');
        if (value > INT32_MAX) return false;
    }
    *out = (int32_t)value;
    return true;
}

status prompt_parse_ids(mem *m, const char *from, const char *text, size_t n, int32_t **ids, size_t *n_ids, error *err) {
    size_t most = 1, bytes;
    for (size_t i = 0; i < n; i++) most += text[i] == ',' || is_space(text[i]);
    if (!checked_mul_size(most, sizeof **ids, &bytes)) return error_set(err, STATUS_NO_MEMORY, "%s: too long", from);
    int32_t *list = mem_alloc(m, MEM_PROCESS, bytes);
    if (!list) return error_set(err, STATUS_NO_MEMORY, "%s: no memory for %zu ids", from, most);
    size_t count = 0, i = 0;
    bool more = true; /* the start, and each comma, call for an item */
    for (;;) {
        while (i < n && is_space(text[i])) i++;
        if (i == n && !more) break;
        size_t start = i;
        while (i < n && text[i] != ',' && !is_space(text[i])) i++;
        if (!parse_id(text + start, i - start, &list[count])) {
            status rc = bad_item(from, count + 1, text + start, i - start, err);
            mem_free(m, list);
            return rc;
        }
        count++;
        while (i < n && is_space(text[i])) i++;
        more = i < n && text[i] == ',';
        if (more) i++;
    }
    *ids = list;
    *n_ids = count;
    return STATUS_OK;
}

static status add_texts(prompt_list *p, const cli *x, error *err) {
    int n_texts = config_list_size(x->c, CONFIG_KEY_PROMPT);
    for (int i = 0; i < n_texts; i++) {
        prompt *item = &p->items[p->n++];
        item->text = config_list_item(x->c, CONFIG_KEY_PROMPT, i);
        item->n_text = strlen(item->text);
        snprintf(item->from, sizeof item->from, n_texts > 1 ? "-p %d" : "-p", i + 1);
        TRY(prompt_check_utf8(item->from, item->text, item->n_text, err));
    }
    if (!config_is_set(x->c, CONFIG_KEY_FILE)) return STATUS_OK;
    const char *path = config_text(x->c, CONFIG_KEY_FILE);
    TRY(prompt_read_file(path, &p->file, err));
    prompt *item = &p->items[p->n++];
    item->text = textbuf_text(&p->file);
    item->n_text = p->file.len;
    snprintf(item->from, sizeof item->from, "-f");
    status rc = prompt_check_utf8(item->from, item->text, item->n_text, err);
    if (rc != STATUS_OK) error_prefix(err, "%s", path);
    return rc;
}

static status add_ids(prompt_list *p, const cli *x, error *err) {
    int n_lists = config_list_size(x->c, CONFIG_KEY_TOKEN_IDS);
    for (int i = 0; i < n_lists; i++) {
        prompt *item = &p->items[p->n++];
        const char *text = config_list_item(x->c, CONFIG_KEY_TOKEN_IDS, i);
        item->is_ids = true;
        snprintf(item->from, sizeof item->from, n_lists > 1 ? "--token-ids %d" : "--token-ids", i + 1);
        TRY(prompt_parse_ids(p->m, item->from, text, strlen(text), &item->ids, &item->n_ids, err));
    }
    return STATUS_OK;
}

status prompt_list_init(prompt_list *out, const cli *x, int kinds, error *err) {
    *out = (prompt_list){.m = x->m};
    textbuf_init(&out->file, x->m, MEM_PROCESS);
    size_t n = 0;
    if (kinds & PROMPT_TEXT) n += (size_t)config_list_size(x->c, CONFIG_KEY_PROMPT) + (config_is_set(x->c, CONFIG_KEY_FILE) ? 1 : 0);
    if (kinds & PROMPT_IDS) n += (size_t)config_list_size(x->c, CONFIG_KEY_TOKEN_IDS);
    if (n == 0) {
        const char *ways = kinds == PROMPT_TEXT  ? "-p TEXT or -f FILE"
                           : kinds == PROMPT_IDS ? "--token-ids LIST"
                                                 : "-p TEXT, -f FILE or --token-ids LIST";
        return error_set(err, STATUS_INVALID, "%s: nothing to read; use %s", x->command, ways);
    }
    out->items = mem_calloc(x->m, MEM_PROCESS, n, sizeof *out->items);
    if (!out->items) return error_set(err, STATUS_NO_MEMORY, "%s: no memory for %zu prompts", x->command, n);
    if (kinds & PROMPT_TEXT) TRY(add_texts(out, x, err));
    if (kinds & PROMPT_IDS) TRY(add_ids(out, x, err));
    return STATUS_OK;
}

status prompt_list_encode(prompt_list *p, const cli *x, const headrace_vocab *v, int32_t add_bos, bool no_special, error *err) {
    for (size_t i = 0; i < p->n; i++) {
        prompt *item = &p->items[i];
        headrace_error why = {0};
        int32_t *ids = NULL;
        size_t n_ids = 0;
        if (item->is_ids) continue;
        status rc = session_status(headrace_encode(v, item->text, item->n_text, add_bos, no_special, &ids, &n_ids, &why), &why, err);
        if (rc != STATUS_OK) {
            error_prefix(err, "%s", item->from);
            return rc;
        }
        item->ids = mem_alloc(x->m, MEM_PROCESS, n_ids * sizeof *ids); /* no overflow: as many bytes are there already */
        if (item->ids && n_ids) memcpy(item->ids, ids, n_ids * sizeof *ids);
        item->n_ids = n_ids;
        headrace_ids_free(ids);
        if (!item->ids) return error_set(err, STATUS_NO_MEMORY, "%s: no memory for %zu ids", item->from, n_ids);
    }
    return STATUS_OK;
}

void prompt_list_deinit(prompt_list *p) {
    for (size_t i = 0; i < p->n; i++) mem_free(p->m, p->items[i].ids);
    mem_free(p->m, p->items);
    textbuf_deinit(&p->file);
    *p = (prompt_list){.m = p->m};
}
