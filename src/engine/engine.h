/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The engine behind the public header: one model, its pages, its threads, and the step loop.
 *
 * Lists: `incoming` and `live` (every sequence that has an id) are under `lock`; the scheduler's lists belong to the thread that steps, and so do sequences once taken from `incoming`, but
 * for their `cancelled`. A step: take incoming, end what is cancelled, schedule, forward, heads, draw, call back.
 */
#ifndef HEADRACE_ENGINE_ENGINE_H
#define HEADRACE_ENGINE_ENGINE_H

#include <pthread.h>

#include "base/config.h"
#include "engine/plan.h"
#include "moe/expert_trace.h"
#include "engine/sched.h"
#include "moe/expert_cost.h"

#ifdef HEADRACE_CHECKS
enum { ENGINE_CHECKS = 1 }; /* debug builds: the invariants of scheduler, tables and pools are walked after every step */
#else
enum { ENGINE_CHECKS = 0 };
#endif

struct headrace_config {
    mem *m;
    config *c;
};

struct headrace_vocab {
    mem *m;
    source *src;
    tokenizer *tok;
};

struct headrace_engine {
    mem *m;
    source *src;
    tokenizer *tok;
    vt_runtime *runtime;
    vt_device *device;
    vt_queue *queue;
    vt_queue *copies;            /* to the device's slots for experts; NULL: there are none */
    staging_ring staging;        /* that copies go through; device NULL: they do not */
    expert_store *experts_below; /* that the device's slots are filled from; NULL likewise */
    int32_t n_passed_over;       /* devices that --device auto found and could not take */
    pool *threads;
    model *model;
    engine_plan plan;
    expert_trace_writer *trace; /* --record-routing */
    expert_replay *replay;      /* --replay */
    int32_t expert_read_way; /* 0: as found best, else expert_read_way + 1 */
    int32_t expert_ahead;    /* expert_ahead_mode */
    expert_miss_mode miss;   /* --miss */
    expert_miss_costs miss_costs; /* EXPERT_MISS_AUTO, and measured */
    vt_device *host_device;  /* the processor beside a device, for misses; NULL: there is no need */
    vt_queue *host_queue;
    plan_machine machine;      /* that the verdict was about */
    char device_name[64];
    uint64_t load_ns;
    uint64_t device_peak_bytes;  /* in use of the device beyond what was in use when it was opened, as the device says; 0: unknown */
    uint64_t n_captured_seen;    /* captured steps when it was last asked */

    vt_buffer kv_buf[STEP_MAX_GROUPS], snapshot_buf;
    kv_cache kv;
    block_name salt;           /* model and numerics: where the names of blocks begin */
    sampler sampler;
    sample_logprobs logprobs;  /* of the row at hand */
    sched sched;
    expert_cost *expert_cost;  /* NULL: no experts */

    atomic_bool driven;        /* somebody is in run, step or free */
    mem *check_m;              /* scratch of these checks: the engine's own accountant sees nothing of them */
    pthread_mutex_t lock;
    bool lock_ready;
    bool closing;              /* under lock: no request is taken any more */
    sequence_list incoming;    /* under lock */
    sequence **live;           /* under lock: [plan.max_live], by slot; for cancel */
    int32_t n_live;
    headrace_id next_id;

    int32_t *free_slots;
    size_t longest_piece;      /* bytes of the vocabulary's longest token */

    /* buffers of the step, sized by the plan */
    int32_t *ids, *pos, *pages[STEP_MAX_GROUPS], *head_rows;
    float *embedding; /* [n_embd] */
    step_segment *segments;
    sequence **seg_seq;

    headrace_stats stats;      /* counters under lock */
};

/* engine_load.c */
/** headrace_load with the accountant given, so that tests can make it refuse. m goes over to the engine, and is destroyed with it or on failure. */
NODISCARD status engine_load(mem *m, const config *c, headrace_progress *progress, void *user, headrace_engine **out, error *err);
/**
 * For inspect: the headers, the device and the plan of a load, and none of its large allocations. A plan that is refused (memory, a missing kernel, a setting) is told in *refused, and
 * the rest is there all the same. m goes over as in engine_load.
 */
NODISCARD status engine_load_plan(mem *m, const config *c, bool with_bank, headrace_engine **out, error *refused, error *err);
/** with_bank: also --expert-bank, which only those have to find who plan with it or read from it. */
NODISCARD status engine_open_source(mem *m, const config *c, bool with_bank, headrace_progress *progress, void *user, source **out, error *err);

