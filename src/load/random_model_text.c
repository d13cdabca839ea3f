/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes as published; tokens: the 256 bytes in the alphabet of byte-level BPE, filler words, and <eos> last. */
#include "load/random_model_text.h"

#include <stdio.h>
#include <string.h>

#include "load/random_model.h"

static const random_shape shapes[] = {
    {.name = "qwen3-30b-a3b", .hf_class = "Qwen3MoeForCausalLM", .hf_name = "qwen3_moe", .gguf_name = "qwen3moe", .n_embd = 2048, .n_layers = 48, .n_heads = 32, .n_kv_heads = 4,
     .head_dim = 128, .n_experts = 128, .top_k = 8, .n_ff_exp = 768, .n_ff = 6144, .norm_eps = 1e-6, .rope_theta = 1e6, .renormalize = true},
    {.name = "olmoe-1b-7b", .hf_class = "OlmoeForCausalLM", .hf_name = "olmoe", .gguf_name = "olmoe", .n_embd = 2048, .n_layers = 16, .n_heads = 16, .n_kv_heads = 16,
     .head_dim = 128, .n_experts = 64, .top_k = 8, .n_ff_exp = 1024, .n_ff = 1024, .norm_eps = 1e-5, .rope_theta = 1e4, .wide_qk_norm = true},
    {.name = "gemma-4-26b-a4b", .hf_class = "Gemma4ForCausalLM", .hf_name = "gemma4_text", .gguf_name = "gemma4", .n_embd = 2816, .n_layers = 30, .n_heads = 16, .n_kv_heads = 8, .head_dim = 256,
     .n_experts = 128, .top_k = 8, .n_ff_exp = 704, .n_ff = 2112, .norm_eps = 1e-6, .rope_theta = 1e6, .renormalize = true, .sandwich = true, .full_every = 6,
     .full_head_dim = 512, .full_kv_heads = 2, .window = 1024},
    {.name = "gpt-oss-20b", .gguf_name = "gpt-oss", .n_embd = 2880, .n_layers = 24, .n_heads = 64, .n_kv_heads = 8, .head_dim = 64, .n_experts = 32, .top_k = 4, .n_ff_exp = 2880,
     .n_ff = 2880, .norm_eps = 1e-5, .rope_theta = 150000, .biased = true, .window = 128},
    {.name = "tiny-gpt-oss", .gguf_name = "gpt-oss", .n_embd = 192, .n_layers = 4, .n_heads = 4, .n_kv_heads = 2, .head_dim = 64, .n_experts = 32, .top_k = 4, .n_ff_exp = 128, .n_ff = 128,
     .norm_eps = 1e-5, .rope_theta = 150000, .biased = true, .window = 32},
    {.name = "tiny-gemma", .hf_class = "Gemma4ForCausalLM", .hf_name = "gemma4_text", .gguf_name = "gemma4", .n_embd = 256, .n_layers = 6, .n_heads = 4, .n_kv_heads = 2, .head_dim = 32,
     .n_experts = 32, .top_k = 4, .n_ff_exp = 128, .n_ff = 256, .norm_eps = 1e-6, .rope_theta = 1e6, .renormalize = true, .sandwich = true, .full_every = 3, .full_head_dim = 64, .full_kv_heads = 1,
     .window = 32},
    {.name = "tiny", .hf_class = "Qwen3MoeForCausalLM", .hf_name = "qwen3_moe", .gguf_name = "qwen3moe", .n_embd = 256, .n_layers = 4, .n_heads = 4, .n_kv_heads = 2,
     .head_dim = 64, .n_experts = 32, .top_k = 4, .n_ff_exp = 128, .n_ff = 512, .norm_eps = 1e-6, .rope_theta = 1e6, .renormalize = true},
};
static const int64_t CONTEXT = 32768;
static const char pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+";

const random_shape *random_shape_find(const char *name) {
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (strcmp(shapes[i].name, name) == 0) return &shapes[i];
    }
    return NULL;
}

