/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that a caller could touch is touched. */
#include "support/load_probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MUST(x)                                                                                                                            \
    do {                                                                                                                                   \
        if (!(x)) {                                                                                                                        \
            fprintf(stderr, "%s:%d: promise broken: %s\n", __FILE__, __LINE__, #x);                                                        \
            abort();                                                                                                                       \
        }                                                                                                                                  \
    } while (0)

static void walk_value(const meta_value *v, textbuf *out, int depth) {
    size_t n = 0;
    MUST(depth < 4096);
    textbuf_clear(out);
    meta_format(v, out);
    if (meta_object_size(v, &n)) {
        for (size_t i = 0; i < n; i++) {
            const char *key = NULL;
            const meta_value *child = meta_object_at(v, i, &key);
            MUST(child != NULL && (strlen(key) == 0 || meta_object_get(v, key) == child));
            walk_value(child, out, depth + 1);
        }
        return;
    }
    if (!meta_array_size(v, &n)) {
        const char *text;
        if (meta_as_string(v, &text, &n)) MUST(text[n] == '\0');
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const char *text;
        size_t len;
        double r;
        int64_t k;
        bool b;
        if (meta_array_string(v, i, &text, &len)) MUST(text[len] == '\0');
        (void)(meta_array_real(v, i, &r) || meta_array_i64(v, i, &k) || meta_array_bool(v, i, &b));
        const meta_value *child = meta_array_at(v, i);
        if (child != NULL) walk_value(child, out, depth + 1);
    }
    const char *text;
    MUST(!meta_array_string(v, n, &text, &n));
}

static void walk_tensor(source *s, const tensor_info *t) {
    const void *p = NULL;
    uint8_t last;
    int64_t elems = 1;
    size_t row_bytes = 0;
    error err = {0};
    MUST(source_find(s, t->name) == t);
    MUST(t->n_dims >= 0 && t->n_dims <= VT_MAX_DIMS && t->type_name != NULL && t->file < source_n_files(s));
    for (int i = 0; i < VT_MAX_DIMS; i++) {
        MUST(t->dim[i] >= 0 && (i < t->n_dims || t->dim[i] == 1));
        MUST(!__builtin_mul_overflow(elems, t->dim[i], &elems));
    }
    uint64_t size = os_file_size(source_file(s, t->file));
    MUST(t->off <= size && t->n_bytes <= size - t->off);
    if (t->dtype != VT_NONE && elems > 0) {
        int64_t inner = t->n_dims > 0 ? t->dim[t->n_dims - 1] : 1;
        MUST(vt_dtype_row_bytes(t->dtype, inner, &row_bytes));
        MUST((uint64_t)(elems / inner) * row_bytes == t->n_bytes);
    }
    MUST(source_data(s, t, &p, &err) == STATUS_OK);
    if (t->n_bytes == 0) return;
    MUST(source_read(s, t, t->n_bytes - 1, 1, &last, &err) == STATUS_OK);
    MUST(((const uint8_t *)p)[t->n_bytes - 1] == last);
    MUST(source_read(s, t, t->n_bytes, 1, &last, &err) == STATUS_INVALID);
}

status load_probe_path(mem *m, const char *path, load_mode mode, error *err) {
    source *s = NULL;
    textbuf out;
    status rc = source_open(m, path, &(source_options){.mode = mode}, &s, err);
    if (rc != STATUS_OK) {
        MUST(s == NULL);
        MUST(err == NULL || (err->code == rc && err->text[0] != '\0'));
        return rc;
    }
    textbuf_init(&out, m, MEM_PROCESS);
    const meta *md = source_meta(s);
    for (size_t i = 0; i < meta_count(md); i++) {
        MUST(source_container(s) == META_HF || meta_find(md, meta_key(md, i)) == meta_at(md, i));
        walk_value(meta_at(md, i), &out, 0);
    }
    for (size_t i = 0; i < source_n_tensors(s); i++) walk_tensor(s, source_tensor(s, i));
    MUST(source_tensor(s, source_n_tensors(s)) == NULL);
    textbuf_deinit(&out);
    source_close(s);
    return STATUS_OK;
}

status load_probe_bytes(const uint8_t *data, size_t n, load_mode mode, error *err) {
    char path[64];
    mem *m = NULL;
    int fd = memfd_create("checkpoint", MFD_CLOEXEC);
    MUST(fd >= 0 && mem_create(&m) == STATUS_OK);
    MUST(n == 0 || write(fd, data, n) == (ssize_t)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    status rc = load_probe_path(m, path, mode, err);
    close(fd);
    MUST(mem_destroy(m) == STATUS_OK); /* nothing leaked */
    return rc;
}
