/* SPDX-License-Identifier: Apache-2.0 */
/* Guarded tensors, running, and comparing. */
#include "check_case.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CANARY_BYTES = 256, DATA_ALIGN = 64 };
static const size_t slot_bytes = (size_t)1 << 30; /* address space; memory only where touched */

uint64_t rng_next(rng *r) {
    uint64_t z = (r->state += 0x9E3779B97F4A7C15ull);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}
int64_t rng_below(rng *r, int64_t n) { return (int64_t)(rng_next(r) % (uint64_t)n); }
int64_t rng_pick(rng *r, const int64_t *list, int64_t n) { return list[rng_below(r, n)]; }
double rng_unit(rng *r) { return (double)(int64_t)(rng_next(r) >> 11) * 0x1p-52 - 1.0; }
bool rng_one_in(rng *r, int64_t n) { return rng_below(r, n) == 0; }

static bool host_addressable(const check_case *c) { return c->queue->caps & VT_CAP_BIT(VT_CAP_HOST_ADDRESSABLE); }

status case_init(check_case *c, mem *m, vt_queue *q, error *err) {
    *c = (check_case){.queue = q, .m = m};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < CASE_SLOTS; i++) {
        slot *s = &c->slots[i];
        uint8_t *p = mmap(NULL, slot_bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        void *image = mmap(NULL, slot_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED || image == MAP_FAILED || mprotect(p + page, slot_bytes, PROT_READ | PROT_WRITE))
            return error_set(err, STATUS_NO_MEMORY, "check: no address space");
        s->mem = p + page;
        s->image = image;
        s->bytes = slot_bytes;
    }
    TRY(mem_alloc_named(m, MEM_PROCESS, CASE_MAX_VALUES * sizeof(double), "expected values", (void **)&c->want, err));
    return mem_alloc_named(m, MEM_PROCESS, CASE_MAX_VALUES * sizeof(double), "magnitudes", (void **)&c->mag, err);
}

void case_deinit(check_case *c) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < CASE_SLOTS; i++) {
        if (!c->slots[i].mem) continue;
        munmap(c->slots[i].mem - page, c->slots[i].bytes + 2 * page);
        munmap(c->slots[i].image, c->slots[i].bytes);
        vt_buffer_free(&c->slots[i].device);
    }
    mem_free(c->m, c->want);
    mem_free(c->m, c->mag);
}

void case_begin(check_case *c, const vt_row *row, uint64_t seed) {
    c->r.state = seed;
    c->row = row;
    c->call = (vt_call){.size = sizeof(vt_call), .op = row->op, .sig = row->sig};
    c->n = 0;
    c->outputs = 1;
    c->aligned = false;
    c->special = false;
    c->by_row = 0;
    c->tables = 0;
    c->n_rows = 0;
}

static size_t element_align(vt_dtype t) {
    if (t == VT_Q8_A32 || t == VT_Q8_A256) return 4;
    return !vt_dtype_is_block(t) ? vt_dtype_block_bytes(t) : vt_dtype_block_bytes(t) % 2 ? 1 : 2;
}

