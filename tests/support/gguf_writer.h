/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Writes GGUF files for tests: keys and tensors in the order of the calls, the image in memory or on disk. It checks nothing, so that it
 * can also write what must be refused; shares no code with the reader. After a failed allocation calls do nothing and gguf_writer_bytes
 * returns false.
 */
#ifndef HEADRACE_TESTS_GGUF_WRITER_H
#define HEADRACE_TESTS_GGUF_WRITER_H

#include <stdint.h>

#include "base/textbuf.h"

/* Value types of the file. */
enum {
    GGUF_W_U8,
    GGUF_W_I8,
    GGUF_W_U16,
    GGUF_W_I16,
    GGUF_W_U32,
    GGUF_W_I32,
    GGUF_W_F32,
    GGUF_W_BOOL,
    GGUF_W_STRING,
    GGUF_W_ARRAY,
    GGUF_W_U64,
    GGUF_W_I64,
    GGUF_W_F64
};
/* Tensor types of the file that tests use. */
enum { GGUF_T_F32 = 0, GGUF_T_F16 = 1, GGUF_T_Q4_0 = 2, GGUF_T_Q4_1 = 3, GGUF_T_Q8_0 = 8, GGUF_T_Q6_K = 14, GGUF_T_I8 = 24, GGUF_T_BF16 = 30 };

typedef struct gguf_writer {
    textbuf keys, infos, data, image;
    uint64_t n_keys, n_tensors;
    uint32_t version, alignment; /* 3 and 32; change alignment before the first tensor (and write the key) */
} gguf_writer;

void gguf_writer_init(gguf_writer *w, mem *m);
void gguf_writer_deinit(gguf_writer *w);

/** A key with n value bytes as they are in the file; the rest are shorthands. */
void gguf_writer_raw(gguf_writer *w, const char *key, uint32_t type, const void *value, size_t n);
void gguf_writer_u32(gguf_writer *w, const char *key, uint32_t v);
void gguf_writer_i32(gguf_writer *w, const char *key, int32_t v);
void gguf_writer_u64(gguf_writer *w, const char *key, uint64_t v);
void gguf_writer_u16(gguf_writer *w, const char *key, uint16_t v);
void gguf_writer_f32(gguf_writer *w, const char *key, float v);
void gguf_writer_f64(gguf_writer *w, const char *key, double v);
void gguf_writer_bool(gguf_writer *w, const char *key, bool v);
void gguf_writer_text(gguf_writer *w, const char *key, const char *v);
/** n elements of a number type at `elems`. */
void gguf_writer_array(gguf_writer *w, const char *key, uint32_t elem_type, const void *elems, size_t elem_bytes, size_t n);
void gguf_writer_texts(gguf_writer *w, const char *key, const char *const *v, size_t n);

/** Append a tensor; dims are outermost first; n_bytes of data (NULL: zeros) are padded to the alignment. */
void gguf_writer_tensor(gguf_writer *w, const char *name, uint32_t type_id, int n_dims, const int64_t *dim, const void *data,
                        size_t n_bytes);
/** Only the record, with an offset of the caller's. */
void gguf_writer_tensor_at(gguf_writer *w, const char *name, uint32_t type_id, int n_dims, const int64_t *dim, uint64_t off);

/** The whole file, borrowed until the next call. */
bool gguf_writer_bytes(gguf_writer *w, const uint8_t **data, size_t *n);
bool gguf_writer_save(gguf_writer *w, const char *path);

#endif
