/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The safetensors container: a directory with config.json and either model.safetensors or model.safetensors.index.json and the files it
 * names. A file is u64 header length (little endian), a JSON object name -> {dtype, shape, data_offsets [begin, end)}, and the data.
 * Tensors must fill the data in order, without holes or overlaps, to the last byte; nothing is aligned. Source: the format description in
 * the README of huggingface/safetensors.
 */
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/log.h"
#include "load/hf_config.h"
#include "load/sort_index.h"

enum { MAX_HEADER_BYTES = 100000000, MAX_INDEX_BYTES = 64 << 20, MAX_FILE_NAME_BYTES = 255 };

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

typedef struct st_reader {
    source *s;
    uint32_t file;
    const char *path;
    uint64_t data_off, data_bytes;
    error *err;
} st_reader;

static status refuse(const st_reader *r, status code, const char *name, const char *fmt, ...) PRINTF_LIKE(4, 5);
static status refuse(const st_reader *r, status code, const char *name, const char *fmt, ...) {
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return error_set(r->err, code, "safetensors: %s: tensor %.200s: %s", r->path, name, text);
}

/* --- one tensor --- */

static status read_dtype(const st_reader *r, const char *name, const json_t *j, size_t *out) {
    const char *text = json_string_value(j);
    if (text == NULL) return refuse(r, STATUS_FORMAT, name, "no dtype");
    for (size_t i = 0; i < N_DTYPES; i++) {
        if (strcmp(text, dtypes[i].name) != 0) continue;
        *out = i;
        return STATUS_OK;
    }
    return refuse(r, STATUS_UNSUPPORTED, name, "unknown dtype %.40s", text);
}

/* Text with the number of dimensions, for tensors of more than we hold. */
static const char *name_with_dims(source *s, const char *dtype, size_t n_dims) {
    char text[64];
    snprintf(text, sizeof text, "%s of %zu dimensions", dtype, n_dims);
    return arena_strdup(s->a, text);
}

static status read_shape(const st_reader *r, const json_t *j, size_t dtype, tensor_info *t, uint64_t *n_bytes) {
    size_t n = json_array_size(j), i;
    uint64_t elems = 1, bits = 0;
    json_t *child;
    if (!json_is_array(j)) return refuse(r, STATUS_FORMAT, t->name, "no shape");
    json_array_foreach(j, i, child) {
        json_int_t d = json_is_integer(child) ? json_integer_value(child) : -1;
        if (d < 0) return refuse(r, STATUS_FORMAT, t->name, "dimension %zu is not a count", i);
        if (!checked_mul_u64(elems, (uint64_t)d, &elems) || elems > INT64_MAX)
            return refuse(r, STATUS_FORMAT, t->name, "the number of elements overflows");
        if (i < VT_MAX_DIMS) t->dim[i] = d;
    }
    if (!checked_mul_u64(elems, dtypes[dtype].bits, &bits)) return refuse(r, STATUS_FORMAT, t->name, "the size overflows");
    if (bits % 8 != 0) return refuse(r, STATUS_FORMAT, t->name, "%llu bits are no whole bytes", (unsigned long long)bits);
    *n_bytes = bits / 8;
    t->n_dims = (int32_t)(n <= VT_MAX_DIMS ? n : 1);
    size_t row_bytes;
    if (n > 0 && n <= VT_MAX_DIMS && !vt_dtype_row_bytes(t->dtype, t->dim[n - 1], &row_bytes))
        t->dtype = VT_NONE; /* F4 rows that end within a byte */
    if (n <= VT_MAX_DIMS) return STATUS_OK;
    t->dtype = VT_NONE; /* patch embeddings of vision towers: held, not readable */
    t->dim[0] = (int64_t)elems;
    t->dim[1] = t->dim[2] = t->dim[3] = 1;
    t->type_name = name_with_dims(r->s, dtypes[dtype].name, n);
    return t->type_name != NULL ? STATUS_OK : refuse(r, STATUS_NO_MEMORY, t->name, "no memory");
}

static bool read_offset(const json_t *j, size_t i, uint64_t *out) {
    const json_t *v = json_array_get(j, i);
    if (!json_is_integer(v) || json_integer_value(v) < 0) return false;
    *out = (uint64_t)json_integer_value(v);
    return true;
}

