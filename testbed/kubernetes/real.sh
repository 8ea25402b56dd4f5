#!/usr/bin/env bash
# Pods as workers against a real API server, for those who have kind or k3s.
#   ./real.sh [--grapevine BINARY] [--kubeconfig FILE]
# Uses the kubeconfig's cluster, or makes a kind cluster for the run if none is given. Makes a namespace with pods whose
# status it writes itself (no image is pulled: they are held back by a scheduling gate), starts one replica with a
# kubeconfig whose user may only get, list and watch pods there, and checks what the replica sees after each change.
# Prints a line for each check; exit code 0 when everything held. Removes all that it made before it returns.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

binary=
config=
while [ $# -gt 0 ]; do
  case $1 in
    --grapevine) binary=${2:?a path}; shift 2 ;;
    --kubeconfig) config=${2:?a path}; shift 2 ;;
    *) echo "unknown argument $1" >&2; exit 2 ;;
  esac
done
for tool in kubectl curl python3; do
  command -v "$tool" > /dev/null || { echo "$tool is missing" >&2; exit 2; }
done
if [ -z "$binary" ]; then
  (cd "$here/../.." && cargo build --release --package grapevine --features kubernetes)
  binary=${CARGO_TARGET_DIR:-$here/../../target}/release/grapevine
fi

work=$(mktemp -d)
namespace=grapevine-check-$$
cluster=
replica=
clean() {
  [ -z "$replica" ] || kill "$replica" 2> /dev/null || true
  if [ -n "$cluster" ]; then
    kind delete cluster --name "$cluster" > /dev/null 2>&1 || true
  elif [ -n "$config" ]; then
    kubectl --kubeconfig "$config" delete namespace "$namespace" --wait=false > /dev/null 2>&1 || true
  fi
  rm -rf "$work"
}
trap clean EXIT

if [ -z "$config" ]; then
  command -v kind > /dev/null || { echo "give --kubeconfig, or install kind" >&2; exit 2; }
  cluster=grapevine-check-$$
  config=$work/admin.kubeconfig
  kind create cluster --name "$cluster" --kubeconfig "$config" --wait 120s
fi
k() { kubectl --kubeconfig "$config" --namespace "$namespace" "$@"; }

kubectl --kubeconfig "$config" create namespace "$namespace"
k create serviceaccount grapevine
k create role grapevine --verb=get,list,watch --resource=pods
k create rolebinding grapevine --role=grapevine --serviceaccount="$namespace:grapevine"
token=$(k create token grapevine --duration=1h)

# The same server, with the replica's own user.
python3 - "$work/replica.kubeconfig" "$namespace" "$token" << 'PYTHON' 3< <(k config view --raw --minify --flatten -o json)
import json, os, sys
path, namespace, token = sys.argv[1:]
with os.fdopen(3) as source:
    config = json.load(source)
config["users"] = [{"name": "grapevine", "user": {"token": token}}]
context = config["contexts"][0]["context"]
context["user"], context["namespace"] = "grapevine", namespace
with open(path, "w") as target:
    json.dump(config, target)
PYTHON

cat > "$work/grapevine.toml" << TOML
[listen]
port = 0
[admin]
port = 0
[gossip]
port = 0
[metrics]
port = 0
[discovery]
hold = "2s"
empty_hold = "2s"
[kubernetes]
enabled = true
selector = ["app=vllm"]
port = 8000
kubeconfig = "$work/replica.kubeconfig"
TOML
"$binary" serve --config "$work/grapevine.toml" > "$work/out" 2> "$work/log" &
replica=$!

admin=
for _ in $(seq 100); do
  admin=$(sed -n 's/.*"admin":"\([^"]*\)".*/\1/p' "$work/out")
  [ -z "$admin" ] || break
  sleep 0.2
done
[ -n "$admin" ] || { echo "the replica did not start:" >&2; cat "$work/log" >&2; exit 1; }

# Names of pods that are workers, with `-` where one takes no new prompts.
workers() {
  curl -sf "http://$admin/workers" | python3 -c '
import json, sys
workers = json.load(sys.stdin)["workers"]
names = [w["id"].split("/")[1] + ("-" if w["state"] == "draining" else "") for w in workers]
print(" ".join(sorted(names)))'
}
expect() { # WHAT WORKERS
  local seen=
  for _ in $(seq 300); do
    seen=$(workers || true)
    if [ "$seen" = "$2" ]; then echo "ok    $1"; return; fi
    sleep 0.2
  done
  echo "wrong $1: expected '$2', seen '$seen'"
  tail -20 "$work/log"
  exit 1
}
pod() {
  k create -f - << YAML
apiVersion: v1
kind: Pod
metadata: {name: $1, labels: {app: vllm}}
spec:
  schedulingGates: [{name: example.org/held-back}]
  containers: [{name: vllm, image: none}]
YAML
}
status() { # POD ADDRESS READY
  k patch pod "$1" --subresource=status --type=merge -p \
    "{\"status\":{\"phase\":\"Running\",\"podIP\":\"$2\",\"podIPs\":[{\"ip\":\"$2\"}],\"conditions\":[{\"type\":\"Ready\",\"status\":\"$3\"}]}}"
}

pod a; pod b
status a 127.0.0.2 True
status b 127.0.0.3 True
expect "two ready pods are two workers" "a b"
status a 127.0.0.2 False
expect "a pod that is not ready takes no prompts" "a- b"
status a 127.0.0.2 True
expect "ready again" "a b"
k label pod a app=other --overwrite
expect "a pod whose label changed is none" "b"
k label pod a app=vllm --overwrite
expect "and one again" "a b"
k delete pod b --grace-period=0 --force
expect "a deleted pod is none" "a"
k delete rolebinding grapevine
for _ in $(seq 300); do
  if grep -q "does not allow" "$work/log"; then break; fi
  sleep 0.2
done
grep -q "does not allow to" "$work/log"
expect "without rights the last workers stay" "a"
