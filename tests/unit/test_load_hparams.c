/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of hyper-parameters against GGUF metadata. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "load/hparams.h"
#include "load/source.h"
#include "support/gguf_writer.h"
#include "support/scratch_dir.h"

static scratch_dir dir;
static mem *m;
static source *src;
static textbuf report;

static int set_up(void **state) {
    (void)state;
    return mem_create(&m) == STATUS_OK && scratch_dir_create(&dir) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    scratch_dir_destroy(&dir);
    return mem_destroy(m) == STATUS_OK ? 0 : -1;
}

static const hparam_row rows[] = {
    HPARAM(n_layers, HPARAM_COUNT, NULL, "block_count", 1, 1024, NAN, HPARAM_REQUIRED),
    HPARAM(n_kv_heads, HPARAM_COUNT, NULL, "attention.head_count_kv|=kv", 1, 64, 5, 0),
    HPARAM(norm_eps, HPARAM_NUMBER, NULL, "eps", 0, 1, NAN, HPARAM_REQUIRED),
    HPARAM(rope.theta, HPARAM_NUMBER, NULL, "theta", 1, 1e9, 2.5, 0),
    HPARAM(rope.type, HPARAM_TEXT, NULL, "rope.scaling.type", 0, 0, NAN, 0),
    HPARAM(tie_embeddings, HPARAM_FLAG, NULL, "tied", 0, 1, NAN, 0),
    HPARAM(eos_id, HPARAM_COUNT, NULL, "=tokenizer.eos", 0, 1 << 24, NAN, HPARAM_FIRST),
    HPARAM(window, HPARAM_COUNT, "hf_only", NULL, 0, 1, 3, HPARAM_REQUIRED), /* this container never has it */
};

typedef void writer_fn(gguf_writer *w);

static status read_all(writer_fn *write, hparams *h) {
    gguf_writer w;
    char path[SCRATCH_PATH_BYTES];
    error err = {0};
    gguf_writer_init(&w, m);
    write(&w);
    assert_true(gguf_writer_save(&w, scratch_dir_path(&dir, "h.gguf", path)));
    gguf_writer_deinit(&w);
    assert_int_equal(source_open(m, path, NULL, &src, &err), STATUS_OK);
    textbuf_init(&report, m, MEM_PROCESS);
    hparams_init(h);
    return hparams_read(h, source_meta(src), "arch", rows, sizeof rows / sizeof rows[0], &report);
}

static void done(void) {
    textbuf_deinit(&report);
    source_close(src);
}

static void write_good(gguf_writer *w) {
    gguf_writer_u32(w, "arch.block_count", 30);
    gguf_writer_u64(w, "kv", 7);
    gguf_writer_f32(w, "arch.eps", 0.5f);
    gguf_writer_u32(w, "arch.theta", 10);
    gguf_writer_text(w, "arch.rope.scaling.type", "yarn");
    gguf_writer_bool(w, "arch.tied", true);
    gguf_writer_i32(w, "tokenizer.eos", 2);
}

static void test_values(void **state) {
    (void)state;
    hparams h;
    assert_int_equal(read_all(write_good, &h), STATUS_OK);
    assert_string_equal(textbuf_text(&report), "");
    assert_int_equal(h.n_layers, 30);
    assert_int_equal(h.n_kv_heads, 7);
    assert_true(h.norm_eps == 0.5);
    assert_true(h.rope.theta == 10.0);
    assert_string_equal(h.rope.type, "yarn");
    assert_int_equal(h.tie_embeddings, 1);
    assert_int_equal(h.eos_id, 2);
    assert_int_equal(h.window, 3); /* the row's default */
    done();
}

static void write_least(gguf_writer *w) {
    gguf_writer_i32(w, "arch.block_count", 1);
    gguf_writer_f64(w, "arch.eps", 1e-6);
}

static void test_defaults(void **state) {
    (void)state;
    hparams h, init;
    hparams_init(&init);
    assert_int_equal(read_all(write_least, &h), STATUS_OK);
    assert_int_equal(h.n_kv_heads, 5);
    assert_true(h.norm_eps == 1e-6);
    assert_true(h.rope.theta == 2.5);
    assert_string_equal(h.rope.type, init.rope.type);
    assert_int_equal(h.tie_embeddings, -1);
    assert_int_equal(h.eos_id, -1);
    done();
}

