/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files that are right: values, tensors, shards, ways to get at the bytes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "load/source_impl.h"
#include "support/gguf_writer.h"
#include "support/scratch_dir.h"

static scratch_dir dir;
static mem *m;

static int set_up(void **state) {
    (void)state;
    return mem_create(&m) == STATUS_OK && scratch_dir_create(&dir) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    scratch_dir_destroy(&dir);
    return mem_destroy(m) == STATUS_OK ? 0 : -1; /* nothing leaked */
}

static source *open_ok(const char *path, load_mode mode) {
    source *s = NULL;
    error err = {0};
    if (source_open(m, path, &(source_options){.mode = mode}, &s, &err) != STATUS_OK) fail_msg("%s", err.text);
    return s;
}

static void open_fails(const char *path, status code, const char *part) {
    source *s = NULL;
    error err = {0};
    assert_int_equal(source_open(m, path, NULL, &s, &err), code);
    assert_null(s);
    if (strstr(err.text, part) == NULL) fail_msg("\"%s\" does not say \"%s\"", err.text, part);
}

static const char *in_dir(const char *name) {
    static char path[SCRATCH_PATH_BYTES];
    return scratch_dir_path(&dir, name, path);
}

static void text_is(const meta *md, const char *key, const char *want, size_t n) {
    const char *text;
    size_t len;
    assert_true(meta_as_string(meta_find(md, key), &text, &len));
    assert_int_equal(len, n);
    assert_memory_equal(text, want, n + 1);
}

static void int_is(const meta *md, const char *key, meta_type type, int64_t want) {
    int64_t v = 0;
    const meta_value *x = meta_find(md, key);
    assert_int_equal(meta_type_of(x), type);
    assert_true(meta_as_i64(x, &v));
    assert_int_equal(v, want);
}

