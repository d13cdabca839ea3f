/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The one seam to the operating system (os_linux.c). Numbers that are not known are 0, which means unknown and never
 * "unlimited" or "none".
 */
#ifndef HEADRACE_BASE_OS_H
#define HEADRACE_BASE_OS_H

#include <stdint.h>

#include "base/alloc.h"

typedef struct os_file os_file;

/** Open for reading; directories and special files are refused. Keeps path, size and identity (device, inode, mtime). */
NODISCARD status os_file_open(mem *m, const char *path, os_file **out, error *err);
void os_file_close(os_file *f);
const char *os_file_path(const os_file *f);
uint64_t os_file_size(const os_file *f); /* at open */
/** Exactly `n` bytes at `off`, looping over short reads and EINTR; a short file is STATUS_IO naming file, offset, expected and got. */
NODISCARD status os_file_read(const os_file *f, uint64_t off, void *dst, size_t n, error *err);

/**
 * Map the whole file read-only, private. If the file shrinks while mapped, touching the lost part yields zero bytes instead of
 * killing the process, and os_file_intact turns false: whoever computed with the mapping must ask afterwards and fail its work.
 * (A SIGBUS handler, put in front with each mapping and chaining to the one it finds there, puts a zero page under the fault; it is
 * process-wide because signals are. A host that replaces it later must chain to it.) An empty file is STATUS_FORMAT.
 */
NODISCARD status os_file_map(os_file *f, const uint8_t **out, error *err);
/**
 * False once a fault was patched in the mapping, or the open file (whatever has its name by now) is not as it was at open: of another size, or written to since (time of modification). One system call.
 * Not seen: what is written within the clock's tick of the last change before open, or with the time put back.
 */
bool os_file_intact(const os_file *f);
/** Whether two names are of one file (device and inode) that exists. */
bool os_same_file(const char *a, const char *b);

/** The page cache need not keep this range. */
void os_file_forget(const os_file *f, uint64_t off, uint64_t n);

/**
 * A second descriptor of an open file (the same inode, whatever has the name by now) whose reads bypass the page cache. Offsets, sizes and addresses of its reads
 * are multiples of OS_DIRECT_ALIGN; the last of a file comes short.
 */
typedef struct os_direct os_direct;
enum { OS_DIRECT_ALIGN = 4096 };
/** STATUS_UNSUPPORTED: the file system (named) refuses. */
NODISCARD status os_direct_open(mem *m, const os_file *f, os_direct **out, error *err);
void os_direct_close(os_direct *d);
/** One read: bytes that came (0: the file ends there), or minus the system's error. */
int64_t os_direct_read(const os_direct *d, uint64_t off, void *dst, size_t n);

/**
 * Reads that the kernel carries out while the caller goes on (io_uring). At most `depth` are under way. Owned by one thread.
 */
typedef struct os_ring os_ring;
/** STATUS_UNSUPPORTED says what refuses and what would help. */
NODISCARD status os_ring_create(mem *m, int32_t depth, os_ring **out, error *err);
/** Awaits what is with the kernel. */
void os_ring_destroy(os_ring *r);
/** Pin the memory that reads go to, once, instead of with every read. False: the limit of locked memory, or the kernel, refuses; reads work all the same. */
bool os_ring_register(os_ring *r, void *base, size_t n);
/** Queue a read; it begins with the next submit or waiting next. */
void os_ring_read(os_ring *r, const os_direct *d, uint64_t off, void *dst, size_t n, uint64_t user);
void os_ring_submit(os_ring *r);
/**
 * A read that ended: its `user`, and bytes or minus the system's error. False: none has ended; with `wait`, none is with the kernel. A ring
 * that has failed gives what the kernel holds first; what was queued and not submitted, and every later read, never comes.
 */
bool os_ring_next(os_ring *r, bool wait, uint64_t *user, int64_t *got);
/** "Input/output error" for 5. */
const char *os_error_text(int code, char *out, size_t n);

