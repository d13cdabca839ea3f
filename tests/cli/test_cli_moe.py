# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts from the command line: damaged checkpoints of every architecture, what plan and complete say of experts, methods of quantisation that are refused."""
import json
import os
import resource
import shutil
import signal
import struct
import sys

from cli_runner import CliTest, main
from moe_checkpoint import Gguf, GgufParts, Headers, TESTS, fixture

FIXTURES = ("gemma4-moe", "gemma4-moe-fp8", "qwen3-moe", "qwen3-moe-fp8-block", "mixtral", "olmoe", "gpt-oss", "gpt-oss-mxfp4", "deepseek-v3", "glm4-moe", "qwen3_5-moe")
GGUFS = {"mixtral": "llama", "qwen3-moe": "qwen3moe", "olmoe": "olmoe", "gpt-oss": "gpt-oss", "glm4-moe": "glm4moe", "deepseek-v3": "deepseek2", "qwen3_5-moe": "qwen35moe", "gemma4-moe": "gemma4"}
TOP_K = ("num_experts_per_tok", "top_k_experts", "experts_per_token")
COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


# Each takes headers, damages them, and returns what the refusal has to say; None where the fixture has no such thing.


def a_missing_expert(h):
    """The last expert of the last layer with experts, or the whole stack."""
    name = h.of_layer(h.expert_layer(), r"\.experts\..*(down|w2|up)")[-1]
    owner = name.removesuffix("_scale_inv").removesuffix("_scale").removesuffix("_bias").removesuffix("_scales").removesuffix("_blocks")
    for name in (owner, owner + "_blocks", owner + "_scales"):
        h.tensors.pop(name, None)
    return owner


def expert_seven_of_layer_two(h):
    names = h.of_layer(2, r"\.experts\.7\..*(down|w2).*weight$")
    if not names:
        return None
    del h.tensors[names[0]]
    return names[0] + ": missing"


def all_experts_missing(h):
    layer = h.expert_layer()
    for name in h.of_layer(layer, r"\.experts\."):
        del h.tensors[name]
    return ".layers.%d." % layer


def a_scale_of_another_shape(h):
    names = h.of_layer(h.expert_layer(), r"\.experts\..*(_scale|_scale_inv|_scales)$")
    if not names:
        return None
    dtype, shape = h.tensors[names[-1]]
    h.tensors[names[-1]] = (dtype, shape[:-1] + [shape[-1] + 1])
    return names[-1]


def no_scales(h):
    names = h.of_layer(h.expert_layer(), r"\.experts\..*(_scale|_scale_inv|_scales)$")
    if not names:
        return None
    del h.tensors[names[-1]]
    return names[-1].replace("_scale_inv", "").replace("_scales", "_blocks").replace("_scale", "")


def one_scale_for_a_matrix_whose_neighbours_have_many(h):
    names = h.of_layer(h.expert_layer(), r"\.experts\.\d.*(_scale|_scale_inv)$")
    if not names:
        return None
    dtype, _ = h.tensors[names[-1]]
    h.tensors[names[-1]] = (dtype, [1])
    return names[-1]


def many_scales_beside_one_for_a_matrix(h):
    names = h.of_layer(h.expert_layer(), r"\.experts\.\d.*(_scale|_scale_inv)$")
    if not names:
        return None
    dtype, _ = h.tensors[names[0]]
    h.tensors[names[0]] = (dtype, [1])
    return names[0]


def another_type_within_a_layer(h):
    names = h.of_layer(h.expert_layer(), r"\.experts\.\d+\..*weight$")
    if not names:
        return None
    h.tensors[names[-1]] = ("F32" if h.tensors[names[-1]][0] == "BF16" else "BF16", h.tensors[names[-1]][1])
    return names[-1]


def a_type_that_is_none(h):
    name = h.of_layer(h.expert_layer(), r"\.experts\..*(down|w2)")[-1]
    if h.tensors[name][0] != "BF16":
        return None
    h.tensors[name] = ("I64", h.tensors[name][1])
    return name


