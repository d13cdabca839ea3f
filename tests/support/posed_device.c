/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices that pose as GPUs. The two views of the memory are two reservations of one size: addresses that are handed out lie in the first, which nobody may touch; the bytes are at the
 * same place of the second.
 */
#include "support/posed_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "vt/backend_manifest.h"

enum { MAX_EXPERTS = 512, MAX_ROWS = 1024, MAX_ALLOCS = 512, MAX_QUEUES = 8, MAX_COMMANDS = 512, DEVICE_ALIGN = 256, NAME_BYTES = 48 };
static const size_t RESERVED = (size_t)1 << 30;

extern const vt_backend_tables vt_cpu_tables;

typedef struct posed_fence posed_fence;
typedef struct posed_queue posed_queue;
typedef struct posed_device posed_device;

typedef struct command {
    enum { RUN, COPY, FILL, SIGNAL, WAIT } kind;
    vt_queue queue;
    vt_call call;
    vt_tensor t[VT_CALL_MAX_TENSORS];
    void *dst;
    const void *src;
    int value;
    size_t bytes;
    posed_fence *fence;
    uint64_t ticket;
    bool fails;
} command;

struct posed_fence {
    posed_queue *on; /* of the newest record; NULL: never recorded, which is complete */
    uint64_t ticket, done;
};

typedef struct posed_graph {
    posed_device *device;
    command *commands;
    int n, cap;
} posed_graph;

struct posed_queue {
    posed_device *device;
    posed_graph *capturing; /* NULL: commands are run */
    posed_graph lane;       /* a branch: its commands wait for the join, which is as late as a device can be */
    bool branching;
    command commands[MAX_COMMANDS]; /* a ring */
    int first, n;
};

typedef struct allocation {
    size_t off, bytes;
} allocation;

struct posed_device {
    const vt_host_api *host;
    posed_gpu *gpu;
    void *cpu;
    uint64_t cpu_caps;
    uint8_t *address, *bytes;
    size_t used;
    allocation allocs[MAX_ALLOCS];
    int n_allocs;
    posed_queue *queues[MAX_QUEUES];
    uint64_t ticket;
    status error; /* of what was launched and failed; given to whoever waits next */
};

static struct posed {
    posed_gpu gpu;
    vt_backend vtable;
    vt_row rows[MAX_ROWS];
    char names[MAX_ROWS][NAME_BYTES];
    int32_t n_rows;
} posed[POSED_MAX];
static int n_posed;

static bool fails(posed_gpu *g, int64_t *n) {
    if (*n < 0 || (*n)-- > 0) return false;
    g->n.faults++;
    return true;
}

static status wrong(posed_gpu *g, const char *what) {
    if (g->wrong == NULL) g->wrong = what;
    fprintf(stderr, "posed %s: %s\n", vt_device_type_name(g->type), what);
    return STATUS_FAILED;
}

/* ---- memory ---- */

static bool is_device(const posed_device *d, const void *p) { return (const uint8_t *)p >= d->address && (const uint8_t *)p < d->address + RESERVED; }

/* Whether the range lies in one live allocation. */
static bool is_live(const posed_device *d, const void *p, size_t bytes) {
    const size_t off = (size_t)((const uint8_t *)p - d->address);
    for (int i = 0; i < d->n_allocs; i++) {
        const allocation *a = &d->allocs[i];
        if (off >= a->off && off - a->off <= a->bytes && bytes <= a->bytes - (off - a->off)) return true;
    }
    return false;
}

/* With `exact`: whether so much more fits. */
static uint64_t bytes_taken(const posed_device *d) {
    uint64_t n = d->gpu->others;
    const uint64_t unit = d->gpu->alloc_unit > 0 ? d->gpu->alloc_unit : 1;
    for (int i = 0; i < d->n_allocs; i++) n += (d->allocs[i].bytes + unit - 1) / unit * unit;
    for (int i = 0; i < MAX_QUEUES; i++) n += d->queues[i] != NULL ? d->gpu->queue_bytes : 0;
    return n + (uint64_t)d->gpu->n.live_graphs * d->gpu->graph_bytes;
}

