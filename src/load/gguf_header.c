/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two passes over a private copy of the header. The scan follows the lengths, reads more of the file when it needs to, and notes offsets
 * (the copy may move while it grows). Then pointers replace offsets and texts get their NUL: the byte behind a text belongs to a length or
 * type field that the scan has already read, or to the spare byte at the end of the copy.
 */
#include "load/gguf_header.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"

enum { FIRST_READ_BYTES = 64 << 10, MIN_KEY_BYTES = 8 + 1 + 4 + 1, MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8 };

enum { TYPE_STRING = 8, TYPE_ARRAY = 9 };
/* By type number of the file. */
static const struct {
    const char *name;
    meta_elem elem;
} types[] = {{"uint8", META_ELEM_U8},      {"int8", META_ELEM_I8},      {"uint16", META_ELEM_U16},  {"int16", META_ELEM_I16},
             {"uint32", META_ELEM_U32},    {"int32", META_ELEM_I32},    {"float32", META_ELEM_F32}, {"bool", META_ELEM_BOOL},
             {"string", META_ELEM_STRING}, {"array", META_ELEM_VALUES}, {"uint64", META_ELEM_U64},  {"int64", META_ELEM_I64},
             {"float64", META_ELEM_F64}};
enum { N_TYPES = sizeof types / sizeof types[0] };

typedef struct span {
    size_t off, n;
} span;

typedef struct key_record {
    span key, value; /* value: a text, the elements of an array, or a number */
    uint32_t type, elem_type;
    size_t n;       /* elements */
    uint32_t *offs; /* of texts; in the meta's arena */
} key_record;

typedef struct reader {
    source *s;
    uint32_t file;
    const char *path;
    uint64_t limit; /* the header ends here at the latest */
    uint8_t *buf;
    size_t have, cap, pos;
    arena *a;
    key_record *keys;
    size_t n_keys;
    span *names;
    gguf_header *out;
    error *err;
} reader;

static status refuse(reader *r, status code, const char *fmt, ...) PRINTF_LIKE(3, 4);
static status refuse(reader *r, status code, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    char text[512];
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return error_set(r->err, code, "gguf: %s: at byte %zu: %s", r->path, r->pos, text);
}

/* --- cursor --- */

static status fill(reader *r, size_t want) {
    size_t cap = r->cap * 2 > FIRST_READ_BYTES ? r->cap * 2 : FIRST_READ_BYTES;
    if (cap < want) cap = want;
    if (cap > r->limit) cap = (size_t)r->limit;
    uint8_t *p = r->buf == NULL ? mem_alloc(r->s->m, MEM_MODEL, cap + 1) : mem_realloc(r->s->m, MEM_MODEL, r->buf, cap + 1);
    if (p == NULL) return refuse(r, STATUS_NO_MEMORY, "no memory for %zu bytes of header", cap);
    r->buf = p;
    r->cap = cap;
    TRY(source_read_at(r->s, r->file, r->have, r->buf + r->have, cap - r->have, r->err));
    r->have = cap;
    return STATUS_OK;
}

/* Make n bytes at the cursor readable. */
static status need(reader *r, uint64_t n, const char *what) {
    if (n > r->limit - r->pos) {
        if (r->limit == GGUF_MAX_HEADER_BYTES && n <= os_file_size(r->s->files[r->file]) - r->pos)
            return refuse(r, STATUS_UNSUPPORTED, "the header is larger than %d bytes (in %s)", GGUF_MAX_HEADER_BYTES, what);
        return refuse(r, STATUS_FORMAT, "the file ends inside %s", what);
    }
    size_t end = r->pos + (size_t)n;
    return end <= r->have ? STATUS_OK : fill(r, end);
}

static status read_uint(reader *r, size_t n_bytes, uint64_t *out, const char *what) {
    TRY(need(r, n_bytes, what));
    uint64_t v = 0;
    for (size_t i = 0; i < n_bytes; i++) v |= (uint64_t)r->buf[r->pos + i] << (8 * i);
    r->pos += n_bytes;
    *out = v;
    return STATUS_OK;
}

static status read_u32(reader *r, uint32_t *out, const char *what) {
    uint64_t v = 0;
    TRY(read_uint(r, 4, &v, what));
    *out = (uint32_t)v;
    return STATUS_OK;
}

