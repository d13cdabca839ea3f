/* SPDX-License-Identifier: Apache-2.0 */
/* Runtimes and devices: what may be registered, the defaults of a vtable, reports, and every allocation failing in turn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "plugin/test_manifest.h"
#include "plugin/vt_sample.h"

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

/* ---- a backend in this file, of the least that is allowed ---- */

static int n_devices = 1;
static status why_none = STATUS_FAILED;
static char storage[1024] __attribute__((aligned(256)));
static int storage_off;

static int32_t toy_count(const vt_host_api *host, error *err) {
    assert_true(host->size == sizeof *host && host->host_alloc && host->option);
    if (n_devices == 0) error_note(err, why_none, "the driver is asleep");
    return n_devices;
}
static status toy_open(const vt_host_api *host, int32_t index, void **dev, error *err) {
    (void)index;
    const char *isa = host->option(host->ctx, "cpu-isa");
    assert_null(host->option(host->ctx, "no such key"));
    if (isa && strcmp(isa, "fail") == 0) return error_set(err, STATUS_FAILED, "toy: told to fail");
    host->log(host->ctx, 3, "toy opened");
    *dev = storage;
    return STATUS_OK;
}
static void toy_close(void *dev) { assert_ptr_equal(dev, storage); }
static status toy_alloc(void *dev, size_t bytes, void **out) {
    (void)dev;
    if (bytes > 512) return STATUS_NO_MEMORY;
    *out = storage + 256 + storage_off;
    return STATUS_OK;
}
static void toy_free(void *dev, void *p) { (void)dev, (void)p; }
static status toy_copy(void *dev, void *handle, void *dst, const void *src, size_t n) {
    return (void)dev, (void)handle, memmove(dst, src, n), STATUS_OK;
}
static status toy_fill(void *dev, void *handle, void *dst, int value, size_t n) {
    return (void)dev, (void)handle, memset(dst, value, n), STATUS_OK;
}
static status toy_run(vt_queue *q, const vt_call *call, error *err) { return (void)q, (void)call, (void)err, STATUS_OK; }
static bool toy_never(const vt_call *call) { return (void)call, false; }
static status past_the_end(void *dev, vt_fence *out) {
    (void)dev, (void)out;
    fail_msg("a function past the stated size of the vtable was called");
    return STATUS_FAILED;
}

static const vt_row toy_rows[] = {
    {VT_OP_ADD, {{VT_F32, VT_F32, VT_F32, VT_NONE}}, 0, NULL, "toy_add", NULL, toy_run},
    {(vt_op)(VT_OP_COUNT + 3), {{VT_F32, VT_F32, VT_F32, VT_NONE}}, 0, NULL, "toy_of_tomorrow", NULL, toy_run},
    {(vt_op)-1, {{VT_F32, VT_F32, VT_F32, VT_NONE}}, 0, NULL, "toy_nonsense", NULL, toy_run},
};

static const vt_backend toy = {
    .size = offsetof(vt_backend, fence_create),
    .abi = VT_BACKEND_ABI,
    .name = "toy",
    .type = VT_DEVICE_HIP,
    .count = toy_count,
    .open = toy_open,
    .close = toy_close,
    .alloc = toy_alloc,
    .free = toy_free,
    .copy = toy_copy,
    .fill = toy_fill,
    .fence_create = past_the_end,
};

static vt_runtime *toy_runtime(const char *isa) {
    vt_runtime_options opt = {.search_dirs = (const char *const[]){NULL}, .cpu_isa = isa};
    vt_runtime *rt;
    error err = {0};
    must(vt_runtime_create(m, &opt, &rt, &err), &err);
    must(vt_runtime_add(rt, &toy, toy_rows, 3, &err), &err);
    return rt;
}

