/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors directories that are right: files of the Python package, configuration, binding, names of the Hugging Face cache. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "load/bind.h"
#include "load/hparams.h"
#include "load/hub_cache.h"
#include "load/source.h"
#include "support/scratch_dir.h"

#define PYTHON_DIR HEADRACE_TEST_DATA "/python_safetensors"

static scratch_dir dir;
static mem *m;

static int set_up(void **state) {
    (void)state;
    return mem_create(&m) == STATUS_OK && scratch_dir_create(&dir) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    scratch_dir_destroy(&dir);
    return mem_destroy(m) == STATUS_OK ? 0 : -1;
}

static source *open_ok(const char *path, load_mode mode) {
    source *s = NULL;
    error err = {0};
    if (source_open(m, path, &(source_options){.mode = mode}, &s, &err) != STATUS_OK) fail_msg("%s", err.text);
    return s;
}

/* What the Python package reads in the files that it wrote (tools/make_safetensors_fixture.py): all 22 dtypes. */
static void test_files_of_python_package(void **state) {
    (void)state;
    static const struct {
        const char *name;
        vt_dtype dtype;
        int n_dims;
        int64_t dim[4];
        uint32_t file;
        uint64_t off, n_bytes;
    } want[] = {
        {"BF16", VT_BF16, 2, {2, 3, 1, 1}, 0, 1772, 12},       {"BOOL", VT_NONE, 2, {2, 3, 1, 1}, 0, 1894, 6},
        {"C64", VT_NONE, 2, {2, 3, 1, 1}, 0, 1648, 48},        {"F16", VT_F16, 2, {2, 3, 1, 1}, 0, 1808, 12},
        {"F32", VT_F32, 2, {2, 3, 1, 1}, 0, 1696, 24},         {"F4", VT_F4_E2M1, 2, {2, 8, 1, 1}, 0, 1886, 8},
        {"F64", VT_NONE, 2, {2, 3, 1, 1}, 0, 1600, 48},        {"F8_E4M3", VT_F8_E4M3, 2, {2, 3, 1, 1}, 0, 1862, 6},
        {"F8_E4M3FNUZ", VT_NONE, 2, {2, 3, 1, 1}, 0, 1850, 6}, {"F8_E5M2", VT_NONE, 2, {2, 3, 1, 1}, 0, 1868, 6},
        {"F8_E5M2FNUZ", VT_NONE, 2, {2, 3, 1, 1}, 0, 1844, 6}, {"F8_E8M0", VT_F8_E8M0, 2, {2, 3, 1, 1}, 0, 1856, 6},
        {"I16", VT_NONE, 2, {2, 3, 1, 1}, 0, 1832, 12},        {"I32", VT_I32, 2, {2, 3, 1, 1}, 0, 1748, 24},
        {"I64", VT_I64, 2, {2, 3, 1, 1}, 0, 1552, 48},         {"I8", VT_I8, 2, {2, 3, 1, 1}, 0, 1874, 6},
        {"U16", VT_NONE, 2, {2, 3, 1, 1}, 0, 1820, 12},        {"U32", VT_NONE, 2, {2, 3, 1, 1}, 0, 1724, 24},
        {"U64", VT_NONE, 2, {2, 3, 1, 1}, 0, 1504, 48},        {"U8", VT_U8, 2, {2, 3, 1, 1}, 0, 1880, 6},
        {"F6_E2M3", VT_NONE, 1, {4, 1, 1, 1}, 1, 222, 3},      {"F6_E3M2", VT_NONE, 2, {2, 4, 1, 1}, 1, 225, 6},
        {"empty", VT_F32, 2, {0, 5, 1, 1}, 0, 1720, 0},        {"scalar", VT_F32, 0, {1, 1, 1, 1}, 0, 1720, 4},
        {"odd", VT_F8_E4M3, 1, {1, 1, 1, 1}, 1, 221, 1},       {"conv3d", VT_NONE, 1, {24 / 2, 1, 1, 1}, 0, 1784, 24},
    };
    enum { N = sizeof want / sizeof want[0], N_DTYPES = 22 };
    for (int mode = LOAD_AUTO; mode <= LOAD_READ; mode++) {
        source *s = open_ok(PYTHON_DIR, (load_mode)mode);
        assert_int_equal(source_container(s), META_HF);
        assert_int_equal(source_n_files(s), 2);
        assert_int_equal(source_n_tensors(s), N);
        for (size_t i = 0; i < N; i++) {
            const tensor_info *t = source_find(s, want[i].name);
            error err = {0};
            const void *data = NULL;
            assert_non_null(t);
            if (i < N_DTYPES) assert_string_equal(t->type_name, want[i].name);
            assert_int_equal(t->dtype, want[i].dtype);
            assert_int_equal(t->n_dims, want[i].n_dims);
            assert_memory_equal(t->dim, want[i].dim, sizeof want[i].dim);
            assert_int_equal(t->file, want[i].file);
            assert_int_equal(t->off, want[i].off);
            assert_int_equal(t->n_bytes, want[i].n_bytes);
            assert_int_equal(source_data(s, t, &data, &err), STATUS_OK);
            for (size_t k = 0; k < t->n_bytes && want[i].file == 0; k++) assert_int_equal(((const uint8_t *)data)[k], k);
        }
        assert_string_equal(source_find(s, "conv3d")->type_name, "BF16 of 5 dimensions");
        source_close(s);
    }
}

