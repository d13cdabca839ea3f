/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every row of every backend that this machine can run, not only the one a call would take, against values computed in double, and on the
 * processor against the bits of the scalar row of the same signature; with one, two and three threads, and row by row alone.
 * On a device with memory of its own: against the same values, against the scalar row of the processor within the tolerance (bits where the
 * kernel gives them, which is counted), twice over, and row by row alone. A backend whose library or device is not here is named and left
 * out, unless --backend asks for it. --bench measures instead.
 */
#include <float.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check_bench.h"
#include "vt/runtime_impl.h"

enum { N_CASES = 24, TEXT = 256 };

static const char *row_now = "none";
static long case_now;

static void on_fault(int sig) {
    char text[TEXT];
    int n = snprintf(text, sizeof text, "check_kernels: signal %d in row %s, case %ld\n", sig, row_now, case_now);
    if (write(2, text, (size_t)n) < 0) _exit(2);
    _exit(1);
}

const check_op *check_op_of(vt_op op) {
    static const check_op *const ops[] = {&check_matmul_bt,
                                          &check_matmul_bt_alpha_beta,
                                          &check_quantize_rows,
                                          &check_gather_rows,
                                          &check_rms_norm,
                                          &check_rope,
                                          &check_kv_write,
                                          &check_prepare_heads,
                                          &check_paged_attention,
                                          &check_silu_and_mul,
                                          &check_gelu_and_mul,
                                          &check_mul_scalar,
                                          &check_add,
                                          &check_softcap,
                                          &check_matmul_bt_scaled,
                                          &check_matmul_kn,
                                          &check_router_topk,
                                          &check_moe_combine,
                                          &check_swiglu_clamp_and_mul,
                                          &check_mul_sigmoid,
                                          &check_causal_conv_silu,
                                          &check_gated_delta,
                                          &check_argmax,
                                          &check_moe_group,
                                          &check_matmul_grouped,
                                          &check_matmul_grouped_scaled,
                                          &check_matmul_grouped_gated,
                                          &check_add_norm,
                                          &check_matmul_bt_several,
                                          &check_matmul_bt_gated};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (ops[i]->op == op) return ops[i];
    return NULL;
}

/* The scalar row of the same signature. */
static const vt_row *reference_of(const bench_target *t, const vt_row *row) {
    for (int32_t i = 0; i < t->n_rows; i++) {
        const vt_row *r = &t->rows[i];
        if (r->op == row->op && memcmp(&r->sig, &row->sig, sizeof r->sig) == 0 && r->need == 0 && !r->fits) return r;
    }
    return NULL;
}

static double rounding_of(vt_dtype t) { return t == VT_BF16 ? 0x1p-8 : t == VT_F16 ? 0x1p-11 : 0.0; }

/* The output against want. */
static const char *compare_want(check_case *c, const check_op *op, char *text, size_t n) {
    const vt_tensor *out = &c->t[0];
    static double got[1 << 14];
    int64_t width = tensor_inner(out);
    for (int64_t r = 0; vt_tensor_elems(out) > 0 && r < tensor_rows(out); r++) {
        decode_row(out->dtype, tensor_row_at(out, r), width, got);
        for (int64_t i = 0; i < width; i++) {
            double want = c->want[r * width + i];
            double tol =
                op->c_eps * (double)FLT_EPSILON * c->mag[r * width + i] + rounding_of(out->dtype) * fabs(want) + (double)FLT_TRUE_MIN;
            if (fabs(got[i] - want) <= tol) continue;
            snprintf(text, n, "row %lld element %lld is %.9g, expected %.9g within %.3g", (long long)r, (long long)i, got[i], want, tol);
            return text;
        }
    }
    return NULL;
}

typedef struct checker {
    bench_target *target;
    check_case *c;
    const bench_target *host; /* the processor; NULL: it is the target */
    pool *pools[2];           /* of two and three threads */
    uint8_t *saved;
    size_t saved_bytes;
    uint64_t seed;
    long n_cases, n_failed, n_same_bits;
} checker;