/* A file from the Python package `gguf` (tools/make_gguf_fixture.py); the numbers below are what that package reads back. */
static void test_file_of_python_package(void **state) {
    (void)state;
    source *s = open_ok(HEADRACE_TEST_DATA "/python_writer.gguf", LOAD_AUTO);
    const meta *md = source_meta(s);
    assert_int_equal(meta_count(md), 19);
    assert_int_equal(source_container(s), META_GGUF);
    text_is(md, "general.architecture", "llama", 5);
    text_is(md, "v.text",
            "gr\xC3\xBC\xC3\x9F"
            "e \xF0\x9F\x98\x80\nline",
            17);
    int_is(md, "v.u8", META_UINT, 250);
    int_is(md, "v.i8", META_INT, -100);
    int_is(md, "v.u16", META_UINT, 65000);
    int_is(md, "v.i16", META_INT, -30000);
    int_is(md, "v.u32", META_UINT, 4000000000);
    int_is(md, "v.i32", META_INT, -2000000000);
    int_is(md, "v.i64", META_INT, -9000000000000000000);
    int64_t i;
    double d;
    bool b;
    assert_false(meta_as_i64(meta_find(md, "v.u64"), &i)); /* does not fit */
    assert_true(meta_as_real(meta_find(md, "v.u64"), &d));
    assert_true(d == 18000000000000000000.0);
    assert_true(meta_as_real(meta_find(md, "v.f32"), &d));
    assert_true(d == 0.10000000149011612);
    assert_true(meta_as_real(meta_find(md, "v.f64"), &d));
    assert_true(d == 0.1);
    assert_true(meta_as_bool(meta_find(md, "v.yes"), &b) && b);
    assert_true(meta_as_bool(meta_find(md, "v.no"), &b) && !b);
    assert_null(meta_find(md, "v.none"));
    assert_null(meta_find(md, "v"));
    const meta_value *texts = meta_find(md, "a.texts");
    const char *text;
    size_t n;
    assert_true(meta_array_size(texts, &n) && n == 4);
    assert_true(meta_array_string(texts, 1, &text, &n) && n == 0 && text[0] == '\0');
    assert_true(meta_array_string(texts, 2, &text, &n) && n == 5 && strcmp(text, "\xC4\xA0the") == 0);
    assert_true(meta_array_string(texts, 3, &text, &n) && n == 300 && strlen(text) == 300);
    assert_false(meta_array_string(texts, 4, &text, &n));
    assert_false(meta_array_i64(texts, 0, &i));
    assert_true(meta_array_i64(meta_find(md, "a.ints"), 1, &i) && i == -1);
    assert_false(meta_array_i64(meta_find(md, "a.ints"), 3, &i));
    assert_true(meta_array_real(meta_find(md, "a.reals"), 1, &d) && d == -2.25);
    assert_true(meta_array_bool(meta_find(md, "a.bools"), 1, &b) && !b);
    static const struct {
        const char *name;
        vt_dtype dtype;
        int n_dims;
        int64_t dim[3];
        uint64_t off, n_bytes;
        const char *head, *tail;
    } want[] = {
        {"f32", VT_F32, 2, {3, 4, 1}, 1152, 48, "\x00\x00\x00\x00\xab\xaa\xaa\x3e", "\xab\xaa\x6a\x40"},
        {"f16", VT_F16, 2, {2, 5, 1}, 1216, 20, "\x00\x00\x00\x3c\x00\x40\x00\x42", "\x00\x48\x80\x48"},
        {"q8_0", VT_Q8_0, 2, {2, 64, 1}, 1280, 136, "\xdd\x24\x50\xc4\x3d\xa2\xd7\x36", "\x1b\xf0\x15\xfd"},
        {"q4_1", VT_Q4_1, 2, {2, 64, 1}, 1472, 80, "\xb1\x34\xd4\xc0\x8d\x04\x8c\x52", "\x9e\x64\x89\x79"},
        {"stack", VT_I32, 3, {2, 3, 4}, 1600, 96, "\x00\x00\x00\x00\x01\x00\x00\x00", "\x17\x00\x00\x00"},
    };
    assert_int_equal(source_n_tensors(s), sizeof want / sizeof want[0]);
    for (size_t k = 0; k < source_n_tensors(s); k++) {
        const tensor_info *t = source_find(s, want[k].name);
        error err = {0};
        const void *data = NULL;
        assert_non_null(t);
        assert_ptr_equal(t, source_tensor(s, k));
        assert_int_equal(t->dtype, want[k].dtype);
        assert_string_equal(t->type_name, want[k].name[0] == 's' ? "i32" : want[k].name);
        assert_int_equal(t->n_dims, want[k].n_dims);
        assert_memory_equal(t->dim, want[k].dim, sizeof want[k].dim);
        assert_int_equal(t->dim[3], 1);
        assert_int_equal(t->off, want[k].off);
        assert_int_equal(t->n_bytes, want[k].n_bytes);
        assert_int_equal(source_data(s, t, &data, &err), STATUS_OK);
        assert_memory_equal(data, want[k].head, 8);
        assert_memory_equal((const char *)data + t->n_bytes - 4, want[k].tail, 4);
    }
    assert_null(source_find(s, "f3"));
    assert_null(source_find(s, "f322"));
    assert_null(source_find(s, ""));
    source_close(s);
}

