#!/usr/bin/env python3
"""The number of replicas that this machine can run, and the cost of each: real processes, one fake worker.

    many.py --grapevine BINARY [--replicas 3 8 16 32] [--seconds 10] [--json FILE]

For each size: replicas start one after the other, each with the first two as seeds. Join is the time from the last
one's start until every one of them is ready and agrees with all; bytes and messages are payload sent by gossip, from
`/metrics`, with no requests; CPU is user and system time, RSS resident memory, all three as the mean of the replicas
over `--seconds`. Last, one replica is killed: seen is the time until every other one sees it as dead.
"""
import argparse
import concurrent.futures
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from processes import Failed, Replica, ask, ending_on_sigterm, fake_workers, run_script, until

JOIN_WITHIN_S = 120
SEEN_WITHIN_S = 60
SETTLE_S = 3


def spent(pid):
    """CPU seconds of a process so far, and its resident KiB."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    status = Path(f"/proc/{pid}/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(resident.split()[1])


def sent(replica):
    """Gossip payload sent so far: {plane: [bytes, messages]}."""
    status, _, body = ask(replica.admin, "GET", "/metrics")
    if status != 200:
        raise Failed(f"{replica.name}: GET /metrics gave {status}")
    planes = {}
    for line in body.decode().splitlines():
        for at, name in enumerate(("grapevine_gossip_bytes_total{", "grapevine_gossip_frames_total{")):
            if line.startswith(name) and 'direction="out"' in line:
                plane = line.split('plane="')[1].split('"')[0]
                planes.setdefault(plane, [0, 0])[at] = float(line.rsplit(" ", 1)[1])
    return planes


def everyone(replicas, what):
    """`what` of all replicas, asked a few at a time."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return list(pool.map(what, replicas))


def row(binary, folder, size, seconds):
    names = [f"r{number}" for number in range(1, size + 1)]
    ca = folder / "ca"
    for command in (["init"], ["issue", *names]):
        subprocess.run([binary, "ca", *command, "--dir", ca], check=True, stdout=subprocess.DEVNULL)
    with contextlib.ExitStack() as stack:
        urls = stack.enter_context(fake_workers(binary, folder, 1))
        replicas = []
        for name in names:
            files = ["--gossip-ca", ca / "ca.pem", "--gossip-cert", ca / f"{name}.pem",
                     "--gossip-key", ca / f"{name}.key"]
            seeds = [word for r in replicas[:2] for word in ("--seed", r.gossip)]
            workers = ["--worker-urls", *urls] if not replicas else []
            arguments = [*files, *seeds, *workers, "--log-level", "warn"]
            replicas.append(stack.enter_context(Replica(binary, name, folder, arguments)))
        last = time.monotonic()

        def agreed():
            views = everyone(replicas, lambda r: r.admin_get("/cluster"))
            return all(view["ready"] and view["agreeing"] == size for view in views)

        until(agreed, JOIN_WITHIN_S, f"{size} replicas that agree", 0.05)
        join = time.monotonic() - last
        time.sleep(SETTLE_S)
        before = everyone(replicas, lambda r: (time.monotonic(), sent(r), *spent(r.pid)))
        time.sleep(seconds)
        after = everyone(replicas, lambda r: (time.monotonic(), sent(r), *spent(r.pid)))
        planes, cpu = {}, 0.0
        for (then, planes_then, cpu_then, _), (now, planes_now, cpu_now, _) in zip(before, after):
            cpu += (cpu_now - cpu_then) / (now - then) / size
            for plane, counts in planes_now.items():
                mean = planes.setdefault(plane, [0.0, 0.0])
                for at, old in enumerate(planes_then.get(plane, [0, 0])):
                    mean[at] += (counts[at] - old) / (now - then) / size
        victim, others = replicas[-1], replicas[:-1]
        killed = time.monotonic()
        os.killpg(victim.pid, signal.SIGKILL)

        def seen():
            views = everyone(others, lambda r: r.admin_get("/cluster"))
            return all(not of["live"] for view in views for of in view["replicas"] if of["id"] == victim.name)

        until(seen, SEEN_WITHIN_S, f"the death of one of {size}", 0.05)
        return {"replicas": size, "join_s": join, "kill_seen_s": time.monotonic() - killed, "planes": planes,
                "bytes_s": sum(of[0] for of in planes.values()), "messages_s": sum(of[1] for of in planes.values()),
                "cpu_ms_s": cpu * 1000, "rss_mib": sum(of[3] for of in after) / size / 1024}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--grapevine", type=Path, required=True, help="the binary; figures are of --profile dist")
    ap.add_argument("--replicas", type=int, nargs="+", default=[3, 8, 16, 32], help="sizes, one row each")
    ap.add_argument("--seconds", type=float, default=10, help="measured in each row")
    ap.add_argument("--json", type=Path, help="write the rows to this file")
    a = ap.parse_args()
    rows = []
    print("| replicas | join s | kill seen s | bytes/s | messages/s | CPU ms/s | RSS MiB | load average |\n"
          "|---|---|---|---|---|---|---|---|")
    with ending_on_sigterm():
        for size in a.replicas:
            with tempfile.TemporaryDirectory(prefix="grapevine-many-") as folder:
                r = row(a.grapevine.resolve(), Path(folder), size, a.seconds)
            rows.append(r)
            print(f"| {size} | {r['join_s']:.1f} | {r['kill_seen_s']:.1f} | {r['bytes_s']:,.0f} | {r['messages_s']:,.0f} "
                  f"| {r['cpu_ms_s']:.1f} | {r['rss_mib']:.0f} | {os.getloadavg()[0]:.1f} |", flush=True)
            planes = sorted(r["planes"].items(), key=lambda of: -of[1][0])
            print("  " + "; ".join(f"{name} {b:,.0f} B/s {n:,.0f}/s" for name, (b, n) in planes), file=sys.stderr)
    if a.json:
        a.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
