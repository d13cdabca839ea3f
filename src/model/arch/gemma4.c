/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gemma 4: Gemma 3's sandwich of norms (weights as they are), with full layers of another head size that may take keys for values, a norm without weight over values, proportional
 * rotary positions on full layers, attention without a scale, a scalar per layer and a soft cap on the logits. The last layers may read the cache of the last layer of their
 * kind that has one, with an MLP of double width. With experts, a mixture runs beside the MLP on the same input, each between norms of its own. Per-layer embeddings, where there are any: a second table and a projection of the embedding give every layer an input of its own.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/block_moe.h"
#include "model/weight_rows.h"

enum { PATTERN = 6 }; /* by default every sixth layer is full, and the last */

enum slot {
    W_LAYER_SCALE = W_COMMON_COUNT,
    W_ROUTER_NORM, W_EXPERTS_NORM, W_MLP_POST_NORM, W_EXPERTS_POST_NORM,
    W_PLE_TABLE, W_PLE_MODEL_PROJ, W_PLE_PROJ_NORM,
    W_PLE_GATE, W_PLE_PROJ, W_PLE_POST_NORM,
    SLOT_COUNT
};

typedef struct gemma4 {
    int64_t full_head_dim, full_kv_heads, keys_are_values, n_shared, double_wide, experts;
    int64_t n_ple, ple_vocab; /* per-layer embedding: width, rows of its table */
    float *layer_scale;       /* [n_layers] */
    vt_tensor per_layer;      /* of the step, [rows, n_layers * n_ple] */
} gemma4;

/* What the published configurations leave to the defaults of Transformers' class, and lists where other families have numbers. */
static const hparam_row hparam_rows[] = {
    HPARAM(n_ff, HPARAM_COUNT, "intermediate_size", "feed_forward_length", 1, 1 << 24, 9216, HPARAM_FIRST),
    HPARAM(n_ctx_train, HPARAM_COUNT, "max_position_embeddings", "context_length", 1, 1 << 30, 131072, 0),
    HPARAM(n_heads, HPARAM_COUNT, "num_attention_heads", "attention.head_count", 1, 1 << 16, 8, 0),
    HPARAM(n_kv_heads, HPARAM_COUNT, "num_key_value_heads", "attention.head_count_kv", 1, 1 << 16, 4, HPARAM_FIRST),
    HPARAM(head_dim, HPARAM_COUNT, "head_dim", "attention.key_length_swa", 1, 1 << 16, 256, 0),
    HPARAM(norm_eps, HPARAM_NUMBER, "rms_norm_eps", "attention.layer_norm_rms_epsilon", 0, 1, 1e-6, 0),
    HPARAM(window, HPARAM_COUNT, "sliding_window", "attention.sliding_window", 1, 1 << 30, 512, 0),
    HPARAM(rope.theta, HPARAM_NUMBER, "rope_parameters.full_attention.rope_theta", "rope.freq_base", 1e-6, 1e12, 1e6, 0),
    HPARAM(rope_dim, HPARAM_COUNT, NULL, "rope.dimension_count_swa", 0, 1 << 16, NAN, 0),
};

static const hparam_row own_hparams[] = {
    HPARAM_IN(gemma4, full_head_dim, HPARAM_COUNT, "global_head_dim", "attention.key_length", 1, 1 << 16, 512, 0),
    HPARAM_IN(gemma4, full_kv_heads, HPARAM_COUNT, "num_global_key_value_heads", NULL, 1, 1 << 16, NAN, 0),
    HPARAM_IN(gemma4, keys_are_values, HPARAM_FLAG, "attention_k_eq_v", NULL, 0, 1, NAN, 0),
    HPARAM_IN(gemma4, n_shared, HPARAM_COUNT, "num_kv_shared_layers", "attention.shared_kv_layers", 0, HPARAM_MAX_LAYERS, NAN, 0),
    HPARAM_IN(gemma4, double_wide, HPARAM_FLAG, "use_double_wide_mlp", NULL, 0, 1, NAN, 0),
    HPARAM_IN(gemma4, experts, HPARAM_FLAG, "enable_moe_block", NULL, 0, 1, NAN, 0),
    HPARAM_IN(gemma4, n_ple, HPARAM_COUNT, "hidden_size_per_layer_input", "embedding_length_per_layer_input", 0, 1 << 20, NAN, 0),
    HPARAM_IN(gemma4, ple_vocab, HPARAM_COUNT, "vocab_size_per_layer_input", NULL, 1, 1 << 24, NAN, 0),
};

