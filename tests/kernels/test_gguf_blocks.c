/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GGUF blocks against the values that the Python package gguf gives them (tests/data/gguf_blocks.bin, written by
 * tools/make_block_cases.py): as gathered rows, and as products with rows that are one at a single place, on each instruction set. Bits,
 * not nearly.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "vt/vt.h"

enum { MAX_TYPES = 32, MAX_ELEMS = 256 };
static const vt_device_id cpu0 = {VT_DEVICE_CPU, 0};

typedef struct block_case {
    uint32_t type, n_blocks, n_bytes, n_elems;
    uint8_t *blocks;
    float *values;
} block_case;

static mem *m;
static uint8_t *file_bytes;
static block_case cases[MAX_TYPES];
static uint32_t n_cases;

static uint32_t u32_at(const uint8_t *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24; }

static int read_cases(void **state) {
    (void)state;
    static const size_t most = 1 << 20;
    FILE *f = fopen(HEADRACE_TEST_DATA "/gguf_blocks.bin", "rb");
    if (!f || mem_create(&m) != STATUS_OK) return -1;
    file_bytes = malloc(most);
    size_t n = fread(file_bytes, 1, most, f), at = 12;
    fclose(f);
    if (n < at || memcmp(file_bytes, "GGUFBLKS", 8) != 0) return -1;
    n_cases = u32_at(file_bytes + 8);
    if (n_cases > MAX_TYPES) return -1;
    for (uint32_t i = 0; i < n_cases; i++) {
        block_case *c = &cases[i];
        if (at + 16 > n) return -1;
        const uint8_t *p = file_bytes + at;
        *c = (block_case){.type = u32_at(p), .n_blocks = u32_at(p + 4), .n_bytes = u32_at(p + 8), .n_elems = u32_at(p + 12)};
        size_t blocks = (size_t)c->n_blocks * c->n_bytes, values = (size_t)c->n_blocks * c->n_elems * sizeof(float);
        if (at + 16 + blocks + values > n) return -1;
        c->blocks = malloc(blocks); /* exactly as long as they are */
        c->values = malloc(values);
        memcpy(c->blocks, p + 16, blocks);
        memcpy(c->values, p + 16 + blocks, values);
        at += 16 + blocks + values;
    }
    return at == n ? 0 : -1;
}

static int free_cases(void **state) {
    (void)state;
    for (uint32_t i = 0; i < n_cases; i++) {
        free(cases[i].blocks);
        free(cases[i].values);
    }
    free(file_bytes);
    return mem_destroy(m) == STATUS_OK ? 0 : -1;
}

typedef struct machine {
    vt_runtime *rt;
    vt_device *dev;
    vt_queue *q;
} machine;

/* False: this processor lacks the level. */
static bool machine_open(machine *k, const char *isa) {
    error err = {0};
    *k = (machine){0};
    vt_runtime_options options = {.cpu_isa = isa};
    assert_int_equal(vt_runtime_create(m, &options, &k->rt, &err), STATUS_OK);
    if (vt_device_open(k->rt, cpu0, m, &k->dev, &err) != STATUS_OK) {
        vt_runtime_destroy(k->rt);
        return false;
    }
    assert_int_equal(vt_queue_create(k->dev, NULL, &k->q, &err), STATUS_OK);
    return true;
}

static void machine_close(machine *k) {
    vt_queue_destroy(k->q);
    vt_device_close(k->dev);
    vt_runtime_destroy(k->rt);
}

static vt_dtype dtype_of(const block_case *c) {
    vt_dtype t = VT_NONE;
    if (!vt_dtype_from_gguf(c->type, &t)) fail_msg("type %u (%s) is not known", c->type, vt_gguf_type_name(c->type));
    assert_string_equal(vt_dtype_name(t), vt_gguf_type_name(c->type));
    assert_int_equal(vt_dtype_block_bytes(t), c->n_bytes);
    assert_int_equal(vt_dtype_block_elems(t), c->n_elems);
    return t;
}

static bool same_float(float a, float b) { return memcmp(&a, &b, sizeof a) == 0; }

