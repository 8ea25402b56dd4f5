#!/usr/bin/env python3
"""The live case: real processes, and workers that are faster than gossip between replicas.

    live_case.py --grapevine BINARY [--grapevine NAME=BINARY ...] [--quick] [--csv FILE]

Two halves, each with three routers and four fake workers, prompts of 2 KB in one user message with a different tail
each time (live_prompts.py). Compared in one run, one after the other, on the same ports and so the same ring: the
policies of the first build, the first policy of further builds, and three haproxy that hash the first 512 bytes of the
body. Where haproxy is not installed its rows are left out, and a line says so.

Agreement: workers that answer in under 1 ms. Each replica gets all prefixes once in each phase.
  one by one      prefixes that no replica knows, one request in flight in all
  mixed, known    the same prefixes, each replica in an order of its own, 8 at a time: 24 in flight
  mixed, new      other prefixes that no replica knows, likewise
  again           those again
  after a kill    again, once all know that a worker was killed
  added, known    again, once a worker that was added through the first replica is in all rings (all three haproxy
                  are told)
  added, new      prefixes that no replica knows
Agree is the share of prefixes for which all three chose the same worker. Kept is the share of choices (three a prefix)
that name the worker which the prefix had in the phase before, that is the one that most replicas chose (of three
different ones the first replica's). After a kill only prefixes count whose worker lives; after an addition only those
whose place by the hash did not become the new worker: nothing else moves when a ring grows. Grapevine reports a place
by `/explain`: the first worker in the order that is not the killed one. haproxy cannot be asked; it always sends a
request to its place, so prefixes that went to the new worker do not count. Spilled are the requests that went
elsewhere because their worker was above the bound, beside the slowest answer: a process that does not get to run for
some 10 ms has all requests in flight. A phase takes a tenth of a second, so chance
weighs in it. All of this therefore happens `--rounds` times, with new processes and other prefixes; the table shows
means, and the lowest agreement.

Quality: `--requests` with Zipf(1) popularity, each to a random replica, in a closed loop. Workers take a fixed time
whatever their load, or are the engine model of the fake worker. The table shows workers per prefix, the share of
requests on the main worker of their prefix, hits of a cache without limit on each worker (a request hits if its worker
had the prefix before) beside those with one worker for each prefix, requests of the busiest worker over the mean, and
ms to the first event (engine) or the answer (fixed time). Each cell has prefixes of its own, which no replica knows at
first. Slow workers with few in flight get fewer requests, so that a cell takes about `--seconds`; all routers get the
same.

Cost of the load: `client us`, CPU of this one process per request. A plain answer costs 20 to 35 us where thousands are
sent a second (11,000 a second: an eighth of two cores) and up to 100 us where the client sleeps in between; a stream of
16 events costs 150 to 800 us, a sixth of a core at most. So the client is not the limit. But with workers of 1 ms,
routers, workers and client together fill two cores, and latencies are then those of full cores, not of a policy. One by
one is as fast: a replica gets a prefix .2 to .5 ms after the one before it, which is also faster than gossip. A full
run takes 15 minutes. Two builds are on the same ring; haproxy's is its own, and the same in every run. Exit code 1 when
a request failed.
"""
import argparse
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import closed_loop
from live_prompts import Prompts
from live_routers import Grapevine, HaproxyHash, address
from live_tables import COLUMNS, cells, print_tables, write_csv
from processes import Child, Failed, ask, ending_on_sigterm, free_port, run_script
from restart import counters

WORKERS = 4
REPLICAS = 3
AT_ONCE = 8             # requests in flight at each replica, for agreement
SETTLE_S = 0.5          # between phases, so that all replicas know the same when a phase begins
PHASE_WITHIN_S = 120
SPARE_S = 60            # by which a cell may exceed its time
ENGINE_MS = 150         # about the time of a request there, to bound the cells
KEEP_ALIVE = ["--keep-alive", "10m", "--exit-on-sigterm"]
REPLY = json.dumps({
    "id": "chatcmpl-0", "object": "chat.completion", "created": 1, "model": "fake-model",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "So it is."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 512, "total_tokens": 516, "completion_tokens": 4}})


