/* SPDX-License-Identifier: Apache-2.0 */
/* Linux: processors, clock, environment, shared objects. Files are in os_linux_file.c, memory figures in os_linux_memory.c. */
#include "base/os.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

int os_cpu_count(void) {
    /* The kernel wants a set at least as wide as its own; double until it fits. */
    for (int n_cpus = 1024; n_cpus <= 1 << 20; n_cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)n_cpus);
        if (!set) break;
        size_t bytes = CPU_ALLOC_SIZE((size_t)n_cpus);
        int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (count > 0) return count;
    }
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 && n < 1 << 20 ? (int)n : 1;
}

uint64_t os_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

const char *os_env(const char *name) { return getenv(name); }
const char *os_env_entry(int i) { return environ[i]; }
