#!/usr/bin/env bash
# Checks rules and board without a cluster: their form, the unit test of each alarm, and that the board is what board.py
# writes. Under 10 s; the first time it unpacks Debian's Prometheus (prometheus.sh).
#
#   check.sh [BINARY]        a binary is not needed; packaging/check.sh gives one to all parts
set -euo pipefail
cd "$(dirname "$0")"
[ $# -le 1 ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
fail() { printf 'monitoring/check.sh: %s\n' "$*" >&2; exit 1; }
tools=${CARGO_TARGET_DIR:-../../target}/prometheus
./prometheus.sh "$tools"

echo "monitoring: form of the rules"
"$tools/promtool" check rules rules.yml
echo "monitoring: each alarm fires where it should, alone, and none in a quiet cluster"
"$tools/promtool" test rules rules_test.yml
for alarm in $(sed -n 's/^ *- alert: //p' rules.yml); do
  grep -q "alertname=\"$alarm\"" rules_test.yml || fail "$alarm has no test in rules_test.yml"
done
echo "monitoring: the board is what board.py writes"
python3 board.py --check
for file in rules.yml grapevine-board.json; do
  cmp "$file" "../chart/grapevine/files/$file" || fail "copy $file to chart/grapevine/files/"
done