class Workers:
    """Fake workers on these ports; routers know all but the last one, which is the spare, from the start."""

    def __init__(self, stack, binary, folder, ports, arguments=()):
        self.urls, self.children = [], {}
        for number, port in enumerate(ports):
            command = [binary, "fake-worker", "--port", port, *KEEP_ALIVE, *arguments]
            child = stack.enter_context(Child(command, folder / f"worker-{number}.log", announces=True))
            self.urls.append("http://" + child.listening()["http"])
            self.children[self.urls[-1]] = child

    def take(self, time_ms):
        """From now on all of them answer chats after so many ms; None: as their engine does."""
        for url in self.urls:
            ask(address(url), "DELETE", "/_control/faults")
            if time_ms is not None:
                rule = {"when": {"path": "/v1/chat/completions"}, "fault": {
                    "delay_ms": time_ms, "reply": {"status": 200, "body": REPLY}}}
                status, _, said = ask(address(url), "POST", "/_control/faults", json.dumps(rule))
                if status != 200:
                    raise Failed(f"a worker does not take a rule: {said!r}")


def one_by_one(three, prompts):
    """Every prefix to each replica in turn."""
    jobs = ((to, prompts.request(n), (n, at)) for n in range(len(prompts)) for at, to in enumerate(three.addresses))
    return closed_loop.run([(three.addresses, jobs)], three.worker_header, PHASE_WITHIN_S)


def mixed(three, prompts, seed):
    """All prefixes to each replica in an order of its own."""
    def jobs(at):
        order = list(range(len(prompts)))
        random.Random(f"{seed} {at}").shuffle(order)
        return ((three.addresses[at], prompts.request(n), (n, at)) for n in order)
    slots = []
    for at, to in enumerate(three.addresses):
        slots += [((to,), shared) for shared in [jobs(at)] * AT_ONCE]
    return closed_loop.run(slots, three.worker_header, PHASE_WITHIN_S)


def choices(run):
    """{prefix: the worker of each replica}."""
    found = defaultdict(lambda: [None] * REPLICAS)
    for answer in run.answers:
        number, at = answer.tag
        found[number][at] = answer.worker if answer.ok else None
    return found


def owners(chosen):
    """{prefix: the worker that most replicas chose}; on a tie, the first replica's."""
    return {number: Counter(of).most_common(1)[0][0] for number, of in chosen.items()}


def phase_row(three, title, name, run, before=None, stays=lambda number: True):
    """Figures of a phase; `before`: owners in the phase before; `stays`: whether a prefix must not move."""
    chosen = choices(run)
    agree = sum(None not in of and len(set(of)) == 1 for of in chosen.values()) / len(chosen)
    row = {"half": "agreement", "router": title, "phase": name, "agree": agree, "kept": None, "staying": None,
           "spilled": three.spilled(), "slowest_ms": max(answer.first_s for answer in run.answers) * 1000, **common(run)}
    if before is not None:
        staying = [number for number in chosen if stays(number)]
        same = sum(worker == before[number] for number in staying for worker in chosen[number])
        row |= {"kept": same / (REPLICAS * len(staying)) if staying else None, "staying": len(staying)}
    return row, owners(chosen)


def common(run):
    count = len(run.answers)
    return {"requests": count, "per_s": count / run.seconds, "client_us": run.cpu_s / count * 1e6,
            "failed": sum(not answer.ok for answer in run.answers), "load_average": os.getloadavg()[0]}