/* Each value type of the file, alone and in an array, at odd addresses. */
static void test_each_value_type(void **state) {
    (void)state;
    static const uint8_t bytes[16] = {0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90};
    static const struct {
        uint32_t type;
        size_t n;
        int64_t first, second; /* little endian, from the bytes above */
    } want[] = {{GGUF_W_U8, 1, 0x81, 0x82},
                {GGUF_W_I8, 1, -127, -126},
                {GGUF_W_U16, 2, 0x8281, 0x8483},
                {GGUF_W_I16, 2, -32127, -31613},
                {GGUF_W_U32, 4, 0x84838281, 0x88878685},
                {GGUF_W_I32, 4, -2071756159, -2004384123},
                {GGUF_W_I64, 8, -8608764254683430271, -8030042871978816887}};
    gguf_writer w;
    gguf_writer_init(&w, m);
    char key[32];
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        snprintf(key, sizeof key, "s%zu", i);
        gguf_writer_raw(&w, key, want[i].type, bytes, want[i].n);
        snprintf(key, sizeof key, "array%zu", i);
        gguf_writer_array(&w, key, want[i].type, bytes, want[i].n, 2);
    }
    gguf_writer_array(&w, "empty", GGUF_W_F32, "", 4, 0);
    gguf_writer_texts(&w, "empty_texts", NULL, 0); /* last: nothing follows it */
    assert_true(gguf_writer_save(&w, in_dir("types.gguf")));
    gguf_writer_deinit(&w);
    source *s = open_ok(in_dir("types.gguf"), LOAD_AUTO);
    const meta *md = source_meta(s);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        int64_t v = 0;
        snprintf(key, sizeof key, "s%zu", i);
        assert_true(meta_as_i64(meta_find(md, key), &v));
        assert_int_equal(v, want[i].first);
        snprintf(key, sizeof key, "array%zu", i);
        assert_true(meta_array_i64(meta_find(md, key), 0, &v));
        assert_int_equal(v, want[i].first);
        assert_true(meta_array_i64(meta_find(md, key), 1, &v));
        assert_int_equal(v, want[i].second);
    }
    size_t n = 1;
    const char *text;
    assert_true(meta_array_size(meta_find(md, "empty"), &n) && n == 0);
    assert_true(meta_array_size(meta_find(md, "empty_texts"), &n) && n == 0);
    assert_false(meta_array_string(meta_find(md, "empty_texts"), 0, &text, &n));
    assert_int_equal(source_n_tensors(s), 0);
    source_close(s);
}

/* A vocabulary of this size may not cost an allocation per word. */
static void test_large_array_of_texts(void **state) {
    (void)state;
    enum { N = 100000 };
    gguf_writer w;
    gguf_writer_init(&w, m);
    textbuf words;
    textbuf_init(&words, m, MEM_PROCESS);
    for (int i = 0; i < N; i++) {
        char word[24];
        int len = snprintf(word, sizeof word, "w%d", i * 7);
        uint64_t n = (uint64_t)len;
        textbuf_add(&words, (const char *)&n, sizeof n);
        textbuf_adds(&words, word);
    }
    gguf_writer_array(&w, "words", GGUF_W_STRING, "", 0, N);
    textbuf_add(&w.keys, words.data, words.len);
    assert_true(gguf_writer_save(&w, in_dir("words.gguf")));
    gguf_writer_deinit(&w);
    textbuf_deinit(&words);
    uint64_t before = mem_alloc_count(m);
    source *s = open_ok(in_dir("words.gguf"), LOAD_AUTO);
    assert_true(mem_alloc_count(m) - before < 64);
    mem_usage u;
    mem_get_usage(m, MEM_MODEL, &u);
    assert_true(u.used_bytes < 3 * 1024 * 1024); /* the header's copy (1.5 MB) and 4 bytes for each */
    const meta_value *v = meta_find(source_meta(s), "words");
    before = mem_alloc_count(m);
    for (size_t i = 0; i < N; i += 37) {
        char word[24];
        const char *text;
        size_t n;
        snprintf(word, sizeof word, "w%zu", i * 7);
        assert_true(meta_array_string(v, i, &text, &n));
        assert_string_equal(text, word);
        assert_int_equal(n, strlen(word));
    }
    assert_int_equal(mem_alloc_count(m), before);
    source_close(s);
}

static void add_plain_tensors(gguf_writer *w) {
    static const float data[24] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24};
    gguf_writer_tensor(w, "a", GGUF_T_F32, 2, (int64_t[]){3, 4}, data, 48);
    gguf_writer_tensor(w, "b", GGUF_T_F32, 1, (int64_t[]){5}, data + 12, 20);
    gguf_writer_tensor(w, "scalar", GGUF_T_F32, 0, NULL, data + 23, 4);
}

