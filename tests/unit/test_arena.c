/* SPDX-License-Identifier: Apache-2.0 */
/* Arenas and growable text. */
#include "support/test_case.h"

#include "base/arena.h"
#include "base/textbuf.h"

static void objects_are_aligned_apart_and_intact(void **state) {
    (void)state;
    mem *m = test_mem();
    arena *a = NULL;
    assert_int_equal(arena_create(m, MEM_MODEL, 1000, &a), STATUS_OK);
    enum { N = 300 };
    unsigned char *objects[N];
    size_t sizes[N], sum = 0;
    for (int round = 0; round < 2; round++) {
        sum = 0;
        for (int i = 0; i < N; i++) {
            sizes[i] = i % 50 == 7 ? 5000 : (size_t)i * 13 % 200; /* some larger than a chunk, some empty */
            objects[i] = arena_alloc(a, sizes[i]);
            assert_non_null(objects[i]);
            assert_int_equal((uintptr_t)objects[i] % MEM_ALIGN, 0);
            memset(objects[i], i, sizes[i]);
            sum += sizes[i] ? (sizes[i] + 63) / 64 * 64 : 64;
            assert_int_equal(arena_used(a), sum);
        }
        for (int i = 0; i < N; i++)
            for (size_t k = 0; k < sizes[i]; k++) assert_int_equal(objects[i][k], (unsigned char)i);
        arena_reset(a);
        assert_int_equal(arena_used(a), 0);
        assert_int_equal(arena_peak(a), sum);
    }
    mem_usage u;
    mem_get_usage(m, MEM_MODEL, &u);
    assert_int_equal(u.n_live, 2); /* the arena and its first chunk */
    uint64_t n_allocs = u.n_allocs;
    for (int i = 0; i < 16; i++) assert_non_null(arena_alloc(a, 64)); /* 1000 rounds up to 1024: the first chunk */
    mem_get_usage(m, MEM_MODEL, &u);
    assert_int_equal(u.n_allocs, n_allocs);
    assert_non_null(arena_alloc(a, 1));
    mem_get_usage(m, MEM_MODEL, &u);
    assert_int_equal(u.n_allocs, n_allocs + 1);
    arena_destroy(a);
    arena_destroy(NULL);
    test_mem_check(m);
}

static void a_large_object_leaves_the_current_chunk_alone(void **state) {
    (void)state;
    mem *m = test_mem();
    arena *a = NULL;
    assert_int_equal(arena_create(m, MEM_MODEL, 1024, &a), STATUS_OK);
    char *first = arena_alloc(a, 64), *large = arena_alloc(a, 4096), *second = arena_alloc(a, 64);
    assert_non_null(large);
    assert_ptr_equal(second, first + 64);
    arena_destroy(a);
    test_mem_check(m);
}

static void a_fixed_arena_ends(void **state) {
    (void)state;
    mem *m = test_mem();
    arena *a = NULL;
    assert_int_equal(arena_create_fixed(m, MEM_ACTIVATIONS, 256, &a), STATUS_OK);
    mem_guard_begin(m); /* never asks for more */
    for (int round = 0; round < 3; round++) {
        assert_non_null(arena_alloc(a, 100));
        assert_null(arena_alloc(a, 129));
        assert_non_null(arena_alloc(a, 128));
        assert_null(arena_alloc(a, 0));
        assert_int_equal(arena_used(a), 256);
        arena_reset(a);
    }
    mem_guard_end(m);
    assert_int_equal(mem_guard_violations(m), 0);
    arena_destroy(a);
    test_mem_check(m);
}

static void hostile_sizes_and_strings(void **state) {
    (void)state;
    mem *m = test_mem();
    arena *a = NULL;
    volatile size_t max = SIZE_MAX;
    assert_int_equal(arena_create(m, MEM_MODEL, max, &a), STATUS_NO_MEMORY);
    assert_int_equal(arena_create(m, MEM_MODEL, 0, &a), STATUS_OK);
    assert_null(arena_alloc(a, max));
    assert_null(arena_alloc(a, max - 64));
    assert_null(arena_calloc(a, max / 4, 8));
    assert_int_equal(arena_used(a), 0);
    unsigned char *p = arena_alloc(a, 512);
    memset(p, 0xFF, 512);
    arena_reset(a);
    p = arena_calloc(a, 64, 8);
    for (int i = 0; i < 512; i++) assert_int_equal(p[i], 0);
    assert_string_equal(arena_strdup(a, "text"), "text");
    assert_string_equal(arena_strndup(a, "text", 2), "te");
    assert_string_equal(arena_strndup(a, "text", 99), "text");
    arena_destroy(a);
    test_mem_check(m);
}

static void text_grows(void **state) {
    (void)state;
    mem *m = test_mem();
    textbuf b;
    textbuf_init(&b, m, MEM_REQUEST);
    assert_string_equal(textbuf_text(&b), "");
    textbuf_add(&b, "", 0);
    assert_string_equal(textbuf_text(&b), "");
    char expected[6000] = "";
    size_t n = 0;
    for (int i = 0; i < 500; i++) {
        n += (size_t)snprintf(expected + n, sizeof expected - n, "%d:%s,", i, i % 2 ? "odd" : "even");
        textbuf_addf(&b, "%d:", i);
        textbuf_adds(&b, i % 2 ? "odd" : "even");
        textbuf_add(&b, ",...", 1);
    }
    assert_int_equal(b.len, n);
    assert_string_equal(textbuf_text(&b), expected);
    textbuf_clear(&b);
    assert_string_equal(textbuf_text(&b), "");
    textbuf_add(&b, "a\0b", 3);
    assert_memory_equal(b.data, "a\0b", 4);
    assert_false(b.failed);
    textbuf_deinit(&b);
    assert_string_equal(textbuf_text(&b), "");
    test_mem_check(m);
}

static void a_failed_append_is_remembered(void **state) {
    (void)state;
    mem *m = test_mem();
    textbuf b;
    textbuf_init(&b, m, MEM_REQUEST);
    textbuf_adds(&b, "kept");
    mem_fail_after(m, 0);
    static const char more[500] = {[0 ... 498] = 'x'};
    textbuf_adds(&b, more);
    mem_fail_off(m);
    assert_true(b.failed);
    textbuf_adds(&b, "dropped");
    textbuf_addf(&b, "%d", 1);
    assert_string_equal(textbuf_text(&b), "kept");
    textbuf_clear(&b);
    textbuf_adds(&b, "again");
    assert_false(b.failed);
    assert_string_equal(textbuf_text(&b), "again");
    volatile size_t max = SIZE_MAX;
    textbuf_add(&b, "", max);
    assert_true(b.failed);
    assert_string_equal(textbuf_text(&b), "again");
    textbuf_deinit(&b);
    test_mem_check(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(objects_are_aligned_apart_and_intact),
        cmocka_unit_test(a_large_object_leaves_the_current_chunk_alone),
        cmocka_unit_test(a_fixed_arena_ends),
        cmocka_unit_test(hostile_sizes_and_strings),
        cmocka_unit_test(text_grows),
        cmocka_unit_test(a_failed_append_is_remembered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
