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
#include "load/safetensors_header.h"
#include "load/sort_index.h"

enum { MAX_HEADER_BYTES = 100000000, MAX_INDEX_BYTES = 64 << 20, MAX_FILE_NAME_BYTES = 255 };

/* --- one file --- */

static int cmp_places(const void *ctx, uint32_t a, uint32_t b) {
    const tensor_info *t = ctx;
    if (t[a].off != t[b].off) return t[a].off < t[b].off ? -1 : 1;
    return (t[a].n_bytes > t[b].n_bytes) - (t[a].n_bytes < t[b].n_bytes);
}

/* The tensors cover the data exactly. */
static status check_cover(const safetensors_file *f, size_t first) {
    source *s = f->s;
    size_t n = s->n_tensors - first;
    uint64_t at = f->data_off;
    void *p = NULL;
    status rc = STATUS_OK;
    if (n > 0) {
        const tensor_info *t = s->tensors + first;
        TRY(mem_alloc_named(s->m, MEM_MODEL, n * sizeof(uint32_t), "the order of tensors", &p, f->err));
        uint32_t *idx = p;
        sort_index_fill(idx, n, cmp_places, t);
        for (size_t i = 0; i < n && rc == STATUS_OK; i++) {
            const tensor_info *x = &t[idx[i]];
            if (x->off != at)
                rc = safetensors_refuse(f, STATUS_FORMAT, x->name, x->off < at ? "overlaps the one before it" : "there is a hole before it");
            at = x->off + x->n_bytes;
        }
        mem_free(s->m, p);
    }
    TRY(rc);
    if (at != f->data_off + f->data_bytes)
        return error_set(f->err, STATUS_FORMAT, "safetensors: %s: %llu bytes behind the last tensor", f->path,
                         (unsigned long long)(f->data_off + f->data_bytes - at));
    return STATUS_OK;
}

static status read_file(source *s, const char *path, error *err) {
    safetensors_file f = {.s = s, .path = path, .err = err};
    uint8_t head[8];
    uint64_t n = 0, size;
    void *text = NULL;
    const size_t first = s->n_tensors;
    TRY(source_add_file(s, path, &f.file, err));
    size = os_file_size(s->files[f.file]);
    if (size < sizeof head) return error_set(err, STATUS_FORMAT, "safetensors: %s: too short for a header", path);
    TRY(source_read_at(s, f.file, 0, head, sizeof head, err));
    for (size_t i = 0; i < sizeof head; i++) n |= (uint64_t)head[i] << (8 * i);
    if (n > size - sizeof head)
        return error_set(err, STATUS_FORMAT, "safetensors: %s: a header of %llu bytes does not fit the file", path, (unsigned long long)n);
    if (n > MAX_HEADER_BYTES)
        return error_set(err, STATUS_UNSUPPORTED, "safetensors: %s: a header of %llu bytes; at most %d are supported", path,
                         (unsigned long long)n, MAX_HEADER_BYTES);
    f.data_off = sizeof head + n;
    f.data_bytes = size - f.data_off;
    TRY(mem_alloc_named(s->m, MEM_MODEL, (size_t)n, "a header", &text, err));
    status rc = source_read_at(s, f.file, sizeof head, text, (size_t)n, err);
    if (rc == STATUS_OK) rc = safetensors_header_read(&f, text, (size_t)n);
    mem_free(s->m, text);
    return rc == STATUS_OK ? check_cover(&f, first) : rc;
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
