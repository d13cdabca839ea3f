/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The tensor runtime: which backends exist, devices opened from them, queues, fences, buffers, and the question "can this run".
 * A vt_runtime is an ordinary object: two of them in one process know nothing of each other.
 *
 * Ownership: runtime > device > queue, buffer; destroy in reverse. Threads: the runtime and its devices are constant after opening;
 * a queue is used by one thread at a time.
 */
#ifndef HEADRACE_VT_VT_H
#define HEADRACE_VT_VT_H

#include "base/textbuf.h"
#include "base/threads.h"
#include "vt/backend.h"

typedef struct vt_runtime vt_runtime;
typedef struct vt_device vt_device;

/** A row of a backend that may not be loaded: generated from each backend folder's kernel_rows.def (vt_manifest.c). */
typedef struct vt_manifest_row {
    vt_op op;
    vt_sig sig;
    uint64_t need;
    const char *name;
    const char *build_switch; /* the switch that governs the row, as kernel_rows.def spells it */
} vt_manifest_row;
typedef struct vt_manifest {
    const char *backend;     /* "cuda" */
    vt_device_type type;
    const char *folder;      /* "src/vt/cuda" */
    const char *build_switch; /* the CMake option that builds it; NULL: always built */
    bool shared_object;      /* looked for at run time as libheadrace-NAME.so */
    const vt_manifest_row *rows;
    int32_t n_rows;
    const vt_backend_tables *builtin; /* linked in and registered by vt_runtime_create; NULL: found at run time or not at all */
    bool built;                       /* this build makes the backend (built-in, or its switch is on) */
} vt_manifest;

typedef struct vt_runtime_options {
    const char *const *search_dirs; /* where shared backends are looked for; NULL-terminated; NULL: the executable's directory and ../lib/headrace */
    const vt_manifest *manifests;   /* NULL: the generated one */
    int32_t n_manifests;
    const char *cpu_isa;            /* "auto", "scalar", "avx2", "avx512" */
} vt_runtime_options;

/** Registers the built-in CPU backend and every shared object found. A library that fails to open is noted for doctor, not an error. */
NODISCARD status vt_runtime_create(mem *m, const vt_runtime_options *opt, vt_runtime **out, error *err);
void vt_runtime_destroy(vt_runtime *rt);

/** Register a further backend (tests; embedding programs). Tables must outlive the runtime. */
NODISCARD status vt_runtime_add(vt_runtime *rt, const vt_backend *vtable, const vt_row *rows, int32_t n_rows, error *err);

/** Whether there is a backend for devices of this type; whether it finds one is asked by opening it. */
bool vt_runtime_has(const vt_runtime *rt, vt_device_type type);
/** What was found of a known backend, or of one of its devices. Texts last until the call that gives them returns. */
typedef struct vt_found {
    const char *backend;
    bool present;        /* its code is here; a backend that is absent has no devices */
    const char *library; /* path of a shared object; NULL: built in, or absent */
    int32_t index;       /* of a device; -1: this tells of the backend */
    const char *why_not; /* why it is absent, has no device or the device cannot be opened; NULL: nothing is wrong */
    /* of a device that can be opened */
    const char *description, *properties; /* properties: names with ", " between them */
    uint64_t total_bytes, free_bytes;     /* 0: unknown */
    int32_t n_rows, n_run, n_left_out;    /* kernel rows: all, those that run there, those that this build left out */
} vt_found;
typedef void vt_found_visit(void *ctx, const vt_found *found);
/** Each known backend, followed by its devices, which are opened for the time of the call. */
void vt_runtime_visit_found(vt_runtime *rt, vt_found_visit *fn, void *ctx);
/** The same as text: a line a backend, two a device. */
void vt_runtime_report(vt_runtime *rt, textbuf *out);
/** Every row of every known backend: op, signature, need, state (runs here | left out: SWITCH | library not found | lacks CAP), preferred mark. */
typedef void vt_row_visit(void *ctx, const char *backend, const char *op, const char *sig, const char *need, const char *name, const char *state, bool preferred);
void vt_runtime_visit_rows(vt_runtime *rt, vt_row_visit *fn, void *ctx);

