/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target over the files of directories: replay DIR... An empty corpus is a failure. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MAX_FILE_BYTES = 16 << 20 };

static int replay_file(const char *path, uint8_t *buf) {
    FILE *f = fopen(path, "rb");
    if (f == NULL) return 0;
    size_t n = fread(buf, 1, MAX_FILE_BYTES, f);
    fclose(f);
    uint8_t *exact = malloc(n > 0 ? n : 1); /* so that a sanitizer sees the end */
    if (exact == NULL) return 0;
    for (size_t i = 0; i < n; i++) exact[i] = buf[i];
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
    return 1;
}

int main(int argc, char **argv) {
    int n_files = 0, n_failed = 0;
    uint8_t *buf = malloc(MAX_FILE_BYTES);
    if (buf == NULL) return 1;
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        if (dir == NULL) {
            fprintf(stderr, "replay: cannot open %s\n", argv[i]);
            n_failed++;
            continue;
        }
        for (struct dirent *e; (e = readdir(dir)) != NULL;) {
            char path[4096];
            if (e->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
            if (replay_file(path, buf))
                n_files++;
            else
                n_failed++;
        }
        closedir(dir);
    }
    free(buf);
    printf("replay: %d files\n", n_files);
    return n_files > 0 && n_failed == 0 ? 0 : 1;
}
