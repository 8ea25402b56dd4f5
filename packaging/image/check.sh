#!/usr/bin/env bash
# Checks the image: its size and its user, and a replica in it without rights, on a root that it cannot write.
#
#   check.sh BINARY          about 10 s; needs docker, whose daemon answers
set -euo pipefail
fail() { printf 'image/check.sh: %s\n' "$*" >&2; exit 1; }
[ $# -eq 1 ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
cd "$(dirname "$0")"
docker info > /dev/null 2>&1 || fail "the docker daemon does not answer: is it started? Try: docker info"
image=grapevine-check-$$:local
container=
trap '[ -z "$container" ] || docker rm -f "$container" > /dev/null; docker image rm -f "$image" > /dev/null 2>&1 || true' EXIT
./build.sh "$1" "$image"

size=$(docker image inspect --format '{{.Size}}' "$image")
echo "image: $((size / 1000)) kB"
# A lightly optimised binary, with its symbols, is larger; what is shipped is static.
if ldd "$1" 2>&1 | grep -q 'not a dynamic\|statically' && [ "$size" -gt 25000000 ]; then fail "larger than 25 MB"; fi
[ "$(docker image inspect --format '{{.Config.User}}' "$image")" = 65532:65532 ] || fail "its user is not 65532"

echo "image: a replica without rights, on a root that it cannot write"
container=$(docker run -d --read-only --cap-drop ALL --security-opt no-new-privileges --network none "$image" \
  serve --ready-without-workers)
for _ in $(seq 100); do
  docker exec "$container" /grapevine probe http://127.0.0.1:30000/readiness 2> /dev/null && break
  [ "$(docker inspect --format '{{.State.Running}}' "$container")" = true ] || break
  sleep 0.1
done
docker exec "$container" /grapevine probe http://127.0.0.1:30000/readiness ||
  { docker logs "$container" >&2; fail "it did not become ready"; }
docker stop --time 20 "$container" > /dev/null
[ "$(docker inspect --format '{{.State.ExitCode}}' "$container")" = 0 ] || fail "it did not end in order"
