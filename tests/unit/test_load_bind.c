/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors to slots: names, shapes, types, what is left over. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "load/bind.h"
#include "support/gguf_writer.h"
#include "support/scratch_dir.h"

static scratch_dir dir;
static mem *m;
static gguf_writer w;
static source *src;
static binding *bound;
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

enum { EMBD, HEAD, NORM, Q, BIAS, GATE, FULL_ONLY, N_SLOTS };
static const weight_row rows[] = {
    {EMBD, "x", "token_embd.weight", "vocab,embd", 0, WEIGHT_NORM_PLUS_ONE, WEIGHT_AS_IS},
    {HEAD, "x", "output.weight|token_embd.weight", "vocab,embd", 0, WEIGHT_AS_IS, WEIGHT_AS_IS},
    {NORM, "x", "blk.{l}.norm.weight", "embd", WEIGHT_PER_LAYER | WEIGHT_ELEMENT_TYPES, WEIGHT_NORM_PLUS_ONE, WEIGHT_AS_IS},
    {Q, "x", "blk.{l}.q.weight|layer{l}/{l}.q", "q,embd", WEIGHT_PER_LAYER, WEIGHT_AS_IS, WEIGHT_ROPE_ADJACENT},
    {BIAS, "x", "blk.{l}.q.bias", "q", WEIGHT_PER_LAYER | WEIGHT_OPTIONAL, WEIGHT_AS_IS, WEIGHT_AS_IS},
    {GATE, "x", "blk.{l}.gate.weight", "1,embd", WEIGHT_PER_LAYER | WEIGHT_OPTIONAL, WEIGHT_AS_IS, WEIGHT_AS_IS},
    {FULL_ONLY, "only_there", NULL, "embd", 0, WEIGHT_AS_IS, WEIGHT_AS_IS},
};
static const char *const ignore[] = {"*rotary*", "vision.*", NULL};

/* q is wider in layer 1. */
static int64_t dim(void *ctx, const char *symbol, size_t n, int layer) {
    (void)ctx;
    if (n == 4 && memcmp(symbol, "embd", 4) == 0) return 32;
    if (n == 5 && memcmp(symbol, "vocab", 5) == 0) return 10;
    if (n == 1 && symbol[0] == 'q') return layer == 1 ? 8 : 4;
    return -1;
}

static void add(const char *name, uint32_t type, int64_t d0, int64_t d1) {
    int64_t n = d0 * (d1 > 0 ? d1 : 1);
    size_t bytes = (size_t)(type == GGUF_T_Q4_0 ? n / 32 * 18 : n * 4);
    gguf_writer_tensor(&w, name, type, d1 > 0 ? 2 : 1, (int64_t[]){d0, d1}, NULL, bytes);
}

static void add_layers(void) {
    add("blk.0.norm.weight", GGUF_T_F32, 32, 0);
    add("blk.1.norm.weight", GGUF_T_F32, 1, 32); /* written with a dimension of 1 */
    add("blk.0.q.weight", GGUF_T_Q4_0, 4, 32);
    add("layer1/1.q", GGUF_T_F32, 8, 32);
}

static status bind_file(const bind_options *opt) {
    char path[SCRATCH_PATH_BYTES];
    error err = {0};
    assert_true(gguf_writer_save(&w, scratch_dir_path(&dir, "b.gguf", path)));
    gguf_writer_deinit(&w);
    if (source_open(m, path, NULL, &src, &err) != STATUS_OK) fail_msg("%s", err.text);
    textbuf_init(&report, m, MEM_PROCESS);
    bound = NULL;
    return bind_weights(m, src, opt, &bound, &report);
}

static bind_options options(void) {
    return (bind_options){
        .rows = rows, .n_rows = sizeof rows / sizeof rows[0], .n_slots = N_SLOTS, .n_layers = 2, .ignore = ignore, .dim = dim};
}

static void done(void) {
    binding_destroy(bound);
    textbuf_deinit(&report);
    source_close(src);
}

static void report_has(const char *line) {
    if (strstr(textbuf_text(&report), line) == NULL) fail_msg("no \"%s\" in:\n%s", line, textbuf_text(&report));
}

