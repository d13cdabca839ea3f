/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, layout checks, lookup and bytes of a checkpoint, whatever its container. */
#include "load/source.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/log.h"
#include "load/hub_cache.h"
#include "load/sort_index.h"
#include "load/source_impl.h"

enum { ARENA_CHUNK_BYTES = 64 << 10, HEAD_BYTES = 8, READ_CHUNK_BYTES = 16 << 20 };

static const source_format *const formats[] = {&source_format_gguf, &source_format_safetensors};

static status read_file(void *ctx, const os_file *f, uint64_t off, void *dst, size_t n, error *err) {
    (void)ctx;
    return os_file_read(f, off, dst, n, err);
}

status source_read_at(const source *s, uint32_t file, uint64_t off, void *dst, size_t n, error *err) {
    return s->read(s->read_ctx, s->files[file], off, dst, n, err);
}

/* --- what containers append --- */

static status grow(mem *m, void **p, size_t *cap, size_t item_bytes, const char *what, error *err) {
    size_t n = *cap == 0 ? 16 : *cap * 2, bytes;
    void *q = NULL;
    if (checked_mul_size(n, item_bytes, &bytes)) q = *p == NULL ? mem_alloc(m, MEM_MODEL, bytes) : mem_realloc(m, MEM_MODEL, *p, bytes);
    if (q == NULL) return error_set(err, STATUS_NO_MEMORY, "load: no memory for %zu %s", n, what);
    *p = q;
    *cap = n;
    return STATUS_OK;
}

status source_add_file(source *s, const char *path, uint32_t *index, error *err) {
    if (s->n_files >= SOURCE_MAX_FILES)
        return error_set(err, STATUS_UNSUPPORTED, "load: %s: more than %d files", s->path, SOURCE_MAX_FILES);
    if (s->n_files == s->cap_files) {
        void *p = s->files;
        TRY(grow(s->m, &p, &s->cap_files, sizeof s->files[0], "files", err));
        s->files = p;
    }
    TRY(os_file_open(s->m, path, &s->files[s->n_files], err));
    *index = (uint32_t)s->n_files++;
    return STATUS_OK;
}

status source_add_tensor(source *s, const tensor_info *t, error *err) {
    if (s->n_tensors >= SOURCE_MAX_TENSORS)
        return error_set(err, STATUS_UNSUPPORTED, "load: %s: more than %d tensors", s->path, SOURCE_MAX_TENSORS);
    if (s->n_tensors == s->cap_tensors) {
        void *p = s->tensors;
        TRY(grow(s->m, &p, &s->cap_tensors, sizeof s->tensors[0], "tensors", err));
        s->tensors = p;
    }
    s->tensors[s->n_tensors++] = *t;
    return STATUS_OK;
}

/* --- layout --- */

static int cmp_names(const void *ctx, uint32_t a, uint32_t b) {
    const source *s = ctx;
    return strcmp(s->tensors[a].name, s->tensors[b].name);
}

static int cmp_places(const void *ctx, uint32_t a, uint32_t b) {
    const source *s = ctx;
    const tensor_info *x = &s->tensors[a], *y = &s->tensors[b];
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    if (x->off != y->off) return x->off < y->off ? -1 : 1;
    return (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes); /* empty ones first */
}

