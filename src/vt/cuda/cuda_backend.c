/* SPDX-License-Identifier: Apache-2.0 */
/* The vtable of NVIDIA devices over the runtime library, which is linked in and opens the driver itself: without a driver every call fails,
 * and `count` turns that into one sentence. Queues are streams, fences events, captures graphs. The current device belongs to a thread, so
 * each call that touches one sets it first. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "vt/backend_manifest.h"
#include "vt/cuda/attention_limits.cuh"
#include "vt/cuda/small_copy.cuh"

enum { KNOWN_BLOCKS = 64 };

/* What the device's functions see of it, and the memory that was given out: where a kernel may copy from and to. What finds no place here is copied as anything is. */
typedef struct backend_device {
    cuda_device d;
    struct {
        const uint8_t *at; /* NULL: free */
        size_t bytes;
        bool pinned;
    } blocks[KNOWN_BLOCKS];
    void *registered[KNOWN_BLOCKS]; /* the host's own memory, pinned where it lies */
} backend_device;

typedef struct backend_queue {
    cuda_queue q;
    bool has_copies; /* that a copy engine makes, since it was waited for: small ones keep in line with them instead of holding up the engine */
} backend_queue;

/* ---- errors ---- */

static status status_of(cudaError_t rc) {
    switch (rc) {
    case cudaSuccess:
        return STATUS_OK;
    case cudaErrorMemoryAllocation:
        return STATUS_NO_MEMORY;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
        return STATUS_BUG;
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorNotSupported:
        return STATUS_UNSUPPORTED;
    default:
        return STATUS_FAILED;
    }
}

static status set_error(error *err, status code, const char *what, const char *name, const char *text) {
    if (err) {
        err->code = code;
        snprintf(err->text, sizeof err->text, "cuda: %s%s%s%s%s", what, name ? ": " : "", name ? name : "", text ? ": " : "",
                 text ? text : "");
    }
    return code;
}

status cuda_result(cudaError_t rc, const char *what, error *err) {
    if (rc == cudaSuccess) return STATUS_OK;
    (void)cudaGetLastError(); /* an error that does not stick is not left for the next caller */
    return set_error(err, status_of(rc), what, cudaGetErrorName(rc), cudaGetErrorString(rc));
}

status cuda_refuse(error *err, const char *what) { return set_error(err, STATUS_INVALID, what, NULL, NULL); }

/* The functions of the vtable have no place for a text: it goes to the log. */
static status logged(const cuda_device *d, cudaError_t rc, const char *what) {
    error err = {0};
    status code = cuda_result(rc, what, &err);
    if (code != STATUS_OK && d->host->log) d->host->log(d->host->ctx, 0, err.text);
    return code;
}

/* A device too full to be used at all: another one may be taken, or this one later. */
static status without_room(status code) { return code == STATUS_NO_MEMORY ? STATUS_NOT_NOW : code; }

#define DEVICE_CALL(d, what, call)                                                                                                         \
    do {                                                                                                                                   \
        cudaError_t rc_ = cudaSetDevice((d)->index);                                                                                       \
        if (rc_ == cudaSuccess) rc_ = (call);                                                                                              \
        if (rc_ != cudaSuccess) return logged(d, rc_, what);                                                                               \
    } while (0)

/* ---- devices ---- */

static int32_t cuda_count(const vt_host_api *host, error *err) {
    (void)host;
    int driver = 0, runtime = 0, n = 0;
    (void)cudaRuntimeGetVersion(&runtime);
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
        (void)set_error(err, STATUS_NOT_FOUND, "no NVIDIA driver (libcuda.so.1 does not open)", NULL, NULL);
        return 0;
    }
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc == cudaSuccess && n > 0) return n;
    (void)cudaGetLastError();
    if (rc == cudaErrorInsufficientDriver) {
        char text[160];
        snprintf(text, sizeof text, "the driver is too old: it serves CUDA %d.%d, this library needs %d.0 or later", driver / 1000,
                 driver % 1000 / 10, runtime / 1000);
        (void)set_error(err, STATUS_UNSUPPORTED, text, NULL, NULL);
    } else if (rc == cudaSuccess || rc == cudaErrorNoDevice) {
        (void)set_error(err, STATUS_NOT_FOUND, "a driver, but no device", NULL, NULL);
    } else {
        (void)cuda_result(rc, "counting devices", err);
    }
    return 0;
}

