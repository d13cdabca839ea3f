/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files that are wrong: cut, flipped, absurd. Each gives an error or a load that keeps its promises (support/load_probe). */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "load/gguf_header.h"
#include "support/gguf_writer.h"
#include "support/load_probe.h"

static mem *m;

static int set_up(void **state) {
    (void)state;
    return mem_create(&m) == STATUS_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    return mem_destroy(m) == STATUS_OK ? 0 : -1;
}

/* --- a small file with one of everything --- */

static void write_small(gguf_writer *w) {
    gguf_writer_init(w, m);
    gguf_writer_text(w, "general.architecture", "llama");
    gguf_writer_u32(w, "llama.block_count", 2);
    gguf_writer_u64(w, "big", 1);
    gguf_writer_f32(w, "eps", 1e-5f);
    gguf_writer_bool(w, "flag", true);
    gguf_writer_texts(w, "words", (const char *const[]){"a", "bc", ""}, 3);
    gguf_writer_array(w, "ints", GGUF_W_I32, (int32_t[]){1, 2, 3}, 4, 3);
    gguf_writer_array(w, "flags", GGUF_W_BOOL, "\1\0", 1, 2);
    gguf_writer_tensor(w, "t.a", GGUF_T_F32, 2, (int64_t[]){3, 4}, NULL, 48);
    gguf_writer_tensor(w, "t.b", GGUF_T_Q4_1, 2, (int64_t[]){2, 32}, NULL, 40);
    gguf_writer_tensor(w, "t.c", GGUF_T_F16, 3, (int64_t[]){2, 1, 4}, NULL, 16);
}

typedef struct tally {
    int n_ok, n_refused;
} tally;

static void probe(tally *t, const uint8_t *data, size_t n) {
    error err = {0};
    status rc = load_probe_bytes(data, n, (t->n_ok + t->n_refused) % 2 == 0 ? LOAD_MAP : LOAD_READ, &err);
    if (rc == STATUS_OK)
        t->n_ok++;
    else
        t->n_refused++;
}

static void test_cut_at_every_byte(void **state) {
    (void)state;
    gguf_writer w;
    const uint8_t *image;
    size_t n;
    tally t = {0};
    write_small(&w);
    assert_true(gguf_writer_bytes(&w, &image, &n));
    for (size_t cut = 0; cut <= n; cut++) probe(&t, image, cut);
    assert_int_equal(t.n_ok + t.n_refused, n + 1);
    assert_int_equal(t.n_ok, 17); /* whole, or without some of the padding behind the last tensor */
    gguf_writer_deinit(&w);
}

/* A header of 40 KB, cut at every 64th byte: the reader's buffer has other edges here. */
static void test_cut_at_every_64th_byte(void **state) {
    (void)state;
    gguf_writer w;
    const uint8_t *image;
    size_t n;
    tally t = {0};
    write_small(&w);
    for (int i = 0; i < 200; i++) {
        char key[32], text[201];
        snprintf(key, sizeof key, "key.%d", i);
        memset(text, 'x', 200);
        text[i] = '\0';
        gguf_writer_text(&w, key, text);
        gguf_writer_texts(&w, strcat(key, ".s"), (const char *const[]){text, key}, 2);
    }
    assert_true(gguf_writer_bytes(&w, &image, &n));
    assert_true(n > 40000);
    for (size_t cut = 0; cut < n; cut += 64) probe(&t, image, cut);
    probe(&t, image, n);
    assert_int_equal(t.n_refused, (n + 63) / 64);
    assert_int_equal(t.n_ok, 1);
    gguf_writer_deinit(&w);
}

static void test_each_flipped_bit(void **state) {
    (void)state;
    gguf_writer w;
    const uint8_t *image;
    size_t n;
    tally t = {0};
    write_small(&w);
    assert_true(gguf_writer_bytes(&w, &image, &n));
    uint8_t *copy = mem_alloc(m, MEM_PROCESS, n);
    assert_non_null(copy);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        memcpy(copy, image, n);
        copy[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        probe(&t, copy, n);
    }
    assert_int_equal(t.n_ok + t.n_refused, 8 * n);
    assert_true(t.n_ok > 1000 && t.n_refused > 1000);
    mem_free(m, copy);
    gguf_writer_deinit(&w);
}