static void number_is(const meta *md, const char *key, double want) {
    double r = -1;
    if (!meta_as_real(meta_find(md, key), &r) || r < want || r > want) fail_msg("%s is %g, not %g", key, r, want);
}

static void test_configuration(void **state) {
    (void)state;
    source *s = open_ok(PYTHON_DIR, LOAD_AUTO);
    const meta *md = source_meta(s);
    const char *text;
    size_t n;
    int64_t i;
    bool b;
    number_is(md, "hidden_size", 80); /* text_config before the outside */
    number_is(md, "vocab_size", 77);  /* only outside */
    number_is(md, "bos_token_id", 2); /* null inside */
    number_is(md, "head_dim", 16);    /* and never what another part says */
    number_is(md, "text_config.head_dim", 16);
    number_is(md, "vision_config.head_dim", 99);
    number_is(md, "rms_norm_eps", 1e-6);
    number_is(md, "rope_parameters.full_attention.factor", 8);
    assert_null(meta_find(md, "rope_parameters.full_attention.factor.x"));
    assert_null(meta_find(md, "sliding_window"));
    assert_int_equal(meta_type_of(meta_find(md, "hidden_size")), META_INT);
    assert_true(meta_as_bool(meta_find(md, "tie_word_embeddings"), &b) && b);
    assert_true(meta_array_string(meta_find(md, "layer_types"), 1, &text, &n) && strcmp(text, "sliding_attention") == 0);
    assert_true(meta_array_string(meta_find(md, "architectures"), 0, &text, &n) && strcmp(text, "XForConditionalGeneration") == 0);
    number_is(md, "@generation_config.temperature", 0.6);
    assert_true(meta_array_i64(meta_find(md, "@generation_config.eos_token_id"), 1, &i) && i == 106);
    assert_null(meta_find(md, "generation_config.temperature"));
    /* an integer of 31 digits; the others of its file stay integers */
    number_is(md, "@tokenizer_config.model_max_length", 1e30);
    assert_false(meta_as_i64(meta_find(md, "@tokenizer_config.model_max_length"), &i));
    assert_true(meta_as_i64(meta_find(md, "@tokenizer_config.n"), &i) && i == 9007199254740991);
    assert_int_equal(meta_type_of(meta_find(md, "@tokenizer_config.n")), META_INT);
    assert_true(meta_as_string(meta_find(md, "@tokenizer_config.added_tokens_decoder.0.content"), &text, &n) && strcmp(text, "<pad>") == 0);
    assert_null(meta_find(md, "@other.x"));
    assert_int_equal(meta_count(md), 9);
    assert_string_equal(meta_key(md, 1), "model_type");
    source_close(s);
}

static void test_hparams(void **state) {
    (void)state;
    static const hparam_row rows[] = {
        HPARAM(n_embd, HPARAM_COUNT, "n_embd|hidden_size", NULL, 1, 1000, NAN, HPARAM_REQUIRED),
        HPARAM(window, HPARAM_COUNT, "sliding_window", "w", 1, 1000, 5, 0),
        HPARAM(eos_id, HPARAM_COUNT, "@generation_config.eos_token_id|eos_token_id", NULL, 0, 1000, NAN, HPARAM_FIRST),
        HPARAM(norm_eps, HPARAM_NUMBER, "rope_scaling.factor|rope_parameters.full_attention.factor", NULL, 1, 100, NAN, 0),
        HPARAM(tie_embeddings, HPARAM_FLAG, "tie_word_embeddings", NULL, 0, 1, NAN, 0),
        HPARAM(n_vocab, HPARAM_COUNT, NULL, "=gguf.only", 1, 10, NAN, HPARAM_REQUIRED),
        HPARAM(n_heads, HPARAM_COUNT, "num_attention_heads|n_head", NULL, 1, 10, NAN, HPARAM_REQUIRED),
        HPARAM(bos_id, HPARAM_FLAG, "hidden_size", NULL, 1, 10, NAN, HPARAM_REQUIRED),
    };
    source *s = open_ok(PYTHON_DIR, LOAD_AUTO);
    hparams h;
    textbuf report;
    textbuf_init(&report, m, MEM_PROCESS);
    hparams_init(&h);
    assert_int_equal(hparams_read(&h, source_meta(s), NULL, rows, sizeof rows / sizeof rows[0], &report), STATUS_FORMAT);
    assert_string_equal(textbuf_text(&report), "num_attention_heads: missing, expected a number\nhidden_size: found 80, expected true or false\n");
    assert_int_equal(h.n_embd, 80);
    assert_int_equal(h.window, 5); /* null is absent */
    assert_int_equal(h.eos_id, 1);
    assert_true(h.norm_eps == 8.0);
    assert_int_equal(h.tie_embeddings, 1);
    textbuf_deinit(&report);
    source_close(s);
}

