/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend as a device: capabilities under each cpu-isa, memory, and rows that refuse ids and pages which point nowhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "vt/vt.h"

static const uint64_t avx2 = VT_CAP_BIT(VT_CAP_X86_AVX2), avx512 = VT_CAP_BIT(VT_CAP_X86_AVX512), vnni = VT_CAP_BIT(VT_CAP_X86_VNNI);
static const char *const levels[] = {"scalar", "avx2", "avx512", "auto"};
static const vt_device_id cpu0 = {VT_DEVICE_CPU, 0};

static mem *m;
static vt_runtime *rt;
static vt_device *dev;
static vt_queue *q;

static int create(void **state) {
    (void)state;
    return mem_create(&m) == STATUS_OK ? 0 : -1;
}

static void close_device(void) {
    if (q) vt_queue_destroy(q);
    if (dev) vt_device_close(dev);
    if (rt) vt_runtime_destroy(rt);
    q = NULL;
    dev = NULL;
    rt = NULL;
}

static int destroy(void **state) {
    (void)state;
    close_device();
    return mem_destroy(m) == STATUS_OK ? 0 : -1;
}

/* False: this processor lacks the level. */
static bool open_device(const char *isa) {
    error err = {0};
    close_device();
    vt_runtime_options options = {.cpu_isa = isa};
    assert_int_equal(vt_runtime_create(m, &options, &rt, &err), STATUS_OK);
    status rc = vt_device_open(rt, cpu0, m, &dev, &err);
    if (rc != STATUS_OK) {
        assert_int_equal(rc, STATUS_UNSUPPORTED);
        assert_non_null(strstr(err.text, isa));
        return false;
    }
    assert_int_equal(vt_queue_create(dev, NULL, &q, &err), STATUS_OK);
    return true;
}

/* What the kernel says of the processor, read from its text. */
static bool cpuinfo_has(const char *flag) {
    static char text[1 << 16];
    char word[64];
    FILE *f = fopen("/proc/cpuinfo", "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    char *flags = strstr(text, "\nflags");
    if (!flags) return false;
    *strchr(flags + 1, '\n') = ' ';
    snprintf(word, sizeof word, " %s ", flag);
    return strstr(flags, word) != NULL;
}

static void caps_follow_the_processor_and_the_option(void **state) {
    (void)state;
    bool has_avx2 = cpuinfo_has("avx2") && cpuinfo_has("fma") && cpuinfo_has("f16c");
    bool has_avx512 = has_avx2 && cpuinfo_has("avx512f") && cpuinfo_has("avx512bw") && cpuinfo_has("avx512dq") && cpuinfo_has("avx512vl");
    bool has_vnni = has_avx512 && cpuinfo_has("avx512_vnni");
    uint64_t all = (has_avx2 ? avx2 : 0) | (has_avx512 ? avx512 : 0) | (has_vnni ? vnni : 0);
    const uint64_t want[] = {0, avx2, all, all};
    const bool possible[] = {true, has_avx2, has_avx512, true};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(open_device(levels[i]), possible[i]);
        if (!possible[i]) continue;
        assert_int_equal(vt_device_caps(dev) & (avx2 | avx512 | vnni), want[i]);
        assert_true(vt_device_caps(dev) & VT_CAP_BIT(VT_CAP_UNIFIED));
        assert_true(vt_device_caps(dev) & VT_CAP_BIT(VT_CAP_HOST_ADDRESSABLE));
        assert_int_equal(q->caps, vt_device_caps(dev));
    }
}

static void a_level_that_does_not_exist_is_refused(void **state) {
    (void)state;
    error err = {0};
    vt_runtime_options options = {.cpu_isa = "avx1024"};
    assert_int_equal(vt_runtime_create(m, &options, &rt, &err), STATUS_OK);
    assert_int_equal(vt_device_open(rt, cpu0, m, &dev, &err), STATUS_INVALID);
    assert_non_null(strstr(err.text, "avx1024"));
    assert_int_equal(vt_device_open(rt, (vt_device_id){VT_DEVICE_CPU, 1}, m, &dev, &err), STATUS_NOT_FOUND);
}

