/* SPDX-License-Identifier: Apache-2.0 */
/* Shared backends: what is found, what is turned away, and work through a real shared object whose queues run late. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/os.h"
#include "plugin/test_manifest.h"

static mem *m;

static int create(void **state) {
    (void)state;
    return mem_create(&m) == STATUS_OK ? 0 : -1;
}

static int destroy(void **state) {
    (void)state;
    return mem_destroy(m) == STATUS_OK ? 0 : -1;
}

static void must(status rc, const error *err) {
    if (rc != STATUS_OK) fail_msg("%s: %s", status_name(rc), err->text);
}

static void expect_part(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("'%s' is not in '%s'", part, text);
}

typedef struct bench {
    vt_runtime *rt;
    vt_device *d;
    vt_queue *q, *q2;
    vt_buffer x, y;
} bench;

static bench bench_open(int32_t index) {
    bench b = {.rt = test_runtime_create(m, "none")};
    error err = {0};
    must(vt_device_open(b.rt, (vt_device_id){VT_DEVICE_TEST, index}, m, &b.d, &err), &err);
    must(vt_queue_create(b.d, NULL, &b.q, &err), &err);
    must(vt_queue_create(b.d, NULL, &b.q2, &err), &err);
    must(vt_buffer_alloc(b.d, MEM_ACTIVATIONS, 64, "x", &b.x, &err), &err);
    must(vt_buffer_alloc(b.d, MEM_ACTIVATIONS, 64, "y", &b.y, &err), &err);
    return b;
}

static void bench_close(bench *b) {
    vt_queue_destroy(b->q2); /* what is still queued uses the buffers */
    vt_queue_destroy(b->q);
    vt_buffer_free(&b->x);
    vt_buffer_free(&b->y);
    vt_device_close(b->d);
    vt_runtime_destroy(b->rt);
}

static void work_on(int32_t index) {
    bench b = bench_open(index);
    error err = {0};
    vt_device_id id = vt_device_get_id(b.d);
    const float in[4] = {1, 2, 3, 4};
    float out[4] = {-1, -1, -1, -1};
    vt_tensor x = vt_tensor_2d(b.x.data, VT_F32, id, 2, 2), y = vt_tensor_2d(b.y.data, VT_F32, id, 2, 2);
    must(vt_fill(b.q, b.y.data, 0, 64), &err);
    must(vt_copy(b.q, b.x.data, in, sizeof in), &err);
    must(vt_matmul_bt(b.q, &y, &x, &x, &err), &err);
    must(vt_mul_scalar(b.q, &y, &y, 2, &err), &err);
    must(vt_copy(b.q, out, b.y.data, sizeof out), &err);
    assert_true(out[0] == -1); /* nothing has run: the queue is late by design */
    must(vt_queue_sync(b.q), &err);
    assert_true(out[0] == 10 && out[1] == 22 && out[2] == 22 && out[3] == 50);
    must(vt_copy(b.q, out, NULL, 0), &err); /* nothing to do, nothing touched */
    assert_int_equal(vt_row_runs(b.rt, "test_matmul_f32"), 1);
    bench_close(&b);
}

static void work_through_the_library(void **state) {
    (void)state;
    work_on(0);
    work_on(1);
}

static void fences(void **state) {
    (void)state;
    bench b = bench_open(1);
    error err = {0};
    vt_device_id id = vt_device_get_id(b.d);
    vt_fence f;
    must(vt_fence_create(b.d, &f), &err);
    assert_true(vt_fence_done(b.d, f)); /* never recorded */
    const float in[4] = {1, 2, 3, 4};
    float out[4] = {0};
    vt_tensor x = vt_tensor_1d(b.x.data, VT_F32, id, 4), y = vt_tensor_1d(b.y.data, VT_F32, id, 4);
    must(vt_fill(b.q, b.x.data, 0, 16), &err);
    must(vt_queue_sync(b.q), &err);
    must(vt_copy(b.q, b.x.data, in, sizeof in), &err);
    must(vt_fence_record(b.q, f), &err);
    must(vt_fill(b.q, b.x.data, 0, 16), &err); /* after the fence: must not have run yet when the other queue reads */
    assert_false(vt_fence_done(b.d, f));
    must(vt_fence_wait(b.q2, f), &err);
    must(vt_add(b.q2, &y, &x, &x, &err), &err);
    must(vt_copy(b.q2, out, b.y.data, sizeof out), &err);
    assert_false(vt_fence_done(b.d, f));
    must(vt_queue_sync(b.q2), &err);
    assert_true(vt_fence_done(b.d, f));
    assert_true(out[0] == 2 && out[3] == 8);
    /* the host waits */
    must(vt_fence_record(b.q, f), &err);
    assert_false(vt_fence_done(b.d, f));
    must(vt_fence_wait_host(b.d, f), &err);
    assert_true(vt_fence_done(b.d, f));
    vt_fence_destroy(b.d, f);
    bench_close(&b);
}

