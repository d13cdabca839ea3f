/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The tagged allocator and its accountant. All memory of an engine goes through one `mem` object, so that a budget can be
 * planned, enforced and printed, and so that tests can make the n-th allocation fail. There is no process-wide instance.
 *
 * Invariants: used[tag] <= limit[tag] at all times; total <= total limit; every block knows its tag and size, and freeing
 * returns exactly what was charged (requested bytes plus the header of MEM_HEADER_BYTES plus alignment). Memory that is not
 * allocated here (mapped files, pinned or device buffers of a backend) is charged by mem_charge and given back by mem_uncharge.
 *
 * Threads: every function may be called from any thread. A `mem` is destroyed when nothing is outstanding.
 */
#ifndef HEADRACE_BASE_ALLOC_H
#define HEADRACE_BASE_ALLOC_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* X(enumerator, name, what is counted) */
#define MEM_TAG_LIST(X)                                                                                                \
    X(MEM_PROCESS, "process", "small things: configuration, text, tables, thread stacks")                              \
    X(MEM_WEIGHTS, "weights", "dense weights held in memory")                                                          \
    X(MEM_KV, "kv", "KV pages and recurrent state")                                                                    \
    X(MEM_EXPERTS, "experts", "expert slots")                                                                          \
    X(MEM_STAGING, "staging", "transfer buffers")                                                                      \
    X(MEM_ACTIVATIONS, "activations", "buffers of the largest admitted step")                                          \
    X(MEM_TOKENIZER, "tokenizer", "vocabulary, merges, compiled patterns")                                             \
    X(MEM_MODEL, "model", "tensor tables, bindings, hyper-parameters")                                                 \
    X(MEM_ENGINE, "engine", "sequences, page tables, scheduler, sampler")                                              \
    X(MEM_REQUEST, "request", "prompts and outputs of live requests")

typedef enum mem_tag {
#define X(id, name, text) id,
    MEM_TAG_LIST(X)
#undef X
        MEM_TAG_COUNT
} mem_tag;

enum { MEM_ALIGN = 64, MEM_HEADER_BYTES = 64 };

typedef struct mem mem;

typedef struct mem_usage {
    size_t used_bytes, peak_bytes, limit_bytes; /* limit SIZE_MAX = none */
    uint64_t n_allocs, n_live;
} mem_usage;

/** Create an accountant without limits. */
NODISCARD status mem_create(mem **out);

/** Destroy; returns STATUS_BUG (and leaks nothing of its own) when blocks or charges are outstanding; see mem_report. */
status mem_destroy(mem *m);

/** Cap a tag, or with mem_set_total_limit the sum. A limit below what is in use is STATUS_DOES_NOT_FIT and changes nothing. */
NODISCARD status mem_set_limit(mem *m, mem_tag tag, size_t limit_bytes);
NODISCARD status mem_set_total_limit(mem *m, size_t limit_bytes);

/**
 * Allocate `bytes` (0 is allowed and gives a unique pointer), aligned to MEM_ALIGN, contents undefined; mem_calloc zeroes
 * n * size bytes with the product checked; mem_realloc keeps the tag, p may be NULL only through mem_alloc.
 * NULL when the system, a limit, an injected failure or an active guard refuses. Free NULL is a no-op.
 */
NODISCARD void *mem_alloc(mem *m, mem_tag tag, size_t bytes);
NODISCARD void *mem_calloc(mem *m, mem_tag tag, size_t n, size_t size);
NODISCARD void *mem_realloc(mem *m, mem_tag tag, void *p, size_t bytes);
NODISCARD char *mem_strdup(mem *m, mem_tag tag, const char *s);
NODISCARD char *mem_strndup(mem *m, mem_tag tag, const char *s, size_t n);
void mem_free(mem *m, void *p);

/** mem_alloc with a named error: "alloc: N bytes for WHAT refused: tag T uses U of L". */
NODISCARD status mem_alloc_named(mem *m, mem_tag tag, size_t bytes, const char *what, void **out, error *err);

/** Account for memory that lives elsewhere. Charging beyond a limit is STATUS_NO_MEMORY and charges nothing. */
NODISCARD status mem_charge(mem *m, mem_tag tag, size_t bytes);
void mem_uncharge(mem *m, mem_tag tag, size_t bytes);

void mem_get_usage(const mem *m, mem_tag tag, mem_usage *out);
void mem_get_total(const mem *m, mem_usage *out);
const char *mem_tag_name(mem_tag tag);

/**
 * The hot phase: between begin and end any allocation on the thread that began it is refused and counted (mem_guard_violations), which
 * is how a decode step proves that it allocates nothing. Other threads go on (they submit requests); kernels on worker threads have no
 * allocator. Nests; one thread at a time.
 */
void mem_guard_begin(mem *m);
void mem_guard_end(mem *m);
uint64_t mem_guard_violations(const mem *m);

/** Tests: let `n` more allocations succeed and make every later one fail until mem_fail_off; mem_alloc_count counts all attempts. */
void mem_fail_after(mem *m, uint64_t n);
void mem_fail_off(mem *m);
uint64_t mem_alloc_count(const mem *m);

#endif
