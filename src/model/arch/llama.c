/* SPDX-License-Identifier: Apache-2.0 */
/* Llama: pre-norm decoder, grouped-query attention, rotary positions, SwiGLU. GGUF stores the rows of q and k so that rotary pairs are adjacent. */
#include "model/block.h"

static const weight_row weights[] = {
    {W_EMBED, "model.embed_tokens.weight", "token_embd.weight", "vocab,embd", 0, 0, 0},
    {W_FINAL_NORM, "model.norm.weight", "output_norm.weight", "embd", WEIGHT_ELEMENT_TYPES, 0, 0},
    {W_HEAD, "lm_head.weight", "output.weight", "vocab,embd", WEIGHT_OPTIONAL, 0, 0},
    {W_ROPE_FACTORS, NULL, "rope_freqs.weight", "rot/2", WEIGHT_OPTIONAL | WEIGHT_ELEMENT_TYPES, 0, 0},
    {W_ATTN_NORM, "model.layers.{l}.input_layernorm.weight", "blk.{l}.attn_norm.weight", "embd", WEIGHT_PER_LAYER | WEIGHT_ELEMENT_TYPES, 0, 0},
    {W_Q, "model.layers.{l}.self_attn.q_proj.weight", "blk.{l}.attn_q.weight", "q,embd", WEIGHT_PER_LAYER, 0, WEIGHT_ROPE_ADJACENT},
    {W_K, "model.layers.{l}.self_attn.k_proj.weight", "blk.{l}.attn_k.weight", "kv,embd", WEIGHT_PER_LAYER, 0, WEIGHT_ROPE_ADJACENT},
    {W_V, "model.layers.{l}.self_attn.v_proj.weight", "blk.{l}.attn_v.weight", "kv,embd", WEIGHT_PER_LAYER, 0, 0},
    {W_O, "model.layers.{l}.self_attn.o_proj.weight", "blk.{l}.attn_output.weight", "embd,q", WEIGHT_PER_LAYER, 0, 0},
    {W_Q_BIAS, "model.layers.{l}.self_attn.q_proj.bias", "blk.{l}.attn_q.bias", "q", WEIGHT_PER_LAYER | WEIGHT_OPTIONAL | WEIGHT_ELEMENT_TYPES, 0, 0},
    {W_K_BIAS, "model.layers.{l}.self_attn.k_proj.bias", "blk.{l}.attn_k.bias", "kv", WEIGHT_PER_LAYER | WEIGHT_OPTIONAL | WEIGHT_ELEMENT_TYPES, 0, 0},
    {W_V_BIAS, "model.layers.{l}.self_attn.v_proj.bias", "blk.{l}.attn_v.bias", "kv", WEIGHT_PER_LAYER | WEIGHT_OPTIONAL | WEIGHT_ELEMENT_TYPES, 0, 0},
    {W_O_BIAS, "model.layers.{l}.self_attn.o_proj.bias", "blk.{l}.attn_output.bias", "embd", WEIGHT_PER_LAYER | WEIGHT_OPTIONAL | WEIGHT_ELEMENT_TYPES, 0, 0},
    {W_FFN_NORM, "model.layers.{l}.post_attention_layernorm.weight", "blk.{l}.ffn_norm.weight", "embd", WEIGHT_PER_LAYER | WEIGHT_ELEMENT_TYPES, 0, 0},
    {W_GATE, "model.layers.{l}.mlp.gate_proj.weight", "blk.{l}.ffn_gate.weight", "ff,embd", WEIGHT_PER_LAYER, 0, 0},
    {W_UP, "model.layers.{l}.mlp.up_proj.weight", "blk.{l}.ffn_up.weight", "ff,embd", WEIGHT_PER_LAYER, 0, 0},
    {W_DOWN, "model.layers.{l}.mlp.down_proj.weight", "blk.{l}.ffn_down.weight", "embd,ff", WEIGHT_PER_LAYER, 0, 0},
};

static status configure(model *m, error *err) { return model_layers_uniform(m, 0, err); }

static status layer(block_ctx *c, int l, vt_tensor x) {
    const size_t mark = ws_mark(c);
    vt_tensor h, y;
    TRY(ws_take(c, VT_F32, c->n_rows, c->m->hp.n_embd, &h));
    TRY(ws_take(c, VT_F32, c->n_rows, c->m->hp.n_embd, &y));
    TRY(block_norm(c, h, x, W_ATTN_NORM, l));
    TRY(block_attention(c, y, h, l));
    TRY(block_add(c, x, y));
    TRY(block_norm(c, h, x, W_FFN_NORM, l));
    TRY(block_mlp(c, y, h, l, BLOCK_SILU));
    TRY(block_add(c, x, y));
    ws_release(c, mark);
    return STATUS_OK;
}

static const char *const hf_names[] = {"LlamaForCausalLM", "llama", NULL};
static const char *const gguf_names[] = {"llama", NULL};
static const char *const ignore[] = {"model.layers.*.self_attn.rotary_emb.inv_freq", NULL};

const arch arch_llama = {
    .name = "llama",
    .hf_names = hf_names,
    .gguf_names = gguf_names,
    .weights = weights,
    .n_weights = sizeof weights / sizeof weights[0],
    .n_slots = W_COMMON_COUNT,
    .ignore = ignore,
    .configure = configure,
    .embed = block_embed,
    .layer = layer,
    .head = block_head,
};
