/* SPDX-License-Identifier: Apache-2.0 */
/* A description's members are found first, and read when all are there: the shape says little without the dtype. */
#include "load/safetensors_header.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/json_scan.h"

/* Every published dtype: name, bits of an element, ours or VT_NONE. */
static const struct {
    const char *name;
    unsigned bits;
    vt_dtype dtype;
} dtypes[] = {
    {"BOOL", 8, VT_NONE},
    {"F4", 4, VT_F4_E2M1},
    {"F6_E2M3", 6, VT_NONE},
    {"F6_E3M2", 6, VT_NONE},
    {"U8", 8, VT_U8},
    {"I8", 8, VT_I8},
    {"F8_E5M2", 8, VT_NONE},
    {"F8_E4M3", 8, VT_F8_E4M3},
    {"F8_E8M0", 8, VT_F8_E8M0},
    {"F8_E4M3FNUZ", 8, VT_NONE},
    {"F8_E5M2FNUZ", 8, VT_NONE},
    {"I16", 16, VT_NONE},
    {"U16", 16, VT_NONE},
    {"F16", 16, VT_F16},
    {"BF16", 16, VT_BF16},
    {"I32", 32, VT_I32},
    {"U32", 32, VT_NONE},
    {"F32", 32, VT_F32},
    {"C64", 64, VT_NONE},
    {"F64", 64, VT_NONE},
    {"I64", 64, VT_I64},
    {"U64", 64, VT_NONE},
    {"F8_E4M3FN", 8, VT_F8_E4M3},
    {"F8_E8M0FNU", 8, VT_F8_E8M0}, /* spellings of some writers */
};
enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0] };

typedef struct header_scan {
    const safetensors_file *f;
    json_scan json;
    textbuf room;
    bool has_metadata;
} header_scan;

/* Where the members of one tensor's description begin; 0: absent. */
typedef struct description {
    size_t dtype, shape, offsets;
    bool others;
} description;

status safetensors_refuse(const safetensors_file *f, status code, const char *name, const char *fmt, ...) {
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return error_set(f->err, code, "safetensors: %s: tensor %.200s: %s", f->path, name, text);
}

/* The next value as a count; *is_count is false for any other value, and for a number that 63 bits do not hold the scan fails. */
static status read_count(json_scan *s, bool *is_count, uint64_t *out) {
    size_t begin, end;
    bool fits = true;
    uint64_t v = 0;
    TRY(json_scan_skip(s, &begin, &end));
    *is_count = true;
    for (size_t i = begin; i < end; i++) {
        const char c = s->text[i];
        if (c < '0' || c > '9') *is_count = false;
        fits = fits && *is_count && checked_mul_u64(v, 10, &v) && checked_add_u64(v, (uint64_t)(c - '0'), &v) && v <= INT64_MAX;
    }
    *out = v;
    return *is_count && !fits ? json_scan_fail(s, "a number that is too big") : STATUS_OK;
}

static json_scan at(const header_scan *h, size_t where) {
    json_scan s = h->json;
    s.at = where;
    return s;
}

static status read_dtype(header_scan *h, const char *name, size_t where, size_t *out) {
    json_scan s = at(h, where);
    const char *text;
    size_t n;
    if (json_scan_peek(&s) != '"') return safetensors_refuse(h->f, STATUS_FORMAT, name, "no dtype");
    TRY(json_scan_text(&s, &h->room, &text, &n));
    for (size_t i = 0; i < N_DTYPES; i++) {
        if (strlen(dtypes[i].name) != n || memcmp(text, dtypes[i].name, n) != 0) continue;
        *out = i;
        return STATUS_OK;
    }
    return safetensors_refuse(h->f, STATUS_UNSUPPORTED, name, "unknown dtype %.*s", (int)(n < 40 ? n : 40), text);
}

/* Text with the number of dimensions, for tensors of more than we hold. */
static const char *name_with_dims(source *s, const char *dtype, size_t n_dims) {
    char text[64];
    snprintf(text, sizeof text, "%s of %zu dimensions", dtype, n_dims);
    return arena_strdup(s->a, text);
}