static bool has_room(const posed_device *d, uint64_t bytes) { return !d->gpu->exact || bytes_taken(d) + bytes <= d->gpu->total_bytes; }

static void *bytes_at(const posed_device *d, const void *p) { return is_device(d, p) ? d->bytes + ((const uint8_t *)p - d->address) : (void *)(uintptr_t)p; }

static status p_alloc(void *dev, size_t bytes, void **out) {
    posed_device *d = dev;
    const size_t whole = (bytes + DEVICE_ALIGN - 1) / DEVICE_ALIGN * DEVICE_ALIGN;
    if (fails(d->gpu, &d->gpu->fail.alloc) || d->n_allocs == MAX_ALLOCS || whole > RESERVED - d->used || !has_room(d, bytes)) return STATUS_NO_MEMORY;
    d->allocs[d->n_allocs++] = (allocation){d->used, bytes};
    memset(d->bytes + d->used, 0xff, bytes);
    *out = d->address + d->used;
    d->used += whole;
    d->gpu->n.allocs++;
    d->gpu->n.live_allocs++;
    return STATUS_OK;
}

static status drain_all(posed_device *d);

static void p_free(void *dev, void *p) {
    posed_device *d = dev;
    if (p == NULL) return;
    (void)!drain_all(d);
    const size_t off = (size_t)((uint8_t *)p - d->address);
    for (int i = 0; i < d->n_allocs; i++) {
        if (d->allocs[i].off != off) continue;
        d->allocs[i] = d->allocs[--d->n_allocs];
        d->gpu->n.live_allocs--;
        if (d->n_allocs == 0) d->used = 0;
        return;
    }
    (void)!wrong(d->gpu, "memory was freed that is not allocated");
}

static status p_host_alloc(void *dev, size_t bytes, void **out) {
    posed_device *d = dev;
    if (fails(d->gpu, &d->gpu->fail.pinned) || (d->gpu->most_pinned > 0 && bytes > d->gpu->most_pinned)) return STATUS_NO_MEMORY;
    *out = aligned_alloc(DEVICE_ALIGN, (bytes + DEVICE_ALIGN - 1) / DEVICE_ALIGN * DEVICE_ALIGN);
    if (*out == NULL) return STATUS_NO_MEMORY;
    d->gpu->n.live_pinned++;
    return STATUS_OK;
}

static void p_host_free(void *dev, void *p) {
    posed_device *d = dev;
    if (p == NULL) return;
    (void)!drain_all(d);
    d->gpu->n.live_pinned--;
    free(p);
}

/* ---- work ---- */

/* The processor's row for a call, chosen as the runtime chooses. */
static const vt_row *cpu_row(const posed_device *d, const vt_call *call) {
    for (int32_t i = vt_cpu_tables.n_rows - 1; i >= 0; i--) {
        const vt_row *r = &vt_cpu_tables.rows[i];
        if (r->op == call->op && memcmp(&r->sig, &call->sig, sizeof r->sig) == 0 && r->run != NULL && (r->need & ~d->cpu_caps) == 0 && (r->fits == NULL || r->fits(call))) return r;
    }
    return NULL;
}

/* Bytes from the first element to the end of the last. */
static size_t reach(const vt_tensor *t) {
    int64_t last = 0;
    for (int i = 0; i < t->n_dims; i++) {
        if (t->dim[i] == 0) return 0;
        last += (t->dim[i] - 1) * t->stride[i];
    }
    const int64_t block = vt_dtype_block_elems(t->dtype);
    return (size_t)(last / block + 1) * vt_dtype_block_bytes(t->dtype);
}

static bool drain(posed_queue *q, const posed_fence *until, uint64_t ticket);

