/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Qwen3.5 MoE: three layers of the gated delta rule (convolution and state per sequence) to one of gated attention, every layer a mixture of experts with a gated shared expert. Norm weights
 * are stored for (1 + w), the delta layers' own norm is not. For text the three axes of its rotary positions are equal, so that it is the plain partial rotary.
 */
#include <math.h>
#include <string.h>

#include "model/block_moe.h"
#include "model/weight_rows.h"

enum slot { W_LIN_QKV = W_COMMON_COUNT, W_LIN_Z, W_LIN_A, W_LIN_B, W_LIN_CONV, W_LIN_A_LOG, W_LIN_DT_BIAS, W_LIN_NORM, W_LIN_OUT, SLOT_COUNT };
enum { STATE_CONV, STATE_DELTA };

typedef struct own {
    int64_t n_k, d_k, n_v, d_v, taps, interval, shared_ff;
    int64_t inner; /* of a GGUF: n_v * d_v */
} own;

static const hparam_row hparam_rows[] = {
    HPARAM(n_ff, HPARAM_COUNT, "intermediate_size", "feed_forward_length", 1, 1 << 24, 1, 0), /* every layer has experts instead */
};

static const hparam_row own_hparams[] = {
    HPARAM_IN(own, n_k, HPARAM_COUNT, "linear_num_key_heads", "ssm.group_count", 1, 65536, NAN, HPARAM_REQUIRED),
    HPARAM_IN(own, d_k, HPARAM_COUNT, "linear_key_head_dim", "ssm.state_size", 1, 65536, NAN, HPARAM_REQUIRED),
    HPARAM_IN(own, n_v, HPARAM_COUNT, "linear_num_value_heads", "ssm.time_step_rank", 1, 65536, NAN, HPARAM_REQUIRED),
    HPARAM_IN(own, d_v, HPARAM_COUNT, "linear_value_head_dim", NULL, 1, 65536, NAN, HPARAM_REQUIRED),
    HPARAM_IN(own, taps, HPARAM_COUNT, "linear_conv_kernel_dim", "ssm.conv_kernel", 1, 64, 4, 0),
    HPARAM_IN(own, interval, HPARAM_COUNT, "full_attention_interval", "full_attention_interval", 1, HPARAM_MAX_LAYERS, 4, 0),
    HPARAM_IN(own, shared_ff, HPARAM_COUNT, "shared_expert_intermediate_size", "expert_shared_feed_forward_length", 1, 1 << 24, NAN, HPARAM_REQUIRED),
    HPARAM_IN(own, inner, HPARAM_COUNT, NULL, "ssm.inner_size", 1, 1 << 24, NAN, HPARAM_REQUIRED),
};

/* clang-format off */
#define ROW_VALUES(slot, hf, gguf, shape) {slot, "model.layers.{l}." hf, "blk.{l}." gguf, shape, WEIGHT_PER_LAYER | WEIGHT_ELEMENT_TYPES, 0, 0}
#define ROW_STACK(slot, hf, shape) {slot, "model.layers.{l}.mlp.experts." hf, NULL, shape, WEIGHT_PER_LAYER | WEIGHT_EXPERTS | WEIGHT_OPTIONAL, 0, 0}
static const weight_row weights[] = {
    ROWS_MODEL(WEIGHT_NORM_PLUS_ONE),
    ROW_NORM(W_ATTN_NORM, "input_layernorm.weight", "attn_norm.weight", "embd", WEIGHT_NORM_PLUS_ONE),
    ROW_NORM(W_FFN_NORM, "post_attention_layernorm.weight", "post_attention_norm.weight", "embd", WEIGHT_NORM_PLUS_ONE),
    ROW_MATRIX(W_Q, "self_attn.q_proj.weight", "attn_q.weight", "gated q,embd", 0),
    ROW_MATRIX(W_K, "self_attn.k_proj.weight", "attn_k.weight", "kv,embd", 0),
    ROW_MATRIX(W_V, "self_attn.v_proj.weight", "attn_v.weight", "kv,embd", 0),
    ROW_MATRIX(W_O, "self_attn.o_proj.weight", "attn_output.weight", "embd,q", 0),
    ROWS_HEAD_NORM(WEIGHT_NORM_PLUS_ONE),
    ROW_MATRIX(W_LIN_QKV, "linear_attn.in_proj_qkv.weight", "attn_qkv.weight", "channels,embd", 0),
    ROW_MATRIX(W_LIN_Z, "linear_attn.in_proj_z.weight", "attn_gate.weight", "values,embd", 0),
    ROW_MATRIX(W_LIN_A, "linear_attn.in_proj_a.weight", "ssm_alpha.weight", "v heads,embd", 0),
    ROW_MATRIX(W_LIN_B, "linear_attn.in_proj_b.weight", "ssm_beta.weight", "v heads,embd", 0),
    ROW_VALUES(W_LIN_CONV, "linear_attn.conv1d.weight", "ssm_conv1d.weight", "channels,taps"),
    ROW_VALUES(W_LIN_A_LOG, "linear_attn.A_log", "ssm_a", "v heads"),
    ROW_VALUES(W_LIN_DT_BIAS, "linear_attn.dt_bias", "ssm_dt.bias", "v heads"),
    ROW_VALUES(W_LIN_NORM, "linear_attn.norm.weight", "ssm_norm.weight", "v size"),
    ROW_MATRIX(W_LIN_OUT, "linear_attn.out_proj.weight", "ssm_out.weight", "embd,values", 0),
    ROW_MATRIX(W_ROUTER, "mlp.gate.weight", "ffn_gate_inp.weight", "experts,embd", 0),
    ROW_STACK(W_EXP_GATE_UP, "gate_up_proj", "experts,2ff_exp,embd"),
    ROW_STACK(W_EXP_GATE, "{e}.gate_proj.weight", "experts,ff_exp,embd"),
    ROW_STACK(W_EXP_UP, "{e}.up_proj.weight", "experts,ff_exp,embd"),
    ROWS_EXPERTS_GGUF,
    {W_EXP_DOWN, "model.layers.{l}.mlp.experts.down_proj|model.layers.{l}.mlp.experts.{e}.down_proj.weight", "blk.{l}.ffn_down_exps.weight", "experts,embd,ff_exp", WEIGHT_PER_LAYER | WEIGHT_EXPERTS | WEIGHT_OPTIONAL, 0, 0},
    ROW_MATRIX(W_SHARED_GATE, "mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", "shared ff,embd", 0),
    ROW_MATRIX(W_SHARED_UP, "mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", "shared ff,embd", 0),
    ROW_MATRIX(W_SHARED_DOWN, "mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", "embd,shared ff", 0),
    ROW_MATRIX(W_SHARED_ROUTER, "mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", "1,embd", 0),
};
/* clang-format on */

