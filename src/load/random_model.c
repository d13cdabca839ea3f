/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list of tensors, each with a way to fill it, goes out in order. The bulk (experts) is bytes of a generator with the bits that would make a number wild fixed: exponents of BF16
 * and F8, scales of blocks. What decides the routing (embeddings, routers) is computed number by number.
 */
#include "load/random_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load/checkpoint_writer.h"
#include "load/random_model_text.h"

enum { BUFFER_BYTES = 4 << 20, NAME_BYTES = 112 };
static const double STATE_STEP = 0.003;   /* rms that one block adds to a state of rms 1 */
static const double GUMBEL_SIGMA = 1.2825; /* pi / sqrt(6) */
static const double FAVOUR = 4;            /* what every embedding has in place 0, where routers have their preferences */

typedef enum filler { FILL_VALUE, FILL_BULK, FILL_EMBED, FILL_ROUTER, FILL_PROPORTIONAL } filler;

typedef struct made_tensor {
    char name[NAME_BYTES];
    vt_dtype dtype;
    filler fill;
    int n_dims;
    int64_t dim[3];
    double value; /* FILL_VALUE: it; FILL_PROPORTIONAL: of the first quarter, the others are turned by nothing; else rms */
    bool expert;
    uint64_t n_bytes;
} made_tensor;

typedef struct maker {
    mem *m;
    const random_model_request *r;
    const random_shape *s;
    int64_t n_layers, n_experts;
    bool gguf, fp8;
    vt_dtype expert, dense, norm, table, router;
    checkpoint_writer *w;
    made_tensor *tensors;
    size_t n_tensors, cap;
    uint64_t random; /* of the generator */
    uint8_t *buffer;
    double *favours; /* [n_experts] of the router that is written */
    uint64_t expert_bytes, total_bytes, done_bytes;
    error *err;
} maker;

/* ---- random numbers: splitmix64 ---- */

