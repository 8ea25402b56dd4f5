#!/usr/bin/env python3
"""The cost of a request: Grapevine next to nginx and haproxy, which relay, and haproxy that hashes the body.

    cost.py --grapevine [NAME=]BINARY ... [--cores 1,2] [--rounds 3] [--seconds 4] [--cases WORDS] [--peers] [--quiet]
            [--calls] [--json FILE]

Measured by the operating system's accounting of the router's processes, not by rate; routers, and builds of Grapevine
side by side, take turns; medians of the rounds, and their ratio to nginx in the same run. `--cores`: how many the
router may use, each in a table of its own. `--cases`: only those whose names contain one of the words, by commas.
`--calls` counts system calls and futex calls instead of time, for a run of its own. `--peers` adds vllm-router and SMG
from their wheels. `--quiet` adds Grapevine without its log line for each request. Needs nginx, haproxy, wrk,
taskset, for the rows of TLS openssl and h2load (nghttp2), for `--calls` root and perf, and two cores that are otherwise quiet. See README.md for how to profile.
"""
import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from cost_account import Cpu, SystemCalls, resident_kb
from cost_cases import HalfCapacity, Multiplexed, OpenRate, Plain, Streams, grown_kb, resting_connections, resting_streams
from processes import Failed, ask, ending_on_sigterm
from routers import (Grapevine, Haproxy, HaproxyHash, Nginx, Way, certificate, fake_worker, instant_workers,
                     wait_until_routing)

OTHER_CORE = 1          # of load and workers
ROUTER_CORES = {1: "0", 2: "0,1"}
WORKERS = 4
WARM_UP_S = 1
PLAIN = {
    "1 connection, 1 KB": Plain(1, 1_024),
    "64 connections, 1 KB": Plain(64, 1_024),
    "64 connections, 8 KB": Plain(64, 8_192),
    "16 connections, 64 KB": Plain(16, 65_536),
    "open loop, 2,000/s": OpenRate(),
}
SECURE = {
    "64 connections, 1 KB, TLS": Plain(64, 1_024),
    "16 connections of 4 streams, 1 KB, HTTP/2 over TLS": Multiplexed(16, 4, 1_024),
}
HTTP2_WORKERS = {"64 connections, 1 KB, workers over HTTP/2": Plain(64, 1_024)}
WITHOUT_GAP = {"64 streams without a gap": Streams(64, 64)}
WITH_GAP = {"500 streams, 20 ms": Streams(500, 400)}
HALF = "half of its own capacity, 1 KB"
IDLE_CONNECTION, IDLE_STREAM, START = "kB per idle connection", "kB per idle stream", "MiB at start"
ENGINE = ["--max-num-seqs", 512, "--step-per-sequence", "0s", "--prefill-tokens-per-s", 1e9,
          "--max-num-batched-tokens", 1_000_000, "--num-gpu-blocks", 200_000]


class Run:
    """One table: the routers on so many cores, and what was measured of each, by case."""

    def __init__(self, args, kinds, folder, cores):
        self.args, self.kinds, self.folder, self.cores = args, kinds, folder, cores
        self.results = {title: {} for title, *_ in kinds}
        self.started = 0

    def wanted(self, name):
        return any(word in name for word in self.args.cases.split(","))

    def note(self, title, case, figures):
        self.results[title].setdefault(case, []).append(figures)
        print(f"{self.cores} cores, {case}, {title}: " + ", ".join(f"{k} {v:.4g}" for k, v in figures.items()),
              file=sys.stderr)

    def routers(self, stack, workers, way=Way()):
        """All of them that can, fresh, in front of these workers."""
        routers = []
        for _, make, can in self.kinds:
            if not can(way):
                continue
            self.started += 1
            place = Path(self.folder, f"{self.cores}-{self.started}")
            place.mkdir()
            routers.append(stack.enter_context(make(place, workers, ROUTER_CORES[self.cores], *([way] if way != Way() else []))))
            wait_until_routing(routers[-1], WORKERS)
        return routers

    def once(self, case, router, workers, seconds):
        """One measurement: the figures per request or event."""
        account, cpu = contextlib.nullcontext(), Cpu.of(router)
        if self.args.calls:
            account = SystemCalls(router)
        if isinstance(case, Streams):
            spent = []

            @contextlib.contextmanager
            def window():
                spent.append(Cpu.of(router))
                with account:
                    yield
                spent.append(Cpu.of(router))

            units, took, more = case.run(router, OTHER_CORE, seconds, workers, window)
            cpu = spent[1] - spent[0]
        else:
            with account:
                units, took, more = case.run(router, OTHER_CORE, seconds, workers)
            cpu = Cpu.of(router) - cpu
        if self.args.calls:
            return {name: count / units for name, count in account.counted.items()}
        return {**cpu.per(units, took), **more}

    def take_turns(self, cases, workers, way=Way()):
        cases = {name: case for name, case in cases.items() if self.wanted(name)}
        if not cases:
            return
        with contextlib.ExitStack() as stack:
            routers = self.routers(stack, workers, way)
            for name, case in cases.items():
                for router in routers:      # connections and caches fill before anything counts
                    case.run(router, OTHER_CORE, WARM_UP_S, workers)
                for turn in range(self.args.rounds):
                    at = turn % len(routers)
                    for router in routers[at:] + routers[:at]:
                        self.note(router.title, name, self.once(case, router, workers, self.args.seconds))

    def memory(self, case, workers, ask_all):
        if self.args.calls or not self.wanted(case):
            return
        for _ in range(self.args.rounds):
            with contextlib.ExitStack() as stack:
                for router in self.routers(stack, workers):
                    self.note(router.title, START, {"mib": resident_kb(router) / 1024})
                    self.note(router.title, case, {"kb": grown_kb(router, ask_all)})

    def measure(self):
        with contextlib.ExitStack() as stack:
            child, workers = instant_workers(self.folder, WORKERS, OTHER_CORE)
            stack.enter_context(child)
            self.take_turns(PLAIN, workers)
            if not self.args.calls:
                self.take_turns({HALF: HalfCapacity(self.args.testbed, self.cores)}, workers)
            self.memory(IDLE_CONNECTION, workers, resting_connections)
            if any(map(self.wanted, SECURE)):
                self.take_turns(SECURE, workers, Way(tls=certificate(self.folder)))
            self.take_turns(HTTP2_WORKERS, workers, Way(workers_http2=True))
        for cases, step in (WITHOUT_GAP, "0ms"), (WITH_GAP, "20ms"):
            with contextlib.ExitStack() as stack:
                workers = []
                for _ in range(WORKERS):
                    engine = [*ENGINE, "--step-base", step]
                    child, address = fake_worker(self.args.testbed, self.folder, OTHER_CORE, engine)
                    stack.enter_context(child)
                    workers.append(address)
                self.take_turns(cases, workers)
                if cases is WITH_GAP:
                    rest = json.dumps({"fault": {"stop": {"at": "event:1", "how": "stall"}}})
                    for worker in workers:
                        status, _, body = ask(worker, "POST", "/_control/faults", rest)
                        assert status == 200, body
                    self.memory(IDLE_STREAM, workers, resting_streams)
        return self.results

    def table(self):
        """The results as Markdown: each figure, and its ratio to nginx's."""
        titles = [title for title, *_ in self.kinds]
        cases = list(dict.fromkeys(case for of in self.results.values() for case in of))
        fields = ["calls", "futex"] if self.args.calls else ["cpu_us"]
        rows = ["| case | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|"]
        for case in cases:
            for field in fields:
                field = {START: "mib", IDLE_STREAM: "kb", IDLE_CONNECTION: "kb", HALF: "added_p99_us"}.get(case, field)
                unit = {**PLAIN, **SECURE, **HTTP2_WORKERS, **WITHOUT_GAP, **WITH_GAP}.get(case)
                what = {"cpu_us": "us/", "added_p99_us": "us at p99", "calls": "system calls/", "futex": "futex calls/"}.get(field, "")
                base = median(self.results[titles[0]].get(case, ()), field)
                cells = []
                for title in titles:
                    value = median(self.results[title].get(case, ()), field)
                    ratio = f" = {value / base:.2f} x" if value is not None and base and title != titles[0] else ""
                    cells.append("–" if value is None else f"{value:.3g}{ratio}")
                rows.append(f"| {case}{f', {what}{unit.unit if unit else str()}' if what else ''} | " + " | ".join(cells) + " |")
        return "\n".join(rows)


