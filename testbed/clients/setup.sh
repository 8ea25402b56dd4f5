#!/bin/sh
# Makes the Python environment of mixed_use.py and reports what else is missing.
#
#   setup.sh [DIRECTORY]     default: target/clients-python; needs the network the first time
set -eu

here=$(cd "$(dirname "$0")" && pwd)
directory=${1:-${CARGO_TARGET_DIR:-$here/../../target}/clients-python}
if ! cmp -s "$here/requirements.txt" "$directory/requirements.txt"; then
    rm -rf "$directory"
    python3 -m venv "$directory"
    "$directory/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"
    # Last: an environment without this file is not complete.
    cp "$here/requirements.txt" "$directory/requirements.txt"
fi
command -v chromium >/dev/null || echo "setup.sh: chromium is missing; install it (Debian: apt-get install chromium)" >&2
echo "$directory/bin/python $here/mixed_use.py --grapevine BINARY"
