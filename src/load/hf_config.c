/* SPDX-License-Identifier: Apache-2.0 */
/* JSON trees become meta values: texts in one block, the members of each container in one array. */
#include "load/hf_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"

enum { MAX_CONFIG_BYTES = 4 << 20, MAX_TOKENIZER_CONFIG_BYTES = 16 << 20 };

status hf_json_read(source *s, const char *name, size_t max_bytes, unsigned flags, json_doc *out, error *err) {
    char *text = NULL;
    size_t n = 0;
    TRY(source_read_sibling(s, MEM_MODEL, name, max_bytes, &text, &n, err));
    status rc = json_doc_parse(s->m, MEM_MODEL, text, n, name, flags, out, err);
    if (rc == STATUS_OK && !json_is_object(out->root)) {
        json_doc_free(out);
        rc = error_set(err, STATUS_FORMAT, "json: %s: not an object", name);
    }
    if (rc != STATUS_OK) error_prefix(err, "load: %s", s->path);
    mem_free(s->m, text);
    return rc;
}

/* --- JSON to values; the depth is bounded by json_doc --- */

static size_t text_bytes(const json_t *j) {
    size_t n = 0, i;
    const char *key;
    json_t *child;
    if (json_is_string(j)) return json_string_length(j) + 1;
    if (json_is_array(j)) json_array_foreach(j, i, child) n += text_bytes(child);
    if (json_is_object(j)) json_object_foreach((json_t *)(uintptr_t)j, key, child) n += strlen(key) + 1 + text_bytes(child);
    return n;
}

typedef struct converter {
    arena *a;
    char *texts; /* the next free byte */
} converter;

static meta_text keep(converter *c, const char *text, size_t n) {
    meta_text t = {c->texts, n};
    memcpy(c->texts, text, n);
    c->texts[n] = '\0';
    c->texts += n + 1;
    return t;
}

/* An integer that was read as a real, because another one in the file did not fit, is an integer again. */
static meta_value number(double r) {
    if (r == trunc(r) && fabs(r) <= 9007199254740992.0) return (meta_value){.type = META_INT, .i = (int64_t)r};
    return (meta_value){.type = META_REAL, .real = r};
}

static status convert(converter *c, const json_t *j, meta_value *out);

static status convert_array(converter *c, const json_t *j, meta_value *out) {
    size_t n = json_array_size(j), i;
    json_t *child;
    *out = (meta_value){.type = META_ARRAY, .elem = META_ELEM_VALUES, .a = {.n = n}};
    if (n == 0) return STATUS_OK;
    meta_value *values = arena_calloc(c->a, n, sizeof *values);
    if (values == NULL) return STATUS_NO_MEMORY;
    json_array_foreach(j, i, child) TRY(convert(c, child, &values[i]));
    out->a.values = values;
    return STATUS_OK;
}

static status convert_object(converter *c, const json_t *j, meta_value *out) {
    size_t n = json_object_size(j), i = 0, dup = 0;
    const char *key;
    json_t *child;
    *out = (meta_value){.type = META_OBJECT};
    if (n == 0) return STATUS_OK;
    meta_value *values = arena_calloc(c->a, n, sizeof *values);
    meta_text *keys = arena_calloc(c->a, n, sizeof *keys);
    if (values == NULL || keys == NULL) return STATUS_NO_MEMORY;
    json_object_foreach((json_t *)(uintptr_t)j, key, child) {
        keys[i] = keep(c, key, strlen(key));
        TRY(convert(c, child, &values[i++]));
    }
    return meta_object_init(out, c->a, keys, values, n, &dup);
}

static status convert(converter *c, const json_t *j, meta_value *out) {
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        return convert_object(c, j, out);
    case JSON_ARRAY:
        return convert_array(c, j, out);
    case JSON_STRING:
        *out = (meta_value){.type = META_STRING, .str = keep(c, json_string_value(j), json_string_length(j))};
        break;
    case JSON_INTEGER:
        *out = (meta_value){.type = META_INT, .i = json_integer_value(j)};
        break;
    case JSON_REAL:
        *out = number(json_real_value(j));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = (meta_value){.type = META_BOOL, .flag = json_is_true(j)};
        break;
    case JSON_NULL:
        *out = (meta_value){.type = META_NULL};
        break;
    }
    return STATUS_OK;
}

static status keep_file(source *s, meta *md, const char *name, size_t max_bytes, meta_value *out, error *err) {
    json_doc d = {0};
    TRY(hf_json_read(s, name, max_bytes, JSON_DOC_BIG_INTEGERS, &d, err));
    converter c = {.a = md->a, .texts = arena_alloc(md->a, text_bytes(d.root))};
    status rc = c.texts == NULL ? STATUS_NO_MEMORY : convert(&c, d.root, out);
    json_doc_free(&d);
    if (rc != STATUS_OK) return error_set(err, rc, "load: %s/%s: no memory for its values", s->path, name);
    return STATUS_OK;
}

/* Files that may be absent, under their names. */
static status keep_extras(source *s, meta *md, error *err) {
    static const struct {
        const char *name, *file;
        size_t max_bytes;
    } files[] = {{"generation_config", "generation_config.json", MAX_CONFIG_BYTES},
                 {"tokenizer_config", "tokenizer_config.json", MAX_TOKENIZER_CONFIG_BYTES}};
    enum { N = sizeof files / sizeof files[0] };
    size_t n = 0, dup = 0;
    meta_text *keys = arena_calloc(md->a, N, sizeof *keys);
    meta_value *values = arena_calloc(md->a, N, sizeof *values);
    if (keys == NULL || values == NULL) return error_set(err, STATUS_NO_MEMORY, "load: no memory for metadata");
    for (size_t i = 0; i < N; i++) {
        error why = {0};
        status rc = keep_file(s, md, files[i].file, files[i].max_bytes, &values[n], &why);
        if (rc == STATUS_NOT_FOUND) continue;
        if (rc != STATUS_OK) return error_set(err, rc, "%s", why.text);
        keys[n++] = (meta_text){files[i].name, strlen(files[i].name)};
    }
    if (meta_object_init(&md->extra, md->a, keys, values, n, &dup) != STATUS_OK)
        return error_set(err, STATUS_NO_MEMORY, "load: no memory for metadata");
    return STATUS_OK;
}

status hf_config_read(source *s, meta **out, error *err) {
    meta *md = NULL;
    if (meta_create(s->m, META_HF, &md) != STATUS_OK) return error_set(err, STATUS_NO_MEMORY, "load: no memory for metadata");
    status rc = keep_file(s, md, "config.json", MAX_CONFIG_BYTES, &md->root, err);
    if (rc == STATUS_OK) rc = keep_extras(s, md, err);
    if (rc == STATUS_OK)
        *out = md;
    else
        meta_destroy(md);
    return rc;
}
