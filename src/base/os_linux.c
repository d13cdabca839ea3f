/* SPDX-License-Identifier: Apache-2.0 */
/* Linux: processors, clock, process, environment, shared objects. Files are in os_linux_file.c, memory figures in os_linux_memory.c. */
#include "base/os.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/os_linux.h"

extern char **environ;

enum { MAX_CPUS = 8192 }; /* the largest CONFIG_NR_CPUS */

/* Processors of the affinity mask, ascending; 0 when the kernel does not say. */
static int affinity(int cpus[MAX_CPUS]) {
    cpu_set_t sets[MAX_CPUS / CPU_SETSIZE];
    memset(sets, 0, sizeof sets);
    if (sched_getaffinity(0, sizeof sets, sets)) return 0;
    int n = 0;
    for (int i = 0; i < MAX_CPUS; i++)
        if (CPU_ISSET_S((size_t)i, sizeof sets, sets)) cpus[n++] = i;
    return n;
}

int os_cpu_count(void) {
    int cpus[MAX_CPUS];
    int n = affinity(cpus);
    if (n > 0) return n;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 && online <= MAX_CPUS ? (int)online : 1;
}

int os_core_count(void) {
    int cpus[MAX_CPUS];
    int n = affinity(cpus);
    int n_cores = os_linux_cores("", cpus, n);
    return n_cores > 0 ? n_cores : os_cpu_count();
}

static bool listed(const int *cpus, int n_cpus, long cpu) {
    for (int i = 0; i < n_cpus && cpus[i] <= cpu; i++)
        if (cpus[i] == cpu) return true;
    return false;
}

/* The smallest listed processor in "0,4-5" that is also one of ours; -1 when the text is malformed or none is. */
static long first_sibling(const char *text, const int *cpus, int n_cpus) {
    long smallest = -1;
    const char *p = text;
    for (;;) {
        char *end;
        long from = strtol(p, &end, 10), to = from;
        if (end == p || from < 0 || from >= MAX_CPUS) return -1;
        if (*end == '-') {
            p = end + 1;
            to = strtol(p, &end, 10);
            if (end == p || to < from || to >= MAX_CPUS) return -1;
        }
        for (long cpu = from; cpu <= to; cpu++)
            if (listed(cpus, n_cpus, cpu) && (smallest < 0 || cpu < smallest)) smallest = cpu;
        if (*end != ',') return *end == 0 ? smallest : -1;
        p = end + 1;
    }
}

int os_linux_cores(const char *root, const int *cpus, int n_cpus) {
    int n_cores = 0;
    for (int i = 0; i < n_cpus; i++) {
        char path[128];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpus[i]);
        os_lines lines;
        if (!os_lines_open(&lines, root, path)) return 0;
        long first = os_lines_next(&lines) ? first_sibling(lines.line, cpus, n_cpus) : -1;
        os_lines_close(&lines);
        if (first < 0) return 0;
        n_cores += first == cpus[i];
    }
    return n_cores;
}

void os_cpu_name(char *out, size_t n) {
    if (n == 0) return;
    os_lines lines;
    if (os_lines_open(&lines, "", "/proc/cpuinfo")) {
        while (os_lines_next(&lines)) {
            const char *colon = strchr(lines.line, ':');
            if (strncmp(lines.line, "model name", 10) != 0 || !colon) continue;
            snprintf(out, n, "%s", colon[1] == ' ' ? colon + 2 : colon + 1);
            os_lines_close(&lines);
            return;
        }
        os_lines_close(&lines);
    }
    struct utsname u;
    snprintf(out, n, "%s", uname(&u) == 0 ? u.machine : "unknown");
}

bool os_random(void *out, size_t n) { return getentropy(out, n) == 0; }

uint64_t os_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

status os_exe_dir(char *out, size_t n) {
    char path[OS_PATH_BYTES];
    ssize_t len = readlink("/proc/self/exe", path, sizeof path - 1);
    if (len <= 0) return STATUS_FAILED;
    path[len] = 0;
    char *slash = strrchr(path, '/');
    if (!slash) return STATUS_FAILED;
    size_t dir_len = (size_t)(slash - path);
    if (dir_len + 1 > n) return STATUS_INVALID;
    memcpy(out, path, dir_len);
    out[dir_len] = 0;
    return STATUS_OK;
}

bool os_stream_is_tty(int fd) { return isatty(fd) == 1; }

struct os_library {
    mem *m;
    void *handle;
};

status os_library_open(mem *m, const char *path, os_library **out, error *err) {
    if (strchr(path, '/') && access(path, F_OK) && errno == ENOENT)
        return error_set(err, STATUS_NOT_FOUND, "os: %s: no such library", path);
    void *block;
    TRY(mem_alloc_named(m, MEM_PROCESS, sizeof(os_library), "a shared library", &block, err));
    os_library *l = block;
    *l = (os_library){.m = m, .handle = dlopen(path, RTLD_NOW | RTLD_LOCAL)};
    if (!l->handle) {
        mem_free(m, l);
        const char *why = dlerror();
        return error_set(err, STATUS_FAILED, "os: %s", why ? why : "library could not be loaded");
    }
    *out = l;
    return STATUS_OK;
}

void *os_library_symbol(os_library *l, const char *name) { return dlsym(l->handle, name); }

void os_library_close(os_library *l) {
    if (!l) return;
    dlclose(l->handle);
    mem_free(l->m, l);
}

const char *os_env(const char *name) { return getenv(name); }
const char *os_env_entry(int i) { return environ ? environ[i] : NULL; }

void os_prefer_large_pages(void *p, size_t n) {
    static const uintptr_t LARGE = 2 << 20;
    const uintptr_t begin = ((uintptr_t)p + LARGE - 1) / LARGE * LARGE, end = ((uintptr_t)p + n) / LARGE * LARGE;
    if (end > begin) (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE); /* a kernel without them refuses: small pages, then */
}