static void test_all_bound(void **state) {
    (void)state;
    bind_options opt = options();
    gguf_writer_init(&w, m);
    add("token_embd.weight", GGUF_T_F32, 10, 32);
    add_layers();
    add("blk.1.q.bias", GGUF_T_F32, 8, 0);
    add("blk.0.gate.weight", GGUF_T_F32, 32, 0); /* written without its dimension of 1 */
    add("rotary.inv_freq", GGUF_T_F32, 7, 0);
    add("blk.0.rotary_emb", GGUF_T_F32, 7, 0);
    add("vision.patch", 99, 7, 0);
    status rc = bind_file(&opt);
    assert_string_equal(textbuf_text(&report), "");
    assert_int_equal(rc, STATUS_OK);
    const bound_weight *e = binding_get(bound, EMBD, -1), *head = binding_get(bound, HEAD, -1);
    assert_string_equal(e->info->name, "token_embd.weight");
    assert_ptr_equal(head->info, e->info); /* tied: the second name */
    assert_int_equal(e->view.n_dims, 2);
    assert_int_equal(e->view.dim[0], 10);
    assert_int_equal(e->view.dim[1], 32);
    assert_null(e->view.data);
    assert_int_equal(e->transform, WEIGHT_AS_IS);
    const bound_weight *q0 = binding_get(bound, Q, 0), *q1 = binding_get(bound, Q, 1);
    assert_int_equal(q0->view.dtype, VT_Q4_0);
    assert_int_equal(q0->view.dim[0], 4);
    assert_int_equal(q1->view.dim[0], 8);
    assert_string_equal(q1->info->name, "layer1/1.q");
    assert_int_equal(q1->transform, WEIGHT_ROPE_ADJACENT);
    assert_null(binding_get(bound, BIAS, 0)->info);
    assert_int_equal(binding_get(bound, BIAS, 0)->view.n_dims, 0);
    assert_string_equal(binding_get(bound, BIAS, 1)->info->name, "blk.1.q.bias");
    assert_int_equal(binding_get(bound, GATE, 0)->view.n_dims, 2); /* the row's shape */
    assert_int_equal(binding_get(bound, GATE, 0)->view.dim[0], 1);
    assert_null(binding_get(bound, FULL_ONLY, -1)->info);
    assert_null(binding_get(bound, Q, -1)->info);
    assert_null(binding_get(bound, Q, 2)->info);
    assert_int_equal(binding_n_ignored(bound), 3);
    assert_string_equal(binding_ignored(bound, 1)->name, "blk.0.rotary_emb");
    assert_null(binding_ignored(bound, 3));
    done();
}

static void test_all_problems_at_once(void **state) {
    (void)state;
    bind_options opt = options();
    gguf_writer_init(&w, m);
    add("token_embd.weight", GGUF_T_F32, 11, 32);
    add("blk.0.norm.weight", GGUF_T_Q4_0, 32, 0);
    add("blk.0.q.weight", GGUF_T_F32, 32, 4);
    add("blk.1.q.weight", 66, 8, 32);
    add("blk.2.q.weight", GGUF_T_F32, 8, 32);
    add("visionary", GGUF_T_F32, 3, 0);
    assert_int_equal(bind_file(&opt), STATUS_FORMAT);
    assert_null(bound);
    report_has("token_embd.weight: found shape [11, 32], expected [10, 32] (vocab,embd), in ");
    report_has("blk.0.norm.weight: found type q4_0, expected f32, f16 or bf16, in ");
    report_has("blk.1.norm.weight: missing in ");
    report_has("blk.0.q.weight: found shape [32, 4], expected [4, 32] (q,embd), in ");
    report_has("blk.1.q.weight: found type type 66, which is not supported, in ");
    report_has("blk.2.q.weight: found f32 [8, 32], expected no such tensor, in ");
    report_has("visionary: found f32 [3], expected no such tensor, in ");
    report_has("b.gguf\n");
    size_t n_lines = 0;
    for (const char *p = textbuf_text(&report); *p != '\0'; p++) n_lines += *p == '\n';
    assert_int_equal(n_lines, 8); /* the embedding has a wrong shape in two slots */
    done();
}

static void test_missing_names_all_alternatives(void **state) {
    (void)state;
    bind_options opt = options();
    gguf_writer_init(&w, m);
    add_layers();
    assert_int_equal(bind_file(&opt), STATUS_FORMAT);
    report_has("token_embd.weight: missing in ");
    report_has("output.weight or token_embd.weight: missing in ");
    done();
}

