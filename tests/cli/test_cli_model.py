# SPDX-License-Identifier: Apache-2.0
"""The binary over the engine and a tiny Llama: what it prints against an independent implementation (tests/fixtures/llama), and against itself."""
import array
import json
import math
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys

from cli_runner import CliTest, main

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = os.path.join(TESTS, "data", "llama_fixture_bf16.gguf")
FIXTURE = os.path.join(TESTS, "fixtures", "llama")
N_VOCAB, N_CTX = 416, 512
EXACT = ("--act", "f32", "--kv-dtype", "f32")  # the arithmetic that the fixture's tolerance of 2e-4 is for
TOLERANCE = 2e-4


def floats(data):
    values = array.array("f")
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def expected_logits(k):
    with open(os.path.join(FIXTURE, "expected.safetensors"), "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        start = f.tell()
        tensor = header["logits.%d" % k]
        assert tensor["dtype"] == "F32" and tensor["shape"][1] == N_VOCAB
        begin, end = tensor["data_offsets"]
        f.seek(start + begin)
        return floats(f.read(end - begin))


with open(os.path.join(FIXTURE, "expected.json"), encoding="utf-8") as source:
    PROMPTS = json.load(source)["prompts"]


def text_of(ids):
    return ",".join(map(str, ids))


def id_args(lists):
    return [a for ids in lists for a in ("--token-ids", text_of(ids))]


class Reference(CliTest):
    """Against what Transformers computes on the same weights."""

    def logits(self, lists, *args):
        path = self.path("rows")
        result = self.run_cli("logits", "-m", MODEL, *id_args(lists), "-o", path, *args).json
        self.assertEqual((result["n_tokens"], result["n_vocab"], result["hot_allocations"]), ([len(i) for i in lists], N_VOCAB, 0))
        with open(path, "rb") as f:
            return f.read()

    def test_logits(self):
        lists = [p["ids"] + p["greedy"][:-1] for p in PROMPTS]
        self.assertGreaterEqual(len(lists), 2)
        got = floats(self.logits(lists, *EXACT))
        want = array.array("f")
        for k in range(len(lists)):
            want += expected_logits(k)
        self.assertEqual(len(got), len(want))
        self.assertLess(max(abs(a - b) for a, b in zip(got, want)), TOLERANCE)

    def test_rows_do_not_depend_on_how_they_are_run(self):
        lists = [p["ids"] + p["greedy"][:-1] for p in PROMPTS]
        together = self.logits(lists)
        for args in (("--chunk", "1"), ("--chunk", "3", "-t", "2"), ("--max-batch-tokens", "7"), ("--max-seqs", "1"), ("--load", "read")):
            self.assertEqual(self.logits(lists, *args), together, args)
        self.assertEqual(b"".join(self.logits([ids]) for ids in lists), together)

    def test_greedy(self):
        """Up to the first near-tie, after which two implementations may part."""
        many = self.run_cli("complete", "-m", MODEL, *id_args([p["ids"] for p in PROMPTS]), "-n", "32", "--ignore-eos", "--json", *EXACT).json
        compared = 0
        for got, want in zip(many, PROMPTS):
            self.assertEqual((got["prompt_ids"], got["finish_reason"], len(got["ids"])), (want["ids"], "length", 32))
            safe = next((i for i, gap in enumerate(want["gap"]) if gap < 10 * TOLERANCE), 32)
            self.assertEqual(got["ids"][:safe], want["greedy"][:safe])
            compared += safe
        self.assertGreater(compared, 64)

    def test_tokenize(self):
        for p in PROMPTS:
            result = self.run_cli("tokenize", "-m", MODEL, "-p", p["text"], "--json").json
            self.assertEqual(result, {"ids": p["ids"], "n": len(p["ids"])})
            self.assertEqual(self.run_cli("tokenize", "-m", MODEL, "-p", text_of(p["greedy"]), "--decode").out, p["decoded"])

    def test_perplexity(self):
        """From the engine's own logits, by the method as it is written down; windows begin with BOS, which this model adds."""
        text = " ".join(p["text"] for p in PROMPTS) + "\n"
        path = self.path("text", text)
        ids = self.run_cli("tokenize", "-m", MODEL, "-p", text[:-1], "--no-special", "--json").json["ids"]
        n_ctx, values = 16, []
        windows = [ids[k * n_ctx:(k + 1) * n_ctx] for k in range(len(ids) // n_ctx)]
        self.assertGreaterEqual(len(windows), 2)
        for window in windows:
            window[0] = ids[0]
            rows = floats(self.logits([window]))
            for p in range(n_ctx // 2, n_ctx - 1):
                row = rows[p * N_VOCAB:(p + 1) * N_VOCAB]
                top = max(row)
                values.append(top + math.log(math.fsum(math.exp(v - top) for v in row)) - row[window[p + 1]])
        got = self.run_cli("perplexity", "-m", MODEL, "-f", path, "-c", str(n_ctx), "--json").json
        self.assertEqual((got["n_tokens"], got["n_chunks"], got["n_scored"]), (len(ids), len(windows), len(values)))
        self.assertAlmostEqual(got["perplexity"] / math.exp(math.fsum(values) / len(values)), 1, places=7)

    def test_perplexity_of_a_window_as_long_as_the_context(self):
        text = "The water came down the race in the morning. " * 110
        got = self.run_cli("perplexity", "-m", MODEL, "-f", self.path("text", text), "-c", str(N_CTX), "--json").json
        self.assertEqual(got["n_ctx"], N_CTX)
        self.assertEqual(self.run_cli("perplexity", "-m", MODEL, "-f", self.path("text", text), "-c", "0", "--json").json, got)


class Complete(CliTest):
    def complete(self, *args, **more):
        return self.run_cli("complete", "-m", MODEL, *args, **more)

    def test_text_and_json_agree(self):
        """The engine encodes without --json and the command with it; streamed text is the text at the end."""
        for p in PROMPTS:
            plain = self.complete("-p", p["text"], "-n", "24")
            one = self.complete("-p", p["text"], "-n", "24", "--json").json
            self.assertEqual(one["text"].encode(), plain.out_bytes)
            self.assertEqual(one["prompt_ids"], p["ids"])
            self.assertEqual(one["usage"], {"prompt_tokens": len(p["ids"]), "completion_tokens": len(one["ids"])})
            self.assertRegex(plain.err, r"^prefill %d tokens, [0-9.]+ tok/s; decode %d tokens, [0-9.]+ tok/s; load [0-9.]+ s\n$" % (len(p["ids"]), len(one["ids"]) - 1))

    def test_batch_is_the_single_runs(self):
        texts = [p["text"] for p in PROMPTS]
        many = self.complete(*[a for t in texts for a in ("-p", t)], "-n", "16", "--json").json
        alone = [self.complete("-p", t, "-n", "16", "--json").json for t in texts]
        self.assertEqual([(r["ids"], r["text"]) for r in many], [(r["ids"], r["text"]) for r in alone])

    def test_sampling_follows_the_seed(self):
        def ids(*args):
            return self.complete("-p", "water", "-n", "24", "--ignore-eos", "--json", *args).json["ids"]

        first = ids("--temp", "1.5", "--seed", "7")
        self.assertEqual(ids("--temp", "1.5", "--seed", "7", "--chunk", "1", "-t", "2"), first)
        self.assertNotEqual(ids("--temp", "1.5", "--seed", "8"), first)
        greedy = ids()
        self.assertEqual(ids("--temp", "1.5", "--top-k", "1"), greedy)
        self.assertEqual(ids("--temp", "1.5", "--min-p", "1"), greedy)
        self.assertEqual(ids("--temp", "1.5", "--top-p", "1e-9"), greedy)
        self.assertNotEqual(first, greedy)

    def test_nothing_to_generate(self):
        one = self.complete("-p", "water", "-n", "0", "--json").json
        self.assertEqual((one["ids"], one["text"], one["finish_reason"], one["timings"]["ttft_s"]), ([], "", "length", None))
        self.assertGreater(one["timings"]["load_s"], 0)

    def test_context_is_full(self):
        one = self.complete("--token-ids", "2,300,347", "-n", "100", "-c", "20", "--ignore-eos", "--json").json
        self.assertEqual((len(one["ids"]), one["finish_reason"]), (17, "length"))

    def test_refusals(self):
        model = ("complete", "-m", MODEL)
        self.fails(2, "416", *model, "--token-ids", "2,416")
        self.fails(2, "--token-ids: ", *model, "--token-ids", text_of([2] * (N_CTX + 1)))
        self.fails(2, "-p: ", *model, "-p", "", "--no-bos")
        self.fails(2, "-p: ", *model, "-p", "", "--no-bos", "--json")
        self.fails(2, "--ctx", *model, "-p", "a", "-c", str(N_CTX + 1))
        self.fails(3, "--kv-mem", *model, "-p", "a", "--kv-mem", "1")
        self.fails(1, "no-such-file", "complete", "-m", "no-such-file.gguf", "-p", "a")
        self.fails(1, "", "complete", "-m", self.path("broken.gguf", "GGUF and then nothing"), "-p", "a")
        self.assertEqual(self.complete("-p", "", "-n", "1", "--json").json["prompt_ids"], [2])

    def test_device_that_is_not_there(self):
        self.fails(1, "vulkan", "complete", "-m", MODEL, "-p", "a", "--device", "vulkan")

    def test_more_prompts_than_sequences(self):
        lists = [[2, 300 + i] for i in range(30)]
        alone = self.complete(*id_args(lists), "-n", "5", "--ignore-eos", "--json").json
        queued = self.complete(*id_args(lists), "-n", "5", "--ignore-eos", "--json", "--max-seqs", "1").json
        self.assertEqual([r["ids"] for r in queued], [r["ids"] for r in alone])

    def test_verbose_log_is_on_standard_error(self):
        result = self.complete("-p", "water", "-n", "4", "-v")
        self.assertEqual(result.out_bytes, self.complete("-p", "water", "-n", "4").out_bytes)
        self.assertIn("headrace: debug: ", result.err)

    def test_model_sampling(self):
        folder = self.path("sampled")
        shutil.copytree(FIXTURE, folder)

        def write(**values):
            path = os.path.join(folder, "generation_config.json")
            if os.path.exists(path):
                os.remove(path)
            with open(path, "w", encoding="utf-8") as f:
                json.dump(values, f)

        def ids(*args):
            return self.run_cli("complete", "-m", folder, "-p", "water", "-n", "24", "--ignore-eos", "--seed", "3", "--json", *args).json["ids"]

        write(do_sample=True, temperature=3, top_k=40, top_p=0.9, repetition_penalty=1.5)
        said = ids("--temp", "3", "--top-k", "40", "--top-p", "0.9", "--repetition-penalty", "1.5")
        greedy = ids("--repetition-penalty", "1.5")
        self.assertNotEqual(said, greedy)
        self.assertEqual(ids("--model-sampling"), said)
        self.assertEqual(ids("--model-sampling", "--temp", "0"), greedy)
        self.assertEqual(json.loads(self.run_cli("inspect", folder, "--json").out)["sampling"],
                         {"temperature": 3, "top_k": 40, "top_p": 0.9, "min_p": 0, "repetition_penalty": 1.5})
        write(do_sample=True, temperature=3, top_p=0.0)  # a mass of 0 leaves the most likely token
        self.assertEqual(ids("--model-sampling"), ids())
        self.assertEqual(ids("--temp", "3", "--top-p", "0"), ids())
        write(temperature=3)  # who does not ask to sample does not
        self.assertEqual(ids("--model-sampling"), ids())
        write(do_sample=True, temperature=-1, top_p=7)
        self.fails(1, "generation_config.top_p: found 7", "complete", "-m", folder, "-p", "water", "--model-sampling")
        self.assertIn("generation_config.temperature: found -1", self.run_cli("inspect", folder).out)


class Reports(CliTest):
    def test_inspect(self):
        model = self.run_cli("inspect", MODEL, "--json")
        facts = json.loads(model.out)
        self.assertEqual((facts["architecture"], facts["vocabulary"], facts["context"]), ("llama", N_VOCAB, N_CTX))
        tensors = json.loads(self.run_cli("inspect", "-m", MODEL, "--tensors", "--json").out)["tensors"]
        self.assertEqual(len(tensors), facts["tensors"])
        self.assertIn("token_embd.weight", self.run_cli("inspect", MODEL, "--tensors").out)

    def test_inspect_windows_that_are_switched_on(self):
        for family in ("qwen2", "qwen3", "qwen3-moe"):
            for on in (False, True):
                folder = self.path(family + str(on))
                shutil.copytree(os.path.join(TESTS, "fixtures", family), folder)
                path = os.path.join(folder, "config.json")
                with open(path, encoding="utf-8") as f:
                    config = json.load(f)
                config.update(use_sliding_window=on, sliding_window=8, max_window_layers=0)
                config.pop("layer_types", None)
                os.remove(path)
                with open(path, "w", encoding="utf-8") as f:
                    json.dump(config, f)
                caches = json.loads(self.run_cli("inspect", folder, "--json").out)["caches"]
                self.assertEqual([(c["kind"], c["window"]) for c in caches], [("window", 8) if on else ("full", 0)], family)

    def test_inspect_counts_memory(self):
        facts = json.loads(self.run_cli("inspect", MODEL, "--json").out)
        memory = facts["memory_bytes"]
        self.assertEqual(memory["total"], sum(n for k, n in memory.items() if k not in ("total", "mapped")))
        self.assertGreaterEqual(memory["mapped"], facts["weight_bytes"])
        self.assertEqual(facts["caches"], [{"kind": "full", "layers": 3, "kv_heads": 2, "head_dim": 16, "window": 0}])
        self.assertEqual(facts["kv_bytes_per_token"], 2 * 3 * 2 * 16 * 2)  # keys and values, layers, heads, width, 16 bits
        folder = json.loads(self.run_cli("inspect", os.path.join(TESTS, "fixtures", "gemma4-ple"), "--json").out)
        self.assertEqual([(c["kind"], c["layers"], c["head_dim"], c["window"]) for c in folder["caches"]], [("window", 2, 16, 8), ("full", 1, 32, 0)])
        self.assertEqual((folder["layers_sharing"], folder["head"], folder["chat_template"]), (3, "the embedding table", "present"))
        text = self.run_cli("inspect", MODEL).out
        for line in ("cache                3 layers, full, 2 heads of 16\n", "total ", "mapped "):
            self.assertIn(line, text)

    def test_an_answer_keeps_the_space_it_begins_with(self):
        """Tokenizers of the first Llama and Mistral strip a space from the beginning of a text; an answer goes on after its prompt."""
        fixture = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "mistral")
        model = self.path("strips")
        shutil.copytree(fixture, model)
        with open(os.path.join(model, "tokenizer.json"), encoding="utf-8") as f:
            tokenizer = json.load(f)
        tokenizer["decoder"]["decoders"].append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        with open(os.path.join(model, "tokenizer.json"), "w", encoding="utf-8") as f:
            json.dump(tokenizer, f)
        prompts = [a for i in range(3, 403, 4) for a in ("--token-ids", "%d,%d,%d" % (i, i + 1, i + 2))]
        run = (*prompts, "-n", "4", "--json")
        plain = [r["text"] for r in self.run_cli("complete", "-m", fixture, *run).json]
        self.assertTrue(any(text.startswith(" ") for text in plain))
        self.assertEqual([r["text"] for r in self.run_cli("complete", "-m", model, *run).json], plain)
        self.assertEqual(self.run_cli("tokenize", "-m", model, "-p", " a").out, self.run_cli("tokenize", "-m", fixture, "-p", " a").out)

    def test_pages_are_a_quarter_at_most(self):
        def pages(*args, code=0):
            return json.loads(self.run_cli("plan", "-m", MODEL, "--max-seqs", "64", "--json", *args, code=code).out)["memory_bytes"]["kv"]

        whole = pages()
        self.assertEqual(pages("--machine", "mem_total=1G"), whole)
        quarter = pages("--machine", "mem_total=20M", code=3)  # the rest does not fit beside them; the plan is there all the same
        self.assertLess(quarter, whole // 2)
        self.assertTrue(0 <= quarter - (5 << 20) < 64 << 10, quarter)  # and what alignment takes

    def test_kernels(self):
        rows = json.loads(self.run_cli("inspect", "--kernels", "--json").out)["kernels"]
        self.assertGreater(len(rows), 10)
        self.assertEqual(json.loads(self.run_cli("inspect", MODEL, "--kernels", "--json").out)["kernels"], rows)

    def test_doctor(self):
        facts = json.loads(self.run_cli("doctor", "--json").out)
        self.assertGreaterEqual(facts["cores"], 1)
        self.assertTrue(facts["io_uring"] == "yes" or "no io_uring" in facts["io_uring"])
        self.assertIn(facts["processor"], self.run_cli("doctor").out)
        self.assertEqual(facts["compute_threads"], facts["cores"])
        self.assertEqual(json.loads(self.run_cli("doctor", "-t", "7", "--json").out)["compute_threads"], 7)
        for key in ("memory_total", "memory_available", "cgroup_limit", "memlock_limit"):  # a number of bytes, or null where there is none
            self.assertIn(type(facts[key]), (int, type(None)), key)
        backends = {b["name"]: b for b in facts["backends"]}
        self.assertEqual(backends["cpu"], {"name": "cpu", "library": None, "why_not": None})
        cpu = facts["devices"][0]
        self.assertEqual((cpu["name"], cpu["why_not"], cpu["memory_total"]), ("cpu:0", None, facts["memory_total"]))
        rows = json.loads(self.run_cli("inspect", "--kernels", "--json").out)["kernels"]
        self.assertEqual((cpu["rows"], cpu["rows_left_out"]), (sum(k["backend"] == "cpu" for k in rows), 0))
        self.assertIn("host-addressable", cpu["properties"])
        for b in facts["backends"]:  # one that is not usable says why and has no devices
            self.assertNotEqual(b["why_not"] is None, not any(d["name"].startswith(b["name"] + ":") for d in facts["devices"]), b)


class Bench(CliTest):
    def test_bench(self):
        got = self.run_cli("bench", "-m", MODEL, "-p", "24", "-n", "8", "--seqs", "1,3", "-r", "2", "-t", "2", "--json").json
        self.assertEqual((got["threads"], len(got["runs"])), (2, 2))
        for r in got["runs"]:
            for key in ("prefill_tokens_per_s", "decode_tokens_per_s"):
                self.assertTrue(0 < r[key]["min"] <= r[key]["median"] <= r[key]["max"])
            self.assertGreater(r["bandwidth_share"], 0)
        # One sequence reads all weights a token; of three, each reads a third, and its own keys and values.
        info = json.loads(self.run_cli("inspect", MODEL, "--json").out)
        one, three = (r["bytes_per_token"] for r in got["runs"])
        self.assertGreater(one, three)
        self.assertLess(one, info["weight_bytes"] * 1.5)


class MakeModel(CliTest):
    """A random mixture of experts: what is in the file, and that where tokens go is skewed as was asked."""

    def make(self, name, *args):
        path = self.path(name)
        shape = () if "--shape" in args else ("--shape", "tiny")
        return path, self.run_cli("make-model", *shape, "-o", path, "--json", *args).json

    def distinct(self, path):
        ids = ",".join(str(300 + i) for i in range(64))
        return self.run_cli("complete", "-m", path, "--token-ids", ids, "-n", "1", "--json").json["experts"]

    def test_safetensors(self):
        for dtype, element, per_expert in (("bf16", "BF16", 3), ("fp8", "F8_E4M3", 6)):
            path, made = self.make(dtype, "--dtype", dtype, "--layers", "2")
            with open(os.path.join(path, "model.safetensors"), "rb") as f:
                header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            experts = {k: v for k, v in header.items() if ".experts." in k}
            self.assertEqual(len(experts), 2 * 32 * per_expert)
            one = experts["model.layers.1.mlp.experts.31.down_proj.weight"]
            self.assertEqual((one["dtype"], one["shape"]), (element, [256, 128]))
            self.assertEqual(sum(v["data_offsets"][1] - v["data_offsets"][0] for v in experts.values()), made["expert_bytes"])
            self.assertEqual(os.path.getsize(os.path.join(path, "model.safetensors")), made["bytes"])
            self.assertEqual([n for n in os.listdir(path) if n.endswith(".partial")], [])
            self.assertEqual(self.distinct(path)["total"], 64)

    def test_gguf(self):
        for dtype, block in (("q4_0", 18), ("mxfp4", 17)):
            path, made = self.make(dtype, "--dtype", dtype, "--layers", "2")
            self.assertEqual(made["expert_bytes"], 2 * 32 * 3 * 256 * 128 // 32 * block)
            self.assertEqual(os.path.getsize(path), made["bytes"])
            self.assertEqual(self.run_cli("tokenize", "-m", path, "-p", "a w", "--json").json["ids"], [97, 256])  # ids of bytes are the bytes
            self.assertEqual(self.distinct(path)["total"], 64)

    def test_gemma(self):
        """Two kinds of layers, an MLP beside the experts, gate and up of an expert in one matrix: in both containers, with the skew that was asked for."""
        for dtype, block in (("q4_0", 18), ("mxfp4", 17), ("bf16", 64), ("fp8", None)):
            path, made = self.make("gemma-" + dtype, "--shape", "tiny-gemma", "--dtype", dtype, "--skew", "6")
            if block is not None:
                self.assertEqual(made["expert_bytes"], 6 * 32 * 3 * 256 * 128 // 32 * block)
            self.assertEqual(self.run_cli("tokenize", "-m", path, "-p", "a w", "--json").json["ids"], [97, 256])
            experts = self.distinct(path)
            self.assertEqual(experts["total"], 6 * 32)
            self.assertLess(experts["distinct"], 90)
            streamed = self.run_cli("complete", "-m", path, "--token-ids", "300,301,302", "-n", "2", "--json", "--experts", "stream", "--host-experts", "min").json["experts"]
            self.assertGreater(streamed["misses"], 0)

    def test_gpt_oss(self):
        """Biases and sinks, every other layer with a window."""
        for dtype, block in (("q4_0", 18), ("mxfp4", 17)):
            path, made = self.make("gpt-oss-" + dtype, "--shape", "tiny-gpt-oss", "--dtype", dtype, "--skew", "6")
            self.assertEqual(made["expert_bytes"], 4 * 32 * (3 * 192 * 128 // 32 * block + (128 + 128 + 192) * 4))
            experts = self.distinct(path)
            self.assertEqual(experts["total"], 4 * 32)
            self.assertLess(experts["distinct"], 60)
        self.fails(1, "is not written as safetensors", "make-model", "--shape", "tiny-gpt-oss", "--dtype", "bf16", "-o", self.path("x"))

    def test_same_seed_same_model(self):
        data = []
        for name, seed in (("a", "7"), ("b", "7"), ("c", "8")):
            with open(self.make(name, "--seed", seed, "--layers", "1")[0], "rb") as f:
                data.append(f.read())
        self.assertEqual(data[0], data[1])
        self.assertNotEqual(data[0], data[2])

    def test_skew(self):
        even, steep = (self.distinct(self.make("skew" + s, "--skew", s)[0]) for s in ("0", "6"))
        self.assertEqual(even["total"], 128)
        self.assertGreater(even["distinct"], 120)   # 64 tokens take 4 of 32 at random: all but a few
        self.assertLess(steep["distinct"], 60)      # ranks fall as r^-6

    def records(self, path):
        with open(path, "rb") as f:
            data = f.read()
        self.assertEqual((data[:8], struct.unpack("<3I", data[8:20])), (b"HRROUTE1", (4, 32, 4)))
        words, at, out = array.array("H", data[20:]), 0, []
        while at < len(words):
            layer, rows = words[at : at + 2]
            out.append((layer, rows, tuple(words[at + 2 : at + 2 + rows * 4])))
            at += 2 + rows * 4
        return out

    def test_routing_is_recorded_and_replayed(self):
        path = self.make("routed")[0]
        first, again, forced = self.path("first"), self.path("again"), self.path("forced")
        run = ("complete", "-m", path, "--token-ids", "300,301,302", "-n", "6", "--ignore-eos")
        text = self.run_cli(*run, "--record-routing", first).out
        self.assertEqual(self.run_cli(*run, "--experts", "stream", "--host-experts", "min", "--record-routing", again).out, text)
        records = self.records(first)
        self.assertEqual(records, self.records(again))  # the tier changes no choice
        self.assertEqual([(layer, rows) for layer, rows, _ in records], [(layer, 3 if step == 0 else 1) for step in range(6) for layer in range(4)])
        # a routing that no router chose: expert s of step s, and the three behind it
        with open(forced, "wb") as f:
            f.write(b"HRROUTE1" + struct.pack("<3I", 4, 32, 4))
            for step in range(8):
                for layer in range(4):
                    f.write(struct.pack("<6H", layer, 1, *((step * 4 + i) % 32 for i in range(4))))
        bench = self.run_cli("bench", "-m", path, "-p", "1", "-n", "20", "-r", "1", "--replay", forced, "--record-routing", again, "--json").json
        self.assertGreater(bench["runs"][0]["decode_tokens_per_s"]["median"], 0)
        for layer in range(4):  # every row of every run, the warm-up included, is the trace's next
            rows = [ids[i : i + 4] for n, _, ids in self.records(again) if n == layer for i in range(0, len(ids), 4)]
            self.assertEqual(rows, [tuple((r % 8 * 4 + i) % 32 for i in range(4)) for r in range(len(rows))])
        speeds = ("--disk-bw", "1G", "--mem-bw", "2G", "--disk-latency", "300")
        plan = json.loads(self.run_cli("plan", "-m", path, "--replay", forced, *speeds, "--json").out)["replay"]
        self.assertEqual((plan["steps"], plan["rows"], plan["distinct"], plan["overlap"]), (8, 8, 128, 0))
        for b in plan["budgets"]:  # nothing is taken twice
            self.assertEqual([b[p]["misses"] for p in ("lru", "decay", "quota", "blend", "belady")], [128] * 5)
        experts = 16 * 3 * 256 * 128 // 32 * 18  # bytes that a token takes
        dense = json.loads(self.run_cli("plan", "-m", path, "--json").out)["weight_bytes_per_token"] - experts
        # a layer: the longer of its four reads, after the latency, and three products; then the last product
        product = experts / 16 / (2 << 30)
        layer = max(300e-6 + experts / 4 / (1 << 30), 3 * product) + product
        cold, warm = 1 / (dense / (2 << 30) + 4 * layer), 1 / (dense / (2 << 30) + 16 * product)
        for b in plan["budgets"]:
            self.assertAlmostEqual(b["steps_per_s"], cold, delta=0.01)
            self.assertEqual(b["bytes_per_step"], experts)
        everything = plan["budgets"][-1]
        self.assertEqual((everything["slots"], everything["warm_bytes_per_step"]), (128, 0))
        self.assertAlmostEqual(everything["warm_steps_per_s"], warm, delta=0.01)
        self.assertAlmostEqual(plan["budgets"][0]["warm_steps_per_s"], cold, delta=0.01)  # four slots: nothing comes back in time
        plain = json.loads(self.run_cli("plan", "-m", path, "--replay", forced, "--disk-bw", "1G", "--json").out)["replay"]["budgets"][0]
        self.assertAlmostEqual(plain["steps_per_s"], (1 << 30) / experts, delta=0.01)  # products in no time, reads at once
        self.assertIsNone(json.loads(self.run_cli("plan", "-m", path, "--replay", forced, "--json").out)["replay"]["budgets"][0]["steps_per_s"])
        self.fails(2, "is of 4 layers of 32 experts", "bench", "-m", self.make("other", "--layers", "2")[0], "--replay", forced)
        self.fails(2, "has no experts", "complete", "-m", MODEL, "-p", "a", "--record-routing", first)

    def test_made_traces(self):
        tool = os.path.join(os.path.dirname(TESTS), "tools", "make_trace.py")
        for name, args, low, high in (("kept", ("--persistence", "1"), 1, 1), ("even", ("--persistence", "0", "--skew", "0"), 0.10, 0.15), ("half", ("--persistence", "0.5", "--skew", "0"), 0.52, 0.60)):
            path = self.path(name)
            subprocess.run((sys.executable, "-B", tool, "-o", path, "--layers", "4", "--experts", "32", "--top-k", "4", "--tokens", "300", *args), check=True, stdout=subprocess.DEVNULL)
            replay = json.loads(self.run_cli("plan", "-m", self.make(name + "-model")[0], "--replay", path, "--json").out)["replay"]
            self.assertEqual((replay["steps"], replay["rows"]), (300, 300))
            self.assertTrue(low <= replay["overlap"] <= high, replay["overlap"])  # a share p stays, and of the rest some come again
            self.assertEqual(replay["distinct"], 16 if name == "kept" else 128)

    def test_packed(self):
        path, bank = self.make("packed")[0], self.path("bank")
        run = ("complete", "-m", path, "--token-ids", "300,301", "-n", "8", "--ignore-eos")
        made = self.run_cli("pack", "-m", path, "-o", bank, "--json").json
        self.assertEqual((made["records"], made["resumed"], made["bytes"]), (128, 0, os.path.getsize(bank)))
        got = self.run_cli(*run, "--experts", "stream", "--host-experts", "min", "--expert-bank", bank)
        self.assertEqual(got.out, self.run_cli(*run, "--experts", "resident").out)
        with open(bank, "r+b") as f:  # every record is damaged in one byte
            for i in range(128):
                f.seek(made["bytes"] * (i + 1) // 128 - 9000)
                byte = f.read(1)[0]
                f.seek(-1, os.SEEK_CUR)
                f.write(bytes((byte ^ 1,)))
        self.fails(1, "is damaged: expected checksum", *run, "--experts", "stream", "--host-experts", "min", "--expert-bank", bank)
        self.fails(1, "packed from another checkpoint", "complete", "-m", self.make("twin", "--layers", "3")[0], "-p", "a", "--expert-bank", bank)
        self.fails(2, "has no experts", "pack", "-m", MODEL, "-o", bank)
        self.fails(2, "use -o PATH", "pack", "-m", path)
        gone = {"HEADRACE_EXPERT_BANK": self.path("gone")}  # a variable is there for every command: only those that read from the bank need it
        for command in (("inspect", path), ("inspect", path, "--tensors"), ("tokenize", "-m", path, "-p", "a"), ("pack", "-m", path, "-o", self.path("again"))):
            self.run_cli(*command, env=gone)
        for command in (run, ("plan", "-m", path)):
            self.assertIn("gone", self.run_cli(*command, env=gone, code=1).err)

    def test_mem(self):
        path = self.make("mem")[0]
        plan = ("plan", "-m", path, "-c", "64", "--max-seqs", "1", "--json")
        least = json.loads(self.run_cli(*plan, "--experts", "stream", "--host-experts", "min").out)["memory_bytes"]["total"]
        got = json.loads(self.run_cli(*plan, "--mem", str(least)).out)
        self.assertEqual((got["experts"]["tier"], got["experts"]["slots"]), ("stream", got["experts"]["min_slots"]))
        self.assertEqual(json.loads(self.run_cli(*plan, "--mem", "1G").out)["experts"]["tier"], "resident")
        self.fails(3, "that --mem allows", "complete", "-m", path, "-c", "64", "-p", "a", "--mem", str(least - 1))
        self.run_cli("complete", "-m", path, "-c", "64", "-p", "a", "-n", "2", "--mem", str(least))

    def test_refusals(self):
        self.fails(2, "use -o PATH", "make-model", "--shape", "tiny")
        self.fails(2, "no shape given", "make-model", "-o", self.path("x"))
        self.fails(2, "out of range", "make-model", "--shape", "tiny", "--n-experts", "2", "-o", self.path("x"))
        self.fails(1, "No such file", "make-model", "--shape", "tiny", "-o", self.path("no/such/x"))
        self.fails(2, "empty name", "make-model", "--shape", "tiny", "-o", "")
        self.fails(2, "is a directory", "make-model", "--shape", "tiny", "-o", self.path("."))
        pipe = self.path("pipe")  # as good as /dev/null, which a rename would take the place of
        os.mkfifo(pipe)
        self.fails(2, "is a device, pipe or socket", "make-model", "--shape", "tiny", "-o", pipe)
        self.assertFalse(os.path.isfile(pipe))
        self.assertFalse(os.path.exists(pipe + ".partial"))

        def nearly_full():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))

        for name, args in (("full.gguf", ()), ("full", ("--dtype", "bf16"))):  # what was written of it is taken away
            path = self.path(name)
            self.fails(1, "File too large", "make-model", "--shape", "tiny", *args, "-o", path, preexec_fn=nearly_full)
            left = [f for _, _, files in os.walk(os.path.dirname(path)) for f in files if f.endswith(".partial")]
            self.assertEqual(left, [])


if __name__ == "__main__":
    main(sys.modules["__main__"])
