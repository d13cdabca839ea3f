/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as one file of a safetensors directory; the first byte says which: the tensors, the index, config.json or
 * tokenizer_config.json. The others are as they should be. The files are symbolic links to memory files of this process.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "support/load_probe.h"
#include "support/scratch_dir.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { TENSORS, INDEX, CONFIG, TOKENIZER, N_FILES };

typedef struct memory_file {
    const char *name, *good;
    size_t n_good;
    int fd;
} memory_file;

/* A header of 64 bytes, one tensor of two. */
static const char good_tensors[] = "\x40\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,2]}}         \1\2";
static const char good_index[] = "{\"weight_map\":{\"a\":\"shard.safetensors\"}}";

static memory_file files[N_FILES] = {{"shard.safetensors", good_tensors, sizeof good_tensors - 1, -1},
                                     {"model.safetensors.index.json", good_index, sizeof good_index - 1, -1},
                                     {"config.json", "{}", 2, -1},
                                     {"tokenizer_config.json", "{}", 2, -1}};
static scratch_dir dir;

static void must(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "fuzz_safetensors: %s failed\n", what);
    abort();
}

static void be_quiet(void *user, log_level level, const char *line) { (void)user, (void)level, (void)line; }

static void clean_up(void) { scratch_dir_destroy(&dir); }

static void fill(const memory_file *f, const void *data, size_t n) {
    must(ftruncate(f->fd, 0) == 0 && pwrite(f->fd, data, n, 0) == (ssize_t)n, "writing");
}

static void set_up(void) {
    must(scratch_dir_create(&dir), "making a directory");
    atexit(clean_up);
    log_set(be_quiet, NULL, LOG_LEVEL_ERROR);
    for (int i = 0; i < N_FILES; i++) {
        char to[64], from[SCRATCH_PATH_BYTES];
        files[i].fd = memfd_create(files[i].name, MFD_CLOEXEC);
        snprintf(to, sizeof to, "/proc/self/fd/%d", files[i].fd);
        must(files[i].fd >= 0 && symlink(to, scratch_dir_path(&dir, files[i].name, from)) == 0, "linking");
        fill(&files[i], files[i].good, files[i].n_good);
    }
}

/* The files as they should be do load; else nothing behind a first check would ever be reached. */
static void must_load(const char *what) {
    for (int mode = LOAD_MAP; mode <= LOAD_READ; mode++) {
        error err = {0};
        mem *m = NULL;
        must(mem_create(&m) == STATUS_OK, "mem_create");
        must(load_probe_path(m, dir.path, (load_mode)mode, &err) == STATUS_OK, what);
        must(mem_destroy(m) == STATUS_OK, "giving everything back");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    error err = {0};
    mem *m = NULL;
    if (n == 0) return 0;
    if (dir.path[0] == '\0') {
        set_up();
        must_load("loading files that are as they should be");
    }
    const memory_file *f = &files[data[0] % N_FILES];
    fill(f, data + 1, n - 1);
    must(mem_create(&m) == STATUS_OK, "mem_create");
    (void)!load_probe_path(m, dir.path, n % 2 == 0 ? LOAD_MAP : LOAD_READ, &err);
    must(mem_destroy(m) == STATUS_OK, "giving everything back");
    fill(f, f->good, f->n_good);
    return 0;
}
