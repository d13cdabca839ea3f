/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The experts of one layer behind its router, as a model on a device runs them: grouping, gate and up with the gate, down, combination; BF16 activations, random routing.
 * Usage: bench_moe BACKEND[:WEIGHTS] HIDDEN FF EXPERTS TOP ROWS...
 * WEIGHTS: bf16 (the default), fp8 (E4M3, a scale a row), fp8-block (a scale for 128 by 128) or mxfp4.
 * Prints for each number of rows the time of a layer (median of 15 measurements, each of enough layers for the clock, which take turns with eight routings), the distinct experts and the rate at
 * which their bytes were read.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "vt/vt.h"

enum { ROUTINGS = 8, SAMPLES = 15, CHUNK = 1 << 20 };

typedef struct layer_bench {
    mem *m;
    vt_device *device;
    vt_queue *q;
    int64_t hidden, ff, experts, top, rows;
    vt_dtype weights, scales; /* scales: VT_NONE: there are none */
    bool in_blocks;
    vt_buffer gate_up, down, gate_up_scales, down_scales, tables, x, both, mid, slab, out, routing[ROUTINGS], first, pair_row, index, sorted;
    double distinct;
} layer_bench;

static void must(status rc, const error *err) {
    if (rc == STATUS_OK) return;
    fprintf(stderr, "bench_moe: %s\n", err->text[0] != '\0' ? err->text : status_name(rc));
    exit(1);
}

static uint64_t random_bits(void) {
    static uint64_t state = 1;
    return (state = state * 6364136223846793005u + 1442695040888963407u) >> 33;
}

static vt_buffer take(layer_bench *b, size_t bytes) {
    vt_buffer r = {0};
    error err = {0};
    must(vt_buffer_alloc(b->device, MEM_PROCESS, bytes, "a bench", &r, &err), &err);
    return r;
}

/* Random numbers below one in magnitude, BF16 or narrower: a stretch of them, again and again from another place. */
static void fill(layer_bench *b, const vt_buffer *to, vt_dtype t) {
    static uint16_t chunk[CHUNK];
    const error none = {0};
    for (int i = 0; i < CHUNK; i++) {
        const uint64_t r = random_bits();
        chunk[i] = (uint16_t)(t == VT_BF16 ? (r & 0x8000) | (0x3c00 + random_bits() % 0x380) : t == VT_F8_E4M3 ? r & 0xB7B7 : r);
    }
    for (size_t off = 0, n; off < to->bytes; off += n) {
        const size_t from = random_bits() % (CHUNK / 2);
        n = (CHUNK - from) * sizeof *chunk < to->bytes - off ? (CHUNK - from) * sizeof *chunk : to->bytes - off;
        must(vt_copy(b->q, (char *)to->data + off, chunk + from, n), &none);
    }
    must(vt_queue_sync(b->q), &none);
}

static void upload(layer_bench *b, const vt_buffer *to, const void *from, size_t bytes) {
    const error none = {0};
    must(vt_copy(b->q, to->data, from, bytes), &none);
    must(vt_queue_sync(b->q), &none);
}

static void make_routing(layer_bench *b) {
    const size_t n = (size_t)(b->rows * b->top);
    int32_t *ids = malloc(2 * n * sizeof *ids);
    char *seen = malloc((size_t)b->experts), *taken = malloc((size_t)b->experts);
    if (ids == NULL || seen == NULL || taken == NULL) exit(1);
    b->distinct = 0;
    for (int r = 0; r < ROUTINGS; r++) {
        memset(seen, 0, (size_t)b->experts);
        for (int64_t t = 0; t < b->rows; t++) {
            memset(taken, 0, (size_t)b->experts);
            for (int64_t j = 0; j < b->top; j++) {
                int32_t e = (int32_t)(random_bits() % (uint64_t)b->experts);
                while (taken[e]) e = (int32_t)((e + 1) % b->experts);
                taken[e] = 1;
                b->distinct += seen[e] ? 0.0 : 1.0 / ROUTINGS;
                seen[e] = 1;
                ids[t * b->top + j] = e;
                const float w = 1.0f / (float)b->top;
                memcpy(&ids[(int64_t)n + t * b->top + j], &w, sizeof w);
            }
        }
        b->routing[r] = take(b, 2 * n * sizeof *ids);
        upload(b, &b->routing[r], ids, 2 * n * sizeof *ids);
    }
    free(ids);
    free(seen);
    free(taken);
}