#define EXPERTS (WEIGHT_PER_LAYER | WEIGHT_EXPERTS | WEIGHT_OPTIONAL)
/* clang-format off */
static const weight_row weights[] = {
    ROWS_MODEL(WEIGHT_AS_IS),
    ROWS_SANDWICH_NORM(WEIGHT_AS_IS),
    ROWS_ATTENTION_QKO(WEIGHT_AS_IS),
    {W_V, "model.layers.{l}.self_attn.v_proj.weight", NULL, "kv,embd", WEIGHT_PER_LAYER, 0, 0},
    {W_V, NULL, "blk.{l}.attn_v.weight", "kv,embd", WEIGHT_PER_LAYER | WEIGHT_OPTIONAL, 0, 0},
    ROWS_HEAD_NORM(WEIGHT_AS_IS),
    ROWS_MLP,
    {W_LAYER_SCALE, "model.layers.{l}.layer_scalar", "blk.{l}.layer_output_scale.weight", "1", WEIGHT_PER_LAYER | WEIGHT_OPTIONAL | WEIGHT_ELEMENT_TYPES, 0, 0},
    ROW_BIAS(W_ROUTER_NORM, "router.scale", "ffn_gate_inp.scale", "embd", 0),
    ROW_MATRIX(W_ROUTER, "router.proj.weight", "ffn_gate_inp.weight", "experts,embd", 0),
    ROW_BIAS(W_EXPERT_SCALE, "router.per_expert_scale", "ffn_down_exps.scale", "experts", 0),
    ROW_NORM(W_EXPERTS_NORM, "pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight", "embd", 0),
    ROW_NORM(W_MLP_POST_NORM, "post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight", "embd", 0),
    ROW_NORM(W_EXPERTS_POST_NORM, "post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight", "embd", 0),
    {W_EXP_GATE_UP, "model.layers.{l}.experts.gate_up_proj", NULL, "experts,2ff_exp,embd", EXPERTS, 0, 0},
    ROWS_EXPERTS_GGUF,
    {W_EXP_GATE, "model.layers.{l}.experts.{e}.gate_proj.weight", NULL, "experts,ff_exp,embd", EXPERTS, 0, 0},
    {W_EXP_UP, "model.layers.{l}.experts.{e}.up_proj.weight", NULL, "experts,ff_exp,embd", EXPERTS, 0, 0},
    {W_EXP_DOWN, "model.layers.{l}.experts.down_proj|model.layers.{l}.experts.{e}.down_proj.weight", "blk.{l}.ffn_down_exps.weight", "experts,embd,ff_exp", EXPERTS, 0, 0},
    {W_PLE_TABLE, "model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight", "ple vocab,ple all", WEIGHT_TABLE, 0, 0},
    {W_PLE_MODEL_PROJ, "model.per_layer_model_projection.weight", "per_layer_model_proj.weight", "ple all,embd", 0, 0, 0},
    {W_PLE_PROJ_NORM, "model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight", "ple", WEIGHT_ELEMENT_TYPES, 0, 0},
    ROW_MATRIX(W_PLE_GATE, "per_layer_input_gate.weight", "inp_gate.weight", "ple,embd", 0),
    ROW_MATRIX(W_PLE_PROJ, "per_layer_projection.weight", "proj.weight", "embd,ple", 0),
    ROW_NORM(W_PLE_POST_NORM, "post_per_layer_input_norm.weight", "post_norm.weight", "embd", 0),
};
/* clang-format on */

