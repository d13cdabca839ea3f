# SPDX-License-Identifier: Apache-2.0
"""The command line over the stand-in of fake_engine.c: what is parsed, printed and returned. Expected values are computed here."""
import array
import json
import math
import os
import pty
import resource
import select
import signal
import sys

from cli_runner import BINARY, CliTest, environment, main  # noqa: F401  (environment: for the terminal runs)

COMMANDS = ("complete", "logits", "perplexity", "tokenize", "inspect", "plan", "bench", "doctor", "make-model", "pack")
N_VOCAB, BOS, END = 300, 256, 257


def row_of(token, first):
    row = [0.0] * N_VOCAB
    row[first] = 5.0
    row[(token + 1) % N_VOCAB] = array.array("f", [token / 100])[0]
    row[token] = 10.0
    return row


class Use(CliTest):
    def test_overview(self):
        text = self.run_cli("--help").out
        for name in COMMANDS:
            self.assertIn("\n  " + name, text)
        self.assertEqual(self.run_cli("-h").out, text)
        self.assertEqual(self.run_cli("--version").out, "headrace 0.0.0-fake\n")

    def test_no_command(self):
        self.assertIn("usage: headrace COMMAND", self.fails(2, "no command given").err)

    def test_unknown_command(self):
        self.fails(2, "unknown command 'compleat'", "compleat")
        self.fails(2, "did you mean complete?", "complet")
        self.fails(2, "no command 'serve': there is no server yet", "serve", "-m", "fake")
        self.fails(2, "unknown command 'nosuch'", "help", "nosuch")
        self.fails(2, "unexpected argument 'fake' (a model is given with -m)", "plan", "fake")
        for flag in ("disk-bw", "disk-latency", "mem-bw"):
            self.fails(2, "plan: --%s says something of a recorded routing; it goes with --replay FILE" % flag, "plan", "-m", "fake", "--" + flag, "5")
        self.assertEqual(self.run_cli("help").out, self.run_cli("--help").out)
        self.assertEqual(self.run_cli("help", "plan").out, self.run_cli("plan", "--help").out)
        self.fails(2, "the command comes first", "-m", "fake", "complete")

    def test_help_of_each_command(self):
        for name in COMMANDS:
            text = self.run_cli(name, "--help").out
            self.assertTrue(text.startswith("usage: headrace %s " % name), text)
            self.assertIn("--config FILE", text)
            self.assertIn("examples:\n  headrace %s" % name, text)
            self.assertEqual(self.run_cli(name, "--version").out, "headrace 0.0.0-fake\n")
            self.assertEqual(self.run_cli(name, "--nonsense", "--help").out, text)

    def test_help_as_a_value(self):
        self.assertEqual(self.run_cli("complete", "-m", "fake", "-p", "--help", "-n", "6").out, "--help")
        self.assertEqual(self.run_cli("complete", "-m", "fake", "--prompt", "-h", "-n", "2").out, "-h")
        self.fails(2, "unexpected argument '--help'", "complete", "-m", "fake", "-p", "a", "--", "--help")

    def test_flags_that_are_wrong(self):
        self.fails(2, "--max-seq", "complete", "-m", "fake", "-p", "a", "--max-seq", "3")
        self.fails(2, "-n", "complete", "-m", "fake", "-p", "a", "-n")
        self.fails(2, "ten", "complete", "-m", "fake", "-p", "a", "-n", "ten")
        self.fails(2, "-1", "complete", "-m", "fake", "-p", "a", "-n", "-1")
        self.fails(2, "nan", "complete", "-m", "fake", "-p", "a", "--temp", "nan")
        self.fails(2, "tpu", "complete", "-m", "fake", "-p", "a", "--device", "tpu")
        self.fails(2, "unexpected argument 'b'", "complete", "-m", "fake", "-p", "a", "b")
        self.fails(2, "unexpected argument 'b'", "inspect", "a", "b")
        self.fails(2, "unexpected argument 'b'", "doctor", "b")

    def test_a_flag_without_effect_is_refused(self):
        for args in (("tokenize", "-m", "fake", "-p", "a", "--threads", "2"), ("tokenize", "-m", "fake", "-p", "a", "--temp", "0"),
                     ("inspect", "fake", "--ctx", "9"), ("doctor", "-m", "fake"), ("logits", "-m", "fake", "--token-ids", "1", "-o", "x", "-p", "a"),
                     ("bench", "-m", "fake", "--temp", "0"), ("perplexity", "-m", "fake", "-f", "x", "-n", "3")):
            self.fails(2, " is no option of this command", *args)

    def test_no_model(self):
        for args in (("complete", "-p", "a"), ("logits", "--token-ids", "1", "-o", self.path("x")), ("tokenize", "-p", "a"), ("inspect",), ("bench",),
                     ("perplexity", "-f", self.path("t", "text"))):
            self.fails(2, "no model given", *args)

    def test_nothing_to_read(self):
        self.fails(2, "use -p TEXT, -f FILE or --token-ids LIST", "complete", "-m", "fake")
        self.fails(2, "use -p TEXT or -f FILE", "tokenize", "-m", "fake")
        self.fails(2, "use --token-ids LIST", "logits", "-m", "fake", "-o", self.path("x"))
        self.fails(2, "use -o FILE", "logits", "-m", "fake", "--token-ids", "1")
        self.fails(2, "use -f FILE", "perplexity", "-m", "fake")

    def test_exit_codes_of_a_load(self):
        for model, code, text in (("missing", 1, "no such file"), ("broken", 1, "not a model"), ("too-big", 3, "--ctx 1024 would fit"), ("busy", 4, "does not fit now")):
            self.assertEqual(self.fails(code, text, "complete", "-m", model, "-p", "a").err, "headrace: fake: %s\n" % text if code != 3 else
                             "headrace: fake: needs 9 GiB of 8 GiB; --ctx 1024 would fit\n")

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "wb") as full:
            self.fails(1, "standard output", "doctor", stdout=full)
            self.fails(1, "", "complete", "-m", "fake", "-p", "a", "--json", stdout=full)