/* Each aligned and unaligned 8-byte field replaced by a number that breaks naive arithmetic. */
static void test_absurd_numbers_everywhere(void **state) {
    (void)state;
    static const uint64_t numbers[] = {0,         UINT64_MAX, (uint64_t)1 << 63, (uint64_t)1 << 62, (uint64_t)1 << 60, (uint64_t)1 << 32,
                                       0x7FFFFFFF};
    gguf_writer w;
    const uint8_t *image;
    size_t n, n_cases = 0;
    tally t = {0};
    write_small(&w);
    assert_true(gguf_writer_bytes(&w, &image, &n));
    uint8_t *copy = mem_alloc(m, MEM_PROCESS, n);
    assert_non_null(copy);
    for (size_t at = 0; at + 8 <= n; at++)
        for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; k++, n_cases++) {
            memcpy(copy, image, n);
            memcpy(copy + at, &numbers[k], 8);
            probe(&t, copy, n);
        }
    assert_int_equal(t.n_ok + t.n_refused, n_cases);
    assert_true(t.n_ok > 100 && t.n_refused > 100);
    mem_free(m, copy);
    gguf_writer_deinit(&w);
}

/* --- one fault each, refused by name --- */

static void refused(gguf_writer *w, status code, const char *part) {
    const uint8_t *image;
    size_t n;
    for (int mode = LOAD_MAP; mode <= LOAD_READ; mode++) {
        error err = {0};
        assert_true(gguf_writer_bytes(w, &image, &n));
        assert_int_equal(load_probe_bytes(image, n, (load_mode)mode, &err), code);
        if (strstr(err.text, part) == NULL) fail_msg("\"%s\" does not say \"%s\"", err.text, part);
    }
    gguf_writer_deinit(w);
}

static void test_counts(void **state) {
    (void)state;
    static const uint64_t counts[] = {4, 1000, (uint64_t)1 << 32, (uint64_t)1 << 60, UINT64_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        gguf_writer w;
        gguf_writer_init(&w, m);
        gguf_writer_u32(&w, "k", 1);
        w.n_keys = counts[i];
        refused(&w, STATUS_FORMAT, "keys do not fit");
        gguf_writer_init(&w, m);
        gguf_writer_u32(&w, "k", 1);
        w.n_tensors = counts[i];
        refused(&w, STATUS_FORMAT, "tensors do not fit");
        gguf_writer_init(&w, m);
        gguf_writer_array(&w, "k", GGUF_W_I64, "", 0, counts[i]);
        refused(&w, STATUS_FORMAT, "does not fit the");
        gguf_writer_init(&w, m);
        gguf_writer_array(&w, "k", GGUF_W_STRING, "", 0, counts[i]);
        refused(&w, STATUS_FORMAT, "does not fit the");
    }
}

/* A text whose length leads back to where it begins, once around the address space. */
static void test_lengths_that_wrap(void **state) {
    (void)state;
    for (uint64_t back = 0; back <= 64; back++) {
        gguf_writer w;
        uint64_t n = (uint64_t)0 - back - 1;
        gguf_writer_init(&w, m);
        gguf_writer_raw(&w, "k", GGUF_W_STRING, &n, 8);
        textbuf_add(&w.infos, "0123456789abcdef", 16);
        refused(&w, STATUS_FORMAT, "the file ends inside a text");
    }
}