static int64_t dim(const model *m, const char *symbol, size_t n, int layer) {
    const gemma4 *own = m->priv;
    (void)layer;
    const struct {
        const char *name;
        int64_t value;
    } symbols[] = {
        {"rot/2", own->full_head_dim / 2}, /* divisors are for the full layers */
        {"ple", own->n_ple},
        {"ple all", own->n_ple * m->hp.n_layers},
        {"ple vocab", own->ple_vocab > 0 ? own->ple_vocab : m->hp.n_vocab},
    };
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        if (strlen(symbols[i].name) == n && memcmp(symbols[i].name, symbol, n) == 0) return symbols[i].value;
    }
    return -1;
}

static bool applies(const model *m, const weight_row *row, int layer) {
    const gemma4 *own = m->priv;
    if (row->slot >= W_PLE_TABLE) return own->n_ple > 0;
    if ((row->slot >= W_ROUTER && row->slot <= W_EXP_DOWN_BIAS) || row->slot >= W_ROUTER_NORM) return m->hp.n_experts > 0;
    if (row->slot != W_K && row->slot != W_V && row->slot != W_K_NORM) return true;
    if (m->layers[layer].kv_layer != layer) return false;
    return row->slot != W_V || !own->keys_are_values || m->layers[layer].kind != LAYER_FULL;
}

/* ---- configuration ---- */

/* A count of one layer in the spelling of Transformers 5: per_layer_config holds what differs from the whole. */
static status layer_override(const model *m, int layer, const char *key, int64_t *value, error *err) {
    char name[96];
    snprintf(name, sizeof name, "per_layer_config.%d.%s", layer, key);
    return model_layer_count(m, name, NULL, layer, *value, value, err);
}

static status layer_sizes(const model *m, int l, layer_info *li, error *err) {
    const gemma4 *own = m->priv;
    const bool full = li->kind == LAYER_FULL, listed = meta_type_of(model_find(m, "per_layer_config", NULL)) == META_OBJECT;
    li->head_dim = m->hp.head_dim;
    li->n_kv_heads = m->hp.n_kv_heads;
    if (full && !listed) {
        li->head_dim = own->full_head_dim;
        if (own->keys_are_values && own->full_kv_heads > 0) li->n_kv_heads = own->full_kv_heads;
    }
    TRY(layer_override(m, l, "head_dim", &li->head_dim, err));
    TRY(layer_override(m, l, "num_key_value_heads", &li->n_kv_heads, err));
    TRY(model_layer_count(m, NULL, "attention.head_count_kv", l, li->n_kv_heads, &li->n_kv_heads, err));
    li->n_ff = m->hp.n_ff * (own->double_wide && li->kv_layer != l ? 2 : 1);
    TRY(model_layer_count(m, NULL, "feed_forward_length", l, li->n_ff, &li->n_ff, err));
    if (li->head_dim % 2 != 0 || li->n_heads % li->n_kv_heads != 0) {
        return error_set(err, STATUS_FORMAT, "model: layer %d: %lld heads of %lld over %lld key/value heads", l, (long long)li->n_heads, (long long)li->head_dim,
                         (long long)li->n_kv_heads);
    }
    return STATUS_OK;
}

/* The layer whose cache layer l reads: its own, or, of the sharing ones at the end, the last before them of its kind. */
static status cache_of(const model *m, const bool *is_window, int l, int32_t *out, error *err) {
    const int first = (int)(m->hp.n_layers - ((const gemma4 *)m->priv)->n_shared);
    *out = l;
    if (l < first) return STATUS_OK;
    for (*out = first - 1; *out >= 0 && is_window[*out] != is_window[l]; (*out)--) continue;
    if (*out < 0) return error_set(err, STATUS_FORMAT, "model: num_kv_shared_layers: no layer before layer %d has a cache of the kind that layer %d reads", first, l);
    return STATUS_OK;
}