static void test_versions_and_magic(void **state) {
    (void)state;
    static const struct {
        uint32_t version;
        const char *part;
    } cases[] = {
        {2, NULL}, {3, NULL}, {0, "version 0"}, {1, "version 1"}, {4, "version 4"}, {0x03000000, "big-endian"}, {0x02000000, "big-endian"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gguf_writer w;
        gguf_writer_init(&w, m);
        w.version = cases[i].version;
        gguf_writer_u32(&w, "k", 7);
        add_plain_tensors(&w);
        assert_true(gguf_writer_save(&w, in_dir("version.gguf")));
        gguf_writer_deinit(&w);
        if (cases[i].part != NULL) {
            open_fails(in_dir("version.gguf"), STATUS_UNSUPPORTED, cases[i].part);
            continue;
        }
        source *s = open_ok(in_dir("version.gguf"), LOAD_AUTO);
        int_is(source_meta(s), "k", META_UINT, 7);
        assert_int_equal(source_n_tensors(s), 3);
        source_close(s);
    }
    scratch_dir_write(&dir, "other", "GGML and more", 13);
    open_fails(in_dir("other"), STATUS_UNSUPPORTED, "not a checkpoint");
    scratch_dir_write(&dir, "short", "GG", 2);
    open_fails(in_dir("short"), STATUS_UNSUPPORTED, "not a checkpoint");
    scratch_dir_write(&dir, "magic", "GGUF", 4);
    open_fails(in_dir("magic"), STATUS_FORMAT, "the file ends inside the version");
    open_fails(in_dir("absent.gguf"), STATUS_NOT_FOUND, "absent.gguf");
}

static void test_alignment(void **state) {
    (void)state;
    static const struct {
        uint32_t align;
        bool good;
    } cases[] = {{8, true},  {32, true}, {64, true}, {4096, true}, {1 << 20, true},
                 {0, false}, {1, false}, {4, false}, {24, false},  {1 << 21, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gguf_writer w;
        gguf_writer_init(&w, m);
        w.alignment = cases[i].good ? cases[i].align : 32;
        gguf_writer_u32(&w, "general.alignment", cases[i].align);
        add_plain_tensors(&w);
        assert_true(gguf_writer_save(&w, in_dir("align.gguf")));
        gguf_writer_deinit(&w);
        if (!cases[i].good) {
            open_fails(in_dir("align.gguf"), STATUS_FORMAT, "general.alignment");
            continue;
        }
        source *s = open_ok(in_dir("align.gguf"), LOAD_READ);
        error err = {0};
        float f = 0;
        assert_int_equal(source_find(s, "b")->off % cases[i].align, 0);
        assert_int_equal(source_read(s, source_find(s, "b"), 16, 4, &f, &err), STATUS_OK);
        assert_true(f == 17.0f);
        assert_int_equal(source_read(s, source_find(s, "scalar"), 0, 4, &f, &err), STATUS_OK);
        assert_true(f == 24.0f);
        source_close(s);
    }
    gguf_writer w;
    gguf_writer_init(&w, m);
    gguf_writer_text(&w, "general.alignment", "32");
    assert_true(gguf_writer_save(&w, in_dir("align.gguf")));
    gguf_writer_deinit(&w);
    open_fails(in_dir("align.gguf"), STATUS_FORMAT, "general.alignment");
}

/* A type that we cannot read does not stop a load; its size is what lies before the next tensor. */
static void test_unknown_tensor_types(void **state) {
    (void)state;
    gguf_writer w;
    gguf_writer_init(&w, m);
    gguf_writer_tensor(&w, "q2", 10, 2, (int64_t[]){2, 256}, NULL, 168);
    gguf_writer_tensor(&w, "known", GGUF_T_F32, 1, (int64_t[]){3}, NULL, 12);
    gguf_writer_tensor(&w, "odd", 66, 1, (int64_t[]){7}, NULL, 100);
    assert_true(gguf_writer_save(&w, in_dir("unknown.gguf")));
    gguf_writer_deinit(&w);
    source *s = open_ok(in_dir("unknown.gguf"), LOAD_AUTO);
    const tensor_info *q2 = source_find(s, "q2"), *odd = source_find(s, "odd");
    assert_string_equal(odd->type_name, "type 66");
    assert_int_equal(odd->dtype, VT_NONE);
    assert_int_equal(odd->n_bytes, 128);
    assert_string_equal(q2->type_name, "q2_k");
    if (q2->dtype == VT_NONE) assert_int_equal(q2->n_bytes, 192);
    assert_int_equal(source_find(s, "known")->n_bytes, 12);
    source_close(s);
}

/* --- shards --- */

typedef struct shard_spec {
    int no, count, n_tensors; /* keys; -1: leave it out */
    const char *tensor;
} shard_spec;

static void write_shard(int name_no, int name_count, const shard_spec *k) {
    char name[64];
    gguf_writer w;
    gguf_writer_init(&w, m);
    gguf_writer_text(&w, "general.architecture", "llama");
    if (k->no >= 0) gguf_writer_u16(&w, "split.no", (uint16_t)k->no);
    if (k->count >= 0) gguf_writer_u16(&w, "split.count", (uint16_t)k->count);
    if (k->n_tensors >= 0) gguf_writer_i32(&w, "split.tensors.count", k->n_tensors);
    if (k->tensor != NULL) gguf_writer_tensor(&w, k->tensor, GGUF_T_F32, 1, (int64_t[]){2}, (float[]){(float)name_no, 0.5f}, 8);
    snprintf(name, sizeof name, "m-%05d-of-%05d.gguf", name_no, name_count);
    assert_true(gguf_writer_save(&w, in_dir(name)));
    gguf_writer_deinit(&w);
}

static void test_shards(void **state) {
    (void)state;
    write_shard(1, 3, &(shard_spec){0, 3, 2, NULL}); /* the first may hold metadata only */
    write_shard(2, 3, &(shard_spec){1, 3, 2, "x"});
    write_shard(3, 3, &(shard_spec){2, 3, 2, "y"});
    for (int mode = LOAD_AUTO; mode <= LOAD_READ; mode++) {
        source *s = open_ok(in_dir("m-00001-of-00003.gguf"), (load_mode)mode);
        error err = {0};
        const void *data = NULL;
        assert_int_equal(source_n_files(s), 3);
        assert_int_equal(source_n_tensors(s), 2);
        assert_int_equal(source_find(s, "y")->file, 2);
        assert_non_null(strstr(os_file_path(source_file(s, 2)), "m-00003-of-00003.gguf"));
        assert_int_equal(source_data(s, source_find(s, "x"), &data, &err), STATUS_OK);
        assert_true(((const float *)data)[0] == 2.0f);
        assert_int_equal(source_data(s, source_find(s, "y"), &data, &err), STATUS_OK);
        assert_true(((const float *)data)[0] == 3.0f);
        source_close(s);
    }
    open_fails(in_dir("m-00002-of-00003.gguf"), STATUS_INVALID, "shard 2 of 3: open the first");
}

static void test_shards_that_disagree(void **state) {
    (void)state;
    static const struct {
        shard_spec first, second;
        status code;
        const char *part;
    } cases[] = {
        {{0, 2, 2, "x"}, {1, 2, 2, "x"}, STATUS_FORMAT, "tensor x is there twice"},
        {{0, 2, 2, "x"}, {1, 3, 2, "y"}, STATUS_FORMAT, "split.count is 3"},
        {{0, 2, 2, "x"}, {0, 2, 2, "y"}, STATUS_FORMAT, "split.no is 0"},
        {{0, 2, 2, "x"}, {1, 2, 3, "y"}, STATUS_FORMAT, "split.tensors.count is 3"},
        {{0, 2, 3, "x"}, {1, 2, 3, "y"}, STATUS_FORMAT, "shards hold 2 tensors"},
        {{0, 2, 2, "x"}, {-1, 2, 2, "y"}, STATUS_FORMAT, "split.no is missing"},
        {{0, 2, 2, "x"}, {1, -1, 2, "y"}, STATUS_FORMAT, "split.count is missing"},
        {{0, 2, -1, "x"}, {1, 2, 2, "y"}, STATUS_FORMAT, "split.tensors.count is missing"},
        {{1, 2, 2, "x"}, {1, 2, 2, "y"}, STATUS_FORMAT, "split.no is 1"},
        {{0, 5, 2, "x"}, {1, 2, 2, "y"}, STATUS_FORMAT, "the name says 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_shard(1, 2, &cases[i].first);
        write_shard(2, 2, &cases[i].second);
        open_fails(in_dir("m-00001-of-00002.gguf"), cases[i].code, cases[i].part);
    }
    write_shard(1, 4, &(shard_spec){0, 4, 2, "x"});
    open_fails(in_dir("m-00001-of-00004.gguf"), STATUS_NOT_FOUND, "m-00002-of-00004.gguf");
    char from[SCRATCH_PATH_BYTES], to[SCRATCH_PATH_BYTES];
    assert_int_equal(rename(scratch_dir_path(&dir, "m-00001-of-00004.gguf", from), scratch_dir_path(&dir, "renamed.gguf", to)), 0);
    open_fails(to, STATUS_FORMAT, "the name does not end in -00001-of-00004.gguf");
}

/* --- bytes --- */

typedef struct progress_log {
    uint64_t last, total;
    int n_calls;
} progress_log;

static void log_progress(void *ctx, uint64_t done, uint64_t total) {
    progress_log *p = ctx;
    assert_true(done >= p->last && done <= total);
    p->last = done;
    p->total = total;
    p->n_calls++;
}

static void write_plain(const char *name) {
    gguf_writer w;
    gguf_writer_init(&w, m);
    add_plain_tensors(&w);
    assert_true(gguf_writer_save(&w, in_dir(name)));
    gguf_writer_deinit(&w);
}

static void test_modes(void **state) {
    (void)state;
    write_plain("modes.gguf");
    for (int mode = LOAD_AUTO; mode <= LOAD_READ; mode++) {
        progress_log seen = {0};
        source_options opt = {.mode = (load_mode)mode, .progress = log_progress, .progress_ctx = &seen};
        source *s = NULL;
        error err = {0};
        mem_usage u;
        assert_int_equal(source_open(m, in_dir("modes.gguf"), &opt, &s, &err), STATUS_OK);
        assert_int_equal(source_is_mapped(s), mode != LOAD_READ);
        mem_get_usage(m, MEM_WEIGHTS, &u);
        assert_int_equal(u.used_bytes, 0);
        for (int round = 0; round < 2; round++)
            for (size_t i = 0; i < 3; i++) {
                const void *p = NULL, *again = NULL;
                const tensor_info *t = source_tensor(s, i);
                uint8_t copy[48];
                assert_int_equal(source_data(s, t, &p, &err), STATUS_OK);
                assert_int_equal(source_data(s, t, &again, &err), STATUS_OK);
                assert_ptr_equal(p, again);
                assert_int_equal(source_read(s, t, 0, t->n_bytes, copy, &err), STATUS_OK);
                assert_memory_equal(p, copy, t->n_bytes);
            }
        mem_get_usage(m, MEM_WEIGHTS, &u);
        if (mode == LOAD_READ) {
            assert_true(u.used_bytes >= 72 && u.n_live == 3);
            assert_int_equal(seen.n_calls, 3);
            assert_int_equal(seen.last, 72);
            assert_int_equal(seen.total, 72);
        } else {
            assert_int_equal(u.used_bytes, 0);
            assert_int_equal(seen.n_calls, 0);
        }
        assert_true(source_intact(s));
        source_close(s);
    }
}

static void test_read_ranges(void **state) {
    (void)state;
    write_plain("ranges.gguf");
    source *s = open_ok(in_dir("ranges.gguf"), LOAD_READ);
    const tensor_info *a = source_find(s, "a");
    uint8_t buf[48];
    error err = {0};
    assert_int_equal(source_read(s, a, 44, 4, buf, &err), STATUS_OK);
    assert_true(*(const float *)(const void *)buf == 12.0f);
    assert_int_equal(source_read(s, a, 48, 0, buf, &err), STATUS_OK);
    assert_int_equal(source_read(s, a, 45, 4, buf, &err), STATUS_INVALID);
    assert_int_equal(source_read(s, a, UINT64_MAX, 2, buf, &err), STATUS_INVALID);
    assert_int_equal(source_read(s, a, 2, UINT64_MAX, buf, &err), STATUS_INVALID);
    source_close(s);
}

static void test_read_is_budgeted(void **state) {
    (void)state;
    write_plain("budget.gguf");
    source *s = open_ok(in_dir("budget.gguf"), LOAD_READ);
    const void *p = NULL;
    error err = {0};
    assert_int_equal(mem_set_limit(m, MEM_WEIGHTS, 40), STATUS_OK);
    assert_int_equal(source_data(s, source_find(s, "a"), &p, &err), STATUS_NO_MEMORY);
    assert_null(p);
    assert_non_null(strstr(err.text, "weights"));
    assert_non_null(strstr(err.text, "budget.gguf"));
    assert_int_equal(mem_set_limit(m, MEM_WEIGHTS, SIZE_MAX), STATUS_OK);
    assert_int_equal(source_data(s, source_find(s, "a"), &p, &err), STATUS_OK);
    source_close(s);
}

typedef struct asker {
    source *s;
    const void *p[3];
    status rc;
} asker;

static void *ask(void *ctx) {
    asker *a = ctx;
    for (size_t i = 0; i < 3 && a->rc == STATUS_OK; i++) a->rc = source_data(a->s, source_tensor(a->s, i), &a->p[i], NULL);
    return NULL;
}

static void test_reading_from_threads(void **state) {
    (void)state;
    enum { N = 4 };
    write_plain("threads.gguf");
    source *s = open_ok(in_dir("threads.gguf"), LOAD_READ);
    pthread_t threads[N];
    asker askers[N];
    for (int i = 0; i < N; i++) {
        askers[i] = (asker){.s = s};
        assert_int_equal(pthread_create(&threads[i], NULL, ask, &askers[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(askers[i].rc, STATUS_OK);
        assert_memory_equal(askers[i].p, askers[0].p, sizeof askers[0].p);
    }
    mem_usage u;
    mem_get_usage(m, MEM_WEIGHTS, &u);
    assert_int_equal(u.n_live, 3);
    source_close(s);
}

/* --- files that shrink --- */

static void test_shrinking_after_open(void **state) {
    (void)state;
    for (int mode = LOAD_MAP; mode <= LOAD_READ; mode++) {
        write_plain("shrink.gguf");
        source *s = open_ok(in_dir("shrink.gguf"), (load_mode)mode);
        const tensor_info *t = source_find(s, "scalar");
        const void *p = NULL;
        float f;
        error err = {0};
        assert_true(source_intact(s));
        assert_int_equal(truncate(in_dir("shrink.gguf"), 100), 0);
        assert_false(source_intact(s));
        assert_int_equal(source_read(s, t, 0, 4, &f, &err), STATUS_IO);
        if (mode == LOAD_READ) {
            assert_int_equal(source_data(s, t, &p, &err), STATUS_IO);
            assert_non_null(strstr(err.text, "scalar"));
        } else
            assert_int_equal(source_data(s, t, &p, &err), STATUS_OK);
        source_close(s);
    }
}

/* Cuts the file when the n-th read begins. */
typedef struct cutter {
    int n_reads, cut_at;
    const char *path;
} cutter;

static status cutting_read(void *ctx, const os_file *f, uint64_t off, void *dst, size_t n, error *err) {
    cutter *c = ctx;
    if (c->n_reads++ == c->cut_at) assert_int_equal(truncate(c->path, 30), 0);
    return os_file_read(f, off, dst, n, err);
}

static void test_shrinking_while_open(void **state) {
    (void)state;
    int n_cases = 0;
    for (int cut_at = 0; cut_at < 2; cut_at++)
        for (int mode = LOAD_AUTO; mode <= LOAD_READ; mode++) {
            write_plain("cut.gguf");
            cutter c = {.cut_at = cut_at, .path = in_dir("cut.gguf")};
            source *s = NULL;
            error err = {0};
            status rc = source_open_with(m, c.path, &(source_options){.mode = (load_mode)mode}, cutting_read, &c, &s, &err);
            assert_int_equal(rc,
                             cut_at == 0 ? STATUS_FORMAT : STATUS_IO); /* before the container opens the file, it is just a short file */
            assert_true(c.n_reads > cut_at);
            n_cases++;
        }
    assert_int_equal(n_cases, 6);
}

/* The last read of a header, then the cut: only the size tells. */
static status read_then_cut(void *ctx, const os_file *f, uint64_t off, void *dst, size_t n, error *err) {
    status rc = os_file_read(f, off, dst, n, err);
    cutter *c = ctx;
    if (c->n_reads++ == c->cut_at) assert_int_equal(truncate(c->path, 30), 0);
    return rc;
}

static void test_shrinking_behind_the_header(void **state) {
    (void)state;
    for (int mode = LOAD_AUTO; mode <= LOAD_READ; mode++) {
        write_plain("cut.gguf");
        cutter c = {.cut_at = 1, .path = in_dir("cut.gguf")};
        source *s = NULL;
        error err = {0};
        assert_int_equal(source_open_with(m, c.path, &(source_options){.mode = (load_mode)mode}, read_then_cut, &c, &s, &err), STATUS_IO);
        assert_int_equal(c.n_reads, 2);
    }
}

static void test_formatting(void **state) {
    (void)state;
    static const struct {
        const char *key, *want;
    } cases[] = {{"v.i8", "-100"},
                 {"v.u64", "18000000000000000000"},
                 {"v.f64", "0.1"},
                 {"v.yes", "true"},
                 {"v.text", "\"gr\xC3\xBC\xC3\x9F"
                            "e \xF0\x9F\x98\x80\\nline\""},
                 {"a.ints", "[3] 3, -1, 7"},
                 {"a.reals", "[2] 0.5, -2.25"},
                 {"v.none", "absent"}};
    source *s = open_ok(HEADRACE_TEST_DATA "/python_writer.gguf", LOAD_AUTO);
    textbuf out;
    textbuf_init(&out, m, MEM_PROCESS);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        textbuf_clear(&out);
        meta_format(meta_find(source_meta(s), cases[i].key), &out);
        assert_string_equal(textbuf_text(&out), cases[i].want);
    }
    textbuf_clear(&out);
    meta_format(meta_find(source_meta(s), "a.texts"), &out);
    assert_non_null(strstr(textbuf_text(&out), "... (300 bytes)"));
    textbuf_deinit(&out);
    source_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_of_python_package),
        cmocka_unit_test(test_each_value_type),
        cmocka_unit_test(test_large_array_of_texts),
        cmocka_unit_test(test_versions_and_magic),
        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_unknown_tensor_types),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_shards_that_disagree),
        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_read_ranges),
        cmocka_unit_test(test_read_is_budgeted),
        cmocka_unit_test(test_reading_from_threads),
        cmocka_unit_test(test_shrinking_after_open),
        cmocka_unit_test(test_shrinking_while_open),
        cmocka_unit_test(test_shrinking_behind_the_header),
        cmocka_unit_test(test_formatting),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
