#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks of the tree itself: check_tree.py CHECK --source DIR --build DIR. One ctest entry per check (tests.cmake).

Each check looks at a counted set of things; a count of zero is a failure, so that a moved folder cannot turn a check off.
Exit status 0 passed, 1 failed, 77 skipped with the reason in the last line.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import c_source
import tree_files

# What each layer may include, by folder of src/ (docs/ARCHITECTURE.md 1). PUBLIC is include/headrace.
PUBLIC = "include/headrace"
LAYERS = {
    "base": {"base"},
    "vt": {"base", "vt"},
    "backend": {"base", "vt"},  # and its own folder
    "load": {"base", "vt", "load"},
    "moe": {"base", "vt", "load", "moe"},
    "text": {"base", "vt", "load", "text"},
    "model": {"base", "vt", "load", "moe", "model"},
    "engine": {"base", "vt", "load", "moe", "text", "model", "engine", PUBLIC},
    "server": {"base", "server", PUBLIC},
    "cli": {"base", "vt", "load", "text", "model", "server", "cli", PUBLIC},
}
# Includes that the build writes: they have no file in the tree.
GENERATED = re.compile(r"^vt/manifest_(begin|end)\.h$|^generated/")

# Calls that one place owns: pattern of the name -> files that may use it.
OWNED_CALLS = {
    "environment": (("getenv", "secure_getenv", "setenv", "unsetenv", "putenv"), re.compile(r"^src/base/os_\w+\.c$")),
    "exit": (("exit", "_exit", "_Exit", "quick_exit", "abort"), re.compile(r"^src/cli/")),
    "memory": (
        ("malloc", "calloc", "realloc", "reallocarray", "free", "strdup", "strndup", "asprintf", "vasprintf", "getline", "getdelim",
         "posix_memalign", "aligned_alloc", "memalign", "valloc", "open_memstream"),
        re.compile(r"^src/base/alloc\.c$"),
    ),
}
# (file, call): where a library owns the memory or wants plain functions, with the reason.
ALLOWED_CALLS = {}

# Words that say which machine it is, above the tensor runtime.
DEVICE_WORDS = re.compile(
    r"(?<![A-Za-z0-9])(cuda|vulkan|hip|rocm|opencl|sycl|nvidia|avx|avx2|avx512\w*|sse[234]?|fma3|vnni|amx|neon|sve|x86|x86_64|arm64|aarch64|(?-i:VT_DEVICE_(?!TYPE)[A-Z]\w*))(?![A-Za-z0-9])",
    re.I)
# The engine opens the device that was asked for, and the processor when none was.
DEVICE_WORDS_ALLOWED = {("engine", "VT_DEVICE_CPU")}

MACHINE_TEXT = [  # pieces, so that this file does not contain what it looks for
    r"(?<![\w.])/" + "work/", r"(?<![\w.])/" + "root/", r"(?<![\w.])/" + r"home/\w",
    "deb." + "debian", "snapshot." + "debian", "pypi" + r"\.org", "files." + "pythonhosted", "registry." + "npmjs", r"proxy\." + "golang",
]

SPDX = "SPDX-License-Identifier: Apache-2.0"
SOURCE_NAME = re.compile(r"(\.(c|h|cu|cuh|comp|def|py|sh|cmake|map)|CMakeLists\.txt|\.clang-format|^\.ci/run)$")


class Report:
    def __init__(self, source, build):
        self.source, self.build, self.faults, self.counts = source, build, [], []
        self.files = tree_files.present(source)

    def read(self, name):
        with open(os.path.join(self.source, name), encoding="utf-8", errors="surrogateescape") as f:
            return f.read()

    def fault(self, text):
        self.faults.append(text)

    def count(self, n, what):
        self.counts.append((n, what))
        if n == 0:
            self.fault(f"looked at 0 {what}: the check sees nothing")

    def c_files(self, *roots, suffixes=(".c", ".h", ".def")):
        return [f for f in self.files if f.startswith(roots) and f.endswith(suffixes)]

    def finish(self, name):
        for text in self.faults:
            print(text)
        print(f"{name}: " + ", ".join(f"{n} {what}" for n, what in self.counts) + f": {sum(n for n, _ in self.counts)} cases, {len(self.faults)} faults")
        return 1 if self.faults else 0