static uint64_t meminfo(const char *key) {
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0) kib = strtoull(line + strlen(key) + 1, NULL, 10);
    fclose(f);
    return (uint64_t)kib * 1024;
}

static void memory_is_that_of_the_machine(void **state) {
    (void)state;
    error err = {0};
    assert_true(open_device("auto"));
    uint64_t free_bytes = 0, total = 0, all = meminfo("MemTotal");
    assert_int_equal(vt_device_memory_info(dev, &free_bytes, &total), STATUS_OK);
    assert_true(total > 0 && total <= all); /* a cgroup may allow less */
    assert_true(free_bytes > 0 && free_bytes <= total);
    assert_int_equal(vt_device_total_bytes(dev), total);
    mem_usage before, during, after;
    vt_buffer b[3];
    mem_get_usage(m, MEM_KV, &before);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(vt_buffer_alloc(dev, MEM_KV, 1000 + i, "a test", &b[i], &err), STATUS_OK);
        assert_int_equal((uintptr_t)b[i].data % 256, 0);
        assert_int_equal(vt_fill(q, b[i].data, (int)i, b[i].bytes), STATUS_OK);
    }
    mem_get_usage(m, MEM_KV, &during);
    assert_true(during.used_bytes >= before.used_bytes + 3000);
    assert_int_equal(vt_copy(q, b[0].data, b[1].data, 1000), STATUS_OK);
    assert_int_equal(((uint8_t *)b[0].data)[999], 1);
    for (size_t i = 0; i < 3; i++) vt_buffer_free(&b[i]);
    mem_get_usage(m, MEM_KV, &after);
    assert_int_equal(after.used_bytes, before.used_bytes);
}

static void a_huge_buffer_is_refused(void **state) {
    (void)state;
    error err = {0};
    vt_buffer b;
    assert_true(open_device("auto"));
    assert_int_equal(vt_buffer_alloc(dev, MEM_KV, SIZE_MAX - 8, "a test", &b, &err), STATUS_NO_MEMORY);
}

static void ids_outside_a_table_are_refused(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        if (!open_device(levels[i])) continue;
        float table[12] = {0}, out[8];
        for (int j = 0; j < 8; j++) out[j] = 5.0f;
        const int32_t bad[] = {3, -1, INT32_MAX, INT32_MIN};
        for (int j = 0; j < 4; j++) {
            error err = {0};
            int32_t ids[2] = {0, bad[j]};
            vt_tensor t = vt_tensor_2d(table, VT_F32, cpu0, 3, 4), o = vt_tensor_2d(out, VT_F32, cpu0, 2, 4),
                      id = vt_tensor_1d(ids, VT_I32, cpu0, 2);
            assert_int_equal(vt_gather_rows(q, &o, &t, &id, &err), STATUS_INVALID);
            assert_non_null(strstr(err.text, "ids[1]"));
            for (int e = 0; e < 8; e++) assert_true(out[e] == 5.0f);
        }
    }
}

/* Two rows of one segment over pages of four positions. */
typedef struct step {
    float x[2][1][16], out[2][1][16], cache[3][1][4][16];
    int32_t pos[2], seg[2], pages[1][3];
    vt_rows rows;
} step;

static void make_step(step *s) {
    memset(s, 0, sizeof *s);
    s->pos[0] = 4;
    s->pos[1] = 5;
    s->pages[0][0] = 2;
    s->pages[0][1] = 1;
    s->pages[0][2] = 1 << 30; /* needed by no row */
    s->rows =
        (vt_rows){vt_tensor_1d(s->pos, VT_I32, cpu0, 2), vt_tensor_1d(s->seg, VT_I32, cpu0, 2), vt_tensor_2d(s->pages, VT_I32, cpu0, 1, 3)};
}

static status write_step(step *s, error *err) {
    vt_tensor cache = vt_tensor_4d(s->cache, VT_F32, cpu0, 3, 1, 4, 16), x = vt_tensor_3d(s->x, VT_F32, cpu0, 2, 1, 16);
    return vt_kv_write(q, &cache, &x, &s->rows, err);
}

