#!/bin/sh
# Provides `prometheus` and `promtool`, for the checks of the rules and the tests of clusters.
#
#   prometheus.sh [DIRECTORY]     default: target/prometheus
#
# Does nothing when they are there. Takes the system's, or unpacks Debian's package (19 MB), which is not installed by
# that; this needs apt-get and the network the first time.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
directory=${1:-${CARGO_TARGET_DIR:-$here/../../target}/prometheus}

# Tests run it side by side.
mkdir -p "$(dirname "$directory")"
exec 9>"$directory.lock"
flock 9

if [ -x "$directory/promtool" ] && "$directory/promtool" --version >/dev/null 2>&1; then
    exit 0
fi
rm -rf "$directory"
mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
cd "$directory"
if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
    ln -s "$(command -v prometheus)" prometheus
    ln -s "$(command -v promtool)" promtool
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "prometheus.sh: prometheus is missing; install it (Debian: apt-get install prometheus)" >&2
    exit 1
fi
# The programs need nothing but libc; what the package depends on besides is for its web page.
download() { apt-get download prometheus >apt.log 2>&1; }
# Lists of packages may be older than what is there to be had.
if ! download && ! { apt-get update >apt.log 2>&1 && download; }; then
    cat apt.log >&2
    echo "prometheus.sh: prometheus cannot be downloaded; run apt-get update, or apt-get install prometheus" >&2
    exit 1
fi
dpkg-deb -x prometheus_*.deb root
rm prometheus_*.deb
ln -s root/usr/bin/prometheus prometheus
# Last: a folder without this file is not complete.
ln -s root/usr/bin/promtool promtool
