/* SPDX-License-Identifier: Apache-2.0 */
/* Both containers have their header in front: it is built as text while tensors are named, and goes out with begin. */
#include "load/checkpoint_writer.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"

enum { GGUF_ALIGN = 32, PATH_BYTES = 4096 };
enum { TYPE_U32 = 4, TYPE_I32 = 5, TYPE_F32 = 6, TYPE_BOOL = 7, TYPE_TEXT = 8, TYPE_ARRAY = 9 };

struct checkpoint_writer {
    mem *m;
    checkpoint_container container;
    char path[PATH_BYTES], partial[PATH_BYTES]; /* the file, and its name while it is written */
    char dir[PATH_BYTES];
    os_output *file;
    textbuf values, tensors; /* of the header */
    uint64_t n_values, n_tensors;
    uint64_t *sizes;         /* [n_tensors] */
    size_t cap_sizes;
    uint64_t data_bytes;     /* laid out so far, from the beginning of the data */
    uint64_t at, left;       /* in the file; of the current tensor */
    uint64_t current;        /* tensors that are whole */
    bool in_place;           /* under its name */
};

static status set_paths(checkpoint_writer *w, const char *path, error *err) {
    const bool dir = w->container == CHECKPOINT_SAFETENSORS;
    const int n = snprintf(w->path, sizeof w->path, "%s%s", path, dir ? "/model.safetensors" : "");
    const int k = snprintf(w->partial, sizeof w->partial, "%s.partial", w->path);
    if (n < 0 || k < 0 || (size_t)k >= sizeof w->partial) return error_set(err, STATUS_INVALID, "load: %.60s...: the path is too long", path);
    snprintf(w->dir, sizeof w->dir, "%s", path);
    if (dir) TRY(os_make_directory(path, err));
    return os_replaceable(w->path, err);
}

status checkpoint_writer_open(mem *m, checkpoint_container container, const char *path, checkpoint_writer **out, error *err) {
    checkpoint_writer *w = mem_calloc(m, MEM_PROCESS, 1, sizeof *w);
    if (w == NULL) return error_set(err, STATUS_NO_MEMORY, "load: no memory to write %s", path);
    w->m = m;
    w->container = container;
    textbuf_init(&w->values, m, MEM_PROCESS);
    textbuf_init(&w->tensors, m, MEM_PROCESS);
    status rc = set_paths(w, path, err);
    if (rc == STATUS_OK) rc = os_output_open(m, w->partial, false, &w->file, err);
    if (rc != STATUS_OK) {
        checkpoint_writer_close(w);
        return rc;
    }
    *out = w;
    return STATUS_OK;
}

void checkpoint_writer_close(checkpoint_writer *w) {
    if (w == NULL) return;
    if (w->in_place)
        os_output_close(w->file);
    else
        os_output_discard(w->file); /* nothing goes on with a part, and the disk may be full of it */
    textbuf_deinit(&w->values);
    textbuf_deinit(&w->tensors);
    mem_free(w->m, w->sizes);
    mem_free(w->m, w);
}

/* ---- values of a GGUF; all numbers are little endian, as every machine that this runs on ---- */

static void put(textbuf *b, const void *bytes, size_t n) { textbuf_add(b, bytes, n); }
static void put_u32(textbuf *b, uint32_t v) { put(b, &v, sizeof v); }
static void put_u64(textbuf *b, uint64_t v) { put(b, &v, sizeof v); }
static void put_text(textbuf *b, const char *s, size_t n) {
    put_u64(b, n);
    put(b, s, n);
}

static void put_key(checkpoint_writer *w, const char *key, uint32_t type) {
    put_text(&w->values, key, strlen(key));
    put_u32(&w->values, type);
    w->n_values++;
}

void checkpoint_writer_u32(checkpoint_writer *w, const char *key, uint32_t v) {
    put_key(w, key, TYPE_U32);
    put_u32(&w->values, v);
}
void checkpoint_writer_f32(checkpoint_writer *w, const char *key, float v) {
    put_key(w, key, TYPE_F32);
    put(&w->values, &v, sizeof v);
}
void checkpoint_writer_bool(checkpoint_writer *w, const char *key, bool v) {
    const uint8_t byte = v;
    put_key(w, key, TYPE_BOOL);
    put(&w->values, &byte, 1);
}
void checkpoint_writer_text(checkpoint_writer *w, const char *key, const char *v) {
    put_key(w, key, TYPE_TEXT);
    put_text(&w->values, v, strlen(v));
}
static void put_array(checkpoint_writer *w, const char *key, uint32_t type, uint64_t n) {
    put_key(w, key, TYPE_ARRAY);
    put_u32(&w->values, type);
    put_u64(&w->values, n);
}
void checkpoint_writer_texts(checkpoint_writer *w, const char *key, uint64_t n) { put_array(w, key, TYPE_TEXT, n); }
void checkpoint_writer_text_item(checkpoint_writer *w, const char *bytes, size_t n) { put_text(&w->values, bytes, n); }
void checkpoint_writer_i32s(checkpoint_writer *w, const char *key, uint64_t n) { put_array(w, key, TYPE_I32, n); }
void checkpoint_writer_i32_item(checkpoint_writer *w, int32_t v) { put(&w->values, &v, sizeof v); }
void checkpoint_writer_bools(checkpoint_writer *w, const char *key, uint64_t n) { put_array(w, key, TYPE_BOOL, n); }
void checkpoint_writer_bool_item(checkpoint_writer *w, bool v) { put(&w->values, &(const uint8_t){v}, 1); }