/* Which tensor of a grouped product is the table of addresses of tensor i, whose data are not looked at; -1: it is a tensor like any. */
static int table_of(const vt_call *call, int i) {
    enum { W = 4, BIAS = 6, SCALE = 8 };
    if (call->op != VT_OP_MATMUL_GROUPED && call->op != VT_OP_MATMUL_GROUPED_SCALED && call->op != VT_OP_MATMUL_GROUPED_GATED) return -1;
    return i == W || i == BIAS || (i == SCALE && call->op == VT_OP_MATMUL_GROUPED_SCALED) ? i + 1 : -1;
}

/* A table with the addresses at which the processor reads what they stand for, in `to`; false: one of them is not the device's. */
static bool translate(const posed_device *d, const vt_tensor *table, const vt_tensor *what, int64_t *to) {
    const int64_t *from = table->data;
    for (int64_t e = 0; e < table->dim[0]; e++) {
        const void *p = (const void *)(uintptr_t)from[e];
        if (p != NULL && (!is_device(d, p) || !is_live(d, p, reach(what)) || (uintptr_t)p % 64 != 0)) return false;
        to[e] = p != NULL ? (int64_t)(uintptr_t)bytes_at(d, p) : 0;
    }
    return true;
}

static void run_kernel(posed_device *d, command *c) {
    static int64_t tables[VT_CALL_MAX_TENSORS][MAX_EXPERTS];
    error err = {0};
    if (c->fails) {
        d->error = STATUS_FAILED;
        return;
    }
    for (int i = 0; i < c->call.n_tensors; i++) {
        if (c->call.t[i] == NULL) continue;
        const size_t bytes = reach(&c->t[i]);
        c->call.t[i] = &c->t[i];
        if (c->t[i].n_dims == 0 || bytes == 0 || table_of(&c->call, i) >= 0) continue;
        if (!is_device(d, c->t[i].data) || !is_live(d, c->t[i].data, bytes)) {
            d->error = wrong(d->gpu, "a kernel was given memory that is not the device's");
            return;
        }
        c->t[i].data = bytes_at(d, c->t[i].data);
    }
    for (int i = 0; i < c->call.n_tensors; i++) {
        const bool up = c->call.op == VT_OP_MATMUL_GROUPED_GATED && i == 8;
        const int table = up ? i : table_of(&c->call, i);
        if (table < 0 || c->t[table].n_dims == 0) continue;
        if (c->t[table].dim[0] > MAX_EXPERTS || !translate(d, &c->t[table], &c->t[up ? 4 : i], tables[table])) {
            d->error = wrong(d->gpu, "a table has an address that is not the device's");
            return;
        }
        c->t[table].data = tables[table];
    }
    const vt_row *row = cpu_row(d, &c->call);
    c->queue.caps |= d->cpu_caps; /* a row that calls others may call the fast ones */
    if (row == NULL || row->run(&c->queue, &c->call, &err) != STATUS_OK) {
        if (err.text[0] != '\0') fprintf(stderr, "posed %s: %s\n", vt_device_type_name(d->gpu->type), err.text);
        d->error = STATUS_FAILED;
    }
}

static void execute(posed_queue *q, command *c) {
    posed_device *d = q->device;
    switch (c->kind) {
    case RUN: run_kernel(d, c); break;
    case COPY:
        if (c->fails)
            d->error = STATUS_FAILED;
        else
            memmove(bytes_at(d, c->dst), bytes_at(d, c->src), c->bytes);
        break;
    case FILL: memset(bytes_at(d, c->dst), c->value, c->bytes); break;
    case SIGNAL: c->fence->done = c->ticket; break;
    case WAIT:
        if (!drain(c->fence->on, c->fence, c->ticket)) d->error = wrong(d->gpu, "a queue waits for what never comes");
        break;
    }
}

/* Runs the commands of a queue in order: all, or until the fence has come that far. Whether it has. */
static bool drain(posed_queue *q, const posed_fence *until, uint64_t ticket) {
    while (q->n > 0 && (until == NULL || until->done < ticket)) {
        command *c = &q->commands[q->first];
        q->first = (q->first + 1) % MAX_COMMANDS;
        q->n--;
        execute(q, c);
    }
    return until == NULL || until->done >= ticket;
}

