"""The loads of cost.py: what is asked of a router in each row, and what counts as one unit.

A case is a function of a router and of seconds that returns (units, seconds, further figures); `Streams` also needs the
workers, which alone know how many events they sent.
"""
import contextlib
import itertools
import json
import math
import random
import re
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from cost_account import Cpu, resident_kb
from open_loop import OpenLoop
from processes import Failed, ask
from routers import on_core

PROMPTS = 200
IDLE = 500
RATE = 2_000
WARM_UP_S = 1.0
GIVEN_BACK_S = 12       # jemalloc gives free pages back within ten seconds


def url_of(router):
    return router.data if "://" in router.data else f"http://{router.data}"


def wrk(router, core, connections, seconds, size, stream, max_tokens):
    script = Path(__file__).resolve().parent / "prompts.lua"
    return [*on_core(core), "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "60s",
            "-s", str(script), url_of(router), "--",
            str(size), str(PROMPTS), str(stream).lower(), str(max_tokens)]


class Plain:
    """Plain answers, every connection with a request in flight; a unit is a request."""

    unit = "request"

    def __init__(self, connections, size):
        self.connections, self.size = connections, size

    def run(self, router, core, seconds, _workers):
        command = wrk(router, core, self.connections, seconds, self.size, False, 40)
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 30)
        result = json.loads(done.stdout.splitlines()[-1])
        if result["failed"] or not result["requests"]:
            raise Failed(f"{router.title}: {result}")
        return result["requests"], result["seconds"], {"p50_us": result["p50_us"], "p99_us": result["p99_us"]}


class Multiplexed:
    """Plain answers over HTTP/2, on each connection so many streams at once; one prompt; a unit is a request."""

    unit = "request"

    def __init__(self, connections, streams, size):
        self.connections, self.streams, self.size = connections, streams, size

    def run(self, router, core, seconds, _workers):
        prompt = "the quick brown fox jumps over the lazy dog " * (self.size // 44)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as body:
            json.dump({"model": "fake-model", "max_tokens": 40, "messages": [{"role": "user", "content": prompt}]}, body)
            body.flush()
            command = [*on_core(core), "h2load", "-t1", f"-c{self.connections}", f"-m{self.streams}", f"-D{seconds}",
                       "-d", body.name, "-H", "content-type: application/json", "-H", "authorization: Bearer none",
                       f"{url_of(router)}/v1/chat/completions"]
            done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 30)
        counts = re.search(r"^requests: .* (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", done.stdout, re.MULTILINE)
        protocol = re.search(r"^Application protocol: (\S+)", done.stdout, re.MULTILINE)
        # What is under way when the time is up counts as none of them.
        if not counts or not int(counts[1]) or any(map(int, counts.groups()[1:])) or (protocol and protocol[1] != "h2"):
            raise Failed(f"{router.title}: {done.stdout[-800:]}{done.stderr[-300:]}")
        return int(counts[1]), seconds, {}


class OpenRate:
    """Plain answers of 1 KB prompts, sent at a constant rate whatever became of earlier ones; a unit is a request."""

    unit = "request"

    def run(self, router, _core, seconds, _workers):
        body = json.dumps({"model": "fake-model", "max_tokens": 40, "messages": [
            {"role": "user", "content": "%08d " + "the quick brown fox jumps over the lazy dog " * 20}]})

        def arrivals():
            for number in itertools.count():
                sent = (body % (number % PROMPTS)).encode()
                head = (f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
                        f"content-length: {len(sent)}\r\n\r\n")
                yield 1 / RATE, head.encode() + sent

        began = time.monotonic()
        with OpenLoop([router.data], b"x-grapevine-worker", arrivals(), random.Random(1)) as loop:
            time.sleep(seconds)
            loop.check()
        spent = time.monotonic() - began
        failed = [outcome for outcome in loop.outcomes if not outcome.ok]
        if failed or not loop.outcomes:
            raise Failed(f"{router.title}: {len(failed)} of {len(loop.outcomes)} failed: {failed[:1]}")
        times = sorted(outcome.ended_at - outcome.sent_at for outcome in loop.outcomes)
        at = lambda share: times[int(len(times) * share)] * 1e6
        return len(times), spent, {"p50_us": at(.5), "p99_us": at(.99)}


