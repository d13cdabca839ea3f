/* SPDX-License-Identifier: Apache-2.0 */
/* Timing of rows. */
#include "check_bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/os.h"

enum { MAX_SAMPLES = 401, STREAM_BYTES = 256 << 20, SIGNATURES = 512 };

static int compare_double(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

typedef struct stream {
    const uint64_t *data;
    _Alignas(64) uint64_t sums[64][8];
} stream;

static void stream_task(void *ctx, int64_t begin, int64_t end, int thread) {
    stream *s = ctx;
    uint64_t a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0;
    const uint64_t *p = s->data + begin * 8;
    for (int64_t i = begin; i < end; i++, p += 8) {
        a += p[0], b += p[1], c += p[2], d += p[3];
        e += p[4], f += p[5], g += p[6], h += p[7];
    }
    s->sums[thread % 64][0] += a + b + c + d + e + f + g + h;
}

/* Bytes per nanosecond of reading memory from end to end. */
static double read_bandwidth(mem *m, pool *threads) {
    uint64_t *data = mem_alloc(m, MEM_PROCESS, STREAM_BYTES);
    if (!data) return 0.0;
    memset(data, 1, STREAM_BYTES);
    stream s = {.data = data};
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 7; i++) {
        uint64_t t0 = os_now_ns();
        pool_run(threads, STREAM_BYTES / 64, 1 << 14, stream_task, &s);
        uint64_t t = os_now_ns() - t0;
        if (t < best) best = t;
    }
    mem_free(m, data);
    return (double)STREAM_BYTES / (double)best;
}

/* The same of a copy within a device's memory, bytes read and bytes written; 0 where there is no room. */
static double copy_bandwidth(vt_queue *q) {
    const size_t n = (size_t)1 << 30;
    vt_buffer from = {0}, to = {0};
    uint64_t best = UINT64_MAX;
    if (vt_buffer_alloc(q->owner, MEM_PROCESS, n, "a copy", &from, NULL) || vt_buffer_alloc(q->owner, MEM_PROCESS, n, "a copy", &to, NULL))
        goto done;
    for (int i = 0; i < 7; i++) {
        uint64_t t0 = os_now_ns();
        for (int j = 0; j < 4; j++)
            if (vt_copy(q, to.data, from.data, n)) goto done;
        if (vt_queue_sync(q)) goto done;
        uint64_t t = (os_now_ns() - t0) / 4;
        if (i > 0 && t < best) best = t;
    }
done:
    vt_buffer_free(&from);
    vt_buffer_free(&to);
    return best == UINT64_MAX ? 0.0 : 2.0 * (double)n / (double)best;
}

/* Of one run, in ns: wall time, and processor time of all threads, which a busy machine changes less. */
typedef struct timing {
    double median, min, cpu;
} timing;

static uint64_t cpu_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* What is timed: the case where it lies, or a call on a device, whose queue is waited for after the last of several runs. */
typedef struct subject {
    check_case *c;
    const vt_row *row;
    pool *threads;
    const vt_call *on_device; /* NULL: the processor */
} subject;

static status run_subject(const subject *s, int n, error *err) {
    for (int i = 0; i < n; i++)
        TRY(s->on_device ? s->row->run(s->c->queue, s->on_device, err) : case_run(s->c, s->row->run, s->threads, err));
    return s->on_device ? vt_queue_sync(s->c->queue) : STATUS_OK;
}

/* One sample: enough runs for the clock. False when a run failed. */
static bool sample(const subject *s, bool once, double *wall, double *cpu, error *err) {
    for (int inner = s->on_device ? 8 : 1;; inner *= 4) {
        uint64_t t0 = os_now_ns(), c0 = cpu_now_ns();
        if (run_subject(s, inner, err)) return false;
        uint64_t t = os_now_ns() - t0;
        *wall = (double)t / inner;
        *cpu = (double)(cpu_now_ns() - c0) / inner;
        if (once || t > 200000 || inner >= 4096) return true;
    }
}

static bool measure(const subject *s, const bench_options *o, timing *out) {
    double walls[MAX_SAMPLES], wall, cpu;
    error err = {0};
    int n = 0, most = o->once ? 1 : 25 * o->repeat < MAX_SAMPLES ? 25 * o->repeat : MAX_SAMPLES;
    uint64_t begin = os_now_ns(), budget = 400000000u * (uint64_t)o->repeat;
    out->cpu = INFINITY;
    if (run_subject(s, 1, &err)) goto failed; /* warms up */
    while (n < most && (n < 3 || os_now_ns() - begin < budget)) {
        if (!sample(s, o->once, &wall, &cpu, &err)) goto failed;
        walls[n++] = wall;
        if (cpu < out->cpu) out->cpu = cpu;
    }
    qsort(walls, (size_t)n, sizeof walls[0], compare_double);
    out->median = walls[n / 2] + 0.001;
    out->min = walls[0] + 0.001;
    return true;
failed:
    fprintf(stderr, "FAIL %s: %s\n", s->row->name, err.text);
    return false;
}

