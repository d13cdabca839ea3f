/* SPDX-License-Identifier: Apache-2.0 */
/* What a refusal says, in each of its cases, and that it is said without touching a byte of data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "plugin/test_manifest.h"
#include "plugin/vt_sample.h"

static mem *m;

static int open_mem(void **state) {
    (void)state;
    return mem_create(&m) == STATUS_OK ? 0 : -1;
}

static int close_mem(void **state) {
    (void)state;
    return mem_destroy(m) == STATUS_OK ? 0 : -1;
}

static void expect_text(const error *err, const char *part) {
    if (!strstr(err->text, part)) fail_msg("'%s' is not in '%s'", part, err->text);
}

/* A runtime that knows no backend at all. */
static vt_runtime *bare_runtime(void) {
    static const vt_manifest none[1];
    vt_runtime_options opt = {.manifests = none, .n_manifests = 0};
    vt_runtime *rt = NULL;
    error err = {0};
    if (vt_runtime_create(m, &opt, &rt, &err) != STATUS_OK) fail_msg("%s", err.text);
    return rt;
}

/* Ask and call on a queue that must refuse; both texts must be the same. */
static void refused(vt_queue *q, vt_op op, vt_sig sig, error *err) {
    vt_sample s = vt_sample_make(op, sig, q->device, vt_sample_forbidden());
    error asked = {0};
    *err = (error){0};
    assert_int_equal(vt_can_run(q, op, sig, &asked), STATUS_UNSUPPORTED);
    assert_int_equal(vt_sample_run(&s, q, err), STATUS_UNSUPPORTED);
    assert_string_equal(asked.text, err->text);
    assert_int_equal(err->code, STATUS_UNSUPPORTED);
    assert_int_equal(vt_can_run(q, op, sig, NULL), STATUS_UNSUPPORTED);
    assert_int_equal(vt_sample_run(&s, q, NULL), STATUS_UNSUPPORTED);
}

/* (a) Every op on every device type, with no backend registered and data on a forbidden page. */
static void no_backend(void **state) {
    (void)state;
    vt_runtime *rt = bare_runtime();
    int n = 0;
    for (int type = 0; type < VT_DEVICE_TYPE_COUNT; type++) {
        vt_queue q = vt_queue_pose(rt, (vt_device_id){(vt_device_type)type, 3}, UINT64_MAX);
        for (int op = 0; op < VT_OP_COUNT; op++, n++) {
            error err = {0};
            vt_sig sig = op == VT_OP_ROPE ? vt_sig_make(VT_F32, VT_NONE, VT_NONE) : vt_sig_make(VT_F32, VT_F32, VT_F32);
            char expected[512];
            refused(&q, (vt_op)op, sig, &err);
            snprintf(expected, sizeof expected, "vt: %s:3 cannot run %s ", vt_device_type_name((vt_device_type)type),
                     vt_op_name((vt_op)op));
            expect_text(&err, expected);
            expect_text(&err, "=f32");
            snprintf(expected, sizeof expected,
                     ": not written: no row in any table of %s; backends with a row: none; implementations go in src/vt/%s",
                     vt_device_type_name((vt_device_type)type), vt_device_type_name((vt_device_type)type));
            expect_text(&err, expected);
        }
        vt_device *d = NULL;
        error err = {0};
        assert_int_equal(vt_device_open(rt, (vt_device_id){(vt_device_type)type, 0}, m, &d, &err), STATUS_UNSUPPORTED);
        expect_text(&err, "cannot be opened: not written");
        assert_null(d);
    }
    print_message("%d refusals\n", n);
    assert_int_equal(n, VT_DEVICE_TYPE_COUNT * VT_OP_COUNT);
    vt_runtime_destroy(rt);
}