static inline uint64_t next_random(uint64_t *state) {
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Uniform with mean 0 and variance 1. */
static double unit(maker *k) { return ((double)(next_random(&k->random) >> 11) * 0x1p-53 - 0.5) * 3.4641016151377544; }

/* ---- the list ---- */

static status add(maker *k, made_tensor t) {
    if (k->n_tensors == k->cap) {
        const size_t cap = k->cap == 0 ? 1024 : 2 * k->cap;
        made_tensor *p = k->tensors == NULL ? mem_alloc(k->m, MEM_PROCESS, cap * sizeof *p) : mem_realloc(k->m, MEM_PROCESS, k->tensors, cap * sizeof *p);
        if (p == NULL) return error_set(k->err, STATUS_NO_MEMORY, "make-model: no memory for %zu tensors", cap);
        k->tensors = p;
        k->cap = cap;
    }
    TRY(checkpoint_writer_tensor(k->w, t.name, t.dtype, t.n_dims, t.dim, &t.n_bytes, k->err));
    k->total_bytes += t.n_bytes;
    if (t.expert) k->expert_bytes += t.n_bytes;
    k->tensors[k->n_tensors++] = t;
    return STATUS_OK;
}

/* The name in this container: hf and gguf are patterns with one %lld for the layer, or none. */
static made_tensor named(const maker *k, const char *hf, const char *gguf, int64_t layer) {
    made_tensor t = {0};
    char suffix[NAME_BYTES];
    snprintf(suffix, sizeof suffix, "%s", k->gguf ? gguf : hf);
    if (layer < 0)
        snprintf(t.name, sizeof t.name, "%s", suffix);
    else
        snprintf(t.name, sizeof t.name, k->gguf ? "blk.%lld.%.80s" : "model.layers.%lld.%.80s", (long long)layer, suffix);
    return t;
}

static status add_vector(maker *k, const char *hf, const char *gguf, int64_t layer, int64_t n, double value) {
    made_tensor t = named(k, hf, gguf, layer);
    t.dtype = k->norm;
    t.fill = FILL_VALUE;
    t.value = value;
    t.n_dims = 1;
    t.dim[0] = n;
    return add(k, t);
}

static status add_matrix(maker *k, const char *hf, const char *gguf, int64_t layer, vt_dtype dtype, filler fill, int64_t rows, int64_t columns, double rms) {
    made_tensor t = named(k, hf, gguf, layer);
    t.dtype = dtype;
    t.fill = fill;
    t.value = rms;
    t.n_dims = 2;
    t.dim[0] = rows;
    t.dim[1] = columns;
    return add(k, t);
}

/* Inputs of rms 1 give outputs of rms `gain`. */
static double rms_for(double gain, int64_t columns) { return gain / sqrt((double)columns); }

static status add_attention(maker *k, int64_t l) {
    const random_shape *s = k->s;
    const bool full = random_layer_is_full(s, l, k->n_layers);
    const int64_t hd = full ? s->full_head_dim : s->head_dim, n_kv = full ? s->full_kv_heads : s->n_kv_heads, q = s->n_heads * hd, kv = n_kv * hd, n = s->n_embd;
    const double out = s->sandwich ? 1 : STATE_STEP;
    TRY(add_matrix(k, "self_attn.q_proj.weight", "attn_q.weight", l, k->dense, FILL_BULK, q, n, rms_for(1, n)));
    TRY(add_matrix(k, "self_attn.k_proj.weight", "attn_k.weight", l, k->dense, FILL_BULK, kv, n, rms_for(1, n)));
    if (!full) TRY(add_matrix(k, "self_attn.v_proj.weight", "attn_v.weight", l, k->dense, FILL_BULK, kv, n, rms_for(1, n)));
    TRY(add_matrix(k, "self_attn.o_proj.weight", "attn_output.weight", l, k->dense, FILL_BULK, n, q, rms_for(out, q)));
    if (s->biased) {
        TRY(add_vector(k, "", "attn_q.bias", l, q, 0));
        TRY(add_vector(k, "", "attn_k.bias", l, kv, 0));
        TRY(add_vector(k, "", "attn_v.bias", l, kv, 0));
        TRY(add_vector(k, "", "attn_output.bias", l, n, 0));
        return add_vector(k, "", "attn_sinks.weight", l, s->n_heads, 0);
    }
    TRY(add_vector(k, "self_attn.q_norm.weight", "attn_q_norm.weight", l, s->wide_qk_norm ? q : hd, 1));
    return add_vector(k, "self_attn.k_norm.weight", "attn_k_norm.weight", l, s->wide_qk_norm ? kv : hd, 1);
}

static status add_norms(maker *k, int64_t l) {
    const int64_t n = k->s->n_embd;
    TRY(add_vector(k, "input_layernorm.weight", "attn_norm.weight", l, n, 1));
    if (!k->s->sandwich) return add_vector(k, "post_attention_layernorm.weight", k->s->biased ? "post_attention_norm.weight" : "ffn_norm.weight", l, n, 1);
    static const struct {
        const char *hf, *gguf;
        bool small;
    } more[] = {{"post_attention_layernorm.weight", "post_attention_norm.weight", true},
                {"pre_feedforward_layernorm.weight", "ffn_norm.weight", false},
                {"post_feedforward_layernorm.weight", "post_ffw_norm.weight", true},
                {"pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight", false},
                {"post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight", false},
                {"post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight", false},
                {"router.scale", "ffn_gate_inp.scale", false}};
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) TRY(add_vector(k, more[i].hf, more[i].gguf, l, n, more[i].small ? STATE_STEP : 1));
    TRY(add_vector(k, "layer_scalar", "layer_output_scale.weight", l, 1, 1));
    TRY(add_vector(k, "router.per_expert_scale", "ffn_down_exps.scale", l, k->n_experts, 1));
    TRY(add_matrix(k, "mlp.gate_proj.weight", "ffn_gate.weight", l, k->dense, FILL_BULK, k->s->n_ff, n, rms_for(1, n)));
    TRY(add_matrix(k, "mlp.up_proj.weight", "ffn_up.weight", l, k->dense, FILL_BULK, k->s->n_ff, n, rms_for(1, n)));
    return add_matrix(k, "mlp.down_proj.weight", "ffn_down.weight", l, k->dense, FILL_BULK, n, k->s->n_ff, rms_for(1, k->s->n_ff));
}