static int64_t dim(const model *m, const char *symbol, size_t n, int layer) {
    const own *o = m->priv;
    const struct {
        const char *name;
        int64_t value;
    } symbols[] = {
        {"channels", 2 * o->n_k * o->d_k + o->n_v * o->d_v},
        {"values", o->n_v * o->d_v},
        {"v heads", o->n_v},
        {"v size", o->d_v},
        {"taps", o->taps},
        {"shared ff", o->shared_ff},
        {"gated q", layer >= 0 ? 2 * m->layers[layer].n_heads * m->layers[layer].head_dim : -1},
    };
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        if (strlen(symbols[i].name) == n && memcmp(symbols[i].name, symbol, n) == 0) return symbols[i].value;
    }
    return -1;
}

static bool applies(const model *m, const weight_row *row, int layer) {
    if (layer < 0) return true;
    const bool recurrent = m->layers[layer].kind == LAYER_RECURRENT;
    if (row->slot >= W_LIN_QKV) return recurrent;
    if (row->slot >= W_Q && row->slot <= W_K_NORM) return !recurrent;
    return true;
}

/* Which layers attend: as layer_types or a GGUF's list says, or every interval-th. */
static status is_full(const model *m, int64_t l, bool *out, error *err) {
    const own *o = m->priv;
    const meta_value *types = model_find(m, "layer_types", NULL), *recurrent = model_find(m, NULL, "attention.recurrent_layers");
    const char *text;
    size_t n;
    bool is_recurrent;
    if (meta_array_bool(recurrent, (size_t)l, &is_recurrent)) {
        *out = !is_recurrent;
        return STATUS_OK;
    }
    if (meta_type_of(types) != META_ARRAY) {
        *out = (l + 1) % o->interval == 0;
        return STATUS_OK;
    }
    if (!meta_array_string(types, (size_t)l, &text, &n)) return error_set(err, STATUS_FORMAT, "model: layer_types has no entry for layer %lld", (long long)l);
    *out = strcmp(text, "full_attention") == 0;
    if (!*out && strcmp(text, "linear_attention") != 0) return error_set(err, STATUS_UNSUPPORTED, "model: layer type \"%.40s\" is not implemented for qwen3_5_moe", text);
    return STATUS_OK;
}

/* A GGUF gives the width of all value heads. */
static status read_gguf(model *m, error *err) {
    own *o = m->priv;
    if (source_container(m->src) != META_GGUF) return STATUS_OK;
    if (o->inner % o->n_v != 0) return error_set(err, STATUS_FORMAT, "model: %s.ssm.inner_size %lld over %lld value heads", m->prefix, (long long)o->inner, (long long)o->n_v);
    o->d_v = o->inner / o->n_v;
    return STATUS_OK;
}

