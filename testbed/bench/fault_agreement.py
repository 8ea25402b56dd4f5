#!/usr/bin/env python3
"""Checks under load whether replicas agree again after a fault, and whether the fault explains every failed request.

    fault_agreement.py --grapevine BINARY [--quick] [--faults NAME ...] [--rounds 3] [--rate 180] [--json FILE]

Three replicas, five fake workers (the engine model) and a sixth to add, as processes. Gossip passes a UDP relay in
front of each replica (gossip_relay.py), which can cut and lose it. An open loop sends chats of 2 to 16 KB to all
replicas at random times: most begin with one of 300 prefixes of unequal popularity, a quarter with a new text. Faults
follow each other, each after a healthy time:

  worker_killed     SIGKILL; after 7 s it is started again
  worker_added      through the first replica, warmed up as any worker
  worker_paused     SIGSTOP for 4 s
  replica_killed    SIGKILL; after 7 s it is started again
  replica_paused    SIGSTOP for 3 s; its balancer does not notice
  partition         no gossip passes from or to the third replica, for 8 s
  loss              20 % of all packets between replicas are lost, for 8 s
  rolling           each replica is ended by SIGTERM and started again, one after the other

The replicas count agreement themselves, here for up to 50 requests a second each: at a decision they ask a peer what it
would do. The table shows the growth of `grapevine_agreement_samples_total` in the 10 s before the fault began, in the
first 2 s after each of its moments, and in the next 5 s (less if the next moment comes first), summed over the live
replicas: for all prompts, for those of which some worker is known to hold a part, and for the others. Samples that the
peer did not answer have a column of their own: they are no disagreement. `noise` is the standard error of the
difference (a miss of less than two of it is `unsure`: repeat it with --rounds), `why` the reasons of the samples after
2 s that differ.

A request is explained when it was in flight on a replica that was killed, or had begun on a worker that was killed.
Arrivals, prompts, the replica of each request and lost packets are drawn from --seed; the ports, and so the ring, are
those that were free. Exit code 1 when no fault explains a failed request.
"""
import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from fault_scene import BACK_WITHIN_S, Scene
from fault_tables import SOON_S, held, print_table, rows_of, story, together
from live_routers import NAMES
from processes import Child, Failed, ending_on_sigterm, run_script

WORKER_PAUSE_S = 4
REPLICA_PAUSE_S = 3
CUT_S = 8
LOSS = 0.2
ROUND_WITHIN_S = 350


def worker_killed(s):
    url = s.workers.urls[0]
    s.moment("worker_killed", "killed")
    killed = s.workers.children[url]
    killed.kill_group()
    s.excuses.append((None, url, time.monotonic()))
    s.after()
    s.moment("worker_killed", "started again")
    again = s.workers.children[url] = s.stack.enter_context(Child(killed.command, killed.log, announces=True))
    again.listening()
    s.after()


def worker_added(s):
    s.moment("worker_added", "announced")
    s.three.add(s.workers.urls[-1])
    s.moment("worker_added", "in all rings")
    s.after()


def worker_paused(s):
    child = s.workers.children[s.workers.urls[1]]
    s.moment("worker_paused", "stopped")
    child.process.send_signal(signal.SIGSTOP)
    s.rest(WORKER_PAUSE_S)
    s.moment("worker_paused", "goes on")
    child.process.send_signal(signal.SIGCONT)
    s.after()


def replica_killed(s):
    one = s.replicas[1]
    s.moment("replica_killed", "killed")
    s.kill_replica(one)
    s.after()
    s.start_replica(one)
    s.moment("replica_killed", "ready again")
    s.after()


def replica_paused(s):
    one = s.replicas[2]
    s.moment("replica_paused", "stopped")
    s.watch.leaves(one)
    one.process.send_signal(signal.SIGSTOP)
    s.rest(REPLICA_PAUSE_S)
    s.moment("replica_paused", "goes on")
    one.process.send_signal(signal.SIGCONT)
    s.watch.returns(one)
    s.after()


def partition(s):
    alone, *others = reversed(NAMES)
    s.moment("partition", "cut")
    s.relays.cut(*((alone, other) for other in others))
    s.rest(CUT_S)
    s.moment("partition", "healed")
    s.relays.cut()
    s.after()