int case_add(check_case *c, vt_dtype dtype, int n_dims, const int64_t *dim, bool pad) {
    if (c->n == CASE_SLOTS) return -1;
    int64_t block = vt_dtype_block_elems(dtype);
    vt_tensor t = {.dtype = dtype, .device = c->queue->device, .n_dims = n_dims, .dim = {1, 1, 1, 1}};
    int64_t span = 1, stride = 1;
    for (int d = n_dims - 1; d >= 0; d--) {
        t.dim[d] = dim[d];
        t.stride[d] = stride;
        span += (dim[d] - 1) * stride;
        stride *= dim[d];
        if (pad && d > 0) stride += block * rng_below(&c->r, 4) * (c->aligned ? 32 : 1);
        if (c->aligned && d > 0) stride = (stride + 31) / 32 * 32;
        if (stride < 1) stride = block;
    }
    if (vt_tensor_elems(&t) == 0) span = 0;
    size_t bytes;
    if (!vt_dtype_row_bytes(dtype, (span + block - 1) / block * block, &bytes) || bytes + 2 * CANARY_BYTES + DATA_ALIGN > slot_bytes)
        return -1;

    slot *s = &c->slots[c->n];
    if (!c->aligned && rng_one_in(&c->r, 2)) { /* up against the page behind it */
        s->watched_end = s->end = s->mem + s->bytes;
        s->begin = s->end - bytes;
        s->watched = s->begin - CANARY_BYTES;
    } else { /* in front of canaries */
        size_t align = c->aligned ? DATA_ALIGN : element_align(dtype);
        s->watched = s->mem;
        s->begin = s->mem + (size_t)rng_below(&c->r, DATA_ALIGN / (int64_t)align) * align;
        s->end = s->begin + bytes;
        s->watched_end = s->end + CANARY_BYTES;
    }
    memset(s->watched, 0xFF, (size_t)(s->watched_end - s->watched));
    t.data = s->begin;
    c->t[c->n] = t;
    c->call.t[c->n] = &c->t[c->n];
    c->call.n_tensors = ++c->n;
    return c->n - 1;
}

int case_add_absent(check_case *c) {
    slot *s = &c->slots[c->n];
    s->begin = s->end = s->watched = s->watched_end = s->mem;
    c->t[c->n] = (vt_tensor){.dim = {1, 1, 1, 1}};
    c->call.t[c->n] = &c->t[c->n];
    c->call.n_tensors = ++c->n;
    return c->n - 1;
}

int case_add_same(check_case *c, int index) {
    int i = case_add_absent(c);
    c->t[i] = c->t[index];
    return i;
}

int64_t tensor_rows(const vt_tensor *t) {
    int64_t n = 1;
    for (int d = 0; d < t->n_dims - 1; d++) n *= t->dim[d];
    return n;
}

int64_t tensor_inner(const vt_tensor *t) { return t->dim[t->n_dims - 1]; }

uint8_t *tensor_row_at(const vt_tensor *t, int64_t r) {
    int64_t off = 0;
    for (int d = t->n_dims - 2; d >= 0; d--) {
        off += r % t->dim[d] * t->stride[d];
        r /= t->dim[d];
    }
    return (uint8_t *)t->data + off / vt_dtype_block_elems(t->dtype) * (int64_t)vt_dtype_block_bytes(t->dtype);
}

void case_set_i32(check_case *c, int index, int64_t i, int32_t v) { ((int32_t *)c->t[index].data)[i] = v; }

static size_t row_bytes(const vt_tensor *t) {
    size_t n;
    return vt_dtype_row_bytes(t->dtype, tensor_inner(t), &n) ? n : 0;
}

void case_freeze(check_case *c) {
    for (int i = 0; i < c->n; i++) {
        slot *s = &c->slots[i];
        memcpy(s->image, s->watched, (size_t)(s->watched_end - s->watched));
    }
}

static bool is_output(const check_case *c, int i) { return c->outputs >> i & 1; }

void case_restore(check_case *c) {
    for (int i = 0; i < c->n; i++) {
        if (!is_output(c, i)) continue;
        slot *s = &c->slots[i];
        memcpy(s->watched, s->image, (size_t)(s->watched_end - s->watched));
    }
}

/* Where what lies at p of the host lies on the device. */
static void *twin_of(const check_case *c, const void *p) {
    for (int j = 0; j < c->n; j++) {
        const slot *s = &c->slots[j];
        if ((const uint8_t *)p >= s->watched && (const uint8_t *)p <= s->watched_end && s->watched != s->watched_end) return (uint8_t *)s->device.data + ((const uint8_t *)p - s->watched);
    }
    return (void *)(uintptr_t)p;
}

