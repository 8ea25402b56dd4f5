#!/usr/bin/env python3
"""Two releases in one cluster: rolled forward and back under load.

    mixed.py OLD NEW [--seconds 90] [--clients 16] [--tokens 60] [--json FILE]

Three replicas of OLD behind the balancer of the testbed, four fake workers, streams in a closed loop; these tools are those
of NEW, so OLD may be what is shipped. Each replica is
ended by SIGTERM and started again on its ports as NEW, one after the other; then each as OLD again. After every step
a worker is added through one replica and removed through another, and all must hold the same registry and ring.

Exit code 1 when a request failed, when registries or rings differed for more than `AGREE_S`, or when a replica refused a
message of another.
"""
import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from processes import Child, Failed, ask, cluster, ending_on_sigterm, fake_workers, until
from restart import Restartable

REPLICAS = ("r1", "r2", "r3")
WORKERS = 4
AGREE_S = 10
REFUSED = "refused a message of a replica"


def agreed(replicas, workers):
    """Whether all replicas see each other, with one registry and one ring of so many workers."""
    views = [r.admin_get("/cluster") for r in replicas]
    rings = [r.admin_get("/ring") for r in replicas]
    registries = {seen["registry"] for view in views for seen in view["replicas"] if seen["live"]}
    return (all(v["ready"] and v["live"] == len(replicas) == v["agreeing"] for v in views)
            and len(registries) == 1 and len({json.dumps(r, sort_keys=True) for r in rings}) == 1
            and rings[0]["workers"] == workers)


def change(replicas, url):
    """Adds a worker through one replica and removes it through another; all replicas must follow."""
    body = json.dumps({"id": "extra", "url": url, "models": ["fake-model"]})
    status, _, text = ask(replicas[0].admin, "POST", "/workers?warmup=false", body)
    if status != 201:
        raise Failed(f"a worker was not added: {status} {text[:300]!r}")
    until(lambda: agreed(replicas, WORKERS + 1), AGREE_S, "one registry with the new worker")
    status, _, text = ask(replicas[1].admin, "DELETE", "/workers/extra")
    if status != 200:
        raise Failed(f"a worker was not removed: {status} {text[:300]!r}")
    until(lambda: agreed(replicas, WORKERS), AGREE_S, "one registry without it")


def roll(replicas, binary, extra):
    """Every replica in turn ends and starts again as `binary`."""
    for index, replica in enumerate(replicas):
        replica.process.terminate()
        code = replica.process.wait(60)
        if code != 0:
            raise Failed(f"{replica.name} ended with {code}: {replica.last_words()}")
        replica.binary = binary
        replica.again([other.gossip for other in replicas if other is not replica])
        until(lambda: agreed(replicas, WORKERS), AGREE_S * 3, f"a cluster with {replica.name} as {binary}")
        change(replicas[index:] + replicas[:index], extra)
        print(f"{replica.name} runs {binary}: one registry, one ring", flush=True)


def run(folder, a):
    with contextlib.ExitStack() as stack:
        *workers, extra = stack.enter_context(fake_workers(a.new, folder, WORKERS + 1))
        replicas = stack.enter_context(cluster(a.old, folder, REPLICAS, workers, (), Restartable))
        front = stack.enter_context(Child(
            [a.new, "balancer", "--port", 0, "--check-path", "/readiness", "--check-interval", "100ms",
             "--backend", *(r.data for r in replicas)], folder / "balancer.log", announces=True))
        url = "http://" + front.listening()["http"]
        load = stack.enter_context(Child(
            [a.new, "bench", "--model", "fake-model", "--url", url, "--concurrency", a.clients, "--max-tokens", a.tokens, "--requests", 10**9,
             "--duration", f"{a.seconds}s", "--json"], folder / "load.log", announces=True))
        for binary in (a.new, a.old):
            roll(replicas, binary, extra)
        if load.process.poll() is not None:
            raise Failed(f"the load ended before the cluster was back: raise --seconds ({load.last_words()})")
        out, _ = load.process.communicate(timeout=a.seconds + 60)
        report = json.loads(out[out.index(b"{"):])["endpoints"][0]["summary"]
        refusals = sum(r.log.read_text(errors="replace").count(REFUSED) for r in replicas)
    failed = report["requests"] - report["succeeded"]
    print(f"{report['requests']} requests, {failed} failed {report['failures']}, {refusals} messages refused")
    if a.json:
        Path(a.json).write_text(json.dumps({**report, "refused_messages": refusals}))
    return 1 if failed or refusals or not report["requests"] else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="binary of the former release")
    parser.add_argument("new", help="binary of the next one")
    parser.add_argument("--seconds", type=int, default=90, help="of load; the rolls must fit in")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--json", help="write the figures to this file")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ending_on_sigterm():
        try:
            return run(Path(folder), a)
        except (Failed, subprocess.SubprocessError) as error:
            print(f"failed: {error}", file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