static status read_shape(const header_scan *h, size_t where, size_t dtype, tensor_info *t) {
    json_scan s = at(h, where);
    uint64_t elems = 1, bits = 0;
    size_t n = 0, row_bytes;
    if (json_scan_peek(&s) != '[') return safetensors_refuse(h->f, STATUS_FORMAT, t->name, "no shape");
    TRY(json_scan_array(&s));
    for (bool more, is_count;; n++) {
        uint64_t d;
        TRY(json_scan_next_item(&s, n == 0, &more));
        if (!more) break;
        TRY(read_count(&s, &is_count, &d));
        if (!is_count) return safetensors_refuse(h->f, STATUS_FORMAT, t->name, "dimension %zu is not a count", n);
        if (!checked_mul_u64(elems, d, &elems) || elems > INT64_MAX) return safetensors_refuse(h->f, STATUS_FORMAT, t->name, "the number of elements overflows");
        if (n < VT_MAX_DIMS) t->dim[n] = (int64_t)d;
    }
    if (!checked_mul_u64(elems, dtypes[dtype].bits, &bits)) return safetensors_refuse(h->f, STATUS_FORMAT, t->name, "the size overflows");
    if (bits % 8 != 0) return safetensors_refuse(h->f, STATUS_FORMAT, t->name, "%llu bits are no whole bytes", (unsigned long long)bits);
    t->n_bytes = bits / 8;
    t->n_dims = (int32_t)(n <= VT_MAX_DIMS ? n : 1);
    if (n > 0 && n <= VT_MAX_DIMS && !vt_dtype_row_bytes(t->dtype, t->dim[n - 1], &row_bytes)) t->dtype = VT_NONE; /* F4 rows that end within a byte */
    if (n <= VT_MAX_DIMS) return STATUS_OK;
    t->dtype = VT_NONE; /* patch embeddings of vision towers: held, not readable */
    t->dim[0] = (int64_t)elems;
    t->dim[1] = t->dim[2] = t->dim[3] = 1;
    t->type_name = name_with_dims(h->f->s, dtypes[dtype].name, n);
    return t->type_name != NULL ? STATUS_OK : safetensors_refuse(h->f, STATUS_NO_MEMORY, t->name, "no memory");
}

static status read_offsets(const header_scan *h, size_t where, const char *name, uint64_t *begin, uint64_t *end) {
    json_scan s = at(h, where);
    uint64_t at_most[2] = {0};
    size_t n = 0;
    bool more = json_scan_peek(&s) == '[', good = more;
    if (more) TRY(json_scan_array(&s));
    for (bool is_count; more; n++) {
        uint64_t v;
        TRY(json_scan_next_item(&s, n == 0, &more));
        if (!more) break;
        TRY(read_count(&s, &is_count, &v));
        good = good && is_count;
        if (n < 2) at_most[n] = v;
    }
    if (!good || n != 2 || at_most[0] > at_most[1]) return safetensors_refuse(h->f, STATUS_FORMAT, name, "data_offsets are not [begin, end]");
    *begin = at_most[0];
    *end = at_most[1];
    return STATUS_OK;
}

/* Each value is skipped; what it has to be is seen later. */
static status find_members(header_scan *h, description *d) {
    json_scan *s = &h->json;
    static const char *const names[] = {"dtype", "shape", "data_offsets"};
    size_t *const places[] = {&d->dtype, &d->shape, &d->offsets};
    TRY(json_scan_object(s));
    for (bool first = true, more;; first = false) {
        const char *key;
        size_t n, begin, end, i = 0;
        TRY(json_scan_next_key(s, first, &h->room, &key, &n, &more));
        if (!more) return STATUS_OK;
        while (i < 3 && (strlen(names[i]) != n || memcmp(key, names[i], n) != 0)) i++;
        TRY(json_scan_skip(s, &begin, &end));
        if (i == 3)
            d->others = true;
        else if (*places[i] != 0)
            return json_scan_fail(s, "a duplicate key");
        else
            *places[i] = begin;
    }
}

static status check_name(const header_scan *h, const char *name, size_t n) {
    if (n == 0 || n > SOURCE_MAX_NAME_BYTES) return safetensors_refuse(h->f, STATUS_FORMAT, name, "a name of %zu bytes", n);
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7F) return safetensors_refuse(h->f, STATUS_FORMAT, name, "its name holds a control character");
    }
    return STATUS_OK;
}

