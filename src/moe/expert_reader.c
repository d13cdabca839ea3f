/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The readers: one lock, a ring of ranges to read, a ring of completed fills. Threads hold the lock only to take a piece and to say that it is done; the lock also carries the bytes of a
 * slot from the reader that wrote them to the engine's thread. With a ring there are no threads, and nobody contends for the lock.
 */
#include "moe/expert_reader.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/log.h"
#include "moe/expert_reader_impl.h"

enum { STACK_BYTES = 256 * 1024 };
static const uint64_t PAGE = EXPERT_PAGE_BYTES;

_Static_assert((int)EXPERT_PAGE_BYTES == (int)OS_DIRECT_ALIGN, "padded slots are laid out for reads past the page cache");

/* ---- pieces ---- */

/* The range with what it takes to fill whole pages: the bytes in front of it in its first page, and where that page is in memory. */
static size_t head_of(const expert_reader *r, const expert_range *range) { return r->opt.way == EXPERT_READ_BUFFERED ? 0 : (size_t)(range->off % PAGE); }

static int32_t count_pieces(const expert_reader *r, const expert_range *range) {
    if (r->opt.way == EXPERT_READ_BUFFERED) return 1;
    return (int32_t)((head_of(r, range) + range->n_bytes + EXPERT_READER_PIECE_BYTES - 1) / EXPERT_READER_PIECE_BYTES);
}

static bool take_from(const expert_reader *r, reader_queue *q, reader_piece *out) {
    if (q->count == 0) return false;
    reader_job *j = &q->jobs[q->first];
    const size_t head = head_of(r, &j->range), total = head + (size_t)j->range.n_bytes, at = (size_t)j->n_taken * EXPERT_READER_PIECE_BYTES;
    const bool buffered = r->opt.way == EXPERT_READ_BUFFERED;
    const size_t need = buffered || total - at < EXPERT_READER_PIECE_BYTES ? total - at : EXPERT_READER_PIECE_BYTES;
    *out = (reader_piece){
        .fill = j->fill,
        .range = j->range,
        .off = j->range.off - head + at,
        .dst = (uint8_t *)j->range.dst - head + at,
        .n = buffered ? need : (need + (size_t)PAGE - 1) / (size_t)PAGE * (size_t)PAGE,
        .need = need,
    };
    if (++j->n_taken == j->n_pieces) {
        q->first = (q->first + 1) % r->n_jobs;
        q->count--;
    }
    return true;
}

bool reader_take(expert_reader *r, reader_piece *out) { return take_from(r, &r->wanted, out); }

/* For a thread: what is wanted goes first, and only its last pieces have what is read ahead beside them, so that the disk goes from the one to the other without a pause. The ring has its own way to what is wanted. */
static bool take_any(expert_reader *r, reader_piece *out) {
    if (r->opt.way != EXPERT_READ_RING && reader_take(r, out)) return true;
    return r->n_wanted <= READER_AHEAD_BESIDE && take_from(r, &r->ahead, out);
}

static void push(const expert_reader *r, reader_queue *q, reader_job j) { q->jobs[(q->first + q->count++) % r->n_jobs] = j; }

void reader_complete(expert_reader *r, int32_t fill, status rc, const char *why) {
    reader_fill *f = &r->fills[fill];
    if (rc != STATUS_OK && f->rc == STATUS_OK) {
        f->rc = rc;
        snprintf(f->why, sizeof f->why, "%.*s", EXPERT_READER_WHY_BYTES - 1, why);
    }
    if (--r->n_under_way == 0) r->busy_ns += os_now_ns() - r->busy_from_ns;
    if (!f->ahead && --r->n_wanted == READER_AHEAD_BESIDE && r->ahead.count > 0) pthread_cond_broadcast(&r->work);
    if (--f->n_left > 0) return;
    r->ready[(r->ready_first + r->ready_count++) % r->opt.n_fills] = fill;
    pthread_cond_signal(&r->done);
}

