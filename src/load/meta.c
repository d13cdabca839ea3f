/* SPDX-License-Identifier: Apache-2.0 */
/* Values, conversions and lookup of metadata. */
#include "load/meta.h"

#include <math.h>
#include <string.h>

#include "load/meta_impl.h"
#include "load/sort_index.h"

enum { ARENA_CHUNK_BYTES = 16 << 10, FORMAT_TEXT_BYTES = 60, FORMAT_ELEMS = 4 };

status meta_create(mem *m, meta_container c, meta **out) {
    meta *md = mem_calloc(m, MEM_MODEL, 1, sizeof *md);
    if (md == NULL) return STATUS_NO_MEMORY;
    md->m = m;
    md->container = c;
    md->root.type = META_OBJECT;
    md->extra.type = META_OBJECT;
    status rc = arena_create(m, MEM_MODEL, ARENA_CHUNK_BYTES, &md->a);
    if (rc != STATUS_OK) {
        mem_free(m, md);
        return rc;
    }
    *out = md;
    return STATUS_OK;
}

void meta_destroy(meta *md) {
    if (md == NULL) return;
    if (md->a != NULL) arena_destroy(md->a);
    mem_free(md->m, md->header);
    mem_free(md->m, md);
}

size_t meta_elem_bytes(meta_elem e) {
    switch (e) {
    case META_ELEM_U8:
    case META_ELEM_I8:
    case META_ELEM_BOOL:
        return 1;
    case META_ELEM_U16:
    case META_ELEM_I16:
        return 2;
    case META_ELEM_U32:
    case META_ELEM_I32:
    case META_ELEM_F32:
        return 4;
    case META_ELEM_U64:
    case META_ELEM_I64:
    case META_ELEM_F64:
        return 8;
    case META_ELEM_VALUES:
    case META_ELEM_STRING:
        break;
    }
    return 0;
}

static uint64_t read_le(const uint8_t *p, size_t n) {
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) v |= (uint64_t)p[i] << (8 * i);
    return v;
}

meta_value meta_packed_at(meta_elem e, const uint8_t *data, size_t i) {
    size_t n = meta_elem_bytes(e);
    uint64_t bits = read_le(data + i * n, n);
    meta_value v = {.type = META_UINT, .u = bits};
    switch (e) {
    case META_ELEM_I8:
        v.type = META_INT, v.i = (int8_t)bits;
        break;
    case META_ELEM_I16:
        v.type = META_INT, v.i = (int16_t)bits;
        break;
    case META_ELEM_I32:
        v.type = META_INT, v.i = (int32_t)bits;
        break;
    case META_ELEM_I64:
        v.type = META_INT, v.i = (int64_t)bits;
        break;
    case META_ELEM_BOOL:
        v.type = META_BOOL, v.flag = bits != 0;
        break;
    case META_ELEM_F32: {
        uint32_t b32 = (uint32_t)bits;
        float f;
        memcpy(&f, &b32, sizeof f);
        v.type = META_REAL, v.real = (double)f;
        break;
    }
    case META_ELEM_F64: {
        double d;
        memcpy(&d, &bits, sizeof d);
        v.type = META_REAL, v.real = d;
        break;
    }
    default:
        break;
    }
    return v;
}

/* --- objects --- */

static int cmp_keys(const void *ctx, uint32_t a, uint32_t b) {
    const meta_text *keys = ctx;
    return sort_index_bytes(keys[a].text, keys[a].n, keys[b].text, keys[b].n);
}

status meta_object_init(meta_value *obj, arena *a, const meta_text *keys, const meta_value *values, size_t n, size_t *dup) {
    uint32_t *idx = NULL;
    if (n > UINT32_MAX) return STATUS_NO_MEMORY;
    if (n > 0) {
        idx = arena_calloc(a, n, sizeof *idx);
        if (idx == NULL) return STATUS_NO_MEMORY;
        sort_index_fill(idx, n, cmp_keys, keys);
        for (size_t i = 1; i < n; i++) {
            if (cmp_keys(keys, idx[i - 1], idx[i]) != 0) continue;
            *dup = idx[i];
            return STATUS_FORMAT;
        }
    }
    *obj = (meta_value){.type = META_OBJECT, .a = {.n = n, .values = values, .keys = keys, .by_key = idx}};
    return STATUS_OK;
}