/* (a) with a backend that has other rows, and (a) where others have the row. */
static void not_written(void **state) {
    (void)state;
    vt_runtime *rt = test_runtime_create(m, "none");
    error err;
    vt_queue on_test = vt_queue_pose(rt, (vt_device_id){VT_DEVICE_TEST, 0}, UINT64_MAX);
    refused(&on_test, VT_OP_MATMUL_BT, vt_sig_make(VT_F32, VT_Q4_1, VT_F32), &err);
    assert_string_equal(
        err.text,
        "vt: test:0 cannot run matmul_bt a=f32 b=q4_1 out=f32: not written: no row in any table of test; backends with a row: cpu, cuda; "
        "implementations go in tests/plugin");
    vt_queue on_metal = vt_queue_pose(rt, (vt_device_id){VT_DEVICE_METAL, 1}, 0);
    refused(&on_metal, VT_OP_ADD, vt_sig_make(VT_F32, VT_F32, VT_F32), &err);
    assert_string_equal(
        err.text,
        "vt: metal:1 cannot run add a=f32 b=f32 out=f32: not written: no row in any table of metal; backends with a row: cpu, cuda, test; "
        "implementations go in src/vt/metal");
    vt_runtime_destroy(rt);
}

/* (b) */
static void left_out(void **state) {
    (void)state;
    vt_runtime *rt = test_runtime_create(m, "none");
    error err;
    vt_queue q = vt_queue_pose(rt, (vt_device_id){VT_DEVICE_TEST, 0}, 0);
    vt_sig sig = vt_sig_make(VT_F32, VT_F32, VT_NONE);
    refused(&q, VT_OP_SILU_AND_MUL, sig, &err);
    assert_string_equal(
        err.text,
        "vt: test:0 cannot run silu_and_mul x=f32 out=f32: written but left out of this build (HEADRACE_TEST_LEFT_OUT); backends with "
        "a row: cpu, cuda, test; implementations go in tests/plugin");
    /* left out, and a rebuild alone would not do */
    refused(&q, VT_OP_GELU_AND_MUL, sig, &err);
    expect_text(&err, "written but left out of this build (HEADRACE_TEST_LEFT_OUT), and the device lacks capture (");
    vt_runtime_destroy(rt);

    /* a whole backend that is no library and that this build does not have */
    static vt_manifest folder;
    folder = test_manifests_only().list[0];
    folder.shared_object = false;
    vt_runtime_options opt = {.manifests = &folder, .n_manifests = 1};
    assert_int_equal(vt_runtime_create(m, &opt, &rt, &err), STATUS_OK);
    q = vt_queue_pose(rt, (vt_device_id){VT_DEVICE_TEST, 0}, 0);
    refused(&q, VT_OP_ADD, vt_sig_make(VT_F32, VT_F32, VT_F32), &err);
    expect_text(&err, "written but left out of this build (HEADRACE_TESTS)");
    vt_device *d;
    assert_int_equal(vt_device_open(rt, q.device, m, &d, &err), STATUS_UNSUPPORTED);
    expect_text(&err, "its backend is written but left out of this build (HEADRACE_TESTS)");
    vt_runtime_destroy(rt);
}

/* (c) for each row of the CUDA backend, on a posed device, whether this build makes the library or not: its manifest answers. */
static void cuda_rows_without_the_library(void **state) {
    (void)state;
    vt_runtime *rt = test_runtime_create(m, "none");
    int n = 0;
    for (int32_t i = 0; i < vt_manifest_count; i++) {
        const vt_manifest *manifest = &vt_manifest_list[i];
        if (manifest->type != VT_DEVICE_CUDA) continue;
        vt_queue q = vt_queue_pose(rt, (vt_device_id){VT_DEVICE_CUDA, 0}, UINT64_MAX);
        char expected[160];
        snprintf(expected, sizeof expected, "for libheadrace-cuda.so; HEADRACE_CUDA builds it and is %s in this build)", manifest->built ? "on" : "off");
        for (int32_t r = 0; r < manifest->n_rows; r++, n++) {
            error err = {0};
            assert_int_equal(vt_can_run(&q, manifest->rows[r].op, manifest->rows[r].sig, &err), STATUS_UNSUPPORTED);
            expect_text(&err, ": backend library not found (looked in ");
            expect_text(&err, expected);
            expect_text(&err, "implementations go in src/vt/cuda");
        }
        error err = {0};
        assert_int_equal(vt_can_run(&q, VT_OP_ADD, vt_sig_make(VT_F32, VT_I8, VT_F32), &err), STATUS_UNSUPPORTED);
        expect_text(&err, "not written: no row in any table of cuda");
    }
    print_message("%d rows\n", n);
    assert_true(n > 0);
    vt_runtime_destroy(rt);
}

