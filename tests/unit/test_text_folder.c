/* SPDX-License-Identifier: Apache-2.0 */
/* What the files beside a tokenizer.json add to it: tokens around each text, ends, the chat template. */
#include "support/test_case.h"
#include "support/text_case.h"

static mem *m;
static scratch_dir dir;

static int set_up(void **state) {
    (void)state;
    return scratch_dir_create(&dir) && mem_create(&m) == STATUS_OK ? 0 : 1;
}

static int tear_down(void **state) {
    (void)state;
    scratch_dir_destroy(&dir);
    return mem_destroy(m) == STATUS_OK ? 0 : 1;
}

static const char bos_template[] = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},"
                                   "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\","
                                   "\"ids\":[2],\"tokens\":[\"<s>\"]}}}";
static const char byte_level[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}";

static void write_text(const char *name, const char *text) {
    char path[SCRATCH_PATH_BYTES];
    if (text)
        assert_true(scratch_dir_write(&dir, name, text, strlen(text)));
    else
        (void)remove(scratch_dir_path(&dir, name, path));
}

/* a, b, <s>, </s>, <e>, with the files beside; NULL: none. */
static status open_folder(const char *post, const char *config, const char *generation, tokenizer **t, error *err) {
    static const char tensors[] = "\x40\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,2]}}         \1\2";
    char json[2048];
    source *s = NULL;
    snprintf(json, sizeof json,
             "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":2,\"content\":\"<s>\",\"special\":true},{\"id\":3,\"content\":\"</"
             "s>\",\"special\":true},"
             "{\"id\":4,\"content\":\"<e>\",\"special\":true}],"
             "\"normalizer\":null,\"pre_tokenizer\":%s,\"post_processor\":%s,\"decoder\":%s,"
             "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"<s>\":2,\"</s>\":3,\"<e>\":4},\"merges\":[]}}",
             byte_level, post ? post : "null", byte_level);
    write_text("config.json", "{}");
    write_text("tokenizer.json", json);
    write_text("tokenizer_config.json", config);
    write_text("generation_config.json", generation);
    assert_true(scratch_dir_write(&dir, "model.safetensors", tensors, sizeof tensors - 1));
    if (source_open(m, dir.path, NULL, &s, err) != STATUS_OK) fail_msg("%s", err->text);
    status rc = tokenizer_open(m, s, NULL, t, err);
    source_close(s);
    return rc;
}

/* The tokenizer.json decides; where it adds nothing, tokenizer_config.json does. */
static void tokens_around_a_text(void **state) {
    (void)state;
    static const struct {
        const char *post, *config;
        size_t n;
        int32_t ids[4];
        bool adds;
        int32_t bos;
    } cases[] = {
        {NULL, NULL, 1, {0}, false, -1},
        {NULL, "{\"bos_token\":\"<s>\"}", 1, {0}, false, 2},
        {NULL, "{\"bos_token\":\"<s>\",\"add_bos_token\":false}", 1, {0}, false, 2},
        {NULL, "{\"bos_token\":\"<s>\",\"add_bos_token\":null}", 1, {0}, false, 2},
        {NULL, "{\"bos_token\":\"<s>\",\"add_bos_token\":true}", 2, {2, 0}, true, 2},
        {NULL,
         "{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"</s>\",\"add_bos_token\":true,\"add_eos_token\":true}",
         3,
         {2, 0, 3},
         true,
         2},
        {NULL, "{\"add_bos_token\":true}", 1, {0}, false, -1},
        {NULL, "{\"bos_token\":null,\"add_bos_token\":true}", 1, {0}, false, -1},
        {byte_level, "{\"bos_token\":\"<s>\",\"add_bos_token\":true}", 2, {2, 0}, true, 2},
        {bos_template, NULL, 2, {2, 0}, true, 2},
        {bos_template, "{\"bos_token\":\"<s>\",\"add_bos_token\":false}", 2, {2, 0}, true, 2},
        {bos_template, "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"add_bos_token\":true,\"add_eos_token\":true}", 2, {2, 0}, true, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tokenizer *t = NULL;
        token_list ids;
        error err = {0};
        if (open_folder(cases[i].post, cases[i].config, NULL, &t, &err) != STATUS_OK) fail_msg("case %zu: %s", i, err.text);
        token_list_init(&ids, m, MEM_REQUEST);
        assert_int_equal(tokenizer_encode(t, "a", 1, TOKENIZER_BOS_DEFAULT, true, &ids, &err), STATUS_OK);
        if (ids.n != cases[i].n || memcmp(ids.ids, cases[i].ids, ids.n * sizeof *ids.ids) != 0)
            fail_msg("case %zu: %zu ids, the first %d", i, ids.n, ids.ids[0]);
        assert_int_equal(tokenizer_adds_bos(t), cases[i].adds);
        assert_int_equal(tokenizer_bos_id(t), cases[i].bos);
        token_list_deinit(&ids);
        tokenizer_close(t);
    }
    tokenizer *t = NULL;
    error err = {0};
    assert_int_equal(open_folder(NULL, "{\"add_bos_token\":\"yes\"}", NULL, &t, &err), STATUS_FORMAT);
    assert_contains(err.text, "tokenizer_config.add_bos_token is not true or false");
}

static void ends(void **state) {
    (void)state;
    static const struct {
        const char *config, *generation;
        bool end[5];
    } cases[] = {
        {NULL, NULL, {0, 0, 0, 0, 0}},
        {"{\"eos_token\":\"</s>\"}", NULL, {0, 0, 0, 1, 0}},
        {NULL, "{\"eos_token_id\":4}", {0, 0, 0, 0, 1}},
        {"{\"eos_token\":\"</s>\"}", "{\"eos_token_id\":[4,1]}", {0, 1, 0, 1, 1}},
        {"{\"eos_token\":\"nothing\"}", "{\"eos_token_id\":[-1,99,5000000000,4]}", {0, 0, 0, 0, 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tokenizer *t = NULL;
        error err = {0};
        if (open_folder(NULL, cases[i].config, cases[i].generation, &t, &err) != STATUS_OK) fail_msg("case %zu: %s", i, err.text);
        for (int32_t id = 0; id < 5; id++)
            if (tokenizer_is_end(t, id) != cases[i].end[id]) fail_msg("case %zu: id %d", i, id);
        tokenizer_close(t);
    }
}

/* A file of its own, else the text in tokenizer_config.json, else the one called default. */
static void chat_templates(void **state) {
    (void)state;
    static const struct {
        const char *file, *config, *want;
    } cases[] = {
        {NULL, NULL, NULL},
        {NULL, "{\"chat_template\":\"inside\"}", "inside"},
        {"beside", "{\"chat_template\":\"inside\"}", "beside"},
        {NULL, "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"tools\"},{\"name\":\"default\",\"template\":\"plain\"}]}",
         "plain"},
        {NULL, "{\"chat_template\":7}", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tokenizer *t = NULL;
        error err = {0};
        write_text("chat_template.jinja", cases[i].file);
        if (open_folder(NULL, cases[i].config, NULL, &t, &err) != STATUS_OK) fail_msg("case %zu: %s", i, err.text);
        const char *got = tokenizer_chat_template(t);
        if (!got != !cases[i].want || (got && strcmp(got, cases[i].want) != 0)) fail_msg("case %zu: %s", i, got ? got : "none");
        tokenizer_close(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_around_a_text), cmocka_unit_test(ends), cmocka_unit_test(chat_templates)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
