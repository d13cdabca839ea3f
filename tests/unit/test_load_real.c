/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real model, whose path is in HEADRACE_TEST_SMOLLM2: each fact that the Python package `gguf` reads in it (tools/list_gguf.py,
 * tests/data/smollm2_q4_1_facts.txt) is what we read, and the other way round nothing is left over.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load/source.h"

static mem *m;
static source *src;

static uint64_t fnv(uint64_t h, const void *data, size_t n) {
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001B3u;
    return h;
}
static const uint64_t FNV_START = 0xCBF29CE484222325u;

static void array_fact(const meta_value *v, size_t n, char *out, size_t size) {
    uint64_t h = FNV_START;
    const char *text;
    size_t len;
    int64_t k;
    bool texts = meta_array_string(v, 0, &text, &len);
    for (size_t i = 0; i < n; i++) {
        if (texts) {
            assert_true(meta_array_string(v, i, &text, &len));
            h = fnv(fnv(h, text, len), "", 1);
        } else {
            assert_true(meta_array_i64(v, i, &k));
            h = fnv(h, &k, sizeof k); /* little endian hosts */
        }
    }
    snprintf(out, size, "%s %zu %016llx", texts ? "strings" : "ints", n, (unsigned long long)h);
}

static void key_fact(const meta_value *v, char *out, size_t size) {
    const char *text;
    size_t n;
    bool b;
    int64_t k;
    double r;
    if (meta_as_string(v, &text, &n))
        snprintf(out, size, "string %zu %016llx", n, (unsigned long long)fnv(FNV_START, text, n));
    else if (meta_array_size(v, &n))
        array_fact(v, n, out, size);
    else if (meta_as_bool(v, &b))
        snprintf(out, size, "bool %d", b);
    else if (meta_type_of(v) == META_REAL && meta_as_real(v, &r))
        snprintf(out, size, "real %.17g", r);
    else if (meta_as_i64(v, &k))
        snprintf(out, size, "int %lld", (long long)k);
    else
        snprintf(out, size, "absent");
}

static void tensor_fact(const tensor_info *t, char *out, size_t size) {
    uint8_t ends[128];
    char shape[64] = "";
    error err = {0};
    for (int i = 0; i < t->n_dims; i++) {
        size_t len = strlen(shape);
        snprintf(shape + len, sizeof shape - len, "%s%lld", i == 0 ? "" : ",", (long long)t->dim[i]);
    }
    assert_true(t->n_bytes >= 128);
    assert_int_equal(source_read(src, t, 0, 64, ends, &err), STATUS_OK);
    assert_int_equal(source_read(src, t, t->n_bytes - 64, 64, ends + 64, &err), STATUS_OK);
    snprintf(out, size, "%s %s %llu %llu %016llx", t->type_name, shape, (unsigned long long)t->off, (unsigned long long)t->n_bytes,
             (unsigned long long)fnv(FNV_START, ends, 128));
}

static void test_facts(void **state) {
    (void)state;
    char line[512], kind[16], name[128], got[256];
    size_t n_keys = 0, n_tensors = 0;
    FILE *f = fopen(HEADRACE_TEST_DATA "/smollm2_q4_1_facts.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL) {
        int at = 0;
        line[strcspn(line, "\n")] = '\0';
        assert_int_equal(sscanf(line, "%15s %127s %n", kind, name, &at), 2);
        if (strcmp(kind, "key") == 0) {
            key_fact(meta_find(source_meta(src), name), got, sizeof got);
            n_keys++;
        } else {
            const tensor_info *t = source_find(src, name);
            assert_non_null(t);
            assert_ptr_equal(t, source_tensor(src, n_tensors++));
            tensor_fact(t, got, sizeof got);
        }
        if (strcmp(got, line + at) != 0) fail_msg("%s: got \"%s\", expected \"%s\"", name, got, line + at);
    }
    fclose(f);
    assert_int_equal(n_keys, 33);
    assert_int_equal(n_keys, meta_count(source_meta(src)));
    assert_int_equal(n_tensors, 272);
    assert_int_equal(n_tensors, source_n_tensors(src));
}

/* A mapped load copies no weights. */
static void test_no_copy_of_mapped_weights(void **state) {
    (void)state;
    mem_usage u;
    const void *p;
    error err = {0};
    for (size_t i = 0; i < source_n_tensors(src); i++) assert_int_equal(source_data(src, source_tensor(src, i), &p, &err), STATUS_OK);
    mem_get_usage(m, MEM_WEIGHTS, &u);
    assert_int_equal(u.n_allocs, 0);
    mem_get_total(m, &u);
    assert_true(u.peak_bytes < 4 * 1024 * 1024); /* the file has 98 MB */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_facts), cmocka_unit_test(test_no_copy_of_mapped_weights)};
    const char *path = getenv("HEADRACE_TEST_SMOLLM2");
    error err = {0};
    if (path == NULL || path[0] == '\0') {
        printf("skipped: HEADRACE_TEST_SMOLLM2 does not name the model (tools/get_model.sh)\n");
        return 77;
    }
    if (mem_create(&m) != STATUS_OK) return 1;
    if (source_open(m, path, &(source_options){.mode = LOAD_MAP}, &src, &err) != STATUS_OK) {
        printf("%s\n", err.text);
        return 1;
    }
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    source_close(src);
    return mem_destroy(m) == STATUS_OK ? rc : 1;
}
