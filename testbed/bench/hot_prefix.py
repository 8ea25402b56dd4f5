#!/usr/bin/env python3
"""One prefix at 40 % of all traffic: checks that no worker gets more requests than its bound.

    hot_prefix.py --grapevine BINARY [--replicas 4] [--workers 8] [--rate 40] [--seconds 60] [--policies prefix ...]

Every 500 ms all workers are asked how many requests they have in flight (their own count, not the routers'). The bound
is max(1.5 x mean, mean + 4). A worker generates a token each 30 ms, so that a request stays for some seconds.
Samples of the first tenth, while traffic builds up, are left out. Exit code 1 when a sample was above the bound.
"""
import argparse
import contextlib
import http.client
import json
import os
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import loads
from processes import cluster, ending_on_sigterm, fake_workers, run_script

SAMPLE_S = 0.5
ENGINE = ["--step-base", "30ms", "--step-per-sequence", "0s", "--prefill-tokens-per-s", 40_000, "--max-num-seqs", 256,
          "--max-num-batched-tokens", 8_192, "--num-gpu-blocks", 25_000]


class Sampler:
    """Reads the workers' in-flight counts, all at once, until stopped."""

    def __init__(self, urls):
        self.samples, self.stopped = [], threading.Event()
        self.addresses = [url.removeprefix("http://") for url in urls]
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        connections = [http.client.HTTPConnection(address, timeout=10) for address in self.addresses]

        def one(connection):
            connection.request("GET", "/_control/stats")
            return json.loads(connection.getresponse().read())["in_flight"]

        with ThreadPoolExecutor(len(connections)) as pool:
            while not self.stopped.wait(SAMPLE_S):
                self.samples.append((time.monotonic(), list(pool.map(one, connections))))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()


def excess(counts):
    """How far the busiest worker is above the bound; negative when within."""
    mean = sum(counts) / len(counts)
    return max(counts) - max(1.5 * mean, mean + 4)


def measure(binary, folder, a, policy):
    """Samples while the load flows, and the report of the replay."""
    folder.mkdir()
    trace = loads.write(folder, "hot", loads.hot(round(a.rate * a.seconds), a.rate, a.share, a.seed))
    with contextlib.ExitStack() as stack:
        workers = stack.enter_context(fake_workers(binary, folder, a.workers, ENGINE))
        names = [f"r{n + 1}" for n in range(a.replicas)]
        replicas = stack.enter_context(cluster(binary, folder, names, workers, ["--policy", policy, "--log-level", "warn", *settings(folder, a.set)]))
        command = [binary, "replay", "--trace", trace, "--endpoint", "completions", "--spread", "random", "--json",
                   "--in-flight-max", 4096, "--url", *(f"http://{r.data}" for r in replicas), "--worker-urls", *workers]
        begun = time.monotonic()
        with Sampler(workers) as sampler:
            done = subprocess.run([str(w) for w in command], stdout=subprocess.PIPE, timeout=a.seconds + 300)
        first, last = begun + 0.1 * a.seconds, begun + a.seconds
        samples = [counts for at, counts in sampler.samples if first <= at <= last]
        return samples, json.loads(done.stdout.splitlines()[-1])


def settings(folder, keys):
    """Arguments of a replica for keys of its configuration, each `[section] key = value` as `section.key=value`."""
    if not keys:
        return []
    path = Path(folder, "grapevine.toml")
    path.write_text("".join(f"{key}\n" for key in keys))
    return ["--config", path]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--grapevine", type=Path, required=True, help="the binary, built with --profile dist")
    ap.add_argument("--replicas", type=int, default=4)
    ap.add_argument("--workers", type=int, default=8)
    ap.add_argument("--rate", type=float, default=40, help="requests a second")
    ap.add_argument("--seconds", type=int, default=60)
    ap.add_argument("--share", type=float, default=0.4, help="of the traffic that has the prefix")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--policies", nargs="+", default=("prefix",))
    ap.add_argument("--set", nargs="+", metavar="KEY=VALUE", help="of the replicas' configuration, as cluster.bound=1.25")
    ap.add_argument("--json", type=Path, help="write samples and reports to this file")
    a = ap.parse_args()
    binary, over_any, kept = a.grapevine.resolve(), False, {}
    with ending_on_sigterm(), tempfile.TemporaryDirectory(prefix="grapevine-hot-") as folder:
        print(f"{a.share:.0%} of {a.rate:g} requests/s share a prefix, {a.replicas} replicas, {a.workers} workers\n\n"
              "| policy | samples | within the bound | worst excess | mean in flight a worker | mean of max/mean | hit rate "
              "| TTFT p50 ms | p99 | failed |\n|---|---|---|---|---|---|---|---|---|---|")
        for policy in a.policies:
            samples, report = measure(binary, Path(folder, policy), a, policy)
            samples = [counts for counts in samples if sum(counts)]
            over = [excess(counts) for counts in samples]
            means = [sum(counts) / len(counts) for counts in samples]
            within = sum(e <= 0 for e in over)
            over_any |= within < len(samples)
            print(f"| {policy} | {len(samples)} | {within / len(samples):.1%} | {max(0.0, *over):.1f} "
                  f"| {sum(means) / len(means):.1f} | {sum(max(c) / m for c, m in zip(samples, means)) / len(means):.2f} "
                  f"| {report['hit_rate']:.1%} | {report['ttft']['p50_ms']:,.0f} | {report['ttft']['p99_ms']:,.0f} "
                  f"| {report['requests'] - report['succeeded']} |", flush=True)
            kept[policy] = {"samples": samples, "report": report}
    print(f"\nload average {os.getloadavg()[0]:.1f}")
    if a.json:
        a.json.write_text(json.dumps(kept, indent=1) + "\n")
    return 1 if over_any else 0


if __name__ == "__main__":
    run_script(main)