/* The tables again, with the device's addresses. */
static status send_tables(check_case *c, vt_queue *q, error *err) {
    for (int i = 0; i < c->n; i++) {
        if (!(c->tables >> i & 1)) continue;
        const slot *s = &c->slots[i];
        const size_t n = (size_t)(s->end - s->begin);
        int64_t *copy = mem_alloc(c->m, MEM_PROCESS, n);
        if (!copy) return error_set(err, STATUS_NO_MEMORY, "check: no memory");
        memcpy(copy, s->begin, n);
        for (size_t j = 0; j < n / sizeof *copy; j++)
            if (copy[j] != 0) copy[j] = (int64_t)(uintptr_t)twin_of(c, (const void *)(uintptr_t)copy[j]);
        status rc = vt_copy(q, (uint8_t *)s->device.data + (s->begin - s->watched), copy, n);
        if (rc == STATUS_OK) rc = vt_queue_sync(q);
        mem_free(c->m, copy);
        if (rc != STATUS_OK) return error_set(err, rc, "check: a table was not copied");
    }
    return STATUS_OK;
}

status case_to_device(check_case *c, vt_queue *q, vt_call *call, vt_tensor twins[CASE_SLOTS], error *err) {
    for (int i = 0; i < c->n; i++) {
        slot *s = &c->slots[i];
        size_t n = (size_t)(s->watched_end - s->watched);
        if (s->device.bytes < n || !s->device.data) {
            vt_buffer_free(&s->device);
            TRY(vt_buffer_alloc(c->queue->owner, MEM_PROCESS, n + 1, "a tensor under test", &s->device, err));
        }
        TRY(vt_copy(q, s->device.data, s->watched, n));
    }
    for (int i = 0; i < call->n_tensors; i++) {
        twins[i] = *call->t[i];
        twins[i].data = twin_of(c, twins[i].data);
        call->t[i] = &twins[i];
    }
    TRY(send_tables(c, q, err));
    return vt_queue_sync(q);
}

/* A device with memory of its own: the watched bytes of each slot go there and come back, and the call sees the device's addresses. */
static status through_device(check_case *c, vt_kernel_fn *fn, vt_queue *q, vt_call call, error *err) {
    vt_tensor twins[CASE_SLOTS];
    TRY(case_to_device(c, q, &call, twins, err));
    TRY(fn(q, &call, err));
    TRY(vt_queue_sync(q));
    for (int i = 0; i < c->n; i++) {
        slot *s = &c->slots[i];
        if (!(c->tables >> i & 1)) TRY(vt_copy(q, s->watched, s->device.data, (size_t)(s->watched_end - s->watched)));
    }
    return vt_queue_sync(q);
}

static status run_call(check_case *c, vt_kernel_fn *fn, pool *threads, const vt_call *call, error *err) {
    vt_queue q = *c->queue;
    q.threads = threads;
    return host_addressable(c) ? fn(&q, call, err) : through_device(c, fn, &q, *call, err);
}

status case_run(check_case *c, vt_kernel_fn *fn, pool *threads, error *err) { return run_call(c, fn, threads, &c->call, err); }

status case_run_on_host(check_case *c, vt_queue *host, vt_kernel_fn *fn, error *err) { return fn(host, &c->call, err); }

status case_run_alone(check_case *c, vt_kernel_fn *fn, error *err) {
    for (int64_t r = 0; r < c->n_rows; r++) {
        vt_tensor part[CASE_SLOTS];
        vt_call call = c->call;
        for (int i = 0; i < c->n; i++) {
            part[i] = c->t[i];
            call.t[i] = &part[i];
            if (c->by_row >> i & 1) part[i] = vt_tensor_slice(part[i], 0, r, 1);
            if (c->tables >> i & 1) part[i].data = (int64_t *)part[i].data + (r + 1) * part[i].dim[0];
        }
        TRY(run_call(c, fn, NULL, &call, err));
    }
    return STATUS_OK;
}

/* Compare [from, to) with the image of the slot. */
static bool untouched(const slot *s, const uint8_t *from, const uint8_t *to) {
    return to <= from || memcmp(from, s->image + (from - s->watched), (size_t)(to - from)) == 0;
}

