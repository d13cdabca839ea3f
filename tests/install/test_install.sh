#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the build into a fresh folder and uses it as a stranger would: test_install.sh BUILD SOURCE MODEL
# What is installed, what the library exports, a program compiled with pkg-config alone (as C and as C++), its answers.
set -euo pipefail
build=$1 source=$2 model=$3
prefix=$(mktemp -d "${TMPDIR:-/tmp}/headrace-install-XXXXXX")
trap 'rm -rf "$prefix"' EXIT
cases=0
passed() { cases=$((cases + 1)); }
fail() { echo "FAILED: $*"; exit 1; }

cmake --install "$build" --prefix "$prefix" >"$prefix/log" 2>&1 || { cat "$prefix/log"; fail "cmake --install"; }
passed
library=$(find "$prefix" -name 'libheadrace.so' | head -n 1)
pc=$(find "$prefix" -name headrace.pc)
[ -n "$library" ] && [ -n "$pc" ] && [ -f "$prefix/include/headrace/headrace.h" ] || fail "library, headrace.pc or header is missing"
[ "$(find "$prefix/include" -type f | wc -l)" = 1 ] || fail "more than one header is installed"
passed

others=$(nm -D --defined-only "$library" | awk '{print $NF}' | grep -v '^headrace_' || true)
[ -z "$others" ] || fail "the library exports other names than headrace_*: $others"
n=$(nm -D --defined-only "$library" | grep -c ' T headrace_')
[ "$n" -ge 20 ] || fail "only $n functions are exported"
passed

export PKG_CONFIG_PATH=${pc%/*} LD_LIBRARY_PATH=${library%/*}
[ "$(pkg-config --variable=prefix headrace)" = "$prefix" ] || fail "headrace.pc has another prefix"
[ "$(pkg-config --modversion headrace)" = "$("$prefix/bin/headrace" --version | awk '{print $NF}')" ] || fail "headrace.pc and the binary have different versions"
passed

read -ra flags <<<"$(pkg-config --cflags --libs headrace)"
"${CC:-cc}" -std=c17 -Wall -Wextra -Werror "$source/examples/complete.c" "${flags[@]}" -o "$prefix/complete"
passed
out=$("$prefix/complete" "$model" "The water came down the race" "def add(a, b):") || fail "the example fails: $out"
grep -q '^The water came down the race' <<<"$out" && grep -q '^def add(a, b):' <<<"$out" && [ "$(grep -c 'from the prefix cache' <<<"$out")" = 2 ] || fail "the example says: $out"
passed
[ "$out" = "$("$prefix/complete" "$model" "The water came down the race" "def add(a, b):")" ] || fail "the same seed gives another text"
passed
rc=0
"$prefix/complete" "$prefix/no-such.gguf" x 2>"$prefix/err" || rc=$?
[ $rc = 1 ] && grep -q no-such "$prefix/err" || fail "a missing model: exit $rc, $(cat "$prefix/err")"
passed

if command -v "${CXX:-c++}" >/dev/null; then
    printf '#include <headrace/headrace.h>\nint main() { return headrace_version()[0] ? 0 : 1; }\n' >"$prefix/version.cc"
    "${CXX:-c++}" -std=c++17 -Wall -Wextra -Werror "$prefix/version.cc" "${flags[@]}" -o "$prefix/version"
    "$prefix/version" || fail "no version"
    passed
fi
echo "install: $cases cases"
