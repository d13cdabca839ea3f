#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rewrite a GGUF whose matrices are BF16 as the F32 file of the same values, and check that it is the file that a record of llama.cpp is about.

Usage: gguf_as_f32.py IN.gguf OUT.gguf [RECORD.json]

Half of the bits of such an F32 file are zeros that need not be kept in a repository. tools/fixture_to_gguf.py writes both; this gives, byte by byte, what it writes with --type f32.
"""
import array
import hashlib
import json
import struct
import sys

F32, BF16, ALIGNMENT = 0, 30, 32
SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values[0] if len(values) == 1 else values

    def skip_text(self):
        n = self.take("Q")
        self.at += n

    def skip_value(self, kind):
        if kind == STRING:
            self.skip_text()
        elif kind == ARRAY:
            of, n = self.take("IQ")
            if of in (STRING, ARRAY):
                for _ in range(n):
                    self.skip_value(of)
            else:
                self.at += n * SCALAR_BYTES[of]
        else:
            self.at += SCALAR_BYTES[kind]


def padded(n):
    return (n + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def widen(data):
    """Little-endian BF16 -> F32: two zero bytes before each two."""
    out = array.array("H", bytes(2 * len(data)))
    out[1::2] = array.array("H", data)
    return out.tobytes()


def main():
    with open(sys.argv[1], "rb") as f:
        r = Reader(f.read())
    magic, version, n_tensors, n_keys = r.take("4sIQQ")
    if (magic, version) != (b"GGUF", 3):
        sys.exit("not a GGUF of version 3")
    for _ in range(n_keys):
        r.skip_text()
        r.skip_value(r.take("I"))
    head, infos = r.data[:r.at], []
    for _ in range(n_tensors):
        begin = r.at
        r.skip_text()
        n_dims = r.take("I")
        dims = r.take(f"{n_dims}Q") if n_dims > 1 else (r.take("Q"),)
        name_and_dims = r.data[begin:r.at]
        kind, off = r.take("IQ")
        if kind not in (F32, BF16):
            sys.exit(f"a tensor of type {kind}")
        n = 1
        for d in dims:
            n *= d
        infos.append((name_and_dims, kind, off, n * (4 if kind == F32 else 2)))
    base, off, table, body = padded(r.at), 0, b"", b""
    for name_and_dims, kind, at, n_bytes in infos:
        raw = r.data[base + at:base + at + n_bytes]
        raw = widen(raw) if kind == BF16 else raw
        table += name_and_dims + struct.pack("<IQ", F32, off)
        body += raw + bytes(padded(len(raw)) - len(raw))
        off += padded(len(raw))
    out = head + table
    out += bytes(padded(len(out)) - len(out)) + body
    if len(sys.argv) > 3:
        with open(sys.argv[3], encoding="utf-8") as f:
            want = json.load(f)["provenance"]["model_sha256"]
        if hashlib.sha256(out).hexdigest() != want:
            sys.exit(f"{sys.argv[1]} in F32 is not the file that {sys.argv[3]} was recorded from")
    with open(sys.argv[2], "wb") as f:
        f.write(out)


if __name__ == "__main__":
    main()