/* An older, shorter vtable with every default. */
static void vtable_defaults(void **state) {
    (void)state;
    vt_runtime *rt = toy_runtime(NULL);
    error err = {0};
    vt_device *d;
    vt_queue *q;
    vt_fence f = {&err};
    vt_device_id id = {VT_DEVICE_HIP, 0};
    must(vt_device_open(rt, id, m, &d, &err), &err);
    char text[64];
    vt_device_describe(d, text, sizeof text);
    assert_string_equal(text, "toy");
    assert_int_equal(vt_device_caps(d), 0);
    assert_int_equal(vt_device_total_bytes(d), 0);
    uint64_t n_free = 1, n_total = 1;
    must(vt_device_memory_info(d, &n_free, &n_total), &err);
    assert_true(n_free == 0 && n_total == 0);
    must(vt_queue_create(d, NULL, &q, &err), &err);
    must(vt_fence_create(d, &f), &err);
    assert_null(f.handle);
    assert_true(vt_fence_done(d, f));
    must(vt_fence_record(q, f), &err);
    must(vt_fence_wait(q, f), &err);
    must(vt_fence_wait_host(d, f), &err);
    must(vt_queue_sync(q), &err);
    vt_fence_destroy(d, f);
    vt_buffer b;
    must(vt_buffer_alloc(d, MEM_KV, 256, "bytes", &b, &err), &err);
    must(vt_fill(q, b.data, 7, 256), &err);
    assert_int_equal(((char *)b.data)[255], 7);
    vt_buffer_free(&b);
    storage_off = 8; /* a backend that does not keep its word about alignment */
    assert_int_equal(vt_buffer_alloc(d, MEM_KV, 256, "bytes", &b, &err), STATUS_FAILED);
    expect_part(err.text, "not aligned");
    storage_off = 0;
    assert_int_equal(vt_buffer_alloc(d, MEM_KV, 1000, "bytes", &b, &err), STATUS_NO_MEMORY);
    /* rows of ops that this core does not know are there, and harmless */
    assert_int_equal(vt_can_run(q, VT_OP_ADD, vt_sig_make(VT_F32, VT_F32, VT_F32), &err), STATUS_OK);
    assert_int_equal(vt_can_run(q, toy_rows[1].op, toy_rows[1].sig, &err), STATUS_UNSUPPORTED);
    vt_queue_destroy(q);
    vt_device_close(d);
    vt_runtime_destroy(rt);
}

static void count_unusable(void *ctx, const vt_found *f) {
    if (strcmp(f->backend, "toy") != 0 || f->index < 0) return;
    assert_true(f->present);
    assert_null(f->description);
    expect_part(f->why_not, "told to fail");
    *(int *)ctx += 1;
}

static void devices_that_do_not_open(void **state) {
    (void)state;
    vt_runtime *rt = toy_runtime("fail");
    error err = {0};
    vt_device *d = NULL;
    assert_int_equal(vt_device_open(rt, (vt_device_id){VT_DEVICE_HIP, 0}, m, &d, &err), STATUS_FAILED);
    expect_part(err.text, "told to fail");
    n_devices = 0;
    assert_int_equal(vt_device_open(rt, (vt_device_id){VT_DEVICE_HIP, 0}, m, &d, &err), STATUS_NOT_FOUND);
    expect_part(err.text, "no device toy:0: the driver is asleep");
    why_none = STATUS_UNSUPPORTED; /* a driver that will not do says nothing of what it drives */
    assert_int_equal(vt_device_open(rt, (vt_device_id){VT_DEVICE_HIP, 0}, m, &d, &err), STATUS_UNSUPPORTED);
    expect_part(err.text, "no device toy:0: the driver is asleep");
    why_none = STATUS_FAILED;
    textbuf report;
    textbuf_init(&report, m, MEM_PROCESS);
    vt_runtime_report(rt, &report);
    expect_part(textbuf_text(&report), "toy: built in; no device: the driver is asleep\n");
    n_devices = 1;
    textbuf_clear(&report);
    vt_runtime_report(rt, &report);
    expect_part(textbuf_text(&report), "toy:0: cannot be opened: toy: told to fail\n");
    int n_found = 0;
    vt_runtime_visit_found(rt, count_unusable, &n_found);
    assert_int_equal(n_found, 1);
    textbuf_deinit(&report);
    assert_null(d);
    assert_int_equal(vt_device_open(rt, (vt_device_id){VT_DEVICE_TYPE_COUNT, 0}, m, &d, &err), STATUS_UNSUPPORTED);
    vt_runtime_destroy(rt);
}

