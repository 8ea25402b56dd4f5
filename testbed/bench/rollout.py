#!/usr/bin/env python3
"""A rollout under load: every worker is replaced, each new one before the old one ends, found by a file, DNS, Kubernetes or leases.

    rollout.py --grapevine BINARY [--sources file dns kubernetes lease] [--workers 12] [--rate 40] [--pause 2] [--json FILE]

Three replicas serve tenants with system prompts of their own. One after the other, a new worker is started, added to the
source, and when every replica uses it the old one is taken out of the source and ends when it has nothing in hand. For
each source: requests that failed, the hit rate before, during and after (cached tokens over prompt tokens), the time from
a change of the source to one ring digest at all replicas, and the time until all old workers have left the registry.
"""
import argparse
import collections
import contextlib
import http.client
import json
import os
import random
import shutil
import ssl
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from join import quantile
from processes import Child, Failed, cluster, ending_on_sigterm, free_port, run_script, until

REPLICAS = ("r1", "r2", "r3")
MODEL = "fake-model"
HOLD_S = 5                  # of the rule; 30 s by default, which changes no request
SEEN_WITHIN_S = 60


class FileSource:
    """A file in the form of Prometheus' file_sd, replaced by renaming."""

    name = "file"

    def __init__(self, folder, stack, binary):
        self.path = folder / "workers.json"
        self.write([])

    def arguments(self):
        return ["--worker-files", self.path]

    def write(self, urls):
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps([{"targets": urls}]))
        os.replace(new, self.path)

    def ready(self, replicas):
        pass


class DnsSource:
    """A dnsmasq on loopback; workers differ in their address, 127.0.0.x, and share a port."""

    name = "dns"
    port = free_port()

    def __init__(self, folder, stack, binary):
        program = shutil.which("dnsmasq") or "/usr/sbin/dnsmasq"
        if not Path(program).exists():
            raise Failed("dnsmasq is not installed (Debian package dnsmasq-base)")
        self.hosts = folder / "hosts"
        self.hosts.mkdir()
        self.listen = free_port()
        self.write([])
        stack.enter_context(Child(
            [program, "--no-daemon", "--no-resolv", "--no-hosts", "--user=root", f"--port={self.listen}",
             "--listen-address=127.0.0.1", "--bind-interfaces", f"--hostsdir={self.hosts}", "--local-ttl=1",
             "--local=/example/"], folder / "dnsmasq.log"))

    def arguments(self):
        return ["--worker-dns", f"workers.example:{self.port}"]

    def settings(self):
        return f'[dns]\nservers = ["127.0.0.1:{self.listen}"]\n'

    def write(self, urls):
        # A new file each time: what is in a file that changes in place is added to what was there.
        for old in self.hosts.iterdir():
            old.unlink()
        lines = [f"{url.split('//')[1].rsplit(':', 1)[0]} workers.example" for url in urls]
        (self.hosts / str(time.monotonic_ns())).write_text("\n".join(lines) + "\n")

    def ready(self, replicas):
        pass


class LeaseSource:
    """`grapevine register` beside each worker."""

    name = "lease"

    def __init__(self, folder, stack, binary):
        self.folder, self.stack, self.binary = folder, stack, binary
        self.running = {}

    def arguments(self):
        return []

    def ready(self, replicas):
        self.to = ",".join(f"http://{r.admin}" for r in replicas)

    def write(self, urls):
        for url in set(urls) - set(self.running):
            command = [self.binary, "register", "--worker", url, "--to", self.to]
            log = self.folder / f"register-{len(list(self.folder.iterdir()))}.log"
            self.running[url] = self.stack.enter_context(Child(command, log))
        for url in set(self.running) - set(urls):
            self.running.pop(url).process.terminate()


