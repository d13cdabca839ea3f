/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Headrace: the public interface of the engine.
 *
 *   configure -> headrace_load -> headrace_submit ... -> headrace_run -> headrace_free
 *
 * Objects: a configuration (plain settings, the same keys as the command line), an engine (one loaded model with its KV pages and threads), and requests, named by
 * an id. Two engines in one process share nothing but the SIGBUS handler that protects mapped files.
 *
 * Threads: headrace_submit, headrace_cancel and headrace_get_stats may be called from any thread at any time between load and free. headrace_run and headrace_step drive the
 * engine from one thread at a time, and every callback runs on that thread. A callback may call submit, cancel and get_stats; run and step refuse (HEADRACE_INVALID), and free does nothing.
 *
 * Structures that a caller fills begin with `size = sizeof(the struct)`; fields are only ever appended, and 0 means the documented default, so that a caller compiled with an older header
 * goes on working (a newer header than the library is refused). Initialise with the *_INIT macro or the *_init function. Everything that can fail returns a headrace_status and fills *err if given; results are written on success only.
 */
#ifndef HEADRACE_HEADRACE_H
#define HEADRACE_HEADRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define HEADRACE_API __attribute__((visibility("default")))
#else
#define HEADRACE_API
#endif

typedef enum headrace_status {
    HEADRACE_OK = 0,
    HEADRACE_FAILED,        /* an outside operation failed */
    HEADRACE_INVALID,       /* a value that is not allowed */
    HEADRACE_UNSUPPORTED,   /* refused by name */
    HEADRACE_FORMAT,        /* a file breaks its format */
    HEADRACE_IO,            /* reading failed */
    HEADRACE_NOT_FOUND,     /* no such file, key or id */
    HEADRACE_NO_MEMORY,     /* the system or a budget refused */
    HEADRACE_DOES_NOT_FIT,  /* the plan exceeds a budget whatever else runs */
    HEADRACE_NOT_NOW,       /* does not fit beside what runs at present */
    HEADRACE_FULL,          /* the request queue is full */
    HEADRACE_CANCELLED,
    HEADRACE_BUG
} headrace_status;

enum { HEADRACE_ERROR_TEXT_BYTES = 2048 };
typedef struct headrace_error {
    headrace_status code;
    char text[HEADRACE_ERROR_TEXT_BYTES]; /* a sentence that starts with where it comes from */
} headrace_error;

HEADRACE_API const char *headrace_version(void);
HEADRACE_API const char *headrace_status_name(headrace_status code);

/* ---- configuration ---- */

typedef struct headrace_config headrace_config;
HEADRACE_API headrace_status headrace_config_create(headrace_config **out, headrace_error *err);
/** Any key of the option table that concerns model and engine: "model", "threads", "ctx", "device", "act", "kv-dtype", "kv-mem", "max-seqs", "max-batch-tokens", "load", ... */
HEADRACE_API headrace_status headrace_config_set(headrace_config *c, const char *key, const char *value, headrace_error *err);
HEADRACE_API headrace_status headrace_config_read_file(headrace_config *c, const char *path, headrace_error *err);
HEADRACE_API void headrace_config_destroy(headrace_config *c);

/* ---- engine ---- */

typedef struct headrace_engine headrace_engine;
/** Called during a load with bytes done and to do; total 0 = nothing to read. */
typedef void headrace_progress(void *user, uint64_t done_bytes, uint64_t total_bytes);

/**
 * Open the checkpoint, check that the device can run it, plan memory, allocate, start threads. HEADRACE_DOES_NOT_FIT and HEADRACE_NOT_NOW carry the numbers and the
 * smallest change that would fit. The configuration is copied.
 */
HEADRACE_API headrace_status headrace_load(const headrace_config *c, headrace_progress *progress, void *user, headrace_engine **out, headrace_error *err);
/** Ends every request still live (its callback gets HEADRACE_EVENT_DONE with reason CANCELLED; what it submits then is refused with HEADRACE_CANCELLED) and releases everything. NULL is allowed. */
HEADRACE_API void headrace_free(headrace_engine *e);

