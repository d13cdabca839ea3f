/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The readers: one lock, a ring of ranges to read, a ring of completed fills. Readers hold the lock only to take a range and to say that it is done; the lock also carries the bytes of a
 * slot from the reader that wrote them to the engine's thread.
 */
#include "moe/expert_reader.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/log.h"

enum { STACK_BYTES = 256 * 1024, MAX_THREADS = 64 };

typedef struct job {
    int32_t fill;
    expert_range range;
} job;

typedef struct fill_state {
    int32_t n_left;
    status rc; /* of the first range that failed */
    char why[EXPERT_READER_WHY_BYTES];
} fill_state;

struct expert_reader {
    mem *m;
    const source *src;
    int32_t n_threads, n_fills, n_jobs;
    size_t charged_bytes;
    pthread_t threads[MAX_THREADS];
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    bool lock_ready, work_ready, done_ready;

    /* under lock */
    bool stop;
    job *jobs;     /* ring [n_jobs] */
    int32_t job_first, job_count;
    int32_t *ready; /* ring [n_fills] of completed fills */
    int32_t ready_first, ready_count;
    fill_state *fills;

    int32_t n_pending; /* of the engine's thread */
};

/* With the lock held. */
static void complete(expert_reader *r, int32_t fill, status rc, const char *why) {
    fill_state *f = &r->fills[fill];
    if (rc != STATUS_OK && f->rc == STATUS_OK) {
        f->rc = rc;
        snprintf(f->why, sizeof f->why, "%.*s", EXPERT_READER_WHY_BYTES - 1, why);
    }
    if (--f->n_left > 0) return;
    r->ready[(r->ready_first + r->ready_count++) % r->n_fills] = fill;
    pthread_cond_signal(&r->done);
}

