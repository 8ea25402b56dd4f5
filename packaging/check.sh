#!/usr/bin/env bash
# Checks all packages of a binary. Under four minutes; needs Linux (Debian), root, docker, python3 with venv.
#
#   check.sh BINARY          each part prints what it checks
set -euo pipefail
[ $# -eq 1 ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
binary=$(realpath -e "$1")
cd "$(dirname "$0")"
for part in monitoring deb image chart wheel; do
  begun=$SECONDS
  "$part/check.sh" "$binary"
  echo "$part: good, $((SECONDS - begun)) s"
done
