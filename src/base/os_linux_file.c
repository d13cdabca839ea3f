/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files and mappings. Live mappings are in a fixed table that the SIGBUS handler reads without a lock: a slot is stable while its
 * version is even, and a slot whose version moves under the reader cannot be the one that faulted, because nobody touches a mapping
 * that is being made or unmade.
 *
 * The action for SIGBUS is looked at with each mapping, because a host can replace it at any time: whatever is found there is kept as
 * the newest of the previous actions and ours is put in front again. A fault that is not ours goes to the newest; if that one hands it
 * back to us, as the handler it once replaced, to the next older.
 */
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/os_linux.h"

enum { MAX_MAPPINGS = 256, MAX_PREVIOUS = 16 };

typedef struct mapping {
    _Atomic bool claimed, damaged;
    _Atomic uint32_t version;
    _Atomic uintptr_t begin, end; /* whole pages; begin == end: none */
} mapping;

/* Process-wide because signal actions are. */
static mapping mappings[MAX_MAPPINGS];
static struct sigaction previous_actions[MAX_PREVIOUS]; /* oldest first; an entry never changes once it is counted */
static _Atomic int n_previous;
static _Atomic uintptr_t page_bytes;
static pthread_mutex_t install_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int chain_depth; /* previous actions of this thread's fault that run now */

struct os_file {
    mem *m;
    char *path;
    int fd;
    uint64_t size_bytes, device, inode;
    struct timespec modified;
    uint8_t *map; /* NULL: not mapped */
    mapping *slot;
};

/* ---- the handler ---- */

static mapping *mapping_at(uintptr_t address, uintptr_t *end) {
    for (int i = 0; i < MAX_MAPPINGS; i++) {
        mapping *s = &mappings[i];
        uint32_t version = atomic_load(&s->version);
        uintptr_t from = atomic_load(&s->begin), to = atomic_load(&s->end);
        if ((version & 1) || atomic_load(&s->version) != version) continue;
        if (address < from || address >= to) continue;
        *end = to;
        return s;
    }
    return NULL;
}

/* The system call itself: what stands before it in a process (a sanitizer, a wrapper) need not be safe in a handler. */
static bool patch(uintptr_t page, uintptr_t bytes) {
    long at = syscall(SYS_mmap, page, bytes, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
    return at == (long)page;
}

static void call_previous(int number, siginfo_t *info, void *context) {
    int i = atomic_load(&n_previous) - 1 - chain_depth;
    struct sigaction action = {.sa_handler = SIG_DFL};
    if (i >= 0) action = previous_actions[i];
    chain_depth++;
    if (action.sa_flags & SA_SIGINFO) {
        action.sa_sigaction(number, info, context);
    } else if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) {
        action.sa_handler(number);
    } else if (action.sa_handler == SIG_DFL || info->si_code > 0) {
        /* Back to the default: a fault happens again at return, a signal that was sent has to be sent again. */
        struct sigaction to_default = {.sa_handler = SIG_DFL};
        sigaction(number, &to_default, NULL);
        if (info->si_code <= 0) raise(number);
    }
    chain_depth--;
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    int saved_errno = errno;
    uintptr_t address = (uintptr_t)info->si_addr, end;
    mapping *s = info->si_code > 0 ? mapping_at(address, &end) : NULL; /* a signal sent by a process carries no address */
    if (s) {
        uintptr_t page = address & ~(page_bytes - 1);
        atomic_store(&s->damaged, true);
        /* Scattered pages can exhaust the kernel's count of mappings; then the rest goes as one. */
        if (!patch(page, page_bytes) && !patch(page, end - page)) s = NULL;
    }
    if (!s) call_previous(number, info, context);
    errno = saved_errno;
}

static bool same_action(const struct sigaction *a, const struct sigaction *b) {
    if ((a->sa_flags & SA_SIGINFO) != (b->sa_flags & SA_SIGINFO)) return false;
    return a->sa_flags & SA_SIGINFO ? a->sa_sigaction == b->sa_sigaction : a->sa_handler == b->sa_handler;
}

/* Puts our handler in front, unless it is; 0 or an errno. */
static int install_handler(void) {
    struct sigaction ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK}, found;
    sigemptyset(&ours.sa_mask);
    int failure = 0;
    pthread_mutex_lock(&install_lock);
    atomic_store(&page_bytes, (uintptr_t)sysconf(_SC_PAGESIZE));
    if (sigaction(SIGBUS, NULL, &found)) {
        failure = errno;
    } else if (!same_action(&found, &ours)) {
        int n = atomic_load(&n_previous);
        if (n < MAX_PREVIOUS && (n == 0 || !same_action(&found, &previous_actions[n - 1]))) {
            previous_actions[n] = found;
            atomic_store(&n_previous, n + 1);
        }
        if (sigaction(SIGBUS, &ours, NULL)) failure = errno;
    }
    pthread_mutex_unlock(&install_lock);
    return failure;
}

