#!/usr/bin/env bash
# Tests the containers from start to end: makes images, starts a testbed of its own on free ports, runs some
# scenarios, removes all. Needs Linux, root, docker and docker-compose (or the plugin), iptables and nsenter. Ends
# with 0 when every promise held, 1 when one did not, 2 when something is missing. About two minutes and a half;
# nothing stays on the machine but testbed/docker/ca.
#
#   check.sh BINARY                   a binary with the testbed, by a short set of scenarios that a busy machine passes too
#   check.sh BINARY SCENARIO...       these scenarios instead, by the names of `BINARY chaos list`
#   SHIPPED=FILE check.sh ...         the replicas run this binary, without the testbed
#   REPORT=DIR check.sh ...           also writes reports
#   LENGTH=full check.sh ...          phases at full length, not a quarter
set -euo pipefail
cd "$(dirname "$0")/../.."

missing() { printf 'check.sh: %s\n' "$*" >&2; exit 2; }

[ $# -ge 1 ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
binary=$(realpath -e "$1" 2> /dev/null) || missing "there is no $1: cargo build --release --locked"
shipped=$(realpath -e "${SHIPPED:-$binary}" 2> /dev/null) || missing "there is no $SHIPPED"
shift
[ $# -gt 0 ] || set -- rolling-restart partition replica-kill worker-freeze

# Checked before anything is made; the messages name packages.
command -v docker > /dev/null || missing "docker is missing: apt-get install docker.io docker-compose"
docker info > /dev/null 2>&1 || missing "the docker daemon does not answer: is it started? Try: docker info"
if docker compose version > /dev/null 2>&1; then
  compose=(docker compose)
elif command -v docker-compose > /dev/null; then
  compose=(docker-compose)
else
  missing "docker-compose and the compose plugin are missing: apt-get install docker-compose"
fi
[ "$(id -u)" = 0 ] || missing "packet filters of containers need root: sudo $0"
for program in iptables nsenter; do
  PATH=$PATH:/usr/sbin command -v "$program" > /dev/null ||
    missing "$program is missing: apt-get install iptables util-linux"
done

project=grapevine-check-$$
place=(--env-file testbed/docker/free-ports.env --project-name "$project")
export GRAPEVINE_IMAGE=$project:local GRAPEVINE_TESTBED_IMAGE=$project-testbed:local
phases=(--quick)
[ "${LENGTH:-}" != full ] || phases=()
had_haproxy=$(docker image inspect --format '{{.Id}}' grapevine-haproxy:local 2> /dev/null || true)

down() {
  "${compose[@]}" "${place[@]}" --profile more down --volumes --remove-orphans --timeout 1 > /dev/null 2>&1 || true
  docker image rm "$GRAPEVINE_IMAGE" "$GRAPEVINE_TESTBED_IMAGE" > /dev/null 2>&1 || true
  [ -n "$had_haproxy" ] || docker image rm grapevine-haproxy:local > /dev/null 2>&1 || true
}
trap down EXIT
trap 'exit 130' INT TERM

testbed/docker/build.sh --binary "$binary" --shipped "$shipped"
"${compose[@]}" "${place[@]}" up -d
front=$("${compose[@]}" "${place[@]}" port balancer 30080)
for _ in $(seq 120); do
  "$binary" probe "http://$front/readiness" 2> /dev/null && break
  sleep 0.5
done
"$binary" probe "http://$front/v1/models" || { "${compose[@]}" "${place[@]}" logs --tail 20; exit 1; }

"$binary" chaos run "$@" ${phases[@]+"${phases[@]}"} --compose --project "$project" \
  --env-file testbed/docker/free-ports.env ${REPORT:+--report "$REPORT"}
