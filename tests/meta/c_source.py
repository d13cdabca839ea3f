# SPDX-License-Identifier: Apache-2.0
"""C source as a check sees it: comments and literals blanked out, lines kept; includes; functions with their lengths."""

import re

TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.M)


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def code_only(text):
    """Comments and the insides of literals become blanks; every line keeps its number."""
    return TOKEN.sub(blank, text)


def includes(text):
    """(line number, "quoted" or <system>, path) of each #include outside comments."""
    bare = TOKEN.sub(lambda m: blank(m) if m.group(0)[0] == "/" else m.group(0), text)
    return [(bare.count("\n", 0, m.start()) + 1, m.group(1), m.group(2)) for m in INCLUDE.finditer(bare)]


def functions(text):
    """(name, first line, lines) of each function body that opens at the left margin's depth."""
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, code_only(text), flags=re.M)
    found, depth, start, name, head = [], 0, 0, "", 0
    for i, ch in enumerate(code):
        if ch == "{":
            if depth == 0:
                before = code[head:i]
                m = re.search(r"(\w+)\s*\([^;{}]*\)\s*(?:__attribute__\s*\(\(.*\)\)\s*)?$", before, re.S)
                name, start = (m.group(1) if m else ""), i
            depth += 1
        elif ch == "}":
            depth = max(0, depth - 1)
            if depth == 0:
                if name:
                    first = code.count("\n", 0, start) + 1
                    found.append((name, first, code.count("\n", start, i) + 1))
                head, name = i + 1, ""
        elif ch == ";" and depth == 0:
            head = i + 1
    return found