static vt_tensor flat(const layer_bench *b, const vt_buffer *v, vt_dtype t, int64_t n) { return vt_tensor_1d(v->data, t, b->q->device, n); }
static vt_tensor matrix(const layer_bench *b, const vt_buffer *v, vt_dtype t, int64_t rows, int64_t cols) { return vt_tensor_2d(v->data, t, b->q->device, rows, cols); }

/* The weights of gate and up, or of down: what comes second in the tables. */
static vt_grouped_weights weights_of(const layer_bench *b, bool down) {
    const vt_buffer none = {0};
    const int64_t n = down ? b->hidden : 2 * b->ff, k = down ? b->ff : b->hidden;
    vt_buffer table = b->tables;
    table.data = (int64_t *)table.data + (down ? b->experts : 0);
    vt_grouped_weights w = {.w = matrix(b, &none, b->weights, n, k), .table = flat(b, &table, VT_I64, b->experts)};
    if (b->scales == VT_NONE) return w;
    table.data = (int64_t *)table.data + 2 * b->experts;
    w.scale_table = flat(b, &table, VT_I64, b->experts);
    w.scale = b->weights == VT_F4_E2M1 ? matrix(b, &none, b->scales, n, k / 32) : b->in_blocks ? matrix(b, &none, b->scales, (n + 127) / 128, (k + 127) / 128) : matrix(b, &none, b->scales, n, 1);
    return w;
}

static vt_scale_params blocks_of(const layer_bench *b, int64_t k) {
    if (b->weights == VT_F4_E2M1) return (vt_scale_params){1, 32};
    return b->in_blocks ? (vt_scale_params){128, 128} : (vt_scale_params){1, (int32_t)k};
}

