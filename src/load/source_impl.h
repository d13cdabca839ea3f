/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Inside of a source, for the containers. A container recognises its files, opens them through source_add_file, reads headers
 * through source_read_at, and appends tensors; source.c then checks the layout (unique names, no overlap, inside the file), indexes the
 * names and maps. A container adds one `source_format` to the list in source.c.
 */
#ifndef HEADRACE_LOAD_SOURCE_IMPL_H
#define HEADRACE_LOAD_SOURCE_IMPL_H

#include <pthread.h>

#include "base/arena.h"
#include "load/meta_impl.h"
#include "load/source.h"

/* Sane limits, so that a hostile file cannot make us allocate for what it merely claims. */
enum { SOURCE_MAX_TENSORS = 1 << 20, SOURCE_MAX_FILES = 4096, SOURCE_MAX_NAME_BYTES = 1023 };

typedef struct source_format {
    const char *name; /* "gguf" */
    meta_container container;
    /* Whether this is one of ours: a directory, or a file by its first n_head bytes. */
    bool (*matches)(bool is_dir, const uint8_t *head, size_t n_head);
    /* Fill files, tensors and s->meta. On failure source.c cleans up. */
    status (*open)(source *s, const char *path, error *err);
} source_format;

extern const source_format source_format_gguf, source_format_safetensors;

/** Same contract as os_file_read; tests put a failing one here. */
typedef status source_read_fn(void *ctx, const os_file *f, uint64_t off, void *dst, size_t n, error *err);

struct source {
    mem *m;
    const source_format *format;
    arena *a; /* names; MEM_MODEL */
    char *path;
    meta *meta;
    os_file **files;
    const uint8_t **maps; /* one per file; NULL where not mapped */
    size_t n_files, cap_files;
    tensor_info *tensors;
    size_t n_tensors, cap_tensors;
    uint32_t *by_name; /* tensors sorted by name */
    bool mapped;
    uint64_t total_bytes; /* of all tensors */
    source_read_fn *read;
    void *read_ctx;
    source_options opt;
    uint32_t extra_file; /* opt.extra_path */
    pthread_t opener;
    pthread_mutex_t lock; /* guards loaded and done_bytes */
    bool lock_made;
    void **loaded; /* LOAD_READ: bytes of each tensor that was asked for */
    uint64_t done_bytes;
};

/** source_open with another reader. */
NODISCARD status source_open_with(mem *m, const char *path, const source_options *opt, source_read_fn *read, void *read_ctx, source **out,
                                  error *err);

NODISCARD status source_add_file(source *s, const char *path, uint32_t *index, error *err);
/** Exactly n bytes of a file. */
NODISCARD status source_read_at(const source *s, uint32_t file, uint64_t off, void *dst, size_t n, error *err);
/** Append a copy of *t; the name (and type_name) must live as long as the source. */
NODISCARD status source_add_tensor(source *s, const tensor_info *t, error *err);

#endif