static void every_type_is_there(void **state) {
    (void)state;
    static const uint32_t wanted[] = {2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 39};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        uint32_t k = 0;
        while (k < n_cases && cases[k].type != wanted[i]) k++;
        assert_true(k < n_cases);
    }
}

static void gathered_rows_have_the_values(void **state) {
    (void)state;
    machine k;
    error err = {0};
    long compared = 0;
    assert_true(machine_open(&k, "scalar"));
    for (uint32_t i = 0; i < n_cases; i++) {
        const block_case *c = &cases[i];
        int32_t ids[64];
        float *out = malloc((size_t)c->n_blocks * c->n_elems * sizeof *out);
        assert_true(c->n_blocks <= 64);
        for (uint32_t b = 0; b < c->n_blocks; b++) ids[b] = (int32_t)b;
        vt_tensor table = vt_tensor_2d(c->blocks, dtype_of(c), cpu0, c->n_blocks, c->n_elems);
        vt_tensor to = vt_tensor_2d(out, VT_F32, cpu0, c->n_blocks, c->n_elems), which = vt_tensor_1d(ids, VT_I32, cpu0, c->n_blocks);
        assert_int_equal(vt_gather_rows(k.q, &to, &table, &which, &err), STATUS_OK);
        for (uint32_t e = 0; e < c->n_blocks * c->n_elems; e++, compared++) {
            if (!same_float(out[e], c->values[e]))
                fail_msg("%s, block %u, element %u: %.9g, gguf has %.9g", vt_gguf_type_name(c->type), e / c->n_elems, e % c->n_elems,
                         (double)out[e], (double)c->values[e]);
        }
        free(out);
    }
    assert_true(compared > 10000);
    machine_close(&k);
}

/* Column n of the product of a unit matrix with the blocks is block n; a zero may lose its sign. */
static void compare_product(const machine *k, const block_case *c, uint32_t block, const char *isa, long *compared) {
    static float unit[MAX_ELEMS * MAX_ELEMS], out[MAX_ELEMS];
    error err = {0};
    const float *values = c->values + (size_t)block * c->n_elems;
    assert_true(c->n_elems <= MAX_ELEMS);
    for (uint32_t e = 0; e < c->n_elems; e++)
        if (!isfinite(values[e])) return;
    for (uint32_t e = 0; e < c->n_elems * c->n_elems; e++) unit[e] = e % (c->n_elems + 1) == 0 ? 1.0f : 0.0f;
    vt_tensor b = vt_tensor_2d(c->blocks + (size_t)block * c->n_bytes, dtype_of(c), cpu0, 1, c->n_elems);
    vt_tensor a = vt_tensor_2d(unit, VT_F32, cpu0, c->n_elems, c->n_elems), to = vt_tensor_2d(out, VT_F32, cpu0, c->n_elems, 1);
    assert_int_equal(vt_matmul_bt(k->q, &to, &a, &b, &err), STATUS_OK);
    for (uint32_t e = 0; e < c->n_elems; e++, ++*compared) {
        if (out[e] == values[e]) continue;
        fail_msg("%s %s, block %u, element %u: %.9g, gguf has %.9g", isa, vt_gguf_type_name(c->type), block, e, (double)out[e],
                 (double)values[e]);
    }
}

static void products_have_the_values(void **state) {
    (void)state;
    static const char *const levels[] = {"scalar", "avx2", "avx512"};
    for (size_t l = 0; l < sizeof levels / sizeof levels[0]; l++) {
        machine k;
        long compared = 0;
        if (!machine_open(&k, levels[l])) {
            print_message("skip: this processor lacks %s\n", levels[l]);
            continue;
        }
        for (uint32_t i = 0; i < n_cases; i++)
            for (uint32_t b = 0; b < cases[i].n_blocks; b++) compare_product(&k, &cases[i], b, levels[l], &compared);
        assert_true(compared > 10000);
        machine_close(&k);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_is_there),
        cmocka_unit_test(gathered_rows_have_the_values),
        cmocka_unit_test(products_have_the_values),
    };
    return cmocka_run_group_tests(tests, read_cases, free_cases);
}
