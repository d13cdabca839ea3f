# SPDX-License-Identifier: Apache-2.0
"""The files of the tree: what git tracks where the tree is a checkout of its own, else everything but builds."""

import os
import re
import subprocess

SKIPPED_FOLDERS = re.compile(r"^(\.git|build.*|out|__pycache__|\.cache)$")


def walked(root):
    found = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(f for f in subfolders if not SKIPPED_FOLDERS.match(f))
        found += [os.path.relpath(os.path.join(folder, f), root) for f in files]
    return sorted(f for f in found if not f.endswith((".o", ".so")))


def tracked(root):
    """Relative paths, sorted. Tracked files that are deleted in the working tree are left out."""
    try:
        run = lambda *args: subprocess.run(["git", "-C", root, *args], capture_output=True, check=True, text=True).stdout
        if os.path.realpath(run("rev-parse", "--show-toplevel").strip()) != os.path.realpath(root):
            return walked(root)
        names = run("ls-files", "-z").split("\0")
    except (OSError, subprocess.CalledProcessError):
        return walked(root)
    return sorted(n for n in names if n and os.path.isfile(os.path.join(root, n)))


def present(root):
    """As tracked, with files that are new and not ignored: what a developer is about to commit."""
    try:
        run = lambda *args: subprocess.run(["git", "-C", root, *args], capture_output=True, check=True, text=True).stdout
        if os.path.realpath(run("rev-parse", "--show-toplevel").strip()) != os.path.realpath(root):
            return walked(root)
        names = run("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    except (OSError, subprocess.CalledProcessError):
        return walked(root)
    return sorted({n for n in names if n and os.path.isfile(os.path.join(root, n))})
