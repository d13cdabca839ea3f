#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that a part of the work needs, and only those that are missing: tools/install_deps.sh GROUP...
# Groups: build (the library and the binary), tests (building and running the tests), clang (the clang build and the fuzz targets),
# model (getting the small real model), hip (compiling the kernels for AMD devices; 44 MB, Debian 12 alone), chroot (the run in a fresh Debian).
# Package names are the same on Debian 12 and Ubuntu 24.04 but for hip.
# Prints nothing and calls nothing but dpkg-query when all is there.
set -euo pipefail

packages_of() {
    case $1 in
        build) echo gcc libc6-dev cmake ninja-build pkg-config libjansson-dev libpcre2-dev libutf8proc-dev liburing-dev ;;
        tests) echo libcmocka-dev g++ python3 patch ;;
        clang) echo clang libclang-rt-dev ;;
        model) echo python3 python3-pip ca-certificates ;;
        hip) echo clang-15 lld rocm-device-libs libamdhip64-dev ;;
        chroot) echo debootstrap git ca-certificates ;;
        *)
            echo "install_deps: no such group: $1 (build, tests, clang, model, hip, chroot)" >&2
            return 2
            ;;
    esac
}

wanted=()
for group in "$@"; do
    list=$(packages_of "$group")
    for package in $list; do
        case " ${wanted[*]-} " in *" $package "*) ;; *) wanted+=("$package") ;; esac
    done
done
[ ${#wanted[@]} -gt 0 ] || { echo "usage: install_deps.sh GROUP..." >&2; exit 2; }

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "install_deps: this is not Debian or Ubuntu; going on as if these were installed: ${wanted[*]}" >&2
    exit 0
fi

installed() { # also true when another package provides the name (pkg-config by pkgconf)
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ] && return 0
    dpkg-query -W -f='${db:Status-Status} ${Provides}\n' 2>/dev/null | grep -qE "^installed (.*, )?$1( |,|\$)"
}

missing=()
for package in "${wanted[@]}"; do
    installed "$package" || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

root=()
if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null; then
        root=(sudo)
    else
        echo "install_deps: these packages are missing, and this is neither root nor is there a sudo. As root, run" >&2
        echo "    apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
        exit 1
    fi
fi
echo "install_deps: installing ${missing[*]}"
quiet=(-qq -o Dpkg::Use-Pty=0 -o Acquire::Retries=3)
"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "${quiet[@]}" update </dev/null ||
    { echo "install_deps: apt-get update failed; is the network reachable?" >&2; exit 1; }
"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "${quiet[@]}" install -y --no-install-recommends "${missing[@]}" </dev/null >/dev/null ||
    { echo "install_deps: apt-get could not install: ${missing[*]}" >&2; exit 1; }
