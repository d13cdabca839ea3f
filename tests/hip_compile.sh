#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles the kernels without matrix instructions as HIP for AMD devices: tests/hip_compile.sh [-j N] [--all | --target T]...
# Every .cu file of src/vt/cuda but the ones named below goes to device code of each target, linked, and to an object for the host, from the published HIP headers. Then the objects are linked
# with a table of rows without matrix units, as a HIP backend would have it: each row that is left has its function, and each signature still has a row. Nothing is run on a device.
#   --target T  gfx1030 (waves of 32 lanes; what is compiled without this option) or another; several are possible
#   --all       gfx1030 and gfx90a (waves of 64 lanes)
# Needs clang++ 15, its device libraries and HIP's headers (tools/install_deps.sh hip); exit status 77 (a skip) without. The last line is "N passed, N failed, N skipped".
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
cd "$root/src" || exit 1

jobs=$(nproc) targets=()
while [ $# -gt 0 ]; do
    case $1 in
        -j | --target) [ $# -gt 1 ] || { echo "hip_compile: $1 needs a value" >&2; exit 2; } ;;&
        -j) jobs=$2; shift ;;
        --target) targets+=("$2"); shift ;;
        --all) targets+=(gfx1030 gfx90a) ;;
        -h | --help) sed -n '3,8s/^# \{0,1\}//p' "$root/tests/hip_compile.sh"; exit 0 ;;
        *) echo "hip_compile: unknown option $1 (-j N, --all, --target T)" >&2; exit 2 ;;
    esac
    shift
done
[ ${#targets[@]} -gt 0 ] || targets=(gfx1030)

# NVIDIA's matrix units: wgmma, mma, ldmatrix, movmatrix, cp.async, clusters. A new file is either written for both vendors or named here, and its rows have the switch HEADRACE_CUDA_MATRIX.
matrix=(attention_decode attention_mma attention_prefill attention_warps grouped_blocks grouped_mma grouped_scaled_mma grouped_scaled_tma grouped_scaled_wgmma grouped_wgmma matmul_bf16 matmul_blocks_mma
    matmul_blocks_wgmma matmul_mma matmul_scaled_mma matmul_scaled_wgmma)

skip() {
    echo "SKIPPED: kernels as HIP: $1 (tools/install_deps.sh hip)"
    echo "0 passed, 0 failed, 1 skipped"
    exit 77
}
clang=$(command -v clang++-15) || skip "there is no clang++-15"
libraries=/usr/lib/$(uname -m)-linux-gnu/amdgcn/bitcode
[ -f "$libraries/ocml.bc" ] || skip "there are no device libraries in $libraries"
[ -f /usr/include/hip/hip_runtime.h ] || skip "there is no hip/hip_runtime.h"

out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT

# As the CUDA build: a fused multiply-add is written as one. Division and square root are rounded correctly without a flag. Loops around exchanges between lanes are not unrolled by clang: no warning.
common=(-std=c++17 -O3 -ffp-contract=off -Wall -Wextra -Werror -Wno-pass-failed -D_GNU_SOURCE -I.)
hip=(-x hip --rocm-path=/usr "--rocm-device-lib-path=$libraries" -D__HIP_PLATFORM_AMD__ -fPIC -fvisibility=hidden -fno-exceptions -fno-rtti "${common[@]}")

step() { # NAME COMMAND...: one line with the last of what it said, or all of what went wrong
    local name=$1 log
    shift
    if log=$("$@" 2>&1); then echo "ok $name${log:+: ${log##*$'\n'}}"; else printf 'FAILED %s\n%s\n' "$name" "$log"; fi
}

# shellcheck disable=SC2329  # called below through xargs
compile() { # KERNEL TARGET|host
    case $2 in
        host) step "$1.cu for the host" "$clang" "${hip[@]}" --offload-arch=gfx1030 --cuda-host-only -c "vt/cuda/$1.cu" -o "$out/$1.o" ;;
        *) step "$1.cu for $2" "$clang" "${hip[@]}" "--offload-arch=$2" --cuda-device-only --no-gpu-bundle-output -c "vt/cuda/$1.cu" -o "$out/$1.$2" ;;
    esac
}

# shellcheck disable=SC2329
work() {
    eval "$state"
    compile "$@"
}
kernels=()
for file in vt/cuda/*.cu; do
    name=$(basename "$file" .cu)
    case " ${matrix[*]} " in *" $name "*) ;; *) kernels+=("$name") ;; esac
done
for name in "${matrix[@]}"; do
    [ -f "vt/cuda/$name.cu" ] || echo "FAILED the list of matrix kernels: there is no $name.cu"
done >"$out/log"
state=$(declare -p clang hip out)
export state
export -f work compile step
for target in host "${targets[@]}"; do
    for name in "${kernels[@]}"; do echo "$name $target"; done
done | xargs -P "$jobs" -L 1 bash -c 'work "$@"' hip_compile >>"$out/log"

link() { # all of it, against the runtime library; the code of the devices is not in it
    "$clang" -shared -Wl,-z,defs -o "$out/linked.so" "$out/hip_table.o" "${kernels[@]/#/$out/}" -lamdhip64
}
rows_of() {
    "${CC:-cc}" -std=c17 -Wall -Wextra -Werror -DHIP_ROWS_COUNT -I. "$root/tests/hip/hip_rows.c" -o "$out/hip_count" && "$out/hip_count"
}
headers() { # what a backend's C++ may see
    for file in vt/*.h; do
        case $file in *_begin.h | *_end.h) ;; *) echo "#include \"$file\"" ;; esac
    done >"$out/headers.cpp"
    "$clang" "${hip[@]}" "--offload-arch=${targets[0]}" "$1" -fsyntax-only "$out/headers.cpp"
}
table() { "${CC:-cc}" -std=c17 -fPIC -D__HIP_PLATFORM_AMD__ -Wall -Wextra -Werror -I. -c "$root/tests/hip/hip_rows.c" -o "$out/hip_table.o"; }
{
    step "table of rows" table
    kernels=("${kernels[@]/%/.o}")
    step "link with the rows' functions and libamdhip64" link
    step "every signature has a row" rows_of
    step "headers of vt for the host" headers --cuda-host-only
    step "headers of vt for ${targets[0]}" headers --cuda-device-only
} >>"$out/log"
cat "$out/log"
passed=$(grep -c '^ok ' "$out/log") failed=$(grep -c '^FAILED ' "$out/log")
[ "$failed" = 0 ] || echo "A kernel file is written for both vendors (gpu_vendor.cuh), or named in this script and its rows with HEADRACE_CUDA_MATRIX."
echo "for ${targets[*]}; NVIDIA's alone: ${matrix[*]}"
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
