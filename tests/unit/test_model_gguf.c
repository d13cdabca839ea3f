/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the keys of a GGUF make of a model. The scales of cos and sin are those of llama.cpp's formulas (its context's setup): for yarn
 * m(factor, 1) / m(factor, log multiplier) with m(f, x) = 0.1 x ln f + 1, and attn_factor on top whatever the type.
 */
#include <math.h>
#include <stdio.h>

#include "model/model.h"
#include "support/gguf_writer.h"
#include "support/scratch_dir.h"
#include "support/test_case.h"

static mem *m;
static scratch_dir dir;

static int set_up(void **state) {
    (void)state;
    return mem_create(&m) == STATUS_OK && scratch_dir_create(&dir) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    scratch_dir_destroy(&dir);
    return mem_destroy(m) == STATUS_OK ? 0 : -1;
}

/* hidden 8, 2 heads over 1 of size 4, mlp 12, vocabulary 10, one layer; more keys and tensors may follow. */
static void begin(gguf_writer *w) {
    static const struct {
        const char *name;
        int n;
        int64_t dim[2];
    } tensors[] = {
        {"token_embd.weight", 2, {10, 8}},     {"output_norm.weight", 1, {8}},      {"output.weight", 2, {10, 8}},
        {"blk.0.attn_norm.weight", 1, {8}},    {"blk.0.ffn_norm.weight", 1, {8}},   {"blk.0.attn_q.weight", 2, {8, 8}},
        {"blk.0.attn_k.weight", 2, {4, 8}},    {"blk.0.attn_v.weight", 2, {4, 8}},  {"blk.0.attn_output.weight", 2, {8, 8}},
        {"blk.0.ffn_gate.weight", 2, {12, 8}}, {"blk.0.ffn_up.weight", 2, {12, 8}}, {"blk.0.ffn_down.weight", 2, {8, 12}},
    };
    gguf_writer_init(w, m);
    gguf_writer_text(w, "general.architecture", "llama");
    gguf_writer_u32(w, "llama.block_count", 1);
    gguf_writer_u32(w, "llama.context_length", 2048);
    gguf_writer_u32(w, "llama.embedding_length", 8);
    gguf_writer_u32(w, "llama.feed_forward_length", 12);
    gguf_writer_u32(w, "llama.attention.head_count", 2);
    gguf_writer_u32(w, "llama.attention.head_count_kv", 1);
    gguf_writer_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        const size_t n = (size_t)(tensors[i].dim[0] * (tensors[i].n > 1 ? tensors[i].dim[1] : 1)) * sizeof(float);
        gguf_writer_tensor(w, tensors[i].name, GGUF_T_F32, tensors[i].n, tensors[i].dim, NULL, n);
    }
}

static status open_it(gguf_writer *w, source **src, model **mo, error *err) {
    char path[SCRATCH_PATH_BYTES];
    *mo = NULL;
    assert_true(gguf_writer_save(w, scratch_dir_path(&dir, "model.gguf", path)));
    gguf_writer_deinit(w);
    if (source_open(m, path, NULL, src, err) != STATUS_OK) fail_msg("%s", err->text);
    return model_open(m, *src, mo, err);
}

typedef struct key {
    const char *name;
    float value;
} key;

