#!/usr/bin/env bash
# Checks the Debian package: unit, configuration, and its life on a Debian: install, upgrade, remove, purge.
#
#   check.sh BINARY          about 20 s; needs root, Debian, overlayfs, systemd-analyze, and lintian for its lines
#
# The Debian is this machine's, seen through an overlay in a namespace of its own: what the package does there stays
# there, and is gone at the end. A fresh one by debootstrap took 168 s. No service manager runs in it.
set -euo pipefail
fail() { printf 'deb/check.sh: %s\n' "$*" >&2; exit 1; }
[ $# -eq 1 ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
binary=$(realpath -e "$1")
cd "$(dirname "$0")"
[ "$(id -u)" = 0 ] || fail "a package is installed by root: sudo $0"
if ! command -v systemd-analyze > /dev/null; then
  apt-get install -y --no-install-recommends systemd > /dev/null 2>&1 || fail "systemd-analyze is missing: apt-get install systemd"
fi
work=$(mktemp -d)
cleanup() { umount "$work/disk" 2> /dev/null || true; rm -rf "$work"; }
trap cleanup EXIT

echo "deb: two packages of one binary are equal"
package=$(SOURCE_DATE_EPOCH=1700000000 ./build.sh "$binary" "$work/1")
again=$(SOURCE_DATE_EPOCH=1700000000 ./build.sh "$binary" "$work/2")
cmp "$package" "$again"
echo "deb: $(basename "$package"), $(($(stat -c %s "$package") / 1000)) kB; $(dpkg-deb -f "$package" Depends)"

echo "deb: the documented configuration, by $binary serve --check"
GRAPEVINE_CONFIG= "$binary" serve --config grapevine.toml --check | grep -q 'the configuration is good'
sed 's/^#\([a-z]\+ = \|\[\[\)/\1/; s/^token = ""/token = "a-token-of-the-checks"/; s/^\(seeds\|ca\|cert\|key\) = /#&/' \
  grapevine.toml > "$work/all.toml"
"$binary" serve --config "$work/all.toml" --check > /dev/null || fail "a line that is a comment is wrong"

echo "deb: the unit, by systemd-analyze"
cp grapevine.service grapevine.socket "$work"
exposure=$(systemd-analyze security --offline=yes "$work/grapevine.service" | awk '/Overall exposure/ {print $(NF - 2)}')
echo "  exposure $exposure"
awk -v seen="$exposure" 'BEGIN {exit !(seen > 0 && seen < 2)}' || fail "2.0 and more is too much"

echo "deb: install, upgrade, remove, purge"
mkdir "$work/disk"
# Of its own: an overlay cannot lie on another one, and the machine's root may be one.
mount -t tmpfs tmpfs "$work/disk"
mkdir "$work"/disk/{upper,work,root}
cp "$package" "$work/disk/first.deb"
dpkg-deb -R "$package" "$work/next"
sed -i 's/^Version: .*/&+next/' "$work/next/DEBIAN/control"
dpkg-deb --root-owner-group -Znone --build "$work/next" "$work/disk/second.deb" > /dev/null
cp life.sh "$work/disk/life.sh"
unshare --mount sh -ec '
  mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
  mkdir -p "$1/root/packages"
  mount --bind "$1" "$1/root/packages"
  mount -t proc proc "$1/root/proc"
  mount -t tmpfs tmpfs "$1/root/run"
  mount --bind /dev "$1/root/dev"
  chroot "$1/root" bash /packages/life.sh
' sh "$work/disk"

if command -v lintian > /dev/null; then
  echo "deb: lintian (errors alone)"
  lintian --fail-on error --suppress-tags embedded-library,statically-linked-binary "$package"
fi
