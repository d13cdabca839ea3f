#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rewrite a fixture (tests/fixtures/NAME, safetensors) as a GGUF file, with the independent Python package `gguf`.

Usage: fixture_to_gguf.py FIXTURE_DIR OUT.gguf [--type bf16|f32]

The tensors keep their stored values (BF16 is exact in F32). As llama.cpp's converter does, the rows of q and k of the Llama architecture are reordered so that rotary pairs
are adjacent, and Llama 3 rope scaling becomes a tensor of divisors. Needs numpy and gguf. Extend NAMES and the writers below for further architectures.
"""
import argparse
import json
import math
import struct
import sys

import gguf
import numpy as np

NAMES = {  # Hugging Face name -> GGUF name; {l} is the layer
    "llama": {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
        "model.layers.{l}.input_layernorm.weight": "blk.{l}.attn_norm.weight",
        "model.layers.{l}.post_attention_layernorm.weight": "blk.{l}.ffn_norm.weight",
        "model.layers.{l}.self_attn.q_proj.weight": "blk.{l}.attn_q.weight",
        "model.layers.{l}.self_attn.k_proj.weight": "blk.{l}.attn_k.weight",
        "model.layers.{l}.self_attn.v_proj.weight": "blk.{l}.attn_v.weight",
        "model.layers.{l}.self_attn.o_proj.weight": "blk.{l}.attn_output.weight",
        "model.layers.{l}.mlp.gate_proj.weight": "blk.{l}.ffn_gate.weight",
        "model.layers.{l}.mlp.up_proj.weight": "blk.{l}.ffn_up.weight",
        "model.layers.{l}.mlp.down_proj.weight": "blk.{l}.ffn_down.weight",
    },
}


def read_safetensors(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header, base = json.loads(f.read(n)), 8 + n
        out = {}
        for name, t in header.items():
            if name == "__metadata__":
                continue
            if t["dtype"] != "BF16":
                sys.exit(f"{name}: dtype {t['dtype']} is not handled")
            f.seek(base + t["data_offsets"][0])
            raw = np.frombuffer(f.read(t["data_offsets"][1] - t["data_offsets"][0]), dtype=np.uint16)
            out[name] = raw.reshape(t["shape"])
        return out


def adjacent_pairs(w, n_head):
    """Rows (head, half, i) -> (head, i, half)."""
    return w.reshape(n_head, 2, w.shape[0] // n_head // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def llama3_divisors(cfg):
    rope = cfg["rope_scaling"]
    base, dim = cfg["rope_theta"], cfg["head_dim"]
    low, high, original = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    out = []
    for i in range(0, dim, 2):
        wavelen = 2 * math.pi * base ** (i / dim)
        if wavelen < original / high:
            out.append(1.0)
        elif wavelen > original / low:
            out.append(rope["factor"])
        else:
            smooth = (original / wavelen - low) / (high - low)
            out.append(1.0 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(out, dtype=np.float32)


def write_tokenizer(w, folder):
    tok = json.load(open(f"{folder}/tokenizer.json"))
    model = tok["model"]
    tokens = [None] * len(model["vocab"])
    for text, i in model["vocab"].items():
        tokens[i] = text
    types = [gguf.TokenType.NORMAL] * len(tokens)
    for a in tok["added_tokens"]:
        tokens[a["id"]] = a["content"]
        types[a["id"]] = gguf.TokenType.CONTROL if a["special"] else gguf.TokenType.USER_DEFINED
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("llama-bpe")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges([" ".join(m) if isinstance(m, list) else m for m in model["merges"]])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("fixture")
    p.add_argument("out")
    p.add_argument("--type", choices=["bf16", "f32"], default="bf16")
    a = p.parse_args()
    cfg = json.load(open(f"{a.fixture}/config.published.json"))
    arch = cfg["model_type"]
    if arch not in NAMES:
        sys.exit(f"architecture {arch} is not handled; known: {', '.join(NAMES)}")
    tensors = read_safetensors(f"{a.fixture}/model.safetensors")
    w = gguf.GGUFWriter(a.out, arch)
    w.add_block_count(cfg["num_hidden_layers"])
    w.add_context_length(cfg["max_position_embeddings"])
    w.add_embedding_length(cfg["hidden_size"])
    w.add_feed_forward_length(cfg["intermediate_size"])
    w.add_head_count(cfg["num_attention_heads"])
    w.add_head_count_kv(cfg["num_key_value_heads"])
    w.add_key_length(cfg["head_dim"])
    w.add_value_length(cfg["head_dim"])
    w.add_rope_dimension_count(cfg["head_dim"])
    w.add_rope_freq_base(cfg["rope_theta"])
    w.add_layer_norm_rms_eps(cfg["rms_norm_eps"])
    w.add_vocab_size(cfg["vocab_size"])
    write_tokenizer(w, a.fixture)
    w.add_bos_token_id(cfg["bos_token_id"])
    w.add_eos_token_id(cfg["eos_token_id"])
    w.add_add_bos_token(arch in ("llama", "mistral"))

    def add(name, raw):
        if a.type == "f32" or raw.ndim == 1:
            w.add_tensor(name, (raw.astype(np.uint32) << 16).view(np.float32))
        else:
            w.add_tensor(name, raw.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)

    for hf, raw in tensors.items():
        parts = hf.split(".")
        layer = next((x for x in parts if x.isdigit()), None)
        name = NAMES[arch][hf.replace(f".{layer}.", ".{l}.") if layer else hf].replace("{l}", layer or "")
        if hf.endswith("q_proj.weight"):
            raw = adjacent_pairs(raw, cfg["num_attention_heads"])
        elif hf.endswith("k_proj.weight"):
            raw = adjacent_pairs(raw, cfg["num_key_value_heads"])
        add(name, np.ascontiguousarray(raw))
    if (cfg.get("rope_scaling") or {}).get("rope_type") == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_divisors(cfg))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


main()