bool reader_judge(const expert_reader *r, reader_piece *p, int64_t got, status *rc, error *err) {
    *rc = STATUS_OK;
    if (got >= 0 && (size_t)got >= p->need) return true;
    if (got == -EINTR || got == -EAGAIN) return false;
    const size_t whole = got > 0 ? (size_t)got / (size_t)PAGE * (size_t)PAGE : 0;
    p->off += whole;
    p->dst += whole;
    p->n -= whole;
    p->need -= whole;
    if (whole > 0) return false;
    if (got > 0 || got == -EINVAL) { /* less than a page, or the device has another idea of alignment: what is left goes through the page cache */
        *rc = source_read_range(r->src, p->range.file, p->off, p->need, p->dst, err);
        return true;
    }
    char text[128];
    const uint64_t began = p->off > p->range.off ? p->off - p->range.off : 0;
    *rc = error_set(err, STATUS_IO, "os: %s: read at offset %llu: expected %llu bytes, got %llu: %s", os_file_path(source_file(r->src, p->range.file)), (unsigned long long)p->range.off,
                    (unsigned long long)p->range.n_bytes, (unsigned long long)began, got == 0 ? "the file ends there" : os_error_text((int)-got, text, sizeof text));
    return true;
}

/* ---- threads ---- */

static status read_piece(const expert_reader *r, reader_piece p, error *err) {
    status rc;
    if (r->opt.way == EXPERT_READ_BUFFERED) {
        rc = source_read_range(r->src, p.range.file, p.off, p.need, p.dst, err);
        if (p.need >= EXPERT_DIRECT_LEAST) os_file_forget(source_file(r->src, p.range.file), p.off, p.need);
        return rc;
    }
    while (!reader_judge(r, &p, os_direct_read(r->direct[p.range.file], p.off, p.dst, p.n), &rc, err)) continue;
    return rc;
}