static status read_text(reader *r, span *out, const char *what) {
    uint64_t n = 0;
    TRY(read_uint(r, 8, &n, what));
    TRY(need(r, n, what));
    *out = (span){r->pos, (size_t)n};
    r->pos += (size_t)n;
    return STATUS_OK;
}

/* Names and keys are printable ASCII, so that they can be compared as C strings and shown. */
static status read_name(reader *r, size_t max_bytes, span *out, const char *what) {
    TRY(read_text(r, out, what));
    if (out->n == 0) return refuse(r, STATUS_FORMAT, "empty %s", what);
    if (out->n > max_bytes) return refuse(r, STATUS_FORMAT, "a %s of %zu bytes; at most %zu are allowed", what, out->n, max_bytes);
    for (size_t i = 0; i < out->n; i++)
        if (r->buf[out->off + i] < 0x20 || r->buf[out->off + i] > 0x7E)
            return refuse(r, STATUS_FORMAT, "a %s holds byte 0x%02x; only printable ASCII is allowed", what, r->buf[out->off + i]);
    return STATUS_OK;
}

/* --- scan --- */

static status check_type(reader *r, uint32_t type, const char *what) {
    if (type < N_TYPES) return STATUS_OK;
    return refuse(r, STATUS_FORMAT, "%s has value type %u, which does not exist", what, type);
}

static status check_bools(reader *r, size_t off, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (r->buf[off + i] > 1) return refuse(r, STATUS_FORMAT, "a bool is %u; only 0 and 1 exist", r->buf[off + i]);
    return STATUS_OK;
}

static status scan_texts(reader *r, key_record *k) {
    k->offs = arena_calloc(r->a, k->n + 1, sizeof k->offs[0]);
    if (k->offs == NULL) return refuse(r, STATUS_NO_MEMORY, "no memory for an array of %zu texts", k->n);
    size_t begin = r->pos + 8;
    if (k->n > 0) k->value.off = begin;
    for (size_t i = 0; i < k->n; i++) {
        span text = {0, 0};
        TRY(read_text(r, &text, "an array of texts"));
        k->offs[i] = (uint32_t)(text.off - begin);
    }
    k->offs[k->n] = (uint32_t)(r->pos + 8 - begin);
    return STATUS_OK;
}

static status scan_array(reader *r, key_record *k) {
    uint64_t n = 0, bytes = 0;
    TRY(read_u32(r, &k->elem_type, "the type of an array"));
    TRY(read_uint(r, 8, &n, "the length of an array"));
    TRY(check_type(r, k->elem_type, "an array"));
    if (k->elem_type == TYPE_ARRAY) return refuse(r, STATUS_UNSUPPORTED, "an array of arrays is not supported");
    meta_elem e = types[k->elem_type].elem;
    uint64_t min = k->elem_type == TYPE_STRING ? 8 : meta_elem_bytes(e);
    if (!checked_mul_u64(n, min, &bytes) || bytes > r->limit - r->pos)
        return refuse(r, STATUS_FORMAT, "an array of %llu %s values does not fit the %llu bytes that are left", (unsigned long long)n,
                      types[k->elem_type].name, (unsigned long long)(r->limit - r->pos));
    k->n = (size_t)n;
    if (k->elem_type == TYPE_STRING) return scan_texts(r, k);
    TRY(need(r, bytes, "an array"));
    k->value = (span){r->pos, (size_t)bytes};
    if (e == META_ELEM_BOOL) TRY(check_bools(r, r->pos, k->n));
    r->pos += (size_t)bytes;
    return STATUS_OK;
}

static status scan_key(reader *r, key_record *k) {
    TRY(read_name(r, GGUF_MAX_KEY_BYTES, &k->key, "key"));
    TRY(read_u32(r, &k->type, "the type of a value"));
    TRY(check_type(r, k->type, "a key"));
    if (k->type == TYPE_STRING) return read_text(r, &k->value, "a text");
    if (k->type == TYPE_ARRAY) return scan_array(r, k);
    size_t n = meta_elem_bytes(types[k->type].elem);
    TRY(need(r, n, "a value"));
    k->value = (span){r->pos, n};
    if (types[k->type].elem == META_ELEM_BOOL) TRY(check_bools(r, r->pos, 1));
    r->pos += n;
    return STATUS_OK;
}

