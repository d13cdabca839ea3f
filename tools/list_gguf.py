#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write what the Python package `gguf` reads in a GGUF file, one fact a line, for tests/unit/test_load_real.c to compare with what we read.

Usage: list_gguf.py FILE.gguf > tests/data/NAME_facts.txt     (needs: pip install gguf==0.19.0)

Lines: `key NAME TYPE VALUE` (texts as length and FNV-1a 64 of the bytes; arrays as length and FNV-1a 64 over their elements: texts followed by a NUL
each, numbers as 8 bytes little endian two's complement) and `tensor NAME TYPE SHAPE OFFSET BYTES HASH` (shape outermost first; hash of the first and the last
64 bytes of the data).
"""

import sys

import gguf
from gguf.constants import GGUFValueType as V


def fnv(data, h=0xCBF29CE484222325):
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def key_line(name, field):
    kind, value = field.types[0], field.contents()
    if kind == V.STRING:
        data = bytes(field.parts[-1])
        return f"key {name} string {len(data)} {fnv(data):016x}"
    if kind == V.ARRAY:
        if field.types[-1] == V.STRING:
            data = b"".join(bytes(field.parts[i]) + b"\0" for i in field.data)
            return f"key {name} strings {len(value)} {fnv(data):016x}"
        if field.types[-1] in (V.FLOAT32, V.FLOAT64):
            return f"key {name} reals {len(value)} {float(sum(value)).hex()}"
        data = b"".join((int(v) & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little") for v in value)
        return f"key {name} ints {len(value)} {fnv(data):016x}"
    if kind == V.BOOL:
        return f"key {name} bool {int(value)}"
    if kind in (V.FLOAT32, V.FLOAT64):
        return f"key {name} real {float(value):.17g}"
    return f"key {name} int {int(value)}"


def main(path):
    r = gguf.GGUFReader(path)
    for name, field in r.fields.items():
        if not name.startswith("GGUF."):
            print(key_line(name, field))
    for t in r.tensors:
        shape = ",".join(str(int(d)) for d in reversed(t.shape))
        data = t.data.tobytes()
        print(f"tensor {t.name} {t.tensor_type.name.lower()} {shape} {int(t.data_offset)} {int(t.n_bytes)} {fnv(data[:64] + data[-64:]):016x}")


if __name__ == "__main__":
    main(sys.argv[1])
