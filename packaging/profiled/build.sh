#!/usr/bin/env bash
# Builds what is shipped with what the compiler learns from a run: first an instrumented build, which is sent a replica's
# usual work (train.py), then the optimised one, which knows from it what is hot.
#
#   build.sh OUT [ARGUMENT ...]     OUT: a file for the binary; arguments are of both builds, by default
#                                   --no-default-features --features jemalloc,kubernetes
#   PROFILE=FILE                    what was learned: used if the file exists, else written there. Counts differ from run
#                                   to run, so a build is repeated with the same file; it holds for one commit, one
#                                   compiler and equal features
#   TESTBED=BINARY                  a build with the testbed in it, for load and workers; without it one is built
#
# Needs cargo; to learn, also python3, openssl, and llvm-profdata of the compiler's own LLVM: rustup component add
# llvm-tools. Takes three times as long as a plain build; with a profile, as long as one.
set -euo pipefail
[[ $# -ge 1 && $1 != -* ]] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
out=$(realpath -m "$1")
profile=${PROFILE:+$(realpath -m "$PROFILE")}
testbed=${TESTBED:+$(realpath -e "$TESTBED")}
target=${CARGO_TARGET_DIR:+$(realpath -m "$CARGO_TARGET_DIR")}
shift
[ $# -gt 0 ] || set -- --no-default-features --features jemalloc,kubernetes
cd "$(dirname "$0")/../.."
here=$PWD/packaging/profiled
host=$(rustc -vV | sed -n 's/^host: //p')
target=${target:-$PWD/target}
fail() { printf 'profiled/build.sh: %s\n' "$*" >&2; exit 1; }
# Names of functions, by which counts are found again, depend on features and on whether a target is named.
build() { cargo build --profile dist --locked --bin grapevine --target "$host" "$@"; }

learn() {  # file for the profile, arguments of the build
  local made=$1 counts=$target/profiled/counts program merge
  shift
  merge=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
  [ -x "$merge" ] || fail "no llvm-profdata beside the compiler: rustup component add llvm-tools"
  for program in python3 openssl; do
    command -v "$program" > /dev/null || fail "$program is missing"
  done
  rm -rf "$counts"
  mkdir -p "$counts" "$(dirname "$made")"
  if [ -z "$testbed" ]; then
    cargo build --release --locked
    testbed=$target/release/grapevine
  fi
  # What is counted is the same with and without optimisation across crates, which takes most of the time.
  CARGO_PROFILE_DIST_LTO=off CARGO_TARGET_DIR=$target/profiled/instrumented \
    RUSTFLAGS="${RUSTFLAGS:-} -Cprofile-generate=$counts" build "$@"
  LLVM_PROFILE_FILE="$counts/%p-%m.profraw" \
    "$here/train.py" --instrumented "$target/profiled/instrumented/$host/dist/grapevine" --testbed "$testbed"
  "$merge" merge -o "$made.new" "$counts"
  mv "$made.new" "$made"
}

if [ -z "$profile" ]; then
  profile=$target/profiled/grapevine.profdata
  rm -f "$profile"
fi
[ -e "$profile" ] || learn "$profile" "$@"
CARGO_TARGET_DIR=$target/profiled/optimised RUSTFLAGS="${RUSTFLAGS:-} -Cprofile-use=$profile" build "$@"
install -D "$target/profiled/optimised/$host/dist/grapevine" "$out"