/* ---- the table ---- */

static void slot_set(mapping *s, uintptr_t begin, uintptr_t end) {
    atomic_fetch_add(&s->version, 1);
    atomic_store(&s->begin, begin);
    atomic_store(&s->end, end);
    atomic_fetch_add(&s->version, 1);
}

static mapping *slot_claim(void) {
    for (int i = 0; i < MAX_MAPPINGS; i++) {
        bool no = false;
        if (atomic_compare_exchange_strong(&mappings[i].claimed, &no, true)) return &mappings[i];
    }
    return NULL;
}

static void slot_release(mapping *s) {
    slot_set(s, 0, 0);
    atomic_store(&s->damaged, false);
    atomic_store(&s->claimed, false);
}

/* ---- files ---- */

static status system_error(error *err, const char *path, const char *what) {
    int e = errno;
    return error_set(err, e == ENOENT || e == ENOTDIR ? STATUS_NOT_FOUND : STATUS_IO, "os: %s: %s: %s", path, what, strerror(e));
}

/* A file and nothing else; a pipe without a writer must not hang us. On success the caller closes *fd. */
static status open_regular(const char *path, int *fd, struct stat *st, error *err) {
    do { *fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY); } while (*fd < 0 && errno == EINTR);
    if (*fd < 0) return system_error(err, path, "cannot open");
    status rc = STATUS_OK;
    if (fstat(*fd, st))
        rc = system_error(err, path, "cannot open");
    else if (!S_ISREG(st->st_mode))
        rc = error_set(err, STATUS_INVALID, "os: %s: is a %s, not a file", path,
                       S_ISDIR(st->st_mode) ? "directory" : "device, pipe or socket");
    if (rc != STATUS_OK) {
        close(*fd);
        *fd = -1;
    }
    return rc;
}

status os_file_open(mem *m, const char *path, os_file **out, error *err) {
    os_file *f = mem_calloc(m, MEM_PROCESS, 1, sizeof *f);
    if (!f) return error_set(err, STATUS_NO_MEMORY, "os: %s: no memory for an open file", path);
    f->m = m;
    f->fd = -1;
    f->path = mem_strdup(m, MEM_PROCESS, path);
    status rc;
    if (!f->path) {
        rc = error_set(err, STATUS_NO_MEMORY, "os: %s: no memory for its name", path);
        goto fail;
    }
    struct stat st;
    rc = open_regular(path, &f->fd, &st, err);
    if (rc != STATUS_OK) goto fail;
    f->size_bytes = st.st_size > 0 ? (uint64_t)st.st_size : 0;
    f->device = (uint64_t)st.st_dev;
    f->inode = (uint64_t)st.st_ino;
    f->modified = st.st_mtim;
    *out = f;
    return STATUS_OK;
fail:
    os_file_close(f);
    return rc;
}

void os_file_close(os_file *f) {
    if (!f) return;
    if (f->map) {
        slot_release(f->slot); /* first: the address may belong to another as soon as it is unmapped */
        munmap(f->map, (size_t)f->size_bytes);
    }
    if (f->fd >= 0) close(f->fd);
    mem_free(f->m, f->path);
    mem_free(f->m, f);
}

const char *os_file_path(const os_file *f) { return f->path; }
uint64_t os_file_size(const os_file *f) { return f->size_bytes; }

status os_file_read(const os_file *f, uint64_t off, void *dst, size_t n, error *err) {
    uint64_t end;
    if (!checked_add_u64(off, n, &end) || end > INT64_MAX)
        return error_set(err, STATUS_IO, "os: %s: %zu bytes at offset %llu lie outside of any file", f->path, n, (unsigned long long)off);
    size_t got = 0;
    while (got < n) {
        ssize_t r = pread(f->fd, (uint8_t *)dst + got, n - got, (off_t)(off + got));
        if (r < 0 && errno == EINTR) continue;
        if (r < 0)
            return error_set(err, STATUS_IO, "os: %s: read at offset %llu: expected %zu bytes, got %zu: %s", f->path,
                             (unsigned long long)off, n, got, strerror(errno));
        if (r == 0)
            return error_set(err, STATUS_IO, "os: %s: read at offset %llu: expected %zu bytes, got %zu: the file ends there", f->path,
                             (unsigned long long)off, n, got);
        got += (size_t)r;
    }
    return STATUS_OK;
}

bool os_same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

void os_file_forget(const os_file *f, uint64_t off, uint64_t n) {
    if (off <= INT64_MAX && n <= INT64_MAX) posix_fadvise(f->fd, (off_t)off, (off_t)n, POSIX_FADV_DONTNEED);
}

/* ---- past the page cache ---- */

struct os_direct {
    mem *m;
    int fd;
};

static int open_direct(const char *path) {
    int fd;
    do { fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NOCTTY); } while (fd < 0 && errno == EINTR);
    return fd;
}

