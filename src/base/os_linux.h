/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Parts of os_linux*.c that unit tests drive with files of their own: each reads below `root`, which is "" for the running
 * system. Nothing outside src/base and its tests includes this.
 */
#ifndef HEADRACE_BASE_OS_LINUX_H
#define HEADRACE_BASE_OS_LINUX_H

#include "base/os.h"

enum { OS_LINE_BYTES = 4096, OS_PATH_BYTES = 4096 };

/** Reads a text file line by line without memory of its own; longer lines are cut. */
typedef struct os_lines {
    int fd;
    size_t begin, end;
    char buffer[OS_LINE_BYTES];
    char line[OS_LINE_BYTES];
} os_lines;

/** False when the file cannot be opened. */
bool os_lines_open(os_lines *r, const char *root, const char *path);
/** The next line in r->line, without its newline; false at the end. */
bool os_lines_next(os_lines *r);
void os_lines_close(os_lines *r);
/** First number after `key` at the start of a line ("MemTotal:  123 kB"); false when there is none. */
bool os_lines_find(const char *root, const char *path, const char *key, uint64_t *out);

/** The descriptor, for a ring. */
int os_linux_direct_fd(const os_direct *d);

/** Limits and usage of the memory cgroups (v1, v2 or both) that /proc/self/cgroup names; fills the two cgroup fields. */
void os_linux_cgroup(const char *root, os_memory *out);
/** Physical cores among the n_cpus processors listed in ascending order in cpus[]; 0 when the topology is not known. */
int os_linux_cores(const char *root, const int *cpus, int n_cpus);

#endif