static status check_places(source *s, uint32_t *idx, error *err) {
    sort_index_fill(idx, s->n_tensors, cmp_places, s);
    for (size_t i = 0; i < s->n_tensors; i++) {
        const tensor_info *t = &s->tensors[idx[i]];
        uint64_t end, size = os_file_size(s->files[t->file]);
        if (!checked_add_u64(t->off, t->n_bytes, &end) || end > size)
            return error_set(err, STATUS_FORMAT, "load: %s: tensor %s: bytes %llu + %llu lie past the end (%llu)",
                             os_file_path(s->files[t->file]), t->name, (unsigned long long)t->off, (unsigned long long)t->n_bytes,
                             (unsigned long long)size);
        if (!checked_add_u64(s->total_bytes, t->n_bytes, &s->total_bytes))
            return error_set(err, STATUS_FORMAT, "load: %s: sizes overflow", s->path);
        if (i + 1 == s->n_tensors) break;
        const tensor_info *next = &s->tensors[idx[i + 1]];
        if (next->file == t->file && next->off < end)
            return error_set(err, STATUS_FORMAT, "load: %s: tensors %s and %s overlap at byte %llu", os_file_path(s->files[t->file]),
                             t->name, next->name, (unsigned long long)next->off);
    }
    return STATUS_OK;
}

static status check_layout(source *s, error *err) {
    void *idx;
    TRY(mem_alloc_named(s->m, MEM_MODEL, s->n_tensors * sizeof s->by_name[0], "the index of tensors", &idx, err));
    s->by_name = idx;
    TRY(check_places(s, s->by_name, err));
    sort_index_fill(s->by_name, s->n_tensors, cmp_names, s);
    for (size_t i = 1; i < s->n_tensors; i++) {
        const tensor_info *a = &s->tensors[s->by_name[i - 1]], *b = &s->tensors[s->by_name[i]];
        if (strcmp(a->name, b->name) == 0)
            return error_set(err, STATUS_FORMAT, "load: tensor %s is there twice (%s, %s)", a->name, os_file_path(s->files[a->file]),
                             os_file_path(s->files[b->file]));
    }
    return STATUS_OK;
}

/* --- open --- */

/* What is at s->path: the first bytes of a file, or a directory. */
static status look(source *s, uint8_t *head, size_t *n_head, bool *is_dir, error *err) {
    os_file *f = NULL;
    status rc = os_file_open(s->m, s->path, &f, err);
    *is_dir = rc == STATUS_INVALID; /* or a device; then it has no config.json either */
    if (*is_dir) return STATUS_OK;
    TRY(rc);
    *n_head = os_file_size(f) < HEAD_BYTES ? (size_t)os_file_size(f) : HEAD_BYTES;
    rc = s->read(s->read_ctx, f, 0, head, *n_head, err);
    os_file_close(f);
    return rc;
}

static bool ends_in(const char *text, const char *suffix) {
    size_t n = strlen(text), k = strlen(suffix);
    return n >= k && strcmp(text + n - k, suffix) == 0;
}

static status detect(source *s, error *err) {
    uint8_t head[HEAD_BYTES] = {0};
    size_t n_head = 0;
    bool is_dir = false;
    error why = {0};
    status rc = look(s, head, &n_head, &is_dir, &why);
    if (rc == STATUS_NOT_FOUND && hub_cache_is_name(s->path)) {
        char *found = NULL;
        TRY(hub_cache_find(s->m, s->path, &found, err));
        mem_free(s->m, s->path);
        s->path = found;
        rc = look(s, head, &n_head, &is_dir, &why);
    }
    if (rc != STATUS_OK) return error_set(err, rc, "%s", why.text);
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (!formats[i]->matches(is_dir, head, n_head)) continue;
        s->format = formats[i];
        return STATUS_OK;
    }
    const char *hint =
        ends_in(s->path, ".safetensors") ? "open the directory that a safetensors file is in" : "a GGUF file starts with \"GGUF\"";
    return error_set(err, STATUS_UNSUPPORTED, "load: %s: not a checkpoint we know: %s", s->path, hint);
}