def loss(s):
    s.moment("loss", f"{LOSS:.0%} of gossip lost")
    s.relays.lose(LOSS)
    s.rest(CUT_S)
    s.moment("loss", "ended")
    s.relays.lose(0.0)
    s.after()


def rolling(s):
    s.moment("rolling", "begun")
    for one in s.replicas:
        s.load.take_out(one.data)
        one.process.terminate()
        one.process.wait(BACK_WITHIN_S)
        s.watch.leaves(one)
        one.process.stdout.close()
        s.start_replica(one)
    s.moment("rolling", "all ready again")
    s.after()


FAULTS = {fault.__name__: fault for fault in (
    worker_killed, worker_added, worker_paused, replica_killed, replica_paused, partition, loss, rolling)}
QUICK = ("worker_killed", "replica_paused", "partition")


@contextlib.contextmanager
def limited(seconds):
    """`Failed` in this thread when what is within takes longer."""
    def late(*_):
        raise Failed(f"a round took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def arguments():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--grapevine", type=Path, required=True, help="the binary, built with --profile dist")
    ap.add_argument("--faults", nargs="+", choices=tuple(FAULTS), default=None)
    ap.add_argument("--rounds", type=int, default=1, help="with processes of their own; samples are added up")
    ap.add_argument("--rate", type=float, default=180, help="requests a second, to all replicas together")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--set", nargs="+", metavar="KEY=VALUE", default=[], help="of the replicas' configuration")
    ap.add_argument("--log-level", default="warn", help="of the replicas")
    ap.add_argument("--logs", type=Path, help="an empty or new folder that keeps all logs")
    ap.add_argument("--quick", action="store_true", help="three faults, shorter stretches: a bit over a minute")
    ap.add_argument("--json", type=Path, help="write all that was counted to this file")
    a = ap.parse_args()
    a.warm, a.before, a.after = (5, 5, 5) if a.quick else (10, 10, 7)
    a.faults = a.faults or (QUICK if a.quick else tuple(FAULTS))
    if min(a.rounds, a.rate) <= 0:
        ap.error("--rounds and --rate are above 0")
    return a


def main():
    a = arguments()
    binary, rows, stories, lost, begun = a.grapevine.resolve(), [], [], [], time.monotonic()
    with ending_on_sigterm(), tempfile.TemporaryDirectory(prefix="grapevine-faults-") as name:
        logs = a.logs or Path(name)
        for turn in range(a.rounds):
            scene, folder = None, logs / f"round-{turn + 1}"
            folder.mkdir(parents=True)
            try:
                with limited(ROUND_WITHIN_S), contextlib.ExitStack() as stack:
                    scene = Scene(stack, binary, folder, a, a.seed + turn)
                    scene.play([FAULTS[name] for name in a.faults])
            finally:
                # However the run ends, the measured figures are shown.
                if scene:
                    rows += rows_of(scene)
                    stories.append(story(scene))
                    lost += [o for o in scene.load.outcomes if not o.ok and not scene.explains(o)]
                    load = scene.load
                    print(f"round {turn + 1}: {len(load.outcomes)} requests, at most {load.late_s * 1000:.0f} ms late; "
                          f"{scene.cores or 0:.2f} of {os.cpu_count()} cores in the first healthy stretch, routers, "
                          f"workers, relays and client together; load average {os.getloadavg()[0]:.1f}; "
                          f"{time.monotonic() - begun:.0f} s")
                if rows and turn + 1 == a.rounds or sys.exc_info()[0]:
                    print_table(together(rows))
                if a.json:
                    a.json.write_text(json.dumps(stories, indent=1) + "\n")
    verdicts = [(f"{row['fault']}: {row['what']}", held(row)) for row in together(rows) if row["kind"] == "all"]
    for outcome in lost[:20]:
        print(f"failed and not explained: {outcome.address}, worker {outcome.worker}: {outcome.why}")
    for text, verdict in (("not back", "NO"), ("perhaps not back, repeat", "unsure")):
        found = [moment for moment, of in verdicts if of == verdict]
        if found:
            print(f"\n{text} within {SOON_S:g} s: {'; '.join(found)}")
    print(f"\nagreement back within {SOON_S:g} s after {sum(of == 'yes' for _, of in verdicts)} of "
          f"{sum(of != '-' for _, of in verdicts)} moments; {len(lost)} requests failed that no fault explains")
    return 1 if lost else 0


if __name__ == "__main__":
    run_script(main)
