/* SPDX-License-Identifier: Apache-2.0 */
/* Figures of the system: memory groups and processor topology from trees of our own, the live ones for plausibility; shared objects. */
#include "support/test_case.h"
#include "support/temp_dir.h"

#include <sched.h>
#include <unistd.h>

#include "base/os_linux.h"

#define GIB (UINT64_C(1) << 30)
#define MIB (UINT64_C(1) << 20)

/* The lines around a memory hierarchy in /proc/self/mountinfo. */
#define MOUNT_V1(root, point) "35 31 0:32 " root " " point " rw,relatime shared:9 - cgroup cgroup rw,memory\n"
#define MOUNT_V2(root, point) "41 31 0:38 " root " " point " rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
#define OTHER_MOUNTS                                                                                                                       \
    "22 27 0:20 / /sys rw,nosuid - sysfs sysfs rw\n"                                                                                       \
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"                                                                  \
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,memoryless\n"

/* Flags of the mapping that holds an address, from /proc/self/smaps: " rd wr mr ... "; empty when it is not found. */
static void mapping_flags(const void *at, char *out, size_t n) {
    char line[512];
    unsigned long long begin, end;
    bool here = false;
    FILE *f = fopen("/proc/self/smaps", "r");
    assert_non_null(f);
    *out = 0;
    while (fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "%llx-%llx ", &begin, &end) == 2 && strchr(line, '-') < strchr(line, ' ')) here = begin <= (uintptr_t)at && (uintptr_t)at < end;
        if (here && strncmp(line, "VmFlags:", 8) == 0) snprintf(out, n, "%.200s", line + 8);
    }
    fclose(f);
}

/* Whole large pages inside the range are asked for, nothing around them, and nothing is written. */
static void large_pages_are_asked_for(void **state) {
    (void)state;
    enum { LARGE = 2 << 20, N = 8 * LARGE };
    char flags[256];
    unsigned char *p = aligned_alloc(LARGE, N);
    assert_non_null(p);
    memset(p, 7, N);
    os_prefer_large_pages(p + 1, LARGE); /* holds no whole one */
    os_prefer_large_pages(p + 1, 0);
    mapping_flags(p, flags, sizeof flags);
    assert_null(strstr(flags, " hg"));
    os_prefer_large_pages(p + LARGE + 1, 5 * LARGE); /* the four in the middle */
    mapping_flags(p + 3 * LARGE, flags, sizeof flags);
    assert_int_equal(strstr(flags, " hg") != NULL, access("/sys/kernel/mm/transparent_hugepage", F_OK) == 0);
    mapping_flags(p + LARGE, flags, sizeof flags);
    assert_null(strstr(flags, " hg"));
    mapping_flags(p + 6 * LARGE, flags, sizeof flags);
    assert_null(strstr(flags, " hg"));
    for (size_t i = 0; i < N; i++) assert_int_equal(p[i], 7);
    free(p);
}

static os_memory look(const temp_dir *d) {
    os_memory o = {0};
    os_linux_cgroup(d->path, &o);
    return o;
}

