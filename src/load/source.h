/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A checkpoint as a list of tensors in files plus its metadata. Two containers implement it (GGUF; safetensors). The whole layout is
 * validated at open: after that every tensor_info lies inside its file and its byte size matches dtype and shape.
 *
 * Weights are mapped (no copy; needs a file system that maps) or read into memory charged to MEM_WEIGHTS. A source is constant after open and may be
 * read from any thread. It knows no device.
 */
#ifndef HEADRACE_LOAD_SOURCE_H
#define HEADRACE_LOAD_SOURCE_H

#include "base/os.h"
#include "load/meta.h"
#include "vt/tensor.h"

typedef struct tensor_info {
    const char *name;
    vt_dtype dtype;         /* VT_NONE: a type we do not read; type_name says which; an error only if the tensor is needed */
    const char *type_name;  /* as the file spells it */
    int32_t n_dims;         /* 0 (scalar) to 4 */
    int64_t dim[VT_MAX_DIMS]; /* outermost first, also for GGUF */
    uint32_t file;          /* index of the file */
    uint64_t off;           /* absolute byte offset in that file */
    uint64_t n_bytes;
} tensor_info;

typedef enum load_mode { LOAD_AUTO, LOAD_MAP, LOAD_READ } load_mode; /* auto maps, and reads where mapping is refused (said in the log) */

typedef struct source source;

/** Called from the opening thread during long reads: done and total bytes. NULL: none. */
typedef void source_progress_fn(void *ctx, uint64_t done, uint64_t total);

typedef struct source_options {
    load_mode mode;
    source_progress_fn *progress;
    void *progress_ctx;
    const char *extra_path; /* NULL, or one more file to keep open for reading: it has no tensors */
} source_options;

/**
 * Detects the container. path: a .gguf file (a first shard finds the rest), a directory with config.json and safetensors, or, where no such file exists,
 * org/name[@revision] in the Hugging Face cache, which is only read: STATUS_NOT_FOUND says how to fetch it.
 */
NODISCARD status source_open(mem *m, const char *path, const source_options *opt, source **out, error *err);
void source_close(source *s);
/** Maps what was opened with LOAD_READ, as source_open would have in this mode. Before the first source_data only. */
NODISCARD status source_map(source *s, load_mode mode, error *err);

const meta *source_meta(const source *s);
meta_container source_container(const source *s);
const char *source_path(const source *s); /* of the file, or of the directory (that of the snapshot for a name of the cache) */
size_t source_n_tensors(const source *s);
const tensor_info *source_tensor(const source *s, size_t i);
const tensor_info *source_find(const source *s, const char *name); /* NULL when absent; binary search, so no names can make it slow */
size_t source_n_files(const source *s);
const os_file *source_file(const source *s, size_t i);

/**
 * The tensor's bytes for as long as the source lives: into the mapping, or read into memory by the first call (under a lock; LOAD_READ).
 * The address has the file's own alignment (any).
 */
NODISCARD status source_data(source *s, const tensor_info *t, const void **out, error *err);
/** What writes to `path` would destroy a file that this source consists of: STATUS_INVALID, with both names. */
NODISCARD status source_allow_writing(const source *s, const char *path, error *err);
/** A byte range of a tensor into dst, by reading, never through a mapping. */
NODISCARD status source_read(const source *s, const tensor_info *t, uint64_t off, uint64_t n, void *dst, error *err);
/** A byte range of one of the files, which may span tensors that lie side by side (callers know which: t->file, t->off), by reading. */
NODISCARD status source_read_range(const source *s, uint32_t file, uint64_t off, uint64_t n, void *dst, error *err);
/**
 * A whole file of a Hugging Face directory (tokenizer.json, chat_template.jinja), NUL-terminated, to be freed with mem_free. name is plain, without '/'.
 * STATUS_NOT_FOUND when it is not there (a GGUF has no such files), STATUS_FORMAT when it has more than max_bytes, STATUS_INVALID for what is no regular file.
 */
NODISCARD status source_read_sibling(const source *s, mem_tag tag, const char *name, size_t max_bytes, char **out, size_t *n, error *err);
/** n more bytes of the checkpoint are where they belong (copied elsewhere by the caller): for the progress of a load. On the opening thread. */
void source_note_progress(source *s, uint64_t n);
/** n bytes of the checkpoint will not be read by the load: its progress ends without them. */
void source_leave_out(source *s, uint64_t n);
/** The file of extra_path; false: there is none. */
bool source_extra_file(const source *s, uint32_t *file);
/** Whether bytes come straight from the files, so that a reader of its own may fetch them. */
bool source_is_plain(const source *s);
/** False once any of the files, but for that of extra_path, is not as it was opened (os_file_intact). */
bool source_intact(const source *s);
bool source_is_mapped(const source *s);

/* Constructors of the containers, for source_open. Each fills a source through source_impl.h. */

#endif
