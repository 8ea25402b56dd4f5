#!/usr/bin/env bash
# Packs a binary into the wheel `grapevine-router`: pip install puts the program into the environment's bin folder.
#
#   build.sh BINARY OUT      OUT: a folder; prints the path of the wheel
#
# Needs python3, objdump, and cargo for the list of what the binary is made of. The platform tag says which glibc the
# binary asks for; `release.sh` builds one that asks for an old one.
set -euo pipefail
[ $# -eq 2 ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath -e "$1")
mkdir -p "$2"
out=$(realpath -e "$2")
# A static binary asks for none: the oldest that has a name.
glibc=$( { objdump -T "$binary" 2> /dev/null; echo GLIBC_2.17; } | grep -o 'GLIBC_2\.[0-9]*' | sort -Vu | tail -1)
metadata=$(mktemp)
trap 'rm -f "$metadata"' EXIT
(cd "$here/../.." && cargo metadata --locked --format-version 1 --no-default-features --features grapevine/jemalloc,grapevine/kubernetes \
  --filter-platform "$(rustc -vV | sed -n 's/^host: //p')") > "$metadata"
python3 "$here/pack.py" "$binary" "$out" "${glibc#GLIBC_2.}" "$metadata"
