/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings from a file and from the environment. A line is `key = value`, with a comment after " #". A value that would not survive
 * that is written in double quotes, with \\ \" \n \t and \xHH for other bytes; config_print writes it so.
 */
#include <stdio.h>
#include <string.h>

#include "base/config_source.h"
#include "base/os.h"
#include "base/printable.h"

enum { MAX_FILE_BYTES = 1 << 20, MAX_LINE_BYTES = 16384, LABEL_BYTES = 400 };

static bool is_blank(char c) { return c == ' ' || c == '\t'; }

static char *trim(char *s) {
    while (is_blank(*s)) s++;
    size_t n = strlen(s);
    while (n && is_blank(s[n - 1])) s[--n] = 0;
    return s;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Decodes the quoted text that starts at s in place; what is wrong with it, or NULL. */
static const char *unquote(char *s, char **value) {
    char *from = s + 1, *to = s;
    while (*from && *from != '"') {
        char c = *from++;
        if (c == '\\') {
            c = *from++;
            if (c == 'x') {
                int high = hex_digit(from[0]), low = high < 0 ? -1 : hex_digit(from[1]);
                if (low < 0 || high * 16 + low == 0) return "\\x wants two digits, and not 00";
                c = (char)(high * 16 + low);
                from += 2;
            } else if (c == 'n') {
                c = '\n';
            } else if (c == 't') {
                c = '\t';
            } else if (c != '"' && c != '\\') {
                return "unknown escape; \\\\, \\\", \\n, \\t and \\xHH are known";
            }
        }
        *to++ = c;
    }
    if (*from != '"') return "the closing quote is missing";
    from = from + 1 + strspn(from + 1, " \t");
    if (*from && *from != '#') return "text after the closing quote";
    *to = 0;
    *value = s;
    return NULL;
}

static const char *parse_value_text(char *s, char **value) {
    if (*s == '"') return unquote(s, value);
    for (char *p = s; *p; p++) {
        if (*p != '#' || (p != s && !is_blank(p[-1]))) continue;
        *p = 0;
        break;
    }
    *value = trim(s);
    return **value ? NULL : "no value (write \"\" for an empty text)";
}

static status read_line(config *c, const char *path, int number, char *line, int line_of[CONFIG_KEY_COUNT], error *err) {
    line = trim(line);
    if (*line == 0 || *line == '#') return STATUS_OK;
    if (*line == '[') return error_set(err, STATUS_INVALID, "config: %.300s:%d: sections are not known here", path, number);
    char *equals = strchr(line, '=');
    if (!equals) return error_set(err, STATUS_INVALID, "config: %.300s:%d: \"%.100s\" is no \"key = value\" line", path, number, line);
    *equals = 0;
    const char *key = trim(line);
    const config_row *row = config_find(key, strlen(key));
    if (!row) {
        config_hint hint = config_hint_for(key);
        char text[CONFIG_HINT_BYTES];
        for (int i = 0; i < CONFIG_KEY_COUNT; i++)
            if (config_rows[i].where & CONFIG_COMMON) config_hint_consider(&hint, config_rows[i].key);
        return error_set(err, STATUS_INVALID, "config: %.300s:%d: unknown key \"%.100s\"%s", path, number, key,
                         config_hint_text(&hint, text));
    }
    if (!(row->where & CONFIG_COMMON) || config_is_action(row))
        return error_set(err, STATUS_INVALID, "config: %.300s:%d: %s is for the command line only", path, number, row->key);
    if (line_of[row->id])
        return error_set(err, STATUS_INVALID, "config: %.300s:%d: %s is set in line %d already", path, number, row->key, line_of[row->id]);
    line_of[row->id] = number;
    char label[LABEL_BYTES], *value = NULL;
    snprintf(label, sizeof label, "%.300s:%d: %s", path, number, row->key);
    const char *problem = parse_value_text(equals + 1 + strspn(equals + 1, " \t"), &value);
    if (problem) return error_set(err, STATUS_INVALID, "config: %s: %s", label, problem);
    return config_apply(c, row, label, value, CONFIG_FROM_FILE, err);
}

/* Bytes a line must not hold. */
static status check_line(const char *path, int number, const char *line, size_t n, error *err) {
    if (n > MAX_LINE_BYTES)
        return error_set(err, STATUS_INVALID, "config: %.300s:%d: the line is longer than %d bytes", path, number, MAX_LINE_BYTES);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)line[i] < 0x20 && line[i] != '\t')
            return error_set(err, STATUS_INVALID, "config: %.300s:%d: control character 0x%02x in column %zu", path, number,
                             (unsigned)(unsigned char)line[i], i + 1);
    size_t valid = printable_utf8_prefix(line, n);
    if (valid != n) return error_set(err, STATUS_INVALID, "config: %.300s:%d: column %zu is not UTF-8", path, number, valid + 1);
    return STATUS_OK;
}

