/* SPDX-License-Identifier: Apache-2.0 */
/* Files and mappings, above all mappings whose file shrinks under them. */
#include "support/test_case.h"
#include "support/temp_dir.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/os.h"

enum { N_PAGES = 64, MAX_MAPPINGS = 256 };

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

/* A file of N_PAGES pages whose byte i is i * 7 + i / 256. */
static unsigned char byte_at(size_t i) { return (unsigned char)(i * 7 + i / 256); }

static void write_pattern(const temp_dir *d, const char *name, size_t n, char path[512]) {
    unsigned char *bytes = malloc(n);
    assert_non_null(bytes);
    for (size_t i = 0; i < n; i++) bytes[i] = byte_at(i);
    temp_dir_write(d, name, bytes, n, path);
    free(bytes);
}

static void opens_and_reads(void **state) {
    (void)state;
    mem *m = test_mem();
    temp_dir d = temp_dir_make();
    char path[512];
    write_pattern(&d, "file", 10000, path);
    error err = {0};
    os_file *f = NULL;
    assert_int_equal(os_file_open(m, path, &f, &err), STATUS_OK);
    assert_int_equal(os_file_size(f), 10000);
    assert_string_equal(os_file_path(f), path);
    unsigned char buffer[10000];
    static const size_t spans[][2] = {{0, 10000}, {0, 0}, {9999, 1}, {4095, 2}, {10000, 0}, {123, 4567}};
    for (int i = 0; i < 6; i++) {
        memset(buffer, 0, sizeof buffer);
        assert_int_equal(os_file_read(f, spans[i][0], buffer, spans[i][1], &err), STATUS_OK);
        for (size_t k = 0; k < spans[i][1]; k++) assert_int_equal(buffer[k], byte_at(spans[i][0] + k));
    }
    assert_int_equal(os_file_read(f, 9990, buffer, 11, &err), STATUS_IO);
    assert_contains(err.text, path);
    assert_contains(err.text, "offset 9990: expected 11 bytes, got 10");
    assert_int_equal(os_file_read(f, 20000, buffer, 1, &err), STATUS_IO);
    assert_contains(err.text, "offset 20000: expected 1 bytes, got 0");
    assert_int_equal(os_file_read(f, UINT64_MAX, buffer, 1, &err), STATUS_IO);
    assert_int_equal(os_file_read(f, UINT64_MAX - 5, buffer, 100, &err), STATUS_IO);
    assert_int_equal(os_file_read(f, INT64_MAX, buffer, 100, &err), STATUS_IO);
    assert_true(os_file_intact(f));
    assert_int_equal(truncate(path, 5000), 0);
    assert_false(os_file_intact(f));
    os_file_close(f);
    os_file_close(NULL);
    temp_dir_remove(&d);
    test_mem_check(m);
}

/* Bytes of another kind, more of them, or emptied and filled again; but not read, nor another file under the name. */
static void a_file_that_is_written_to_is_not_intact(void **state) {
    (void)state;
    mem *m = test_mem();
    temp_dir d = temp_dir_make();
    char path[512], other[512];
    for (int how = 0; how < 5; how++) {
        const struct timespec old[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}}; /* any write is later by the coarsest clock */
        os_file *f = NULL;
        unsigned char c;
        write_pattern(&d, "file", 10000, path);
        write_pattern(&d, "other", 10000, other);
        assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
        assert_int_equal(os_file_open(m, path, &f, NULL), STATUS_OK);
        const int fd = open(path, O_RDWR);
        assert_true(fd >= 0 && pread(fd, &c, 1, 5000) == 1 && os_file_intact(f));
        if (how == 0) assert_int_equal(pwrite(fd, "x", 1, 5000), 1);
        if (how == 1) assert_int_equal(pwrite(fd, "x", 1, 10000), 1);
        if (how == 2) assert_int_equal(ftruncate(fd, 0) + ftruncate(fd, 10000), 0);
        if (how == 3) assert_int_equal(rename(other, path), 0);
        if (how == 4) assert_int_equal(unlink(path), 0);
        close(fd);
        assert_int_equal(os_file_intact(f), how >= 3);
        os_file_close(f);
    }
    temp_dir_remove(&d);
    test_mem_check(m);
}

