/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base when memory runs out: a little more is let through each round until the work succeeds. Each refusal must be STATUS_NO_MEMORY
 * with a text, write no result, and leave nothing behind; the number of rounds must be what the work needs, and more than zero.
 */
#include "support/test_case.h"
#include "support/temp_dir.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include "base/arena.h"
#include "base/config.h"
#include "base/os.h"
#include "base/textbuf.h"
#include "base/threads.h"

typedef struct scene {
    char path[512];
} scene;

typedef status work(mem *m, const scene *s, error *err);

static size_t used(const mem *m) {
    mem_usage u;
    mem_get_total(m, &u);
    return u.used_bytes;
}

/* `tells`: whether the work reports a text. Gives the number of rounds that failed. */
static int until_it_succeeds(work *fn, const scene *s, bool tells) {
    mem *m = test_mem();
    int n_failed = 0;
    for (;; n_failed++) {
        assert_true(n_failed < 5000);
        error err = {0};
        mem_fail_after(m, (uint64_t)n_failed);
        status rc = fn(m, s, &err);
        mem_fail_off(m);
        assert_int_equal(used(m), 0);
        if (rc == STATUS_OK) break;
        assert_int_equal(rc, STATUS_NO_MEMORY);
        if (!tells) continue;
        assert_int_equal(err.code, STATUS_NO_MEMORY);
        assert_true(strlen(err.text) > 10);
    }
    test_mem_check(m);
    return n_failed;
}

static void add_one(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    for (int64_t i = begin; i < end; i++) ((int *)ctx)[i]++;
}

static status make_pool(mem *m, const scene *s, error *err) {
    (void)s;
    pool *p = NULL;
    status rc = pool_create(m, 4, &p, err);
    if (rc != STATUS_OK) {
        assert_null(p);
        return rc;
    }
    int counts[100] = {0};
    pool_run(p, 100, 3, add_one, counts);
    for (int i = 0; i < 100; i++) assert_int_equal(counts[i], 1);
    pool_destroy(p);
    return STATUS_OK;
}

static status fill_arena(mem *m, const scene *s, error *err) {
    (void)s;
    (void)err;
    arena *a = NULL;
    status rc = arena_create(m, MEM_MODEL, 512, &a);
    if (rc != STATUS_OK) {
        assert_null(a);
        return rc;
    }
    for (int i = 0; i < 100 && rc == STATUS_OK; i++) {
        size_t before = arena_used(a);
        char *p = i % 9 == 4 ? arena_calloc(a, 10, 100) : arena_strdup(a, "some text");
        if (!p) {
            rc = STATUS_NO_MEMORY;
            assert_int_equal(arena_used(a), before);
            arena_reset(a); /* still of use */
            mem_fail_off(m);
            assert_non_null(arena_alloc(a, 2000));
        }
    }
    arena_destroy(a);
    return rc;
}

static status fill_fixed_arena(mem *m, const scene *s, error *err) {
    (void)s;
    (void)err;
    arena *a = NULL;
    status rc = arena_create_fixed(m, MEM_ACTIVATIONS, 4096, &a);
    if (rc == STATUS_OK) assert_non_null(arena_alloc(a, 4096));
    arena_destroy(a);
    return rc;
}

static status configure(mem *m, const scene *s, error *err) {
    config *c = NULL;
    status rc = config_create(m, &c, err);
    if (rc != STATUS_OK) {
        assert_null(c);
        return rc;
    }
    char flag[600];
    snprintf(flag, sizeof flag, "--config=%s", s->path);
    static char text[5000];
    memset(text, 'x', sizeof text - 1);
    char *argv[40] = {flag, "--max-seqs", "7", "-m", text};
    int argc = 5, n_rest = 0;
    while (argc < 39) {
        argv[argc++] = "--prompt";
        argv[argc++] = text;
    }
    const char *rest[40];
    rc = config_read_command_line(c, CONFIG_COMMON | CONFIG_COMPLETE, argc, argv, rest, &n_rest, err);
    if (rc == STATUS_OK) {
        assert_int_equal(config_count(c, CONFIG_KEY_MAX_SEQS), 7);
        assert_int_equal(config_count(c, CONFIG_KEY_CTX), 4096);
        assert_int_equal(config_list_size(c, CONFIG_KEY_PROMPT), 17);
    }
    config_destroy(c);
    return rc;
}

static status print_texts(mem *m, const scene *s, error *err) {
    (void)s;
    config *c = NULL;
    status rc = config_create(m, &c, err);
    if (rc != STATUS_OK) return rc;
    textbuf b;
    textbuf_init(&b, m, MEM_PROCESS);
    config_print(c, UINT32_MAX, &b);
    config_help(UINT32_MAX, &b);
    if (b.failed) rc = error_set(err, STATUS_NO_MEMORY, "the text says that it failed");
    if (rc == STATUS_OK) assert_true(b.len > 2000);
    textbuf_deinit(&b);
    config_destroy(c);
    return rc;
}

