#!/usr/bin/env python3
"""The cost of a request: Grapevine next to nginx and haproxy, one core for the router alone.

    cost.py --grapevine BINARY [--rounds 5] [--seconds 4] [--json FILE]

Measured by the operating system's accounting of the router's processes, not by rate: CPU microseconds a plain request
with 1 KB and 64 KB of prompt (64 connections, 4 workers), CPU microseconds an event of a stream (500 streams, one
event each 20 ms), and resident kB a stream that rests after its first event. Routers take turns; medians of the
rounds. Needs nginx, haproxy, wrk and taskset, and two cores that are otherwise quiet. See README.md for how to profile.
"""
import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from processes import Failed, ask, ending_on_sigterm
from routers import ROUTERS, fake_worker, instant_workers, on_core, wait_until_routing

HERE = Path(__file__).resolve().parent
ROUTER_CORE, OTHER_CORE = 0, 1
WORKERS = 4
CONNECTIONS = 64
SIZES = {"1 KB": 1_024, "64 KB": 65_536}
PROMPTS = 200
STREAMS, GAP_MS, STREAM_TOKENS = 500, 20, 400
IDLE_STREAMS = 500
WARM_UP_S = 1.0
TICKS = os.sysconf("SC_CLK_TCK")


def processes_of(child):
    """The process and its children (nginx: master and worker)."""
    children = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    return [child.pid, *map(int, children)]


@dataclass
class Cpu:
    """Seconds of CPU."""
    user: float
    system: float

    @classmethod
    def of(cls, child):
        """All threads so far, including those that have ended."""
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in processes_of(child)]
        return cls(*(sum(int(of[index]) for of in fields) / TICKS for index in (11, 12)))

    def __sub__(self, before):
        return Cpu(self.user - before.user, self.system - before.system)

    def per(self, count, seconds):
        """The figures of one measurement: `count` requests or events in `seconds`."""
        total = self.user + self.system
        return {"cpu_us": total / count * 1e6, "user_us": self.user / count * 1e6,
                "per_s": count / seconds, "busy": total / seconds}


def resident_kb(child):
    total = 0
    for pid in processes_of(child):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return total


def wrk(router, connections, seconds, size, prompts, stream, max_tokens):
    return [*on_core(OTHER_CORE), "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "60s",
            "-s", str(HERE / "prompts.lua"), f"http://{router.data}", "--",
            str(size), str(prompts), str(stream).lower(), str(max_tokens)]


def plain(router, size, seconds):
    """CPU a request, while every connection has one in flight."""
    command = wrk(router, CONNECTIONS, seconds, size, PROMPTS, False, 40)
    before = Cpu.of(router)
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 30)
    used = Cpu.of(router) - before
    result = json.loads(done.stdout.splitlines()[-1])
    if result["failed"] or not result["requests"]:
        raise Failed(f"{router.title}: {result}")
    return {**used.per(result["requests"], result["seconds"]), "p50_us": result["p50_us"], "p99_us": result["p99_us"]}


def events_of(workers):
    """Tokens that the workers have generated, which is events that they have sent."""
    total = 0.0
    for worker in workers:
        page = ask(worker, "GET", "/metrics")[2].decode()
        total += sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines()
                     if line.startswith("vllm:generation_tokens_total"))
    return total


def streamed(router, workers, seconds):
    """CPU an event, in a window while all streams flow."""
    command = wrk(router, STREAMS, int(seconds + 3 * WARM_UP_S), 1_024, PROMPTS, True, STREAM_TOKENS)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
        try:
            time.sleep(2 * WARM_UP_S)
            events, cpu, at = events_of(workers), Cpu.of(router), time.monotonic()
            time.sleep(seconds)
            events, cpu, at = events_of(workers) - events, Cpu.of(router) - cpu, time.monotonic() - at
            out, _ = load.communicate(timeout=60)
        finally:
            load.kill()
    failed = json.loads(out.splitlines()[-1])["failed"]
    due = STREAMS / GAP_MS * 1000 * at
    if events < due / 2:
        raise Failed(f"{router.title}: {events:.0f} events of {due:.0f} due ({failed} requests failed)")
    return cpu.per(events, at)


def idle(router):
    """Resident kB a stream that got its head and first event and then rests."""
    host, port = router.data.rsplit(":", 1)
    before = resident_kb(router)
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
                   for _ in range(IDLE_STREAMS)]
        for number, stream in enumerate(streams):
            prompt = f"{number} " + "the quick brown fox jumps over the lazy dog " * 20
            body = json.dumps({"model": "fake-model", "stream": True, "max_tokens": 100,
                               "messages": [{"role": "user", "content": prompt}]})
            stream.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
                           f"content-length: {len(body)}\r\n\r\n{body}".encode())
        for stream in streams:
            seen = b""
            while b"data: {" not in seen:
                some = stream.recv(65_536)
                if not some:
                    raise Failed(f"{router.title} closed a stream after {seen!r}")
                seen += some
        time.sleep(WARM_UP_S)
        return (resident_kb(router) - before) / IDLE_STREAMS