static void refuses_what_is_no_file(void **state) {
    (void)state;
    mem *m = test_mem();
    temp_dir d = temp_dir_make();
    char path[600];
    error err = {0};
    os_file *f = NULL;
    snprintf(path, sizeof path, "%s/missing", d.path);
    assert_int_equal(os_file_open(m, path, &f, &err), STATUS_NOT_FOUND);
    assert_contains(err.text, path);
    assert_int_equal(os_file_open(m, d.path, &f, &err), STATUS_INVALID);
    assert_contains(err.text, "is a directory");
    assert_int_equal(os_file_open(m, "/dev/zero", &f, &err), STATUS_INVALID);
    snprintf(path, sizeof path, "%s/pipe", d.path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(os_file_open(m, path, &f, &err), STATUS_INVALID); /* and it does not wait for a writer */
    assert_int_equal(os_file_open(m, "", &f, &err), STATUS_NOT_FOUND);
    assert_null(f);
    temp_dir_remove(&d);
    test_mem_check(m);
}

static void maps_what_the_file_holds(void **state) {
    (void)state;
    mem *m = test_mem();
    temp_dir d = temp_dir_make();
    char path[512];
    size_t n = N_PAGES * page_bytes() + 17;
    write_pattern(&d, "file", n, path);
    error err = {0};
    os_file *f = NULL;
    const uint8_t *p = NULL, *again = NULL;
    assert_int_equal(os_file_open(m, path, &f, &err), STATUS_OK);
    assert_int_equal(os_file_map(f, &p, &err), STATUS_OK);
    assert_int_equal(os_file_map(f, &again, &err), STATUS_OK);
    assert_ptr_equal(p, again);
    for (size_t i = 0; i < n; i++) assert_int_equal(p[i], byte_at(i));
    assert_true(os_file_intact(f));
    os_file_close(f);
    temp_dir_write(&d, "empty", "", 0, path);
    assert_int_equal(os_file_open(m, path, &f, &err), STATUS_OK);
    p = NULL;
    assert_int_equal(os_file_map(f, &p, &err), STATUS_FORMAT);
    assert_contains(err.text, "empty");
    assert_null(p);
    os_file_close(f);
    temp_dir_remove(&d);
    test_mem_check(m);
}

static void a_shrinking_file_reads_as_zeros(void **state) {
    (void)state;
    mem *m = test_mem();
    temp_dir d = temp_dir_make();
    size_t page = page_bytes(), n = N_PAGES * page + 17;
    char path[512], other_path[512];
    write_pattern(&d, "other", n, other_path);
    os_file *other = NULL;
    const uint8_t *q = NULL;
    assert_int_equal(os_file_open(m, other_path, &other, NULL), STATUS_OK);
    assert_int_equal(os_file_map(other, &q, NULL), STATUS_OK);
    for (int round = 0; round < 3; round++) { /* a slot of the table is used again */
        write_pattern(&d, "file", n, path);
        os_file *f = NULL;
        const uint8_t *p = NULL;
        assert_int_equal(os_file_open(m, path, &f, NULL), STATUS_OK);
        assert_int_equal(os_file_map(f, &p, NULL), STATUS_OK);
        assert_int_equal(p[n - 1], byte_at(n - 1));
        assert_true(os_file_intact(f));
        assert_int_equal(truncate(path, (off_t)(2 * page)), 0);
        assert_int_equal(p[page], byte_at(page));
        assert_int_equal(p[5 * page + 3], 0);
        assert_int_equal(p[n - 1], 0);
        assert_false(os_file_intact(f));
        assert_int_equal(truncate(path, (off_t)n), 0); /* long enough again, but not what it was */
        assert_false(os_file_intact(f));
        uint64_t sum = 0;
        for (size_t i = 2 * page; i < n; i++) sum += p[i];
        assert_int_equal(sum, 0);
        os_file_close(f);
    }
    assert_true(os_file_intact(other));
    for (size_t i = 0; i < n; i++) assert_int_equal(q[i], byte_at(i));
    os_file_close(other);
    temp_dir_remove(&d);
    test_mem_check(m);
}

typedef struct toucher {
    const uint8_t *p;
    size_t n, step;
    pthread_barrier_t *start;
    uint64_t sum;
} toucher;

static void *touch(void *arg) {
    toucher *t = arg;
    pthread_barrier_wait(t->start);
    for (size_t i = 0; i < t->n; i += t->step) t->sum += t->p[i];
    return NULL;
}

static void several_threads_may_fault_at_once(void **state) {
    (void)state;
    mem *m = test_mem();
    temp_dir d = temp_dir_make();
    enum { N = 4, N_FILES = 3 };
    size_t page = page_bytes(), n = N_PAGES * page;
    for (int round = 0; round < 10; round++) {
        os_file *files[N_FILES];
        const uint8_t *maps[N_FILES];
        for (int i = 0; i < N_FILES; i++) {
            char name[20], path[512];
            snprintf(name, sizeof name, "file%d", i);
            write_pattern(&d, name, n, path);
            assert_int_equal(os_file_open(m, path, &files[i], NULL), STATUS_OK);
            assert_int_equal(os_file_map(files[i], &maps[i], NULL), STATUS_OK);
            if (i > 0) assert_int_equal(truncate(path, 0), 0);
        }
        pthread_barrier_t start;
        pthread_barrier_init(&start, NULL, N * N_FILES);
        pthread_t threads[N * N_FILES];
        toucher touchers[N * N_FILES];
        for (int i = 0; i < N * N_FILES; i++) {
            touchers[i] = (toucher){.p = maps[i % N_FILES], .n = n, .step = page / 2, .start = &start};
            assert_int_equal(pthread_create(&threads[i], NULL, touch, &touchers[i]), 0);
        }
        uint64_t expected = 0;
        for (size_t i = 0; i < n; i += page / 2) expected += byte_at(i);
        for (int i = 0; i < N * N_FILES; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(touchers[i].sum, i % N_FILES ? 0 : expected);
        }
        pthread_barrier_destroy(&start);
        for (int i = 0; i < N_FILES; i++) {
            assert_int_equal(os_file_intact(files[i]), i == 0);
            os_file_close(files[i]);
        }
    }
    temp_dir_remove(&d);
    test_mem_check(m);
}

static void the_table_of_mappings_ends(void **state) {
    (void)state;
    mem *m = test_mem();
    temp_dir d = temp_dir_make();
    char path[512];
    write_pattern(&d, "file", 100, path);
    static os_file *files[MAX_MAPPINGS + 1];
    const uint8_t *p = NULL;
    error err = {0};
    for (int i = 0; i <= MAX_MAPPINGS; i++) assert_int_equal(os_file_open(m, path, &files[i], &err), STATUS_OK);
    for (int i = 0; i < MAX_MAPPINGS; i++) assert_int_equal(os_file_map(files[i], &p, &err), STATUS_OK);
    assert_int_equal(os_file_map(files[MAX_MAPPINGS], &p, &err), STATUS_FULL);
    assert_contains(err.text, path);
    assert_contains(err.text, "256");
    os_file_close(files[100]);
    assert_int_equal(os_file_map(files[MAX_MAPPINGS], &p, &err), STATUS_OK);
    for (int i = 0; i <= MAX_MAPPINGS; i++)
        if (i != 100) os_file_close(files[i]);
    temp_dir_remove(&d);
    test_mem_check(m);
}

/* ---- faults that are not ours: in a child, whose end is looked at ---- */

typedef struct scene {
    mem *m;
    char path[512];
    size_t page;
} scene;

static int end_of(scene *s, void (*play)(scene *)) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(99);
        play(s);
        _exit(0);
    }
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    return how;
}

