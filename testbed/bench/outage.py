#!/usr/bin/env python3
"""The API server away for minutes, back with a compacted history and other pods: is a worker lost, or one kept that is gone?

    outage.py --grapevine BINARY [--seconds 600] [--workers 12] [--change 3] [--rate 5] [--json FILE]

Three replicas with the default times of discovery watch pods of a fake API server, under load. It refuses all
connections for `--seconds`; in the middle, `--change` workers end and as many others begin, of which nobody can say
anything. It comes back as real ones do, with 503 to lists and watches at first; by then the pods of the workers that
ended are deleted, the new ones are there, one pod was made anew under its name at another address, and the history is
compacted. Every second of the outage all replicas must have exactly the workers of its beginning, and one unchanged
digest. Reported: requests, failed ones, and the times from the end of the 503s until the source is seen, the new workers
are in use everywhere, and the gone ones are removed everywhere.
"""
import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from processes import Failed, ask, cluster, ending_on_sigterm, run_script, show, until
from rollout import KubernetesSource, Load, REPLICAS, used, worker

FIRST_WITHIN_S, BACK_WITHIN_S = 60, 180


def command(source, method, path, body=None):
    """A command to the fake API server."""
    status, _, reply = ask(source.control, method, f"/fake/{path}", body and json.dumps(body))
    if status >= 300:
        raise Failed(f"the API server answers {status} to {path}: {reply[:300]!r}")


def known(replicas):
    """The workers and the digest of each replica, which is one pair while they agree."""
    def of(replica):
        ids = frozenset((w["id"], w["url"]) for w in replica.admin_get("/workers")["workers"])
        return ids, replica.admin_get("/ring")["digest"]

    return {of(replica) for replica in replicas}


def source_is(up, replicas):
    return all(source["up"] == up for r in replicas for source in r.admin_get("/discovery")["sources"]
               if source["source"] == "kubernetes")


def pass_outage(replicas, seconds, in_the_middle):
    """Looks every second whether anything changed, and how often it was asked."""
    before, looks, begun, is_done = known(replicas), 0, time.monotonic(), False
    if len(before) != 1:
        raise Failed("the replicas did not agree at the beginning")
    while (passed := time.monotonic() - begun) < seconds:
        if passed > seconds / 2 and not is_done:
            in_the_middle()
            is_done = True
        now, looks = known(replicas), looks + 1
        if now != before:
            raise Failed(f"{passed:.0f} s after the API server went, workers or digests changed: {before} became {now}")
        time.sleep(1)
    return looks


def outage(binary, folder, a):
    with contextlib.ExitStack() as stack:
        source = KubernetesSource(folder, stack, binary)
        config = folder / "grapevine.toml"
        config.write_text(source.settings())
        old = [worker(binary, folder, n, stack) for n in range(a.workers)]
        urls = [url for _, url in old]
        arguments = ["--config", config, "--log-level", "warn", *source.arguments()]
        replicas = stack.enter_context(cluster(binary, folder / "replicas", REPLICAS, [], arguments))
        source.write(urls)
        until(lambda: used(replicas, urls), FIRST_WITHIN_S, f"{a.workers} workers in use")
        load = Load([r.data for r in replicas], a.rate, a.workers)
        new = []

        def replace_processes():
            load.phase = "changed"
            for process, _ in old[:a.change]:
                process.process.terminate()
            # One more for the pod that is made anew.
            new.extend(worker(binary, folder, a.workers + n, stack)[1] for n in range(a.change + 1))

        try:
            time.sleep(3)
            load.phase = "away"
            command(source, "POST", "network", {"state": "refusing"})
            until(lambda: source_is(False, replicas), FIRST_WITHIN_S, "no replica sees the API server")
            looks = pass_outage(replicas, a.seconds, replace_processes)
            for verb in ("list", "watch"):
                command(source, "POST", "faults", {"when": {"verb": verb}, "fault": "unavailable"})
            command(source, "POST", "network", {"state": "open"})
            anew = old[a.change][1]
            name = source.pods.pop(anew)
            source.call("DELETE", f"/{name}", {"gracePeriodSeconds": 0})
            source.create(name, new[0])
            kept = [url for _, url in old[a.change + 1:]]
            source.write(kept + new, grace_s=0)
            command(source, "POST", "revisions", {"count": 5000})
            command(source, "POST", "compact")
            begun = time.monotonic()
            load.phase = "back"
            command(source, "DELETE", "faults")
            until(lambda: source_is(True, replicas), BACK_WITHIN_S, "all replicas see the API server")
            seen_s = time.monotonic() - begun
            until(lambda: used(replicas, kept + new), BACK_WITHIN_S, "just the pods that are there are in use")
            used_s = time.monotonic() - begun

            def just_those():
                views = known(replicas)
                return len(views) == 1 and {url for _, url in next(iter(views))[0]} == set(kept + new)

            until(just_those, BACK_WITHIN_S, "the workers of deleted pods are removed")
            removed_s = time.monotonic() - begun
            time.sleep(3)
        finally:
            done = load.stop()
        failed = {phase: sum(p == phase and not ok for p, ok, *_ in done) for phase in dict.fromkeys(d[0] for d in done)}
        return {"seconds": a.seconds, "looks": looks, "requests": len(done), "failed": failed, "seen_s": seen_s,
                "used_s": used_s, "removed_s": removed_s, "workers": len(kept + new)}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--grapevine", type=Path, required=True, help="the binary, with the testbed and feature kubernetes")
    ap.add_argument("--seconds", type=float, default=600, help="how long the API server is away")
    ap.add_argument("--workers", type=int, default=12)
    ap.add_argument("--change", type=int, default=3, help="workers that end meanwhile, and others that begin")
    ap.add_argument("--rate", type=float, default=5, help="requests a second")
    ap.add_argument("--json", type=Path, help="write the figures to this file")
    a = ap.parse_args()
    if a.workers < a.change + 2:
        ap.error("--workers: at least two more than --change")
    with ending_on_sigterm(), tempfile.TemporaryDirectory(prefix="grapevine-outage-") as folder:
        row = outage(a.grapevine.resolve(), Path(folder), a)
    show(row, a.json)
    print(f"load average {os.getloadavg()[0]:.1f}", file=sys.stderr)


if __name__ == "__main__":
    run_script(main)