static int attribute(enum cudaDeviceAttr which, int index) {
    int value = 0;
    return cudaDeviceGetAttribute(&value, which, index) == cudaSuccess ? value : 0;
}

/* Properties only: what the matrix units take follows the compute capability, as the programming guide lists it. */
static uint64_t probe_caps(int32_t index) {
    uint64_t caps = VT_CAP_BIT(VT_CAP_CAPTURE);
    int major = attribute(cudaDevAttrComputeCapabilityMajor, index), minor = attribute(cudaDevAttrComputeCapabilityMinor, index);
    bool integrated = attribute(cudaDevAttrIntegrated, index) != 0;
    if (integrated) caps |= VT_CAP_BIT(VT_CAP_UNIFIED);
    if (attribute(cudaDevAttrAsyncEngineCount, index) > 0) caps |= VT_CAP_BIT(VT_CAP_ASYNC_COPY);
    if (major >= 8) caps |= VT_CAP_BIT(VT_CAP_TENSOR_BF16);
    if (major >= 7) caps |= VT_CAP_BIT(VT_CAP_TENSOR_F16);
    if (major * 10 + minor >= 89) caps |= VT_CAP_BIT(VT_CAP_TENSOR_F8);
    return caps;
}

static void cuda_close(void *dev) {
    cuda_device *d = dev;
    if (d) d->host->host_free(d->host->ctx, d);
}

static status probe(cuda_device *d, error *err) {
    size_t n_free = 0, n_total = 0;
    cudaError_t rc = cudaSetDevice(d->index);
    if (rc == cudaSuccess) rc = cudaFree(NULL); /* makes the context, and finds a library without code for this device early */
    if (rc == cudaSuccess) rc = cuda_load_kernels();
    if (rc == cudaSuccess) rc = cudaMemGetInfo(&n_free, &n_total);
    TRY(cuda_result(rc, "opening the device", err));
    d->total_bytes = n_total;
    d->n_multiprocessors = attribute(cudaDevAttrMultiProcessorCount, d->index);
    d->shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, d->index);
    d->major = attribute(cudaDevAttrComputeCapabilityMajor, d->index);
    d->minor = attribute(cudaDevAttrComputeCapabilityMinor, d->index);
    d->caps = probe_caps(d->index);
    return STATUS_OK;
}

static status cuda_open(const vt_host_api *host, int32_t index, void **dev, error *err) {
    backend_device *own = host->host_alloc(host->ctx, sizeof *own);
    if (!own) return set_error(err, STATUS_NO_MEMORY, "no memory for the device's state", NULL, NULL);
    memset(own, 0, sizeof *own);
    cuda_device *d = &own->d;
    d->host = host;
    d->index = index;
    status rc = without_room(probe(d, err));
    if (err && rc != STATUS_OK) err->code = rc;
    if (rc == STATUS_OK)
        *dev = d;
    else
        cuda_close(d);
    return rc;
}