static status read_lines(config *c, const char *path, char *text, size_t n, error *err) {
    int line_of[CONFIG_KEY_COUNT] = {0};
    int number = 0;
    char *end = text + n;
    if (n >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) text += 3;
    while (text < end) {
        char *newline = memchr(text, '\n', (size_t)(end - text));
        char *line = text, *stop = newline ? newline : end;
        text = stop + 1;
        *stop = 0;
        if (stop > line && stop[-1] == '\r') *--stop = 0;
        number++;
        TRY(check_line(path, number, line, (size_t)(stop - line), err));
        TRY(read_line(c, path, number, line, line_of, err));
    }
    return STATUS_OK;
}

status config_read_file(config *c, const char *path, error *err) {
    char *text = NULL;
    size_t n = 0;
    status rc = os_read_text(c->m, MEM_PROCESS, path, MAX_FILE_BYTES, &text, &n, err);
    if (rc != STATUS_OK) {
        error_prefix(err, "config");
        return rc;
    }
    rc = read_lines(c, path, text, n, err);
    mem_free(c->m, text);
    return rc;
}

/* ---- the environment ---- */

static const config_row *row_of_variable(const char *name, size_t n) {
    for (int i = 0; i < CONFIG_KEY_COUNT; i++) {
        char known[CONFIG_NAME_BYTES];
        config_variable_name(&config_rows[i], known);
        if (strncmp(known, name, n) == 0 && known[n] == 0) return &config_rows[i];
    }
    return NULL;
}

static bool starts_with(const char *s, const char *prefix) { return strncmp(s, prefix, strlen(prefix)) == 0; }

static status unknown_variable(const char *name, size_t n, error *err) {
    char word[CONFIG_NAME_BYTES], known[CONFIG_NAME_BYTES], text[CONFIG_HINT_BYTES];
    snprintf(word, sizeof word, "%.*s", n < sizeof word ? (int)n : (int)sizeof word - 1, name);
    config_hint hint = config_hint_for(word);
    for (int i = 0; i < CONFIG_KEY_COUNT; i++) {
        if (!(config_rows[i].where & CONFIG_COMMON) || config_rows[i].id == CONFIG_KEY_PRINT_CONFIG) continue;
        config_variable_name(&config_rows[i], known);
        config_hint_consider(&hint, known);
    }
    return error_set(err, STATUS_INVALID, "config: unknown environment variable %s%s", word, config_hint_text(&hint, text));
}

status config_read_environment(config *c, error *err) {
    const char *entry;
    for (int i = 0; (entry = os_env_entry(i)) != NULL; i++) {
        if (!starts_with(entry, "HEADRACE_") || starts_with(entry, "HEADRACE_TEST_")) continue;
        const char *equals = strchr(entry, '=');
        if (!equals) continue;
        size_t n = (size_t)(equals - entry);
        const config_row *row = row_of_variable(entry, n);
        if (!row) return unknown_variable(entry, n, err);
        char name[CONFIG_NAME_BYTES];
        config_variable_name(row, name);
        if (!(row->where & CONFIG_COMMON) || row->id == CONFIG_KEY_PRINT_CONFIG)
            return error_set(err, STATUS_INVALID, "config: %s: %s is for the command line only", name, row->key);
        TRY(config_apply(c, row, name, equals + 1, CONFIG_FROM_ENVIRONMENT, err));
    }
    return STATUS_OK;
}