/* Device 0 takes memory from the host, device 1 has its own: each is charged once, to the buffer's tag, and given back. */
static void buffers_are_charged_once(void **state) {
    (void)state;
    for (int32_t index = 0; index < 2; index++) {
        bench b = bench_open(index);
        error err = {0};
        mem_usage before, during, after;
        vt_buffer kv;
        mem_get_usage(m, MEM_KV, &before);
        must(vt_buffer_alloc(b.d, MEM_KV, 100000, "pages", &kv, &err), &err);
        mem_get_usage(m, MEM_KV, &during);
        size_t charged = during.used_bytes - before.used_bytes;
        if (index == 1) {
            assert_int_equal(charged, 100000);
        } else {
            assert_true(charged >= 100000 && charged < 102000); /* with the backend's and the allocator's own bytes, and not twice */
        }
        assert_int_equal((uintptr_t)kv.data % 64, 0);
        memset(kv.data, 1, kv.bytes);
        vt_buffer_free(&kv);
        assert_null(kv.data);
        vt_buffer_free(&kv); /* again: nothing */
        mem_get_usage(m, MEM_KV, &after);
        assert_int_equal(after.used_bytes, before.used_bytes);

        /* other things the backend asks for are not the buffer's */
        mem_usage process_before, process_after;
        mem_get_usage(m, MEM_PROCESS, &process_before);
        vt_queue *q;
        must(vt_queue_create(b.d, NULL, &q, &err), &err);
        mem_get_usage(m, MEM_PROCESS, &process_after);
        assert_true(process_after.used_bytes > process_before.used_bytes + 1000);
        vt_queue_destroy(q);

        must(mem_set_limit(m, MEM_KV, 150000), &err);
        must(vt_buffer_alloc(b.d, MEM_KV, 100000, "pages", &kv, &err), &err);
        vt_buffer second = {0};
        assert_int_equal(vt_buffer_alloc(b.d, MEM_KV, 100000, "more pages", &second, &err), STATUS_NO_MEMORY);
        char expected[64];
        snprintf(expected, sizeof expected, "vt: test:%d: 100000 bytes for more pages refused by", (int)index);
        expect_part(err.text, expected);
        expect_part(err.text, "tag kv uses ");
        expect_part(err.text, " of 150000");
        assert_null(second.data);
        mem_get_usage(m, MEM_KV, &after);
        assert_true(after.used_bytes <= 150000);
        vt_buffer_free(&kv);
        must(mem_set_limit(m, MEM_KV, SIZE_MAX), &err);
        assert_int_equal(vt_buffer_alloc(b.d, MEM_KV, SIZE_MAX - 10, "everything", &kv, &err), STATUS_NO_MEMORY);
        must(vt_buffer_alloc(b.d, MEM_KV, 0, "nothing", &kv, &err), &err);
        assert_null(kv.data);
        vt_buffer_free(&kv);
        bench_close(&b);
    }
}

typedef struct allocating {
    vt_device *d;
    mem_tag tag;
    size_t bytes;
    int n_done;
} allocating;

static void *allocate_and_free(void *ctx) {
    allocating *a = ctx;
    for (int i = 0; i < 1000; i++) {
        vt_buffer b;
        if (vt_buffer_alloc(a->d, a->tag, a->bytes, "a buffer", &b, NULL) != STATUS_OK) break;
        vt_buffer_free(&b);
        a->n_done++;
    }
    return NULL;
}