static void cuda_describe(void *dev, char *text, size_t n) {
    const cuda_device *d = dev;
    struct cudaDeviceProp p;
    int driver = 0, runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (cudaGetDeviceProperties(&p, d->index) != cudaSuccess) {
        (void)cudaGetLastError();
        snprintf(text, n, "cuda:%d", d->index);
        return;
    }
    snprintf(text, n, "%s, compute capability %d.%d, %d multiprocessors, driver for CUDA %d.%d, built with %d.%d", p.name, p.major, p.minor,
             p.multiProcessorCount, driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    const int32_t widest = cuda_attention_widest(d);
    const size_t used = strlen(text);
    if (widest < CUDA_ATTENTION_WIDTH && used < n) snprintf(text + used, n - used, ", attention of prompts on matrix units up to heads of %d", widest);
}

static uint64_t cuda_caps(void *dev) { return ((const cuda_device *)dev)->caps; }

static status cuda_memory_info(void *dev, uint64_t *free_bytes, uint64_t *total_bytes) {
    const cuda_device *d = dev;
    size_t n_free = 0, n_total = 0;
    DEVICE_CALL(d, "memory_info", cudaMemGetInfo(&n_free, &n_total));
    *free_bytes = n_free;
    *total_bytes = d->total_bytes;
    return STATUS_OK;
}

/* ---- memory ---- */

static void remember(backend_device *own, const void *p, size_t bytes, bool pinned) {
    for (int i = 0; i < KNOWN_BLOCKS; i++) {
        if (own->blocks[i].at) continue;
        own->blocks[i].at = p;
        own->blocks[i].bytes = bytes;
        own->blocks[i].pinned = pinned;
        return;
    }
}

static void forget(backend_device *own, const void *p) {
    for (int i = 0; p && i < KNOWN_BLOCKS; i++) {
        if (own->blocks[i].at == p) own->blocks[i].at = NULL;
    }
}

static bool is_known(const backend_device *own, const void *p, size_t bytes, bool pinned) {
    for (int i = 0; i < KNOWN_BLOCKS; i++) {
        const uint8_t *at = own->blocks[i].at;
        const size_t off = (size_t)((uintptr_t)p - (uintptr_t)at);
        if (at && own->blocks[i].pinned == pinned && (uintptr_t)p >= (uintptr_t)at && off <= own->blocks[i].bytes && bytes <= own->blocks[i].bytes - off) return true;
    }
    return false;
}

static status cuda_alloc(void *dev, size_t bytes, void **out) {
    const cuda_device *d = dev;
    DEVICE_CALL(d, "alloc", cudaMalloc(out, bytes));
    remember(dev, *out, bytes, false);
    return STATUS_OK;
}

static void cuda_free_(void *dev, void *p) {
    const cuda_device *d = dev;
    forget(dev, p);
    if (p && cudaSetDevice(d->index) == cudaSuccess) (void)logged(d, cudaFree(p), "free");
}

/* NULL asks for one that is free. */
static void **registered_place(backend_device *own, const void *p) {
    for (int i = 0; i < KNOWN_BLOCKS; i++)
        if (own->registered[i] == p) return &own->registered[i];
    return NULL;
}

/*
 * Large blocks are the host's own memory, asked for in pages of 2 MiB and then pinned: a read from a drive into what the driver hands out, scattered pages of 4 KiB, is cut into as many pieces.
 * Their pages are shared with nothing else, as the host's allocator maps such blocks by themselves.
 */
static void *pin_large(backend_device *own, size_t bytes) {
    static const uintptr_t LARGE = 2 << 20, LEAST = 33 << 20;
    const cuda_device *d = &own->d;
    void **place = registered_place(own, NULL);
    void *p = place && bytes >= LEAST ? d->host->host_alloc(d->host->ctx, bytes) : NULL;
    if (!p) return NULL;
    const uintptr_t begin = ((uintptr_t)p + LARGE - 1) / LARGE * LARGE, end = ((uintptr_t)p + bytes) / LARGE * LARGE;
    (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE); /* where there are none: small pages, then */
    if (cudaHostRegister(p, bytes, cudaHostRegisterDefault) == cudaSuccess) return *place = p;
    (void)cudaGetLastError();
    d->host->host_free(d->host->ctx, p);
    return NULL;
}

/* Refused is an answer here: the caller falls back to ordinary memory and a staged copy. */
static status cuda_host_alloc(void *dev, size_t bytes, void **out) {
    const cuda_device *d = dev;
    cudaError_t rc = cudaSetDevice(d->index);
    if (rc == cudaSuccess) {
        *out = pin_large(dev, bytes);
        if (*out) return STATUS_OK;
        rc = cudaHostAlloc(out, bytes, cudaHostAllocDefault);
    }
    if (rc == cudaSuccess) {
        remember(dev, *out, bytes, true);
        return STATUS_OK;
    }
    (void)cudaGetLastError();
    return STATUS_NO_MEMORY;
}

static void cuda_host_free(void *dev, void *p) {
    const cuda_device *d = dev;
    forget(dev, p);
    if (!p || cudaSetDevice(d->index) != cudaSuccess) return;
    void **place = registered_place(dev, p);
    if (!place) {
        (void)logged(d, cudaFreeHost(p), "host_free");
    } else if (logged(d, cudaHostUnregister(p), "host_free") == STATUS_OK) { /* else it stays pinned, and nobody may get it */
        *place = NULL;
        d->host->host_free(d->host->ctx, p);
    }
}

/* ---- queues ---- */

static void cuda_queue_destroy(void *dev, void *handle) {
    const cuda_device *d = dev;
    cuda_queue *q = handle;
    if (!q) return;
    if (cudaSetDevice(d->index) == cudaSuccess) {
        cudaStream_t streams[] = {q->main, q->side};
        for (int i = 0; i < 2; i++) {
            if (!streams[i]) continue;
            (void)cudaStreamSynchronize(streams[i]);
            (void)logged(d, cudaStreamDestroy(streams[i]), "queue_destroy");
        }
        if (q->forked) (void)logged(d, cudaEventDestroy(q->forked), "queue_destroy");
        if (q->done) (void)logged(d, cudaEventDestroy(q->done), "queue_destroy");
        if (q->workspace) (void)logged(d, cudaFree(q->workspace), "queue_destroy");
    }
    d->host->host_free(d->host->ctx, q);
}

static status cuda_queue_create(void *dev, void **handle) {
    const cuda_device *d = dev;
    backend_queue *own = d->host->host_alloc(d->host->ctx, sizeof *own);
    if (!own) return STATUS_NO_MEMORY;
    memset(own, 0, sizeof *own);
    cuda_queue *q = &own->q;
    cudaError_t rc = cudaSetDevice(d->index);
    int low = 0, high = 0;
    if (rc == cudaSuccess) rc = cudaDeviceGetStreamPriorityRange(&low, &high);
    if (rc == cudaSuccess) rc = cudaStreamCreateWithPriority(&q->main, cudaStreamNonBlocking, high); /* a branch takes what is left */
    if (rc == cudaSuccess) rc = cudaStreamCreateWithPriority(&q->side, cudaStreamNonBlocking, low);
    if (rc == cudaSuccess) rc = cudaEventCreateWithFlags(&q->forked, cudaEventDisableTiming);
    if (rc == cudaSuccess) rc = cudaEventCreateWithFlags(&q->done, cudaEventDisableTiming);
    q->stream = q->main;
    if (rc == cudaSuccess) rc = cudaMalloc(&q->workspace, CUDA_WORKSPACE_BYTES + CUDA_COUNTER_BYTES);
    if (rc == cudaSuccess) rc = cudaMemsetAsync((uint8_t *)q->workspace + CUDA_WORKSPACE_BYTES, 0, CUDA_COUNTER_BYTES, q->stream);
    if (rc == cudaSuccess) {
        *handle = q;
        return STATUS_OK;
    }
    status code = without_room(logged(d, rc, "queue_create"));
    cuda_queue_destroy(dev, q);
    return code;
}

/* Within a branch calls go to the side stream; the queue's workspace stays with the main one (attention and argmax, which no branch has). */
static status cuda_branch(void *dev, void *handle, vt_branch_step step) {
    const cuda_device *d = dev;
    cuda_queue *q = handle;
    if (step == VT_BRANCH_BEGIN) {
        DEVICE_CALL(d, "branch", cudaEventRecord(q->forked, q->main));
        DEVICE_CALL(d, "branch", cudaStreamWaitEvent(q->side, q->forked, 0));
        q->stream = q->side;
    } else if (step == VT_BRANCH_END) {
        q->stream = q->main;
        DEVICE_CALL(d, "branch", cudaEventRecord(q->done, q->side));
    } else {
        DEVICE_CALL(d, "branch", cudaStreamWaitEvent(q->main, q->done, 0));
    }
    return STATUS_OK;
}

static uint64_t cuda_alloc_unit(void *dev) {
    (void)dev;
    return CUDA_ALLOC_UNIT;
}

static status cuda_read(void *dev, void *handle, const void *p, size_t bytes) {
    const cuda_device *d = dev;
    DEVICE_CALL(d, "read_pass", cuda_read_pass(d, handle, p, bytes));
    return STATUS_OK;
}

static uint64_t cuda_graph_bytes(void *dev) {
    (void)dev;
    return CUDA_GRAPH_BYTES;
}

static uint64_t cuda_queue_bytes(void *dev) {
    (void)dev;
    return CUDA_WORKSPACE_BYTES + CUDA_COUNTER_BYTES;
}

static cudaStream_t stream_of(void *handle) { return ((cuda_queue *)handle)->stream; }

static status cuda_sync(void *dev, void *handle) {
    const cuda_device *d = dev;
    ((backend_queue *)handle)->has_copies = false;
    DEVICE_CALL(d, "sync", cudaStreamSynchronize(stream_of(handle)));
    return STATUS_OK;
}

static bool goes_by_kernel(const backend_device *own, const void *dst, const void *src, size_t bytes) {
    if (bytes > CUDA_SMALL_BYTES || (((uintptr_t)dst | (uintptr_t)src | bytes) & 3) != 0) return false;
    return is_known(own, dst, bytes, true) ? is_known(own, src, bytes, false) : is_known(own, dst, bytes, false) && is_known(own, src, bytes, true);
}

static status cuda_copy(void *dev, void *handle, void *dst, const void *src, size_t bytes) {
    const cuda_device *d = dev;
    backend_queue *q = handle;
    if (!q->has_copies && goes_by_kernel(dev, dst, src, bytes)) {
        DEVICE_CALL(d, "copy", cuda_small_copy(stream_of(handle), dst, src, bytes));
        return STATUS_OK;
    }
    q->has_copies |= bytes > CUDA_SMALL_BYTES;
    DEVICE_CALL(d, "copy", cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream_of(handle)));
    return STATUS_OK;
}