bool random_layer_is_full(const random_shape *s, int64_t layer, int64_t n_layers) { return s->full_every > 0 && ((layer + 1) % s->full_every == 0 || layer == n_layers - 1); }

const char *random_model_shapes(void) { return "qwen3-30b-a3b, olmoe-1b-7b, gemma-4-26b-a4b, gpt-oss-20b, tiny, tiny-gemma, tiny-gpt-oss"; }

/* ---- tokens ---- */

static size_t put_code_point(char *out, uint32_t c) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

/* The character that stands for a byte (GPT-2's table): printable ones for themselves, the others from U+0100 on. */
static uint32_t character_of(int byte) {
    uint32_t next = 256;
    for (int b = 0; b < 256; b++) {
        const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte) return printable ? (uint32_t)b : next;
        if (!printable) next++;
    }
    return 0;
}

static size_t token_text(const random_text *t, int64_t id, char *out, size_t cap) {
    if (id < 256) return put_code_point(out, character_of((int)id));
    if (id == t->n_vocab - 1) return (size_t)snprintf(out, cap, "<eos>");
    if (id == 256) return (size_t)snprintf(out, cap, "\xc4\xa0w"); /* a blank and a w: the one merge */
    return (size_t)snprintf(out, cap, "\xc4\xa0w%lld", (long long)id);
}

/* ---- GGUF ---- */

static void key_of(const random_text *t, char *out, size_t cap, const char *name) { snprintf(out, cap, "%s.%s", t->s->gguf_name, name); }

static void put_count(const random_text *t, const char *name, int64_t v) {
    char key[96];
    key_of(t, key, sizeof key, name);
    checkpoint_writer_u32(t->w, key, (uint32_t)v);
}

static void put_number(const random_text *t, const char *name, double v) {
    char key[96];
    key_of(t, key, sizeof key, name);
    checkpoint_writer_f32(t->w, key, (float)v);
}

/* What Gemma 4 has of two kinds: the plain keys are those of the full layers. */
static void put_gemma4(const random_text *t) {
    const random_shape *s = t->s;
    char key[96];
    put_count(t, "attention.key_length", s->full_head_dim);
    put_count(t, "attention.value_length", s->full_head_dim);
    put_count(t, "rope.dimension_count", s->full_head_dim);
    put_count(t, "attention.key_length_swa", s->head_dim);
    put_count(t, "attention.value_length_swa", s->head_dim);
    put_count(t, "rope.dimension_count_swa", s->head_dim);
    put_number(t, "rope.freq_base_swa", 1e4);
    put_count(t, "attention.sliding_window", s->window);
    put_count(t, "attention.shared_kv_layers", 0);
    put_count(t, "embedding_length_per_layer_input", 0);
    put_number(t, "final_logit_softcapping", 30);
    key_of(t, key, sizeof key, "attention.sliding_window_pattern");
    checkpoint_writer_bools(t->w, key, (uint64_t)t->n_layers);
    for (int64_t l = 0; l < t->n_layers; l++) checkpoint_writer_bool_item(t->w, !random_layer_is_full(s, l, t->n_layers));
    key_of(t, key, sizeof key, "attention.head_count_kv");
    checkpoint_writer_i32s(t->w, key, (uint64_t)t->n_layers);
    for (int64_t l = 0; l < t->n_layers; l++) checkpoint_writer_i32_item(t->w, (int32_t)(random_layer_is_full(s, l, t->n_layers) ? s->full_kv_heads : s->n_kv_heads));
}

static void put_gpt_oss(const random_text *t) {
    char key[96];
    key_of(t, key, sizeof key, "rope.scaling.type");
    checkpoint_writer_text(t->w, key, "yarn");
    put_number(t, "rope.scaling.factor", 32);
    put_count(t, "rope.scaling.original_context_length", 4096);
    put_count(t, "rope.dimension_count", t->s->head_dim);
    put_count(t, "attention.sliding_window", t->s->window);
}

