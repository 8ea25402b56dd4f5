#!/usr/bin/env python3
"""Instructions of a request through one replica, by valgrind's callgrind: other work on the machine hardly changes them.

    instructions.py --grapevine [NAME=]BINARY ... --testbed BINARY [--requests 800] [--sizes 1024,8192] [--rounds 3]
                    [--keep FOLDER]

One thread of the router, 8 connections, answers of 40 tokens at once from 4 fake workers; prompts of `--sizes` bytes, of
200 kinds. Counted between two commands to callgrind, after a warm-up, for the whole process: gossip, probes and timers are
in it, so few requests give more each. Median of the rounds, least and most. Runs scatter by some thousands, since callgrind
runs one thread at a time. `--testbed` has the fake worker; what is shipped has none. Build with line tables and without
stripping (`cargo build --profile dist` with CARGO_PROFILE_DIST_STRIP=none), and `--keep` the profiles, to see functions by
`callgrind_annotate`.
Needs valgrind.
"""
import argparse
import http.client
import json
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

from processes import Child, Failed, Replica, answers, run_script, until
from routers import wait_until_routing

CONNECTIONS, WORKERS, PROMPTS = 8, 4, 200
ENGINE = ["--max-num-seqs", 512, "--step-per-sequence", "0s", "--step-base", "0s", "--prefill-tokens-per-s", 1e9,
          "--max-num-batched-tokens", 1_000_000, "--num-gpu-blocks", 200_000]


class Counted(Replica):
    """A replica whose instructions are counted on request. Valgrind starts it slowly."""

    def __init__(self, title, binary, folder, workers, keep):
        self.title, self.folder, self.keep = title, Path(folder), keep
        self.profile = self.folder / "callgrind.out"
        super().__init__(binary, "counted", folder,
                         ["--threads", 1, "--worker-urls", *(f"http://{worker}" for worker in workers)],
                         prefix=["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no",
                                 f"--callgrind-out-file={self.profile}"])

    def control(self, *words):
        done = subprocess.run(["callgrind_control", *words, str(self.pid)], capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise Failed(f"callgrind_control {' '.join(words)}: {done.stderr or done.stdout}")

    def count(self, work):
        """Instructions while `work` runs."""
        self.control("-i", "on")
        self.control("-z")
        work()
        before = set(self.folder.glob("callgrind.out*"))
        self.control("-d")
        new = until(lambda: set(self.folder.glob("callgrind.out*")) - before, 60, "a profile")
        self.control("-i", "off")
        profile = new.pop()
        if self.keep:
            shutil.copy(profile, self.keep / f"{self.title}.{profile.name}")
        totals = re.findall(r"^(?:totals|summary): (\d+)", profile.read_text(errors="replace"), re.MULTILINE)
        if not totals:
            raise Failed("the profile has no total")
        return int(totals[-1])


def bodies(size):
    filler = "the quick brown fox jumps over the lazy dog " * (size // 44 + 1)
    return [json.dumps({"model": "fake-model", "max_tokens": 40, "messages": [
        {"role": "user", "content": f"{number:08d} {filler}"[:size]}]}) for number in range(PROMPTS)]


def send(address, requests, prompts):
    """So many requests over all connections; every one has to be answered well."""
    problems = []

    def connection(slot):
        host, port = address.rsplit(":", 1)
        link = http.client.HTTPConnection(host, int(port), timeout=60)
        try:
            for number in range(slot, requests, CONNECTIONS):
                body = prompts[number % PROMPTS]
                link.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
                reply = link.getresponse()
                text = reply.read()
                if reply.status != 200:
                    raise Failed(f"{reply.status}: {text[:200]!r}")
        except (Failed, OSError, http.client.HTTPException) as problem:
            problems.append(problem)
        finally:
            link.close()

    threads = [threading.Thread(target=connection, args=(slot,)) for slot in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise Failed(f"requests failed: {problems[0]}")


def measure(title, binary, args, folder, workers):
    with Counted(title, binary, folder, workers, args.keep) as replica:
        wait_until_routing(replica, WORKERS)
        for size in args.sizes:
            prompts = bodies(size)
            send(replica.data, PROMPTS, prompts)
            counts = [replica.count(lambda: send(replica.data, args.requests, prompts)) / args.requests
                      for _ in range(args.rounds)]
            print(f"| {title} | {size} | {statistics.median(counts):,.0f} | {min(counts):,.0f} to {max(counts):,.0f} |",
                  flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--grapevine", action="append", required=True, metavar="[NAME=]BINARY")
    ap.add_argument("--testbed", required=True, metavar="BINARY")
    ap.add_argument("--requests", type=int, default=800)
    ap.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=[1_024, 8_192])
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--keep", type=Path, metavar="FOLDER", help="put the profile of each round there")
    args = ap.parse_args()
    if args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        workers = []
        for number in range(WORKERS):
            worker = stack.enter_context(Child([args.testbed, "fake-worker", "--port", 0, *ENGINE],
                                               Path(folder, f"worker{number}.log"), announces=True))
            workers.append(worker.listening()["http"])
        until(lambda: all(answers(worker, "/health") for worker in workers), 15, "workers that answer")
        print("| build | bytes of prompt | instructions a request | rounds |\n|---|---|---|---|")
        for named in args.grapevine:
            name, _, binary = named.rpartition("=")
            own = Path(folder, name or "grapevine")
            own.mkdir()
            measure(name or "grapevine", binary, args, own, workers)


if __name__ == "__main__":
    run_script(main)
