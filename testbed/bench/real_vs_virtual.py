#!/usr/bin/env python3
"""Compares the figures of a real cluster with those of `grapevine replay --virtual`.

    real_vs_virtual.py --grapevine BINARY [--load "TRACE key=value ..."]... [--policies prefix random ...]

Each load goes once through real replica processes and fake workers at the speed of the trace (one second is one
second), and once through the virtual replay: the same rows, rate, workers, cache, engine model, replicas and policy.
Keys of a load: rate (factor on starts), copies (of a closed-loop trace), requests (the first so many), workers, cache
(tokens of a worker), block (tokens). TRACE is a file NAME.jsonl.gz, `slice` for the slice that comes with the binary,
or `conversations` for generated ones. Closed-loop loads are sent as chats, others as plain texts. The first tenth of
the requests only warms the caches, on both sides.

The virtual side runs several times, each with other draws and another ring, because the real ring and the real draws
are random, too. Exit code 1 when a real hit rate lies more than --margin-hit points outside of what those runs gave, or
a mean first-token time more than --margin-ttft of their mean and more than --margin-ms: a real first token has come
through two connections and three processes.
"""
import argparse
import contextlib
import gzip
import json
import os
import subprocess
import tempfile
from pathlib import Path

import loads
from processes import Failed, cluster, ending_on_sigterm, fake_workers, run_script

REPLAY_S = 1800
LOAD_BATCH_MS = 20      # the replicas' default
DEFAULTS = {"rate": 1.0, "copies": 0, "requests": 0, "workers": 4, "cache": 400_000, "block": 0}
LOADS = ["slice rate=4 workers=16 cache=300000", "conversations workers=4 cache=100000"]
POLICIES = ("prefix", "cache_aware", "consistent_hash", "least_request", "random")
VIRTUAL_NAMES = {"cache_aware": "cache_aware shared"}


class Load:
    """One load: the settings of both sides."""

    def __init__(self, text, folder):
        trace, *settings = text.split()
        values = dict(DEFAULTS)
        for setting in settings:
            key, _, value = setting.partition("=")
            if key not in values:
                raise Failed(f"{text}: no key is called {key}; they are {', '.join(values)}")
            values[key] = float(value) if key == "rate" else int(value)
        self.rate, self.workers, self.cache = values["rate"], values["workers"], values["cache"]
        self.words, self.block, closed = [], 512, False
        if trace == "conversations":
            trace = loads.write(folder, "conversations", loads.conversations(700, 7.0))
        if trace != "slice":
            trace = Path(trace)
            self.words = ["--trace", trace]
            stem = str(trace).removesuffix(".jsonl.gz")
            self.block = json.loads(Path(f"{stem}.meta.json").read_text())["block_tokens"]
            with gzip.open(trace, "rt") as rows:
                closed = any("gap_ms" in line for line in rows)
        self.name = trace if isinstance(trace, str) else trace.name.removesuffix(".jsonl.gz")
        self.block = values["block"] or self.block
        self.words += ["--rate", self.rate]
        if values["requests"]:
            self.words += ["--requests", values["requests"]]
        self.words += ["--copies", max(values["copies"], 1)] if closed else []
        self.real = ["--endpoint", "chat", "--messages", "sessions"] if closed else ["--endpoint", "completions"]
        self.virtual = [] if closed else ["--plain"]


