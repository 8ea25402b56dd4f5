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
# Needs cargo, and llvm-profdata and llvm-nm of the compiler's own LLVM: rustup component add llvm-tools; to learn, also
# python3 and openssl. Takes three times as long as a plain build; with a profile, as long as one.
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
tools=$(rustc --print sysroot)/lib/rustlib/$host/bin
for tool in llvm-profdata llvm-nm; do
  [ -x "$tools/$tool" ] || fail "no $tool beside the compiler: rustup component add llvm-tools"
done
# Names of functions, by which counts are found again, depend on features, on whether a target is named, and on all that
# the profile `dist` says: cargo hashes it into every name. What differs between the builds is therefore said by flags.
build() { cargo build --profile dist --locked --bin grapevine --target "$host" "$@"; }

learn() {  # file for the profile, arguments of the build
  local made=$1 counts=$target/profiled/counts program
  shift
  for program in python3 openssl; do
    command -v "$program" > /dev/null || fail "$program is missing"
  done
  rm -rf "$counts"
  mkdir -p "$counts" "$(dirname "$made")"
  if [ -z "$testbed" ]; then
    CARGO_TARGET_DIR=$target cargo build --release --locked
    testbed=$target/release/grapevine
  fi
  # What is counted is the same with and without optimisation across crates, which takes most of the time.
  CARGO_TARGET_DIR=$target/profiled/instrumented \
    RUSTFLAGS="${RUSTFLAGS:-} -Clto=off -Clinker-plugin-lto=off -Cprofile-generate=$counts" build "$@"
  LLVM_PROFILE_FILE="$counts/%p-%m.profraw" \
    "$here/train.py" --instrumented "$target/profiled/instrumented/$host/dist/grapevine" --testbed "$testbed"
  "$tools/llvm-profdata" merge -o "$made.new" "$counts"
  mv "$made.new" "$made"
}

if [ -z "$profile" ]; then
  profile=$target/profiled/grapevine.profdata
  rm -f "$profile"
fi
[ -e "$profile" ] || learn "$profile" "$@"
CARGO_TARGET_DIR=$target/profiled/optimised RUSTFLAGS="${RUSTFLAGS:-} -Cprofile-use=$profile" build "$@"
made=$target/profiled/optimised/$host/dist/grapevine
# The compiler says nothing where no count is of any of its functions: then this is a plain build.
names=$(LC_ALL=C comm -12 <("$tools/llvm-profdata" show --all-functions "$profile" | sed -n 's/^  \([^ :]*\):$/\1/p' | LC_ALL=C sort -u) \
  <("$tools/llvm-nm" --format=just-symbols "$made" | LC_ALL=C sort -u) | wc -l)
[ "$names" -ge 1000 ] || fail "the profile knows $names functions of this build: it is of another commit, compiler or set of features"
echo "the profile knows $names functions by their names, besides those that were inlined" >&2
install -D "$made" "$out"
