/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory figures from /proc and the memory cgroups. A process can be in a v1 memory group, in a v2 group, or (hybrid) in both. Our
 * groups are named by /proc/self/cgroup relative to the hierarchy's root, and /proc/self/mountinfo says which part of which hierarchy
 * is mounted where; every group from ours up to that mount point can limit us.
 */
#include "base/os_linux.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* v1 writes "no limit" as the largest multiple of a page in a signed 64-bit number. */
#define V1_UNLIMITED (UINT64_C(1) << 60)

bool os_lines_open(os_lines *r, const char *root, const char *path) {
    char full[OS_PATH_BYTES];
    int n = snprintf(full, sizeof full, "%s%s", root, path);
    if (n < 0 || (size_t)n >= sizeof full) return false;
    r->fd = open(full, O_RDONLY | O_CLOEXEC);
    r->begin = r->end = 0;
    return r->fd >= 0;
}

void os_lines_close(os_lines *r) {
    if (r->fd >= 0) close(r->fd);
    r->fd = -1;
}

static bool refill(os_lines *r) {
    ssize_t n;
    do { n = read(r->fd, r->buffer, sizeof r->buffer); } while (n < 0 && errno == EINTR);
    if (n <= 0) return false;
    r->begin = 0;
    r->end = (size_t)n;
    return true;
}

bool os_lines_next(os_lines *r) {
    size_t len = 0;
    bool any = false;
    while (r->begin < r->end || refill(r)) {
        any = true;
        char c = r->buffer[r->begin++];
        if (c == '\n') break;
        if (len + 1 < sizeof r->line) r->line[len++] = c;
    }
    r->line[len] = 0;
    return any;
}

/* Digits after optional blanks. */
static bool parse_number(const char *s, uint64_t *out) {
    s += strspn(s, " \t");
    if (*s < '0' || *s > '9') return false;
    errno = 0;
    unsigned long long v = strtoull(s, NULL, 10);
    if (errno) return false;
    *out = v;
    return true;
}

bool os_lines_find(const char *root, const char *path, const char *key, uint64_t *out) {
    os_lines lines;
    if (!os_lines_open(&lines, root, path)) return false;
    size_t n = strlen(key);
    bool found = false;
    while (!found && os_lines_next(&lines))
        if (strncmp(lines.line, key, n) == 0) found = parse_number(lines.line + n, out);
    os_lines_close(&lines);
    return found;
}

/* What one kind of group calls its files. */
typedef struct flavour {
    const char *fs_type, *limit, *usage, *inactive_file, *active_file;
} flavour;

static const flavour v1 = {"cgroup", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ", "total_active_file "};
static const flavour v2 = {"cgroup2", "memory.max", "memory.current", "inactive_file ", "active_file "};

static bool has_word(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *p = list; p; p = strchr(p, ',')) {
        if (*p == ',') p++;
        if (strncmp(p, word, n) == 0 && (p[n] == 0 || p[n] == ',')) return true;
    }
    return false;
}

/* Our group in the hierarchy, from /proc/self/cgroup ("4:memory:/a/b", "0::/a/b"). */
static bool own_group(const char *root, const flavour *f, char out[OS_PATH_BYTES]) {
    os_lines lines;
    if (!os_lines_open(&lines, root, "/proc/self/cgroup")) return false;
    bool found = false;
    while (!found && os_lines_next(&lines)) {
        char *controllers = strchr(lines.line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *controllers++ = 0;
        *path++ = 0;
        found = f == &v2 ? strcmp(lines.line, "0") == 0 && *controllers == 0 : has_word(controllers, "memory");
        if (found) snprintf(out, OS_PATH_BYTES, "%s", path);
    }
    os_lines_close(&lines);
    return found;
}

/* mountinfo writes blanks and backslashes in paths as \ooo. */
static void decode_octal(char *s) {
    char *to = s;
    while (*s) {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' && s[3] >= '0' && s[3] <= '7') {
            *to++ = (char)((s[1] - '0') * 64 + (s[2] - '0') * 8 + (s[3] - '0'));
            s += 4;
        } else {
            *to++ = *s++;
        }
    }
    *to = 0;
}

/* The mount of the hierarchy: which group is its root, and where it is mounted. */
static bool find_mount(const char *root, const flavour *f, char mount_root[OS_PATH_BYTES], char mount_point[OS_PATH_BYTES]) {
    os_lines lines;
    if (!os_lines_open(&lines, root, "/proc/self/mountinfo")) return false;
    bool found = false;
    while (!found && os_lines_next(&lines)) {
        /* id parent device ROOT POINT options [tags] - TYPE source OPTIONS */
        char *tail = strstr(lines.line, " - ");
        if (!tail) continue;
        *tail = 0;
        char type[64], options[512];
        options[0] = 0;
        if (sscanf(tail + 3, "%63s %*s %511s", type, options) < 1 || strcmp(type, f->fs_type) != 0) continue;
        if (f == &v1 && !has_word(options, "memory")) continue;
        char *save = NULL, *word = strtok_r(lines.line, " ", &save);
        for (int i = 1; word && i < 4; i++) word = strtok_r(NULL, " ", &save);
        char *point = word ? strtok_r(NULL, " ", &save) : NULL;
        if (!point) continue;
        decode_octal(word);
        decode_octal(point);
        snprintf(mount_root, OS_PATH_BYTES, "%s", word);
        snprintf(mount_point, OS_PATH_BYTES, "%s", point);
        found = true;
    }
    os_lines_close(&lines);
    return found;
}

