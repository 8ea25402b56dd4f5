#!/usr/bin/env bash
# Builds the wheel of a release: the shipped binary, linked against glibc 2.17, so that it runs on any Linux since 2014.
#
#   release.sh OUT           OUT: a folder; needs cargo, python3 with venv and the network; minutes
#
# maturin and ziglang, whose compiler knows old releases of glibc, go into an environment beside the Python tools of the
# checks. The bill of materials in the wheel is maturin's.
set -euo pipefail
[ $# -eq 1 ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
mkdir -p "$1"
out=$(realpath -e "$1")
cd "$(dirname "$0")"
tools=${CARGO_TARGET_DIR:-../../target}/maturin
[ -x "$tools/bin/maturin" ] || python3 -m venv "$tools"
"$tools/bin/pip" install --quiet --disable-pip-version-check 'maturin==1.16.0' 'ziglang==0.17.1'
# Beside it may lie the wheel of `build.sh`, for newer systems.
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
PATH=$(realpath "$tools")/bin:$PATH maturin build --zig --compatibility manylinux2014 --out "$made"
./check.sh "$made"/grapevine_router-*.whl
mv "$made"/grapevine_router-*.whl "$out"