class Settings(CliTest):
    def report(self, *args, **more):
        return self.run_cli("inspect", "some.gguf", "--json", *args, **more).json

    def test_defaults_reach_the_engine(self):
        report = self.report()
        self.assertEqual(report.pop("report"), "model")
        self.assertEqual(report["model"], "some.gguf")
        self.assertEqual(report["max-seqs"], "32")
        self.assertEqual(set(report) & {"json", "config", "print-config", "verbose", "prompt"}, set())

    def test_precedence(self):
        file = self.path("c.conf", "max-seqs = 7\nctx = 2k\n# a comment\n")
        env = {"HEADRACE_MAX_SEQS": "5", "HEADRACE_CTX": "9", "HEADRACE_THREADS": "3"}
        report = self.report("--config", file, "--cpu-isa", "scalar", env=env)
        self.assertEqual([report[k] for k in ("max-seqs", "ctx", "threads", "cpu-isa")], ["7", "2k", "3", "scalar"])
        self.fails(2, "bad.conf:1: ", "inspect", "x", "--config", self.path("bad.conf", "nonsense = 7\n"))
        self.fails(2, "HEADRACE_NONSENSE", "inspect", "x", env={"HEADRACE_NONSENSE": "1"})

    def test_print_config(self):
        text = self.run_cli("complete", "--print-config", "-m", "m.gguf", "-p", "a", "-p", "b", "-t", "2", env={"HEADRACE_ACT": "f32"}).out
        for line in ("model = m.gguf  # command line", "threads = 2  # command line", "act = f32  # environment", "max-seqs = 2  # default", "ctx = 0  # default"):
            self.assertIn(line + "\n", text)
        report = self.report("--config", self.path("printed.conf", text))
        self.assertEqual((report["threads"], report["act"]), ("2", "f32"))

    def test_defaults_of_commands(self):
        def setting(key, *args, **more):
            lines = self.run_cli(*args, "--print-config", **more).out.split("\n")
            return [line.split(" = ")[1].split("  #")[0] for line in lines if line.startswith(key + " =")]

        self.assertEqual(setting("ctx", "perplexity", "-f", "x"), ["512"])
        self.assertEqual(setting("ctx", "perplexity", "-f", "x", "-c", "64"), ["64"])
        self.assertEqual(setting("ctx", "perplexity", "-f", "x", env={"HEADRACE_CTX": "99"}), ["99"])
        self.assertEqual(setting("max-seqs", "logits", *["--token-ids", "1"] * 40), ["32"])
        self.assertEqual(setting("max-seqs", "logits", *["--token-ids", "1"] * 3), ["3"])
        self.assertEqual(setting("max-seqs", "complete", "-p", "a", "-f", "x", "--token-ids", "1"), ["3"])
        self.assertEqual(setting("ctx", "bench", "-p", "100", "-n", "20"), ["120"])
        self.assertEqual(setting("max-seqs", "bench", "--seqs", "2,16,4"), ["16"])

    def test_reports(self):
        self.assertTrue(self.run_cli("inspect", "-m", "m.gguf").out.startswith("report model\nmodel=m.gguf\n"))
        self.assertEqual(self.report("--tensors")["report"], "tensors")
        self.assertEqual(self.report("--kernels")["report"], "kernels")
        self.assertEqual(self.run_cli("inspect", "--kernels", "--json").json["report"], "kernels")
        self.assertEqual(self.run_cli("doctor", "--json", "-t", "4").json["threads"], "4")
        self.fails(2, "ask for one", "inspect", "m", "--tensors", "--kernels")
        self.fails(2, "two models", "inspect", "m", "-m", "n")
        self.assertEqual(self.run_cli("inspect", "m", "--json", env={"HEADRACE_MODEL": "n"}).json["model"], "m")