class KubernetesSource:
    """Pods of a fake API server; a pod's address is its worker's."""

    name = "kubernetes"

    def __init__(self, folder, stack, binary):
        command = [binary, "fake-kubernetes", "--listen", "127.0.0.1:0", "--directory", folder / "kubernetes"]
        server = stack.enter_context(Child(command, folder / "kubernetes.log", announces=True)).listening()
        self.kubeconfig, self.server = server["kubeconfig"], server["https"].split("//")[1].rstrip("/")
        self.control = server["control"]
        self.token = (folder / "kubernetes" / "token").read_text()
        self.tls = ssl.create_default_context(cafile=folder / "kubernetes" / "ca.crt")
        self.pods = {}

    def arguments(self):
        return ["--service-discovery", "--selector", "app=vllm", "--service-discovery-port", DnsSource.port]

    def settings(self):
        return f'[kubernetes]\nnamespaces = ["default"]\nkubeconfig = "{self.kubeconfig}"\n'

    def ready(self, replicas):
        pass

    def call(self, method, path, body=None, kind="application/json"):
        host, port = self.server.rsplit(":", 1)
        connection = http.client.HTTPSConnection(host, int(port), timeout=10, context=self.tls)
        headers = {"authorization": f"Bearer {self.token}", "content-type": kind}
        connection.request(method, f"/api/v1/namespaces/default/pods{path}", body and json.dumps(body), headers)
        reply = connection.getresponse()
        text = reply.read()
        connection.close()
        if reply.status >= 300:
            raise Failed(f"the API server answers {reply.status} to {method} {path}: {text[:300]!r}")

    def create(self, name, url):
        """A pod that is ready, at the address of this worker."""
        self.pods[url] = name
        self.call("POST", "", {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "vllm"}},
            "spec": {"terminationGracePeriodSeconds": 30, "containers": [{"name": "vllm", "image": "vllm"}]}})
        self.call("PATCH", f"/{name}/status", {"status": {
            "phase": "Running", "podIP": url.split("//")[1].rsplit(":", 1)[0],
            "conditions": [{"type": "Ready", "status": "True"}]}}, "application/merge-patch+json")

    def write(self, urls, grace_s=5):
        for url in set(urls) - set(self.pods):
            self.create(f"vllm-{len(self.pods)}-{time.monotonic_ns()}", url)
        for url in set(self.pods) - set(urls):
            # It is marked for deletion first, and gone when its grace is over.
            self.call("DELETE", f"/{self.pods.pop(url)}", {"gracePeriodSeconds": grace_s})


SOURCES = {source.name: source for source in (FileSource, DnsSource, KubernetesSource, LeaseSource)}


