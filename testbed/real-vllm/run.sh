#!/usr/bin/env bash
# Two real vLLM workers behind three Grapevine replicas with mutual TLS, checked with the official openai client.
#   ./run.sh [--faults | --split | --ranks | --events | --legs] [--grapevine BINARY] [--model tiny|medium]
# --faults kills, freezes and overloads the workers instead (faults.py). --split takes prefill and decode workers over
# NIXL (split.py), --ranks a worker with two data-parallel ranks (ranks.py), --events workers that publish KV events
# (events.py), --legs asks prefill and decode workers directly (legs.py).
# Installs vLLM first if it is missing (about 2 minutes), and builds Grapevine when no binary is given.
# Prints a table; exit code 0 when everything held. Ends all that it started before it returns.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export REAL_VLLM_HOME=${REAL_VLLM_HOME:-$here/.home}

binary=
script=check.py
arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --faults) script=faults.py; shift ;;
    --split) script=split.py; export REAL_VLLM_NIXL=1; shift ;;
    --ranks) script=ranks.py; shift ;;
    --events) script=events.py; shift ;;
    --legs) script=legs.py; export REAL_VLLM_NIXL=1; shift ;;
    --grapevine) binary=${2:?a path}; shift 2 ;;
    *) arguments+=("$1"); shift ;;
  esac
done
if [ -z "$binary" ]; then
  (cd "$here/../.." && cargo build --release --package grapevine)
  binary=${CARGO_TARGET_DIR:-$here/../../target}/release/grapevine
fi

# An installation with NIXL serves all scripts.
if compgen -G "$REAL_VLLM_HOME/venv/lib/python3*/site-packages/nixl" > /dev/null; then export REAL_VLLM_NIXL=1; fi
"$here/install.sh"

# The client has an environment of its own, so that it cannot use packages of vLLM's.
client=$REAL_VLLM_HOME/client
if ! cmp -s "$here/client.lock" "$client/installed.lock"; then
  rm -rf "$client"
  "$REAL_VLLM_HOME/venv/bin/python" -m venv "$client"
  "$client/bin/python" -m pip install -q --disable-pip-version-check --no-deps -r "$here/client.lock"
  cp "$here/client.lock" "$client/installed.lock"
fi
exec "$client/bin/python" "$here/$script" --grapevine "$binary" "${arguments[@]}"