def skip(reason):
    print(f"SKIP: {reason}")
    sys.exit(77)


def layer_of(path):
    """(layer, backend folder or None) of a file under src/."""
    parts = path.split("/")
    if parts[1] == "vt" and len(parts) > 3:
        return "backend", "/".join(parts[1:3])
    return parts[1], None


def check_layers(r):
    """A file includes only from its own layer or below; nobody includes a backend's folder."""
    n_includes, seen = 0, 0
    backends = {layer_of(f)[1] for f in r.c_files("src/")} - {None}
    for name in r.c_files("src/"):
        layer, backend = layer_of(name)
        seen += 1
        if layer not in LAYERS:
            r.fault(f"{name}: src/{layer} is no layer of docs/ARCHITECTURE.md")
            continue
        for line, kind, path in c_source.includes(r.read(name)):
            if kind == "<":
                if path.startswith("headrace/"):
                    r.fault(f'{name}:{line}: include "{path}" with quotes')
                continue
            n_includes += 1
            if GENERATED.match(path):
                continue
            local = os.path.normpath(os.path.join(os.path.dirname(name), path))
            choices = [p for p in (local, "src/" + path, "include/" + path) if os.path.isfile(os.path.join(r.source, p))]
            if not choices:
                r.fault(f'{name}:{line}: "{path}" is no file of the tree')
                continue
            target = choices[0]
            if target.startswith("include/"):
                if PUBLIC not in LAYERS[layer] or not target.startswith(PUBLIC + "/"):
                    r.fault(f"{name}:{line}: src/{layer} may not include {target}")
                continue
            if not target.startswith("src/"):
                r.fault(f"{name}:{line}: {target} is outside src and include")
                continue
            to_layer, to_backend = layer_of(target)
            if to_backend:
                if to_backend != backend:
                    r.fault(f"{name}:{line}: {target} belongs to the backend {to_backend}, which nobody else includes")
            elif to_layer not in LAYERS[layer]:
                r.fault(f"{name}:{line}: src/{layer} may not include from src/{to_layer} ({target})")
    r.count(seen, "files of src")
    r.count(n_includes, "includes")
    r.count(len(backends), "backends")


def compile_header(cc, flags, path):
    with tempfile.TemporaryDirectory() as folder:
        unit = os.path.join(folder, "unit.c" if "c++" not in flags[0] else "unit.cc")
        with open(unit, "w", encoding="utf-8") as f:
            f.write(f'#include "{path}"\n#include "{path}"\ntypedef int not_empty;\n')
        return subprocess.run([cc, *flags, "-fsyntax-only", unit], capture_output=True, text=True)


def reached(r, name, seen):
    for _, kind, path in c_source.includes(r.read(name)):
        target = next((p for p in ("src/" + path, "include/" + path) if os.path.isfile(os.path.join(r.source, p))), None)
        if kind == '"' and target and target not in seen:
            seen.add(target)
            reached(r, target, seen)
    return seen


