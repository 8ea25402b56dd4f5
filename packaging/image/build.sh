#!/usr/bin/env bash
# Makes the image of a replica FROM scratch: one binary, with the libraries that it needs, and a numeric user.
#
#   build.sh BINARY NAME     for example grapevine:0.1.0; needs docker
#
# A static binary makes the smallest image, and one that can be copied to any machine:
#   RUSTFLAGS="-C target-feature=+crt-static" cargo build --profile dist --locked --target "$(rustc -vV | sed -n 's/^host: //p')" \
#     --no-default-features --features jemalloc,kubernetes
set -euo pipefail
fail() { printf 'image/build.sh: %s\n' "$*" >&2; exit 1; }
[ $# -eq 2 ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
. "$(dirname "$0")/recipe.sh"
command -v docker > /dev/null || fail "docker is missing: apt-get install docker.io"
binary=$(realpath -e "$1")
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
place "$binary" /grapevine "$root"
replica_image "$root" "$2"