/** Read a small text file whole (at most max_bytes), NUL-terminated. What is no file (directory, device, pipe) is STATUS_INVALID. */
NODISCARD status os_read_text(mem *m, mem_tag tag, const char *path, size_t max_bytes, char **out, size_t *n, error *err);

/**
 * A file that is written: made or emptied, or (keep) opened as it is to go on with it. Only one process may write it at a time: a second is STATUS_NOT_NOW.
 * What is written leaves the page cache as it reaches the disk, so that a large file pushes nothing else out.
 */
typedef struct os_output os_output;
NODISCARD status os_output_open(mem *m, const char *path, bool keep, os_output **out, error *err);
/** Exactly n bytes at `off`. */
NODISCARD status os_output_write(os_output *o, uint64_t off, const void *bytes, size_t n, error *err);
/** Exactly n bytes back. */
NODISCARD status os_output_read(os_output *o, uint64_t off, void *dst, size_t n, error *err);
NODISCARD status os_output_truncate(os_output *o, uint64_t n_bytes, error *err);
uint64_t os_output_size(const os_output *o); /* now; 0 when unknown */
NODISCARD status os_output_sync(os_output *o, error *err);
void os_output_close(os_output *o);
/** Closes it and takes the file away: what was written is of no use to anybody. */
void os_output_discard(os_output *o);
/** Make a directory; one that is there is fine. */
NODISCARD status os_make_directory(const char *path, error *err);
/** Whether a file may be put there: where nothing is, or a file. What is no file (directory, device, pipe), and no name at all, is STATUS_INVALID. */
NODISCARD status os_replaceable(const char *path, error *err);
/** Put a file in the place of another, durably; only where os_replaceable allows it. */
NODISCARD status os_rename(const char *from, const char *to, error *err);

typedef struct os_memory {
    uint64_t total_bytes;        /* MemTotal */
    uint64_t available_bytes;    /* MemAvailable: a live figure */
    uint64_t cgroup_limit_bytes; /* smallest limit from our cgroup (v1 or v2) to the root; 0 = none or unknown */
    uint64_t cgroup_used_bytes;  /* usage without reclaimable page cache, such that limit - used is the room at the tightest group: live */
    uint64_t memlock_bytes;      /* RLIMIT_MEMLOCK; UINT64_MAX = unlimited */
    uint64_t page_bytes;
} os_memory;

/** The smaller of two sizes of which 0 is unknown. */
static inline uint64_t os_smaller_known(uint64_t a, uint64_t b) { return a == 0 ? b : b == 0 || a < b ? a : b; }
void os_get_memory(os_memory *out);
/** Hint: this memory is better made of large pages, as reads past the page cache into it then are of few pieces. Nothing is touched. */
void os_prefer_large_pages(void *p, size_t n);
int os_cpu_count(void);      /* processors this process may run on (affinity), at least 1 */
int os_core_count(void);     /* physical cores among them; os_cpu_count when unknown */
void os_cpu_name(char *out, size_t n);
uint64_t os_now_ns(void);    /* monotonic */
/** Fills at most 256 bytes with what nobody can foretell; false, and nothing written, where the system gives none. */
NODISCARD bool os_random(void *out, size_t n);
uint64_t os_process_rss_bytes(void);      /* 0 = unknown */
uint64_t os_process_anon_bytes(void);     /* RssAnon + RssShmem; 0 = unknown */
/** Directory of the running executable, without a trailing slash. */
NODISCARD status os_exe_dir(char *out, size_t n);
bool os_stream_is_tty(int fd);

/** Shared objects of backends. */
typedef struct os_library os_library;
NODISCARD status os_library_open(mem *m, const char *path, os_library **out, error *err);
void *os_library_symbol(os_library *l, const char *name);
void os_library_close(os_library *l);

/** The only reader of environment variables. NULL when unset. */
const char *os_env(const char *name);
/** Iterate the environment: NULL after the last. */
const char *os_env_entry(int i);

#endif