static void yarn_scales_cos_and_sin(void **state) {
    (void)state;
    static const struct {
        const char *type;
        key keys[3];
        float mscale, slowest; /* inv_freq of the last pair */
    } cases[] = {
        {"yarn", {{NULL, 0}}, 1.13862944f, 0.0025f},
        {"yarn", {{"yarn_log_multiplier", 0.5f}}, 1.06482162f, 0.0025f},
        {"yarn", {{"yarn_log_multiplier", 1.0f}}, 1.0f, 0.0025f},
        {"yarn", {{"attn_factor", 0.9f}}, 1.02476649f, 0.0025f},
        {"yarn", {{"attn_factor", 0.9f}, {"yarn_log_multiplier", 0.5f}}, 0.95833946f, 0.0025f},
        {"yarn", {{"yarn_attn_factor", 1.5f}}, 1.5f, 0.0025f},
        {"yarn", {{"yarn_ext_factor", 1.0f}, {"alpha", 0.0f}}, 1.13862944f, 0.0025f},
        {"yarn", {{"yarn_ext_factor", -1.0f}}, 1.13862944f, 0.0025f},
        {"linear", {{"attn_factor", 0.9f}}, 0.9f, 0.0025f},
        {"none", {{"attn_factor", 1.25f}}, 1.25f, 0.01f},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gguf_writer w;
        source *src;
        model *mo;
        error err = {0};
        begin(&w);
        gguf_writer_text(&w, "llama.rope.scaling.type", cases[i].type);
        gguf_writer_f32(&w, "llama.rope.scaling.factor", 4);
        gguf_writer_u32(&w, "llama.rope.scaling.original_context_length", 512);
        for (const key *k = cases[i].keys; k < cases[i].keys + 3 && k->name != NULL; k++) {
            char name[64];
            snprintf(name, sizeof name, "llama.rope.scaling.%s", k->name);
            gguf_writer_f32(&w, name, k->value);
        }
        if (open_it(&w, &src, &mo, &err) != STATUS_OK) fail_msg("case %zu: %s", i, err.text);
        if (fabsf(mo->ropes[0].mscale - cases[i].mscale) > 2e-7f * 4)
            fail_msg("case %zu: %.9g, expected %.9g", i, (double)mo->ropes[0].mscale, (double)cases[i].mscale);
        if (fabsf(mo->rope_host[0][1] - cases[i].slowest) > 1e-8f)
            fail_msg("case %zu: frequency %.9g, expected %.9g", i, (double)mo->rope_host[0][1], (double)cases[i].slowest);
        model_close(mo);
        source_close(src);
    }
}

static void what_is_not_implemented_is_said(void **state) {
    (void)state;
    static const struct {
        key key;
        const char *text;
    } cases[] = {
        {{"rope.scaling.yarn_ext_factor", 0.5f}, "llama.rope.scaling.yarn_ext_factor: found 0.5, and only 1 is implemented"},
        {{"rope.scaling.yarn_ext_factor", 0.0f}, "llama.rope.scaling.yarn_ext_factor: found 0, and only 1"},
        {{"rope.scaling.alpha", 1000.0f}, "llama.rope.scaling.alpha: found 1000, and only 0"},
        {{"attention.causal", 0.0f}, "llama.attention.causal: found false, and only 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gguf_writer w;
        source *src;
        model *mo;
        error err = {0};
        char name[64];
        begin(&w);
        snprintf(name, sizeof name, "llama.%s", cases[i].key.name);
        if (strstr(name, "causal") != NULL)
            gguf_writer_bool(&w, name, cases[i].key.value > 0);
        else
            gguf_writer_f32(&w, name, cases[i].key.value);
        assert_int_not_equal(open_it(&w, &src, &mo, &err), STATUS_OK);
        assert_contains(err.text, cases[i].text);
        source_close(src);
    }
}

/* A Mistral calls itself llama; where its window was written down, it is there. */
static void a_window_is_kept(void **state) {
    (void)state;
    for (uint32_t window = 0; window <= 8; window += 8) {
        gguf_writer w;
        source *src;
        model *mo;
        error err = {0};
        begin(&w);
        gguf_writer_bool(&w, "llama.attention.causal", true);
        if (window > 0) gguf_writer_u32(&w, "llama.attention.sliding_window", window);
        if (open_it(&w, &src, &mo, &err) != STATUS_OK) fail_msg("%s", err.text);
        assert_int_equal(mo->layers[0].window, window);
        assert_int_equal(mo->layers[0].kind, window > 0 ? LAYER_WINDOW : LAYER_FULL);
        model_close(mo);
        source_close(src);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(yarn_scales_cos_and_sin), cmocka_unit_test(what_is_not_implemented_is_said),
                                       cmocka_unit_test(a_window_is_kept)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