typedef struct headrace_model_info {
    uint32_t size;
    const char *architecture, *device; /* borrowed from the engine */
    int32_t n_vocab, n_layers, n_ctx;  /* n_ctx: longest sequence of this engine */
    int32_t n_threads, max_seqs, max_batch_tokens;
    uint64_t weight_bytes;             /* dense weights one decoded token reads (embedding: one row) */
    uint64_t kv_bytes, kv_bytes_per_token, activation_bytes, load_ns;
    const char *device_type;           /* "cpu" and so on; borrowed */
    int32_t n_devices_passed_over;     /* that device "auto" found and could not take; the log says why */
    uint64_t device_bytes;             /* planned in the device's own memory; 0 where it computes in the host's */
    int32_t n_embd;                    /* numbers of an embedding; 0: this architecture gives none */
    const char *activations;           /* what products multiply with which weights: "bf16 x bf16, f32 x f32"; borrowed */
    uint64_t expert_bytes;             /* of weight_bytes: the experts of one token */
    int32_t n_experts_used;            /* of one token in a layer; 0: no experts */
} headrace_model_info;
HEADRACE_API headrace_status headrace_get_model_info(const headrace_engine *e, headrace_model_info *out);

/** What a device with memory of its own gives, measured now: bytes a second that it reads of its own memory, and that copies bring to it from pinned host memory. */
typedef struct headrace_device_speed {
    uint32_t size;
    double read_bytes_per_s, upload_bytes_per_s;
} headrace_device_speed;
/** Between steps, as headrace_step. HEADRACE_UNSUPPORTED where the device computes in the host's memory, or cannot be measured. */
HEADRACE_API headrace_status headrace_measure_device(headrace_engine *e, headrace_device_speed *out, headrace_error *err);

/* ---- requests ---- */

typedef uint64_t headrace_id;

typedef enum headrace_finish {
    HEADRACE_FINISH_NONE,   /* still running */
    HEADRACE_FINISH_STOP,   /* an end token, a stop id or a stop string */
    HEADRACE_FINISH_LENGTH, /* max_tokens, or the context is full */
    HEADRACE_FINISH_CANCELLED,
    HEADRACE_FINISH_ERROR
} headrace_finish;

typedef struct headrace_usage {
    int32_t prompt_tokens, completion_tokens, prefix_hit_tokens, preemptions;
} headrace_usage;

typedef struct headrace_timings {
    uint64_t queued_ns, first_token_ns, prefill_ns, decode_ns, total_ns; /* since submit, or of that phase; 0 = not reached */
} headrace_timings;

typedef enum headrace_event_kind {
    HEADRACE_EVENT_LOGITS, /* rows of logits, in order of position; only with want_logits */
    HEADRACE_EVENT_TOKEN,  /* one generated token, with the text that became certain (may be empty) */
    HEADRACE_EVENT_DONE,   /* exactly once for each answer, last; text: what was held back */
    HEADRACE_EVENT_PROMPT, /* one token of the prompt with its log-probability, in order, before the first token; only with prompt_logprobs */
    HEADRACE_EVENT_EMBEDDING /* once, when the prompt has been computed; only with pooling; not for further answers */
} headrace_event_kind;

typedef struct headrace_event {
    uint32_t size;
    headrace_event_kind kind;
    headrace_id id;
    void *user;
    int32_t token;                 /* TOKEN, PROMPT */
    const char *text;              /* TOKEN, PROMPT, DONE: UTF-8, not NUL-terminated */
    size_t n_text;
    const float *logits;           /* LOGITS: [n_rows, n_vocab], position first_pos onwards */
    int32_t n_rows, first_pos, n_vocab;
    headrace_finish finish;        /* DONE */
    headrace_status status;        /* DONE with FINISH_ERROR: why */
    const char *error;
    headrace_usage usage;          /* DONE */
    headrace_timings timings;
    int32_t index;                 /* which of the n answers */
    float logprob;                 /* TOKEN with want_logprobs, PROMPT: natural logarithm, of the model's own distribution; NaN for the first token of a prompt */
    int32_t n_top;                 /* likeliest ids there, best first: at most top_logprobs */
    const int32_t *top_ids;
    const float *top_logprobs;
    const float *embedding;        /* EMBEDDING: [n_embd] */
    int32_t n_embd;
} headrace_event;
/** Pointers in the event are valid during the call. */
typedef void headrace_callback(const headrace_event *event);

typedef struct headrace_bias {
    int32_t id;
    float bias; /* -1000 .. 1000, added to the logit */
} headrace_bias;