static status map_files(source *s, error *err) {
    if (s->opt.mode == LOAD_READ) return STATUS_OK;
    bool *used = mem_calloc(s->m, MEM_MODEL, s->n_files, sizeof *used);
    if (used == NULL) return error_set(err, STATUS_NO_MEMORY, "load: no memory for %zu files", s->n_files);
    for (size_t i = 0; i < s->n_tensors; i++) used[s->tensors[i].file] = true;
    status rc = STATUS_OK;
    error why = {0};
    for (size_t i = 0; i < s->n_files && rc == STATUS_OK; i++)
        if (used[i]) rc = os_file_map(s->files[i], &s->maps[i], &why);
    mem_free(s->m, used);
    s->mapped = rc == STATUS_OK;
    if (rc == STATUS_OK) return STATUS_OK;
    if (s->opt.mode == LOAD_MAP) return error_set(err, rc, "%s", why.text);
    log_warn("load: reading the weights into memory, since mapping failed: %s", why.text);
    return STATUS_OK;
}

static status open_into(source *s, const char *path, error *err) {
    if (pthread_mutex_init(&s->lock, NULL) != 0) return error_set(err, STATUS_FAILED, "load: no mutex");
    s->lock_made = true;
    s->path = mem_strdup(s->m, MEM_MODEL, path);
    if (s->path == NULL || arena_create(s->m, MEM_MODEL, ARENA_CHUNK_BYTES, &s->a) != STATUS_OK)
        return error_set(err, STATUS_NO_MEMORY, "load: no memory to open %s", path);
    TRY(detect(s, err));
    TRY(s->format->open(s, s->path, err));
    TRY(check_layout(s, err));
    if (s->opt.extra_path != NULL) TRY(source_add_file(s, s->opt.extra_path, &s->extra_file, err));
    s->maps = mem_calloc(s->m, MEM_MODEL, s->n_files, sizeof s->maps[0]);
    s->loaded = mem_calloc(s->m, MEM_MODEL, s->n_tensors, sizeof s->loaded[0]);
    if (s->maps == NULL || s->loaded == NULL) return error_set(err, STATUS_NO_MEMORY, "load: no memory for %zu tensors", s->n_tensors);
    TRY(map_files(s, err));
    if (!source_intact(s)) return error_set(err, STATUS_IO, "load: %s changed while it was opened", path);
    return STATUS_OK;
}

status source_map(source *s, load_mode mode, error *err) {
    if (s->mapped || mode == LOAD_READ) return STATUS_OK;
    s->opt.mode = mode;
    TRY(map_files(s, err));
    return source_intact(s) ? STATUS_OK : error_set(err, STATUS_IO, "load: %s changed while it was opened", s->path);
}

status source_open_with(mem *m, const char *path, const source_options *opt, source_read_fn *read, void *read_ctx, source **out,
                        error *err) {
    source *s = mem_calloc(m, MEM_MODEL, 1, sizeof *s);
    if (s == NULL) return error_set(err, STATUS_NO_MEMORY, "load: no memory to open %s", path);
    s->m = m;
    s->read = read;
    s->read_ctx = read_ctx;
    s->opener = pthread_self();
    if (opt != NULL) s->opt = *opt;
    status rc = open_into(s, path, err);
    if (rc != STATUS_OK) {
        source_close(s);
        return rc;
    }
    *out = s;
    return STATUS_OK;
}

status source_open(mem *m, const char *path, const source_options *opt, source **out, error *err) {
    return source_open_with(m, path, opt, read_file, NULL, out, err);
}

void source_close(source *s) {
    if (s == NULL) return;
    mem *m = s->m;
    for (size_t i = 0; s->loaded != NULL && i < s->n_tensors; i++) mem_free(m, s->loaded[i]);
    for (size_t i = 0; i < s->n_files; i++) os_file_close(s->files[i]);
    if (s->lock_made) pthread_mutex_destroy(&s->lock);
    meta_destroy(s->meta);
    if (s->a != NULL) arena_destroy(s->a);
    mem_free(m, s->loaded);
    mem_free(m, s->maps);
    mem_free(m, s->files);
    mem_free(m, s->tensors);
    mem_free(m, s->by_name);
    mem_free(m, s->path);
    mem_free(m, s);
}

/* --- what is inside --- */

