/* SPDX-License-Identifier: Apache-2.0 */
/* io_uring through liburing. One iovec of registered memory holds at most 1 GiB, so larger memory is registered in pieces; a read that crosses two of them goes unregistered. */
#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/os_linux.h"

enum { MAX_PIECES = 16, MAX_TRIES = 1000 };
static const size_t PIECE_BYTES = (size_t)1 << 30;

struct os_ring {
    mem *m;
    struct io_uring ring;
    bool failed;
    uint8_t *base; /* registered memory; NULL: none */
    size_t n_bytes;
    unsigned n_queued; /* and not submitted */
    unsigned n_flying; /* with the kernel, which may write to their memory until it has told of each */
};

status os_ring_create(mem *m, int32_t depth, os_ring **out, error *err) {
    os_ring *r = mem_calloc(m, MEM_PROCESS, 1, sizeof *r);
    if (r == NULL) return error_set(err, STATUS_NO_MEMORY, "os: no memory for a ring");
    r->m = m;
    const int rc = depth < 1 ? -EINVAL : io_uring_queue_init((unsigned)depth, &r->ring, 0);
    if (rc < 0) {
        mem_free(m, r);
        const char *help = rc == -EPERM    ? ": kernel.io_uring_disabled is set, or a container's seccomp profile forbids it"
                           : rc == -ENOSYS ? ": the kernel, or a container's seccomp profile, has none"
                           : rc == -ENOMEM ? ": the limit of locked memory (ulimit -l) is too small"
                                           : "";
        return error_set(err, STATUS_UNSUPPORTED, "os: no io_uring: %s%s", strerror(-rc), help);
    }
    *out = r;
    return STATUS_OK;
}

void os_ring_destroy(os_ring *r) {
    uint64_t user;
    int64_t got;
    if (r == NULL) return;
    r->failed = true; /* nothing more is submitted */
    while (os_ring_next(r, true, &user, &got)) continue;
    io_uring_queue_exit(&r->ring);
    mem_free(r->m, r);
}

bool os_ring_register(os_ring *r, void *base, size_t n) {
    struct iovec pieces[MAX_PIECES];
    unsigned k = 0;
    if (n == 0 || n > MAX_PIECES * PIECE_BYTES) return false;
    for (size_t at = 0; at < n; at += PIECE_BYTES) pieces[k++] = (struct iovec){.iov_base = (uint8_t *)base + at, .iov_len = n - at < PIECE_BYTES ? n - at : PIECE_BYTES};
    if (io_uring_register_buffers(&r->ring, pieces, k) != 0) return false;
    r->base = base;
    r->n_bytes = n;
    return true;
}

static void rest(void) { (void)nanosleep(&(const struct timespec){.tv_nsec = 1000000}, NULL); }

/* The registered piece that holds all of the destination, or -1. */
static int piece_of(const os_ring *r, const uint8_t *dst, size_t n) {
    if (r->base == NULL || dst < r->base || n == 0 || n > r->n_bytes || (size_t)(dst - r->base) > r->n_bytes - n) return -1;
    const size_t first = (size_t)(dst - r->base) / PIECE_BYTES, last = ((size_t)(dst - r->base) + n - 1) / PIECE_BYTES;
    return first == last ? (int)first : -1;
}

void os_ring_read(os_ring *r, const os_direct *d, uint64_t off, void *dst, size_t n, uint64_t user) {
    if (r->failed) return;
    struct io_uring_sqe *e = io_uring_get_sqe(&r->ring);
    if (e == NULL) { /* more than depth: as many are queued as fit */
        os_ring_submit(r);
        e = io_uring_get_sqe(&r->ring);
    }
    if (e == NULL) {
        r->failed = true;
        return;
    }
    const int piece = piece_of(r, dst, n);
    if (piece >= 0)
        io_uring_prep_read_fixed(e, os_linux_direct_fd(d), dst, (unsigned)n, off, piece);
    else
        io_uring_prep_read(e, os_linux_direct_fd(d), dst, (unsigned)n, off);
    e->user_data = user;
    r->n_queued++;
}

/* What the kernel has no room for now waits for what it holds; where it holds nothing, it is asked again a few times. */
void os_ring_submit(os_ring *r) {
    for (int tries = 0; r->n_queued > 0 && !r->failed;) {
        const int rc = io_uring_submit(&r->ring);
        if (rc == -EINTR) continue;
        if (rc == -EAGAIN || rc == -EBUSY) {
            if (r->n_flying > 0) return;
            if (++tries < MAX_TRIES) {
                rest();
                continue;
            }
        }
        if (rc <= 0) {
            r->failed = true;
            return;
        }
        const unsigned n = (unsigned)rc < r->n_queued ? (unsigned)rc : r->n_queued;
        r->n_queued -= n;
        r->n_flying += n;
    }
}

bool os_ring_next(os_ring *r, bool wait, uint64_t *user, int64_t *got) {
    struct io_uring_cqe *c = NULL;
    os_ring_submit(r);
    for (;;) {
        if (r->n_flying == 0) return false;
        const int rc = wait ? io_uring_wait_cqe(&r->ring, &c) : io_uring_peek_cqe(&r->ring, &c);
        if (rc == 0 && c != NULL) break;
        if (!wait) {
            if (rc == -EINTR) continue;
            return false;
        }
        if (rc != -EINTR && rc != -EAGAIN) { /* cannot be waited for: looked for, since its memory is the kernel's until then */
            r->failed = true;
            rest();
        }
    }
    *user = c->user_data;
    *got = c->res;
    io_uring_cqe_seen(&r->ring, c);
    r->n_flying--;
    return true;
}