static void fail(checker *k, const vt_row *row, int64_t i, const char *what, const char *text) {
    k->n_failed++;
    fprintf(stderr, "FAIL %s: case %lld (--seed %llu): %s: %s;", row->name, (long long)i, (unsigned long long)k->seed, what, text);
    for (int t = 0; t < k->c->n; t++) {
        fprintf(stderr, " %s", vt_dtype_name(k->c->t[t].dtype));
        for (int d = 0; d < k->c->t[t].n_dims; d++) fprintf(stderr, "%c%lld", d ? 'x' : '[', (long long)k->c->t[t].dim[d]);
        if (k->c->t[t].n_dims) fprintf(stderr, "]");
    }
    fprintf(stderr, "\n");
}

/* Run once more in another way; the bits must be those saved. */
static bool same_again(checker *k, const vt_row *row, int64_t i, vt_kernel_fn *fn, pool *threads, bool alone, const char *what) {
    check_case *c = k->c;
    char text[TEXT];
    error err = {0};
    case_restore(c);
    if ((alone ? case_run_alone(c, fn, &err) : case_run(c, fn, threads, &err)) != STATUS_OK) {
        fail(k, row, i, what, err.text);
        return false;
    }
    const char *damage = case_damage(c, text, sizeof text);
    if (damage || !case_same_bits(c, k->saved, text, sizeof text)) {
        fail(k, row, i, what, text);
        return false;
    }
    return true;
}

static bool save_output(checker *k) {
    size_t n = case_output_bytes(k->c);
    if (n > k->saved_bytes) {
        mem_free(k->c->m, k->saved);
        k->saved = mem_alloc(k->c->m, MEM_PROCESS, n);
        k->saved_bytes = k->saved ? n : 0;
        if (!k->saved) return false;
    }
    case_copy_output(k->c, k->saved);
    return true;
}

/* Row by row, by value. */
static bool near_alone(checker *k, const check_op *op, const vt_row *row, int64_t i) {
    check_case *c = k->c;
    char text[TEXT];
    error err = {0};
    case_restore(c);
    const char *fault = case_run_alone(c, row->run, &err) != STATUS_OK ? err.text : case_damage(c, text, sizeof text);
    if (!fault && op->expect && !c->special) fault = compare_want(c, op, text, sizeof text);
    if (fault) fail(k, row, i, "each row alone", fault);
    return !fault;
}

/* A device: the saved output again, row by row too; then the processor's scalar row, whose bits are counted. */
static void run_device_case(checker *k, const check_op *op, const vt_row *row, const vt_row *reference, int64_t i) {
    check_case *c = k->c;
    char text[TEXT];
    error err = {0};
    if (!same_again(k, row, i, row->run, NULL, false, "once more")) return;
    /* rows for matrix units with BF16 activations or FP8 weights, and of attention, choose their kernel by the number of rows
     * (NUMERICS.md): what a row alone gives is near, not the same */
    const bool near =
        row->fits != NULL && (row->sig.dtype[0] == VT_BF16 || row->op == VT_OP_MATMUL_BT_SCALED || row->op == VT_OP_PAGED_ATTENTION);
    if (c->n_rows > 0 && !(near ? near_alone(k, op, row, i) : same_again(k, row, i, row->run, NULL, true, "each row alone"))) return;
    case_restore(c);
    if (case_run_on_host(c, k->host->queue, reference->run, &err) != STATUS_OK)
        fail(k, row, i, "the scalar row", err.text);
    else
        k->n_same_bits += case_same_bits(c, k->saved, text, sizeof text);
}

static void run_case(checker *k, const check_op *op, const vt_row *row, const vt_row *reference, int64_t i) {
    check_case *c = k->c;
    char text[TEXT];
    error err = {0};
    case_begin(c, row, k->seed * 1000003u + (uint64_t)i * 7919u + (uint64_t)row->op * 31u + row->sig.dtype[1]);
    c->aligned = k->host && row->fits;
    if (!op->make(c, i)) return;
    if (row->fits && !row->fits(&c->call)) return; /* another row's case */
    k->n_cases++;
    case_now = (long)i;
    case_freeze(c);
    if (!c->special && op->expect) {
        if (vt_tensor_elems(&c->t[0]) > CASE_MAX_VALUES) {
            fail(k, row, i, "case", "too large");
            return;
        }
        op->expect(c);
    }
    if (case_run(c, row->run, NULL, &err) != STATUS_OK) {
        fail(k, row, i, "run", err.text);
        return;
    }
    const char *fault = case_damage(c, text, sizeof text);
    if (!fault && op->verify) fault = op->verify(c, text, sizeof text);
    if (!fault && op->expect && !c->special) fault = compare_want(c, op, text, sizeof text);
    if (fault || !save_output(k)) {
        fail(k, row, i, "values", fault ? fault : "no memory");
        return;
    }
    if (k->host) {
        run_device_case(k, op, row, reference, i);
        return;
    }
    if (reference != row && !same_again(k, row, i, reference->run, NULL, false, "bits of the scalar row")) return;
    if (!same_again(k, row, i, row->run, k->pools[0], false, "two threads")) return;
    if (!same_again(k, row, i, row->run, k->pools[1], false, "three threads")) return;
    if (c->n_rows > 0) same_again(k, row, i, row->run, NULL, true, "each row alone");
}

