#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command in a clean clone inside a fresh minimal Debian 12: tests/chroot.sh [--keep] [COMMAND [ARG...]]   (default: ./check.sh)
# The clone is of HEAD: what is not committed is not there. Nothing is preinstalled but what debootstrap's minbase brings, so that a
# package missing from tools/install_deps.sh fails here. Needs root; exit status 77 (a skip) without. --keep leaves the folder.
set -euo pipefail
cd "$(dirname "$0")/.."

keep=0
[ "${1-}" != --keep ] || { keep=1; shift; }
[ $# -gt 0 ] || set -- ./check.sh
[ "$(id -u)" = 0 ] || { echo "SKIP: a chroot needs root"; exit 77; }
tools/install_deps.sh build chroot

place=$(mktemp -d "${TMPDIR:-/var/tmp}/headrace-chroot.XXXXXX")
chmod 755 "$place"
cleanup() {
    if [ $keep = 1 ]; then echo "chroot: kept in $place"; else rm -rf --one-file-system "$place"; fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM

echo "chroot: debootstrap of bookworm in $place"
debootstrap --variant=minbase bookworm "$place" >"$place.log" 2>&1 || { tail -n 20 "$place.log"; rm -f "$place.log"; echo "chroot: debootstrap failed"; exit 1; }
rm -f "$place.log"
cp /etc/resolv.conf "$place/etc/resolv.conf"

[ -z "$(git status --porcelain --untracked-files=no)" ] || echo "chroot: note: changes that are not committed are not part of the clone"
git clone --quiet --no-hardlinks . "$place/srv/headrace"

# How this machine reaches the network holds inside too: proxies, and certificates that the host trusts.
settings=(HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 TERM=dumb)
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY CI; do
    [ -z "${!name-}" ] || settings+=("$name=${!name}")
done
if [ -f /etc/ssl/certs/ca-certificates.crt ]; then
    cp /etc/ssl/certs/ca-certificates.crt "$place/etc/host-certificates.crt"
    settings+=(PIP_CERT=/etc/host-certificates.crt)
fi

# A mount namespace of its own: /proc is there for the sanitizers, /dev/pts for the tests of what a terminal sees; both are gone with the last process.
inside=(chroot "$place")
if unshare --mount --pid --fork --mount-proc="$place/proc" true 2>/dev/null; then
    # shellcheck disable=SC2016 # expanded inside
    inside=(unshare --mount --pid --fork --kill-child --mount-proc="$place/proc" bash -c
        'mkdir -p "$0/dev/pts" && mount -t devpts -o newinstance,ptmxmode=0666 devpts "$0/dev/pts" && exec chroot "$0" "$@"' "$place")
else
    echo "chroot: note: no mount namespace here, so the run has neither /proc nor /dev/pts"
fi
start=$SECONDS rc=0
"${inside[@]}" env -i "${settings[@]}" bash -c 'cd /srv/headrace && exec "$@"' run "$@" </dev/null || rc=$?
echo "chroot: $* ended with exit status $rc after $((SECONDS - start)) s"
exit $rc
