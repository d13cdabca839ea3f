/* SPDX-License-Identifier: Apache-2.0 */
/* The option table and the values. Text lives in an arena of the configuration; a value that is set again leaves its old text there. */
#include "base/config.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/config_source.h"

const config_row config_rows[CONFIG_KEY_COUNT] = {
#define OPTION(id, key, short_flag, type, choices, def, min, max, where, metavar, help)                                                    \
    {CONFIG_KEY_##id, key, short_flag, type, choices, def, min, max, where, metavar, help},
#include "base/config_options.def"
#undef OPTION
};

const config_row *config_find(const char *key, size_t n) {
    for (int i = 0; i < CONFIG_KEY_COUNT; i++)
        if (strncmp(config_rows[i].key, key, n) == 0 && config_rows[i].key[n] == 0) return &config_rows[i];
    return NULL;
}

bool config_is_action(const config_row *row) { return row->id == CONFIG_KEY_CONFIG || row->id == CONFIG_KEY_PRINT_CONFIG; }

void config_variable_name(const config_row *row, char out[CONFIG_NAME_BYTES]) {
    static const char prefix[] = "HEADRACE_";
    size_t n = sizeof prefix - 1;
    memcpy(out, prefix, n);
    for (const char *p = row->key; *p && n + 1 < CONFIG_NAME_BYTES; p++)
        out[n++] = *p == '-' ? '_' : (char)(*p >= 'a' && *p <= 'z' ? *p - 'a' + 'A' : *p);
    out[n] = 0;
}

/* ---- checks ---- */

static bool parse_bool(const char *text, bool *out) {
    static const char *const words[] = {"false", "true", "0", "1", "off", "on"};
    for (int i = 0; i < 6; i++) {
        if (strcmp(text, words[i]) != 0) continue;
        *out = i & 1;
        return true;
    }
    return false;
}

static bool is_choice(const char *choices, const char *text) {
    size_t n = strlen(text);
    if (n == 0 || strchr(text, '|')) return false;
    for (const char *p = choices; p; p = strchr(p, '|')) {
        if (*p == '|') p++;
        if (strncmp(p, text, n) == 0 && (p[n] == 0 || p[n] == '|')) return true;
    }
    return false;
}

static status out_of_range(const config_row *row, const char *label, const char *text, error *err) {
    if (row->type == CONFIG_REAL)
        return error_set(err, STATUS_INVALID, "config: %s: %.100s is out of range, %g to %g is allowed", label, text, row->min, row->max);
    if (row->type == CONFIG_BYTES) return error_set(err, STATUS_INVALID, "config: %s: %.100s is out of range, at most %.0fT is allowed", label, text, floor(row->max / 0x1p40));
    return error_set(err, STATUS_INVALID, "config: %s: %.100s is out of range, %.0f to %.0f is allowed", label, text, row->min, row->max);
}

/* A number that no 64 bits hold is too large, not misspelt. */
static bool is_digits(const char *text) {
    if (*text == '-') text++;
    return *text != '\0' && text[strspn(text, "0123456789")] == '\0';
}

static status malformed(const char *label, const char *text, const char *wanted, error *err) {
    return error_set(err, STATUS_INVALID, "config: %s: \"%.100s\" is not %s", label, text, wanted);
}

/* The range is compared as integers: a double cannot hold every 64-bit number. */
static bool count_in_range(const config_row *row, int64_t v) { return v >= (int64_t)row->min && v <= (int64_t)row->max; }
static bool bytes_in_range(const config_row *row, uint64_t v) { return v >= (uint64_t)row->min && v <= (uint64_t)row->max; }

static status parse_value(const config_row *row, const char *label, const char *text, config_value *v, error *err) {
    switch (row->type) {
    case CONFIG_BOOL:
        return parse_bool(text, &v->as.flag) ? STATUS_OK : malformed(label, text, "true, false, on, off, 1 or 0", err);
    case CONFIG_COUNT:
        if (!config_parse_count(text, &v->as.count) && is_digits(text)) return out_of_range(row, label, text, err);
        if (!config_parse_count(text, &v->as.count)) return malformed(label, text, "a whole number (32k = 32000, 32K = 32768)", err);
        return count_in_range(row, v->as.count) ? STATUS_OK : out_of_range(row, label, text, err);
    case CONFIG_BYTES:
        if (!config_parse_bytes(text, &v->as.bytes) && text[0] != '-' && is_digits(text)) return out_of_range(row, label, text, err);
        if (!config_parse_bytes(text, &v->as.bytes))
            return malformed(label, text, "a number of bytes (512M, 1.5G; K, M, G, T count in 1024)", err);
        return bytes_in_range(row, v->as.bytes) ? STATUS_OK : out_of_range(row, label, text, err);
    case CONFIG_REAL:
        if (!config_parse_real(text, &v->as.real)) return malformed(label, text, "a finite decimal number", err);
        return v->as.real >= row->min && v->as.real <= row->max ? STATUS_OK : out_of_range(row, label, text, err);
    case CONFIG_CHOICE:
        if (is_choice(row->choices, text)) return STATUS_OK;
        return error_set(err, STATUS_INVALID, "config: %s: \"%.100s\" is not one of %s", label, text, row->choices);
    case CONFIG_TEXT:
    case CONFIG_LIST:
        return STATUS_OK;
    }
    return error_set(err, STATUS_BUG, "config: %s: row of unknown type", row->key);
}

/* ---- values ---- */

/* A list that a higher origin sets starts anew. */
static status append_item(config *c, config_value *v, const char *item, config_origin origin) {
    int n = v->is_set && v->origin == origin ? v->n_items : 0;
    if (n == v->items_capacity) {
        int capacity = n ? 2 * n : 8;
        const char **items = arena_calloc(c->text, (size_t)capacity, sizeof *items);
        if (!items) return STATUS_NO_MEMORY;
        if (n) memcpy(items, v->items, (size_t)n * sizeof *items);
        v->items = items;
        v->items_capacity = capacity;
    }
    v->items[n] = item;
    v->n_items = n + 1;
    return STATUS_OK;
}

status config_apply(config *c, const config_row *row, const char *label, const char *value, config_origin origin, error *err) {
    config_value *v = &c->values[row->id], next = *v;
    TRY(parse_value(row, label, value, &next, err));
    if (v->is_set && v->origin > origin) return STATUS_OK;
    char *text = arena_strdup(c->text, value);
    if (!text || (row->type == CONFIG_LIST && append_item(c, &next, text, origin) != STATUS_OK))
        return error_set(err, STATUS_NO_MEMORY, "config: %s: no memory for its value", label);
    next.text = row->type == CONFIG_LIST ? NULL : text;
    next.is_set = true;
    next.origin = origin;
    *v = next;
    return STATUS_OK;
}

status config_create(mem *m, config **out, error *err) {
    config *c = mem_calloc(m, MEM_PROCESS, 1, sizeof *c);
    if (!c) return error_set(err, STATUS_NO_MEMORY, "config: no memory for the configuration");
    c->m = m;
    status rc = arena_create(m, MEM_PROCESS, 4096, &c->text);
    if (rc != STATUS_OK) {
        error_note(err, rc, "config: no memory for the configuration");
        goto fail;
    }
    for (int i = 0; i < CONFIG_KEY_COUNT; i++) {
        const config_row *row = &config_rows[i];
        if (!row->def) continue;
        rc = config_apply(c, row, row->key, row->def, CONFIG_FROM_DEFAULT, err);
        if (rc == STATUS_INVALID) rc = STATUS_BUG; /* our own table */
        if (rc != STATUS_OK) goto fail;
    }
    *out = c;
    return STATUS_OK;
fail:
    config_destroy(c);
    return rc;
}

void config_destroy(config *c) {
    if (!c) return;
    arena_destroy(c->text);
    mem_free(c->m, c);
}

status config_set(config *c, const char *key, const char *value, config_origin origin, error *err) {
    const config_row *row = config_find(key, strlen(key));
    if (row) return config_apply(c, row, row->key, value, origin, err);
    config_hint hint = config_hint_for(key);
    char text[CONFIG_HINT_BYTES];
    for (int i = 0; i < CONFIG_KEY_COUNT; i++) config_hint_consider(&hint, config_rows[i].key);
    return error_set(err, STATUS_INVALID, "config: unknown key \"%.100s\"%s", key, config_hint_text(&hint, text));
}

static const config_value *value_of(const config *c, config_key key) {
    assert((int)key >= 0 && key < CONFIG_KEY_COUNT);
    return &c->values[key];
}

static const config_value *typed(const config *c, config_key key, config_type type) {
    const config_value *v = value_of(c, key);
    assert(config_rows[key].type == type);
    (void)type;
    return v;
}

bool config_is_set(const config *c, config_key key) { return value_of(c, key)->is_set; }
config_origin config_origin_of(const config *c, config_key key) { return value_of(c, key)->origin; }
bool config_bool(const config *c, config_key key) { return typed(c, key, CONFIG_BOOL)->as.flag; }
int64_t config_count(const config *c, config_key key) { return typed(c, key, CONFIG_COUNT)->as.count; }
uint64_t config_bytes(const config *c, config_key key) { return typed(c, key, CONFIG_BYTES)->as.bytes; }
double config_real(const config *c, config_key key) { return typed(c, key, CONFIG_REAL)->as.real; }
int config_list_size(const config *c, config_key key) { return typed(c, key, CONFIG_LIST)->n_items; }

const char *config_text(const config *c, config_key key) {
    assert(config_rows[key].type == CONFIG_TEXT || config_rows[key].type == CONFIG_CHOICE);
    return value_of(c, key)->text;
}

const char *config_value_text(const config *c, config_key key) {
    assert(config_rows[key].type != CONFIG_LIST);
    return value_of(c, key)->text;
}

const char *config_list_item(const config *c, config_key key, int i) {
    const config_value *v = typed(c, key, CONFIG_LIST);
    assert(i >= 0 && i < v->n_items);
    return v->items[i];
}