static void on_bus_exit(int number) {
    (void)number;
    _exit(42);
}

static void on_bus_exit_info(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)context;
    _exit(info->si_code > 0 ? 43 : 44);
}

static void map_one(scene *s) {
    os_file *f = NULL;
    const uint8_t *p = NULL;
    if (os_file_open(s->m, s->path, &f, NULL) != STATUS_OK || os_file_map(f, &p, NULL) != STATUS_OK) _exit(98);
}

static void write_to_a_patched_page(scene *s) {
    signal(SIGSEGV, SIG_DFL);
    os_file *f = NULL;
    const uint8_t *p = NULL;
    if (os_file_open(s->m, s->path, &f, NULL) != STATUS_OK || os_file_map(f, &p, NULL) != STATUS_OK || truncate(s->path, 0)) _exit(98);
    if (p[s->page]) _exit(97);
    *(volatile uint8_t *)(uintptr_t)(p + s->page) = 1;
}

/* Fault in a mapping that was made without us. */
static void fault_elsewhere(scene *s) {
    int fd = open(s->path, O_RDWR);
    volatile unsigned char *p = mmap(NULL, 4 * s->page, PROT_READ, MAP_SHARED, fd, 0);
    if (fd < 0 || p == MAP_FAILED || ftruncate(fd, 0)) _exit(97);
    (void)p[2 * s->page];
}