static status configure(model *m, error *err) {
    const own *o = m->priv;
    const hparams *h = &m->hp;
    int32_t rope;
    TRY(model_require_activation(m, "silu|swish", err));
    TRY(model_require_gating(m, GATING_SOFTMAX, err));
    TRY(read_gguf(m, err));
    if (o->n_v % o->n_k != 0) return error_set(err, STATUS_FORMAT, "model: %lld value heads over %lld key heads", (long long)o->n_v, (long long)o->n_k);
    TRY(model_add_rope(m, &h->rope, source_container(m->src) == META_GGUF ? h->rope_dim : h->head_dim, &rope, err));
    for (int32_t l = 0; l < (int32_t)h->n_layers; l++) {
        bool full = false;
        TRY(is_full(m, l, &full, err));
        m->layers[l] = (layer_info){
            .kind = full ? LAYER_FULL : LAYER_RECURRENT,
            .kv_layer = l,
            .n_heads = h->n_heads,
            .n_kv_heads = full ? h->n_kv_heads : 1,
            .head_dim = full ? h->head_dim : 1,
            .n_ff = h->n_ff,
            .attn_scale = 1.0f / sqrtf((float)h->head_dim),
            .rope = rope,
        };
        if (full) continue;
        m->states[l * MODEL_STATES_PER_LAYER + STATE_CONV].n_elems = (2 * o->n_k * o->d_k + o->n_v * o->d_v) * (o->taps - 1);
        m->states[l * MODEL_STATES_PER_LAYER + STATE_DELTA].n_elems = o->n_v * o->d_k * o->d_v;
    }
    return model_group_layers(m, err);
}

/* ---- the two kinds of attention ---- */

static status delta_layer(block_ctx *c, vt_tensor out, vt_tensor x, int l) {
    model *m = c->m;
    const own *o = m->priv;
    const int64_t channels = 2 * o->n_k * o->d_k + o->n_v * o->d_v, values = o->n_v * o->d_v, n = c->n_rows;
    const size_t mark = ws_mark(c);
    const bool gguf = source_container(m->src) == META_GGUF;
    vt_tensor qkv, mixed, a, b, pair, y;
    TRY(ws_take(c, VT_F32, n, channels, &qkv));
    TRY(ws_take(c, VT_F32, n, channels, &mixed));
    TRY(ws_take(c, VT_F32, n, o->n_v, &a));
    TRY(ws_take(c, VT_F32, n, o->n_v, &b));
    TRY(ws_take(c, VT_F32, n, values, &y));
    block_act act = block_act_of(x);
    /* what the state is made of and decays by is not rounded to BF16: with it, all that follows would be further off than by every other product together */
    TRY(block_linear_f32(c, qkv, &act, model_weight(m, W_LIN_QKV, l), NULL));
    TRY(block_linear_f32(c, a, &act, model_weight(m, W_LIN_A, l), NULL));
    TRY(block_linear_f32(c, b, &act, model_weight(m, W_LIN_B, l), NULL));
    const vt_tensor *conv = &m->states[l * MODEL_STATES_PER_LAYER + STATE_CONV].t, *state = &m->states[l * MODEL_STATES_PER_LAYER + STATE_DELTA].t;
    TRY(vt_causal_conv_silu(c->q, &mixed, &qkv, conv, model_weight(m, W_LIN_CONV, l), &c->recurrent, c->err));
    const vt_gated_delta_params p = {.n_k = (int32_t)o->n_k, .d_k = (int32_t)o->d_k, .n_v = (int32_t)o->n_v, .d_v = (int32_t)o->d_v, .a_is_decay = gguf, .k_tiled = gguf};
    TRY(vt_gated_delta(c->q, &y, &mixed, &a, &b, model_weight(m, W_LIN_A_LOG, l), model_weight(m, W_LIN_DT_BIAS, l), state, &c->recurrent, p, c->err));
    /* norm per head, times silu(z): z and the normed values side by side */
    TRY(ws_take(c, VT_F32, n, 2 * values, &pair));
    const vt_tensor right = vt_tensor_slice(pair, 1, values, values);
    TRY(block_linear(c, vt_tensor_slice(pair, 1, 0, values), &act, model_weight(m, W_LIN_Z, l), NULL));
    TRY(block_norm(c, vt_tensor_split_last(y, o->d_v), vt_tensor_split_last(y, o->d_v), W_LIN_NORM, l));
    TRY(vt_mul_scalar(c->q, &right, &y, 1.0f, c->err));
    TRY(vt_silu_and_mul(c->q, &y, &pair, c->err));
    block_act r = block_act_of(y);
    TRY(block_linear(c, out, &r, model_weight(m, W_LIN_OUT, l), NULL));
    ws_release(c, mark);
    return STATUS_OK;
}