def really(binary, folder, load, policy, replicas):
    """Report of `grapevine replay` through real processes."""
    folder.mkdir(parents=True)
    engine = ["--engine", "llama-8b-h100", "--block-size", load.block, "--num-gpu-blocks", load.cache // load.block]
    names = [f"r{n + 1}" for n in range(replicas)]
    with contextlib.ExitStack() as stack:
        workers = stack.enter_context(fake_workers(binary, folder, load.workers, engine))
        arguments = ["--policy", policy, "--log-level", "warn"]
        of = stack.enter_context(cluster(binary, folder, names, workers, arguments))
        command = [binary, "replay", *load.words, *load.real, "--json", "--warm-up", 0.1, "--spread", "random",
                   "--in-flight-max", 4096, "--url", *(f"http://{r.data}" for r in of),
                   "--admin-urls", *(f"http://{r.admin}" for r in of), "--worker-urls", *workers]
        return run(command)[-1]


def virtually(binary, load, policies, replicas, seeds):
    """For each policy its runs, each with another seed and other names of workers, which give another ring."""
    runs = {}
    for seed in range(1, seeds + 1):
        command = [binary, "replay", "--virtual", *load.words, *load.virtual, "--workers", load.workers,
                   "--device-tokens", load.cache, "--replicas", replicas, "--load-age", f"{LOAD_BATCH_MS}ms",
                   "--policies", ",".join(VIRTUAL_NAMES.get(p, p) for p in policies), "--seed", seed, "--ring", seed]
        for line in run(command):
            if line["policy"] != "oracle":
                runs.setdefault(line["policy"], []).append(line)
    return runs


def mean(lines, key):
    return sum(line[key] or 0 for line in lines) / len(lines)


def outside(value, lines, key):
    """How far a value lies outside the range of the runs: 0 within, else the signed distance to the nearest."""
    values = [line[key] for line in lines]
    return value - min(max(value, min(values)), max(values))


def run(command):
    """The JSON lines of a command."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, timeout=REPLAY_S)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if not lines:
        raise Failed(f"{' '.join(map(str, command))}\n  ended with {done.returncode}")
    return lines


def row(policy, real, virtual, margins):
    """A line of the table, and whether it lies within the margins."""
    hit = 100 * outside(real["hit_rate"], virtual, "hit_rate")
    ttft_ms = outside(real["ttft"]["mean_ms"], virtual, "ttft_mean_ms")
    ttft = ttft_ms / mean(virtual, "ttft_mean_ms")
    agreed = f"{real['agreed'] / real['asked']:.3f}" if real["asked"] else "-"
    failed = real["requests"] - real["succeeded"]
    held = abs(hit) <= margins.margin_hit and not failed and (
        abs(ttft) <= margins.margin_ttft or abs(ttft_ms) <= margins.margin_ms)
    def spread(key, form):
        values = [line[key] for line in virtual]
        return f"{mean(virtual, key):{form}} ({min(values):{form}} to {max(values):{form}})"
    times = " | ".join(f"{real['ttft'][f'{q}_ms']:,.0f} / {spread(f'ttft_{q}_ms', ',.0f')}" for q in ("mean", "p50", "p90"))
    return (f"| {policy} | {real['hit_rate']:.1%} / {spread('hit_rate', '.1%')} | {hit:+.1f} | {times} | {ttft:+.0%} "
            f"| {agreed} / {mean(virtual, 'agreement'):.3f} | {failed} | {'yes' if held else 'NO'} |"), held


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--grapevine", type=Path, required=True, help="the binary, built with --profile dist")
    ap.add_argument("--load", action="append", help=f"default: {' and '.join(map(repr, LOADS))}")
    ap.add_argument("--policies", nargs="+", default=POLICIES)
    ap.add_argument("--replicas", type=int, default=3)
    ap.add_argument("--seeds", type=int, default=40, help="virtual runs, each with other draws and another ring")
    ap.add_argument("--margin-hit", type=float, default=2.0, help="points")
    ap.add_argument("--margin-ttft", type=float, default=0.15, help="part of the virtual mean")
    ap.add_argument("--margin-ms", type=float, default=5.0, help="of the mean TTFT, where that is more")
    ap.add_argument("--json", type=Path, help="write all reports to this file")
    a = ap.parse_args()
    binary, all_held, reports = a.grapevine.resolve(), True, {}
    with ending_on_sigterm(), tempfile.TemporaryDirectory(prefix="grapevine-real-virtual-") as folder:
        for number, text in enumerate(a.load or LOADS):
            load = Load(text, folder)
            virtual = virtually(binary, load, a.policies, a.replicas, a.seeds)
            print(f"\n{load.name}: rate {load.rate:g}, {load.workers} workers of {load.cache:,} tokens, {a.replicas} replicas; "
                  f"real / virtual (mean, least and greatest of {a.seeds})\n\n"
                  "| policy | hit rate | points outside | TTFT mean ms | p50 | p90 | mean outside | agreement | failed | within margin |\n"
                  "|---|---|---|---|---|---|---|---|---|---|")
            for policy in a.policies:
                real = really(binary, Path(folder, f"{number}-{policy}"), load, policy, a.replicas)
                of = virtual[VIRTUAL_NAMES.get(policy, policy)]
                line, held = row(policy, real, of, a)
                print(line, flush=True)
                all_held &= held
                reports[f"{load.name} {policy}"] = {"real": real, "virtual": of}
    print(f"\nmargins: {a.margin_hit:g} points of hit rate, {a.margin_ttft:.0%} or {a.margin_ms:g} ms of the mean TTFT: "
          f"{'all held' if all_held else 'NOT all held'}; load average {os.getloadavg()[0]:.1f}")
    if a.json:
        a.json.write_text(json.dumps(reports, indent=1) + "\n")
    return 0 if all_held else 1


if __name__ == "__main__":
    run_script(main)