class HalfCapacity:
    """The time that a router adds at half of the rate at which all its cores would be busy; a unit is a request.

    That rate is first found out at 64 connections, for each router its own. `grapevine bench` sends at it, evenly; to a
    worker directly first, whose p99 is what a request takes without a router.
    """

    unit = "request"

    def __init__(self, bench, threads):
        self.bench, self.threads = bench, threads

    def run(self, router, core, seconds, workers):
        before = Cpu.of(router)
        requests, took, _ = Plain(64, 1_024).run(router, core, int(WARM_UP_S), workers)
        spent = (Cpu.of(router) - before).per(requests, took)["cpu_us"]
        rate = int(self.threads / spent * 1e6 / 2)
        alone, found = (self.latency(core, address, rate, seconds) for address in (workers[0], router.data))
        return requests + found["count"], seconds, {
            "rate": rate, "shed": found["shed"], "p50_us": found["p50_ms"] * 1e3, "p99_us": found["p99_ms"] * 1e3,
            # Where the load itself did not keep up there is no figure.
            "added_p99_us": math.nan if found["shed"] or alone["shed"] else (found["p99_ms"] - alone["p99_ms"]) * 1e3}

    def latency(self, core, address, rate, seconds):
        command = [*on_core(core), self.bench, "bench", "--url", f"http://{address}", "--model", "fake-model",
                   "--plain", "--rate", rate, "--pacing", "even", "--requests", int(rate * seconds),
                   "--duration", f"{int(seconds) + 10}s", "--shape", "shared", "--groups", PROMPTS,
                   "--shared-bytes", 960, "--own-bytes", 64, "--max-tokens", 40, "--warm-up", 200, "--json"]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=seconds + 60)
        # 1: some failed, or were shed. What was shed is a figure here.
        endpoint = json.loads(done.stdout)["endpoints"][0] if done.returncode in (0, 1) and done.stdout else None
        if not endpoint or endpoint["summary"]["failures"]:
            raise Failed(f"{address} at {rate}/s: {done.stderr[-500:]}")
        return {**endpoint["summary"]["latency"], "shed": endpoint["shed"]}


class Streams:
    """Streams of `tokens` events; a unit is an event that a worker sent."""

    unit = "event"

    def __init__(self, streams, tokens):
        self.streams, self.tokens = streams, tokens

    def run(self, router, core, seconds, workers, account=contextlib.nullcontext):
        """`account`: entered for the window in which all streams flow."""
        whole = int(seconds + 3 * WARM_UP_S)
        command = wrk(router, core, self.streams, whole, 1_024, True, self.tokens)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
            try:
                time.sleep(2 * WARM_UP_S)
                with account():
                    events, at = events_of(workers), time.monotonic()
                    time.sleep(seconds)
                    events, at = events_of(workers) - events, time.monotonic() - at
                out, _ = load.communicate(timeout=60)
            finally:
                load.kill()
        result = json.loads(out.splitlines()[-1])
        if not events:
            raise Failed(f"{router.title}: no events ({result})")
        return events, at, {"failed": result["failed"]}


def events_of(workers):
    """Tokens that the workers have generated, which is events that they have sent."""
    total = 0.0
    for worker in workers:
        page = ask(worker, "GET", "/metrics")[2].decode()
        total += sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines()
                     if line.startswith("vllm:generation_tokens_total"))
    return total


def request(number, stream):
    prompt = f"{number} " + "the quick brown fox jumps over the lazy dog " * 20
    body = json.dumps({"model": "fake-model", "stream": stream, "max_tokens": 100,
                       "messages": [{"role": "user", "content": prompt}]})
    return (f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n{body}").encode()


def grown_kb(router, ask_all):
    """Resident kB that each of `IDLE` connections adds, once `ask_all` has brought them to rest."""
    host, port = router.data.rsplit(":", 1)
    time.sleep(GIVEN_BACK_S)
    before = resident_kb(router)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection((host, int(port)), timeout=10)) for _ in range(IDLE)]
        ask_all(router, clients)
        time.sleep(GIVEN_BACK_S)
        return (resident_kb(router) - before) / IDLE


def until_seen(router, client, what):
    seen = b""
    while what not in seen:
        some = client.recv(65_536)
        if not some:
            raise Failed(f"{router.title} closed a connection after {seen!r}")
        seen += some


def resting_streams(router, clients):
    """Each got its head and first event, and then nothing: the workers are told to stall there."""
    for number, client in enumerate(clients):
        client.sendall(request(number, True))
    for client in clients:
        until_seen(router, client, b"data: {")


def resting_connections(router, clients):
    """Each has had one whole answer, one after the other."""
    for number, client in enumerate(clients):
        client.sendall(request(number, False))
        until_seen(router, client, b'"finish_reason"')
