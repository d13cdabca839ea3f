/* SPDX-License-Identifier: Apache-2.0 */
/* Four growing byte strings, joined at the end. */
#include "support/gguf_writer.h"

#include <stdio.h>
#include <string.h>

static void put(textbuf *b, uint64_t v, size_t n) {
    char bytes[8];
    for (size_t i = 0; i < n; i++) bytes[i] = (char)(v >> (8 * i) & 0xFF);
    textbuf_add(b, bytes, n);
}

static void put_text(textbuf *b, const char *s) {
    put(b, strlen(s), 8);
    textbuf_adds(b, s);
}

static void pad(textbuf *b, uint32_t alignment) {
    while (!b->failed && b->len % alignment != 0) textbuf_add(b, "", 1);
}

void gguf_writer_init(gguf_writer *w, mem *m) {
    *w = (gguf_writer){.version = 3, .alignment = 32};
    textbuf_init(&w->keys, m, MEM_PROCESS);
    textbuf_init(&w->infos, m, MEM_PROCESS);
    textbuf_init(&w->data, m, MEM_PROCESS);
    textbuf_init(&w->image, m, MEM_PROCESS);
}

void gguf_writer_deinit(gguf_writer *w) {
    textbuf_deinit(&w->keys);
    textbuf_deinit(&w->infos);
    textbuf_deinit(&w->data);
    textbuf_deinit(&w->image);
}

static void begin_key(gguf_writer *w, const char *key, uint32_t type) {
    put_text(&w->keys, key);
    put(&w->keys, type, 4);
    w->n_keys++;
}

void gguf_writer_raw(gguf_writer *w, const char *key, uint32_t type, const void *value, size_t n) {
    begin_key(w, key, type);
    textbuf_add(&w->keys, value, n);
}

static void put_number(gguf_writer *w, const char *key, uint32_t type, uint64_t v, size_t n) {
    begin_key(w, key, type);
    put(&w->keys, v, n);
}

void gguf_writer_u32(gguf_writer *w, const char *key, uint32_t v) { put_number(w, key, GGUF_W_U32, v, 4); }
void gguf_writer_i32(gguf_writer *w, const char *key, int32_t v) { put_number(w, key, GGUF_W_I32, (uint32_t)v, 4); }
void gguf_writer_u64(gguf_writer *w, const char *key, uint64_t v) { put_number(w, key, GGUF_W_U64, v, 8); }
void gguf_writer_u16(gguf_writer *w, const char *key, uint16_t v) { put_number(w, key, GGUF_W_U16, v, 2); }
void gguf_writer_bool(gguf_writer *w, const char *key, bool v) { put_number(w, key, GGUF_W_BOOL, v, 1); }

void gguf_writer_f32(gguf_writer *w, const char *key, float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_number(w, key, GGUF_W_F32, bits, 4);
}

void gguf_writer_f64(gguf_writer *w, const char *key, double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_number(w, key, GGUF_W_F64, bits, 8);
}

void gguf_writer_text(gguf_writer *w, const char *key, const char *v) {
    begin_key(w, key, GGUF_W_STRING);
    put_text(&w->keys, v);
}

void gguf_writer_array(gguf_writer *w, const char *key, uint32_t elem_type, const void *elems, size_t elem_bytes, size_t n) {
    begin_key(w, key, GGUF_W_ARRAY);
    put(&w->keys, elem_type, 4);
    put(&w->keys, n, 8);
    textbuf_add(&w->keys, elems, elem_bytes * n);
}

void gguf_writer_texts(gguf_writer *w, const char *key, const char *const *v, size_t n) {
    begin_key(w, key, GGUF_W_ARRAY);
    put(&w->keys, GGUF_W_STRING, 4);
    put(&w->keys, n, 8);
    for (size_t i = 0; i < n; i++) put_text(&w->keys, v[i]);
}

void gguf_writer_tensor_at(gguf_writer *w, const char *name, uint32_t type_id, int n_dims, const int64_t *dim, uint64_t off) {
    put_text(&w->infos, name);
    put(&w->infos, (uint32_t)n_dims, 4);
    for (int i = n_dims; i-- > 0;) put(&w->infos, (uint64_t)dim[i], 8);
    put(&w->infos, type_id, 4);
    put(&w->infos, off, 8);
    w->n_tensors++;
}

void gguf_writer_tensor(gguf_writer *w, const char *name, uint32_t type_id, int n_dims, const int64_t *dim, const void *data,
                        size_t n_bytes) {
    gguf_writer_tensor_at(w, name, type_id, n_dims, dim, w->data.len);
    if (data != NULL)
        textbuf_add(&w->data, data, n_bytes);
    else
        for (size_t i = 0; i < n_bytes && !w->data.failed; i++) textbuf_add(&w->data, "", 1);
    pad(&w->data, w->alignment);
}

bool gguf_writer_bytes(gguf_writer *w, const uint8_t **data, size_t *n) {
    textbuf *b = &w->image;
    textbuf_clear(b);
    textbuf_adds(b, "GGUF");
    put(b, w->version, 4);
    put(b, w->n_tensors, 8);
    put(b, w->n_keys, 8);
    textbuf_add(b, w->keys.len > 0 ? w->keys.data : "", w->keys.len);
    textbuf_add(b, w->infos.len > 0 ? w->infos.data : "", w->infos.len);
    if (w->data.len > 0) {
        pad(b, w->alignment);
        textbuf_add(b, w->data.data, w->data.len);
    }
    if (w->keys.failed || w->infos.failed || w->data.failed || b->failed) return false;
    *data = (const uint8_t *)b->data;
    *n = b->len;
    return true;
}

bool gguf_writer_save(gguf_writer *w, const char *path) {
    const uint8_t *data;
    size_t n;
    if (!gguf_writer_bytes(w, &data, &n)) return false;
    FILE *f = fopen(path, "wb");
    if (f == NULL) return false;
    bool ok = fwrite(data, 1, n, f) == n;
    return fclose(f) == 0 && ok;
}