static status open_file(mem *m, const scene *s, error *err) {
    os_file *f = NULL;
    status rc = os_file_open(m, s->path, &f, err);
    if (rc != STATUS_OK) {
        assert_null(f);
        return rc;
    }
    const uint8_t *p = NULL;
    char bytes[4] = "";
    rc = os_file_map(f, &p, err);
    if (rc == STATUS_OK) rc = os_file_read(f, 0, bytes, 3, err);
    if (rc == STATUS_OK) assert_memory_equal(bytes, p, 3);
    os_file_close(f);
    return rc;
}

static status read_text(mem *m, const scene *s, error *err) {
    char *text = NULL;
    size_t n = 0;
    status rc = os_read_text(m, MEM_PROCESS, s->path, 1 << 20, &text, &n, err);
    if (rc != STATUS_OK) assert_null(text);
    mem_free(m, text);
    return rc;
}

static status open_library(mem *m, const scene *s, error *err) {
    (void)s;
    os_library *l = NULL;
    status rc = os_library_open(m, "libm.so.6", &l, err);
    if (rc != STATUS_OK) assert_null(l);
    os_library_close(l);
    return rc;
}

static void each_allocation_may_fail(void **state) {
    (void)state;
    temp_dir d = temp_dir_make();
    scene s;
    char text[20000];
    int n = snprintf(text, sizeof text, "ctx = 4096\n");
    while (n < 19000) n += snprintf(text + n, sizeof text - (size_t)n, "# a line to make the file larger than one block\n");
    temp_dir_write(&d, "settings", text, (size_t)n, s.path);
    assert_int_equal(until_it_succeeds(make_pool, &s, true), 3); /* pool, workers, stacks */
    assert_true(until_it_succeeds(fill_arena, &s, false) > 15);
    assert_int_equal(until_it_succeeds(fill_fixed_arena, &s, false), 2);
    assert_true(until_it_succeeds(configure, &s, true) > 20);
    assert_true(until_it_succeeds(print_texts, &s, true) > 20);
    assert_int_equal(until_it_succeeds(open_file, &s, true), 2); /* the object and its name */
    assert_true(until_it_succeeds(read_text, &s, true) > 2);
    assert_int_equal(until_it_succeeds(open_library, &s, true), 1);
    temp_dir_remove(&d);
}

/* A limit instead of an injected failure: the same refusals by the same code. */
static void each_limit_is_refused(void **state) {
    (void)state;
    mem *m = test_mem();
    int n_failed = 0;
    status rc = STATUS_NO_MEMORY;
    for (size_t limit = 0; rc != STATUS_OK && limit < (8u << 20); limit += 64 << (n_failed > 200 ? 8 : 0)) {
        assert_int_equal(mem_set_total_limit(m, limit), STATUS_OK);
        error err = {0};
        config *c = NULL;
        rc = config_create(m, &c, &err);
        if (rc != STATUS_OK) {
            assert_int_equal(rc, STATUS_NO_MEMORY);
            n_failed++;
        }
        config_destroy(c);
        assert_int_equal(used(m), 0);
    }
    assert_int_equal(rc, STATUS_OK);
    assert_true(n_failed > 3);
    test_mem_check(m);
}

/* The system refuses threads: room for a few stacks only, in a child. */
static int pool_in_a_small_address_space(void) {
    mem *m = NULL;
    if (mem_create(&m) != STATUS_OK) return 10;
    char *text = NULL;
    unsigned long vm_pages = 0;
    if (os_read_text(m, MEM_PROCESS, "/proc/self/statm", 1000, &text, NULL, NULL) != STATUS_OK || sscanf(text, "%lu", &vm_pages) != 1)
        return 11;
    mem_free(m, text);
    struct rlimit limit = {.rlim_cur = vm_pages * (rlim_t)sysconf(_SC_PAGESIZE) + (20u << 20), .rlim_max = RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &limit)) return 12;
    for (int round = 0; round < 3; round++) { /* those that were started end, so there is room again */
        error err = {0};
        pool *p = NULL;
        if (pool_create(m, 100, &p, &err) != STATUS_FAILED || p) return 13;
        if (!strstr(err.text, "threads: worker ") || !strstr(err.text, "of 99 could not start")) return 14;
        if (used(m) != 0) return 15;
        if (pool_create(m, 3, &p, &err) != STATUS_OK) return 16;
        pool_destroy(p);
    }
    return mem_destroy(m) == STATUS_OK ? 0 : 17;
}

/* A sanitizer reserves more address space than any limit would allow. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#elif defined(__has_feature)
enum { SANITIZED = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) };
#else
enum { SANITIZED = 0 };
#endif

static void the_system_may_refuse_threads(void **state) {
    (void)state;
    if (SANITIZED) skip();
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) _exit(pool_in_a_small_address_space());
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_allocation_may_fail),
        cmocka_unit_test(each_limit_is_refused),
        cmocka_unit_test(the_system_may_refuse_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