const meta_value *meta_member(const meta_value *v, const char *key, size_t key_len) {
    if (v == NULL || v->type != META_OBJECT) return NULL;
    size_t lo = 0, hi = v->a.n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const meta_text *k = &v->a.keys[v->a.by_key[mid]];
        int c = sort_index_bytes(key, key_len, k->text, k->n);
        if (c == 0) return &v->a.values[v->a.by_key[mid]];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

/* "a.b.c" from v down. */
static const meta_value *find_path(const meta_value *v, const char *path) {
    while (v != NULL) {
        size_t n = strcspn(path, ".");
        v = meta_member(v, path, n);
        if (path[n] == '\0') return v;
        path += n + 1;
    }
    return NULL;
}

meta_container meta_get_container(const meta *m) { return m->container; }

const meta_value *meta_find(const meta *m, const char *key) {
    if (m->container == META_GGUF) return meta_member(&m->root, key, strlen(key));
    if (key[0] == '@') return find_path(&m->extra, key + 1);
    const meta_value *v = find_path(meta_member(&m->root, "text_config", strlen("text_config")), key);
    return meta_type_of(v) == META_ABSENT || v->type == META_NULL ? find_path(&m->root, key) : v;
}

/* --- conversions --- */

meta_type meta_type_of(const meta_value *v) { return v == NULL ? META_ABSENT : v->type; }

bool meta_as_bool(const meta_value *v, bool *out) {
    if (meta_type_of(v) != META_BOOL) return false;
    *out = v->flag;
    return true;
}

static bool real_to_i64(double r, int64_t *out) {
    if (!(r >= -9223372036854775808.0 && r < 9223372036854775808.0) || r != trunc(r)) return false;
    *out = (int64_t)r;
    return true;
}

bool meta_as_i64(const meta_value *v, int64_t *out) {
    switch (meta_type_of(v)) {
    case META_INT:
        *out = v->i;
        return true;
    case META_UINT:
        if (v->u > INT64_MAX) return false;
        *out = (int64_t)v->u;
        return true;
    case META_REAL:
        return real_to_i64(v->real, out);
    default:
        return false;
    }
}

bool meta_as_real(const meta_value *v, double *out) {
    switch (meta_type_of(v)) {
    case META_INT:
        *out = (double)v->i;
        return true;
    case META_UINT:
        *out = (double)v->u;
        return true;
    case META_REAL:
        *out = v->real;
        return true;
    default:
        return false;
    }
}

bool meta_as_string(const meta_value *v, const char **text, size_t *n) {
    if (meta_type_of(v) != META_STRING) return false;
    *text = v->str.text;
    *n = v->str.n;
    return true;
}

/* --- arrays --- */

bool meta_array_size(const meta_value *v, size_t *n) {
    if (meta_type_of(v) != META_ARRAY) return false;
    *n = v->a.n;
    return true;
}

static bool packed_string(const meta_value *v, size_t i, const char **text, size_t *n) {
    uint32_t begin = v->a.offs[i];
    *text = (const char *)v->a.data + begin;
    *n = v->a.offs[i + 1] - v->a.gap - begin;
    return true;
}

/* Any element but a packed string, as a value. */
static bool element(const meta_value *v, size_t i, meta_value *out) {
    if (meta_type_of(v) != META_ARRAY || i >= v->a.n || v->elem == META_ELEM_STRING) return false;
    *out = v->elem == META_ELEM_VALUES ? v->a.values[i] : meta_packed_at(v->elem, v->a.data, i);
    return true;
}

bool meta_array_string(const meta_value *v, size_t i, const char **text, size_t *n) {
    if (meta_type_of(v) != META_ARRAY || i >= v->a.n) return false;
    if (v->elem == META_ELEM_STRING) return packed_string(v, i, text, n);
    return v->elem == META_ELEM_VALUES && meta_as_string(&v->a.values[i], text, n);
}

bool meta_array_i64(const meta_value *v, size_t i, int64_t *out) {
    meta_value e;
    return element(v, i, &e) && meta_as_i64(&e, out);
}

bool meta_array_real(const meta_value *v, size_t i, double *out) {
    meta_value e;
    return element(v, i, &e) && meta_as_real(&e, out);
}

bool meta_array_bool(const meta_value *v, size_t i, bool *out) {
    meta_value e;
    return element(v, i, &e) && meta_as_bool(&e, out);
}

const meta_value *meta_array_at(const meta_value *v, size_t i) {
    if (meta_type_of(v) != META_ARRAY || i >= v->a.n || v->elem != META_ELEM_VALUES) return NULL;
    return &v->a.values[i];
}

const meta_value *meta_object_get(const meta_value *v, const char *key) { return meta_member(v, key, strlen(key)); }

bool meta_object_size(const meta_value *v, size_t *n) {
    if (meta_type_of(v) != META_OBJECT) return false;
    *n = v->a.n;
    return true;
}

const meta_value *meta_object_at(const meta_value *v, size_t i, const char **key) {
    if (meta_type_of(v) != META_OBJECT || i >= v->a.n) return NULL;
    *key = v->a.keys[i].text;
    return &v->a.values[i];
}

/* --- iteration and text --- */

size_t meta_count(const meta *m) { return m->root.a.n; }
const char *meta_key(const meta *m, size_t i) { return i < m->root.a.n ? m->root.a.keys[i].text : NULL; }
const meta_value *meta_at(const meta *m, size_t i) { return i < m->root.a.n ? &m->root.a.values[i] : NULL; }

static void format_text(const char *text, size_t n, textbuf *out) {
    size_t shown = n;
    if (n > FORMAT_TEXT_BYTES) { /* cut between code points */
        shown = FORMAT_TEXT_BYTES;
        while (shown > 0 && ((unsigned char)text[shown] & 0xC0) == 0x80) shown--;
    }
    textbuf_adds(out, "\"");
    for (size_t i = 0; i < shown; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '\n')
            textbuf_adds(out, "\\n");
        else if (c == '"' || c == '\\')
            textbuf_addf(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7F)
            textbuf_addf(out, "\\x%02x", c);
        else
            textbuf_add(out, text + i, 1);
    }
    textbuf_adds(out, "\"");
    if (shown < n) textbuf_addf(out, "... (%zu bytes)", n);
}