def one_expert_more_than_counted(h):
    layer = h.expert_layer()
    stacks = [n for n in h.of_layer(layer, r"\.experts\.[a-z]") if "bias" not in n]
    if stacks:
        dtype, shape = h.tensors[stacks[-1]]
        h.tensors[stacks[-1]] = (dtype, [shape[0] + 1] + shape[1:])
        return stacks[-1]
    last = [n for n in h.of_layer(layer, r"\.experts\.\d+\..*weight$")][-1]
    number = last.split(".experts.")[1].split(".")[0]
    more = last.replace(".experts.%s." % number, ".experts.%d." % (int(number) + 1))
    h.tensors[more] = h.tensors[last]
    return more


def gate_and_up_both_fused_and_apart(h):
    layer = h.expert_layer()
    apart = [n for n in h.of_layer(layer, r"\.experts\.0\.(gate_proj|w1)\.weight$")]
    if not apart or "weight_scale" in " ".join(h.tensors):
        return None
    n_experts = next(h.config[c] for c in COUNTS if c in h.config)
    dtype, (ff, embd) = h.tensors[apart[0]]
    fused = apart[0].split(".experts.")[0] + ".experts.gate_up_proj"
    h.tensors[fused] = (dtype, [n_experts, 2 * ff, embd])
    return fused


def a_router_of_another_shape(h):
    layer = h.expert_layer()
    name = (h.of_layer(layer, r"(gate|router|router\.proj)\.weight$"))[0]
    dtype, shape = h.tensors[name]
    h.tensors[name] = (dtype, [shape[0] - 1, shape[1]])
    return name


def a_shard_cut_short(h):
    h.short_by = 1
    return "model.safetensors"


def more_chosen_than_there_are(h):
    for key in TOP_K:
        if key in h.config:
            h.config[key] = next(h.config[c] for c in COUNTS if c in h.config) + 1
    return "num_experts_per_tok"


def none_chosen(h):
    for key in TOP_K:
        if key in h.config:
            h.config[key] = 0
    return "num_experts_per_tok"


def no_experts_counted(h):
    for key in COUNTS:
        if key in h.config:
            h.config[key] = 0
    return "experts"


def experts_counted_in_words(h):
    key = next(c for c in COUNTS if c in h.config)
    h.config[key] = "many"
    return key


def far_more_experts_than_tensors(h):
    for key in COUNTS:
        if key in h.config:
            h.config[key] = 65536
    return ".layers."


def experts_beyond_any_count(h):
    key = next(c for c in COUNTS if c in h.config)
    h.config[key] = 1 << 62
    return key


def experts_of_no_width(h):
    keys = [k for k in ("moe_intermediate_size", "expert_intermediate_size") if k in h.config] or ["intermediate_size"]
    h.config[keys[0]] = 0
    return keys[0]


def experts_of_any_width(h):
    keys = [k for k in ("moe_intermediate_size", "expert_intermediate_size") if k in h.config] or ["intermediate_size"]
    h.config[keys[0]] = 1 << 24
    return ".layers."


def a_product_that_overflows(h):
    name = h.of_layer(h.expert_layer(), r"\.experts\..*(down|w2)")[-1]
    h.tensors[name] = (h.tensors[name][0], [1 << 31, 1 << 31, 1 << 31])
    return name


def groups_that_do_not_divide(h):
    if "n_group" not in h.config:
        return None
    h.config["n_group"] = 3
    return "n_group"


def no_group_chosen(h):
    if "topk_group" not in h.config:
        return None
    h.config["topk_group"] = 0
    return "topk_group"


def more_groups_than_there_are(h):
    if h.config.get("n_group", 0) < 2:
        return None
    h.config["topk_group"] = h.config["n_group"] + 1
    return "topk_group"


def groups_of_one_whose_two_best_count(h):
    if "n_group" not in h.config:
        return None
    h.config["n_group"] = h.config["topk_group"] = next(h.config[c] for c in COUNTS if c in h.config)
    return "n_group"