static status read_tensor(header_scan *h, const char *key, size_t n) {
    const safetensors_file *f = h->f;
    description d = {0};
    size_t dtype = 0;
    uint64_t begin = 0, end = 0;
    char *name = arena_alloc(f->s->a, n + 1);
    if (name == NULL) return error_set(f->err, STATUS_NO_MEMORY, "safetensors: %s: no memory for a name", f->path);
    memcpy(name, key, n);
    name[n] = '\0';
    TRY(check_name(h, name, n));
    tensor_info t = {.name = name, .dim = {1, 1, 1, 1}, .file = f->file};
    if (json_scan_peek(&h->json) != '{') {
        size_t from, to;
        TRY(json_scan_skip(&h->json, &from, &to)); /* what is no JSON says that */
        return safetensors_refuse(f, STATUS_FORMAT, name, "is not described by an object");
    }
    TRY(find_members(h, &d));
    if (d.others || d.dtype == 0 || d.shape == 0 || d.offsets == 0) return safetensors_refuse(f, STATUS_FORMAT, name, "dtype, shape and data_offsets are expected, and nothing else");
    TRY(read_dtype(h, name, d.dtype, &dtype));
    t.dtype = dtypes[dtype].dtype;
    t.type_name = dtypes[dtype].name;
    TRY(read_shape(h, d.shape, dtype, &t));
    TRY(read_offsets(h, d.offsets, name, &begin, &end));
    if (end > f->data_bytes) return safetensors_refuse(f, STATUS_FORMAT, name, "its data ends at %llu, behind the end (%llu)", (unsigned long long)end, (unsigned long long)f->data_bytes);
    if (end - begin != t.n_bytes) {
        return safetensors_refuse(f, STATUS_FORMAT, name, "has %llu bytes, but dtype and shape say %llu", (unsigned long long)(end - begin), (unsigned long long)t.n_bytes);
    }
    t.off = f->data_off + begin;
    return source_add_tensor(f->s, &t, f->err);
}

/* Nobody reads it. */
static status check_metadata(header_scan *h) {
    json_scan *s = &h->json;
    const char *text;
    size_t n;
    bool more = json_scan_peek(s) == '{', good = more;
    if (h->has_metadata) return json_scan_fail(s, "a duplicate key");
    h->has_metadata = true;
    if (more) TRY(json_scan_object(s));
    for (bool first = true; more; first = false) {
        TRY(json_scan_next_key(s, first, &h->room, &text, &n, &more));
        if (!more) break;
        good = json_scan_peek(s) == '"';
        if (!good) break;
        TRY(json_scan_text(s, &h->room, &text, &n));
    }
    return good ? STATUS_OK : error_set(h->f->err, STATUS_FORMAT, "safetensors: %s: __metadata__ is not an object of texts", h->f->path);
}

static status read_entries(header_scan *h) {
    static const char metadata[] = "__metadata__";
    json_scan *s = &h->json;
    TRY(json_scan_object(s));
    for (bool first = true, more;; first = false) {
        const char *key;
        size_t n;
        TRY(json_scan_next_key(s, first, &h->room, &key, &n, &more));
        if (!more) return json_scan_end(s);
        if (n == sizeof metadata - 1 && memcmp(key, metadata, n) == 0) {
            TRY(check_metadata(h));
        } else {
            TRY(read_tensor(h, key, n));
        }
    }
}

status safetensors_header_read(const safetensors_file *f, const char *text, size_t n) {
    header_scan h = {.f = f};
    size_t begin, end;
    textbuf_init(&h.room, f->s->m, MEM_MODEL);
    status rc = json_scan_init(&h.json, text, n, f->path, f->err);
    if (rc == STATUS_OK && json_scan_peek(&h.json) != '{') {
        rc = json_scan_skip(&h.json, &begin, &end);
        if (rc == STATUS_OK) rc = error_set(f->err, STATUS_FORMAT, "safetensors: %s: the header is not an object", f->path);
    }
    if (rc == STATUS_OK) rc = read_entries(&h);
    textbuf_deinit(&h.room);
    return rc;
}
