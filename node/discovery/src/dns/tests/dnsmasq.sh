#!/bin/sh
# Provides the dnsmasq that the tests of the DNS source ask.
#
#   dnsmasq.sh [DIRECTORY]     default: target/dnsmasq
#
# Does nothing when it is there. Takes the system's, or unpacks Debian's package, which is not installed by that; this
# needs apt-get and the network the first time.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
directory=${1:-${CARGO_TARGET_DIR:-$here/../../../../../target}/dnsmasq}

# Tests run it side by side.
mkdir -p "$(dirname "$directory")"
exec 9>"$directory.lock"
flock 9

if [ -x "$directory/dnsmasq" ] && "$directory/dnsmasq" --version >/dev/null; then
    exit 0
fi
rm -rf "$directory"
mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
cd "$directory"
PATH=$PATH:/usr/sbin:/sbin
if command -v dnsmasq >/dev/null; then
    ln -s "$(command -v dnsmasq)" dnsmasq
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "dnsmasq.sh: dnsmasq is missing; install it (Debian: apt-get install dnsmasq-base)" >&2
    exit 1
fi
# With the libraries that this machine lacks. Nothing is installed, so no lock is needed.
mkdir -p archives/partial
if ! apt-get --yes --quiet --quiet --download-only --no-install-recommends -o Debug::NoLocking=1 \
    -o Dir::Cache::archives="$directory/archives" install dnsmasq-base >apt.log 2>&1; then
    cat apt.log >&2
    echo "dnsmasq.sh: dnsmasq-base cannot be downloaded; run apt-get update, or apt-get install dnsmasq-base" >&2
    exit 1
fi
for package in archives/*.deb; do
    dpkg-deb -x "$package" root
done
libraries=$(find "$directory/root" -name '*.so*' -exec dirname {} + | sort -u | tr '\n' ':')
# Last: a folder without this file is not complete.
cat >dnsmasq <<END
#!/bin/sh
LD_LIBRARY_PATH=$libraries exec "$directory/root/usr/sbin/dnsmasq" "\$@"
END
chmod +x dnsmasq
