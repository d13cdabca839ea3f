#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write tests/data/python_writer.gguf with the Python package `gguf` (0.19.0), so that our reader is checked against a writer that is not ours.

Usage: make_gguf_fixture.py OUT.gguf     (needs: pip install gguf==0.19.0 numpy)
"""

import sys

import gguf
import numpy as np


def main(out):
    w = gguf.GGUFWriter(out, "llama")
    w.add_custom_alignment(64)
    w.add_uint8("v.u8", 250)
    w.add_int8("v.i8", -100)
    w.add_uint16("v.u16", 65000)
    w.add_int16("v.i16", -30000)
    w.add_uint32("v.u32", 4000000000)
    w.add_int32("v.i32", -2000000000)
    w.add_uint64("v.u64", 18000000000000000000)
    w.add_int64("v.i64", -9000000000000000000)
    w.add_float32("v.f32", 0.1)
    w.add_float64("v.f64", 0.1)
    w.add_bool("v.yes", True)
    w.add_bool("v.no", False)
    w.add_string("v.text", "gr\u00fc\u00dfe \U0001f600\nline")
    w.add_array("a.texts", ["a", "", "\u0120the", "x" * 300])
    w.add_array("a.ints", [3, -1, 7])
    w.add_array("a.reals", [0.5, -2.25])
    w.add_array("a.bools", [True, False, True])
    a = np.arange(12, dtype=np.float32).reshape(3, 4) / 3
    w.add_tensor("f32", a)
    w.add_tensor("f16", np.arange(10, dtype=np.float16).reshape(2, 5))
    rng = np.random.default_rng(7)
    x = rng.standard_normal((2, 64), dtype=np.float32)
    w.add_tensor("q8_0", gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    w.add_tensor("q4_1", gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q4_1), raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    w.add_tensor("stack", np.arange(24, dtype=np.int32).reshape(2, 3, 4))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main(sys.argv[1])
