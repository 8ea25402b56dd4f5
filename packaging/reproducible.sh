#!/usr/bin/env bash
# Builds the shipped binary from two copies of the committed source, in folders of different names and lengths, and
# compares the digests. Needs cargo and git, 4 GB of disk, and twice the time of a build (two cores: about 12 minutes).
#
#   reproducible.sh [WORK]   WORK: a folder for both builds, kept; default: a temporary one
#
# Equal are two builds with one compiler, C compiler and linker: the paths of source, registry and target folder are
# replaced, the commit and date come from git, and nothing else of the machine is in the binary.
set -euo pipefail
cd "$(dirname "$0")/.."
work=${1:-$(mktemp -d)}
[ $# -eq 1 ] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work"
work=$(realpath "$work")
commit=$(git rev-parse --short=12 HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH GRAPEVINE_COMMIT=$commit CARGO_INCREMENTAL=0
registry=${CARGO_HOME:-$HOME/.cargo}
for place in a another-place; do
  source=$work/$place/source
  rm -rf "$source"
  mkdir -p "$source"
  git archive "$commit" | tar -x -C "$source"
  flags="--remap-path-prefix=$source=/source --remap-path-prefix=$work/$place/target=/target --remap-path-prefix=$registry=/cargo"
  maps="-ffile-prefix-map=$work/$place/target=/target -ffile-prefix-map=$registry=/cargo"
  (cd "$source" && CARGO_TARGET_DIR=$work/$place/target RUSTFLAGS=$flags CFLAGS=$maps \
    cargo build --profile dist --locked --no-default-features --features jemalloc,kubernetes)
done
sha256sum "$work"/*/target/dist/grapevine
if cmp "$work/a/target/dist/grapevine" "$work/another-place/target/dist/grapevine"; then
  echo "equal"
else
  echo "they differ; diffoscope shows where" >&2
  exit 1
fi
