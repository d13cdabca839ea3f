#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Record reference values from a given build of llama.cpp.

The expected values in tests/data come from an implementation that is not ours.
This tool drives the binaries of a llama.cpp build that the caller names and
writes those files; run again with the same build, model and processor it
writes the same numbers. It builds and fetches nothing, and needs nothing but
Python's standard library.

  record_llamacpp.py greedy     --bin DIR --model FILE --out tests/data/smollm2_q4_1_greedy.json
  record_llamacpp.py perplexity --bin DIR --model FILE --text tests/data/perplexity_text.txt \\
                                --out tests/data/smollm2_q4_1_perplexity.json
  record_llamacpp.py forced     --bin DIR --model FILE --prompts tests/fixtures/NAME/expected.json \\
                                --out tests/data/NAME_llamacpp.json
  record_llamacpp.py tokenize   --bin DIR --model FILE --text FILE

With --check instead of --out the values are recorded again and compared with
the file (its provenance aside): exit status 1 where they differ.
"""

import argparse
import datetime
import hashlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

N_GREEDY = 200  # steps of a continuation, unless --steps says otherwise
N_CTX = 512  # of the perplexity windows
N_TOP = 8

# Five fixed prompts. They are data: changing one means recording anew. They were chosen among
# others because the model does not soon repeat itself after them.
PROMPTS = [
    ("prose",
     "Photosynthesis is the process by which plants turn light into food. It happens in two "
     "stages. In the first,"),
    ("code",
     "#include <stdio.h>\n#include <stdlib.h>\n\n/* Returns the number of primes below n, "
     "using a sieve. */\nstatic int count_primes(int n)\n{\n    char *composite = calloc(n, 1);\n"
     "    int count = 0;\n"),
    ("list",
     "Books of the year, with the author and one sentence on each:\n\n1. \"The Long Thaw\" by I. "
     "Haugen: a family sells its farm.\n2. \"Salt\" by M. Okafor: three sisters and a "
     "shipwreck.\n3."),
    ("dialogue",
     "<|im_start|>system\nYou are a friendly cook.<|im_end|>\n<|im_start|>user\nI've got 3 eggs, "
     "some flour and a lemon. What's for dinner?<|im_end|>\n<|im_start|>assistant\n"),
    ("french",
     "<|im_start|>user\nTraduisez en anglais : « L'été dernier, nous avons dîné près de la "
     "forêt, où le garçon a mangé un gâteau à la crème. »<|im_end|>\n<|im_start|>assistant\n"),
]

PERPLEXITY_METHOD = (
    "The whole text, without its last newline, is tokenized once; %s. The ids are cut into consecutive windows of "
    "n_ctx = 512 that do not overlap; what is left over at the end is dropped. Each window is "
    "evaluated on its own, at positions 0..511, with nothing carried over. Let logits[p] be the "
    "output for position p of a window (it predicts the token at p + 1). Scored are p = 256..510, "
    "that is, the predictions of the tokens at positions 257..511: 255 scores a window (position "
    "256, the first of the second half, is not predicted, and the output for 511 is not used). "
    "nll(p) = log(sum_v exp(logits[p][v])) - logits[p][token[p + 1]]. The perplexity is "
    "exp(sum of all nll / number of scores). chunks[k] is the perplexity over windows 0..k "
    "together, not that of window k alone."
)


PERPLEXITY_BOS = {
    False: "no BOS token is added, because this model's tokenizer.ggml.add_bos_token is false (for "
           "a model where it is true, the first token of every window would be replaced by BOS)",
    True: "BOS is added in front, because this model's tokenizer.ggml.add_bos_token is true, and "
          "takes the place of the first token of every window",
}


class RecordError(Exception):
    """What went wrong, in words for the person who ran the tool."""


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def binary(directory, name):
    path = os.path.join(directory, name)
    if not os.access(path, os.X_OK):
        raise RecordError(f"{directory} has no executable {name}")
    return path


def version_of(path):
    """What the binary prints for --version: 'version: N (commit)' and the compiler."""
    done = subprocess.run([path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False, timeout=60)
    lines = [line.strip() for line in done.stdout.splitlines()]
    kept = [line for line in lines if re.match(r"(version:|built with)", line)]
    if not kept:
        raise RecordError(f"{path} --version prints no version")
    return "; ".join(kept)


def shown(command):
    """The command line as recorded: without the folders, which belong to one machine."""
    return " ".join(os.path.basename(word) if os.sep in word else word for word in command)


def provenance(args, tool, command, extra=None):
    out = {
        "recorded_by": "tools/record_llamacpp.py " + args.action,
        "implementation": "llama.cpp",
        "tool": tool,
        "version": version_of(binary(args.bin, tool)),
        "model_file": os.path.basename(args.model),
        "model_bytes": os.path.getsize(args.model),
        "model_sha256": sha256_of(args.model),
        "command": shown(command),
        "date": args.date or datetime.date.today().isoformat(),
    }
    out.update(extra or {})
    return out


class Server:
    """One llama-server of ours on a free loopback port; ended when the block ends."""

    def __init__(self, bindir, model, threads=1, ctx=2048, attention=("auto", "f16"),
                 more=()):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.flags = ["-c", str(ctx), "-np", "1", "-t", str(threads), "-tb", str(threads),
                      "-fa", attention[0], "-ctk", attention[1], "-ctv", attention[1],
                      "-ngl", "0", "--cache-ram", "0", "--no-warmup", "--no-slots", "-lv", "4",
                      *more]
        self.shown = ["llama-server", "-m", model] + self.flags
        self.command = ([binary(bindir, "llama-server"), "-m", model] + self.flags +
                        ["--host", "127.0.0.1", "--port", str(self.port)])
        self.log = None
        self.process = None

    def __enter__(self):
        self.log = tempfile.TemporaryFile(mode="w+", errors="replace")
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RecordError("llama-server ended:\n" + self.log_text()[-2000:])
            try:
                if self.call("GET", "/health").get("status") == "ok":
                    return self
            except (OSError, RecordError):
                pass
            time.sleep(0.1)
        self.__exit__()
        raise RecordError("llama-server did not become ready in 120 s")

    def __exit__(self, *unused):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()

    def log_text(self):
        self.log.flush()
        self.log.seek(0)
        text = self.log.read()
        self.log.seek(0, os.SEEK_END)
        return text

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise RecordError(f"{path}: status {answer.status}: {text[:300]!r}")
            return json.loads(text)
        finally:
            connection.close()

    def tokenize(self, text, parse_special=True, add_special=True):
        return self.call("POST", "/tokenize", {"content": text, "add_special": add_special,
                                               "parse_special": parse_special})["tokens"]

    def eog_ids(self):
        """The tokens that this build takes for ends of generation, as its log lists them."""
        return sorted({int(n) for n in re.findall(r"EOG token\s*=\s*(\d+)", self.log_text())})


def tokenize_with_tool(bindir, model, text, parse_special=True, bos=True):
    """The ids that llama-tokenize gives, BOS included where the model asks for one."""
    command = [binary(bindir, "llama-tokenize"), "-m", model, "--stdin", "--ids", "--log-disable",
               "--no-escape"]
    if not parse_special:
        command.append("--no-parse-special")
    if not bos:
        command.append("--no-bos")
    done = subprocess.run(command, input=text.encode(), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, check=False, timeout=120)
    match = re.search(rb"^\[([0-9, ]*)\]\s*$", done.stdout, re.MULTILINE)
    if done.returncode != 0 or not match:
        raise RecordError("llama-tokenize failed: " + done.stderr.decode(errors="replace")[-500:])
    return [int(n) for n in match.group(1).split(b",") if n.strip()]


def record_prompt(server, name, text, eog, n_steps):
    """One greedy continuation. Ends of generation are never taken, but the recorded argmax and
    margin are those of the distribution before anything was excluded."""
    prompt_ids = server.tokenize(text)
    answer = server.call("POST", "/completion", {
        "prompt": prompt_ids, "n_predict": n_steps, "temperature": 0.0, "top_k": 1,
        "samplers": ["top_k"], "seed": 1, "ignore_eos": True, "n_probs": N_TOP,
        "post_sampling_probs": False, "return_tokens": True, "cache_prompt": False,
        "stream": False})
    steps = answer["completion_probabilities"]
    ids = answer["tokens"]
    if len(steps) != n_steps or len(ids) != n_steps:
        raise RecordError(f"{name}: {len(steps)} steps in place of {n_steps}")
    if answer.get("tokens_evaluated") != len(prompt_ids):
        raise RecordError(f"{name}: llama-server evaluated {answer.get('tokens_evaluated')} tokens")
    argmax, second, margin = [], [], []
    for i, step in enumerate(steps):
        top = step["top_logprobs"]
        if any(a["logprob"] < b["logprob"] for a, b in zip(top, top[1:])):
            raise RecordError(f"{name}, step {i}: the top tokens are not in order")
        best = next((t["id"] for t in top if t["id"] not in eog), None)
        if step["id"] != ids[i] or best != ids[i]:
            raise RecordError(f"{name}, step {i}: took {ids[i]}, the best other token is {best}")
        argmax.append(top[0]["id"])
        second.append(top[1]["id"])
        margin.append(round(top[0]["logprob"] - top[1]["logprob"], 5))
    return {
        "name": name, "text": text, "prompt_ids": prompt_ids,
        "continuation": answer["content"],
        "ids": ids, "argmax": argmax, "second": second, "margin": margin,
        "eog_argmax_at": [i for i in range(n_steps) if argmax[i] != ids[i]],
    }


def force(server, prompt, taken=None):
    """The top tokens at each step when the recorded ids are fed in place of chosen ones. The
    server keeps the KV of what it has seen, so that each request computes one token. The
    server keeps back a step that ends the generation or a character's first bytes; with `taken`, an
    id of plain text, it takes that one at each step, which the reported logits do not know of."""
    tops = []
    for i in range(len(prompt["ids"])):
        answer = server.call("POST", "/completion", {
            "prompt": prompt["prompt_ids"] + prompt["ids"][:i], "n_predict": 1,
            "temperature": 0.0, "top_k": 1, "samplers": ["top_k"], "seed": 1, "n_probs": N_TOP,
            "post_sampling_probs": False, "return_tokens": True, "cache_prompt": True,
            "logit_bias": [] if taken is None else [[taken, 1000]], "stream": False})
        tops.append([(t["id"], t["logprob"])
                     for t in answer["completion_probabilities"][0]["top_logprobs"]])
    return tops


def lead_of(token, top):
    """The logit of token minus the best other logit; the least it can be if it is not listed."""
    others = max(p for t, p in top if t != token)
    return dict(top).get(token, top[-1][1]) - others


# Other ways in which the same build computes the same thing: the attention kernel, the type of
# the KV cache, how many tokens of the prompt go through at once.
RERUNS = [
    ("-fa off, f16 KV", ("off", "f16"), []),
    ("-fa off, f32 KV", ("off", "f32"), []),
    ("-fa on, f16 KV, prompt in pieces of 4", ("on", "f16"), ["-b", "4", "-ub", "4"]),
]


def record_reruns(args, prompts):
    """Adds margin_low, and says how well the build agrees with itself."""
    agreement = []
    for p in prompts:
        p["margin_low"] = list(p["margin"])
    for name, attention, more in RERUNS:
        n_same, n_above, drift = 0, 0, []
        with Server(args.bin, args.model, args.threads, attention=attention, more=more) as server:
            for p in prompts:
                for i, top in enumerate(force(server, p)):
                    lead = lead_of(p["argmax"][i], top)
                    drift.append(abs(lead - p["margin"][i]))
                    p["margin_low"][i] = round(min(p["margin_low"][i], lead), 5)
                    n_same += lead > 0
                    n_above += lead <= 0 and p["margin"][i] > 0.2
        agreement.append({
            "run": name, "positions": len(drift), "same_argmax": n_same,
            "other_argmax_though_margin_over_0.2": n_above,
            "margin_change_mean": round(sum(drift) / len(drift), 4),
            "margin_change_max": round(max(drift), 4)})
    return agreement


def f32_model(args, folder):
    """The same weights, each at its exact value in F32, as a file in folder."""
    out = os.path.join(folder, "f32.gguf")
    done = subprocess.run([binary(args.bin, "llama-quantize"), "--allow-requantize", args.model,
                           out, "F32"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False, timeout=600)
    if done.returncode != 0:
        raise RecordError("llama-quantize failed:\n" + done.stdout.decode(errors="replace")[-800:])
    return out


def record_f32(args, prompts):
    """Adds f32_argmax, f32_second and f32_margin: neither activations nor KV are rounded. Lowers
    margin_low where this run says so."""
    with tempfile.TemporaryDirectory() as folder:
        with Server(args.bin, f32_model(args, folder), args.threads,
                    attention=("off", "f32")) as server:
            for p in prompts:
                tops = force(server, p)
                p["f32_argmax"] = [top[0][0] for top in tops]
                p["f32_second"] = [top[1][0] for top in tops]
                p["f32_margin"] = [round(top[0][1] - top[1][1], 5) for top in tops]
                p["margin_low"] = [round(min(low, lead_of(token, top)), 5) for low, token, top
                                   in zip(p["margin_low"], p["argmax"], tops)]


def record_greedy(args):
    with Server(args.bin, args.model, threads=args.threads) as server:
        eog = server.eog_ids()
        if not eog:
            raise RecordError("llama-server's log lists no end-of-generation token")
        props = server.call("GET", "/props")
        bos_added = server.tokenize("x") != server.tokenize("x", add_special=False)
        system = re.search(r"system_info: .*?(CPU :.*)", server.log_text())
        prompts = []
        for name, text in PROMPTS:
            prompts.append(record_prompt(server, name, text, set(eog), args.steps))
            by_tool = tokenize_with_tool(args.bin, args.model, text)
            if by_tool != prompts[-1]["prompt_ids"]:
                raise RecordError(f"{name}: llama-tokenize and llama-server disagree on the ids")
        extra = {
            "requests": "POST /completion: prompt as ids, n_predict %d, temperature 0, top_k 1, "
                        "ignore_eos, n_probs %d, post_sampling_probs false, cache_prompt false; "
                        "one request at a time" % (args.steps, N_TOP),
            "cpu_features": system.group(1).strip(" |") if system else None,
            "kv_dtype": "f16", "threads": args.threads,
        }
        source = provenance(args, "llama-server", server.shown, extra)
    agreement = record_reruns(args, prompts)
    record_f32(args, prompts)
    return {
        "provenance": source,
        "meaning": {
            "prompt_ids": "text with special tokens parsed; llama.cpp adds "
                          + ("BOS" if bos_added else "no BOS") + " for this model",
            "ids": f"{args.steps} tokens, each the likeliest that does not end the generation",
            "argmax": "the likeliest token of the unchanged distribution at each step: differs "
                      "from ids only where it ends the generation (eog_argmax_at)",
            "margin": "logit of argmax minus logit of second, of the unchanged distribution",
            "margin_low": "the least lead of argmax over every other token among this run, those "
                          "of self_agreement and the F32 one, all fed the same ids; negative "
                          "where one of them has another argmax",
            "f32_argmax, f32_second, f32_margin": "the same for the same ids, computed by the same "
                      "build on the same weights widened to F32 (llama-quantize "
                      "--allow-requantize), with -fa off and F32 KV: no activation is rounded",
            "teacher_forcing": "feed prompt_ids + ids[:-1]; the output for position "
                               "len(prompt_ids) - 1 + i belongs to argmax[i] and margin[i]",
        },
        "bos_token": props.get("bos_token"), "eos_token": props.get("eos_token"),
        "bos_added": bos_added,
        "eog_ids": eog,
        "self_agreement": agreement,
        "prompts": prompts,
    }


def record_forced(args):
    """A fixture's prompts and greedy ids, fed; neither activations (of an F32 file) nor KV are rounded."""
    with open(args.prompts, encoding="utf-8") as f:
        fixture = json.load(f)["prompts"]
    prompts = []
    with tempfile.TemporaryDirectory() as folder, Server(
            args.bin, f32_model(args, folder) if args.widen else args.model, args.threads, ctx=512,
            attention=("off", "f32"), more=args.more) as server:
        plain = server.tokenize("a", add_special=False)[-1]
        for p in fixture:
            tops = force(server, {"prompt_ids": p["ids"], "ids": p["greedy"]}, plain)
            prompts.append({
                "prompt_ids": p["ids"], "ids": p["greedy"],
                "argmax": [top[0][0] for top in tops],
                "second": [top[1][0] for top in tops],
                "margin": [round(top[0][1] - top[1][1], 5) for top in tops]})
        source = provenance(args, "llama-server", server.shown, {
            "requests": "POST /completion: prompt as ids, n_predict 1, temperature 0, top_k 1, "
                        f"n_probs {N_TOP}, post_sampling_probs false, logit_bias on one id of plain text "
                        "(whose step is reported whatever it is); one at a time",
            "prompts_file": "/".join(os.path.normpath(args.prompts).split(os.sep)[-2:]),
            "kv_dtype": "f32", "threads": args.threads,
            **({"widened": "the file's weights at their exact values in F32: llama-quantize "
                           "--allow-requantize"} if args.widen else {}),
        })
    return {
        "provenance": source,
        "meaning": {
            "argmax, second, margin": "of the logits after prompt_ids + ids[:i]: the likeliest "
                                      "token, the next, and by how much; -fa off and F32 KV",
            "ids": "the greedy ids of the fixture's own reference, fed whatever argmax is",
        },
        "prompts": prompts,
    }