static void format_scalar(const meta_value *v, textbuf *out) {
    switch (meta_type_of(v)) {
    case META_ABSENT:
        textbuf_adds(out, "absent");
        break;
    case META_BOOL:
        textbuf_adds(out, v->flag ? "true" : "false");
        break;
    case META_INT:
        textbuf_addf(out, "%lld", (long long)v->i);
        break;
    case META_UINT:
        textbuf_addf(out, "%llu", (unsigned long long)v->u);
        break;
    case META_REAL:
        textbuf_addf(out, "%.9g", v->real);
        break;
    case META_STRING:
        format_text(v->str.text, v->str.n, out);
        break;
    case META_ARRAY:
        textbuf_addf(out, "[%zu]", v->a.n);
        break;
    case META_OBJECT:
        textbuf_addf(out, "{%zu}", v->a.n);
        break;
    case META_NULL:
        textbuf_adds(out, "null");
        break;
    }
}

void meta_format(const meta_value *v, textbuf *out) {
    format_scalar(v, out);
    meta_type t = meta_type_of(v);
    if (t != META_ARRAY && t != META_OBJECT) return;
    for (size_t i = 0; i < v->a.n && i < FORMAT_ELEMS; i++) {
        textbuf_adds(out, i == 0 ? " " : ", ");
        if (t == META_OBJECT) textbuf_addf(out, "%s: ", v->a.keys[i].text);
        const char *text;
        size_t n;
        meta_value e;
        if (t == META_OBJECT)
            format_scalar(&v->a.values[i], out);
        else if (v->elem == META_ELEM_STRING && packed_string(v, i, &text, &n))
            format_text(text, n, out);
        else if (element(v, i, &e))
            format_scalar(&e, out);
    }
    if (v->a.n > FORMAT_ELEMS) textbuf_adds(out, ", ...");
}
