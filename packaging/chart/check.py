"""What the rendered cases of the chart promise, and their configuration by the program's own check.

    check.py BINARY FOLDER      FOLDER: one file for each case, as `helm template` writes it
"""

import os
import pathlib
import subprocess
import sys
import tomllib

import yaml

CASES = pathlib.Path(__file__).parent / "cases"
BINARY, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
# From the first signal to the end beyond settle and drain: last words, the last connections, leaving.
CLOSING_S = 5


def seconds(text):
    assert text.endswith("s"), text
    return int(text[:-1])


def check_objects(case, objects):
    kinds = [one["kind"] for one in objects]
    by_kind = {one["kind"]: one for one in objects}
    # A board for Grafana is another one.
    configured = [one for one in objects if one["kind"] == "ConfigMap" and "grapevine.toml" in one["data"]]
    assert len(configured) == 1, case
    settings = tomllib.loads(configured[0]["data"]["grapevine.toml"])
    values = yaml.safe_load((CASES / f"{case.removesuffix('-upgrade')}.yaml").read_text())
    name = configured[0]["metadata"]["name"]
    spec = by_kind["StatefulSet"]["spec"]
    pod = spec["template"]["spec"]

    # Labels of pods are made of these names: of the StatefulSet with a dash and ten characters, of a Job as it is.
    assert len(by_kind["StatefulSet"]["metadata"]["name"]) <= 52, case
    namespaced = [one for one in objects if not one["kind"].startswith("Cluster")]
    assert all(len(one["metadata"]["name"]) <= 63 for one in namespaced), case
    assert spec["podManagementPolicy"] == "Parallel", case
    scaler = by_kind.get("HorizontalPodAutoscaler")
    # Left out, it would be 1.
    assert spec["replicas"] == (scaler["spec"]["minReplicas"] if scaler else values.get("replicas", 3)), case
    if scaler:
        [policy] = scaler["spec"]["behavior"]["scaleDown"]["policies"]
        assert policy["periodSeconds"] == min(pod["terminationGracePeriodSeconds"], 1800), case
    times = settings["timeouts"]
    needed = seconds(times["settle"]) + seconds(times["drain"]) + CLOSING_S
    assert pod["terminationGracePeriodSeconds"] >= needed, case

    services = {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "Service"}
    peers = services[spec["serviceName"]]
    assert peers["clusterIP"] == "None" and peers["publishNotReadyAddresses"], case
    assert settings["gossip"]["seeds"] == [f"{spec['serviceName']}:30002"], case
    for service in services.values():
        assert service["selector"].items() <= spec["template"]["metadata"]["labels"].items(), case

    # Rights to read pods where discovery is on, and none but those.
    discovery = settings.get("kubernetes")
    roles = [one for one in objects if one["kind"] == "Role" and one["metadata"]["name"].endswith("-discovery")]
    namespaces = {role["metadata"]["namespace"] for role in roles}
    everywhere = bool(discovery) and "*" in discovery["namespaces"]
    wanted = set(discovery["namespaces"] or ["serving"]) if discovery and not everywhere else set()
    assert namespaces == wanted, (case, namespaces)
    cluster_roles = [one for one in objects if one["kind"] == "ClusterRole"]
    assert len(cluster_roles) == everywhere, case
    bindings = [one for one in objects if one["kind"] in ("RoleBinding", "ClusterRoleBinding")]
    for role in roles + cluster_roles:
        meta, account = role["metadata"], {"kind": "ServiceAccount", "name": pod["serviceAccountName"], "namespace": "serving"}
        ours = [one for one in bindings if one["roleRef"]["kind"] == role["kind"] and one["roleRef"]["name"] == meta["name"]]
        ours = [one for one in ours if one["metadata"].get("namespace") == meta.get("namespace")]
        assert [one["subjects"] for one in ours] == [[account]], (case, meta)
        assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}], case
    assert pod["automountServiceAccountToken"] == bool(discovery), case
    # Selectors arrive as they were written.
    given = values.get("discovery", {}).get("kubernetes", {})
    for value, setting in (("selector", "selector"), ("prefillSelector", "prefill_selector"), ("decodeSelector", "decode_selector")):
        assert value not in given or discovery[setting] == given[value], (case, setting)

    for container in pod["containers"]:
        assert container["securityContext"]["readOnlyRootFilesystem"], case
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0, case
    # A TLS port answers no plain HTTP, and what is mounted is there.
    container = pod["containers"][0]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        if "client_ca" in settings.get("tls", {}):
            asked = "readyz" if probe == "readinessProbe" else "healthz"
            command = ["/grapevine", "probe", f"http://127.0.0.1:30001/{asked}"]
            assert container[probe]["exec"]["command"] == command, (case, probe)
        else:
            assert container[probe]["httpGet"]["scheme"] == ("HTTPS" if "tls" in settings else "HTTP"), (case, probe)
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes, (case, volumes)
    if "PrometheusRule" in by_kind:
        # Of this release alone, where its job is known.
        own = ""
        if "ServiceMonitor" in by_kind:
            job = {"targetLabel": "job", "replacement": f"serving/{name}"}
            assert by_kind["ServiceMonitor"]["spec"]["endpoints"][0]["relabelings"] == [job], case
            own = f'{{job="{job["replacement"]}"}}'
        rules = {rule["alert"]: rule["expr"] for group in by_kind["PrometheusRule"]["spec"]["groups"] for rule in group["rules"]}
        assert rules["ReplicaMissing"] == f"min by (job) (grapevine_replicas_live{own}) < {spec['replicas']}", case
        manager = values.get("certificates", {}).get("certManager", {})
        left = "648000" if manager.get("duration") == "719h60m" else "259200" if case.startswith("job") else "14 * 86400"
        assert rules["CertificateEnds"] == f"(grapevine_gossip_certificate_expiry_seconds{own} > 0) - time() < {left}", case
        isolated = "> 1" if spec["replicas"] == 1 else "== 1"
        assert rules["Isolated"] == f"grapevine_gossip_isolated{own} {isolated}", case
    # No pod sees another's key, and none the authority's.
    mounts = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "certificates"]
    secret = next(volume for volume in pod["volumes"] if volume["name"] == "certificates").get("secret")
    if secret:
        assert all("subPath" in mount or "subPathExpr" in mount for mount in mounts), case
        assert not secret["secretName"].endswith("-authority"), case
    # A folder, which is refreshed: an authority is renewed without a restart.
    bundle = values.get("certificates", {}).get("certManager", {}).get("bundle")
    if bundle:
        [mount] = [mount for mount in container["volumeMounts"] if mount["name"] == "authorities"]
        assert settings["gossip"]["ca"] == f"{mount['mountPath']}/ca.crt" and "subPath" not in mount, case
        authorities = next(volume for volume in pod["volumes"] if volume["name"] == "authorities")
        items = [{"key": bundle["key"], "path": "ca.crt"}]
        assert authorities["configMap"] == {"name": bundle["configMap"], "items": items}, case
    else:
        assert settings["gossip"]["ca"] == "/certificates/ca.crt", case
    # Certificates of another cluster's authority are not to reach a pod.
    for job in (one for one in objects if one["kind"] == "Job"):
        ran = job["spec"]["template"]["spec"]
        made = ran["initContainers"]
        made = [one["args"] for one in made if one["args"][:2] in (["ca", "init"], ["ca", "issue"])]
        of_cluster = [args[args.index("--cluster-id") + 1] for args in made]
        assert set(of_cluster) == {settings["cluster"]["id"]} and len(of_cluster) in (1, 2), (case, made)
        # It runs where replicas may, or it never would on nodes that all are tainted.
        for where in ("tolerations", "nodeSelector", "priorityClassName", "imagePullSecrets"):
            assert ran.get(where) == pod.get(where) and (ran.get(where) or "job" not in case), (case, where)
        # What was issued before stays in the list, or it could not be revoked.
        kept = [one["args"] for one in ran["initContainers"] if one["name"] == "keep-issued"]
        assert kept[0][3:] == [f"{secret['secretName']}-issued-1", "--from-file=/ca/issued.txt"], (case, kept)
        issued = [volume["secret"] for volume in ran["volumes"] if volume["name"].startswith("issued-")]
        lists = [f"{secret['secretName']}-issued-{number}" for number in (0, 1)] if case.endswith("-upgrade") else []
        assert [one["secretName"] for one in issued] == lists and all(one["optional"] for one in issued), (case, issued)
        [issuing] = [args for args in made if args[1] == "issue"]
        assert issuing.count("--issued-before") == len(lists), (case, issuing)
    for policy in (one for one in objects if one["kind"] == "NetworkPolicy"):
        opened = [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]
        assert (30001 in opened) == ("discovery" in case), (case, opened)
        extra = values.get("networkPolicy", {}).get("extraIngress", [])
        assert all(rule in policy["spec"]["ingress"] for rule in extra), case
    assert kinds.count("StatefulSet") == 1, case
    return name, settings


