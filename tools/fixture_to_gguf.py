#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rewrite a fixture (tests/fixtures/NAME, safetensors) as a GGUF file, with the independent Python package `gguf`.

Usage: fixture_to_gguf.py FIXTURE_DIR OUT.gguf [--type bf16|f32] [--experts TYPE] [--unsplit] [--latent-blocks] [--whole-yarn] [--v2]

Keys and tensor names are those that the package gives. The tensors keep their stored values (BF16 is exact in F32), but for what llama.cpp's converter changes: the rows of q and k
of the Llama architecture are reordered so that rotary pairs are adjacent; Gemma 3's norms have the one added; rotary scaling that differs per frequency becomes a tensor of
divisors; experts are stacked; gpt-oss' fused gate and up are split and its experts turned; DeepSeek's kv_b is split per head; Qwen3.5's value heads are reordered, its norms
have the one added and its decay is stored. MXFP4 blocks keep their bits.

--experts TYPE stores the experts' matrices in a block type (q4_0, q8_0, q4_1, ...). --unsplit leaves DeepSeek's kv_b whole, as older files have it;
--latent-blocks fills its latent up to 32 with zeros and stores kv_b in Q8_0 (another model: its norm is over 32). --whole-yarn moves the betas of
YaRN to where the ramp begins and ends at whole dimensions: llama.cpp rounds them, and a GGUF cannot say that gpt-oss does not. --v2 writes a model of the second version of
DeepSeek (softmax without groups, bias or norm) with the weights of the fixture: another model than the fixture, for which llama.cpp is the only reference. Needs numpy and gguf.
"""
import argparse
import json
import math
import struct
import sys

import gguf
import numpy as np
from gguf import quants

ARCHS = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "qwen3_5_moe_text": "qwen35moe",
    "gemma3_text": "gemma3", "gemma4_text": "gemma4", "olmoe": "olmoe", "gpt_oss": "gpt-oss", "glm4_moe": "glm4moe", "deepseek_v3": "deepseek2",
}
PRE = {"olmoe": "olmo", "glm4moe": "qwen2"}  # of the byte-level tokenizers; others by what they are


def to_f32(raw):
    return (raw.astype(np.uint32) << 16).view(np.float32)


def read_safetensors(path):
    """BF16 as F32 (which is exact), U8 as it is."""
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header, base = json.loads(f.read(n)), 8 + n
        out = {}
        for name, t in header.items():
            if name == "__metadata__":
                continue
            if t["dtype"] not in ("BF16", "U8"):
                sys.exit(f"{name}: dtype {t['dtype']} is not handled")
            f.seek(base + t["data_offsets"][0])
            raw = f.read(t["data_offsets"][1] - t["data_offsets"][0])
            out[name] = np.frombuffer(raw, dtype=np.uint8).reshape(t["shape"]) if t["dtype"] == "U8" else to_f32(np.frombuffer(raw, dtype=np.uint16)).reshape(t["shape"])
        return out


# ---- what the converter changes ----


def adjacent_pairs(w, n_head):
    """Rows (head, half, i) -> (head, i, half)."""
    return w.reshape(n_head, 2, w.shape[0] // n_head // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def stack_experts(tensors):
    """Experts of a layer, one tensor each, as one: 'P.experts.E.NAME' -> 'P.experts.NAME'."""
    out, parts = {}, {}
    for name, w in tensors.items():
        head, found, tail = name.partition(".experts.")
        number, _, rest = tail.partition(".")
        if found and number.isdecimal():
            parts.setdefault(f"{head}.experts.{rest}", {})[int(number)] = w
        else:
            out[name] = w
    for name, experts in parts.items():
        out[name] = np.stack([experts[e] for e in range(len(experts))])
    return out


def mxfp4_bytes(blocks, scales):
    """[..., K / 32, 16] pairs (2i, 2i + 1) and their scales -> [..., K / 32 * 17]: scale, then pairs (i, i + 16)."""
    values = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], 32)
    packed = values[..., :16] | values[..., 16:] << 4
    both = np.concatenate([scales[..., None], packed], axis=-1)
    return both.reshape(*both.shape[:-2], -1)


def split_gpt_oss(name, w, tensors):
    """Fused and alternating gate and up -> two; matrices stored [in, out] -> [out, in]."""
    if name.endswith("_scales"):
        return
    if name.endswith("_blocks"):
        name, w, rows = name.removesuffix("_blocks"), mxfp4_bytes(w, tensors[name.removesuffix("_blocks") + "_scales"]), 1
        tail = ".weight"
    elif name.endswith("_bias"):
        name, tail, rows = name.removesuffix("_bias"), ".bias", 1
    else:
        w, tail, rows = w.swapaxes(1, 2), ".weight", 1
    if name.endswith("gate_up_proj"):
        pick = [slice(None)] * w.ndim
        for first, to in ((0, "gate_proj"), (1, "up_proj")):
            pick[rows] = slice(first, None, 2)
            yield name.replace("gate_up_proj", to) + tail, w[tuple(pick)]
    else:
        yield name + tail, w


def split_kv_b(name, w, cfg):
    """W_uk of every head, turned, and W_uv."""
    nope, value = cfg["qk_nope_head_dim"], cfg["v_head_dim"]
    heads = w.reshape(cfg["num_attention_heads"], nope + value, w.shape[1])
    yield name.replace("kv_b_proj", "k_b_proj"), heads[:, :nope].swapaxes(1, 2)
    yield name.replace("kv_b_proj", "v_b_proj"), heads[:, nope:]


def tile_value_heads(w, axis, cfg, size):
    """Value heads ordered by key head -> ordered by their number below a key head, so that key heads repeat."""
    n_k, per_k = cfg["linear_num_key_heads"], cfg["linear_num_value_heads"] // cfg["linear_num_key_heads"]
    shape = w.shape[:axis] + (n_k, per_k, size) + w.shape[axis + 1:]
    return w.reshape(shape).swapaxes(axis, axis + 1).reshape(w.shape)


def change_qwen35(name, w, cfg):
    head, keys = cfg["linear_value_head_dim"], 2 * cfg["linear_num_key_heads"] * cfg["linear_key_head_dim"]
    if "linear_attn" not in name:
        return name, w + np.float32(1) if name.endswith("norm.weight") else w
    if "in_proj_qkv" in name or "conv1d" in name:
        w = w.reshape(w.shape[0], w.shape[-1])
        return name, np.concatenate([w[:keys], tile_value_heads(w[keys:], 0, cfg, head)])
    if "in_proj_z" in name:
        return name, tile_value_heads(w, 0, cfg, head)
    if "in_proj_a" in name or "in_proj_b" in name:
        return name, tile_value_heads(w, 0, cfg, 1)
    if name.endswith("A_log"):
        return name, tile_value_heads(-np.exp(w), 0, cfg, 1)
    if name.endswith("dt_bias"):
        return name.replace("dt_bias", "dt_proj.bias"), tile_value_heads(w, 0, cfg, 1)
    if "out_proj" in name:
        return name, tile_value_heads(w, 1, cfg, head)
    return name, w


def widen_latent(tensors, cfg):
    old, new = cfg["kv_lora_rank"], 32
    cfg["kv_lora_rank"] = new
    for name, w in tensors.items():
        if "kv_a_proj" in name:
            tensors[name] = np.concatenate([w[:old], np.zeros((new - old, w.shape[1]), np.float32), w[old:]])
        elif "kv_a_layernorm" in name or "kv_b_proj" in name:
            tensors[name] = np.concatenate([w, np.zeros((*w.shape[:-1], new - old), np.float32)], axis=-1)


def converted(tensors, cfg, arch, unsplit):
    for name, w in stack_experts(tensors).items():
        if arch == "llama" and name.endswith("q_proj.weight"):
            yield name, adjacent_pairs(w, cfg["num_attention_heads"])
        elif arch == "llama" and name.endswith("k_proj.weight"):
            yield name, adjacent_pairs(w, cfg["num_key_value_heads"])
        elif arch == "gemma3" and name.endswith("norm.weight"):
            yield name, w + np.float32(1)
        elif arch == "gpt-oss" and ".experts." in name:
            yield from split_gpt_oss(name, w, tensors)
        elif arch == "deepseek2" and "kv_b_proj" in name and not unsplit:
            yield from split_kv_b(name, w, cfg)
        elif arch == "qwen35moe":
            yield change_qwen35(name, w, cfg)
        else:
            yield name, w


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


# ---- keys ----


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
        w.add_tokenizer_pre(PRE.get(arch) or ("qwen2" if arch.startswith("qwen") else "llama-bpe"))
    w.add_token_list(tokens)
    if fallback:  # a piece made by an early merge is worth more
        rank = {m.replace(" ", ""): -float(i) for i, m in reversed(list(enumerate(merges)))}
        w.add_token_scores([rank.get(t, -1e6) for t in tokens])
        w.add_add_space_prefix(False)
    w.add_token_types(types)
    if arch == "gemma4" or not fallback:
        w.add_token_merges(merges)
    return "<bos>" in json.dumps(tok["post_processor"])


def whole_yarn(rope, cfg):
    """The betas whose dimensions are the nearest whole ones, but for a hair inside, so that rounding outwards gives these."""
    dim, base, original = cfg["head_dim"], cfg["rope_theta"], rope["original_max_position_embeddings"]

    def dimension(beta):
        return dim * math.log(original / (beta * 2 * math.pi)) / (2 * math.log(base))

    def beta(d):
        return original / (2 * math.pi * base ** (2 * d / dim))

    return {**rope, "beta_fast": beta(round(dimension(rope["beta_fast"])) + 1e-5), "beta_slow": beta(round(dimension(rope["beta_slow"])) - 1e-5)}


def write_yarn(w, rope, arch):
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    w.add_rope_scaling_factor(rope["factor"])
    w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    w.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    w.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if arch == "deepseek2" and rope.get("mscale_all_dim") is not None:
        w.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])  # a tenth: so that architecture's files have it


def write_rope(w, cfg, arch, whole):
    rope = cfg.get("rope_parameters") or {"full_attention": {"rope_theta": cfg["rope_theta"], **(cfg.get("rope_scaling") or {})},
                                          "sliding_attention": {"rope_theta": cfg.get("rope_local_base_freq")}}
    full = rope.get("full_attention", rope)
    w.add_rope_freq_base(full["rope_theta"])
    if (rope.get("sliding_attention") or {}).get("rope_theta") is not None:
        w.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    kind = full.get("rope_type", full.get("type"))
    if kind == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(full["factor"])
    elif kind == "yarn":
        write_yarn(w, whole_yarn(full, cfg) if whole else full, arch)
    if "mrope_section" in full:
        w.add_rope_dimension_sections((full["mrope_section"] + [0, 0, 0, 0])[:4])


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


def write_deepseek2(w, cfg, unsplit):
    rope, head = cfg["qk_rope_head_dim"], cfg["qk_nope_head_dim"] + cfg["qk_rope_head_dim"]
    w.add_feed_forward_length(cfg["intermediate_size"])
    w.add_head_count_kv(cfg["num_attention_heads"] if unsplit else 1)
    w.add_q_lora_rank(cfg["q_lora_rank"])
    w.add_kv_lora_rank(cfg["kv_lora_rank"])
    w.add_key_length(head if unsplit else cfg["kv_lora_rank"] + rope)
    w.add_value_length(cfg["v_head_dim"] if unsplit else cfg["kv_lora_rank"])
    if not unsplit:
        w.add_key_length_mla(head)
        w.add_value_length_mla(cfg["v_head_dim"])
    w.add_rope_dimension_count(rope)


def write_qwen35(w, cfg):
    w.add_ssm_conv_kernel(cfg["linear_conv_kernel_dim"])
    w.add_ssm_state_size(cfg["linear_key_head_dim"])
    w.add_ssm_group_count(cfg["linear_num_key_heads"])
    w.add_ssm_time_step_rank(cfg["linear_num_value_heads"])
    w.add_ssm_inner_size(cfg["linear_value_head_dim"] * cfg["linear_num_value_heads"])
    w.add_full_attention_interval(cfg["full_attention_interval"])
    w.add_expert_shared_feed_forward_length(cfg["shared_expert_intermediate_size"])


def write_experts(w, cfg, arch, v2):
    def first(*keys):
        return next((cfg[k] for k in keys if cfg.get(k) is not None), None)

    n = first("num_local_experts", "num_experts", "n_routed_experts")
    if n is None or cfg.get("enable_moe_block") is False:
        return
    w.add_expert_count(n)
    w.add_expert_used_count(first("num_experts_per_tok", "top_k_experts"))
    if arch not in ("llama", "olmoe"):
        w.add_expert_feed_forward_length(first("moe_intermediate_size", "intermediate_size"))
    for key, add in (("n_group", w.add_expert_group_count), ("topk_group", w.add_expert_group_used_count), ("n_shared_experts", w.add_expert_shared_count),
                     ("first_k_dense_replace", w.add_leading_dense_block_count), ("routed_scaling_factor", w.add_expert_weights_scale)):
        if cfg.get(key) is not None and not (v2 and "group" in key):
            add(cfg[key])
    if arch in ("deepseek2", "glm4moe") and not v2:
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        w.add_expert_weights_norm(cfg["norm_topk_prob"])


def write_hparams(w, cfg, arch, a):
    w.add_block_count(cfg["num_hidden_layers"])
    w.add_context_length(cfg["max_position_embeddings"])
    w.add_embedding_length(cfg["hidden_size"])
    w.add_head_count(cfg["num_attention_heads"])
    w.add_layer_norm_rms_eps(cfg["rms_norm_eps"])
    w.add_vocab_size(cfg["vocab_size"])
    write_rope(w, cfg, arch, a.whole_yarn)
    if arch == "gemma4":
        write_gemma4(w, cfg)
    elif arch == "deepseek2":
        write_deepseek2(w, cfg, a.unsplit)
    else:
        head_dim = cfg.get("head_dim") or cfg["hidden_size"] // cfg["num_attention_heads"]
        partial = (cfg.get("rope_parameters") or cfg).get("partial_rotary_factor", 1)
        if "intermediate_size" in cfg:
            w.add_feed_forward_length(cfg["intermediate_size"])
        w.add_head_count_kv(cfg["num_key_value_heads"])
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
        w.add_rope_dimension_count(int(head_dim * partial))
    if arch == "qwen35moe":
        write_qwen35(w, cfg)
    if arch == "gemma3":
        w.add_sliding_window_pattern([(i + 1) % cfg["sliding_window_pattern"] != 0 for i in range(cfg["num_hidden_layers"])])
    if arch.startswith("gemma") or arch == "gpt-oss" or cfg["model_type"] == "mistral" and cfg["sliding_window"]:
        w.add_sliding_window(cfg["sliding_window"])
    if cfg.get("final_logit_softcapping"):
        w.add_final_logit_softcapping(cfg["final_logit_softcapping"])
    write_experts(w, cfg, arch, a.v2)


# ---- tensors ----


def gguf_name(names, arch, hf):
    if arch == "gemma4" and hf.endswith("router.scale"):
        return names.get_name(hf.replace("router.scale", "router.proj")) + ".scale"
    if arch == "gemma4" and hf.endswith("router.per_expert_scale"):
        return names.get_name(hf.replace("router.per_expert_scale", "experts.down_proj")) + ".scale"
    hf = hf.replace("e_score_correction_bias", "e_score_correction.bias")
    stem, suffix = hf.rsplit(".", 1) if hf.endswith((".weight", ".bias")) else (hf, "weight")
    name = names.get_name(stem)
    if name is None:
        sys.exit(f"{hf}: the package knows no name for it")
    return name if hf.endswith("A_log") else f"{name}.{suffix}"


def add_tensor(w, name, data, kind):
    data = np.ascontiguousarray(data)
    if data.dtype == np.uint8:
        w.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
    elif kind == "F32" or data.ndim == 1:
        w.add_tensor(name, data)
    else:
        q = gguf.GGMLQuantizationType[kind]
        w.add_tensor(name, quants.quantize(data, q), raw_dtype=q)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("fixture")
    p.add_argument("out")
    p.add_argument("--type", choices=["bf16", "f32"], default="bf16")
    p.add_argument("--experts")
    for flag in ("--unsplit", "--latent-blocks", "--whole-yarn", "--v2"):
        p.add_argument(flag, action="store_true")
    a = p.parse_args()
    cfg = json.load(open(f"{a.fixture}/config.published.json"))
    if cfg["model_type"] not in ARCHS:
        sys.exit(f"architecture {cfg['model_type']} is not handled; known: {', '.join(ARCHS)}")
    arch = ARCHS[cfg["model_type"]]
    names = gguf.get_tensor_name_map(next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch), cfg["num_hidden_layers"])
    tensors = read_safetensors(f"{a.fixture}/model.safetensors")
    if a.latent_blocks:
        widen_latent(tensors, cfg)
    w = gguf.GGUFWriter(a.out, arch)
    write_hparams(w, cfg, arch, a)
    bos = write_tokenizer(w, a.fixture, arch)
    w.add_bos_token_id(cfg["bos_token_id"])
    w.add_eos_token_id(cfg["eos_token_id"])
    w.add_add_bos_token(bos)

    for hf, data in converted(tensors, cfg, arch, a.unsplit):
        name = gguf_name(names, arch, hf)
        if a.v2 and "exp_probs_b" in name:
            continue
        whole = name.endswith(".bias") or "conv1d" in name or (a.experts or a.latent_blocks) and "ffn_gate_inp" in name  # as llama.cpp's tools leave them
        kind = a.experts if a.experts and "_exps.weight" in name else "q8_0" if a.latent_blocks and "attn_kv_b" in name else "f32" if whole else a.type
        add_tensor(w, name, data, kind.upper())
    if (cfg.get("rope_scaling") or {}).get("rope_type") == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_divisors(cfg))
    if arch == "gemma4":
        w.add_tensor("rope_freqs.weight", proportional_divisors(cfg))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


main()