static void fault_without_previous(scene *s) {
    signal(SIGBUS, SIG_DFL);
    map_one(s);
    fault_elsewhere(s);
}

static void fault_with_previous(scene *s) {
    signal(SIGBUS, on_bus_exit);
    map_one(s);
    fault_elsewhere(s);
}

static void fault_with_previous_info(scene *s) {
    struct sigaction action = {.sa_sigaction = on_bus_exit_info, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, NULL);
    map_one(s);
    fault_elsewhere(s);
}

/* A host that replaced our handler, hands on what it gets, and is replaced in turn. */
static struct sigaction host_previous;
static volatile int n_host_calls;

static void host_hands_on(int number, siginfo_t *info, void *context) {
    n_host_calls++;
    if (n_host_calls > 1) _exit(45);
    host_previous.sa_sigaction(number, info, context);
}

static void host_between(scene *s) {
    struct sigaction action = {.sa_sigaction = on_bus_exit_info, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, NULL);
    map_one(s);
    action.sa_sigaction = host_hands_on;
    sigaction(SIGBUS, &action, &host_previous);
    map_one(s);
    fault_elsewhere(s); /* ours, the host's, ours again, the one before both */
}

static void replaced_by_default(scene *s) {
    map_one(s);
    signal(SIGBUS, SIG_DFL);
    os_file *f = NULL;
    const uint8_t *p = NULL;
    if (os_file_open(s->m, s->path, &f, NULL) != STATUS_OK || os_file_map(f, &p, NULL) != STATUS_OK || truncate(s->path, 0)) _exit(98);
    if (p[s->page] || os_file_intact(f)) _exit(96);
}

static void sent_without_previous(scene *s) {
    signal(SIGBUS, SIG_DFL);
    map_one(s);
    raise(SIGBUS);
}

static void sent_with_previous_info(scene *s) {
    struct sigaction action = {.sa_sigaction = on_bus_exit_info, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, NULL);
    map_one(s);
    raise(SIGBUS);
}

/* A signal that was sent can carry any address, also one of ours. */
static void sent_with_an_address(scene *s) {
    struct sigaction action = {.sa_sigaction = on_bus_exit_info, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, NULL);
    os_file *f = NULL;
    const uint8_t *p = NULL;
    if (os_file_open(s->m, s->path, &f, NULL) != STATUS_OK || os_file_map(f, &p, NULL) != STATUS_OK) _exit(98);
    siginfo_t info = {.si_signo = SIGBUS, .si_code = SI_QUEUE};
    info.si_addr = (void *)(uintptr_t)p;
    if (syscall(SYS_rt_sigqueueinfo, getpid(), SIGBUS, &info)) _exit(97);
    if (!os_file_intact(f)) _exit(96);
}

