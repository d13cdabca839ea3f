#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write tests/data/logits_processors.json: what the logits processors of Hugging Face Transformers make of random rows.

record_processors.py TRANSFORMERS_DIR OUT

TRANSFORMERS_DIR is the package's folder (the one with generation/logits_process.py). The file is run as it is; where PyTorch is not installed,
the dozen tensor functions that these processors call are taken from NumPy, in float32.
"""

import json
import math
import os
import random
import re
import sys
import types

import numpy as np


class Tensor(np.ndarray):
    def dim(self): return self.ndim
    def clone(self): return self.copy()
    def bool(self): return self.astype(np.bool_)
    def prod(self, dim=None): return np.prod(np.asarray(self), axis=dim).view(Tensor)
    @property
    def device(self): return "cpu"


def tensor(value, dtype=None, device=None):
    a = np.array(value)
    if dtype is None and a.dtype == np.float64:
        dtype = np.float32
    return a.astype(dtype or a.dtype).view(Tensor)


def stand_in():
    """The functions of torch that the processors used here call."""
    t = types.ModuleType("torch")
    t.Tensor = t.LongTensor = t.FloatTensor = t.BoolTensor = Tensor
    t.float, t.long, t.int64 = np.float32, np.int64, np.int64
    t.tensor = tensor
    t.zeros = lambda shape, dtype=np.float32, device=None: np.zeros(shape, dtype).view(Tensor)
    t.zeros_like = lambda a: np.zeros_like(a)
    t.full_like = lambda a, v: np.full_like(a, v)
    t.arange = lambda n, device=None: np.arange(n).view(Tensor)
    t.isin = lambda a, b: np.isin(a, b).view(Tensor)
    t.eq = lambda a, b: np.equal(a, b).astype(np.int64).view(Tensor)
    t.where = lambda c, a, b: np.where(c, np.asarray(a, np.float32), np.asarray(b, np.float32)).view(Tensor)
    t.gather = lambda a, dim, ids: np.take_along_axis(a, ids, dim).view(Tensor)

    def scatter(self, dim, ids, src):
        out = self.copy()
        np.put_along_axis(out, np.asarray(ids), np.asarray(src), dim)
        return out

    Tensor.scatter = scatter
    t.__getattr__ = lambda name: type(name, (), {}) if name[0].isupper() else (_ for _ in ()).throw(AttributeError(name))
    return t


def load(folder):
    path = os.path.join(folder, "generation", "logits_process.py")
    try:
        import torch
    except ImportError:
        torch = sys.modules["torch"] = stand_in()
    with open(path, encoding="utf-8") as f:
        text = f.read()
    text = re.sub(r"^from \.\._typing.*$|^from \.\.utils.*$", "", text, flags=re.M)
    module = {"__name__": "logits_process", "add_start_docstrings": lambda *_: lambda fn: fn, "WhisperGenerationConfigLike": object,
              "get_logger": lambda name: types.SimpleNamespace(warning_once=print, warning=print)}
    exec(compile("from __future__ import annotations\n" + text, path, "exec"), module)
    with open(os.path.join(folder, "__init__.py"), encoding="utf-8") as f:
        version = re.search(r'^__version__ = "(.+)"', f.read(), re.M)[1]
    return torch, module, version


def one_case(rng, i, torch, p):
    vocab, n_prompt = rng.choice([12, 31, 60]), rng.randrange(1, 9)
    tokens = [rng.randrange(vocab) for _ in range(n_prompt + rng.randrange(0, 12))]
    logits = [float(np.float32(rng.uniform(-6, 6))) for _ in range(vocab)]
    case = {"n_prompt": n_prompt, "tokens": tokens, "logits": logits, "repetition_penalty": 0.0, "min_tokens": 0, "bias": [], "bad_words": [], "end_ids": [], "allowed": []}
    ids, scores = torch.tensor([tokens], dtype=torch.long), torch.tensor([logits], dtype=torch.float)
    kinds = [["bias"], ["repetition"], ["bad"], ["min"], ["allowed"], ["bias", "repetition"], ["bias", "repetition", "allowed", "bad", "min"]][i % 7]
    chain = []
    if "bias" in kinds:
        chosen = rng.sample(range(1, vocab), 4)
        case["bias"] = [[k, float(np.float32(rng.uniform(-9, 9)))] for k in chosen]
        chain.append(p["SequenceBiasLogitsProcessor"]({(k,): b for k, b in case["bias"]}))
    if "repetition" in kinds:
        case["repetition_penalty"] = float(np.float32(rng.choice([0.5, 1.1, 1.3, 2.0])))
        chain.append(p["RepetitionPenaltyLogitsProcessor"](case["repetition_penalty"]))
    if "allowed" in kinds:
        case["allowed"] = rng.sample(range(vocab), vocab // 2)
        chain.append(p["PrefixConstrainedLogitsProcessor"](lambda batch, sent: case["allowed"], 1))
    if "bad" in kinds:
        words = [[rng.randrange(vocab)], tokens[-1:] + [rng.randrange(vocab)], tokens[-2:] + [rng.randrange(vocab)], [rng.randrange(vocab) for _ in range(3)],
                 [rng.randrange(vocab) for _ in range(len(tokens) + 3)]]
        words = [list(w) for w in {tuple(w) for w in words}]
        case["bad_words"] = [n for w in words for n in [len(w), *w]]
        chain.append(p["NoBadWordsLogitsProcessor"](words))
    if "min" in kinds:
        case["min_tokens"], case["end_ids"] = rng.choice([1, 5, 9]), rng.sample(range(vocab), 2)
        chain.append(p["MinNewTokensLengthLogitsProcessor"](n_prompt, case["min_tokens"], case["end_ids"]))
    for processor in chain:
        scores = processor(ids, scores)
    case["expected"] = [None if math.isinf(x) else float(x) for x in np.asarray(scores)[0]]
    return case


def main():
    folder, out = sys.argv[1:]
    torch, p, version = load(folder)
    rng = random.Random(5)
    cases = [one_case(rng, i, torch, p) for i in range(42)]
    with open(out, "w", encoding="utf-8") as f:
        json.dump({"made_with": f"tools/record_processors.py, the processors of Transformers {version}; null is minus infinity", "cases": cases}, f)
        f.write("\n")


main()
