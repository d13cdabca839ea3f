/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool. A job is published by opening the gate, one atomic word of
 *     generation << 12 | active workers << 1 | open
 * A worker takes part by adding itself to an open gate (compare-and-swap); the caller works too, and once no chunk is left it closes
 * the gate and waits for those inside only. So a worker that is asleep or not scheduled never delays a job, which is what keeps a
 * pool with more threads than processors usable. The job's fields are written while the gate is closed and nobody is inside.
 *
 * Sleeping: a worker reads `epoch`, looks at the gate, counts itself a sleeper and waits until the epoch moves; the caller moves the
 * epoch and then looks at the sleepers. Both are sequentially consistent, so one of the two sees the other.
 */
#include "base/threads.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/os.h"

enum {
    POOL_MAX_THREADS = 1024,
    WORKER_STACK_BYTES = 1 << 20,
    SPIN_NS = 80 * 1000,
    PAUSES_PER_CLOCK = 32, /* a look at the clock costs about as much as one pause */
    GATE_OPEN = 1,
    GATE_ONE_ACTIVE = 2,
    GATE_ACTIVE_MASK = 0xFFE,
    GATE_GENERATION_SHIFT = 12
};

typedef struct worker {
    pool *p;
    pthread_t handle;
    int thread;
} worker;

struct pool {
    mem *m;
    int n_threads, n_started, n_wake_max;
    bool may_spin; /* no more threads than processors */
    worker *workers;
    size_t charged_bytes;

    pool_fn *fn;
    void *ctx;
    int64_t n, grain, n_chunks;

    _Alignas(64) _Atomic uint32_t gate;
    _Alignas(64) _Atomic int64_t next_chunk;
    _Alignas(64) _Atomic uint32_t epoch;
    _Atomic int n_sleepers;
    _Atomic bool in_step, stop, caller_waits, running;

    pthread_mutex_t lock;
    pthread_cond_t work, done;
};

static void pause_cpu(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static uint32_t gate_generation(uint32_t gate) { return gate >> GATE_GENERATION_SHIFT; }
static bool gate_joinable(uint32_t gate, uint32_t seen) { return (gate & GATE_OPEN) && gate_generation(gate) != seen; }

static void work_on_chunks(pool *p, int thread) {
    for (;;) {
        int64_t chunk = atomic_fetch_add_explicit(&p->next_chunk, 1, memory_order_relaxed);
        if (chunk >= p->n_chunks) return;
        int64_t begin = chunk * p->grain;
        int64_t end = p->n - begin < p->grain ? p->n : begin + p->grain;
        p->fn(p->ctx, begin, end, thread);
    }
}

static void leave_gate(pool *p) {
    uint32_t after = atomic_fetch_sub(&p->gate, GATE_ONE_ACTIVE) - GATE_ONE_ACTIVE;
    if ((after & (GATE_ACTIVE_MASK | GATE_OPEN)) || !atomic_load(&p->caller_waits)) return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_signal(&p->done);
    pthread_mutex_unlock(&p->lock);
}

/* Spin until the gate can be joined, the step ends, or the time is up. */
static void spin_for_work(pool *p, uint32_t seen) {
    if (!p->may_spin) return;
    uint64_t until = os_now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < PAUSES_PER_CLOCK; i++) {
            if (gate_joinable(atomic_load_explicit(&p->gate, memory_order_acquire), seen)) return;
            pause_cpu();
        }
    } while (atomic_load(&p->in_step) && !atomic_load(&p->stop) && os_now_ns() < until);
}

static void sleep_for_work(pool *p, uint32_t seen) {
    uint32_t epoch = atomic_load(&p->epoch);
    if (gate_joinable(atomic_load(&p->gate), seen) || atomic_load(&p->stop)) return;
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->n_sleepers, 1);
    while (atomic_load(&p->epoch) == epoch) pthread_cond_wait(&p->work, &p->lock);
    atomic_fetch_sub(&p->n_sleepers, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *arg) {
    worker *w = arg;
    pool *p = w->p;
    char name[16];
    snprintf(name, sizeof name, "headrace-%d", w->thread);
    pthread_setname_np(pthread_self(), name);
    uint32_t seen = 0; /* generation 0 is never open: see pool_run */
    while (!atomic_load(&p->stop)) {
        uint32_t gate = atomic_load(&p->gate);
        if (gate_joinable(gate, seen)) {
            if (!atomic_compare_exchange_weak(&p->gate, &gate, gate + GATE_ONE_ACTIVE)) continue;
            seen = gate_generation(gate);
            work_on_chunks(p, w->thread);
            leave_gate(p);
            continue;
        }
        spin_for_work(p, seen);
        if (!gate_joinable(atomic_load(&p->gate), seen)) sleep_for_work(p, seen);
    }
    return NULL;
}