const meta *source_meta(const source *s) { return s->meta; }
meta_container source_container(const source *s) { return s->format->container; }
const char *source_path(const source *s) { return s->path; }
size_t source_n_tensors(const source *s) { return s->n_tensors; }
const tensor_info *source_tensor(const source *s, size_t i) { return i < s->n_tensors ? &s->tensors[i] : NULL; }
size_t source_n_files(const source *s) { return s->n_files; }
const os_file *source_file(const source *s, size_t i) { return i < s->n_files ? s->files[i] : NULL; }
bool source_extra_file(const source *s, uint32_t *file) {
    if (s->opt.extra_path != NULL) *file = s->extra_file;
    return s->opt.extra_path != NULL;
}
status source_allow_writing(const source *s, const char *path, error *err) {
    static const char *const siblings[] = {"config.json",           "model.safetensors.index.json", "tokenizer.json",
                                           "tokenizer_config.json", "generation_config.json",       "chat_template.jinja"};
    static const char text[] = "load: %s: is %s of the checkpoint, which would be destroyed; write elsewhere";
    for (size_t i = 0; i < s->n_files; i++) {
        if (os_same_file(path, os_file_path(s->files[i]))) return error_set(err, STATUS_INVALID, text, path, os_file_path(s->files[i]));
    }
    for (size_t i = 0; s->format->container == META_HF && i < sizeof siblings / sizeof siblings[0]; i++) {
        char name[4096];
        if ((size_t)snprintf(name, sizeof name, "%s/%s", s->path, siblings[i]) < sizeof name && os_same_file(path, name))
            return error_set(err, STATUS_INVALID, text, path, name);
    }
    return STATUS_OK;
}
bool source_is_plain(const source *s) { return s->read == read_file; }
bool source_is_mapped(const source *s) { return s->mapped; }

