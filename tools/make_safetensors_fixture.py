#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write tests/data/python_safetensors with the Python package `safetensors` (0.8.0), so that our reader is checked against a writer that is not ours.

Usage: make_safetensors_fixture.py OUTDIR     (needs: pip install safetensors==0.8.0)

Two files and their index. Each published dtype has a tensor of its name with the bytes 0, 1, 2, ... The package writes all but the two F6 types, which no
framework has; their file is put together here and read back with the package.
"""

import ctypes
import json
import os
import sys

import safetensors
from safetensors import TensorSpec

FIRST = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
         "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16",
         "I32": "int32", "U32": "uint32", "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64", "U64": "uint64", "F4": "float4_e2m1fn_x2"}
BYTES = {"16": 2, "32": 4, "64": 8}
keep = []


def spec(dtype, shape, n):
    buf = (ctypes.c_ubyte * max(n, 1))(*[i % 256 for i in range(n)])
    keep.append(buf)
    return TensorSpec(dtype=dtype, shape=shape, data_ptr=ctypes.addressof(buf), data_len=n)


def main(out):
    os.makedirs(out, exist_ok=True)
    tensors = {}
    for name, dtype in FIRST.items():
        size = BYTES.get(name[-2:], 1)
        tensors[name] = spec(dtype, [2, 4 if name == "F4" else 3], (8 if name == "F4" else 6) * (8 if name == "C64" else size))
    tensors["scalar"] = spec("float32", [], 4)
    tensors["empty"] = spec("float32", [0, 5], 0)
    tensors["conv3d"] = spec("bfloat16", [2, 1, 2, 1, 3], 24)
    one = safetensors.serialize(tensors, {"format": "pt"})
    header = {"F6_E2M3": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [1, 4]}, "F6_E3M2": {"dtype": "F6_E3M2", "shape": [2, 4], "data_offsets": [4, 10]},
              "odd": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}
    text = json.dumps(header).encode()
    two = len(text).to_bytes(8, "little") + text + bytes(range(10))
    assert sorted(n for n, _ in safetensors.deserialize(two)) == ["F6_E2M3", "F6_E3M2", "odd"]
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for name, data in zip(names, (one, two)):
        with open(os.path.join(out, name), "wb") as f:
            f.write(data)
    files = {
        "model.safetensors.index.json": {"metadata": {"total_size": 1}, "weight_map": {**{n: names[0] for n in tensors}, **{n: names[1] for n in header}}},
        "config.json": {"architectures": ["XForConditionalGeneration"], "model_type": "x", "hidden_size": 9, "vocab_size": 77, "bos_token_id": 2,
                        "tie_word_embeddings": True, "torch_dtype": "bfloat16",
                        "text_config": {"hidden_size": 80, "head_dim": 16, "bos_token_id": None, "sliding_window": None, "rms_norm_eps": 1e-06,
                                        "layer_types": ["full_attention", "sliding_attention"],
                                        "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}}},
                        "vision_config": {"head_dim": 99}},
        "generation_config.json": {"eos_token_id": [1, 106], "temperature": 0.6, "do_sample": True},
        "tokenizer_config.json": {"model_max_length": 1000000000000000019884624838656, "add_bos_token": False, "n": 9007199254740991,
                                  "added_tokens_decoder": {"0": {"content": "<pad>", "special": True}}},
    }
    for name, value in files.items():
        with open(os.path.join(out, name), "w") as f:
            json.dump(value, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