def program(*args, **env):
    done = subprocess.run([BINARY, *args], env={**os.environ, **env}, capture_output=True, text=True)
    assert done.returncode == 0, (args, done.stdout, done.stderr)
    return done.stdout


def check_settings(case, name, objects):
    """The configuration as a pod would read it: its file, its environment, a certificate of its name."""
    config = next(one for one in objects if one["kind"] == "ConfigMap")["data"]["grapevine.toml"]
    settings = tomllib.loads(config)
    folder = FOLDER / f"{case}.pod"
    folder.mkdir()
    (folder / "grapevine.toml").write_text(config)
    certificates, pod = str(folder / "ca"), f"{name}-0"
    program("ca", "init", "--dir", certificates, "--cluster-id", settings["cluster"]["id"])
    program("ca", "issue", "--dir", certificates, pod)
    address = "[fd00::7]:30002" if settings["gossip"]["host"] == "::" else "10.1.2.3:30002"
    env = {
        "GRAPEVINE_REPLICA__ID": pod,
        "GRAPEVINE_GOSSIP__ADVERTISE": address,
        "GRAPEVINE_GOSSIP__CA": f"{certificates}/ca.pem",
        "GRAPEVINE_GOSSIP__CERT": f"{certificates}/{pod}.pem",
        "GRAPEVINE_GOSSIP__KEY": f"{certificates}/{pod}.key",
    }
    if settings["admin"]["host"] != "127.0.0.1":
        env["GRAPEVINE_ADMIN__TOKEN"] = "a-token-of-the-checks"
    if "revoked" in settings["gossip"]:
        program("ca", "issue", "--dir", certificates, "former")
        program("ca", "revoke", "--dir", certificates, "former")
        env["GRAPEVINE_GOSSIP__REVOKED"] = f"{certificates}/crl.pem"
    if "tls" in settings:
        env |= {"GRAPEVINE_TLS__CERT": f"{certificates}/{pod}.pem", "GRAPEVINE_TLS__KEY": f"{certificates}/{pod}.key"}
        if "client_ca" in settings["tls"]:
            env["GRAPEVINE_TLS__CLIENT_CA"] = f"{certificates}/ca.pem"
    answer = program("serve", "--config", str(folder / "grapevine.toml"), "--check", **env)
    assert "the configuration is good" in answer, answer


def main():
    cases = sorted(FOLDER.glob("*.yaml"))
    assert cases, "no cases were rendered"
    for path in cases:
        objects = [one for one in yaml.safe_load_all(path.read_text()) if one]
        name, _ = check_objects(path.stem, objects)
        check_settings(path.stem, name, objects)
        print(f"  {path.stem}: {len(objects)} objects")


main()
