/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The engine behind the public header: one model, its pages, its threads, and the step loop.
 *
 * Lists: `incoming` and `live` (every sequence that has an id) are under `lock`; `waiting` and `running` belong to the thread that steps. A step: take incoming, drop
 * cancelled, admit, pick rows, forward, draw, call back.
 */
#ifndef HEADRACE_ENGINE_ENGINE_H
#define HEADRACE_ENGINE_ENGINE_H

#include <pthread.h>

#include "base/config.h"
#include "engine/kv.h"
#include "engine/plan.h"
#include "engine/sched.h"

struct headrace_config {
    mem *m;
    config *c;
};

struct headrace_vocab {
    mem *m;
    source *src;
    tokenizer *tok;
};

typedef struct sequence_list {
    sequence *first, *last;
    int32_t n;
} sequence_list;

struct headrace_engine {
    mem *m;
    source *src;
    tokenizer *tok;
    vt_runtime *runtime;
    vt_device *device;
    vt_queue *queue;
    pool *threads;
    model *model;
    engine_plan plan;
    char device_name[64];
    uint64_t load_ns;

    vt_buffer kv_buf[STEP_MAX_GROUPS];
    kv_pool pools[STEP_MAX_GROUPS];
    sampler sampler;
    sched sched;

    pthread_mutex_t lock;
    bool lock_ready;
    sequence_list incoming;    /* under lock */
    sequence **live;           /* under lock: [plan.max_live], by slot; for cancel */
    int32_t n_live;
    headrace_id next_id;

    sequence_list waiting, running;
    int32_t *free_slots, n_free_slots;

    /* buffers of the step, sized by the plan */
    int32_t *ids, *pos, *pages[STEP_MAX_GROUPS], *head_rows;
    step_segment *segments;
    sequence **seg_seq;

    headrace_stats stats;      /* counters under lock */
};

/* engine_load.c */
/** headrace_load with the accountant given, so that tests can make it refuse. m goes over to the engine, and is destroyed with it or on failure. */
NODISCARD status engine_load(mem *m, const config *c, headrace_progress *progress, void *user, headrace_engine **out, error *err);
NODISCARD status engine_open_source(mem *m, const config *c, headrace_progress *progress, void *user, source **out, error *err);

/* engine_step.c */
NODISCARD status engine_step(headrace_engine *e, bool *more, error *err);
void engine_finish_all(headrace_engine *e);

/* request.c */
void sequence_list_push(sequence_list *l, sequence *s);
sequence *sequence_list_pop(sequence_list *l);
void sequence_destroy(headrace_engine *e, sequence *s);

#endif