typedef struct bench {
    bench_target *target;
    check_case *c;
    const bench_options *o;
    pool *threads;
    double stream;
    struct {
        uint8_t op;
        vt_sig sig;
        int shape;
        double ns;
    } scalar[SIGNATURES]; /* times of the scalar rows, for the factor */
    int n_scalar, n_measured, n_failed;
} bench;

static double scalar_time(bench *b, const vt_row *row, int shape, double ns) {
    for (int i = 0; i < b->n_scalar; i++)
        if (b->scalar[i].op == row->op && memcmp(&b->scalar[i].sig, &row->sig, sizeof row->sig) == 0 && b->scalar[i].shape == shape)
            return b->scalar[i].ns;
    if (row->need != 0 || b->n_scalar == SIGNATURES) return 0.0;
    b->scalar[b->n_scalar].op = (uint8_t)row->op;
    b->scalar[b->n_scalar].sig = row->sig;
    b->scalar[b->n_scalar].shape = shape;
    b->scalar[b->n_scalar++].ns = ns;
    return ns;
}

static void bench_row(bench *b, const vt_row *row, const check_op *op, int shape) {
    char label[128] = "";
    double bytes = 0.0, flops = 0.0;
    case_begin(b->c, row, b->o->seed);
    b->c->aligned = !(b->target->queue->caps & VT_CAP_BIT(VT_CAP_HOST_ADDRESSABLE));
    op->bench(b->c, shape, &bytes, &flops, label, sizeof label);
    if (b->c->n == 0) return;
    const bool device = !(b->target->queue->caps & VT_CAP_BIT(VT_CAP_HOST_ADDRESSABLE));
    if (!b->o->once && !device && flops > (row->need == 0 ? 2e9 : 1e10)) return; /* the scalar row would take minutes */
    timing t;
    error err = {0};
    vt_call call = b->c->call;
    vt_tensor twins[CASE_SLOTS];
    subject s = {b->c, row, b->threads, device ? &call : NULL};
    if ((device && case_to_device(b->c, b->target->queue, &call, twins, &err)) || !measure(&s, b->o, &t)) {
        if (err.text[0]) fprintf(stderr, "FAIL %s: %s\n", row->name, err.text);
        b->n_failed++;
        return;
    }
    b->n_measured++;
    if (b->o->once) return;
    double scalar = scalar_time(b, row, shape, t.min);
    if (b->o->csv) {
        printf("%s,%s,%.0f,%.0f,%.0f,%.3f,%.3f,%.2f,%.2f,%d\n", row->name, label, t.median, t.min, t.cpu, bytes / t.min, flops / t.min,
               scalar > 0.0 ? scalar / t.min : 0.0, b->stream, pool_size(b->threads));
    } else {
        printf("%-42s %-26s median %10.1f min %10.1f us %6.2f GB/s %4.0f %% %7.1f GFLOP/s %6.1f a core", row->name, label,
               t.median / 1000.0, t.min / 1000.0, bytes / t.min, 100.0 * bytes / t.min / b->stream, flops / t.min, flops / t.cpu);
        printf(scalar > 0.0 ? " %7.1fx\n" : "\n", scalar / t.min);
    }
    fflush(stdout);
}

bool bench_wants(const bench_options *o, const vt_row *row, int32_t index) {
    if (o->op && strcmp(o->op, vt_op_name(row->op)) != 0) return false;
    if (o->parts > 0 && index % o->parts != o->part) return false;
    return !o->row || strstr(row->name, o->row);
}

int bench_rows(bench_target *t, check_case *c, const bench_options *o) {
    static bench b;
    b = (bench){.target = t, .c = c, .o = o};
    error err = {0};
    if (pool_create(c->m, o->once ? 2 : o->threads ? o->threads : os_cpu_count(), &b.threads, &err)) {
        fprintf(stderr, "check_kernels: %s\n", err.text);
        return 1;
    }
    if (!o->once) {
        const bool device = !(t->queue->caps & VT_CAP_BIT(VT_CAP_HOST_ADDRESSABLE));
        b.stream = device ? copy_bandwidth(t->queue) : read_bandwidth(c->m, b.threads);
        if (o->csv)
            printf("row,shape,median_ns,min_ns,cpu_ns,gb_per_s,gflop_per_s,factor_over_scalar,read_gb_per_s,threads\n");
        else
            printf(device ? "%s: copies in its memory at %.2f GB/s, reading and writing counted\n" : "%s: memory reads at %.2f GB/s\n",
                   t->name, b.stream);
    }
    for (int32_t i = 0; i < t->n_rows; i++) {
        const vt_row *row = &t->rows[i];
        const check_op *op = check_op_of(row->op);
        if (!bench_wants(o, row, i) || !op || !row->run || (row->need & ~t->queue->caps) != 0) continue;
        for (int shape = 0; shape < op->n_shapes; shape++) {
            if (o->once ? shape != op->n_shapes - 1 : o->shape >= 0 && shape != o->shape) continue;
            bench_row(&b, row, op, shape);
        }
    }
    pool_destroy(b.threads);
    return b.n_failed > 0 || b.n_measured == 0;
}