static void run_layer(layer_bench *b, int r) {
    error err = {0};
    const int64_t n = b->rows * b->top;
    vt_buffer weights_at = b->routing[r];
    weights_at.data = (int32_t *)weights_at.data + n;
    const vt_tensor ids = matrix(b, &b->routing[r], VT_I32, b->rows, b->top), weights = matrix(b, &weights_at, VT_F32, b->rows, b->top), first = flat(b, &b->first, VT_I32, b->experts + 1);
    const vt_tensor pair_row = flat(b, &b->pair_row, VT_I32, n), index = matrix(b, &b->index, VT_I32, b->rows, b->top), sorted = matrix(b, &b->sorted, VT_F32, b->rows, b->top);
    const vt_tensor x = matrix(b, &b->x, VT_BF16, b->rows, b->hidden), mid = matrix(b, &b->mid, VT_BF16, n, b->ff), slab = matrix(b, &b->slab, VT_F32, n, b->hidden);
    const vt_tensor out = matrix(b, &b->out, VT_F32, b->rows, b->hidden);
    vt_grouped_params p = {.max_rows = (int32_t)b->rows, .gate = VT_GATE_GELU};
    const vt_grouped_rows chosen = {x, first, pair_row}, in_place = {.x = mid, .first = first};
    const vt_grouped_weights gate_up = weights_of(b, false), down = weights_of(b, true);
    must(vt_moe_group(b->q, &first, &pair_row, &index, &sorted, &ids, &weights, &err), &err);
    if (b->scales == VT_NONE) {
        must(vt_matmul_grouped_gated(b->q, &mid, &chosen, &gate_up, p, &err), &err);
        must(vt_matmul_grouped(b->q, &slab, &in_place, &down, p, &err), &err);
    } else {
        const vt_tensor both = matrix(b, &b->both, VT_F32, n, 2 * b->ff);
        p.blocks = blocks_of(b, b->hidden);
        must(vt_matmul_grouped_scaled(b->q, &both, &chosen, &gate_up, p, &err), &err);
        must(vt_gelu_and_mul(b->q, &mid, &both, &err), &err);
        p.blocks = blocks_of(b, b->ff);
        must(vt_matmul_grouped_scaled(b->q, &slab, &in_place, &down, p, &err), &err);
    }
    must(vt_moe_combine(b->q, &out, &slab, &index, &sorted, &err), &err);
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double bytes_of_weight(const layer_bench *b) { return b->weights == VT_BF16 ? 2.0 : b->weights == VT_F8_E4M3 ? 1.0 : 17.0 / 32.0; }

static void measure(layer_bench *b) {
    const error none = {0};
    const int64_t n = b->rows * b->top;
    double us[SAMPLES];
    b->x = take(b, (size_t)(b->rows * b->hidden) * 2);
    b->mid = take(b, (size_t)(n * b->ff) * 2);
    if (b->scales != VT_NONE) b->both = take(b, (size_t)(n * 2 * b->ff) * 4);
    b->slab = take(b, (size_t)(n * b->hidden) * 4);
    b->out = take(b, (size_t)(b->rows * b->hidden) * 4);
    b->first = take(b, (size_t)(b->experts + 1) * 4);
    b->pair_row = take(b, (size_t)n * 4);
    b->index = take(b, (size_t)n * 4);
    b->sorted = take(b, (size_t)n * 4);
    fill(b, &b->x, VT_BF16);
    make_routing(b);
    int inner = ROUTINGS;
    for (int i = -1; i < SAMPLES; i++) { /* the first warms up, and says how many are enough for the clock */
        const uint64_t begin = os_now_ns();
        for (int j = 0; j < inner; j++) run_layer(b, j % ROUTINGS);
        must(vt_queue_sync(b->q), &none);
        const double t = (double)(os_now_ns() - begin) / 1000.0 / inner;
        if (i >= 0) us[i] = t;
        if (i < 0 && t * inner < 4000.0) inner *= 8;
    }
    qsort(us, SAMPLES, sizeof us[0], compare);
    const double bytes = b->distinct * (double)(3 * b->ff * b->hidden) * bytes_of_weight(b), flops = 6.0 * (double)(n * b->ff * b->hidden);
    printf("%6lld  %8.1f  %10.1f  %8.1f  %8.1f\n", (long long)b->rows, b->distinct, us[SAMPLES / 2], bytes / us[SAMPLES / 2] / 1e3, flops / us[SAMPLES / 2] / 1e6);
    vt_buffer *const all[] = {&b->x, &b->both, &b->mid, &b->slab, &b->out, &b->first, &b->pair_row, &b->index, &b->sorted};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) vt_buffer_free(all[i]);
    for (int i = 0; i < ROUTINGS; i++) vt_buffer_free(&b->routing[i]);
}

/* What all experts have of one thing, each on an address of 256, and where each lies. */
static vt_buffer stacked(layer_bench *b, vt_dtype t, int64_t rows, int64_t cols, int64_t *table, uint8_t byte) {
    size_t row = 0;
    if (!vt_dtype_row_bytes(t, cols, &row)) exit(2);
    const size_t one = (row * (size_t)rows + 255) / 256 * 256, n = (size_t)b->experts;
    const vt_buffer r = take(b, one * n);
    const error none = {0};
    for (size_t e = 0; e < n; e++) table[e] = (int64_t)(uintptr_t)((char *)r.data + e * one);
    if (byte == 0)
        fill(b, &r, t);
    else
        must(vt_fill(b->q, r.data, byte, r.bytes), &none);
    return r;
}

