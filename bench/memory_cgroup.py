# SPDX-License-Identifier: Apache-2.0
"""A memory cgroup (v1 or v2) for one run of a program, and what the scripts beside it share."""

import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
HEADRACE = os.path.join(HERE, "..", "build", "headrace")


class RunError(Exception):
    """What went wrong, in words for the person who ran it."""


def _mounts():
    """Where groups can be made: ("v1" | "v2", folder)."""
    with open("/proc/mounts", encoding="utf-8") as f:
        for line in f:
            _, where, kind, options = line.split()[:4]
            if kind == "cgroup" and "memory" in options.split(","):
                yield "v1", where
            if kind == "cgroup2":
                try:
                    with open(os.path.join(where, "cgroup.subtree_control"), encoding="utf-8") as g:
                        if "memory" in g.read().split():
                            yield "v2", where
                except OSError:
                    continue


class Group:
    """`with Group(bytes) as g: run(command, g)`; bytes None: no group, and no limit."""

    FILES = {"v1": ("memory.limit_in_bytes", "memory.max_usage_in_bytes"), "v2": ("memory.max", "memory.peak")}

    def __init__(self, limit_bytes):
        self.limit, self.path, self.kind = limit_bytes, None, None

    def __enter__(self):
        if self.limit is None:
            return self
        for self.kind, where in _mounts():
            path = os.path.join(where, f"headrace-bench-{os.getpid()}-{time.monotonic_ns()}")
            try:
                os.mkdir(path)
                self.path = path
                with open(os.path.join(path, self.FILES[self.kind][0]), "w", encoding="utf-8") as f:
                    f.write(str(self.limit))
                return self
            except OSError:
                self.__exit__()
        raise RunError("no memory cgroup can be made here: that takes root, and a mounted memory controller")

    def __exit__(self, *_):
        for _ in range(50):
            if self.path is None:
                return
            try:
                os.rmdir(self.path)
                self.path = None
            except OSError:
                time.sleep(0.1)

    def enter(self):
        """For preexec_fn: the calling process goes into the group."""
        if self.path is not None:
            with open(os.path.join(self.path, "cgroup.procs"), "w", encoding="utf-8") as f:
                f.write(str(os.getpid()))

    def peak(self):
        """Most bytes charged to the group so far, page cache included; None without a group."""
        try:
            with open(os.path.join(self.path or "", self.FILES.get(self.kind, ("", ""))[1]), encoding="utf-8") as f:
                return int(f.read())
        except (OSError, ValueError):
            return None


def drop_cache(path):
    """Nothing of the file stays in the page cache."""
    f = os.open(path, os.O_RDONLY)
    try:
        os.fsync(f)
        os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(f)


def run(command, group=None, limit_s=900):
    """(standard output, standard error, seconds); a failure is a RunError with the end of what was said."""
    began = time.monotonic()
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False, timeout=limit_s, preexec_fn=group.enter if group else None)
    except subprocess.TimeoutExpired as late:
        raise RunError(f"took more than {limit_s} s: {' '.join(command)}") from late
    if done.returncode != 0:
        raise RunError(f"exit status {done.returncode}: {' '.join(command)}\n{done.stderr.strip()[-1500:]}")
    return done.stdout, done.stderr, time.monotonic() - began


def run_json(command, group=None, limit_s=900):
    out = run(command, group, limit_s)[0]
    try:
        return json.loads(out)
    except ValueError as bad:
        raise RunError(f"no JSON ({bad}): {' '.join(command)}\n{out[:500]}") from bad


def plan(headrace, model, *options):
    return run_json([headrace, "plan", "-m", model, *options, "--json"])


def spread(values, form="{:.2f}"):
    """median (least-most)"""
    v = [x for x in values if x is not None]
    return f"{form.format(statistics.median(v))} ({form.format(min(v))}-{form.format(max(v))})" if v else "-"


def found_share(x):
    """Of the experts taken, those that were there already: neither read when they were wanted nor ahead of that."""
    return 1 - (x["misses"] + x["prefetch_used"]) / max(1, x["hits"] + x["misses"])


def read_ahead_kb(path):
    """Of the queue that the file's file system is on; None where it cannot be found."""
    dev = os.stat(path).st_dev
    for name in (f"/sys/dev/block/{os.major(dev)}:{os.minor(dev)}/queue/read_ahead_kb", f"/sys/dev/block/{os.major(dev)}:{os.minor(dev)}/../queue/read_ahead_kb"):
        try:
            with open(name, encoding="utf-8") as f:
                return int(f.read())
        except (OSError, ValueError):
            continue
    return None


def main_guard(main):
    try:
        sys.exit(main())
    except RunError as error:
        print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr)
        sys.exit(1)