/* (c): the manifest knows the rows of a library that is not there. */
static void library_not_found(void **state) {
    (void)state;
    static vt_manifest only;
    only = test_manifests_only().list[0];
    const char *dirs[] = {"/nonexistent/first", "/nonexistent/second", NULL};
    vt_runtime_options opt = {.search_dirs = dirs, .manifests = &only, .n_manifests = 1};
    vt_runtime *rt;
    error err = {0};
    assert_int_equal(vt_runtime_create(m, &opt, &rt, &err), STATUS_OK);
    vt_queue q = vt_queue_pose(rt, (vt_device_id){VT_DEVICE_TEST, 0}, 0);
    refused(&q, VT_OP_ADD, vt_sig_make(VT_F32, VT_F32, VT_F32), &err);
    assert_string_equal(
        err.text,
        "vt: test:0 cannot run add a=f32 b=f32 out=f32: backend library not found (looked in /nonexistent/first, /nonexistent/second for "
        "libheadrace-test.so; HEADRACE_TESTS builds it and is on in this build); backends with a row: test; implementations go in "
        "tests/plugin");
    /* a row that its manifest does not have is not written, found or not */
    refused(&q, VT_OP_ADD, vt_sig_make(VT_F32, VT_I8, VT_F32), &err);
    expect_text(&err, "not written: no row in any table of test");
    vt_device *d;
    assert_int_equal(vt_device_open(rt, q.device, m, &d, &err), STATUS_UNSUPPORTED);
    expect_text(&err, "test:0 cannot be opened: backend library not found (looked in /nonexistent/first, /nonexistent/second");
    vt_runtime_destroy(rt);

    only.built = false;
    assert_int_equal(vt_runtime_create(m, &opt, &rt, &err), STATUS_OK);
    q = vt_queue_pose(rt, (vt_device_id){VT_DEVICE_TEST, 0}, 0);
    refused(&q, VT_OP_ADD, vt_sig_make(VT_F32, VT_F32, VT_F32), &err);
    expect_text(&err, "HEADRACE_TESTS builds it and is off in this build");
    vt_runtime_destroy(rt);

    /* many long directories must not push out what matters */
    char name[201];
    memset(name, 'd', 200);
    name[0] = '/';
    name[200] = 0;
    const char *many[41] = {0};
    for (int i = 0; i < 40; i++) many[i] = name;
    opt.search_dirs = many;
    assert_int_equal(vt_runtime_create(m, &opt, &rt, &err), STATUS_OK);
    q = vt_queue_pose(rt, (vt_device_id){VT_DEVICE_TEST, 0}, 0);
    refused(&q, VT_OP_ADD, vt_sig_make(VT_F32, VT_F32, VT_F32), &err);
    expect_text(&err, " and 36 more directories for libheadrace-test.so");
    expect_text(&err, "implementations go in tests/plugin");
    vt_runtime_destroy(rt);
}