static void sent_while_ignored(scene *s) {
    signal(SIGBUS, SIG_IGN);
    map_one(s);
    raise(SIGBUS);
}

static void write_to_the_mapping(scene *s) {
    signal(SIGBUS, SIG_DFL);
    signal(SIGSEGV, SIG_DFL);
    os_file *f = NULL;
    const uint8_t *p = NULL;
    if (os_file_open(s->m, s->path, &f, NULL) != STATUS_OK || os_file_map(f, &p, NULL) != STATUS_OK) _exit(98);
    *(volatile uint8_t *)(uintptr_t)p = 1;
}

static void other_faults_go_to_the_previous_action(void **state) {
    (void)state;
    mem *m = test_mem();
    temp_dir d = temp_dir_make();
    scene s = {.m = m, .page = page_bytes()};
    write_pattern(&d, "file", 4 * s.page, s.path);
    int how = end_of(&s, sent_while_ignored);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    how = end_of(&s, sent_without_previous);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGBUS);
    how = end_of(&s, sent_with_previous_info);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 44);
    how = end_of(&s, sent_with_an_address);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 44);
    how = end_of(&s, write_to_the_mapping);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGSEGV);
    how = end_of(&s, write_to_a_patched_page);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGSEGV);
    static const struct {
        void (*play)(scene *);
        int exit_status;
    } faults[] = {{fault_without_previous, -1},
                  {fault_with_previous, 42},
                  {fault_with_previous_info, 43},
                  {host_between, 43},
                  {replaced_by_default, 0}};
    for (int i = 0; i < 5; i++) {
        write_pattern(&d, "file", 4 * s.page, s.path); /* each scene cuts it */
        how = end_of(&s, faults[i].play);
        if (faults[i].exit_status < 0) {
            assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGBUS);
        } else {
            assert_true(WIFEXITED(how));
            assert_int_equal(WEXITSTATUS(how), faults[i].exit_status);
        }
    }
    temp_dir_remove(&d);
    test_mem_check(m);
}

/* ---- texts ---- */

/* Who had the lock before may have put the file in place meanwhile: what has its name now is opened, and the file that went is whole. */
static char renamed_from[512], renamed_to[512];
int __real_flock(int fd, int how);
int __wrap_flock(int fd, int how);
int __wrap_flock(int fd, int how) {
    if (renamed_to[0] != '\0') {
        assert_int_equal(rename(renamed_from, renamed_to), 0);
        renamed_to[0] = '\0';
    }
    return __real_flock(fd, how);
}

static void an_output_is_what_has_its_name(void **state) {
    (void)state;
    temp_dir d = temp_dir_make();
    mem *m = test_mem();
    error err = {0};
    os_output *o, *second = NULL;
    struct stat st;
    char path[512], final[520];
    write_pattern(&d, "x.partial", 100, path);
    snprintf(final, sizeof final, "%s.final", path);
    snprintf(renamed_from, sizeof renamed_from, "%s", path);
    memcpy(renamed_to, final, sizeof renamed_to);
    if (os_output_open(m, path, false, &o, &err) != STATUS_OK) fail_msg("%s", err.text);
    assert_int_equal(stat(final, &st), 0);
    assert_int_equal(st.st_size, 100);
    assert_int_equal(os_output_size(o), 0);
    assert_int_equal(os_output_write(o, 0, "abc", 3, &err), STATUS_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 3);
    assert_int_equal(os_output_open(m, path, false, &second, &err), STATUS_NOT_NOW);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 3);
    os_output_close(o);
    assert_true(os_same_file(path, path));
    assert_false(os_same_file(path, final));
    test_mem_check(m);
    temp_dir_remove(&d);
}

