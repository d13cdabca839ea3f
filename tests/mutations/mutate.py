#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Apply each patch of tests/mutations to a copy of the tree, build it, and require that its test fails.

A patch NAME.patch begins with

    # breaks: what is broken, in one line
    # red: ctest -R REGEX         (or any command; it runs in the build folder, SOURCE and BUILD are set)

and goes on as a unified diff for patch -p1. It counts as red when it applies without fuzz, the tree builds, and the test reports at
least one case and fails; a crash counts only where the test said how many cases it has. Anything else is a failure of the patch: a
test that stays green, a patch that no longer applies, a build that breaks, a test that times out or runs no case. First the same
tests must pass on the unmutated copy; where they are skipped there (a missing model or device), the patch is skipped by name.

The copy and its build live in build/mutations and are kept, so that each mutation compiles only what it changes. A file is restored
byte for byte and the whole copy is verified by hash at the end.
"""

import argparse
import glob
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "meta"))
import count_junit
import tree_files

WORK = os.path.join(ROOT, "build", "mutations")
TREE, BUILD = os.path.join(WORK, "tree"), os.path.join(WORK, "build")
DIRTY = os.path.join(WORK, "dirty")  # exists while a mutation is applied: a run that was ended there leaves it
TEST_TIMEOUT_S = 600
CASES = re.compile(r"\b(\d+) (?:test\(s\)|tests? run\b|cases?\b)")


def sh(args, **more):
    return subprocess.run(args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **more)


def digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def write_bytes(path, data, mode):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:  # a new time stamp: the build must see the change
        f.write(data)
    os.chmod(path, mode)


def sync_tree():
    """Make TREE the tracked tree; only files whose bytes differ are written. Returns {name: sha256}."""
    if os.path.exists(DIRTY):
        shutil.rmtree(TREE, ignore_errors=True)
        shutil.rmtree(BUILD, ignore_errors=True)
        os.remove(DIRTY)
    os.makedirs(TREE, exist_ok=True)
    names, sums = tree_files.tracked(ROOT), {}
    for name in names:
        src, dst = os.path.join(ROOT, name), os.path.join(TREE, name)
        sums[name] = digest(src)
        if not os.path.isfile(dst) or digest(dst) != sums[name]:
            with open(src, "rb") as f:
                write_bytes(dst, f.read(), os.stat(src).st_mode & 0o777)
        elif os.stat(dst).st_mode != os.stat(src).st_mode:
            os.chmod(dst, os.stat(src).st_mode & 0o777)
    for name in set(all_files()) - set(names):
        os.remove(os.path.join(TREE, name))
    return sums


def all_files():
    found = []
    for folder, subfolders, files in os.walk(TREE):
        subfolders[:] = [f for f in subfolders if f != "__pycache__"]
        found += [os.path.relpath(os.path.join(folder, f), TREE) for f in files]
    return found


def configure():
    args = ["cmake", "-S", TREE, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-O1 -g1"]
    if shutil.which("ccache"):
        args.append("-DCMAKE_C_COMPILER_LAUNCHER=ccache")
    return sh(args)


def build(jobs):
    return sh(["ninja", "-C", BUILD, f"-j{jobs}"])


class Outcome:
    """What a red command did: failed, skipped, number of cases, why it cannot be judged."""

    def __init__(self):
        self.failed, self.skipped, self.cases, self.problem, self.log = False, False, 0, "", ""


def count_cases(text):
    """cmocka says its number at start and end, our programs at the end: the largest counts once."""
    return max([int(n) for n in CASES.findall(text)], default=0)


def run_ctest(args):
    out, xml = Outcome(), os.path.join(WORK, "junit.xml")
    if os.path.exists(xml):
        os.remove(xml)
    command = ["ctest", "--no-tests=error", "--output-junit", xml, "--test-output-size-passed", "1000000", "--test-output-size-failed", "1000000",
               "--timeout", str(TEST_TIMEOUT_S), *args]
    done = sh(command, cwd=BUILD)
    out.log = done.stdout
    if not os.path.exists(xml):
        out.problem = "ctest ran no test"
        return out
    cases = list(ElementTree.parse(xml).getroot().iter("testcase"))
    verdicts = []
    for case in cases:
        text = case.findtext("system-out") or ""
        failure = case.find("failure")
        reason = failure.get("message", "") if failure is not None else ""
        out.log += f"\n--- {case.get('name')}: {case.get('status')} {reason}\n{text}"
        verdicts.append(count_junit.outcome(case)[0])
        if "timeout" in reason.lower():
            out.problem = f"{case.get('name')} timed out"
        elif case.get("status") == "notrun" and verdicts[-1] == "failed":
            out.problem = f"{case.get('name')} could not be run"
        elif verdicts[-1] != "skipped":
            n = count_cases(text)
            if n == 0:
                out.problem = out.problem or f"{case.get('name')} says no number of cases"
            out.cases += n
    out.failed = "failed" in verdicts
    out.skipped = bool(verdicts) and set(verdicts) == {"skipped"}
    if not verdicts:
        out.problem = "ctest ran no test"
    return out


def run_red(red):
    words = shlex.split(red)
    if words[0] == "ctest":
        return run_ctest(words[1:])
    out = Outcome()
    try:
        done = sh(["bash", "-c", red], cwd=BUILD, timeout=TEST_TIMEOUT_S, env=dict(os.environ, SOURCE=TREE, BUILD=BUILD))
    except subprocess.TimeoutExpired:
        out.problem = "timed out"
        return out
    out.log, out.skipped, out.failed = done.stdout, done.returncode == 77, done.returncode not in (0, 77)
    out.cases = count_cases(done.stdout)
    if done.returncode in (126, 127):
        out.problem = "the command could not be run"
    elif not out.skipped and out.cases == 0:
        out.problem = "the command says no number of cases"
    return out


def read_patch(path):
    with open(path, encoding="utf-8") as f:
        head = f.read().split("\n--- ", 1)[0]
    field = lambda key: (re.search(rf"^# {key}: *(.+?) *$", head, re.M) or [None, None])[1]
    return field("breaks"), field("red")


def tail(text, lines=25):
    return "\n".join("    | " + line for line in text.strip().splitlines()[-lines:])


def mutate(path, sums, jobs):
    """None when the test went red, else why not."""
    patch = ["patch", "-p1", "--fuzz=0", "--no-backup-if-mismatch", "--batch", "-d", TREE, "-i", path]
    dry = sh([*patch, "--dry-run"])
    if dry.returncode:
        return "the patch no longer applies:\n" + tail(dry.stdout)
    with open(DIRTY, "w", encoding="utf-8") as f:
        f.write(os.path.basename(path) + "\n")
    try:
        applied = sh(patch)
        if applied.returncode:
            return "the patch does not apply:\n" + tail(applied.stdout)
        if "with fuzz" in applied.stdout:
            return "the patch applies with fuzz:\n" + tail(applied.stdout)
        built = build(jobs)
        if built.returncode:
            return "the mutated tree does not build:\n" + tail(built.stdout)
        return run_red(read_patch(path)[1])
    finally:
        restore(sums)
        os.remove(DIRTY)


def restore(sums):
    for name, sum_ in sums.items():
        dst = os.path.join(TREE, name)
        if not os.path.isfile(dst) or digest(dst) != sum_:
            src = os.path.join(ORIGINAL, name)
            with open(src, "rb") as f:
                write_bytes(dst, f.read(), os.stat(src).st_mode & 0o777)
    for name in set(all_files()) - set(sums):
        os.remove(os.path.join(TREE, name))
    verify(sums)


def verify(sums):
    if set(all_files()) != set(sums):
        sys.exit("mutate: the copy has other files than the tree: " + ", ".join(sorted(set(all_files()) ^ set(sums))[:5]))
    for name, sum_ in sums.items():
        if digest(os.path.join(TREE, name)) != sum_:
            sys.exit(f"mutate: {name} was not restored byte for byte")


ORIGINAL = os.path.join(WORK, "original")  # the bytes to restore from: the tree may be edited while this runs


def keep_original(sums):
    shutil.rmtree(ORIGINAL, ignore_errors=True)
    shutil.copytree(TREE, ORIGINAL, ignore=shutil.ignore_patterns("__pycache__"))
    for name, sum_ in sums.items():
        if digest(os.path.join(ORIGINAL, name)) != sum_:
            sys.exit(f"mutate: {name} changed while it was copied; run again")


def choose(args):
    patches = {os.path.basename(p)[:-len(".patch")]: p for p in sorted(glob.glob(os.path.join(HERE, "*.patch")))}
    if args.all:
        names = list(patches)
    elif args.names:
        names = [n[:-len(".patch")] if n.endswith(".patch") else n for n in map(os.path.basename, args.names)]
    else:
        with open(os.path.join(HERE, "quick.txt"), encoding="utf-8") as f:
            names = [line.split("#")[0].strip() for line in f if line.split("#")[0].strip()]
    unknown = [n for n in names if n not in patches]
    if unknown:
        sys.exit("mutate: no such patch: " + ", ".join(unknown))
    return {n: patches[n] for n in names}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("-j", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    chosen = choose(args)
    passed = failed = skipped = 0
    start = time.monotonic()

    sums = sync_tree()
    keep_original(sums)
    for step in (configure(), build(args.j)):
        if step.returncode:
            print(tail(step.stdout, 40))
            sys.exit("mutate: the unmutated copy does not build")
    baseline = {}
    for path in chosen.values():
        red = read_patch(path)[1]
        if red and red not in baseline:
            baseline[red] = run_red(red)
    print(f"mutations: {len(chosen)} patches, {len(baseline)} commands on the unmutated copy, {time.monotonic() - start:.0f} s to here", flush=True)

    for name, path in chosen.items():
        began = time.monotonic()
        breaks, red = read_patch(path)
        base = baseline.get(red)
        if not breaks or not red:
            verdict = "its head lacks '# breaks:' or '# red:'"
        elif base.skipped:
            print(f"SKIPPED  {name}: {red} is skipped here", flush=True)
            skipped += 1
            continue
        elif base.failed or base.problem:
            verdict = f"{red} does not pass before the mutation: {base.problem or 'it fails'}\n{tail(base.log)}"
        else:
            outcome = mutate(path, sums, args.j)
            if isinstance(outcome, str):
                verdict = outcome
            elif outcome.problem:
                verdict = outcome.problem + "\n" + tail(outcome.log)
            elif not outcome.failed:
                verdict = f"GREEN: {red} passes all {outcome.cases} cases in spite of it"
            else:
                passed += 1
                print(f"RED      {name} ({outcome.cases} cases, {time.monotonic() - began:.0f} s): {breaks}", flush=True)
                continue
        failed += 1
        print(f"BAD      {name}: {verdict}", flush=True)
    verify(sums)
    if passed + failed + skipped == 0:
        sys.exit("mutate: no patch was chosen")
    print(f"mutations: {passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
