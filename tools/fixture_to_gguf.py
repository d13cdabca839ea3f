#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rewrite a fixture (tests/fixtures/NAME, safetensors) as a GGUF file, with the independent Python package `gguf`.

Usage: fixture_to_gguf.py FIXTURE_DIR OUT.gguf [--type bf16|f32]

Keys and tensor names are those that the package gives. The tensors keep their stored values (BF16 is exact in F32), but for what llama.cpp's converter changes: the rows of q and k
of the Llama architecture are reordered so that rotary pairs are adjacent; Gemma 3's norms have the one added; rotary scaling that differs per frequency becomes a tensor of
divisors. Needs numpy and gguf.
"""
import argparse
import json
import math
import struct
import sys

import gguf
import numpy as np

ARCHS = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3_text": "gemma3", "gemma4_text": "gemma4"}


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


def to_f32(raw):
    return (raw.astype(np.uint32) << 16).view(np.float32)


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


def proportional_divisors(cfg):
    dim = cfg["global_head_dim"]
    turning = int(dim * cfg["rope_parameters"]["full_attention"]["partial_rotary_factor"] / 2)
    return np.array([1.0] * turning + [1e30] * (dim // 2 - turning), dtype=np.float32)


def write_tokenizer(w, folder, arch):
    tok = json.load(open(f"{folder}/tokenizer.json"))
    model = tok["model"]
    tokens = [None] * len(model["vocab"])
    for text, i in model["vocab"].items():
        tokens[i] = text
    types = [gguf.TokenType.NORMAL] * len(tokens)
    for i, text in enumerate(tokens):
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            types[i] = gguf.TokenType.BYTE
    for a in tok["added_tokens"]:
        tokens[a["id"]] = a["content"]
        types[a["id"]] = gguf.TokenType.CONTROL if a["special"] else gguf.TokenType.USER_DEFINED
    merges = [" ".join(m) if isinstance(m, list) else m for m in model["merges"]]
    fallback = model.get("byte_fallback", False)
    w.add_tokenizer_model("gemma4" if arch == "gemma4" else "llama" if fallback else "gpt2")
    if not fallback:
        w.add_tokenizer_pre("qwen2" if arch.startswith("qwen") else "llama-bpe")
    w.add_token_list(tokens)
    if fallback:  # a piece made by an early merge is worth more
        rank = {m.replace(" ", ""): -float(i) for i, m in reversed(list(enumerate(merges)))}
        w.add_token_scores([rank.get(t, -1e6) for t in tokens])
        w.add_add_space_prefix(False)
    w.add_token_types(types)
    if arch == "gemma4" or not fallback:
        w.add_token_merges(merges)


def write_rope(w, cfg):
    rope = cfg.get("rope_parameters") or {"full_attention": {"rope_theta": cfg["rope_theta"], **(cfg.get("rope_scaling") or {})},
                                          "sliding_attention": {"rope_theta": cfg.get("rope_local_base_freq")}}
    w.add_rope_freq_base(rope["full_attention"]["rope_theta"])
    if rope["sliding_attention"]["rope_theta"] is not None:
        w.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    if rope["full_attention"].get("rope_type") == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(rope["full_attention"]["factor"])


def write_gemma4(w, cfg):
    types, n_shared = cfg["layer_types"], cfg["num_kv_shared_layers"]
    full_kv = cfg.get("num_global_key_value_heads") or cfg["num_key_value_heads"]
    w.add_shared_kv_layers(n_shared)
    w.add_embedding_length_per_layer_input(cfg["hidden_size_per_layer_input"])
    w.add_sliding_window_pattern([t == "sliding_attention" for t in types])
    w.add_head_count_kv([cfg["num_key_value_heads"] if t == "sliding_attention" else full_kv for t in types])
    w.add_feed_forward_length([cfg["intermediate_size"] * (2 if cfg["use_double_wide_mlp"] and i >= len(types) - n_shared else 1) for i in range(len(types))])
    w.add_key_length(cfg["global_head_dim"])
    w.add_value_length(cfg["global_head_dim"])
    w.add_key_length_swa(cfg["head_dim"])
    w.add_value_length_swa(cfg["head_dim"])
    w.add_rope_dimension_count(cfg["global_head_dim"])
    w.add_rope_dimension_count_swa(cfg["head_dim"])


def write_hparams(w, cfg, arch):
    w.add_block_count(cfg["num_hidden_layers"])
    w.add_context_length(cfg["max_position_embeddings"])
    w.add_embedding_length(cfg["hidden_size"])
    w.add_head_count(cfg["num_attention_heads"])
    w.add_layer_norm_rms_eps(cfg["rms_norm_eps"])
    w.add_vocab_size(cfg["vocab_size"])
    write_rope(w, cfg)
    if arch == "gemma4":
        write_gemma4(w, cfg)
    else:
        head_dim = cfg.get("head_dim") or cfg["hidden_size"] // cfg["num_attention_heads"]
        w.add_feed_forward_length(cfg["intermediate_size"])
        w.add_head_count_kv(cfg["num_key_value_heads"])
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
        w.add_rope_dimension_count(head_dim)
    if arch == "gemma3":
        w.add_sliding_window_pattern([(i + 1) % cfg["sliding_window_pattern"] != 0 for i in range(cfg["num_hidden_layers"])])
    if cfg["model_type"] == "mistral" and cfg["sliding_window"]:
        w.add_sliding_window(cfg["sliding_window"])
    if arch.startswith("gemma"):
        w.add_sliding_window(cfg["sliding_window"])
        if cfg["final_logit_softcapping"]:
            w.add_final_logit_softcapping(cfg["final_logit_softcapping"])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("fixture")
    p.add_argument("out")
    p.add_argument("--type", choices=["bf16", "f32"], default="bf16")
    a = p.parse_args()
    cfg = json.load(open(f"{a.fixture}/config.published.json"))
    if cfg["model_type"] not in ARCHS:
        sys.exit(f"architecture {cfg['model_type']} is not handled; known: {', '.join(ARCHS)}")
    arch = ARCHS[cfg["model_type"]]
    names = gguf.get_tensor_name_map(next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch), cfg["num_hidden_layers"])
    w = gguf.GGUFWriter(a.out, arch)
    write_hparams(w, cfg, arch)
    write_tokenizer(w, a.fixture, arch)
    w.add_bos_token_id(cfg["bos_token_id"])
    w.add_eos_token_id(cfg["eos_token_id"])
    w.add_add_bos_token(not arch.startswith("qwen"))

    for hf, raw in read_safetensors(f"{a.fixture}/model.safetensors").items():
        if arch == "llama" and hf.endswith("q_proj.weight"):
            raw = adjacent_pairs(raw, cfg["num_attention_heads"])
        elif arch == "llama" and hf.endswith("k_proj.weight"):
            raw = adjacent_pairs(raw, cfg["num_key_value_heads"])
        stem, suffix = hf.rsplit(".", 1) if hf.endswith((".weight", ".bias")) else (hf, "weight")
        name = f"{names.get_name(stem)}.{suffix}"
        raw = np.ascontiguousarray(raw)
        if a.type == "f32" or raw.ndim == 1:
            w.add_tensor(name, to_f32(raw) + np.float32(1.0 if arch == "gemma3" and hf.endswith("norm.weight") else 0.0))
        else:
            w.add_tensor(name, raw.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    if (cfg.get("rope_scaling") or {}).get("rope_type") == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_divisors(cfg))
    if arch == "gemma4":
        w.add_tensor("rope_freqs.weight", proportional_divisors(cfg))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


main()