status os_direct_open(mem *m, const os_file *f, os_direct **out, error *err) {
    os_direct *d = mem_calloc(m, MEM_PROCESS, 1, sizeof *d);
    char name[64];
    if (d == NULL) return error_set(err, STATUS_NO_MEMORY, "os: %s: no memory for an open file", f->path);
    snprintf(name, sizeof name, "/proc/self/fd/%d", f->fd);
    d->m = m;
    d->fd = open_direct(name);
    if (d->fd < 0 && errno == ENOENT) d->fd = open_direct(f->path); /* no /proc here */
    struct stat st;
    if (d->fd < 0 || fstat(d->fd, &st) != 0 || (uint64_t)st.st_dev != f->device || (uint64_t)st.st_ino != f->inode) {
        const int e = d->fd < 0 ? errno : ESTALE;
        os_direct_close(d);
        return error_set(err, STATUS_UNSUPPORTED, "os: %s: cannot be read past the page cache: %s", f->path, strerror(e));
    }
    *out = d;
    return STATUS_OK;
}

void os_direct_close(os_direct *d) {
    if (d == NULL) return;
    if (d->fd >= 0) close(d->fd);
    mem_free(d->m, d);
}

int64_t os_direct_read(const os_direct *d, uint64_t off, void *dst, size_t n) {
    const ssize_t got = pread(d->fd, dst, n, (off_t)off);
    return got < 0 ? -(int64_t)errno : (int64_t)got;
}

int os_linux_direct_fd(const os_direct *d) { return d->fd; }

const char *os_error_text(int code, char *out, size_t n) {
    snprintf(out, n, "%s", strerrordesc_np(code) != NULL ? strerrordesc_np(code) : "unknown error");
    return out;
}

status os_file_map(os_file *f, const uint8_t **out, error *err) {
    if (!f->map) {
        size_t bytes, rounded;
        if (f->size_bytes == 0) return error_set(err, STATUS_FORMAT, "os: %s: the file is empty", f->path);
        int failure = install_handler();
        if (failure) return error_set(err, STATUS_FAILED, "os: %s: not mapped, no SIGBUS handler: %s", f->path, strerror(failure));
        if (!checked_u64_to_size(f->size_bytes, &bytes) || !checked_align_size(bytes, page_bytes, &rounded))
            return error_set(err, STATUS_IO, "os: %s: %llu bytes cannot be mapped", f->path, (unsigned long long)f->size_bytes);
        mapping *slot = slot_claim();
        if (!slot) return error_set(err, STATUS_FULL, "os: %s: not mapped, %d files are mapped already", f->path, MAX_MAPPINGS);
        void *p = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, f->fd, 0);
        if (p == MAP_FAILED) {
            slot_release(slot);
            return error_set(err, STATUS_IO, "os: %s: %zu bytes could not be mapped: %s", f->path, bytes, strerror(errno));
        }
        slot_set(slot, (uintptr_t)p, (uintptr_t)p + rounded);
        f->map = p;
        f->slot = slot;
    }
    *out = f->map;
    return STATUS_OK;
}

bool os_file_intact(const os_file *f) {
    if (f->slot && atomic_load(&f->slot->damaged)) return false;
    struct stat st;
    return fstat(f->fd, &st) == 0 && st.st_size >= 0 && (uint64_t)st.st_size == f->size_bytes && st.st_mtim.tv_sec == f->modified.tv_sec && st.st_mtim.tv_nsec == f->modified.tv_nsec;
}

/* ---- small texts ---- */

status os_read_text(mem *m, mem_tag tag, const char *path, size_t max_bytes, char **out, size_t *n, error *err) {
    int fd;
    struct stat st;
    status rc = open_regular(path, &fd, &st, err);
    if (rc != STATUS_OK) return rc;
    char *text = NULL;
    size_t len = 0, cap = 0;
    for (;;) {
        if (len + 1 >= cap) {
            size_t want = cap ? cap : 2048;
            if (!checked_mul_size(want, 2, &want)) want = SIZE_MAX;
            char *grown = mem_realloc(m, tag, text, want);
            if (!grown) {
                rc = error_set(err, STATUS_NO_MEMORY, "os: %s: no memory for its text", path);
                goto fail;
            }
            text = grown;
            cap = want;
        }
        ssize_t r = read(fd, text + len, cap - len - 1);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) {
            rc = system_error(err, path, "cannot read");
            goto fail;
        }
        if (r == 0) break;
        len += (size_t)r;
        if (len > max_bytes) {
            rc = error_set(err, STATUS_INVALID, "os: %s: more than %zu bytes", path, max_bytes);
            goto fail;
        }
    }
    text[len] = 0;
    close(fd);
    *out = text;
    if (n) *n = len;
    return STATUS_OK;
fail:
    close(fd);
    mem_free(m, text);
    return rc;
}