static void *reader_main(void *ctx) {
    expert_reader *r = ctx;
    pthread_mutex_lock(&r->lock);
    for (;;) {
        reader_piece p;
        while (!r->stop && !take_any(r, &p)) pthread_cond_wait(&r->work, &r->lock);
        if (r->stop) break;
        pthread_mutex_unlock(&r->lock);
        error err = {0};
        const status rc = read_piece(r, p, &err);
        pthread_mutex_lock(&r->lock);
        reader_complete(r, p.fill, rc, err.text);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
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

/* ---- create ---- */

static bool sizes(int32_t n_fills, int32_t max_ranges, size_t *n_jobs) {
    return n_fills >= 1 && max_ranges >= 1 && checked_mul_size((size_t)n_fills, (size_t)max_ranges, n_jobs) && *n_jobs <= INT32_MAX / 2;
}

size_t expert_reader_bytes(int32_t n_fills, int32_t max_ranges) {
    size_t n_jobs;
    if (!sizes(n_fills, max_ranges, &n_jobs)) return SIZE_MAX;
    const size_t flying = EXPERT_READER_MAX_DEPTH * (sizeof(reader_piece) + sizeof(int32_t)), files = 4096 * sizeof(os_direct *);
    return sizeof(expert_reader) + 2 * n_jobs * sizeof(reader_job) + (size_t)n_fills * (sizeof(int32_t) + sizeof(reader_fill)) + flying + files + 8 * (size_t)(MEM_HEADER_BYTES + MEM_ALIGN);
}

static status open_direct(expert_reader *r, error *err) {
    const size_t n = source_n_files(r->src);
    if (!source_is_plain(r->src)) return error_set(err, STATUS_UNSUPPORTED, "experts: this checkpoint is read through a reader of its own");
    r->direct = mem_calloc(r->m, MEM_MODEL, n, sizeof *r->direct);
    if (r->direct == NULL) return error_set(err, STATUS_NO_MEMORY, "experts: no memory for readers");
    for (size_t i = 0; i < n; i++) TRY(os_direct_open(r->m, source_file(r->src, i), &r->direct[i], err));
    return STATUS_OK;
}

static status create(expert_reader *r, size_t n_jobs, error *err) {
    const size_t n_fills = (size_t)r->opt.n_fills;
    r->n_jobs = (int32_t)n_jobs;
    r->wanted.jobs = mem_calloc(r->m, MEM_MODEL, n_jobs, sizeof *r->wanted.jobs);
    if (r->opt.ahead) r->ahead.jobs = mem_calloc(r->m, MEM_MODEL, n_jobs, sizeof *r->ahead.jobs);
    r->ready = mem_calloc(r->m, MEM_MODEL, n_fills, sizeof *r->ready);
    r->fills = mem_calloc(r->m, MEM_MODEL, n_fills, sizeof *r->fills);
    if (r->wanted.jobs == NULL || (r->opt.ahead && r->ahead.jobs == NULL) || r->ready == NULL || r->fills == NULL) return error_set(err, STATUS_NO_MEMORY, "experts: no memory for %zu reads", n_jobs);
    r->lock_ready = pthread_mutex_init(&r->lock, NULL) == 0;
    r->work_ready = pthread_cond_init(&r->work, NULL) == 0;
    r->done_ready = pthread_cond_init(&r->done, NULL) == 0;
    if (!r->lock_ready || !r->work_ready || !r->done_ready) return error_set(err, STATUS_FAILED, "experts: no lock for the readers");
    if (r->opt.way != EXPERT_READ_BUFFERED) TRY(open_direct(r, err));
    const bool ring = r->opt.way == EXPERT_READ_RING;
    if (ring) TRY(reader_ring_create(r, err));
    if (ring && !r->opt.ahead) return STATUS_OK;
    const int32_t most = ring ? READER_AHEAD_THREADS : r->opt.depth, n_threads = most < READER_MAX_THREADS ? most : READER_MAX_THREADS;
    const size_t stacks = (size_t)n_threads * STACK_BYTES;
    if (mem_charge(r->m, MEM_PROCESS, stacks) != STATUS_OK) return error_set(err, STATUS_NO_MEMORY, "experts: no memory for the stacks of %d readers", n_threads);
    r->charged_bytes = stacks;
    const status rc = start_threads(r, n_threads, ring ? NULL : err);
    if (rc == STATUS_OK || !ring) return rc;
    log_warn("experts: no thread can be started to read ahead with");
    return STATUS_OK;
}

status expert_reader_create(mem *m, const source *src, const expert_reader_options *opt, expert_reader **out, error *err) {
    size_t n_jobs;
    if (opt->depth < 1 || opt->depth > EXPERT_READER_MAX_DEPTH || !sizes(opt->n_fills, opt->max_ranges, &n_jobs)) {
        return error_set(err, STATUS_INVALID, "experts: %d readers for %d fills of %d ranges", opt->depth, opt->n_fills, opt->max_ranges);
    }
    expert_reader *r = mem_calloc(m, MEM_MODEL, 1, sizeof *r);
    if (r == NULL) return error_set(err, STATUS_NO_MEMORY, "experts: no memory for readers");
    r->m = m;
    r->src = src;
    r->opt = *opt;
    const status rc = create(r, n_jobs, err);
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
    reader_ring_destroy(r);
    for (size_t i = 0; r->direct != NULL && i < source_n_files(r->src); i++) os_direct_close(r->direct[i]);
    if (r->lock_ready) pthread_mutex_destroy(&r->lock);
    if (r->work_ready) pthread_cond_destroy(&r->work);
    if (r->done_ready) pthread_cond_destroy(&r->done);
    mem_uncharge(r->m, MEM_PROCESS, r->charged_bytes);
    mem_free(r->m, r->direct);
    mem_free(r->m, r->wanted.jobs);
    mem_free(r->m, r->ahead.jobs);
    mem_free(r->m, r->ready);
    mem_free(r->m, r->fills);
    mem_free(r->m, r);
}

/* ---- the engine's side ---- */

static void submit(expert_reader *r, int32_t fill, const expert_range *ranges, int32_t n, bool ahead) {
    r->n_pending++;
    pthread_mutex_lock(&r->lock);
    reader_fill *f = &r->fills[fill];
    *f = (reader_fill){.ahead = ahead, .rc = STATUS_OK};
    for (int32_t i = 0; i < n; i++) {
        const int32_t pieces = count_pieces(r, &ranges[i]);
        f->n_left += pieces;
        push(r, ahead ? &r->ahead : &r->wanted, (reader_job){.fill = fill, .n_pieces = pieces, .range = ranges[i]});
    }
    if (r->n_under_way == 0) r->busy_from_ns = os_now_ns();
    r->n_under_way += f->n_left;
    if (!ahead) r->n_wanted += f->n_left;
    if (f->n_left > 1)
        pthread_cond_broadcast(&r->work);
    else
        pthread_cond_signal(&r->work);
    pthread_mutex_unlock(&r->lock);
}

void expert_reader_submit(expert_reader *r, int32_t fill, const expert_range *ranges, int32_t n) {
    submit(r, fill, ranges, n, false);
    if (r->ring != NULL) reader_ring_pump(r);
}

bool expert_reader_can_read_ahead(const expert_reader *r) { return r->opt.ahead && r->n_threads > 0; }

void expert_reader_submit_ahead(expert_reader *r, int32_t fill, const expert_range *ranges, int32_t n) { submit(r, fill, ranges, n, true); }

void expert_reader_want(expert_reader *r, int32_t fill) {
    pthread_mutex_lock(&r->lock);
    reader_fill *f = &r->fills[fill];
    const int32_t n = f->ahead ? r->ahead.count : 0;
    if (f->ahead) r->n_wanted += f->n_left;
    f->ahead = false;
    for (int32_t i = 0; i < n; i++) { /* once around the ring: its ranges leave, the others keep their order */
        const reader_job j = r->ahead.jobs[r->ahead.first];
        r->ahead.first = (r->ahead.first + 1) % r->n_jobs;
        r->ahead.count--;
        push(r, j.fill == fill ? &r->wanted : &r->ahead, j);
    }
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
    if (r->ring != NULL) reader_ring_pump(r);
}

/* With the lock held. */
static int32_t pop_ready(expert_reader *r) {
    if (r->ready_count == 0) return -1;
    const int32_t fill = r->ready[r->ready_first];
    r->ready_first = (r->ready_first + 1) % r->opt.n_fills;
    r->ready_count--;
    return fill;
}

int32_t expert_reader_next(expert_reader *r, bool wait, uint64_t *stall_ns) {
    if (r->n_pending == 0) return -1;
    if (r->ring != NULL) reader_ring_collect(r, false);
    pthread_mutex_lock(&r->lock);
    int32_t fill = pop_ready(r);
    if (fill < 0 && wait) {
        const uint64_t from = os_now_ns();
        if (r->ring != NULL) {
            pthread_mutex_unlock(&r->lock);
            reader_ring_collect(r, true);
            pthread_mutex_lock(&r->lock);
        }
        while (r->ready_count == 0) pthread_cond_wait(&r->done, &r->lock);
        *stall_ns += os_now_ns() - from;
        fill = pop_ready(r);
    }
    pthread_mutex_unlock(&r->lock);
    if (fill >= 0) r->n_pending--;
    return fill;
}

void expert_reader_go_on(expert_reader *r) {
    if (r->ring != NULL && r->n_pending > 0) reader_ring_collect(r, false);
}

/* What next has given belongs to the engine's thread until it is submitted again. */
status expert_reader_outcome(const expert_reader *r, int32_t fill, error *err) {
    const reader_fill *f = &r->fills[fill];
    return f->rc == STATUS_OK ? STATUS_OK : error_set(err, f->rc, "%s", f->why);
}

static void drop_queue(expert_reader *r, reader_queue *q) {
    while (q->count > 0) {
        const reader_job *j = &q->jobs[q->first];
        q->first = (q->first + 1) % r->n_jobs;
        q->count--;
        for (int32_t i = j->n_taken; i < j->n_pieces; i++) reader_complete(r, j->fill, STATUS_CANCELLED, "experts: the read was given up");
    }
}

void expert_reader_drop(expert_reader *r) {
    pthread_mutex_lock(&r->lock);
    drop_queue(r, &r->ahead);
    drop_queue(r, &r->wanted);
    pthread_mutex_unlock(&r->lock);
}

void expert_reader_drop_ahead(expert_reader *r) {
    pthread_mutex_lock(&r->lock);
    drop_queue(r, &r->ahead);
    pthread_mutex_unlock(&r->lock);
}

bool reader_has_ready(expert_reader *r) {
    pthread_mutex_lock(&r->lock);
    const bool has = r->ready_count > 0;
    pthread_mutex_unlock(&r->lock);
    return has;
}

expert_read_way expert_reader_way(const expert_reader *r) { return r->opt.way; }
bool expert_reader_registered(const expert_reader *r) { return r->registered; }

uint64_t expert_reader_busy_ns(expert_reader *r) {
    pthread_mutex_lock(&r->lock);
    const uint64_t ns = r->busy_ns + (r->n_under_way > 0 ? os_now_ns() - r->busy_from_ns : 0);
    pthread_mutex_unlock(&r->lock);
    return ns;
}
