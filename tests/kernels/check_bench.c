/* SPDX-License-Identifier: Apache-2.0 */
/* Timing of rows. */
#include "check_bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"

enum { MAX_SAMPLES = 401, STREAM_BYTES = 256 << 20, SIGNATURES = 512 };

static int compare_u64(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
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

/* Median time of one run in ns; 0 when it failed. */
static double measure(check_case *c, const vt_row *row, pool *threads, const bench_options *o) {
    uint64_t samples[MAX_SAMPLES];
    error err = {0};
    int n = 0, most = o->once ? 1 : 15 * o->repeat < MAX_SAMPLES ? 15 * o->repeat : MAX_SAMPLES;
    uint64_t begin = os_now_ns(), budget = 400000000ull * (uint64_t)o->repeat;
    if (case_run(c, row->run, threads, &err)) { /* warms up */
        fprintf(stderr, "FAIL %s: %s\n", row->name, err.text);
        return 0.0;
    }
    while (n < most && (n == 0 || os_now_ns() - begin < budget)) {
        int inner = 1; /* short runs are measured together */
        uint64_t t0 = os_now_ns(), t;
        for (;; inner *= 4) {
            t0 = os_now_ns();
            for (int i = 0; i < inner; i++)
                if (case_run(c, row->run, threads, &err)) return 0.0;
            t = os_now_ns() - t0;
            if (o->once || t > 200000 || inner >= 1024) break;
        }
        samples[n++] = t / (uint64_t)inner;
    }
    qsort(samples, (size_t)n, sizeof samples[0], compare_u64);
    return (double)samples[n / 2] + 0.001;
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
    op->bench(b->c, shape, &bytes, &flops, label, sizeof label);
    if (b->c->n == 0) return;
    if (!b->o->once && row->need == 0 && flops > 2e9) return; /* the scalar row would take minutes */
    double ns = measure(b->c, row, b->threads, b->o);
    if (ns <= 0.0) {
        b->n_failed++;
        return;
    }
    b->n_measured++;
    if (b->o->once) return;
    double scalar = scalar_time(b, row, shape, ns), gbs = bytes / ns, gflops = flops / ns;
    if (b->o->csv)
        printf("%s,%s,%.0f,%.3f,%.3f,%.2f,%.2f,%d\n", row->name, label, ns, gbs, gflops, scalar > 0.0 ? scalar / ns : 0.0, b->stream,
               pool_size(b->threads));
    else
        printf("%-48s %-28s %12.1f us %8.2f GB/s %4.0f %% %9.2f GFLOP/s %8.1fx\n", row->name, label, ns / 1000.0, gbs,
               100.0 * gbs / b->stream, gflops, scalar > 0.0 ? scalar / ns : 0.0);
    fflush(stdout);
}

int bench_rows(bench_target *t, check_case *c, const bench_options *o, bool (*wanted)(const bench_options *o, const vt_row *row)) {
    static bench b;
    b = (bench){.target = t, .c = c, .o = o};
    error err = {0};
    if (pool_create(c->m, o->once ? 2 : o->threads ? o->threads : os_cpu_count(), &b.threads, &err)) {
        fprintf(stderr, "check_kernels: %s\n", err.text);
        return 1;
    }
    if (!o->once) {
        b.stream = read_bandwidth(c->m, b.threads);
        if (o->csv)
            printf("row,shape,ns,gb_per_s,gflop_per_s,factor_over_scalar,read_gb_per_s,threads\n");
        else
            printf("%d threads, memory reads at %.2f GB/s\n", pool_size(b.threads), b.stream);
    }
    for (int32_t i = 0; i < t->n_rows; i++) {
        const vt_row *row = &t->rows[i];
        const check_op *op = check_op_of(row->op);
        if (!wanted(o, row) || !op || !row->run || (row->need & ~t->queue->caps) != 0) continue;
        for (int shape = 0; shape < op->n_shapes; shape++) {
            if (o->once ? shape != op->n_shapes - 1 : o->shape >= 0 && shape != o->shape) continue;
            bench_row(&b, row, op, shape);
        }
    }
    pool_destroy(b.threads);
    return b.n_failed > 0 || b.n_measured == 0;
}
