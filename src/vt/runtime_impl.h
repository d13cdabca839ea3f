/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The inside of a runtime, for the files of src/vt only. A backend is one entry, found by its device type; nothing else is keyed by product
 * or name.
 *
 * Invariants: entry->vtable is a copy of the backend's own, zero past the size it stated, so a NULL function is "the default"; rows[] is
 * the backend's array and is never copied; last_of_op and previous chain the rows of one op from the last (preferred) to the first.
 */
#ifndef HEADRACE_VT_RUNTIME_IMPL_H
#define HEADRACE_VT_RUNTIME_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/os.h"
#include "vt/backend_manifest.h"

typedef struct backend_entry {
    vt_backend vtable;
    const vt_row *rows;
    int32_t n_rows;
    int32_t last_of_op[VT_OP_COUNT]; /* -1: none */
    int32_t *previous;               /* n_rows; -1: none */
    _Atomic uint64_t *runs;          /* n_rows */
    os_library *library;             /* NULL: linked in, or added by the caller */
    char *library_path;
} backend_entry;

/** What became of one manifest: NULL note with no entry of its type means that no file was found. */
typedef struct manifest_state {
    char *note; /* why the library that was found cannot serve */
} manifest_state;

struct vt_runtime {
    mem *m;
    backend_entry *backends[VT_DEVICE_TYPE_COUNT]; /* NULL: none */
    const vt_manifest *manifests;
    manifest_state *states; /* n_manifests */
    int32_t n_manifests;
    char **search_dirs;
    int32_t n_search_dirs;
    char *cpu_isa;
    vt_host_api host; /* before a device is open; ctx is the runtime */
    _Atomic int32_t n_devices;
};

struct vt_device {
    vt_runtime *rt;
    vt_device_id id;
    mem *m;
    const backend_entry *backend;
    void *dev;
    uint64_t caps, total_bytes, open_bytes;
    vt_host_api host; /* ctx is the device */
    bool has_lock;
    /* recursive, over the two below: while a buffer is allocated, what the backend takes from host_alloc is the buffer's */
    pthread_mutex_t lock;
    mem_tag tag;
    size_t host_bytes;
    uint64_t pinned_bytes, most_pinned; /* under lock */
};

/* runtime.c */
vt_host_api runtime_host_api(vt_runtime *rt);
const backend_entry *runtime_backend(const vt_runtime *rt, vt_device_type type); /* NULL: none, or no such type */
const vt_manifest *runtime_manifest(const vt_runtime *rt, vt_device_type type, const manifest_state **state);
/** Registers; *out is the entry, so that a library can be tied to it. */
NODISCARD status runtime_register(vt_runtime *rt, const vt_backend *vtable, const vt_row *rows, int32_t n_rows, backend_entry **out,
                                  error *err);

/* plugin.c */
enum { LIBRARY_PATH_BYTES = 4096 };
/** Fills rt->search_dirs from the options. */
NODISCARD status plugin_set_search_dirs(vt_runtime *rt, const char *const *dirs, error *err);
/** Look for the library of manifest i and register it. What is wrong with a library becomes its note; only memory fails. */
NODISCARD status plugin_load(vt_runtime *rt, int32_t i, error *err);
void plugin_unload(vt_runtime *rt, backend_entry *e);

/* dispatch.c */
static inline bool sig_equal(vt_sig a, vt_sig b) {
    return a.dtype[0] == b.dtype[0] && a.dtype[1] == b.dtype[1] && a.dtype[2] == b.dtype[2] && a.dtype[3] == b.dtype[3];
}
/** Whether vt_can_run says yes, without a text. */
bool dispatch_can_run(const vt_queue *q, vt_op op, vt_sig sig);
/** The row that stands last among those that can run here, whether or not it has a shape limit; NULL: none. */
const vt_row *dispatch_preferred(const vt_queue *q, vt_op op, vt_sig sig);
/** Find the row, refuse or run. `empty`: the call has nothing to write, so nothing is run. */
NODISCARD status dispatch_call(vt_queue *q, const vt_call *call, bool empty, error *err);

/* refusal.c */
/** STATUS_UNSUPPORTED with the refusal text of vt_can_run. Allocates nothing. */
NODISCARD status refusal(const vt_queue *q, vt_op op, vt_sig sig, error *err);
/** The same for every one of the needs that cannot run (at least one), a line each. */
NODISCARD status refusal_of_all(const vt_queue *q, const vt_need *needs, int32_t n, error *err);
/** Why no device of this type can be opened: there is no backend. */
NODISCARD status refusal_no_backend(const vt_runtime *rt, vt_device_id id, error *err);
/** Names of the bits with ", " between; "" for none. */
void refusal_cap_names(uint64_t caps, char *text, size_t n);
/** "looked in A, B for libheadrace-NAME.so". */
void refusal_search_text(const vt_runtime *rt, const vt_manifest *m, char *text, size_t n);

#endif
