/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Weight rows that many families spell alike, for the tables of architecture files. `norm` is how a checkpoint of Hugging Face stores norm weights: as they are, or
 * WEIGHT_NORM_PLUS_ONE; a GGUF has the one folded in. `pairs` is how a GGUF orders the rows of q and k: as they are, or WEIGHT_ROPE_ADJACENT.
 */
#ifndef HEADRACE_MODEL_WEIGHT_ROWS_H
#define HEADRACE_MODEL_WEIGHT_ROWS_H

#include "load/bind.h"
#include "model/slots.h"

/* clang-format off */
#define ROW_NORM(slot, hf, gguf, shape, norm) {slot, "model.layers.{l}." hf, "blk.{l}." gguf, shape, WEIGHT_PER_LAYER | WEIGHT_ELEMENT_TYPES, norm, 0}
#define ROW_BIAS(slot, hf, gguf, shape, flags) {slot, "model.layers.{l}." hf, "blk.{l}." gguf, shape, WEIGHT_PER_LAYER | WEIGHT_ELEMENT_TYPES | (flags), 0, 0}
#define ROW_MATRIX(slot, hf, gguf, shape, gguf_transform) {slot, "model.layers.{l}." hf, "blk.{l}." gguf, shape, WEIGHT_PER_LAYER, 0, gguf_transform}

#define ROWS_MODEL(norm) \
    {W_EMBED, "model.embed_tokens.weight", "token_embd.weight", "vocab,embd", WEIGHT_TABLE, 0, 0}, \
    {W_FINAL_NORM, "model.norm.weight", "output_norm.weight", "embd", WEIGHT_ELEMENT_TYPES, norm, 0}, \
    {W_HEAD, "lm_head.weight", "output.weight", "vocab,embd", WEIGHT_OPTIONAL, 0, 0}, \
    {W_ROPE_FACTORS, NULL, "rope_freqs.weight", "rot/2", WEIGHT_OPTIONAL | WEIGHT_ELEMENT_TYPES, 0, 0}

#define ROWS_ATTENTION_QKO(pairs) \
    ROW_MATRIX(W_Q, "self_attn.q_proj.weight", "attn_q.weight", "q,embd", pairs), \
    ROW_MATRIX(W_K, "self_attn.k_proj.weight", "attn_k.weight", "kv,embd", pairs), \
    ROW_MATRIX(W_O, "self_attn.o_proj.weight", "attn_output.weight", "embd,q", 0)

#define ROWS_ATTENTION(pairs) \
    ROWS_ATTENTION_QKO(pairs), \
    ROW_MATRIX(W_V, "self_attn.v_proj.weight", "attn_v.weight", "kv,embd", 0)

#define ROWS_QKV_BIAS(flags) \
    ROW_BIAS(W_Q_BIAS, "self_attn.q_proj.bias", "attn_q.bias", "q", flags), \
    ROW_BIAS(W_K_BIAS, "self_attn.k_proj.bias", "attn_k.bias", "kv", flags), \
    ROW_BIAS(W_V_BIAS, "self_attn.v_proj.bias", "attn_v.bias", "kv", flags)

#define ROW_O_BIAS(flags) ROW_BIAS(W_O_BIAS, "self_attn.o_proj.bias", "attn_output.bias", "embd", flags)

#define ROWS_HEAD_NORM(norm) \
    ROW_NORM(W_Q_NORM, "self_attn.q_norm.weight", "attn_q_norm.weight", "hd", norm), \
    ROW_NORM(W_K_NORM, "self_attn.k_norm.weight", "attn_k_norm.weight", "hd", norm)

#define ROWS_MLP \
    ROW_MATRIX(W_GATE, "mlp.gate_proj.weight", "ffn_gate.weight", "ff,embd", 0), \
    ROW_MATRIX(W_UP, "mlp.up_proj.weight", "ffn_up.weight", "ff,embd", 0), \
    ROW_MATRIX(W_DOWN, "mlp.down_proj.weight", "ffn_down.weight", "embd,ff", 0)

/* A norm before attention and one before the MLP. */
#define ROWS_PRE_NORM \
    ROW_NORM(W_ATTN_NORM, "input_layernorm.weight", "attn_norm.weight", "embd", 0), \
    ROW_NORM(W_FFN_NORM, "post_attention_layernorm.weight", "ffn_norm.weight", "embd", 0)

/* Norms on both sides of attention and MLP. */
#define ROWS_SANDWICH_NORM(norm) \
    ROW_NORM(W_ATTN_NORM, "input_layernorm.weight", "attn_norm.weight", "embd", norm), \
    ROW_NORM(W_ATTN_POST_NORM, "post_attention_layernorm.weight", "post_attention_norm.weight", "embd", norm), \
    ROW_NORM(W_FFN_NORM, "pre_feedforward_layernorm.weight", "ffn_norm.weight", "embd", norm), \
    ROW_NORM(W_FFN_POST_NORM, "post_feedforward_layernorm.weight", "post_ffw_norm.weight", "embd", norm)

/* Gate and up of experts in a GGUF: two tensors or one. model_moe_open asks for one of the two forms. */
#define ROW_STACKED(slot, gguf, shape) {slot, NULL, "blk.{l}." gguf, shape, WEIGHT_PER_LAYER | WEIGHT_EXPERTS | WEIGHT_OPTIONAL, 0, 0}
#define ROWS_EXPERTS_GGUF \
    ROW_STACKED(W_EXP_GATE, "ffn_gate_exps.weight", "experts,ff_exp,embd"), \
    ROW_STACKED(W_EXP_UP, "ffn_up_exps.weight", "experts,ff_exp,embd"), \
    ROW_STACKED(W_EXP_GATE_UP, "ffn_gate_up_exps.weight", "experts,2ff_exp,embd")

/* Experts, one tensor each under `at` ("mlp.experts."), stacked in a GGUF. */
#define ROW_EXPERT(slot, hf, gguf, shape) {slot, "model.layers.{l}." hf, gguf, shape, WEIGHT_PER_LAYER | WEIGHT_EXPERTS, 0, 0}
#define ROWS_EXPERTS(at, gate, up, down) \
    ROW_EXPERT(W_EXP_GATE, at "{e}." gate ".weight", NULL, "experts,ff_exp,embd"), \
    ROW_EXPERT(W_EXP_UP, at "{e}." up ".weight", NULL, "experts,ff_exp,embd"), \
    ROWS_EXPERTS_GGUF, \
    ROW_EXPERT(W_EXP_DOWN, at "{e}." down ".weight", "blk.{l}.ffn_down_exps.weight", "experts,embd,ff_exp")

#define ROWS_SHARED_EXPERT(at) \
    ROW_MATRIX(W_SHARED_GATE, at "gate_proj.weight", "ffn_gate_shexp.weight", "ff_shared,embd", 0), \
    ROW_MATRIX(W_SHARED_UP, at "up_proj.weight", "ffn_up_shexp.weight", "ff_shared,embd", 0), \
    ROW_MATRIX(W_SHARED_DOWN, at "down_proj.weight", "ffn_down_shexp.weight", "embd,ff_shared", 0)
/* clang-format on */

#endif
