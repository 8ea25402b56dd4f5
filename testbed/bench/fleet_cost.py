#!/usr/bin/env python3
"""The cost of a request by the size of the cluster: CPU of one replica that alone has load.

    fleet_cost.py --grapevine BINARY [--workers 3 240 1000 5000] [--replicas 1 3 16] [--rounds 3] [--seconds 4] [--json FILE]

Rows of workers have one replica, rows of replicas three workers. The replica with the load has a core of its own; the
others, the load, and the workers (one process, a port each, that answers at once) have another. What the replica spends
without load, on probes and gossip, is taken as the mean of the same time before and after, and taken off. The cells are
medians, their ratio is to the first row of the same kind. Needs haproxy, wrk, taskset, two cores that are otherwise quiet.
"""
import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

from cost_account import Cpu
from cost_cases import Plain
from processes import Replica, cluster, ending_on_sigterm, run_script, until
from routers import instant_workers

ROUTER_CORE, OTHER_CORE = 0, 1
CASE = Plain(64, 1_024)
LEARN_S = 120
WARM_UP_S = 2


class Placed(Replica):
    """The first one has a core of its own."""

    def __init__(self, binary, name, folder, arguments):
        core = ROUTER_CORE if name == "r1" else OTHER_CORE
        super().__init__(binary, name, folder, arguments, prefix=["taskset", "-c", str(core)])
        self.title = name


def measured(router, seconds, workers):
    """CPU microseconds a request, all of it and without what is spent anyway."""
    def idle():
        before = Cpu.of(router)
        time.sleep(seconds)
        spent = Cpu.of(router) - before
        return (spent.user + spent.system) / seconds

    quiet = idle()
    before, began = Cpu.of(router), time.monotonic()
    requests, _, _ = CASE.run(router, OTHER_CORE, seconds, workers)
    spent, took = Cpu.of(router) - before, time.monotonic() - began
    quiet = (quiet + idle()) / 2
    total = spent.user + spent.system
    return {"all_us": total / requests * 1e6, "own_us": (total - quiet * took) / requests * 1e6,
            "idle_ms_s": quiet * 1e3, "per_s": requests / took}


def row(args, folder, worker_count, replica_count):
    child, workers = instant_workers(folder, worker_count, OTHER_CORE)
    with child, cluster(args.grapevine, folder, [f"r{number + 1}" for number in range(replica_count)],
                        [f"http://{worker}" for worker in workers], ["--log-level", "warn"], Placed) as replicas:
        router = replicas[0]

        def learned():
            return any(len(pool["workers"]) == worker_count and pool["model"]
                       for pool in router.admin_get("/ring")["pools"])

        until(learned, LEARN_S, f"the models of {worker_count} workers", 0.2)
        CASE.run(router, OTHER_CORE, WARM_UP_S, workers)
        rounds = [measured(router, args.seconds, workers) for _ in range(args.rounds)]
    return {field: statistics.median(of[field] for of in rounds) for field in rounds[0]}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--grapevine", type=Path, required=True, help="the binary; figures are of --profile dist")
    ap.add_argument("--workers", type=int, nargs="*", default=[3, 240, 1_000, 5_000])
    ap.add_argument("--replicas", type=int, nargs="*", default=[1, 3, 16])
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--seconds", type=int, default=4)
    ap.add_argument("--json", type=Path, help="write the rows to this file")
    args = ap.parse_args()
    args.grapevine = args.grapevine.resolve()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    rows = []
    print("| workers | replicas | CPU us/request | of it without idle cost | idle ms/s | load average |\n|---|---|---|---|---|---|")
    kinds = [(count, 1) for count in args.workers], [(3, count) for count in args.replicas]
    with ending_on_sigterm():
        for sizes in kinds:
            base = None
            for workers, replicas in sizes:
                with tempfile.TemporaryDirectory(prefix="grapevine-fleet-") as folder:
                    found = row(args, Path(folder), workers, replicas)
                base = base or found["own_us"]
                rows.append({"workers": workers, "replicas": replicas, **found})
                print(f"| {workers:,} | {replicas} | {found['all_us']:.1f} | {found['own_us']:.1f} = "
                      f"{found['own_us'] / base:.2f} x | {found['idle_ms_s']:.1f} | {os.getloadavg()[0]:.1f} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    run_script(main)