class Complete(CliTest):
    def complete(self, *args, model="fake", **more):
        return self.run_cli("complete", "-m", model, *args, **more)

    def test_text(self):
        result = self.complete("-p", "hello", "-n", "12")
        self.assertEqual(result.out_bytes, b"hellohellohe")
        self.assertRegex(result.err, r"^prefill 5 tokens, [0-9.]+ tok/s; decode 11 tokens, [0-9.]+ tok/s; load 0\.25 s\n$")

    def test_nothing_to_generate(self):
        result = self.complete("-p", "hello", "-n", "0")
        self.assertEqual(result.out_bytes, b"")
        self.assertRegex(result.err, r"^prefill 5 tokens, [0-9.]+ tok/s; decode 0 tokens; load")

    def test_default_length(self):
        self.assertEqual(len(self.complete("-p", "ab").out), 128)

    def test_characters_of_several_bytes(self):
        text = "aé€😀"
        self.assertEqual(self.complete("-p", text, "-n", "20").out, text * 2)
        self.assertEqual(self.complete("-p", text, "-n", "2").out, "a\ufffd")
        self.assertEqual(self.complete("-p", text, "-n", "2", "--json").json["text"], "a\ufffd")

    def test_file(self):
        text = "two lines\nand a last newline\n"
        path = self.path("prompt.txt", text)
        n = str(len(text))
        self.assertEqual(self.complete("-f", path, "-n", n).out, text)
        self.assertEqual(self.complete("-f", "-", "-n", n, stdin=text.encode()).out, text)
        read, write = os.pipe()
        os.write(write, text.encode())
        os.close(write)
        self.assertEqual(self.complete("-f", "/dev/fd/%d" % read, "-n", n, pass_fds=(read,)).out, text)
        os.close(read)
        self.assertEqual(self.complete("-f", self.path("nul", b"a\0b"), "-n", "3").out_bytes, b"a\0b")
        self.fails(1, "no/such", "complete", "-m", "fake", "-f", "no/such")
        self.fails(1, self.folder.name, "complete", "-m", "fake", "-f", self.folder.name)

    def test_large_file(self):
        text = "x" * 300000
        self.fails(2, "too long", "complete", "-m", "fake", "-f", self.path("large", text))

    def test_not_utf8(self):
        for bad, offset, byte in ((b"ab\xff", 2, 0xFF), (b"\xc0\xaf", 0, 0xC0), (b"abc\xed\xa0\x80", 3, 0xED), (b"\xf4\x90\x80\x80", 0, 0xF4), (b"a\xe2\x82", 1, 0xE2),
                                  (b"\xe0\x80\x80", 0, 0xE0), (b"aaaa\x80", 4, 0x80)):
            text = "not UTF-8: byte 0x%02x at offset %d" % (byte, offset)
            self.fails(2, "-p 2: " + text, "complete", "-m", "fake", "-p", "good", "-p", bad)
            self.assertIn("bad.txt: -f: " + text, self.fails(2, text, "complete", "-m", "fake", "-f", self.path("bad.txt", bad)).err)
            self.fails(2, text, "tokenize", "-m", "fake", "-p", bad)
            self.fails(2, text, "perplexity", "-m", "fake", "-f", self.path("bad.txt", bad))

    def test_json(self):
        self.assertEqual(self.complete("-p", "hello", "-n", "4", "--json", model="bos").json, {
            "prompt_ids": [BOS, 104, 101, 108, 108, 111], "ids": [BOS, 104, 101, 108], "text": "hel", "finish_reason": "length",
            "usage": {"prompt_tokens": 6, "completion_tokens": 4},
            "timings": {"load_s": 0.25, "ttft_s": 0.002, "prefill_tokens_per_s": 6000.0, "decode_tokens_per_s": 6000.0, "preemptions": 0, "prefix_hit_tokens": 0}})

    def test_json_without_tokens(self):
        one = self.complete("-p", "hello", "-n", "0", "--json").json
        self.assertEqual((one["ids"], one["text"], one["finish_reason"]), ([], "", "length"))
        self.assertEqual((one["timings"]["ttft_s"], one["timings"]["decode_tokens_per_s"]), (None, None))

    def test_json_of_several_is_an_array(self):
        for texts in (("one", "two"), tuple("%d!" % i for i in range(40))):
            args = [a for t in texts for a in ("-p", t)]
            many = self.complete(*args, "-n", "3", "--json").json
            self.assertEqual([bytes(r["prompt_ids"]).decode() for r in many], list(texts))
        self.assertTrue(all(r["finish_reason"] == "stop" and r["ids"] == [END] for r in many))

    def test_more_prompts_than_the_queue_holds(self):
        texts = ["%d." % i for i in range(20)]
        args = [a for t in texts for a in ("-p", t)]
        for seqs in ("1", "3", "10"):
            many = self.complete(*args, "-n", "6", "--json", "--max-seqs", seqs).json
            self.assertEqual([r["text"] for r in many], [(t * 3)[:6] for t in texts])
        self.fails(1, "-p 1: fake: queue full", "complete", "-m", "full", *args)
        # A refusal that comes while others run ends the command.
        result = self.run_cli("complete", "-m", "fake", "--max-seqs", "1", "-p", "a", "-p", "b", "-p", "", "-n", "3", code=2)
        self.assertTrue(result.err.endswith("headrace: -p 3: fake: the prompt is empty\n"), result.err)

    def test_json_agrees_with_text(self):
        for text in ("hello", "aé€😀", "x!y", "<s>q"):
            plain = self.complete("-p", text, "-n", "7").out
            self.assertEqual(self.complete("-p", text, "-n", "7", "--json").json["text"], plain)

    def test_escapes_in_json(self):
        text = "quote \" backslash \\ newline \n tab \t bell \x07 nul"
        self.assertEqual(self.complete("-p", text, "-n", str(len(text)), "--json").json["text"], text)

    def test_stop(self):
        one = self.complete("-p", "ab!", "-n", "9", "--json").json
        self.assertEqual((one["ids"], one["finish_reason"]), ([END], "stop"))
        one = self.complete("-p", "ab!", "-n", "9", "--json", "--ignore-eos").json
        self.assertEqual((one["finish_reason"], len(one["ids"])), ("length", 9))

    def test_context_is_full(self):
        self.assertEqual(self.complete("-p", "abcd", "-n", "100", "-c", "10").out, "abcdab")

    def test_token_ids(self):
        for text in ("104,105", " 104 , 105 ", "104 105", "104\n105\n", "104,\t105"):
            self.assertEqual(self.complete("--token-ids", text, "-n", "4", model="bos").out, "hihi")
        self.assertEqual(self.complete("--token-ids", "299,104", "-n", "2", "--json").json["ids"], [299, 104])

    def test_bad_token_ids(self):
        for text, item in (("", "item 1 is empty"), (" ", "item 1 is empty"), ("1,", "item 2 is empty"), (",1", "item 1 is empty"), ("1,,2", "item 2 is empty"),
                           ("1,x", "item 2, 'x', is not"), ("1 2,3.5", "item 3, '3.5', is not"), ("-1", "item 1, '-1', is not"), ("0x10", "item 1, '0x10', is not"),
                           ("1,2147483648", "item 2, '2147483648', is not"), ("99999999999999999999", "item 1, '99999999999999999999', is not"), ("1;2", "item 1, '1;2', is not")):
            self.fails(2, "--token-ids 2: " + item, "complete", "-m", "fake", "--token-ids", "5", "--token-ids", text)
            self.fails(2, "--token-ids: " + item, "logits", "-m", "fake", "-o", self.path("x"), "--token-ids=" + text)
        self.fails(2, "--token-ids 2: fake: id out of range", "complete", "-m", "fake", "--token-ids", "5", "--token-ids", "300")
        self.fails(2, "--token-ids: fake: id out of range", "complete", "-m", "fake", "--token-ids", "2147483647")

    def test_bos(self):
        def ids(*args, **more):
            return self.complete("-n", "0", "--json", *args, **more).json["prompt_ids"]

        self.assertEqual(ids("-p", "a"), [97])
        self.assertEqual(ids("-p", "a", "--bos"), [BOS, 97])
        self.assertEqual(ids("-p", "a", model="bos"), [BOS, 97])
        self.assertEqual(ids("-p", "a", "--no-bos", model="bos"), [97])
        self.assertEqual(ids("-p", "<s>a"), [BOS, 97])
        self.assertEqual(ids("-p", "<s>a", "--no-special"), [60, 115, 62, 97])
        self.assertEqual(ids("--token-ids", "97", model="bos"), [97])
        for flag, option in (("--bos", "--bos"), ("--no-bos", "--bos"), ("--no-special", "--no-special")):
            self.fails(2, option, "complete", "-m", "fake", "--token-ids", "1", flag)
        # Without --json the engine encodes: the same ids must come out.
        self.assertEqual(self.complete("-p", "<s>a", "--no-special", "-n", "4").out, "<s>a")
        self.assertEqual(self.complete("-p", "a", "--bos", "-n", "3").out, "a")

    def test_empty_prompt(self):
        for args in ((), ("--json",)):
            self.fails(2, "-p: fake: the prompt is empty", "complete", "-m", "fake", "-p", "", *args)
            self.fails(2, "-f: fake: the prompt is empty", "complete", "-m", "fake", "-f", "/dev/null", *args)

    def test_several_texts_in_order(self):
        path = self.path("f.txt", "file")
        result = self.complete("--token-ids", "105,100", "-f", path, "-p", "one", "-p", "two!", "-n", "8")
        self.assertEqual(result.out, "==> prompt 1 of 4 (-p 1) <==\noneoneon\n\n==> prompt 2 of 4 (-p 2) <==\n\n\n"
                                     "==> prompt 3 of 4 (-f) <==\nfilefile\n\n==> prompt 4 of 4 (--token-ids) <==\nidididid\n")
        self.assertIn("prefill 13 tokens, ", result.err)

    def test_one_prompt_fails(self):
        result = self.complete("-p", "good", "-p", "Fail", "-p", "fine", "-n", "4", model="fails", code=1)
        self.assertIn("==> prompt 3 of 3 (-p 3) <==\nfine\n", result.out)
        self.assertTrue(result.err.endswith("headrace: -p 2: fake: the disk went away\n"), result.err)
        many = self.complete("-p", "good", "-p", "Fail", "-p", "Fog", "-n", "4", "--json", model="fails", code=1)
        self.assertEqual([r["finish_reason"] for r in many.json], ["length", "error", "error"])
        self.assertEqual([r.get("error") for r in many.json], [None, "fake: the disk went away", "fake: the disk went away"])
        self.assertEqual(many.err, "headrace: -p 2: fake: the disk went away\nheadrace: -p 3: fake: the disk went away\n")

    def test_engine_dies(self):
        result = self.complete("-p", "good", "-n", "40", model="dies", code=1)
        self.assertEqual((result.out, result.err), ("goo", "headrace: fake: the engine cannot go on\n"))
        self.fails(1, "the engine cannot go on", "complete", "-m", "dies", "-p", "good", "--json")

    def test_refused_before_anything_runs(self):
        self.fails(2, "-p 2: fake: the prompt is too long", "complete", "-m", "fake", "-c", "6", "-p", "ok", "-p", "much too long")

    def test_verbose(self):
        self.complete("-p", "a", "-v", "-n", "1")