static status take_error(posed_device *d) {
    const status rc = d->error;
    d->error = STATUS_OK;
    return rc;
}

static status drain_all(posed_device *d) {
    for (int i = 0; i < MAX_QUEUES; i++) {
        if (d->queues[i] != NULL) (void)drain(d->queues[i], NULL, 0);
    }
    return d->error;
}

/* Where a captured command goes. No memory is a bug of the test. */
static command *keep(posed_graph *g) {
    if (g->n == g->cap) {
        g->cap = g->cap > 0 ? 2 * g->cap : 64;
        g->commands = realloc(g->commands, (size_t)g->cap * sizeof *g->commands);
        if (g->commands == NULL) abort();
    }
    command *c = &g->commands[g->n++];
    memset(c, 0, sizeof *c);
    return c;
}

static command *push(posed_queue *q) {
    if (q->branching) return keep(&q->lane);
    if (q->capturing != NULL) return keep(q->capturing);
    if (q->n == MAX_COMMANDS) {
        command *c = &q->commands[q->first];
        q->first = (q->first + 1) % MAX_COMMANDS;
        q->n--;
        execute(q, c);
    }
    command *c = &q->commands[(q->first + q->n++) % MAX_COMMANDS];
    memset(c, 0, sizeof *c);
    return c;
}

/* After each command, as the device's sense of time has it. */
static status pushed(posed_queue *q) {
    posed_gpu *g = q->device->gpu;
    if (q->capturing != NULL || q->branching) return STATUS_OK;
    g->seed = g->seed * 6364136223846793005u + 1442695040888963407u;
    if (g->time == POSED_SOON || (g->time == POSED_MIXED && (g->seed >> 60) == 0)) (void)drain(q, NULL, 0);
    return STATUS_OK;
}

static status p_run(vt_queue *vq, const vt_call *call, error *err) {
    posed_queue *q = vq->handle;
    posed_gpu *g = q->device->gpu;
    if (fails(g, &g->fail.kernel)) return error_set(err, STATUS_FAILED, "posed: the launch of %s failed", vt_op_name(call->op));
    g->n.kernels += q->capturing == NULL;
    command *c = push(q);
    c->kind = RUN;
    c->queue = *vq;
    c->call = *call;
    c->fails = q->capturing == NULL && fails(g, &g->fail.late_kernel);
    for (int i = 0; i < call->n_tensors; i++) {
        if (call->t[i] != NULL) c->t[i] = *call->t[i];
    }
    return pushed(q);
}

static void count_copy(posed_gpu *g, bool up, bool down, bool within, size_t bytes) {
    g->n.uploads += up;
    g->n.upload_bytes += up ? bytes : 0;
    g->n.downloads += down;
    g->n.device_copies += within;
}

static status p_copy(void *dev, void *handle, void *dst, const void *src, size_t bytes) {
    posed_device *d = dev;
    posed_gpu *g = d->gpu;
    const bool to = is_device(d, dst), from = is_device(d, src), up = to && !from;
    if ((to && !is_live(d, dst, bytes)) || (from && !is_live(d, src, bytes))) return wrong(g, "a copy from or to memory that is not allocated");
    if (up && fails(g, &g->fail.upload)) return STATUS_FAILED;
    if (from && !to && fails(g, &g->fail.download)) return STATUS_FAILED;
    if (((posed_queue *)handle)->capturing == NULL) count_copy(g, up, from && !to, from && to, bytes);
    command *c = push(handle);
    c->kind = COPY;
    c->dst = dst;
    c->src = src;
    c->bytes = bytes;
    c->fails = up && fails(g, &g->fail.late_upload);
    return pushed(handle);
}

static status p_fill(void *dev, void *handle, void *dst, int value, size_t bytes) {
    posed_device *d = dev;
    if (!is_device(d, dst) || !is_live(d, dst, bytes)) return wrong(d->gpu, "a fill of memory that is not allocated");
    command *c = push(handle);
    c->kind = FILL;
    c->dst = dst;
    c->value = value;
    c->bytes = bytes;
    return pushed(handle);
}