static status read_tensor(const st_reader *r, const char *name, const json_t *j, tensor_info *t) {
    const json_t *offsets = json_object_get(j, "data_offsets");
    uint64_t begin, end, n_bytes = 0;
    size_t dtype = 0, n = strlen(name);
    *t = (tensor_info){.name = arena_strdup(r->s->a, name), .dim = {1, 1, 1, 1}, .file = r->file};
    if (t->name == NULL) return refuse(r, STATUS_NO_MEMORY, name, "no memory");
    if (n == 0 || n > SOURCE_MAX_NAME_BYTES) return refuse(r, STATUS_FORMAT, name, "a name of %zu bytes", n);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7F) return refuse(r, STATUS_FORMAT, name, "its name holds a control character");
    if (!json_is_object(j)) return refuse(r, STATUS_FORMAT, name, "is not described by an object");
    if (json_object_size(j) != 3 || offsets == NULL || json_object_get(j, "dtype") == NULL || json_object_get(j, "shape") == NULL)
        return refuse(r, STATUS_FORMAT, name, "dtype, shape and data_offsets are expected, and nothing else");
    TRY(read_dtype(r, name, json_object_get(j, "dtype"), &dtype));
    t->dtype = dtypes[dtype].dtype;
    t->type_name = dtypes[dtype].name;
    TRY(read_shape(r, json_object_get(j, "shape"), dtype, t, &n_bytes));
    if (json_array_size(offsets) != 2 || !read_offset(offsets, 0, &begin) || !read_offset(offsets, 1, &end) || begin > end)
        return refuse(r, STATUS_FORMAT, name, "data_offsets are not [begin, end]");
    if (end > r->data_bytes)
        return refuse(r, STATUS_FORMAT, name, "its data ends at %llu, behind the end (%llu)", (unsigned long long)end,
                      (unsigned long long)r->data_bytes);
    if (end - begin != n_bytes)
        return refuse(r, STATUS_FORMAT, name, "has %llu bytes, but dtype and shape say %llu", (unsigned long long)(end - begin),
                      (unsigned long long)n_bytes);
    t->off = r->data_off + begin;
    t->n_bytes = n_bytes;
    return STATUS_OK;
}

/* --- one file --- */

static int cmp_places(const void *ctx, uint32_t a, uint32_t b) {
    const tensor_info *t = ctx;
    if (t[a].off != t[b].off) return t[a].off < t[b].off ? -1 : 1;
    return (t[a].n_bytes > t[b].n_bytes) - (t[a].n_bytes < t[b].n_bytes);
}

/* The tensors cover the data exactly. */
static status check_cover(const st_reader *r, size_t first) {
    source *s = r->s;
    size_t n = s->n_tensors - first;
    uint64_t at = r->data_off;
    void *p = NULL;
    status rc = STATUS_OK;
    if (n > 0) {
        const tensor_info *t = s->tensors + first;
        TRY(mem_alloc_named(s->m, MEM_MODEL, n * sizeof(uint32_t), "the order of tensors", &p, r->err));
        uint32_t *idx = p;
        sort_index_fill(idx, n, cmp_places, t);
        for (size_t i = 0; i < n && rc == STATUS_OK; i++) {
            const tensor_info *x = &t[idx[i]];
            if (x->off != at)
                rc = refuse(r, STATUS_FORMAT, x->name, x->off < at ? "overlaps the one before it" : "there is a hole before it");
            at = x->off + x->n_bytes;
        }
        mem_free(s->m, p);
    }
    TRY(rc);
    if (at != r->data_off + r->data_bytes)
        return error_set(r->err, STATUS_FORMAT, "safetensors: %s: %llu bytes behind the last tensor", r->path,
                         (unsigned long long)(r->data_off + r->data_bytes - at));
    return STATUS_OK;
}

static status check_metadata(const st_reader *r, json_t *j) {
    const char *key;
    json_t *child;
    bool ok = json_is_object(j);
    if (ok) json_object_foreach(j, key, child) ok = ok && json_is_string(child);
    return ok ? STATUS_OK : error_set(r->err, STATUS_FORMAT, "safetensors: %s: __metadata__ is not an object of texts", r->path);
}

static status read_entries(const st_reader *r, json_t *root) {
    const char *name;
    json_t *child;
    size_t first = r->s->n_tensors;
    if (!json_is_object(root)) return error_set(r->err, STATUS_FORMAT, "safetensors: %s: the header is not an object", r->path);
    json_object_foreach(root, name, child) {
        tensor_info t;
        if (strcmp(name, "__metadata__") == 0) {
            TRY(check_metadata(r, child));
            continue;
        }
        TRY(read_tensor(r, name, child, &t));
        TRY(source_add_tensor(r->s, &t, r->err));
    }
    return check_cover(r, first);
}

