/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration as text: --print-config and --help. */
#include <stdio.h>
#include <string.h>

#include "base/config_source.h"
#include "base/printable.h"

/* ---- print ---- */

static const char *const origin_names[] = {"default", "environment", "file", "command line"};

/* Whether a line of a file may hold the text as it is. */
static bool is_plain(const char *s) {
    size_t n = strlen(s);
    if (n == 0 || s[0] == '"' || s[0] == ' ' || s[n - 1] == ' ' || printable_utf8_prefix(s, n) != n) return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7F || s[i] == '#') return false;
    return true;
}

static void add_value(textbuf *out, const char *s) {
    if (is_plain(s)) {
        textbuf_adds(out, s);
        return;
    }
    textbuf_adds(out, "\"");
    bool ascii_only = printable_utf8_prefix(s, strlen(s)) != strlen(s);
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\') {
            textbuf_addf(out, "\\%c", c);
        } else if (c == '\n') {
            textbuf_adds(out, "\\n");
        } else if (c == '\t') {
            textbuf_adds(out, "\\t");
        } else if (c < 0x20 || c == 0x7F || (c >= 0x80 && ascii_only)) {
            textbuf_addf(out, "\\x%02x", (unsigned)c);
        } else {
            textbuf_add(out, s, 1);
        }
    }
    textbuf_adds(out, "\"");
}

/* What a file may not set is shown as a comment. */
static void print_line(const config_row *row, const char *value, config_origin origin, textbuf *out) {
    if (!(row->where & CONFIG_COMMON) || config_is_action(row)) textbuf_adds(out, "# ");
    textbuf_addf(out, "%s = ", row->key);
    add_value(out, value);
    textbuf_addf(out, "  # %s\n", origin_names[origin]);
}

void config_print(const config *c, uint32_t where, textbuf *out) {
    for (int i = 0; i < CONFIG_KEY_COUNT; i++) {
        const config_row *row = &config_rows[i];
        const config_value *v = &c->values[i];
        if (!(row->where & where)) continue;
        if (!v->is_set) {
            textbuf_addf(out, "# %s is not set\n", row->key);
        } else if (row->type == CONFIG_LIST) {
            for (int k = 0; k < v->n_items; k++) print_line(row, v->items[k], v->origin, out);
        } else {
            print_line(row, v->text, v->origin, out);
        }
    }
}

/* ---- help ---- */

enum { HELP_COLUMN = 32, HELP_WIDTH = 100, HELP_LEFT_BYTES = 128 };

/* Code points, not bytes. */
static size_t columns(const char *s, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)s[i] & 0xC0) != 0x80;
    return count;
}

static void add_blanks(textbuf *out, size_t n) {
    for (size_t i = 0; i < n; i++) textbuf_adds(out, " ");
}

/* Bytes of the word that goes on one line: all of it, or, of a list of choices that is wider than a line, those that fit. */
static size_t word_bytes(const char *text) {
    const size_t n = strcspn(text, " ");
    size_t fit = n;
    while (fit > 1 && columns(text, fit) > HELP_WIDTH - HELP_COLUMN) {
        do { fit--; } while (fit > 1 && text[fit - 1] != '|');
    }
    return fit > 1 ? fit : n;
}

/* Words of `text` from HELP_COLUMN on; `at` is the column where the line stands. */
static void add_wrapped(textbuf *out, const char *text, size_t at) {
    bool first = true;
    while (*text) {
        size_t n = word_bytes(text), width = columns(text, n);
        if (!first && at + 1 + width > HELP_WIDTH) {
            textbuf_adds(out, "\n");
            at = 0;
        }
        if (at < HELP_COLUMN) {
            add_blanks(out, HELP_COLUMN - at);
            at = HELP_COLUMN;
        } else if (!first) {
            textbuf_adds(out, " ");
            at++;
        }
        textbuf_add(out, text, n);
        at += width;
        first = false;
        text += n;
        text += strspn(text, " ");
    }
    textbuf_adds(out, "\n");
}

static void add_row(textbuf *out, const config_row *row) {
    char left[HELP_LEFT_BYTES];
    char flag[8] = "    ";
    if (row->short_flag) snprintf(flag, sizeof flag, "-%c, ", row->short_flag);
    const char *no = row->type == CONFIG_BOOL && !(row->def && strcmp(row->def, "false") == 0) ? "[no-]" : "";
    snprintf(left, sizeof left, "  %s--%s%s%s%s", flag, no, row->key, row->metavar ? " " : "", row->metavar ? row->metavar : "");
    textbuf_adds(out, left);
    size_t at = columns(left, strlen(left));
    if (at + 2 > HELP_COLUMN) {
        textbuf_adds(out, "\n");
        at = 0;
    }
    textbuf help;
    textbuf_init(&help, out->m, out->tag);
    textbuf_adds(&help, row->help);
    if (row->type == CONFIG_CHOICE) textbuf_addf(&help, " [%s]", row->choices);
    if (row->def && row->type != CONFIG_BOOL) textbuf_addf(&help, " (default %s)", row->def);
    if (row->type == CONFIG_BOOL && row->def && strcmp(row->def, "true") == 0) textbuf_adds(&help, " (default yes)");
    if (help.failed) out->failed = true;
    add_wrapped(out, textbuf_text(&help), at);
    textbuf_deinit(&help);
}

static void add_group(textbuf *out, uint32_t where, bool common, const char *title) {
    bool any = false;
    for (int i = 0; i < CONFIG_KEY_COUNT; i++) {
        const config_row *row = &config_rows[i];
        if (!(row->where & where) || ((row->where & CONFIG_COMMON) != 0) != common) continue;
        if (!any) textbuf_addf(out, "%s%s:\n", out->len ? "\n" : "", title);
        any = true;
        add_row(out, row);
    }
}

void config_help(uint32_t where, textbuf *out) {
    add_group(out, where, false, "This command");
    add_group(out, where, true, "Model and engine");
}
