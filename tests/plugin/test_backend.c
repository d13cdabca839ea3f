/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A backend for tests, built as libheadrace-test.so. It links nothing of the core, so that what crosses the shared object is the interface
 * and nothing else.
 *
 * Work is deferred: a queue keeps its commands until somebody waits, so that a missing wait is seen as a wrong value and not as luck.
 * Device 0 takes its memory from the host and lacks the BF16 property; device 1 has memory of its own and has it. TEST_PLUGIN_FAULT makes
 * libraries that must be turned away.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vt/backend_manifest.h"

#define HEADRACE_TEST_LEFT_OUT 0

/* What is wrong with this library: plugin.cmake builds one of each. */
#define FAULT_NONE 0
#define FAULT_REFUSES 1
#define FAULT_INTERFACE 2
#define FAULT_NO_ENTRY 3
#define FAULT_TYPE 4
#define FAULT_TABLES 5
#define FAULT_ROWS 6
#ifndef TEST_PLUGIN_FAULT
#define TEST_PLUGIN_FAULT FAULT_NONE
#endif
#if TEST_PLUGIN_FAULT == FAULT_NO_ENTRY
#define vt_backend_entry some_other_entry
#endif
enum { QUEUE_COMMANDS = 64, DEVICE_ALIGN = 256 };

typedef struct test_device {
    const vt_host_api *host;
    int32_t index;
} test_device;

typedef struct test_queue test_queue;

typedef struct test_fence {
    test_queue *recorded_on; /* NULL: never recorded, so complete */
    bool done;
} test_fence;

typedef void work_fn(const vt_call *call);

typedef struct command {
    enum { RUN, COPY, FILL, SIGNAL, WAIT } kind;
    work_fn *work;
    vt_call call;
    vt_tensor t[VT_CALL_MAX_TENSORS];
    void *dst;
    const void *src;
    int value;
    size_t bytes;
    test_fence *fence;
} command;

struct test_queue {
    command commands[QUEUE_COMMANDS];
    int n, first;
};

/* ---- the work ---- */

static float *f32_row(const vt_tensor *t, int64_t row) { return (float *)t->data + (t->n_dims > 1 ? row * t->stride[0] : 0); }
static int64_t n_rows(const vt_tensor *t) { return t->n_dims > 1 ? t->dim[0] : 1; }

static void do_mul_scalar(const vt_call *c) {
    const vt_tensor *out = c->t[0], *x = c->t[1];
    for (int64_t r = 0; r < n_rows(out); r++)
        for (int64_t i = 0; i < out->dim[out->n_dims - 1]; i++) f32_row(out, r)[i] = f32_row(x, r)[i] * c->p.scalar;
}

static void do_matmul(const vt_call *c) {
    const vt_tensor *out = c->t[0], *a = c->t[1], *b = c->t[2];
    for (int64_t m = 0; m < out->dim[0]; m++) {
        for (int64_t n = 0; n < out->dim[1]; n++) {
            float sum = 0;
            for (int64_t k = 0; k < a->dim[1]; k++) sum += f32_row(a, m)[k] * f32_row(b, n)[k];
            f32_row(out, m)[n] = sum;
        }
    }
}

static void do_add_f32(const vt_call *c) {
    const vt_tensor *out = c->t[0], *a = c->t[1], *b = c->t[2];
    for (int64_t r = 0; r < n_rows(out); r++)
        for (int64_t i = 0; i < out->dim[out->n_dims - 1]; i++)
            f32_row(out, r)[i] = f32_row(a, r)[i] + f32_row(b, b->n_dims > 1 ? r : 0)[i];
}

