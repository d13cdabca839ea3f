/* SPDX-License-Identifier: Apache-2.0 */
/* The n-th allocation and the n-th read fail, for every n: an error that says so, and nothing leaked. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "load/bind.h"
#include "load/source_impl.h"
#include "support/gguf_writer.h"
#include "support/scratch_dir.h"

static scratch_dir dir;
static mem *m;
static char path[SCRATCH_PATH_BYTES];

static void write_file(int no, const char *a, const char *b) {
    gguf_writer w;
    char name[64];
    gguf_writer_init(&w, m);
    gguf_writer_text(&w, "general.architecture", "llama");
    gguf_writer_u16(&w, "split.no", (uint16_t)no);
    gguf_writer_u16(&w, "split.count", 2);
    gguf_writer_i32(&w, "split.tensors.count", 4);
    for (int i = 0; i < 3000; i++) { /* more than one read of header */
        snprintf(name, sizeof name, "words.%d", i);
        gguf_writer_texts(&w, name, (const char *const[]){"one", "two"}, 2);
    }
    gguf_writer_tensor(&w, a, GGUF_T_F32, 1, (int64_t[]){300}, NULL, 1200);
    gguf_writer_tensor(&w, b, 77, 1, (int64_t[]){4}, NULL, 16);
    snprintf(name, sizeof name, "m-%05d-of-00002.gguf", no + 1);
    assert_true(gguf_writer_save(&w, scratch_dir_path(&dir, name, path)));
    gguf_writer_deinit(&w);
}

static void write_st(const char *name, const char *header, size_t n_data) {
    static char buf[4096];
    uint64_t n = strlen(header);
    memcpy(buf, &n, 8);
    memcpy(buf + 8, header, n);
    assert_true(8 + n + n_data <= sizeof buf && scratch_dir_write(&dir, name, buf, 8 + n + n_data));
}

/* A directory with the same tensors. */
static void write_directory(void) {
    static const char config[] = "{\"a\":[1,\"x\",{\"b\":{}}],\"text_config\":{\"c\":1}}";
    static const char tokenizer[] = "{\"n\":1000000000000000019884624838656}";
    static const char index[] = "{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"x.safetensors\",\"c\":\"y.safetensors\"}}";
    assert_true(scratch_dir_write(&dir, "config.json", config, sizeof config - 1));
    assert_true(scratch_dir_write(&dir, "tokenizer_config.json", tokenizer, sizeof tokenizer - 1));
    assert_true(scratch_dir_write(&dir, "model.safetensors.index.json", index, sizeof index - 1));
    write_st("x.safetensors",
             "{\"a\":{\"dtype\":\"F32\",\"shape\":[300],\"data_offsets\":[0,1200]},"
             "\"b\":{\"dtype\":\"U8\",\"shape\":[1,1,2,1,1],\"data_offsets\":[1200,1202]}}",
             1202);
    write_st("y.safetensors", "{\"c\":{\"dtype\":\"F32\",\"shape\":[300],\"data_offsets\":[0,1200]}}", 1200);
}

static int set_up(void **state) {
    (void)state;
    if (mem_create(&m) != STATUS_OK || !scratch_dir_create(&dir)) return -1;
    write_directory();
    write_file(1, "c", "d");
    write_file(0, "a", "b"); /* path is the first shard now */
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    scratch_dir_destroy(&dir);
    return mem_destroy(m) == STATUS_OK ? 0 : -1;
}

static const weight_row rows[] = {{0, "a", "a", "300", 0, WEIGHT_AS_IS, WEIGHT_AS_IS}, {1, "c", "c", "300", 0, WEIGHT_AS_IS, WEIGHT_AS_IS}};

/* A reader that fails, or is short, the n-th time. */
typedef struct faulty {
    int n_reads, fail_at;
} faulty;

static status faulty_read(void *ctx, const os_file *f, uint64_t off, void *dst, size_t n, error *err) {
    faulty *x = ctx;
    if (x->n_reads++ == x->fail_at)
        return error_set(err, STATUS_IO, "test: %s: the read at %llu was made to fail", os_file_path(f), (unsigned long long)off);
    return os_file_read(f, off, dst, n, err);
}

/* All that a caller does with a checkpoint. */
static status use(const char *what, load_mode mode, faulty *x, error *err) {
    source *s = NULL;
    binding *b = NULL;
    textbuf report;
    const void *p;
    uint8_t byte;
    status rc = source_open_with(m, what, &(source_options){.mode = mode}, faulty_read, x, &s, err);
    if (rc != STATUS_OK) return rc;
    bind_options opt = {.rows = rows, .n_rows = 2, .n_slots = 2, .ignore = (const char *const[]){"b", "d", NULL}};
    textbuf_init(&report, m, MEM_PROCESS);
    rc = bind_weights(m, s, &opt, &b, &report);
    if (rc != STATUS_OK) error_note(err, rc, "bind: %s", textbuf_text(&report));
    for (size_t i = 0; i < source_n_tensors(s) && rc == STATUS_OK; i++) {
        rc = source_data(s, source_tensor(s, i), &p, err);
        if (rc == STATUS_OK) rc = source_read(s, source_tensor(s, i), 0, 1, &byte, err);
    }
    binding_destroy(b);
    textbuf_deinit(&report);
    source_close(s);
    return rc;
}

static size_t live(void) {
    mem_usage u;
    mem_get_total(m, &u);
    return u.used_bytes;
}

static void each_allocation_fails(const char *what, load_mode mode) {
    size_t before = live();
    uint64_t n = 0;
    for (;; n++) {
        error err = {0};
        mem_fail_after(m, n);
        status rc = use(what, mode, &(faulty){.fail_at = -1}, &err);
        mem_fail_off(m);
        assert_int_equal(live(), before);
        if (rc == STATUS_OK) break;
        if (rc != STATUS_NO_MEMORY) fail_msg("after %llu: %s: %s", (unsigned long long)n, status_name(rc), err.text);
        assert_int_equal(err.code, STATUS_NO_MEMORY);
    }
    assert_true(n > 30);
}

static void each_read_fails(const char *what, load_mode mode, int at_least) {
    size_t before = live();
    int n = 0;
    for (;; n++) {
        error err = {0};
        status rc = use(what, mode, &(faulty){.fail_at = n}, &err);
        assert_int_equal(live(), before);
        if (rc == STATUS_OK) break;
        assert_int_equal(rc, STATUS_IO);
        assert_non_null(strstr(err.text, "was made to fail"));
        assert_non_null(strstr(err.text, dir.path));
    }
    assert_true(n >= at_least);
}

static void test_gguf(void **state) {
    (void)state;
    for (int mode = LOAD_MAP; mode <= LOAD_READ; mode++) {
        each_allocation_fails(path, (load_mode)mode);
        each_read_fails(path, (load_mode)mode, mode == LOAD_READ ? 13 : 9); /* magic, two headers in pieces, four tensors */
    }
}

static void test_safetensors(void **state) {
    (void)state;
    for (int mode = LOAD_MAP; mode <= LOAD_READ; mode++) {
        each_allocation_fails(dir.path, (load_mode)mode);
        each_read_fails(dir.path, (load_mode)mode,
                        mode == LOAD_READ ? 13 : 10); /* three JSON files, two headers in two parts, three tensors */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gguf), cmocka_unit_test(test_safetensors)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
