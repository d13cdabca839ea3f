/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling defaults of a checkpoint: what is written, what is left out, what cannot be. */
#include <stdio.h>

#include "load/generation_config.h"
#include "support/gguf_writer.h"
#include "support/scratch_dir.h"
#include "support/test_case.h"

static scratch_dir dir;
static mem *m;

static int set_up(void **state) {
    (void)state;
    return scratch_dir_create(&dir) && mem_create(&m) == STATUS_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    scratch_dir_destroy(&dir);
    return mem_destroy(m) == STATUS_OK ? 0 : -1;
}

static void write_file(const char *name, const void *data, size_t n) { assert_true(scratch_dir_write(&dir, name, data, n)); }

static status read_json(const char *text, generation_config *out, error *err) {
    static const char tensors[] = "\x40\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,2]}}         \1\2";
    source *s = NULL;
    write_file("config.json", "{}", 2);
    write_file("model.safetensors", tensors, sizeof tensors - 1);
    write_file("generation_config.json", text, strlen(text));
    if (source_open(m, dir.path, NULL, &s, err) != STATUS_OK) fail_msg("%s", err->text);
    status rc = generation_config_read(m, s, out, err);
    source_close(s);
    return rc;
}

static void expect(const generation_config *g, bool given, double temperature, int64_t top_k, double top_p, double min_p, double penalty) {
    assert_int_equal(g->given, given);
    assert_float_equal(g->temperature, temperature, 1e-12);
    assert_int_equal(g->top_k, top_k);
    assert_float_equal(g->top_p, top_p, 1e-12);
    assert_float_equal(g->min_p, min_p, 1e-12);
    assert_float_equal(g->repetition_penalty, penalty, 1e-12);
}

static void what_a_file_says(void **state) {
    (void)state;
    generation_config g;
    error err = {0};
    assert_int_equal(read_json("{}", &g, &err), STATUS_OK);
    expect(&g, false, 0, 0, 1, 0, 1);
    assert_int_equal(
        read_json("{\"do_sample\":true,\"temperature\":0.6,\"top_k\":20,\"top_p\":0.95,\"min_p\":0.05,\"repetition_penalty\":1.05}", &g,
                  &err),
        STATUS_OK);
    expect(&g, true, 0.6, 20, 0.95, 0.05, 1.05);
    assert_int_equal(read_json("{\"do_sample\":true}", &g, &err), STATUS_OK);
    expect(&g, true, 1, 0, 1, 0, 1);
    assert_int_equal(read_json("{\"do_sample\":true,\"temperature\":null,\"top_k\":-1,\"top_p\":1}", &g, &err), STATUS_OK);
    expect(&g, true, 1, 0, 1, 0, 1);
    assert_int_equal(read_json("{\"temperature\":0.6,\"top_k\":64}", &g, &err), STATUS_OK); /* not asked to sample */
    expect(&g, true, 0, 64, 1, 0, 1);
    assert_int_equal(read_json("{\"do_sample\":false,\"temperature\":0.6}", &g, &err), STATUS_OK);
    expect(&g, true, 0, 0, 1, 0, 1);
}

static void what_cannot_be(void **state) {
    (void)state;
    static const char *const values[] = {"{\"temperature\":-1}", "{\"temperature\":\"hot\"}",  "{\"top_k\":0.5}",
                                         "{\"top_k\":-2}",       "{\"top_k\":99999999999}",    "{\"top_p\":1.5}",
                                         "{\"min_p\":true}",     "{\"repetition_penalty\":0}", "{\"do_sample\":2}",
                                         "{\"do_sample\":[]}"};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        generation_config g;
        error err = {0};
        if (read_json(values[i], &g, &err) != STATUS_FORMAT) fail_msg("%s is taken", values[i]);
        assert_contains(err.text, "generation_config.");
    }
    generation_config g;
    error err = {0};
    assert_int_equal(read_json("{\"temperature\":-1,\"top_p\":7}", &g, &err), STATUS_FORMAT);
    assert_contains(err.text, "temperature: found -1");
    assert_contains(err.text, "top_p: found 7");
}

static void what_a_gguf_says(void **state) {
    (void)state;
    for (int given = 0; given < 2; given++) {
        gguf_writer w;
        source *s = NULL;
        generation_config g;
        error err = {0};
        char path[SCRATCH_PATH_BYTES];
        gguf_writer_init(&w, m);
        gguf_writer_text(&w, "general.architecture", "llama");
        if (given) {
            gguf_writer_f32(&w, "general.sampling.temp", 0.5f);
            gguf_writer_i32(&w, "general.sampling.top_k", 7);
            gguf_writer_f32(&w, "general.sampling.penalty_repeat", 1.25f);
        }
        assert_true(gguf_writer_save(&w, scratch_dir_path(&dir, "model.gguf", path)));
        gguf_writer_deinit(&w);
        if (source_open(m, path, NULL, &s, &err) != STATUS_OK) fail_msg("%s", err.text);
        assert_int_equal(generation_config_read(m, s, &g, &err), STATUS_OK);
        source_close(s);
        if (given)
            expect(&g, true, 0.5, 7, 1, 0, 1.25);
        else
            expect(&g, false, 0, 0, 1, 0, 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_a_file_says), cmocka_unit_test(what_cannot_be),
                                       cmocka_unit_test(what_a_gguf_says)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
