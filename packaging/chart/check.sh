#!/usr/bin/env bash
# Checks the chart without a cluster: lint, strict schemas of each release of Kubernetes from 1.28 on, the configuration
# by the program's own check, what the templates promise each other, and the rendered manifests. About 30 s.
#
#   check.sh BINARY          check
#   check.sh --render        write packaging/manifests/grapevine.yaml anew
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here"
tools=$(../tools.sh)
helm=$tools/bin/helm
manifests=../manifests/grapevine.yaml
render() {
  sed -n '/^#/p' ../manifests/head.txt
  "$helm" template grapevine grapevine | grep -v 'helm.sh/chart\|managed-by: Helm'
}
if [ "${1:-}" = --render ]; then render > "$manifests"; exit; fi
[ $# -eq 1 ] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 2; }
binary=$(realpath -e "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { printf 'chart/check.sh: %s\n' "$*" >&2; exit 1; }

for case in cases/*.yaml; do
  name=$(basename "$case" .yaml)
  echo "chart: lint and render $name ($(sed -n '1s/^# //p' "$case"))"
  "$helm" lint --quiet --strict grapevine -f "$case"
  "$helm" template grapevine grapevine --namespace serving -f "$case" > "$work/$name.yaml"
  "$helm" template grapevine grapevine --is-upgrade --namespace serving -f "$case" > "$work/$name-upgrade.yaml"
done
for minor in 28 29 30 31 32 33 34 35 36 37; do
  echo "chart: strict schemas of Kubernetes 1.$minor"
  "$tools/bin/kubernetes-validate" --strict --no-warn --quiet -k "1.$minor" "$work"/*.yaml
done

echo "chart: what each case promises, and its configuration by $binary serve --check"
"$tools/bin/python" check.py "$binary" "$work"

echo "chart: values that cannot work are refused"
refused() {  # what the answer has to say, then values
  local wanted=$1 answer
  shift
  if answer=$("$helm" template grapevine grapevine "$@" 2>&1); then fail "accepted: $*"; fi
  grep -q "$wanted" <<< "$answer" || fail "refused for another reason: $* ($answer)"
}
refused 'replica' --set replica=3
refused 'kubectlImage' --set certificates.mode=job
refused 'maxReplicas' --set certificates.mode=job,certificates.job.kubectlImage=k,replicas=9
refused 'issuerName' --set certificates.mode=certManager
refused 'bundle' --set 'certificates.mode=certManager,certificates.certManager.issuerName=i' \
  --set 'certificates.certManager.bundle.configMap=a,certificates.certManager.bundle.secret=b'
refused 'clusterId' --set clusterId=Not_A_Label
refused 'EXEC' --set 'config=client_ca = "ca.pem"' --set probeScheme=HTTPS
refused 'EXEC' --set 'config=tls = { client_ca = "ca.pem" }' --set probeScheme=HTTPS
refused 'probeScheme: the data port' --set-json 'config="[limits]\nrequests = 9\n[tls]\ncert = \"c\""'
refused 'probeScheme: the data port' --set 'config=tls = { cert = "c" }'
refused 'probeScheme: the data port' --set-json 'config="[tls]\n# from the Secret [docs]\ncert = \"c\""'
refused 'EXEC' --set 'probeScheme=HTTPS,env[0].name=GRAPEVINE_TLS__CLIENT_CA,env[0].value=/tls/ca.crt'
refused 'probeScheme: the data port' --set 'env[0].name=GRAPEVINE_TLS__CERT,env[0].value=/tls/tls.crt'
for config in '# [tls]\n# client_ca = 1' '[tls]\nrefresh = \"30s\"\n# cert = 1\n[workers]\ncert = 1'; do
  "$helm" template grapevine grapevine --set-json "config=\"$config\"" > /dev/null || fail "refused: $config"
done
refused 'weight' --set 'workers[0].url=http://w' --set 'workers[0].weight=500'
refused 'mode' --set certificates.mode=none
refused 'prefillSelector' --set discovery.kubernetes.enabled=true --set 'discovery.kubernetes.selector=null'
refused 'namespaces' --set 'discovery.kubernetes.namespaces={Models}'

echo "chart: a change of workers rolls nothing, and one of another setting does"
statefulset() { "$helm" template grapevine grapevine --show-only templates/statefulset.yaml "$@"; }
statefulset > "$work/before.txt"
statefulset --set 'workers[0].url=http://w' | cmp "$work/before.txt" - || fail "a change of workers rolls the pods"
if statefulset --set logLevel=warn | cmp -s "$work/before.txt" -; then fail "a change of logLevel rolls no pod"; fi

echo "chart: its rules and its board are those of packaging/monitoring"
for file in rules.yml grapevine-board.json; do
  cmp "../monitoring/$file" "grapevine/files/$file" || fail "copy packaging/monitoring/$file to grapevine/files/"
done

echo "chart: the plain manifests are rendered from it"
render | diff "$manifests" - || fail "render them anew: packaging/chart/check.sh --render"
