#!/usr/bin/env bash
# Builds the static binary, the image `grapevine:local`, and the certificates and settings that
# docker-compose.yml mounts. Needs cargo and docker; pulls nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
target=$(rustc -vV | sed -n 's/^host: //p')

RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --locked --target "$target" --bin grapevine
binary=${CARGO_TARGET_DIR:-target}/$target/release/grapevine

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
cp "$here/Dockerfile" "$binary" "$context/"
docker build --tag grapevine:local "$context"

ca=$here/ca
if [ ! -e "$ca/ca.pem" ]; then
  "$binary" ca init --dir "$ca" --cluster-id testbed
  for replica in router-1 router-2 router-3; do
    "$binary" ca issue "$replica" --dir "$ca"
  done
fi
cp "$here/testbed.toml" "$ca/testbed.toml"
echo "built grapevine:local; now: docker-compose up"