static status add_expert_matrix(maker *k, int64_t l, int64_t expert, const char *part, const char *gguf, int64_t rows, int64_t columns, double gain) {
    char name[NAME_BYTES];
    made_tensor t;
    if (k->gguf || expert < 0) { /* stacked */
        t = named(k, part, gguf, l);
        t.n_dims = 3;
        t.dim[0] = k->n_experts;
        t.dim[1] = rows;
        t.dim[2] = columns;
    } else {
        snprintf(name, sizeof name, "%sexperts.%lld.%s.weight", k->s->sandwich ? "" : "mlp.", (long long)expert, part);
        t = named(k, name, "", l);
        t.n_dims = 2;
        t.dim[0] = rows;
        t.dim[1] = columns;
    }
    t.dtype = k->expert;
    t.fill = FILL_BULK;
    t.value = k->fp8 ? 1 : rms_for(gain, columns);
    t.expert = true;
    TRY(add(k, t));
    if (!k->fp8) return STATUS_OK;
    made_tensor scale = {.dtype = VT_BF16, .fill = FILL_VALUE, .value = rms_for(gain, columns), .n_dims = 2, .dim = {rows, 1}, .expert = true};
    snprintf(scale.name, sizeof scale.name, "%.*s_scale", NAME_BYTES - 8, t.name);
    return add(k, scale);
}

static status add_expert_bias(maker *k, int64_t l, const char *gguf, int64_t n) {
    made_tensor t = named(k, "", gguf, l);
    t.dtype = k->norm;
    t.fill = FILL_VALUE;
    t.n_dims = 2;
    t.dim[0] = k->n_experts;
    t.dim[1] = n;
    t.expert = true;
    return add(k, t);
}

static status add_experts(maker *k, int64_t l) {
    const random_shape *s = k->s;
    const int64_t n = s->n_embd, ff = s->n_ff_exp;
    const double down = s->sandwich ? 1 : STATE_STEP;
    TRY(add_matrix(k, s->sandwich ? "router.proj.weight" : "mlp.gate.weight", "ffn_gate_inp.weight", l, k->router, FILL_ROUTER, k->n_experts, n, s->sandwich ? sqrt((double)n) : 1));
    if (s->sandwich && !k->fp8) {
        TRY(add_expert_matrix(k, l, -1, "experts.gate_up_proj", "ffn_gate_up_exps.weight", 2 * ff, n, 1));
        return add_expert_matrix(k, l, -1, "experts.down_proj", "ffn_down_exps.weight", n, ff, down);
    }
    for (int64_t e = 0; e < (k->gguf ? 1 : k->n_experts); e++) {
        TRY(add_expert_matrix(k, l, e, "gate_proj", "ffn_gate_exps.weight", ff, n, 1));
        TRY(add_expert_matrix(k, l, e, "up_proj", "ffn_up_exps.weight", ff, n, 1));
        TRY(add_expert_matrix(k, l, e, "down_proj", "ffn_down_exps.weight", n, ff, down));
    }
    if (!s->biased) return STATUS_OK;
    TRY(add_vector(k, "", "ffn_gate_inp.bias", l, k->n_experts, 0));
    TRY(add_expert_bias(k, l, "ffn_gate_exps.bias", ff));
    TRY(add_expert_bias(k, l, "ffn_up_exps.bias", ff));
    return add_expert_bias(k, l, "ffn_down_exps.bias", n);
}

static status list_tensors(maker *k) {
    const int64_t n = k->s->n_embd, v = k->r->n_vocab;
    TRY(add_matrix(k, "model.embed_tokens.weight", "token_embd.weight", -1, k->table, FILL_EMBED, v, n, k->s->sandwich ? 1 / sqrt((double)n) : 1));
    for (int64_t l = 0; l < k->n_layers; l++) {
        TRY(add_norms(k, l));
        TRY(add_attention(k, l));
        TRY(add_experts(k, l));
    }
    TRY(add_vector(k, "model.norm.weight", "output_norm.weight", -1, n, 1));
    if (k->gguf && k->s->sandwich) { /* a configuration says it in words */
        TRY(add_vector(k, "", "rope_freqs.weight", -1, k->s->full_head_dim / 2, 1));
        k->tensors[k->n_tensors - 1].fill = FILL_PROPORTIONAL;
    }
    return add_matrix(k, "lm_head.weight", "output.weight", -1, k->dense, FILL_BULK, v, n, rms_for(0.25, n));
}

/* ---- bytes ---- */

static uint16_t half_of(vt_dtype t, double v) { return t == VT_F16 ? vt_f32_to_f16((float)v) : vt_f32_to_bf16((float)v); }

static void put_number(uint8_t *at, vt_dtype t, double v) {
    if (t == VT_F32) {
        const float f = (float)v;
        memcpy(at, &f, sizeof f);
    } else {
        const uint16_t h = half_of(t, v);
        memcpy(at, &h, sizeof h);
    }
}

