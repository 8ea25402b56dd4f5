#!/usr/bin/env bash
# Makes a Debian package of a binary: program, manual pages, completions, a documented configuration, systemd units.
#
#   build.sh BINARY OUT      OUT: a folder; prints the path of the package
#
# Needs dpkg-deb and objdump (binutils). Dependencies are read from the binary, so any build can be packed: a static one
# depends on nothing. Two packages of one binary are equal where SOURCE_DATE_EPOCH is set.
set -euo pipefail
[ $# -eq 2 ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath -e "$1")
mkdir -p "$2"
out=$(realpath -e "$2")
version=$("$binary" -V | awk '{print $2}')
architecture=$(dpkg --print-architecture)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
umask 022
chmod 755 "$root"

# The libraries by the packages that every Debian has them in, with the release of glibc whose symbols are asked for.
depends() {
  local needed glibc
  needed=$(objdump -p "$binary" | awk '$1 == "NEEDED" {print $2}')
  [ -n "$needed" ] || return 0
  glibc=$(objdump -T "$binary" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1)
  printf 'libc6 (>= %s)' "${glibc#GLIBC_}"
  ! grep -q '^libgcc_s' <<< "$needed" || printf ', libgcc-s1'
}

install -Ds "$binary" "$root/usr/bin/grapevine"
"$binary" man --out "$root/usr/share/man/man1"
gzip -9n "$root"/usr/share/man/man1/*
mkdir -p "$root"/usr/share/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}
"$binary" completions bash > "$root/usr/share/bash-completion/completions/grapevine"
"$binary" completions zsh > "$root/usr/share/zsh/vendor-completions/_grapevine"
"$binary" completions fish > "$root/usr/share/fish/vendor_completions.d/grapevine.fish"
install -Dm 644 -t "$root/usr/lib/systemd/system" "$here"/grapevine.{service,socket}
install -Dm 640 "$here/grapevine.default" "$root/etc/default/grapevine"
install -Dm 640 -t "$root/etc/grapevine" "$here/grapevine.toml"
mkdir -p "$root/usr/share/doc/grapevine"
{
  printf 'Grapevine is licensed under either of the MIT licence, below, or the Apache License 2.0, which is in\n'
  printf '/usr/share/common-licenses/Apache-2.0 on Debian systems, at your option.\n\n'
  cat "$here/../../LICENSE-MIT"
} > "$root/usr/share/doc/grapevine/copyright"
install -Dm 644 -t "$root/usr/share/doc/grapevine/node" "$here"/../../node/{OPERATIONS,MIGRATING}.md   # as links name them
install -Dm 644 -t "$root/usr/share/doc/grapevine/docs" "$here"/../../docs/*.md
install -Dm 644 -t "$root/usr/share/doc/grapevine/docs/pictures" "$here"/../../docs/pictures/*
install -Dm 644 -t "$root/usr/share/doc/grapevine/testbed/traces" "$here"/../../testbed/traces/README.md
install -Dm 644 -t "$root/usr/share/doc/grapevine/packaging/chart/grapevine" "$here"/../chart/grapevine/README.md
install -Dm 644 -t "$root/usr/share/doc/grapevine/monitoring" "$here"/../monitoring/{README.md,rules.yml,grapevine-board.json}
ln -s ../monitoring "$root/usr/share/doc/grapevine/packaging/monitoring"
gzip -9nc "$here/../../CHANGELOG.md" > "$root/usr/share/doc/grapevine/changelog.gz"

mkdir "$root/DEBIAN"
install -m 755 -t "$root/DEBIAN" "$here"/{postinst,prerm,postrm}
printf '%s\n' /etc/default/grapevine /etc/grapevine/grapevine.toml > "$root/DEBIAN/conffiles"
needs=$(depends)
cat > "$root/DEBIAN/control" <<EOF
Package: grapevine
Version: $version
Architecture: $architecture
Maintainer: Grapevine developers <grapevine@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: ${needs:+$needs, }passwd, procps
Recommends: ca-certificates
Section: net
Priority: optional
Description: leaderless router cluster for vLLM
 Several equal router replicas in front of vLLM workers, which agree on the
 worker for a prompt's prefix without a coordinator: they gossip over QUIC and
 build the same consistent-hash ring. Clients speak the OpenAI API to any of
 them.
EOF
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) > "$root/DEBIAN/md5sums"
[ -z "${SOURCE_DATE_EPOCH:-}" ] || find "$root" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
package=$out/grapevine_${version}_$architecture.deb
dpkg-deb --root-owner-group -Zxz --build "$root" "$package" > /dev/null
echo "$package"