static void test_files_beside(void **state) {
    (void)state;
    source *s = open_ok(PYTHON_DIR, LOAD_AUTO), *gguf = open_ok(HEADRACE_TEST_DATA "/python_writer.gguf", LOAD_AUTO);
    char *text = NULL;
    size_t n = 0;
    error err = {0};
    mem_usage u;
    assert_int_equal(source_read_sibling(s, MEM_TOKENIZER, "generation_config.json", 1000, &text, &n, &err), STATUS_OK);
    assert_int_equal(strlen(text), n);
    assert_non_null(strstr(text, "\"temperature\": 0.6"));
    mem_get_usage(m, MEM_TOKENIZER, &u);
    assert_int_equal(u.n_live, 1);
    mem_free(m, text);
    assert_int_equal(source_read_sibling(s, MEM_TOKENIZER, "generation_config.json", n - 1, &text, &n, &err), STATUS_FORMAT);
    assert_int_equal(source_read_sibling(s, MEM_TOKENIZER, "generation_config.json", n, &text, &n, &err), STATUS_OK);
    mem_free(m, text);
    assert_int_equal(source_read_sibling(s, MEM_TOKENIZER, "tokenizer.json", 1000, &text, &n, &err), STATUS_NOT_FOUND);
    assert_int_equal(source_read_sibling(s, MEM_TOKENIZER, "../python_writer.gguf", 10000, &text, &n, &err), STATUS_INVALID);
    assert_int_equal(source_read_sibling(s, MEM_TOKENIZER, "..", 10000, &text, &n, &err), STATUS_INVALID);
    assert_int_equal(source_read_sibling(gguf, MEM_TOKENIZER, "generation_config.json", 10000, &text, &n, &err), STATUS_NOT_FOUND);
    source_close(gguf);
    source_close(s);
}

/* --- files written here --- */

static void write_st(const char *name, const char *header, size_t n_data) {
    char buf[8192] = {0};
    uint64_t n = strlen(header);
    memcpy(buf, &n, 8);
    memcpy(buf + 8, header, n);
    for (size_t i = 0; i < n_data; i++) buf[8 + n + i] = (char)i;
    assert_true(8 + n + n_data <= sizeof buf && scratch_dir_write(&dir, name, buf, 8 + n + n_data));
}

static void write_text(const char *name, const char *text) { assert_true(scratch_dir_write(&dir, name, text, strlen(text))); }

