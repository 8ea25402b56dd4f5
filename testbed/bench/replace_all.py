#!/usr/bin/env python3
"""Every worker replaced at once: a file of thousands is renamed over another one, three replicas watch it by themselves.

    replace_all.py --grapevine BINARY [--testbed BINARY] [--workers 5000] [--hold 30] [--set SECTION.KEY=VALUE ...] [--json FILE]

One fake worker listens on every address of the loopback network, so that each of 127.x.y.z is a worker. The replicas
learn the first half by the file, then the other half stands in it and none of the first. Reported, from the rename on:
the time until the new workers are on the ring of every replica, and until only they are, each with one digest;
meanwhile at each replica the fleets that were made, the gossip that was sent, CPU, resident memory before, at most, and
after. Requests are sent all the time.
"""
import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from grow import Clients, counter, quantile, spent
from processes import Child, cluster, ending_on_sigterm, run_script, show, until
from rollout import FileSource, MODEL, REPLICAS

FIRST_WITHIN_S, REPLACED_WITHIN_S = 300, 600


class LabelledFile(FileSource):
    """With the model, so that thousands of workers need not be asked for it."""

    def write(self, urls):
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps([{"targets": urls, "labels": {"model": MODEL}}]))
        os.replace(new, self.path)


def memory(replica, field):
    """MiB of `VmRSS` or `VmHWM`."""
    lines = Path(f"/proc/{replica.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field + ":")).split()[1]) / 1024


def one_ring(replicas, count, other_than=None):
    """The digest, if all replicas have one ring, of so many workers."""
    rings = [r.admin_get("/ring") for r in replicas]
    whole = all(ring["workers"] == count and sum(pool["count"] for pool in ring["pools"]) == count for ring in rings)
    digests = {ring["digest"] for ring in rings}
    return digests.pop() if whole and len(digests) == 1 and other_than not in digests else None


def sent(replica):
    """Bytes by plane."""
    planes = counter(replica, "grapevine_gossip_bytes_total")
    return {labels.split('plane="')[1].split('"')[0]: value for labels, value in planes.items() if '"out"' in labels}


def look(replica):
    fleets = sum(counter(replica, "grapevine_fleets_total").values())
    return {"fleets": fleets, "sent": sent(replica), "cpu": spent(replica.pid)}


def addresses(replica):
    """Every page of the list of workers."""
    urls, after = set(), ""
    while after is not None:
        page = replica.admin_get("/workers" + (f"?after={after}" if after else ""))
        urls |= {worker["url"] for worker in page["workers"]}
        after = page.get("next")
    return urls


def run(a, folder):
    with contextlib.ExitStack() as stack:
        fake = [a.testbed or a.grapevine, "fake-worker", "--host", "0.0.0.0", "--port", 0, "--exit-on-sigterm"]
        fake = stack.enter_context(Child(fake, folder / "worker.log", announces=True))
        port = fake.listening()["http"].rsplit(":", 1)[1]
        half = lambda number: [f"127.{number}.{n // 250}.{n % 250 + 1}:{port}" for n in range(a.workers)]
        source = LabelledFile(folder, stack, a.grapevine)
        config = folder / "grapevine.toml"
        settings = [word.partition("=") for word in [f'discovery.hold="{a.hold:g}s"', *a.set]]
        config.write_text("".join(f"[{name.split('.')[0]}]\n{name.split('.')[1]} = {value}\n" for name, _, value in settings))
        replicas = stack.enter_context(cluster(
            a.grapevine, folder / "cluster", REPLICAS, [],
            ["--config", config, "--log-level", "warn", "--disable-access-log", *source.arguments()]))
        source.write(half(1))
        first = until(lambda: one_ring(replicas, a.workers), FIRST_WITHIN_S, "one digest of the first workers", 0.1)
        clients = Clients(replicas)
        stack.callback(clients.end)
        time.sleep(a.quiet)
        quiet = clients.taken()
        before, rss = [look(r) for r in replicas], [memory(r, "VmRSS") for r in replicas]
        for replica in replicas:
            Path(f"/proc/{replica.pid}/clear_refs").write_text("5")     # VmHWM begins anew
        began = time.monotonic()
        source.write(half(2))
        until(lambda: one_ring(replicas, 2 * a.workers), REPLACED_WITHIN_S, "the new workers on one ring", 0.1)
        joined = time.monotonic() - began
        until(lambda: one_ring(replicas, a.workers, first), REPLACED_WITHIN_S, "only the new workers on one ring", 0.1)
        replaced = time.monotonic() - began
        after, busy = [look(r) for r in replicas], clients.taken()
        most = [memory(r, "VmHWM") for r in replicas]
        wanted = {f"http://{target}" for target in half(2)}
        wrong = sum(addresses(r) != wanted for r in replicas)
        time.sleep(a.quiet)
        until(lambda: all(r.admin_get("/cluster")["agreeing"] == len(replicas) for r in replicas), FIRST_WITHIN_S,
              "replicas that agree")
        agreed = time.monotonic() - began
        return {"workers": a.workers, "joined_s": joined, "replaced_s": replaced, "agreed_s": agreed, "wrong_lists": wrong,
                "fleets": [now["fleets"] - was["fleets"] for was, now in zip(before, after)],
                "sent_MB": [{plane: round((value - was["sent"].get(plane, 0)) / 1e6, 2)
                             for plane, value in now["sent"].items()} for was, now in zip(before, after)],
                "cpu_s": [round(now["cpu"] - was["cpu"], 1) for was, now in zip(before, after)],
                "rss_MiB": [[round(v) for v in row] for row in zip(rss, most, [memory(r, "VmRSS") for r in replicas])],
                "requests": len(quiet) + len(busy), "failed": clients.failed,
                "quiet_p99_ms": quantile(quiet, .99) * 1e3, "busy_p99_ms": quantile(busy, .99) * 1e3,
                "load_average": os.getloadavg()[0]}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--grapevine", type=Path, required=True, help="the binary; figures are of --profile dist")
    ap.add_argument("--testbed", type=Path, help="the binary that is the workers, where the first one has no testbed")
    ap.add_argument("--workers", type=int, default=5000)
    ap.add_argument("--hold", type=float, default=30, help="discovery.hold in seconds")
    ap.add_argument("--set", nargs="*", default=[], metavar="SECTION.KEY=VALUE", help="further settings, one of each section")
    ap.add_argument("--quiet", type=float, default=5, help="seconds before and after")
    ap.add_argument("--json", type=Path, help="write the figures to this file")
    a = ap.parse_args()
    a.grapevine = a.grapevine.resolve()
    with ending_on_sigterm(), tempfile.TemporaryDirectory(prefix="grapevine-replace-") as folder:
        row = run(a, Path(folder))
    show(row, a.json)
    return 1 if row["wrong_lists"] else 0


if __name__ == "__main__":
    run_script(main)
