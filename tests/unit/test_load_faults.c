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

static int set_up(void **state) {
    (void)state;
    if (mem_create(&m) != STATUS_OK || !scratch_dir_create(&dir)) return -1;
    write_file(1, "c", "d");
    write_file(0, "a", "b"); /* path is the first shard now */
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    scratch_dir_destroy(&dir);
    return mem_destroy(m) == STATUS_OK ? 0 : -1;
}

static const weight_row rows[] = {{0, NULL, "a", "300", 0, WEIGHT_AS_IS, WEIGHT_AS_IS},
                                  {1, NULL, "c", "300", 0, WEIGHT_AS_IS, WEIGHT_AS_IS}};

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
static status use(load_mode mode, faulty *x, error *err) {
    source *s = NULL;
    binding *b = NULL;
    textbuf report;
    const void *p;
    uint8_t byte;
    status rc = source_open_with(m, path, &(source_options){.mode = mode}, faulty_read, x, &s, err);
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

static void test_each_allocation_fails(void **state) {
    (void)state;
    for (int mode = LOAD_MAP; mode <= LOAD_READ; mode++) {
        size_t before = live();
        uint64_t n = 0;
        for (;; n++) {
            error err = {0};
            mem_fail_after(m, n);
            status rc = use((load_mode)mode, &(faulty){.fail_at = -1}, &err);
            mem_fail_off(m);
            assert_int_equal(live(), before);
            if (rc == STATUS_OK) break;
            assert_int_equal(rc, STATUS_NO_MEMORY);
            assert_int_equal(err.code, STATUS_NO_MEMORY);
        }
        assert_true(n > 30);
    }
}

static void test_each_read_fails(void **state) {
    (void)state;
    for (int mode = LOAD_MAP; mode <= LOAD_READ; mode++) {
        size_t before = live();
        int n = 0;
        for (;; n++) {
            error err = {0};
            status rc = use((load_mode)mode, &(faulty){.fail_at = n}, &err);
            assert_int_equal(live(), before);
            if (rc == STATUS_OK) break;
            assert_int_equal(rc, STATUS_IO);
            assert_non_null(strstr(err.text, "was made to fail"));
            assert_non_null(strstr(err.text, "-of-00002.gguf"));
        }
        assert_true(n >= (mode == LOAD_READ ? 13 : 9)); /* magic, two headers in pieces, four tensors */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_allocation_fails), cmocka_unit_test(test_each_read_fails)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
