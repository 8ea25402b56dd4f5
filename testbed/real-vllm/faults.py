#!/usr/bin/env python3
"""Faults of real vLLM workers behind Grapevine, as clients see them.

run.sh --faults makes the environment and calls this script; README.md lists the checks. Exit code 0: everything held.
Times are reported, not asserted, except for generous limits.
"""
import concurrent.futures
import contextlib
import json
import sys
import time

from real import MODEL, command_line, run_checks, text, two_workers, user
from streams import Stream, chat
from processes import Replica, ask, cluster, ending_on_sigterm, until  # found by `real`

REPLICAS = ("r1", "r2")
# Shorter than the defaults, so that a run does not wait a minute for each timeout.
CONFIG = """
[timeouts]
first_token = "40s"
inter_token = "10s"
"""
TOKENS = 120
QUEUE = 8                   # of the engine, with --max-num-queued-reqs
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
FAILOVER = {"x-grapevine-failover": "on"}


class Faults:
    def __init__(self, workers, replicas):
        self.workers = {w.url: w for w in workers}
        self.replicas = replicas

    def home(self, messages):
        body = json.dumps({"model": MODEL, "messages": messages})
        answer = ask(self.replicas[0].admin, "POST", "/explain", body, {"content-type": "application/json"})
        return json.loads(answer[2])["worker"]

    def prompts_of(self, url, count, name):
        """Chats that this worker serves."""
        found, n = [], 0
        while len(found) < count:
            messages = user(text(f"{name} {n}", 80))
            if self.home(messages) == url:
                found.append(messages)
            n += 1
        return found

    def all_serve(self):
        """Every worker answers through every replica again."""
        homes = {}
        for n in range(200):
            messages = user(text(f"serve {n}", 40))
            homes.setdefault(self.home(messages), messages)
            if len(homes) == len(self.workers):
                return True
        return False

    def failovers(self):
        """Results of streams whose worker failed, by the replicas' counters."""
        pages = [ask(r.admin, "GET", "/metrics")[2].decode() for r in self.replicas]
        return [line for page in pages for line in page.splitlines()
                if line.startswith("grapevine_failovers_total{") and not line.endswith(" 0")]

    def settle(self):
        until(self.all_serve, 60, "all workers serve again", every_s=0.5)


def leaving_during_prefill_frees_the_engine(f):
    times = []
    for n, replica in enumerate([*f.replicas, *f.replicas]):
        stream = Stream(replica.data, chat(user(text(f"prefill {n}", 1500)), 8))
        total = lambda: sum(w.metric(RUNNING) + w.metric(WAITING) for w in f.workers.values())
        until(lambda: total() >= 1 or stream.events or stream.ending, 60, "the prompt reaches an engine", every_s=0.002)
        assert stream.ending is None, f"{stream.ending}: {stream.error}"
        assert not stream.events, "computed before the client could leave; use --model medium"
        stream.leave()
        left = time.monotonic()
        until(lambda: total() == 0, 10, "an engine without requests after the client left")
        times.append(time.monotonic() - left)
        stream.join()
    worst = max(times)
    assert worst <= 5, f"{worst:.2f} s"
    return f"requests of the engine to 0 within {worst * 1000:.0f} ms (worst of {len(times)}); wanted: 1,000 ms"


def an_overloaded_worker_refuses_and_nobody_is_lost(f):
    count = 80
    begun = time.monotonic()
    streams = [Stream(f.replicas[n % 2].data, chat(user(text(f"load {n}", 60)), 60)) for n in range(count)]
    for stream in streams:
        stream.join()
    served = [s for s in streams if s.ending == "done" and s.usage()["completion_tokens"] == 60]
    refused = [s for s in streams if s.ending == "refused"]
    assert len(served) + len(refused) == count, {s.ending for s in streams}
    assert refused, "nothing was refused: the queue's limit was not reached"
    for stream in refused:
        assert stream.status in (429, 503) and int(stream.retry_after) >= 1, (stream.status, stream.retry_after)
    slowest = max((s.done_at - begun for s in refused), default=0)
    return (f"{count} streams at once on 2 workers that queue {QUEUE}: {len(served)} whole, {len(refused)} refused with "
            f"503 and Retry-After (the last after {slowest:.1f} s), none as 200 with an error, none lost")