def agreement(router, workers, folder, a, turn):
    """Rows of the phases, one after the other; every `turn` has prefixes of its own."""
    urls, spare = workers.urls[:-1], workers.urls[-1]
    workers.take(0)
    first, second, third = (Prompts(f"{name} {turn}", a.prefixes) for name in ("alone", "mixed", "added"))
    with router.running(folder, urls, spare) as three:
        row, alone = phase_row(three, router.title, "one by one", one_by_one(three, first))
        yield row
        time.sleep(SETTLE_S)
        yield phase_row(three, router.title, "mixed, known", mixed(three, first, 1), alone)[0]
        time.sleep(SETTLE_S)
        row, owned = phase_row(three, router.title, "mixed, new", mixed(three, second, 2))
        yield row
        time.sleep(SETTLE_S)
        row, owned = phase_row(three, router.title, "again", mixed(three, second, 3), owned)
        yield row
        killed = urls[-1]
        workers.children[killed].kill_group()
        three.wait_until_gone(killed)
        time.sleep(SETTLE_S)
        formerly = owned
        row, owned = phase_row(three, router.title, "after a kill", mixed(three, second, 4), formerly,
                               lambda number: formerly[number] != killed)
        yield row
        three.add(spare)
        time.sleep(SETTLE_S)
        places = three.places([second.body(number) for number in range(a.prefixes)], gone=killed)
        run, before = mixed(three, second, 5), owned
        places = places or owners(choices(run))
        yield phase_row(three, router.title, "added, known", run, before, lambda number: places[number] != spare)[0]
        yield phase_row(three, router.title, "added, new", mixed(three, third, 6))[0]


def quality(router, workers, folder, a, _turn):
    """Rows of the cells, one after the other."""
    with router.running(folder, workers.urls[:-1], workers.urls[-1]) as three:
        for kind in a.times:
            engine = kind == "engine"
            workers.take(None if engine else int(kind))
            for in_flight in a.in_flight:
                name = f"{kind} at {in_flight}"
                should_s = (ENGINE_MS if engine else int(kind)) / 1000 / in_flight
                requests = min(a.requests, round(a.seconds / should_s))
                yield cell(router.title, three, workers, Prompts(name, a.prefixes, stream=engine), name,
                           {"worker": "engine" if engine else f"{kind} ms", "in_flight": in_flight}, requests,
                           requests * should_s + SPARE_S)


def cell(title, three, workers, prompts, seed, labels, requests, within_s):
    """Figures of one closed loop, of new prefixes."""
    rng = random.Random(seed)
    popularity = [1 / (number + 1) for number in range(len(prompts))]
    drawn = rng.choices(range(len(prompts)), popularity, k=requests)
    jobs = ((rng.choice(three.addresses), prompts.request(number), number) for number in drawn)
    addresses = [address(url) for url in workers.urls[:-1]]
    queried, hit = counters(addresses)
    run = closed_loop.run([(three.addresses, jobs)] * labels["in_flight"], three.worker_header, within_s)
    queried_then, hit_then = counters(addresses)
    good = [answer for answer in run.answers if answer.ok]
    if not good:
        raise Failed(f"{title}: no request of {labels} was answered")
    of_prefix = defaultdict(Counter)
    for answer in good:
        of_prefix[answer.tag][answer.worker] += 1
    of_worker = Counter(answer.worker for answer in good)
    first_ms = sorted(answer.first_s * 1000 for answer in good)
    pairs = sum(len(of) for of in of_prefix.values())
    return {"half": "quality", "router": title, **labels,
            "workers_a_prefix": pairs / len(of_prefix),
            "on_main": sum(max(of.values()) for of in of_prefix.values()) / len(good),
            "hits": 1 - pairs / len(good), "hits_of_one": 1 - len(of_prefix) / len(good),
            "engine_hits": (hit_then - hit) / (queried_then - queried) if queried_then > queried else None,
            "busiest": max(of_worker.values()) * WORKERS / len(good),
            "mean_ms": sum(first_ms) / len(first_ms), "p50_ms": quantile(first_ms, .5),
            "p99_ms": quantile(first_ms, .99), **common(run)}