class Load:
    """Chats of tenants at a steady rate, each with its tenant's system prompt, until it is stopped."""

    def __init__(self, addresses, rate, tenants):
        self.addresses, self.rate, self.tenants = addresses, rate, tenants
        self.done, self.stopped, self.phase = [], threading.Event(), "before"
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(n,), daemon=True) for n in range(16)]
        for thread in self.threads:
            thread.start()

    def run(self, number):
        draw = random.Random(number)
        while not self.stopped.wait(draw.expovariate(self.rate / len(self.threads))):
            tenant = min(int(draw.expovariate(0.15)), self.tenants - 1)
            seen = self.send(draw.choice(self.addresses), tenant, draw.random())
            with self.lock:
                self.done.append((self.phase, *seen))

    @staticmethod
    def send(address, tenant, question):
        """(whole answer or not, seconds to the first token, prompt tokens, cached tokens)"""
        system = f"The rules of house {tenant}, in full. " * 250
        body = json.dumps({
            "model": MODEL, "stream": True, "max_tokens": 16, "stream_options": {"include_usage": True},
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": f"Question {question}"}]})
        host, port = address.rsplit(":", 1)
        begun, first, usage, ok = time.monotonic(), None, {}, False
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        try:
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            reply = connection.getresponse()
            for line in reply:
                if line.startswith(b"data: ") and first is None:
                    first = time.monotonic() - begun
                if line.startswith(b"data: [DONE]"):
                    ok = reply.status == 200
                elif b'"usage":{' in line:
                    usage = json.loads(line[6:])["usage"]
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return ok, first, usage.get("prompt_tokens", 0), cached

    def stop(self):
        self.stopped.set()
        for thread in self.threads:
            thread.join()
        return self.done


def worker(binary, folder, number, stack):
    """A fake worker with an address of its own: (process, URL)."""
    command = [binary, "fake-worker", "--host", f"127.0.0.{10 + number}", "--port", DnsSource.port,
               "--exit-on-sigterm"]
    child = stack.enter_context(Child(command, folder / f"worker-{number}.log", announces=True))
    return child, "http://" + child.listening()["http"]


def used(replicas, urls):
    """Whether all replicas have just these workers in use, and one digest."""
    for replica in replicas:
        workers = replica.admin_get("/workers")["workers"]
        if {w["url"] for w in workers if w["state"] == "active"} != set(urls):
            return False
    return len({replica.admin_get("/ring")["digest"] for replica in replicas}) == 1


def idle(replica, url):
    """Whether nothing is open at a worker, seen from the whole cluster."""
    workers = replica.admin_get("/workers")["workers"]
    found = [w for w in workers if w["url"] == url]
    return not found or found[0]["in_flight"] == 0


def rollout(binary, folder, source_type, a):
    with contextlib.ExitStack() as stack:
        source = source_type(folder, stack, binary)
        config = folder / "grapevine.toml"
        settings = getattr(source, "settings", lambda: "")()
        config.write_text(f'[discovery]\nhold = "{HOLD_S}s"\n[leases]\nttl = "5s"\n{settings}')
        old = [worker(binary, folder, n, stack) for n in range(a.workers)]
        urls = [url for _, url in old]
        arguments = ["--config", config, "--log-level", "warn", *source.arguments()]
        replicas = stack.enter_context(cluster(binary, folder / "replicas", REPLICAS, [], arguments))
        source.ready(replicas)
        begun = time.monotonic()
        source.write(urls)
        until(lambda: used(replicas, urls), SEEN_WITHIN_S, f"{a.workers} workers in use")
        found_s = time.monotonic() - begun
        load = Load([r.data for r in replicas], a.rate, a.tenants)
        try:
            time.sleep(a.settle)
            load.phase = "during"
            joins, leaves = [], []
            for number, (process, url) in enumerate(old):
                _, new = worker(binary, folder, a.workers + number, stack)
                begun = time.monotonic()
                urls.append(new)
                source.write(urls)
                until(lambda: used(replicas, urls), SEEN_WITHIN_S, f"{new} in use")
                joins.append(time.monotonic() - begun)
                urls.remove(url)
                begun = time.monotonic()
                source.write(urls)
                until(lambda: used(replicas, urls), SEEN_WITHIN_S, f"{url} not in use")
                leaves.append(time.monotonic() - begun)
                until(lambda: all(idle(r, url) for r in replicas), SEEN_WITHIN_S, f"{url} idle")
                process.process.terminate()
                time.sleep(a.pause)
            load.phase = "after"
            begun = time.monotonic()
            known = lambda: all(len(r.admin_get("/workers")["workers"]) == a.workers for r in replicas)
            until(known, SEEN_WITHIN_S, "only new workers are registered")
            gone_s = time.monotonic() - begun
            time.sleep(a.settle)
        finally:
            done = load.stop()
    phases = collections.defaultdict(list)
    for phase, *seen in done:
        phases[phase].append(seen)
    hits = {phase: sum(s[3] for s in seen) / max(1, sum(s[2] for s in seen)) for phase, seen in phases.items()}
    first = {phase: [s[1] for s in seen if s[1]] for phase, seen in phases.items()}
    return {"found_s": found_s, "joins": joins, "leaves": leaves, "gone_s": gone_s, "requests": len(done),
            "failed": sum(not s[1] for s in done), "hits": hits,
            "p99_ms": {phase: quantile(values, .99) * 1000 for phase, values in first.items()}}


def report(rows):
    print("| found by | requests | failed | hits before, during, after | first token p99 ms before, during, after "
          "| a new worker in use everywhere, s: median, most | an old one out of use | the last ones removed after s |\n"
          "|---|---|---|---|---|---|---|---|")
    phases = ("before", "during", "after")
    for name, r in rows.items():
        hits = ", ".join(f"{r['hits'].get(p, 0):.1%}" for p in phases)
        p99 = ", ".join(f"{r['p99_ms'].get(p, float('nan')):,.0f}" for p in phases)
        print(f"| {name} | {r['requests']:,} | {r['failed']} | {hits} | {p99} "
              f"| {statistics.median(r['joins']):.1f}, {max(r['joins']):.1f} "
              f"| {statistics.median(r['leaves']):.1f}, {max(r['leaves']):.1f} | {r['gone_s']:.1f} |")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--grapevine", type=Path, required=True, help="the binary, with the testbed")
    ap.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    ap.add_argument("--workers", type=int, default=12)
    ap.add_argument("--rate", type=float, default=40, help="requests a second")
    ap.add_argument("--tenants", type=int, default=48, help="system prompts")
    ap.add_argument("--pause", type=float, default=2, help="seconds between one worker and the next")
    ap.add_argument("--settle", type=float, default=10, help="seconds of load before and after")
    ap.add_argument("--json", type=Path, help="write all figures to this file")
    a = ap.parse_args()
    rows = {}
    with ending_on_sigterm(), tempfile.TemporaryDirectory(prefix="grapevine-rollout-") as folder:
        for name in a.sources:
            place = Path(folder, name)
            place.mkdir()
            rows[name] = rollout(a.grapevine.resolve(), place, SOURCES[name], a)
            print(f"{name}: done", file=sys.stderr)
    print(f"{a.workers} workers replaced one by one, {a.rate:g} requests/s, {len(REPLICAS)} replicas, hold {HOLD_S} s, "
          f"load average {os.getloadavg()[0]:.1f}.\n")
    report(rows)
    if a.json:
        a.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if any(r["failed"] for r in rows.values()) else 0


if __name__ == "__main__":
    run_script(main)
