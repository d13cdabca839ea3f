/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that may not have what readers of experts would like: io_uring forbidden by the kernel's own filter, as containers do it, and descriptors that run out at each point of a load. What is left is used, with
 * the same bits, and the log says why; what was asked for by name is refused. Each case limits its own process for good, so it is a test of its own; 77 where the limit cannot be had.
 * Usage: fault_limits FIXTURE eperm|enosys|descriptors
 */
#include "model/model_support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"

static const char *fixture;
static char bank[64], reader_line[2048];
static support_alone alone;
static headrace_engine *last;

static void on_log(void *user, log_level level, const char *line) {
    (void)user, (void)level;
    if (strstr(line, "experts are read by") != NULL) snprintf(reader_line, sizeof reader_line, "%s", line);
}

static headrace_status load(const char *reader, headrace_error *err) {
    headrace_config *c = NULL;
    const char *const keys[][2] = {{"model", fixture}, {"experts", "stream"}, {"host-experts", "min"}, {"expert-bank", bank}, {"threads", "1"}, {"expert-reader", reader}};
    assert_int_equal(headrace_config_create(&c, err), HEADRACE_OK);
    for (size_t i = 0; i < (reader != NULL ? 6 : 5); i++) assert_int_equal(headrace_config_set(c, keys[i][0], keys[i][1], err), HEADRACE_OK);
    reader_line[0] = '\0';
    const headrace_status rc = headrace_load(c, NULL, NULL, &last, err);
    headrace_config_destroy(c);
    return rc;
}

static headrace_expert_reader right_bits(void) {
    for (int n = 1; n <= 3; n++) (void)support_same_bits(&alone, last, n, n, 0);
    const headrace_stats st = support_stats(last);
    assert_true(st.expert_misses > 0 && st.expert_evictions > 0 && st.expert_failures == 0);
    headrace_free(last);
    return st.expert_reader;
}

static int setup(void **state) {
    (void)state;
    headrace_config *c = NULL;
    headrace_error err = {0};
    headrace_pack_result made = {.size = sizeof made};
    char dir[] = "/tmp/headrace-limits-XXXXXX";
    log_set(on_log, NULL, LOG_LEVEL_INFO);
    assert_non_null(mkdtemp(dir));
    snprintf(bank, sizeof bank, "%s/bank", dir);
    assert_int_equal(headrace_config_create(&c, &err), HEADRACE_OK);
    assert_int_equal(headrace_config_set(c, "model", fixture, &err), HEADRACE_OK);
    if (headrace_pack(c, bank, NULL, NULL, &made, &err) != HEADRACE_OK) fail_msg("%s", err.text);
    headrace_config_destroy(c);
    headrace_engine *e = support_load(fixture, "experts", "resident", "threads", "1", NULL);
    support_alone_run(&alone, e, fixture);
    headrace_free(e);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    support_alone_free(&alone);
    unlink(bank);
    *strrchr(bank, '/') = '\0';
    return rmdir(bank);
}

/* ---- io_uring ---- */

static int seccomp_errno;

static bool forbid_ring(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), /* seccomp_data.nr */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)seccomp_errno),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0) return true;
    print_message("SKIPPED: no filter of system calls can be set here: %s\n", strerror(errno));
    return false;
}

static void io_uring_is_forbidden(void **state) {
    (void)state;
    headrace_error err = {0};
    assert_int_equal(load("io_uring", &err), HEADRACE_UNSUPPORTED);
    assert_non_null(strstr(err.text, "no io_uring"));
    assert_non_null(strstr(err.text, "seccomp profile"));
    if (load("pread", &err) != HEADRACE_OK) fail_msg("%s", err.text);
    assert_int_equal(right_bits(), HEADRACE_READER_PREAD);
    if (load(NULL, &err) != HEADRACE_OK) fail_msg("%s", err.text);
    assert_int_equal(right_bits(), HEADRACE_READER_PREAD);
    if (strstr(reader_line, "no io_uring") == NULL || strstr(reader_line, "seccomp profile") == NULL) fail_msg("\"%s\"", reader_line);
}

/* ---- descriptors ---- */

enum { MANY = 1024 };

/* Of the first many; with `fill`, none is left free below the last. */
static int open_descriptors(bool fill) {
    int most = 0;
    for (int fd = 0; fd < MANY; fd++) {
        if (fcntl(fd, F_GETFD) >= 0) most = fd + 1;
    }
    for (int fd = 0; fill && fd < most; fd++) {
        if (fcntl(fd, F_GETFD) < 0) assert_int_equal(open("/dev/null", O_RDONLY | O_CLOEXEC), fd);
    }
    return most;
}

/* One more each round: a load says that there are too many, or goes on with what it has. */
static void descriptors_run_out(void **state) {
    (void)state;
    const int used = open_descriptors(true);
    int n_refused = 0, n_ways = 0;
    bool way[4] = {false};
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (int more = 0; more < 12; more++) {
        headrace_error err = {0};
        const struct rlimit few = {.rlim_cur = (rlim_t)(used + more), .rlim_max = before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        const headrace_status rc = load(NULL, &err);
        if (rc == HEADRACE_OK) {
            const headrace_expert_reader r = right_bits();
            n_ways += !way[r];
            way[r] = true;
        } else {
            if (strstr(err.text, "Too many open files") == NULL) fail_msg("with %d descriptors: %d: %s", more, (int)rc, err.text);
            assert_int_equal(n_ways, 0); /* one more is never worse */
            n_refused++;
        }
        print_message("%d descriptors: %s\n", more, rc == HEADRACE_OK ? reader_line : err.text);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_int_equal(open_descriptors(false), used);
    }
    assert_true(n_refused > 0 && way[HEADRACE_READER_BUFFERED] && n_ways > 1);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    fixture = argv[1];
    const struct CMUnitTest ring[] = {cmocka_unit_test(io_uring_is_forbidden)}, files[] = {cmocka_unit_test(descriptors_run_out)};
    if (strcmp(argv[2], "descriptors") == 0) return cmocka_run_group_tests(files, setup, teardown);
    seccomp_errno = strcmp(argv[2], "eperm") == 0 ? EPERM : ENOSYS;
    if (!forbid_ring()) return 77;
    return cmocka_run_group_tests(ring, setup, teardown);
}