def quantile(ordered, share):
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def routers_of(a):
    """The routers that are compared, in order."""
    builds = []
    for text in a.grapevine:
        name, _, path = text.rpartition("=")
        builds.append((name or ("grapevine" if len(a.grapevine) == 1 else Path(path).name), Path(path).resolve()))
    if len({name for name, _ in builds}) < len(builds):
        raise Failed("builds of one name: say --grapevine NAME=BINARY")
    found = [Grapevine(f"{name} {policy}", path, policy, a.set)
             for at, (name, path) in enumerate(builds) for policy in (a.policies if at == 0 else a.policies[:1])]
    if a.no_haproxy:
        return found
    if shutil.which("haproxy"):
        return [*found, HaproxyHash()]
    print("haproxy is not installed: its rows are left out (apt-get install --no-install-recommends haproxy)")
    return found


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--grapevine", action="append", required=True, metavar="[NAME=]BINARY",
                    help="built with --profile dist; may be given several times; the first one runs the fake workers, too")
    ap.add_argument("--policies", nargs="+", default=["prefix", "consistent_hash", "least_request"])
    ap.add_argument("--set", nargs="+", metavar="KEY=VALUE", default=[],
                    help="of every Grapevine's configuration, as cluster.bound=1.25")
    ap.add_argument("--no-haproxy", action="store_true")
    ap.add_argument("--halves", nargs="+", choices=tuple(COLUMNS), default=list(COLUMNS))
    ap.add_argument("--rounds", type=int, default=3, help="of agreement")
    ap.add_argument("--prefixes", type=int, default=500)
    ap.add_argument("--requests", type=int, default=6_000, help="of a cell, at most")
    ap.add_argument("--seconds", type=float, default=20, help="that a cell should take, at most")
    ap.add_argument("--times", nargs="+", default=["1", "10", "40", "200", "engine"],
                    help="ms that a worker takes, or `engine`")
    ap.add_argument("--engine", default="llama-8b-h100", help="of the fake worker")
    ap.add_argument("--in-flight", nargs="+", type=int, default=[8, 24, 96, 200])
    ap.add_argument("--quick", action="store_true", help="fewer cells, prefixes and requests: under two minutes")
    ap.add_argument("--csv", type=Path, help="write the rows to this file, too")
    a = ap.parse_args()
    if a.quick:
        a.prefixes, a.requests, a.seconds = min(a.prefixes, 200), min(a.requests, 2_000), min(a.seconds, 3)
        a.times, a.in_flight, a.rounds = ["1", "40", "engine"], [24, 96], 1
    if not all(kind == "engine" or kind.isdigit() and int(kind) > 0 for kind in a.times):
        ap.error("--times are whole milliseconds above 0, or `engine`")
    if min(a.rounds, a.prefixes, a.requests, a.seconds, *a.in_flight) <= 0:
        ap.error("--rounds, --prefixes, --requests, --seconds and --in-flight are above 0")
    return a


def rows_of(part, router, binary, ports, folder, a, turn):
    """Rows of a half, with workers of its own."""
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        workers = Workers(stack, binary, folder, ports, ["--engine", a.engine])
        # Holds the routers; it is closed before the workers end, however this ends.
        yield from stack.enter_context(contextlib.closing(part(router, workers, folder / "routers", a, turn)))


def main():
    a = arguments()
    routers, rows = routers_of(a), []
    binary = Path(a.grapevine[0].rpartition("=")[2]).resolve()
    ports = [free_port() for _ in range(WORKERS + 1)]
    parts = [part for half in a.halves for part in (
        [(agreement, turn) for turn in range(a.rounds)] if half == "agreement" else [(quality, 0)])]
    begun = time.monotonic()
    try:
        with ending_on_sigterm(), tempfile.TemporaryDirectory(prefix="grapevine-live-") as folder:
            for at, router in enumerate(routers):
                for part, turn in parts:
                    for row in rows_of(part, router, binary, ports, Path(folder, f"{at}-{part.__name__}-{turn}"), a, turn):
                        rows.append({"round": turn, **row})
                        print(f"{time.monotonic() - begun:5.0f} s  {cells(row, COLUMNS[row['half']])}",
                              file=sys.stderr, flush=True)
    finally:
        # However the run ends, the measured figures are shown.
        print(f"{a.prefixes} prefixes, {REPLICAS} replicas, {WORKERS} workers, {time.monotonic() - begun:.0f} s")
        print_tables(rows)
        if a.csv and rows:
            write_csv(a.csv, rows)
    return 1 if any(row["failed"] for row in rows) else 0


if __name__ == "__main__":
    run_script(main)