static void only_files_are_replaced(void **state) {
    (void)state;
    temp_dir d = temp_dir_make();
    error err = {0};
    struct stat st;
    char from[512], to[512];
    write_pattern(&d, "new", 3, from);
    write_pattern(&d, "old", 100, to);
    assert_int_equal(os_replaceable(to, &err), STATUS_OK);
    assert_int_equal(os_rename(from, to, &err), STATUS_OK);
    assert_int_equal(stat(to, &st), 0);
    assert_int_equal(st.st_size, 3);
    snprintf(to, sizeof to, "%s/nothing", d.path);
    assert_int_equal(os_replaceable(to, &err), STATUS_OK);
    write_pattern(&d, "new", 3, from);
    snprintf(to, sizeof to, "%s/pipe", d.path); /* stands for a device: rename(2) would take its place */
    assert_int_equal(mkfifo(to, 0600), 0);
    assert_int_equal(os_replaceable(to, &err), STATUS_INVALID);
    assert_int_equal(os_rename(from, to, &err), STATUS_INVALID);
    assert_contains(err.text, "is a device, pipe or socket");
    assert_int_equal(stat(to, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(os_rename(from, d.path, &err), STATUS_INVALID);
    assert_contains(err.text, "is a directory");
    assert_int_equal(os_rename(from, "", &err), STATUS_INVALID);
    assert_contains(err.text, "empty name");
    temp_dir_remove(&d);
}

static void texts_are_bounded(void **state) {
    (void)state;
    mem *m = test_mem();
    temp_dir d = temp_dir_make();
    char path[512];
    write_pattern(&d, "file", 10000, path);
    char *text = NULL;
    size_t n = 0;
    error err = {0};
    assert_int_equal(os_read_text(m, MEM_PROCESS, path, 10000, &text, &n, &err), STATUS_OK);
    assert_int_equal(n, 10000);
    assert_int_equal(text[10000], 0);
    for (size_t i = 0; i < n; i++) assert_int_equal((unsigned char)text[i], byte_at(i));
    mem_free(m, text);
    text = NULL;
    assert_int_equal(os_read_text(m, MEM_PROCESS, path, 9999, &text, &n, &err), STATUS_INVALID);
    assert_contains(err.text, "more than 9999 bytes");
    assert_int_equal(os_read_text(m, MEM_PROCESS, "/dev/zero", 100000, &text, &n, &err), STATUS_INVALID);
    assert_contains(err.text, "/dev/zero: is a device, pipe or socket, not a file");
    assert_int_equal(os_read_text(m, MEM_PROCESS, d.path, 100, &text, &n, &err), STATUS_INVALID);
    assert_contains(err.text, "is a directory, not a file");
    snprintf(path, sizeof path, "%s/pipe", d.path); /* nobody writes to it: must not hang */
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(os_read_text(m, MEM_PROCESS, path, 100, &text, &n, &err), STATUS_INVALID);
    assert_contains(err.text, "is a device, pipe or socket, not a file");
    snprintf(path, sizeof path, "%s/missing", d.path);
    assert_int_equal(os_read_text(m, MEM_PROCESS, path, 100, &text, &n, &err), STATUS_NOT_FOUND);
    assert_null(text);
    temp_dir_write(&d, "empty", "", 0, path);
    assert_int_equal(os_read_text(m, MEM_PROCESS, path, 0, &text, NULL, &err), STATUS_OK);
    assert_string_equal(text, "");
    mem_free(m, text);
    assert_int_equal(os_read_text(m, MEM_PROCESS, "/proc/self/status", 1 << 20, &text, &n, &err), STATUS_OK); /* its size reads 0 */
    assert_contains(text, "VmRSS");
    mem_free(m, text);
    temp_dir_remove(&d);
    test_mem_check(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_and_reads),
        cmocka_unit_test(a_file_that_is_written_to_is_not_intact),
        cmocka_unit_test(refuses_what_is_no_file),
        cmocka_unit_test(maps_what_the_file_holds),
        cmocka_unit_test(a_shrinking_file_reads_as_zeros),
        cmocka_unit_test(several_threads_may_fault_at_once),
        cmocka_unit_test(the_table_of_mappings_ends),
        cmocka_unit_test(other_faults_go_to_the_previous_action),
        cmocka_unit_test(an_output_is_what_has_its_name),
        cmocka_unit_test(only_files_are_replaced),
        cmocka_unit_test(texts_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