static void random_bytes(maker *k, size_t n) {
    uint64_t state = k->random;
    for (size_t i = 0; i < n; i += 8) {
        const uint64_t r = next_random(&state);
        memcpy(k->buffer + i, &r, 8); /* the buffer has room for eight more */
    }
    k->random = state;
}

/* n random bytes of a type made into numbers of about this rms. */
static void tame(maker *k, vt_dtype t, size_t n, double rms) {
    uint8_t *b = k->buffer;
    if (t == VT_BF16) { /* sign and mantissa random: rms 1.53 x 2^e */
        const uint16_t exponent = (uint16_t)((127 + (int)lround(log2(rms / 1.53))) << 7);
        for (size_t i = 0; i + 2 <= n; i += 2) {
            uint16_t h;
            memcpy(&h, b + i, 2);
            h = (uint16_t)((h & 0x807f) | exponent);
            memcpy(b + i, &h, 2);
        }
    } else if (t == VT_F8_E4M3) { /* likewise, between 0.5 and 1.9 */
        for (size_t i = 0; i < n; i++) b[i] = (uint8_t)((b[i] & 0x8f) | (6 << 3));
    } else if (t == VT_Q4_0 || t == VT_Q8_0) {
        const size_t block = vt_dtype_block_bytes(t);
        const uint16_t d = vt_f32_to_f16((float)(rms / (t == VT_Q4_0 ? 4.64 : 73.9)));
        for (size_t i = 0; i + block <= n; i += block) memcpy(b + i, &d, sizeof d);
    } else if (t == VT_MXFP4) { /* the sixteen values have rms 2.69 */
        const uint8_t e = (uint8_t)(127 + (int)lround(log2(rms / 2.69)));
        for (size_t i = 0; i + 17 <= n; i += 17) b[i] = e;
    }
}

static status put(maker *k, size_t n) {
    TRY(checkpoint_writer_bytes(k->w, k->buffer, n, k->err));
    k->done_bytes += n;
    if (k->r->progress != NULL) k->r->progress(k->r->user, k->done_bytes, k->total_bytes);
    return STATUS_OK;
}

static status write_bulk(maker *k, const made_tensor *t) {
    const size_t block = vt_dtype_block_bytes(t->dtype), most = BUFFER_BYTES / (8 * block) * (8 * block);
    for (uint64_t done = 0; done < t->n_bytes;) {
        const size_t n = t->n_bytes - done < most ? (size_t)(t->n_bytes - done) : most;
        random_bytes(k, n);
        tame(k, t->dtype, n, t->value);
        TRY(put(k, n));
        done += n;
    }
    return STATUS_OK;
}

/* Which experts a layer favours: a permutation of -S ln(rank), with mean 0. */
static void draw_favours(maker *k) {
    double mean = 0;
    for (int64_t i = 0; i < k->n_experts; i++) mean += (k->favours[i] = -k->r->skew * log((double)(i + 1))) / (double)k->n_experts;
    for (int64_t i = k->n_experts - 1; i >= 0; i--) {
        const int64_t j = (int64_t)(next_random(&k->random) % (uint64_t)(i + 1));
        const double v = k->favours[j];
        k->favours[j] = k->favours[i];
        k->favours[i] = v - mean;
    }
}

/* Row by row: embeddings have FAVOUR in place 0, and routers what that is multiplied by. */
static status write_rows(maker *k, const made_tensor *t) {
    const int64_t n = t->dim[t->n_dims - 1], rows = t->n_dims == 1 ? 1 : t->dim[0];
    const size_t size = vt_dtype_block_bytes(t->dtype);
    const bool router = t->fill == FILL_ROUTER;
    /* the norm divides by sqrt(1 + FAVOUR^2 / n) */
    const double norm = sqrt(1 + FAVOUR * FAVOUR / (double)n);
    if (router) draw_favours(k);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < n; c++) {
            double v = t->value;
            if (t->fill == FILL_EMBED) v *= c == 0 ? FAVOUR : unit(k);
            if (t->fill == FILL_PROPORTIONAL && c >= n / 4) v = 1e30; /* a divisor */
            if (router) v *= c == 0 ? k->favours[r] * norm / FAVOUR : unit(k) * GUMBEL_SIGMA * norm / sqrt((double)n);
            put_number(k->buffer + (size_t)c * size, t->dtype, v);
        }
        TRY(put(k, (size_t)n * size));
    }
    return STATUS_OK;
}