/* (d) */
static void lacks_property(void **state) {
    (void)state;
    vt_runtime *rt = test_runtime_create(m, "none");
    error err;
    vt_device *d;
    vt_queue *q;
    assert_int_equal(vt_device_open(rt, (vt_device_id){VT_DEVICE_TEST, 0}, m, &d, &err), STATUS_OK);
    assert_int_equal(vt_queue_create(d, NULL, &q, &err), STATUS_OK);
    vt_sig sig = vt_sig_make(VT_BF16, VT_BF16, VT_BF16);
    refused(q, VT_OP_ADD, sig, &err);
    assert_string_equal(err.text, "vt: test:0 cannot run add a=bf16 b=bf16 out=bf16: device lacks tensor-bf16 (matrix units for BF16); "
                                  "backends with a row: cpu, cuda, test; "
                                  "implementations go in tests/plugin");
    refused(q, VT_OP_ADD, vt_sig_make(VT_F16, VT_F16, VT_F16), &err);
    expect_text(&err, "device lacks capture (a repeating step can be captured and replayed) and tensor-f16 (matrix units for F16)");
    assert_int_equal(vt_row_runs(rt, "test_add_bf16"), 0);
    /* with the property there is no refusal */
    vt_queue able = vt_queue_pose(rt, (vt_device_id){VT_DEVICE_TEST, 0}, VT_CAP_BIT(VT_CAP_TENSOR_BF16));
    assert_int_equal(vt_can_run(&able, VT_OP_ADD, sig, &err), STATUS_OK);
    vt_queue_destroy(q);
    vt_device_close(d);
    vt_runtime_destroy(rt);
}

/* A queue that poses as a device with a row answers yes, and runs nothing. */
static void posing_runs_nothing(void **state) {
    (void)state;
    vt_runtime *rt = test_runtime_create(m, "none");
    vt_sig sig = vt_sig_make(VT_F32, VT_F32, VT_F32);
    vt_queue q = vt_queue_pose(rt, (vt_device_id){VT_DEVICE_CPU, 0}, 0);
    vt_sample s = vt_sample_make(VT_OP_ADD, sig, q.device, vt_sample_forbidden());
    error err = {0};
    assert_int_equal(vt_can_run(&q, VT_OP_ADD, sig, &err), STATUS_OK);
    assert_int_equal(vt_sample_run(&s, &q, &err), STATUS_INVALID);
    expect_text(&err, "poses as cpu:0");
    assert_int_equal(vt_copy(&q, vt_sample_forbidden(), vt_sample_forbidden(), 4), STATUS_INVALID);
    assert_int_equal(vt_fill(&q, vt_sample_forbidden(), 0, 4), STATUS_INVALID);
    assert_int_equal(vt_queue_sync(&q), STATUS_INVALID);
    vt_runtime_destroy(rt);
}

static int count_lines(const char *text, const char *part) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, part)); at++) n++;
    return n;
}