static void v2_groups(void **state) {
    (void)state;
    temp_dir d = temp_dir_make();
    os_memory o = look(&d); /* nothing there */
    assert_int_equal(o.cgroup_limit_bytes, 0);
    assert_int_equal(o.cgroup_used_bytes, 0);

    temp_dir_text(&d, "proc/self/cgroup", "0::/pod/box\n");
    temp_dir_text(&d, "proc/self/mountinfo", OTHER_MOUNTS MOUNT_V2("/", "/sys/fs/cgroup"));
    temp_dir_text(&d, "sys/fs/cgroup/pod/box/memory.max", "max\n");
    temp_dir_text(&d, "sys/fs/cgroup/pod/box/memory.current", "1048576000\n");
    temp_dir_text(&d, "sys/fs/cgroup/pod/box/memory.stat",
                  "anon 700\nfile 500000000\nshmem 9\ninactive_anon 3\nactive_anon 4\ninactive_file 300000000\nactive_file 100000000\n");
    o = look(&d);
    assert_int_equal(o.cgroup_limit_bytes, 0); /* no limit */
    assert_int_equal(o.cgroup_used_bytes, 648576000);

    temp_dir_text(&d, "sys/fs/cgroup/pod/box/memory.max", "2147483648\n");
    o = look(&d);
    assert_int_equal(o.cgroup_limit_bytes, 2 * GIB);
    assert_int_equal(o.cgroup_used_bytes, 648576000);

    /* The group above allows more, but others in it use most of that: 3 GiB - 2.5 GiB leaves 512 MiB. */
    temp_dir_text(&d, "sys/fs/cgroup/pod/memory.max", "3221225472\n");
    temp_dir_text(&d, "sys/fs/cgroup/pod/memory.current", "2684354560\n");
    temp_dir_text(&d, "sys/fs/cgroup/pod/memory.stat", "inactive_file 0\nactive_file 0\n");
    o = look(&d);
    assert_int_equal(o.cgroup_limit_bytes, 2 * GIB);
    assert_int_equal(o.cgroup_limit_bytes - o.cgroup_used_bytes, 512 * MIB);

    /* A smaller limit above counts. */
    temp_dir_text(&d, "sys/fs/cgroup/pod/memory.max", "1073741824\n");
    temp_dir_text(&d, "sys/fs/cgroup/pod/memory.current", "104857600\n");
    o = look(&d);
    assert_int_equal(o.cgroup_limit_bytes, GIB);
    assert_int_equal(o.cgroup_used_bytes, 104857600);

    /* Use beyond the limit leaves no room, and never a negative one. */
    temp_dir_text(&d, "sys/fs/cgroup/pod/memory.current", "9073741824\n");
    o = look(&d);
    assert_int_equal(o.cgroup_limit_bytes, GIB);
    assert_int_equal(o.cgroup_used_bytes, GIB);
    temp_dir_remove(&d);
}