class Interrupts(CliTest):
    def test_text_is_streamed_and_cancelled(self):
        process = self.popen("complete", "-m", "slow", "-p", "abc", "-n", "4000")
        first = self.read_one(process)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=60)
        text = first + rest
        self.assertEqual(process.returncode, 1, err)
        self.assertEqual(text, (b"abc" * 2000)[:len(text)])
        self.assertLess(len(text), 4000)
        self.assertTrue(err.endswith(b"headrace: cancelled\n"), err)
        self.assertIn(b"prefill 3 tokens", err)

    def test_json_of_a_cancelled_batch(self):
        process = self.popen("complete", "-m", "slow", "-p", "abc", "-p", "xy", "-p", "a", "-p", "b", "-p", "c", "--max-seqs", "2", "-n", "4000", "--json", "-v")
        select.select([], [], [], 0.5)  # past the start, long before the end
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, err)
        many = json.loads(out)
        self.assertEqual([r["finish_reason"] for r in many], ["cancelled"] * 5)
        self.assertEqual([r["prompt_ids"] for r in many], [[97, 98, 99], [120, 121], [97], [98], [99]])
        for r in many:
            self.assertEqual(r["usage"]["completion_tokens"], len(r["ids"]))

    def test_an_interrupt_in_the_only_step_of_a_run_ends_the_runs_after_it(self):
        for _ in range(20):
            process = self.popen("perplexity", "-m", "slow", "-f", self.path("text", "abcd" * 1000), "-c", "4")
            process.stdout.readline()
            process.stdout.readline()
            select.select([], [], [], 0.002)  # into the next step
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
            if process.returncode != -signal.SIGINT:  # that came between two runs, where it ends the process as usual
                break
        self.assertEqual(process.returncode, 1, err)
        self.assertTrue(err.endswith(b"cancelled\n"), err)
        self.assertLess(out.count(b"so far"), 990)

    def test_second_interrupt_ends(self):
        process = self.popen("complete", "-m", "stuck", "-p", "abc")
        self.read_one(process)
        sent = 0
        while process.poll() is None and sent < 400:
            process.send_signal(signal.SIGINT)
            sent += 1
            select.select([], [], [], 0.05)
        self.assertGreaterEqual(sent, 2)
        self.assertEqual(process.returncode, -signal.SIGINT)

    def test_ignored_signals_stay_ignored(self):
        process = self.popen("complete", "-m", "slow", "-p", "abc", "-n", "50", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
        first = self.read_one(process)
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=60)
        self.assertEqual((process.returncode, len(first + rest)), (0, 50), err)

    def test_logits_are_removed(self):
        path = self.path("rows")
        process = self.popen("logits", "-m", "slow", "--token-ids", ",".join(["7"] * 2000), "--chunk", "1", "-o", path)
        for _ in range(2000):
            if os.path.exists(path) and os.path.getsize(path) > 0:
                break
            select.select([], [], [], 0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual((process.returncode, out), (1, b""), err)
        self.assertTrue(err.endswith(b"headrace: --token-ids: cancelled\n"), err)
        self.assertFalse(os.path.exists(path))


class Terminal(CliTest):
    def on_terminal(self, *args, term="xterm", stdout_too=False):
        master, slave = pty.openpty()
        out_read, out_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(slave, 2)
            os.dup2(slave if stdout_too else out_write, 1)
            os.closerange(3, 64)
            os.execve(BINARY, [BINARY, *args], environment({"TERM": term, "NO_COLOR": "1"}))
        os.close(slave)
        os.close(out_write)
        seen = b""
        while True:
            try:
                data = os.read(master, 65536)
            except OSError:
                break
            if not data:
                break
            seen += data
        out = b""
        while data := os.read(out_read, 65536):
            out += data
        os.close(master)
        os.close(out_read)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0, seen)
        return seen, out

    def test_progress(self):
        seen, out = self.on_terminal("complete", "-m", "fake", "-p", "ab", "-n", "2")
        self.assertIn(b"\r\x1b[Kloading: 100 % (4 of 4 MiB)", seen)
        self.assertIn(b"(4 of 4 MiB)\r\x1b[Kprefill", seen)
        self.assertEqual(out, b"ab")

    def test_no_progress(self):
        for term in ("dumb", ""):
            seen, _ = self.on_terminal("complete", "-m", "fake", "-p", "ab", term=term)
            self.assertTrue(seen.startswith(b"prefill"), seen)
        self.assertNotIn("loading", self.run_cli("complete", "-m", "fake", "-p", "a", env={"TERM": "xterm"}).err)

    def test_text_cannot_drive_the_terminal(self):
        seen, _ = self.on_terminal("complete", "-m", "fake", "-p", "a\x1b[2J\x9b\x07\tb\n€", "-n", "14", stdout_too=True, term="dumb")
        self.assertTrue(seen.startswith("a\ufffd[2J\ufffd\ufffd\tb\r\n€\r\n".encode()), seen)
        seen, _ = self.on_terminal("tokenize", "-m", "fake", "--decode", "-p", "65,27,66", stdout_too=True)
        self.assertEqual(seen, "A\ufffdB\r\n".encode())