static status add_ropes(model *m, int32_t *full, int32_t *local, error *err) {
    const gemma4 *own = m->priv;
    hparams *h = &m->hp;
    int64_t full_dim = own->full_head_dim;
    if (source_container(m->src) == META_HF && meta_type_of(model_find(m, "rope_parameters", NULL)) != META_OBJECT) {
        h->rope.type = "proportional";
        h->rope.partial = 0.25;
    }
    for (int64_t l = 0; l < h->n_layers; l++) {
        if (m->layers[l].kind == LAYER_FULL) full_dim = m->layers[l].head_dim;
    }
    TRY(model_add_rope(m, &h->rope, full_dim, full, err)); /* the first: a GGUF's divisors are for it */
    return model_add_rope(m, &h->rope_window, h->rope_dim, local, err);
}

static status ignore_unused(model *m, int l, error *err) {
    static const char *const shared[] = {"*layers.{l}.self_attn.k_proj.weight", "*layers.{l}.self_attn.v_proj.weight", "*layers.{l}.self_attn.k_norm.weight",
                                         "blk.{l}.attn_k.weight", "blk.{l}.attn_v.weight", "blk.{l}.attn_k_norm.weight"};
    for (size_t i = 0; m->layers[l].kv_layer != l && i < sizeof shared / sizeof shared[0]; i++) TRY(model_ignore(m, shared[i], l, err));
    return STATUS_OK;
}

static status configure(model *m, error *err) {
    const gemma4 *own = m->priv;
    hparams *h = &m->hp;
    int32_t full, local;
    TRY(model_require_activation(m, "gelu_pytorch_tanh", err));
    TRY(model_require_gating(m, GATING_SOFTMAX, err));
    if (source_container(m->src) == META_HF && !own->experts) h->n_experts = 0; /* the class's defaults name some */
    const char *text;
    size_t n;
    if (meta_as_string(model_find(m, "use_bidirectional_attention", NULL), &text, &n) && strcmp(text, "all") == 0) {
        return error_set(err, STATUS_UNSUPPORTED, "model: use_bidirectional_attention \"all\" is not implemented for gemma4");
    }
    if (own->n_ple > 0 && own->ple_vocab > 0 && own->ple_vocab < h->n_vocab) {
        return error_set(err, STATUS_FORMAT, "model: vocab_size_per_layer_input %lld is less than the vocabulary of %lld", (long long)own->ple_vocab, (long long)h->n_vocab);
    }
    if (own->n_shared >= h->n_layers) return error_set(err, STATUS_FORMAT, "model: num_kv_shared_layers %lld leaves no layer with a cache", (long long)own->n_shared);

    bool *is_window = arena_calloc(m->arena, (size_t)h->n_layers, sizeof *is_window);
    if (is_window == NULL) return error_set(err, STATUS_NO_MEMORY, "model: no memory for the layers' kinds");
    TRY(model_window_layers(m, PATTERN, is_window, err));
    if (source_container(m->src) == META_HF) is_window[h->n_layers - 1] = false;
    for (int32_t l = 0; l < (int32_t)h->n_layers; l++) {
        layer_info *li = &m->layers[l];
        *li = (layer_info){
            .kind = is_window[l] ? LAYER_WINDOW : LAYER_FULL,
            .n_heads = h->n_heads,
            .window = is_window[l] ? h->window : 0,
            .attn_scale = 1.0f,
            .v_norm = true,
        };
        TRY(cache_of(m, is_window, l, &li->kv_layer, err));
        TRY(layer_sizes(m, l, li, err));
        TRY(ignore_unused(m, l, err));
    }
    TRY(add_ropes(m, &full, &local, err));
    for (int64_t l = 0; l < h->n_layers; l++) m->layers[l].rope = is_window[l] ? local : full;
    return model_group_layers(m, err);
}

static status prepare(model *m, error *err) {
    gemma4 *own = m->priv;
    own->layer_scale = arena_alloc(m->arena, (size_t)m->hp.n_layers * sizeof *own->layer_scale);
    if (own->layer_scale == NULL) return error_set(err, STATUS_NO_MEMORY, "model: no memory for the layers' scalars");
    for (int l = 0; l < (int)m->hp.n_layers; l++) TRY(model_read_value(m, W_LAYER_SCALE, l, 1.0f, &own->layer_scale[l], err));
    return STATUS_OK;
}