def interrupted(f, url, name, headers, fault, count=4):
    """Streams on one worker, which `fault` hits once each has had 15 events: (streams, unbroken runs)."""
    prompts = f.prompts_of(url, count, name)
    streams = [Stream(f.replicas[n % 2].data, chat(m, TOKENS), headers=headers) for n, m in enumerate(prompts)]
    until(lambda: all(len(s.events) >= 15 or s.ending for s in streams), 90, "streams that run", every_s=0.005)
    running = [s for s in streams if s.ending is None and s.worker == url]
    assert running, "all streams ended before the fault"
    hit = time.monotonic()
    fault()
    for stream in streams:
        stream.join()
    return prompts, running, hit


def killed_mid_stream(f, url, headers, name):
    worker = f.workers[url]
    try:
        return interrupted(f, url, name, headers, worker.child.kill_group)
    finally:
        worker.child.kill_group()


def restart(f, url):
    f.workers[url].start()
    f.workers[url].wait()
    f.settle()


def a_worker_killed_mid_stream_ends_with_one_error_event(f):
    url = next(iter(f.workers))
    try:
        _, running, hit = killed_mid_stream(f, url, {}, "kill")
        for stream in running:
            assert stream.ending == "error event", f"{stream.ending} after {len(stream.events)} events"
        last = max(s.done_at - hit for s in running)
        return f"{len(running)} of {len(running)} streams ended with an error event, without [DONE], within {last * 1000:.0f} ms"
    finally:
        restart(f, url)


def a_worker_killed_mid_stream_is_continued(f):
    url = next(iter(f.workers))
    try:
        prompts, running, hit = killed_mid_stream(f, url, FAILOVER, "continue")
        equal = 0
        for stream in running:
            assert stream.ending == "done", f"{stream.ending}: {stream.error}, {f.failovers()}"
            usage = stream.usage()
            assert usage["completion_tokens"] == TOKENS, usage
            assert len({e["id"] for e in stream.events}) == 1, "ids differ"
            reasons = [c["finish_reason"] for e in stream.events for c in e["choices"] if c["finish_reason"]]
            assert reasons == ["length"], reasons
            body = json.loads(stream.body)
            whole = Stream(f.replicas[0].data, chat(body["messages"], TOKENS)).join()
            equal += whole.text == stream.text
        last = max(s.done_at - hit for s in running)
        return (f"{len(running)} of {len(running)} went on elsewhere to {TOKENS} tokens, one id, one finish_reason, "
                f"done {last:.1f} s after the kill; text equal to an unbroken run: {equal} of {len(running)}")
    finally:
        restart(f, url)


def a_frozen_engine_is_left_and_comes_back(f):
    url = next(iter(f.workers))
    worker = f.workers[url]
    frozen = []

    def freeze():
        frozen.append(worker.freeze())

    try:
        prompts, running, hit = interrupted(f, url, "freeze", FAILOVER, freeze)
        for stream in running:
            assert stream.ending == "done", f"{stream.ending}: {stream.error}, {f.failovers()}"
        moved = max(s.done_at - hit for s in running)
        health = ask(worker.address, "GET", "/health", within_s=5)[0]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            new = list(pool.map(lambda m: Stream(f.replicas[0].data, chat(m, 4)).join(), prompts))
        assert all(s.ending == "done" and s.worker != url for s in new), [(s.ending, s.worker) for s in new]
    finally:
        worker.thaw()
        thawed = time.monotonic()
    f.settle()
    back = time.monotonic() - thawed
    return (f"/health {health} all the while; {len(running)} streams went on elsewhere, done {moved:.1f} s after the "
            f"freeze (limit between tokens 10 s); {len(new)} new ones avoided it; used again {back:.1f} s after it thawed")


def main():
    a = command_line(__doc__, "medium")
    with ending_on_sigterm(), contextlib.ExitStack() as stack:
        workers, folder = stack.enter_context(two_workers(a.model, ["--max-num-queued-reqs", str(QUEUE)]))
        config = folder / "grapevine.toml"
        config.write_text(CONFIG)
        urls = [w.url for w in workers]
        replicas = stack.enter_context(
            cluster(a.grapevine, folder / "cluster", REPLICAS, urls, ["--config", config], kind=Replica))
        f = Faults(workers, replicas)
        f.settle()
        return run_checks((
            (leaving_during_prefill_frees_the_engine, [f]),
            (an_overloaded_worker_refuses_and_nobody_is_lost, [f]),
            (a_frozen_engine_is_left_and_comes_back, [f]),
            (a_worker_killed_mid_stream_ends_with_one_error_event, [f]),
            (a_worker_killed_mid_stream_is_continued, [f]),
        ))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
