/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GGUF container: one file, or shards NAME-00001-of-0000N.gguf whose keys split.no, split.count and split.tensors.count must agree with
 * the names. Metadata comes from the first shard.
 */
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "load/gguf_header.h"
#include "load/sort_index.h"

enum { SHARD_SUFFIX_BYTES = 20 }; /* "-00001-of-00002.gguf" */

static bool matches(bool is_dir, const uint8_t *head, size_t n_head) { return !is_dir && n_head >= 4 && memcmp(head, "GGUF", 4) == 0; }

/* --- one file --- */

static status describe(source *s, const gguf_header *h, const gguf_tensor *t, uint32_t file, tensor_info *info, error *err) {
    const char *path = os_file_path(s->files[file]);
    uint64_t elems = 1;
    *info = (tensor_info){
        .name = t->name, .type_name = vt_gguf_type_name(t->type_id), .n_dims = (int32_t)t->n_dims, .dim = {1, 1, 1, 1}, .file = file};
    for (uint32_t i = 0; i < t->n_dims; i++) {
        info->dim[i] = (int64_t)t->dim[t->n_dims - 1 - i];
        if (!checked_mul_u64(elems, t->dim[i], &elems) || elems > INT64_MAX)
            return error_set(err, STATUS_FORMAT, "gguf: %s: tensor %s: the number of elements overflows", path, t->name);
    }
    if (t->off % h->alignment != 0)
        return error_set(err, STATUS_FORMAT, "gguf: %s: tensor %s: offset %llu is not aligned to %u", path, t->name,
                         (unsigned long long)t->off, h->alignment);
    if (!checked_add_u64(h->data_off, t->off, &info->off) || info->off > os_file_size(s->files[file]))
        return error_set(err, STATUS_FORMAT, "gguf: %s: tensor %s: offset %llu lies past the end", path, t->name,
                         (unsigned long long)t->off);
    if (!vt_dtype_from_gguf(t->type_id, &info->dtype)) {
        info->dtype = VT_NONE;
        if (strcmp(info->type_name, "unknown") != 0) return STATUS_OK;
        char text[32];
        snprintf(text, sizeof text, "type %u", t->type_id);
        info->type_name = arena_strdup(s->a, text);
        return info->type_name != NULL ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "gguf: %s: no memory for tensors", path);
    }
    size_t row_bytes;
    if (!vt_dtype_row_bytes(info->dtype, (int64_t)t->dim[0], &row_bytes))
        return error_set(err, STATUS_FORMAT, "gguf: %s: tensor %s: rows of %llu elements are no whole blocks of %s", path, t->name,
                         (unsigned long long)t->dim[0], info->type_name);
    if (!checked_mul_u64(row_bytes, elems / t->dim[0], &info->n_bytes))
        return error_set(err, STATUS_FORMAT, "gguf: %s: tensor %s: the size overflows", path, t->name);
    return STATUS_OK;
}

static int cmp_offsets(const void *ctx, uint32_t a, uint32_t b) {
    const tensor_info *t = ctx;
    return (t[a].off > t[b].off) - (t[a].off < t[b].off);
}

/* A tensor of a type without a known size takes what lies before the next tensor, or the end of the file. */
static status size_unknown(source *s, size_t first, uint32_t file, error *err) {
    size_t n = s->n_tensors - first, n_unknown = 0;
    if (n == 0) return STATUS_OK;
    tensor_info *t = s->tensors + first;
    for (size_t i = 0; i < n; i++) n_unknown += t[i].dtype == VT_NONE;
    if (n_unknown == 0) return STATUS_OK;
    void *p;
    TRY(mem_alloc_named(s->m, MEM_MODEL, n * sizeof(uint32_t), "the order of tensors", &p, err));
    uint32_t *idx = p;
    sort_index_fill(idx, n, cmp_offsets, t);
    for (size_t i = 0; i < n; i++) {
        tensor_info *x = &t[idx[i]];
        uint64_t end = i + 1 < n ? t[idx[i + 1]].off : os_file_size(s->files[file]);
        if (x->dtype == VT_NONE) x->n_bytes = end - x->off;
    }
    mem_free(s->m, p);
    return STATUS_OK;
}

static status add_tensors(source *s, const gguf_header *h, uint32_t file, error *err) {
    size_t first = s->n_tensors;
    for (size_t i = 0; i < h->n_tensors; i++) {
        tensor_info info;
        TRY(describe(s, h, &h->tensors[i], file, &info, err));
        TRY(source_add_tensor(s, &info, err));
    }
    return size_unknown(s, first, file, err);
}

/* Names of a shard outlive its header. */
static status keep_names(source *s, gguf_header *h, error *err) {
    for (size_t i = 0; i < h->n_tensors; i++) {
        h->tensors[i].name = arena_strdup(s->a, h->tensors[i].name);
        if (h->tensors[i].name == NULL) return error_set(err, STATUS_NO_MEMORY, "gguf: no memory for tensor names");
    }
    return STATUS_OK;
}

/* --- shards --- */

typedef struct shard_set {
    char *path;  /* of shard k, rewritten in place */
    size_t stem; /* bytes of path before "-00001-of-" */
    int64_t count, n_tensors;
} shard_set;