class Logits(CliTest):
    def rows(self, path):
        values = array.array("f")
        with open(path, "rb") as f:
            values.frombytes(f.read())
        if sys.byteorder == "big":
            values.byteswap()
        return [values[i:i + N_VOCAB].tolist() for i in range(0, len(values), N_VOCAB)]

    def test_one_list(self):
        path = self.path("rows")
        result = self.run_cli("logits", "-m", "fake", "--token-ids", "2,295,38", "-o", path)
        self.assertEqual(result.json, {"n_tokens": [3], "n_vocab": N_VOCAB, "steps": 1, "preemptions": 0, "prefix_hit_tokens": 0, "hot_allocations": 0})
        self.assertEqual(result.err, "")
        self.assertEqual(self.rows(path), [row_of(t, 2) for t in (2, 295, 38)])

    def test_several_lists_follow_each_other(self):
        lists = [list(range(0, 50)), [7], list(range(100, 130)), list(range(50, 90))]
        args = [a for ids in lists for a in ("--token-ids", ",".join(map(str, ids)))]
        for more, steps in (((), 1), (("--chunk", "3"), 17), (("--max-batch-tokens", "8"), 16), (("--chunk", "1"), 50)):
            path = self.path("rows", b"what was here before " * 10000)
            result = self.run_cli("logits", "-m", "fake", *args, *more, "-o", path).json
            self.assertEqual((result["n_tokens"], result["steps"]), ([50, 1, 30, 40], steps))
            self.assertEqual(self.rows(path), [row_of(t, ids[0]) for ids in lists for t in ids])

    def test_json_is_no_other_output(self):
        args = ("logits", "-m", "fake", "--token-ids", "1", "-o", self.path("rows"))
        self.assertEqual(self.run_cli(*args, "--json").out, self.run_cli(*args).out)

    def test_failures_leave_no_file(self):
        path = self.path("rows")
        for model, text in (("dies", "cannot go on"), ("fails", "--token-ids 2: fake: the disk went away")):
            self.fails(1, text, "logits", "-m", model, "--chunk", "1", "-o", path, "--token-ids", "1,2,3,4,5,6", "--token-ids", "70,2,3,4,5")
            self.assertFalse(os.path.exists(path))
        self.fails(2, "id out of range", "logits", "-m", "fake", "-o", path, "--token-ids", "300")
        self.assertFalse(os.path.exists(path))

    def test_what_is_there_stays_until_it_is_replaced(self):
        path = self.path("rows", "precious")
        self.fails(1, "no such file", "logits", "-m", "missing", "-o", path, "--token-ids", "1")
        self.fails(3, "would fit", "logits", "-m", "too-big", "-o", path, "--token-ids", "1")
        with open(path) as f:
            self.assertEqual(f.read(), "precious")

    def test_file_that_cannot_be_written(self):
        self.fails(1, "-o no/such/folder", "logits", "-m", "fake", "-o", "no/such/folder", "--token-ids", "1")
        self.fails(2, "not a regular file", "logits", "-m", "fake", "-o", self.folder.name, "--token-ids", "1")
        self.fails(2, "not a regular file", "logits", "-m", "fake", "-o", "/dev/null", "--token-ids", "1")

    def test_disk_is_full(self):
        path = self.path("rows")

        def small_disk():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))

        self.fails(1, "File too large", "logits", "-m", "fake", "-o", path, "--chunk", "1", "--token-ids", "1,2,3,4,5", preexec_fn=small_disk, restore_signals=False)
        self.assertFalse(os.path.exists(path))