/**
 * Called on the engine's thread before a token is drawn, before biases and penalties, with a copy of the row that it may change: logits [n_vocab], and the tokens so far (prompt and
 * answer). It must not call the engine, and is not called for a row twice unless the sequence was preempted in between. A NaN ends the answer with an error.
 */
typedef void headrace_logits_hook(void *user, headrace_id id, int32_t index, const int32_t *tokens, int32_t n_tokens, float *logits, int32_t n_vocab);

/** Which hidden state an embedding is: of the prompt's last token, behind the final norm and before the head. */
typedef enum headrace_pooling { HEADRACE_POOLING_NONE, HEADRACE_POOLING_LAST } headrace_pooling;

typedef struct headrace_request {
    uint32_t size;
    const char *prompt;            /* UTF-8 text, or NULL with ids given; copied */
    size_t n_prompt;
    const int32_t *ids;            /* taken as they are */
    size_t n_ids;
    int32_t add_bos;               /* 0 as the model says, 1 add, -1 omit; text only */
    bool no_special;               /* special tokens in the text are ordinary text */
    int32_t max_tokens;            /* tokens to generate at most; 0 with want_logits scores only, else 0 generates nothing */
    bool ignore_end;               /* go on after an end token */
    float temperature;             /* 0: the most likely token */
    int32_t top_k;                 /* 0: off */
    float top_p, min_p;            /* top_p 0 or 1: off; min_p 0: off */
    uint64_t seed;
    int32_t chunk;                 /* rows of the prompt per step at most; 0: no limit of its own */
    bool want_logits;              /* LOGITS events for every position of the prompt (and of generated tokens but the last); takes no prefix hit */
    headrace_callback *callback;
    void *user;
    /* Everything from here on is off when zero. Lists and texts are copied. */
    int32_t n;                     /* answers to the prompt, which is computed once; 0 is 1; at most 128. Answer i draws with a seed derived from (seed, i); the first with seed itself */
    int32_t priority;              /* -100 .. 100: higher goes first, and lower ones wait (not forever: a point is worth 64 steps) */
    float repetition_penalty;      /* 0.01 .. 100: for every id in prompt and answer, positive logits are divided by it, others multiplied; 0 or 1: off */
    float frequency_penalty;       /* -100 .. 100: subtracted for each time an id is in the answer */
    float presence_penalty;        /* -100 .. 100: subtracted when an id is in the answer */
    const headrace_bias *logit_bias;
    size_t n_logit_bias;
    const int32_t *allowed_ids;    /* nothing else is drawn */
    size_t n_allowed_ids;
    const char *const *bad_words;  /* UTF-8, NUL-terminated: their tokens, with and without a space in front, are never completed */
    size_t n_bad_words;
    int32_t min_tokens;            /* no end id, stop id or stop string ends the answer before it has so many tokens */
    const int32_t *stop_ids;       /* end the answer as end ids do, also with ignore_end */
    size_t n_stop_ids;
    const char *const *stop;       /* UTF-8, NUL-terminated, up to 1024 bytes: end the answer in front of the first that comes; no part of it is ever in a text */
    size_t n_stop;
    bool want_logprobs;            /* TOKEN events carry log-probabilities */
    bool prompt_logprobs;          /* PROMPT events for the tokens of the prompt */
    bool no_prefix_cache;          /* compute the whole prompt, whatever is known (its pages are remembered all the same) */
    int32_t top_logprobs;          /* with either: likeliest ids to list, at most 64 */
    const char *cache_salt;        /* pages are shared only between requests with the same text here (a tenant); NULL is "" */
    headrace_logits_hook *logits_hook;
    headrace_pooling pooling;      /* EMBEDDING event for the prompt; with max_tokens 0 that is all that is computed. HEADRACE_UNSUPPORTED where the architecture has a head of its own */
    bool normalize;                /* embeddings of length 1 */
} headrace_request;
#define HEADRACE_REQUEST_INIT {.size = sizeof(headrace_request)}

/**
 * Set temperature, top_k, top_p, min_p and repetition_penalty of *r to what the checkpoint says (generation_config.json, or general.sampling.* of a GGUF); what it does not say is off, and
 * without a wish to sample the temperature is 0. HEADRACE_FORMAT with every value that cannot be; *r is then as it was.
 */
