/* SPDX-License-Identifier: Apache-2.0 */
/* One list decides: for every row of every table on every device type, the question and the call give the same answer; and which row a call
 * takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "plugin/test_manifest.h"
#include "plugin/vt_sample.h"

static mem *m;
static vt_runtime *rt;

static int create(void **state) {
    (void)state;
    if (mem_create(&m) != STATUS_OK) return -1;
    rt = test_runtime_create(m, "none");
    return rt ? 0 : -1;
}

static int destroy(void **state) {
    (void)state;
    vt_runtime_destroy(rt);
    return mem_destroy(m) == STATUS_OK ? 0 : -1;
}

/* A queue of a device type: of its open device where there is a backend, else one that poses. */
typedef struct asker {
    vt_device *device;
    vt_queue *queue, posing;
    vt_buffer data;
} asker;

static void asker_open(asker *a, vt_device_type type, int32_t index) {
    error err = {0};
    *a = (asker){.posing = vt_queue_pose(rt, (vt_device_id){type, index}, UINT64_MAX)};
    a->queue = &a->posing;
    if (vt_device_open(rt, a->posing.device, m, &a->device, &err) != STATUS_OK) return;
    if (vt_queue_create(a->device, NULL, &a->queue, &err) != STATUS_OK) fail_msg("%s", err.text);
    if (vt_buffer_alloc(a->device, MEM_PROCESS, VT_SAMPLE_BYTES, "samples", &a->data, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static void asker_close(asker *a) {
    if (!a->device) return;
    vt_queue_destroy(a->queue); /* what is still queued uses the buffer */
    vt_buffer_free(&a->data);
    vt_device_close(a->device);
}

/* Returns whether it ran. */
static bool ask_and_call(asker *a, vt_op op, vt_sig sig) {
    error asked = {0}, called = {0};
    bool can = vt_can_run(a->queue, op, sig, &asked) == STATUS_OK;
    uint64_t before = vt_row_runs(rt, NULL);
    if (a->device) assert_int_equal(vt_fill(a->queue, a->data.data, 0, VT_SAMPLE_BYTES), STATUS_OK);
    vt_sample s = vt_sample_make(op, sig, a->queue->device, can ? a->data.data : vt_sample_forbidden());
    status rc = vt_sample_run(&s, a->queue, &called);
    if (a->device) assert_int_equal(vt_queue_sync(a->queue), STATUS_OK);
    char text[128];
    vt_sig_format(op, sig, text, sizeof text);
    if (can != (rc == STATUS_OK))
        fail_msg("%s on %s %s: asked %s '%s', called %s '%s'", vt_device_type_name(a->queue->device.type), vt_op_name(op), text,
                 can ? "yes" : "no", asked.text, status_name(rc), called.text);
    if (!can) {
        assert_int_equal(rc, STATUS_UNSUPPORTED);
        assert_string_equal(asked.text, called.text);
    }
    assert_int_equal(vt_row_runs(rt, NULL) - before, can ? 1 : 0);
    return can;
}

static void asking_and_calling_agree(void **state) {
    (void)state;
    test_manifests all = test_manifests_all();
    int n_rows = 0, n_cases = 0, n_ran[VT_DEVICE_TYPE_COUNT] = {0};
    for (int32_t i = 0; i < all.n; i++) n_rows += all.list[i].n_rows;
    for (int type = 0; type < VT_DEVICE_TYPE_COUNT; type++) {
        asker a;
        asker_open(&a, (vt_device_type)type, 0);
        for (int32_t i = 0; i < all.n; i++)
            for (int32_t r = 0; r < all.list[i].n_rows; r++, n_cases++)
                n_ran[type] += ask_and_call(&a, all.list[i].rows[r].op, all.list[i].rows[r].sig);
        asker_close(&a);
    }
    print_message("%d cases: %d rows x %d device types; cpu ran %d, test %d\n", n_cases, n_rows, VT_DEVICE_TYPE_COUNT, n_ran[VT_DEVICE_CPU],
                  n_ran[VT_DEVICE_TEST]);
    assert_true(n_rows > 0);
    assert_int_equal(n_cases, n_rows * VT_DEVICE_TYPE_COUNT);
    /* every row of the CPU's own table can run there, whatever the processor: a reference row stands under each */
    assert_true(n_ran[VT_DEVICE_CPU] >= vt_manifest_list[0].n_rows);
    assert_true(n_ran[VT_DEVICE_TEST] > 0 && n_ran[VT_DEVICE_TEST] < n_rows);
    for (int type = 0; type < VT_DEVICE_TYPE_COUNT; type++)
        if (type != VT_DEVICE_CPU && type != VT_DEVICE_TEST) assert_int_equal(n_ran[type], 0);
}

/* The same with the other test device, which has the BF16 property. */
static void capabilities_decide(void **state) {
    (void)state;
    asker a, b;
    asker_open(&a, VT_DEVICE_TEST, 0);
    asker_open(&b, VT_DEVICE_TEST, 1);
    vt_sig sig = vt_sig_make(VT_BF16, VT_BF16, VT_BF16);
    assert_false(ask_and_call(&a, VT_OP_ADD, sig));
    assert_true(ask_and_call(&b, VT_OP_ADD, sig));
    assert_int_equal(vt_row_runs(rt, "test_add_bf16"), 1);
    asker_close(&a);
    asker_close(&b);
}

static const char *row_taken(vt_queue *q, int64_t columns) {
    float data[16] = {0};
    vt_tensor t = vt_tensor_2d(data, VT_F32, q->device, 1, columns);
    vt_call call = {.size = sizeof call, .op = VT_OP_ADD, .sig = vt_sig_make(VT_F32, VT_F32, VT_F32), .n_tensors = 3, .t = {&t, &t, &t}};
    const vt_row *row = vt_find_row(q, &call);
    return row ? row->name : "none";
}

static void later_rows_are_preferred(void **state) {
    (void)state;
    vt_queue q = vt_queue_pose(rt, (vt_device_id){VT_DEVICE_TEST, 0}, 0);
    assert_string_equal(row_taken(&q, 4), "test_add_f32_short");
    assert_string_equal(row_taken(&q, 5), "test_add_f32");
    q.caps = VT_CAP_BIT(VT_CAP_TENSOR_F8);
    assert_string_equal(row_taken(&q, 4), "test_add_f32_f8");
    vt_queue nowhere = vt_queue_pose(rt, (vt_device_id){VT_DEVICE_HIP, 0}, UINT64_MAX);
    assert_string_equal(row_taken(&nowhere, 4), "none");
    nowhere.device.type = VT_DEVICE_TYPE_COUNT;
    assert_string_equal(row_taken(&nowhere, 4), "none");
}

static void counters_count(void **state) {
    (void)state;
    asker a;
    asker_open(&a, VT_DEVICE_TEST, 0);
    float *data = a.data.data;
    error err = {0};
    uint64_t n_short = vt_row_runs(rt, "test_add_f32_short"), n_long = vt_row_runs(rt, "test_add_f32");
    for (int64_t columns = 3; columns <= 6; columns++) {
        vt_tensor out = vt_tensor_2d(data, VT_F32, a.queue->device, 1, columns),
                  x = vt_tensor_2d(data + 64, VT_F32, a.queue->device, 1, columns);
        assert_int_equal(vt_add(a.queue, &out, &out, &x, &err), STATUS_OK);
    }
    assert_int_equal(vt_row_runs(rt, "test_add_f32_short") - n_short, 2);
    assert_int_equal(vt_row_runs(rt, "test_add_f32") - n_long, 2);
    assert_int_equal(vt_row_runs(rt, "no such row"), 0);
    /* nothing to write: nothing runs, but what cannot run is refused all the same */
    vt_tensor none = vt_tensor_2d(NULL, VT_F32, a.queue->device, 0, 8);
    assert_int_equal(vt_add(a.queue, &none, &none, &none, &err), STATUS_OK);
    assert_int_equal(vt_row_runs(rt, "test_add_f32") - n_long, 2);
    none.dtype = VT_F16;
    assert_int_equal(vt_add(a.queue, &none, &none, &none, &err), STATUS_UNSUPPORTED);
    asker_close(&a);
}

/* A recorder lists each need once, checks arguments, needs no data and runs nothing, on any queue. */
static void recorder(void **state) {
    (void)state;
    asker a;
    asker_open(&a, VT_DEVICE_TEST, 0);
    vt_need needs[3];
    vt_recorder r = {needs, 0, 3};
    vt_queue q = *a.queue;
    q.recorder = &r;
    error err = {0};
    uint64_t before = vt_row_runs(rt, NULL);
    vt_tensor f32 = vt_tensor_2d(NULL, VT_F32, q.device, 2, 32), q4 = vt_tensor_2d((void *)3, VT_Q4_1, q.device, 2, 32),
              out = vt_tensor_2d(NULL, VT_F32, q.device, 2, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(vt_add(&q, &f32, &f32, &f32, &err), STATUS_OK);
        assert_int_equal(vt_matmul_bt(&q, &out, &f32, &q4, &err), STATUS_OK);
    }
    assert_int_equal(r.n, 2);
    assert_int_equal(needs[0].op, VT_OP_ADD);
    assert_int_equal(needs[1].op, VT_OP_MATMUL_BT);
    assert_int_equal(needs[1].sig.dtype[1], VT_Q4_1);
    assert_int_equal(vt_add(&q, &out, &f32, &f32, &err), STATUS_INVALID); /* shapes are still checked */
    assert_int_equal(vt_copy(&q, NULL, NULL, 8), STATUS_OK);
    assert_int_equal(vt_fill(&q, NULL, 0, 8), STATUS_OK);
    assert_int_equal(vt_queue_sync(&q), STATUS_OK);
    assert_int_equal(vt_mul_scalar(&q, &f32, &f32, 2, &err), STATUS_OK);
    assert_int_equal(vt_quantize_rows(&q, &q4, &f32, &err), STATUS_BUG);
    assert_int_equal(vt_row_runs(rt, NULL), before);
    assert_int_equal(vt_queue_sync(a.queue), STATUS_OK);
    asker_close(&a);
}

static void signatures(void **state) {
    (void)state;
    char text[128], small[8];
    vt_sig_format(VT_OP_MATMUL_BT, vt_sig_make(VT_F32, VT_Q4_1, VT_BF16), text, sizeof text);
    assert_string_equal(text, "a=f32 b=q4_1 out=bf16");
    vt_sig_format(VT_OP_ROPE, vt_sig_make(VT_F32, VT_NONE, VT_NONE), text, sizeof text);
    assert_string_equal(text, "x=f32");
    vt_sig_format(VT_OP_RMS_NORM, vt_sig_make(VT_F32, VT_NONE, VT_F32), text, sizeof text);
    assert_string_equal(text, "x=f32 w=none out=f32");
    vt_sig_format(VT_OP_ADD, vt_sig_make(VT_F32, VT_F32, VT_F32), small, sizeof small);
    assert_string_equal(small, "a=f32 b");
    vt_sig_format((vt_op)-1, vt_sig_make(VT_F32, VT_F32, VT_F32), text, sizeof text);
    assert_string_equal(text, "");
    assert_string_equal(vt_op_name((vt_op)VT_OP_COUNT), "unknown");
    /* an op from a later list is refused, not looked up */
    vt_queue q = vt_queue_pose(rt, (vt_device_id){VT_DEVICE_CPU, 0}, UINT64_MAX);
    error err = {0};
    assert_int_equal(vt_can_run(&q, (vt_op)VT_OP_COUNT, vt_sig_make(VT_F32, VT_F32, VT_F32), &err), STATUS_UNSUPPORTED);
    assert_int_equal(vt_can_run(&q, (vt_op)-1, vt_sig_make(VT_F32, VT_F32, VT_F32), &err), STATUS_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(asking_and_calling_agree),
                                       cmocka_unit_test(capabilities_decide),
                                       cmocka_unit_test(later_rows_are_preferred),
                                       cmocka_unit_test(counters_count),
                                       cmocka_unit_test(recorder),
                                       cmocka_unit_test(signatures)};
    return cmocka_run_group_tests(tests, create, destroy);
}