class Perplexity(CliTest):
    def expected(self, ids, n_ctx, bos):
        """The method as tests/data/smollm2_q4_1_perplexity.json words it."""
        values, chunks = [], []
        for k in range(len(ids) // n_ctx):
            window = ids[k * n_ctx:(k + 1) * n_ctx]
            if bos:
                window[0] = BOS
            for p in range(n_ctx // 2, n_ctx - 1):
                row = row_of(window[p], window[0])
                values.append(math.log(math.fsum(map(math.exp, row))) - row[window[p + 1]])
            chunks.append(math.exp(math.fsum(values) / len(values)))
        mean = math.fsum(values) / len(values)
        variance = math.fsum((v - mean) ** 2 for v in values) / len(values)
        return chunks, len(values), math.sqrt(variance / (len(values) - 1)) * chunks[-1]

    def text(self, n):
        return "".join(chr(33 + (i * i * 7 + i) % 90) for i in range(n))

    def check_json(self, text, n_ctx, bos, model, *args):
        ids = ([BOS] if bos else []) + [ord(c) for c in text]
        chunks, count, error = self.expected(ids, n_ctx, bos)
        got = self.run_cli("perplexity", "-m", model, "-f", self.path("text", text + "\n"), "--json", *args).json
        self.assertEqual((got["n_ctx"], got["n_tokens"], got["n_chunks"], got["n_scored"]), (n_ctx, len(ids), len(chunks), count))
        for a, b in zip(got["chunks"] + [got["perplexity"], got["standard_error"]], chunks + [chunks[-1], error]):
            self.assertAlmostEqual(a / b, 1, places=6)
        self.assertEqual(len(got["chunks"]), len(chunks))

    def test_values(self):
        self.check_json(self.text(1300), 512, False, "fake")
        self.check_json(self.text(200), 9, False, "fake", "-c", "9")
        self.check_json(self.text(200), 4, False, "fake", "-c", "4")
        self.check_json(self.text(200), 16, True, "bos", "-c", "16")
        self.check_json(self.text(200), 4, True, "bos", "-c", "4")
        self.check_json(self.text(200), 16, False, "bos", "-c", "16", "--no-bos")
        self.check_json(self.text(200), 16, True, "fake", "-c", "16", "--bos")
        self.check_json(self.text(200), 16, False, "fake", "-c", "16", "--max-batch-tokens", "3")

    def test_special_tokens_are_text(self):
        self.assertEqual(self.run_cli("perplexity", "-m", "fake", "-c", "8", "--json", "-f", self.path("t", "<s>" * 8)).json["n_tokens"], 24)

    def test_text_output(self):
        lines = self.run_cli("perplexity", "-m", "fake", "-c", "64", "-f", self.path("t", self.text(200))).out.split("\n")
        self.assertEqual(lines[0], "200 tokens, 3 windows of 64, 31 scored in each")
        chunks, count, error = self.expected([ord(c) for c in self.text(200)], 64, False)
        for k, value in enumerate(chunks):
            self.assertEqual(lines[1 + k], "window %d: perplexity so far %.4f" % (k + 1, value))
        self.assertEqual(lines[4], "perplexity %.4f +/- %.5f (%d tokens scored)" % (chunks[-1], error, count))

    def test_window_of_the_whole_context(self):
        self.assertEqual(self.run_cli("perplexity", "-m", "fake", "-c", "0", "--json", "-f", self.path("t", self.text(9000))).json["n_ctx"], 4096)

    def test_short_text(self):
        path = self.path("t", self.text(127) + "\n")
        self.fails(2, "the text has 127 tokens; two windows of 64 (-c) need at least 128", "perplexity", "-m", "fake", "-c", "64", "-f", path)
        self.fails(2, "has 127 tokens", "perplexity", "-m", "fake", "-c", "0", "-f", path)
        self.fails(2, "a window has at least 4", "perplexity", "-m", "fake", "-c", "3", "-f", path)

    def test_failures(self):
        path = self.path("t", "F" + self.text(127))
        self.fails(1, "the disk went away", "perplexity", "-m", "fails", "-c", "64", "--json", "--max-batch-tokens", "1", "-f", path)
        self.fails(1, "cannot go on", "perplexity", "-m", "dies", "-c", "64", "--json", "--max-batch-tokens", "1", "-f", path)


class Tokenize(CliTest):
    def test_ids(self):
        self.assertEqual(self.run_cli("tokenize", "-m", "fake", "-p", "hé").out, "104 195 169\n")
        self.assertEqual(self.run_cli("tokenize", "-m", "bos", "-p", "h", "-f", self.path("f", "a\n")).out, "256 104\n256 97 10\n")
        self.assertEqual(self.run_cli("tokenize", "-m", "fake", "-p", "").out, "\n")

    def test_json(self):
        self.assertEqual(self.run_cli("tokenize", "-m", "fake", "-p", "ab", "--json").json, {"ids": [97, 98], "n": 2})
        self.assertEqual(self.run_cli("tokenize", "-m", "fake", "-p", "ab", "-p", "", "--json").json, [{"ids": [97, 98], "n": 2}, {"ids": [], "n": 0}])

    def test_pieces(self):
        self.assertEqual(self.run_cli("tokenize", "-m", "fake", "-v", "-p", "a\n<s>").out, '      97  "a"\n      10  "\\n"\n     256  "<s>"\n')

    def test_special(self):
        self.assertEqual(self.run_cli("tokenize", "-m", "fake", "-p", "<s>").out, "256\n")
        self.assertEqual(self.run_cli("tokenize", "-m", "fake", "-p", "<s>", "--no-special").out, "60 115 62\n")

    def test_decode(self):
        text = "hé <s> €\n"
        ids = self.run_cli("tokenize", "-m", "fake", "-p", text).out
        self.assertEqual(self.run_cli("tokenize", "-m", "fake", "--decode", "-p", ids).out, text)
        self.assertEqual(self.run_cli("tokenize", "-m", "fake", "--decode", "-f", "-", stdin=ids.encode()).out, text)
        self.assertEqual(self.run_cli("tokenize", "-m", "fake", "--decode", "--no-special", "-p", ids).out, text.replace("<s>", ""))
        self.assertEqual(self.run_cli("tokenize", "-m", "fake", "--decode", "--json", "-p", "104,255").json, {"text": "h\ufffd", "n": 2})
        self.fails(2, "-p: item 2, 'x'", "tokenize", "-m", "fake", "--decode", "-p", "1,x")
        self.fails(2, "--bos", "tokenize", "-m", "fake", "--decode", "--bos", "-p", "1")
        self.fails(2, "-p 2: fake: id out of range", "tokenize", "-m", "fake", "--decode", "--json", "-p", "1", "-p", "300")


class Bench(CliTest):
    def bench(self, *args):
        return self.run_cli("bench", "-m", "fake", *args, "--json").json

    def test_json(self):
        got = self.bench("-p", "40", "-n", "6", "--seqs", "1,3", "-r", "3", "-t", "2")
        self.assertEqual((got["model"], got["threads"], got["repeat"]), ("fake", 2, 3))
        self.assertGreater(got["read_bandwidth_gb_s"], 0)
        self.assertEqual([(r["seqs"], r["prompt"], r["generate"]) for r in got["runs"]], [(1, 40, 6), (3, 40, 6)])
        for r in got["runs"]:
            for key in ("prefill_tokens_per_s", "decode_tokens_per_s"):
                self.assertTrue(0 < r[key]["min"] <= r[key]["median"] <= r[key]["max"])
            self.assertAlmostEqual(r["bytes_per_token"], 1000000 / r["seqs"] + 100 * (40 + 3), places=2)
            self.assertAlmostEqual(r["bandwidth_share"] / (r["bytes_per_token"] * r["decode_tokens_per_s"]["median"] / got["read_bandwidth_gb_s"] / 1e9), 1, places=6)

    def test_end_tokens_are_ignored(self):
        """Ids of 8 x 300 out of 300 hold '!', after which the stand-in ends a text; a bench that ends early is an error."""
        runs = self.bench("-p", "300", "-n", "300", "--seqs", "8", "-r", "2")["runs"]
        self.assertEqual(len(runs), 1)

    def test_what_is_not_measured_is_null(self):
        only_decode = self.bench("-p", "0", "-n", "4", "-r", "1")["runs"][0]
        self.assertIsNone(only_decode["prefill_tokens_per_s"])
        self.assertIsNotNone(only_decode["decode_tokens_per_s"])
        for n in ("0", "1"):
            only_prefill = self.bench("-p", "8", "-n", n, "-r", "2")["runs"][0]
            self.assertIsNotNone(only_prefill["prefill_tokens_per_s"])
            self.assertIsNone(only_prefill["decode_tokens_per_s"])
            self.assertIsNone(only_prefill["bandwidth_share"])

    def test_table(self):
        text = self.run_cli("bench", "-m", "fake", "-p", "8", "-n", "4", "--seqs", "1,2", "-r", "1").out
        self.assertRegex(text, r"^fake, 1 threads, device cpu\nread bandwidth [0-9.]+ GB/s \(256 MiB, 1 threads\)\n seqs ")
        self.assertEqual(len(text.split("\n")), 6)

    def test_wrong_use(self):
        for text in ("", "0", "1,", ",1", "1,,2", "1, 2", "x", "-1", "5000", "1" * 40, ",".join(["1"] * 65)):
            self.fails(2, "--seqs: '%s' is not a list" % text, "bench", "-m", "fake", "--seqs", text)
        self.fails(2, "nothing to measure", "bench", "-m", "fake", "-p", "0", "-n", "0")
        self.fails(2, "needs sequences of 640 tokens; this engine has 600", "bench", "-m", "fake", "-c", "600")
        self.fails(2, "--seqs 8 is more than this engine runs at the same time, 4", "bench", "-m", "fake", "--seqs", "8", "--max-seqs", "4")
        self.fails(1, "cannot go on", "bench", "-m", "dies", "--json")


if __name__ == "__main__":
    main(sys.modules["__main__"])
