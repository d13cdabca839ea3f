/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of its own for one test, and files in it. Include after test_case.h. */
#ifndef HEADRACE_TESTS_TEMP_DIR_H
#define HEADRACE_TESTS_TEMP_DIR_H

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct temp_dir {
    char path[200];
} temp_dir;

static inline temp_dir temp_dir_make(void) {
    temp_dir d;
    const char *base = getenv("TMPDIR");
    snprintf(d.path, sizeof d.path, "%s/headrace-test-XXXXXX", base && strlen(base) < 150 ? base : "/tmp");
    assert_non_null(mkdtemp(d.path));
    return d;
}

static inline int temp_dir_remove_entry(const char *path, const struct stat *st, int type, struct FTW *where) {
    (void)st;
    (void)type;
    (void)where;
    return remove(path);
}

static inline void temp_dir_remove(const temp_dir *d) { nftw(d->path, temp_dir_remove_entry, 16, FTW_DEPTH | FTW_PHYS); }

/** Writes n bytes to NAME below the folder, making folders on the way; the full path goes to `path` unless it is NULL. */
static inline void temp_dir_write(const temp_dir *d, const char *name, const void *bytes, size_t n, char path[512]) {
    char full[512];
    int len = snprintf(full, sizeof full, "%s/%s", d->path, name);
    assert_true(len > 0 && (size_t)len < sizeof full);
    for (char *slash = full + strlen(d->path) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = 0;
        mkdir(full, 0755);
        *slash = '/';
    }
    FILE *f = fopen(full, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    if (path) memcpy(path, full, sizeof full);
}

static inline void temp_dir_text(const temp_dir *d, const char *name, const char *text) {
    temp_dir_write(d, name, text, strlen(text), NULL);
}

#endif
