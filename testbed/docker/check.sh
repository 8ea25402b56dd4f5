#!/usr/bin/env bash
# The containers from nothing to nothing: images, a testbed of its own on free ports, some scenarios, down again.
# Needs docker, docker-compose and root. Ends with 0 when every promise held.
#
#   check.sh BINARY [SCENARIO...]     a release binary; with no scenario named, the short set below
#   REPORT=DIR check.sh ...           also reports to look at
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -ge 1 ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
binary=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- rolling-restart partition one-way worker-freeze replica-kill

project=grapevine-check-$$
place=(--env-file testbed/docker/free-ports.env --project-name "$project")
if docker compose version > /dev/null 2>&1; then compose=(docker compose); else compose=(docker-compose); fi
export GRAPEVINE_IMAGE=$project:local

down() {
  "${compose[@]}" "${place[@]}" --profile more down --volumes --remove-orphans --timeout 1 > /dev/null 2>&1 || true
  docker image rm "$GRAPEVINE_IMAGE" > /dev/null 2>&1 || true
}
trap down EXIT
trap 'exit 130' INT TERM

testbed/docker/build.sh --binary "$binary"
"${compose[@]}" "${place[@]}" up -d
front=$("${compose[@]}" "${place[@]}" port balancer 30080)
for _ in $(seq 60); do
  "$binary" probe "http://$front/readiness" 2> /dev/null && break
  sleep 0.5
done
"$binary" probe "http://$front/v1/models" || { "${compose[@]}" "${place[@]}" logs --tail 20; exit 1; }

"$binary" chaos run "$@" --quick --compose --project "$project" --env-file testbed/docker/free-ports.env \
  ${REPORT:+--report "$REPORT"}
