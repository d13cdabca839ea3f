/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are written. Behind every window of bytes the one before it is awaited and dropped from the page cache. */
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checked.h"

enum { WINDOW_BYTES = 32 << 20 };

struct os_output {
    mem *m;
    char *path;
    int fd;
    uint64_t window, window_end; /* bytes that were handed to the disk and not yet dropped from the cache: behind them the current window begins */
};

static status failed(error *err, const char *path, const char *what) {
    const int e = errno;
    return error_set(err, e == ENOENT || e == ENOTDIR ? STATUS_NOT_FOUND : STATUS_IO, "os: %s: %s: %s", path, what, strerror(e));
}

/* Open and locked, and still what has the name: who had the lock before may have renamed it. The caller closes *fd, also on failure. */
static status open_locked(const char *path, int *fd, error *err) {
    struct stat st, named;
    for (int tries = 0; tries < 100; tries++) {
        do { *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666); } while (*fd < 0 && errno == EINTR);
        if (*fd < 0 || fstat(*fd, &st) != 0) return failed(err, path, "cannot open for writing");
        if (!S_ISREG(st.st_mode)) return error_set(err, STATUS_INVALID, "os: %s: is not a file", path);
        if (flock(*fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) break;
        if (stat(path, &named) == 0 && named.st_dev == st.st_dev && named.st_ino == st.st_ino) return STATUS_OK;
        close(*fd);
        *fd = -1;
    }
    return error_set(err, STATUS_NOT_NOW, "os: %s: another process is writing it", path);
}

status os_output_open(mem *m, const char *path, bool keep, os_output **out, error *err) {
    os_output *o = mem_calloc(m, MEM_PROCESS, 1, sizeof *o);
    if (o == NULL) return error_set(err, STATUS_NO_MEMORY, "os: %s: no memory for an open file", path);
    o->m = m;
    o->fd = -1;
    o->path = mem_strdup(m, MEM_PROCESS, path);
    status rc = STATUS_OK;
    if (o->path == NULL) {
        rc = error_set(err, STATUS_NO_MEMORY, "os: %s: no memory for its name", path);
        goto fail;
    }
    rc = open_locked(path, &o->fd, err);
    if (rc != STATUS_OK) goto fail;
    if (!keep && ftruncate(o->fd, 0) != 0) {
        rc = failed(err, path, "cannot empty it");
        goto fail;
    }
    *out = o;
    return STATUS_OK;
fail:
    os_output_close(o);
    return rc;
}

static void settle(os_output *o, uint64_t end) {
    if (end < o->window_end) o->window = o->window_end = end; /* written out of order */
    if (end - o->window_end < WINDOW_BYTES) return;
    sync_file_range(o->fd, (off_t)o->window_end, (off_t)(end - o->window_end), SYNC_FILE_RANGE_WRITE);
    if (o->window_end > o->window) {
        sync_file_range(o->fd, (off_t)o->window, (off_t)(o->window_end - o->window), SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
        posix_fadvise(o->fd, (off_t)o->window, (off_t)(o->window_end - o->window), POSIX_FADV_DONTNEED);
    }
    o->window = o->window_end;
    o->window_end = end;
}

status os_output_write(os_output *o, uint64_t off, const void *bytes, size_t n, error *err) {
    uint64_t end;
    if (!checked_add_u64(off, n, &end) || end > INT64_MAX) return error_set(err, STATUS_INVALID, "os: %s: %zu bytes at %llu", o->path, n, (unsigned long long)off);
    for (size_t done = 0; done < n;) {
        const ssize_t r = pwrite(o->fd, (const uint8_t *)bytes + done, n - done, (off_t)(off + done));
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0) {
            if (r == 0) errno = ENOSPC;
            return error_set(err, STATUS_IO, "os: %s: write at offset %llu: expected %zu bytes, wrote %zu: %s", o->path, (unsigned long long)off, n, done, strerror(errno));
        }
        done += (size_t)r;
    }
    settle(o, end);
    return STATUS_OK;
}

status os_output_read(os_output *o, uint64_t off, void *dst, size_t n, error *err) {
    uint64_t end;
    if (!checked_add_u64(off, n, &end) || end > INT64_MAX) return error_set(err, STATUS_INVALID, "os: %s: %zu bytes at %llu", o->path, n, (unsigned long long)off);
    for (size_t got = 0; got < n;) {
        const ssize_t r = pread(o->fd, (uint8_t *)dst + got, n - got, (off_t)(off + got));
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0) {
            return error_set(err, STATUS_IO, "os: %s: read at offset %llu: expected %zu bytes, got %zu: %s", o->path, (unsigned long long)off, n, got,
                             r == 0 ? "the file ends there" : strerror(errno));
        }
        got += (size_t)r;
    }
    return STATUS_OK;
}

status os_output_truncate(os_output *o, uint64_t n_bytes, error *err) {
    if (n_bytes > INT64_MAX || ftruncate(o->fd, (off_t)n_bytes) != 0) return failed(err, o->path, "cannot set its size");
    return STATUS_OK;
}

uint64_t os_output_size(const os_output *o) {
    struct stat st;
    return fstat(o->fd, &st) == 0 && st.st_size > 0 ? (uint64_t)st.st_size : 0;
}

status os_output_sync(os_output *o, error *err) {
    if (fsync(o->fd) != 0) return failed(err, o->path, "cannot bring it to the disk");
    posix_fadvise(o->fd, 0, 0, POSIX_FADV_DONTNEED);
    return STATUS_OK;
}

void os_output_close(os_output *o) {
    if (o == NULL) return;
    if (o->fd >= 0) close(o->fd);
    mem_free(o->m, o->path);
    mem_free(o->m, o);
}

void os_output_discard(os_output *o) {
    if (o == NULL) return;
    (void)unlink(o->path); /* while it is locked, so that it is ours */
    os_output_close(o);
}

status os_make_directory(const char *path, error *err) {
    if (mkdir(path, 0777) == 0) return STATUS_OK;
    struct stat st;
    if (errno == EEXIST && stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return STATUS_OK;
    return failed(err, path, "cannot make the directory");
}

status os_replaceable(const char *path, error *err) {
    struct stat st;
    if (path[0] == '\0') return error_set(err, STATUS_INVALID, "os: a file to write has an empty name");
    if (stat(path, &st) != 0 || S_ISREG(st.st_mode)) return STATUS_OK;
    return error_set(err, STATUS_INVALID, "os: %s: is a %s, which a file does not replace; write elsewhere", path, S_ISDIR(st.st_mode) ? "directory" : "device, pipe or socket");
}

status os_rename(const char *from, const char *to, error *err) {
    TRY(os_replaceable(to, err));
    if (rename(from, to) != 0) return failed(err, to, "cannot put it in place");
    char dir[4096];
    const char *slash = strrchr(to, '/');
    const size_t n = slash == NULL ? 0 : (size_t)(slash - to);
    if (n >= sizeof dir) return STATUS_OK;
    memcpy(dir, to, n);
    dir[n] = '\0';
    const int fd = open(n > 0 ? dir : slash == NULL ? "." : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    return STATUS_OK;
}
