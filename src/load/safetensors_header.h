/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The JSON header of one safetensors file: name -> {dtype, shape, data_offsets [begin, end)}, and __metadata__, an object of texts. It is scanned once, without a tree: a mixture of experts
 * has a hundred thousand tensors. Knows nothing of folders and of how tensors lie beside each other.
 */
#ifndef HEADRACE_LOAD_SAFETENSORS_HEADER_H
#define HEADRACE_LOAD_SAFETENSORS_HEADER_H

#include "load/source_impl.h"

typedef struct safetensors_file {
    source *s;
    uint32_t file;
    const char *path;
    uint64_t data_off, data_bytes; /* behind the header */
    error *err;
} safetensors_file;

/**
 * Appends the tensors to f->s. STATUS_FORMAT for what is no JSON ("json: PATH: ..."), or names a tensor whose description is wrong or whose data end behind the file's; STATUS_UNSUPPORTED
 * for a dtype that is not known. A name may occur twice here; source.c refuses it.
 */
NODISCARD status safetensors_header_read(const safetensors_file *f, const char *text, size_t n);

/** "safetensors: PATH: tensor NAME: ..." */
status safetensors_refuse(const safetensors_file *f, status code, const char *name, const char *fmt, ...) PRINTF_LIKE(4, 5);

#endif