/* Names with the prefixes of multimodal checkpoints fill the rows of the text model. */
static void test_bind_under_prefixes(void **state) {
    (void)state;
    static const weight_row rows[] = {
        {0, "model.embed_tokens.weight", "x", "2", 0, WEIGHT_AS_IS, WEIGHT_AS_IS},
        {1, "model.layers.{l}.a.weight", "x", "2", WEIGHT_PER_LAYER, WEIGHT_NORM_PLUS_ONE, WEIGHT_AS_IS},
        {2, "lm_head.weight|model.embed_tokens.weight", "x", "2", 0, WEIGHT_AS_IS, WEIGHT_AS_IS},
        {3, NULL, "only.gguf", "2", 0, WEIGHT_AS_IS, WEIGHT_AS_IS},
    };
    static const char *const prefixes[] = {"model.", "model.language_model.", "language_model.model."};
    write_text("config.json", "{}");
    for (size_t i = 0; i < 3; i++) {
        char header[512];
        textbuf report;
        binding *b = NULL;
        bind_options opt = {.rows = rows, .n_rows = 4, .n_slots = 4, .n_layers = 2, .ignore = (const char *const[]){"*vision*", NULL}};
        snprintf(header, sizeof header,
                 "{\"%sembed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                 "\"%slayers.0.a.weight\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[8,12]},"
                 "\"%slayers.1.a.weight\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[12,16]},"
                 "\"model.vision_tower.x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[16,17]}%s}",
                 prefixes[i], prefixes[i], prefixes[i],
                 i == 2 ? ",\"language_model.lm_head.weight\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[17,21]}" : "");
        write_st("model.safetensors", header, i == 2 ? 21 : 17);
        source *s = open_ok(dir.path, LOAD_AUTO);
        textbuf_init(&report, m, MEM_PROCESS);
        status rc = bind_weights(m, s, &opt, &b, &report);
        assert_string_equal(textbuf_text(&report), "");
        assert_int_equal(rc, STATUS_OK);
        assert_string_equal(binding_get(b, 1, 1)->info->name + strlen(prefixes[i]), "layers.1.a.weight");
        assert_int_equal(binding_get(b, 1, 1)->transform, WEIGHT_NORM_PLUS_ONE);
        assert_string_equal(binding_get(b, 2, -1)->info->name,
                            i == 2 ? "language_model.lm_head.weight" : binding_get(b, 0, -1)->info->name);
        assert_int_equal(binding_n_ignored(b), 1);
        binding_destroy(b);
        textbuf_deinit(&report);
        source_close(s);
    }
}

