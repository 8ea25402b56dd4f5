#!/usr/bin/env python3
"""Prefix-cache hit rate by policy: a real trace through three replicas and eight fake workers.

    hit_rate.py --grapevine BINARY [--speed 8] [--cache-blocks 65536] [--requests N] [--json FILE]

The hit rate is the workers' own count (vllm:prefix_cache_hits_total over _queries_total). Every row starts with new
processes and cold caches. The last row is `prefix` with one replica, which knows all the load: the difference to it is
what delayed gossip costs. Trace and workers run `--speed` times faster than real, the replicas do not, so their view of
load is that much older than it would be. Times are shown in the trace's time, multiplied back.
"""
import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from processes import Failed, cluster, ending_on_sigterm, fake_workers, run_script

REPLICAS = ("r1", "r2", "r3")
WORKERS = 8
ROWS = [(policy, REPLICAS) for policy in
        ("prefix", "cache_aware", "consistent_hash", "least_request", "power_of_two", "round_robin", "random")]
ROWS += [("prefix", REPLICAS[:1])]
REPLAY_S = 1800


def replay(binary, folder, policy, names, speed, cache_blocks, requests):
    """One row: the report of `grapevine replay`."""
    with contextlib.ExitStack() as stack:
        engine = ["--speed", speed, "--num-gpu-blocks", cache_blocks]
        workers = stack.enter_context(fake_workers(binary, folder, WORKERS, engine))
        arguments = ["--policy", policy, "--log-level", "warn"]
        replicas = stack.enter_context(cluster(binary, folder, names, workers, arguments))
        command = [binary, "replay", "--url", *(f"http://{r.data}" for r in replicas), "--worker-urls", *workers,
                   "--speed", str(speed), "--explain", "--json"]
        if requests:
            command += ["--requests", str(requests)]
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=REPLAY_S)
        if not done.stdout:
            raise Failed(f"replay ended with {done.returncode}")
        return json.loads(done.stdout.splitlines()[-1])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--grapevine", type=Path, required=True, help="the binary, built with --profile dist")
    ap.add_argument("--speed", type=float, default=8, help="trace seconds a real second")
    ap.add_argument("--cache-blocks", type=int, default=65_536, help="cache of a worker, in blocks of 16 tokens")
    ap.add_argument("--policies", nargs="+", help="only these")
    ap.add_argument("--requests", type=int, help="only the first of the trace")
    ap.add_argument("--json", type=Path, help="write the full reports to this file")
    a = ap.parse_args()
    binary = a.grapevine.resolve()
    reports = {}
    with ending_on_sigterm(), tempfile.TemporaryDirectory(prefix="grapevine-hit-rate-") as folder:
        rows = [row for row in ROWS if not a.policies or row[0] in a.policies]
        for number, (policy, names) in enumerate(rows):
            place = Path(folder, str(number))
            place.mkdir()
            name = f"{policy}, {len(names)} replica{'s' if len(names) > 1 else ''}"
            reports[name] = replay(binary, place, policy, names, a.speed, a.cache_blocks, a.requests)
            print(f"{name}: done", file=sys.stderr)

    first = next(iter(reports.values()))
    print(f"{first['requests']} requests, {WORKERS} workers of {a.cache_blocks * 16:,} tokens, "
          f"{a.speed:g} x real time, load average {os.getloadavg()[0]:.1f}.\n")
    print("| policy | hit rate | TTFT p50 ms | TTFT p99 ms | failed | busiest / mean worker |\n|---|---|---|---|---|---|")
    for name, of in reports.items():
        cache = of["worker_cache"]
        failed = of["requests"] - of["succeeded"]
        busiest = max(of["workers"].values()) / (of["requests"] / WORKERS)
        print(f"| {name} | {cache['hit_tokens'] / cache['queried_tokens']:.1%} | {of['ttft']['p50_ms'] * a.speed:,.0f} "
              f"| {of['ttft']['p99_ms'] * a.speed:,.0f} | {failed} | {busiest:.2f} |")
    if a.json:
        a.json.write_text(json.dumps(reports, indent=1) + "\n")
    return 1 if any(of["succeeded"] < of["requests"] for of in reports.values()) else 0


if __name__ == "__main__":
    run_script(main)
