#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write what the Python package `tokenizers` makes of texts with tokenizer.json files.

  tests/data/tokenizer_json_cases.json   two small models and many drawn combinations of the sections around them, each with texts, ids and decoded text
  tests/data/tokenizer_corpus.json       snippets; texts of more than 1 MB are put together from them by a generator that the test has too; hashes of the ids for
                                         each tokenizer.json given as NAME=PATH

usage: make_tokenizer_json_tests.py DIRECTORY NAME=PATH...        (DIRECTORY: tests/data; needs tokenizers; output checked with 0.23)
"""
import glob
import json
import os
import random
import sys

from tokenizers import Tokenizer, pre_tokenizers, trainers

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from make_tokenizer_tests import SPACES, WORDS

PATTERNS = [r"\p{N}{1,3}", r"\s+", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+", r"\p{Han}", r"\s?\p{L}+",
            r"(?=\d)", r"\b", r".{1,7}", r"(?<=a).", r"x*"]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
MARK = "\u2581"
SPECIALS = ["<unk>", "<s>", "</s>"]
ADDED = ["<a>", "<ab>", "hello", MARK + "x", "  ", "\n\n", "A", "the", "\u00e9", "e\u0301", "<|im|>", "...", "12", "\u03a9", " b "]


def sentence(r, n):
    return "".join(r.choice(WORDS + ADDED + ["<s>", "</s>"]) + r.choice([" "] * 6 + ["", "", "  ", r.choice(SPACES)]) for _ in range(n))



def normalizer(r):
    kind = r.choice(["NFC", "NFD", "NFKC", "NFKD", "Replace", "Replace", "Regex", "Prepend", "Lowercase", "Strip", "StripAccents", "Nmt"])
    if kind == "Replace":
        return {"type": "Replace", "pattern": {"String": r.choice([" ", "a", "ab", "\n", "  "])}, "content": r.choice([MARK, "", "_", "zz"])}
    if kind == "Regex":
        return {"type": "Replace", "pattern": {"Regex": r.choice(PATTERNS)}, "content": r.choice([MARK, "", "_ "])}
    if kind == "Prepend":
        return {"type": "Prepend", "prepend": r.choice([MARK, " ", "xy"])}
    if kind == "Strip":
        return {"type": "Strip", "strip_left": r.random() < 0.5, "strip_right": r.random() < 0.5}
    return {"type": kind}


def pre_tokenizer(r):
    kind = r.choice(["Split", "Split", "String", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "Metaspace", "CharDelimiterSplit", "BertPreTokenizer", "FixedLength"])
    if kind == "Split":
        return {"type": "Split", "pattern": {"Regex": r.choice(PATTERNS)}, "behavior": r.choice(BEHAVIORS), "invert": r.random() < 0.3}
    if kind == "String":
        return {"type": "Split", "pattern": {"String": r.choice([" ", "a", "  ", MARK, "."])}, "behavior": r.choice(BEHAVIORS), "invert": r.random() < 0.3}
    if kind == "Digits":
        return {"type": kind, "individual_digits": r.random() < 0.5}
    if kind == "Punctuation":
        return {"type": kind, "behavior": r.choice(BEHAVIORS)}
    if kind == "Metaspace":
        return {"type": kind, "replacement": MARK, "prepend_scheme": r.choice(["always", "never", "first"]), "split": r.random() < 0.7}
    if kind == "CharDelimiterSplit":
        return {"type": kind, "delimiter": r.choice(" .a")}
    if kind == "FixedLength":
        return {"type": kind, "length": r.randrange(1, 9)}
    return {"type": kind}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
REPLACE, FALLBACK, FUSE = {"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}
DECODERS = [None, FUSE, {"type": "Sequence", "decoders": [REPLACE, FALLBACK, FUSE]},
            {"type": "Sequence", "decoders": [REPLACE, FALLBACK, FUSE, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always", "split": True},
            {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "never", "split": True},
            {"type": "Sequence", "decoders": [{"type": "Strip", "content": "a", "start": 1, "stop": 0}, {"type": "Replace", "pattern": {"Regex": "[0-9]+"}, "content": "#"}]}]


def wrap(parts, key, r):
    if not parts:
        return None
    return parts[0] if len(parts) == 1 and r.random() < 0.6 else {"type": "Sequence", key: parts}


def base_model(byte_level):
    t = Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "normalizer": None if byte_level else REPLACE | {"pattern": {"String": " "}, "content": MARK},
                                       "pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": False} if byte_level else None, "post_processor": None, "decoder": None,
                                       "model": {"type": "BPE", "vocab": {}, "merges": []}}))
    r = random.Random(9)
    fallback = [] if byte_level else ["<0x%02X>" % i for i in range(256)]
    alphabet = pre_tokenizers.ByteLevel.alphabet() if byte_level else [MARK]
    t.train_from_iterator((sentence(r, 30) for _ in range(300)),
                          trainers.BpeTrainer(vocab_size=700, special_tokens=SPECIALS + fallback, initial_alphabet=alphabet, limit_alphabet=250 if byte_level else 90, show_progress=False))
    return json.loads(t.to_str())["model"]


def combination(r, models):
    name = r.choice(list(models))
    byte_level = name == "byte_level"
    pres = [pre_tokenizer(r) for _ in range(r.choice([0, 0, 1, 1, 2]))]
    if byte_level:
        pres.insert(r.choice([len(pres), len(pres), r.randrange(len(pres) + 1)]), BYTE_LEVEL | {"add_prefix_space": r.random() < 0.3, "use_regex": r.random() < 0.5})
    normalizers = [normalizer(r) for _ in range(r.choice([0, 0, 1, 1, 2]))]
    if not byte_level and r.random() < 0.5:
        normalizers.append({"type": "Replace", "pattern": {"String": " "}, "content": MARK})
    vocab, next_id = models[name]["vocab"], len(models[name]["vocab"])
    added = [{"id": vocab[s], "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for s in SPECIALS]
    for text in r.sample(ADDED, r.randrange(8)):
        if text not in vocab:
            next_id += 1
        added.append({"id": vocab.get(text, next_id - 1), "content": text, "single_word": r.random() < 0.3, "lstrip": r.random() < 0.3, "rstrip": r.random() < 0.3,
                      "normalized": r.random() < 0.5, "special": r.random() < 0.5})
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
                + ([{"SpecialToken": {"id": "</s>", "type_id": 0}}] if r.random() < 0.3 else []),
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {s: {"id": s, "ids": [vocab[s]], "tokens": [s]} for s in SPECIALS[1:]}}
    post = r.choice([None, template, {"type": "Sequence", "processors": [BYTE_LEVEL, template]},
                     {"type": "RobertaProcessing", "sep": ["</s>", vocab["</s>"]], "cls": ["<s>", vocab["<s>"]], "trim_offsets": True, "add_prefix_space": False}])
    flags = {"byte_fallback": not byte_level and r.random() < 0.6, "fuse_unk": r.random() < 0.5, "unk_token": r.choice([None, "<unk>"]), "ignore_merges": r.random() < 0.4}
    return {"model": name, "flags": flags, "normalizer": wrap(normalizers, "normalizers", r), "pre_tokenizer": wrap(pres, "pretokenizers", r),
            "decoder": BYTE_LEVEL if byte_level else r.choice(DECODERS), "post_processor": post, "added_tokens": added}


def whole(models, c):
    model = dict(models[c["model"]])
    model.update(c["flags"])
    return {"version": "1.0", "truncation": None, "padding": None, **{k: c[k] for k in ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder")}, "model": model}


def answers(t, r):
    for i in range(5):
        t.encode_special_tokens = i == 4
        text = sentence(r, r.randrange(1, 9))
        ids = t.encode(text).ids
        yield {"text": text, "ids": ids, "decoded": t.decode(ids, skip_special_tokens=i == 3)}


def cases(count):
    models = {"byte_level": base_model(True), "characters": base_model(False)}
    out, seed = [], 0
    while len(out) < count:
        seed += 1
        r = random.Random(seed)
        c = combination(r, models)
        try:
            t = Tokenizer.from_str(json.dumps(whole(models, c)))
        except Exception:
            continue
        seen = [t.normalizer.normalize_str(a["content"]) if t.normalizer else a["content"] for a in c["added_tokens"] if a["normalized"]]
        if t.normalizer and any(a["special"] and a["normalized"] and t.normalizer.normalize_str(a["content"]) != a["content"] for a in c["added_tokens"]):
            continue  # the package does not know such a token for a special one when it decodes; we do
        if len(set(seen)) < len(seen):  # two added tokens are one after normalizing: which of them is meant is not defined
            continue
        try:
            c["texts"] = list(answers(t, r))
        except BaseException as why:  # the package itself panics on a few combinations, with an exception of its own root
            if isinstance(why, KeyboardInterrupt):
                raise
            continue
        out.append(c)
    for lstrip, rstrip in ((False, True), (True, False), (True, True)):  # tokens of white space that take white space along
        added = [{"id": len(models["characters"]["vocab"]), "content": "  ", "single_word": False, "lstrip": lstrip, "rstrip": rstrip, "normalized": False, "special": False}]
        c = {"model": "characters", "flags": {"byte_fallback": True}, "normalizer": REPLACE | {"pattern": {"String": " "}, "content": MARK}, "pre_tokenizer": None,
             "decoder": DECODERS[2], "post_processor": None, "added_tokens": added}
        t = Tokenizer.from_str(json.dumps(whole(models, c)))
        c["texts"] = [{"text": text, "ids": t.encode(text).ids, "decoded": t.decode(t.encode(text).ids)}
                      for text in ("a  b", "a   \n  b", "     ", "a    b   c  ", " \n  \n    x")]
        out.append(c)
    return {"models": models, "cases": out}


# --- the corpus ---

MASK = (1 << 64) - 1
N_TEXTS, TEXTS_A_HASH = 4096, 64


def snippets():
    r = random.Random(3)
    out = [w + s for w in WORDS for s in ("", " ")] + SPACES + ["<bos>", "<eos>", "<pad>", "<start_of_turn>", "<end_of_turn>", "<unk>", "<|x|>", MARK]
    blocks = [(0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xA00), (0xE00, 0xE80), (0x1100, 0x1200), (0x1E00, 0x2070), (0x20A0, 0x2200), (0x2460, 0x27C0),
              (0x3000, 0x3190), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xFB00, 0xFB50), (0xFF00, 0xFFE0), (0x10300, 0x10350), (0x1D400, 0x1D800), (0x1F1E6, 0x1F200), (0x1F300, 0x1FA00), (0x20000, 0x20100)]
    for first, last in blocks:
        for _ in range(6):
            out.append("".join(chr(r.randrange(first, last)) for _ in range(r.randrange(2, 24))))
    for _ in range(40):
        points = [r.randrange(0x110000) for _ in range(8)]
        out.append("".join(chr(c) for c in points if not 0xD800 <= c < 0xE000))
    here = os.path.dirname(os.path.abspath(__file__))
    for path in sorted(glob.glob(os.path.join(here, "*.py")))[:3] + [os.path.join(here, "..", "tests", "data", "perplexity_text.txt")]:
        text = open(path, encoding="utf-8").read()
        for _ in range(25):
            at = r.randrange(len(text))
            out.append(text[at:at + r.randrange(20, 160)])
    return out


def corpus_texts(pieces):
    state = 1
    for _ in range(N_TEXTS):
        text = ""
        state = (state * 6364136223846793005 + 1442695040888963407) & MASK
        for _ in range(8 + (state >> 33) % 16):
            state = (state * 6364136223846793005 + 1442695040888963407) & MASK
            text += pieces[(state >> 33) % len(pieces)]
        yield text


def hash_ids(h, ids):
    for i in ids + [-1]:
        h = ((h ^ (i & MASK)) * 0x100000001B3) & MASK
    return h


def corpus(files):
    pieces = snippets()
    texts = list(corpus_texts(pieces))
    total = sum(len(t.encode()) for t in texts)
    assert total > 1_000_000, total
    out = {"snippets": pieces, "bytes": total, "texts": N_TEXTS, "texts_a_hash": TEXTS_A_HASH, "hashes": {}}
    for name, path in files:
        t = Tokenizer.from_file(path)
        hashes = []
        for i in range(0, N_TEXTS, TEXTS_A_HASH):
            h = 0xCBF29CE484222325
            for text in texts[i:i + TEXTS_A_HASH]:
                h = hash_ids(h, t.encode(text).ids)
            hashes.append("%016x" % h)
        out["hashes"][name] = hashes
    return out


def main():
    folder = sys.argv[1]
    with open(os.path.join(folder, "tokenizer_json_cases.json"), "w", encoding="ascii") as f:
        json.dump(cases(90), f, separators=(",", ":"))
        f.write("\n")
    with open(os.path.join(folder, "tokenizer_corpus.json"), "w", encoding="ascii") as f:
        json.dump(corpus([a.split("=", 1) for a in sys.argv[2:]]), f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
