#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a random OLMoE as a fixture folder whose rows are whole blocks of 256, for tools/fixture_to_gguf.py and llama-quantize: the fixtures of Transformers are narrower.

Usage: make_random_moe.py tests/fixtures/olmoe OUT. tests/data/olmoe-k_fixture_q4_k.gguf came of it by
    fixture_to_gguf.py OUT olmoe-k.gguf --type f32
    llama-quantize --tensor-type ffn_gate_exps=q4_k --tensor-type ffn_up_exps=q4_k --tensor-type ffn_down_exps=q6_k olmoe-k.gguf olmoe-k_fixture_q4_k.gguf q8_0
Needs numpy.
"""
import json
import os
import shutil
import struct
import sys

import numpy as np

HIDDEN, FF, EXPERTS, HEADS, VOCAB = 256, 256, 4, 4, 416


def tensors(rng):
    def matrix(*shape):
        return rng.normal(0, 1 / np.sqrt(shape[-1]), shape)

    yield "model.embed_tokens.weight", rng.normal(0, 1, (VOCAB, HIDDEN))
    yield "model.norm.weight", 1 + rng.normal(0, 0.1, HIDDEN)
    yield "lm_head.weight", 2 * matrix(VOCAB, HIDDEN)
    p = "model.layers.0."
    for norm in ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"):
        yield f"{p}{norm}.weight", 1 + rng.normal(0, 0.1, HIDDEN)
    for name in "qkvo":
        yield f"{p}self_attn.{name}_proj.weight", matrix(HIDDEN, HIDDEN)
    yield p + "mlp.gate.weight", 2 * matrix(EXPERTS, HIDDEN)
    for e in range(EXPERTS):
        for name, shape in (("gate_proj", (FF, HIDDEN)), ("up_proj", (FF, HIDDEN)), ("down_proj", (HIDDEN, FF))):
            yield f"{p}mlp.experts.{e}.{name}.weight", 2 * matrix(*shape)


def main():
    fixture, out = sys.argv[1:3]
    os.makedirs(out)
    shutil.copy(f"{fixture}/tokenizer.json", out)
    with open(f"{fixture}/config.published.json", encoding="utf-8") as f:
        cfg = json.load(f)
    cfg.update(hidden_size=HIDDEN, intermediate_size=FF, num_experts=EXPERTS, num_hidden_layers=1, num_attention_heads=HEADS, num_key_value_heads=HEADS)
    with open(f"{out}/config.published.json", "w", encoding="utf-8") as f:
        json.dump(cfg, f)
    header, data = {}, b""
    for name, w in tensors(np.random.default_rng(1)):
        raw = (np.ascontiguousarray(w, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
        header[name] = {"dtype": "BF16", "shape": list(w.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(f"{out}/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


main()