DAMAGE = (a_missing_expert, expert_seven_of_layer_two, all_experts_missing, a_scale_of_another_shape, no_scales, one_scale_for_a_matrix_whose_neighbours_have_many,
          many_scales_beside_one_for_a_matrix, another_type_within_a_layer, a_type_that_is_none, one_expert_more_than_counted, gate_and_up_both_fused_and_apart, a_router_of_another_shape, a_shard_cut_short,
          more_chosen_than_there_are, none_chosen, no_experts_counted, experts_counted_in_words, far_more_experts_than_tensors, experts_beyond_any_count, experts_of_no_width,
          experts_of_any_width, a_product_that_overflows, groups_that_do_not_divide, no_group_chosen, more_groups_than_there_are, groups_of_one_whose_two_best_count)


class MoeTest(CliTest):
    def plan_json(self, *args):
        return json.loads(self.run_cli("plan", "--json", *args).out)


class Damaged(CliTest):
    def refused(self, what, *args):
        """Not done, not a crash, and the text names it."""
        result = self.run_cli(*args, code=1)
        self.assertIn(what, result.err)

    def test_headers_alone_are_accepted(self):
        """What is damaged below is whole to begin with."""
        for name in FIXTURES:
            with self.subTest(fixture=name):
                self.run_cli("plan", "-m", Headers(name).write(self.path(name)))

    def test_every_damage_to_every_architecture(self):
        n_cases, by_damage = 0, {}
        for damage in DAMAGE:
            for name in FIXTURES:
                with self.subTest(fixture=name, damage=damage.__name__):
                    h = Headers(name)
                    what = damage(h)
                    if what is None:
                        continue
                    self.refused(what, "plan", "-m", h.write(self.path("%s-%s" % (name, damage.__name__))))
                    n_cases += 1
                    by_damage[damage.__name__] = by_damage.get(damage.__name__, 0) + 1
        self.assertEqual(len(by_damage), len(DAMAGE), "a damage that no fixture has")
        self.assertGreater(n_cases, 15 * len(FIXTURES))

    def test_every_damage_to_a_gguf(self):
        n_cases = 0
        for name, arch in GGUFS.items():
            blk = "blk.%d." % (2 if name != "gemma4-moe" else 3)

            def keys(key, value, text):
                return lambda g: (g.set_key("%s.%s" % (arch, key), value), text)[1]

            def size(tensor, i, value):
                return lambda g: (g.set_dimension(blk + tensor, i, value), blk + tensor)[1]

            def gone(tensor):
                return lambda g: (g.hide(blk + tensor), blk + tensor)[1]

            damages = [keys("expert_used_count", 99, "expert_used_count"), keys("expert_used_count", 0, "expert_used_count"), keys("expert_count", 65536, blk[:4]),
                       keys("expert_count", 1 << 31, "expert_count"), keys("attention.head_count", 0, "attention.head_count"),
                       size("ffn_down_exps.weight", 2, 9), size("ffn_down_exps.weight", 2, 0), size("ffn_down_exps.weight", 0, 1 << 62), size("ffn_gate_inp.weight", 1, 3),
                       gone("ffn_down_exps.weight"), gone("ffn_gate_inp.weight")]
            if name != "gemma4-moe":
                damages += [gone("ffn_gate_exps.weight"), gone("ffn_up_exps.weight")]
            if name == "deepseek-v3":
                damages += [keys("expert_group_count", 3, "expert_group_count"), keys("expert_group_used_count", 0, "expert_group_used_count"),
                            keys("expert_group_used_count", 3, "expert_group_used_count"), keys("expert_gating_func", 4, "expert_gating_func"),
                            keys("attention.key_length_mla", 8, "attention.key_length"), keys("attention.kv_lora_rank", 25, blk[:4]), gone("attn_k_b.weight"), gone("attn_v_b.weight")]
            if name == "glm4-moe":
                damages += [keys("expert_gating_func", 1, "expert_gating_func"), keys("leading_dense_block_count", 0, "blk.0.")]
            if name == "qwen3_5-moe":
                damages += [keys("ssm.inner_size", 65, "ssm.inner_size"), keys("ssm.group_count", 3, "key heads"), keys("ssm.time_step_rank", 0, "ssm.time_step_rank")]
            for i, damage in enumerate(damages):
                with self.subTest(gguf=name, damage=i):
                    g = Gguf(name + "_fixture_bf16.gguf")
                    what = damage(g)
                    self.refused(what, "plan", "-m", g.write(self.path("damaged.gguf")))
                    n_cases += 1
        self.assertGreater(n_cases, 11 * len(GGUFS))


