#!/bin/sh
# Makes the Python environment in which the official `openai` client and engines with ZeroMQ run, and that has `kubectl`.
#
#   setup.sh [DIRECTORY]     default: target/openai-python
#
# Does nothing when the environment is there with the wanted version. Needs python3 with venv, and
# the network the first time.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
directory=${1:-${CARGO_TARGET_DIR:-$here/../../target}/openai-python}
wanted=$here/requirements.txt

if cmp -s "$wanted" "$directory/requirements.txt"; then
    exit 0
fi
if ! command -v python3 >/dev/null; then
    echo "setup.sh: python3 is missing; install it (Debian: apt-get install python3 python3-venv)" >&2
    exit 1
fi
rm -rf "$directory"
if ! python3 -m venv "$directory"; then
    echo "setup.sh: python3 has no venv; install it (Debian: apt-get install python3-venv)" >&2
    exit 1
fi
"$directory/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$wanted"
# Last: an environment without this file is not complete.
cp "$wanted" "$directory/requirements.txt"
