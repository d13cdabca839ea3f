# SPDX-License-Identifier: Apache-2.0
"""Runs the binary under test (the first argument of the test program) and checks what holds for every run."""
import json
import os
import select
import subprocess
import sys
import tempfile
import unittest

BINARY = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else ""


def environment(extra=None):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
    kept["HEADRACE_DEVICE"] = "cpu"  # what is expected is the processor's, also where there is another device
    kept.update(extra or {})
    return kept


class Result:
    def __init__(self, code, out, err):
        self.code, self.out_bytes, self.err = code, out, err.decode("utf-8", "replace")

    @property
    def out(self):
        return self.out_bytes.decode("utf-8")

    @property
    def json(self):
        assert self.out.endswith("\n") and self.out.count("\n") == 1, "JSON is one line"
        return json.loads(self.out)


class CliTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="headrace-cli-")
        self.addCleanup(self.folder.cleanup)

    def path(self, name, content=None):
        path = os.path.join(self.folder.name, name)
        if content is not None:
            with open(path, "wb") as f:
                f.write(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    def run_cli(self, *args, code=0, stdin=b"", env=None, **more):
        done = subprocess.run([BINARY, *args], input=stdin, stdout=more.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE,
                              env=environment(env), timeout=300, check=False, **more)
        result = Result(done.returncode, done.stdout or b"", done.stderr)
        self.check(result)
        self.assertEqual(result.code, code, result.err)
        return result

    def check(self, result):
        """No sanitizer report, no leak of ours, no control character on standard error."""
        for word in ("Sanitizer", "runtime error", "headrace: bug"):
            self.assertNotIn(word, result.err)
        self.assertFalse([c for c in result.err if ord(c) < 32 and c != "\n"], result.err)

    def fails(self, code, text, *args, **more):
        """Fails with the code, says `text` as the last line of standard error, prints nothing else."""
        result = self.run_cli(*args, code=code, **more)
        last = result.err.rstrip("\n").split("\n")[-1]
        self.assertTrue(last.startswith("headrace: "), result.err)
        self.assertIn(text, last)
        self.assertEqual(result.out_bytes, b"")
        return result

    def popen(self, *args, **more):
        process = subprocess.Popen([BINARY, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), **more)
        self.addCleanup(process.wait)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        return process

    def read_one(self, process):
        """The first byte of standard output, while the process runs on."""
        ready, _, _ = select.select([process.stdout], [], [], 120)
        self.assertTrue(ready, "nothing was printed")
        return os.read(process.stdout.fileno(), 1)


def main(module):
    if not BINARY:
        sys.exit("usage: %s BINARY" % sys.argv[0])
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    result = unittest.TextTestRunner(verbosity=1).run(suite)
    print("%d cases, %d of them failed" % (result.testsRun, len(result.failures) + len(result.errors)))
    sys.exit(0 if result.wasSuccessful() and result.testsRun > 0 else 1)
