/* SPDX-License-Identifier: Apache-2.0 */
/* Files of a test. */
#include "support/scratch_dir.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool scratch_dir_create(scratch_dir *d) {
    const char *tmp = getenv("TMPDIR");
    int n = snprintf(d->path, sizeof d->path, "%s/headrace-test-XXXXXX", tmp != NULL && tmp[0] != '\0' ? tmp : "/tmp");
    if (n < 0 || (size_t)n >= sizeof d->path) return false;
    return mkdtemp(d->path) != NULL;
}

static void remove_tree(const char *path, int depth) {
    DIR *dir = opendir(path);
    if (dir == NULL) return;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char child[2 * SCRATCH_PATH_BYTES];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(child, sizeof child, "%s/%s", path, e->d_name);
        if (unlink(child) != 0 && depth > 0) remove_tree(child, depth - 1);
    }
    closedir(dir);
    rmdir(path);
}

void scratch_dir_destroy(scratch_dir *d) {
    if (d->path[0] != '\0') remove_tree(d->path, 6);
    d->path[0] = '\0';
}

const char *scratch_dir_path(const scratch_dir *d, const char *name, char *out) {
    snprintf(out, SCRATCH_PATH_BYTES, "%.900s/%.100s", d->path, name);
    return out;
}

bool scratch_dir_write(const scratch_dir *d, const char *name, const void *data, size_t n) {
    char path[SCRATCH_PATH_BYTES];
    FILE *f = fopen(scratch_dir_path(d, name, path), "wb");
    if (f == NULL) return false;
    bool ok = n == 0 || fwrite(data, 1, n, f) == n;
    return fclose(f) == 0 && ok;
}