class Quantised(CliTest):
    METHODS = ({"quant_method": "awq", "bits": 4}, {"quant_method": "gptq", "bits": 4}, {"quant_method": "nvfp4"}, {"quant_method": "modelopt", "quant_algo": "NVFP4"},
               {"quant_method": "bitsandbytes", "load_in_4bit": True}, {"quant_method": "hqq"},
               {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}})

    def test_methods_that_are_not_implemented(self):
        for name in FIXTURES:
            for method in self.METHODS:
                with self.subTest(fixture=name, method=method["quant_method"]):
                    h = Headers(name)
                    h.config["quantization_config"] = method
                    result = self.run_cli("plan", "-m", h.write(self.path(name)), code=1)
                    self.assertIn("\"%s\"" % method["quant_method"] if method["quant_method"] != "compressed-tensors" else "compressed-tensors weights of 4 bits", result.err)
                    self.assertIn("not implemented", result.err)


class LatentUpProjection(CliTest):
    """DeepSeek's kv_b in FP8 gives the bits of the same numbers in F32: it is used by heads, which its blocks of scales do not follow."""
    BLOCK_N, BLOCK_K = 24, 16
    IDS = "2,262,283,83,402,412,391,358"

    @staticmethod
    def e4m3(code):
        """The value of a code; 127 and 255 are NaN."""
        e, m = code >> 3 & 15, code & 7
        value = m * 2.0 ** -9 if e == 0 else (8 + m) * 2.0 ** (e - 10)
        return -value if code & 128 else value

    def folders(self):
        """Two of them: FP8 with a scale for each block, partial ones included, and the products in F32."""
        codes, wide = {}, {}
        for name, (_, (rows, cols)) in [(n, t) for n, t in self.h.tensors.items() if n.endswith("kv_b_proj.weight")]:
            n_scales = -(-rows // self.BLOCK_N) * -(-cols // self.BLOCK_K)
            scales = [struct.unpack("<f", struct.pack("<f", 0.001 * (1 + i % 7)))[0] for i in range(n_scales)]
            raw = bytes((37 * i + i // 11) % 256 & 0xF7 for i in range(rows * cols))  # no NaN
            across = -(-cols // self.BLOCK_K)
            values = [self.e4m3(c) * scales[i // cols // self.BLOCK_N * across + i % cols // self.BLOCK_K] for i, c in enumerate(raw)]
            codes[name] = ("F8_E4M3", [rows, cols], raw)
            codes[name + "_scale_inv"] = ("F32", [n_scales // across, across], struct.pack("<%df" % n_scales, *scales))
            wide[name] = ("F32", [rows, cols], struct.pack("<%df" % len(values), *values))
        return codes, wide

    def test_fp8(self):
        self.h = Headers("deepseek-v3")
        codes, wide = self.folders()
        self.assertEqual((len(codes), len(wide)), (6, 3))
        logits = []
        for name, replaced in (("fp8", codes), ("f32", wide)):
            h = Headers("deepseek-v3")
            if name == "fp8":
                h.config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [self.BLOCK_N, self.BLOCK_K]}
            folder = h.write_data(self.path(name), replaced)
            for more in ((), ("--load", "read"), ("--experts", "stream", "--host-experts", "min")):
                out = self.path("rows")
                self.run_cli("logits", "-m", folder, "--token-ids", self.IDS, "-o", out, "--act", "f32", "--kv-dtype", "f32", *more)
                with open(out, "rb") as f:
                    logits.append(f.read())
        self.assertEqual(len(logits[0]), 8 * 416 * 4)
        self.assertEqual(len(set(logits)), 1)


class Layouts(CliTest):
    """Other ways in which a GGUF may hold the same model: the same bits."""
    IDS = "262,283,83,402,412,391,358"

    def logits(self, model, *settings):
        out = self.path("rows")
        self.run_cli("logits", "-m", model, "--token-ids", self.IDS, "-o", out, *settings)
        with open(out, "rb") as f:
            return f.read()

    def same(self, name, change):
        parts = GgufParts(name)
        want = self.logits(parts.write(self.path("as_it_was.gguf")))
        change(parts)
        self.assertEqual(self.logits(parts.write(self.path("changed.gguf"))), want)

    def test_gate_and_up_in_one_tensor(self):
        def fuse(parts):
            for layer in range(3):
                at = "blk.%d.ffn_" % layer
                (embd, ff, n), kind, gate = parts.tensors.pop(at + "gate_exps.weight")
                up = parts.tensors.pop(at + "up_exps.weight")[2]
                size = len(gate) // n
                parts.tensors[at + "gate_up_exps.weight"] = ([embd, 2 * ff, n], kind, b"".join(gate[e * size:(e + 1) * size] + up[e * size:(e + 1) * size] for e in range(n)))

        for name in ("qwen3-moe", "qwen3_5-moe"):
            self.same(name + "_fixture_bf16.gguf", fuse)

    def test_a_tensor_for_each_expert_in_a_gguf(self):
        """As the first Mixtrals were converted. Resident and streamed; one that is missing is named as the file would have it."""
        parts = GgufParts("mixtral_fixture_bf16.gguf")
        want = self.logits(parts.write(self.path("stacked.gguf")))
        for layer in range(3):
            for matrix in ("down", "gate", "up"):
                (first, second, n), kind, raw = parts.tensors.pop("blk.%d.ffn_%s_exps.weight" % (layer, matrix))
                size = len(raw) // n
                for e in range(n):
                    parts.tensors["blk.%d.ffn_%s.%d.weight" % (layer, matrix, e)] = ([first, second], kind, raw[e * size:(e + 1) * size])
        path = parts.write(self.path("apart.gguf"))
        self.assertFalse([name for name in parts.tensors if "_exps" in name])
        for settings in ((), ("--experts", "stream", "--host-experts", "min")):
            self.assertEqual(self.logits(path, *settings), want)
        parts.tensors.pop("blk.1.ffn_up.3.weight")
        refused = self.run_cli("complete", "-m", parts.write(self.path("missing.gguf")), "--token-ids", self.IDS, code=1)
        self.assertIn("blk.1.ffn_up.3.weight: missing", refused.err)

    def test_experts_stacked_in_a_folder(self):
        """As Qwen3.5 is published: gate and up of all experts in one tensor, down in another."""
        h = Headers("qwen3_5-moe")
        want, data = self.logits(h.folder), h.data()
        stacked, count = {}, h.config["num_experts"]
        for layer in range(4):
            at = "model.layers.%d.mlp.experts." % layer
            parts = {k: [data["%s%d.%s_proj.weight" % (at, e, k)] for e in range(count)] for k in ("gate", "up", "down")}
            ff, embd = h.tensors[at + "0.gate_proj.weight"][1]
            stacked[at + "gate_up_proj"] = ("BF16", [count, 2 * ff, embd], b"".join(g + u for g, u in zip(parts["gate"], parts["up"])))
            stacked[at + "down_proj"] = ("BF16", [count, embd, ff], b"".join(parts["down"]))
            for name in h.of_layer(layer, r"\.experts\."):
                del h.tensors[name]
        self.assertEqual(self.logits(h.write_data(self.path("stacked"), stacked)), want)

    def test_the_second_version_of_deepseek_as_a_folder(self):
        """Softmax over all experts, no groups, bias or norm: what the GGUF of these weights gives, which is held against llama.cpp."""
        h = Headers("deepseek-v3")
        h.config.update(architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", norm_topk_prob=False)
        for key in ("n_group", "topk_group", "scoring_func", "topk_method"):
            h.config.pop(key, None)
        for layer in range(3):
            for name in h.of_layer(layer, "e_score_correction_bias"):
                del h.tensors[name]
        want = self.logits(os.path.join(TESTS, "data", "deepseek-v2_fixture_bf16.gguf"))
        self.assertEqual(self.logits(h.write_data(self.path("v2"), {})), want)
        h.config.update(n_group=4, topk_group=4, topk_method="group_limited_greedy", scoring_func="softmax")  # all groups: no other choice
        self.assertEqual(self.logits(h.write_data(self.path("groups"), {})), want)

    def test_gate_and_up_apart(self):
        def split(parts):
            for layer in range(4):
                at = "blk.%d.ffn_" % layer
                (embd, both, n), kind, raw = parts.tensors.pop(at + "gate_up_exps.weight")
                half = len(raw) // n // 2
                for i, part in enumerate(("gate", "up")):
                    parts.tensors[at + part + "_exps.weight"] = ([embd, both // 2, n], kind, b"".join(raw[(2 * e + i) * half:(2 * e + i + 1) * half] for e in range(n)))

        self.same("gemma4-moe_fixture_bf16.gguf", split)

    def test_layers_that_predict_further_tokens(self):
        """They are counted among the blocks, and not used."""
        for name, arch in (("glm4-moe", "glm4moe"), ("deepseek-v3", "deepseek2"), ("qwen3_5-moe", "qwen35moe")):
            def add(parts, arch=arch):
                n = 4 if arch == "qwen35moe" else 3
                parts.set_u32(arch + ".block_count", n + 1)
                parts.add_u32(arch + ".nextn_predict_layers", 1)
                for tensor in ("nextn.eh_proj.weight", "nextn.enorm.weight", "attn_norm.weight", "ffn_gate_exps.weight"):
                    parts.tensors["blk.%d.%s" % (n, tensor)] = ([8], 0, bytes(32))

            self.same(name + "_fixture_bf16.gguf", add)

    def test_an_up_projection_both_split_and_whole(self):
        def add(parts):
            for layer in range(3):
                parts.tensors["blk.%d.attn_kv_b.weight" % layer] = ([24, 128], 30, bytes(24 * 128 * 2))

        self.same("deepseek-v3_fixture_bf16.gguf", add)


class Experts(MoeTest):
    MODEL = fixture("qwen3-moe")
    IDS = "374,402,412,391,358"

    def complete(self, *args, code=0):
        return self.run_cli("complete", "-m", self.MODEL, "--token-ids", self.IDS, "-n", "12", "--ignore-eos", *args, code=code)

    def test_streamed_and_resident_say_the_same(self):
        texts = set()
        stream = ("--experts", "stream", "--host-experts")
        for args in (("--experts", "resident"), (*stream, "100K", "--expert-prefetch", "on"), (*stream, "min"), (*stream, "100K"), (*stream, "100K", "--expert-prefetch", "off"), ("--host-experts", "all")):
            result = self.complete("--json", *args).json
            texts.add(json.dumps(result["sequences"][0] if "sequences" in result else result["completions"][0] if "completions" in result else result["text"], sort_keys=True))
            x = result["experts"]
            self.assertEqual(set(x) & {"tier", "hits", "misses", "evictions", "bytes", "distinct"}, {"tier", "hits", "misses", "evictions", "bytes", "distinct"})
            self.assertEqual(x["tier"], "resident" if args[1] == "resident" else "stream")
            self.assertGreater(x["hits"] + x["misses"], 0)
            self.assertLessEqual(x["distinct"], 24)
            if args[1] == "stream":
                self.assertGreaterEqual(x["prefetched"], x["prefetch_used"] + x["prefetch_wasted"])
                self.assertEqual((x["prefetch_used_bytes"], x["prefetch_wasted_bytes"]), (x["prefetch_used"] * 23040, x["prefetch_wasted"] * 23040))
            if args[-1] in ("on", "off"):
                self.assertEqual(x["prefetch_used"] > 0, args[-1] == "on")
            if args[-1] == "min":
                self.assertGreater(x["evictions"], 0)
                self.assertGreaterEqual(x["bytes"], x["misses"] * 23040)
        self.assertEqual(len(texts), 1)

    def test_the_model_is_not_written_over(self):
        for source in (self.MODEL, os.path.join(TESTS, "data", "qwen3-moe_fixture_bf16.gguf")):
            model = self.path(os.path.basename(source))
            (shutil.copytree if os.path.isdir(source) else shutil.copy)(source, model)
            files = [os.path.join(model, f) for f in sorted(os.listdir(model))] if os.path.isdir(model) else [model]
            before = {f: open(f, "rb").read() for f in files}
            for f in files:
                if os.path.basename(f) not in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja") and f != model:
                    continue
                self.fails(2, "would be destroyed", "pack", "-m", model, "-o", f)
                self.fails(2, "would be destroyed", "complete", "-m", model, "--token-ids", self.IDS, "--record-routing", f)
                self.fails(2, "would be destroyed", "logits", "-m", model, "--token-ids", self.IDS, "-o", f)
            self.assertEqual(before, {f: open(f, "rb").read() for f in files})
            trace = self.path("trace")
            self.run_cli("complete", "-m", model, "--token-ids", self.IDS, "--record-routing", trace, "-n", "3")
            self.fails(2, "is the file of --replay", "bench", "-m", model, "-p", "4", "-n", "2", "-r", "1", "--replay", trace, "--record-routing", trace)

    def test_a_pipe_is_not_replaced(self):
        pipe = self.path("pipe")
        os.mkfifo(pipe)
        self.fails(2, "is a device, pipe or socket", "pack", "-m", self.MODEL, "-o", pipe)
        self.assertFalse(os.path.isfile(pipe))
        self.assertFalse(os.path.exists(pipe + ".partial"))

    def test_a_recording_that_fails(self):
        def nearly_full():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))  # the header

        run = ("complete", "-m", self.MODEL, "--token-ids", self.IDS, "-n", "3", "--record-routing", self.path("trace"))
        self.assertIn("--record-routing", self.run_cli(*run, code=1, preexec_fn=nearly_full).err.rstrip("\n").split("\n")[-1])
        self.run_cli(*run)

    def test_settings_that_would_do_nothing(self):
        run = ("complete", "-m", self.MODEL, "--token-ids", self.IDS, "-n", "1")
        self.fails(2, "--experts resident streams none", *run, "--experts", "resident", "--expert-reader", "pread")
        self.assertIn("--expert-reader changes nothing", self.run_cli(*run, "--expert-reader", "pread").err)
        self.run_cli(*run, "--experts", "stream", "--expert-reader", "buffered")
        for way in ("io_uring", "pread"):
            self.assertIn("are read buffered", self.run_cli(*run, "--experts", "stream", "--expert-reader", way, code=1).err)
        self.fails(2, "has no experts", "complete", "-m", fixture("qwen3"), "--token-ids", self.IDS, "--expert-reader", "pread")
        self.fails(2, "--experts resident streams none", *run, "--experts", "resident", "--expert-prefetch", "on")
        self.assertIn("--expert-prefetch changes nothing", self.run_cli(*run, "--expert-prefetch", "on").err)
        self.run_cli(*run, "--experts", "resident", "--expert-prefetch", "auto")
        self.fails(2, "--experts resident streams none", *run, "--experts", "resident", "--warm-experts")
        self.assertIn("--warm-experts changes nothing", self.run_cli(*run, "--warm-experts").err)
        self.fails(2, "has no experts", "complete", "-m", fixture("qwen3"), "--token-ids", self.IDS, "--expert-prefetch", "on")
        self.assertIn("a plan runs nothing", self.run_cli("plan", "-m", self.MODEL, "--record-routing", self.path("trace"), code=2).err)
        self.assertFalse(os.path.exists(self.path("trace")))

    def test_closing_line(self):
        err = self.complete("--experts", "stream", "--host-experts", "min").err
        line = next(text for text in err.split("\n") if text.startswith("experts streamed"))
        for word in ("slots", "hits", "misses", "evictions", "distinct"):
            self.assertIn(word, line)
        ahead = ("--experts", "stream", "--host-experts", "100K", "--expert-prefetch")
        self.assertIn("experts read ahead of their layer", self.complete(*ahead, "on").err)
        self.assertNotIn("read ahead", self.complete(*ahead, "off").err)
        self.assertIn("experts resident", self.complete("--experts", "resident").err)

    def test_below_the_least(self):
        x = self.plan_json("-m", self.MODEL)["experts"]
        least = x["min_slots"] * x["slot_bytes"]
        for command in (("plan", "-m", self.MODEL), ("complete", "-m", self.MODEL, "--token-ids", self.IDS, "-n", "1")):
            result = self.run_cli(*command, "--experts", "stream", "--host-experts", str(least - 1), code=3)
            self.assertIn("the least is %d bytes" % least, result.err)
            self.run_cli(*command, "--experts", "stream", "--host-experts", str(least))

    def test_contradictions(self):
        for args in (("--experts", "resident", "--host-experts", "min"), ("--experts", "stream", "--load", "map"), ("--experts", "none"), ("--host-experts", "plenty")):
            self.run_cli("plan", "-m", self.MODEL, *args, code=2)


class Plan(MoeTest):
    """A machine that is posed, and a checkpoint whose experts are holes."""
    MACHINE = "unified=1,device_total=%d,mem_total=%d"

    def setUp(self):
        super().setUp()
        h = Headers("qwen3-moe")
        h.config.update(hidden_size=1024, moe_intermediate_size=512, num_hidden_layers=3)
        grown = {80: 1024, 48: 512}
        for name, (dtype, shape) in h.tensors.items():
            h.tensors[name] = (dtype, [grown.get(d, d) for d in shape])
        self.model = h.write(self.path("grown"))

    def machine(self, n):
        return "--machine", self.MACHINE % (n, n)

    def test_verdicts(self):
        x = self.plan_json("-m", self.model, *self.machine(1 << 30))
        self.assertEqual((x["experts"]["tier"], x["fits"], x["machine"]), ("resident", True, 1 << 30))
        self.assertEqual(x["experts"]["file_bytes"], 3 * 8 * 3 * 512 * 1024 * 2)
        small = x["memory_bytes"]["total"] - x["experts"]["file_bytes"] // 2
        refused = self.run_cli("plan", "-m", self.model, "--experts", "resident", *self.machine(small), code=3)
        change = refused.err.split("--host-experts ")[1].split()[0]
        fits = self.run_cli("plan", "-m", self.model, "--experts", "stream", "--host-experts", change, *self.machine(small))
        self.assertIn("experts: streamed", fits.out)
        size = x["experts"]["min_slots"] * x["experts"]["slot_bytes"] if change == "min" else int(change[:-1]) << 20 if change.endswith("M") else int(change)
        more = str(size + 2 * x["experts"]["slot_bytes"])
        self.run_cli("plan", "-m", self.model, "--experts", "stream", "--host-experts", more, *self.machine(small), code=3)
        auto = self.plan_json("-m", self.model, *self.machine(small))
        self.assertEqual(auto["experts"]["tier"], "stream")
        self.assertGreaterEqual(auto["experts"]["slots"], auto["experts"]["min_slots"])
        nothing = self.run_cli("plan", "-m", self.model, *self.machine(8 << 20), code=3)
        self.assertIn("--kv-mem", nothing.err)

    def test_slots_take_what_is_left_to_the_byte(self):
        """Where one more slot begins to fit, and a byte before that, the choice of the plan is one that its verdict accepts."""
        def slots(n):
            return self.plan_json("-m", self.model, "--experts", "stream", *self.machine(n))["experts"]["slots"]

        low = 80 << 20
        high, least = low + (4 << 20), slots(low)
        self.assertGreater(slots(high), least)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if slots(middle) == least else (low, middle)
        self.assertEqual((slots(low), slots(high)), (least, least + 1))

    def test_text_and_json_say_the_same(self):
        text = self.run_cli("plan", "-m", self.model, *self.machine(1 << 30)).out
        x = self.plan_json("-m", self.model, *self.machine(1 << 30))
        self.assertIn("%.2f" % (x["memory_bytes"]["kv"] / 1048576), text)
        self.assertIn("experts: resident", text)

    def test_the_verdict_does_not_depend_on_what_is_free(self):
        """The same text with memory of this machine taken."""
        args = ("plan", "-m", self.model, *self.machine(150 << 20))
        first = self.run_cli(*args).out
        taken = bytearray(os.urandom(1 << 16) * (1 << 12))
        self.assertEqual(self.run_cli(*args).out, first)
        self.assertEqual(len(taken), 1 << 28)

    def test_machines_that_make_no_sense(self):
        for text in ("mem_total=", "mem_total=x", "free=1", "unified=2,mem_total=1G", ""):
            self.run_cli("plan", "-m", self.model, "--machine", text, code=2)


main(sys.modules["__main__"])