static void *reader_main(void *ctx) {
    expert_reader *r = ctx;
    pthread_mutex_lock(&r->lock);
    for (;;) {
        while (!r->stop && r->job_count == 0) pthread_cond_wait(&r->work, &r->lock);
        if (r->stop) break;
        const job j = r->jobs[r->job_first];
        r->job_first = (r->job_first + 1) % r->n_jobs;
        r->job_count--;
        pthread_mutex_unlock(&r->lock);
        error err = {0};
        const status rc = source_read_range(r->src, j.range.file, j.range.off, j.range.n_bytes, j.range.dst, &err);
        pthread_mutex_lock(&r->lock);
        complete(r, j.fill, rc, err.text);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static bool sizes(int32_t n_fills, int32_t max_ranges, size_t *n_jobs) {
    return n_fills >= 1 && max_ranges >= 1 && checked_mul_size((size_t)n_fills, (size_t)max_ranges, n_jobs) && *n_jobs <= INT32_MAX / 2;
}

size_t expert_reader_bytes(int32_t n_fills, int32_t max_ranges) {
    size_t n_jobs;
    if (!sizes(n_fills, max_ranges, &n_jobs)) return SIZE_MAX;
    return sizeof(expert_reader) + n_jobs * sizeof(job) + (size_t)n_fills * (sizeof(int32_t) + sizeof(fill_state)) + 4 * (size_t)(MEM_HEADER_BYTES + MEM_ALIGN);
}

static status start_threads(expert_reader *r, int32_t n_threads, error *err) {
    pthread_attr_t attr;
    sigset_t all, before;
    if (pthread_attr_init(&attr) != 0) return error_set(err, STATUS_FAILED, "experts: no thread attributes");
    int failure = pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all);
    static const int synchronous[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof synchronous / sizeof synchronous[0]; i++) sigdelset(&all, synchronous[i]);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* signals are for the threads of the host */
    while (failure == 0 && r->n_threads < n_threads) {
        failure = pthread_create(&r->threads[r->n_threads], &attr, reader_main, r);
        if (failure == 0) r->n_threads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (r->n_threads == 0) return error_set(err, STATUS_FAILED, "experts: no thread to read with: %s", strerror(failure));
    if (failure != 0) log_warn("experts: %d of %d reader threads could be started: %s", r->n_threads, n_threads, strerror(failure));
    return STATUS_OK;
}

static status create(expert_reader *r, int32_t n_threads, int32_t n_fills, size_t n_jobs, error *err) {
    r->n_fills = n_fills;
    r->n_jobs = (int32_t)n_jobs;
    r->jobs = mem_calloc(r->m, MEM_MODEL, n_jobs, sizeof *r->jobs);
    r->ready = mem_calloc(r->m, MEM_MODEL, (size_t)n_fills, sizeof *r->ready);
    r->fills = mem_calloc(r->m, MEM_MODEL, (size_t)n_fills, sizeof *r->fills);
    if (r->jobs == NULL || r->ready == NULL || r->fills == NULL) return error_set(err, STATUS_NO_MEMORY, "experts: no memory for %zu reads", n_jobs);
    r->lock_ready = pthread_mutex_init(&r->lock, NULL) == 0;
    r->work_ready = pthread_cond_init(&r->work, NULL) == 0;
    r->done_ready = pthread_cond_init(&r->done, NULL) == 0;
    if (!r->lock_ready || !r->work_ready || !r->done_ready) return error_set(err, STATUS_FAILED, "experts: no lock for the readers");
    const size_t stacks = (size_t)n_threads * STACK_BYTES;
    if (mem_charge(r->m, MEM_PROCESS, stacks) != STATUS_OK) return error_set(err, STATUS_NO_MEMORY, "experts: no memory for the stacks of %d readers", n_threads);
    r->charged_bytes = stacks;
    return start_threads(r, n_threads, err);
}

status expert_reader_create(mem *m, const source *src, int32_t n_threads, int32_t n_fills, int32_t max_ranges, expert_reader **out, error *err) {
    size_t n_jobs;
    if (n_threads < 1 || n_threads > MAX_THREADS || !sizes(n_fills, max_ranges, &n_jobs)) {
        return error_set(err, STATUS_INVALID, "experts: %d readers for %d fills of %d ranges", n_threads, n_fills, max_ranges);
    }
    expert_reader *r = mem_calloc(m, MEM_MODEL, 1, sizeof *r);
    if (r == NULL) return error_set(err, STATUS_NO_MEMORY, "experts: no memory for readers");
    r->m = m;
    r->src = src;
    const status rc = create(r, n_threads, n_fills, n_jobs, err);
    if (rc != STATUS_OK) {
        expert_reader_destroy(r);
        return rc;
    }
    *out = r;
    return STATUS_OK;
}

void expert_reader_destroy(expert_reader *r) {
    if (r == NULL) return;
    if (r->n_threads > 0) {
        pthread_mutex_lock(&r->lock);
        r->stop = true;
        pthread_cond_broadcast(&r->work);
        pthread_mutex_unlock(&r->lock);
        for (int32_t i = 0; i < r->n_threads; i++) pthread_join(r->threads[i], NULL);
    }
    if (r->lock_ready) pthread_mutex_destroy(&r->lock);
    if (r->work_ready) pthread_cond_destroy(&r->work);
    if (r->done_ready) pthread_cond_destroy(&r->done);
    mem_uncharge(r->m, MEM_PROCESS, r->charged_bytes);
    mem_free(r->m, r->jobs);
    mem_free(r->m, r->ready);
    mem_free(r->m, r->fills);
    mem_free(r->m, r);
}

void expert_reader_submit(expert_reader *r, int32_t fill, const expert_range *ranges, int32_t n) {
    pthread_mutex_lock(&r->lock);
    r->fills[fill].n_left = n;
    r->fills[fill].rc = STATUS_OK;
    for (int32_t i = 0; i < n; i++) r->jobs[(r->job_first + r->job_count++) % r->n_jobs] = (job){.fill = fill, .range = ranges[i]};
    if (n > 1)
        pthread_cond_broadcast(&r->work);
    else
        pthread_cond_signal(&r->work);
    pthread_mutex_unlock(&r->lock);
    r->n_pending++;
}

int32_t expert_reader_next(expert_reader *r, bool wait, uint64_t *stall_ns) {
    if (r->n_pending == 0) return -1;
    int32_t fill = -1;
    pthread_mutex_lock(&r->lock);
    if (wait && r->ready_count == 0) {
        const uint64_t from = os_now_ns();
        while (r->ready_count == 0) pthread_cond_wait(&r->done, &r->lock);
        *stall_ns += os_now_ns() - from;
    }
    if (r->ready_count > 0) {
        fill = r->ready[r->ready_first];
        r->ready_first = (r->ready_first + 1) % r->n_fills;
        r->ready_count--;
        r->n_pending--;
    }
    pthread_mutex_unlock(&r->lock);
    return fill;
}

/* What next has given belongs to the engine's thread until it is submitted again. */
status expert_reader_outcome(const expert_reader *r, int32_t fill, error *err) {
    const fill_state *f = &r->fills[fill];
    return f->rc == STATUS_OK ? STATUS_OK : error_set(err, f->rc, "%s", f->why);
}

int32_t expert_reader_pending(const expert_reader *r) { return r->n_pending; }

void expert_reader_drop(expert_reader *r) {
    pthread_mutex_lock(&r->lock);
    for (; r->job_count > 0; r->job_count--) {
        const int32_t fill = r->jobs[r->job_first].fill;
        r->job_first = (r->job_first + 1) % r->n_jobs;
        complete(r, fill, STATUS_CANCELLED, "experts: the read was given up");
    }
    pthread_mutex_unlock(&r->lock);
}