static float from_bf16(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Truncates: the tests use values that are exact. */
static uint16_t to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static void do_add_bf16(const vt_call *c) {
    const uint16_t *a = c->t[1]->data, *b = c->t[2]->data;
    uint16_t *out = c->t[0]->data;
    int64_t n = n_rows(c->t[0]) * c->t[0]->dim[c->t[0]->n_dims - 1];
    for (int64_t i = 0; i < n; i++) out[i] = to_bf16(from_bf16(a[i]) + from_bf16(b[i]));
}

/* ---- queues and fences ---- */

static void drain(test_queue *q, const test_fence *until);

static void execute(command *c) {
    switch (c->kind) {
    case RUN:
        for (int i = 0; i < c->call.n_tensors; i++) c->call.t[i] = &c->t[i];
        c->work(&c->call);
        break;
    case COPY:
        memmove(c->dst, c->src, c->bytes);
        break;
    case FILL:
        memset(c->dst, c->value, c->bytes);
        break;
    case SIGNAL:
        c->fence->done = true;
        break;
    case WAIT:
        drain(c->fence->recorded_on, c->fence);
        break;
    }
}

/* Run the commands of a queue in order, all or until the fence is done. */
static void drain(test_queue *q, const test_fence *until) {
    while (q && q->first < q->n && !(until && until->done)) execute(&q->commands[q->first++]);
    if (q && q->first == q->n) q->first = q->n = 0;
}

static command *push(test_queue *q) {
    if (q->n == QUEUE_COMMANDS) drain(q, NULL);
    command *c = &q->commands[q->n++];
    memset(c, 0, sizeof *c);
    return c;
}

static status enqueue(vt_queue *q, const vt_call *call, work_fn *work) {
    command *c = push(q->handle);
    c->kind = RUN;
    c->work = work;
    c->call = *call;
    for (int i = 0; i < call->n_tensors; i++) c->t[i] = *call->t[i];
    return STATUS_OK;
}

static status test_queue_create(void *dev, void **handle) {
    const test_device *d = dev;
    test_queue *q = d->host->host_alloc(d->host->ctx, sizeof *q);
    if (!q) return STATUS_NO_MEMORY;
    q->n = q->first = 0;
    *handle = q;
    return STATUS_OK;
}

static void test_queue_destroy(void *dev, void *handle) {
    const test_device *d = dev;
    drain(handle, NULL);
    d->host->host_free(d->host->ctx, handle);
}

static status test_sync(void *dev, void *handle) {
    (void)dev;
    drain(handle, NULL);
    return STATUS_OK;
}

static status test_copy(void *dev, void *handle, void *dst, const void *src, size_t bytes) {
    (void)dev;
    command *c = push(handle);
    c->kind = COPY;
    c->dst = dst;
    c->src = src;
    c->bytes = bytes;
    return STATUS_OK;
}

static status test_fill(void *dev, void *handle, void *dst, int value, size_t bytes) {
    (void)dev;
    command *c = push(handle);
    c->kind = FILL;
    c->dst = dst;
    c->value = value;
    c->bytes = bytes;
    return STATUS_OK;
}

static status test_fence_create(void *dev, vt_fence *out) {
    const test_device *d = dev;
    test_fence *f = d->host->host_alloc(d->host->ctx, sizeof *f);
    if (!f) return STATUS_NO_MEMORY;
    *f = (test_fence){NULL, true};
    out->handle = f;
    return STATUS_OK;
}

static void test_fence_destroy(void *dev, vt_fence f) {
    const test_device *d = dev;
    d->host->host_free(d->host->ctx, f.handle);
}

static status test_fence_record(void *dev, void *handle, vt_fence f) {
    (void)dev;
    test_fence *fence = f.handle;
    fence->recorded_on = handle;
    fence->done = false;
    command *c = push(handle);
    c->kind = SIGNAL;
    c->fence = fence;
    return STATUS_OK;
}

static status test_fence_wait(void *dev, void *handle, vt_fence f) {
    (void)dev;
    test_fence *fence = f.handle;
    if (!handle) {
        drain(fence->recorded_on, fence);
        return STATUS_OK;
    }
    command *c = push(handle);
    c->kind = WAIT;
    c->fence = fence;
    return STATUS_OK;
}

static bool test_fence_done(void *dev, vt_fence f) {
    (void)dev;
    return ((const test_fence *)f.handle)->done;
}

/* ---- devices and memory ---- */

static int32_t test_count(const vt_host_api *host, error *err) {
    (void)host;
    (void)err;
    return 2;
}

static status test_open(const vt_host_api *host, int32_t index, void **dev, error *err) {
    test_device *d = host->host_alloc(host->ctx, sizeof *d);
    if (!d) {
        if (err) snprintf(err->text, sizeof err->text, "test: no memory for the device");
        return STATUS_NO_MEMORY;
    }
    *d = (test_device){host, index};
    *dev = d;
    return STATUS_OK;
}

static void test_close(void *dev) {
    test_device *d = dev;
    d->host->host_free(d->host->ctx, d);
}

static void test_describe(void *dev, char *text, size_t n) { snprintf(text, n, "test device %d", (int)((test_device *)dev)->index); }

static uint64_t test_caps(void *dev) {
    const test_device *d = dev;
    return VT_CAP_BIT(VT_CAP_ASYNC_COPY) | (d->index == 0 ? VT_CAP_BIT(VT_CAP_UNIFIED) : VT_CAP_BIT(VT_CAP_TENSOR_BF16));
}

static status test_memory_info(void *dev, uint64_t *free_bytes, uint64_t *total_bytes) {
    const test_device *d = dev;
    *total_bytes = d->index == 0 ? 0 : 1u << 20;
    *free_bytes = d->index == 0 ? 0 : 1u << 19;
    return STATUS_OK;
}

static status test_alloc(void *dev, size_t bytes, void **out) {
    const test_device *d = dev;
    if (bytes > SIZE_MAX - 2 * DEVICE_ALIGN) return STATUS_NO_MEMORY;
    if (d->index == 1) { /* memory of its own; the host's is tried first, and given back */
        void *tried = d->host->host_alloc(d->host->ctx, bytes);
        if (tried) d->host->host_free(d->host->ctx, tried);
        *out = aligned_alloc(DEVICE_ALIGN, (bytes + DEVICE_ALIGN - 1) / DEVICE_ALIGN * DEVICE_ALIGN);
        return *out ? STATUS_OK : STATUS_NO_MEMORY;
    }
    char *block = d->host->host_alloc(d->host->ctx, bytes + 2 * DEVICE_ALIGN);
    if (!block) return STATUS_NO_MEMORY;
    char *p = block + DEVICE_ALIGN - (uintptr_t)block % DEVICE_ALIGN;
    memcpy(p - sizeof block, &block, sizeof block);
    *out = p;
    return STATUS_OK;
}

static void test_free(void *dev, void *p) {
    const test_device *d = dev;
    if (d->index == 1) {
        free(p);
    } else if (p) {
        char *block;
        memcpy(&block, (char *)p - sizeof block, sizeof block);
        d->host->host_free(d->host->ctx, block);
    }
}

/* ---- tables ---- */

static bool test_is_short(const vt_call *call) { return call->t[0]->dim[call->t[0]->n_dims - 1] <= 4; }

static status test_mul_scalar(vt_queue *q, const vt_call *call, error *err) { return (void)err, enqueue(q, call, do_mul_scalar); }
static status test_matmul(vt_queue *q, const vt_call *call, error *err) { return (void)err, enqueue(q, call, do_matmul); }
static status test_add_f32(vt_queue *q, const vt_call *call, error *err) { return (void)err, enqueue(q, call, do_add_f32); }
static status test_add_bf16(vt_queue *q, const vt_call *call, error *err) { return (void)err, enqueue(q, call, do_add_bf16); }

static const vt_row rows[] = {
#if TEST_PLUGIN_FAULT == FAULT_ROWS
    /* a shape limit with nothing under it */
    {VT_OP_MUL_SCALAR, {{VT_F16, VT_F16, VT_NONE, VT_NONE}}, 0, test_is_short, "test_limited", NULL, test_mul_scalar},
#endif
#define ROW VT_ROW_DEFINE
#include "plugin/kernel_rows.def"
#undef ROW
};

static const vt_backend vtable = {
    .size = sizeof vtable,
    .abi = TEST_PLUGIN_FAULT == FAULT_INTERFACE ? VT_BACKEND_ABI + 6 : VT_BACKEND_ABI,
    .name = "test",
    .type = TEST_PLUGIN_FAULT == FAULT_TYPE ? VT_DEVICE_VULKAN : VT_DEVICE_TEST,
    .count = test_count,
    .open = test_open,
    .close = test_close,
    .describe = test_describe,
    .caps = test_caps,
    .memory_info = test_memory_info,
    .alloc = test_alloc,
    .free = test_free,
    .queue_create = test_queue_create,
    .queue_destroy = test_queue_destroy,
    .sync = test_sync,
    .copy = test_copy,
    .fill = test_fill,
    .fence_create = test_fence_create,
    .fence_destroy = test_fence_destroy,
    .fence_record = test_fence_record,
    .fence_wait = test_fence_wait,
    .fence_done = test_fence_done,
};

static const vt_backend_tables tables = {
    TEST_PLUGIN_FAULT == FAULT_TABLES ? 8 : sizeof tables,
    &vtable,
    rows,
    (int32_t)(sizeof rows / sizeof rows[0]),
};

__attribute__((visibility("default"))) vt_backend_entry_fn vt_backend_entry;

const vt_backend_tables *vt_backend_entry(uint32_t abi, error *err) {
    if (abi == VT_BACKEND_ABI && TEST_PLUGIN_FAULT != FAULT_REFUSES) return &tables;
    if (err) snprintf(err->text, sizeof err->text, "test: this library is for interface 99, not %u", (unsigned)abi);
    return NULL;
}
