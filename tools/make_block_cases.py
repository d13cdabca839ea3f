#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write tests/data/gguf_blocks.bin: random GGUF blocks and their values.

The values come from the dequantisers of the Python package gguf (written with
0.19.0), which are not ours. Run again, it writes the same bytes.

  make_block_cases.py tests/data/gguf_blocks.bin

Little endian: "GGUFBLKS", u32 number of types; for each type u32 type id, u32
number of blocks, u32 bytes a block, u32 elements a block, then the blocks,
then their elements as F32.
"""

import struct
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

N_BLOCKS = 10

# Type, and where its halves (scale, minimum) are in a block.
TYPES = [
    (T.Q4_0, [0]), (T.Q4_1, [0, 2]), (T.Q5_0, [0]), (T.Q5_1, [0, 2]), (T.Q8_0, [0]),
    (T.Q2_K, [80, 82]), (T.Q3_K, [108]), (T.Q4_K, [0, 2]), (T.Q5_K, [0, 2]), (T.Q6_K, [208]),
    (T.IQ4_NL, [0]), (T.IQ4_XS, [0]), (T.MXFP4, []),
]


def blocks_of(rng, kind, halves):
    """Random bytes; scales are finite. The last three: all bits set, none, tiny scales."""
    n_bytes = GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 256, (N_BLOCKS, n_bytes), dtype=np.uint8)
    blocks[-3] = 0xFF
    blocks[-2] = 0
    for i in range(N_BLOCKS):
        for at in halves:
            half = np.float16(rng.uniform(-2.0, 2.0) if i < N_BLOCKS - 1 else 3e-7)
            blocks[i, at:at + 2] = np.frombuffer(half.tobytes(), dtype=np.uint8)
    if kind == T.MXFP4:
        blocks[:, 0] = rng.integers(110, 140, N_BLOCKS)
        blocks[:5, 0] = [0, 1, 2, 254, 255]
    return blocks


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    rng = np.random.default_rng(20240)
    out = b"GGUFBLKS" + struct.pack("<I", len(TYPES))
    for kind, halves in TYPES:
        elems, n_bytes = GGML_QUANT_SIZES[kind]
        blocks = blocks_of(rng, kind, halves)
        with np.errstate(over="ignore"):
            values = dequantize(blocks, kind).astype("<f4")
        if values.size != N_BLOCKS * elems:
            sys.exit(f"{kind.name}: {values.size} values")
        out += struct.pack("<IIII", kind.value, N_BLOCKS, n_bytes, elems)
        out += blocks.tobytes() + values.tobytes()
    with open(sys.argv[1], "wb") as f:
        f.write(out)
    print(f"wrote {sys.argv[1]}: {len(out)} bytes")


if __name__ == "__main__":
    main()