static void test_keys(void **state) {
    (void)state;
    gguf_writer w;
    gguf_writer_init(&w, m);
    gguf_writer_u32(&w, "twice", 1);
    gguf_writer_u32(&w, "once", 1);
    gguf_writer_text(&w, "twice", "x");
    refused(&w, STATUS_FORMAT, "key twice is there twice");
    gguf_writer_init(&w, m);
    gguf_writer_u32(&w, "", 1);
    refused(&w, STATUS_FORMAT, "empty key");
    gguf_writer_init(&w, m);
    gguf_writer_u32(&w, "new\nline", 1);
    refused(&w, STATUS_FORMAT, "printable ASCII");
    gguf_writer_init(&w, m);
    gguf_writer_raw(&w, "k", 13, "12345678", 8);
    refused(&w, STATUS_FORMAT, "value type 13");
    gguf_writer_init(&w, m);
    gguf_writer_array(&w, "k", 77, "12345678", 1, 8);
    refused(&w, STATUS_FORMAT, "value type 77");
    gguf_writer_init(&w, m);
    gguf_writer_raw(&w, "k", GGUF_W_BOOL, "\2", 1);
    gguf_writer_u32(&w, "padding", 1);
    refused(&w, STATUS_FORMAT, "bool is 2");
    gguf_writer_init(&w, m);
    gguf_writer_array(&w, "k", GGUF_W_BOOL, "\1\0\3", 1, 3);
    refused(&w, STATUS_FORMAT, "bool is 3");
}

static void test_key_lengths(void **state) {
    (void)state;
    static char key[GGUF_MAX_KEY_BYTES + 2];
    memset(key, 'k', GGUF_MAX_KEY_BYTES + 1);
    gguf_writer w;
    gguf_writer_init(&w, m);
    gguf_writer_u32(&w, key, 1);
    refused(&w, STATUS_FORMAT, "a key of 65536 bytes");
    key[GGUF_MAX_KEY_BYTES] = '\0';
    const uint8_t *image;
    size_t n;
    gguf_writer_init(&w, m);
    gguf_writer_u32(&w, key, 1);
    assert_true(gguf_writer_bytes(&w, &image, &n));
    assert_int_equal(load_probe_bytes(image, n, LOAD_AUTO, NULL), STATUS_OK);
    gguf_writer_deinit(&w);
}

/* Arrays in arrays, one and thousands deep. */
static void test_nested_arrays(void **state) {
    (void)state;
    for (int depth = 1; depth <= 10000; depth *= 100) {
        gguf_writer w;
        gguf_writer_init(&w, m);
        gguf_writer_array(&w, "k", GGUF_W_ARRAY, "", 0, 1);
        for (int i = 0; i < depth; i++) textbuf_add(&w.keys, "\x09\0\0\0\1\0\0\0\0\0\0\0", 12);
        refused(&w, STATUS_UNSUPPORTED, "array of arrays");
    }
}

