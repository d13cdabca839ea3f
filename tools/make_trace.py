#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a trace of routing with a set skew and persistence, in the format of --record-routing (docs/EXPERTS.md).

  tools/make_trace.py -o FILE --layers 48 --experts 128 --top-k 8 --tokens 2000 [--skew 1.0] [--persistence 0.3] [--drift 0] [--prefill 0] [--seed 1]

In each layer the experts have a random order; the r-th is drawn with weight r^-skew. A token keeps each expert of the token before with the given probability; the rest are drawn anew. With --drift D the
order is drawn anew every D tokens (a change of subject). --prefill N puts the first N tokens into one step. Prints the overlap with the token before and the number of distinct experts.
"""

import argparse
import array
import random
import struct
import sys


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-o", "--output", required=True)
    p.add_argument("--layers", type=int, required=True)
    p.add_argument("--experts", type=int, required=True)
    p.add_argument("--top-k", type=int, required=True)
    p.add_argument("--tokens", type=int, required=True)
    p.add_argument("--skew", type=float, default=1.0)
    p.add_argument("--persistence", type=float, default=0.3)
    p.add_argument("--drift", type=int, default=0)
    p.add_argument("--prefill", type=int, default=0)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    if not (0 < a.top_k <= a.experts and a.layers > 0 and a.tokens > 0 and 0 <= a.persistence <= 1 and 0 <= a.prefill <= min(a.tokens, 4096)):
        p.error("out of range")
    r = random.Random(a.seed)
    weights = [(rank + 1) ** -a.skew for rank in range(a.experts)]
    orders = [r.sample(range(a.experts), a.experts) for _ in range(a.layers)]
    last, seen, same, n = [None] * a.layers, set(), 0, 0
    steps = [a.prefill] * (a.prefill > 0) + [1] * (a.tokens - a.prefill)
    with open(a.output, "wb") as f:
        f.write(b"HRROUTE1" + struct.pack("<III", a.layers, a.experts, a.top_k))
        token = 0
        for rows in steps:
            if a.drift and token % a.drift == 0 and token > 0:
                orders = [r.sample(range(a.experts), a.experts) for _ in range(a.layers)]
            for layer in range(a.layers):
                words = array.array("H", (layer, rows))
                for _ in range(rows):
                    kept = [e for e in last[layer] or () if r.random() < a.persistence]
                    chosen = set(kept)
                    # without replacement by exponential clocks, those not kept
                    clocks = sorted((r.expovariate(1) / w, e) for w, e in zip(weights, orders[layer]) if e not in chosen)
                    row = kept + [e for _, e in clocks[: a.top_k - len(kept)]]
                    if last[layer] is not None:
                        same += len(set(row) & set(last[layer]))
                        n += a.top_k
                    last[layer] = row
                    seen.update((layer, e) for e in row)
                    words.extend(row)
                if sys.byteorder == "big":
                    words.byteswap()
                f.write(words.tobytes())
            token += rows
    print(f"{a.output}: {a.tokens} tokens, {len(seen)} of {a.layers * a.experts} experts distinct, overlap with the token before {100 * same / max(n, 1):.1f} %")


if __name__ == "__main__":
    main()