static status rotate(block_ctx *c, vt_tensor heads, int l) {
    const rope_spec *rope = &c->m->ropes[c->m->layers[l].rope];
    const vt_rope_params p = {.pairing = VT_ROPE_HALF, .mscale = rope->mscale};
    return vt_rope(c->q, &heads, &c->recurrent.pos, &rope->inv_freq, p, c->err);
}

/* Each head of q comes with a gate of its own beside it; the attention's output is multiplied by the gate's sigmoid. */
static status gated_attention(block_ctx *c, vt_tensor out, vt_tensor x, int l) {
    model *m = c->m;
    const layer_info *li = &m->layers[l];
    const int64_t hd = li->head_dim, nq = li->n_heads * hd, nkv = li->n_kv_heads * hd, n = c->n_rows;
    const size_t mark = ws_mark(c);
    vt_tensor both, q, gate, k, v, y;
    TRY(ws_take(c, VT_F32, n, 2 * nq, &both));
    TRY(ws_take(c, VT_F32, n, nq, &q));
    TRY(ws_take(c, VT_F32, n, nq, &gate));
    TRY(ws_take(c, VT_F32, n, nkv, &k));
    TRY(ws_take(c, VT_F32, n, nkv, &v));
    TRY(ws_take(c, VT_F32, n, nq, &y));
    block_act act = block_act_of(x);
    TRY(block_linear(c, both, &act, model_weight(m, W_Q, l), NULL));
    TRY(block_linear(c, k, &act, model_weight(m, W_K, l), NULL));
    TRY(block_linear(c, v, &act, model_weight(m, W_V, l), NULL));
    const vt_tensor heads = vt_tensor_split_last(both, 2 * hd), q3 = vt_tensor_split_last(q, hd), g3 = vt_tensor_split_last(gate, hd), k3 = vt_tensor_split_last(k, hd),
                    v3 = vt_tensor_split_last(v, hd), y3 = vt_tensor_split_last(y, hd), no_sinks = {0};
    const vt_tensor q_half = vt_tensor_slice(heads, 2, 0, hd), g_half = vt_tensor_slice(heads, 2, hd, hd);
    TRY(vt_mul_scalar(c->q, &q3, &q_half, 1.0f, c->err));
    TRY(vt_mul_scalar(c->q, &g3, &g_half, 1.0f, c->err));
    TRY(block_norm(c, q3, q3, W_Q_NORM, l));
    TRY(block_norm(c, k3, k3, W_K_NORM, l));
    TRY(rotate(c, q3, l));
    TRY(rotate(c, k3, l));
    const vt_rows *rows = &c->rows[li->kv_group];
    TRY(vt_kv_write(c->q, &m->k_cache[l], &k3, rows, c->err));
    TRY(vt_kv_write(c->q, &m->v_cache[l], &v3, rows, c->err));
    const vt_attention_params p = {.scale = li->attn_scale};
    TRY(vt_paged_attention(c->q, &y3, &q3, &m->k_cache[l], &m->v_cache[l], rows, &no_sinks, p, c->err));
    TRY(vt_mul_sigmoid(c->q, &y, &y, &gate, c->err));
    block_act r = block_act_of(y);
    TRY(block_linear(c, out, &r, model_weight(m, W_O, l), NULL));
    ws_release(c, mark);
    return STATUS_OK;
}

static status attention(block_ctx *c, vt_tensor out, vt_tensor x, int l) {
    return c->m->layers[l].kind == LAYER_RECURRENT ? delta_layer(c, out, x, l) : gated_attention(c, out, x, l);
}

static status layer(block_ctx *c, int l, vt_tensor x) {
    const block_moe_params p = {
        .router = {.mode = VT_ROUTER_SOFTMAX, .n_groups = 1, .renormalize = model_router_norm(c->m, true), .scaling = model_router_scaling(c->m)},
        .activation = MOE_SILU,
        .attention = attention,
    };
    return block_moe_layer(c, l, x, &p);
}

static const char *const hf_names[] = {"Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text", "qwen3_5_moe", NULL};
static const char *const gguf_names[] = {"qwen35moe", NULL};
static const char *const ignore[] = {"mtp.*", NULL};

const arch arch_qwen3_5_moe = {
    .name = "qwen3_5_moe",
    .hf_names = hf_names,
    .gguf_names = gguf_names,
    .hparams = hparam_rows,
    .n_hparams = sizeof hparam_rows / sizeof hparam_rows[0],
    .own_hparams = own_hparams,
    .n_own_hparams = sizeof own_hparams / sizeof own_hparams[0],
    .own_bytes = sizeof(own),
    .weights = weights,
    .n_weights = sizeof weights / sizeof weights[0],
    .n_slots = SLOT_COUNT,
    .needs_experts = true,
    .ignore = ignore,
    .configure = configure,
    .dim = dim,
    .applies = applies,
    .embed = block_embed,
    .layer = layer,
    .head = block_head,
};