/* Only types that nobody reads yet: another code, so that a caller can say it. */
static void test_unsupported_types_alone(void **state) {
    (void)state;
    bind_options opt = options();
    gguf_writer_init(&w, m);
    add("token_embd.weight", 99, 10, 32);
    add_layers();
    assert_int_equal(bind_file(&opt), STATUS_UNSUPPORTED);
    done();
}

static bool not_in_layer_0(void *ctx, const weight_row *row, int layer) {
    (void)ctx;
    return row->slot != Q || layer != 0;
}

static void test_rows_of_some_layers(void **state) {
    (void)state;
    bind_options opt = options();
    opt.applies = not_in_layer_0;
    gguf_writer_init(&w, m);
    add("token_embd.weight", GGUF_T_F32, 10, 32);
    add_layers(); /* its blk.0.q.weight belongs to nobody now */
    assert_int_equal(bind_file(&opt), STATUS_FORMAT);
    report_has("blk.0.q.weight: found q4_0 [4, 32], expected no such tensor");
    done();
}

static void test_faults_of_our_tables(void **state) {
    (void)state;
    static const weight_row unknown = {0, "x", "token_embd.weight", "vocab,what", 0, WEIGHT_AS_IS, WEIGHT_AS_IS};
    static const weight_row twice[] = {{0, "x", "token_embd.weight", "10,32", 0, WEIGHT_AS_IS, WEIGHT_AS_IS},
                                       {0, "x", "token_embd.weight", "10,32", 0, WEIGHT_AS_IS, WEIGHT_AS_IS}};
    static const weight_row slot = {1, "x", "token_embd.weight", "10,32", 0, WEIGHT_AS_IS, WEIGHT_AS_IS};
    const struct {
        const weight_row *rows;
        size_t n;
    } cases[] = {{&unknown, 1}, {twice, 2}, {&slot, 1}};
    for (size_t i = 0; i < 3; i++) {
        bind_options opt = {.rows = cases[i].rows, .n_rows = cases[i].n, .n_slots = 1, .n_layers = 1, .dim = dim};
        gguf_writer_init(&w, m);
        add("token_embd.weight", GGUF_T_F32, 10, 32);
        assert_int_equal(bind_file(&opt), STATUS_BUG);
        report_has("our table");
        done();
    }
}

/* A report has an end. */
static void test_many_problems(void **state) {
    (void)state;
    bind_options opt = {.n_slots = 1};
    gguf_writer_init(&w, m);
    for (int i = 0; i < 1500; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%d", i);
        add(name, GGUF_T_F32, 1, 0);
    }
    assert_int_equal(bind_file(&opt), STATUS_FORMAT);
    report_has("and 500 more problems\n");
    done();
}

static void test_patterns(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *name;
        bool match;
    } cases[] = {
        {"abc", "abc", true},    {"abc", "abcd", false},   {"abc", "ab", false},         {"*", "anything", true},      {"a*", "a", true},
        {"*c", "abcbc", true},   {"a*b*c", "aXbYc", true}, {"a*b*c", "aXcYb", false},    {"*a*a*a*a*", "aaab", false}, {"**", "x", true},
        {"a*bc", "abbbc", true}, {"?", "x", false},        {"*.mtp.*", "m.mtp.w", true}, {"*.mtp.*", "mtp.w", false}};
    size_t n = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++, n++) {
        bind_options opt = {.n_slots = 1, .ignore = (const char *const[]){cases[i].pattern, NULL}};
        gguf_writer_init(&w, m);
        add(cases[i].name, GGUF_T_F32, 1, 0);
        status rc = bind_file(&opt);
        if (rc != (cases[i].match ? STATUS_OK : STATUS_FORMAT)) fail_msg("%s against %s", cases[i].pattern, cases[i].name);
        done();
    }
    assert_int_equal(n, 14);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_bound),
        cmocka_unit_test(test_all_problems_at_once),
        cmocka_unit_test(test_missing_names_all_alternatives),
        cmocka_unit_test(test_unsupported_types_alone),
        cmocka_unit_test(test_rows_of_some_layers),
        cmocka_unit_test(test_faults_of_our_tables),
        cmocka_unit_test(test_many_problems),
        cmocka_unit_test(test_patterns),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