static void all_at_once(void **state) {
    (void)state;
    vt_runtime *rt = test_runtime_create(m, "none");
    error err = {0};
    vt_queue q = vt_queue_pose(rt, (vt_device_id){VT_DEVICE_TEST, 0}, 0);
    vt_need needs[] = {
        {VT_OP_MATMUL_BT, vt_sig_make(VT_F32, VT_F32, VT_F32)},     /* there */
        {VT_OP_MATMUL_BT, vt_sig_make(VT_F32, VT_Q4_1, VT_F32)},    /* (a) */
        {VT_OP_ADD, vt_sig_make(VT_F32, VT_F32, VT_F32)},           /* there */
        {VT_OP_SILU_AND_MUL, vt_sig_make(VT_F32, VT_F32, VT_NONE)}, /* (b) */
        {VT_OP_ADD, vt_sig_make(VT_BF16, VT_BF16, VT_BF16)},        /* (d) */
        {VT_OP_MATMUL_BT, vt_sig_make(VT_F32, VT_Q4_1, VT_F32)},    /* again */
    };
    assert_int_equal(vt_can_run_all(&q, needs, 6, &err), STATUS_UNSUPPORTED);
    assert_string_equal(
        err.text,
        "vt: test:0 cannot run 3 of what is needed; implementations go in tests/plugin\n"
        "matmul_bt a=f32 b=q4_1 out=f32: not written: no row in any table of test; backends with a row: cpu, cuda\n"
        "silu_and_mul x=f32 out=f32: written but left out of this build (HEADRACE_TEST_LEFT_OUT); backends with a row: cpu, cuda, test\n"
        "add a=bf16 b=bf16 out=bf16: device lacks tensor-bf16 (matrix units for BF16); backends with a row: cpu, cuda, test");
    err = (error){0};
    assert_int_equal(vt_can_run_all(&q, needs, 1, &err), STATUS_OK);
    assert_int_equal(vt_can_run_all(&q, needs, 0, &err), STATUS_OK);
    assert_string_equal(err.text, "");
    assert_int_equal(vt_can_run_all(&q, needs, 6, NULL), STATUS_UNSUPPORTED);

    /* what a model of every kind asks for fits in one text */
    vt_need many[13];
    for (int i = 0; i < 13; i++)
        many[i] = (vt_need){i < 12 ? (vt_op)i : VT_OP_ADD, i < 12 ? vt_sig_make(VT_I8, VT_I8, VT_I8) : vt_sig_make(VT_U8, VT_I8, VT_I8)};
    assert_int_equal(vt_can_run_all(&q, many, 13, &err), STATUS_UNSUPPORTED);
    assert_int_equal(count_lines(err.text, "\n"), 13);

    /* and what does not fit is counted, never dropped in silence */
    vt_need crowd[VT_DTYPE_COUNT * 4];
    int n = 0;
    for (int a = VT_F8_E4M3; a < VT_DTYPE_COUNT; a++)
        for (int b = VT_F8_E4M3; b < VT_F8_E4M3 + 4; b++)
            crowd[n++] = (vt_need){VT_OP_MATMUL_BT, vt_sig_make((vt_dtype)a, (vt_dtype)b, VT_I64)};
    assert_int_equal(vt_can_run_all(&q, crowd, n, &err), STATUS_UNSUPPORTED);
    int shown = count_lines(err.text, "\nmatmul_bt "), rest = 0;
    const char *more = strstr(err.text, "\nand ");
    assert_non_null(more);
    assert_int_equal(sscanf(more, "\nand %d more", &rest), 1);
    assert_int_equal(shown + rest, n);
    assert_true(shown > 10);
    vt_runtime_destroy(rt);
}

static void all_at_once_without_library(void **state) {
    (void)state;
    static vt_manifest only;
    only = test_manifests_only().list[0];
    const char *dirs[] = {"/nonexistent/first", NULL};
    vt_runtime_options opt = {.search_dirs = dirs, .manifests = &only, .n_manifests = 1};
    vt_runtime *rt;
    error err = {0};
    assert_int_equal(vt_runtime_create(m, &opt, &rt, &err), STATUS_OK);
    vt_queue q = vt_queue_pose(rt, (vt_device_id){VT_DEVICE_TEST, 0}, 0);
    vt_need needs[] = {{VT_OP_ADD, vt_sig_make(VT_F32, VT_F32, VT_F32)}, {VT_OP_ROPE, vt_sig_make(VT_F32, VT_NONE, VT_NONE)}};
    assert_int_equal(vt_can_run_all(&q, needs, 2, &err), STATUS_UNSUPPORTED);
    expect_text(&err, "\nadd a=f32 b=f32 out=f32: backend library not found; backends with a row: test");
    expect_text(&err, "\nrope x=f32: not written: no row in any table of test; backends with a row: none");
    expect_text(&err, "\nlibrary: looked in /nonexistent/first for libheadrace-test.so; HEADRACE_TESTS builds it");
    vt_runtime_destroy(rt);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_backend),     cmocka_unit_test(not_written),
        cmocka_unit_test(left_out),       cmocka_unit_test(cuda_rows_without_the_library), cmocka_unit_test(library_not_found),
        cmocka_unit_test(lacks_property), cmocka_unit_test(posing_runs_nothing),
        cmocka_unit_test(all_at_once),    cmocka_unit_test(all_at_once_without_library),
    };
    return cmocka_run_group_tests(tests, open_mem, close_mem);
}
