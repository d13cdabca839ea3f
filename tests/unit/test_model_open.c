/* SPDX-License-Identifier: Apache-2.0 */
/* The first phase of loading: what a configuration and a list of tensors make of a model, and what is said when they do not fit together. */
#include "support/test_case.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "support/scratch_dir.h"

enum { TEXT_BYTES = 1 << 16 };

typedef struct tensor_spec {
    const char *name, *shape, *dtype; /* "{l}" in the name: once per layer; dtype NULL: BF16 */
} tensor_spec;

/* hidden 8, 2 heads over 1 of size 4, mlp 12, vocabulary 10 */
static const tensor_spec llama_tensors[] = {
    {"model.embed_tokens.weight", "10,8", NULL},
    {"model.norm.weight", "8", NULL},
    {"lm_head.weight", "10,8", NULL},
    {"model.layers.{l}.input_layernorm.weight", "8", NULL},
    {"model.layers.{l}.post_attention_layernorm.weight", "8", NULL},
    {"model.layers.{l}.self_attn.q_proj.weight", "8,8", NULL},
    {"model.layers.{l}.self_attn.k_proj.weight", "4,8", NULL},
    {"model.layers.{l}.self_attn.v_proj.weight", "4,8", NULL},
    {"model.layers.{l}.self_attn.o_proj.weight", "8,8", NULL},
    {"model.layers.{l}.mlp.gate_proj.weight", "12,8", NULL},
    {"model.layers.{l}.mlp.up_proj.weight", "12,8", NULL},
    {"model.layers.{l}.mlp.down_proj.weight", "8,12", NULL},
};
enum { N_LLAMA = sizeof llama_tensors / sizeof llama_tensors[0] };

#define LLAMA_CONFIG \
    "\"hidden_size\": 8, \"intermediate_size\": 12, \"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"rms_norm_eps\": 1e-6, " \
    "\"max_position_embeddings\": 64, \"vocab_size\": 10"

/* What a test changes: a tensor by its full name is left out (shape NULL), or gets another shape or dtype; a name that is not there is added. */
typedef struct change {
    const char *name, *shape, *dtype;
} change;

static scratch_dir dir;
static mem *m;
static source *src;
static model *mo;
static error err;

static int set_up(void **state) {
    (void)state;
    src = NULL;
    mo = NULL;
    err = (error){0};
    return scratch_dir_create(&dir) && mem_create(&m) == STATUS_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    model_close(mo);
    source_close(src);
    scratch_dir_destroy(&dir);
    return mem_destroy(m) == STATUS_OK ? 0 : -1;
}

typedef struct header {
    char text[TEXT_BYTES];
    size_t n;
    int64_t n_data;
} header;

static void add_tensor(header *h, const char *name, const char *shape, const char *dtype) {
    int64_t bytes = dtype != NULL && strcmp(dtype, "F32") == 0 ? 4 : dtype != NULL && strcmp(dtype, "I8") == 0 ? 1 : 2;
    for (const char *p = shape; *p != '\0'; p += strspn(p, ",")) bytes *= strtol(p, (char **)(uintptr_t)&p, 10);
    const int n = snprintf(h->text + h->n, sizeof h->text - h->n, "%s\"%s\": {\"dtype\": \"%s\", \"shape\": [%s], \"data_offsets\": [%" PRId64 ", %" PRId64 "]}", h->n > 1 ? ", " : "", name,
                           dtype != NULL ? dtype : "BF16", shape, h->n_data, h->n_data + bytes);
    assert_true(n > 0 && (size_t)n < sizeof h->text - h->n);
    h->n += (size_t)n;
    h->n_data += bytes;
}

