/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Typed metadata of a checkpoint, the same for both containers: GGUF key-values and a Hugging Face config.json (dotted paths, with nested
 * `text_config` searched first; what is null there is searched outside). Values keep their own type; readers convert where no information is lost and refuse otherwise.
 * Constant after open. Borrowed strings live as long as the meta.
 */
#ifndef HEADRACE_LOAD_META_H
#define HEADRACE_LOAD_META_H

#include "base/alloc.h"
#include "base/textbuf.h"

typedef enum meta_container { META_GGUF, META_HF } meta_container;
typedef enum meta_type { META_ABSENT, META_BOOL, META_INT, META_UINT, META_REAL, META_STRING, META_ARRAY, META_OBJECT, META_NULL } meta_type;

typedef struct meta meta;
typedef struct meta_value meta_value;

meta_container meta_get_container(const meta *m);
/** NULL when absent. In a Hugging Face directory "@generation_config.KEY" and "@tokenizer_config.KEY" read the files of these names beside config.json. */
const meta_value *meta_find(const meta *m, const char *key);
meta_type meta_type_of(const meta_value *v); /* NULL gives META_ABSENT */
/* Conversions: false when v is NULL, of another type, or out of range of the target. */
bool meta_as_bool(const meta_value *v, bool *out);
bool meta_as_i64(const meta_value *v, int64_t *out);   /* INT, UINT, and REAL without fraction */
bool meta_as_real(const meta_value *v, double *out);   /* any number */
bool meta_as_string(const meta_value *v, const char **text, size_t *n); /* bytes, may contain NUL; also NUL-terminated */
/** Arrays. Elements of a GGUF array of strings or numbers without a copy, in constant time; texts are NUL-terminated and live as long as the meta. */
bool meta_array_size(const meta_value *v, size_t *n);
bool meta_array_string(const meta_value *v, size_t i, const char **text, size_t *n);
bool meta_array_i64(const meta_value *v, size_t i, int64_t *out);
bool meta_array_real(const meta_value *v, size_t i, double *out);
bool meta_array_bool(const meta_value *v, size_t i, bool *out);
/** Element of a JSON array as a value (arrays in arrays, objects in arrays); NULL out of range and for arrays of a GGUF, whose elements are packed. */
const meta_value *meta_array_at(const meta_value *v, size_t i);
/** Members of an object: by exact key (no dots), by position. NULL when v is no object or has none. */
const meta_value *meta_object_get(const meta_value *v, const char *key);
bool meta_object_size(const meta_value *v, size_t *n);
const meta_value *meta_object_at(const meta_value *v, size_t i, const char **key);
/** Iterate keys (top level), for inspect. */
size_t meta_count(const meta *m);
const char *meta_key(const meta *m, size_t i);
const meta_value *meta_at(const meta *m, size_t i);
/** One line, shortened: for inspect. */
void meta_format(const meta_value *v, textbuf *out);

#endif