static void test_tensor_records(void **state) {
    (void)state;
    static const int64_t ok[] = {2, 32}, zero[] = {2, 0}, negative[] = {-1, 4}, wide[] = {4, 48}, five[] = {1, 1, 1, 1, 1},
                         huge[] = {(int64_t)1 << 31, (int64_t)1 << 31, 4, 1}, big_row[] = {INT64_MAX};
    static const struct {
        const char *name;
        uint32_t type;
        int n_dims;
        const int64_t *dim;
        uint64_t off;
        status code;
        const char *part;
    } cases[] = {
        {"t", GGUF_T_F32, 2, zero, 0, STATUS_FORMAT, "a dimension of 0"},
        {"t", GGUF_T_F32, 2, negative, 0, STATUS_FORMAT, "a dimension of 18446744073709551615"},
        {"t", GGUF_T_F32, 5, five, 0, STATUS_UNSUPPORTED, "5 dimensions"},
        {"t", GGUF_T_F32, 4, huge, 0, STATUS_FORMAT, "elements overflows"},
        {"t", GGUF_T_F32, 1, big_row, 0, STATUS_FORMAT, "t"},
        {"t", GGUF_T_Q4_1, 2, wide, 0, STATUS_FORMAT, "no whole blocks of q4_1"},
        {"t", GGUF_T_F32, 2, ok, 1, STATUS_FORMAT, "offset 1 is not aligned"},
        {"t", GGUF_T_F32, 2, ok, 32, STATUS_FORMAT, "lie past the end"},
        {"t", GGUF_T_F32, 2, ok, 1 << 20, STATUS_FORMAT, "lies past the end"},
        {"t", GGUF_T_F32, 2, ok, UINT64_MAX - 31, STATUS_FORMAT, "lies past the end"},
        {"t", 999, 2, ok, 1 << 20, STATUS_FORMAT, "lies past the end"},
        {"", GGUF_T_F32, 2, ok, 0, STATUS_FORMAT, "empty tensor name"},
        {"t\x7F", GGUF_T_F32, 2, ok, 0, STATUS_FORMAT, "printable ASCII"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gguf_writer w;
        gguf_writer_init(&w, m);
        for (int k = 0; k < 256; k++) textbuf_add(&w.data, "", 1);
        gguf_writer_tensor_at(&w, cases[i].name, cases[i].type, cases[i].n_dims, cases[i].dim, cases[i].off);
        refused(&w, cases[i].code, cases[i].part);
    }
}

static void test_tensors_together(void **state) {
    (void)state;
    gguf_writer w;
    gguf_writer_init(&w, m);
    gguf_writer_tensor(&w, "a", GGUF_T_F32, 1, (int64_t[]){20}, NULL, 80);
    gguf_writer_tensor_at(&w, "b", GGUF_T_F32, 1, (int64_t[]){4}, 64);
    refused(&w, STATUS_FORMAT, "tensors a and b overlap");
    gguf_writer_init(&w, m); /* the same place twice */
    gguf_writer_tensor(&w, "a", GGUF_T_F32, 1, (int64_t[]){20}, NULL, 80);
    gguf_writer_tensor_at(&w, "b", GGUF_T_F32, 1, (int64_t[]){20}, 0);
    refused(&w, STATUS_FORMAT, "overlap");
    gguf_writer_init(&w, m); /* a large one around a small one that is listed first */
    gguf_writer_tensor_at(&w, "b", GGUF_T_F32, 1, (int64_t[]){4}, 64);
    gguf_writer_tensor(&w, "a", GGUF_T_F32, 1, (int64_t[]){40}, NULL, 160);
    refused(&w, STATUS_FORMAT, "overlap");
    gguf_writer_init(&w, m);
    gguf_writer_tensor(&w, "a", GGUF_T_F32, 1, (int64_t[]){4}, NULL, 16);
    gguf_writer_tensor(&w, "b", GGUF_T_F32, 1, (int64_t[]){4}, NULL, 16);
    gguf_writer_tensor(&w, "a", GGUF_T_F32, 1, (int64_t[]){4}, NULL, 16);
    refused(&w, STATUS_FORMAT, "tensor a is there twice");
}

/* Many keys with a long common beginning: what would flood a weak hash must still be quick. */
static void test_many_similar_keys(void **state) {
    (void)state;
    enum { N = 20000 };
    gguf_writer w;
    const uint8_t *image;
    size_t n;
    gguf_writer_init(&w, m);
    for (int i = 0; i < N; i++) {
        char key[40];
        snprintf(key, sizeof key, "aaaaaaaaaaaaaaaaaaaaaaaa%d", i);
        gguf_writer_u32(&w, key, 1);
    }
    assert_true(gguf_writer_bytes(&w, &image, &n));
    assert_int_equal(load_probe_bytes(image, n, LOAD_AUTO, NULL), STATUS_OK);
    gguf_writer_deinit(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_at_every_byte),
        cmocka_unit_test(test_cut_at_every_64th_byte),
        cmocka_unit_test(test_each_flipped_bit),
        cmocka_unit_test(test_absurd_numbers_everywhere),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_lengths_that_wrap),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_key_lengths),
        cmocka_unit_test(test_nested_arrays),
        cmocka_unit_test(test_tensor_records),
        cmocka_unit_test(test_tensors_together),
        cmocka_unit_test(test_many_similar_keys),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
