/* SPDX-License-Identifier: Apache-2.0 */
/** A fresh directory below TMPDIR (or /tmp) for the files of one test program, removed with what is in it. */
#ifndef HEADRACE_TESTS_SCRATCH_DIR_H
#define HEADRACE_TESTS_SCRATCH_DIR_H

#include <stdbool.h>
#include <stddef.h>

enum { SCRATCH_PATH_BYTES = 1024 };

typedef struct scratch_dir {
    char path[SCRATCH_PATH_BYTES];
} scratch_dir;

bool scratch_dir_create(scratch_dir *d);
void scratch_dir_destroy(scratch_dir *d);
/** path of `name` inside; out has SCRATCH_PATH_BYTES. Returns out. */
const char *scratch_dir_path(const scratch_dir *d, const char *name, char *out);
/** Write a file inside, replacing it. */
bool scratch_dir_write(const scratch_dir *d, const char *name, const void *data, size_t n);

#endif