status random_text_gguf(const random_text *t, error *err) {
    checkpoint_writer *w = t->w;
    const random_shape *s = t->s;
    char text[64];
    (void)err;
    checkpoint_writer_text(w, "general.architecture", s->gguf_name);
    checkpoint_writer_text(w, "general.name", "random weights");
    put_count(t, "block_count", t->n_layers);
    put_count(t, "context_length", CONTEXT);
    put_count(t, "embedding_length", s->n_embd);
    put_count(t, "feed_forward_length", s->n_ff);
    put_count(t, "attention.head_count", s->n_heads);
    if (s->sandwich) {
        put_gemma4(t);
    } else {
        put_count(t, "attention.head_count_kv", s->n_kv_heads);
        put_count(t, "attention.key_length", s->head_dim);
        put_count(t, "attention.value_length", s->head_dim);
    }
    if (s->biased) put_gpt_oss(t);
    put_count(t, "expert_count", t->n_experts);
    put_count(t, "expert_used_count", s->top_k);
    put_count(t, "expert_feed_forward_length", s->n_ff_exp);
    put_number(t, "attention.layer_norm_rms_epsilon", s->norm_eps);
    put_number(t, "rope.freq_base", s->rope_theta);
    checkpoint_writer_text(w, "tokenizer.ggml.model", "gpt2");
    checkpoint_writer_text(w, "tokenizer.ggml.pre", "qwen2");
    checkpoint_writer_texts(w, "tokenizer.ggml.tokens", (uint64_t)t->n_vocab);
    for (int64_t id = 0; id < t->n_vocab; id++) checkpoint_writer_text_item(w, text, token_text(t, id, text, sizeof text));
    checkpoint_writer_i32s(w, "tokenizer.ggml.token_type", (uint64_t)t->n_vocab);
    for (int64_t id = 0; id < t->n_vocab; id++) checkpoint_writer_i32_item(w, id == t->n_vocab - 1 ? 3 : 1);
    checkpoint_writer_texts(w, "tokenizer.ggml.merges", 1);
    checkpoint_writer_text_item(w, "\xc4\xa0 w", 4);
    checkpoint_writer_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t)(t->n_vocab - 1));
    checkpoint_writer_bool(w, "tokenizer.ggml.add_bos_token", false);
    return STATUS_OK;
}

/* ---- Hugging Face ---- */

