#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write tests/data/vocabularies.json: what the Python package `tokenizers` makes of the texts of tests/data/tokenizer_corpus.json with real vocabularies.

The files are those of tools/get_vocabularies.sh. A tokenizer.json is opened by the package as it is. A GGUF holds tokens, merges or scores, and names its
pre-tokenizer: the package is set up with those and with the pre-tokenizer that tools/make_tokenizer_tests.py has for the name. Special tokens of each
vocabulary are put into the texts as further snippets; hashes are of ids, as in tokenizer_corpus.json.

usage: record_vocabularies.py DIRECTORY [NAME=FILE...] > tests/data/vocabularies.json       (needs tokenizers and gguf; output made with 0.23 and 0.19)
"""
import hashlib
import json
import os
import sys

import gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from make_tokenizer_json_tests import N_TEXTS, TEXTS_A_HASH, corpus_texts, hash_ids
from make_tokenizer_tests import NAMES

HERE = os.path.dirname(os.path.abspath(__file__))
SAME = {"starcoder": "smollm", "refact": "smollm"}  # names of one pre-tokenizer
NORMAL, UNKNOWN, CONTROL, USER = 1, 2, 3, 4
N_SPECIALS = 12


def score_merges(tokens, types, scores):
    ids = {t: i for i, (t, y) in enumerate(zip(tokens, types)) if y == NORMAL}
    return [(t[:k], t[k:]) for t in sorted(ids, key=lambda t: (-scores[ids[t]], ids[t])) for k in range(1, len(t)) if t[:k] in ids and t[k:] in ids]


def from_gguf(path):
    fields = gguf.GGUFReader(path).fields
    get = lambda key: fields["tokenizer.ggml." + key].contents() if "tokenizer.ggml." + key in fields else None
    kind, tokens, types = get("model"), get("tokens"), get("token_type")
    vocab = {t: i for i, t in enumerate(tokens)}
    if kind == "gpt2":
        name = SAME.get(get("pre"), get("pre"))
        if name not in NAMES:
            return None, f"pre-tokenizer {name} has no published form here"
        normalizer, pre, ignore = NAMES[name]
        t = Tokenizer(models.BPE(vocab, [tuple(m.split(" ")) for m in get("merges")], ignore_merges=ignore))
        if normalizer:
            t.normalizer = normalizer
        t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
    elif kind in ("llama", "gemma4"):
        merges = score_merges(tokens, types, get("scores")) if kind == "llama" else [(m[:m.index(" ", 1)], m[m.index(" ", 1) + 1:]) for m in get("merges")]
        unknown = next((t for t, y in zip(tokens, types) if y == UNKNOWN), "<unk>")
        prefix = get("add_space_prefix")
        prefix = kind == "llama" if prefix is None else bool(prefix)
        t = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True, unk_token=unknown))
        t.normalizer = normalizers.Sequence(([normalizers.Prepend("\u2581")] if prefix else []) + [normalizers.Replace(" ", "\u2581")])
    else:
        return None, f"model {kind}"
    control = (CONTROL,) if kind == "gpt2" else (CONTROL, UNKNOWN)
    t.add_special_tokens([AddedToken(x, normalized=False) for x, y in zip(tokens, types) if y in control])
    t.add_tokens([AddedToken(x, normalized=False) for x, y in zip(tokens, types) if y == USER and x])
    return (t, [x for x, y in zip(tokens, types) if y in (CONTROL, USER)]), None


def from_json(path):
    t = Tokenizer.from_file(path)
    t.no_truncation()
    t.no_padding()
    return (t, [a.content for a in t.get_added_tokens_decoder().values()]), None


def main():
    folder, files = sys.argv[1], dict(a.split("=", 1) for a in sys.argv[2:])
    files |= {os.path.splitext(f)[0]: os.path.join(folder, f) for f in sorted(os.listdir(folder)) if f.endswith((".gguf", ".json"))}
    corpus = json.load(open(os.path.join(HERE, "..", "tests", "data", "tokenizer_corpus.json")))
    out = {}
    for name, path in files.items():
        got, why = (from_gguf if path.endswith(".gguf") else from_json)(path)
        if why:
            print(f"{name}: left out: {why}", file=sys.stderr)
            continue
        tokenizer, specials = got
        step = max(1, len(specials) // N_SPECIALS)
        extra = [s for s in specials[::step] if s.strip()][:N_SPECIALS]
        hashes, h, total, n_ids = [], None, 0, 0
        for i, text in enumerate(corpus_texts(corpus["snippets"] + extra)):
            h = 0xCBF29CE484222325 if i % TEXTS_A_HASH == 0 else h
            ids = tokenizer.encode(text, add_special_tokens=path.endswith(".json")).ids
            h = hash_ids(h, ids)
            total += len(text.encode())
            n_ids += len(ids)
            if i % TEXTS_A_HASH == TEXTS_A_HASH - 1:
                hashes.append("%016x" % h)
        with open(path, "rb") as f:
            digest = hashlib.sha256(f.read()).hexdigest()
        out[name] = {"file": os.path.basename(path), "sha256": digest, "bytes": total, "ids": n_ids, "extra": extra, "hashes": hashes}
        print(f"{name}: {tokenizer.get_vocab_size()} tokens, {total} bytes, {n_ids} ids", file=sys.stderr)
    assert N_TEXTS % TEXTS_A_HASH == 0
    json.dump({"vocabularies": out}, sys.stdout, separators=(",", ":"))
    print()


main()
