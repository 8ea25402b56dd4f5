#!/usr/bin/env python3
"""Thousands of workers added as fast as they are accepted: 3 replicas, requests meanwhile, one process that is all workers.

    grow.py --grapevine BINARY [--workers 5000] [--adders 8] [--list 0] [--json FILE]

The fake worker listens on every address of the loopback network, so that each of 127.x.y.z is a worker of its own. Two
clients send requests all the time, first for `--quiet` seconds while nothing else happens. Then `--adders` connections
to each replica add workers one by one, each confirmed before the next is sent; with `--list N`, N in one request.
Accepted is the time until the last is confirmed; one digest, from there until all replicas hold one ring of all
workers. With `--unknown` the replicas ask the workers for their models and one digest is of the rings with them. After
that: decisions by the replicas' own histogram, and the answers of `/metrics` and `/workers`.
"""
import argparse
import concurrent.futures
import contextlib
import http.client
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

from processes import Child, Failed, ask, cluster, ending_on_sigterm, show, until

MODEL = "fake-model"
ONE_DIGEST_WITHIN_S = 300


def spent(pid):
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def quantile(sorted_values, share):
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))] if sorted_values else float("nan")


class Clients:
    """Two clients that send without a pause; `taken()` returns the latencies since its last call, and the failures."""

    def __init__(self, replicas):
        self.addresses, self.took, self.failed, self.stop = [r.data for r in replicas], [], 0, threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(2)]
        [thread.start() for thread in self.threads]

    def run(self, number):
        turn = number
        while not self.stop.is_set():
            turn += 2
            body = json.dumps({"model": MODEL, "max_tokens": 2,
                               "messages": [{"role": "user", "content": f"question {turn} " * 20}]})
            began = time.monotonic()
            try:
                status = ask(self.addresses[turn % len(self.addresses)], "POST", "/v1/chat/completions", body,
                             {"content-type": "application/json"})[0]
            except OSError:
                status = 0
            self.took.append(time.monotonic() - began)
            self.failed += status != 200

    def taken(self):
        took, self.took = sorted(self.took), []
        return took

    def end(self):
        self.stop.set()
        [thread.join() for thread in self.threads]


def add(address, workers, listed):
    """Adds these one after the other, or in lists, over one connection."""
    host, port = address.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=120)
    pieces = [workers[at:at + listed] for at in range(0, len(workers), listed)] if listed else workers
    with contextlib.closing(connection):
        for piece in pieces:
            connection.request("POST", "/workers?warmup=false", json.dumps(piece), {"content-type": "application/json"})
            reply = connection.getresponse()
            answer = json.loads(reply.read())
            if reply.status != 201 or not answer["replicated"]:
                raise Failed(f"{reply.status}: {answer}")


def counter(replica, name):
    _, _, body = ask(replica.admin, "GET", "/metrics")
    lines = (line.rsplit(" ", 1) for line in body.decode().splitlines() if line.startswith(name))
    return {labels[len(name):]: float(value) for labels, value in lines}


def decision_p99(before, after):
    """Upper end of the histogram's bucket that holds the 99th percentile of the decisions in between, in us."""
    bound = lambda labels: float(labels.split('le="')[1].split('"')[0])
    rows = sorted((bound(labels), after[labels] - before.get(labels, 0)) for labels in after)
    return next(le for le, count in rows if count >= .99 * rows[-1][1]) * 1e6


def run(a, folder):
    with contextlib.ExitStack() as stack:
        fake = [a.grapevine, "fake-worker", "--host", "0.0.0.0", "--port", 0, "--exit-on-sigterm"]
        fake = stack.enter_context(Child(fake, folder / "worker.log", announces=True))
        port = fake.listening()["http"].rsplit(":", 1)[1]
        url = lambda n: f"http://127.1.{n // 250}.{n % 250 + 1}:{port}"
        replicas = stack.enter_context(cluster(
            a.grapevine, folder / "cluster", ["r1", "r2", "r3"], [url(0)], ["--log-level", "warn", "--disable-access-log"]))
        clients = Clients(replicas)
        stack.callback(clients.end)
        time.sleep(1)
        clients.taken()
        time.sleep(a.quiet)
        quiet = clients.taken()
        fleets = [sum(counter(r, "grapevine_fleets_total").values()) for r in replicas]
        cpu = [spent(r.pid) for r in replicas]
        models = {} if a.unknown else {"models": [MODEL]}
        workers = [{"url": url(n), **models} for n in range(1, a.workers)]
        began = time.monotonic()
        shares = len(replicas) * a.adders
        with concurrent.futures.ThreadPoolExecutor(shares) as pool:
            jobs = [pool.submit(add, replicas[n % 3].admin, workers[n::shares], a.list) for n in range(shares)]
            [job.result() for job in jobs]
        accepted = time.monotonic() - began

        def one_digest():
            rings = [r.admin_get("/ring") for r in replicas]
            whole = all(ring["workers"] == a.workers and len(ring["pools"]) == 1
                        and ring["pools"][0]["count"] == a.workers for ring in rings)
            return whole and len({ring["digest"] for ring in rings}) == 1

        until(one_digest, ONE_DIGEST_WITHIN_S, "one digest", 0.05)
        digest = time.monotonic() - began - accepted
        busy = clients.taken()
        row = {"workers": a.workers, "adders": shares, "list": a.list, "unknown": a.unknown, "accepted_s": accepted,
               "one_digest_s": digest, "failed": clients.failed, "requests": len(quiet) + len(busy),
               "quiet_p99_ms": quantile(quiet, .99) * 1e3, "busy_p99_ms": quantile(busy, .99) * 1e3,
               "quiet_p50_ms": quantile(quiet, .5) * 1e3, "busy_p50_ms": quantile(busy, .5) * 1e3,
               "fleets": [sum(counter(r, "grapevine_fleets_total").values()) - was for r, was in zip(replicas, fleets)],
               "cpu_s": [spent(r.pid) - was for r, was in zip(replicas, cpu)]}
        name = "grapevine_decision_seconds_bucket"
        time.sleep(3)
        before = counter(replicas[0], name)
        time.sleep(a.quiet)
        row["decision_p99_us"] = decision_p99(before, counter(replicas[0], name))
        row["after_p99_ms"] = quantile(clients.taken(), .99) * 1e3
        for path in ("/metrics", "/workers", "/ring"):
            began = time.monotonic()
            size = len(ask(replicas[0].admin, "GET", path)[2])
            row[path] = f"{size // 1024} KiB in {(time.monotonic() - began) * 1e3:.0f} ms"
        return row


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--grapevine", type=Path, required=True, help="the binary; figures are of --profile dist")
    ap.add_argument("--workers", type=int, default=5000)
    ap.add_argument("--adders", type=int, default=8, help="connections to each replica that add workers")
    ap.add_argument("--list", type=int, default=0, help="workers in one request; 0: one by one, not as a list")
    ap.add_argument("--unknown", action="store_true", help="give no models: the workers are asked for them")
    ap.add_argument("--quiet", type=float, default=5, help="seconds measured before and after")
    ap.add_argument("--json", type=Path, help="write the figures to this file")
    a = ap.parse_args()
    a.grapevine = a.grapevine.resolve()
    with ending_on_sigterm(), tempfile.TemporaryDirectory(prefix="grapevine-grow-") as folder:
        row = run(a, Path(folder))
    show(row, a.json)


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(str(failure))
    except KeyboardInterrupt:
        sys.exit(130)