/* ---- queues and fences ---- */

static status p_queue_create(void *dev, void **handle) {
    posed_device *d = dev;
    int i = 0;
    while (i < MAX_QUEUES && d->queues[i] != NULL) i++;
    if (i == MAX_QUEUES || fails(d->gpu, &d->gpu->fail.queue)) return d->gpu->refusal != STATUS_OK ? d->gpu->refusal : STATUS_FAILED;
    if (!has_room(d, d->gpu->queue_bytes)) return STATUS_NO_MEMORY;
    posed_queue *q = calloc(1, sizeof *q);
    if (q == NULL) return STATUS_NO_MEMORY;
    q->device = d;
    d->queues[i] = q;
    d->gpu->n.live_queues++;
    *handle = q;
    return STATUS_OK;
}

static uint64_t p_queue_bytes(void *dev) { return ((posed_device *)dev)->gpu->queue_bytes; }

static void p_queue_destroy(void *dev, void *handle) {
    posed_device *d = dev;
    (void)!drain_all(d);
    for (int i = 0; i < MAX_QUEUES; i++) {
        if (d->queues[i] == handle) d->queues[i] = NULL;
    }
    d->gpu->n.live_queues--;
    free(((posed_queue *)handle)->lane.commands);
    free(handle);
}

static status p_sync(void *dev, void *handle) {
    posed_device *d = dev;
    if (((posed_queue *)handle)->capturing != NULL) return wrong(d->gpu, "a queue that captures is waited for");
    d->gpu->n.syncs++;
    if (fails(d->gpu, &d->gpu->fail.sync)) d->error = STATUS_FAILED;
    (void)drain(handle, NULL, 0);
    return take_error(d);
}

static status p_branch(void *dev, void *handle, vt_branch_step step) {
    posed_device *d = dev;
    posed_queue *q = handle;
    if (step == VT_BRANCH_JOIN) {
        if (q->branching) return wrong(d->gpu, "a branch is joined that has not ended");
        for (int i = 0; i < q->lane.n; i++) {
            *push(q) = q->lane.commands[i];
            TRY(pushed(q));
        }
        q->lane.n = 0;
        return STATUS_OK;
    }
    if (q->branching != (step == VT_BRANCH_END) || (step == VT_BRANCH_BEGIN && q->lane.n > 0)) return wrong(d->gpu, "a branch in a branch, or none");
    q->branching = step == VT_BRANCH_BEGIN;
    d->gpu->n.branches += q->branching;
    return STATUS_OK;
}

static status p_fence_create(void *dev, vt_fence *out) {
    posed_device *d = dev;
    if (fails(d->gpu, &d->gpu->fail.fence_create)) return STATUS_FAILED;
    out->handle = calloc(1, sizeof(posed_fence));
    if (out->handle == NULL) return STATUS_NO_MEMORY;
    d->gpu->n.fences++;
    d->gpu->n.live_fences++;
    return STATUS_OK;
}

static void p_fence_destroy(void *dev, vt_fence f) {
    posed_device *d = dev;
    if (f.handle == NULL) return;
    (void)!drain_all(d);
    d->gpu->n.live_fences--;
    free(f.handle);
}

static status p_fence_record(void *dev, void *handle, vt_fence f) {
    posed_device *d = dev;
    posed_fence *fence = f.handle;
    if (fails(d->gpu, &d->gpu->fail.fence_record)) return STATUS_FAILED;
    if (((posed_queue *)handle)->capturing != NULL) return wrong(d->gpu, "a fence is recorded in what is captured");
    fence->on = handle;
    fence->ticket = ++d->ticket;
    command *c = push(handle);
    c->kind = SIGNAL;
    c->fence = fence;
    c->ticket = fence->ticket;
    return pushed(handle);
}

