/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of hyper-parameters against the metadata. Every problem becomes one line of the report; reading goes on. */
#include "load/hparams.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { KEY_BYTES = 512 };

typedef struct hparam_reader {
    const meta *m;
    const char *prefix;
    textbuf *report;
    size_t n_problems;
} hparam_reader;

void hparams_init(hparams *h) {
    const rope_hparams rope = {.type = "default", .theta = 10000, .partial = 1, .beta_fast = 32, .beta_slow = 1, .truncate = 1};
    *h = (hparams){
        .norm_eps = 1e-5,
        .activation = "",
        .rope = rope,
        .rope_window = rope,
        .tie_embeddings = -1,
        .router_norm = -1,
        .bos_id = -1,
        .eos_id = -1,
    };
}

/* The full key of alternative [p, p + n) in the file's spelling; false when it is too long to be one. */
static bool full_key(const hparam_reader *r, const char *p, size_t n, char *out) {
    int len;
    if (meta_get_container(r->m) == META_HF)
        len = snprintf(out, KEY_BYTES, "%.*s", (int)n, p);
    else if (n > 0 && p[0] == '=')
        len = snprintf(out, KEY_BYTES, "%.*s", (int)n - 1, p + 1);
    else
        len = snprintf(out, KEY_BYTES, "%s.%.*s", r->prefix, (int)n, p);
    return len >= 0 && len < KEY_BYTES;
}

/* First alternative that is there and not null; `key` gets its name, or that of the first alternative. */
static const meta_value *find(const hparam_reader *r, const char *alternatives, char *key) {
    const meta_value *v = NULL;
    bool first = true;
    char name[KEY_BYTES];
    for (const char *p = alternatives; v == NULL;) {
        size_t n = strcspn(p, "|");
        if (full_key(r, p, n, name)) {
            v = meta_find(r->m, name);
            if (meta_type_of(v) == META_NULL) v = NULL;
            if (first || v != NULL) memcpy(key, name, sizeof name);
            first = false;
        }
        if (p[n] == '\0') break;
        p += n + 1;
    }
    return v;
}

static void problem(hparam_reader *r, const char *key, const meta_value *v, const char *expected) {
    r->n_problems++;
    textbuf_addf(r->report, "%s: ", key);
    if (v == NULL)
        textbuf_adds(r->report, "missing");
    else {
        textbuf_adds(r->report, "found ");
        meta_format(v, r->report);
    }
    textbuf_addf(r->report, ", expected %s\n", expected);
}

/* --- numbers --- */

/* A number as the row wants it; in_range also asks for no fraction where it is a count. */
static bool number_of(const hparam_row *row, const meta_value *v, double *real, int64_t *count) {
    bool flag;
    if (row->type == HPARAM_NUMBER) return meta_as_real(v, real) && isfinite(*real);
    if (row->type == HPARAM_FLAG && meta_as_bool(v, &flag))
        *count = flag;
    else if (!meta_as_i64(v, count))
        return false;
    *real = (double)*count;
    return true;
}

static bool element_of(const hparam_row *row, const meta_value *v, size_t i, double *real, int64_t *count) {
    bool flag;
    if (row->type == HPARAM_NUMBER) return meta_array_real(v, i, real) && isfinite(*real);
    if (row->type == HPARAM_FLAG && meta_array_bool(v, i, &flag))
        *count = flag;
    else if (!meta_array_i64(v, i, count))
        return false;
    *real = (double)*count;
    return true;
}

/* An array where one number is wanted: fine when all elements are the same, or when the row takes the first. */
static bool common_element(const hparam_row *row, const meta_value *v, double *real, int64_t *count) {
    size_t n = 0;
    if (!meta_array_size(v, &n) || n == 0 || !element_of(row, v, 0, real, count)) return false;
    if ((row->flags & HPARAM_FIRST) != 0) return true;
    for (size_t i = 1; i < n; i++) {
        double other;
        int64_t other_count;
        if (!element_of(row, v, i, &other, &other_count) || other < *real || other > *real) return false;
    }
    return true;
}

static void expect(const hparam_row *row, const meta_value *v, char *out, size_t size) {
    double min = row->type == HPARAM_FLAG ? 0 : row->min, max = row->type == HPARAM_FLAG ? 1 : row->max;
    const char *kind = row->type == HPARAM_FLAG ? "true or false" : row->type == HPARAM_COUNT ? "an integer" : "a number";
    const char *one = meta_type_of(v) == META_ARRAY ? ", the same for all layers" : "";
    if (row->type == HPARAM_FLAG)
        snprintf(out, size, "%s%s", kind, one);
    else
        snprintf(out, size, "%s in %.15g..%.15g%s", kind, min, max, one);
}

static void store(const hparam_row *row, void *fields, double real, int64_t count) {
    char *field = (char *)fields + row->offset;
    if (row->type == HPARAM_NUMBER)
        memcpy(field, &real, sizeof real);
    else
        memcpy(field, &count, sizeof count);
}

static void read_number(hparam_reader *r, const hparam_row *row, const char *key, const meta_value *v, void *fields) {
    double real = 0;
    int64_t count = 0;
    bool ok = meta_type_of(v) == META_ARRAY ? common_element(row, v, &real, &count) : number_of(row, v, &real, &count);
    double min = row->type == HPARAM_FLAG ? 0 : row->min, max = row->type == HPARAM_FLAG ? 1 : row->max;
    if (ok && real >= min && real <= max) {
        store(row, fields, real, count);
        return;
    }
    char expected[128];
    expect(row, v, expected, sizeof expected);
    problem(r, key, v, expected);
}

static void read_text(hparam_reader *r, const hparam_row *row, const char *key, const meta_value *v, void *fields) {
    const char *text;
    size_t n;
    if (!meta_as_string(v, &text, &n) || strlen(text) != n) {
        problem(r, key, v, "a text");
        return;
    }
    memcpy((char *)fields + row->offset, &text, sizeof text);
}

static void read_row(hparam_reader *r, const hparam_row *row, void *fields) {
    char key[KEY_BYTES] = "";
    const char *alternatives = meta_get_container(r->m) == META_HF ? row->hf : row->gguf;
    const meta_value *v = alternatives == NULL ? NULL : find(r, alternatives, key);
    if (v == NULL) {
        if ((row->flags & HPARAM_REQUIRED) != 0 && alternatives != NULL)
            problem(r, key, NULL, row->type == HPARAM_TEXT ? "a text" : row->type == HPARAM_FLAG ? "true or false" : "a number");
        else if (row->type != HPARAM_TEXT && !isnan(row->def))
            store(row, fields, row->def, (int64_t)row->def);
        return;
    }
    if (row->type == HPARAM_TEXT)
        read_text(r, row, key, v, fields);
    else
        read_number(r, row, key, v, fields);
}

status hparams_read(void *fields, const meta *m, const char *prefix, const hparam_row *rows, size_t n_rows, textbuf *report) {
    hparam_reader r = {.m = m, .prefix = prefix != NULL ? prefix : "", .report = report};
    for (size_t i = 0; i < n_rows; i++) read_row(&r, &rows[i], fields);
    if (report->failed) return STATUS_NO_MEMORY;
    return r.n_problems == 0 ? STATUS_OK : STATUS_FORMAT;
}
