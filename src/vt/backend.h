/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a backend gives: one vtable and one const array of kernel rows. Compiles as C++17 too (nvcc). Structures that cross a shared
 * object carry their size; op ids and dtypes are append-only lists, so an older backend keeps working beside a newer core.
 */
#ifndef HEADRACE_VT_BACKEND_H
#define HEADRACE_VT_BACKEND_H

#include "vt/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { VT_BACKEND_ABI = 2 };

typedef enum vt_op {
#define OP(id, name, sig) VT_OP_##id,
#include "vt/op.def"
#undef OP
    VT_OP_COUNT
} vt_op;

enum { VT_SIG_MAX = 4 };

/** The dtypes that select a kernel, in the order op.def names them; unused places are VT_NONE. */
typedef struct vt_sig {
    uint8_t dtype[VT_SIG_MAX];
} vt_sig;

/* X(bit, enumerator, name, what it means). Properties of a device, never products. */
#define VT_CAP_LIST(X)                                                                                                 \
    X(0, VT_CAP_UNIFIED, "unified-memory", "host and device share one pool of memory")                                 \
    X(1, VT_CAP_HOST_ADDRESSABLE, "host-addressable", "host code may dereference device pointers (narrower than unified)") \
    X(2, VT_CAP_ASYNC_COPY, "async-copy", "copies overlap kernels")                                                    \
    X(3, VT_CAP_CAPTURE, "capture", "a repeating step can be captured and replayed")                                   \
    X(4, VT_CAP_TENSOR_BF16, "tensor-bf16", "matrix units for BF16")                                                   \
    X(5, VT_CAP_TENSOR_F16, "tensor-f16", "matrix units for F16")                                                      \
    X(6, VT_CAP_TENSOR_F8, "tensor-f8", "matrix units for FP8")                                                        \
    X(16, VT_CAP_X86_AVX2, "x86-avx2", "AVX2, FMA and F16C")                                                           \
    X(17, VT_CAP_X86_AVX512, "x86-avx512", "AVX-512 F, BW, DQ and VL")                                                 \
    X(18, VT_CAP_X86_VNNI, "x86-avx512-vnni", "AVX-512 VNNI")

typedef enum vt_cap {
#define X(bit, id, name, text) id = bit,
    VT_CAP_LIST(X)
#undef X
        VT_CAP_END
} vt_cap;
#define VT_CAP_BIT(cap) (1ull << (cap))

/** One call as a kernel row sees it: tensors in the order of the op's C declaration, params by op. Checked before the row runs. */
enum { VT_CALL_MAX_TENSORS = 14 };
typedef struct vt_call {
    uint32_t size; /* sizeof(vt_call) of the core */
    vt_op op;
    vt_sig sig;
    int32_t n_tensors;
    const vt_tensor *t[VT_CALL_MAX_TENSORS]; /* optional ones may have n_dims 0 */
    union {
        struct { float alpha, beta; } alpha_beta;
        vt_rms_norm_params rms_norm;
        vt_rope_params rope;
        vt_attention_params attention;
        vt_heads_params heads;
        vt_scale_params scale;
        vt_router_params router;
        vt_swiglu_params swiglu;
        vt_gated_delta_params gated_delta;
        vt_grouped_params grouped;
        vt_add_norm_params add_norm;
        vt_gate gate;
        float scalar;
    } p;
} vt_call;

typedef status vt_kernel_fn(vt_queue *q, const vt_call *call, error *err);

/** A kernel row. Later rows of a table are preferred. run == NULL: written but left out of this build; left_out names the switch. */
typedef struct vt_row {
    vt_op op;
    vt_sig sig;
    uint64_t need;                     /* capability bits that must all be present */
    bool (*fits)(const vt_call *call); /* shape limit; NULL = any shape. Some row without a limit must exist for each (op, sig) */
    const char *name;                  /* "matmul_bt_q8a32_q4_1_avx512" */
    const char *left_out;
    vt_kernel_fn *run;
} vt_row;

typedef struct vt_fence {
    void *handle; /* NULL on synchronous backends: already complete */
} vt_fence;