/* Returns the number of rows checked. */
static int check_rows(checker *k, const bench_options *o) {
    int n_checked = 0;
    for (int32_t i = 0; i < k->target->n_rows; i++) {
        const vt_row *row = &k->target->rows[i];
        if (!bench_wants(o, row, i) || !row->run || (row->need & ~k->target->queue->caps) != 0) continue;
        row_now = row->name;
        const check_op *op = check_op_of(row->op);
        const vt_row *reference = reference_of(k->host ? k->host : k->target, row);
        long before = k->n_cases;
        if (!op || !reference) {
            k->n_failed++;
            fprintf(stderr, "FAIL %s: no %s\n", row->name, op ? "scalar row of this signature" : "cases for this op");
            continue;
        }
        const long same_before = k->n_same_bits;
        for (int64_t j = 0; j < (o->cases ? o->cases : (int64_t)N_CASES * o->repeat); j++) run_case(k, op, row, reference, j);
        if (k->host && o->csv) printf("%s,%ld,%ld\n", row->name, k->n_cases - before, k->n_same_bits - same_before);
        if (k->n_cases == before) {
            k->n_failed++;
            fprintf(stderr, "FAIL %s: no case was run\n", row->name);
        }
        n_checked++;
    }
    return n_checked;
}

static int check_target(bench_target *t, const bench_target *host, mem *m, const bench_options *o) {
    check_case c;
    error err = {0};
    checker k = {.target = t, .c = &c, .host = host, .seed = o->seed};
    int rc = 1;
    if (case_init(&c, m, t->queue, &err) || pool_create(m, 2, &k.pools[0], &err) || pool_create(m, 3, &k.pools[1], &err)) {
        fprintf(stderr, "check_kernels: %s\n", err.text);
    } else if (o->bench) {
        rc = bench_rows(t, &c, o);
    } else {
        int32_t lacking = 0;
        for (int32_t i = 0; i < t->n_rows; i++) lacking += !t->rows[i].run || (t->rows[i].need & ~t->queue->caps) != 0;
        printf("%s: %d rows, %d of them not runnable here; up to %d cases a row\n", t->name, (int)t->n_rows, (int)lacking,
               N_CASES * o->repeat);
        fflush(stdout);
        int n = check_rows(&k, o);
        bench_options once = *o;
        once.once = true;
        row_now = "bench";
        if (bench_rows(t, &c, &once)) k.n_failed++;
        printf("%s: %d rows, %ld cases, %ld failed", t->name, n, k.n_cases, k.n_failed);
        if (host) printf(", %ld with the bits of the processor's scalar row", k.n_same_bits);
        printf("\n");
        rc = n == 0 || k.n_cases == 0 || k.n_failed > 0;
    }
    mem_free(m, k.saved);
    for (int i = 0; i < 2; i++)
        if (k.pools[i]) pool_destroy(k.pools[i]);
    case_deinit(&c);
    return rc;
}

/* Opens the first device of a backend; false with the reason where there is none. */
static bool open_target(vt_runtime *rt, const vt_manifest *manifest, mem *m, vt_device **d, bench_target *t, error *err) {
    const backend_entry *e = runtime_backend(rt, manifest->type);
    *t = (bench_target){.name = manifest->backend};
    if (e) {
        t->rows = e->rows;
        t->n_rows = e->n_rows;
    }
    if (vt_device_open(rt, (vt_device_id){manifest->type, 0}, m, d, err) != STATUS_OK) return false;
    if (vt_queue_create(*d, NULL, &t->queue, err) == STATUS_OK) return true;
    vt_device_close(*d);
    *d = NULL;
    return false;
}

