/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Faults below the reader of experts, where the system answers: reads that fail, come short, are interrupted or come late, by io_uring, past the page cache and through it; rings, descriptors and
 * registrations that are refused. Link test_read_faults: it puts itself in the place of the os_* functions. Everything is off until a test sets it; read_faults_reset puts it off again.
 */
#ifndef HEADRACE_TESTS_READ_FAULTS_H
#define HEADRACE_TESTS_READ_FAULTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moe/expert_reader.h"

typedef struct read_faults {
    pthread_mutex_t lock;
    uint64_t fail_begin, fail_end; /* of the file: reads that touch it are EIO */
    int short_every, interrupt_every, n; /* every n-th read comes short, or is interrupted; of those through the page cache the system call would go on by itself */
    int submits_left, submit_error;      /* one failing submit of a ring after so many; -1: none */
    bool no_ring, no_direct, no_register;
    bool hold_one;                       /* of a ring: one read that comes after all others, when hold_one is taken back */
    int late_ms, n_late;                 /* one read comes so much later, when nothing else is under way; taken back when it has */
    void (*on_read)(void *ctx);          /* in the midst of each read, on the thread that reads */
    void *on_read_ctx;
    int n_reads, n_held;
    uint64_t lowest, highest; /* bytes that were asked for */
    uint64_t ring_off[EXPERT_READER_MAX_DEPTH];
    size_t ring_bytes[EXPERT_READER_MAX_DEPTH];
    uint64_t held_user;
    int64_t held_got;
    bool held;
} read_faults;

extern read_faults fault;

void read_faults_reset(void);

#endif