static status read_file(source *s, const char *path, error *err) {
    st_reader r = {.s = s, .path = path, .err = err};
    uint8_t head[8];
    uint64_t n = 0, size;
    void *text = NULL;
    json_doc d = {0};
    TRY(source_add_file(s, path, &r.file, err));
    size = os_file_size(s->files[r.file]);
    if (size < sizeof head) return error_set(err, STATUS_FORMAT, "safetensors: %s: too short for a header", path);
    TRY(source_read_at(s, r.file, 0, head, sizeof head, err));
    for (size_t i = 0; i < sizeof head; i++) n |= (uint64_t)head[i] << (8 * i);
    if (n > size - sizeof head)
        return error_set(err, STATUS_FORMAT, "safetensors: %s: a header of %llu bytes does not fit the file", path, (unsigned long long)n);
    if (n > MAX_HEADER_BYTES)
        return error_set(err, STATUS_UNSUPPORTED, "safetensors: %s: a header of %llu bytes; at most %d are supported", path,
                         (unsigned long long)n, MAX_HEADER_BYTES);
    r.data_off = sizeof head + n;
    r.data_bytes = size - r.data_off;
    TRY(mem_alloc_named(s->m, MEM_MODEL, (size_t)n, "a header", &text, err));
    status rc = source_read_at(s, r.file, sizeof head, text, (size_t)n, err);
    if (rc == STATUS_OK) rc = json_doc_parse(s->m, MEM_MODEL, text, (size_t)n, path, 0, &d, err);
    mem_free(s->m, text);
    if (rc == STATUS_OK) rc = read_entries(&r, d.root);
    json_doc_free(&d);
    return rc;
}

/* "dir/name" in the source's arena. */
static char *join(source *s, const char *dir, const char *name) {
    size_t n = strlen(dir) + strlen(name) + 2;
    char *path = arena_alloc(s->a, n);
    if (path != NULL) snprintf(path, n, "%s/%s", dir, name);
    return path;
}

/* --- the index --- */

typedef struct index_entry {
    const char *name, *file; /* borrowed from the JSON tree */
    uint32_t number;         /* of the file */
} index_entry;

typedef struct shard_index {
    json_doc doc;
    index_entry *entries;
    uint32_t *order; /* by file, then by name */
    size_t n;
} shard_index;

/* Plain names only: nothing that could leave the directory. */
static bool is_plain_file_name(const char *name) {
    static const char suffix[] = ".safetensors";
    size_t n = strlen(name), k = sizeof suffix - 1;
    if (n <= k || n > MAX_FILE_NAME_BYTES || name[0] == '.' || strcmp(name + n - k, suffix) != 0) return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == '/' || name[i] == '\\' || name[i] == 0x7F) return false;
    return true;
}

static int cmp_entries(const void *ctx, uint32_t a, uint32_t b) {
    const index_entry *e = ctx;
    int c = strcmp(e[a].file, e[b].file);
    return c != 0 ? c : strcmp(e[a].name, e[b].name);
}