static status p_fence_wait(void *dev, void *handle, vt_fence f) {
    posed_device *d = dev;
    posed_fence *fence = f.handle;
    if (fails(d->gpu, &d->gpu->fail.fence_wait)) return STATUS_FAILED;
    if (fence->on == NULL) return STATUS_OK;
    if (handle != NULL && ((posed_queue *)handle)->capturing != NULL) return wrong(d->gpu, "what is captured waits for a fence");
    if (handle == NULL) {
        if (!drain(fence->on, fence, fence->ticket)) return wrong(d->gpu, "the host waits for what never comes");
        return take_error(d);
    }
    command *c = push(handle);
    c->kind = WAIT;
    c->fence = fence;
    c->ticket = fence->ticket;
    return pushed(handle);
}

static bool p_fence_done(void *dev, vt_fence f) {
    const posed_fence *fence = f.handle;
    (void)dev;
    return fence->done >= fence->ticket;
}

/* ---- capture ---- */

static status p_capture_begin(void *dev, void *handle) {
    posed_device *d = dev;
    posed_queue *q = handle;
    if (fails(d->gpu, &d->gpu->fail.capture_begin)) return STATUS_FAILED;
    if (q->capturing != NULL) return wrong(d->gpu, "a queue that captures begins again");
    q->capturing = calloc(1, sizeof *q->capturing);
    if (q->capturing == NULL) return STATUS_NO_MEMORY;
    q->capturing->device = d;
    return STATUS_OK;
}

static void free_graph(posed_graph *g) {
    free(g->commands);
    free(g);
}

static status p_capture_end(void *dev, void *handle, void **graph) {
    posed_device *d = dev;
    posed_queue *q = handle;
    posed_graph *g = q->capturing;
    if (g == NULL) return wrong(d->gpu, "a capture ends that was not begun");
    q->capturing = NULL;
    if (fails(d->gpu, &d->gpu->fail.capture_end)) {
        free_graph(g);
        return STATUS_FAILED;
    }
    if (!has_room(d, d->gpu->graph_bytes)) {
        free_graph(g);
        return STATUS_NO_MEMORY;
    }
    d->gpu->n.captures++;
    d->gpu->n.live_graphs++;
    *graph = g;
    return STATUS_OK;
}

static status p_replay(void *dev, void *handle, void *graph) {
    posed_device *d = dev;
    posed_queue *q = handle;
    const posed_graph *g = graph;
    if (fails(d->gpu, &d->gpu->fail.replay)) return STATUS_FAILED;
    if (g->device != d || q->capturing != NULL) return wrong(d->gpu, "a graph is replayed where it cannot be");
    for (int i = 0; i < g->n; i++) {
        const command *c = &g->commands[i];
        command *to = push(q);
        *to = *c;
        if (c->kind == RUN) to->fails = fails(d->gpu, &d->gpu->fail.late_kernel);
        d->gpu->n.kernels += c->kind == RUN;
        if (c->kind == COPY) count_copy(d->gpu, is_device(d, c->dst) && !is_device(d, c->src), is_device(d, c->src) && !is_device(d, c->dst), is_device(d, c->src) && is_device(d, c->dst), c->bytes);
        TRY(pushed(q));
    }
    d->gpu->n.replays++;
    return STATUS_OK;
}

static void p_graph_destroy(void *dev, void *graph) {
    posed_device *d = dev;
    (void)!drain_all(d);
    d->gpu->n.live_graphs--;
    free_graph(graph);
}

static uint64_t p_alloc_unit(void *dev) { return ((posed_device *)dev)->gpu->alloc_unit > 0 ? ((posed_device *)dev)->gpu->alloc_unit : 1; }

static status p_read_pass(void *dev, void *handle, const void *p, size_t bytes) {
    posed_device *d = dev;
    (void)handle;
    return is_device(d, p) && is_live(d, p, bytes) ? STATUS_OK : wrong(d->gpu, "memory is read that is not allocated");
}

static uint64_t p_graph_bytes(void *dev) { return ((posed_device *)dev)->gpu->graph_bytes; }

/* ---- devices ---- */