HEADRACE_API headrace_status headrace_model_sampling(const headrace_engine *e, headrace_request *r, headrace_error *err);
/**
 * Queue a request. Refused at once, by name: an empty prompt without BOS, ids out of range, invalid UTF-8, a parameter out of range or NaN, a prompt that does not leave room
 * for a token in the context, one whose pages or answers could never fit (HEADRACE_DOES_NOT_FIT), and one that finds the queue full (HEADRACE_FULL; each of n answers takes a place). max_tokens is
 * clamped to what the context leaves. A running request may lose its pages to others and be computed again (usage.preemptions); its texts and numbers are the same.
 */
HEADRACE_API headrace_status headrace_submit(headrace_engine *e, const headrace_request *r, headrace_id *out, headrace_error *err);
/** All answers of the request; takes effect before the next step. HEADRACE_NOT_FOUND when it has ended already. */
HEADRACE_API headrace_status headrace_cancel(headrace_engine *e, headrace_id id);
/** Run steps until no request is left. Failures of single requests go to their callbacks; the return value reports an engine that cannot go on. */
HEADRACE_API headrace_status headrace_run(headrace_engine *e, headrace_error *err);
/** One step. *more: whether work is left. */
HEADRACE_API headrace_status headrace_step(headrace_engine *e, bool *more, headrace_error *err);

typedef enum headrace_experts_tier { HEADRACE_EXPERTS_NONE, HEADRACE_EXPERTS_RESIDENT, HEADRACE_EXPERTS_STREAM } headrace_experts_tier;

/** How streamed experts are read: by io_uring or pread past the page cache, or through it. */
typedef enum headrace_expert_reader { HEADRACE_READER_NONE, HEADRACE_READER_BUFFERED, HEADRACE_READER_PREAD, HEADRACE_READER_IO_URING } headrace_expert_reader;

typedef struct headrace_stats {
    uint32_t size;
    uint32_t n_running, n_waiting;
    uint64_t n_finished, n_steps, n_prompt_tokens, n_generated_tokens, n_preemptions, n_prefix_hit_tokens;
    uint64_t kv_pages_used, kv_pages_total;
    uint64_t n_hot_allocations;    /* allocations refused inside a step: 0, or a bug */
    uint64_t memory_used_bytes, memory_peak_bytes;
    uint64_t kv_pages_cached, n_evicted; /* pages that nobody holds and the prefix cache knows; pages it lost to sequences, ever */
    /* Mixture of experts; all 0 for other models. An expert that a step takes is a hit where it was in memory, a miss where it was read. Resident experts that a device finds by tables are not counted. */
    headrace_experts_tier experts_tier;
    uint64_t expert_hits, expert_misses, expert_evictions, expert_bytes_read, expert_reads, expert_failures;
    uint64_t experts_distinct, experts_total; /* different experts taken so far, of how many */
    uint64_t expert_slots, expert_slot_bytes; /* STREAM */
    uint64_t expert_stall_ns;      /* waited for reads */
    /* STREAM to a device with memory of its own: the figures above are of the host's slots, these of the device's over them. A hit there asks nothing of the host. */
    uint64_t device_expert_hits, device_expert_misses, device_expert_evictions;
    uint64_t device_expert_bytes;  /* copied to the device */
    uint64_t device_expert_slots;
    uint64_t expert_compute_ns;    /* STREAM: between the beginning and the end of a layer's experts, and not waiting */
    uint64_t expert_disk_ns;       /* STREAM: while reads were under way */
    uint64_t expert_disk_bytes_per_s; /* STREAM: what the disk gave when the reader was chosen; 0: not measured */
    uint64_t expert_prefetch_used, expert_prefetch_wasted; /* bytes read ahead of their layer that were then taken, or given up unused */
    headrace_expert_reader expert_reader;
    /* A step takes, in each layer, the union of what its rows choose. Bytes of all unions so far (read or not); what the scheduler expected of them to be read, to compare with
     * expert_bytes_read; and what it expects of the latest step. */
    uint64_t expert_bytes_needed, expert_bytes_expected, step_expert_bytes_expected;
    uint64_t memory_planned_bytes;     /* memory_peak_bytes never exceeds it */
    /* A device with memory of its own, as the device itself counts it: the most that was in use beyond what was in use when it was opened (asked after the load, when a step was captured and
     * when all requests have ended), and what was in use then, by the driver, this process's kernels and other processes. 0: unknown. Decode steps that were captured, and replays of them. */
    uint64_t device_peak_bytes, device_open_bytes;
    uint64_t n_captured_steps, n_replayed_steps;
    /* Experts read ahead of their layer so far, and of these taken, or given up unused; the rest waits in its slot. Taken ones are hits. */
    uint64_t experts_prefetched, experts_prefetch_used, experts_prefetch_wasted;
    /* Of device_expert_misses (--miss): computed by the processor out of the host's slots, and the bytes that the step therefore did not wait to be copied; how many of these were copied to the
     * device behind. What was measured at the start (--miss auto; 0: not): copies, and the processor's products of one row. */
    uint64_t device_experts_on_cpu, device_expert_bytes_on_cpu, device_experts_behind;
    uint64_t miss_copy_bytes_per_s, miss_cpu_bytes_per_s;
    uint64_t device_experts_ahead, device_experts_ahead_used; /* copied to the device before their layer's choice was known, and of these taken, which are hits */
    /* Of device_expert_bytes: through the pinned ring for host slots that are not pinned; and its size, 0 where there is none (host slots are pinned, or the ring cannot be either). */
    uint64_t device_expert_bytes_staged, device_staging_bytes;
} headrace_stats;
HEADRACE_API headrace_status headrace_get_stats(headrace_engine *e, headrace_stats *out);
/** What writes to path would destroy a file of the model: HEADRACE_INVALID, with both names. */
HEADRACE_API headrace_status headrace_allow_writing(const headrace_engine *e, const char *path, headrace_error *err);
/** The file that streamed experts are read from (the largest, where there are several); NULL: none are streamed. Lives as long as the
 * engine. */
