#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write tests/data/tokenizer_cases.json: what the Python package `tokenizers` and Python itself make of small inputs.

  lossy       bytes and the text Python's errors="replace" makes of them
  splits      a pattern, a behaviour, a text, the pieces: the package's Split, patterns run on Oniguruma
  names       for each name of GGUF's `tokenizer.ggml.pre`: ids of texts over one small vocabulary, whose merges cross words, digits and lines on purpose,
              so that a wrong cut shows. The pre-tokenizers are written here as the published tokenizer.json files of the families have them.

usage: make_tokenizer_tests.py > tests/data/tokenizer_cases.json       (needs tokenizers; output checked with 0.23)
"""
import json
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPACES = ["\n", "\t", "\r\n", "\r", "\x0b", "\x0c", "\x85", "\xa0", "\u2003", "\u2028", "\u3000", "\u1680", "\u200b", "\x00"]
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
LATIN = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f"
    "\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57"
    "\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787"
    "\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)


BLOOM = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
WIDE = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def llama3(number, letters=r"\p{L}+", marks=""):
    return rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{letters}|{number}| ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*|{TAIL}"


def o200k(number, contraction, trail="[\\r\\n/]*", minus=""):
    up, low = f"[{UPPER}{minus}]", f"[{LOWER}{minus}]"
    head = r"[^\r\n\p{L}\p{N}]?"
    return rf"{head}{up}*{low}+{contraction}|{head}{up}+{low}*{contraction}|{number}| ?[^\s\p{{L}}\p{{N}}]+{trail}|{TAIL}"


def steps(*list_of_steps):
    return pre_tokenizers.Sequence([*list_of_steps, BYTES])


NFC = normalizers.NFC()
DIGITS = pre_tokenizers.Digits(True)
# name: normalizer, pre-tokenizer, ignore_merges
NAMES = {
    "gpt-2": (None, GPT2, False),
    "mpt": (NFC, GPT2, False),
    "olmo": (NFC, GPT2, False),
    "smollm": (None, pre_tokenizers.Sequence([DIGITS, GPT2]), False),
    "command-r": (NFC, pre_tokenizers.Sequence([DIGITS, GPT2]), False),
    "falcon": (None, pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), GPT2, pre_tokenizers.Digits(False), split("[0-9][0-9][0-9]")]), False),
    "llama-bpe": (None, steps(split(llama3(r"\p{N}{1,3}"))), True),
    "glm4": (None, steps(split(llama3(r"\p{N}{1,3}"))), True),
    "chatglm-bpe": (None, steps(split(llama3(r"\p{N}{1,3}"))), False),
    "qwen2": (NFC, steps(split(llama3(r"\p{N}"))), False),
    "qwen35": (NFC, steps(split(llama3(r"\p{N}", r"[\p{L}\p{M}]+", r"\p{M}"))), False),
    "gpt-4o": (None, steps(split(o200k(r"\p{N}{1,3}", CONTRACTION + "?"))), False),
    "tekken": (None, steps(split(o200k(r"\p{N}", ""))), True),
    "kimi-k2": (None, steps(split(r"[\p{Han}]+|" + o200k(r"\p{N}{1,3}", CONTRACTION + "?", "[\\r\\n]*", r"&&[^\p{Han}]"))), False),
    "deepseek-llm": (None, steps(split("[\r\n]"), split(r"\s?[" + LATIN + "]+"), split("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"), split(r"\s+$"),
                                 split(WIDE), split(r"\p{N}+")), False),
    "deepseek-coder": (None, steps(split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(WIDE), DIGITS), False),
    "deepseek-v3": (None, steps(split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
                                split("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|" + TAIL)),
                    False),
    "bailingmoe": (None, steps(split(r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")), False),
    "seed-coder": (None, steps(split(rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{TAIL}")), False),
    "exaone-moe": (None, steps(split(rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+")), False),
    "bloom": (None, steps(split(BLOOM)), False),
    "viking": (None, steps(split(BLOOM), DIGITS), False),
    "jais-2": (None, steps(split(rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|"
                                 + "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s{1}")), False),
}

WORDS = ["hello", "World", "the", "don't", "I'LL", "we'Ve", "HE'S", "camelCase", "HTMLParser", "straße", "ÉCOLE", "Ελλάδα", "мир", "Дом", "שלום", "مرحبا", "नमस्ते", "ไทย", "漢字", "かな",
         "カナ", "한국어", "e\u0301te\u0301", "a\u0300", "n\u0303", "ǆ", "ﬁ", "ℵ", "ª", "x\u200dy", "👩‍👩‍👧", "👍🏽", "🇩🇪", "…", "。", "「", "!?", "--", "==", "`a`", "a_b", "$x", "#!", "//", "/*",
         "\u2019s", "'", "''", "1", "22", "333", "4444", "1234567", "٣٤", "Ⅷ", "²³", "½", "0x1F", "1.5e-3", "<|end|>", "<think>", "  ", "   ", "\n\n", " \n", "\t\t", "    x", "\u2ebf0", "\U00031350"]


def texts(seed, n, words=None):
    r = random.Random(seed)
    out = []
    for _ in range(n):
        s = ""
        for _ in range(r.randrange(2, 9)):
            s += r.choice(words or WORDS) + r.choice([" "] * 5 + ["", "", "  ", r.choice(SPACES)])
        out.append(s)
    return out


def small_vocabulary():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.train_from_iterator(texts(1, 4000, [w for w in WORDS if w not in ("<|end|>", "<think>")]), trainers.BpeTrainer(vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    model = json.loads(t.to_str())["model"]
    tokens = [None] * len(model["vocab"])
    for token, i in model["vocab"].items():
        tokens[i] = token
    return tokens, [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]


def names():
    tokens, merges = small_vocabulary()
    added = [("<|end|>", True), ("<think>", False), ("<|end|>>", True), ("\n\n\n", False)]
    all_tokens = tokens + [a for a, _ in added]
    assert len(set(all_tokens)) == len(all_tokens)
    cases = {}
    for name, (normalizer, pre, ignore) in NAMES.items():
        t = Tokenizer(models.BPE({x: i for i, x in enumerate(tokens)}, merges, ignore_merges=ignore))
        if normalizer:
            t.normalizer = normalizer
        t.pre_tokenizer = pre
        t.decoder = decoders.ByteLevel()
        for text, special in added:
            (t.add_special_tokens if special else t.add_tokens)([AddedToken(text, normalized=False, special=special)])
        cases[name] = []
        for text in texts(name, 14):
            t.encode_special_tokens = False
            ids = t.encode(text).ids
            t.encode_special_tokens = True
            cases[name].append({"text": text, "ids": ids, "plain": t.encode(text).ids})
        for case in cases[name]:
            if case["plain"] == case["ids"]:
                del case["plain"]
    return {"tokens": all_tokens, "merges": [" ".join(m) for m in merges], "types": [1] * len(tokens) + [3 if s else 4 for _, s in added], "cases": cases}


def scored():
    """A vocabulary with scores instead of merges (GGUF "llama"): the package gets the merges that the scores stand for."""
    mark = "\u2581"
    r = random.Random(2)
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Replace(" ", mark)
    t.train_from_iterator((x.replace("\x00", "") for x in texts(2, 800, [w for w in WORDS if w.isascii() and not w.startswith("<")])), trainers.BpeTrainer(vocab_size=420, limit_alphabet=80, show_progress=False))
    words = sorted(t.get_vocab(), key=lambda w: (len(w) > 1, t.get_vocab()[w]))
    tokens = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % i for i in range(256)] + words + ["<think>", "unused"]
    types = [2, 3, 3] + [6] * 256 + [1] * len(words) + [4, 5]
    scores = [0.0] * (3 + 256) + [-float(i) for i in range(len(words))] + [0.0, 0.0]
    rank = {w: s for w, s, y in zip(tokens, scores, types) if y == 1}
    merges = [(w[:k], w[k:]) for w in sorted((w for w in rank if len(w) > 1), key=lambda w: -rank[w]) for k in range(1, len(w)) if w[:k] in rank and w[k:] in rank]
    out = {"tokens": tokens, "types": types, "scores": scores, "cases": []}
    for prefix in (True, False):
        t = Tokenizer(models.BPE({w: i for i, w in enumerate(tokens)}, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
        t.normalizer = normalizers.Sequence(([normalizers.Prepend(mark)] if prefix else []) + [normalizers.Replace(" ", mark)])
        t.decoder = decoders.Sequence([decoders.Replace(mark, " "), decoders.ByteFallback(), decoders.Fuse()] + ([decoders.Strip(" ", 1, 0)] if prefix else []))
        t.add_special_tokens([AddedToken(w, normalized=False) for w in tokens[:3]])
        t.add_tokens([AddedToken("<think>", normalized=False)])
        for text in texts(31 + prefix, 20):
            text = text.replace("\x00", "") + r.choice(["", "</s> x", "<s>"])
            ids = t.encode(text).ids
            out["cases"].append({"prefix": prefix, "text": text, "ids": ids, "decoded": t.decode(ids, skip_special_tokens=False)})
    return out


def splits():
    behaviors = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
    text = "ab12  c\u00e9\u00b2'S don\u2019t\n\n x\u0301y 3.14\u0085z\u3000\u6f22\u5b57-_-aab  "
    out = []

    def add(pattern, t=text, behavior="isolated", invert=False, literal=False):
        p = pre_tokenizers.Split(pattern if literal else Regex(pattern), behavior, invert)
        out.append({"pattern": pattern, "literal": literal, "behavior": behavior, "invert": invert, "text": t, "pieces": [x for x, _ in p.pre_tokenize_str(t)]})

    for b in behaviors:
        for invert in (False, True):
            add(r"\d", behavior=b, invert=invert)
            add(r"\s+", behavior=b, invert=invert)
            add(" ", behavior=b, invert=invert, literal=True)
            add("aa", "aaaaa aa a", b, invert, True)
            add(r"(?=\d)", behavior=b, invert=invert)
    for pattern in [r"\w+", r"\W+", r"[\w]+", r"[^\w\s]+", r"\S", r"[^\S\n]", r"\b", r"\B", r"\bc", r"\h+", r"\H", r"[\h]", r"\v", r"^.", r".$", r"\A.", r".\z", r".\Z", r"(?m:c.+x)", r"(?i)DON",
                    r"(?i:'s)", r"a|b", r"(a)(?:b)", r"(?<=b)1", r"(?<!b)2", r"(?>a+)b", r"a{2}", r"a{,2}b", r"a{2}+", r"a{1,2}+b", r"a{1}?b", r"a++b", r"a*+b", r"a?+b", r"(a)\1",
                    r"\p{Han}+", r"\P{L}+", r"\p{^L}+", r"\p{Lu}", r"\p{Letter}", r"[\p{L}\p{M}]+", r"[[a-c]x]+", r"[^[a-c]x]+", r"b", r"\x41|\x{e9}|\u6f22",
                    r"\p{Greek}|\p{Alphabetic}", r"x{a}|x", r"\.\-\'", r"[.\-']", r"[a-]", r"(?#no)a", r"\p{Space}"]:
        add(pattern)
    add(r"\s+", "a\u180eb\u0085c\u200bd\u2028e\u001cf")
    add(r"\S+", "a\u180eb\u0085c")
    add(r"\p{Greek}+", "α\u0342β\u1dc0 \u3001")
    add(r"\p{Han}+", "漢\u3001字\u3005々〆")
    return out


def normal():
    """Normal forms and the like, on code points that several versions of Unicode treat differently among them."""
    inputs = ["a\u0301\u0327", "\uac00\u11a8 \u1100\u1161", "\ufb01 \u2460 \u00c5 \u212b \u1e9b\u0323", "a\u0898\u0301\u0327", "a\u0301\u08d0\u0327", "\U00011935\U00011930 \U00011938",
              "\u32ff \U0001e030 \U00010781 \ua7f2", "x\U0001e08f\u0301", "\ua7cb\u1c89\u0130\u1e9e\u03a3", "\u0300\u1cf2\u0897\u1abf", "\x00\x01\t\u200b\ufeff\u2581x\x7f", "\U0001d15e \u0344 \u2126",
              "\u09c7\u09be \u0dd9\u0dcf\u0dca", "\U00016d68 \U000105d2\u0307"]
    kinds = {"NFC": normalizers.NFC, "NFD": normalizers.NFD, "NFKC": normalizers.NFKC, "NFKD": normalizers.NFKD, "Lowercase": normalizers.Lowercase, "StripAccents": normalizers.StripAccents,
             "Nmt": normalizers.Nmt}
    return [{"kind": k, "text": text, "out": n().normalize_str(text)} for k, n in kinds.items() for text in inputs]


def lossy():
    r = random.Random(5)
    pieces = [b"a", b"\x80", b"\xc2", b"\xc3\xa9", b"\xe2\x82\xac", b"\xe2\x82", b"\xe2", b"\xf0\x9f\x98\x80", b"\xf0\x9f\x98", b"\xf0\x9f", b"\xf0", b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xe0\x80\x80",
              b"\xf4\x90\x80\x80", b"\xf5", b"\xef\xbf\xbd"]
    inputs = [p for p in pieces] + [b"".join(r.choice(pieces) for _ in range(r.randrange(2, 8))) for _ in range(60)] + [bytes(r.randrange(256) for _ in range(24)) for _ in range(20)]
    return [{"hex": b.hex(), "text": b.decode("utf-8", errors="replace")} for b in inputs]


def main():
    json.dump({"lossy": lossy(), "splits": splits(), "names": names(), "scored": scored(), "normal": normal()}, sys.stdout, ensure_ascii=True, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
