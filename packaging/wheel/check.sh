#!/usr/bin/env bash
# Checks the wheel: two equal ones, installed by pip into a clean environment, a replica that becomes ready. About 20 s.
#
#   check.sh BINARY          packs this binary; needs python3 with venv
#   check.sh WHEEL           a wheel that is there, such as release.sh makes
set -euo pipefail
fail() { printf 'wheel/check.sh: %s\n' "$*" >&2; exit 1; }
[ $# -eq 1 ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
given=$(realpath -e "$1")
cd "$(dirname "$0")"
work=$(mktemp -d)
replica=
trap '[ -z "$replica" ] || kill "$replica" 2> /dev/null || true; rm -rf "$work"' EXIT
if [ "${given%.whl}" = "$given" ]; then
  echo "wheel: two wheels of one binary are equal"
  wheel=$(./build.sh "$given" "$work/1")
  again=$(./build.sh "$given" "$work/2")
  cmp "$wheel" "$again"
else
  wheel=$given
fi
echo "wheel: $(basename "$wheel"), $(($(stat -c %s "$wheel") / 1000)) kB"

echo "wheel: installed by pip into a clean environment"
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$wheel"
cd "$work"
program=$work/venv/bin/grapevine
"$program" --version
"$work/venv/bin/python" - <<'PYTHON'
import importlib.metadata, json
files = importlib.metadata.files("grapevine-router")
bill = next(file for file in files if file.name.endswith(".cyclonedx.json"))
parts = {part["name"] for part in json.loads(bill.read_text())["components"]}
assert {"hyper", "quinn"} <= parts and "criterion" not in parts, sorted(parts)
print(f"  its bill of materials names {len(parts)} parts")
PYTHON

echo "wheel: a replica that becomes ready"
"$program" serve --ready-without-workers --port 0 --admin-port 0 --prometheus-port 0 --gossip-port 0 > addresses 2> log &
replica=$!
for _ in $(seq 100); do
  data=$(sed -n 's/.*"data":"\([^"]*\)".*/\1/p' addresses)
  [ -n "$data" ] && "$program" probe "http://$data/readiness" 2> /dev/null && break
  sleep 0.1
done
"$program" probe "http://$data/readiness" || { cat log >&2; fail "it did not become ready"; }
kill "$replica"
wait "$replica" || fail "it did not end in order"
replica=
"$work/venv/bin/pip" uninstall --quiet --yes grapevine-router
[ ! -e "$program" ] || fail "the program is left behind"
