/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The header of one GGUF file, versions 2 and 3: key-values and tensor records, not yet placed in the file. Layout (little endian): "GGUF",
 * u32 version, u64 tensor count, u64 key-value count, key-values (text key, u32 type, value), tensors (text name, u32 n_dims, u64 dims
 * innermost first, u32 type, u64 offset from the start of the data), padding to general.alignment, data. A text is u64 length and bytes; an
 * array is u32 type, u64 count, elements. Source: the GGUF specification, docs/gguf.md of ggml.
 *
 * The header is read into memory of our own and never looked at in the file again, so nothing can change after it was checked. Every count
 * is compared with the bytes that are left before anything is allocated for it.
 */
#ifndef HEADRACE_LOAD_GGUF_HEADER_H
#define HEADRACE_LOAD_GGUF_HEADER_H

#include "load/source_impl.h"

enum {
    GGUF_MAX_HEADER_BYTES = 256 << 20,
    GGUF_MAX_KEYS = 1 << 16,
    GGUF_MAX_KEY_BYTES = 65535,
    GGUF_DEFAULT_ALIGNMENT = 32,
    GGUF_MAX_ALIGNMENT = 1 << 20
};

typedef struct gguf_tensor {
    const char *name;
    uint32_t n_dims;
    uint64_t dim[VT_MAX_DIMS]; /* as in the file: innermost first; 1 past n_dims */
    uint32_t type_id;
    uint64_t off; /* from data_off */
} gguf_tensor;

typedef struct gguf_header {
    meta *meta;           /* owns the bytes that names point into */
    gguf_tensor *tensors; /* of mem; freed by gguf_header_deinit */
    size_t n_tensors;
    uint64_t data_off; /* of the file: aligned */
    uint32_t alignment;
} gguf_header;

NODISCARD status gguf_header_read(source *s, uint32_t file, gguf_header *out, error *err);
void gguf_header_deinit(mem *m, gguf_header *h);

#endif