static void registering(void **state) {
    (void)state;
    vt_runtime *rt = toy_runtime(NULL);
    error err = {0};
    assert_int_equal(vt_runtime_add(rt, &toy, toy_rows, 3, &err), STATUS_INVALID);
    expect_part(err.text, "there is already one for hip");
    vt_backend v = toy;
    v.type = VT_DEVICE_METAL;
    v.abi = VT_BACKEND_ABI + 1;
    assert_int_equal(vt_runtime_add(rt, &v, toy_rows, 3, &err), STATUS_UNSUPPORTED);
    v.abi = VT_BACKEND_ABI;
    v.size = offsetof(vt_backend, fill);
    assert_int_equal(vt_runtime_add(rt, &v, toy_rows, 3, &err), STATUS_FORMAT);
    v.size = sizeof v + 64; /* a later, longer one: what this core knows is taken */
    v.fence_create = NULL;
    v.fill = NULL;
    assert_int_equal(vt_runtime_add(rt, &v, toy_rows, 3, &err), STATUS_FORMAT);
    expect_part(err.text, "lacks open, close, alloc, free, copy or fill");
    v.fill = toy_fill;
    v.type = VT_DEVICE_TYPE_COUNT;
    assert_int_equal(vt_runtime_add(rt, &v, toy_rows, 3, &err), STATUS_FORMAT);
    v.type = VT_DEVICE_METAL;
    assert_int_equal(vt_runtime_add(rt, NULL, toy_rows, 3, &err), STATUS_FORMAT);
    assert_int_equal(vt_runtime_add(rt, &v, NULL, 3, &err), STATUS_FORMAT);
    assert_int_equal(vt_runtime_add(rt, &v, toy_rows, -1, &err), STATUS_FORMAT);
    vt_row row = toy_rows[0];
    row.name = NULL;
    assert_int_equal(vt_runtime_add(rt, &v, &row, 1, &err), STATUS_FORMAT);
    row = toy_rows[0];
    row.run = NULL;
    assert_int_equal(vt_runtime_add(rt, &v, &row, 1, &err), STATUS_FORMAT);
    row.left_out = "SOME_SWITCH";
    vt_row limited[2] = {toy_rows[0], toy_rows[0]};
    limited[1].fits = toy_never;
    limited[0].need = VT_CAP_BIT(VT_CAP_CAPTURE); /* the row without a limit asks for more than the limited one */
    assert_int_equal(vt_runtime_add(rt, &v, limited, 2, &err), STATUS_FORMAT);
    expect_part(err.text, "has a shape limit and no row without one");
    limited[1].need = VT_CAP_BIT(VT_CAP_CAPTURE) | VT_CAP_BIT(VT_CAP_UNIFIED);
    must(vt_runtime_add(rt, &v, limited, 2, &err), &err);
    vt_queue q = vt_queue_pose(rt, (vt_device_id){VT_DEVICE_METAL, 0}, VT_CAP_BIT(VT_CAP_CAPTURE));
    assert_int_equal(vt_can_run(&q, VT_OP_ADD, toy_rows[0].sig, &err), STATUS_OK);
    v.type = VT_DEVICE_VULKAN;
    must(vt_runtime_add(rt, &v, &row, 1, &err), &err); /* a table of nothing but a row that is left out */
    v.type = VT_DEVICE_CUDA;
    must(vt_runtime_add(rt, &v, NULL, 0, &err), &err);
    vt_runtime_destroy(rt);
}

/* ---- reports ---- */

typedef struct row_counts {
    int n, n_runs, n_left_out, n_lacks, n_not_found, n_preferred, n_bad;
    char last_preferred[64];
} row_counts;

static void count_row(void *ctx, const char *backend, const char *op, const char *sig, const char *need, const char *name,
                      const char *state, bool preferred) {
    row_counts *c = ctx;
    if (strcmp(backend, "test") != 0) return;
    c->n++;
    c->n_runs += strcmp(state, "runs here") == 0;
    c->n_left_out += strcmp(state, "left out: HEADRACE_TEST_LEFT_OUT") == 0;
    c->n_lacks += strncmp(state, "lacks ", 6) == 0;
    c->n_not_found += strcmp(state, "library not found") == 0;
    c->n_preferred += preferred;
    c->n_bad += !op[0] || !sig[0] || !need[0] || strcmp(name, "unknown") == 0;
    if (strcmp(name, "test_add_bf16") == 0) assert_string_equal(need, "tensor-bf16");
    if (strcmp(name, "test_add_f16") == 0) assert_string_equal(need, "capture, tensor-f16");
    if (strcmp(name, "test_add_f32") == 0) {
        assert_string_equal(op, "add");
        assert_string_equal(sig, "a=f32 b=f32 out=f32");
        assert_string_equal(need, "-");
        assert_false(preferred);
    }
    if (strcmp(name, "test_add_f32_short") == 0 && !c->n_not_found) assert_true(preferred);
}