/* The part of `group` below the mounted root; "" when the group is the root or lies outside of what is mounted. */
static const char *below(const char *group, const char *mount_root) {
    if (strstr(group, "/..")) return ""; /* outside of our cgroup namespace */
    if (strcmp(mount_root, "/") == 0) return strcmp(group, "/") == 0 ? "" : group;
    size_t n = strlen(mount_root);
    if (strncmp(group, mount_root, n) == 0 && (group[n] == '/' || group[n] == 0)) return group + n;
    return "";
}

typedef struct group_figures {
    uint64_t limit_bytes; /* 0: none */
    uint64_t used_bytes;  /* without file pages that the kernel can drop */
    bool used_known;
} group_figures;

static bool read_number(const char *root, const char *dir, const char *name, const char *key, uint64_t *out) {
    char path[OS_PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    return n > 0 && (size_t)n < sizeof path && os_lines_find(root, path, key, out);
}

static group_figures read_group(const char *root, const flavour *f, const char *dir) {
    group_figures g = {0};
    uint64_t v;
    if (read_number(root, dir, f->limit, "", &v) && !(f == &v1 && v >= V1_UNLIMITED)) g.limit_bytes = v ? v : 1; /* "max" is no number */
    if (!read_number(root, dir, f->usage, "", &v)) return g;
    uint64_t inactive = 0, active = 0;
    bool known = read_number(root, dir, "memory.stat", f->inactive_file, &inactive);
    known = read_number(root, dir, "memory.stat", f->active_file, &active) && known;
    uint64_t file = known ? inactive + active : 0;
    g.used_bytes = v > file ? v - file : 0;
    g.used_known = true;
    return g;
}

typedef struct walk_state {
    uint64_t smallest_limit, least_room; /* UINT64_MAX: no limit met */
    uint64_t own_used;
} walk_state;

static void walk_hierarchy(const char *root, const flavour *f, walk_state *w) {
    char group[OS_PATH_BYTES], mount_root[OS_PATH_BYTES], dir[2 * OS_PATH_BYTES], point[OS_PATH_BYTES];
    if (!own_group(root, f, group) || !find_mount(root, f, mount_root, point)) return;
    size_t stop = strlen(point);
    snprintf(dir, sizeof dir, "%s%s", point, below(group, mount_root));
    for (bool own = true;; own = false) {
        group_figures g = read_group(root, f, dir);
        if (own && g.used_known) w->own_used = g.used_bytes;
        if (g.limit_bytes) {
            if (g.limit_bytes < w->smallest_limit) w->smallest_limit = g.limit_bytes;
            uint64_t room = g.limit_bytes > g.used_bytes ? g.limit_bytes - g.used_bytes : 0;
            if (g.used_known && room < w->least_room) w->least_room = room;
        }
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < stop) return;
        *slash = 0;
    }
}

void os_linux_cgroup(const char *root, os_memory *out) {
    walk_state w = {.smallest_limit = UINT64_MAX, .least_room = UINT64_MAX};
    walk_hierarchy(root, &v2, &w);
    walk_hierarchy(root, &v1, &w);
    out->cgroup_limit_bytes = w.smallest_limit == UINT64_MAX ? 0 : w.smallest_limit;
    out->cgroup_used_bytes = w.own_used;
    /* A larger limit further up can leave less room than the smallest one, when others in that group use much. */
    if (w.least_room < w.smallest_limit && w.smallest_limit != UINT64_MAX) out->cgroup_used_bytes = w.smallest_limit - w.least_room;
}

void os_get_memory(os_memory *out) {
    *out = (os_memory){0};
    uint64_t kib;
    if (os_lines_find("", "/proc/meminfo", "MemTotal:", &kib)) out->total_bytes = kib * 1024;
    if (os_lines_find("", "/proc/meminfo", "MemAvailable:", &kib)) out->available_bytes = kib * 1024;
    os_linux_cgroup("", out);
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) out->memlock_bytes = limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
    long page = sysconf(_SC_PAGESIZE);
    out->page_bytes = page > 0 ? (uint64_t)page : 0;
}

static uint64_t process_bytes(const char *key) {
    uint64_t kib;
    return os_lines_find("", "/proc/self/status", key, &kib) ? kib * 1024 : 0;
}

uint64_t os_process_rss_bytes(void) { return process_bytes("VmRSS:"); }
uint64_t os_process_anon_bytes(void) { return process_bytes("RssAnon:") + process_bytes("RssShmem:"); }