def check_headers(r):
    """Each header compiles alone, and twice; what a backend in C++ sees compiles as C++17 too."""
    warn = ["-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE"]
    dirs = ["-I" + os.path.join(r.source, "src"), "-I" + os.path.join(r.source, "include"), "-I" + os.path.join(r.build, "generated")]
    cc = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or "cc"
    headers = [h for h in r.c_files("src/", "include/", suffixes=(".h",)) if not re.search(r"(_template|_begin|_end)\.h$", h)]
    isa = {"_avx2.h": ["-mavx2", "-mfma", "-mf16c"], "_avx512.h": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"]}
    for name in headers:
        extra = next((flags for end, flags in isa.items() if name.endswith(end)), [])
        out = compile_header(cc, ["-std=c17", *warn, *extra, *dirs], os.path.join(r.source, name))
        if out.returncode:
            r.fault(f"{name} does not compile alone:\n{out.stderr.strip()}")
    r.count(len(headers), "headers as C17")
    cxx = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not cxx:
        r.fault("no C++ compiler: install g++")
        return
    outside = {"src/vt/backend.h"} | {h for h in headers if h.startswith("include/")}
    for name in list(outside):
        reached(r, name, outside)
    outside = sorted(h for h in outside if h.endswith(".h"))
    for name in outside:
        out = compile_header(cxx, ["-std=c++17", *warn, *dirs], os.path.join(r.source, name))
        if out.returncode:
            r.fault(f"{name} does not compile as C++17:\n{out.stderr.strip()}")
    r.count(len(outside), "headers as C++17")


def check_sizes(r):
    """Reported, not failed: files over 1,000 lines (tables excepted), functions over 120."""
    n_functions, names = 0, r.c_files("src/", "tests/", "bench/", "include/")
    for name in names:
        text = r.read(name)
        lines = text.count("\n")
        if lines > 1000 and "_table." not in name:
            print(f"long file: {name}: {lines} lines (1,000 is the end)")
        for function, line, length in c_source.functions(text):
            n_functions += 1
            if length > 120:
                print(f"long function: {name}:{line}: {function}: {length} lines (120 is the end)")
    r.count(len(names), "files")
    r.count(n_functions, "functions")


def check_calls(r):
    """getenv, exit and malloc have one home each (in the text; the objects are checked by `symbols`)."""
    names = r.c_files("src/", "include/")
    for name in names:
        code = c_source.code_only(r.read(name))
        for what, (calls, home) in OWNED_CALLS.items():
            if home.match(name):
                continue
            for m in re.finditer(r"(?<![\w.>])(" + "|".join(calls) + r")\s*\(", code):
                if (name, m.group(1)) not in ALLOWED_CALLS:
                    r.fault(f"{name}:{code.count(chr(10), 0, m.start()) + 1}: {m.group(1)}: {what} belongs to {home.pattern}")
    r.count(len(names), "files")


def check_device_words(r):
    """No device or instruction-set name above the tensor runtime."""
    names = [f for f in r.c_files("src/") if layer_of(f)[0] in ("load", "moe", "text", "model", "engine", "server")]
    judged = [f for f in names if layer_of(f)[0] in ("moe", "model", "engine", "server")]
    for name in judged:
        for i, line in enumerate(r.read(name).splitlines(), 1):
            for m in DEVICE_WORDS.finditer(line):
                if (layer_of(name)[0], m.group(1)) not in DEVICE_WORDS_ALLOWED:
                    r.fault(f"{name}:{i}: says {m.group(1)}")
    r.count(len(judged), "files")


def tool_or_skip(name):
    path = shutil.which(name)
    if not path:
        skip(f"{name} is not installed (Debian package binutils)")
    return path


def objects(r):
    """(archive, member, undefined symbols) of each object of our archives."""
    nm = tool_or_skip("nm")
    archives = sorted(f for f in os.listdir(r.build) if re.match(r"^libhr_\w+\.a$", f))
    archives += sorted(os.path.join("src/vt", d, f) for d in backend_folders(r) for f in list_dir(os.path.join(r.build, "src/vt", d)) if f.endswith(".a"))
    for archive in archives:
        text = subprocess.run([nm, "-A", "-P", os.path.join(r.build, archive)], capture_output=True, text=True, check=True).stdout
        members = {}
        for line in text.splitlines():
            m = re.match(r"^(.*)\[(.*)\]: (\S+) (\w)", line)
            if m:
                members.setdefault(m.group(2), set())
                if m.group(4) == "U":
                    members[m.group(2)].add(m.group(3))
        for member, undefined in sorted(members.items()):
            yield archive, member, undefined


def list_dir(path):
    return sorted(os.listdir(path)) if os.path.isdir(path) else []


def backend_folders(r):
    return sorted({layer_of(f)[1].split("/")[1] for f in r.c_files("src/") if layer_of(f)[1]})


def source_of(r, archive, member):
    """The file of the tree behind an object: names are unique in the tree."""
    base = member[:-2] if member.endswith(".o") else member
    found = [f for f in r.files if f.startswith("src/") and os.path.basename(f) == base]
    return found[0] if len(found) == 1 else base


def check_symbols(r):
    """What the objects call, and what libheadrace.so exports."""
    n_objects = 0
    for archive, member, undefined in objects(r):
        n_objects += 1
        name = source_of(r, archive, member)
        for what, (calls, home) in OWNED_CALLS.items():
            if home.match(name):
                continue
            for call in sorted(undefined & set(calls)):
                if (name, call) not in ALLOWED_CALLS:
                    r.fault(f"{archive}({member}): calls {call}: {what} belongs to {home.pattern}")
    r.count(n_objects, "objects")
    library = os.path.join(r.build, "libheadrace.so")
    if not os.path.exists(library):
        r.fault("no libheadrace.so in the build")
        return
    text = subprocess.run([tool_or_skip("nm"), "-D", "--defined-only", "-P", library], capture_output=True, text=True, check=True).stdout
    exported = [line.split()[0] for line in text.splitlines() if line.strip()]
    for symbol in exported:
        if not symbol.startswith("headrace_"):
            r.fault(f"libheadrace.so exports {symbol}")
    r.count(len(exported), "exported symbols")
    declared = set()
    for header in r.c_files("include/", suffixes=(".h",)):
        declared |= set(re.findall(r"HEADRACE_API[^;{}]*?\b(headrace_\w+)\s*\(", c_source.code_only(r.read(header))))
    missing = sorted(d for d in declared - {e.split("@")[0] for e in exported})
    for symbol in missing:
        r.fault(f"{symbol} is declared in include/headrace and not exported")
    r.count(len(declared), "declared functions")


MOST_BINARY_BYTES = 5 << 20


def check_binary(r):
    """The binary is small without its symbols, and needs no library of a GPU's maker."""
    binary = os.path.join(r.build, "headrace")
    if not os.path.exists(binary):
        r.fault("no headrace in the build")
        return
    with tempfile.TemporaryDirectory() as folder:
        stripped = os.path.join(folder, "headrace")
        subprocess.run([tool_or_skip("strip"), "-o", stripped, binary], check=True)
        size = os.path.getsize(stripped)
    if size > MOST_BINARY_BYTES:
        r.fault(f"the stripped binary has {size} bytes; at most {MOST_BINARY_BYTES} are allowed")
    text = subprocess.run([tool_or_skip("readelf"), "-dW", binary], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", text)
    for library in needed:
        if re.search(r"cuda|cublas|nv", library):
            r.fault(f"the binary needs {library}: backends are found at run time")
    r.count(size // 1024, "KiB stripped")
    r.count(len(needed), "libraries needed")


def check_isa(r):
    """Vector registers wider than the baseline's only in objects of files with their own flags (src/vt/cpu/x86/)."""
    objdump = tool_or_skip("objdump")
    archives = [os.path.join(r.build, f) for f in list_dir(r.build) if re.match(r"^libhr_\w+\.a$", f)]
    archives += [os.path.join(r.build, "src/vt", d, f) for d in backend_folders(r) for f in list_dir(os.path.join(r.build, "src/vt", d)) if f.endswith(".a")]
    plain, wide, wide_used = 0, 0, 0
    for archive in archives:
        text = subprocess.run([objdump, "-d", "--no-show-raw-insn", archive], capture_output=True, text=True, check=True).stdout
        for part in re.split(r"\n(?=\S+\.o:\s+file format )", text):
            m = re.match(r"(\S+\.o):\s+file format (\S+)", part.lstrip())
            if not m:
                continue
            if "x86-64" not in m.group(2):
                skip("not an x86-64 build")
            allowed = re.search(r"_(avx2|avx512)\.c\.o$", m.group(1))
            registers = set(re.findall(r"%([yz]mm)\d", part))
            if allowed:
                wide += 1
                wide_used += bool(registers)
                if allowed.group(1) == "avx2" and ("zmm" in registers or re.search(r"%[xyz]mm(1[6-9]|2\d|3[01])\b|%k[0-7]\b", part)):
                    r.fault(f"{os.path.basename(archive)}({m.group(1)}): AVX-512 in an AVX2 file")
            else:
                plain += 1
                if registers:
                    r.fault(f"{os.path.basename(archive)}({m.group(1)}): uses {', '.join(sorted(registers))} outside src/vt/cpu/x86")
    r.count(plain, "baseline objects")
    sources = [f for f in r.files if re.match(r"^src/vt/cpu/x86/\w+_avx(2|512)\.c$", f)]
    print(f"{wide} objects with their own flags, {wide_used} of them use wide registers, {len(sources)} such sources")
    if sources and wide and wide_used == 0:
        r.fault("no object with its own flags uses a wide register: the disassembly is not read")


def check_spdx(r):
    """Each source file names its licence in its first three lines."""
    names = [f for f in r.files if SOURCE_NAME.search(f) or (os.access(os.path.join(r.source, f), os.X_OK) and "." not in os.path.basename(f))]
    names = [f for f in names if not f.startswith("tests/data/")]
    for name in names:
        if not any(SPDX in line for line in r.read(name).split("\n", 3)[:3]):
            r.fault(f"{name}: no '{SPDX}' in its first 3 lines")
    r.count(len(names), "source files")


def check_names(r):
    """File names are snake_case and unique in the tree, and say what lives there."""
    names = [f for f in r.c_files("src/", "include/", "tests/", "bench/") if f.endswith((".c", ".h"))]
    homes = {}
    for name in names:
        base = os.path.basename(name)
        if not re.fullmatch(r"[a-z][a-z0-9_]*\.[ch]", base):
            r.fault(f"{name}: not snake_case")
        if re.fullmatch(r"(utils?|common|misc|helpers?)\.[ch]", base):
            r.fault(f"{name}: a name that says nothing")
        homes.setdefault(base, []).append(name)
    for base, where in homes.items():
        if len(where) > 1:
            r.fault(f"{base} is there more than once: {', '.join(where)}")
    r.count(len(names), "files")


def check_hygiene(r):
    """No paths of one machine, no hosts of package registries; links between documents lead somewhere."""
    patterns = [re.compile(p) for p in MACHINE_TEXT]
    n_files = n_links = 0
    for name in r.files:
        path = os.path.join(r.source, name)
        if os.path.islink(path) or os.path.getsize(path) > 4 << 20:
            continue
        with open(path, "rb") as f:
            data = f.read()
        if b"\0" in data[:4096]:
            continue
        n_files += 1
        for i, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            for p in patterns:
                if p.search(line):
                    r.fault(f"{name}:{i}: {p.pattern}: {line.strip()[:120]}")
        if name.endswith(".md"):
            for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", data.decode("utf-8", "replace")):
                if re.match(r"[a-z]+:", target):
                    continue
                n_links += 1
                if not os.path.exists(os.path.join(r.source, os.path.dirname(name), target)):
                    r.fault(f"{name}: link to {target}, which is not there")
    r.count(n_files, "text files")
    r.count(n_links, "links")


def check_flags(r):
    """Every flag that --help shows is described in README.md or docs/."""
    binary = os.path.join(r.build, "headrace")
    if not os.access(binary, os.X_OK):
        skip("this build has no headrace binary")
    def help_of(*args):
        out = subprocess.run([binary, *args, "--help"], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        if out.returncode:
            r.fault(f"headrace {' '.join(args)} --help: exit status {out.returncode}")
        return out.stdout
    top = help_of()
    commands = [c for c in re.findall(r"^\s{1,6}([a-z][a-z-]+)\s{2,}\S", top, re.M)]
    flags, texts = set(), top
    for command in commands:
        texts += help_of(command)
    flags = set(re.findall(r"(?<![\w-])--(?:\[no-\])?([a-z][a-z0-9-]+)", texts))
    documents = "".join(r.read(f) for f in r.files if f == "README.md" or (f.startswith("docs/") and f.endswith(".md")))
    for flag in sorted(flags):
        if not re.search(r"--(\[no-\]|no-)?" + re.escape(flag) + r"(?![\w-])", documents):
            r.fault(f"--{flag} is in --help and in no document")
    for command in commands:
        if not re.search(r"headrace " + command + r"\b|`" + command + r"\b", documents):
            r.fault(f"the command {command} is in --help and in no document")
    r.count(len(commands), "commands")
    r.count(len(flags), "flags")


CHECKS = {name[len("check_"):]: f for name, f in sorted(globals().items()) if name.startswith("check_") and callable(f)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check", choices=CHECKS)
    parser.add_argument("--source", required=True)
    parser.add_argument("--build", required=True)
    args = parser.parse_args()
    report = Report(os.path.abspath(args.source), os.path.abspath(args.build))
    CHECKS[args.check](report)
    return report.finish(args.check)


if __name__ == "__main__":
    sys.exit(main())