/* ---- all of it ---- */

static status set_types(maker *k) {
    static const struct {
        const char *name;
        bool gguf;
        vt_dtype expert, dense;
    } types[] = {{"bf16", false, VT_BF16, VT_BF16}, {"fp8", false, VT_F8_E4M3, VT_BF16}, {"mxfp4", true, VT_MXFP4, VT_Q8_0}, {"q4_0", true, VT_Q4_0, VT_Q4_0}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(types[i].name, k->r->dtype) != 0) continue;
        k->gguf = types[i].gguf;
        k->expert = types[i].expert;
        k->dense = types[i].dense;
        k->fp8 = k->expert == VT_F8_E4M3;
        k->norm = k->router = k->gguf ? VT_F32 : VT_BF16;
        k->table = k->gguf ? VT_F16 : VT_BF16;
        if (!k->gguf && k->s->hf_name == NULL) return error_set(k->err, STATUS_UNSUPPORTED, "make-model: %s is not written as safetensors (%s); mxfp4 and q4_0 are", k->s->name, k->r->dtype);
        return STATUS_OK;
    }
    return error_set(k->err, STATUS_INVALID, "make-model: no dtype \"%.40s\": bf16, fp8, mxfp4, q4_0", k->r->dtype);
}

static status check(maker *k) {
    const random_model_request *r = k->r;
    k->s = random_shape_find(r->shape);
    if (k->s == NULL) return error_set(k->err, STATUS_INVALID, "make-model: no shape \"%.40s\": %s", r->shape, random_model_shapes());
    k->n_layers = r->n_layers > 0 ? r->n_layers : k->s->n_layers;
    k->n_experts = r->n_experts > 0 ? r->n_experts : k->s->n_experts;
    if (k->n_layers > 1024 || k->n_experts < k->s->top_k || k->n_experts > 4096 || r->n_vocab < RANDOM_MODEL_LEAST_VOCAB || r->n_vocab > RANDOM_MODEL_MOST_VOCAB ||
        !(r->skew >= 0 && r->skew <= 16)) {
        return error_set(k->err, STATUS_INVALID, "make-model: %lld layers of %lld experts (top %lld), %lld tokens, skew %g: out of range", (long long)k->n_layers, (long long)k->n_experts,
                         (long long)k->s->top_k, (long long)r->n_vocab, r->skew);
    }
    return set_types(k);
}

static status make(maker *k, const char *path, random_model_result *out) {
    TRY(checkpoint_writer_open(k->m, k->gguf ? CHECKPOINT_GGUF : CHECKPOINT_SAFETENSORS, path, &k->w, k->err));
    const random_text text = {.m = k->m, .w = k->w, .s = k->s, .n_layers = k->n_layers, .n_experts = k->n_experts, .n_vocab = k->r->n_vocab, .fp8 = k->fp8};
    TRY(k->gguf ? random_text_gguf(&text, k->err) : random_text_hf(&text, k->err));
    TRY(list_tensors(k));
    TRY(checkpoint_writer_begin(k->w, k->err));
    for (size_t i = 0; i < k->n_tensors; i++) TRY(k->tensors[i].fill == FILL_BULK ? write_bulk(k, &k->tensors[i]) : write_rows(k, &k->tensors[i]));
    *out = (random_model_result){.expert_bytes = k->expert_bytes, .n_layers = k->n_layers, .n_experts = k->n_experts, .top_k = k->s->top_k};
    return checkpoint_writer_finish(k->w, &out->file_bytes, k->err);
}

status random_model_write(mem *m, const char *path, const random_model_request *r, random_model_result *out, error *err) {
    maker k = {.m = m, .r = r, .random = r->seed * UINT64_C(0x2545f4914f6cdd1d) + 1, .err = err};
    TRY(check(&k));
    k.buffer = mem_alloc(m, MEM_STAGING, BUFFER_BYTES + 8);
    k.favours = mem_calloc(m, MEM_STAGING, (size_t)k.n_experts, sizeof *k.favours);
    status rc = k.buffer == NULL || k.favours == NULL ? error_set(err, STATUS_NO_MEMORY, "make-model: no memory for a buffer") : make(&k, path, out);
    checkpoint_writer_close(k.w);
    mem_free(m, k.tensors);
    mem_free(m, k.buffer);
    mem_free(m, k.favours);
    return rc;
}
