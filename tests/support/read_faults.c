/* SPDX-License-Identifier: Apache-2.0 */
/* Faults in the place of the system. */
#include "support/read_faults.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <time.h>

read_faults fault = {.lock = PTHREAD_MUTEX_INITIALIZER, .submits_left = -1, .lowest = UINT64_MAX};

void read_faults_reset(void) {
    pthread_mutex_lock(&fault.lock);
    fault.fail_begin = fault.fail_end = 0;
    fault.short_every = fault.interrupt_every = fault.n = fault.n_reads = fault.n_held = fault.late_ms = fault.n_late = 0;
    fault.no_ring = fault.no_direct = fault.no_register = fault.hold_one = fault.held = false;
    fault.on_read = NULL;
    fault.submits_left = -1;
    fault.lowest = UINT64_MAX;
    fault.highest = 0;
    pthread_mutex_unlock(&fault.lock);
}

static void note_read(uint64_t off, size_t n) {
    pthread_mutex_lock(&fault.lock);
    fault.n_reads++;
    if (off < fault.lowest) fault.lowest = off;
    if (off + n > fault.highest) fault.highest = off + n;
    void (*const hook)(void *) = fault.on_read;
    pthread_mutex_unlock(&fault.lock);
    if (hook != NULL) hook(fault.on_read_ctx);
}

static int64_t spoil(uint64_t off, size_t n, int64_t got) {
    pthread_mutex_lock(&fault.lock);
    fault.n++;
    if (off < fault.fail_end && off + n > fault.fail_begin) got = -EIO;
    else if (fault.interrupt_every > 0 && fault.n % fault.interrupt_every == 0) got = fault.n % 2 ? -EINTR : -EAGAIN;
    else if (fault.short_every > 0 && fault.n % fault.short_every == 0 && got > 4096) got = got / 2 / 4096 * 4096 + (fault.n % 3 == 0 ? 100 : 0);
    pthread_mutex_unlock(&fault.lock);
    return got;
}

/* The first that asks is late; the others are not. */
static void be_late(void) {
    pthread_mutex_lock(&fault.lock);
    const int ms = fault.late_ms;
    fault.late_ms = 0;
    if (ms > 0) fault.n_late++;
    pthread_mutex_unlock(&fault.lock);
    if (ms > 0) (void)nanosleep(&(const struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

int64_t __real_os_direct_read(const os_direct *d, uint64_t off, void *dst, size_t n);
int64_t __wrap_os_direct_read(const os_direct *d, uint64_t off, void *dst, size_t n);
int64_t __wrap_os_direct_read(const os_direct *d, uint64_t off, void *dst, size_t n) {
    note_read(off, n);
    be_late();
    return spoil(off, n, __real_os_direct_read(d, off, dst, n));
}

status __real_os_file_read(const os_file *f, uint64_t off, void *dst, size_t n, error *err);
status __wrap_os_file_read(const os_file *f, uint64_t off, void *dst, size_t n, error *err);
status __wrap_os_file_read(const os_file *f, uint64_t off, void *dst, size_t n, error *err) {
    note_read(off, n);
    be_late();
    const status rc = __real_os_file_read(f, off, dst, n, err);
    if (rc != STATUS_OK || spoil(off, n, 0) != -EIO) return rc;
    return error_set(err, STATUS_IO, "os: %s: read at offset %llu: expected %zu bytes, got 0: Input/output error", os_file_path(f), (unsigned long long)off, n);
}

void __real_os_ring_read(os_ring *r, const os_direct *d, uint64_t off, void *dst, size_t n, uint64_t user);
void __wrap_os_ring_read(os_ring *r, const os_direct *d, uint64_t off, void *dst, size_t n, uint64_t user);
void __wrap_os_ring_read(os_ring *r, const os_direct *d, uint64_t off, void *dst, size_t n, uint64_t user) {
    note_read(off, n);
    if (user >= EXPERT_READER_MAX_DEPTH) abort();
    fault.ring_off[user] = off;
    fault.ring_bytes[user] = n;
    __real_os_ring_read(r, d, off, dst, n, user);
}

static bool give_held(uint64_t *user, int64_t *got) {
    fault.held = false;
    *user = fault.held_user;
    *got = fault.held_got;
    return true;
}

/* Threads that read ahead beside the ring take it back too. */
static int late_ms(void) {
    pthread_mutex_lock(&fault.lock);
    const int ms = fault.late_ms;
    pthread_mutex_unlock(&fault.lock);
    return ms;
}

/* One completion, or none; the held one comes when it may, or when nothing else would. */
static bool next_of_ring(os_ring *r, bool wait, uint64_t *user, int64_t *got);
bool __real_os_ring_next(os_ring *r, bool wait, uint64_t *user, int64_t *got);
static bool next_of_ring(os_ring *r, bool wait, uint64_t *user, int64_t *got) {
    while (__real_os_ring_next(r, false, user, got)) {
        if (fault.held || !(fault.hold_one || late_ms() > 0)) return true;
        fault.held = true;
        fault.held_user = *user;
        fault.held_got = *got;
        fault.n_held++;
    }
    if (!wait) return false;
    if (fault.held && !fault.hold_one && late_ms() == 0) return give_held(user, got);
    if (__real_os_ring_next(r, true, user, got)) return true;
    if (!fault.held || late_ms() == 0) return false;
    be_late();
    return give_held(user, got);
}

bool __wrap_os_ring_next(os_ring *r, bool wait, uint64_t *user, int64_t *got);
bool __wrap_os_ring_next(os_ring *r, bool wait, uint64_t *user, int64_t *got) {
    if (!next_of_ring(r, wait, user, got)) return false;
    *got = spoil(fault.ring_off[*user], fault.ring_bytes[*user], *got);
    return true;
}

status __real_os_ring_create(mem *m, int32_t depth, os_ring **out, error *err);
status __wrap_os_ring_create(mem *m, int32_t depth, os_ring **out, error *err);
status __wrap_os_ring_create(mem *m, int32_t depth, os_ring **out, error *err) {
    return fault.no_ring ? error_set(err, STATUS_UNSUPPORTED, "os: no io_uring: the test has said so") : __real_os_ring_create(m, depth, out, err);
}

bool __real_os_ring_register(os_ring *r, void *base, size_t n);
bool __wrap_os_ring_register(os_ring *r, void *base, size_t n);
bool __wrap_os_ring_register(os_ring *r, void *base, size_t n) { return !fault.no_register && __real_os_ring_register(r, base, n); }

status __real_os_direct_open(mem *m, const os_file *f, os_direct **out, error *err);
status __wrap_os_direct_open(mem *m, const os_file *f, os_direct **out, error *err);
status __wrap_os_direct_open(mem *m, const os_file *f, os_direct **out, error *err) {
    return fault.no_direct ? error_set(err, STATUS_UNSUPPORTED, "os: no direct reads: the test has said so") : __real_os_direct_open(m, f, out, err);
}

int __real_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring) {
    if (fault.submits_left == 0) {
        fault.submits_left = -1;
        return fault.submit_error;
    }
    if (fault.submits_left > 0) fault.submits_left--;
    return __real_io_uring_submit(ring);
}