static void p_close(void *dev) {
    posed_device *d = dev;
    d->gpu->n.open--;
    if (d->n_allocs > 0) (void)!wrong(d->gpu, "memory is still allocated when the device is closed");
    if (d->cpu != NULL) vt_cpu_tables.vtable->close(d->cpu);
    if (d->address != NULL) munmap(d->address, RESERVED);
    if (d->bytes != NULL) munmap(d->bytes, RESERVED);
    free(d);
}

static void *reserve(int access) {
    void *p = mmap(NULL, RESERVED, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static status open_posed(int which, const vt_host_api *host, int32_t index, void **dev, error *err) {
    (void)index;
    posed_device *d = calloc(1, sizeof *d);
    if (d == NULL) return error_set(err, STATUS_NO_MEMORY, "posed: no memory for a device");
    d->host = host;
    d->gpu = &posed[which].gpu;
    d->gpu->n.open++;
    d->address = reserve(PROT_NONE);
    d->bytes = reserve(PROT_READ | PROT_WRITE);
    const status rc = d->address == NULL || d->bytes == NULL ? error_set(err, STATUS_NO_MEMORY, "posed: no room for device memory") : vt_cpu_tables.vtable->open(host, 0, &d->cpu, err);
    if (rc != STATUS_OK) {
        p_close(d);
        return rc;
    }
    d->cpu_caps = vt_cpu_tables.vtable->caps(d->cpu);
    *dev = d;
    return STATUS_OK;
}

static status open_0(const vt_host_api *host, int32_t index, void **dev, error *err) { return open_posed(0, host, index, dev, err); }
static status open_1(const vt_host_api *host, int32_t index, void **dev, error *err) { return open_posed(1, host, index, dev, err); }

static uint64_t p_caps(void *dev) { return ((posed_device *)dev)->gpu->caps; }
static void p_describe(void *dev, char *text, size_t n) { snprintf(text, n, "posed %s", vt_device_type_name(((posed_device *)dev)->gpu->type)); }

static status p_memory_info(void *dev, uint64_t *free_bytes, uint64_t *total_bytes) {
    const posed_device *d = dev;
    posed_gpu *g = d->gpu;
    if (g->probes == 0) *(g->exact ? &g->others : &g->free_bytes) = g->free_then;
    if (g->probes >= 0) g->probes--;
    *free_bytes = g->free_bytes;
    if (g->exact) *free_bytes = g->total_bytes > bytes_taken(d) ? g->total_bytes - bytes_taken(d) : 1; /* 0 is unknown */
    *total_bytes = g->total_bytes;
    return STATUS_OK;
}

static bool same_row(vt_op op, vt_sig sig, vt_op op2, vt_sig sig2) { return op == op2 && memcmp(&sig, &sig2, sizeof sig) == 0; }

/* Whether the real backend for the type lists a row of this signature, and what all of them need. */
static bool is_listed(vt_device_type type, const vt_row *r, uint64_t *need) {
    bool found = false;
    for (int32_t i = 0; i < vt_manifest_count; i++) {
        const vt_manifest *m = &vt_manifest_list[i];
        for (int32_t k = 0; m->type == type && k < m->n_rows; k++) {
            if (!same_row(m->rows[k].op, m->rows[k].sig, r->op, r->sig)) continue;
            *need = found ? *need & m->rows[k].need : m->rows[k].need;
            found = true;
        }
    }
    return found;
}

/* One row for each op and signature that the processor has. */
static void make_rows(struct posed *p) {
    const vt_need *gone = &p->gpu.removed_row;
    p->n_rows = 0;
    for (int32_t i = 0; i < vt_cpu_tables.n_rows && p->n_rows < MAX_ROWS; i++) {
        const vt_row *r = &vt_cpu_tables.rows[i];
        uint64_t need = 0;
        bool known = r->run == NULL || p->gpu.removed[r->op] || (gone->sig.dtype[0] != VT_NONE && same_row(gone->op, gone->sig, r->op, r->sig));
        for (int32_t k = 0; !known && k < p->n_rows; k++) known = same_row(p->rows[k].op, p->rows[k].sig, r->op, r->sig);
        if (known || (p->gpu.listed && !is_listed(p->gpu.type, r, &need))) continue;
        snprintf(p->names[p->n_rows], NAME_BYTES, "posed_%s_%d", vt_op_name(r->op), (int)p->n_rows);
        p->rows[p->n_rows] = (vt_row){.op = r->op, .sig = r->sig, .need = need, .name = p->names[p->n_rows], .run = p_run};
        p->n_rows++;
    }
}

posed_gpu *posed_add(vt_device_type type) {
    if (n_posed == POSED_MAX) return NULL;
    struct posed *p = &posed[n_posed];
    memset(p, 0, sizeof *p);
    p->gpu = (posed_gpu){.type = type, .total_bytes = (uint64_t)512 << 20, .free_bytes = (uint64_t)256 << 20, .caps = VT_CAP_BIT(VT_CAP_ASYNC_COPY) | VT_CAP_BIT(VT_CAP_CAPTURE), .time = POSED_MIXED, .seed = 7, .probes = -1};
    posed_clear(&p->gpu);
    p->vtable = (vt_backend){
        .size = sizeof(vt_backend),
        .abi = VT_BACKEND_ABI,
        .name = vt_device_type_name(type),
        .type = type,
        .open = n_posed == 0 ? open_0 : open_1,
        .close = p_close,
        .describe = p_describe,
        .caps = p_caps,
        .memory_info = p_memory_info,
        .alloc = p_alloc,
        .free = p_free,
        .host_alloc = p_host_alloc,
        .host_free = p_host_free,
        .queue_create = p_queue_create,
        .queue_destroy = p_queue_destroy,
        .sync = p_sync,
        .copy = p_copy,
        .fill = p_fill,
        .fence_create = p_fence_create,
        .fence_destroy = p_fence_destroy,
        .fence_record = p_fence_record,
        .fence_wait = p_fence_wait,
        .fence_done = p_fence_done,
        .queue_bytes = p_queue_bytes,
        .capture_begin = p_capture_begin,
        .capture_end = p_capture_end,
        .replay = p_replay,
        .graph_destroy = p_graph_destroy,
        .graph_bytes = p_graph_bytes,
        .alloc_unit = p_alloc_unit,
        .read_pass = p_read_pass,
        .branch = p_branch,
    };
    n_posed++;
    return &p->gpu;
}

void posed_reset(void) { n_posed = 0; }

void posed_clear(posed_gpu *g) {
#define X(field) g->fail.field = -1;
    POSED_FAULTS(X)
#undef X
    g->n.kernels = g->n.uploads = g->n.upload_bytes = g->n.downloads = g->n.device_copies = g->n.allocs = g->n.syncs = g->n.fences = g->n.faults = g->n.captures = g->n.replays = 0;
    g->wrong = NULL;
}

/* ---- into every runtime ---- */

status __real_vt_runtime_create(mem *m, const vt_runtime_options *opt, vt_runtime **out, error *err);
status __wrap_vt_runtime_create(mem *m, const vt_runtime_options *opt, vt_runtime **out, error *err);

status __wrap_vt_runtime_create(mem *m, const vt_runtime_options *opt, vt_runtime **out, error *err) {
    static const char *const nowhere[] = {NULL};
    vt_runtime_options o = opt != NULL ? *opt : (vt_runtime_options){0};
    vt_runtime *rt;
    if (n_posed > 0) o.search_dirs = nowhere;
    TRY(__real_vt_runtime_create(m, &o, &rt, err));
    for (int i = 0; i < n_posed; i++) {
        struct posed *p = &posed[i];
        if (p->gpu.n.open == 0) make_rows(p); /* of an open device they may not move */
        const status rc = vt_runtime_add(rt, &p->vtable, p->rows, p->n_rows, err);
        if (rc != STATUS_OK) {
            vt_runtime_destroy(rt);
            return rc;
        }
    }
    *out = rt;
    return STATUS_OK;
}
