#!/usr/bin/env python3
"""The cost of a request that is divided between a prefill and a decode worker, next to one that a single worker takes.

    split_cost.py --grapevine BINARY [--rounds 3] [--requests 3000] [--clients 16]

One replica in front of two whole workers, and one in front of two prefill and two decode workers (NIXL, fake engines
that compute at once), take turns with the same load: plain chats with prompts of 1, 8 and 64 KB, answers of 8 tokens.
CPU microseconds a request come from the operating system's accounting of the replica's process, so other work on the
machine disturbs little; a divided request has two legs. Medians of the rounds.
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

from processes import Failed, Replica, ask, ending_on_sigterm, fake_workers, run_script, until

# Every prompt is divided here, also a short one.
os.environ["GRAPEVINE_TRANSFER__SHORT_PROMPT_TOKENS"] = "0"

TICKS = os.sysconf("SC_CLK_TCK")
SIZES = {"1 KB": 1_024, "8 KB": 8_192, "64 KB": 65_536}
ENGINE = ["--max-num-seqs", 1_024, "--step-base", "100us", "--step-per-sequence", "0s", "--prefill-tokens-per-s", 1e9,
          "--max-num-batched-tokens", 1_000_000, "--num-gpu-blocks", 200_000]
NIXL = ["--kv-connector", "nixl", "--transfer-bytes-per-s", 1e15]
START_S = 20


def cpu_s(replica):
    fields = Path(f"/proc/{replica.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def load(binary, replica, size, requests, clients, seed):
    """CPU microseconds a request of one run."""
    command = [binary, "bench", "--model", "fake-model", "--url", f"http://{replica.data}", "--requests", requests, "--concurrency", clients,
               "--shared-bytes", size * 3 // 4,
               "--own-bytes", size // 4, "--max-tokens", 8, "--plain", "--seed", seed, "--json"]
    before = cpu_s(replica)
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    used = cpu_s(replica) - before
    if done.returncode:
        raise Failed(f"bench ended with {done.returncode}: {done.stdout[-500:]} {done.stderr[-500:]}")
    return used / requests * 1e6


def served(replica):
    status, _, _ = ask(replica.data, "GET", "/v1/models")
    return status == 200 and replica.admin_get("/cluster")["ready"]


def measure(binary, folder, rounds, requests, clients):
    with contextlib.ExitStack() as stack:
        def workers(name, arguments):
            place = Path(folder, name)
            place.mkdir()
            return stack.enter_context(fake_workers(binary, place, 2, [*ENGINE, *arguments]))

        whole = workers("whole", [])
        prefill = workers("prefill", [*NIXL, "--role", "prefill"])
        decode = workers("decode", [*NIXL, "--role", "decode"])
        replicas = {
            "one worker": ["--worker-urls", *whole],
            "a pair": [*(word for url in prefill for word in ("--prefill", url)),
                       *(word for url in decode for word in ("--decode", url))],
        }
        replicas = {title: stack.enter_context(Replica(binary, f"r{number}", folder, arguments))
                    for number, (title, arguments) in enumerate(replicas.items())}
        for title, replica in replicas.items():
            until(lambda replica=replica: served(replica), START_S, f"{title} to be served")
        results = {}
        for case, size in SIZES.items():
            for replica in replicas.values():
                load(binary, replica, size, requests // 4, clients, 0)
            for turn in range(rounds):
                for title, replica in replicas.items():
                    used = load(binary, replica, size, requests, clients, 1 + turn)
                    results.setdefault((case, title), []).append(used)
                    print(f"{case}, round {turn + 1}, {title}: {used:.0f} us", file=sys.stderr)
        return results


def table(results):
    rows = ["| prompt | one worker, CPU us/request | a pair, CPU us/request | a leg of the pair / one worker |", "|---|---|---|---|"]
    for case in SIZES:
        one, pair = (statistics.median(results[case, title]) for title in ("one worker", "a pair"))
        rows.append(f"| {case} | {one:.0f} | {pair:.0f} | {pair / 2 / one:.2f} |")
    return "\n".join(rows)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--grapevine", type=Path, required=True)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--requests", type=int, default=3_000)
    ap.add_argument("--clients", type=int, default=16)
    a = ap.parse_args()
    with ending_on_sigterm(), tempfile.TemporaryDirectory() as folder:
        print(table(measure(a.grapevine.resolve(), Path(folder), a.rounds, a.requests, a.clients)))


if __name__ == "__main__":
    run_script(main)