/* ---- the pass ---- */

/* Every layer's own input: the mean (times sqrt 2) of the second table's row and a normed projection of the embedding. It stays in the workspace for the whole pass. */
static status embed_per_layer(block_ctx *c, vt_tensor x) {
    model *m = c->m;
    gemma4 *own = m->priv;
    const int64_t all = own->n_ple * m->hp.n_layers;
    TRY(ws_take(c, VT_F32, c->n_rows, all, &own->per_layer));
    const size_t mark = ws_mark(c);
    vt_tensor y;
    TRY(ws_take(c, VT_F32, c->n_rows, all, &y));
    const vt_tensor ids = vt_tensor_slice(m->ids, 0, 0, c->n_rows), by_layer = vt_tensor_split_last(own->per_layer, own->n_ple);
    block_act a = block_act_of(x);
    TRY(block_linear(c, own->per_layer, &a, model_weight(m, W_PLE_MODEL_PROJ, -1), NULL));
    TRY(block_scale(c, own->per_layer, 1.0f / sqrtf((float)m->hp.n_embd)));
    TRY(block_norm(c, by_layer, by_layer, W_PLE_PROJ_NORM, -1));
    TRY(vt_gather_rows(c->q, &y, model_weight(m, W_PLE_TABLE, -1), &ids, c->err));
    TRY(block_scale(c, y, sqrtf((float)own->n_ple)));
    TRY(block_add(c, own->per_layer, y));
    ws_release(c, mark);
    return STATUS_OK;
}

static status embed(block_ctx *c, vt_tensor x) {
    TRY(block_embed(c, x));
    TRY(block_scale(c, x, sqrtf((float)c->m->hp.n_embd)));
    return ((const gemma4 *)c->m->priv)->n_ple > 0 ? embed_per_layer(c, x) : STATUS_OK;
}

static float layer_scale(const gemma4 *own, int l) { return own->layer_scale != NULL ? own->layer_scale[l] : 1.0f; }

/* x = (x + norm(projection(gelu(gate x) * the layer's own input))) * scale: the end of a layer that has one. */
static status add_per_layer(block_ctx *c, int l, vt_tensor x) {
    model *m = c->m;
    const gemma4 *own = m->priv;
    const size_t mark = ws_mark(c);
    vt_tensor pair, mid, y;
    TRY(ws_take(c, VT_F32, c->n_rows, 2 * own->n_ple, &pair));
    TRY(ws_take(c, VT_F32, c->n_rows, own->n_ple, &mid));
    TRY(ws_take(c, VT_F32, c->n_rows, m->hp.n_embd, &y));
    block_act a = block_act_of(x), b = block_act_of(mid);
    const vt_tensor input = vt_tensor_slice(own->per_layer, 1, l * own->n_ple, own->n_ple), right = vt_tensor_slice(pair, 1, own->n_ple, own->n_ple);
    TRY(block_linear(c, vt_tensor_slice(pair, 1, 0, own->n_ple), &a, model_weight(m, W_PLE_GATE, l), NULL));
    TRY(vt_mul_scalar(c->q, &right, &input, 1.0f / sqrtf(2.0f), c->err));
    TRY(vt_gelu_and_mul(c->q, &mid, &pair, c->err));
    TRY(block_linear(c, y, &b, model_weight(m, W_PLE_PROJ, l), NULL));
    block_link last = {.layer = l, .b = {.y = y, .norm = W_PLE_POST_NORM}, .post = NO_NORM, .scale = layer_scale(own, l)};
    block_link_ahead(c, &last, AHEAD_PRODUCTS);
    TRY(block_link_run(c, x, &last));
    ws_release(c, mark);
    return STATUS_OK;
}

/* The dense half of a layer with experts, which they are not waited for. */
typedef struct dense_half {
    vt_tensor out, x;
} dense_half;

