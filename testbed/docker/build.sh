#!/usr/bin/env bash
# Makes all that docker-compose.yml needs, without pulling anything: the images `grapevine:local` of the replicas,
# `grapevine-testbed:local` of the fake workers and `grapevine-haproxy:local`, and certificates for router-1 to router-6.
#
#   build.sh                  builds two static binaries: for the replicas what is shipped, without the testbed. Their
#                             images hold them and nothing else. Needs cargo
#   build.sh --binary FILE    takes this binary for both. With the libraries that it needs, when it is a dynamic one;
#                             then also libfaketime, where it is installed, for clock faults
#   build.sh --binary FILE --shipped FILE   takes the second one for the replicas
#
#   GRAPEVINE_IMAGE=NAME, GRAPEVINE_TESTBED_IMAGE=NAME
#                             other names for the images, here and in docker-compose.yml
#   HAPROXY_IMAGE=NAME        take this haproxy image in docker-compose.yml and make none. Else haproxy comes from this
#                             machine, or from its Debian package, which is unpacked and not installed
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
image=${GRAPEVINE_IMAGE:-grapevine:local}
testbed_image=${GRAPEVINE_TESTBED_IMAGE:-grapevine-testbed:local}
haproxy_image=grapevine-haproxy:local
binary=
shipped=
replicas=(router-1 router-2 router-3 router-4 router-5 router-6)
renewed_after_days=60   # certificates of replicas are valid for 90

fail() { printf 'build.sh: %s\n' "$*" >&2; exit 1; }

while [ $# -gt 0 ]; do
  case $1 in
    --binary) [ $# -ge 2 ] || fail "--binary needs a file"; binary=$2; shift 2 ;;
    --shipped) [ $# -ge 2 ] || fail "--shipped needs a file"; shipped=$2; shift 2 ;;
    -h|--help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) fail "unknown argument $1; see --help" ;;
  esac
done

command -v docker > /dev/null || fail "docker is missing: apt-get install docker.io docker-compose"
docker info > /dev/null 2>&1 ||
  fail "the docker daemon does not answer: is it started, and are you in the group docker? Try: docker info"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

. packaging/image/recipe.sh   # libraries, place, import, replica_image

# --- the binaries
static() {  # further flags of cargo
  RUSTFLAGS="-C target-feature=+crt-static" cargo build --profile dist --locked --target "$target" --bin grapevine "$@"
}
if [ -z "$binary" ]; then
  [ -z "$shipped" ] || fail "--shipped needs --binary too, for the workers"
  command -v cargo > /dev/null || fail "cargo is missing: install Rust, or give a binary by --binary"
  target=$(rustc -vV | sed -n 's/^host: //p')
  built=${CARGO_TARGET_DIR:-target}/$target/dist/grapevine
  static --features jemalloc,kubernetes
  binary=$work/with-testbed   # the next one has the same place
  cp "$built" "$binary"
  static --no-default-features --features jemalloc,kubernetes
  shipped=$built
fi
shipped=${shipped:-$binary}
for file in "$binary" "$shipped"; do
  [ -x "$file" ] || fail "$file is not executable"
  "$file" --version > /dev/null || fail "$file does not run here"
done
"$binary" fake-worker --help > /dev/null || fail "$binary has no fake workers: it was built with --no-default-features"

faketime=
program_image() {  # binary, name
  local root=$work/root-${2//[!a-z0-9]/-}
  place "$1" /grapevine "$root"
  if [ -d "$root/lib" ]; then
    faketime=$(find /usr/lib* -name libfaketime.so.1 -print -quit 2> /dev/null || true)
    [ -z "$faketime" ] || place "$faketime" /lib/libfaketime.so.1 "$root"
  fi
  replica_image "$root" "$2"
}
program_image "$binary" "$testbed_image"
program_image "$shipped" "$image"

# --- haproxy
# Downloads its Debian package into $unpacked/packages, with its libraries and those that these need; any further
# ones are part of every Debian. apt drops its rights for downloads and may not write here; that is only a warning.
needed_by() {
  apt-cache depends --important "$@" 2> "$work/apt.log" | sed -n 's/^ *Depends: \(lib[^ <>]*\)$/\1/p' | sort -u
}
download() {
  local packages
  packages=$(needed_by haproxy) && packages=$(needed_by haproxy $packages) || return
  (cd "$unpacked/packages" && apt-get download haproxy $packages 2> "$work/apt.log" > /dev/null)
}

if [ -z "${HAPROXY_IMAGE:-}" ]; then
  root=$work/haproxy
  unpacked=$work/debian
  haproxy=$(PATH=$PATH:/usr/sbin command -v haproxy || true)
  if [ -z "$haproxy" ]; then
    command -v apt-get > /dev/null ||
      fail "haproxy is missing: install it, or name an image: HAPROXY_IMAGE=haproxy:lts"
    mkdir -p "$unpacked/packages"
    # A fresh machine has no lists of packages, or old ones.
    download || { apt-get update > /dev/null 2>&1 && download; } ||
      fail "haproxy is missing and cannot be downloaded: $(tail -1 "$work/apt.log")
  Try: apt-get update, or apt-get install haproxy, or name an image: HAPROXY_IMAGE=haproxy:lts"
    for package in "$unpacked"/packages/*.deb; do dpkg -x "$package" "$unpacked"; done
    haproxy=$unpacked/usr/sbin/haproxy
  fi
  found=$(find "$unpacked" -name '*.so*' -printf '%h\n' 2> /dev/null | sort -u | paste -sd: || true)
  place "$haproxy" /usr/sbin/haproxy "$root" "$found"
  import "$root" "$haproxy_image" 'ENV LD_LIBRARY_PATH=/lib' 'ENV PATH=/usr/sbin'
fi

# --- certificates
ca=$here/ca
[ -e "$ca/ca.pem" ] || "$shipped" ca init --dir "$ca" --cluster-id testbed
find "$ca" -name 'router-*' -mtime +"$renewed_after_days" -delete
for replica in "${replicas[@]}"; do
  [ -e "$ca/$replica.pem" ] || "$shipped" ca issue "$replica" --dir "$ca"
done

echo "now: docker-compose up -d, then curl -s http://127.0.0.1:30080/v1/models"
[ -z "$faketime" ] || echo "clock faults: GRAPEVINE_PRELOAD=/lib/libfaketime.so.1 docker-compose up -d"
