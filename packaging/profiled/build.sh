#!/usr/bin/env bash
# Builds what is shipped with what the compiler learns from a run: first an instrumented build, which is sent a replica's
# usual work (train.py), then the optimised one, which knows from it what is hot.
#
#   build.sh OUT [ARGUMENT ...]     OUT: a file for the binary; arguments are of both builds, by default
#                                   --no-default-features --features jemalloc,kubernetes
#   TESTBED=BINARY                  a build with the testbed in it, for load and workers; without it one is built
#
# Needs cargo, python3, openssl, and llvm-profdata of the compiler's own LLVM: rustup component add llvm-tools. Takes
# three times as long as a plain build. Not reproducible bit by bit: counts differ from run to run.
set -euo pipefail
[[ $# -ge 1 && $1 != -* ]] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
out=$(realpath -m "$1")
testbed=${TESTBED:+$(realpath -e "$TESTBED")}
target=${CARGO_TARGET_DIR:+$(realpath -m "$CARGO_TARGET_DIR")}
shift
[ $# -gt 0 ] || set -- --no-default-features --features jemalloc,kubernetes
cd "$(dirname "$0")/../.."
here=$PWD/packaging/profiled
host=$(rustc -vV | sed -n 's/^host: //p')
merge=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
[ -x "$merge" ] || { echo "build.sh: no llvm-profdata beside the compiler: rustup component add llvm-tools" >&2; exit 1; }
for program in python3 openssl; do
  command -v "$program" > /dev/null || { echo "build.sh: $program is missing" >&2; exit 1; }
done
target=${target:-$PWD/target}
counts=$target/profiled/counts
rm -rf "$counts"
mkdir -p "$counts"
build() { cargo build --profile dist --locked --bin grapevine --target "$host" "$@"; }

if [ -z "$testbed" ]; then
  cargo build --release --locked
  testbed=$target/release/grapevine
fi
# What is counted is the same with and without optimisation across crates, which takes most of the time.
CARGO_PROFILE_DIST_LTO=off CARGO_TARGET_DIR=$target/profiled/instrumented \
  RUSTFLAGS="${RUSTFLAGS:-} -Cprofile-generate=$counts" build "$@"
LLVM_PROFILE_FILE="$counts/%p-%m.profraw" \
  "$here/train.py" --instrumented "$target/profiled/instrumented/$host/dist/grapevine" --testbed "$testbed"
"$merge" merge -o "$target/profiled/grapevine.profdata" "$counts"
CARGO_TARGET_DIR=$target/profiled/optimised \
  RUSTFLAGS="${RUSTFLAGS:-} -Cprofile-use=$target/profiled/grapevine.profdata" build "$@"
install -D "$target/profiled/optimised/$host/dist/grapevine" "$out"