static void make_weights(layer_bench *b) {
    const size_t n = (size_t)b->experts;
    int64_t *table = malloc(4 * n * sizeof *table);
    if (table == NULL) exit(1);
    b->tables = take(b, 4 * n * sizeof *table);
    b->gate_up = stacked(b, b->weights, 2 * b->ff, b->hidden, table, 0);
    b->down = stacked(b, b->weights, b->hidden, b->ff, table + n, 0);
    if (b->scales != VT_NONE) { /* F32 of four bytes 0x3c: about 0.0115; E8M0: 2^-7 */
        const vt_tensor up = weights_of(b, false).scale, down = weights_of(b, true).scale;
        const uint8_t byte = b->scales == VT_F32 ? 0x3c : 0x78;
        b->gate_up_scales = stacked(b, b->scales, up.dim[0], up.dim[1], table + 2 * n, byte);
        b->down_scales = stacked(b, b->scales, down.dim[0], down.dim[1], table + 3 * n, byte);
    }
    upload(b, &b->tables, table, 4 * n * sizeof *table);
    free(table);
}

static bool choose_weights(layer_bench *b, const char *name) {
    static const struct {
        const char *name;
        vt_dtype weights, scales;
        bool in_blocks;
    } kinds[] = {{"bf16", VT_BF16, VT_NONE, false}, {"fp8", VT_F8_E4M3, VT_F32, false}, {"fp8-block", VT_F8_E4M3, VT_F32, true}, {"mxfp4", VT_F4_E2M1, VT_F8_E8M0, true}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(name, kinds[i].name) != 0) continue;
        b->weights = kinds[i].weights;
        b->scales = kinds[i].scales;
        b->in_blocks = kinds[i].in_blocks;
        return true;
    }
    return false;
}

int main(int argc, char **argv) {
    layer_bench b = {0};
    vt_runtime *rt = NULL;
    error err = {0};
    vt_device_type type;
    char *const weights = argc > 1 ? strchr(argv[1], ':') : NULL;
    if (weights != NULL) *weights = '\0';
    if (argc < 7 || !vt_device_type_from_name(argv[1], &type) || !choose_weights(&b, weights != NULL ? weights + 1 : "bf16")) {
        fprintf(stderr, "usage: bench_moe BACKEND[:bf16|fp8|fp8-block|mxfp4] HIDDEN FF EXPERTS TOP ROWS...\n");
        return 2;
    }
    int64_t *const sizes[] = {&b.hidden, &b.ff, &b.experts, &b.top};
    for (int i = 0; i < 4; i++) *sizes[i] = atoll(argv[2 + i]);
    if (b.hidden < 1 || b.ff < 1 || b.experts < 1 || b.top < 1 || b.top > b.experts || b.hidden > 1 << 20 || b.ff > 1 << 20 || b.experts > 1 << 16) return 2;
    must(mem_create(&b.m), &err);
    must(vt_runtime_create(b.m, NULL, &rt, &err), &err);
    must(vt_device_open(rt, (vt_device_id){type, 0}, b.m, &b.device, &err), &err);
    must(vt_queue_create(b.device, NULL, &b.q, &err), &err);
    make_weights(&b);
    printf("  rows  distinct  us a layer      GB/s   TFLOP/s\n");
    for (int i = 6; i < argc; i++) {
        b.rows = atoll(argv[i]);
        if (b.rows < 1 || b.rows > 1 << 20) return 2;
        measure(&b);
    }
    vt_buffer *const all[] = {&b.gate_up, &b.down, &b.gate_up_scales, &b.down_scales, &b.tables};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) vt_buffer_free(all[i]);
    vt_queue_destroy(b.q);
    vt_device_close(b.device);
    vt_runtime_destroy(rt);
    return mem_destroy(b.m) == STATUS_OK ? 0 : 1;
}