/* One file wins over an index beside it, as in Transformers. */
static void test_single_file_first(void **state) {
    (void)state;
    write_text("config.json", "{\"x\": 1}");
    write_text("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"gone.safetensors\"}}");
    write_st("model.safetensors", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
    source *s = open_ok(dir.path, LOAD_AUTO);
    assert_int_equal(source_n_tensors(s), 1);
    source_close(s);
    char path[SCRATCH_PATH_BYTES];
    source *none = NULL;
    error err = {0};
    assert_int_equal(unlink(scratch_dir_path(&dir, "model.safetensors", path)), 0);
    assert_int_equal(source_open(m, dir.path, NULL, &none, &err), STATUS_NOT_FOUND);
    assert_non_null(strstr(err.text, "gone.safetensors"));
    assert_int_equal(unlink(scratch_dir_path(&dir, "model.safetensors.index.json", path)), 0);
    assert_int_equal(source_open(m, dir.path, NULL, &none, &err), STATUS_NOT_FOUND);
    assert_non_null(strstr(err.text, "holds no model.safetensors"));
    assert_int_equal(unlink(scratch_dir_path(&dir, "config.json", path)), 0);
    assert_int_equal(source_open(m, dir.path, NULL, &none, &err), STATUS_NOT_FOUND);
    assert_non_null(strstr(err.text, "config.json"));
}

/* Two elements in a byte: rows of an odd number of them have no bytes of their own. */
static void test_odd_rows_of_f4(void **state) {
    (void)state;
    write_text("config.json", "{}");
    write_st("model.safetensors", "{\"a\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[0,3]}}", 3);
    source *s = open_ok(dir.path, LOAD_AUTO);
    assert_int_equal(source_find(s, "a")->dtype, VT_NONE);
    assert_int_equal(source_find(s, "a")->n_bytes, 3);
    source_close(s);
}

/* A file given in place of its directory. */
static void test_file_instead_of_directory(void **state) {
    (void)state;
    source *none = NULL;
    error err = {0};
    assert_int_equal(source_open(m, PYTHON_DIR "/model-00001-of-00002.safetensors", NULL, &none, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.text, "open the directory"));
}

/* --- the cache --- */

static void test_form_of_names(void **state) {
    (void)state;
    static const char *const good[] = {"org/name",           "Org-1/na.me_2-B",  "org/name@main",
                                       "org/name@refs/pr/1", "org/name@0123abc", "a/b@v1.0"};
    static const char *const bad[] = {"name",
                                      "/name",
                                      "org/",
                                      "org/name/x",
                                      "./name",
                                      "../name",
                                      "org/..",
                                      "org/.x",
                                      "org/name@",
                                      "org/name@.",
                                      "org/name@../x",
                                      "org/name@a//b",
                                      "org/name@a/../b",
                                      "org/name@/a",
                                      "org/name@a/",
                                      "or g/name",
                                      "org/na\nme",
                                      "-o/name",
                                      "org/-name",
                                      "@/a",
                                      ""};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) assert_true(hub_cache_is_name(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (hub_cache_is_name(bad[i])) fail_msg("\"%s\" passes", bad[i]);
}

static void make_dir(const char *name) {
    char path[SCRATCH_PATH_BYTES];
    assert_int_equal(mkdir(scratch_dir_path(&dir, name, path), 0755), 0);
}

static void name_opens(const char *name, const char *part) {
    source *s = open_ok(name, LOAD_AUTO);
    assert_non_null(strstr(source_path(s), part));
    assert_int_equal(source_n_tensors(s), 1);
    source_close(s);
}

static void name_fails(const char *name, status code, const char *part) {
    source *s = NULL;
    error err = {0};
    assert_int_equal(source_open(m, name, NULL, &s, &err), code);
    if (strstr(err.text, part) == NULL) fail_msg("\"%s\" does not say \"%s\"", err.text, part);
}

static void test_cache(void **state) {
    (void)state;
    char hub[SCRATCH_PATH_BYTES];
    make_dir("hub");
    make_dir("hub/models--org--name");
    make_dir("hub/models--org--name/refs");
    make_dir("hub/models--org--name/refs/refs");
    make_dir("hub/models--org--name/refs/refs/pr");
    make_dir("hub/models--org--name/snapshots");
    make_dir("hub/models--org--name/snapshots/abc1");
    make_dir("hub/models--org--name/snapshots/def2");
    write_text("hub/models--org--name/refs/main", "abc1");
    write_text("hub/models--org--name/refs/old", "def2\n");
    write_text("hub/models--org--name/refs/refs/pr/3", "def2");
    write_text("hub/models--org--name/refs/lost", "0000");
    write_text("hub/models--org--name/refs/evil", "../../../..");
    for (int i = 0; i < 2; i++) {
        char name[64];
        snprintf(name, sizeof name, "hub/models--org--name/snapshots/%s/config.json", i == 0 ? "abc1" : "def2");
        write_text(name, "{}");
        snprintf(name, sizeof name, "hub/models--org--name/snapshots/%s/model.safetensors", i == 0 ? "abc1" : "def2");
        write_st(name, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
    }
    scratch_dir_path(&dir, "hub", hub);
    setenv("HF_HUB_CACHE", hub, 1);
    name_opens("org/name", "/snapshots/abc1");
    name_opens("org/name@main", "/snapshots/abc1");
    name_opens("org/name@old", "/snapshots/def2");
    name_opens("org/name@refs/pr/3", "/snapshots/def2");
    name_opens("org/name@def2", "/snapshots/def2"); /* a commit itself */
    name_fails("org/name@none", STATUS_NOT_FOUND, "hf download org/name --revision none");
    name_fails("org/name@lost", STATUS_NOT_FOUND, "hf download org/name --revision lost");
    name_fails("org/other", STATUS_NOT_FOUND, "hf download org/other");
    name_fails("org/name@evil", STATUS_FORMAT, "does not hold a commit");
    name_fails("../org/name", STATUS_NOT_FOUND, "cannot open");
    setenv("HF_HUB_CACHE", "", 1); /* empty is unset */
    setenv("HF_HOME", dir.path, 1);
    name_opens("org/name", "/snapshots/abc1");
    unsetenv("HF_HOME");
    setenv("XDG_CACHE_HOME", dir.path, 1);
    name_fails("org/name", STATUS_NOT_FOUND, "/huggingface/hub)");
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", dir.path, 1);
    name_fails("org/name", STATUS_NOT_FOUND, "/.cache/huggingface/hub)");
    setenv("HF_HOME", "~", 1); /* as the library that fills it reads a leading ~ */
    name_opens("org/name", "/snapshots/abc1");
    setenv("HF_HUB_CACHE", "~/hub", 1);
    unsetenv("HF_HOME");
    name_opens("org/name", "/snapshots/abc1");
    make_dir("hub/models--org--name/snapshots/0000"); /* what a download of GGUF files, or one that was cut, leaves */
    name_fails("org/name@lost", STATUS_NOT_FOUND, "name a .gguf of");
    name_fails("org/name@lost", STATUS_NOT_FOUND, "snapshots/0000");
    setenv("HF_HUB_CACHE", "", 1);
    unsetenv("HOME");
    name_fails("org/name", STATUS_NOT_FOUND, "HOME is not set");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_of_python_package),
        cmocka_unit_test(test_configuration),
        cmocka_unit_test(test_hparams),
        cmocka_unit_test(test_files_beside),
        cmocka_unit_test(test_bind_under_prefixes),
        cmocka_unit_test(test_single_file_first),
        cmocka_unit_test(test_file_instead_of_directory),
        cmocka_unit_test(test_odd_rows_of_f4),
        cmocka_unit_test(test_form_of_names),
        cmocka_unit_test(test_cache),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