static status scan_tensor(reader *r, gguf_tensor *t, span *name) {
    TRY(read_name(r, SOURCE_MAX_NAME_BYTES, name, "tensor name"));
    TRY(read_u32(r, &t->n_dims, "a tensor"));
    if (t->n_dims > VT_MAX_DIMS)
        return refuse(r, STATUS_UNSUPPORTED, "tensor %.*s: a tensor of %u dimensions; at most %d are supported", (int)(name->n < 200 ? name->n : 200), (const char *)r->buf + name->off, t->n_dims, VT_MAX_DIMS);
    for (uint32_t i = 0; i < VT_MAX_DIMS; i++) t->dim[i] = 1;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        TRY(read_uint(r, 8, &t->dim[i], "a tensor"));
        if (t->dim[i] == 0 || t->dim[i] > INT64_MAX)
            return refuse(r, STATUS_FORMAT, "tensor %.*s has a dimension of %llu", (int)(name->n < 200 ? name->n : 200), (const char *)r->buf + name->off, (unsigned long long)t->dim[i]);
    }
    TRY(read_u32(r, &t->type_id, "a tensor"));
    return read_uint(r, 8, &t->off, "a tensor");
}

static status scan_version(reader *r) {
    uint32_t version = 0;
    TRY(need(r, 4, "the magic"));
    if (memcmp(r->buf, "GGUF", 4) != 0) return refuse(r, STATUS_FORMAT, "does not start with \"GGUF\"");
    r->pos = 4;
    TRY(read_u32(r, &version, "the version"));
    if (version == 2 || version == 3) return STATUS_OK;
    if (version == 1) return refuse(r, STATUS_UNSUPPORTED, "GGUF version 1 is not supported; versions 2 and 3 are");
    if (version != 0 && (version & 0xFFFF) == 0) return refuse(r, STATUS_UNSUPPORTED, "a big-endian GGUF is not supported");
    return refuse(r, STATUS_UNSUPPORTED, "GGUF version %u is not supported; versions 2 and 3 are", version);
}

static status check_count(reader *r, uint64_t n, uint64_t min_bytes, uint64_t max, const char *what) {
    uint64_t left = r->limit - r->pos;
    if (n > left / min_bytes)
        return refuse(r, STATUS_FORMAT, "%llu %s do not fit the %llu bytes that are left", (unsigned long long)n, what,
                      (unsigned long long)left);
    if (n > max)
        return refuse(r, STATUS_UNSUPPORTED, "%llu %s; at most %llu are supported", (unsigned long long)n, what, (unsigned long long)max);
    return STATUS_OK;
}

static status scan(reader *r) {
    uint64_t n_tensors = 0, n_keys = 0;
    TRY(scan_version(r));
    TRY(read_uint(r, 8, &n_tensors, "the tensor count"));
    TRY(read_uint(r, 8, &n_keys, "the key count"));
    TRY(check_count(r, n_keys, MIN_KEY_BYTES, GGUF_MAX_KEYS, "keys"));
    TRY(check_count(r, n_tensors, MIN_TENSOR_BYTES, SOURCE_MAX_TENSORS, "tensors"));
    r->n_keys = (size_t)n_keys;
    r->out->n_tensors = (size_t)n_tensors;
    r->keys = mem_calloc(r->s->m, MEM_MODEL, r->n_keys, sizeof r->keys[0]);
    r->names = mem_calloc(r->s->m, MEM_MODEL, r->out->n_tensors, sizeof r->names[0]);
    r->out->tensors = mem_calloc(r->s->m, MEM_MODEL, r->out->n_tensors, sizeof r->out->tensors[0]);
    if (r->keys == NULL || r->names == NULL || r->out->tensors == NULL)
        return refuse(r, STATUS_NO_MEMORY, "no memory for %zu keys and %zu tensors", r->n_keys, r->out->n_tensors);
    for (size_t i = 0; i < r->n_keys; i++) TRY(scan_key(r, &r->keys[i]));
    for (size_t i = 0; i < r->out->n_tensors; i++) TRY(scan_tensor(r, &r->out->tensors[i], &r->names[i]));
    return STATUS_OK;
}

