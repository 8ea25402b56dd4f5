#!/usr/bin/env python3
"""The cost of gossip: bytes and CPU of a replica under one load, by number of replicas.

    gossip_cost.py --grapevine [NAME=]BINARY [--grapevine NAME=BINARY ...] [--replicas 3 8 16] [--rate 1000]

The same load for each cluster: so many requests a second in all, spread over its replicas, as an open loop; prompts of
2 KB in 500 groups, plain answers, 8 workers that take 20 ms. Figures are for one replica, as the mean of all: bytes
sent and received by its own metrics (gossip_bytes_total, by plane) in kB/s, and CPU of its process in ms/s by the
operating system's accounting, both under load and idle; and agreement by its own samples. CPU under load includes the
requests themselves, and each replica's part of them shrinks as there are more replicas. Builds take turns. Exit code 1
when a request failed.
"""
import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from processes import Failed, ask, cluster, ending_on_sigterm, fake_workers

TICKS = os.sysconf("SC_CLK_TCK")
WORKERS = 8
IDLE_S = 5
WORKER = ["--step-base", "20ms", "--step-per-sequence", "0s", "--prefill-tokens-per-s", 10_000_000, "--max-num-seqs",
          1_024, "--max-num-batched-tokens", 1_000_000]


def cpu_s(replica):
    fields = Path(f"/proc/{replica.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def read(replica):
    """{(direction, plane): bytes}, {result: samples} of a replica's metrics."""
    sent, samples = Counter(), Counter()
    for line in ask(replica.admin, "GET", "/metrics", within_s=10)[2].decode().splitlines():
        name, _, rest = line.partition("{")
        labels, _, value = rest.rpartition("} ")
        labels = dict(label.split("=", 1) for label in labels.replace('"', "").split(",") if "=" in label)
        if name.endswith("gossip_bytes_total"):
            sent[labels["direction"], labels["plane"]] += float(value)
        elif name.endswith("agreement_samples_total") and labels["result"] != "unanswered":
            samples[labels["result"]] += float(value)
    return sent, samples


class Window:
    """Bytes and CPU of the replicas between two moments, per replica and second."""

    def __init__(self, replicas):
        self.replicas = replicas
        self.begun, self.cpu = time.monotonic(), [cpu_s(r) for r in replicas]
        self.read = [read(r) for r in replicas]

    def close(self):
        seconds, count = time.monotonic() - self.begun, len(self.replicas)
        cpu = sum(cpu_s(r) - before for r, before in zip(self.replicas, self.cpu))
        sent, samples = Counter(), Counter()
        for replica, (sent_before, samples_before) in zip(self.replicas, self.read):
            now, sampled = read(replica)
            sent.update({key: now[key] - sent_before[key] for key in now})
            samples.update({key: sampled[key] - samples_before[key] for key in sampled})
        per = 1 / seconds / count
        out = {plane: value * per / 1e3 for (way, plane), value in sent.items() if way == "out"}
        asked = sum(samples.values())
        return {"cpu": 1e3 * cpu * per, "out": sum(out.values()), "load": out.get("load", 0.0),
                "evidence": out.get("evidence", 0.0), "in": sum(v for (way, _), v in sent.items() if way == "in") * per / 1e3,
                "agree": samples["same"] / asked if asked else None, "asked": asked}


def measure(binary, count, rate, seconds, folder):
    names = [f"r{number}" for number in range(1, count + 1)]
    with contextlib.ExitStack() as stack:
        urls = stack.enter_context(fake_workers(binary, folder, WORKERS, WORKER))
        config = Path(folder, "replica.toml")
        config.write_text("[gossip]\nagreement_samples = 10\n")
        settings = ["--config", config, "--log-level", "warn"]
        replicas = stack.enter_context(cluster(binary, Path(folder, "cluster"), names, urls, settings))
        idle = Window(replicas)
        time.sleep(IDLE_S)
        idle = idle.close()
        fronts = [f"http://{r.data}" for r in replicas]
        load = subprocess.Popen(
            [binary, "bench", "--model", "fake-model", "--url", *fronts, "--spread", "random", "--rate", str(rate), "--duration", f"{seconds + 3}s",
             "--requests", str(int(rate * (seconds + 3))),
             "--groups", "500", "--shared-bytes", "1900", "--own-bytes", "100", "--max-tokens", "1", "--plain", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            time.sleep(2)
            busy = Window(replicas)
            time.sleep(seconds)
            busy = busy.close()
            report = json.loads(load.communicate(timeout=60)[0])["endpoints"][0]["summary"]
        finally:
            if load.poll() is None:
                load.kill()
        return idle, busy, report


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--grapevine", action="append", required=True, metavar="[NAME=]BINARY")
    ap.add_argument("--replicas", nargs="+", type=int, default=[3, 8, 16])
    ap.add_argument("--rate", type=int, default=1_000, help="requests a second of the whole cluster")
    ap.add_argument("--seconds", type=float, default=10)
    args = ap.parse_args()
    failed = 0
    print("| replicas | build | idle: CPU ms/s | out kB/s | under load: CPU ms/s | out kB/s | load plane | evidence | in kB/s "
          "| agree | asked | requests | failed | load average |")
    print("|---" * 14 + "|", flush=True)
    for count in args.replicas:
        for build in args.grapevine:
            name, _, binary = build.rpartition("=")
            with tempfile.TemporaryDirectory() as folder:
                idle, busy, report = measure(Path(binary).resolve(), count, args.rate, args.seconds, folder)
            bad = report["requests"] - report["succeeded"]
            failed += bad
            agree = "" if busy["agree"] is None else f"{busy['agree']:.3f}"
            print(f"| {count} | {name or Path(binary).name} | {idle['cpu']:.1f} | {idle['out']:.1f} | {busy['cpu']:.1f} "
                  f"| {busy['out']:.1f} | {busy['load']:.1f} | {busy['evidence']:.1f} | {busy['in']:.1f} | {agree} "
                  f"| {busy['asked']:.0f} | {report['requests']} | {bad} | {os.getloadavg()[0]:.1f} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        with ending_on_sigterm():
            sys.exit(main())
    except Failed as error:
        sys.exit(f"gossip_cost.py: {error}")