static void rows_are_listed(void **state) {
    (void)state;
    vt_runtime *rt = test_runtime_create(m, "none");
    row_counts c = {0};
    vt_runtime_visit_rows(rt, count_row, &c);
    assert_int_equal(c.n, 9);
    assert_int_equal(c.n_runs, 4);
    assert_int_equal(c.n_lacks, 3);
    assert_int_equal(c.n_left_out, 2);
    assert_int_equal(c.n_preferred, 3);
    assert_int_equal(c.n_bad, 0);
    textbuf report;
    textbuf_init(&report, m, MEM_PROCESS);
    vt_runtime_report(rt, &report);
    expect_part(textbuf_text(&report), "cpu: built in\n  cpu:0: ");
    expect_part(textbuf_text(&report),
                "/none/libheadrace-test.so\n  test:0: test device 0; memory unknown; properties: unified-memory, async-copy\n"
                "    kernel rows: 9, of which 4 run here, 3 lack a property, 2 are left out of this build\n"
                "  test:1: test device 1; memory 0.0 GiB, 0.0 GiB free now; properties: async-copy, tensor-bf16\n"
                "    kernel rows: 9, of which 5 run here, 2 lack a property, 2 are left out of this build\n");
    textbuf_deinit(&report);
    vt_runtime_destroy(rt);

    rt = test_runtime_create(m, NULL);
    c = (row_counts){0};
    vt_runtime_visit_rows(rt, count_row, &c);
    assert_int_equal(c.n, 9);
    assert_int_equal(c.n_not_found, 9);
    assert_int_equal(c.n_preferred, 0);
    textbuf_init(&report, m, MEM_PROCESS);
    vt_runtime_report(rt, &report);
    expect_part(textbuf_text(&report), "test: library not found (there is no directory to look in for libheadrace-test.so; HEADRACE_TESTS "
                                       "builds it and is on in this build)\n");
    textbuf_deinit(&report);
    vt_runtime_destroy(rt);
}

static void cpu_is_built_in(void **state) {
    (void)state;
    vt_runtime_options opt = {.search_dirs = (const char *const[]){NULL}, .cpu_isa = "scalar"};
    vt_runtime *rt;
    vt_device *d;
    error err = {0};
    must(vt_runtime_create(m, &opt, &rt, &err), &err);
    must(vt_device_open(rt, (vt_device_id){VT_DEVICE_CPU, 0}, m, &d, &err), &err);
    uint64_t x86 = VT_CAP_BIT(VT_CAP_X86_AVX2) | VT_CAP_BIT(VT_CAP_X86_AVX512) | VT_CAP_BIT(VT_CAP_X86_VNNI);
    assert_int_equal(vt_device_caps(d) & x86, 0);
    assert_true(vt_device_caps(d) & VT_CAP_BIT(VT_CAP_HOST_ADDRESSABLE));
    assert_true(vt_device_total_bytes(d) > 0);
    mem_usage before, during, after;
    vt_buffer b;
    mem_get_usage(m, MEM_WEIGHTS, &before);
    must(vt_buffer_alloc(d, MEM_WEIGHTS, 100000, "weights", &b, &err), &err);
    mem_get_usage(m, MEM_WEIGHTS, &during);
    assert_true(during.used_bytes >= before.used_bytes + 100000 && during.used_bytes < before.used_bytes + 102000);
    vt_buffer_free(&b);
    mem_get_usage(m, MEM_WEIGHTS, &after);
    assert_int_equal(after.used_bytes, before.used_bytes);
    vt_device_close(d);
    vt_runtime_destroy(rt);
    /* no options at all: the generated manifest, the default directories */
    must(vt_runtime_create(m, NULL, &rt, &err), &err);
    vt_queue q = vt_queue_pose(rt, (vt_device_id){VT_DEVICE_CPU, 0}, 0);
    assert_int_equal(vt_can_run(&q, VT_OP_ADD, vt_sig_make(VT_F32, VT_F32, VT_F32), &err), STATUS_OK);
    vt_runtime_destroy(rt);
}

