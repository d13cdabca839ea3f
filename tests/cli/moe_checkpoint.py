# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of mixtures of experts to be damaged: the headers of a fixture over data that is all holes, and a GGUF whose numbers are overwritten in place."""
import json
import os
import re
import shutil
import struct

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ELEMENT_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1, "I8": 1, "I64": 8}


def fixture(name):
    return os.path.join(TESTS, "fixtures", name)


def read_header(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    header.pop("__metadata__", None)
    return {name: (t["dtype"], list(t["shape"])) for name, t in header.items()}


class Headers:
    """config.json and the tensors of a fixture as name -> (dtype, shape); write() makes a folder of them."""

    def __init__(self, name):
        self.folder = fixture(name)
        with open(os.path.join(self.folder, "config.json"), encoding="utf-8") as f:
            self.config = json.load(f)
        self.tensors = read_header(os.path.join(self.folder, "model.safetensors"))
        self.short_by = 0

    def of_layer(self, layer, pattern):
        """Names in the layer that the pattern finds, in the order of their numbers."""
        found = [n for n in self.tensors if ".layers.%d." % layer in n and re.search(pattern, n)]
        return sorted(found, key=lambda n: [int(x) if x.isdecimal() else x for x in re.split(r"(\d+)", n)])

    def expert_layer(self):
        return max(layer for layer in range(3) if self.of_layer(layer, r"\.experts\."))

    def data(self):
        """name -> bytes of the fixture."""
        with open(os.path.join(self.folder, "model.safetensors"), "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            raw = f.read()
        header.pop("__metadata__", None)
        return {name: raw[t["data_offsets"][0]:t["data_offsets"][1]] for name, t in header.items()}

    def write_data(self, folder, replaced):
        """The fixture with its numbers, but for those that are replaced: name -> (dtype, shape, bytes)."""
        data = self.data()
        self.tensors.update({name: (dtype, shape) for name, (dtype, shape, _) in replaced.items()})
        self.write(folder)
        with open(os.path.join(folder, "model.safetensors"), "r+b") as f:
            written = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            base = f.tell()
            for name, t in written.items():
                at, end = t["data_offsets"]
                f.seek(base + at)
                f.write(replaced[name][2] if name in replaced else data[name])
                assert f.tell() == base + end
        return folder

    def write(self, folder):
        os.makedirs(folder, exist_ok=True)
        for name in os.listdir(self.folder):
            if name.startswith("tokenizer"):
                shutil.copy(os.path.join(self.folder, name), folder)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump(self.config, f)
        at, header = 0, {}
        for name, (dtype, shape) in self.tensors.items():
            n = ELEMENT_BYTES[dtype]
            for d in shape:
                n *= d
            n = min(n, 1 << 40)  # of a shape that nothing can hold, what a file can
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
            at += n
        text = json.dumps(header).encode()
        with open(os.path.join(folder, "model.safetensors"), "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            f.truncate(8 + len(text) + at - self.short_by)
        return folder


class Gguf:
    """The bytes of a file; keys of 32 bits and dimensions are overwritten where they are, names by names that are ignored."""

    def __init__(self, name):
        with open(os.path.join(TESTS, "data", name), "rb") as f:
            self.data = bytearray(f.read())

    def set_key(self, key, value):
        text = key.encode()
        at = self.data.index(struct.pack("<Q", len(text)) + text) + 8 + len(text)
        kind = struct.unpack_from("<I", self.data, at)[0]
        assert kind in (4, 5, 7), "%s has type %d" % (key, kind)
        struct.pack_into("<B" if kind == 7 else "<I", self.data, at + 4, value)

    def find_tensor(self, name):
        text = name.encode()
        return self.data.index(struct.pack("<Q", len(text)) + text) + 8

    def set_dimension(self, name, i, value):
        at = self.find_tensor(name) + len(name)
        assert i < struct.unpack_from("<I", self.data, at)[0]
        struct.pack_into("<Q", self.data, at + 4 + 8 * i, value)

    def hide(self, name):
        """A name that every architecture ignores."""
        at = self.find_tensor(name)
        self.data[at:at + len(name)] = ("mtp." + name[4:]).encode()

    def write(self, path):
        with open(path, "wb") as f:
            f.write(self.data)
        return path


class GgufParts:
    """A GGUF taken apart: its keys as they are, and the tensors as name -> (dimensions as stored, type, bytes); write() puts them together again."""
    SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    ELEMENT_BYTES = {0: 4, 30: 2}  # F32, BF16

    def __init__(self, name):
        g = Gguf(name)
        self.data, self.at = bytes(g.data), 24
        n_tensors, self.n_keys = struct.unpack_from("<QQ", self.data, 8)
        for _ in range(self.n_keys):
            self._text()
            self._skip(self._take("I"))
        self.keys, infos, self.tensors = bytearray(self.data[24:self.at]), [], {}
        for _ in range(n_tensors):
            name = self._text()
            dims = [self._take("Q") for _ in range(self._take("I"))]
            infos.append((name, dims, self._take("I"), self._take("Q")))
        base = -(-self.at // 32) * 32
        for name, dims, kind, off in infos:
            n = self.ELEMENT_BYTES[kind]
            for d in dims:
                n *= d
            self.tensors[name] = (dims, kind, self.data[base + off:base + off + n])

    def _take(self, form):
        value = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def _text(self):
        n = self._take("Q")
        self.at += n
        return self.data[self.at - n:self.at].decode()

    def _skip(self, kind):
        if kind == 8:
            self._text()
        elif kind == 9:
            of, n = self._take("I"), self._take("Q")
            for _ in range(n if of == 8 else 0):
                self._text()
            self.at += 0 if of == 8 else n * self.SCALAR_BYTES[of]
        else:
            self.at += self.SCALAR_BYTES[kind]

    def set_u32(self, key, value):
        at = self.keys.index(key.encode()) + len(key)
        assert struct.unpack_from("<I", self.keys, at)[0] == 4
        struct.pack_into("<I", self.keys, at + 4, value)

    def add_u32(self, key, value):
        self.keys += struct.pack("<Q", len(key)) + key.encode() + struct.pack("<II", 4, value)
        self.n_keys += 1

    def write(self, path):
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), self.n_keys) + bytes(self.keys)
        body = b""
        for name, (dims, kind, raw) in self.tensors.items():
            head += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(dims)) + struct.pack("<%dQ" % len(dims), *dims) + struct.pack("<IQ", kind, len(body))
            body += raw + bytes(-len(raw) % 32)
        with open(path, "wb") as f:
            f.write(head + bytes(-len(head) % 32) + body)
        return path