NODISCARD status vt_device_open(vt_runtime *rt, vt_device_id id, mem *m, vt_device **out, error *err);
void vt_device_close(vt_device *d);
vt_device_id vt_device_get_id(const vt_device *d);
uint64_t vt_device_caps(const vt_device *d);
uint64_t vt_device_total_bytes(const vt_device *d); /* probed once at open; 0 = unknown */
NODISCARD status vt_device_memory_info(const vt_device *d, uint64_t *free_bytes, uint64_t *total_bytes); /* live */
uint64_t vt_device_queue_bytes(const vt_device *d); /* device memory that each queue takes with it */
void vt_device_describe(const vt_device *d, char *text, size_t n);

/** A device buffer, charged to `tag` of the device's mem. Aligned to at least 64. */
typedef struct vt_buffer {
    void *data;
    size_t bytes;
    vt_device *device;
    mem_tag tag;
    size_t charged_bytes; /* by vt_buffer_alloc; 0 where the backend took the memory from the engine's allocator, which charged it */
    bool on_host;         /* by vt_buffer_alloc_host */
    bool pinned;          /* and the backend's; else ordinary memory */
} vt_buffer;
NODISCARD status vt_buffer_alloc(vt_device *d, mem_tag tag, size_t bytes, const char *what, vt_buffer *out, error *err);
/** Host memory that copies from and to the device need no detour for (pinned, where the backend has it; ordinary otherwise, also when it refuses). Charged and freed as a device buffer is. */
NODISCARD status vt_buffer_alloc_host(vt_device *d, mem_tag tag, size_t bytes, const char *what, vt_buffer *out, error *err);
void vt_buffer_free(vt_buffer *b);

/** One thing a path needs from a device. */
typedef struct vt_need { vt_op op; vt_sig sig; } vt_need;

/**
 * A recorder on a queue turns every op call into an entry of its list (each op and signature once) after the argument check, and runs nothing: data pointers may be
 * anything. This is how a model lists what it needs before it uploads: it runs its own layer code against a recorder, so there is no second list. A full
 * list is STATUS_BUG.
 */
typedef struct vt_recorder {
    vt_need *needs; /* caller's memory */
    int32_t n, cap;
} vt_recorder;

/** A queue. `threads` is the pool that CPU kernels use (borrowed; NULL: the calling thread alone; other backends ignore it). */
struct vt_queue {
    vt_device_id device;
    uint64_t id;          /* unique in the process, never reused */
    vt_runtime *runtime;
    vt_device *owner;     /* NULL: a posed queue, which can be asked and refuses to run what its device has no backend for */
    void *handle;         /* of the backend */
    void *dev;            /* the backend's device state */
    pool *threads;
    uint64_t caps;
    vt_recorder *recorder; /* NULL: run */
};
NODISCARD status vt_queue_create(vt_device *d, pool *threads, vt_queue **out, error *err);
void vt_queue_destroy(vt_queue *q);
NODISCARD status vt_queue_sync(vt_queue *q);
/** A queue that poses as a device of this type with these capabilities; touches no device. Tests and planning. */
vt_queue vt_queue_pose(vt_runtime *rt, vt_device_id id, uint64_t caps);

NODISCARD status vt_copy(vt_queue *q, void *dst, const void *src, size_t bytes);
NODISCARD status vt_fill(vt_queue *q, void *dst, int value, size_t bytes);

NODISCARD status vt_fence_create(vt_device *d, vt_fence *out);
void vt_fence_destroy(vt_device *d, vt_fence f);
NODISCARD status vt_fence_record(vt_queue *q, vt_fence f);
NODISCARD status vt_fence_wait(vt_queue *q, vt_fence f);      /* later work of q starts after f */
NODISCARD status vt_fence_wait_host(vt_device *d, vt_fence f); /* the caller blocks until f */
bool vt_fence_done(vt_device *d, vt_fence f);