/* Two threads allocate on one device at once: each byte goes to the tag of the thread that asked. */
static void tags_of_two_threads(void **state) {
    (void)state;
    for (int32_t index = 0; index < 2; index++) {
        mem *own;
        error err = {0};
        must(mem_create(&own), &err);
        vt_runtime *rt = test_runtime_create(own, "none");
        vt_device *d;
        must(vt_device_open(rt, (vt_device_id){VT_DEVICE_TEST, index}, own, &d, &err), &err);
        allocating a = {d, MEM_KV, 1000, 0}, b = {d, MEM_EXPERTS, 50000, 0};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, allocate_and_free, &b), 0);
        allocate_and_free(&a);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_int_equal(a.n_done, 1000);
        assert_int_equal(b.n_done, 1000);
        mem_usage kv, experts;
        mem_get_usage(own, MEM_KV, &kv);
        mem_get_usage(own, MEM_EXPERTS, &experts);
        assert_true(kv.used_bytes == 0 && experts.used_bytes == 0);
        assert_true(kv.peak_bytes >= 1000 && kv.peak_bytes < 2000);
        assert_true(experts.peak_bytes >= 50000 && experts.peak_bytes < 51000);
        vt_device_close(d);
        vt_runtime_destroy(rt);
        must(mem_destroy(own), &err);
    }
}

static void two_devices(void **state) {
    (void)state;
    bench b = bench_open(1);
    error err = {0};
    char text[64];
    vt_device_describe(b.d, text, sizeof text);
    assert_string_equal(text, "test device 1");
    assert_int_equal(vt_device_total_bytes(b.d), 1 << 20);
    uint64_t n_free, n_total;
    must(vt_device_memory_info(b.d, &n_free, &n_total), &err);
    assert_int_equal(n_free, 1 << 19);
    assert_true(vt_device_caps(b.d) & VT_CAP_BIT(VT_CAP_TENSOR_BF16));
    vt_device *d;
    assert_int_equal(vt_device_open(b.rt, (vt_device_id){VT_DEVICE_TEST, 2}, m, &d, &err), STATUS_NOT_FOUND);
    expect_part(err.text, "no device test:2, there are 2");
    assert_int_equal(vt_device_open(b.rt, (vt_device_id){VT_DEVICE_TEST, -1}, m, &d, &err), STATUS_NOT_FOUND);
    bench_close(&b);
}

/* Libraries that are found and cannot serve: noted, named, and no error of the runtime. */
static void libraries_turned_away(void **state) {
    (void)state;
    static const struct {
        const char *folder, *why;
    } bad[] = {
        {"refuses", "libheadrace-test.so: does not serve backend interface 2: test: this library is for interface 99, not 2"},
        {"interface", "libheadrace-test.so: has backend interface 8, this program 2"},
        {"no_entry", "libheadrace-test.so: has no vt_backend_entry"},
        {"type", "libheadrace-test.so: is a backend for vulkan"},
        {"tables", "libheadrace-test.so: its tables have 8 bytes, expected"},
        {"rows", "test_limited has a shape limit and no row without one stands under it"},
        {"garbage", "libheadrace-test.so"},
    };
    int n = 0;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++, n++) {
        vt_runtime *rt = test_runtime_create(m, bad[i].folder);
        error err = {0};
        vt_queue q = vt_queue_pose(rt, (vt_device_id){VT_DEVICE_TEST, 0}, 0);
        assert_int_equal(vt_can_run(&q, VT_OP_ADD, vt_sig_make(VT_F32, VT_F32, VT_F32), &err), STATUS_UNSUPPORTED);
        expect_part(err.text, "backend library found but not usable (");
        expect_part(err.text, bad[i].why);
        expect_part(err.text, HEADRACE_TEST_PLUGINS);
        vt_device *d;
        assert_int_equal(vt_device_open(rt, q.device, m, &d, &err), STATUS_UNSUPPORTED);
        expect_part(err.text, bad[i].why);
        textbuf report;
        textbuf_init(&report, m, MEM_PROCESS);
        vt_runtime_report(rt, &report);
        expect_part(textbuf_text(&report), "test: library found but not usable: ");
        expect_part(textbuf_text(&report), bad[i].why);
        expect_part(textbuf_text(&report), "cpu: built in");
        textbuf_deinit(&report);
        vt_runtime_destroy(rt);
    }
    assert_int_equal(n, 7);
}