static status cuda_fill(void *dev, void *handle, void *dst, int value, size_t bytes) {
    const cuda_device *d = dev;
    DEVICE_CALL(d, "fill", cudaMemsetAsync(dst, value, bytes, stream_of(handle)));
    return STATUS_OK;
}

/* ---- fences ---- */

static status cuda_fence_create(void *dev, vt_fence *out) {
    const cuda_device *d = dev;
    cudaEvent_t event = NULL;
    DEVICE_CALL(d, "fence_create", cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    out->handle = event;
    return STATUS_OK;
}

static void cuda_fence_destroy(void *dev, vt_fence f) {
    const cuda_device *d = dev;
    if (f.handle && cudaSetDevice(d->index) == cudaSuccess) (void)logged(d, cudaEventDestroy(f.handle), "fence_destroy");
}

static status cuda_fence_record(void *dev, void *handle, vt_fence f) {
    const cuda_device *d = dev;
    DEVICE_CALL(d, "fence_record", cudaEventRecord(f.handle, stream_of(handle)));
    return STATUS_OK;
}

static status cuda_fence_wait(void *dev, void *handle, vt_fence f) {
    const cuda_device *d = dev;
    if (!f.handle) return STATUS_OK;
    DEVICE_CALL(d, "fence_wait", handle ? cudaStreamWaitEvent(stream_of(handle), f.handle, 0) : cudaEventSynchronize(f.handle));
    return STATUS_OK;
}

static bool cuda_fence_done(void *dev, vt_fence f) {
    const cuda_device *d = dev;
    if (!f.handle || cudaSetDevice(d->index) != cudaSuccess) return true;
    cudaError_t rc = cudaEventQuery(f.handle);
    if (rc == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return false;
    }
    return true; /* an error too: whoever waits hears of it */
}

/* ---- capture ---- */

static status cuda_capture_begin(void *dev, void *handle) {
    const cuda_device *d = dev;
    DEVICE_CALL(d, "capture_begin", cudaStreamBeginCapture(stream_of(handle), cudaStreamCaptureModeThreadLocal));
    return STATUS_OK;
}

static status cuda_capture_end(void *dev, void *handle, void **graph) {
    const cuda_device *d = dev;
    cudaGraph_t recorded = NULL;
    cudaGraphExec_t exec = NULL;
    DEVICE_CALL(d, "capture_end", cudaStreamEndCapture(stream_of(handle), &recorded));
    size_t n_nodes = 0;
    cudaError_t rc = cudaGraphGetNodes(recorded, NULL, &n_nodes);
    const bool fits = n_nodes <= CUDA_GRAPH_NODES;
    if (rc == cudaSuccess && fits) rc = cudaGraphInstantiate(&exec, recorded, 0);
    (void)cudaGraphDestroy(recorded);
    if (rc == cudaSuccess && !fits) return STATUS_DOES_NOT_FIT;           /* what graph_bytes promises would not hold */
    if (rc == cudaSuccess) rc = cudaGraphUpload(exec, stream_of(handle)); /* what it takes of the device's memory it takes now */
    if (rc != cudaSuccess) {
        if (exec) (void)cudaGraphExecDestroy(exec);
        return logged(d, rc, "capture_end");
    }
    *graph = exec;
    return STATUS_OK;
}

static status cuda_replay(void *dev, void *handle, void *graph) {
    const cuda_device *d = dev;
    DEVICE_CALL(d, "replay", cudaGraphLaunch(graph, stream_of(handle)));
    return STATUS_OK;
}

static void cuda_graph_destroy(void *dev, void *graph) {
    const cuda_device *d = dev;
    if (graph && cudaSetDevice(d->index) == cudaSuccess) (void)logged(d, cudaGraphExecDestroy(graph), "graph_destroy");
}

/* ---- tables ---- */

static const vt_backend vtable = {
    .size = sizeof vtable,
    .abi = VT_BACKEND_ABI,
    .name = "cuda",
    .type = VT_DEVICE_CUDA,
    .count = cuda_count,
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .caps = cuda_caps,
    .memory_info = cuda_memory_info,
    .alloc = cuda_alloc,
    .free = cuda_free_,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .queue_create = cuda_queue_create,
    .queue_destroy = cuda_queue_destroy,
    .sync = cuda_sync,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .fence_create = cuda_fence_create,
    .fence_destroy = cuda_fence_destroy,
    .fence_record = cuda_fence_record,
    .fence_wait = cuda_fence_wait,
    .fence_done = cuda_fence_done,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .replay = cuda_replay,
    .graph_destroy = cuda_graph_destroy,
    .queue_bytes = cuda_queue_bytes,
    .graph_bytes = cuda_graph_bytes,
    .alloc_unit = cuda_alloc_unit,
    .read_pass = cuda_read,
    .branch = cuda_branch,
};

#define ROW VT_ROW_DECLARE
#include "vt/cuda/kernel_rows.def"
#undef ROW

bool cuda_fits_mma(const vt_call *call);
bool cuda_fits_bf16_mma(const vt_call *call);
bool cuda_fits_several_mma(const vt_call *call);
bool cuda_fits_gated_mma(const vt_call *call);
bool cuda_fits_attention(const vt_call *call);
bool cuda_fits_scaled(const vt_call *call);
bool cuda_fits_blocks_mma(const vt_call *call);
bool cuda_fits_grouped_blocks(const vt_call *call);
bool cuda_fits_grouped_mma(const vt_call *call);
bool cuda_fits_grouped_scaled(const vt_call *call);

static const vt_row rows[] = {
#define ROW VT_ROW_DEFINE
#include "vt/cuda/kernel_rows.def"
#undef ROW
};

static const vt_backend_tables tables = {sizeof tables, &vtable, rows, (int32_t)(sizeof rows / sizeof rows[0])};

/** The library's one exported symbol. */
__attribute__((visibility("default"))) const vt_backend_tables *vt_backend_entry(uint32_t abi, error *err);

const vt_backend_tables *vt_backend_entry(uint32_t abi, error *err) {
    if (abi == VT_BACKEND_ABI) return &tables;
    char text[96];
    snprintf(text, sizeof text, "this library has backend interface %d, it was asked for %u", VT_BACKEND_ABI, (unsigned)abi);
    (void)set_error(err, STATUS_UNSUPPORTED, text, NULL, NULL);
    return NULL;
}