/** Services that the core lends to a backend. */
typedef struct vt_host_api {
    uint32_t size;
    void *(*host_alloc)(void *ctx, size_t bytes);
    void (*host_free)(void *ctx, void *p);
    void (*log)(void *ctx, int level, const char *line);
    void *ctx;
    const char *(*option)(void *ctx, const char *key); /* configuration that concerns backends ("cpu-isa"); NULL = not set */
} vt_host_api;

typedef enum vt_branch_step { VT_BRANCH_BEGIN, VT_BRANCH_END, VT_BRANCH_JOIN } vt_branch_step;

/**
 * The vtable. dev: the backend's own state of one opened device. NULL entries mean the default stated.
 * Threads: open/close from one thread; the rest per queue from one thread at a time.
 */
typedef struct vt_backend {
    uint32_t size, abi;
    const char *name;
    vt_device_type type;

    int32_t (*count)(const vt_host_api *host, error *err); /* devices present; 0 with a reason in err when none. NULL: 1 */
    status (*open)(const vt_host_api *host, int32_t index, void **dev, error *err);
    void (*close)(void *dev);
    void (*describe)(void *dev, char *text, size_t n);     /* one line for `doctor`. NULL: the name */
    uint64_t (*caps)(void *dev);                           /* VT_CAP_BIT set, constant after open */
    /* free is live, total is fixed; 0 = unknown. NULL: both unknown */
    status (*memory_info)(void *dev, uint64_t *free_bytes, uint64_t *total_bytes);

    status (*alloc)(void *dev, size_t bytes, void **out);  /* aligned to 256 */
    void (*free)(void *dev, void *p);
    status (*host_alloc)(void *dev, size_t bytes, void **out); /* pinned. NULL: ordinary memory */
    void (*host_free)(void *dev, void *p);

    status (*queue_create)(void *dev, void **handle);      /* NULL: handle NULL */
    void (*queue_destroy)(void *dev, void *handle);
    status (*sync)(void *dev, void *handle);               /* NULL: synchronous backend, nothing to wait for */
    status (*copy)(void *dev, void *handle, void *dst, const void *src, size_t bytes); /* host or device on either side */
    status (*fill)(void *dev, void *handle, void *dst, int value, size_t bytes);

    status (*fence_create)(void *dev, vt_fence *out);      /* NULL (all of these): fences are always complete */
    void (*fence_destroy)(void *dev, vt_fence f);
    status (*fence_record)(void *dev, void *handle, vt_fence f);
    status (*fence_wait)(void *dev, void *handle, vt_fence f); /* handle waits for f; handle NULL with host=1 semantics: sync on host */
    bool (*fence_done)(void *dev, vt_fence f);

    status (*capture_begin)(void *dev, void *handle);      /* NULL (all of these): no capture */
    status (*capture_end)(void *dev, void *handle, void **graph);
    status (*replay)(void *dev, void *handle, void *graph);
    void (*graph_destroy)(void *dev, void *graph);

    uint64_t (*queue_bytes)(void *dev); /* device memory that comes with each queue. NULL: none */
    uint64_t (*graph_bytes)(void *dev); /* and that a captured graph takes at most. NULL: none */
    uint64_t (*alloc_unit)(void *dev);  /* what alloc takes is a multiple of it. NULL: what was asked for */
    /* Reads so many bytes of device memory, aligned to 256, once, and changes nothing: for measuring. NULL: cannot be measured */
    status (*read_pass)(void *dev, void *handle, const void *p, size_t bytes);

    /* From begin to end a queue's calls go to a lane of its own, which starts when what was queued before begin is done; what is queued behind join waits for it. NULL: all goes in order */
    status (*branch)(void *dev, void *handle, vt_branch_step step);
} vt_backend;

/** Entry of a shared object libheadrace-NAME.so: NULL and a reason when it cannot serve this core's ABI. */
typedef struct vt_backend_tables {
    uint32_t size;
    const vt_backend *vtable;
    const vt_row *rows;
    int32_t n_rows;
} vt_backend_tables;
typedef const vt_backend_tables *vt_backend_entry_fn(uint32_t abi, error *err);
#define VT_BACKEND_ENTRY_SYMBOL "vt_backend_entry"

#ifdef __cplusplus
}
#endif
#endif