static status attend_step(step *s, error *err) {
    vt_tensor cache = vt_tensor_4d(s->cache, VT_F32, cpu0, 3, 1, 4, 16), x = vt_tensor_3d(s->x, VT_F32, cpu0, 2, 1, 16);
    vt_tensor out = vt_tensor_3d(s->out, VT_F32, cpu0, 2, 1, 16);
    return vt_paged_attention(q, &out, &x, &cache, &cache, &s->rows, NULL, (vt_attention_params){1.0f, 0.0f, 0}, err);
}

static void pages_that_point_nowhere_are_refused(void **state) {
    (void)state;
    static step s, untouched;
    for (int i = 0; i < 4; i++) {
        if (!open_device(levels[i])) continue;
        for (int fault = 0; fault < 8; fault++) {
            error err = {0};
            make_step(&s);
            if (fault == 1) s.pos[1] = -1;
            if (fault == 2) s.pos[1] = 12; /* the table holds 12 */
            if (fault == 3) s.seg[1] = 1;
            if (fault == 4) s.seg[0] = -1;
            if (fault == 5) s.pages[0][1] = 3; /* the cache holds 3 */
            if (fault == 6) s.pages[0][1] = -1;
            if (fault == 7) s.pages[0][0] = 7; /* read by attention, not written */
            untouched = s;
            status want = fault == 0 ? STATUS_OK : STATUS_INVALID;
            assert_int_equal(attend_step(&s, &err), want);
            if (fault) assert_memory_equal(s.out, untouched.out, sizeof s.out);
            assert_int_equal(write_step(&s, &err), fault == 7 ? STATUS_OK : want);
            if (fault && fault != 7) assert_memory_equal(s.cache, untouched.cache, sizeof s.cache);
        }
    }
}

/* Rows that this build left out. */
static void note_left_out(void *ctx, const char *backend, const char *op, const char *sig, const char *need, const char *name,
                          const char *state, bool preferred) {
    (void)backend, (void)op, (void)sig, (void)need, (void)preferred;
    static const char *const rows[] = {"matmul_bt_f32_f16_f32_ref", "matmul_bt_f32_f16_f32_avx2", "matmul_bt_f32_f16_f32_avx512"};
    bool *left_out = ctx;
    for (int i = 0; i < 3; i++)
        if (strcmp(name, rows[i]) == 0) left_out[i] = strncmp(state, "left out", 8) == 0;
}

/* The row that runs is the best of the level. */
static void the_level_chooses_the_row(void **state) {
    (void)state;
    static const char *const rows[] = {"matmul_bt_f32_f16_f32_ref", "matmul_bt_f32_f16_f32_avx2", "matmul_bt_f32_f16_f32_avx512"};
    for (int i = 0; i < 3; i++) {
        if (!open_device(levels[i])) continue;
        error err = {0};
        float a[32] = {1.0f}, out[1];
        uint16_t b[32] = {0x4000};
        vt_tensor ta = vt_tensor_2d(a, VT_F32, cpu0, 1, 32), tb = vt_tensor_2d(b, VT_F16, cpu0, 1, 32),
                  to = vt_tensor_2d(out, VT_F32, cpu0, 1, 1);
        assert_int_equal(vt_matmul_bt(q, &to, &ta, &tb, &err), STATUS_OK);
        assert_true(out[0] == 2.0f);
        bool left_out[3] = {true, true, true};
        vt_runtime_visit_rows(rt, note_left_out, left_out);
        int best = i;
        while (left_out[best]) best--; /* the scalar row is in every build */
        for (int j = 0; j < 3; j++) assert_int_equal(vt_row_runs(rt, rows[j]), j == best);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(caps_follow_the_processor_and_the_option, create, destroy),
        cmocka_unit_test_setup_teardown(a_level_that_does_not_exist_is_refused, create, destroy),
        cmocka_unit_test_setup_teardown(memory_is_that_of_the_machine, create, destroy),
        cmocka_unit_test_setup_teardown(a_huge_buffer_is_refused, create, destroy),
        cmocka_unit_test_setup_teardown(ids_outside_a_table_are_refused, create, destroy),
        cmocka_unit_test_setup_teardown(pages_that_point_nowhere_are_refused, create, destroy),
        cmocka_unit_test_setup_teardown(the_level_chooses_the_row, create, destroy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