static bool finds_backend(const char *const *dirs) {
    static test_manifests only;
    only = test_manifests_only();
    vt_runtime_options opt = {.search_dirs = dirs, .manifests = only.list, .n_manifests = only.n};
    vt_runtime *rt;
    error err = {0};
    must(vt_runtime_create(m, &opt, &rt, &err), &err);
    vt_queue q = vt_queue_pose(rt, (vt_device_id){VT_DEVICE_TEST, 0}, 0);
    bool found = vt_can_run(&q, VT_OP_ADD, vt_sig_make(VT_F32, VT_F32, VT_F32), &err) == STATUS_OK;
    vt_runtime_destroy(rt);
    return found;
}

static void order_of_directories(void **state) {
    (void)state;
    const char *good = HEADRACE_TEST_PLUGINS "/none", *bad = HEADRACE_TEST_PLUGINS "/interface", *nowhere = "/nonexistent";
    char endless[6000];
    memset(endless, 'd', sizeof endless - 1);
    endless[0] = '/';
    endless[sizeof endless - 1] = 0;
    assert_true(finds_backend((const char *const[]){good, NULL}));
    assert_true(finds_backend((const char *const[]){nowhere, good, NULL}));
    assert_true(finds_backend((const char *const[]){endless, good, NULL})); /* too long a path is no path */
    assert_true(finds_backend((const char *const[]){good, bad, NULL}));
    assert_false(finds_backend((const char *const[]){bad, good, NULL})); /* the first of the name decides */
    assert_false(finds_backend((const char *const[]){NULL}));
}

static void default_directories(void **state) {
    (void)state;
    static test_manifests only;
    only = test_manifests_only();
    vt_runtime_options opt = {.manifests = only.list, .n_manifests = only.n};
    vt_runtime *rt;
    error err = {0};
    char dir[2048], expected[5000];
    must(vt_runtime_create(m, &opt, &rt, &err), &err);
    vt_queue q = vt_queue_pose(rt, (vt_device_id){VT_DEVICE_TEST, 0}, 0);
    assert_int_equal(vt_can_run(&q, VT_OP_ADD, vt_sig_make(VT_F32, VT_F32, VT_F32), &err), STATUS_UNSUPPORTED);
    must(os_exe_dir(dir, sizeof dir), &err);
    snprintf(expected, sizeof expected, "looked in %s, %s/../lib/headrace for libheadrace-test.so", dir, dir);
    expect_part(err.text, expected);
    vt_runtime_destroy(rt);
}

static void two_runtimes(void **state) {
    (void)state;
    bench a = bench_open(0), b = bench_open(0);
    error err = {0};
    vt_tensor x = vt_tensor_1d(a.x.data, VT_F32, vt_device_get_id(a.d), 8);
    must(vt_fill(a.q, a.x.data, 0, 64), &err);
    must(vt_mul_scalar(a.q, &x, &x, 2, &err), &err);
    assert_int_equal(vt_row_runs(a.rt, "test_mul_scalar_f32"), 1);
    assert_int_equal(vt_row_runs(b.rt, "test_mul_scalar_f32"), 0);
    assert_true(a.q->id != b.q->id && a.q->id != a.q2->id && b.q->id != b.q2->id);
    bench_close(&a);
    x = vt_tensor_1d(b.x.data, VT_F32, vt_device_get_id(b.d), 8);
    must(vt_fill(b.q, b.x.data, 0, 64), &err);
    must(vt_mul_scalar(b.q, &x, &x, 2, &err), &err);
    must(vt_queue_sync(b.q), &err);
    assert_int_equal(vt_row_runs(b.rt, "test_mul_scalar_f32"), 1);
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_through_the_library),
        cmocka_unit_test(fences),
        cmocka_unit_test(buffers_are_charged_once),
        cmocka_unit_test(tags_of_two_threads),
        cmocka_unit_test(two_devices),
        cmocka_unit_test(libraries_turned_away),
        cmocka_unit_test(order_of_directories),
        cmocka_unit_test(default_directories),
        cmocka_unit_test(two_runtimes),
    };
    return cmocka_run_group_tests(tests, create, destroy);
}