static void v1_groups(void **state) {
    (void)state;
    temp_dir d = temp_dir_make();
    temp_dir_text(&d, "proc/self/cgroup", "9:name=systemd:/\n8:pids:/\n4:blkio,memory:/jobs/one\n1:cpu:/\n0::/\n");
    temp_dir_text(&d, "proc/self/mountinfo", OTHER_MOUNTS MOUNT_V1("/", "/sys/fs/cgroup/memory") MOUNT_V2("/", "/sys/fs/cgroup/unified"));
    temp_dir_text(&d, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    temp_dir_text(&d, "sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "9223372036854771712\n");
    temp_dir_text(&d, "sys/fs/cgroup/memory/jobs/one/memory.limit_in_bytes", "9223372036854771712\n");
    temp_dir_text(&d, "sys/fs/cgroup/memory/jobs/one/memory.usage_in_bytes", "524288000\n");
    temp_dir_text(&d, "sys/fs/cgroup/memory/jobs/one/memory.stat",
                  "cache 1\ninactive_file 7\nactive_file 7\ntotal_cache 5\ntotal_inactive_file 24288000\ntotal_active_file 100000000\n");
    os_memory o = look(&d);
    assert_int_equal(o.cgroup_limit_bytes, 0);
    assert_int_equal(o.cgroup_used_bytes, 400000000);
    temp_dir_text(&d, "sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "1073741824\n");
    o = look(&d);
    assert_int_equal(o.cgroup_limit_bytes, GIB);
    temp_dir_text(&d, "sys/fs/cgroup/memory/jobs/one/memory.limit_in_bytes", "536870912\n");
    o = look(&d);
    assert_int_equal(o.cgroup_limit_bytes, GIB / 2);
    assert_int_equal(o.cgroup_used_bytes, 400000000);
    temp_dir_remove(&d);
}

static void groups_in_containers(void **state) {
    (void)state;
    temp_dir d = temp_dir_make();
    /* v1 without a namespace: the group's path is the host's, and the container's part is mounted. A blank in the mount point. */
    temp_dir_text(&d, "proc/self/cgroup", "4:memory:/docker/abc\n");
    temp_dir_text(&d, "proc/self/mountinfo", MOUNT_V1("/docker/abc", "/sys/fs/cgroup/memory\\040group"));
    temp_dir_text(&d, "sys/fs/cgroup/memory group/memory.limit_in_bytes", "1073741824\n");
    temp_dir_text(&d, "sys/fs/cgroup/memory group/memory.usage_in_bytes", "1000\n");
    os_memory o = look(&d);
    assert_int_equal(o.cgroup_limit_bytes, GIB);
    assert_int_equal(o.cgroup_used_bytes, 1000); /* without memory.stat nothing is known to be reclaimable */
    /* A group below what is mounted, and one whose name only begins alike. */
    temp_dir_text(&d, "proc/self/cgroup", "4:memory:/docker/abc/job\n");
    temp_dir_text(&d, "sys/fs/cgroup/memory group/job/memory.limit_in_bytes", "1048576\n");
    assert_int_equal(look(&d).cgroup_limit_bytes, MIB);
    temp_dir_text(&d, "proc/self/cgroup", "4:memory:/docker/abcdef/job\n");
    assert_int_equal(look(&d).cgroup_limit_bytes, GIB);
    /* v2 in a namespace: the root is ours; a group outside of it is written with "..". */
    temp_dir_text(&d, "proc/self/cgroup", "0::/../other\n");
    temp_dir_text(&d, "proc/self/mountinfo", MOUNT_V2("/", "/sys/fs/cgroup"));
    temp_dir_text(&d, "sys/fs/cgroup/memory.max", "4096\n");
    assert_int_equal(look(&d).cgroup_limit_bytes, 4096);
    temp_dir_text(&d, "sys/fs/cgroup/memory.max", "0\n"); /* a limit of nothing is a limit */
    assert_true(look(&d).cgroup_limit_bytes > 0);
    temp_dir_remove(&d);
}

static void both_versions_at_once(void **state) {
    (void)state;
    temp_dir d = temp_dir_make();
    temp_dir_text(&d, "proc/self/cgroup", "4:memory:/a\n0::/b\n");
    temp_dir_text(&d, "proc/self/mountinfo", MOUNT_V1("/", "/one") MOUNT_V2("/", "/two"));
    temp_dir_text(&d, "one/a/memory.limit_in_bytes", "2097152\n");
    temp_dir_text(&d, "two/b/memory.max", "1048576\n");
    assert_int_equal(look(&d).cgroup_limit_bytes, MIB);
    temp_dir_text(&d, "one/a/memory.limit_in_bytes", "8192\n");
    assert_int_equal(look(&d).cgroup_limit_bytes, 8192);
    temp_dir_remove(&d);
}

static void hostile_group_files(void **state) {
    (void)state;
    static const char *const cgroups[] = {"",         "\n\n",     "0::\n",      "0:\n",          ":::\n", "4:memory:\n",
                                          "memory\n", "0::/a/\n", "4:memory:x", "0::/a\n0::/b\n"};
    static const char *const mounts[] = {"",
                                         " - \n",
                                         "1 2 3 - cgroup2\n",
                                         "1 2 3 / - cgroup2 x y\n",
                                         "- cgroup2 - cgroup2 a b\n",
                                         MOUNT_V2("/", "/"),
                                         MOUNT_V2("\\", "\\777\\0"),
                                         MOUNT_V2("/a", "/sys")};
    static const char *const numbers[] = {"", "max", "-1", "99999999999999999999999", " 12x", "0x10"};
    temp_dir d = temp_dir_make();
    int n = 0;
    for (int c = 0; c < 10; c++) {
        for (int k = 0; k < 8; k++) {
            temp_dir_text(&d, "proc/self/cgroup", cgroups[c]);
            temp_dir_text(&d, "proc/self/mountinfo", mounts[k]);
            temp_dir_text(&d, "memory.max", numbers[n % 6]);
            temp_dir_text(&d, "a/memory.max", numbers[n % 6]);
            (void)look(&d);
            n++;
        }
    }
    char *line = malloc(300000);
    assert_non_null(line);
    memset(line, '/', 299999);
    line[299999] = 0;
    memcpy(line, "0::", 3);
    temp_dir_text(&d, "proc/self/cgroup", line);
    temp_dir_text(&d, "proc/self/mountinfo", MOUNT_V2("/", "/sys"));
    (void)look(&d);
    temp_dir_text(&d, "proc/self/cgroup", "0::/a\n");
    temp_dir_text(&d, "proc/self/mountinfo", line);
    (void)look(&d);
    free(line);
    temp_dir_remove(&d);
}

static void topology(const temp_dir *d, int cpu, const char *siblings) {
    char name[200];
    snprintf(name, sizeof name, "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    temp_dir_text(d, name, siblings);
}

static void cores_from_siblings(void **state) {
    (void)state;
    temp_dir d = temp_dir_make();
    static const int all[] = {0, 1, 2, 3, 4, 5, 6, 7};
    /* Processors 0-3 are the first threads of four cores, 4-7 the second ones. */
    for (int i = 0; i < 8; i++) {
        char text[20];
        snprintf(text, sizeof text, "%d,%d\n", i % 4, i % 4 + 4);
        topology(&d, i, text);
    }
    assert_int_equal(os_linux_cores(d.path, all, 8), 4);
    assert_int_equal(os_linux_cores(d.path, all, 4), 4);
    assert_int_equal(os_linux_cores(d.path, all + 4, 4), 4); /* second threads only: their cores count */
    static const int pair[] = {2, 6}, mixed[] = {0, 1, 4, 7};
    assert_int_equal(os_linux_cores(d.path, pair, 2), 1);
    assert_int_equal(os_linux_cores(d.path, mixed, 4), 3);
    for (int i = 0; i < 8; i++) topology(&d, i, i < 4 ? "0-3\n" : "4-7\n"); /* four threads a core */
    assert_int_equal(os_linux_cores(d.path, all, 8), 2);
    static const char *const bad[] = {"", "x\n", "0-\n", "3-1\n", "-1\n", "0;4\n", "99999999999999999999\n", "5,6\n"};
    for (int i = 0; i < 8; i++) {
        topology(&d, 0, bad[i]);
        assert_int_equal(os_linux_cores(d.path, all, 2), 0);
    }
    static const int missing[] = {9};
    assert_int_equal(os_linux_cores(d.path, missing, 1), 0);
    assert_int_equal(os_linux_cores(d.path, all, 0), 0);
    temp_dir_remove(&d);
}

static void lines_of_any_length(void **state) {
    (void)state;
    temp_dir d = temp_dir_make();
    char text[3 * OS_LINE_BYTES];
    memset(text, 'x', sizeof text);
    memcpy(text, "one\n\n", 5);
    text[5 + OS_LINE_BYTES + 100] = '\n';
    memcpy(text + 5 + OS_LINE_BYTES + 101, "key:\t 77 kB", 12);
    temp_dir_text(&d, "file", text);
    os_lines lines;
    assert_true(os_lines_open(&lines, d.path, "/file"));
    assert_true(os_lines_next(&lines));
    assert_string_equal(lines.line, "one");
    assert_true(os_lines_next(&lines));
    assert_string_equal(lines.line, "");
    assert_true(os_lines_next(&lines));
    assert_int_equal(strlen(lines.line), OS_LINE_BYTES - 1);
    assert_true(os_lines_next(&lines));
    assert_string_equal(lines.line, "key:\t 77 kB");
    assert_false(os_lines_next(&lines));
    os_lines_close(&lines);
    uint64_t v = 0;
    assert_true(os_lines_find(d.path, "/file", "key:", &v));
    assert_int_equal(v, 77);
    assert_false(os_lines_find(d.path, "/file", "one", &v));
    assert_false(os_lines_find(d.path, "/missing", "one", &v));
    assert_false(os_lines_open(&lines, d.path, "/missing"));
    temp_dir_remove(&d);
}

static void the_live_system_is_plausible(void **state) {
    (void)state;
    os_memory o;
    os_get_memory(&o);
    assert_true(o.total_bytes > 64 * MIB);
    assert_true(o.available_bytes > 0 && o.available_bytes <= o.total_bytes);
    assert_int_equal(o.page_bytes, (uint64_t)sysconf(_SC_PAGESIZE));
    assert_int_equal(o.total_bytes / o.page_bytes, (uint64_t)sysconf(_SC_PHYS_PAGES)); /* another source for the same figure */
    if (o.cgroup_limit_bytes) assert_true(o.cgroup_used_bytes <= o.cgroup_limit_bytes);
    int n_cpus = os_cpu_count(), n_cores = os_core_count();
    assert_true(n_cpus >= 1 && n_cpus <= sysconf(_SC_NPROCESSORS_CONF));
    assert_true(n_cores >= 1 && n_cores <= n_cpus);
    char name[200] = "", tiny[4];
    os_cpu_name(name, sizeof name);
    assert_true(strlen(name) > 0);
    os_cpu_name(tiny, sizeof tiny);
    assert_int_equal(strlen(tiny), 3);
    os_cpu_name(tiny, 0);
    uint64_t rss = os_process_rss_bytes(), anon = os_process_anon_bytes();
    assert_true(rss > 0 && anon > 0 && anon <= rss + 16 * MIB);
    char *block = malloc(32 * MIB);
    assert_non_null(block);
    memset(block, 1, 32 * MIB);
    assert_true(os_process_anon_bytes() >= anon + 31 * MIB);
    assert_true(os_process_rss_bytes() >= rss + 31 * MIB);
    free(block);
    uint64_t before = os_now_ns();
    assert_true(os_now_ns() >= before);
    assert_true(before > 0);
    assert_false(os_stream_is_tty(-1));
}

static void the_affinity_mask_counts(void **state) {
    (void)state;
    if (os_cpu_count() < 2) skip();
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &before)) CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(os_cpu_count(), 1);
    assert_int_equal(os_core_count(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

static void executable_libraries_environment(void **state) {
    (void)state;
    char dir[4096], probe[4200];
    assert_int_equal(os_exe_dir(dir, sizeof dir), STATUS_OK);
    assert_true(dir[0] == '/' && dir[strlen(dir) - 1] != '/');
    snprintf(probe, sizeof probe, "%s/test_os_system", dir);
    assert_int_equal(access(probe, X_OK), 0);
    assert_int_equal(os_exe_dir(dir, strlen(dir)), STATUS_INVALID); /* no room for the NUL */

    mem *m = test_mem();
    error err = {0};
    os_library *l = NULL;
    assert_int_equal(os_library_open(m, "libm.so.6", &l, &err), STATUS_OK);
    assert_non_null(os_library_symbol(l, "cos"));
    assert_null(os_library_symbol(l, "no_such_symbol_here"));
    os_library_close(l);
    os_library_close(NULL);
    l = NULL;
    assert_int_equal(os_library_open(m, "/no/such/library.so", &l, &err), STATUS_NOT_FOUND);
    assert_contains(err.text, "/no/such/library.so");
    assert_int_equal(os_library_open(m, "/proc/self/status", &l, &err), STATUS_FAILED); /* there, but no library */
    assert_contains(err.text, "/proc/self/status");
    assert_null(l);
    test_mem_check(m);

    uint64_t drawn[2][2] = {{0}};
    assert_true(os_random(drawn[0], sizeof drawn[0]) && os_random(drawn[1], sizeof drawn[1]));
    assert_true(drawn[0][0] != drawn[1][0] && drawn[0][1] != drawn[1][1] && drawn[0][0] != 0);
    assert_false(os_random(drawn, 1 << 20));

    assert_int_equal(setenv("HEADRACE_TEST_OS", "seen", 1), 0);
    assert_string_equal(os_env("HEADRACE_TEST_OS"), "seen");
    int n_found = 0;
    const char *entry;
    for (int i = 0; (entry = os_env_entry(i)) != NULL; i++) n_found += strcmp(entry, "HEADRACE_TEST_OS=seen") == 0;
    assert_int_equal(n_found, 1);
    unsetenv("HEADRACE_TEST_OS");
    assert_null(os_env("HEADRACE_TEST_OS"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(v2_groups),
        cmocka_unit_test(large_pages_are_asked_for),
        cmocka_unit_test(v1_groups),
        cmocka_unit_test(groups_in_containers),
        cmocka_unit_test(both_versions_at_once),
        cmocka_unit_test(hostile_group_files),
        cmocka_unit_test(cores_from_siblings),
        cmocka_unit_test(lines_of_any_length),
        cmocka_unit_test(the_live_system_is_plausible),
        cmocka_unit_test(the_affinity_mask_counts),
        cmocka_unit_test(executable_libraries_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
