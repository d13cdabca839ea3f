/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Writes a checkpoint: first what it will hold, then the bytes of each tensor in that order. Two containers: a GGUF file, or a directory with one safetensors file.
 *
 *   open -> meta and text (GGUF) ... -> tensor ... -> begin -> bytes ... -> finish
 *
 * Nothing is in place under its name before finish: the file is written under another one, and put in place when it is whole and on the disk. Owned by one thread.
 */
#ifndef HEADRACE_LOAD_CHECKPOINT_WRITER_H
#define HEADRACE_LOAD_CHECKPOINT_WRITER_H

#include "base/os.h"
#include "base/textbuf.h"
#include "vt/dtype.h"
#include "vt/tensor.h"

typedef enum checkpoint_container { CHECKPOINT_GGUF, CHECKPOINT_SAFETENSORS } checkpoint_container;

typedef struct checkpoint_writer checkpoint_writer;

/** path: the file of a GGUF, or the directory of a safetensors checkpoint (made when it is not there). */
NODISCARD status checkpoint_writer_open(mem *m, checkpoint_container container, const char *path, checkpoint_writer **out, error *err);
/** Also ends one that failed: what was written of it is left under its other name. */
void checkpoint_writer_close(checkpoint_writer *w);

/* Values of a GGUF's header; a memory failure shows in begin. */
void checkpoint_writer_u32(checkpoint_writer *w, const char *key, uint32_t v);
void checkpoint_writer_f32(checkpoint_writer *w, const char *key, float v);
void checkpoint_writer_bool(checkpoint_writer *w, const char *key, bool v);
void checkpoint_writer_text(checkpoint_writer *w, const char *key, const char *v);
/** Arrays: n elements follow, one call each. */
void checkpoint_writer_texts(checkpoint_writer *w, const char *key, uint64_t n);
void checkpoint_writer_text_item(checkpoint_writer *w, const char *bytes, size_t n);
void checkpoint_writer_i32s(checkpoint_writer *w, const char *key, uint64_t n);
void checkpoint_writer_i32_item(checkpoint_writer *w, int32_t v);
void checkpoint_writer_bools(checkpoint_writer *w, const char *key, uint64_t n);
void checkpoint_writer_bool_item(checkpoint_writer *w, bool v);

/** A file beside the tensors (config.json), of a safetensors checkpoint; written at once. */
NODISCARD status checkpoint_writer_sibling(checkpoint_writer *w, const char *name, const char *bytes, size_t n, error *err);

/** One more tensor, dims outermost first. STATUS_UNSUPPORTED for a dtype that the container has no name for. */
NODISCARD status checkpoint_writer_tensor(checkpoint_writer *w, const char *name, vt_dtype dtype, int n_dims, const int64_t *dim, uint64_t *n_bytes, error *err);
NODISCARD status checkpoint_writer_begin(checkpoint_writer *w, error *err);
/** The next bytes of the next tensor; a call does not cross tensors. */
NODISCARD status checkpoint_writer_bytes(checkpoint_writer *w, const void *bytes, size_t n, error *err);
/** All bytes of all tensors were given: to the disk, and in place. */
NODISCARD status checkpoint_writer_finish(checkpoint_writer *w, uint64_t *total_bytes, error *err);

#endif