def measure(binary, folder, rounds, seconds):
    results = {router.title: {"resident_mib": [], "idle_kb": []} for router in ROUTERS}

    def started(stack, workers, name):
        routers = []
        for kind in ROUTERS:
            place = Path(folder, f"{name}-{ROUTERS.index(kind)}")
            place.mkdir()
            routers.append(stack.enter_context(kind(binary, place, workers, ROUTER_CORE)))
            wait_until_routing(routers[-1], WORKERS)
        return routers

    def take_turns(routers, case, run):
        for router in routers:      # connections and caches fill before anything counts
            run(router, max(1, int(WARM_UP_S)))
        for turn in range(rounds):
            for router in routers[turn % len(routers):] + routers[:turn % len(routers)]:
                results[router.title].setdefault(case, []).append(run(router, seconds))
                print(f"{case}, round {turn + 1}, {router.title}: "
                      f"{results[router.title][case][-1]['cpu_us']:.2f} us", file=sys.stderr)

    with contextlib.ExitStack() as stack:
        child, workers = instant_workers(folder, WORKERS, OTHER_CORE)
        stack.enter_context(child)
        routers = started(stack, workers, "plain")
        for case, size in SIZES.items():
            take_turns(routers, case, lambda router, s, size=size: plain(router, size, s))

    engine = ["--max-num-seqs", STREAMS, "--step-base", f"{GAP_MS}ms", "--step-per-sequence", "0s",
              "--prefill-tokens-per-s", 1e9, "--max-num-batched-tokens", 1_000_000, "--num-gpu-blocks", 200_000]
    with contextlib.ExitStack() as stack:
        workers = []
        for _ in range(WORKERS):
            child, address = fake_worker(binary, folder, OTHER_CORE, engine)
            stack.enter_context(child)
            workers.append(address)
        routers = started(stack, workers, "streamed")
        take_turns(routers, "event", lambda router, s: streamed(router, workers, s))

        rest = json.dumps({"fault": {"stop": {"at": "event:1", "how": "stall"}}})
        for worker in workers:
            status, _, body = ask(worker, "POST", "/_control/faults", rest)
            assert status == 200, body
        for turn in range(rounds):
            with contextlib.ExitStack() as fresh:
                for router in started(fresh, workers, f"idle{turn}"):
                    results[router.title]["resident_mib"].append(resident_kb(router) / 1024)
                    results[router.title]["idle_kb"].append(idle(router))
    return results


def median(values, field=None):
    return statistics.median(v[field] if field else v for v in values)


def table(results):
    """The results as Markdown. The rate is that of the load, not the greatest that the router can reach."""
    cases = [*SIZES, "event"]
    heads = [f"{c}: CPU us/request" for c in SIZES] + ["CPU us/event"]
    rows = ["| router | " + " | ".join(heads) + " | kB per idle stream | MiB at start |",
            "|---|" + "---|" * (len(heads) + 2)]
    for name, of in results.items():
        cells = []
        for case in cases:
            cpu, base = median(of[case], "cpu_us"), median(results["nginx"][case], "cpu_us")
            cells.append(f"{cpu:.1f} = {cpu / base:.2f} x (user {median(of[case], 'user_us'):.1f}; "
                         f"{median(of[case], 'per_s'):,.0f}/s)")
        rows.append(f"| {name} | " + " | ".join(cells) +
                    f" | {median(of['idle_kb']):.1f} | {median(of['resident_mib']):.1f} |")
    return "\n".join(rows)


def version(*command):
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return (done.stdout + done.stderr).splitlines()[0]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--grapevine", type=Path, required=True, help="the binary, built with --profile dist")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--seconds", type=int, default=4, help="length of one measurement")
    ap.add_argument("--json", type=Path, help="write every single measurement to this file")
    a = ap.parse_args()
    if not {ROUTER_CORE, OTHER_CORE} <= os.sched_getaffinity(0):
        ap.error("needs cores 0 and 1")
    binary = a.grapevine.resolve()
    versions = [version("nginx", "-v"), version("haproxy", "-v"), version(binary, "--version")]
    with ending_on_sigterm(), tempfile.TemporaryDirectory(prefix="grapevine-cost-") as folder:
        load_before = os.getloadavg()[0]
        results = measure(binary, folder, a.rounds, a.seconds)
    print(f"{'; '.join(versions)}. Medians of {a.rounds} rounds of {a.seconds} s; x: against nginx; "
          f"load average before: {load_before:.1f}.\n")
    print(table(results))
    if a.json:
        a.json.write_text(json.dumps({"versions": versions, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(f"cost.py: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