static void write_file(const char *name, const void *bytes, size_t n, uint64_t more) {
    char path[SCRATCH_PATH_BYTES];
    FILE *f = fopen(scratch_dir_path(&dir, name, path), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    if (more > 0) {
        assert_int_equal(fseek(f, (long)more - 1, SEEK_CUR), 0); /* a hole */
        fputc(0, f);
    }
    assert_int_equal(fclose(f), 0);
}

static status open_changed(const char *config, const tensor_spec *specs, size_t n_specs, int n_layers, const change *changes, size_t n_changes) {
    static header h;
    static char file[TEXT_BYTES + 8];
    bool used[16] = {false};
    h = (header){.text = "{", .n = 1};
    for (size_t i = 0; i < n_specs; i++) {
        const char *at = strstr(specs[i].name, "{l}");
        for (int l = 0; l < (at != NULL ? n_layers : 1); l++) {
            char name[128];
            if (at != NULL)
                snprintf(name, sizeof name, "%.*s%d%s", (int)(at - specs[i].name), specs[i].name, l, at + 3);
            else
                snprintf(name, sizeof name, "%s", specs[i].name);
            const char *shape = specs[i].shape, *dtype = specs[i].dtype;
            for (size_t c = 0; c < n_changes; c++) {
                if (strcmp(changes[c].name, name) != 0) continue;
                shape = changes[c].shape;
                dtype = changes[c].dtype;
                used[c] = true;
            }
            if (shape != NULL) add_tensor(&h, name, shape, dtype);
        }
    }
    for (size_t c = 0; c < n_changes; c++) {
        if (!used[c]) add_tensor(&h, changes[c].name, changes[c].shape, changes[c].dtype);
    }
    h.text[h.n++] = '}';
    const uint64_t n = h.n;
    memcpy(file, &n, sizeof n);
    memcpy(file + sizeof n, h.text, h.n);
    write_file("model.safetensors", file, h.n + sizeof n, (uint64_t)h.n_data);
    write_file("config.json", config, strlen(config), 0);
    char path[SCRATCH_PATH_BYTES];
    model_close(mo);
    source_close(src);
    mo = NULL;
    src = NULL;
    err = (error){0};
    if (source_open(m, scratch_dir_path(&dir, ".", path), NULL, &src, &err) != STATUS_OK) fail_msg("%s", err.text);
    return model_open(m, src, &mo, &err);
}

static status open_llama(const char *config, const change *changes, size_t n_changes) { return open_changed(config, llama_tensors, N_LLAMA, 2, changes, n_changes); }

static void says(const char *text) {
    if (strstr(err.text, text) == NULL) fail_msg("\"%s\" is not in:\n%s", text, err.text);
}

#define LLAMA "{\"architectures\": [\"LlamaForCausalLM\"], "

static void test_plain(void **state) {
    (void)state;
    if (open_llama(LLAMA LLAMA_CONFIG "}", NULL, 0) != STATUS_OK) fail_msg("%s", err.text);
    assert_string_equal(mo->arch->name, "llama");
    assert_int_equal(mo->hp.head_dim, 4);
    assert_int_equal(mo->n_groups, 1);
    assert_int_equal(model_weight(mo, W_HEAD, -1)->n_dims, 2);
}

/* One report, every problem in it: tensor, found, expected, file. */
static void test_every_problem_in_one_report(void **state) {
    (void)state;
    const change changes[] = {
        {"model.layers.0.self_attn.q_proj.weight", NULL, NULL},
        {"model.layers.1.mlp.down_proj.weight", "12,8", NULL},
        {"model.layers.1.input_layernorm.weight", "8", "I8"},
        {"model.layers.2.mlp.up_proj.weight", "12,8", NULL},
        {"model.layers.0.self_attn.q_norm.weight", "4", "F32"},
    };
    assert_int_equal(open_llama(LLAMA LLAMA_CONFIG "}", changes, 5), STATUS_FORMAT);
    says("cannot be loaded as llama");
    says("model.layers.0.self_attn.q_proj.weight: missing in ");
    says("model.layers.1.mlp.down_proj.weight: found shape [12, 8], expected [8, 12] (embd,ff), in ");
    says("model.layers.1.input_layernorm.weight: found type");
    says("model.layers.2.mlp.up_proj.weight: found");
    says("model.layers.0.self_attn.q_norm.weight: found");
    says("expected no such tensor, in ");
    says("model.safetensors");
}

static void test_every_wrong_number_in_one_report(void **state) {
    (void)state;
    assert_int_equal(open_llama(LLAMA "\"hidden_size\": -8, \"intermediate_size\": \"wide\", \"num_hidden_layers\": 1e9, \"num_attention_heads\": 2.5, \"rms_norm_eps\": true}", NULL, 0), STATUS_FORMAT);
    says("hidden_size: found -8, expected an integer in 1..");
    says("intermediate_size: found");
    says("num_hidden_layers: found");
    says("num_attention_heads: found 2.5");
    says("rms_norm_eps: found true");
    says("max_position_embeddings: missing");
}

static void test_tied_or_not(void **state) {
    (void)state;
    const change no_head = {"lm_head.weight", NULL, NULL}, odd_head = {"lm_head.weight", "3", NULL};
    assert_int_equal(open_llama(LLAMA LLAMA_CONFIG "}", &no_head, 1), STATUS_OK); /* not said: the table is the head */
    assert_int_equal(model_weight(mo, W_HEAD, -1)->n_dims, 0);
    if (open_llama(LLAMA LLAMA_CONFIG ", \"tie_word_embeddings\": true}", &odd_head, 1) != STATUS_OK) fail_msg("%s", err.text); /* a head that is there all the same is not used */
    assert_int_equal(model_weight(mo, W_HEAD, -1)->n_dims, 0);
    assert_int_equal(binding_n_ignored(mo->binding), 1);
    assert_int_equal(open_llama(LLAMA LLAMA_CONFIG ", \"tie_word_embeddings\": false}", &no_head, 1), STATUS_FORMAT);
    says("lm_head.weight: missing");
}

static void test_refused_by_name(void **state) {
    (void)state;
    const struct {
        const char *config, *text;
    } cases[] = {
        {"{\"architectures\": [\"BertModel\"], " LLAMA_CONFIG "}", "architecture \"BertModel\" is not implemented (known: "},
        {"{\"architectures\": [\"LlamaBiModel\"], \"model_type\": \"llama\", " LLAMA_CONFIG "}", "architecture \"LlamaBiModel\" is not implemented (known: "}, /* the same weights, and sees what comes after */
        {LLAMA LLAMA_CONFIG ", \"hidden_act\": \"relu\"}", "activation \"relu\" is not implemented for llama (known: silu|swish)"},
        {LLAMA LLAMA_CONFIG ", \"rope_scaling\": {\"rope_type\": \"longrope\", \"factor\": 2}}", "rope type \"longrope\" is not implemented"},
        {"{\"architectures\": [\"Qwen3ForCausalLM\"], " LLAMA_CONFIG ", \"use_sliding_window\": true, \"sliding_window\": 8, \"layer_types\": [\"full_attention\", \"chunked_attention\"]}",
         "layer_types[1] is \"chunked_attention\""},
        {"{\"architectures\": [\"Mistral3ForConditionalGeneration\"], \"model_type\": \"mistral3\", \"text_config\": {\"model_type\": \"ministral3\", " LLAMA_CONFIG "}}",
         "text model \"ministral3\" is not implemented for mistral"},
        {"{\"architectures\": [\"Gemma3ForCausalLM\"], " LLAMA_CONFIG ", \"use_bidirectional_attention\": true}", "use_bidirectional_attention"},
        {"{\"architectures\": [\"Gemma4ForCausalLM\"], " LLAMA_CONFIG ", \"use_bidirectional_attention\": \"all\"}", "use_bidirectional_attention \"all\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (open_llama(cases[i].config, NULL, 0) != STATUS_UNSUPPORTED) fail_msg("%s: %s", cases[i].config, err.text);
        says(cases[i].text);
    }
}

static void test_windows(void **state) {
    (void)state;
    const change head_norms[] = {
        {"model.layers.0.self_attn.q_norm.weight", "4", NULL},
        {"model.layers.0.self_attn.k_norm.weight", "4", NULL},
        {"model.layers.1.self_attn.q_norm.weight", "4", NULL},
        {"model.layers.1.self_attn.k_norm.weight", "4", NULL},
    };
#define QWEN3 "{\"architectures\": [\"Qwen3ForCausalLM\"], " LLAMA_CONFIG ", \"sliding_window\": 8"
    const struct {
        const char *config;
        int64_t window[2];
        int n_groups;
    } cases[] = {
        {QWEN3 "}", {0, 0}, 1},
        {QWEN3 ", \"use_sliding_window\": true, \"max_window_layers\": 1}", {0, 8}, 2},
        {QWEN3 ", \"use_sliding_window\": true, \"max_window_layers\": 0}", {8, 8}, 1},
        {QWEN3 ", \"use_sliding_window\": true, \"max_window_layers\": 5}", {0, 0}, 1},
        {QWEN3 ", \"use_sliding_window\": true, \"layer_types\": [\"sliding_attention\", \"full_attention\"]}", {8, 0}, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (open_llama(cases[i].config, head_norms, 4) != STATUS_OK) fail_msg("%s: %s", cases[i].config, err.text);
        assert_int_equal(mo->n_groups, cases[i].n_groups);
        for (int l = 0; l < 2; l++) {
            assert_int_equal(mo->layers[l].window, cases[i].window[l]);
            assert_int_equal(mo->layers[l].kind, cases[i].window[l] > 0 ? LAYER_WINDOW : LAYER_FULL);
            assert_int_equal(mo->groups[mo->layers[l].kv_group].window, cases[i].window[l]);
        }
    }
    assert_int_equal(open_llama(QWEN3 ", \"use_sliding_window\": true, \"layer_types\": [\"full_attention\"]}", head_norms, 4), STATUS_FORMAT);
    says("layer_types: 1 entries, expected 2");
}

/* The configuration of a published checkpoint of Gemma 3 that says the least: the rest are the defaults of Transformers' class. */
static void test_gemma3_defaults(void **state) {
    (void)state;
    static const tensor_spec tensors[] = {
        {"language_model.model.embed_tokens.weight", "20,16", NULL},
        {"language_model.model.norm.weight", "16", NULL},
        {"language_model.model.layers.{l}.input_layernorm.weight", "16", NULL},
        {"language_model.model.layers.{l}.post_attention_layernorm.weight", "16", NULL},
        {"language_model.model.layers.{l}.pre_feedforward_layernorm.weight", "16", NULL},
        {"language_model.model.layers.{l}.post_feedforward_layernorm.weight", "16", NULL},
        {"language_model.model.layers.{l}.self_attn.q_proj.weight", "2048,16", NULL},
        {"language_model.model.layers.{l}.self_attn.k_proj.weight", "1024,16", NULL},
        {"language_model.model.layers.{l}.self_attn.v_proj.weight", "1024,16", NULL},
        {"language_model.model.layers.{l}.self_attn.o_proj.weight", "16,2048", NULL},
        {"language_model.model.layers.{l}.self_attn.q_norm.weight", "256", NULL},
        {"language_model.model.layers.{l}.self_attn.k_norm.weight", "256", NULL},
        {"language_model.model.layers.{l}.mlp.gate_proj.weight", "32,16", NULL},
        {"language_model.model.layers.{l}.mlp.up_proj.weight", "32,16", NULL},
        {"language_model.model.layers.{l}.mlp.down_proj.weight", "16,32", NULL},
        {"vision_tower.vision_model.embeddings.patch_embedding.bias", "4", NULL},
        {"multi_modal_projector.mm_soft_emb_norm.weight", "4", NULL},
    };
    const char *config = "{\"architectures\": [\"Gemma3ForConditionalGeneration\"], \"model_type\": \"gemma3\", \"text_config\": {\"hidden_size\": 16, \"intermediate_size\": 32, "
                         "\"model_type\": \"gemma3_text\", \"num_hidden_layers\": 7, \"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"linear\"}, \"sliding_window\": 1024}, "
                         "\"vision_config\": {\"hidden_size\": 1152, \"num_hidden_layers\": 27}}";
    if (open_changed(config, tensors, sizeof tensors / sizeof tensors[0], 7, NULL, 0) != STATUS_OK) fail_msg("%s", err.text);
    assert_int_equal(mo->hp.n_vocab, 20);
    assert_int_equal(mo->hp.n_heads, 8);
    assert_int_equal(mo->hp.n_kv_heads, 4);
    assert_int_equal(mo->hp.head_dim, 256);
    assert_int_equal(mo->hp.n_ctx_train, 131072);
    assert_true(mo->hp.rope.theta == 1e6 && mo->hp.rope_window.theta == 1e4);
    assert_int_equal(binding_n_ignored(mo->binding), 2);
    assert_int_equal(mo->n_groups, 2);
    for (int l = 0; l < 7; l++) {
        assert_int_equal(mo->layers[l].window, l == 5 ? 0 : 1024);
        assert_true(mo->layers[l].attn_scale == 1.0f / 16.0f);
        assert_int_equal(mo->layers[l].rope, l == 5 ? 0 : 1);
    }
    assert_true(mo->rope_host[0][0] == 0.125f && mo->rope_host[1][0] == 1.0f);
    const char *scaled = "{\"architectures\": [\"Gemma3ForCausalLM\"], \"hidden_size\": 16, \"intermediate_size\": 32, \"num_hidden_layers\": 1, \"sliding_window\": 8, "
                         "\"query_pre_attn_scalar\": 64, \"sliding_window_pattern\": 1}";
    if (open_changed(scaled, tensors, sizeof tensors / sizeof tensors[0], 1, NULL, 0) != STATUS_OK) fail_msg("%s", err.text);
    assert_true(mo->layers[0].attn_scale == 0.125f);
    assert_int_equal(mo->layers[0].window, 0); /* every layer is the last of its pattern */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_plain, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_every_problem_in_one_report, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_every_wrong_number_in_one_report, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_tied_or_not, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_refused_by_name, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_windows, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_gemma3_defaults, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