/* Workers must not run handlers of the host program; faults stay deliverable, because the mapping handler of base/os needs them. */
static void block_signals(sigset_t *before) {
    static const int synchronous[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    sigset_t set;
    sigfillset(&set);
    for (size_t i = 0; i < sizeof synchronous / sizeof synchronous[0]; i++) sigdelset(&set, synchronous[i]);
    pthread_sigmask(SIG_BLOCK, &set, before);
}

static status start_workers(pool *p, error *err) {
    pthread_attr_t attr;
    if (pthread_attr_init(&attr)) return error_set(err, STATUS_FAILED, "threads: no thread attributes");
    int failure = pthread_attr_setstacksize(&attr, WORKER_STACK_BYTES);
    sigset_t before;
    block_signals(&before);
    for (int i = 0; i < p->n_threads - 1 && !failure; i++) {
        p->workers[i] = (worker){.p = p, .thread = i + 1};
        failure = pthread_create(&p->workers[i].handle, &attr, worker_main, &p->workers[i]);
        if (!failure) p->n_started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (failure)
        return error_set(err, STATUS_FAILED, "threads: worker %d of %d could not start: %s", p->n_started + 1, p->n_threads - 1,
                         strerror(failure));
    return STATUS_OK;
}

status pool_create(mem *m, int n_threads, pool **out, error *err) {
    if (n_threads < 1 || n_threads > POOL_MAX_THREADS)
        return error_set(err, STATUS_INVALID, "threads: %d threads asked for, 1 to %d are possible", n_threads, POOL_MAX_THREADS);
    size_t n_workers = (size_t)n_threads - 1;
    void *block;
    TRY(mem_alloc_named(m, MEM_PROCESS, sizeof(pool), "a thread pool", &block, err));
    pool *p = block;
    memset(p, 0, sizeof *p);
    p->m = m;
    p->n_threads = n_threads;
    int n_cpus = os_cpu_count();
    p->may_spin = n_threads <= n_cpus;
    p->n_wake_max = (n_threads < n_cpus ? n_threads : n_cpus) - 1;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    status rc = STATUS_OK;
    if (n_workers) {
        TRY_GOTO(mem_alloc_named(m, MEM_PROCESS, n_workers * sizeof(worker), "worker threads", &block, err));
        p->workers = block;
        size_t stacks = n_workers * (size_t)WORKER_STACK_BYTES;
        rc = mem_charge(m, MEM_PROCESS, stacks);
        if (rc != STATUS_OK) {
            error_note(err, rc, "threads: %zu bytes for the stacks of %zu workers refused", stacks, n_workers);
            goto fail;
        }
        p->charged_bytes = stacks;
        TRY_GOTO(start_workers(p, err));
    }
    *out = p;
    return STATUS_OK;
fail:
    pool_destroy(p);
    return rc;
}

/* Wake up to n_wanted sleepers, if there are any. */
static void wake_workers(pool *p, int64_t n_wanted) {
    atomic_fetch_add(&p->epoch, 1);
    int n_sleepers = atomic_load(&p->n_sleepers);
    if (n_sleepers == 0) return;
    pthread_mutex_lock(&p->lock);
    if (n_wanted >= n_sleepers) {
        pthread_cond_broadcast(&p->work);
    } else {
        for (int64_t i = 0; i < n_wanted; i++) pthread_cond_signal(&p->work);
    }
    pthread_mutex_unlock(&p->lock);
}

void pool_destroy(pool *p) {
    if (!p) return;
    atomic_store(&p->stop, true);
    wake_workers(p, INT64_MAX);
    for (int i = 0; i < p->n_started; i++) pthread_join(p->workers[i].handle, NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    mem_uncharge(p->m, MEM_PROCESS, p->charged_bytes);
    mem_free(p->m, p->workers);
    mem_free(p->m, p);
}

int pool_size(const pool *p) { return p->n_threads; }

static bool anyone_inside(pool *p) { return (atomic_load(&p->gate) & GATE_ACTIVE_MASK) != 0; }

static void wait_for_workers(pool *p) {
    if (!anyone_inside(p)) return;
    uint64_t until = os_now_ns() + SPIN_NS;
    while (p->may_spin && os_now_ns() < until) {
        for (int i = 0; i < PAUSES_PER_CLOCK; i++) {
            if (!anyone_inside(p)) return;
            pause_cpu();
        }
    }
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->caller_waits, true);
    while (anyone_inside(p)) pthread_cond_wait(&p->done, &p->lock);
    atomic_store(&p->caller_waits, false);
    pthread_mutex_unlock(&p->lock);
}

void pool_run(pool *p, int64_t n, int64_t grain, pool_fn *fn, void *ctx) {
    if (n <= 0) return;
    if (grain < 1) grain = 1;
    if (p->n_threads == 1 || n <= grain) {
        for (int64_t begin = 0; begin < n;) { /* a range is never longer than a grain, so that tasks can size their buffers by it */
            int64_t end = n - begin < grain ? n : begin + grain;
            fn(ctx, begin, end, 0);
            begin = end;
        }
        return;
    }
    bool running = atomic_exchange(&p->running, true);
    assert(!running && "pool_run is not re-entrant");
    (void)running;
    p->fn = fn;
    p->ctx = ctx;
    p->n = n;
    p->grain = grain;
    p->n_chunks = (n - 1) / grain + 1;
    atomic_store_explicit(&p->next_chunk, 0, memory_order_relaxed);
    uint32_t generation = gate_generation(atomic_load(&p->gate)) + 1;
    uint32_t gate = generation << GATE_GENERATION_SHIFT;
    if (gate == 0) gate = 1u << GATE_GENERATION_SHIFT; /* wrapped */
    atomic_store(&p->gate, gate | GATE_OPEN);
    wake_workers(p, p->n_chunks - 1 < p->n_wake_max ? p->n_chunks - 1 : p->n_wake_max);
    work_on_chunks(p, 0);
    atomic_fetch_and(&p->gate, ~(uint32_t)GATE_OPEN);
    wait_for_workers(p);
    atomic_store(&p->running, false);
}

void pool_step_begin(pool *p) {
    atomic_store(&p->in_step, true);
    if (p->may_spin && p->n_threads > 1) wake_workers(p, INT64_MAX);
}

void pool_step_end(pool *p) { atomic_store(&p->in_step, false); }