const tensor_info *source_find(const source *s, const char *name) {
    size_t lo = 0, hi = s->n_tensors;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const tensor_info *t = &s->tensors[s->by_name[mid]];
        int c = strcmp(name, t->name);
        if (c == 0) return t;
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

bool source_intact(const source *s) {
    for (size_t i = 0; i < s->n_files; i++) {
        if (s->opt.extra_path != NULL && i == s->extra_file) continue;
        if (!os_file_intact(s->files[i])) return false;
    }
    return true;
}

/* --- bytes --- */

static void report_progress(source *s) {
    if (s->opt.progress != NULL && pthread_equal(s->opener, pthread_self()))
        s->opt.progress(s->opt.progress_ctx, s->done_bytes, s->total_bytes);
}

void source_note_progress(source *s, uint64_t n) {
    pthread_mutex_lock(&s->lock);
    s->done_bytes += n;
    report_progress(s);
    pthread_mutex_unlock(&s->lock);
}

void source_leave_out(source *s, uint64_t n) {
    pthread_mutex_lock(&s->lock);
    s->total_bytes -= n < s->total_bytes ? n : s->total_bytes;
    pthread_mutex_unlock(&s->lock);
}

/* With the lock held: the bytes of tensor i in memory of our own. */
static status load_tensor(source *s, const tensor_info *t, void **slot, error *err) {
    size_t n, done = 0;
    void *p;
    if (!checked_u64_to_size(t->n_bytes, &n))
        return error_set(err, STATUS_NO_MEMORY, "load: tensor %s does not fit the address space", t->name);
    status rc = mem_alloc_named(s->m, MEM_WEIGHTS, n, t->name, &p, err);
    if (rc != STATUS_OK) {
        error_prefix(err, "load: %s", os_file_path(s->files[t->file]));
        return rc;
    }
    while (done < n) {
        size_t part = n - done < READ_CHUNK_BYTES ? n - done : READ_CHUNK_BYTES;
        rc = source_read_at(s, t->file, t->off + done, (uint8_t *)p + done, part, err);
        if (rc != STATUS_OK) {
            s->done_bytes -= done;
            mem_free(s->m, p);
            error_prefix(err, "load: tensor %s", t->name);
            return rc;
        }
        done += part;
        s->done_bytes += part;
        report_progress(s);
    }
    *slot = p;
    return STATUS_OK;
}

status source_data(source *s, const tensor_info *t, const void **out, error *err) {
    if (s->mapped) {
        *out = s->maps[t->file] + t->off;
        return STATUS_OK;
    }
    void **slot = &s->loaded[t - s->tensors];
    pthread_mutex_lock(&s->lock);
    status rc = *slot != NULL ? STATUS_OK : load_tensor(s, t, slot, err);
    const void *p = *slot;
    pthread_mutex_unlock(&s->lock);
    if (rc == STATUS_OK) *out = p;
    return rc;
}

status source_read(const source *s, const tensor_info *t, uint64_t off, uint64_t n, void *dst, error *err) {
    uint64_t end;
    size_t bytes;
    if (!checked_add_u64(off, n, &end) || end > t->n_bytes || !checked_u64_to_size(n, &bytes))
        return error_set(err, STATUS_INVALID, "load: tensor %s: bytes %llu + %llu of %llu asked for", t->name, (unsigned long long)off,
                         (unsigned long long)n, (unsigned long long)t->n_bytes);
    status rc = source_read_at(s, t->file, t->off + off, dst, bytes, err);
    if (rc != STATUS_OK) error_prefix(err, "load: tensor %s", t->name);
    return rc;
}

status source_read_range(const source *s, uint32_t file, uint64_t off, uint64_t n, void *dst, error *err) {
    uint64_t end;
    size_t bytes;
    if (file >= s->n_files || !checked_add_u64(off, n, &end) || end > os_file_size(s->files[file]) || !checked_u64_to_size(n, &bytes)) {
        return error_set(err, STATUS_INVALID, "load: bytes %llu + %llu of file %u asked for", (unsigned long long)off, (unsigned long long)n, file);
    }
    return source_read_at(s, file, off, dst, bytes, err);
}

/* --- files beside the tensors --- */

static status read_whole(const source *s, const char *path, mem_tag tag, size_t max_bytes, char **out, size_t *n, error *err) {
    os_file *f = NULL;
    void *text = NULL;
    TRY(os_file_open(s->m, path, &f, err));
    uint64_t size = os_file_size(f);
    status rc = STATUS_OK;
    if (size > max_bytes)
        rc = error_set(err, STATUS_FORMAT, "load: %s has %llu bytes; at most %zu are allowed", path, (unsigned long long)size, max_bytes);
    if (rc == STATUS_OK) rc = mem_alloc_named(s->m, tag, (size_t)size + 1, path, &text, err);
    if (rc == STATUS_OK) rc = s->read(s->read_ctx, f, 0, text, (size_t)size, err);
    os_file_close(f);
    if (rc != STATUS_OK) {
        mem_free(s->m, text);
        return rc;
    }
    ((char *)text)[size] = '\0';
    *out = text;
    *n = (size_t)size;
    return STATUS_OK;
}

status source_read_sibling(const source *s, mem_tag tag, const char *name, size_t max_bytes, char **out, size_t *n, error *err) {
    if (s->format->container != META_HF) return error_set(err, STATUS_NOT_FOUND, "load: %s: a GGUF has no %s beside it", s->path, name);
    if (strchr(name, '/') != NULL || max_bytes == SIZE_MAX) return error_set(err, STATUS_INVALID, "load: %s is no plain file name", name);
    size_t len = strlen(s->path) + strlen(name) + 2;
    char *path = mem_alloc(s->m, MEM_MODEL, len);
    if (path == NULL) return error_set(err, STATUS_NO_MEMORY, "load: no memory for a path");
    snprintf(path, len, "%s/%s", s->path, name);
    status rc = read_whole(s, path, tag, max_bytes, out, n, err);
    mem_free(s->m, path);
    return rc;
}