def run_perplexity(args, model, attention):
    """The command, what it printed, the running perplexities, the final one and its error."""
    command = [binary(args.bin, "llama-perplexity"), "-m", model, "-f", args.text,
               "-c", str(N_CTX), "-t", str(args.threads), "-ngl", "0", "--no-escape",
               "-fa", attention[0], "-ctk", attention[1], "-ctv", attention[1]]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False, timeout=3600)
    out = done.stdout.decode(errors="replace")
    final = re.search(r"Final estimate: PPL = ([0-9.]+) \+/- ([0-9.]+)", out)
    chunks = re.findall(r"\[(\d+)\]([0-9.]+),", out)
    if done.returncode != 0 or not final or not chunks:
        raise RecordError("llama-perplexity failed:\n" + out[-2000:])
    if [int(n) for n, _ in chunks] != list(range(1, len(chunks) + 1)):
        raise RecordError("llama-perplexity's windows are not in order")
    return (command, out, [float(value) for _, value in chunks], float(final.group(1)),
            float(final.group(2)))


def record_perplexity(args):
    with open(args.text, "rb") as f:
        text = f.read()
    if not text.endswith(b"\n") or text.endswith(b"\n\n"):
        raise RecordError(f"{args.text} should end with exactly one newline")
    command, out, chunks, value, error = run_perplexity(args, args.model, ("auto", "f16"))
    _, _, _, no_fa, _ = run_perplexity(args, args.model, ("off", "f16"))
    with tempfile.TemporaryDirectory() as folder:
        _, _, f32_chunks, f32_value, _ = run_perplexity(args, f32_model(args, folder),
                                                        ("off", "f32"))
    system = re.search(r"system_info: .*?(CPU :.*)", out)
    ids = tokenize_with_tool(args.bin, args.model, text[:-1].decode())
    bos_added = ids != tokenize_with_tool(args.bin, args.model, text[:-1].decode(), bos=False)
    if len(ids) // N_CTX != len(chunks):
        raise RecordError(f"{len(ids)} tokens, but {len(chunks)} windows of {N_CTX}")
    extra = {
        "text_file": os.path.basename(args.text),
        "text_sha256": hashlib.sha256(text).hexdigest(),
        "cpu_features": system.group(1).strip(" |") if system else None,
        "kv_dtype": "f16", "threads": args.threads,
    }
    return {
        "provenance": provenance(args, "llama-perplexity", ["llama-perplexity"] + command[1:],
                                 extra),
        "method": PERPLEXITY_METHOD % PERPLEXITY_BOS[bos_added],
        "n_ctx": N_CTX,
        "n_tokens": len(ids),
        "ids_sha256": hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest(),
        "ids_sha256_of": "the ids in decimal, joined by commas, no space or newline",
        "n_chunks": len(chunks),
        "n_scored": len(chunks) * (N_CTX - N_CTX // 2 - 1),
        "perplexity": value,
        "standard_error": error,
        "chunks": chunks,
        "perplexity_fa_off": no_fa,
        "f32_perplexity": f32_value,
        "f32_chunks": f32_chunks,
        "f32_meaning": "the same build on the same weights widened to F32 (llama-quantize "
                       "--allow-requantize), with -fa off and F32 KV: no activation is rounded",
    }


def dump(value, indent=0):
    """JSON with one line for each list of numbers."""
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        rows = [f"{pad}{json.dumps(k)}: {dump(v, indent + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(rows) + "\n" + " " * indent + "}"
    if isinstance(value, list) and any(isinstance(v, (dict, list)) for v in value):
        rows = [pad + dump(v, indent + 1) for v in value]
        return "[\n" + ",\n".join(rows) + "\n" + " " * indent + "]"
    return json.dumps(value, separators=(",", ":"))


def finish(args, result):
    if args.check:
        with open(args.check, encoding="utf-8") as f:
            expected = json.load(f)
        result = json.loads(dump(result))
        differing = [key for key in sorted(set(expected) | set(result))
                     if key != "provenance" and expected.get(key) != result.get(key)]
        if expected["provenance"]["model_sha256"] != result["provenance"]["model_sha256"]:
            differing.append("provenance.model_sha256")
        print(f"{args.check}: " + ("differs in " + ", ".join(differing) if differing else "same"))
        return 1 if differing else 0
    with open(args.out, "w", encoding="utf-8") as f:
        f.write(dump(result) + "\n")
    print(f"wrote {args.out}")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0],
                                     epilog="\n".join(__doc__.split("\n")[8:]),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    for name in ("greedy", "perplexity", "forced", "tokenize"):
        action = actions.add_parser(name)
        action.add_argument("--bin", required=True, help="folder of the llama.cpp binaries")
        action.add_argument("--model", required=True, help="GGUF file")
        if name == "forced":
            action.add_argument("--prompts", required=True, help="a fixture's expected.json")
            action.add_argument("--widen", action="store_true", help="compute on the weights widened to F32")
            action.add_argument("--more", type=str.split, default=[],
                                help="for llama-server, as in --more='--yarn-beta-slow 1.03'")
        elif name != "greedy":
            action.add_argument("--text", required=True, help="text file")
        if name == "tokenize":
            action.add_argument("--no-special", action="store_true")
            continue
        action.add_argument("-t", "--threads", type=int, default=1)
        if name == "greedy":
            action.add_argument("--steps", type=int, default=N_GREEDY,
                                help="tokens of a continuation")
        action.add_argument("--date", help="date to record in place of today's")
        where = action.add_mutually_exclusive_group(required=True)
        where.add_argument("--out", help="file to write")
        where.add_argument("--check", help="file to compare with")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *unused: sys.exit(1))  # ends the server on the way out
    try:
        if args.action == "tokenize":
            with open(args.text, encoding="utf-8", newline="") as f:
                print(json.dumps(tokenize_with_tool(args.bin, args.model, f.read(),
                                                    not args.no_special)))
            return 0
        record = {"greedy": record_greedy, "perplexity": record_perplexity, "forced": record_forced}
        return finish(args, record[args.action](args))
    except (RecordError, OSError, subprocess.TimeoutExpired) as error:
        print(f"record_llamacpp.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