static void add_config(const random_text *t, textbuf *b) {
    const random_shape *s = t->s;
    textbuf_addf(b, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n  \"hidden_size\": %lld,\n  \"num_hidden_layers\": %lld,\n  \"num_attention_heads\": %lld,\n  \"num_key_value_heads\": %lld,\n",
                 s->hf_class, s->hf_name, (long long)s->n_embd, (long long)t->n_layers, (long long)s->n_heads, (long long)s->n_kv_heads);
    textbuf_addf(b, "  \"head_dim\": %lld,\n  \"intermediate_size\": %lld,\n  \"moe_intermediate_size\": %lld,\n  \"num_experts\": %lld,\n  \"%s\": %lld,\n  \"norm_topk_prob\": %s,\n", (long long)s->head_dim,
                 (long long)s->n_ff, (long long)s->n_ff_exp, (long long)t->n_experts, s->sandwich ? "top_k_experts" : "num_experts_per_tok", (long long)s->top_k, s->renormalize ? "true" : "false");
    textbuf_addf(b, "  \"rms_norm_eps\": %g,\n  \"max_position_embeddings\": %lld,\n  \"vocab_size\": %lld,\n  \"eos_token_id\": %lld,\n  \"tie_word_embeddings\": false,\n  \"attention_bias\": false,\n", s->norm_eps,
                 (long long)CONTEXT, (long long)t->n_vocab, (long long)t->n_vocab - 1);
    if (s->sandwich) {
        textbuf_addf(b, "  \"hidden_activation\": \"gelu_pytorch_tanh\",\n  \"enable_moe_block\": true,\n  \"attention_k_eq_v\": true,\n  \"global_head_dim\": %lld,\n  \"num_global_key_value_heads\": %lld,\n  \"sliding_window\": %lld,\n  \"hidden_size_per_layer_input\": 0,\n  \"num_kv_shared_layers\": 0,\n  \"final_logit_softcapping\": 30.0,\n  \"layer_types\": [",
                     (long long)s->full_head_dim, (long long)s->full_kv_heads, (long long)s->window);
        for (int64_t l = 0; l < t->n_layers; l++) textbuf_addf(b, "%s\"%s_attention\"", l > 0 ? ", " : "", random_layer_is_full(s, l, t->n_layers) ? "full" : "sliding");
        textbuf_adds(b, "],\n  \"rope_parameters\": {\"full_attention\": {\"partial_rotary_factor\": 0.25, \"rope_theta\": 1000000.0, \"rope_type\": \"proportional\"}, \"sliding_attention\": {\"rope_theta\": 10000.0, \"rope_type\": \"default\"}},\n");
    } else {
        textbuf_addf(b, "  \"hidden_act\": \"silu\",\n  \"rope_theta\": %.1f,\n  \"rope_scaling\": null,\n", s->rope_theta);
        if (strcmp(s->hf_name, "olmoe") == 0) textbuf_adds(b, "  \"clip_qkv\": null,\n");
        else textbuf_adds(b, "  \"decoder_sparse_step\": 1,\n  \"mlp_only_layers\": [],\n  \"use_sliding_window\": false,\n");
    }
    if (t->fp8) {
        textbuf_adds(b, "  \"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"float-quantized\", \"quantization_status\": \"compressed\", \"ignore\": [\"lm_head\", \"re:.*router.*\", \"re:.*self_attn.*\", \"re:.*embed_tokens.*\"], \"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 8, \"type\": \"float\", \"symmetric\": true, \"strategy\": \"channel\", \"dynamic\": false}, \"input_activations\": null}}},\n");
    }
    textbuf_adds(b, "  \"torch_dtype\": \"bfloat16\"\n}\n");
}

static void add_tokenizer(const random_text *t, textbuf *b) {
    const long long eos = (long long)t->n_vocab - 1;
    char text[64];
    textbuf_addf(b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[{\"id\":%lld,\"content\":\"<eos>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}],\"normalizer\":null,", eos);
    textbuf_adds(b, "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"");
    textbuf_adds(b, pattern);
    textbuf_adds(b, "\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}]},\"post_processor\":null,");
    textbuf_adds(b, "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{");
    for (int64_t id = 0; id < t->n_vocab; id++) {
        const size_t n = token_text(t, id, text, sizeof text);
        textbuf_adds(b, id > 0 ? ",\"" : "\"");
        if (n == 1 && (text[0] == '"' || text[0] == '\\')) textbuf_adds(b, "\\");
        textbuf_add(b, text, n);
        textbuf_addf(b, "\":%lld", (long long)id);
    }
    textbuf_adds(b, "},\"merges\":[[\"\xc4\xa0\",\"w\"]]}}\n");
}

static status put_file(const random_text *t, const char *name, void (*build)(const random_text *, textbuf *), error *err) {
    textbuf b;
    textbuf_init(&b, t->m, MEM_PROCESS);
    build(t, &b);
    const status rc = b.failed ? error_set(err, STATUS_NO_MEMORY, "make-model: no memory for %s", name) : checkpoint_writer_sibling(t->w, name, b.data, b.len, err);
    textbuf_deinit(&b);
    return rc;
}

static void add_tokenizer_config(const random_text *t, textbuf *b) {
    (void)t;
    textbuf_adds(b, "{\"add_bos_token\": false, \"bos_token\": null, \"eos_token\": \"<eos>\", \"tokenizer_class\": \"PreTrainedTokenizerFast\"}\n");
}

status random_text_hf(const random_text *t, error *err) {
    TRY(put_file(t, "config.json", add_config, err));
    TRY(put_file(t, "tokenizer.json", add_tokenizer, err));
    return put_file(t, "tokenizer_config.json", add_tokenizer_config, err);
}