static status dense_beside(block_ctx *c, int l, void *ctx) {
    const dense_half *d = ctx;
    return block_mlp(c, d->out, d->x, l, BLOCK_GELU);
}

/* The router sees the un-normed stream, brought to unit size and scaled per channel. */
static float router_scale(const model *m) { return 1.0f / sqrtf((float)m->hp.n_embd); }

static status router_input(block_ctx *c, vt_tensor out, vt_tensor x, int l) {
    TRY(block_norm(c, out, x, W_ROUTER_NORM, l));
    return block_scale(c, out, router_scale(c->m));
}

/* x += norm(attention(norm x)); x = (x + norm(norm(mlp(norm x)) + norm(experts(norm x)))) * scale. */
static status layer_with_experts(block_ctx *c, int l, vt_tensor x, float scale, bool is_all) {
    const int64_t n = c->n_rows, width = c->m->hp.n_embd;
    const size_t mark = ws_mark(c);
    vt_tensor dense, h, to_router, to_experts;
    TRY(ws_take(c, VT_F32, n, width, &dense));
    TRY(ws_take(c, BLOCK_FEED(c, l, W_GATE, W_UP), n, width, &h));
    TRY(ws_take(c, VT_F32, n, width, &to_router));
    TRY(ws_take(c, block_moe_feed_dtype(c, l), n, width, &to_experts));
    const block_link first = {
        .layer = l,
        .b = {.y = dense, .norm = W_ATTN_POST_NORM},
        .post = NO_NORM,
        .n_outs = 3,
        .out = {{h, W_FFN_NORM, l, 1.0f}, {to_router, W_ROUTER_NORM, l, router_scale(c->m)}, {to_experts, W_EXPERTS_NORM, l, 1.0f}},
    };
    block_link last = {.layer = l, .b = {.norm = W_EXPERTS_POST_NORM}, .c = {.y = dense, .norm = W_MLP_POST_NORM}, .post = W_FFN_POST_NORM, .scale = scale};
    dense_half d = {dense, h};
    const block_moe_params p = {
        .router = {.mode = VT_ROUTER_SOFTMAX, .n_groups = 1, .renormalize = true, .scaling = 1.0f},
        .activation = MOE_GELU,
        .router_input = router_input,
        .beside = dense_beside,
        .beside_ctx = &d,
        .link = &last,
    };
    TRY(block_normed_attention(c, dense, x, l));
    TRY(block_link_run(c, x, &first));
    block_link_ahead(c, &last, is_all ? AHEAD_PRODUCTS : AHEAD_NONE);
    TRY(block_moe(c, x, to_experts, to_router, l, &p));
    ws_release(c, mark);
    return STATUS_OK;
}

static status layer(block_ctx *c, int l, vt_tensor x) {
    const gemma4 *own = c->m->priv;
    const bool is_all = own->n_ple == 0;
    const float scale = is_all ? layer_scale(own, l) : 1.0f;
    TRY(c->m->hp.n_experts > 0 ? layer_with_experts(c, l, x, scale, is_all) : block_sandwich_layer(c, l, x, BLOCK_GELU, scale, is_all));
    return is_all ? STATUS_OK : add_per_layer(c, l, x);
}

static const char *const hf_names[] = {"Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "gemma4_text", "gemma4", NULL};
static const char *const gguf_names[] = {"gemma4", NULL};

const arch arch_gemma4 = {
    .name = "gemma4",
    .hf_names = hf_names,
    .gguf_names = gguf_names,
    .hparams = hparam_rows,
    .n_hparams = sizeof hparam_rows / sizeof hparam_rows[0],
    .own_hparams = own_hparams,
    .n_own_hparams = sizeof own_hparams / sizeof own_hparams[0],
    .own_bytes = sizeof(gemma4),
    .weights = weights,
    .n_weights = sizeof weights / sizeof weights[0],
    .n_slots = SLOT_COUNT,
    .dense_beside_experts = true,
    .configure = configure,
    .prepare = prepare,
    .dim = dim,
    .applies = applies,
    .embed = embed,
    .layer = layer,
    .head = block_head,
};