/* --- from offsets to pointers --- */

static const char *terminate(uint8_t *base, span t) {
    base[t.off + t.n] = '\0';
    return (const char *)base + t.off;
}

static meta_value make_value(uint8_t *base, const key_record *k) {
    if (k->type == TYPE_STRING) return (meta_value){.type = META_STRING, .str = {terminate(base, k->value), k->value.n}};
    if (k->type != TYPE_ARRAY) return meta_packed_at(types[k->type].elem, base + k->value.off, 0);
    meta_value v = {
        .type = META_ARRAY, .elem = types[k->elem_type].elem, .a = {.n = k->n, .data = base + k->value.off, .offs = k->offs, .gap = 8}};
    for (size_t i = 0; k->offs != NULL && i < k->n; i++) base[k->value.off + k->offs[i + 1] - 8] = '\0';
    return v;
}

static status build(reader *r) {
    meta *md = r->out->meta;
    size_t dup = 0;
    meta_text *keys = arena_calloc(r->a, r->n_keys, sizeof *keys);
    meta_value *values = arena_calloc(r->a, r->n_keys, sizeof *values);
    uint8_t *base = mem_realloc(r->s->m, MEM_MODEL, r->buf, r->pos + 1);
    if (base != NULL) r->buf = base;
    if (keys == NULL || values == NULL || base == NULL) return refuse(r, STATUS_NO_MEMORY, "no memory for %zu keys", r->n_keys);
    for (size_t i = 0; i < r->n_keys; i++) {
        values[i] = make_value(base, &r->keys[i]);
        keys[i] = (meta_text){terminate(base, r->keys[i].key), r->keys[i].key.n};
    }
    for (size_t i = 0; i < r->out->n_tensors; i++) r->out->tensors[i].name = terminate(base, r->names[i]);
    md->header = base;
    r->buf = NULL;
    status rc = meta_object_init(&md->root, r->a, keys, values, r->n_keys, &dup);
    if (rc == STATUS_FORMAT) return error_set(r->err, rc, "gguf: %s: key %s is there twice", r->path, keys[dup].text);
    if (rc != STATUS_OK) return error_set(r->err, rc, "gguf: %s: no memory for %zu keys", r->path, r->n_keys);
    return STATUS_OK;
}

static status place_data(reader *r) {
    const meta_value *v = meta_find(r->out->meta, "general.alignment");
    int64_t align = GGUF_DEFAULT_ALIGNMENT;
    if (v != NULL && (!meta_as_i64(v, &align) || align < 8 || align > GGUF_MAX_ALIGNMENT || (align & (align - 1)) != 0))
        return error_set(r->err, STATUS_FORMAT, "gguf: %s: general.alignment is not a power of two in 8..%d", r->path, GGUF_MAX_ALIGNMENT);
    r->out->alignment = (uint32_t)align;
    r->out->data_off = ((uint64_t)r->pos + (uint64_t)align - 1) & ~((uint64_t)align - 1);
    return STATUS_OK;
}

status gguf_header_read(source *s, uint32_t file, gguf_header *out, error *err) {
    gguf_header h = {0};
    uint64_t size = os_file_size(s->files[file]);
    reader r = {.s = s, .file = file, .path = os_file_path(s->files[file]), .out = &h, .err = err};
    r.limit = size < GGUF_MAX_HEADER_BYTES ? size : GGUF_MAX_HEADER_BYTES;
    status rc = meta_create(s->m, META_GGUF, &h.meta);
    if (rc != STATUS_OK)
        rc = error_set(err, rc, "gguf: %s: no memory for metadata", r.path);
    else
        r.a = h.meta->a;
    if (rc == STATUS_OK) rc = scan(&r);
    if (rc == STATUS_OK) rc = build(&r);
    if (rc == STATUS_OK) rc = place_data(&r);
    mem_free(s->m, r.buf);
    mem_free(s->m, r.keys);
    mem_free(s->m, r.names);
    if (rc == STATUS_OK)
        *out = h;
    else
        gguf_header_deinit(s->m, &h);
    return rc;
}

void gguf_header_deinit(mem *m, gguf_header *h) {
    meta_destroy(h->meta);
    mem_free(m, h->tensors);
    *h = (gguf_header){0};
}