static void write_arrays(gguf_writer *w) {
    gguf_writer_array(w, "arch.block_count", GGUF_W_U32, (uint32_t[]){4, 4, 4}, 4, 3);
    gguf_writer_array(w, "arch.attention.head_count_kv", GGUF_W_I32, (int32_t[]){8}, 4, 1);
    gguf_writer_array(w, "arch.eps", GGUF_W_F32, (float[]){0.25f, 0.25f}, 4, 2);
    gguf_writer_array(w, "arch.tied", GGUF_W_BOOL, "\0\0", 1, 2);
    gguf_writer_array(w, "tokenizer.eos", GGUF_W_I32, (int32_t[]){9, 106}, 4, 2);
}

static void test_arrays_of_equal_elements(void **state) {
    (void)state;
    hparams h;
    assert_int_equal(read_all(write_arrays, &h), STATUS_OK);
    assert_int_equal(h.n_layers, 4);
    assert_int_equal(h.n_kv_heads, 8);
    assert_true(h.norm_eps == 0.25);
    assert_int_equal(h.tie_embeddings, 0);
    assert_int_equal(h.eos_id, 9); /* the first */
    done();
}

static void write_bad(gguf_writer *w) {
    gguf_writer_u32(w, "arch.block_count", 2000);
    gguf_writer_array(w, "arch.attention.head_count_kv", GGUF_W_I32, (int32_t[]){8, 4}, 4, 2);
    gguf_writer_f32(w, "arch.theta", NAN);
    gguf_writer_u32(w, "arch.rope.scaling.type", 1);
    gguf_writer_text(w, "arch.tied", "yes");
    gguf_writer_texts(w, "tokenizer.eos", NULL, 0);
}

/* Every problem is in the one report. */
static void test_all_problems_at_once(void **state) {
    (void)state;
    hparams h;
    assert_int_equal(read_all(write_bad, &h), STATUS_FORMAT);
    assert_string_equal(textbuf_text(&report),
                        "arch.block_count: found 2000, expected an integer in 1..1024\n"
                        "arch.attention.head_count_kv: found [2] 8, 4, expected an integer in 1..64, the same for all layers\n"
                        "arch.eps: missing, expected a number\n"
                        "arch.theta: found nan, expected a number in 1..1000000000\n"
                        "arch.rope.scaling.type: found 1, expected a text\n"
                        "arch.tied: found \"yes\", expected true or false\n"
                        "tokenizer.eos: found [0], expected an integer in 0..16777216, the same for all layers\n");
    done();
}

static void write_odd(gguf_writer *w) {
    gguf_writer_f32(w, "arch.block_count", 3.0f); /* a whole number is a count */
    gguf_writer_u64(w, "arch.attention.head_count_kv", UINT64_MAX);
    gguf_writer_f32(w, "arch.eps", -INFINITY);
    gguf_writer_f32(w, "arch.theta", 0.5f);
    gguf_writer_u32(w, "arch.tied", 2);
    gguf_writer_f64(w, "tokenizer.eos", 1.5);
}

static void test_edges(void **state) {
    (void)state;
    hparams h;
    assert_int_equal(read_all(write_odd, &h), STATUS_FORMAT);
    assert_int_equal(h.n_layers, 3);
    const char *text = textbuf_text(&report);
    assert_non_null(strstr(text, "head_count_kv: found 18446744073709551615"));
    assert_non_null(strstr(text, "eps: found -inf"));
    assert_non_null(strstr(text, "theta: found 0.5"));
    assert_non_null(strstr(text, "tied: found 2"));
    assert_non_null(strstr(text, "eos: found 1.5"));
    assert_null(strstr(text, "block_count"));
    done();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_defaults),
                                       cmocka_unit_test(test_arrays_of_equal_elements), cmocka_unit_test(test_all_problems_at_once),
                                       cmocka_unit_test(test_edges)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