/* ---- tensors ---- */

static const char *safetensors_name(vt_dtype t) {
    switch (t) {
    case VT_F32: return "F32";
    case VT_F16: return "F16";
    case VT_BF16: return "BF16";
    case VT_U8: return "U8";
    case VT_F8_E4M3: return "F8_E4M3";
    default: return NULL;
    }
}

static status describe_safetensors(checkpoint_writer *w, const char *name, vt_dtype dtype, int n_dims, const int64_t *dim, uint64_t n_bytes, error *err) {
    const char *type = safetensors_name(dtype);
    if (type == NULL) return error_set(err, STATUS_UNSUPPORTED, "load: %s: %s tensors are not written to safetensors", name, vt_dtype_name(dtype));
    textbuf_addf(&w->tensors, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", w->n_tensors > 0 ? "," : "{", name, type);
    for (int i = 0; i < n_dims; i++) textbuf_addf(&w->tensors, "%s%lld", i > 0 ? "," : "", (long long)dim[i]);
    textbuf_addf(&w->tensors, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)w->data_bytes, (unsigned long long)(w->data_bytes + n_bytes));
    return STATUS_OK;
}

static status describe_gguf(checkpoint_writer *w, const char *name, vt_dtype dtype, int n_dims, const int64_t *dim, error *err) {
    uint32_t type = 0;
    vt_dtype found;
    while (type < 256 && !(vt_dtype_from_gguf(type, &found) && found == dtype)) type++;
    if (type == 256) return error_set(err, STATUS_UNSUPPORTED, "load: %s: %s tensors are not written to GGUF", name, vt_dtype_name(dtype));
    put_text(&w->tensors, name, strlen(name));
    put_u32(&w->tensors, (uint32_t)n_dims);
    for (int i = n_dims - 1; i >= 0; i--) put_u64(&w->tensors, (uint64_t)dim[i]);
    put_u32(&w->tensors, type);
    put_u64(&w->tensors, w->data_bytes);
    return STATUS_OK;
}

static uint64_t padded(const checkpoint_writer *w, uint64_t n) { return w->container == CHECKPOINT_GGUF ? (n + GGUF_ALIGN - 1) / GGUF_ALIGN * GGUF_ALIGN : n; }

static status note_size(checkpoint_writer *w, uint64_t n_bytes, error *err) {
    if (w->n_tensors == w->cap_sizes) {
        const size_t cap = w->cap_sizes == 0 ? 256 : 2 * w->cap_sizes;
        uint64_t *p = w->sizes == NULL ? mem_alloc(w->m, MEM_PROCESS, cap * sizeof *p) : mem_realloc(w->m, MEM_PROCESS, w->sizes, cap * sizeof *p);
        if (p == NULL) return error_set(err, STATUS_NO_MEMORY, "load: no memory for %zu tensors", cap);
        w->sizes = p;
        w->cap_sizes = cap;
    }
    w->sizes[w->n_tensors++] = n_bytes;
    w->data_bytes += padded(w, n_bytes);
    return STATUS_OK;
}

status checkpoint_writer_tensor(checkpoint_writer *w, const char *name, vt_dtype dtype, int n_dims, const int64_t *dim, uint64_t *n_bytes, error *err) {
    uint64_t n = 1;
    for (int i = 0; i < n_dims; i++) {
        if (dim[i] < 1 || !checked_mul_u64(n, (uint64_t)dim[i], &n)) return error_set(err, STATUS_INVALID, "load: %s: its shape is no shape", name);
    }
    const uint64_t elems = (uint64_t)vt_dtype_block_elems(dtype);
    if (n_dims < 1 || n_dims > VT_MAX_DIMS || (uint64_t)dim[n_dims - 1] % elems != 0) {
        return error_set(err, STATUS_INVALID, "load: %s: rows of %lld are no whole blocks of %s", name, (long long)dim[n_dims - 1], vt_dtype_name(dtype));
    }
    if (!checked_mul_u64(n / elems, (uint64_t)vt_dtype_block_bytes(dtype), n_bytes) || *n_bytes > (uint64_t)INT64_MAX - w->data_bytes - GGUF_ALIGN) {
        return error_set(err, STATUS_INVALID, "load: %s: too large", name);
    }
    TRY(w->container == CHECKPOINT_GGUF ? describe_gguf(w, name, dtype, n_dims, dim, err) : describe_safetensors(w, name, dtype, n_dims, dim, *n_bytes, err));
    return note_size(w, *n_bytes, err);
}

/* ---- bytes ---- */

static status put_out(checkpoint_writer *w, const void *bytes, size_t n, error *err) {
    TRY(os_output_write(w->file, w->at, bytes, n, err));
    w->at += n;
    return STATUS_OK;
}

static status pad_to(checkpoint_writer *w, uint64_t off, char with, error *err) {
    char fill[GGUF_ALIGN];
    memset(fill, with, sizeof fill);
    while (w->at < off) TRY(put_out(w, fill, off - w->at < sizeof fill ? (size_t)(off - w->at) : sizeof fill, err));
    return STATUS_OK;
}

status checkpoint_writer_begin(checkpoint_writer *w, error *err) {
    if (w->container == CHECKPOINT_SAFETENSORS) textbuf_adds(&w->tensors, "}");
    if (w->values.failed || w->tensors.failed || w->n_tensors == 0) return error_set(err, STATUS_NO_MEMORY, "load: no memory for the header of %s", w->path);
    if (w->container == CHECKPOINT_SAFETENSORS) {
        const uint64_t n = (w->tensors.len + 7) / 8 * 8;
        TRY(put_out(w, &n, sizeof n, err));
        TRY(put_out(w, w->tensors.data, w->tensors.len, err));
        TRY(pad_to(w, sizeof n + n, ' ', err));
    } else {
        const uint32_t version = 3;
        TRY(put_out(w, "GGUF", 4, err));
        TRY(put_out(w, &version, sizeof version, err));
        TRY(put_out(w, &w->n_tensors, sizeof w->n_tensors, err));
        TRY(put_out(w, &w->n_values, sizeof w->n_values, err));
        if (w->values.len > 0) TRY(put_out(w, w->values.data, w->values.len, err));
        TRY(put_out(w, w->tensors.data, w->tensors.len, err));
        TRY(pad_to(w, padded(w, w->at), 0, err));
    }
    w->left = w->sizes[0];
    return STATUS_OK;
}

status checkpoint_writer_bytes(checkpoint_writer *w, const void *bytes, size_t n, error *err) {
    if (w->current == w->n_tensors || n > w->left) return error_set(err, STATUS_BUG, "load: %s: %zu bytes more than its tensors have", w->path, n);
    TRY(put_out(w, bytes, n, err));
    w->left -= n;
    if (w->left > 0) return STATUS_OK;
    if (w->container == CHECKPOINT_GGUF) TRY(pad_to(w, padded(w, w->at), 0, err));
    if (++w->current < w->n_tensors) w->left = w->sizes[w->current];
    return STATUS_OK;
}

/* The name first: the lock ends with close, and then another process may open and empty what has the name of a partial file. */
static status put_in_place(const char *partial, const char *path, os_output *file, error *err) {
    TRY(os_output_sync(file, err));
    return os_rename(partial, path, err);
}

status checkpoint_writer_sibling(checkpoint_writer *w, const char *name, const char *bytes, size_t n, error *err) {
    char path[PATH_BYTES + 256], partial[PATH_BYTES + 256 + 16];
    os_output *o = NULL;
    const int k = snprintf(path, sizeof path, "%s/%s", w->dir, name);
    if (w->container != CHECKPOINT_SAFETENSORS || k < 0 || (size_t)k >= sizeof path) return error_set(err, STATUS_BUG, "load: no %s beside %s", name, w->path);
    snprintf(partial, sizeof partial, "%s.partial", path);
    TRY(os_output_open(w->m, partial, false, &o, err));
    status rc = os_output_write(o, 0, bytes, n, err);
    if (rc == STATUS_OK) rc = put_in_place(partial, path, o, err);
    os_output_close(o);
    return rc;
}

status checkpoint_writer_finish(checkpoint_writer *w, uint64_t *total_bytes, error *err) {
    if (w->current != w->n_tensors) return error_set(err, STATUS_BUG, "load: %s: tensor %llu of %llu is not whole", w->path, (unsigned long long)w->current, (unsigned long long)w->n_tensors);
    TRY(put_in_place(w->partial, w->path, w->file, err));
    w->in_place = true;
    *total_bytes = w->at;
    return STATUS_OK;
}