/**
 * Two stretches of work that need nothing of each other: what a queue is given between begin and end may run beside what it is given after end, until join. They share no memory that either
 * writes. Calls of ops alone, and one branch at a time; a device that has no lanes runs all in order.
 */
NODISCARD status vt_branch(vt_queue *q, vt_branch_step step);

/**
 * Work that repeats (VT_CAP_CAPTURE). Between begin and end a queue keeps kernels, copies and fills instead of running them, and nothing may wait for it; the graph that end gives runs them
 * again at each replay, in order, with the addresses and numbers of the capture. After a failed end the queue works as before, and nothing was run. A graph goes before its device.
 */
NODISCARD status vt_capture_begin(vt_queue *q);
NODISCARD status vt_capture_end(vt_queue *q, void **graph);
NODISCARD status vt_replay(vt_queue *q, void *graph);
void vt_graph_destroy(vt_device *d, void *graph);
uint64_t vt_device_alloc_unit(const vt_device *d);  /* at least 1: what a buffer takes of the device is a multiple of it */
uint64_t vt_device_open_bytes(const vt_device *d);  /* in use once it was open: by the driver, this process's kernels, and others; 0 = unknown */
NODISCARD status vt_read_pass(vt_queue *q, const void *p, size_t bytes); /* reads device memory, for measuring; STATUS_UNSUPPORTED where there is no way */
uint64_t vt_device_graph_bytes(const vt_device *d); /* device memory that each graph takes at most */

/** Signature helper: unused places VT_NONE. */
vt_sig vt_sig_make(vt_dtype a, vt_dtype b, vt_dtype c);
void vt_sig_format(vt_op op, vt_sig sig, char *text, size_t n); /* "a=f32 b=q4_1 out=f32" */
const char *vt_op_name(vt_op op);

/**
 * The one question. STATUS_OK when some row of the queue's backend has this op and signature, its capability bits are present and it has no
 * shape limit; else STATUS_UNSUPPORTED with the refusal text. Reads device type, capability bits and signature, touches no buffer.
 * A call with any shape then runs, and fails in the same words when this fails: both look through the same rows.
 *
 * Refusal text: op, dtypes, the device that asked, the backends that do have a row, where an implementation would go (folder), and which case:
 *   (a) "not written": no row in any table of that device type;
 *   (b) "written but left out of this build (SWITCH)";
 *   (c) "backend library not found (looked in ...)": its manifest has the row;
 *   (d) "device lacks PROPERTY": the row needs capability bits that are absent.
 */
NODISCARD status vt_can_run(const vt_queue *q, vt_op op, vt_sig sig, error *err);

/** The row that a call would take (best match with `fits`), or NULL. Tests and inspect. */
const vt_row *vt_find_row(const vt_queue *q, const vt_call *call);

/** Ask for several at once: all missing ones are listed in one text (one line each). n == 0 is OK. */
NODISCARD status vt_can_run_all(const vt_queue *q, const vt_need *needs, int32_t n, error *err);

/** Row counters: how often each row of the runtime ran (proof of which kernel a test used). 0 for an unknown name; NULL: all rows together. */
uint64_t vt_row_runs(const vt_runtime *rt, const char *row_name);

/**
 * exp for kernels: x clamped to [-87.3, 88.7] (below gives 0 exactly), n = rint(x * log2(e)), r = fma(n, -ln2_hi, x), r = fma(n, -ln2_lo, r), degree-6
 * polynomial in r by Horner with fma, times 2^n. Relative error <= 2e-7. The vector rows compute the same operations, so the bits agree
 * (exp_constants.h: the numbers and the order).
 */
float vt_expf(float x);

#endif
