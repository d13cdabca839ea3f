# SPDX-License-Identifier: Apache-2.0
"""What the system allows a process: locked memory of an ordinary user, and a memory cgroup. Each case is a test of its own; exit status 77 with the reason where this machine cannot pose it.

test_limits.py BINARY memlock|cgroup
"""
import json
import os
import resource
import subprocess
import sys
import time

from cli_runner import BINARY, CliTest, environment, main
from moe_checkpoint import Headers

MIB = 1 << 20
NOBODY = 65534
CASE = sys.argv[2] if len(sys.argv) > 2 else ""


def skip(why):
    print("SKIPPED: " + why)
    sys.exit(77)


def wide_experts(folder):
    """A checkpoint of holes whose experts are large enough to be read past the page cache: 3 layers of 8, each of 3 matrices of 640 KiB, 45 MiB in all."""
    h = Headers("qwen3-moe")
    wide = 4096
    h.config["moe_intermediate_size"] = wide
    for name, (dtype, shape) in h.tensors.items():
        if ".experts." in name:
            h.tensors[name] = (dtype, [shape[0], wide] if "down_proj" in name else [wide, shape[1]])
    return h.write(folder)


def in_eight_mebibytes():
    """In the child: an ordinary user who may lock 8 MiB."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 * MIB, 8 * MIB))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


class Memlock(CliTest):
    """Slots are registered with the kernel where the limit of locked memory allows it, and used unregistered where not; the answers are those of resident experts."""

    def run_as_nobody(self, model, *args):
        return self.run_cli("complete", "-m", model, "--token-ids", "3,5,8,13,21", "-n", "4", "--ignore-eos", "--json", *args, preexec_fn=in_eight_mebibytes)

    def test_registered_only_where_the_limit_allows(self):
        model = wide_experts(self.path("model"))
        os.chmod(self.folder.name, 0o755)
        for size, registered in (("6M", True), ("40M", False)):
            result = self.run_as_nobody(model, "--experts", "stream", "--host-experts", size, "--expert-reader", "io_uring")
            line = [x for x in result.err.splitlines() if "experts are read by io_uring" in x]
            self.assertEqual(len(line), 1, result.err)
            self.assertEqual("slots registered" in line[0], registered, result.err)
            self.assertGreater(result.json["experts"]["misses"], 0)
            resident = self.run_as_nobody(model, "--experts", "resident")
            self.assertEqual(result.json["text"], resident.json["text"])


def memory_cgroup():
    """A new group of our own, or None: (folder, file of the limit)."""
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        folder = os.path.join(root, "headrace-test-%d" % os.getpid())
        try:
            os.mkdir(folder)
        except OSError:
            continue
        if os.path.exists(os.path.join(folder, limit)):
            return folder, os.path.join(folder, limit)
        os.rmdir(folder)
    return None


class Cgroup(CliTest):
    """In groups of every size a start is refused with the numbers, or runs to its end; nobody is killed."""

    def run_in(self, group, n_bytes, *args):
        folder, limit = group
        with open(limit, "w", encoding="ascii") as f:
            f.write(str(n_bytes))
        enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
        return subprocess.run(["sh", "-c", enter, folder, BINARY, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment(), timeout=300, check=False)

    def test_a_start_that_is_accepted_is_not_killed(self):
        group = memory_cgroup()
        self.addCleanup(os.rmdir, group[0])
        model = wide_experts(self.path("model"))
        settings = ["-m", model, "--experts", "stream", "-c", "256", "--max-seqs", "4", "--max-batch-tokens", "128"]
        prompts = [x for q in range(4) for x in ("--token-ids", ",".join(str(3 + (7 * i + 11 * q) % 200) for i in range(200)))]
        refused = ran = 0
        for size in range(4 * MIB, 96 * MIB, 4 * MIB):
            plan = self.run_in(group, size, "plan", *settings, "--json")
            done = self.run_in(group, size, "complete", *settings, *prompts, "-n", "16", "--ignore-eos", "--json")
            self.assertNotIn(done.returncode, (-9, 137), "killed in a group of %d MiB, where plan says %d: %s" % (size // MIB, plan.returncode, plan.stdout))
            if done.returncode in (3, 4):
                self.assertEqual(ran, 0, "more room is never worse: %s" % done.stderr)
                self.assertRegex(done.stderr, r"\d")
                refused += 1
                continue
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(plan.returncode, 0, plan.stderr)
            answers = [json.loads(x) for x in done.stdout.splitlines()]
            experts = (answers[-1][-1] if isinstance(answers[-1], list) else answers[-1])["experts"]
            self.assertGreater(experts["misses"], 0)
            ran += 1
        print("%d sizes were refused, in %d it ran" % (refused, ran))
        self.assertGreater(refused, 0)
        self.assertGreater(ran, 5)

    def test_the_least_that_plan_accepts_is_enough(self):
        group = memory_cgroup()
        self.addCleanup(os.rmdir, group[0])
        model = wide_experts(self.path("model"))
        settings = ["-m", model, "--experts", "stream", "-c", "256", "--max-seqs", "4", "--max-batch-tokens", "128"]
        below, enough = 4 * MIB, 96 * MIB
        while enough - below > MIB // 8:
            size = (below + enough) // 2
            if self.run_in(group, size, "plan", *settings).returncode == 0:
                enough = size
            else:
                below = size
        for _ in range(10):  # what those before it had in use may still be counted
            done = self.run_in(group, enough + MIB // 8, "complete", *settings, "--token-ids", "3,5,8,9", "-n", "4", "--ignore-eos")
            if done.returncode == 0:
                return
            time.sleep(0.3)
        self.fail("plan accepts a group of %.2f MiB: %s" % (enough / MIB, done.stderr))


def poseable():
    with open(BINARY, "rb") as f:
        sanitized = any(name in f.read() for name in (b"__asan_init", b"__tsan_init"))
    if CASE == "cgroup":
        if sanitized:
            skip("memory under a sanitizer is not what was planned")
        group = memory_cgroup()
        if group is None:
            skip("no memory cgroup can be made here")
        os.rmdir(group[0])
        return
    if os.geteuid() != 0 and resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] < 8 * MIB:
        skip("less than 8 MiB may be locked here")
    try:
        probe = subprocess.run([BINARY, "--version"], preexec_fn=in_eight_mebibytes, capture_output=True, check=False)
    except (OSError, subprocess.SubprocessError) as e:
        skip("no ordinary user can be posed here: %s" % e)
    if probe.returncode != 0:
        skip("an ordinary user cannot run %s: %s" % (BINARY, probe.stderr))


if __name__ == "__main__":
    poseable()
    module = sys.modules[__name__]
    for other in ("Memlock", "Cgroup"):
        if other.lower() != CASE:
            delattr(module, other)
    main(module)
