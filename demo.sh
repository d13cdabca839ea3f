#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh clone to an answer: installs what the build needs, builds, gets a small real model, and asks it something.
# ./demo.sh [QUESTION]. Runs at once when all is there.
set -euo pipefail
cd "$(dirname "$0")"
question=${1:-What is a water wheel, and what does it do?}

tools/install_deps.sh build model
mkdir -p build
quietly() { # WHAT COMMAND...
    echo "demo: $1"
    shift
    "$@" >build/demo.log 2>&1 || { tail -n 40 build/demo.log >&2; echo "demo: that failed; all of it is in build/demo.log" >&2; exit 1; }
}
[ -f build/build.ninja ] || quietly "configuring" cmake --preset release -DHEADRACE_TESTS=OFF
quietly "building (build/headrace)" cmake --build --preset release --target headrace_bin
model=$(tools/get_model.sh | tail -n 1)
echo "demo: $model"

build/headrace complete -m "$model" -n 64 -p "<|im_start|>user
$question<|im_end|>
<|im_start|>assistant
"