static void close_target(vt_device *d, bench_target *t) {
    vt_queue_destroy(t->queue);
    vt_device_close(d);
}

static int check_device(vt_runtime *rt, bench_target *t, mem *m, const bench_options *o) {
    error err = {0};
    vt_device *d = NULL;
    bench_target host;
    if (!open_target(rt, &vt_manifest_list[0], m, &d, &host, &err)) {
        fprintf(stderr, "check_kernels: %s\n", err.text);
        return 1;
    }
    int result = check_target(t, &host, m, o);
    close_target(d, &host);
    return result;
}

/* *n counts the backends that were checked. */
static int check_backend(vt_runtime *rt, const vt_manifest *manifest, mem *m, const bench_options *o, int *n) {
    error err = {0};
    vt_device *d = NULL;
    bench_target t;
    if (o->backend && strcmp(o->backend, manifest->backend) != 0) return 0;
    if (!open_target(rt, manifest, m, &d, &t, &err)) {
        const bool must = manifest->builtin || o->backend;
        fprintf(must ? stderr : stdout, "%s%s: %s\n", must ? "check_kernels: " : "not checked: ", manifest->backend, err.text);
        return must;
    }
    const bool addressable = t.queue->caps & VT_CAP_BIT(VT_CAP_HOST_ADDRESSABLE);
    int result = addressable ? check_target(&t, NULL, m, o) : check_device(rt, &t, m, o);
    close_target(d, &t);
    (*n)++;
    return result;
}

static bool read_options(int argc, char **argv, bench_options *o) {
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--bench") == 0)
            o->bench = true;
        else if (strcmp(argv[i], "--csv") == 0)
            o->csv = true;
        else if (!value)
            return false;
        else if (strcmp(argv[i], "--seed") == 0)
            o->seed = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--repeat") == 0)
            o->repeat = atoi(argv[++i]);
        else if (strcmp(argv[i], "--threads") == 0)
            o->threads = atoi(argv[++i]);
        else if (strcmp(argv[i], "--shape") == 0)
            o->shape = atoi(argv[++i]);
        else if (strcmp(argv[i], "--op") == 0)
            o->op = argv[++i];
        else if (strcmp(argv[i], "--row") == 0)
            o->row = argv[++i];
        else if (strcmp(argv[i], "--backend") == 0)
            o->backend = argv[++i];
        else if (strcmp(argv[i], "--cases") == 0)
            o->cases = atoi(argv[++i]);
        else if (strcmp(argv[i], "--part") == 0) {
            if (sscanf(argv[++i], "%d/%d", &o->part, &o->parts) != 2 || o->part < 0 || o->part >= o->parts) return false;
        } else if (strcmp(argv[i], "--library") == 0)
            o->library = argv[++i];
        else
            return false;
    }
    return o->repeat > 0 && o->threads >= 0;
}

int main(int argc, char **argv) {
    bench_options o = {.seed = 1, .repeat = 1, .shape = -1};
    if (!read_options(argc, argv, &o)) {
        fprintf(stderr, "usage: check_kernels [--seed N] [--op NAME] [--row PART] [--part I/N] [--repeat N | --cases N] [--backend NAME] "
                        "[--library FOLDER] [--csv]\n"
                        "                     [--bench [--threads N] [--shape I]]\n");
        return 2;
    }
    signal(SIGSEGV, on_fault);
    signal(SIGBUS, on_fault);
    signal(SIGILL, on_fault);
    signal(SIGFPE, on_fault);
    error err = {0};
    mem *m = NULL;
    vt_runtime *rt = NULL;
    const char *const folders[] = {o.library, NULL};
    vt_runtime_options options = {.cpu_isa = "auto", .search_dirs = o.library ? folders : NULL};
    if (mem_create(&m) || vt_runtime_create(m, &options, &rt, &err)) {
        fprintf(stderr, "check_kernels: %s\n", err.text);
        return 1;
    }
    int result = 0, n = 0;
    for (int32_t i = 0; i < vt_manifest_count; i++) result |= check_backend(rt, &vt_manifest_list[i], m, &o, &n);
    vt_runtime_destroy(rt);
    if (mem_destroy(m) != STATUS_OK) {
        fprintf(stderr, "check_kernels: memory was not given back\n");
        result = 1;
    }
    return n == 0 || result;
}