static bool parse_shard_name(const char *path, unsigned *no, unsigned *count) {
    size_t n = strlen(path);
    if (n < SHARD_SUFFIX_BYTES) return false;
    const char *p = path + n - SHARD_SUFFIX_BYTES;
    unsigned v[2] = {0, 0};
    if (p[0] != '-' || memcmp(p + 6, "-of-", 4) != 0 || strcmp(p + 15, ".gguf") != 0) return false;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 5; i++) {
            char c = p[(k == 0 ? 1 : 10) + i];
            if (c < '0' || c > '9') return false;
            v[k] = v[k] * 10 + (unsigned)(c - '0');
        }
    *no = v[0];
    *count = v[1];
    return true;
}

static status split_key(const meta *m, const char *key, const char *path, int64_t *out, error *err) {
    const meta_value *v = meta_find(m, key);
    if (meta_as_i64(v, out) && *out >= 0) return STATUS_OK;
    return error_set(err, STATUS_FORMAT, "gguf: %s: %s %s", path, key, v == NULL ? "is missing" : "is not a count");
}

static status check_shard(const meta *m, const char *path, int64_t no, const shard_set *set, error *err) {
    int64_t n = 0;
    TRY(split_key(m, "split.count", path, &n, err));
    if (n != set->count)
        return error_set(err, STATUS_FORMAT, "gguf: %s: split.count is %lld, but the first shard says %lld", path, (long long)n,
                         (long long)set->count);
    TRY(split_key(m, "split.no", path, &n, err));
    if (n != no)
        return error_set(err, STATUS_FORMAT, "gguf: %s: split.no is %lld, but the file name says %lld", path, (long long)n, (long long)no);
    TRY(split_key(m, "split.tensors.count", path, &n, err));
    if (n != set->n_tensors)
        return error_set(err, STATUS_FORMAT, "gguf: %s: split.tensors.count is %lld, but the first shard says %lld", path, (long long)n,
                         (long long)set->n_tensors);
    return STATUS_OK;
}

static status add_shard(source *s, shard_set *set, int64_t k, error *err) {
    uint32_t file = 0;
    gguf_header h;
    char suffix[40];
    snprintf(suffix, sizeof suffix, "-%05d-of-%05d.gguf", (int)k + 1, (int)set->count); /* both below 100000 */
    memcpy(set->path + set->stem, suffix, SHARD_SUFFIX_BYTES);
    TRY(source_add_file(s, set->path, &file, err));
    TRY(gguf_header_read(s, file, &h, err));
    status rc = check_shard(h.meta, set->path, k, set, err);
    if (rc == STATUS_OK) rc = keep_names(s, &h, err);
    if (rc == STATUS_OK) rc = add_tensors(s, &h, file, err);
    gguf_header_deinit(s->m, &h);
    return rc;
}

static status open_shards(source *s, const char *path, error *err) {
    shard_set set = {0};
    unsigned no = 0, count = 0;
    TRY(split_key(s->meta, "split.count", path, &set.count, err));
    if (!parse_shard_name(path, &no, &count))
        return error_set(err, STATUS_FORMAT, "gguf: %s: split.count is %lld, but the name does not end in -00001-of-%05lld.gguf", path,
                         (long long)set.count, (long long)set.count);
    if (count != set.count)
        return error_set(err, STATUS_FORMAT, "gguf: %s: split.count is %lld, but the name says %u", path, (long long)set.count, count);
    if (no != 1) return error_set(err, STATUS_INVALID, "gguf: %s is shard %u of %u: open the first one", path, no, count);
    if (set.count > SOURCE_MAX_FILES) return error_set(err, STATUS_UNSUPPORTED, "gguf: %s: more than %d shards", path, SOURCE_MAX_FILES);
    TRY(split_key(s->meta, "split.tensors.count", path, &set.n_tensors, err));
    TRY(check_shard(s->meta, path, 0, &set, err));
    set.stem = strlen(path) - SHARD_SUFFIX_BYTES;
    set.path = arena_strdup(s->a, path);
    if (set.path == NULL) return error_set(err, STATUS_NO_MEMORY, "gguf: no memory for a path");
    for (int64_t k = 1; k < set.count; k++) TRY(add_shard(s, &set, k, err));
    if ((uint64_t)set.n_tensors != s->n_tensors)
        return error_set(err, STATUS_FORMAT, "gguf: %s: split.tensors.count is %lld, but the shards hold %zu tensors", path,
                         (long long)set.n_tensors, s->n_tensors);
    return STATUS_OK;
}

static status open_gguf(source *s, const char *path, error *err) {
    uint32_t file = 0;
    gguf_header h;
    TRY(source_add_file(s, path, &file, err));
    TRY(gguf_header_read(s, file, &h, err));
    s->meta = h.meta; /* the names stay with it */
    h.meta = NULL;
    status rc = add_tensors(s, &h, file, err);
    gguf_header_deinit(s->m, &h);
    TRY(rc);
    int64_t count = 0;
    bool split = meta_as_i64(meta_find(s->meta, "split.count"), &count) && count > 1;
    return split ? open_shards(s, path, err) : STATUS_OK;
}

const source_format source_format_gguf = {"gguf", META_GGUF, matches, open_gguf};