static status read_index(source *s, const char *dir, shard_index *x, error *err) {
    static const char name[] = "model.safetensors.index.json";
    const char *key;
    json_t *child;
    TRY(hf_json_read(s, name, MAX_INDEX_BYTES, JSON_DOC_BIG_INTEGERS, &x->doc, err));
    json_t *map = json_object_get(x->doc.root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        return error_set(err, STATUS_FORMAT, "safetensors: %s/%s: no weight_map", dir, name);
    if (json_object_size(map) > SOURCE_MAX_TENSORS)
        return error_set(err, STATUS_UNSUPPORTED, "safetensors: %s/%s: more than %d tensors", dir, name, SOURCE_MAX_TENSORS);
    x->entries = mem_calloc(s->m, MEM_MODEL, json_object_size(map), sizeof x->entries[0]);
    x->order = mem_calloc(s->m, MEM_MODEL, json_object_size(map), sizeof x->order[0]);
    if (x->entries == NULL || x->order == NULL) return error_set(err, STATUS_NO_MEMORY, "safetensors: no memory for an index");
    json_object_foreach(map, key, child) {
        const char *file = json_string_value(child);
        if (file == NULL || !is_plain_file_name(file))
            return error_set(err, STATUS_FORMAT,
                             "safetensors: %s/%s: tensor %.200s: \"%.200s\" is not the name of a file of this directory", dir, name, key,
                             file != NULL ? file : "(no text)");
        x->entries[x->n++] = (index_entry){key, file, 0};
    }
    sort_index_fill(x->order, x->n, cmp_entries, x->entries);
    return STATUS_OK;
}

/* Each tensor of the index lies in the file that the index names. The names of a file's tensors are sorted for that. */
static int cmp_names(const void *ctx, uint32_t a, uint32_t b) {
    const tensor_info *t = ctx;
    return strcmp(t[a].name, t[b].name);
}

static status check_listed(source *s, const shard_index *x, size_t begin, size_t end, size_t first, const char *path, error *err) {
    size_t n = s->n_tensors - first, k = 0;
    void *p = NULL;
    status rc = STATUS_OK;
    TRY(mem_alloc_named(s->m, MEM_MODEL, n * sizeof(uint32_t), "the order of tensors", &p, err));
    uint32_t *idx = p;
    if (n > 0) sort_index_fill(idx, n, cmp_names, s->tensors + first);
    for (size_t i = begin; i < end && rc == STATUS_OK; i++) {
        const char *name = x->entries[x->order[i]].name;
        while (k < n && strcmp(s->tensors[first + idx[k]].name, name) < 0) k++;
        if (k == n || strcmp(s->tensors[first + idx[k]].name, name) != 0)
            rc = error_set(err, STATUS_FORMAT, "safetensors: %s: tensor %.200s is missing, which the index puts there", path, name);
    }
    mem_free(s->m, p);
    return rc;
}

static status read_shards(source *s, const char *dir, const shard_index *x, error *err) {
    for (size_t begin = 0, end; begin < x->n; begin = end) {
        const char *file = x->entries[x->order[begin]].file;
        size_t first = s->n_tensors;
        for (end = begin + 1; end < x->n && strcmp(x->entries[x->order[end]].file, file) == 0;) end++;
        const char *path = join(s, dir, file);
        if (path == NULL) return error_set(err, STATUS_NO_MEMORY, "safetensors: no memory for a path");
        TRY(read_file(s, path, err));
        TRY(check_listed(s, x, begin, end, first, path, err));
    }
    return STATUS_OK;
}

/* What the index says that all tensors take, where it says so. It is for information, and wrong in some published checkpoints. */
static status check_total(const source *s, const char *dir, const shard_index *x, error *err) {
    const json_t *total = json_object_get(json_object_get(x->doc.root, "metadata"), "total_size");
    double bytes = 0, said = json_number_value(total);
    if (total == NULL) return STATUS_OK;
    if (!json_is_number(total) || said < 0)
        return error_set(err, STATUS_FORMAT, "safetensors: %s: metadata.total_size of the index is not a count", dir);
    for (size_t i = 0; i < s->n_tensors; i++) bytes += (double)s->tensors[i].n_bytes;
    if (said < bytes || said > bytes)
        log_warn("safetensors: %s: the index says that tensors take %.0f bytes, its files hold %.0f: they may not belong together", dir,
                 said, bytes);
    return STATUS_OK;
}

static status open_indexed(source *s, const char *dir, error *err) {
    shard_index x = {0};
    status rc = read_index(s, dir, &x, err);
    if (rc == STATUS_OK) rc = read_shards(s, dir, &x, err);
    if (rc == STATUS_OK) rc = check_total(s, dir, &x, err);
    mem_free(s->m, x.entries);
    mem_free(s->m, x.order);
    json_doc_free(&x.doc);
    return rc;
}

/* --- the directory --- */

static bool matches(bool is_dir, const uint8_t *head, size_t n_head) {
    (void)head;
    (void)n_head;
    return is_dir;
}

static status open_directory(source *s, const char *dir, error *err) {
    status rc = hf_config_read(s, &s->meta, err);
    if (rc == STATUS_NOT_FOUND) error_prefix(err, "safetensors: a model's directory has a config.json");
    TRY(rc);
    const char *single = join(s, dir, "model.safetensors");
    if (single == NULL) return error_set(err, STATUS_NO_MEMORY, "safetensors: no memory for a path");
    error why = {0};
    rc = read_file(s, single, &why);
    if (rc != STATUS_NOT_FOUND) return rc == STATUS_OK ? rc : error_set(err, rc, "%s", why.text);
    rc = open_indexed(s, dir, err);
    if (rc == STATUS_NOT_FOUND) error_prefix(err, "safetensors: %s holds no model.safetensors", dir);
    return rc;
}

const source_format source_format_safetensors = {"safetensors", META_HF, matches, open_directory};
