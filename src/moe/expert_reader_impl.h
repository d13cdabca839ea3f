/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Inside of the reader: what its two halves share. Jobs are ranges in a ring; a piece is what is asked for at once, cut from the first job. What is read ahead has a ring of its own, from
 * which threads take pieces while of the other no more than the last few are being read.
 */
#ifndef HEADRACE_MOE_EXPERT_READER_IMPL_H
#define HEADRACE_MOE_EXPERT_READER_IMPL_H

#include <pthread.h>

#include "moe/expert_reader.h"

typedef struct reader_job {
    int32_t fill;
    int32_t n_pieces, n_taken;
    expert_range range;
} reader_job;

/* Bytes of a range: [off, off + n) of the file to dst, of which the first `need` have to come. In whole pages when past the page cache. */
typedef struct reader_piece {
    int32_t fill;
    expert_range range; /* it is of, for texts */
    uint64_t off;
    uint8_t *dst;
    size_t n, need;
} reader_piece;

/* A ring of jobs. */
typedef struct reader_queue {
    reader_job *jobs; /* [n_jobs] */
    int32_t first, count;
} reader_queue;

typedef struct reader_fill {
    int32_t n_left; /* pieces */
    bool ahead;
    status rc;      /* of the first that failed */
    char why[EXPERT_READER_WHY_BYTES];
} reader_fill;

enum { READER_MAX_THREADS = 64, READER_AHEAD_THREADS = 4, READER_AHEAD_BESIDE = 4 /* wanted pieces that are left when reading ahead begins */ };

struct expert_reader {
    mem *m;
    const source *src;
    expert_reader_options opt;
    int32_t n_threads, n_jobs;
    size_t charged_bytes;
    os_direct **direct; /* [files of the source], past the page cache; NULL: buffered */
    pthread_t threads[READER_MAX_THREADS];
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    bool lock_ready, work_ready, done_ready;

    /* under lock */
    bool stop;
    reader_queue wanted, ahead;
    int32_t n_wanted, n_under_way; /* pieces queued or being read: of fills that are wanted, of all */
    uint64_t busy_ns, busy_from_ns; /* from: of the first read of those that are under way */
    int32_t *ready;       /* ring [n_fills] of completed fills */
    int32_t ready_first, ready_count;
    reader_fill *fills;

    /* of the engine's thread */
    int32_t n_pending;
    os_ring *ring;
    reader_piece *pieces; /* [depth] */
    int32_t *free_pieces, n_free, n_flying;
    bool registered;
};

/* With the lock held: the next piece of what is wanted; false: there is none. */
bool reader_take(expert_reader *r, reader_piece *out);
/* With the lock: whether a fill is complete that next has not given. */
bool reader_has_ready(expert_reader *r);
/* With the lock held: a piece of the fill is over. */
void reader_complete(expert_reader *r, int32_t fill, status rc, const char *why);
/* What came of a piece: `got` bytes or minus an error. True when it is over, with *rc and the text; else the piece is what is left of it and has to be asked for again. */
bool reader_judge(const expert_reader *r, reader_piece *p, int64_t got, status *rc, error *err);

NODISCARD status reader_ring_create(expert_reader *r, error *err);
void reader_ring_destroy(expert_reader *r);
/* Keeps as many pieces with the kernel as the depth allows. */
void reader_ring_pump(expert_reader *r);
/* Takes in what has ended; with `wait` until a fill is complete. */
void reader_ring_collect(expert_reader *r, bool wait);

#endif
