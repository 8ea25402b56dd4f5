#!/bin/sh
# Makes the Python environment in which the page is driven in a browser.
#
#   setup.sh [DIRECTORY]     default: target/page-python
#
# Does nothing when the environment is there with the wanted version. Needs python3 with venv, chromium, and the network
# the first time. Playwright brings no browser of its own here: the system's is used.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
directory=${1:-${CARGO_TARGET_DIR:-$here/../../target}/page-python}
wanted=$here/requirements.txt

if ! command -v chromium >/dev/null; then
    echo "setup.sh: chromium is missing; install it (Debian: apt-get install -y --no-install-recommends chromium, 133 MB)" >&2
    exit 1
fi
if cmp -s "$wanted" "$directory/requirements.txt"; then
    exit 0
fi
rm -rf "$directory"
if ! python3 -m venv "$directory"; then
    echo "setup.sh: python3 has no venv; install it (Debian: apt-get install python3-venv)" >&2
    exit 1
fi
"$directory/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$wanted"
# Last: an environment without this file is not complete.
cp "$wanted" "$directory/requirements.txt"