/* Bytes of output i that are no elements. */
static const char *output_damage(const check_case *c, int i, char *text, size_t n) {
    const slot *s = &c->slots[i];
    const vt_tensor *t = &c->t[i];
    const uint8_t *from = s->watched;
    for (int64_t r = 0; vt_tensor_elems(t) != 0 && r < tensor_rows(t); r++) { /* rows ascend in memory: case_add lays them out so */
        const uint8_t *row = tensor_row_at(t, r);
        if (!untouched(s, from, row)) {
            snprintf(text, n, "bytes before row %lld of output %d changed", (long long)r, i);
            return text;
        }
        from = row + row_bytes(t);
    }
    if (untouched(s, from, s->watched_end)) return NULL;
    snprintf(text, n, "bytes behind output %d changed", i);
    return text;
}

const char *case_damage(check_case *c, char *text, size_t n) {
    for (int i = 0; i < c->n; i++) {
        if (is_output(c, i)) {
            if (output_damage(c, i, text, n)) return text;
            continue;
        }
        if (c->t[i].data == c->t[0].data && c->t[i].n_dims) continue;
        if (untouched(&c->slots[i], c->slots[i].watched, c->slots[i].watched_end)) continue;
        snprintf(text, n, "input %d or a canary beside it changed", i);
        return text;
    }
    return NULL;
}

static size_t watched_bytes(const slot *s) { return (size_t)(s->watched_end - s->watched); }

size_t case_output_bytes(const check_case *c) {
    size_t n = 0;
    for (int i = 0; i < c->n; i++)
        if (is_output(c, i)) n += watched_bytes(&c->slots[i]);
    return n;
}

void case_copy_output(const check_case *c, uint8_t *to) {
    for (int i = 0; i < c->n; i++) {
        if (!is_output(c, i)) continue;
        memcpy(to, c->slots[i].watched, watched_bytes(&c->slots[i]));
        to += watched_bytes(&c->slots[i]);
    }
}

/* Whether two elements or blocks are the same but for what their NaN carries. */
static bool both_nan(vt_dtype t, const uint8_t *a, const uint8_t *b, double *x, double *y) {
    size_t elem = vt_dtype_block_bytes(t);
    double u[256], v[256];
    if (t == VT_I32) {
        int32_t i, j;
        memcpy(&i, a, sizeof i);
        memcpy(&j, b, sizeof j);
        *x = i;
        *y = j;
        return false;
    }
    decode_row(t, a, vt_dtype_block_elems(t), u);
    decode_row(t, b, vt_dtype_block_elems(t), v);
    *x = u[0];
    *y = v[0];
    return isnan(u[0]) && isnan(v[0]) && (!vt_dtype_is_block(t) || memcmp(a + 4, b + 4, elem - 4) == 0);
}

static bool same_output(const check_case *c, int i, const uint8_t *saved, char *text, size_t n) {
    const vt_tensor *t = &c->t[i];
    if (vt_tensor_elems(t) == 0) return true;
    size_t elem = vt_dtype_block_bytes(t->dtype);
    int64_t per_row = (int64_t)(row_bytes(t) / elem);
    for (int64_t r = 0; r < tensor_rows(t); r++) {
        const uint8_t *now = tensor_row_at(t, r), *then = saved + (now - c->slots[i].watched);
        if (memcmp(now, then, row_bytes(t)) == 0) continue;
        for (int64_t j = 0; j < per_row; j++) {
            const uint8_t *a = now + (size_t)j * elem, *b = then + (size_t)j * elem;
            double x, y;
            if (memcmp(a, b, elem) == 0 || both_nan(t->dtype, a, b, &x, &y)) continue;
            snprintf(text, n, "output %d row %lld, element or block %lld: %.9g here, %.9g there", i, (long long)r, (long long)j, x, y);
            return false;
        }
    }
    return true;
}

bool case_same_bits(const check_case *c, const uint8_t *saved, char *text, size_t n) {
    for (int i = 0; i < c->n; i++) {
        if (!is_output(c, i)) continue;
        if (!same_output(c, i, saved, text, n)) return false;
        saved += watched_bytes(&c->slots[i]);
    }
    return true;
}