/* ---- every allocation fails once ---- */

static mem *faulty;

static uint64_t n_live(void) {
    mem_usage u;
    mem_get_total(faulty, &u);
    return u.n_live;
}

/* Runs `attempt` with 0, 1, 2, ... allocations allowed until it succeeds; each failure is "no memory", with a text, and leaves nothing
 * behind. */
static int fail_each(status (*attempt)(void *ctx, error *err), void *ctx) {
    uint64_t before = n_live();
    for (int n = 0; n < 1000; n++) {
        error err = {0};
        mem_fail_after(faulty, (uint64_t)n);
        status rc = attempt(ctx, &err);
        mem_fail_off(faulty);
        if (rc == STATUS_OK) return n;
        if (rc != STATUS_NO_MEMORY || !err.text[0]) fail_msg("after %d: %s '%s'", n, status_name(rc), err.text);
        assert_int_equal(n_live(), before);
    }
    fail_msg("never succeeds");
    return -1;
}

typedef struct faults {
    vt_runtime_options opt;
    vt_runtime *rt;
    vt_device_id id;
    vt_device *d;
    vt_queue *q;
    vt_buffer b;
} faults;

static status attempt_runtime(void *ctx, error *err) { return vt_runtime_create(faulty, &((faults *)ctx)->opt, &((faults *)ctx)->rt, err); }
static status attempt_device(void *ctx, error *err) {
    return vt_device_open(((faults *)ctx)->rt, ((faults *)ctx)->id, faulty, &((faults *)ctx)->d, err);
}
static status attempt_queue(void *ctx, error *err) { return vt_queue_create(((faults *)ctx)->d, NULL, &((faults *)ctx)->q, err); }
static status attempt_buffer(void *ctx, error *err) {
    return vt_buffer_alloc(((faults *)ctx)->d, MEM_KV, 1000, "pages", &((faults *)ctx)->b, err);
}

static void fail_all(const char *plugin, bool usable) {
    static test_manifests all;
    all = test_manifests_all();
    char dir[1024];
    snprintf(dir, sizeof dir, "%s/%s", HEADRACE_TEST_PLUGINS, plugin);
    const char *dirs[] = {"/nonexistent", dir, NULL};
    faults f = {.opt = {.search_dirs = dirs, .manifests = all.list, .n_manifests = all.n, .cpu_isa = "auto"}};
    int n = fail_each(attempt_runtime, &f), n_device = 0, n_queue = 0, n_buffer = 0;
    for (int type = 0; type < (usable ? 2 : 0); type++) {
        f.id = (vt_device_id){type ? VT_DEVICE_TEST : VT_DEVICE_CPU, 0};
        n_device += fail_each(attempt_device, &f);
        n_queue += fail_each(attempt_queue, &f);
        n_buffer += fail_each(attempt_buffer, &f);
        vt_buffer_free(&f.b);
        vt_queue_destroy(f.q);
        vt_device_close(f.d);
    }
    print_message("%s: failed %d allocations of the runtime, %d of devices, %d of queues, %d of buffers\n", plugin, n, n_device, n_queue,
                  n_buffer);
    assert_true(n >= 10);
    if (usable) assert_true(n_device >= 4 && n_queue >= 3 && n_buffer >= 2);
    vt_runtime_destroy(f.rt);
    assert_int_equal(n_live(), 0);
}

static void failing_allocations(void **state) {
    (void)state;
    assert_int_equal(mem_create(&faulty), STATUS_OK);
    fail_all("none", true);
    fail_all("interface", false);
    fail_all("garbage", false);
    fail_all("rows", false);
    assert_int_equal(mem_destroy(faulty), STATUS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vtable_defaults), cmocka_unit_test(devices_that_do_not_open), cmocka_unit_test(registering),
        cmocka_unit_test(rows_are_listed), cmocka_unit_test(cpu_is_built_in),          cmocka_unit_test(failing_allocations),
    };
    return cmocka_run_group_tests(tests, create, destroy);
}