/* engine_experts.c */
/** The choice; maps the files unless experts are streamed. e->plan: everything else, with dense weights read. */
NODISCARD status engine_experts_plan(headrace_engine *e, const config *c, const plan_machine *pm, bool live, plan_experts *out, error *err);
/* engine_miss.c: experts that the device lacks. */
/** --miss, and the processor opened for it where it asks for that; refused where nothing is ever copied. Before the model is planned. */
NODISCARD status engine_miss_open(headrace_engine *e, const config *c, error *err);
void engine_miss_close(headrace_engine *e);
/** The tier is known: a setting that does nothing is refused where the tier was asked for, told where it was found. */
NODISCARD status engine_miss_check(headrace_engine *e, const plan_experts *x, error *err);
/** EXPERT_MISS_AUTO: copies and products measured, in the slots of the host's store, which hold nothing yet. Says in the log what comes of it. */
NODISCARD status engine_miss_measure(headrace_engine *e, expert_store *host, error *err);
/** A line on where misses are computed, for plans. */
const char *engine_miss_text(const headrace_engine *e);
/** Whether the next layer's experts are guessed, should they turn out to be streamed. */
bool engine_experts_guess(const config *c);
/** Adds what e->plan.experts will take to e->plan. */
void engine_experts_count(headrace_engine *e);
/* --expert-bank: experts from there. */
NODISCARD status engine_experts_use_bank(headrace_engine *e, const config *c, error *err);
/* Recording and replaying of routing, as the settings say; to be passed to the model. */
NODISCARD status engine_routing_open(headrace_engine *e, const config *c, bool run, error *err);
void engine_routing_options(headrace_engine *e, model_options *mo);
/* What was recorded so far is in the file. */
NODISCARD status engine_routing_flush(headrace_engine *e, error *err);
void engine_routing_close(headrace_engine *e);
/** Makes the store that was planned. */
NODISCARD status engine_experts_attach(headrace_engine *e, error *err);
/** --warm-experts. After they are attached. */
NODISCARD status engine_experts_warm(headrace_engine *e, error *err);
/** After the model is closed: the store below, and its queue. */
void engine_experts_close(headrace_engine *e);
/** The store's counters; on the engine's thread. */
void engine_experts_stats(const headrace_engine *e, headrace_stats *out);

/* engine_plan.c */
/** The plan for e's open device into e->plan, judged, and set as the allocator's limits. pure: a verdict that does not depend on what else runs here. */
NODISCARD status engine_plan_make(headrace_engine *e, const config *c, bool pure, error *err);
/** Pages and snapshots as they are planned; the key is left to the caller. */
void engine_kv_options(const headrace_engine *e, kv_cache_options *o);

/* engine_device.c */
/** Opens the device of --device, or the first that can run the model and hold it, and plans for it; `pure` as of engine_plan_make. Nothing is uploaded, and nothing large allocated. */
NODISCARD status engine_device_open(headrace_engine *e, const config *c, bool pure, error *err);
void engine_device_close(headrace_engine *e);
/** Asks the device what is in use. */
void engine_device_look(headrace_engine *e);
/** The same where it may have changed: a step was captured, or nothing is left to do. */
void engine_device_look_again(headrace_engine *e, bool idle);

/* engine_cost.c */
/** After the stores are attached and sched_init: what steps are expected to read, from the routing of those before. */
NODISCARD status engine_cost_create(headrace_engine *e, error *err);
/** A model_routing_observer. */
void engine_cost_routed(void *engine, int layer, const int32_t *ids, const float *weights, int32_t n_rows, int32_t k);
void engine_cost_stats(const headrace_engine *e, headrace_stats *out);

/* engine_snapshots.c */
/** How often the state of a sequence is kept; page_bytes: of one page of every group. */
void engine_snapshots_plan(headrace_engine *e, size_t page_bytes);
/** Of the longest sequence; 0: none are kept. */
size_t engine_snapshots_per_seq(const headrace_engine *e);
NODISCARD bool engine_snapshots_bytes(const headrace_engine *e, size_t n, size_t *bytes);
NODISCARD status engine_snapshots_allocate(headrace_engine *e, error *err);
/** Before the first row after a hit. */
NODISCARD status engine_snapshot_restore(headrace_engine *e, sequence *s, error *err);
/** What sched_computed returned. */
NODISCARD status engine_snapshot_keep(headrace_engine *e, sequence *s, int32_t snapshot, error *err);

/* engine_step.c */
NODISCARD status engine_step(headrace_engine *e, bool *more, error *err);
void engine_finish_all(headrace_engine *e);

/* events.c: each calls the callback; none allocates while texts stay within what submit reserved */
void event_logits(const headrace_engine *e, sequence *s, const float *logits, int32_t n_rows, int32_t first_pos);
/** The token of the prompt at `pos`; row: logits of the position before, NULL for the first. */
void event_prompt(headrace_engine *e, sequence *s, int32_t pos, const float *row);
/** hidden [n_embd]: of the prompt's last token. */
void event_embedding(headrace_engine *e, sequence *s, const float *hidden);
/** The newest token. row: its logits as the model gave them, for log-probabilities. May finish the sequence: a stop string, or no memory for the text. */
void event_token(headrace_engine *e, sequence *s, const float *row);
void event_done(headrace_engine *e, sequence *s);

/* request_make.c */
/** A checked request as r->n sequences, linked by next. */
NODISCARD status request_make(headrace_engine *e, const headrace_request *r, sequence **out, error *err);
void sequence_destroy(headrace_engine *e, sequence *s);

#endif
