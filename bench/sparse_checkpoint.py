#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a mixture-of-experts checkpoint that is all headers: its tensors are holes of a sparse file. For plans of models that nobody has on disk.

    python3 bench/sparse_checkpoint.py FIXTURE OUT [--layers 93] [--experts 512] [--top-k 10] [--hidden 2048] [--ff 679]

FIXTURE is a qwen3-moe folder (tests/fixtures/qwen3-moe): its tokenizer and the spelling of its configuration are taken over. The defaults make 370 GiB of BF16 experts in separate
tensors, [ff, hidden] and [hidden, ff].
"""

import argparse
import json
import os
import shutil
import struct

HEADS, KV_HEADS, HEAD_DIM, SHARD_BYTES = 16, 2, 128, 48 << 30


def tensors(a, vocab):
    yield "model.embed_tokens.weight", [vocab, a.hidden]
    yield "model.norm.weight", [a.hidden]
    yield "lm_head.weight", [vocab, a.hidden]
    for layer in range(a.layers):
        p = f"model.layers.{layer}."
        yield p + "input_layernorm.weight", [a.hidden]
        yield p + "post_attention_layernorm.weight", [a.hidden]
        yield p + "self_attn.q_proj.weight", [HEADS * HEAD_DIM, a.hidden]
        yield p + "self_attn.k_proj.weight", [KV_HEADS * HEAD_DIM, a.hidden]
        yield p + "self_attn.v_proj.weight", [KV_HEADS * HEAD_DIM, a.hidden]
        yield p + "self_attn.o_proj.weight", [a.hidden, HEADS * HEAD_DIM]
        yield p + "self_attn.q_norm.weight", [HEAD_DIM]
        yield p + "self_attn.k_norm.weight", [HEAD_DIM]
        yield p + "mlp.gate.weight", [a.experts, a.hidden]
        for expert in range(a.experts):
            q = f"{p}mlp.experts.{expert}."
            yield q + "gate_proj.weight", [a.ff, a.hidden]
            yield q + "up_proj.weight", [a.ff, a.hidden]
            yield q + "down_proj.weight", [a.hidden, a.ff]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("fixture")
    parser.add_argument("out")
    for name, value in (("layers", 93), ("experts", 512), ("top-k", 10), ("hidden", 2048), ("ff", 679)):
        parser.add_argument("--" + name, type=int, default=value)
    a = parser.parse_args()
    os.makedirs(a.out)
    for name in os.listdir(a.fixture):
        if name.startswith("tokenizer"):
            shutil.copy(os.path.join(a.fixture, name), a.out)
    with open(os.path.join(a.fixture, "config.json")) as f:
        config = json.load(f)
    config.update(hidden_size=a.hidden, num_hidden_layers=a.layers, num_experts=a.experts, num_experts_per_tok=a.top_k, moe_intermediate_size=a.ff,
                  num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, tie_word_embeddings=False)
    with open(os.path.join(a.out, "config.json"), "w") as f:
        json.dump(config, f)
    shards, header, at = [], {}, 0
    for name, shape in tensors(a, config["vocab_size"]):
        n = 2
        for d in shape:
            n *= d
        if at + n > SHARD_BYTES:
            shards.append((header, at))
            header, at = {}, 0
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    shards.append((header, at))
    where, total = {}, 0
    for i, (header, size) in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(a.out, file), "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            f.truncate(8 + len(text) + size)
        where.update(dict.fromkeys(header, file))
        total += size
    with open(os.path.join(a.out, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": where}, f)
    print(f"{len(where)} tensors, {total / 2**30:.1f} GiB in {len(shards)} files")


if __name__ == "__main__":
    main()