HEADRACE_API const char *headrace_expert_file(const headrace_engine *e);
/** The memory plan beside what is in use, as a table. Free with headrace_text_free. */
HEADRACE_API headrace_status headrace_memory_report(headrace_engine *e, char **text, headrace_error *err);

/* ---- vocabulary ---- */

typedef struct headrace_vocab headrace_vocab;
/** The tokenizer alone; reads no weights. */
HEADRACE_API headrace_status headrace_vocab_open(const headrace_config *c, headrace_vocab **out, headrace_error *err);
HEADRACE_API void headrace_vocab_free(headrace_vocab *v);
/** *ids is allocated; free with headrace_ids_free. add_bos as in a request. */
HEADRACE_API headrace_status headrace_encode(const headrace_vocab *v, const char *text, size_t n, int32_t add_bos, bool no_special, int32_t **ids, size_t *n_ids, headrace_error *err);
HEADRACE_API headrace_status headrace_decode(const headrace_vocab *v, const int32_t *ids, size_t n_ids, bool skip_special, char **text, size_t *n, headrace_error *err);
HEADRACE_API int32_t headrace_vocab_bos(const headrace_vocab *v); /* -1 = none */
HEADRACE_API bool headrace_vocab_adds_bos(const headrace_vocab *v);
HEADRACE_API void headrace_ids_free(int32_t *ids);
HEADRACE_API void headrace_text_free(char *text);

/* ---- looking at things ---- */

typedef enum headrace_report { HEADRACE_REPORT_MODEL, HEADRACE_REPORT_TENSORS, HEADRACE_REPORT_KERNELS, HEADRACE_REPORT_DOCTOR, HEADRACE_REPORT_PLAN } headrace_report;
typedef struct headrace_pack_result {
    uint32_t size;
    uint64_t n_records, n_resumed, file_bytes;
} headrace_pack_result;
/**
 * Write the experts of the model that c names to path, each as one aligned record with a checksum, for streaming with the setting expert-bank. A call that was interrupted is gone on with. STATUS
 * values as of a load; progress may be NULL.
 */
HEADRACE_API headrace_status headrace_pack(const headrace_config *c, const char *path, headrace_progress *progress, void *user, headrace_pack_result *out, headrace_error *err);
/**
 * Text or JSON. MODEL, TENSORS and PLAN read headers only. PLAN: what a load with these settings would take and whether it fits, whatever else runs; "machine" names another machine. Where it
 * does not fit the status says so and *text is there all the same (NULL it first). Free with headrace_text_free.
 */
HEADRACE_API headrace_status headrace_inspect(const headrace_config *c, headrace_report what, bool json, char **text, headrace_error *err);

#ifdef __cplusplus
}
#endif
#endif