def median(measured, field):
    return statistics.median(figures[field] for figures in measured) if measured else None


def kinds_of(args):
    """(title, constructor of folder, workers, cores and way, which ways it can go), nginx first: all others are compared
    with it."""
    kinds = [(kind.title, kind, kind.can) for kind in (Nginx, Haproxy, HaproxyHash)]
    for title, binary in args.grapevine:
        kinds.append((title, lambda *rest, t=title, b=binary: Grapevine(t, b, (), *rest), lambda _way: True))
        if args.quiet:
            quiet = f"{title} --log-level=warn"
            kinds.append((quiet, lambda *rest, t=quiet, b=binary: Grapevine(t, b, ("--log-level", "warn"), *rest),
                          lambda _way: True))
    if args.peers:
        import peers
        kinds += [(*kind, lambda way: way == Way()) for kind in peers.kinds()]
    return kinds


def build(text):
    """`NAME=BINARY`, or a binary, which is called grapevine."""
    name, _, binary = text.rpartition("=")
    return name or "grapevine", Path(binary).resolve()


def version(*command):
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return (done.stdout + done.stderr).splitlines()[0]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--grapevine", type=build, required=True, action="append",
                    help="a binary, built with --profile dist; several are compared with each other")
    ap.add_argument("--testbed", type=Path, help="the binary with the fake workers (default: the first)")
    ap.add_argument("--cores", default="1", help="cores of the router: 1, 2 or 1,2")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--seconds", type=int, default=4, help="length of one measurement")
    ap.add_argument("--cases", default="", help="words of the cases' names, by commas (default: all)")
    ap.add_argument("--peers", action="store_true")
    ap.add_argument("--quiet", action="store_true")
    ap.add_argument("--calls", action="store_true")
    ap.add_argument("--json", type=Path, help="write every single measurement to this file")
    a = ap.parse_args()
    if not {0, OTHER_CORE} <= os.sched_getaffinity(0):
        ap.error("needs cores 0 and 1")
    a.testbed = (a.testbed or a.grapevine[0][1]).resolve()
    # The open loop is this process's own.
    os.sched_setaffinity(0, {OTHER_CORE})
    versions = [version("nginx", "-v"), version("haproxy", "-v"), *(version(b, "--version") for _, b in a.grapevine)]
    results = {}
    with ending_on_sigterm(), tempfile.TemporaryDirectory(prefix="grapevine-cost-") as folder:
        for cores in map(int, a.cores.split(",")):
            load_before = os.getloadavg()[0]
            run = Run(a, kinds_of(a), folder, cores)
            results[cores] = run.measure()
            print(f"{'; '.join(versions)}. {cores} cores for the router. Medians of {a.rounds} rounds of {a.seconds} s; "
                  f"x: against nginx; load average before and after: {load_before:.1f}, {os.getloadavg()[0]:.1f}.\n")
            print(run.table() + "\n", flush=True)
    if a.json:
        a.json.write_text(json.dumps({"versions": versions, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(f"cost.py: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
