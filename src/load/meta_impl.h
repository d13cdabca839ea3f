/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Storage behind load/meta.h, for the containers that fill it. A value is plain data: numbers in place, texts and packed arrays as pointers
 * into memory that the meta owns (the private copy of a GGUF header, or the arena). Nothing here knows a file.
 */
#ifndef HEADRACE_LOAD_META_IMPL_H
#define HEADRACE_LOAD_META_IMPL_H

#include <stdint.h>

#include "base/arena.h"
#include "load/meta.h"

/* How the elements of an array lie in memory: packed little-endian numbers at any address, texts found by offsets, or values of their own.
 */
typedef enum meta_elem {
    META_ELEM_VALUES,
    META_ELEM_U8,
    META_ELEM_I8,
    META_ELEM_U16,
    META_ELEM_I16,
    META_ELEM_U32,
    META_ELEM_I32,
    META_ELEM_U64,
    META_ELEM_I64,
    META_ELEM_F32,
    META_ELEM_F64,
    META_ELEM_BOOL,
    META_ELEM_STRING
} meta_elem;

typedef struct meta_text {
    const char *text; /* NUL-terminated */
    size_t n;
} meta_text;

struct meta_value {
    meta_type type;
    meta_elem elem; /* of an array */
    union {
        bool flag;
        int64_t i;
        uint64_t u;
        double real;
        meta_text str;
        struct {
            size_t n;
            const uint8_t *data;      /* packed numbers, or the base that offs count from */
            const uint32_t *offs;     /* META_ELEM_STRING: n + 1 offsets; text k is [offs[k], offs[k + 1] - gap) */
            uint32_t gap;             /* bytes between two texts */
            const meta_value *values; /* META_ELEM_VALUES, and the members of an object */
            const meta_text *keys;    /* of an object */
            const uint32_t *by_key;   /* of an object: members sorted by key */
        } a;
    };
};

struct meta {
    mem *m;
    meta_container container;
    arena *a;         /* values and texts that are not in `header` */
    uint8_t *header;  /* GGUF: our copy of the file's header; NULL otherwise */
    meta_value root;  /* META_OBJECT: the top level */
    meta_value extra; /* META_OBJECT: files beside a config.json, found as "@name.path" */
};

NODISCARD status meta_create(mem *m, meta_container c, meta **out);
void meta_destroy(meta *m);

/** Number of bytes of a packed element; 0 for strings and values. */
size_t meta_elem_bytes(meta_elem e);
/** Element i of a packed array of numbers as a value of its own. */
meta_value meta_packed_at(meta_elem e, const uint8_t *data, size_t i);
/** Make an object of n members; keys and values stay where they are. A repeated key is reported in *dup (index) with STATUS_FORMAT. */
NODISCARD status meta_object_init(meta_value *obj, arena *a, const meta_text *keys, const meta_value *values, size_t n, size_t *dup);
/** A member by its exact key; NULL when v is no object or has none. */
const meta_value *meta_member(const meta_value *v, const char *key, size_t key_len);

#endif
